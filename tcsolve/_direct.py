"""Systems that need no ladder: empty ones, those of one element, and the ordinary small one.

Below a few hundred unknowns a solve costs as much as a few dozen calls from Python, so the ladder's
bookkeeping is left out: FP64 LAPACK, one residual, one condition estimate.  Whatever is not ordinary
(NaN, extreme entries, a zero pivot, an error above the bound) is left to the general path.
"""

import math
import time

import numpy as np

from tcsolve import _stop
from tcsolve._check import require_finite, result_dtype
from tcsolve._dispatch import numpy_ops
from tcsolve._scale import FRAME_EXPONENT, exponent_of, ldexp
from tcsolve._solution import HistoryPoint, Solution, Status
from tcsolve._wide import SMALL, residual

__all__ = ["is_ordinary", "solve_directly", "solve_empty", "solve_one_element"]

# Unknowns up to which FP64 LAPACK is the fastest rung on a CPU, so that no choice has to be made.
LARGEST = 512
EPS = float(np.finfo(np.float64).eps)
TOP = 2.0**FRAME_EXPONENT


def is_ordinary(ops, a, b, precision, device):
    """Tell whether `solve_directly` may try: a small FP64 system on the host, any method will do."""
    return (
        ops.device == "cpu"
        and device != "cuda"
        and precision == "auto"
        and a.shape[0] <= LARGEST
        and a.dtype == b.dtype
        and a.dtype.char in "dD"
    )


def solve_directly(a, b, start):
    """Solve the n x n FP64 (or complex128) system, or return None if it is not ordinary.

    Parameters
    ----------
    a : ndarray, shape (n, n)
    b : ndarray, shape (n,) or (n, k)
        Of the same dtype.
    start : float
        `time.perf_counter` when the solve began.
    """
    ops, n = numpy_ops, a.shape[0]
    stats = ops.stats(a)
    inf, one = float(stats.row_sum.max()), float(stats.col_sum.max())
    if not (1 / TOP < inf < TOP and one < TOP):
        return None
    prepared = time.perf_counter()
    factors, zero_pivot = ops.getrf(a, a.dtype)
    if zero_pivot:
        return None
    factored = time.perf_counter()
    x, bound = ops.getrs(factors, b, False), _stop.target(a.dtype, n)
    for step in range(2):
        size = np.abs(x).max(axis=0)
        if not (size < TOP).all():  # NaN and Inf of b are here, too
            return None
        if not ((size > 1 / TOP) | ~b.any(axis=0)).all():  # products with x may underflow
            return None
        r = residual(a, x, b)
        rest = np.abs(r).max(axis=0)
        # Where x is zero the residual is b, so it is met only if that is zero as well.
        if (rest <= bound * inf * size).all():
            break
        if step or n > SMALL:
            return None
        x = x + ops.getrs(factors, r, False)
    error = np.atleast_1d(rest / (inf * np.where(size > 0, size, 1.0)))
    solved = time.perf_counter()
    rcond = ops.gecon(factors, one)
    done = time.perf_counter()
    return Solution(
        x=np.ascontiguousarray(x),
        status=Status.CONVERGED if rcond >= EPS else Status.ILL_CONDITIONED,
        precision="fp64",
        rungs=("fp64",),
        iterations=np.full(len(error), step),
        backward_error=error,
        bound=bound,
        rcond=rcond if math.isfinite(rcond) else 0.0,
        history=(HistoryPoint("fp64", np.full(len(error), step), error, False),),
        seconds={
            "scale": prepared - start,
            "factor": factored - prepared,
            "refine": solved - factored,
            "rcond": done - solved,
            "total": done - start,
        },
        bytes_planned=a.nbytes + 2 * b.nbytes,
    )


def solve_one_element(ops, a, b, check_finite):
    """Divide: SciPy takes b of any shape for a matrix of one element."""
    start = time.perf_counter()
    dtype = result_dtype(a, b)
    # In FP64: twice the digits of FP32, and its subnormal numbers, which CuPy takes for zero.
    wide = np.result_type(dtype, np.float64)
    pivot, b = ops.converted(a.reshape(()), wide), ops.converted(b, wide)
    a_finite, b_finite = bool(ops.xp.isfinite(pivot)), bool(ops.xp.isfinite(b).all())
    if check_finite:
        require_finite(a_finite, "a")
        require_finite(b_finite, "b")
    zero = bool(pivot == 0)
    singular = zero and b.size > 0  # no answer is asked for, else
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
    if math.prod(of_columns) != error.size:  # b has more rows than a: each entry is a system
        of_columns = (error.size,)
    error = ops.host(error)[0].astype(np.float64)
    return Solution(
        x=x.reshape(shape),
        status=status,
        precision="fp64",
        rungs=("fp64",),
        iterations=np.zeros(of_columns, int),
        backward_error=error.reshape(of_columns),
        bound=_stop.target(dtype, 1),
        rcond=1.0 if a_finite and not zero else 0.0,
        seconds={"total": time.perf_counter() - start},
        device=ops.device,
    )


def _quotient(ops, b, pivot, dtype):
    """Return b / pivot in dtype, and its backward errors, both brought near 1 where they may underflow."""
    xp = ops.xp
    pivot = xp.asarray(pivot)
    of_b, of_pivot = exponent_of(xp, b), exponent_of(xp, pivot)
    shift = of_b - of_pivot
    far = bool((xp.abs(of_b) > FRAME_EXPONENT).any() | (xp.abs(of_pivot) > FRAME_EXPONENT))
    if far:
        b, pivot = ldexp(xp, b, -of_b), ldexp(xp, pivot, -of_pivot)
    x = b / pivot
    if b.dtype.kind == "c":  # the device's complex division loses a few bits
        mended = x + (b - pivot * x) / pivot
        x = xp.where(xp.isfinite(mended), mended, x)
    x = ops.converted(ldexp(xp, x, shift) if far else x, dtype)
    returned = ops.converted(x, b.dtype)
    returned = ldexp(xp, returned, -shift) if far else returned
    rest = xp.abs(b - pivot * returned)
    error = rest / (xp.abs(pivot) * xp.abs(returned))
    return x, xp.where(rest == 0, 0.0, error)


def _shape_of_quotient(a, b):
    """Return SciPy's: a vector is broadcast against the rows of a, stacks against each other."""
    if b.ndim < 2:
        return np.broadcast_shapes(b.shape, a.shape[:-1])
    return np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + b.shape[-2:]


def _shape_of_columns(shape, vector):
    """Return the shape of what is told of each right-hand side, where that of x is `shape`."""
    return (*shape[:-1], 1) if vector else (*shape[:-2], shape[-1])


def _status_of_quotient(xp, x, error, dtype):
    faint = (xp.abs(x) < np.finfo(dtype).tiny) & (error > _stop.target(dtype, 1))
    if not bool(xp.isfinite(x).all()):
        return Status.OVERFLOW
    return Status.UNDERFLOW if bool(faint.any()) else Status.CONVERGED


def solve_empty(ops, shape, dtype, vector):
    """Return SciPy's answer to a system without equations or right-hand sides."""
    of_columns = _shape_of_columns(shape, vector)
    return Solution(
        x=ops.xp.empty(shape, dtype=dtype),
        status=Status.CONVERGED,
        precision="fp64",
        rungs=(),
        iterations=np.zeros(of_columns, int),
        backward_error=np.zeros(of_columns),
        bound=0.0,
        rcond=float("nan"),
        seconds={"total": 0.0},
        device=ops.device,
    )
