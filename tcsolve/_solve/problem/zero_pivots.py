"""Triangles with a zero on the diagonal, which an LU with pivoting may take for regular.

The product of the pivots of such an LU is the determinant, which is zero.  But with pivoting,
the elimination adds multiples of rows to each other, and then rounding may make the last pivot nonzero.
"""

from dataclasses import replace

import numpy as np

from tcsolve._arrays import is_zero
from tcsolve._solution import HistoryPoint, Status

__all__ = ["ROUNDING", "if_singular", "singular_triangles"]

# Statuses of a matrix that has no answer in any case.
FINAL = Status.SINGULAR, Status.NOT_POSITIVE_DEFINITE
# The rcond of a singular matrix (n, n), from an LU in FP64 whose entries grow little, is below n times this.
ROUNDING = 2.0**-46
# The largest number of entries that are copied at once, unless one row has more.
ENTRIES = 1 << 22


def if_singular(ops, a, solution):
    """Return the solution; with the status SINGULAR if A is a triangle with a zero on its diagonal.

    Parameters
    ----------
    ops : Ops
    a : array, shape (n, n)
        The matrix that the structure describes.
    solution : Solution
        That of a system with this matrix.
    """
    has_converged = solution.status in (Status.CONVERGED, Status.CONVERGED_AFTER_FALLBACK)
    if solution.status in FINAL or has_converged and solution.rcond >= ROUNDING * len(a):
        return solution
    if not is_zero(a.diagonal()).any() or not _singular_triangles(ops, a[None], np.arange(1))[0]:
        return solution
    if solution.status is Status.NONFINITE_INPUT:  # b is not finite
        return replace(solution, rcond=0.0, rconds=None)
    error = np.full_like(solution.backward_error, np.nan)
    last = HistoryPoint(solution.precision, solution.iterations, error, False)
    return replace(
        solution,
        x=ops.xp.full_like(solution.x, np.nan),
        status=Status.SINGULAR,
        statuses=None,
        rcond=0.0,
        rconds=None,
        backward_error=error,
        forward_error=None,
        history=(*solution.history[:-1], last),
    )


def singular_triangles(ops, a, which, rconds):
    """Return those numbers in `which` whose matrices are triangles with a zero on the diagonal.

    Parameters
    ----------
    ops : Ops
    a : array, shape (m, n, n)
    which : ndarray of int, shape (l,)
        Numbers of matrices in the stack a.  These matrices hold neither NaN nor Inf.
    rconds : ndarray, shape (l,)
        Estimates of rcond of these matrices, from factors in FP64.
    """
    which = which[~(rconds >= ROUNDING * a.shape[-1])]
    return which[_singular_triangles(ops, a, which)]


def _singular_triangles(ops, a, which):
    """Tell which of the matrices a[which] are triangles with a zero on the diagonal, and finite."""
    xp, n, found = ops.xp, a.shape[-1], np.zeros(len(which), bool)
    for first in range(0, len(which), max(1, ENTRIES // n)):
        some = slice(first, first + max(1, ENTRIES // n))
        diagonals = xp.diagonal(a, axis1=1, axis2=2)[xp.asarray(which[some])]
        (found[some],) = ops.host(is_zero(diagonals).any(axis=1))
    with_zero, step = np.flatnonzero(found), max(1, ENTRIES // n**2)
    for first in range(0, len(with_zero), step):
        some = with_zero[first : first + step]
        whole = a if len(a) == 1 else a[xp.asarray(which[some])]
        (found[some],) = ops.host(
            _is_zero_below(xp, whole) | _is_zero_below(xp, whole.swapaxes(1, 2))
        )
    return found


def _is_zero_below(xp, a):
    """Tell which finite matrices of a stack have only zeros below the diagonal."""
    m, n, _ = a.shape
    found, step = xp.ones(m, bool), max(1, ENTRIES // (m * n))
    for i in range(0, n, step):
        rows = a[:, i : i + step]
        found &= xp.isfinite(rows).all(axis=(1, 2)) & is_zero(xp.tril(rows, i - 1)).all(axis=(1, 2))
    return found
