"""A factored matrix: verified solves, condition, determinant."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tcsolve import _stop
from tcsolve._check import check_array, check_shapes, require_finite, result_dtype
from tcsolve._condition import Conditioned
from tcsolve._dispatch import ops_for
from tcsolve._errors import InputError
from tcsolve._ladder import in_turn
from tcsolve._refine import Operator, measure
from tcsolve._scale import shift_columns
from tcsolve._solution import Solution, Status, raise_or_warn
from tcsolve._wide import SMALL, residual

__all__ = ["Factorization"]


# How far above the bound rounding may have brought the error of a small system.
NEAR = 4


class _Found(NamedTuple):
    """The refined columns: x, steps and backward error of each, and how they were found."""

    x: Any
    steps: np.ndarray
    error: np.ndarray
    met: bool
    history: list
    moved: bool  # x was brought back from a frame, and may have left the range on the way
    lost: Callable  # x as it is returned -> what is lost of its columns, relative to their sizes


class Factorization(Conditioned):
    """The LU factors of a matrix, ready for any number of right-hand sides.

    Made by `tcsolve.factor`.  When a right-hand side does not converge with the present factors,
    the next more precise factorization replaces them, once, for this and later solves.  Threads may share
    it; one at a time solves.

    Attributes
    ----------
    shape : tuple of int
    dtype : dtype
        Of the matrix and of the answers to right-hand sides of its precision.
    precision : str
        The `Update` of the present factors.
    rungs : tuple of str
        Every update tried so far.
    nbytes : int
        Bytes held: the matrix and its factors.
    """

    @property
    def nbytes(self):
        factors = self._factors
        held = self._a.nbytes + (factors.nbytes if factors else 0)
        return held + (self._matrix.nbytes if self._matrix is not self._a else 0)

    def __repr__(self):
        return f"<Factorization of {self.shape} {self.dtype}, precision {self.precision}>"

    def solve(self, b, *, check_finite=True):
        """Return x with A x = b, verified; raise or warn as `tcsolve.solve` does.

        Parameters
        ----------
        b : array_like, shape (n,) or (n, nrhs)
            In the same place (host or device) as the matrix.  Not modified.
        check_finite : bool
            Raise InputError if b holds NaN or Inf; otherwise its column of x is NaN.

        Returns
        -------
        x : array, shape of b
        """
        solution = self.solve_ex(b, check_finite=check_finite)
        raise_or_warn(solution)
        return solution.x

    @in_turn
    def solve_ex(self, b, *, check_finite=True):
        """Return the `Solution` of A x = b; numerical failures are its status, never exceptions.

        Parameters
        ----------
        b : array_like, shape (n,) or (n, nrhs)
            In the same place (host or device) as the matrix.  Not modified.
        check_finite : bool
            Raise InputError if b holds NaN or Inf; otherwise its column of x is NaN.

        Returns
        -------
        Solution

        Raises
        ------
        InputError
            b has the wrong shape or dtype, is in the wrong place, or holds NaN or Inf.
        """
        ops = self._ops
        if ops_for(b := check_array(b, "b")) is not ops:
            raise InputError(
                f"b is a {type(b).__module__}.{type(b).__name__}, but the factors are on the "
                f"{ops.device}; move b there first"
            )
        if b.ndim > 2:
            raise InputError(
                f"b has shape {b.shape}; a factorization solves for ({self.shape[0]},) or "
                f"({self.shape[0]}, nrhs): loop over the stack"
            )
        _, vector = check_shapes(self._a, b)
        dtype = result_dtype(self._a, b)
        self._restore()
        mark = ops.mark()
        rhs = b.reshape(self.shape[0], -1)
        # A real matrix solves for the real and the imaginary parts as columns of their own.
        paired = rhs.dtype.kind == "c" and not self._complex
        if paired:
            rhs = ops.xp.concatenate([rhs.real, rhs.imag], axis=1)
        rhs = ops.converted(rhs, np.complex128 if self._complex else np.float64)
        earlier, self._laps = self._laps, []
        try:
            solution = self._solve_columns(rhs, check_finite, dtype, mark)
        except BaseException:
            self._laps = earlier  # of the factorization, for the first solve that succeeds
            raise
        finally:
            self._drop_estimate()
        self._report_seconds(solution, earlier, mark)
        if paired:
            solution = _join_parts(solution)
        x = solution.x[:, 0] if vector else solution.x
        return replace(solution, x=ops.xp.ascontiguousarray(x))

    def _report_seconds(self, solution, earlier, mark):
        """Tell what took how long: this solve, since `mark`, and what was done before it and not told yet."""
        ops, before, laps = self._ops, self._seconds, self._laps
        self._seconds, self._laps = {}, []
        factored = self._seconds_of(earlier)
        total = sum(before.values()) + sum(factored.values()) + ops.seconds(mark, ops.mark())
        for phases in (before, factored, self._seconds_of(laps)):
            for phase, seconds in phases.items():
                solution.seconds[phase] = solution.seconds.get(phase, 0.0) + seconds
        solution.seconds["total"] = total

    @in_turn
    def slogdet(self):
        """Return (sign, log |det A|) to FP64; refactors in FP64 if the factors are lower.

        Returns
        -------
        sign : float or complex
            0 if the matrix is singular.
        logabsdet : float
            Natural logarithm; -inf if the matrix is singular.
        """
        if not self._finite:
            return math.nan, math.nan
        if self.precision != "fp64":
            self._refactor("fp64")
        self._restore()
        diagonal, sign = self._factors.diagonal()
        size = self._ops.xp.abs(diagonal)
        if self._bad_pivot():
            return 0.0, -math.inf
        phase, log = self._ops.host((diagonal / size).prod(), self._ops.xp.log(size).sum())
        log = float(log)
        if self._frame is not None:
            scales = self._frame.scaling
            (exponents,) = self._ops.host(
                (self._ops.xp.log2(scales.row) + self._ops.xp.log2(scales.col)).sum()
            )
            log -= float(exponents) * math.log(2)
        return phase[()] * sign, log

    # ---- solving ---------------------------------------------------------------------------

    def _solve_columns(self, rhs, check_finite, dtype, mark):
        """Solve for rhs (n, k) in FP64, checked since `mark`, and build the `Solution`, x of shape (n, k)."""
        ops, n, self._solve_bytes = self._ops, self.shape[0], 0
        bound, wanted = _stop.target(dtype, n), _stop.before_rounding(dtype, n)
        # All that a solve nearly always does is launched before anything is read.
        read_size = ops.reading(ops.column_max(rhs))
        mark = self._clock("check", mark)
        self._begin_estimate(rhs.shape[1])
        ahead = self._ahead(rhs)
        mark = self._clock("refine", mark)
        (size,) = read_size()
        good = np.isfinite(size)
        all_good = bool(good.all())
        if check_finite:
            require_finite(all_good, "b")
        if all_good and self._finite and not self._singular():
            found = self._climb_until_met(rhs, size, wanted, dtype, mark, ahead)
        else:
            found = self._solve_good_columns(rhs, size, good, wanted, dtype, mark)
        # The estimate may need finer factors than x did.
        precision, rungs = self.precision, self.rungs
        singular = self._singular()
        mark, rcond = ops.mark(), 0.0
        if self._finite and not singular:
            rcond = self._least_rcond if found.met and self._least_rcond else self.rcond()
        self._clock("rcond", mark)
        x, error, beyond = self._returned(found, dtype, bound)
        return Solution(
            x=x,
            status=self._status(found, all_good and self._finite, singular, beyond, rcond, dtype),
            precision=precision,
            rungs=rungs,
            iterations=found.steps,
            backward_error=error,
            bound=bound,
            rcond=rcond,
            history=tuple(found.history),
            bytes_planned=max(self.bytes_planned, self._solve_bytes),
            device=ops.device,
        )

    def _returned(self, found, dtype, bound):
        """Return x in its dtype, its errors, and the Status of an x beyond the range of that, or None."""
        x, error, xp = found.x, found.error, self._ops.xp
        if dtype.char not in "fF" and not found.moved:
            return x, error, None
        with np.errstate(over="ignore"):
            x = self._ops.converted(x, _like(x, dtype))
        if found.met and not bool(xp.isfinite(x).all()):
            return x, error, Status.OVERFLOW
        (size,) = self._ops.host(self._ops.column_max(x))
        if not (size < np.finfo(dtype).tiny).any():
            return x, error, None
        lost = found.lost(x)
        gone = lost > bound
        status = Status.UNDERFLOW if found.met and gone.any() else None
        return x, np.where(gone, lost, error), status

    def _solve_good_columns(self, rhs, size, good, bound, dtype, mark):
        """Solve for the finite columns of rhs; the others, or all if A cannot be solved, are NaN."""
        xp, k = self._ops.xp, len(good)
        x, steps, error = (
            xp.full(rhs.shape, xp.nan, dtype=rhs.dtype),
            np.zeros(k, int),
            np.full(k, np.nan),
        )
        if not (self._finite and good.any()) or self._singular():
            return _Found(x, steps, error, False, [], False, _nothing)
        take = self._ops.array(np.flatnonzero(good))
        found = self._climb_until_met(rhs[:, take], size[good], bound, dtype, mark)
        x[:, take] = found.x
        steps[good], error[good] = found.steps, found.error
        history = []
        for rung, of_good in found.history:
            history.append((rung, np.full(k, np.nan)))
            history[-1][1][good] = of_good

        def lost(x):
            of_all = np.zeros(k)
            of_all[good] = found.lost(x[:, take])
            return of_all

        return _Found(x, steps, error, found.met, history, found.moved, lost)

    def _climb_until_met(self, rhs, size, bound, dtype, mark, ahead=None):
        """Refine rung after rung, since a mark; return what was `_Found`.

        size is max |rhs| of each column; ahead, if not None, waits for the steps that were started for rhs.
        """
        xp, k = self._ops.xp, rhs.shape[1]
        frame = self._frame or shift_columns(size)
        if frame is not None:
            rhs, shift = frame.inside(xp, rhs)
            ahead = None
        total, history, state = np.zeros(k, int), [], None
        while True:
            if not self._bad_pivot():
                self._begin_estimate(k)
                # Afresh: the x of a failed rung may be worse than none, however small its error is
                # beside its own size.
                state, ahead = self._refine(rhs, bound, ahead), None
                total += state.steps
                history += [(self.precision, error) for error in state.history]
            self._clock("refine", mark)
            if state is not None and state.all_converged or not self._climb():
                break
            self._fell_back = True
            mark = self._ops.mark()
        if state is None:  # every factorization broke down
            x = xp.full(rhs.shape, xp.nan, rhs.dtype)
            return _Found(x, total, np.full(k, np.nan), False, history, False, _nothing)
        inside, error, met = state.x, state.error, state.all_converged
        if self._operator().row is not None or dtype.char in "fF":
            error = self._verify(inside, rhs, dtype)
        elif len(rhs) <= SMALL and (error <= NEAR * bound).all():
            left = (self._plan.max_steps or math.inf) - int(state.steps.max())
            inside, error, added = self._look_closer(inside, rhs, bound, min(2, left))
            total, met = total + added, bool((error <= bound).all())
        x = inside if frame is None else frame.outside(xp, inside, shift)

        def lost(x):
            x = self._ops.converted(x, inside.dtype)
            y = x if frame is None else frame.back(xp, x, shift)
            gone, size = self._ops.host(self._ops.column_max(y - inside), self._ops.column_max(y))
            with np.errstate(all="ignore"):
                return np.where(gone == 0, 0.0, gone / size)

        return _Found(x, total, error, met, history, frame is not None, lost)

    def _look_closer(self, x, rhs, bound, most):
        """Return x, its errors by residuals of more than FP64, and the steps, up to `most`, these ask for."""
        a, b = self._ops.host(self._matrix, rhs)

        def measured(x):
            (y,) = self._ops.host(x)
            r = residual(a, y, b)
            rest, size = np.abs(r).max(axis=0), np.abs(y).max(axis=0)
            with np.errstate(all="ignore"):
                return r, np.where(rest == 0, 0.0, rest / self._survey.inf / size)

        r, error = measured(x)
        for step in range(most):
            if (error <= bound).all():
                return x, error, step
            trial = x + self._correct(self._ops.array(r))
            rest, after = measured(trial)
            better = after < error
            x = self._ops.xp.where(self._ops.array(better), trial, x)
            r, error = np.where(better, rest, r), np.where(better, after, error)
        return x, error, most

    def _verify(self, x, rhs, dtype):
        """Return the normwise backward errors of x, rounded as it will be returned.

        What the loop measured is that already unless it weighted the rows or x loses digits.
        """
        if dtype.char in "fF":
            with np.errstate(over="ignore"):
                x = self._ops.converted(self._ops.converted(x, _like(x, dtype)), x.dtype)
        operator = Operator.of(self._ops, self._matrix, self._survey.inf)
        return measure(self._ops, operator, x, rhs)[1]

    def _status(self, found, finite, singular, beyond, rcond, dtype):
        if not finite:
            return Status.NONFINITE_INPUT
        if singular:
            return Status.SINGULAR
        if beyond:
            return beyond
        if not found.met:
            return Status.NOT_CONVERGED if self._plan.fallback else Status.STALLED
        if not rcond >= np.finfo(dtype).eps:
            return Status.ILL_CONDITIONED
        return Status.CONVERGED_AFTER_FALLBACK if self._fell_back else Status.CONVERGED


def _nothing(x):
    """Return that nothing is lost of x, which is NaN."""
    return np.zeros(x.shape[1])


def _like(x, dtype):
    """Return the real or complex dtype, as x is, with the precision of dtype."""
    single = dtype.char in "fF"
    if x.dtype.kind == "c":
        return np.dtype(np.complex64 if single else np.complex128)
    return np.dtype(np.float32 if single else np.float64)


def _join_parts(solution):
    """Join columns (real parts, then imaginary parts) into complex ones."""
    k = solution.x.shape[1] // 2
    pairs = [v.reshape(2, k).max(axis=0) for v in (solution.iterations, solution.backward_error)]
    # Where 1j * inf would be NaN in both parts.
    xp = ops_for(solution.x).xp
    x = xp.empty((len(solution.x), k), np.result_type(solution.x, np.complex64))
    x.real[...], x.imag[...] = solution.x[:, :k], solution.x[:, k:]
    return replace(
        solution,
        x=x,
        iterations=pairs[0],
        backward_error=pairs[1],
        history=tuple((rung, e.reshape(2, -1).max(axis=0)) for rung, e in solution.history),
    )
