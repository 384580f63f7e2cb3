"""Answers in range for systems whose x overflows with scaled factors.

If A is singular to working precision, rounding decides how large x is.  So other factors may give another x,
which meets the bound and is in range.
"""

from dataclasses import replace

import numpy as np

from tcsolve._backends.cpu.ops import numpy_ops
from tcsolve._solution import HistoryPoint, Status
from tcsolve._solve.host.lapack_factors import General
from tcsolve._solve.verify.backward_error import backward_errors

__all__ = ["in_range"]


def in_range(a, b, solution):
    """Return a `Solution` from LAPACK's factors of A, or of its transpose; A is not scaled.

    Parameters
    ----------
    a : ndarray, shape (n, n)
        The matrix that the structure describes.
    b : ndarray, shape (n,) or (n, k)
    solution : Solution
        One in FP64 or complex128, whose x overflows.  It is returned if the other x miss the bound.
    """
    columns, dtype = b.reshape(len(a), -1).astype(solution.x.dtype), solution.x.dtype
    for order in "FC":
        factors = General.of(a.astype(dtype, order=order))
        x = solution.x if factors.bad_pivot else factors.solve(columns).reshape(b.shape)
        if np.isfinite(x).all():
            error = backward_errors(numpy_ops, a, x.reshape(columns.shape), columns)
            if np.logical_and.reduce(error <= solution.bound):
                return _with(solution, x, error)
    return solution


def _with(solution, x, error):
    """Return the solution with another x."""
    is_ill = not solution.rcond >= np.finfo(x.dtype).eps
    return replace(
        solution,
        x=np.ascontiguousarray(x),
        status=Status.ILL_CONDITIONED if is_ill else Status.CONVERGED_AFTER_FALLBACK,
        statuses=None,
        precision="fp64",
        rungs=tuple(dict.fromkeys((*solution.rungs, "fp64"))),
        backward_error=error,
        history=(*solution.history, HistoryPoint("fp64", solution.iterations, error, False)),
    )
