"""Triangles with a zero on the diagonal, which an LU with pivoting may take for regular."""

from dataclasses import replace

import numpy as np

from tcsolve._solution import HistoryPoint, Status

__all__ = ["if_singular"]

# With these statuses, A is regular, known to be singular, or not finite.
KNOWN = (
    *(Status.CONVERGED, Status.CONVERGED_AFTER_FALLBACK, Status.UNDERFLOW),
    *(Status.SINGULAR, Status.NONFINITE_INPUT),
)
# Number of rows that are compared with zero at once.
ROWS = 1024


def if_singular(ops, a, solution):
    """Return the solution; with the status SINGULAR if A is a triangle with a zero on its diagonal.

    The product of the pivots of an LU is the determinant, which is zero.  But pivoting adds multiples of rows
    to each other, and then rounding makes the last pivot nonzero.

    Parameters
    ----------
    ops : Ops
    a : array, shape (n, n)
        The matrix that the structure describes.
    solution : Solution
        That of a system with this matrix.
    """
    if solution.status in KNOWN:
        return solution
    xp = ops.xp
    if (
        bool((a.diagonal() != 0).all())
        or not bool(xp.isfinite(a).all())
        or not (_is_zero_below(xp, a) or _is_zero_below(xp, a.T))
    ):
        return solution
    error = np.full_like(solution.backward_error, np.nan)
    last = HistoryPoint(solution.precision, solution.iterations, error, False)
    return replace(
        solution,
        x=xp.full_like(solution.x, np.nan),
        status=Status.SINGULAR,
        statuses=None,
        rcond=0.0,
        rconds=None,
        backward_error=error,
        history=(*solution.history[:-1], last),
    )


def _is_zero_below(xp, a):
    """Tell whether all entries below the diagonal are zero."""
    starts = range(0, len(a), ROWS)
    return not any(bool(xp.tril(a[i : i + ROWS], i - 1).any()) for i in starts)
