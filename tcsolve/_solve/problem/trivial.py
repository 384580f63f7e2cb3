"""Systems without equations or right-hand sides, empty stacks, and 1 x 1 matrices."""

import math
import time

import numpy as np

from tcsolve._checks import require_finite, result_dtype
from tcsolve._lu.scaling import FRAME_EXPONENT, exponent_of, ldexp
from tcsolve._refine import stopping
from tcsolve._solution import HistoryPoint, Solution, Status, of_slices

__all__ = ["solve_empty", "solve_one_element"]


def solve_one_element(ops, a, b, check_finite, precision="fp64"):
    """Divide b by the one element of a; SciPy allows b of any shape for such a matrix.

    The LU of a 1 x 1 matrix has no trailing update, so it is the same in every precision.
    """
    start = time.perf_counter()
    dtype = result_dtype(a, b)
    # Divide in FP64: it has twice the digits of FP32, and CuPy flushes subnormal FP32 numbers to zero.
    wide = np.result_type(dtype, np.float64)
    pivot, b = ops.converted(a.reshape(()), wide), ops.converted(b, wide)
    a_finite, b_finite = bool(ops.xp.isfinite(pivot)), bool(ops.xp.isfinite(b).all())
    if check_finite:
        require_finite(a_finite, "a")
        require_finite(b_finite, "b")
    zero = bool(pivot == 0)
    singular = zero and b.size > 0  # an empty b needs no answer
    with np.errstate(all="ignore"):
        x, error = _quotient(ops, b, ops.xp.nan if singular else pivot, dtype)
    shape = _shape_of_quotient(a, b)
    if not (a_finite and b_finite):
        status = Status.NONFINITE_INPUT
    elif singular:
        status = Status.SINGULAR
    else:
        status = _status_of_quotient(ops.xp, x, error, dtype)
    of_columns = _shape_of_columns(shape, b.ndim < 2)
    if math.prod(of_columns) != error.size:  # b has more rows than a, so each entry is a system
        of_columns = (error.size,)
    error = ops.host(error)[0].astype(np.float64).reshape(of_columns)
    steps = np.zeros(of_columns, int)
    return Solution(
        x=x.reshape(shape),
        status=status,
        precision=precision,
        rungs=(precision,),
        iterations=steps,
        backward_error=error,
        history=(HistoryPoint(precision, steps, error, False),),
        bound=stopping.target(dtype, 1),
        rcond=1.0 if a_finite and not zero else 0.0,
        seconds={"total": time.perf_counter() - start},
        device=ops.device,
    )


def _quotient(ops, b, pivot, dtype):
    """Return b / pivot in `dtype`, and its backward errors; extreme numbers are scaled to near 1 first."""
    xp = ops.xp
    pivot = xp.asarray(pivot)
    of_b, of_pivot = exponent_of(xp, b), exponent_of(xp, pivot)
    shift = of_b - of_pivot
    far = bool((xp.abs(of_b) > FRAME_EXPONENT).any() | (xp.abs(of_pivot) > FRAME_EXPONENT))
    if far:
        b, pivot = ldexp(xp, b, -of_b), ldexp(xp, pivot, -of_pivot)
    x = b / pivot
    if b.dtype.kind == "c":  # one refinement step: complex division on the device loses a few bits
        mended = x + (b - pivot * x) / pivot
        x = xp.where(xp.isfinite(mended), mended, x)
    x = ops.converted(ldexp(xp, x, shift) if far else x, dtype)
    returned = ops.converted(x, b.dtype)
    returned = ldexp(xp, returned, -shift) if far else returned
    return x, xp.asarray(_error_of_quotient(*ops.host(b, pivot, returned)))


def _error_of_quotient(b, pivot, x):
    """Return the backward errors on the host, from residuals in long double."""
    wide = np.clongdouble if b.dtype.kind == "c" else np.longdouble
    rest = np.abs(b.astype(wide) - pivot.astype(wide) * x).astype(np.float64)
    return np.where(rest == 0, 0.0, rest / (np.abs(pivot) * np.abs(x)))


def _shape_of_quotient(a, b):
    """Return the shape of SciPy's x: a vector b broadcasts with the rows of a, a stack b with the stack a."""
    if b.ndim < 2:
        return np.broadcast_shapes(b.shape, a.shape[:-1])
    return np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + b.shape[-2:]


def _shape_of_columns(shape, vector):
    """Return the shape of arrays with one entry per right-hand side, for x of shape `shape`."""
    return (*shape[:-1], 1) if vector else (*shape[:-2], shape[-1])


def _status_of_quotient(xp, x, error, dtype):
    faint = (xp.abs(x) < np.finfo(dtype).tiny) & (error > stopping.target(dtype, 1))
    if not bool(xp.isfinite(x).all()):
        return Status.OVERFLOW
    return Status.UNDERFLOW if bool(faint.any()) else Status.CONVERGED


def solve_empty(ops, shape, dtype, vector):
    """Return the `Solution` for no equations, no right-hand sides or an empty stack, as in SciPy."""
    of_columns = _shape_of_columns(shape, vector)
    return Solution(
        x=ops.xp.empty(shape, dtype=dtype),
        precision="fp64",
        rungs=(),
        iterations=np.zeros(of_columns, int),
        backward_error=np.zeros(of_columns),
        bound=0.0,
        seconds={"total": 0.0},
        device=ops.device,
        **of_slices(np.zeros(of_columns[:-1], int), np.full(of_columns[:-1], np.nan)),
    )
