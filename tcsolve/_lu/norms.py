"""The survey of a matrix (norms, dominance), and the estimate of its condition number."""

import math
from collections.abc import Callable
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

# The condition estimator does a first solve and then at most MAX_SWEEPS - 1 sweeps, as xLACN2.  Before
# anything is read, it launches the first solve and SWEEPS_AT_ONCE sweeps.  It launches all sweeps if it runs
# during the refinement, n is in ALL_AT_ONCE, and the matrix is not dominant: then the refinement takes
# longer than all sweeps.
MAX_SWEEPS, SWEEPS_AT_ONCE, ALL_AT_ONCE = 5, 2, range(4097, 8193)
# Number of probes, the first right-hand sides of the estimator.  Their solutions are refined by at most
# HELD_STEPS steps.  Another step is tried only if the last one has multiplied the residual by less than
# CONTRACTED.
PROBES, HELD_STEPS, CONTRACTED = 4, 2, 0.7

# The computed dominance of a row of n entries has a rounding error of at most about n times this number times
# the largest row sum.
ROUNDING = 2.0**-52


class Survey(NamedTuple):
    """Norms and dominance of a matrix.

    Attributes
    ----------
    inf, one : float
        Infinity norm and 1-norm.
    row_spread, col_spread : float
        Smallest row (column) sum of |A| divided by the largest.  1 means well scaled, 0 means a zero row
        (column).  It is 1 if A is zero.
    dominance : float
        Minimum over i of 2 |a_ii| - sum_j |a_ij|.  Positive if A is strictly diagonally dominant by rows.
    column_dominance : float
        Minimum over j of 3 |a_jj| - sum_i |a_ij|.  Positive if in each column the other entries sum to less
        than twice the diagonal entry.
    """

    inf: float
    one: float
    row_spread: float
    col_spread: float
    dominance: float
    column_dominance: float

    @classmethod
    def of(cls, inf, low_row, one, low_col, dominance=-math.inf, column_dominance=-math.inf):
        """Return the survey for the largest and smallest row sums and column sums, as floats."""
        spreads = _spread(low_row, inf), _spread(low_col, one)
        return cls(inf, one, *spreads, dominance, column_dominance)

    @property
    def finite(self):
        """True if no entry is NaN or Inf and no norm overflows."""
        return math.isfinite(self.inf) and math.isfinite(self.one)

    def least_rcond(self, n):
        """Return a lower bound of 1 / (||A||_1 ||A^-1||_1) for A (n, n); 0 if A is not dominant by rows.

        ``||A^-1||_inf <= 1 / dominance`` [1]_, and ``||A^-1||_1`` is at most n times as large.

        References
        ----------
        .. [1] J. M. Varah, Linear Algebra Appl. 11 (1975), 3-5.
        """
        dominance = self.dominance - (n + 2) * ROUNDING * self.inf
        return dominance / n / self.one if dominance > 0 and self.finite else 0.0


def survey(ops, a):
    """Return the `Survey` of the square matrix a, with one synchronisation."""
    return begin_survey(ops, a).wait()


def begin_survey(ops, a, dtype=None):
    """Start the survey of a; return a `BegunSurvey`, whose `wait` returns the `Survey`."""
    begun = ops.extremes(a, dtype)

    return begun._replace(wait=lambda: Survey.of(*begun.wait()))


def _spread(low, top):
    """Return low / top, or 1 if both are 0.

    It is 0 only for low = 0: a quotient that underflows becomes the smallest positive number.
    """
    if not top:
        return 1.0
    return max(low / top, math.ulp(0.0)) if low else 0.0


class Condition(NamedTuple):
    """The result of `condest`.

    Attributes
    ----------
    rcond : float
        Up to rounding an upper bound of the true value, because the estimate of ||A^-1||_1 is a lower bound.
        It is nearly always within a factor of 3.  0 if a solve overflows, or if ||A||_1 is 0 or not finite.
    column : int or None
        Index of the largest column of A^-1 that was found.
    doubt : callable
        doubt(wanted) tests the solves with A.  It tells whether the smallest singular value that the solves
        show is a singular value of A, or only comes from errors of the solves.  It returns a number that is
        far below 1 in the first case, and about 1 in the second.  The number is the larger of two:

        - ||b - A x||_2 / ||b||_2 for the probes b.  Here x is the computed solution; while this ratio is
          above `wanted` and falls fast enough, x is refined, by at most two steps.  If the solves miss a
          singular vector of A, this component of a random b stays in the residual.
        - |z^H (e_j - A v)| / ||v||_1.  Here j is the number of the largest column of A^-1 that was found, v
          the computed solution for e_j, and z the computed adjoint solution for sign(v).  If the solves were
          exact, both z^H e_j and z^H A v would be ||v||_1.  If v is an error of the solves, z^H A v is much
          smaller.

        doubt(wanted) is infinite if rcond is 0, or if no column of A^-1 that was found has at least half the
        size of the estimate.
    """

    rcond: float
    column: int | None
    doubt: Callable


class Sweep(NamedTuple):
    """A step of the estimator: the subgradient z, the unit vector e of its largest entry, and v = A^-1 e.

    All three have shape (n, 1).
    """

    e: Any
    v: Any
    z: Any


