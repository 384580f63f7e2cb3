"""The ladder of precisions: a system, the factors of the current rung, and the step to the next rung."""

import copy
import functools
import math
from dataclasses import replace

from tcsolve._arithmetic.formats import update_named
from tcsolve._checks import require_finite, require_hermitian
from tcsolve._contract.schedule import goes_ahead, goes_early, schedule
from tcsolve._errors import DeviceMemoryError, InputError
from tcsolve._lu.elimination import factor_blocked
from tcsolve._lu.factors import factor_native
from tcsolve._lu.norms import begin_survey
from tcsolve._lu.rounded_elimination import factor_rounded
from tcsolve._lu.shifted_cholesky import factor_shifted, scale_alike
from tcsolve._plan import Plan, next_rung
from tcsolve._solve.choice.cost_model import first_update, rates_for
from tcsolve._solve.choice.memory import MemoryPlan, widest_panel
from tcsolve._solve.ladder.phases import Phases, Untimed
from tcsolve._solve.ladder.rung import Rung, dtype_of_factors, matrix_to_factor
from tcsolve._solve.problem.system import System

__all__ = ["Ladder"]

# The number of refinement steps that are launched before their errors are known.  The key is the number of
# products of the update.  For n in ONE_MORE one more step is launched, because it is often needed there and
# takes little time.
STEPS_AHEAD, ONE_MORE = {1: 2, 3: 3}, range(1025, 2049)


