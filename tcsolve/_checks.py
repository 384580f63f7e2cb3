"""Checks of the arguments of a solve.  An error says what was passed, what is needed and what to do."""

import numpy as np
import scipy.sparse

from tcsolve._arrays import is_cupy, require_aligned
from tcsolve._errors import InputError
from tcsolve._plan import MODEL_NAMES, PRECISIONS, Plan, is_update

__all__ = [
    "STRUCTURES",
    "check_array",
    "check_options",
    "check_shapes",
    "check_trans",
    "require_finite",
    "require_hermitian",
    "result_dtype",
]

# The values of `assume_a` in SciPy, and the long name of each.
STRUCTURES = {
    None: None,
    "general": "general",
    "gen": "general",
    "diagonal": "diagonal",
    "tridiagonal": "tridiagonal",
    "banded": "banded",
    "upper triangular": "upper triangular",
    "lower triangular": "lower triangular",
    "symmetric": "symmetric",
    "sym": "symmetric",
    "hermitian": "hermitian",
    "her": "hermitian",
    "positive definite": "positive definite",
    "pos": "positive definite",
}
# The values of `trans`, and the number of each.
TRANS = {0: 0, 1: 1, 2: 2, "N": 0, "T": 1, "C": 2}


def check_array(x, name):
    """Return x as a dense numeric NumPy or CuPy array.

    A NumPy array is copied only if its entries are not aligned to their size, or have a foreign byte order.
    LAPACK does not accept all such arrays.  A CuPy array that is not aligned raises an InputError.
    """
    if type(x) is np.ndarray and x.dtype.char in "fdFD" and _is_ordinary(x):  # nearly always
        return x
    if is_cupy(x):
        require_aligned(x, name)
    elif scipy.sparse.issparse(x):
        raise InputError(
            f"{name} is a sparse {type(x).__name__}; a dense array is needed: "
            f"use scipy.sparse.linalg.spsolve, or {name}.toarray() if it fits in memory"
        )
    elif np.ma.isMaskedArray(x):
        raise InputError(f"{name} is a masked array; fill it first, as with {name}.filled()")
    else:
        try:
            x = np.asarray(x)
        except ValueError as error:
            raise InputError(f"{name} is not a rectangular array of numbers: {error}") from None
    if x.dtype.kind not in "biufc" and not _is_bfloat16(x.dtype):
        raise InputError(
            f"{name} has dtype {x.dtype}; numbers are needed: "
            f"convert with np.asarray({name}, dtype=float)"
        )
    if isinstance(x, np.ndarray) and not _is_ordinary(x):
        x = x.astype(x.dtype.newbyteorder("="))
    return x


def _is_ordinary(x):
    """Tell whether all entries are aligned to their size and have the byte order of this machine."""
    dtype = x.dtype
    if dtype.alignment == dtype.itemsize:
        return dtype.isnative and x.flags.aligned
    return dtype.isnative and all(step % x.itemsize == 0 for step in (x.ctypes.data, *x.strides))


def _is_bfloat16(dtype):
    # ml_dtypes registers bfloat16 as a dtype of kind 'V'.
    return dtype.kind == "V" and dtype.name == "bfloat16"


def result_dtype(a, b):
    """Return the dtype of SciPy's answer: float32, float64, complex64 or complex128."""
    if a.dtype == b.dtype and a.dtype.char in "fdFD":
        return a.dtype.newbyteorder("=")
    kinds = [np.dtype(np.float32) if _is_bfloat16(x.dtype) else x.dtype for x in (a, b)]
    common = np.result_type(*kinds)
    if common.kind in "biu":
        return np.dtype(np.float64)
    if common.kind == "c":
        return np.dtype(np.complex64 if common.itemsize <= 8 else np.complex128)
    return np.dtype(np.float32 if common.itemsize <= 4 else np.float64)


def check_shapes(a, b):
    """Return (shape of x, whether b is a vector) by SciPy's broadcasting rules, or raise an InputError.

    A 1-D or 0-D b is the same vector for every matrix of the stack a.  Any other b has shape (..., n, nrhs).
    """
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise InputError(
            f"Expected square matrix: a has shape {a.shape}, (..., n, n) is needed; "
            "use tcsolve.lstsq for a rectangular one"
        )
    n = a.shape[-1]
    vector = b.ndim < 2
    rows = b.shape[0] if b.ndim == 1 else 1 if b.ndim == 0 else b.shape[-2]
    if rows != n:
        raise InputError(
            f"incompatible shapes: a has shape {a.shape} and b has shape {b.shape}; "
            f"b needs {n} rows (1-D b is one vector, otherwise (..., {n}, nrhs))"
        )
    if vector:
        return a.shape[:-1], True
    if a.ndim == b.ndim == 2:  # for a small solve, broadcast_shapes takes long
        return b.shape, False
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise InputError(
            f"incompatible shapes: the leading dimensions of a {a.shape} and b {b.shape} "
            "do not broadcast; make them equal or 1"
        ) from None
    return (*batch, n, b.shape[-1]), False


def check_options(assume_a, precision, device):
    """Return the long name of the structure, or raise an InputError if an option is not recognized."""
    if not (assume_a is None or isinstance(assume_a, str)) or assume_a not in STRUCTURES:
        raise InputError(
            f"{assume_a!r} is not a recognized matrix structure; assume_a needs None or one of "
            + ", ".join(repr(name) for name in STRUCTURES if name)
        )
    named = isinstance(precision, str) and precision == "auto" or is_update(precision)
    if not (named or isinstance(precision, Plan)):
        raise InputError(
            f"precision is {precision!r}; it needs a Plan or one of {', '.join(PRECISIONS)}, or an "
            f"emulated arithmetic: {', '.join(MODEL_NAMES)}"
        )
    if not isinstance(device, str) or device not in ("auto", "cpu", "cuda"):
        raise InputError(f"device is {device!r}; it needs 'auto', 'cpu' or 'cuda'")
    return STRUCTURES[assume_a]


def check_trans(trans):
    """Return 0, 1 or 2 for A, A^T or A^H, or raise an InputError."""
    if not isinstance(trans, int | str | np.integer) or trans not in TRANS:
        raise InputError(f"trans is {trans!r}; it needs 0 or 'N', 1 or 'T', 2 or 'C'")
    return TRANS[trans]


def require_finite(ok, name):
    """Raise the error that SciPy raises for NaN or Inf, unless `ok`."""
    if not ok:
        raise InputError(
            f"array must not contain infs or NaNs: {name} does; clean it, or pass "
            "check_finite=False to get NaN in the affected entries of x"
        )


def require_hermitian(a):
    """Raise an InputError unless the matrix a equals its conjugate transpose."""
    if not bool((a == a.conj().T).all()):
        raise InputError(
            "method='cg': a is not equal to its conjugate transpose, which conjugate gradients need; use "
            "(a + a.conj().T) / 2 if only rounding differs, else method='fgmres'"
        )
