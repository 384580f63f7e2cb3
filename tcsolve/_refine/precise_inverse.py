"""Products with the inverse of M = P^T L U, for computed factors L and U, accurate to about their last bit.

Substitution in FP64 gives M^-1 y with a relative error of up to about the condition number of M times 2**-53.
GMRES with left preconditioning needs M^-1 A v more accurately [1]_, so M w = y is refined like any system:
with residuals in double-double, and the same factors.

References
----------
.. [1] E. Carson, N. J. Higham, SIAM J. Sci. Comput. 39 (2017), A2834-A2856.
"""

from typing import Any, NamedTuple

import numpy as np

from tcsolve._arithmetic.matrix_parts import column_tops
from tcsolve._refine.double_double import Pair, product

__all__ = ["multiplied", "solved"]

U = 2.0**-53
# Largest number of corrections of M^-1 y.  If each reduces the error to a half, this is enough for 2**-53.
MOST_CORRECTIONS = 53
# A correction must be at most this part of the one before.
CONTRACTION = 0.5


def solved(ops, multiply, correct, y):
    """Return M^-1 y rounded to FP64.

    Parameters
    ----------
    ops : Ops
    multiply : callable, Pair (n, k) -> Pair (n, k)
        w -> M w.
    correct : callable, (n, k) -> (n, k)
        r -> M^-1 r in FP64.
    y : Pair of arrays, shape (n, k), float64 or complex128

    Returns
    -------
    array, shape (n, k)
        Its relative error is about 2**-53, unless M is so ill-conditioned that corrections do not shrink.

    Notes
    -----
    If two corrections of a column have the sizes s and t relative to w, the next one has about the size
    t t / s.  A column is not corrected again if this is at most 2**-53, or if t is above s / 2; in the second
    case the correction is not added.
    """
    xp = ops.xp
    w, before, active = Pair.of(xp, correct(y.high)), 1.0, True
    for _ in range(MOST_CORRECTIONS):
        d = correct(y.minus(multiply(w)))
        sizes, whole = ops.host(column_tops(ops, d), column_tops(ops, w.high))
        with np.errstate(all="ignore"):
            size = np.where(sizes == 0, 0.0, sizes / whole)
        active = active & (size <= CONTRACTION * before)  # False for NaN
        w = w.plus(xp.where(xp.asarray(active), d, 0.0))
        active, before = active & (size * size > U * before), size
        if not active.any():
            break
    return w.high


class _Triangle(NamedTuple):
    """A triangle t of a square array; t[rows] computes these rows of it.  With `unit`, its diagonal is 1."""

    xp: Any
    array: Any
    lower: bool
    unit: bool

    @property
    def shape(self):
        return self.array.shape

    def __getitem__(self, rows):
        xp, first = self.xp, rows.start
        part = self.array[rows]
        if not self.unit:
            return xp.tril(part, first) if self.lower else xp.triu(part, first)
        part = xp.tril(part, first - 1) if self.lower else xp.triu(part, first + 1)
        own = xp.arange(len(part))
        part[own, first + own] = 1
        return part


def multiplied(ops, lu, order, w, transposed=False):
    """Return M w, or M^T w if `transposed`, for a `Pair` w and M = P^T L U.

    Parameters
    ----------
    ops : Ops
    lu : array, shape (n, n)
        Both triangles; the diagonal is that of U.
    order : array of int, shape (n,)
        Row i of L U is row order[i] of M.
    w : Pair of arrays, shape (n, k), float64 or complex128
    transposed : bool

    Returns
    -------
    Pair of arrays, shape (n, k)
        Its error is about n 2**-106 of the product of the norms of L, U and w.
    """
    xp, order = ops.xp, ops.xp.asarray(order)
    if transposed:  # M^T = U^T L^T P
        w = product(ops, _Triangle(xp, lu.T, lower=False, unit=True), w.rows(order))
        return product(ops, _Triangle(xp, lu.T, lower=True, unit=False), w)
    w = product(ops, _Triangle(xp, lu, lower=False, unit=False), w)
    w = product(ops, _Triangle(xp, lu, lower=True, unit=True), w)
    return w.rows(xp.argsort(order))
