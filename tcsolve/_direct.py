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
from tcsolve._scale import FRAME_EXPONENT
from tcsolve._solution import Solution, Status

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
    x = ops.getrs(factors, b, False)
    size = np.abs(x).max(axis=0)
    if not (size < TOP).all():  # NaN and Inf of b are here, too
        return None
    residual = np.abs(b - a @ x).max(axis=0)
    # Where x is zero the residual is b, so it is met only if that is zero as well.
    bound = _stop.target(a.dtype, n)
    if not (residual <= bound * inf * size).all():
        return None
    error = np.atleast_1d(residual / (inf * np.where(size > 0, size, 1.0)))
    solved = time.perf_counter()
    rcond = ops.gecon(factors, one)
    done = time.perf_counter()
    return Solution(
        x=np.ascontiguousarray(x),
        status=Status.CONVERGED if rcond >= EPS else Status.ILL_CONDITIONED,
        precision="fp64",
        rungs=("fp64",),
        iterations=np.zeros(len(error), int),
        backward_error=error,
        bound=bound,
        rcond=rcond if math.isfinite(rcond) else 0.0,
        history=(("fp64", error),),
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
    dtype = result_dtype(a, b)
    # In FP64: twice the digits of FP32, and its subnormal numbers, which CuPy takes for zero.
    wide = np.result_type(dtype, np.float64)
    pivot, b = ops.converted(a.reshape(()), wide), ops.converted(b, wide)
    if check_finite:
        require_finite(bool(ops.xp.isfinite(pivot)), "a")
        require_finite(bool(ops.xp.isfinite(b).all()), "b")
    singular = bool(pivot == 0)
    with np.errstate(all="ignore"):
        divisor = ops.xp.nan if singular else pivot
        x = b / divisor
        if dtype.kind == "c":  # the device's complex division loses a few bits
            mended = x + (b - pivot * x) / divisor
            x = ops.xp.where(ops.xp.isfinite(mended), mended, x)
    # As by SciPy: a vector is broadcast against the rows of a, stacks against each other.
    if b.ndim < 2:
        shape = np.broadcast_shapes(b.shape, a.shape[:-1])
    else:
        shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + b.shape[-2:]
    x = x.reshape(shape)
    a_finite, b_finite = bool(ops.xp.isfinite(pivot)), bool(ops.xp.isfinite(b).all())
    with np.errstate(all="ignore"):
        x = ops.converted(x, dtype)
        returned = ops.converted(x, wide)
        residual = ops.xp.abs(b - pivot * returned)
        size = ops.xp.abs(pivot) * ops.xp.abs(returned)
        error = ops.xp.where(residual == 0, 0.0, residual / size).reshape(-1)
    if not (a_finite and b_finite):
        status = Status.NONFINITE_INPUT
    elif singular:
        status = Status.SINGULAR
    else:
        faint = (ops.xp.abs(returned).reshape(-1) < np.finfo(dtype).tiny) & (
            error > _stop.target(dtype, 1)
        )
        status = Status.UNDERFLOW if bool(faint.any()) else Status.CONVERGED
        status = status if bool(ops.xp.isfinite(x).all()) else Status.OVERFLOW
    return Solution(
        x=x,
        status=status,
        precision="fp64",
        rungs=("fp64",),
        iterations=np.zeros(error.size, int),
        backward_error=ops.host(error)[0].astype(np.float64),
        bound=_stop.target(dtype, 1),
        rcond=1.0 if a_finite and not singular else 0.0,
        seconds={"total": 0.0},
        device=ops.device,
    )


def solve_empty(ops, shape, dtype):
    """Return SciPy's answer to a system without equations or right-hand sides."""
    return Solution(
        x=ops.xp.empty(shape, dtype=dtype),
        status=Status.CONVERGED,
        precision="fp64",
        rungs=(),
        iterations=np.zeros(0, int),
        backward_error=np.zeros(0),
        bound=0.0,
        rcond=float("nan"),
        seconds={"total": 0.0},
        device=ops.device,
    )
