"""Norms of a matrix, and the estimate of its condition number."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "Survey",
    "begin_condest",
    "begin_survey",
    "condest",
    "hold_against",
    "survey",
    "sweeps_at_once",
]

# Sweeps of the condition estimator, the first solve included, as xLACN2; how many are launched before
# anything is read; and the unknowns for which all are: the refinement takes longer than they do there.
MAX_SWEEPS, SWEEPS_AT_ONCE, ALL_AT_ONCE = 5, 2, range(4097, 8193)
# Unknowns up to which a product with A beside the refinement delays that by less than it takes later.
HELD_AT_ONCE = 8192


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
    doubt : callable
        Returns |z^H (e_j - A v)| / ||v||_1, with v = A^-1 e_j and z = A^-H sign(v) by the solves, for the
        largest column j of A^-1 that is found, but for a factor of two: z^H e_j is ||v||_1 by them.  About 1
        if A^-1 is so large there by errors of the solves alone, far below if A has such a singular value.
        Infinite if a vector that is no column tells more.
    """

    rcond: float
    doubt: Callable


class Sweep(NamedTuple):
    """A step of the ascent: the subgradient z, its steepest unit vector e, and v = A^-1 e; all (n, 1)."""

    e: Any
    v: Any
    z: Any


class Begun(NamedTuple):
    """The work of `condest` that needs no decision.

    Attributes
    ----------
    found : array
        The first estimate, that of the alternating vector, |z^H (e_j - A v)| of the first sweep's column j
        (or NaN, see `hold_against`), and for each sweep where the subgradient is largest, its size there, and
        the new estimate.
    sweeps : list of Sweep
    """

    found: Any
    sweeps: list


def condest(ops, a, norm_one, solve, solve_adjoint, begun=None):
    """Estimate 1 / (||A||_1 ||A^-1||_1) from solves with A and its adjoint.

    Parameters
    ----------
    ops : Ops
    a : array, shape (n, n)
    norm_one : float
        ||A||_1.
    solve, solve_adjoint : callable, (n, k) -> (n, k)
        Apply A^-1 and A^-H in FP64 or complex128.
    begun : Begun, optional
        By `begin_condest`, `found` perhaps on its way to the host.

    Returns
    -------
    Condition

    References
    ----------
    .. [1] N. J. Higham, ACM Trans. Math. Software 14 (1988), 381-396 (xLACN2).
    """
    if norm_one == 0 or not math.isfinite(norm_one):
        return Condition(0.0, _infinite)
    n = len(a)
    begun = begun or begin_condest(ops, n, solve, solve_adjoint)
    (found,), climbed = ops.host(begun.found), list(begun.sweeps)
    start, alternative, missed = float(found[0]), 2 * float(found[1]) / (3 * n), float(found[2])
    rows = found[3:].reshape(-1, 3)
    estimate, best, goes_on = _ascent(start, rows)
    while goes_on and len(rows) < MAX_SWEEPS - 1:
        found = ops.xp.empty(3 * min(SWEEPS_AT_ONCE, MAX_SWEEPS - 1 - len(rows)))
        more = _climb(ops, climbed[-1].v, solve, solve_adjoint, found)
        found[2::3] = _sums(ops.xp, [sweep.v[:, 0] for sweep in more])
        (found,) = ops.host(found)
        climbed, rows = climbed + more, np.concatenate([rows, found.reshape(-1, 3)])
        estimate, best, goes_on = _ascent(start, rows)
    largest = max(estimate, alternative)
    rcond = 1 / norm_one / largest if 0 < largest < math.inf else 0.0

    def doubt():
        number = best if rows[0, 2] < 0.5 * largest else 0
        if number is None or rows[number, 2] < 0.5 * largest:
            return math.inf
        if number > 0 or math.isnan(missed):
            e, v, _ = climbed[number]
            # The following sweep began with it.
            after = [sweep.z for sweep in climbed[number + 1 :]]
            z = after[0] if after else solve_adjoint(ops.signs(v[:, 0], _beginning(ops.xp)))
            held = ops.xp.empty(1)
            ops.missed(a, e, v, z, held)
            return float(ops.host(held)[0][0]) / float(rows[number, 2])
        return missed / float(rows[0, 2])

    return Condition(rcond, doubt if rcond else _infinite)


def _infinite():
    return math.inf


def _ascent(estimate, rows):
    """Return the largest estimate of an ascent, its row (None: it is the first), and whether it goes on.

    Each row tells where the subgradient was largest, its size there, and the new estimate.
    """
    best, last = None, -1.0
    for number, (top, size, new) in enumerate(rows):
        if top == last or not (math.isfinite(size) and new > estimate):
            return estimate, best, False
        estimate, best, last = float(new), number, top
    return estimate, best, True


def sweeps_at_once(n, dominant):
    """Return how many sweeps of `condest` are best done before anything is read.

    Where the diagonal dominates, the first nearly always find the largest column, and few steps of refinement
    hide what more would take.
    """
    return MAX_SWEEPS - 1 if n in ALL_AT_ONCE and not dominant else SWEEPS_AT_ONCE


def begin_condest(ops, n, solve, solve_adjoint, sweeps=SWEEPS_AT_ONCE):
    """Do the work of `condest` without reading anything back, as far as it nearly always goes.

    At least two sweeps.  Returns what was `Begun`.
    """
    found = ops.xp.full(3 + 3 * sweeps, ops.xp.nan)
    first = solve(ops.probes(n))  # together
    climbed = _climb(ops, first[:, :1], solve, solve_adjoint, found[3:])
    # All sums at once: each for itself would delay the next solve.
    sums = _sums(ops.xp, [*first.T, *(sweep.v[:, 0] for sweep in climbed)])
    found[:2], found[5::3] = sums[:2], sums[2:]
    return Begun(found, climbed)


def hold_against(ops, a, begun):
    """Return begun; fill in what takes the matrix itself, unless it is too large."""
    if len(a) <= HELD_AT_ONCE:
        first, second = begun.sweeps[:2]
        ops.missed(a, first.e, first.v, second.z, begun.found[2:3])
    return begun


def _climb(ops, v, solve, solve_adjoint, found):
    """Follow the subgradient of x -> ||A^-1 x||_1 from unit vector to unit vector, a few sweeps.

    Fills `found` with where it is largest and its size there for each, leaving every third entry to the new
    estimate; returns what is `Begun.sweeps`.
    """
    state, climbed = _beginning(ops.xp), []
    for first in range(0, len(found), 3):
        # The same as last time is the end; zero vectors are soon solved for.
        z = solve_adjoint(ops.signs(v[:, 0], state))
        e = ops.steepest(z[:, 0], state, found[first : first + 2])
        v = solve(e)
        climbed.append(Sweep(e, v, z))
    return climbed


def _beginning(xp):
    """Return the state of a climb in which nothing was found yet, and which goes on."""
    return xp.arange(-1.0, 3.0, 2.0)


def _sums(xp, vectors):
    # A few: CuPy stacks more than eight by addresses from the host, which a recorded graph would read again.
    with np.errstate(all="ignore"):
        return xp.abs(xp.stack(vectors)).sum(axis=1)
