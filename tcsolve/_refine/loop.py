"""Refine approximate solutions until the FP64 residual meets the bound.

Classical refinement runs while it contracts.  If it contracts slowly, the last iterates are combined.  If it
does not contract, FGMRES follows, with the same corrections as preconditioner.  All right-hand sides are
refined at once.  A right-hand side that has met the bound is not changed again.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tcsolve._refine import stopping
from tcsolve._refine.krylov import WARM_UP_STEPS, basis_bytes, fgmres

__all__ = ["Operator", "Refined", "refine_columns"]

# Largest number of bytes for the Krylov bases of right-hand sides that run together, and for the iterates
# that are combined.  Combining larger iterates takes longer than the steps that it saves.
KRYLOV_BYTES, COMBINED_BYTES = 1 << 30, 25 << 20
# ITERATES iterates are combined if a step leaves more than SLOW times the error.  Faster refinement gains
# nothing from combining them.
ITERATES, SLOW = 4, 0.02
# Number of vectors per column that classical refinement holds and FGMRES on other columns does not need.
VECTORS_DONE = 4
# Rounding errors of inner products of unit vectors, and the smallest reduction that FGMRES can reach.
ROUNDING = 2.0**-46


@dataclass(frozen=True)
class Operator:
    """The matrix A for the loop: products, residuals, and the norms of the stopping test.

    Attributes
    ----------
    product : callable, (n, k) -> (n, k)
        v -> A v in FP64.
    norm : float
        Infinity norm of A.
    row, col : array, shape (n,), optional
        The scaling diag(row) A diag(col), if there is one.  Then the residual of the scaled system must meet
        the bound too, so that small rows are as accurate as large ones.
    scaled_norm : float
        Infinity norm of diag(row) A diag(col).
    matrix : array, shape (n, n), optional
        A itself, unless only `product` is known.
    outer : callable, (r, x) -> error of each column, optional
        The backward error of the caller's system, if this system is a scaled one (`Frame`).  It must meet the
        bound too.
    """

    product: Callable
    norm: float
    row: Any = None
    col: Any = None
    scaled_norm: float = 0.0
    matrix: Any = None
    outer: Callable | None = None

    @classmethod
    def of(cls, ops, matrix, norm, scaled=None, outer=None):
        """Return the operator for a matrix; `scaled` has row, col and scaled_norm, if there is a scaling."""
        row, col, scaled_norm = scaled or (None, None, 0.0)
        return cls(lambda v: ops.product(matrix, v), norm, row, col, scaled_norm, matrix, outer)

    @property
    def measures_the_caller(self):
        """Whether `measure` returns the backward error of A alone, with neither scaling nor `outer`."""
        return self.row is None and self.outer is None

    def residual(self, ops, x, b):
        """Return r = b - A x, and max |r| and max |x| of each column on the host."""
        if self.matrix is None:
            return ops.difference(b, self.product(x), x)
        return ops.residual(self.matrix, x, b)


class Point(NamedTuple):
    """A point of the history of some columns.

    Attributes
    ----------
    step : ndarray of int, shape (k,)
        Number of corrections so far.
    error : ndarray, shape (k,)
        Backward error.
    estimated : bool
        True if FGMRES estimated the error after an inner step, False if the residual was recomputed.
    """

    step: np.ndarray
    error: np.ndarray
    estimated: bool


@dataclass
class Refined:
    """The result of the loop: the best x of each column, with its error and its number of steps."""

    x: Any
    error: np.ndarray
    steps: np.ndarray
    converged: np.ndarray
    history: list = field(default_factory=list)
    classical: bool = True
    kept: int = 0  # peak bytes of combined iterates and of Krylov bases

    @property
    def all_converged(self):
        return bool(self.converged.all())


def measure(ops, operator, x, b):
    """Return the residual r = b - A x, and the error of each column on the host.

    The error is ``||r|| / (||A|| ||x||)`` in infinity norms.  With a scaling or an outer system it is the
    largest of this error and those of the other systems.  It is 0 for an exactly zero residual, and NaN if
    anything is not finite.
    """
    xp = ops.xp
    # This is the only synchronisation of a step, unless there is a scaling.
    r, residual, size = operator.residual(ops, x, b)
    error = _quotient(residual, operator.norm, size)
    if operator.row is not None:
        sizes = ops.column_max(r * operator.row[:, None]), ops.column_max(x / operator.col[:, None])
        (sizes,) = ops.host(xp.stack(sizes))
        error = np.maximum(error, _quotient(sizes[0], operator.scaled_norm, sizes[1]))
    if operator.outer is not None:
        error = np.maximum(error, operator.outer(r, x))
    return r, error


def _quotient(residual, norm, x):
    residual, x = np.asarray(residual, dtype=float), np.asarray(x)
    finite = np.isfinite(x)
    with np.errstate(all="ignore"):
        # Two divisions: the product of the norms may overflow or underflow.
        error = residual / norm / x
    # A zero residual means an error of zero, also for x = 0.  An infinite x is never an answer.
    error[finite & (residual == 0)] = 0.0
    error[~finite] = np.nan
    return error


def refine_columns(
    ops,
    operator,
    b,
    correct,
    plan,
    bound,
    *,
    x0=None,
    max_steps=300,
    worth=math.inf,
    ahead=(),
    plain=0,
):
    """Refine x until the error of every column is at most `bound`, or until further steps do not pay.

    Parameters
    ----------
    ops : Ops
    operator : Operator
    b : array, shape (n, k), float64 or complex128
    correct : callable, (n, k) -> (n, k)
        Solves A d = r approximately.
    plan : Plan
        Its contraction and basis are used.
    bound : float
    x0 : array, shape (n, k), optional
        The first x; by default ``correct(b)``.
    max_steps : int
        Largest number of corrections of a column.
    worth : float
        The number of corrections of all columns together that cost as much as a better preconditioner.  The
        loop ends if a column would need more, at the rate of its last step.
    ahead : (x, r, sizes), optional
        Iterates of a single column that were computed before, beginning with ``correct(b)``, and their
        residuals: both have shape (steps + 1, n, 1).  sizes has max |r| and max |x| of each, on the host,
        with shape (2, steps + 1).  Only for an operator without scaling.
    plain : int
        Number of steps of a single column before iterates are combined, including the steps in `ahead`.

    Returns
    -------
    Refined

    Notes
    -----
    Classical refinement converges if c(n) u_f cond(A) < 1, where u_f is the roundoff of the factors.  FGMRES
    converges up to a condition number of about 1 / (u_f sqrt(u)), because it only needs a preconditioned
    operator of moderate condition [1]_.

    Slow refinement is usually slow in few directions only, those of the smallest singular values.  It then
    continues from the affine combination of the last iterates with the smallest residual.  This is Anderson
    acceleration [2]_.  With all iterates it is equivalent to GMRES [3]_.  The residual of the combination is
    the same combination of the residuals, so no product with A is needed for it.  The convergence test still
    uses a residual that is computed from x.

    References
    ----------
    .. [1] E. Carson, N. J. Higham, SIAM J. Sci. Comput. 40 (2018), A817-A847.
    .. [2] D. G. Anderson, J. ACM 12 (1965), 547-560.
    .. [3] H. F. Walker, P. Ni, SIAM J. Numer. Anal. 49 (2011), 1715-1735.
    """
    # If a correction overflows, the error is NaN and the column does not converge.  No warning is needed.
    with np.errstate(all="ignore"):
        if ahead:
            state, recent = _replay(ops, operator, plan, bound, ahead, max_steps)
        else:
            state, recent = _start(ops, operator, bound, correct(b) if x0 is None else x0, b)
        if not state.all_converged:
            limits = _Limits(bound, plan, max_steps, worth)
            _refine_on(ops, operator, b, correct, limits, state, recent, plain)
    return state


def _start(ops, operator, bound, x, b):
    """Return the state of the loop at x, and [(x, r)]."""
    r, error = measure(ops, operator, x, b)
    converged = stopping.converged(error, bound)
    steps = np.zeros(len(error), int)
    return Refined(x, error, steps, converged, [Point(steps.copy(), error, False)]), [(x, r)]


def _replay(ops, operator, plan, bound, ahead, max_steps):
    """Return the state after the steps done ahead, and the last (x, r) if the loop has to continue.

    The decisions are those of the loop, so that the result is the same bits as without `ahead`.
    """
    x, r, (residuals, sizes) = ahead
    errors = _quotient(residuals, operator.norm, sizes)
    best, taken, recent, history = 0, 0, [0], [Point(np.zeros(1, int), errors[:1], False)]
    going = bool(errors[0] > bound)
    while going and taken + 1 < len(errors):
        taken += 1
        before, error = errors[best], errors[taken]
        best = taken if error < before else best
        history.append(Point(np.array([taken]), errors[best : best + 1], False))
        going = bool(error > bound and error <= plan.contraction * before and taken < max_steps)
        slow = len(recent) > 1 or not error <= SLOW * before
        recent = [*recent, taken][-ITERATES if slow else -1 :]
    error = errors[best : best + 1]
    converged = stopping.converged(error, bound)
    # Copy x, because all iterates done ahead share one array.
    state = Refined(ops.copied(x[best]), error, np.array([taken]), converged, history)
    return state, [(x[i], r[i]) for i in recent] if going else []


@dataclass(frozen=True)
class _Limits:
    """The limits of the loop, as `refine_columns` takes them."""

    bound: float
    plan: Any
    max_steps: int
    worth: float

    def is_hopeless(self, error, before, columns):
        """Tell whether one of these columns needs more steps than `worth` allows; all are `columns`."""
        if self.worth == math.inf:
            return False
        worth = self.worth * columns / len(error)
        return bool((stopping.projected_steps(error, before, 1, self.bound) > worth).any())


def _refine_on(ops, operator, b, correct, limits, state, recent, plain):
    """Refine the columns that have not converged, in place in `state`."""

    def advance(recent, b):
        combines = len(recent) > 1 and (b.shape[1] > 1 or state.steps[0] >= plain)
        x, r = recent.combined() if combines else recent.last
        x = x + correct(r)
        return x, *measure(ops, operator, x, b)

    if recent and not _classical(ops, b, advance, limits, state, recent):
        return
    left = ~state.converged & ~np.isnan(state.error) & (state.steps < limits.max_steps)
    left = np.flatnonzero(left)
    if left.size and limits.worth * len(state.error) / left.size >= WARM_UP_STEPS:
        state.classical = False
        n, item = b.shape[0], state.x.dtype.itemsize
        width = max(1, int(KRYLOV_BYTES // (2 * (limits.plan.basis + 1) * n * item)))
        for i in range(0, left.size, width):
            _krylov(ops, operator, b, correct, limits, state, left[i : i + width])


def _classical(ops, b, advance, limits, state, recent):
    """Run classical refinement on the columns that contract, in place in `state`.

    `recent` has the last (x, r) of all columns; this empties the list.  Return False if the remaining steps
    cost more than a better preconditioner.
    """
    active = np.flatnonzero(~state.converged & ~np.isnan(state.error))
    recent, contraction = _Iterates(ops, recent), limits.plan.contraction
    recent.take(active)
    while active.size:
        before = state.error[active]
        trial, r, error = advance(recent, _take(ops, b, active))
        state.steps[active] += 1
        _keep_better(ops, state, active, trial, error, limits.bound)
        if limits.is_hopeless(error, before, len(state.error)):
            return False
        going = (
            ~state.converged[active]
            & stopping.contracting(error, before, contraction)
            & (state.steps[active] < limits.max_steps)
        )
        left = np.flatnonzero(going)
        if not left.size:
            break
        slow = len(recent) > 1 or not stopping.contracting(error, before, SLOW)[going].all()
        fits = 2 * ITERATES * trial.nbytes <= COMBINED_BYTES
        recent.add(trial, r, ITERATES if slow and fits else 1)
        del trial, r
        recent.take(left)
        state.kept = max(state.kept, recent.nbytes - 2 * recent.last[0].nbytes)
        active = active[left]
    return True


class _Iterates:
    """The last iterates (x, r) of some columns, the newest at the end, with the Gram matrices of their r.

    The list `given` is emptied, because memory that the caller still held could not be freed.
    """

    def __init__(self, ops, given):
        self._ops, self._given, self._gram = ops, given, None

    def __len__(self):
        return len(self._given)

    @property
    def last(self):
        """The newest (x, r)."""
        return self._given[-1]

    @property
    def nbytes(self):
        """Number of bytes of all iterates."""
        return sum(x.nbytes + r.nbytes for x, r in self._given)

    def add(self, x, r, most):
        """Append (x, r), and keep only the newest `most` iterates."""
        gone = max(0, len(self) + 1 - most)
        self._given = [*self._given, (x, r)][gone:]
        if self._gram is not None:
            self._gram = self._gram[:, gone:, gone:]

    def take(self, index):
        """Keep only the columns `index`; each old vector is freed before the next one is copied."""
        taken = []
        while self._given:
            taken.append(tuple(_take(self._ops, v, index) for v in self._given.pop(0)))
        self._given = taken
        if self._gram is not None:
            self._gram = self._gram[index]

    def combined(self):
        """Return the affine combination (x, r) of each column with the smallest ||r||_2."""
        x, r = zip(*self._given, strict=True)
        self._gram = self._ops.gram(r, self._gram)
        weights = _weights(self._gram)
        return self._ops.mixed(x, weights), self._ops.mixed(r, weights)


def _weights(gram):
    """Return the weights w with sum 1 that minimise w^H G w, for each of the Gram matrices G (k, m, m).

    If entries of G have overflowed or underflowed, the weight of the last vector is 1 and the others are 0.
    """
    m = gram.shape[1]
    size = np.sqrt(np.diagonal(gram, axis1=1, axis2=2).real)[:, :, None]
    cosines = gram / size / size.transpose(0, 2, 1) + ROUNDING * np.eye(m)
    usable = np.isfinite(cosines).all(axis=(1, 2)) & (size > 0).all(axis=(1, 2))
    last = np.arange(m) == m - 1
    try:  # unusable matrices are replaced by the identity, because one of them would fail the whole call
        w = np.linalg.solve(np.where(usable[:, None, None], cosines, np.eye(m)), 1 / size) / size
    except np.linalg.LinAlgError:
        return np.broadcast_to(last, gram.shape[:2]).astype(gram.dtype)
    w = w[:, :, 0] / w[:, :, 0].sum(axis=1, keepdims=True)
    return np.where(usable[:, None] & np.isfinite(w).all(axis=1, keepdims=True), w, last)


def _krylov(ops, operator, b, correct, limits, state, active):
    """Run cycles of FGMRES on the columns `active`, until they converge or more steps do not pay."""
    bound, max_steps = limits.bound, limits.max_steps
    while active.size:
        x, rhs = _take(ops, state.x, active), _take(ops, b, active)
        r = rhs - operator.product(x)
        before = state.error[active]
        allowed = max_steps - state.steps[active]
        worst = float(before.max())

        def hopeless(steps, reduction, worst=worst, allowed=allowed):
            rest = stopping.projected_steps(worst * reduction, worst, steps, bound)
            return steps + rest > allowed.max()

        # Aim at the bound in one cycle: a restart has to build its Krylov space again.
        tol = max(0.1 * bound / worst, ROUNDING)
        cycle = fgmres(
            ops,
            operator.product,
            correct,
            r,
            basis=np.minimum(limits.plan.basis, allowed),
            tol=tol,
            give_up=hopeless,
        )
        state.kept = max(state.kept, _bytes_kept(cycle, r, len(state.error)))
        _note_inner_steps(state, active, before, cycle)
        trial = x + cycle.d
        _, error = measure(ops, operator, trial, rhs)
        state.steps[active] += cycle.steps
        _keep_better(ops, state, active, trial, error, bound)
        # A column continues if the cycle has reduced its error by `contraction`, and if at this rate it
        # meets the bound within max_steps.
        rest = stopping.projected_steps(error, before, cycle.steps, bound)
        going = (
            ~state.converged[active]
            & stopping.contracting(error, before, limits.plan.contraction)
            & (state.steps[active] + rest <= max_steps)
        )
        active = active[going]


def _bytes_kept(cycle, r, columns):
    """Return how many bytes the bases of a cycle take beyond classical refinement of all `columns`."""
    bases = basis_bytes(*r.shape, int(cycle.steps.max()), cycle.most, r.dtype.itemsize)
    return bases - VECTORS_DONE * (columns - r.shape[1]) * r[:, 0].nbytes


def _note_inner_steps(state, active, before, cycle):
    """Add the errors that FGMRES estimated after each step of a cycle to the history."""
    for steps, reduction in cycle.reductions:
        step, error = state.steps.copy(), state.error.copy()
        step[active] += steps
        error[active] = before * reduction
        state.history.append(Point(step, error, True))


def _take(ops, x, index):
    """Return the columns `index` of x; if these are all columns, x itself without a copy."""
    return x if len(index) == x.shape[1] else x[:, ops.array(index)]


def _keep_better(ops, state, active, trial, error, bound):
    """Store the columns of `trial` with a smaller error than before; a NaN never replaces a number."""
    with np.errstate(invalid="ignore"):
        better = error < state.error[active]
    if better.all() and len(active) == len(state.error):
        state.x = trial
    elif better.any():
        # Copy first, because the starting x may belong to the caller.
        state.x = state.x.copy()
        state.x[:, ops.array(active[better])] = trial[:, ops.array(np.flatnonzero(better))]
    state.error = state.error.copy()
    state.error[active[better]] = error[better]
    state.converged = state.converged | stopping.converged(state.error, bound)
    state.history.append(Point(state.steps.copy(), state.error, False))
