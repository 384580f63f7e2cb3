"""The ladder of precisions: a matrix, the factors of the current rung, and the step to the next rung."""

import functools
import math

import numpy as np

from tcsolve._arithmetic.formats import UPDATES
from tcsolve._backends.select import ops_for
from tcsolve._checks import require_finite
from tcsolve._contract.schedule import goes_ahead, goes_early
from tcsolve._errors import DeviceMemoryError
from tcsolve._locks import ForkSafeLock
from tcsolve._lu.elimination import factor_blocked
from tcsolve._lu.factors import factor_native
from tcsolve._lu.norms import begin_survey, survey
from tcsolve._lu.scaling import Frame, equilibrate, needs_frame, needs_scaling, norm_and_exponent
from tcsolve._paths import paths
from tcsolve._plan import Plan, next_rung
from tcsolve._refine.loop import Operator, refine_columns
from tcsolve._solve.cost_model import (
    bytes_needed,
    choose_update,
    rates_of,
    rough_bytes,
    step_budget,
    steps_worth,
)

__all__ = ["Ladder", "in_turn", "require_room", "widest_panel"]

# Number of refinement steps that are launched before their errors are known, by the products of the update.
# For n in ONE_MORE it is one more, because a fourth step is often needed there and takes little time.
STEPS_AHEAD, ONE_MORE = {1: 2, 3: 3}, range(1025, 2049)
# Rounding errors of the dominance, relative to the largest row sum.
DOMINANCE_LOST = 2.0**-30


def in_turn(method):
    """Decorate a method of `Ladder`: only one thread at a time runs such a method of a ladder.

    The lock is needed because a method may replace the factors.  When memory runs out, the method raises a
    DeviceMemoryError.
    """

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        ops_for(self._a)  # raises if the matrix is not on the current device
        # Every result is checked, so the floating-point settings of the caller must not raise or warn inside.
        with self._lock, np.errstate(all="ignore"):
            self._forget_interrupted()
            return self._ops.guarded(method)(self, *args, **kwargs)

    return call


def widest_panel(ops, n, update, dominant=False):
    """Return the width of the first panel of an n x n matrix, which is the widest panel."""
    how = UPDATES[update]
    return ops.lu.rules(how.storage).block(n, how, dominant)


def room_needed(ops, update, n, nrhs, dtype, block=None, dominant=False, kept=0):
    """Return the bytes that a solve with `update` allocates.

    `dominant` is as for `factor_blocked`, and `kept` as for `bytes_needed`.
    """
    if not paths().exact_memory:
        return rough_bytes(update, n, dtype)
    block = block or widest_panel(ops, n, update, dominant)
    how = {"block": block, "on_device": ops.device == "cuda", "kept": kept}
    return bytes_needed(update, n, nrhs, dtype, **how)


def require_room(
    ops, update, n, nrhs, dtype, block=None, moved_bytes=0, held_bytes=0, dominant=False
):
    """Return `room_needed` plus moved_bytes, or raise a DeviceMemoryError if the device has fewer bytes.

    moved_bytes is the size of the arguments that must be copied to the device.  held_bytes is the part of the
    needed memory that is allocated already.
    """
    needed = room_needed(ops, update, n, nrhs, dtype, block, dominant) + moved_bytes
    # Only on a device is the free memory known: memory of the host is virtual and shared.
    if ops.device != "cuda":
        return needed
    if needed > (free := ops.free_bytes(needed - held_bytes) + held_bytes):
        ways = "device='cpu'"
        if update == "fp64":
            ways = "precision='fp16x3' (half the bytes) or " + ways
        raise DeviceMemoryError(
            f"solving n = {n} with {update} factors needs {needed:,} more bytes on the device, "
            f"{free:,} are free; use {ways}"
        )
    return needed


def expects_dominance(ops, a, survey):
    """Tell whether the pivots of an LU of a are expected on its diagonal.

    The answer is False if the LU may start before the survey is read (or `survey` is None), so that equal
    input gives equal bits.  A diagonal entry that equals the sum of the others up to rounding is sufficient.
    """
    if survey is None or goes_early(a, ops.early_rows):
        return False
    return survey.dominance >= -DOMINANCE_LOST * survey.inf and survey.column_dominance > 0


