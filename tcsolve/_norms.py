"""Norms of a matrix, and the estimate of its condition number."""

import functools
import math
from dataclasses import dataclass

import numpy as np

__all__ = ["Survey", "condest", "survey"]

# Sweeps of the condition estimator; as xLACN2.
MAX_SWEEPS = 5


@dataclass(frozen=True)
class Survey:
    """What one look at the matrix tells.

    Attributes
    ----------
    inf, one : float
        Infinity norm and 1-norm.
    row_spread, col_spread : float
        Smallest over largest row (column) sum of |A|: 1 is well scaled, 0 is a zero row (column).
    dominance : float
        Least 2 |a_ii| - sum_j |a_ij|: positive if A is strictly diagonally dominant by rows.
    """

    inf: float
    one: float
    row_spread: float
    col_spread: float
    dominance: float

    @property
    def finite(self):
        """True if no entry is NaN or Inf and no norm overflows."""
        return math.isfinite(self.inf) and math.isfinite(self.one)


def survey(ops, a):
    """Return the `Survey` of the square matrix a, with one synchronisation."""
    inf, low_row, one, low_col, dominance = ops.extremes(a, ops.stats(a))
    return Survey(
        inf=inf,
        one=one,
        row_spread=low_row / inf if inf else 1.0,
        col_spread=low_col / one if one else 1.0,
        dominance=dominance,
    )


def condest(ops, n, norm_one, solve, solve_adjoint):
    """Estimate 1 / (||A||_1 ||A^-1||_1) from solves with A and its adjoint.

    Parameters
    ----------
    ops : Ops
    n : int
    norm_one : float
        ||A||_1.
    solve, solve_adjoint : callable, (n, k) -> (n, k)
        Apply A^-1 and A^-H in FP64 or complex128.

    Returns
    -------
    rcond : float
        At least the true value up to rounding, as the estimate of ||A^-1||_1 is a lower bound, nearly
        always within a factor of 3.  0 if a solve overflows.

    References
    ----------
    .. [1] N. J. Higham, ACM Trans. Math. Software 14 (1988), 381-396 (xLACN2).
    """
    if norm_one == 0 or not math.isfinite(norm_one):
        return 0.0
    first = solve(ops.array(_probes(n)))
    v = first[:, 0]
    (sums,) = ops.host(ops.xp.abs(first).sum(axis=0))
    alternative, estimate = 2 * float(sums[1]) / (3 * n), float(sums[0])
    if n > 1:
        estimate = _climb(ops, n, v, estimate, solve, solve_adjoint)
    estimate = max(estimate, alternative)
    return 1 / norm_one / estimate if 0 < estimate < math.inf else 0.0


@functools.lru_cache(maxsize=4)
def _probes(n):
    """Return the first vector of the estimator, and the alternating one of its last step, as columns.

    They are solved for together.
    """
    signs = np.where(np.arange(n) % 2, -1.0, 1.0) * (1 + np.arange(n) / max(1, n - 1))
    return np.stack([np.full(n, 1 / n), signs], axis=1)


def _climb(ops, n, v, estimate, solve, solve_adjoint):
    """Follow the subgradient of x -> ||A^-1 x||_1 from unit vector to unit vector."""
    xp = ops.xp
    last = -1
    for _ in range(MAX_SWEEPS - 1):
        if v.dtype.kind == "c":
            size = xp.abs(v)
            sign = xp.where(size > 0, v / xp.where(size > 0, size, 1), 1)
        else:
            sign = xp.copysign(1.0, v)
        z = xp.abs(solve_adjoint(sign[:, None])[:, 0])
        (top,) = ops.host(z.argmax())
        top = int(top)
        (at,) = ops.host(z[top])  # a NaN, if there is one
        if top == last or not math.isfinite(float(at)):
            break
        last = top
        unit = xp.zeros((n, 1))
        unit[top] = 1.0
        v = solve(unit)[:, 0]
        (new,) = ops.host(xp.abs(v).sum())
        if not float(new) > estimate:
            break
        estimate = float(new)
    return estimate