class Ladder:
    """A system with the factors of the current rung.

    `begin` makes it.  `make_valid` is the step after which the factors can be used: it factors again if there
    are none, or if A was wrongly expected to be dominant.

    Attributes
    ----------
    system : System
    plan : Plan
    memory : MemoryPlan
    phases : Phases or Untimed
    rates : Rates
        Those of the device, by which the times of rungs are predicted.
    rung : Rung or None
        None if A is not finite, or after a factorization that failed.
    rungs : tuple of str
        Every update that was tried so far, in order.
    made : int
        Number of factorizations so far.
    fell_back : bool
        Whether a solve has needed another rung for its x.
    """

    def __init__(self, system, plan, memory, phases, rates):
        self.system, self.plan, self.memory, self.phases = system, plan, memory, phases
        self.rates = rates
        self.rung, self.rungs, self.made, self.fell_back = None, (), 0, False
        self._misled = False
        self._wide = None  # the rung with its factors converted to FP64; None until it is needed
        self._begun = None  # waits for work that was started with the factors of the rung
        self._copy = None  # of A, from the survey, until it is factored

    @classmethod
    def begin(
        cls,
        ops,
        a,
        precision,
        *,
        nrhs=1,
        check_finite=True,
        seconds=None,
        timed=True,
        moved_bytes=0,
    ):
        """Survey the matrix, choose the first rung, and start its factorization.

        Parameters
        ----------
        ops : Ops
        a : array, shape (n, n)
        precision : str or Plan
        nrhs : int
            Expected number of right-hand sides.
        check_finite : bool
            Raise an InputError if a holds NaN or Inf.
        seconds : dict, optional
            The seconds of the phases before this call.
        timed : bool
            Whether the phases are timed.
        moved_bytes : int
            Bytes of the copies of the arguments that were made before this call.
        """
        # If the LU may start before the survey is read, the choice must not depend on the survey.
        system, plan = System(ops, a, a), _plan_for(ops, a, precision, nrhs, None)
        memory = MemoryPlan(ops, a, plan.block, moved_bytes)
        phases = Phases(ops, {} if seconds is None else seconds) if timed else Untimed()
        ladder = cls(system, plan, memory, phases, rates_for(ops))
        ladder._start(precision, nrhs, check_finite)
        return ladder

    def __copy__(self):
        """Return a ladder that takes its next rung independently."""
        twin = object.__new__(type(self))
        twin.__dict__ = self.__dict__ | {
            "memory": copy.copy(self.memory),
            "phases": copy.copy(self.phases),
        }
        return twin

    def _start(self, precision, nrhs, check_finite):
        ops, a = self.system.ops, self.system.a
        early, mark = self._survey(nrhs, check_finite)
        if not early:
            survey = None if goes_early(a, ops.early_rows) else self.system.survey
            self.plan = _plan_for(ops, a, precision, nrhs, survey)
            self.memory.planned = self._require(self.plan.update, nrhs)
        self.system = self.system.scaled(self.plan.scale)
        if self.plan.method == "cg" and self.system.finite:
            self._scale_alike()
        if self.system.frame is not None:
            self.memory.add(self.system.matrix.nbytes)
        mark = self.phases.lap("scale", mark)
        if early and not self.system.is_plain:
            early = False
            self._drop()
            self.rungs = ()
        if self.system.finite and not early:
            self._factor(self.plan.update, mark)
        self._copy = None

    def _scale_alike(self):
        """Scale rows and columns alike, which Cholesky factors need."""
        system = self.system
        require_hermitian(system.a)
        if system.frame is not None:
            raise InputError(
                "method='cg': entries of a are too large, too small or too unequal; use method='fgmres'"
            )
        scaling = scale_alike(system.ops, system.matrix, self.plan.scale)
        self.system = replace(system, scaling=scaling)

    def _survey(self, nrhs, check_finite):
        """Survey the matrix; start the LU at the same time if possible.

        Return (whether the LU was started, a mark).
        """
        ops, a = self.system.ops, self.system.a
        mark = self.phases.mark()
        dtype = self._dtype_of_copy()
        if dtype is not None:
            self.memory.planned = self._require(self.plan.update, nrhs)
        wait, self._copy, early = begin_survey(ops, a, dtype)
        mark = self.phases.lap("scale", mark)
        if early:
            mark = self._factor(self.plan.update, mark)
        self.system = self.system.surveyed(wait())
        if check_finite:
            require_finite(self.system.finite, "a")
        return early, mark

    @property
    def precision(self):
        """The update of the current factors; before the first factorization, that of the plan."""
        return self.rungs[-1] if self.rungs else self.plan.update

    @property
    def is_singular(self):
        """Whether A has a row or column of zeros, or its FP64 factors have a zero pivot."""
        rung = self.rung
        return self.system.has_zero_line or bool(rung and rung.is_exact and rung.bad_pivot)

    # ---- factoring

    def restore(self):
        """Factor with the current rung if there are no factors, for instance after a failed allocation."""
        if self.system.finite and self.rung is None:
            self.factor(self.precision)

    def make_valid(self):
        """Wait for the factors, and factor again if there are none or they must not be used.

        Return the `Rung`.
        """
        self.restore()
        if self.rung.factors.misled:
            self._misled = True
            self.factor(self.precision)
        return self.rung

    def climb(self, columns=1, most=math.inf):
        """Factor with the next rung, which `following` names.  Return False if no rung follows.

        Rungs with a roundoff above `most` are skipped, but not the last one.
        """
        following = self.following(columns)
        if following is None:
            return False
        while update_named(following).u > most:
            higher = next_rung(following, self.system.working)
            if higher is None:
                break
            following = higher
        self.factor(following)
        return True

    def factor(self, update):
        """Replace the factors by those of `update`; if this fails, there are no factors."""
        self._drop()
        self.memory.planned = max(self.memory.planned, self._require(update, 1))
        self._factor(update, self.phases.mark())

    def following(self, columns=1):
        """Return the next rung with more precise factors, or None.

        For several right-hand sides (`columns`), a rung that the device emulates is skipped: it takes longer
        than FP64.  A rung whose LU has only one panel is skipped too: only trailing updates are rounded to
        its precision, and one panel has none.
        """
        if not self.plan.fallback:
            return None
        working = self.system.working
        following = next_rung(self.precision, working)
        if following is None or update_named(following).native:
            return following
        is_emulated = columns > 1 and following not in self.rates.lu_flops
        if is_emulated or self._is_one_panel(following):
            return next_rung(following, working)
        return following

    def _is_one_panel(self, update):
        """Tell whether all columns are in one panel, so that there is no trailing update."""
        n = self.system.a.shape[0]
        widest = widest_panel(self.system.ops, n, update, self._expects_dominance)
        return n <= (self.plan.block or widest)

    def _factor(self, update, mark):
        """Replace the factors by those of `update`; return a mark of the end.

        `mark` is the start of the phase.
        """
        self._drop()
        self.made += 1
        self.rung = self._factored(update_named(update))
        if self.rungs[-1:] != (update,):
            self.rungs = (*self.rungs, update)
        return self.phases.lap("factor", mark)

    def _factored(self, how):
        """Return the `Rung` of an `Update`."""
        system, scaling, scaled_norm = self.system, self.system.scaling_for(how), 0.0
        ops, dtype = system.ops, dtype_of_factors(how, system.is_complex)
        copy, self._copy = self._copy, None
        definite = self.plan.method == "cg" and how.storage == "float32"
        if how.native and scaling is None:
            del copy
            return Rung(how, factor_native(ops, system.matrix, dtype))
        w = matrix_to_factor(system, how, copy)
        del copy
        if scaling is not None:
            (norm,) = ops.host(ops.row_stats(w).total.max())
            scaled_norm = float(norm)
        if definite:
            block = self.plan.block or widest_panel(ops, len(w), how.name)
            factors = factor_shifted(ops, w, how, block)
        elif how.native:
            factors = factor_native(ops, w, dtype, overwrite_a=True)
        elif how.rounds_each:
            factors = factor_rounded(ops, w, how)
        else:
            factors = factor_blocked(ops, w, how, self.plan.block, dominant=self._expects_dominance)
        return Rung(how, factors, scaling, scaled_norm)

    def panels_of(self, how):
        """Return the number of panels of the LU with an `Update`; None for an LU of LAPACK or cuSOLVER."""
        if how.native:
            return None
        ops, n, block = self.system.ops, self.system.a.shape[0], self.plan.block
        if self.plan.method == "cg" and how.storage == "float32":
            return -(-n // (block or widest_panel(ops, n, how.name)))
        rules = ops.lu.rules(how.storage)
        return len(schedule(n, how, rules, block, dominant=self._expects_dominance).panels)

    @property
    def _expects_dominance(self):
        return not self._misled and self.system.expects_dominance

    def _dtype_of_copy(self):
        """Return the dtype of the copy of A that the survey may make for the LU, or None."""
        how = update_named(self.plan.update)
        return None if how.native or self.system.is_complex else dtype_of_factors(how, False)

    def _require(self, update, nrhs):
        held = 0 if self._copy is None else self._copy.nbytes
        return self.memory.require(update, nrhs, self._expects_dominance, held)

    def factors_apart(self):
        """Return `NativeFactors` in FP64 that do not replace those of the rung."""
        self.finish()
        held = 0 if self.rung is None else self.rung.factors.nbytes
        self.memory.planned = max(self.memory.planned, held + self._require("fp64", 1))
        return factor_native(self.system.ops, self.system.matrix, self.system.wide)

    def replace_by_fp64(self):
        """Replace the factors by those in FP64, unless these have a bad pivot; both are in memory at once."""
        mark = self.phases.mark()
        factors = self.factors_apart()
        if not factors.bad_pivot:
            self.rung, self._wide, self.made = (
                Rung(update_named("fp64"), factors),
                None,
                self.made + 1,
            )
            self.rungs = (*self.rungs, "fp64")
        self.phases.lap("factor", mark)

    def _drop(self):
        """Free the factors, before the next ones are allocated."""
        self.finish()
        self.rung = self._wide = None

    def forget(self):
        """Forget the factors and work that was started, without waiting: a fork has interrupted both."""
        self.rung = self._wide = self._begun = None

    # ---- work during the refinement

    def begin_aside(self, name, body, then):
        """Start work with the factors, at the same time as later work, if the device can; see `Ops.aside`."""
        self._begun = self.rung.factors.aside(name, body, then)

    def finish(self):
        """Wait for the work that was started, and return its result; None if none was started."""
        wait, self._begun = self._begun, None
        return wait() if wait else None

    @property
    def is_busy(self):
        """Whether work was started and not waited for."""
        return self._begun is not None

    # ---- correcting

    def ahead(self, rhs):
        """Start the first steps of refinement, before anything about the factors or rhs is read.

        Return a function that waits for the steps, or None.
        """
        system = self.system
        if not system.finite or system.frame is not None or self.rung.scaling is not None:
            return None
        steps, made = self._steps_ahead(rhs), self.made
        try:
            wait = self.rung.factors.ahead(system.matrix, rhs, steps) if steps else None
        except DeviceMemoryError:  # launched one by one, the steps need less memory
            return None
        return wait and (lambda: wait() if made == self.made and self.rung.factors.are_good else ())

    def _steps_ahead(self, rhs):
        """Return how many steps `LUOps.ahead` does for rhs."""
        if not goes_ahead(self.system.matrix, rhs, self.system.ops.ahead_rows):
            return 0
        steps = STEPS_AHEAD[self.rung.how.products] + (len(rhs) in ONE_MORE)
        return min(steps, self.plan.max_steps or steps)

    def widened(self):
        """Return the `Rung` of the current factors converted to FP64, to apply them more accurately."""
        if self._wide is None:
            self._wide = self.rung.widened()
            if self._wide is not self.rung:
                self.memory.add(self._wide.factors.nbytes)
        return self._wide

    def note_bytes(self, nrhs, kept):
        """Record the bytes that the current rung needed for nrhs right-hand sides; see `bytes_needed`."""
        self.memory.note(self.precision, nrhs, self._expects_dominance, kept)


def _plan_for(ops, a, precision, nrhs, survey):
    """Return the `Plan` for a Plan or the name of a precision; survey may be None."""
    if isinstance(precision, Plan) and precision.update != "auto":
        return precision
    dominant = survey is not None and survey.dominance > 0
    update = first_update(a, nrhs, precision, rates_for(ops), dominant)
    return replace(precision, update=update) if isinstance(precision, Plan) else _plan_of(update)


@functools.cache
def _plan_of(update):
    return Plan(update)