class FirstSweeps(NamedTuple):
    """The first part of `condest`, which is launched without reading anything.

    Attributes
    ----------
    found : array
        The 1-norms of the solutions for the first two probes.  Then, for each sweep, the index of the
        largest entry of the subgradient, its modulus, and the new estimate.
    probes, solutions : array, shape (n, 4)
        The first right-hand sides and their solutions.
    sweeps : list of Sweep
        The sweeps that were launched.
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
        The result of `begin_condest`.  `found` may be a copy on its way to the host, with the result of
        `hold` appended.

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
    begun = FirstSweeps(found, *rest)
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
        if number < len(held) - 2 * PROBES:  # `begun` has the result of `hold` for this sweep
            sums, missed = held[: 2 * PROBES], held[2 * PROBES + number]
        else:
            *sums, missed = _held_now(ops, a, begun, climbed[number : number + 2], solve_adjoint)
        with np.errstate(all="ignore"):
            missed, left = missed / size, _left(sums)
            if missed <= wanted:  # else refinement cannot change the decision
                left = _left_over(ops, a, begun, left, solve, wanted)
            return float(np.maximum(left, missed))  # NaN if one of them is

    column = None if best is None else int(rows[best, 0])
    return Condition(rcond, column, doubt if rcond else _infinite)


def _held_now(ops, a, begun, sweeps, solve_adjoint):
    """Return the result of `hold` for sweeps[0], on the host.

    The adjoint solution for sweeps[0] is in sweeps[1]; if there is no sweeps[1], it is computed.
    """
    (sweep, *after), xp = sweeps, ops.xp
    if not after:
        after = [Sweep(None, None, solve_adjoint(ops.signs(sweep.v[:, 0], _beginning(xp))))]
    block = joined(xp, begun.probes, begun.solutions, [sweep, *after])
    return ops.host(hold(ops, a, *block))[0]


def _left_over(ops, a, begun, left, solve, wanted):
    """Return the largest relative residual of the probes after refinement; `left` is that before it.

    Refinement ends when `left` is at most `wanted`, falls too slowly, or after HELD_STEPS steps.
    """
    b, x, r = begun.probes, begun.solutions, None
    for _ in range(HELD_STEPS):
        if not left > wanted:
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
    """Return the largest relative residual of a probe, from sums of squares; NaN if one is NaN."""
    of_rest, of_all = np.reshape(sums, (2, PROBES))
    return np.sqrt(np.max(of_rest / of_all))


def joined(xp, probes, solutions, sweeps):
    """Return the arguments b, x, z of `hold`, for the solves of the probes and of all sweeps but the last.

    z has a column for each of these sweeps.  The adjoint solution for sweep i is the subgradient of
    sweep i + 1.
    """
    b = xp.concatenate([probes, *(sweep.e for sweep in sweeps[:-1])], axis=1)
    x = xp.concatenate([solutions, *(sweep.v for sweep in sweeps[:-1])], axis=1)
    return b, x, xp.concatenate([sweep.z for sweep in sweeps[1:]], axis=1)


def hold(ops, a, b, x, z):
    """Compare A x with b for computed solutions x of A x = b.

    Return one array: the sums of |b - A x|^2 of the probes, the sums of their |b|^2, and |z^H (b - A x)| of
    the remaining columns.
    """
    with np.errstate(all="ignore"):
        return ops.held(b, ops.product(a, x), z)


def _infinite(wanted):
    return math.inf


def _ascent(estimate, rows):
    """Return (largest estimate, its row in `rows` or None, whether another sweep may increase it).

    `estimate` is the first estimate.  Each row has the index of the largest entry of the subgradient, its
    modulus, and the new estimate.
    """
    best, last = None, -1.0
    for number, (top, size, new) in enumerate(rows):
        if top == last or not (math.isfinite(size) and new > estimate):
            return estimate, best, False
        estimate, best, last = float(new), number, top
    return estimate, best, True


def sweeps_at_once(n, dominant):
    """Return how many sweeps of `condest` should be launched before anything is read.

    For a dominant matrix, two sweeps nearly always find the largest column, and the refinement is too short
    to hide the time of more sweeps.
    """
    return MAX_SWEEPS - 1 if n in ALL_AT_ONCE and not dominant else SWEEPS_AT_ONCE


def begin_condest(ops, n, solve, solve_adjoint, sweeps=SWEEPS_AT_ONCE):
    """Launch the first sweeps of `condest` without reading anything back.

    Return `FirstSweeps.found`, and a tuple of the other fields of `FirstSweeps`.
    """
    found, probes = ops.xp.empty(2 + 3 * sweeps), ops.probes(n)
    solutions = solve(probes)  # one solve for all probes
    climbed = _climb(ops, solutions[:, :1], solve, solve_adjoint, found[2:])
    # Compute all sums at the end: between two solves, a sum would delay the second one.
    sums = _sums(ops.xp, [*solutions.T[:2], *(sweep.v[:, 0] for sweep in climbed)])
    found[:2], found[4::3] = sums[:2], sums[2:]
    return found, (probes, solutions, climbed)


def _climb(ops, v, solve, solve_adjoint, found):
    """Do one sweep for each triple of entries of `found`, and return the sweeps.

    A sweep moves to the unit vector of the largest entry of the subgradient of x -> ||A^-1 x||_1.  The first
    two entries of its triple become the index and the modulus of that entry; the caller fills the third.
    """
    state, climbed = _beginning(ops.xp), []
    for first in range(0, len(found), 3):
        # If the index repeats, the estimator has converged: the remaining solves get zero vectors.
        z = solve_adjoint(ops.signs(v[:, 0], state))
        e = ops.steepest(z[:, 0], state, found[first : first + 2])
        v = solve(e)
        climbed.append(Sweep(e, v, z))
    return climbed


def _beginning(xp):
    """Return the initial state for `Ops.steepest`: (-1, 1).

    -1 is no index, so the first index counts as new.  With 1, the first vector of signs is not zero.
    """
    return xp.arange(-1.0, 3.0, 2.0)


def _sums(xp, vectors):
    # At most eight vectors: for more, CuPy's stack copies addresses from the host, and a recorded graph
    # would read that host memory again.
    with np.errstate(all="ignore"):
        return xp.abs(xp.stack(vectors)).sum(axis=1)
