"""One solve with a ladder: refine, climb until the bound is met, measure the answer, estimate rcond."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tcsolve._arithmetic.matrix_parts import column_tops
from tcsolve._checks import require_finite
from tcsolve._lu.scaling import shift_columns
from tcsolve._refine import stopping
from tcsolve._solution import HistoryPoint, Solution, Status
from tcsolve._solve.ladder.condition import ConditionEstimate
from tcsolve._solve.ladder.ladder import Ladder
from tcsolve._solve.ladder.mending import MOST_MENDING, NEAR, errors_of, look_closer, mended, surer
from tcsolve._solve.ladder.refine_rung import operator_of, refine_with, worth
from tcsolve._solve.ladder.residuals import BY_NAME, missed_direction
from tcsolve._solve.ladder.short_refinement import refine_shortly
from tcsolve._solve.ladder.transposed import TransposedLadder
from tcsolve._solve.problem.columns import ended, join_parts, largest_parts, like, spread, told
from tcsolve._solve.verify.long_double_residual import SMALL

__all__ = ["Solve"]

# Factors that may be too coarse for many columns are first tried for about n / COLUMNS_TRIED of them.  They
# are kept if these columns converge in FEW_STEPS corrections, or in as many as take less time than the next
# rung.
COLUMNS_TRIED, FEW_STEPS = 64, 2
EPS = 2.0**-52


class _Found(NamedTuple):
    """The result of refinement for some columns.

    Attributes
    ----------
    x : array, shape (n, k)
        The solution of the caller's system, in FP64.
    steps : ndarray of int, shape (k,)
        Number of corrections.
    error : ndarray of float64, shape (k,), or None
        Backward errors of the caller's system, if the loop has measured them.
    met : bool
        Whether all columns have converged.
    history : list of HistoryPoint
        As in `Solution.history`.
    forward : ndarray of float64, shape (k,), or None
        Estimated relative errors of x, if the residual has extra precision.
    accurate : bool
        Whether these errors are as small as FP64 allows.
    """

    x: Any
    steps: np.ndarray
    error: np.ndarray | None
    met: bool
    history: list
    forward: np.ndarray | None = None
    accurate: bool = True


@dataclass(frozen=True)
class Solve:
    """A solve with a ladder, for answers of a dtype, with one of the residuals in `BY_NAME`."""

    ladder: Ladder | TransposedLadder
    condition: ConditionEstimate
    dtype: np.dtype
    residual: Any = BY_NAME["fp64"]

    def solution(self, b, check_finite):
        """Return the `Solution` for b (n,) or (n, k); x is on the device of the ladder.

        b is on the host or on that device.  The phases of earlier work are reported with the solve.
        """
        ladder, phases = self.ladder, self.ladder.phases
        ladder.restore()
        start = phases.mark()
        earlier, phases.laps = phases.laps, ()
        try:
            solution = self._quick(b, start) or self._verified(
                self._columns(b), check_finite, start, b.ndim < 2
            )
        except BaseException:
            phases.laps = earlier  # the next solve reports the time of the factorization
            raise
        finally:
            ladder.finish()
        phases.report(solution.seconds, earlier, start)
        return solution

    def plain_answer(self, b):
        """Return (x, steps) for b as in `solution`, or None if `solution` must find x or has to warn.

        x has the same bits as that of `solution`.  For few unknowns, the report of `solution` takes as long
        as the solve.
        """
        ladder = self.ladder
        if self.residual is not BY_NAME["fp64"] or ladder.system.ops.device != "cpu":
            return None
        ladder.restore()
        try:
            found = refine_shortly(ladder, b, stopping.target(self.dtype, len(b)))
            rcond = found and (self.condition.least or self.condition.rcond())
        finally:
            ladder.finish()
        if not found or not rcond >= np.finfo(self.dtype).eps:  # True for NaN
            return None
        x, _, steps, _ = found
        return np.ascontiguousarray(x.reshape(b.shape)), steps

    def _columns(self, b):
        """Return b as (n, k) in FP64 on the device of the ladder."""
        system = self.ladder.system
        columns = system.ops.xp.asarray(b).reshape(len(system.a), -1)
        wide = np.complex128 if columns.dtype.kind == "c" else system.wide
        return system.ops.converted(columns, np.dtype(wide))

    def _quick(self, b, mark):
        """Return the `Solution` if the system is one that `refine_shortly` solves, else None."""
        ladder, bound = self.ladder, stopping.target(self.dtype, len(b))
        is_usual = self.residual is BY_NAME["fp64"]
        found = refine_shortly(ladder, b, bound) if is_usual else None
        if found is None:
            return None
        x, error, steps, history = found
        mark = ladder.phases.lap("refine", mark)
        precision, rungs, ladder.memory.of_solve = ladder.precision, ladder.rungs, 0
        ladder.note_bytes(len(steps), 0)
        made, rcond = ladder.made, self.condition.least or self.condition.rcond()
        ladder.phases.lap("rcond", mark)
        # The estimate of rcond may have factored again, and these factors may show that A is singular.
        if ladder.made != made and ladder.is_singular:
            return None
        return Solution(
            x=np.ascontiguousarray(x.reshape(b.shape)),
            status=self._status_of_met(rcond),
            precision=precision,
            rungs=rungs,
            iterations=steps,
            backward_error=error,
            bound=bound,
            rcond=rcond,
            history=tuple([HistoryPoint(precision, *point, False) for point in history]),
            bytes_planned=max(ladder.memory.planned, ladder.memory.of_solve),
        )

    def _verified(self, b, check_finite, mark, as_vector):
        """Return the `Solution` for b (n, k) in FP64; the checks began at `mark`.

        `as_vector` tells whether the x of the `Solution` has one dimension.
        """
        ladder, system, dtype = self.ladder, self.ladder.system, self.dtype
        ops, n, ladder.memory.of_solve = system.ops, len(b), 0
        bound, wanted = stopping.target(dtype, n), stopping.before_rounding(dtype, n)
        # If A is real and b complex, the real and the imaginary parts of b are separate columns.
        paired = b.dtype.kind == "c" and not system.is_complex
        if paired:  # the modulus of the error combines the errors of both parts
            wanted /= math.sqrt(2)
        rhs = ops.xp.concatenate([b.real, b.imag], axis=1) if paired else b
        # Before the first result is read, launch all work that a solve nearly always needs.
        read_size = ops.reading(largest_parts(ops, rhs))
        mark = ladder.phases.lap("check", mark)
        self.condition.begin(rhs.shape[1])
        ahead = ladder.ahead(rhs)
        mark = ladder.phases.lap("refine", mark)
        (size,) = read_size()
        good = np.isfinite(size)
        all_good = bool(good.all())
        if check_finite:
            require_finite(all_good, "b")
        if all_good and system.finite and not ladder.is_singular:
            found = self._climb_until_met(rhs, size, wanted, mark, ahead)
        else:
            found = self._good_columns(rhs, size, good, wanted, mark)
        # Read these now: the condition estimate may factor with a more precise rung than x needed.
        precision, rungs = ladder.precision, ladder.rungs
        rcond, singular = self._rcond(found.met)
        found = join_parts(ops.xp, found) if paired else found
        if singular:  # then the x of an earlier rung is not valid
            nan = ops.xp.full_like(found.x, np.nan)
            found = found._replace(x=nan, error=None, met=False, forward=None)
        elif found.forward is not None and found.accurate and rcond < EPS:
            if missed := missed_direction(ladder, found.x, wanted):
                forward = np.maximum(found.forward, missed)  # NaN stays NaN
                found = found._replace(forward=forward, accurate=False)
        x, error = self._returned(found, b)
        met = bool((error <= bound).all())
        left = (ladder.plan.max_steps or math.inf) - int(found.steps.max(initial=0))
        close = met and left > 0 and n > SMALL and bool((error > stopping.SURE * bound).any())
        if dtype.char in "dD" and (close or not met and (found.met or left >= MOST_MENDING)):
            before, told_before = ladder.rungs, error
            improved = surer if close else mended
            x, error, added = improved(ladder, x, b, error, bound)
            if ladder.rungs != before:
                precision, rungs, ladder.fell_back = ladder.precision, ladder.rungs, True
            if added.any() or not np.array_equal(error, told_before, equal_nan=True):
                point = HistoryPoint(precision, found.steps + added, error, False)
                history = [*found.history, point]
                found = found._replace(steps=point.step, history=history, met=True)
            met = bool((error <= bound).all())
        finite = all_good and system.finite
        beyond = self._beyond_range(x, error, bound) if finite and found.met and not met else None
        return Solution(
            x=ops.xp.ascontiguousarray(x[:, 0] if as_vector else x),
            status=self._status(finite, singular, beyond, met, rcond, found.accurate),
            precision=precision,
            rungs=rungs,
            iterations=found.steps,
            backward_error=error,
            bound=bound,
            rcond=rcond,
            history=ended(found.history, precision, found.steps, error),
            bytes_planned=max(ladder.memory.planned, ladder.memory.of_solve),
            device=ops.device,
            forward_error=self._rounded_error(found.forward, rcond, error <= bound),
        )

    def _rounded_error(self, forward, rcond, met):
        """Return the estimated relative errors of x after it is rounded to its dtype, or None.

        They are NaN for columns that miss the bound (`met` is False), and if rcond is NaN: residuals do not
        tell the error of x if A may be singular to working precision.
        """
        if forward is None:
            return None
        rounding = 2.0**-24 if self.dtype.char in "fF" else 0.0
        return np.where(met & (not math.isnan(rcond)), forward + rounding, np.nan)

    def _rcond(self, met):
        """Return rcond, and whether A is singular; FP64 factors for the estimate may show that it is."""
        ladder, condition = self.ladder, self.condition
        mark, rcond, singular = ladder.phases.mark(), 0.0, ladder.is_singular
        if ladder.system.finite and not singular:
            rcond = condition.least if met and condition.least else condition.rcond()
            if math.isnan(rcond):  # the factors give no estimate; a dominant A has a lower bound
                rcond = condition.ladder.system.least_rcond() or rcond
            singular = ladder.is_singular
        ladder.phases.lap("rcond", mark)
        return rcond, singular

    # ---- climbing

    def _good_columns(self, rhs, size, good, bound, mark):
        """Solve for the finite columns of rhs, and return NaN for the others.

        If A is singular or not finite, all of x is NaN.
        """
        ladder, k = self.ladder, len(good)
        xp = ladder.system.ops.xp
        x, steps = xp.full(rhs.shape, xp.nan, dtype=rhs.dtype), np.zeros(k, int)
        if not (ladder.system.finite and good.any()) or ladder.is_singular:
            return _Found(x, steps, np.full(k, np.nan), False, [])
        take = xp.asarray(np.flatnonzero(good))
        found = self._climb_until_met(rhs[:, take], size[good], bound, mark)
        x[:, take] = found.x
        steps[good] = found.steps
        history = [spread(point, good) for point in found.history]
        forward = None if found.forward is None else np.full(k, np.nan)
        if forward is not None:
            forward[good] = found.forward
        return _Found(x, steps, None, found.met, history, forward, found.accurate)

    def _climb_until_met(self, rhs, size, bound, mark, ahead=None):
        """Refine with one rung after the other until all columns converge; return `_Found`.

        `size` has the largest real or imaginary part of each column of rhs.  `mark` is the start of the
        phase.  `ahead` is the result of `Ladder.ahead` for rhs.
        """
        ladder, xp, k = self.ladder, self.ladder.system.ops.xp, rhs.shape[1]
        frame = ladder.system.frame or shift_columns(size)
        if frame is not None:
            rhs, shift = frame.inside(xp, rhs)
            ahead = None
        total, history, state = np.zeros(k, int), [], None
        while True:
            valid = not ladder.make_valid().bad_pivot
            if valid and (points := self._hopeless(rhs, bound)) and ladder.climb(k):
                history += [told(rung, total, point) for rung, point in points]
                total = history[-1].step.copy()
                ladder.fell_back, mark = True, ladder.phases.lap("refine", mark)
                continue
            if valid:
                self.condition.begin(k)
                # Start again from x = 0.  The x of a rung that failed may be worse than zero, even if its
                # backward error is small, because this error is relative to the size of x.
                state, ahead = self.residual.refine(ladder, rhs, bound, ahead), None
                history += [told(ladder.precision, total, point) for point in state.history]
                total += state.steps
            ladder.phases.lap("refine", mark)
            done = state is not None and state.all_converged and state.accurate
            if done or not ladder.climb(k):
                break
            ladder.fell_back = True
            mark = ladder.phases.mark()
        if state is None:
            # Each rung had a bad pivot, or was given up after a trial with a few columns.
            x = xp.full(rhs.shape, xp.nan, rhs.dtype)
            return _Found(x, total, np.full(k, np.nan), False, history)
        x, error, met = state.x, state.error, state.all_converged
        measured = self.dtype.char not in "fF" and operator_of(ladder).measures_the_caller
        is_near = bool((error <= NEAR * bound).all())
        if measured and len(rhs) <= SMALL and is_near:
            left = (ladder.plan.max_steps or math.inf) - int(state.steps.max())
            x, error, added = look_closer(ladder, x, rhs, bound, min(2, max(left, 0)))
            total, met = total + added, bool((error <= bound).all())
            if added:
                history.append(HistoryPoint(ladder.precision, total.copy(), error, False))
        if frame is not None:
            x = frame.outside(xp, x, shift)
        # If products overflow in the loop, the errors are measured again, with scaled numbers; for few
        # unknowns, with more digits.
        measured = measured and frame is None and (is_near or len(rhs) > SMALL)
        error = error if measured and np.isfinite(error).all() else None
        return _Found(x, total, error, met, history, state.forward, state.accurate)

    def _hopeless(self, rhs, bound):
        """Return the (rung, point)s of a few columns if these show that all need better factors, else [].

        They are tried only if there are at least as many columns as unknowns, and no limit of the steps.
        Then a correction of all columns takes longer than a factorization.
        """
        ladder, (n, k) = self.ladder, rhs.shape
        if ladder.plan.max_steps is not None or k < max(n, 2) or ladder.following(k) is None:
            return []
        step = -(-k // max(1, n // COLUMNS_TRIED))
        few = np.arange(k) % step == 0
        most = max(FEW_STEPS, worth(ladder, n, k))
        state = refine_with(ladder, rhs[:, ::step].copy(), bound, most=most)
        if state.all_converged:
            return []
        return [(ladder.precision, spread(point, few)) for point in state.history]

    # ---- the answer

    def _returned(self, found, b):
        """Return x in its dtype, and its errors; those of the loop if they are for this x."""
        x, error, ops = found.x, found.error, self.ladder.system.ops
        if self.dtype.char in "fF":
            with np.errstate(over="ignore", under="ignore"):
                x = ops.converted(x, like(x, self.dtype))
        return x, errors_of(self.ladder, x, b) if error is None else error

    def _beyond_range(self, x, error, bound):
        """Return OVERFLOW or UNDERFLOW for an x that met the bound until it was rounded, or None."""
        ops = self.ladder.system.ops
        if not bool(ops.xp.isfinite(x).all()):
            return Status.OVERFLOW
        (size,) = ops.host(column_tops(ops, x))
        faint = size < np.finfo(x.dtype).tiny
        return Status.UNDERFLOW if (faint | (error <= bound)).all() else None

    def _status(self, finite, singular, beyond, met, rcond, accurate):
        if not finite:
            return Status.NONFINITE_INPUT
        if singular:
            return Status.SINGULAR
        if beyond:
            return beyond
        if not met:
            return Status.NOT_CONVERGED if self.ladder.plan.fallback else Status.STALLED
        return self._status_of_met(rcond) if accurate else Status.NOT_ACCURATE

    def _status_of_met(self, rcond):
        """Return the status of an x that meets the bound."""
        if math.isnan(rcond):
            return Status.CONDITION_UNKNOWN
        if not rcond >= np.finfo(self.dtype).eps:
            return Status.ILL_CONDITIONED
        return Status.CONVERGED_AFTER_FALLBACK if self.ladder.fell_back else Status.CONVERGED
