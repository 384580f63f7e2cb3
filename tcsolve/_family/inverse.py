"""`inv` and `det`."""

import functools

import numpy as np
import scipy.linalg

from tcsolve._arrays import is_cupy
from tcsolve._backends.cpu.lu import lapack_of
from tcsolve._backends.select import ops_for
from tcsolve._checks import STRUCTURES, result_dtype
from tcsolve._errors import InputError, UnknownStructureError
from tcsolve._family.device_memory import guards_memory
from tcsolve._family.probes import error_of_factors, error_of_inverse, product
from tcsolve._family.stacks import over_stacks
from tcsolve._family.verification import warn_missed
from tcsolve._refine import stopping
from tcsolve._solve.api import factor, solve
from tcsolve._solve.problem.structures import interpret, is_mirrored

__all__ = ["det", "inv", "verify_inverse"]

# The structures that SciPy's inv knows, by their long names, and its name of each.
STRUCTURES_OF_INV = {
    None: None,
    "general": "general",
    "diagonal": "diagonal",
    "upper triangular": "upper triangular",
    "lower triangular": "lower triangular",
    "symmetric": "sym",
    "hermitian": "her",
    "positive definite": "pos",
}
# SciPy's own functions; `installed` may rebind these names in scipy.linalg.
_inv, _det = scipy.linalg.inv, scipy.linalg.det


@guards_memory
def inv(a, overwrite_a=False, check_finite=True, *, assume_a=None, lower=False):
    """Return the inverse of a matrix, verified.

    This function replaces `scipy.linalg.inv`.

    Parameters
    ----------
    a : array_like, shape (..., n, n)
        The matrix, or a stack of matrices; NumPy or CuPy.
    overwrite_a : bool
        Allow writing the inverse to the memory of a.
    check_finite : bool
        Raise a ValueError if a holds NaN or Inf.
    assume_a : str, optional
        The structure of A: 'gen', 'diagonal', 'upper triangular', 'lower triangular', 'sym', 'her' or 'pos'.
        The long names 'general', 'symmetric', 'hermitian' and 'positive definite' are accepted too.  For
        NumPy arrays, `assume_a` and `lower` need SciPy 1.17 or later.
    lower : bool
        Whether 'sym', 'her' and 'pos' read the lower triangle.

    Returns
    -------
    x : array, shape (..., n, n)

    Raises
    ------
    LinAlgError
        A pivot is exactly zero; with 'pos', A is not positive definite.
    ValueError
        a is not square, or holds NaN or Inf.
    InputError
        `assume_a` is no such structure.  As in SciPy, this is also a KeyError.
    DeviceError, DeviceMemoryError
        As in `solve`, for CuPy arrays.

    Warns
    -----
    LinAlgWarning
        A is ill-conditioned.  For NumPy arrays, SciPy gives this warning from version 1.17 on.
    AccuracyWarning
        Both residuals, ``||I - A X||`` and ``||I - X A||``, are above ``u sqrt(n) ||A|| ||X||``.  For CuPy
        arrays: the backward error of a column of X is above ``u sqrt(n)``.

    Notes
    -----
    NumPy arrays are inverted by SciPy.  The residual is measured for all columns if n <= 32, and for four
    random vectors of signs otherwise.  CuPy arrays are inverted by `solve`, which verifies each column.

    Examples
    --------
    >>> from tcsolve import inv
    >>> bool((inv([[2.0, 0], [0, 4]]) == [[0.5, 0], [0, 0.25]]).all())
    True
    """
    structure = _structure_of(assume_a)
    if is_cupy(a):
        return _inv_on_device(a, check_finite, structure, lower)
    a, overwrite_a = _for_scipy(a, overwrite_a, assume_a)
    kept = np.array(a) if overwrite_a else a
    how = {"assume_a": STRUCTURES_OF_INV[structure], "lower": lower}
    how = how if assume_a is not None or lower else {}  # SciPy before 1.17 has no such options
    x = _inv(a, overwrite_a=overwrite_a, check_finite=check_finite, **how)
    kept = np.asarray(kept)
    if x.size and kept.dtype.kind in "biufc":
        verify_inverse(interpret(np, kept, structure, lower), x, "inv")
    return x


def _for_scipy(a, overwrite_a, assume_a):
    """Return (a, overwrite_a) for SciPy's function.

    If SciPy 1.17 overwrites a column-major matrix that it finds to be symmetric, the process may crash.  It
    also overwrites its own copy of a matrix that it has to convert.  And it takes no byte-swapped or
    unaligned numbers.
    """
    given = np.asarray(a)
    if np.ma.isMaskedArray(a) or given.dtype.kind not in "biufc":
        return a, overwrite_a
    if not (given.dtype.char in "fdFD" and given.dtype.isnative and given.flags.aligned):
        return np.array(given, given.dtype.newbyteorder("="), order="C"), False
    if not overwrite_a or given.flags.c_contiguous or assume_a is not None:
        return given, overwrite_a and given.flags.writeable
    is_square = given.ndim == 2 and given.shape[0] == given.shape[1]
    return given, is_square and given.flags.writeable and not _is_symmetric(given)


def _is_symmetric(a):
    """Tell whether the matrix a is symmetric or Hermitian; the corners usually show that it is neither."""
    if a.size and a[0, -1] not in (a[-1, 0], a[-1, 0].conj()):
        return False
    is_complex = a.dtype.kind == "c"
    return is_mirrored(a, conjugate=False) or is_complex and is_mirrored(a, conjugate=True)


