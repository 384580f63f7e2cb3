"""The ordinary small system, in as few calls as the evidence allows.

Below a few hundred unknowns a solve costs as much as a few dozen calls from Python, so the ladder's
bookkeeping is left out: FP64 LAPACK, one residual, one condition estimate.  Whatever is not ordinary
(NaN, extreme entries, a zero pivot, an error above the bound) is left to the general path.
"""

import math
import time

import numpy as np

from tcsolve import _stop
from tcsolve._dispatch import numpy_ops
from tcsolve._scale import FRAME_EXPONENT
from tcsolve._solution import Solution, Status

__all__ = ["LARGEST", "solve_directly"]

# Unknowns up to which FP64 LAPACK is the fastest rung on a CPU, so that no choice has to be made.
LARGEST = 512
EPS = float(np.finfo(np.float64).eps)
TOP = 2.0**FRAME_EXPONENT


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