class Ladder:
    """A matrix with its scaling and the factors of the current rung.

    Without `estimate`, a lower bound of rcond may replace the estimate, if the bound is at least machine
    epsilon.
    """

    def __init__(
        self,
        ops,
        a,
        plan,
        *,
        nrhs=1,
        check_finite=True,
        seconds=None,
        moved_bytes=0,
        estimate=True,
    ):
        self._ops, self._a = ops, a
        self._lock = ForkSafeLock()
        self._fell_back = False  # a solve has stalled on an earlier rung
        self._laps, self._seconds = [], {} if seconds is None else seconds
        self._working = "fp32" if a.dtype.char in "fF" else "fp64"
        self._complex = a.dtype.kind == "c"
        self._rcond = self._estimate = None
        self._misled = False
        self._caller_norm = None  # norm and exponent of the caller's matrix, if there is a frame
        self._made = 0  # number of factorizations so far
        self._factors = self._scaling = self._frame = self._copy = self._survey = None
        self._scaled_norm = 0.0
        self._rungs = []
        self._rates = rates_of(ops.device, getattr(ops, "properties", None))
        self._matrix, self._beside = a, moved_bytes  # bytes in addition to those of a rung
        self.bytes_planned = self._solve_bytes = 0
        # If the LU may start before the survey is read, the choice must not depend on the survey.
        self._plan = self._choose(plan, nrhs, None)
        early, mark = self._begin(nrhs, check_finite)
        if not early:
            known = None if goes_early(a, ops.early_rows) else self._survey
            self._plan = self._choose(plan, nrhs, known)
            self.bytes_planned = self._reserve(self._plan.update, nrhs)
        if self._finite:
            self._prepare()
        mark = self._clock("scale", mark)
        if early and not (self._finite and self._frame is None and self._scaling is None):
            early = False
            self._drop_factors()
            self._rungs.clear()
        self._least_rcond = 0.0 if estimate else self._bound_rcond()
        if self._finite and not early:
            self._factor(self._plan.update, mark)
        self._copy = None

    shape = property(lambda self: self._a.shape)
    dtype = property(lambda self: self._a.dtype)
    precision = property(lambda self: self._rungs[-1] if self._rungs else self._plan.update)
    rungs = property(lambda self: tuple(self._rungs))

    def _begin(self, nrhs, check_finite):
        """Survey the matrix; start the LU at the same time if possible.

        Return (whether the LU was started, a mark).
        """
        ops, update = self._ops, self._plan.update
        mark = ops.mark()
        wait, self._copy, early = begin_survey(ops, self._a, self._copied(update, nrhs))
        mark = self._clock("scale", mark)
        if early:
            self.bytes_planned = self._reserve(update, nrhs)
            mark = self._factor(update, mark)
        self._survey = wait()
        # These are the norms of the caller's matrix, even if a scaled one is factored.
        self._norm_one, self._norm_inf = self._survey.one, self._survey.inf
        self._finite = self._survey.finite or bool(ops.xp.isfinite(self._a).all())
        if check_finite:
            require_finite(self._finite, "a")
        return early, mark

    def _choose(self, precision, nrhs, survey):
        """Return the `Plan` for a Plan or the name of a precision; survey may be None."""
        if isinstance(precision, Plan):
            return precision
        if precision != "auto":
            return Plan(precision)
        name = choose_update(
            self.shape[0],
            nrhs,
            self._rates,
            working=self._working,
            is_complex=self._complex,
            dominant=survey is not None and survey.dominance > 0,
        )
        return Plan(name)

    def _reserve(self, update, nrhs):
        """Return all bytes that this rung needs, or raise a DeviceMemoryError before it allocates."""
        held, dominant = 0 if self._copy is None else self._copy.nbytes, self._expects_dominance()
        args = update, self.shape[0], nrhs, self._a.dtype, self._plan.block
        return self._beside + require_room(self._ops, *args, held_bytes=held, dominant=dominant)

    def _note_bytes(self, nrhs, kept):
        """Record the bytes that the current rung needed for nrhs right-hand sides; see `bytes_needed`."""
        args = self.precision, self.shape[0], nrhs, self._a.dtype, self._plan.block
        needed = room_needed(self._ops, *args, dominant=self._expects_dominance(), kept=kept)
        self._solve_bytes = max(self._solve_bytes, needed + self._beside)

    def _expects_dominance(self):
        """Tell whether `factor_blocked` shall expect pivots on the diagonal."""
        if self._misled or self._complex or self._scaling is not None:
            return False
        return expects_dominance(self._ops, self._a, self._survey)

    def _bound_rcond(self):
        """Return the lower bound of rcond of a dominant A if it is at least machine epsilon, else 0."""
        # For complex64 the survey may have rounded the moduli to FP32, so its bound is not valid.
        if not self._finite or self._frame is not None or self.dtype.char == "F":
            return 0.0
        least = self._survey.least_rcond(self.shape[0])
        return least if least >= np.finfo(self.dtype).eps else 0.0

    def _copied(self, update, nrhs):
        """Return the dtype of the copy of A that the survey may make for the LU, or None."""
        how = UPDATES[update]
        if how.native or self._complex:
            return None
        self._reserve(update, nrhs)
        return np.dtype(how.storage)

    def _prepare(self):
        """Put a matrix with extreme entries into a `Frame`, or find the scaling of a badly scaled matrix."""
        ops = self._ops
        if needs_frame(self._survey):
            self._frame = Frame(equilibrate(ops, self._a))
            self._caller_norm = norm_and_exponent(ops, self._a)
            self._matrix = self._frame.matrix(ops, self._a)
            self._beside += self._matrix.nbytes
            self.bytes_planned += self._matrix.nbytes
            self._survey = survey(ops, self._matrix)
        elif self._plan.scale and needs_scaling(self._survey):
            self._scaling = equilibrate(ops, self._a)

    def _factor(self, update, mark=None):
        """Replace the factors by those of `update`; return a mark of the end.

        `mark` is the start of the phase, by default now.
        """
        ops, how = self._ops, UPDATES[update]
        mark = ops.mark() if mark is None else mark
        self._drop_factors()
        self._made += 1
        self._rcond = None
        kind = {"float32": "complex64", "float64": "complex128"} if self._complex else {}
        dtype = np.dtype(kind.get(how.storage, how.storage))
        row, col = self._scales_for(how)
        if how.native and row is None:
            self._copy = None
            self._factors = factor_native(ops, self._matrix, dtype)
        else:
            w = self._rounded(how, dtype, row, col)
            if row is not None:
                (norm,) = ops.host(ops.row_stats(w).total.max())
                self._scaled_norm = float(norm)
            if how.native:
                self._factors = factor_native(ops, w, dtype, overwrite_a=True)
            else:
                dominant = self._expects_dominance()
                self._factors = factor_blocked(ops, w, how, self._plan.block, dominant=dominant)
        if self._rungs[-1:] != [update]:
            self._rungs.append(update)
        return self._clock("factor", mark)

    def _rounded(self, how, dtype, row, col):
        """Return the matrix to factor: the copy from the survey, or a scaled copy in the same memory."""
        copy, self._copy = self._copy, None
        if how.native:  # the factors overwrite it, so it must be contiguous and not on a tape
            copy = self._ops.xp.empty(self.shape, dtype)
        elif copy is not None and row is None and self._frame is None:
            return copy
        return self._ops.cast_scaled(self._matrix, row, col, dtype, out=copy)

    def _scales_for(self, how):
        # FP64 factors need no scaling; SciPy does not scale either.
        if self._scaling is None or how.storage == "float64":
            return None, None
        return self._scaling.row, self._scaling.col

    def _drop_factors(self):
        """Free the factors, before the next ones are allocated."""
        self._drop_estimate()
        self._factors = None

    def _drop_estimate(self):
        """Return the result of a started estimate, and forget it; later work waits for it."""
        wait, self._estimate = self._estimate, None
        return wait() if wait else None

    def __getstate__(self):
        if self._ops.device != "cpu":
            raise TypeError(
                "factors on a device cannot be copied or pickled; threads may share them, and "
                "other processes must factor again"
            )
        with self._lock:
            self._forget_interrupted()
            self._drop_estimate()
            state = {name: x for name, x in self.__dict__.items() if name != "_lock"}
            # Copy lists and dicts, so that the copy can take its next rung independently.
            return {n: x.copy() if isinstance(x, list | dict) else x for n, x in state.items()}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._lock = ForkSafeLock()

    def _forget_interrupted(self):
        """Drop the factors if another thread was using them at a fork; they are recomputed when needed."""
        if self._lock.interrupted:
            self._factors = self._estimate = None
            self._lock.interrupted = False

    @in_turn
    def wait(self):
        """Wait until the factors are complete, so that other streams and threads can use them."""
        return self._factors and self._bad_pivot()

    def _bad_pivot(self):
        """Return `bad_pivot` of the factors; recompute them first if an expectation of dominance failed."""
        if self._factors.misled:
            self._misled = True
            self._drop_factors()
            self._restore()
        return self._factors.bad_pivot

    def _restore(self):
        """Factor with the current rung if there are no factors, for instance after a failed allocation."""
        if self._finite and self._factors is None:
            self._refactor(self.precision)

    def _climb(self, columns=1):
        """Factor with the next rung; return False if there is none.  `columns` is as for `_following`."""
        following = self._following(columns)
        if following is None:
            return False
        self._refactor(following)
        return True

    def _refactor(self, update):
        """Replace the factors by those of `update`; if this fails, there are no factors."""
        self._drop_factors()
        self.bytes_planned = max(self.bytes_planned, self._reserve(update, 1))
        self._factor(update)

    def _following(self, columns=1):
        """Return the next rung with more precise factors, or None.

        For several right-hand sides, rungs that the device emulates are skipped: they take longer than FP64.
        """
        if not self._plan.fallback:
            return None
        following = next_rung(self.precision, self._working)
        if following is None or UPDATES[following].native:
            return following
        is_emulated = columns > 1 and following not in self._rates.lu_flops
        if is_emulated or self._is_one_panel(following):
            return next_rung(following, self._working)
        return following

    def _is_one_panel(self, update):
        """Tell whether all columns are in one panel, so that there is no rounded update."""
        n = self.shape[0]
        return n <= (self._plan.block or widest_panel(self._ops, n, update))

    def _singular(self):
        """Tell whether A has a row or column of zeros, or its FP64 factors have a zero pivot."""
        survey = self._survey
        if survey.inf == 0 or survey.row_spread == 0 or survey.col_spread == 0:
            return True
        exact = UPDATES[self.precision].storage == "float64"
        return exact and bool(self._factors and self._bad_pivot())

    def _correct(self, r, adjoint=False):
        """Return approximately A**-1 r (or A**-H r) for FP64 r (n, k), by the factors."""
        how = UPDATES[self.precision]
        if how.storage == "float64":
            return self._factors.solve(r, adjoint)
        row, col = self._scales_for(how)
        if adjoint:
            row, col = col, row
        if row is not None:
            r = r * row[:, None]
        d = self._factors.solve_scaled(r, adjoint)
        return d if col is None else d * col[:, None]

    def _operator(self):
        scales, outer = self._scales_for(UPDATES[self.precision]), None
        if self._frame is not None:
            outer = functools.partial(self._frame.backward_error, self._ops, self._caller_norm)
        return Operator.of(
            self._ops, self._matrix, self._survey.inf, *scales, self._scaled_norm, outer
        )

    def _invert(self, v, adjoint=False, exponent=0):
        """Return approximately A**-1 v (or A**-H v) times 2**exponent, for the caller's A.

        Without a frame, the exponent must be 0.
        """
        if self._frame is None:
            return self._correct(v, adjoint)
        frame = self._frame.swapped() if adjoint else self._frame
        inside, shift = frame.inside(self._ops.xp, v)
        return frame.outside(self._ops.xp, self._correct(inside, adjoint), shift + exponent)

    def _ahead(self, rhs):
        """Start the first steps of refinement, before anything about the factors or rhs is read.

        Return a function that waits for the steps, or None.
        """
        if not self._finite or self._frame is not None or self._operator().row is not None:
            return None
        steps, made = self._steps_ahead(rhs), self._made
        try:
            wait = self._factors.ahead(self._matrix, rhs, steps) if steps else None
        except DeviceMemoryError:  # launched one by one, the steps need less memory
            return None
        return wait and (lambda: wait() if made == self._made and self._factors.are_good else ())

    def _steps_ahead(self, rhs):
        """Return how many steps `LUOps.ahead` does for rhs; this does not depend on what is cached."""
        if not goes_ahead(self._matrix, rhs, self._ops.ahead_rows):
            return 0
        steps = STEPS_AHEAD[UPDATES[self.precision].products] + (len(rhs) in ONE_MORE)
        return min(steps, self._plan.max_steps or steps)

    def _refine(self, rhs, bound, ahead=None):
        """Refine with the current factors; `ahead` is the result of `_ahead`."""
        n, k = rhs.shape
        rungs, worth = (self.precision, self._following(k)), math.inf
        budget = self._plan.max_steps
        if budget is None:
            budget = step_budget(*rungs, n, k, self._rates, is_complex=self._complex)
            worth = steps_worth(*rungs, n, k, self._rates, is_complex=self._complex)
        state = refine_columns(
            self._ops,
            self._operator(),
            rhs,
            self._correct,
            self._plan,
            bound,
            max_steps=budget,
            worth=worth,
            # So that the bits do not depend on whether the steps were done ahead.
            plain=self._steps_ahead(rhs),
            ahead=ahead() if ahead else (),  # waits, so it comes last
        )
        self._note_bytes(k, state.kept)
        return state

    def _clock(self, phase, mark):
        """Record that a phase lasted from a mark to now; return the mark of its end, without waiting."""
        end = self._ops.mark()
        self._laps.append((phase, mark, end))
        return end

    def _seconds_of(self, laps):
        """Return the seconds of each phase; this waits until the device has finished them."""
        seconds = {}
        for phase, start, stop in laps:
            seconds[phase] = seconds.get(phase, 0.0) + (stop - start)
        return seconds
