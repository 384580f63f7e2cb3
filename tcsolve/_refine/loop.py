"""Refine approximate solutions until the FP64 residual meets the bound.

Classical refinement runs while it contracts.  If it does not, FGMRES follows, with the same corrections as
preconditioner.  If products with A are in double-double, GMRES with left preconditioning follows instead.  A
plan may ask for one of these methods alone, or for conjugate gradients.  All right-hand sides are refined at
once.  If the x of a right-hand side meets the bound with some margin, this x is not changed again.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tcsolve._refine import stopping
from tcsolve._refine.conjugate_gradients import cg
from tcsolve._refine.krylov import WARM_UP_STEPS, basis_bytes, fgmres, gmres
from tcsolve._refine.operator import Operator, measure, quotient

__all__ = ["Refined", "refine_columns"]

# Largest number of bytes for the Krylov bases of right-hand sides that run together.
KRYLOV_BYTES = 1 << 30
# Number of vectors per column that classical refinement uses, and that are free during a Krylov method.
VECTORS_DONE = 4
# The smallest factor by which one cycle can multiply the residual.
LEAST_REDUCTION = 2.0**-46
# The reductions of the preconditioned residual at which cycles of GMRES end, unless the plan has another one.
# The first is that of Carson and Higham.  It is too large if the preconditioned matrix is ill-conditioned: a
# cycle that does not reduce the error of x enough is followed by one with the next tolerance.
INNER_TOLS = (1e-4, 1e-8, 1e-12)
# The methods that begin without classical refinement.
KRYLOV = ("fgmres", "gmres", "cg")


class Point(NamedTuple):
    """A point of the history of some columns.

    Attributes
    ----------
    step : ndarray of int, shape (k,)
        Number of corrections so far.
    error : ndarray, shape (k,)
        Backward error.
    estimated : bool
        True if the error was estimated after an inner step, False if the residual was recomputed.
    """

    step: np.ndarray
    error: np.ndarray
    estimated: bool


@dataclass
class Refined:
    """The result of the loop: the best x of each column, with its error and its number of steps.

    `forward` is the estimated relative error of x in each column, if an estimate was asked for.  `accurate`
    tells whether this error is as small as FP64 allows.
    """

    x: Any
    error: np.ndarray
    steps: np.ndarray
    converged: np.ndarray
    history: list = field(default_factory=list)
    classical: bool = True
    kept: int = 0  # most bytes of a Krylov cycle beyond those of classical refinement
    forward: Any = None
    accurate: bool = True

    @property
    def all_converged(self):
        return bool(np.logical_and.reduce(self.converged))  # faster than all()

    def keep_better(self, ops, active, trial, error, bound):
        """Store the columns of `trial` with a smaller error than before; a NaN never replaces a number."""
        (better,) = (error < self.error[_these(active, self.error)]).nonzero()
        if len(better) == len(self.error):
            self.x, self.error = trial, error
        elif len(better):
            # Copy first, because the starting x may belong to the caller.
            self.x, self.error = self.x.copy(), self.error.copy()
            here, there = map(ops.xp.asarray, (active[better], better))
            self.x[:, here] = trial[:, there]
            self.error[active[better]] = error[better]
        self.converged = self.converged | stopping.converged(self.error, bound)
        self.history.append(Point(self.steps.copy(), self.error, False))

    def note_inner_steps(self, active, before, cycle):
        """Add the errors that were estimated after each step of a cycle to the history.

        `before` is the error of each column at the start.  GMRES estimates the reduction of the
        preconditioned residual, and the error is assumed to fall by the same factor.
        """
        for steps, reduction in cycle.reductions:
            step, error = self.steps.copy(), self.error.copy()
            step[active] += steps
            error[active] = before * reduction
            self.history.append(Point(step, error, True))


@dataclass(frozen=True)
class _Task:
    """What is refined, and the limits of the loop, as `refine_columns` takes them."""

    ops: Any
    operator: Operator
    b: Any
    correct: Callable
    preconditioners: tuple
    plan: Any
    bound: float
    max_steps: int
    worth: float
    krylov_worth: float
    goal: float  # a column with at most this error is not corrected

    @property
    def krylov(self):
        """The Krylov method: 'auto' is GMRES if products with A are in double-double, else FGMRES."""
        if self.plan.method != "auto":
            return self.plan.method
        return "gmres" if self.operator.pair else "fgmres"

    def is_hopeless(self, error, before, columns):
        """Tell whether a column needs more steps than `worth` allows.

        `worth` counts steps of all `columns`.  A step of fewer columns counts as a part of one.
        """
        if self.worth == math.inf:
            return False
        worth = self.worth * columns / len(error)
        return bool((stopping.projected_steps(error, before, 1, self.bound) > worth).any())


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
    krylov_worth=math.inf,
    sure=1.0,
    ahead=(),
    precondition=None,
    precise=None,
):
    """Refine x until the error of every column is at most `bound`, or further steps would take too long.

    Parameters
    ----------
    ops : Ops
    operator : Operator
    b : array, shape (n, k), float64 or complex128
    correct : callable, (n, k) -> (n, k)
        Solves A d = r approximately.
    plan : Plan
        Its contraction, basis, method and inner_tol are used.
    bound : float
    x0 : array, shape (n, k), optional
        The first x; by default ``correct(b)``.
    max_steps : int
        Largest number of corrections of a column.
    worth : float
        How many corrections, each of all columns at once, cost as much as a better preconditioner.  The
        loop ends if a column would need more, at the rate of its last step.
    krylov_worth : float
        How many steps of FGMRES or GMRES, each of all columns at once, take less time than a better
        preconditioner.  If `method` is 'auto', their time must be enough for WARM_UP_STEPS steps of the
        columns that have not converged; otherwise the Krylov method does not begin.
    sure : float
        Classical refinement of a column goes on until its error is at most `sure` times the bound, as long
        as it contracts.  A column whose error ends between `sure` times the bound and the bound has converged
        all the same.
    ahead : (x, r, sizes), optional
        Iterates of a single column that were computed before, beginning with ``correct(b)``, and their
        residuals: both have shape (steps + 1, n, 1).  sizes has max |r| and max |x| of each, on the host,
        with shape (2, steps + 1).  Only for an operator with neither scaling nor `outer`.
    precondition : callable, (n, k) -> (n, k), optional
        The preconditioner of the Krylov method; by default `correct`.  For GMRES, if the operator has a
        `pair`, it takes a `Pair` too.
    precise : callable, (n, k) -> (n, k), optional
        The same preconditioner with fewer rounding errors, for the columns that do not converge without it.

    Returns
    -------
    Refined

    Notes
    -----
    Classical refinement converges if c(n) u_f cond(A) < 1, where u_f is the roundoff of the factors.  FGMRES
    converges up to a condition number of about 1 / (u_f sqrt(u)) with u = 2**-53, because it only needs a
    preconditioned operator of moderate condition [1]_.

    This limit is for a preconditioned matrix that is applied in twice the working precision; in FP64 the
    theory gives lower limits.  If u_f cond(A) is above one, triangular solves in the precision u_f have no
    correct digit.  Then the preconditioner changes from step to step, and the rounding errors of the
    correction may exceed the residual; `precise` avoids that.

    References
    ----------
    .. [1] E. Carson, N. J. Higham, SIAM J. Sci. Comput. 40 (2018), A817-A847.
    """
    preconditioners = (precondition or correct, *([precise] if precise else []))
    limits = max_steps, worth, krylov_worth, sure * bound
    task = _Task(ops, operator, b, correct, preconditioners, plan, bound, *limits)
    # If a correction overflows, the error is NaN and the column does not converge.  No warning is needed.
    with np.errstate(all="ignore"):
        if ahead and plan.method not in KRYLOV:
            state, last = _replay(task, ahead)
        else:
            state, last = _start(task, correct(b) if x0 is None else x0)
        if plan.method in KRYLOV:
            last.clear()
        is_sure = np.logical_and.reduce(state.error <= task.goal)
        if not is_sure and (not last or _classical(task, state, last)):
            if plan.method != "ir" and not state.all_converged:
                _krylov(task, state)
    return state


def _start(task, x):
    """Return the state of the loop at x, and [(x, r)]."""
    r, error = measure(task.ops, task.operator, x, task.b)
    converged = stopping.converged(error, task.bound)
    steps = np.zeros(len(error), int)
    return Refined(x, error, steps, converged, [Point(steps.copy(), error, False)]), [(x, r)]


def _replay(task, ahead):
    """Return the state after the steps done ahead, and [the last (x, r)] if the loop has to continue.

    The decisions are those of the loop, so the result has the same bits as without `ahead`.
    """
    x, r, (residuals, sizes) = ahead
    bound, contraction = task.bound, task.plan.contraction
    errors = quotient(residuals, task.operator.norm, sizes)
    best, taken, history = 0, 0, [Point(np.zeros(1, int), errors[:1], False)]
    going = bool(errors[0] > task.goal)
    while going and taken + 1 < len(errors):
        taken += 1
        before, error = errors[best], errors[taken]
        best = taken if error < before else best
        history.append(Point(np.array([taken]), errors[best : best + 1], False))
        going = bool(error > task.goal and error <= contraction * before and taken < task.max_steps)
    error = errors[best : best + 1]
    converged = stopping.converged(error, bound)
    # Copy x, because all iterates done ahead share one array; CuPy copies by copyto without a kernel.
    chosen = task.ops.xp.empty(x[best].shape, x.dtype)
    task.ops.xp.copyto(chosen, x[best])
    state = Refined(chosen, error, np.array([taken]), converged, history)
    return state, [(x[taken], r[taken])] if going else []


def _classical(task, state, last):
    """Run classical refinement on the columns that contract, in place in `state`.

    `last` is [(x, r)] of all columns.  The list is emptied here, so that the caller does not keep the memory.
    Return False if the remaining steps cost more than a better preconditioner.
    """
    ops, contraction = task.ops, task.plan.contraction
    (active,) = (state.error > task.goal).nonzero()  # not those with NaN
    x, r = (_take(ops, v, active) for v in last.pop())
    while active.size:
        these = _these(active, state.error)
        before = state.error[these]
        x = x + task.correct(r)
        r, error = measure(ops, task.operator, x, _take(ops, task.b, active))
        state.steps[these] += 1
        state.keep_better(ops, active, x, error, task.bound)
        if task.is_hopeless(error, before, len(state.error)):
            return False
        going = (
            (error > task.goal)
            & stopping.contracting(error, before, contraction)
            & (state.steps[these] < task.max_steps)
        )
        (left,) = going.nonzero()
        if not left.size:
            break
        x, r = (_take(ops, v, left) for v in (x, r))
        active = active[left]
    return True


def _these(index, columns):
    """Return `index`; if it has all columns, return a slice instead, which is faster."""
    return slice(None) if len(index) == len(columns) else index


def _take(ops, x, index):
    """Return the columns `index` of x; if these are all columns, x itself without a copy."""
    return x if len(index) == x.shape[1] else x[:, ops.xp.asarray(index)]


def _krylov(task, state):
    """Run the Krylov method on the columns left.

    If the method is 'auto', it is not run if it costs more than a better preconditioner.
    """
    for precondition in task.preconditioners:
        left = ~state.converged & ~np.isnan(state.error) & (state.steps < task.max_steps)
        left = np.flatnonzero(left)
        is_dear = task.krylov_worth * len(state.error) / max(left.size, 1) < WARM_UP_STEPS
        if not left.size or is_dear and task.plan.method == "auto":
            break
        state.classical = False
        n, item = task.b.shape[0], state.x.dtype.itemsize
        width = max(1, int(KRYLOV_BYTES // (_bases(task) * (task.plan.basis + 1) * n * item)))
        for i in range(0, left.size, width):
            _cycles(task, state, left[i : i + width], precondition)


def _cycles(task, state, active, precondition):
    """Run cycles on the columns `active`, until they converge or would take too long."""
    ops, operator, bound, max_steps = task.ops, task.operator, task.bound, task.max_steps
    tols, tried = _inner_tols(task), np.zeros(active.size, int)
    while active.size:
        x, rhs = _take(ops, state.x, active), _take(ops, task.b, active)
        r = rhs - operator.product(x)
        before = state.error[active]
        allowed = max_steps - state.steps[active]
        worst = float(before.max())

        def hopeless(steps, reduction, worst=worst, allowed=allowed):
            rest = stopping.projected_steps(worst * reduction, worst, steps, bound)
            return steps + rest > allowed.max()

        tol = np.maximum(tols[tried], LEAST_REDUCTION)
        if task.krylov != "gmres":
            # Aim at the bound in one cycle: a restart has to build its Krylov space again.
            tol = np.maximum(tol, 0.1 * bound / worst)
        cycle = _cycle(task, precondition, r, most=allowed, tol=tol, give_up=hopeless)
        if cycle.most:
            kept = _bytes_kept(cycle, r, len(state.error), _bases(task))
            state.kept = max(state.kept, kept)
        state.note_inner_steps(active, before, cycle)
        trial = x + cycle.d
        _, error = measure(ops, operator, trial, rhs)
        state.steps[active] += cycle.steps
        state.keep_better(ops, active, trial, error, bound)
        # A column continues if the cycle has multiplied its error by at most `contraction`, and if at this
        # rate it meets the bound within max_steps.
        rest = stopping.projected_steps(error, before, cycle.steps, bound)
        steady = stopping.contracting(error, before, task.plan.contraction)
        steady &= state.steps[active] + rest <= max_steps
        # Else a column continues with the next smaller tolerance, if there is one.  It does so only if its
        # cycle ended at the present tolerance, before the largest number of steps.
        tighter = ~steady & np.isfinite(error) & (tried + 1 < len(tols))
        tighter &= cycle.steps < np.minimum(task.plan.basis, allowed)
        going = ~state.converged[active] & (steady | tighter)
        active, tried = active[going], (tried + tighter)[going]


def _cycle(task, precondition, r, *, most, tol, give_up):
    """Return the `Cycle` of the Krylov method of the plan for the residuals r.

    `most` is the largest number of steps of each column.
    """
    plan, operator = task.plan, task.operator
    args, how = (task.ops, operator.product, precondition, r), {"tol": tol, "give_up": give_up}
    if plan.method == "cg":
        return cg(*args, most=most, **how)
    basis = np.minimum(plan.basis, most)
    if task.krylov == "gmres":
        # GMRES is not given up early: its cycle does not aim at the bound, and the basis limits it.
        return gmres(task.ops, operator.pair or operator.product, *args[2:], basis=basis, tol=tol)
    return fgmres(*args, basis=basis, norm=operator.norm, **how)


def _inner_tols(task):
    """Return the inner tolerances in the order of their use; 0 if a cycle aims at the bound."""
    if task.plan.inner_tol is not None:
        return np.array([task.plan.inner_tol])
    return np.array(INNER_TOLS if task.krylov == "gmres" else [0.0])


def _bases(task):
    """Return how many bases a cycle of FGMRES or GMRES stores."""
    return 1 if task.krylov == "gmres" else 2


def _bytes_kept(cycle, r, columns, bases):
    """Return how many more bytes a cycle takes for its bases than classical refinement of all `columns`."""
    most, item = int(cycle.steps.max()), r.dtype.itemsize
    taken = basis_bytes(*r.shape, most, cycle.most, item, bases=bases)
    return taken - VECTORS_DONE * (columns - r.shape[1]) * r[:, 0].nbytes
