"""Refinement of approximate solutions until the FP64 residual meets the bound.

Classical refinement while it contracts, the last iterates combined where it does so slowly; FGMRES with the
same corrections where it does not.  All right-hand sides at once; one that has met the bound is not touched
again.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tcsolve._refine import stopping
from tcsolve._refine.krylov import WARM_UP_STEPS, basis_bytes, fgmres

__all__ = ["Operator", "Refined", "refine_columns"]

# Bytes the Krylov bases of the right-hand sides that run side by side may take, and the last iterates that
# are combined: with more of them that costs more than the steps it saves.
KRYLOV_BYTES, COMBINED_BYTES = 1 << 30, 25 << 20
# Iterates that are combined, once a step leaves more than this of the error: where it leaves less, nothing
# is gained.
ITERATES, SLOW = 4, 0.02
# Vectors of a column that classical refinement has, and FGMRES of the other columns does not need.
VECTORS_DONE = 4
# What rounding leaves uncertain, next to 1, in inner products of unit vectors and in residuals of FGMRES.
ROUNDING = 2.0**-46


@dataclass(frozen=True)
class Operator:
    """A as the loop needs it: residuals, products and the norms of the stopping test.

    Attributes
    ----------
    product : callable, (n, k) -> (n, k)
        v -> A v in FP64.
    norm : float
        Infinity norm of A.
    row, col : array, shape (n,), optional
        The scaling diag(row) A diag(col), if there is one; then the scaled residual must meet the
        bound too, so that small rows are as accurate as large ones.
    scaled_norm : float
        Infinity norm of diag(row) A diag(col).
    matrix : array, shape (n, n), optional
        A itself, where there is one.
    outer : callable, (r, x) -> error of each column, optional
        The backward error of the system that this one was made from; it must meet the bound, too.
    """

    product: Callable
    norm: float
    row: Any = None
    col: Any = None
    scaled_norm: float = 0.0
    matrix: Any = None
    outer: Callable | None = None

    @classmethod
    def of(cls, ops, matrix, norm, row=None, col=None, scaled_norm=0.0, outer=None):
        """Return the operator of a matrix."""
        return cls(lambda v: ops.product(matrix, v), norm, row, col, scaled_norm, matrix, outer)

    @property
    def measures_the_caller(self):
        """Whether the error of `measure` is that of A itself, by no other measure."""
        return self.row is None and self.outer is None

    def residual(self, ops, x, b):
        """Return r = b - A x, and on the host max |r| and max |x| of each column."""
        if self.matrix is None:
            return ops.difference(b, self.product(x), x)
        return ops.residual(self.matrix, x, b)


class Point(NamedTuple):
    """A point of the history of some columns.

    Attributes
    ----------
    step : ndarray of int, shape (k,)
        Corrections so far.
    error : ndarray, shape (k,)
    estimated : bool
        Whether the error is FGMRES's own estimate after an inner step, not that of a recomputed residual.
    """

    step: np.ndarray
    error: np.ndarray
    estimated: bool


@dataclass
class Refined:
    """What the loop found: the best x of each column, with its error and cost."""

    x: Any
    error: np.ndarray
    steps: np.ndarray
    converged: np.ndarray
    history: list = field(default_factory=list)
    classical: bool = True
    kept: int = 0  # bytes, at most, of the iterates that were combined, and of Krylov bases

    @property
    def all_converged(self):
        return bool(self.converged.all())


def measure(ops, operator, x, b):
    """Return the residual b - A x and, per column on the host, its error.

    The error is ``||r|| / (||A|| ||x||)`` in infinity norms, or the largest of that, its scaled counterpart
    and that of the outer system; 0 for an exact zero residual, NaN if anything is not finite.
    """
    xp = ops.xp
    # The one synchronisation of a step, unless there is a scaling.
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
        # Divided one after the other: the product of the norms may leave the range of FP64.
        error = residual / norm / x
    # A zero residual is exact whatever x is; an infinite x is never an answer.
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
    """Refine x until every column's error is at most `bound`, or say which are not.

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
        Start; by default the correction of b.
    max_steps : int
        Corrections a column may cost.
    worth : float
        Corrections of all columns that cost as much as a better preconditioner: when a column needs more, at
        the rate of its last step, the loop ends.
    ahead : (x, r, sizes), optional
        The first x of a single column, from the correction of b on, and their residuals, (steps + 1, n, 1),
        where they are known already; and max |r| and max |x| of each, on the host, (2, steps + 1).  Of an
        operator without scaling.
    plain : int
        Steps of a single column before iterates are combined, those done ahead among them.

    Returns
    -------
    Refined

    Notes
    -----
    Classical refinement converges if c(n) u_f cond(A) < 1 for factors of roundoff u_f; FGMRES, whose
    preconditioned operator only needs a moderate condition number, up to about 1 / (u_f sqrt(u)) [1]_.

    Where refinement is slow, few directions, those of the smallest singular values, hold it up.  It then goes
    on from that affine combination of the last iterates whose residual is least, which is Anderson
    acceleration [2]_ and, while it remembers all iterates, equivalent to GMRES [3]_.  The residual of the
    combination is that of the residuals, so that this costs no product with A; what counts for convergence is
    computed from x as ever.

    References
    ----------
    .. [1] E. Carson, N. J. Higham, SIAM J. Sci. Comput. 40 (2018), A817-A847.
    .. [2] D. G. Anderson, J. ACM 12 (1965), 547-560.
    .. [3] H. F. Walker, P. Ni, SIAM J. Numer. Anal. 49 (2011), 1715-1735.
    """
    # A correction that overflows shows in the error it leaves; NumPy need not warn of it as well.
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
    """Return the loop's state at x, and [(x, r)]."""
    r, error = measure(ops, operator, x, b)
    converged = stopping.converged(error, bound)
    steps = np.zeros(len(error), int)
    return Refined(x, error, steps, converged, [Point(steps.copy(), error, False)]), [(x, r)]


