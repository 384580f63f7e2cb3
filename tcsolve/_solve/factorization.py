"""`Factorization`: verified solves, the condition number and the determinant of a factored matrix."""

import functools
import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tcsolve._arithmetic.matrix_parts import by_parts, real_parts
from tcsolve._backends.select import ops_for
from tcsolve._checks import check_array, check_shapes, require_finite, result_dtype
from tcsolve._errors import InputError
from tcsolve._lu.scaling import exponent_of, ldexp, shift_columns
from tcsolve._refine import stopping
from tcsolve._solution import HistoryPoint, Solution, Status, raise_or_warn
from tcsolve._solve.backward_error import backward_errors
from tcsolve._solve.condition import Conditioned
from tcsolve._solve.direct import solve_empty
from tcsolve._solve.ladder import in_turn
from tcsolve._solve.long_double_residual import SMALL, residual

__all__ = ["Factorization"]


# An error of up to NEAR times the bound may come from rounding alone, so more corrections are tried.
NEAR = 4


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
    """

    x: Any
    steps: np.ndarray
    error: np.ndarray | None
    met: bool
    history: list


class Factorization(Conditioned):
    """The LU factors of a matrix, ready for any number of right-hand sides.

    `tcsolve.factor` makes it.  If a right-hand side does not converge with the current factors, the next more
    precise factorization replaces them, for this solve and all later ones.  Threads may share a
    factorization; its methods run one at a time.  On the CPU it can be copied and pickled.  On a device it
    cannot, and a forked child process cannot use it.

    Attributes
    ----------
    shape : tuple of int
        Shape of the matrix.
    dtype : dtype
        Dtype of the matrix.  Answers have the same dtype, unless b has a wider one.
    precision : str
        Precision of the current factors: 'fp16', 'fp16x3', ..., 'fp64'.
    rungs : tuple of str
        Every precision that was tried so far, in order.
    nbytes : int
        Number of bytes of the matrix and its factors.
    """

    @property
    def nbytes(self):
        factors = self._factors
        held = self._a.nbytes + (factors.nbytes if factors else 0)
        return held + (self._matrix.nbytes if self._matrix is not self._a else 0)

    def __repr__(self):
        return f"<Factorization of {self.shape} {self.dtype}, precision {self.precision}>"

    def solve(self, b, *, check_finite=True):
        """Return x with A x = b, verified; raise errors and give warnings as `tcsolve.solve` does.

        Parameters
        ----------
        b : array_like, shape (n,) or (n, nrhs)
            The right-hand sides.  Not modified.  A NumPy array, or an array on the device of the factors.
        check_finite : bool
            True: raise an InputError if b holds NaN or Inf.  False: such a column of x is NaN.

        Returns
        -------
        x : array, shape of b
            The solution, on the device of b.

        Raises
        ------
        InputError
            As in `solve_ex`.
        SingularError
            A pivot is exactly zero in FP64.
        """
        solution = self.solve_ex(b, check_finite=check_finite)
        raise_or_warn(solution)
        return solution.x

    @in_turn
    def solve_ex(self, b, *, check_finite=True):
        """Return the `Solution` of A x = b; numerical failures are in its status and raise no error.

        Parameters
        ----------
        b : array_like, shape (n,) or (n, nrhs)
            The right-hand sides.  Not modified.  A NumPy array, or an array on the device of the factors.
        check_finite : bool
            True: raise an InputError if b holds NaN or Inf.  False: such a column of x is NaN.

        Returns
        -------
        Solution
            Its x is on the device of b.

        Raises
        ------
        InputError
            b has the wrong shape or dtype, is on another device, or holds NaN or Inf.
        """
        ops = self._ops
        here = ops_for(b := check_array(b, "b"))
        if here is not ops and here.device != "cpu":
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
        if b.size == 0:
            return solve_empty(here, b.shape, dtype, vector)
        self._restore()
        mark = ops.mark()
        columns = ops.array(b).reshape(self.shape[0], -1)
        wide = np.complex128 if columns.dtype.kind == "c" else self._wide
        columns = ops.converted(columns, np.dtype(wide))
        earlier, self._laps = self._laps, []
        try:
            solution = self._solve_columns(columns, check_finite, dtype, mark)
        except BaseException:
            self._laps = earlier  # the next solve reports the time of the factorization
            raise
        finally:
            self._drop_estimate()
        self._report_seconds(solution, earlier, mark)
        x = solution.x[:, 0] if vector else solution.x
        x = ops.xp.ascontiguousarray(x)
        return replace(solution, x=x if here is ops else ops.host(x)[0])

    @property
    def _wide(self):
        """The FP64 dtype, real or complex, in which systems with this matrix are solved."""
        return np.dtype(np.complex128 if self._complex else np.float64)

    def _report_seconds(self, solution, earlier, mark):
        """Fill `solution.seconds`: this solve, since `mark`, and earlier work that is not reported yet."""
        ops, before, laps = self._ops, self._seconds, self._laps
        self._seconds, self._laps = {}, []
        factored = self._seconds_of(earlier)
        total = sum(before.values()) + sum(factored.values()) + (ops.mark() - mark)
        for phases in (before, factored, self._seconds_of(laps)):
            for phase, seconds in phases.items():
                solution.seconds[phase] = solution.seconds.get(phase, 0.0) + seconds
        solution.seconds["total"] = total

    @in_turn
    def slogdet(self):
        """Return (sign, ``log |det A|``); A is factored in FP64 first if the factors are less precise.

        Returns
        -------
        sign : float or complex
            ``det A / |det A|``; 0 if the matrix is singular, NaN if it is not finite.
        logabsdet : float
            Natural logarithm of ``|det A|``; -inf if the matrix is singular, NaN if it is not finite.
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

    def _solve_columns(self, b, check_finite, dtype, mark):
        """Return the `Solution` for b (n, k) in FP64, with x of shape (n, k).

        `mark` is the time at which the checks began.
        """
        ops, n, self._solve_bytes = self._ops, self.shape[0], 0
        bound, wanted = stopping.target(dtype, n), stopping.before_rounding(dtype, n)
        # If A is real and b complex, the real and the imaginary parts of b are separate columns.
        paired = b.dtype.kind == "c" and not self._complex
        if paired:  # the modulus of the error combines the errors of both parts
            wanted /= math.sqrt(2)
        rhs = ops.xp.concatenate([b.real, b.imag], axis=1) if paired else b
        # Launch all work that a solve nearly always needs before the first result is read.
        read_size = ops.reading(_largest_parts(ops, rhs))
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
        # Read these now: the condition estimate may factor with a more precise rung than x needed.
        precision, rungs = self.precision, self.rungs
        singular = self._singular()
        mark, rcond = ops.mark(), 0.0
        if self._finite and not singular:
            rcond = self._least_rcond if found.met and self._least_rcond else self.rcond()
            singular = self._singular()  # the estimate may have found it with FP64 factors
        self._clock("rcond", mark)
        found = _join_parts(ops.xp, found) if paired else found
        if singular:  # then the x of an earlier rung is not valid
            found = found._replace(x=ops.xp.full_like(found.x, np.nan), error=None, met=False)
        x, error = self._returned(found, b, dtype)
        if dtype.char in "dD" and (found.met or self._plan.max_steps is None):
            before = len(self.rungs)
            x, error, added = self._mended(x, b, error, bound)
            if len(self.rungs) > before:
                precision, rungs, self._fell_back = self.precision, self.rungs, True
            if added.any():
                point = HistoryPoint(precision, found.steps + added, error, False)
                history = [*found.history, point]
                found = found._replace(steps=point.step, history=history, met=True)
        finite, met = all_good and self._finite, bool((error <= bound).all())
        beyond = self._beyond_range(x, error, bound) if finite and found.met and not met else None
        return Solution(
            x=x,
            status=self._status(finite, singular, beyond, met, rcond, dtype),
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

    def _returned(self, found, b, dtype):
        """Return x in its dtype, and its errors; those of the loop if they are for this x."""
        x, error = found.x, found.error
        if dtype.char in "fF":
            with np.errstate(over="ignore", under="ignore"):
                x = self._ops.converted(x, _like(x, dtype))
        if error is None:
            error = backward_errors(self._ops, self._a, x, b, self._norm_inf)
        return x, error

    def _mended(self, x, b, error, bound):
        """Return (x, errors, steps) after more corrections of columns that miss the bound by rounding.

        This may happen if the loop has measured the error of a scaled system, or if the rounding of the FP64
        residual matters.  Two corrections use the current factors, and two more use those of the next rung.
        """
        steps = np.zeros(len(error), int)
        for step in range(4):
            if not ((error > bound) & (error <= NEAR * bound)).any():
                break
            if step == 2 and not (self._climb(len(error)) and not self._bad_pivot()):
                break
            trial = self._corrected(x, b)
            after = backward_errors(self._ops, self._a, trial, b, self._norm_inf)
            steps += error > bound
            better = after < error
            x = self._ops.xp.where(self._ops.array(better), trial, x)
            error = np.where(better, after, error)
        return x, error, steps

    def _corrected(self, x, b):
        """Return x after one more correction; for few unknowns, the residual is computed in long double."""
        ops, xp, invert = self._ops, self._ops.xp, self._invert
        if len(b) > SMALL:
            r = b - by_parts(xp, functools.partial(ops.product, self._a), x, self._complex)
            return x + by_parts(xp, invert, r, self._complex)
        # Scale x and b to near 1; if the factors are in a frame, A too.
        of_a = exponent_of(xp, self._a, (0, 1)) if self._frame is not None else 0
        of_x = exponent_of(xp, x, 0)
        near = (ldexp(xp, v, -e) for v, e in ((self._a, of_a), (x, of_x), (b, of_x + of_a)))
        near_a, near_x, near_b = ops.host(*near)
        invert = functools.partial(invert, exponent=of_a)
        r = ops.array(residual(near_a, near_x, near_b))
        d = by_parts(xp, invert, r, self._complex)
        return ldexp(xp, ops.array(near_x) + d, of_x)

    def _beyond_range(self, x, error, bound):
        """Return OVERFLOW or UNDERFLOW for an x that met the bound until it was rounded, or None."""
        if not bool(self._ops.xp.isfinite(x).all()):
            return Status.OVERFLOW
        (size,) = self._ops.host(self._ops.column_max(x))
        faint = size < np.finfo(x.dtype).tiny
        return Status.UNDERFLOW if (faint | (error <= bound)).all() else None

    def _solve_good_columns(self, rhs, size, good, bound, dtype, mark):
        """Solve for the finite columns of rhs; the others are NaN, or all if A is singular or not finite."""
        xp, k = self._ops.xp, len(good)
        x, steps = xp.full(rhs.shape, xp.nan, dtype=rhs.dtype), np.zeros(k, int)
        if not (self._finite and good.any()) or self._singular():
            return _Found(x, steps, np.full(k, np.nan), False, [])
        take = self._ops.array(np.flatnonzero(good))
        found = self._climb_until_met(rhs[:, take], size[good], bound, dtype, mark)
        x[:, take] = found.x
        steps[good] = found.steps
        history = [_spread(point, good) for point in found.history]
        return _Found(x, steps, None, found.met, history)

    def _climb_until_met(self, rhs, size, bound, dtype, mark, ahead=None):
        """Refine with one rung after the other until all columns converge; return `_Found`.

        `size` has the largest real or imaginary part of each column of rhs.  `mark` is the start of the
        phase.  `ahead` is the result of `_ahead` for rhs.
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
                # Start again from x = 0: the x of a rung that failed may be worse than that, even if its
                # backward error, which is relative to the size of x, is small.
                state, ahead = self._refine(rhs, bound, ahead), None
                history += [_told(self.precision, total, point) for point in state.history]
                total += state.steps
            self._clock("refine", mark)
            if state is not None and state.all_converged or not self._climb(k):
                break
            self._fell_back = True
            mark = self._ops.mark()
        if state is None:  # every factorization had a bad pivot
            x = xp.full(rhs.shape, xp.nan, rhs.dtype)
            return _Found(x, total, np.full(k, np.nan), False, history)
        x, error, met = state.x, state.error, state.all_converged
        measured = dtype.char not in "fF" and self._operator().measures_the_caller
        if measured and len(rhs) <= SMALL and (error <= NEAR * bound).all():
            left = (self._plan.max_steps or math.inf) - int(state.steps.max())
            x, error, added = self._look_closer(x, rhs, bound, min(2, left))
            total, met = total + added, bool((error <= bound).all())
            if added:
                history.append(HistoryPoint(self.precision, total.copy(), error, False))
        if frame is not None:
            x = frame.outside(xp, x, shift)
        return _Found(x, total, error if measured and frame is None else None, met, history)

    def _look_closer(self, x, rhs, bound, most):
        """Return (x, errors, steps) with long double residuals, after up to `most` more corrections."""
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

    def _status(self, finite, singular, beyond, met, rcond, dtype):
        if not finite:
            return Status.NONFINITE_INPUT
        if singular:
            return Status.SINGULAR
        if beyond:
            return beyond
        if not met:
            return Status.NOT_CONVERGED if self._plan.fallback else Status.STALLED
        if math.isnan(rcond):
            return Status.CONDITION_UNKNOWN
        if not rcond >= np.finfo(dtype).eps:
            return Status.ILL_CONDITIONED
        return Status.CONVERGED_AFTER_FALLBACK if self._fell_back else Status.CONVERGED


def _told(rung, before, point):
    """Return the `HistoryPoint` for a `Point` of a rung; each column had `before` steps on earlier rungs."""
    return HistoryPoint(rung, before + point.step, point.error, point.estimated)


def _spread(point, good):
    """Return the `HistoryPoint` of all columns from one of the good columns; the others have NaN."""
    step, error = np.zeros(len(good), int), np.full(len(good), np.nan)
    step[good], error[good] = point.step, point.error
    return point._replace(step=step, error=error)


def _like(x, dtype):
    """Return the dtype with the precision of `dtype` that is real or complex as x is."""
    single = dtype.char in "fF"
    if x.dtype.kind == "c":
        return np.dtype(np.complex64 if single else np.complex128)
    return np.dtype(np.float32 if single else np.float64)


def _largest_parts(ops, v):
    """Return the largest real or imaginary part of each column of v; the moduli might overflow."""
    if v.dtype.kind != "c":
        return ops.column_max(v)
    return ops.xp.maximum(*map(ops.column_max, real_parts(v)))


def _join_parts(xp, found):
    """Join columns (all real parts, then all imaginary parts) to complex columns; error becomes None."""
    k = found.x.shape[1] // 2
    # Not real + 1j * imaginary: 1j * inf has NaN in its real part.
    x = xp.empty((len(found.x), k), np.result_type(found.x, np.complex64))
    x.real[...], x.imag[...] = found.x[:, :k], found.x[:, k:]

    def larger(v):
        return v.reshape(2, k).max(axis=0)

    history = [p._replace(step=larger(p.step), error=larger(p.error)) for p in found.history]
    return found._replace(x=x, error=None, steps=larger(found.steps), history=history)
