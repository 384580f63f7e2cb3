"""`solve_triangular`."""

import functools

import numpy as np
import scipy.linalg

from tcsolve._arrays import is_cupy, is_zero
from tcsolve._backends.cpu.blas import blas_of
from tcsolve._backends.cpu.lu import lapack_of
from tcsolve._backends.select import numpy_ops, ops_for
from tcsolve._checks import check_trans, result_dtype
from tcsolve._errors import InputError, SingularError
from tcsolve._family.device_memory import guards_memory
from tcsolve._family.stacks import RHS, over_stacks
from tcsolve._family.systems import LONG, DenseSystem, transposed
from tcsolve._family.verification import (
    are_native,
    device_operands,
    is_verified,
    may_overwrite,
    numbers_of,
    settled,
)
from tcsolve._refine import stopping
from tcsolve._solve.vendor.solve import solve_by_vendor
from tcsolve._solve.verify.backward_error import SAFE
from tcsolve._solve.verify.long_double_residual import SMALL

__all__ = ["solve_triangular"]

DOT = {"d": scipy.linalg.blas.ddot, "D": scipy.linalg.blas.zdotu}
# SciPy's own function; `installed` may rebind this name in scipy.linalg.
_solve_triangular = scipy.linalg.solve_triangular


@guards_memory
def solve_triangular(
    a, b, trans=0, lower=False, unit_diagonal=False, overwrite_b=False, check_finite=True
):
    """Solve A x = b for a triangular A, and verify x.

    This function replaces `scipy.linalg.solve_triangular`.

    Parameters
    ----------
    a : array_like, shape (..., n, n)
        The matrix, or a stack of matrices; NumPy or CuPy.
    b : array_like, shape (n,) or (..., n, k)
        The right-hand sides.
    trans : {0, 1, 2, 'N', 'T', 'C'}
        0 or 'N': A x = b.  1 or 'T': A^T x = b.  2 or 'C': A^H x = b.
    lower : bool
        True: A is the lower triangle of a.  False: the upper one.
    unit_diagonal : bool
        True: the diagonal of A is 1, and that of a is not read.
    overwrite_b : bool
        Allow writing x to the memory of b.
    check_finite : bool
        Raise a ValueError if a or b holds NaN or Inf.

    Returns
    -------
    x : array, shape (..., n) or (..., n, k)

    Raises
    ------
    LinAlgError
        The diagonal has a zero.
    ValueError
        The shapes do not fit, a stack is empty, a or b holds NaN or Inf, or trans is unknown.
    DeviceError, DeviceMemoryError
        As in `solve`, for CuPy arrays.

    Warns
    -----
    AccuracyWarning
        The backward error of x is above ``u sqrt(n)``, see `Solution`.

    Examples
    --------
    >>> from tcsolve import solve_triangular
    >>> solve_triangular([[2.0, 0], [1, 1]], [2.0, 3], lower=True).tolist()
    [1.0, 2.0]
    """
    how = {"trans": check_trans(trans), "lower": lower, "unit_diagonal": unit_diagonal}
    if is_cupy(a) and is_cupy(b):
        x = _by_vendor(a, b, **how, check_finite=check_finite)
        if x is not None:
            return x
    elif not overwrite_b:
        x = _by_lapack(a, b, **how, check_finite=check_finite)
        if x is not None:
            return x
    is_stack = any(np.ndim(x) > 2 for x in (a, b))
    solve = functools.partial(_on_device if is_cupy(a) else _solve_triangular, **how)
    lent = not is_stack and may_overwrite(overwrite_b, b, a)
    how |= {"overwrite_b": lent, "check_finite": check_finite}
    one = functools.partial(_solve_one, solve, **how)
    return over_stacks(one, (a, 2), (b, RHS), name="solve_triangular")


def _by_vendor(a, b, *, trans, lower, unit_diagonal, check_finite):
    """Return x of one system or a stack on a device, or None.

    It is None if an answer misses the bound, or if an argument is wrong or empty.  Then the caller solves
    each system by itself.
    """
    if a.ndim < 2 or not (b.ndim and a.size and b.size):
        return None
    n, vector = a.shape[-1], b.ndim == 1
    if a.shape[-2] != n or b.shape[-1 - (not vector)] != n:
        return None
    ops = ops_for(a, b)
    xp, core = ops.xp, b.shape if vector else b.shape[-2:]
    try:
        batch = np.broadcast_shapes(a.shape[:-2], () if vector else b.shape[:-2])
    except ValueError:
        return None

    if unit_diagonal:
        a = xp.where(xp.eye(n, dtype=bool), a.dtype.type(1), a)
    a = xp.swapaxes(a, -1, -2) if trans else a
    found = solve_by_vendor(
        *(ops, a.conj() if trans == 2 else a, b),
        *("lower triangular" if lower != bool(trans) else "upper triangular", False, None),
        shape=(*batch, *core),
        dtype=result_dtype(a, b),
        check_finite=check_finite,
        estimate=False,
    )
    # Entries in the other triangle are no contradiction here, so look at the errors and not at the status.
    return found.x if (found.backward_error <= found.bound).all() else None


