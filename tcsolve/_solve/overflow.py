"""A second solve, without scaling, of systems whose first x overflows.

If A is singular to working precision, rounding decides how large x is.  So other factors may give another x,
which meets the bound and is in range.
"""

import contextlib
import time
from dataclasses import replace

import numpy as np

from tcsolve._solution import HistoryPoint, Status
from tcsolve._solve.host.lapack_factors import General
from tcsolve._solve.vendor.repair import solved_turned
from tcsolve._solve.verify.backward_error import backward_errors

__all__ = ["in_range"]


def in_range(ops, a, b, solution):
    """Return a `Solution` from FP64 factors of A, or of its transpose; A is not scaled.

    Parameters
    ----------
    ops : Ops
        On a device, it has a `vendor`.
    a : array, shape (n, n)
        The matrix that the structure describes.
    b : array, shape (n,) or (n, k)
    solution : Solution
        One in FP64 or complex128, whose x overflows.  It is returned if A is not singular to working
        precision, if the other x miss the bound, or if there is no memory for other factors.
    """
    if solution.rcond >= np.finfo(solution.x.dtype).eps:
        return solution
    start = time.perf_counter()
    with contextlib.suppress(MemoryError):
        solution = _found(ops, a, b, solution)
    if "total" not in solution.seconds:  # nothing is timed
        return solution
    total = solution.seconds["total"] + time.perf_counter() - start
    return replace(solution, seconds=solution.seconds | {"total": total})


def _found(ops, a, b, solution):
    """Do what `in_range` does; `bytes_planned` counts the new factors, and `seconds` does not."""
    xp, dtype = ops.xp, solution.x.dtype
    a, columns = ops.converted(a, dtype), ops.converted(b.reshape(len(a), -1), dtype)
    needed = max(solution.bytes_planned, 2 * a.nbytes + 4 * columns.nbytes)
    solution = replace(solution, bytes_planned=needed)
    solve = _solved if ops.device == "cpu" else _solved_on_device
    for turned in (False, True):
        x = solve(ops, a, columns, turned)
        if x is not None and bool(xp.isfinite(x).all()):
            error = backward_errors(ops, a, x, columns)
            if (error <= solution.bound).all():
                return _with(solution, xp.ascontiguousarray(x.reshape(b.shape)), error)
    return solution


def _solved(ops, a, b, turned):
    """Return x (n, k) from LAPACK's factors of A or A^T, or None if these have a bad pivot."""
    factors = General.of(np.array(a, order="C" if turned else "F"))
    return None if factors.bad_pivot else factors.solve(b)


def _solved_on_device(ops, a, b, turned):
    """As `_solved`, by cuSOLVER."""
    x, info = solved_turned(ops, a[None], b[None], turned)
    return None if ops.host(info)[0][0] else x[0]


def _with(solution, x, error):
    """Return the solution with another x."""
    return replace(
        solution,
        x=x,
        status=Status.ILL_CONDITIONED,
        statuses=None,
        precision="fp64",
        rungs=tuple(dict.fromkeys((*solution.rungs, "fp64"))),
        backward_error=error,
        history=(*solution.history, HistoryPoint("fp64", solution.iterations, error, False)),
    )
