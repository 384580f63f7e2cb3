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
    "hold",
    "joined",
    "survey",
    "sweeps_at_once",
]

# Sweeps of the condition estimator, the first solve included, as xLACN2; how many are launched before
# anything is read; and the unknowns for which all are: the refinement takes longer than they do there.
MAX_SWEEPS, SWEEPS_AT_ONCE, ALL_AT_ONCE = 5, 2, range(4097, 8193)
# Vectors that are solved for to begin with, steps of refinement of these, and what one may leave for another
# to be worth it.
PROBES, HELD_STEPS, CONTRACTED = 4, 2, 0.7

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
            row_spread=_spread(low_row, inf),
            col_spread=_spread(low_col, one),
            dominance=dominance,
            column_dominance=column_dominance,
        )

    return finish, copy


def _spread(low, top):
    """Return low / top; only a row or column of zeros gives 0, not one for which that underflows."""
    if not top:
        return 1.0
    return max(low / top, math.ulp(0.0)) if low else 0.0


class Condition(NamedTuple):
    """What `condest` finds.

    Attributes
    ----------
    rcond : float
        At least the true value up to rounding, as the estimate of ||A^-1||_1 is a lower bound, nearly always
        within a factor of 3.  0 if a solve overflows.
    column : int or None
        The largest of A^-1 that was found.
    doubt : callable
        Of a number that is wanted; returns how far the solves may be from A: about 1 if what they show as its
        smallest singular value is an error of theirs, far below if A has it.  It is the larger of

        - ||b - A x||_2 / ||b||_2 of the probes b, with x = A^-1 b by the solves, refined in few steps until
          that is as small as wanted: of random b a singular vector of A that they do not see is left over;
        - |z^H (e_j - A v)| / ||v||_1, with v = A^-1 e_j for the largest column j that was found, and
          z = A^-H sign(v): z^H e_j is ||v||_1 by them, and z^H A v hardly anything if that is an error.

        Infinite if no column of A^-1 is nearly as large as the estimate.
    """

    rcond: float
    column: int | None
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
        The first estimate, that of the alternating vector, and for each sweep where the subgradient is
        largest, its size there, and the new estimate.
    probes, solutions : array, shape (n, 4)
    sweeps : list of Sweep
    """

    found: Any
    probes: Any
    solutions: Any
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
    begun : tuple, optional
        What `begin_condest` returned; `found` may be on its way to the host, followed by what `hold` found.

    Returns
    -------
    Condition

    References
    ----------
    .. [1] N. J. Higham, ACM Trans. Math. Software 14 (1988), 381-396 (xLACN2).
    """
    if norm_one == 0 or not math.isfinite(norm_one):
        return Condition(0.0, None, _infinite)
    n = len(a)
    found, rest = begun or begin_condest(ops, n, solve, solve_adjoint)
    begun = Begun(found, *rest)
    (found,), climbed = ops.host(begun.found), list(begun.sweeps)
    start, alternative = float(found[0]), 2 * float(found[1]) / (3 * n)
    rows, held = found[2:][: 3 * len(climbed)].reshape(-1, 3), found[2 + 3 * len(climbed) :]
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

    def doubt(wanted):
        number = best or 0
        size = float(rows[number, 2])
        if size < 0.5 * largest:
            return math.inf
        if number < len(held) - 2 * PROBES:  # this sweep was held against A before
            sums, missed = held[: 2 * PROBES], held[2 * PROBES + number]
        else:
            *sums, missed = _held_now(ops, a, begun, climbed[number : number + 2], solve_adjoint)
        with np.errstate(all="ignore"):
            missed, left = missed / size, _left(sums)
            left = _left_over(ops, a, begun, left, solve, wanted, missed)
            return float(np.maximum(left, missed))  # a NaN, if there is one

    column = None if best is None else int(rows[best, 0])
    return Condition(rcond, column, doubt if rcond else _infinite)


def _held_now(ops, a, begun, sweeps, solve_adjoint):
    """Return what `hold` finds of the first of one or two sweeps, on the host."""
    (sweep, *after), xp = sweeps, ops.xp
    if not after:
        after = [Sweep(None, None, solve_adjoint(ops.signs(sweep.v[:, 0], _beginning(xp))))]
    block = joined(xp, begun.probes, begun.solutions, [sweep, *after])
    return ops.host(hold(ops, a, *block))[0]


def _left_over(ops, a, begun, left, solve, wanted, missed):
    """Return what solves leave of the probes, `left` before they are refined, which may not be worth it."""
    b, x, r = begun.probes, begun.solutions, None
    for _ in range(HELD_STEPS):
        if not left > wanted >= missed:
            break
        r = b - ops.product(a, x) if r is None else r
        x = x + solve(r)
        r = b - ops.product(a, x)
        sums = ops.xp.concatenate([(ops.xp.abs(v) ** 2).sum(axis=0) for v in (r, b)])
        before, left = left, _left(ops.host(sums)[0])
        if not left < CONTRACTED * before:
            break
    return left


def _left(sums):
    """Return the largest part of a probe that is left, by squares of the lengths; a NaN, if there is one."""
    of_rest, of_all = np.reshape(sums, (2, PROBES))
    return np.sqrt(np.max(of_rest / of_all))


def joined(xp, probes, solutions, sweeps):
    """Return what `hold` takes, of the probes and of all sweeps but the last, each with the next one's z."""
    b = xp.concatenate([probes, *(sweep.e for sweep in sweeps[:-1])], axis=1)
    x = xp.concatenate([solutions, *(sweep.v for sweep in sweeps[:-1])], axis=1)
    return b, x, xp.concatenate([sweep.z for sweep in sweeps[1:]], axis=1)


def hold(ops, a, b, x, z):
    """Hold x = A^-1 b, by solves, against A.

    Returns the sums of |b - A x|^2 for each of the probes, of their own squares, and |z^H (b - A x)| for the
    columns behind them.
    """
    with np.errstate(all="ignore"):
        return ops.held(b, ops.product(a, x), z)


def _infinite(wanted):
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

    Returns `Begun.found`, and the rest of what was `Begun`.
    """
    found, probes = ops.xp.empty(2 + 3 * sweeps), ops.probes(n)
    solutions = solve(probes)  # together
    climbed = _climb(ops, solutions[:, :1], solve, solve_adjoint, found[2:])
    # All sums at once: each for itself would delay the next solve.
    sums = _sums(ops.xp, [*solutions.T[:2], *(sweep.v[:, 0] for sweep in climbed)])
    found[:2], found[4::3] = sums[:2], sums[2:]
    return found, (probes, solutions, climbed)


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
