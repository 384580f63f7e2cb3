"""Norms of a matrix, and the estimate of its condition number."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

__all__ = ["Survey", "begin_condest", "begin_survey", "condest", "survey", "sweeps_at_once"]

# Sweeps of the condition estimator, the first solve included, as xLACN2; how many are launched before
# anything is read; and the unknowns for which all are: the refinement takes longer than they do there.
MAX_SWEEPS, SWEEPS_AT_ONCE, ALL_AT_ONCE = 5, 2, range(4097, 8193)


# What rounding can take from the dominance of a row, for each of its entries, relative to the largest sum.
ROUNDING = 2.0**-52


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
    column_dominance : float
        Least 3 |a_jj| - sum_i |a_ij|: positive if no column has twice as much beside the diagonal as on it.
    """

    inf: float
    one: float
    row_spread: float
    col_spread: float
    dominance: float
    column_dominance: float

    @property
    def finite(self):
        """True if no entry is NaN or Inf and no norm overflows."""
        return math.isfinite(self.inf) and math.isfinite(self.one)

    def least_rcond(self, n):
        """Return a lower bound of 1 / (||A||_1 ||A^-1||_1) for A (n, n); 0 if its diagonal does not dominate.

        ``||A^-1||_inf <= 1 / dominance`` [1]_, and ``||A^-1||_1`` is at most n times as large.

        References
        ----------
        .. [1] J. M. Varah, Linear Algebra Appl. 11 (1975), 3-5.
        """
        dominance = self.dominance - (n + 2) * ROUNDING * self.inf
        return dominance / n / self.one if dominance > 0 and self.finite else 0.0


def survey(ops, a):
    """Return the `Survey` of the square matrix a, with one synchronisation."""
    return begin_survey(ops, a)[0]()


def begin_survey(ops, a, dtype=None):
    """Start the survey of a; return a function that waits for it, and returns it.

    Also return a copy of a in `dtype`, if that comes with it, or None.
    """
    wait, copy = ops.extremes(a, dtype)

    def finish():
        inf, low_row, one, low_col, dominance, column_dominance = wait()
        return Survey(
            inf=inf,
            one=one,
            row_spread=low_row / inf if inf else 1.0,
            col_spread=low_col / one if one else 1.0,
            dominance=dominance,
            column_dominance=column_dominance,
        )

    return finish, copy


class Condition(NamedTuple):
    """What `condest` finds.

    Attributes
    ----------
    rcond : float
        At least the true value up to rounding, as the estimate of ||A^-1||_1 is a lower bound, nearly always
        within a factor of 3.  0 if a solve overflows.
    column : int or None
        The unit vector that is solved for with the largest result, as far as the subgradient tells; if A is
        singular, or nearly, the largest entry of its left singular vector.  None if another vector is larger.
    """

    rcond: float
    column: int | None


def condest(ops, n, norm_one, solve, solve_adjoint, begun=None):
    """Estimate 1 / (||A||_1 ||A^-1||_1) from solves with A and its adjoint.

    Parameters
    ----------
    ops : Ops
    n : int
    norm_one : float
        ||A||_1.
    solve, solve_adjoint : callable, (n, k) -> (n, k)
        Apply A^-1 and A^-H in FP64 or complex128.
    begun : tuple, optional
        What `begin_condest` returned, `found` perhaps on its way to the host.

    Returns
    -------
    Condition

    References
    ----------
    .. [1] N. J. Higham, ACM Trans. Math. Software 14 (1988), 381-396 (xLACN2).
    """
    if norm_one == 0 or not math.isfinite(norm_one):
        return Condition(0.0, None)
    found, v = begun or begin_condest(ops, n, solve, solve_adjoint)
    (found,) = ops.host(found)
    estimate, alternative = float(found[0]), 2 * float(found[1]) / (3 * n)
    sweeps, done, last = found[2:].reshape(-1, 3), 1, -1.0
    while True:
        for top, size, new in sweeps:
            if top == last or not (math.isfinite(size) and new > estimate):
                return _condition(norm_one, estimate, alternative, top)
            last, estimate = top, float(new)
        done += len(sweeps)
        if done == MAX_SWEEPS:
            return _condition(norm_one, estimate, alternative, last)
        found = ops.xp.empty(3 * min(SWEEPS_AT_ONCE, MAX_SWEEPS - done))
        solutions = _climb(ops, v, solve, solve_adjoint, found)
        found[2::3], v = _sums(ops.xp, solutions), solutions[-1]
        (found,) = ops.host(found)
        sweeps = found.reshape(-1, 3)


def _condition(norm_one, estimate, alternative, top):
    largest = max(estimate, alternative)
    rcond = 1 / norm_one / largest if 0 < largest < math.inf else 0.0
    return Condition(rcond, int(top) if rcond and estimate >= alternative else None)


def sweeps_at_once(n, dominant):
    """Return how many sweeps of `condest` are best done before anything is read.

    Where the diagonal dominates, the first nearly always find the largest column, and few steps of refinement
    hide what more would take.
    """
    return MAX_SWEEPS - 1 if n in ALL_AT_ONCE and not dominant else SWEEPS_AT_ONCE


def begin_condest(ops, n, solve, solve_adjoint, sweeps=SWEEPS_AT_ONCE):
    """Do the work of `condest` without reading anything back, as far as it nearly always goes.

    Returns
    -------
    found : array
        The first estimate, that of the alternating vector, and for each sweep where the subgradient is
        largest, its size there, and the new estimate.
    v : array, shape (n,)
        The last solution.
    """
    found = ops.xp.empty(2 + 3 * sweeps)
    first = solve(ops.probes(n))  # together
    solutions = _climb(ops, first[:, 0], solve, solve_adjoint, found[2:])
    # All sums at once: each for itself would delay the next solve.
    sums = _sums(ops.xp, [*first.T, *solutions])
    found[:2], found[4::3] = sums[:2], sums[2:]
    return found, (solutions or [first[:, 0]])[-1]


def _climb(ops, v, solve, solve_adjoint, found):
    """Follow the subgradient of x -> ||A^-1 x||_1 from unit vector to unit vector, a few sweeps.

    Fills `found` with where it is largest and its size there for each, leaving every third entry to the new
    estimate; returns the solutions.
    """
    state, solutions = ops.xp.arange(-1.0, 3.0, 2.0), []  # nothing was found yet, and it goes on
    for first in range(0, len(found), 3):
        # The same as last time is the end; zero vectors are soon solved for.
        z = solve_adjoint(ops.signs(v, state))[:, 0]
        v = solve(ops.steepest(z, state, found[first : first + 2]))[:, 0]
        solutions.append(v)
    return solutions


def _sums(xp, vectors):
    # A few: CuPy stacks more than eight by addresses from the host, which a recorded graph would read again.
    with np.errstate(all="ignore"):
        return xp.abs(xp.stack(vectors)).sum(axis=1)