def _structure_of(assume_a):
    """Return the long name of a structure that `inv` knows, or None."""
    names = [name for name, long in STRUCTURES.items() if name and long in STRUCTURES_OF_INV]
    if assume_a is not None and assume_a not in names:
        raise UnknownStructureError(
            f"inv: assume_a is {assume_a!r}; it needs None or one of {', '.join(map(repr, names))}"
        )
    return STRUCTURES[assume_a]


def verify_inverse(a, x, name):
    """Measure the inverse x of a; if it misses the bound, correct it in place, and warn if it still does."""
    bound = stopping.target(x.dtype, x.shape[-1])
    with np.errstate(all="ignore"):
        error = error_of_inverse(a, x, bound)
        if (error <= bound).all():
            return
        wide = x.astype(np.result_type(x, np.float64))
        rest = np.eye(x.shape[-1]) - product(a, wide)
        better = wide + product(wide, rest)  # one step of Newton's method
        after = error_of_inverse(a, better.astype(x.dtype))
        less = after < error
        x[...] = np.where(less[..., None, None], better, x)
        error = np.where(less, after, error)
    if not (error <= bound).all() and np.isfinite(a).all():
        warn_missed(name, error, bound)


def _inv_on_device(a, check_finite, structure, lower):
    ops = ops_for(a)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise InputError(f"inv: a has shape {a.shape}; (..., n, n) is needed")
    unit = ops.xp.eye(a.shape[-1], dtype=result_dtype(a, a))
    return solve(a, unit, lower, check_finite=check_finite, assume_a=structure)


@guards_memory
def det(a, overwrite_a=False, check_finite=True):
    """Return the determinant of a matrix, from factors whose error is measured.

    This function replaces `scipy.linalg.det`.

    Parameters
    ----------
    a : array_like, shape (..., n, n)
        The matrix, or a stack of matrices; NumPy or CuPy.
    overwrite_a : bool
        Allow a to be overwritten.
    check_finite : bool
        Raise a ValueError if a holds NaN or Inf.

    Returns
    -------
    float64, complex128, or an array of them, shape (...)
        For CuPy arrays, a CuPy array.

    Raises
    ------
    ValueError
        a is not square, or holds NaN or Inf.
    TypeError
        a does not hold numbers.
    DeviceError, DeviceMemoryError
        As in `solve`, for CuPy arrays.

    Warns
    -----
    AccuracyWarning
        The factors miss the bound, ``||A - P L U|| <= u sqrt(n) || |L| |U| ||``.  For CuPy arrays: a solve
        with the factors, for b = (1, ..., 1), misses its bound.

    Notes
    -----
    Use `Factorization.slogdet` if the determinant may overflow.

    Examples
    --------
    >>> from tcsolve import det
    >>> float(det([[2.0, 0], [0, 4]]))
    8.0
    """
    if is_cupy(a):
        return _det_on_device(a, check_finite)
    given = np.asarray(a)
    plain = given.dtype.kind in "biufc" and given.dtype.char not in "egG"
    square = given.ndim >= 2 and given.shape[-1] == given.shape[-2]
    if not (plain and square and given.size and given.shape[-1] > 1):
        return _det(a, overwrite_a=overwrite_a, check_finite=check_finite)
    if check_finite:
        np.asarray_chkfinite(given)
    dtype = given.dtype if given.dtype.char in "fdFD" else np.dtype(np.float64)
    if given.ndim == 2:
        return _det_of(given, dtype, overwrite_a)
    found = over_stacks(functools.partial(_det_of, dtype=dtype), (given, 2), name="det")
    return found


def _det_of(a, dtype, overwrite_a=False):
    """Return the determinant of a (n, n); with `overwrite_a`, a may be overwritten."""
    mine = overwrite_a and a.dtype == dtype and a.flags.c_contiguous and a.flags.writeable
    kept = a.astype(np.result_type(dtype, np.float64), copy=mine)
    work = a if mine else np.array(a, dtype, order="C")
    # LAPACK is column-major: of a row-major A it factors the transpose.
    lu, swaps, info = lapack_of("getrf", work.dtype)(work.T, overwrite_a=True)
    wide = kept.dtype.type
    if info > 0:
        return wide(0)
    with np.errstate(all="ignore"):
        lu = lu.astype(kept.dtype, copy=False)
        odd = np.count_nonzero(swaps != np.arange(len(swaps))) % 2
        found = lu.diagonal().prod() * (-1 if odd else 1)
        error, bound = error_of_factors(kept.T, lu, swaps), stopping.target(dtype, len(a))
    if not error <= bound and np.isfinite(kept).all():
        warn_missed("det", error, bound)
    return wide(found)


def _det_on_device(a, check_finite):
    ops = ops_for(a)
    xp, dtype = ops.xp, np.result_type(a.dtype, np.float64)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise InputError(f"det: a has shape {a.shape}; (..., n, n) is needed")
    if not a.size:
        return xp.ones(a.shape[:-2], dtype)
    factors = factor(a, check_finite=check_finite, precision="fp64")
    sign, log = factors.slogdet()
    probe = factors.solve_ex(xp.ones(a.shape[-1], result_dtype(a, a)), check_finite=False)
    error = probe.backward_error.max(axis=-1)
    missed = np.isfinite(log) & ~(error <= probe.bound)
    if missed.any():
        warn_missed("det", error[missed], probe.bound)
    # If the determinant overflows, exp gives inf, and inf times a complex sign may have NaN in one part.
    with np.errstate(over="ignore", invalid="ignore"):
        return xp.asarray(sign * np.exp(log), dtype)