def _replay(ops, operator, plan, bound, ahead, max_steps):
    """Return what the loop makes of steps that were done ahead, and the last (x, r) if it goes on."""
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
    # A copy: all of these steps share their memory.
    state = Refined(ops.copied(x[best]), error, np.array([taken]), converged, history)
    return state, [(x[i], r[i]) for i in recent] if going else []


@dataclass(frozen=True)
class _Limits:
    """When the loop ends; as for `refine_columns`."""

    bound: float
    plan: Any
    max_steps: int
    worth: float

    def is_hopeless(self, error, before, columns):
        """Tell whether one of these of all `columns` needs more steps than a better preconditioner costs."""
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
    """Correct the columns that still contract, in place in `state`; recent are the last (x, r) of all.

    That list is emptied.  Return False where the rest takes longer than it is worth.
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
    """Some (x, r) of the same columns, the last at the end, and what is known of the products of their r.

    The list of them that is given is emptied: what somebody else held could not be freed.
    """

    def __init__(self, ops, given):
        self._ops, self._given, self._gram = ops, given, None

    def __len__(self):
        return len(self._given)

    @property
    def last(self):
        """The last (x, r)."""
        return self._given[-1]

    @property
    def nbytes(self):
        """Bytes of all."""
        return sum(x.nbytes + r.nbytes for x, r in self._given)

    def add(self, x, r, most):
        """Take another (x, r), and keep so many, the last ones."""
        gone = max(0, len(self) + 1 - most)
        self._given = [*self._given, (x, r)][gone:]
        if self._gram is not None:
            self._gram = self._gram[:, gone:, gone:]

    def take(self, index):
        """Keep some columns; each vector is gone when the next is copied."""
        taken = []
        while self._given:
            taken.append(tuple(_take(self._ops, v, index) for v in self._given.pop(0)))
        self._given = taken
        if self._gram is not None:
            self._gram = self._gram[index]

    def combined(self):
        """Return that affine combination whose r is least in the 2-norm, of each column."""
        x, r = zip(*self._given, strict=True)
        self._gram = self._ops.gram(r, self._gram)
        weights = _weights(self._gram)
        return self._ops.mixed(x, weights), self._ops.mixed(r, weights)


def _weights(gram):
    """Return the weights w of sum 1 that minimise w^H G w, for each of some Gram matrices G (k, m, m).

    Where the squares have left the range of FP64 only the last vector counts.
    """
    m = gram.shape[1]
    size = np.sqrt(np.diagonal(gram, axis1=1, axis2=2).real)[:, :, None]
    cosines = gram / size / size.transpose(0, 2, 1) + ROUNDING * np.eye(m)
    usable = np.isfinite(cosines).all(axis=(1, 2)) & (size > 0).all(axis=(1, 2))
    last = np.arange(m) == m - 1
    try:  # a matrix of NaN, or of Inf, would make an error of its own for all columns
        w = np.linalg.solve(np.where(usable[:, None, None], cosines, np.eye(m)), 1 / size) / size
    except np.linalg.LinAlgError:
        return np.broadcast_to(last, gram.shape[:2]).astype(gram.dtype)
    w = w[:, :, 0] / w[:, :, 0].sum(axis=1, keepdims=True)
    return np.where(usable[:, None] & np.isfinite(w).all(axis=1, keepdims=True), w, last)


def _krylov(ops, operator, b, correct, limits, state, active):
    """Run cycles of FGMRES on the columns `active` until they converge or stop paying."""
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

        # Aim at the bound itself: a cycle that ends before it has to find its space again.
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
        # A cycle must at least halve the error, and the rate it shows must reach the bound in time.
        rest = stopping.projected_steps(error, before, cycle.steps, bound)
        going = (
            ~state.converged[active]
            & stopping.contracting(error, before, limits.plan.contraction)
            & (state.steps[active] + rest <= max_steps)
        )
        active = active[going]


def _bytes_kept(cycle, r, columns):
    """Return the bytes of a cycle's bases beyond those of the classical refinement of `columns`."""
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
    """Return columns of x: x itself when it is all of them, so that nothing is copied."""
    return x if len(index) == x.shape[1] else x[:, ops.array(index)]


def _keep_better(ops, state, active, trial, error, bound):
    """Store the columns of `trial` whose error fell; a NaN never replaces a number."""
    with np.errstate(invalid="ignore"):
        better = error < state.error[active]
    if better.all() and len(active) == len(state.error):
        state.x = trial
    elif better.any():
        # The starting x may be the caller's.
        state.x = state.x.copy()
        state.x[:, ops.array(active[better])] = trial[:, ops.array(np.flatnonzero(better))]
    state.error = state.error.copy()
    state.error[active[better]] = error[better]
    state.converged = state.converged | stopping.converged(state.error, bound)
    state.history.append(Point(state.steps.copy(), state.error, False))