def _solve_one(solve, a, b, *, trans, lower, unit_diagonal, overwrite_b, check_finite):
    kept = b.copy() if overwrite_b else b
    x = solve(a, b, overwrite_b=overwrite_b, check_finite=check_finite)
    if not x.size:
        return x
    ops = ops_for(a) if is_cupy(a) else numpy_ops
    xp = ops.xp
    a, kept = xp.asarray(a), numbers_of(xp, kept, x.dtype)
    alike = ops is numpy_ops and a.dtype == x.dtype == kept.dtype and x.dtype.char in "dD"
    read = _column_major(a, trans, lower) if alike else None
    if read is not None:
        with np.errstate(all="ignore"):
            if _meets_bound(read, x, kept, unit_diagonal):
                return x
    matrix = (xp.tril if lower else xp.triu)(a)
    if unit_diagonal:
        xp.fill_diagonal(matrix, 1)
    matrix = transposed(matrix, trans)
    correct = functools.partial(solve, a, check_finite=False)
    return settled(DenseSystem.of(ops, matrix), x, kept, correct, "solve_triangular")


def _by_lapack(a, b, *, trans, lower, unit_diagonal, check_finite):
    """Return the verified x of the routine that SciPy's function calls, or None.

    None: x is not verified, or the arguments are left to that function, which also raises the errors.  A
    product with ones finds NaN or Inf in a, in less time than a test of each entry.  NaN or Inf in b makes an
    x that is not verified.
    """
    n = len(a) if are_native(a, b) and a.ndim else 0
    read = _column_major(a, trans, lower) if n else None
    if read is None or a.shape != (n, n) or b.ndim not in (1, 2) or len(b) != n or not b.size:
        return None
    t, side, turned = read
    with np.errstate(all="ignore"):
        if check_finite:
            ones = _ones(n, t.dtype)
            total = DOT[t.dtype.char](blas_of("gemv", t.dtype)(1.0, t, ones), ones)
            if total - total != 0:  # it is NaN or Inf
                return None
        how = {"lower": side, "trans": turned, "unitdiag": unit_diagonal}
        x, info = lapack_of("trtrs", t.dtype)(t, b, **how)
        return x if not info and _meets_bound(read, x, b, unit_diagonal) else None


@functools.lru_cache(maxsize=8)
def _ones(n, dtype):
    return np.ones(n, dtype)


def _column_major(a, trans, lower):
    """Return (T, lower, trans) with op(T) = op(A) for a column-major T without a copy, or None.

    BLAS sees the transpose of a row-major matrix, with the other triangle.
    """
    if a.flags.f_contiguous:
        return a, lower, trans
    if not a.flags.c_contiguous or trans == 2:
        return None
    return a.T, not lower, int(trans == 0)


def _meets_bound(read, x, b, unit_diagonal):
    """Tell whether x is verified; False if this cannot be told.

    For more than SMALL unknowns, BLAS multiplies without a copy of the triangle.  `read` is the result of
    `_column_major`.
    """
    t, lower, trans = read
    ax = _product(t, x, lower=lower, diag=unit_diagonal, trans_a=trans)
    if is_verified(x, b, ax):
        return True
    norm = lapack_of("lantr", t.dtype)(
        "1" if trans else "I",
        t,
        uplo="L" if lower else "U",
        diag="U" if unit_diagonal else "N",
    )
    rest, size = np.abs(b - ax).max(axis=0), np.abs(x).max(axis=0)
    safe = 1 / SAFE < norm < SAFE and ((1 / SAFE < size) & (size < SAFE)).all()
    return bool(safe and (rest <= stopping.target(x.dtype, len(x)) * norm * size).all())


def _product(t, x, *, trans_a, **how):
    """Return op(T) x for a triangle T in column-major order, and x (n,) or (n, k).

    For few unknowns it is in long double.
    """
    if len(x) <= SMALL:
        wide = np.zeros(t.shape, LONG[t.dtype.char])
        np.copyto(wide, t, where=_triangle(len(x), bool(how["lower"])))
        if how["diag"]:
            np.fill_diagonal(wide, 1)
        return transposed(wide, trans_a).dot(x)  # for long double, this takes less time than @
    if x.size == len(x):
        y = blas_of("trmv", t.dtype)(t, x.reshape(-1), trans=trans_a, **how)
        return y.reshape(x.shape)
    return blas_of("trmm", t.dtype)(1.0, t, x, trans_a=trans_a, **how)


@functools.lru_cache(maxsize=64)
def _triangle(n, lower):
    """Return the Boolean matrix (n, n) that is True in a triangle."""
    mask = np.tri(n, dtype=bool)
    return mask if lower else mask.T


def _on_device(a, b, *, trans, lower, unit_diagonal, overwrite_b=False, check_finite=True):
    """Solve as SciPy does, by CuPy; the checks that CuPy's function does not make are made here."""
    from cupyx.scipy.linalg import solve_triangular as on_device

    ops = ops_for(a, b)
    if a.ndim != 2 or a.shape[0] != a.shape[1] or a.shape[0] != b.shape[0]:
        raise InputError(
            f"solve_triangular: a has shape {a.shape} and b has shape {b.shape}; a needs (n, n), b n rows"
        )
    wide, rhs = device_operands(a, b, {"a": a, "b": b} if check_finite else {})
    if not unit_diagonal and bool((zeros := is_zero(a.diagonal())).any()):
        zero = int(ops.host(zeros.argmax())[0])
        raise SingularError(f"singular matrix: resolution failed at diagonal {zero}")
    if not b.size:
        return rhs
    how = {"trans": "NTC"[trans], "lower": lower, "unit_diagonal": unit_diagonal}
    return on_device(wide, rhs, **how)
