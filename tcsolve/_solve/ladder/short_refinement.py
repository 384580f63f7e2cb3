"""Refinement on the host with few calls from Python, for numbers that are not extreme.

For a few hundred unknowns, a step takes as long as a few calls from Python.  So a short loop does what most
systems need: classical refinement with the factors of LAPACK and a plain FP64 matrix.  All other systems are
left to the general loop.
"""

import numpy as np

from tcsolve._backends.cpu.blas import largest
from tcsolve._backends.cpu.lu import column_max
from tcsolve._backends.cpu.short_chains import multiplier
from tcsolve._lu.scaling import TOP
from tcsolve._refine import stopping
from tcsolve._solve.verify.long_double_residual import SMALL, residual

__all__ = ["HostLoop", "divided", "is_moderate", "is_of_ordinary_size", "refine_shortly"]

# Largest number of corrections of a column in `refine_shortly`; the general loop takes the rest.
MOST_STEPS = 20


def refine_shortly(ladder, b, bound):
    """Solve with the factors of a `Ladder`, and refine x.

    Parameters
    ----------
    ladder : Ladder
    b : ndarray, shape (n,) or (n, k)
        The right-hand sides of the caller.
    bound : float
        The largest backward error.

    Returns
    -------
    (x, errors, steps, history) or None
        `history` has (steps, errors) of all columns, for the first x and after each step.  None if the system
        is not ordinary, has many columns, or if a column does not meet the bound by classical refinement.
    """
    system, plan = ladder.system, ladder.plan
    if not (_is_ordinary(system, b) and plan.method in ("auto", "ir")):
        return None
    if b.ndim > 1 and b.shape[1] >= len(b) > 1:  # a step takes as long as a factorization
        return None
    factors, adjoint = ladder.rung.native
    if factors is None or factors.bad_pivot:
        return None
    most = min(plan.max_steps or MOST_STEPS, MOST_STEPS)
    loop = HostLoop(system.a, system.survey.inf, _solver(factors, adjoint), bound)
    return loop.refined(b, most, plan.contraction)


def _is_ordinary(system, b):
    """Tell whether A is plain and in FP64 on the host, and b has its dtype."""
    char = system.a.dtype.char
    return char in "dD" and b.dtype.char == char and system.ops.device == "cpu" and system.is_plain


def _solver(native, adjoint):
    """Return the function (r, size) -> approximately A**-1 r (or A**-H r) in FP64.

    `size` is max |r| of each column, or a larger number.
    """
    factors = native.factors
    if native.dtype.char in "dD":
        return lambda r, size: factors.solve(r, adjoint)
    return lambda r, size: factors.solve(divided(r, size, native.dtype), adjoint) * np.float64(size)


def divided(r, size, dtype):
    """Return r / size in FP32, column-major; all entries fit, because their moduli are at most 1."""
    if r.ndim == 1:
        return (r / size).astype(dtype)
    out = np.empty(r.shape, dtype, order="F")
    return np.divide(r, size, out=out, casting="same_kind")


def _top(v):
    """Return max |v| of each column of v (n,) or (n, k) in FP64; NaN propagates."""
    return column_max(v) if v.ndim > 1 else largest(v)


def _difference(times):
    """Return the function (x, b) -> b - A x, which needs no other memory than the result."""

    def residual(x, b):
        ax = times(x)
        return np.subtract(b, ax, out=ax)

    return residual


def is_moderate(size):
    """Tell whether products with numbers of this size stay in the range of FP64; False for 0 and NaN."""
    return 1 / TOP < size < TOP


def is_of_ordinary_size(size, b):
    """Tell whether each column of x is far from the ends of the range of FP64, or has b = 0.

    `size` has the largest modulus of each column.  Products with a tiny x may underflow.
    """
    if not np.maximum.reduce(size) < TOP:
        return False
    return np.minimum.reduce(size) > 1 / TOP or bool(((size > 1 / TOP) | ~b.any(axis=0)).all())


class HostLoop:
    """Classical refinement for one matrix on the host.

    Parameters
    ----------
    a : ndarray, shape (n, n), float64 or complex128
    norm : float
        Its infinity norm.
    solve : callable, (r, size) -> approximately A**-1 r, as from `_solver`
        r has the shape (n,) or (n, k).
    bound : float
        The largest backward error.
    near : float
        For few unknowns, residuals are computed in FP64 until the errors are at most this number, and then
        with the accuracy of long double.  An x that meets the bound in FP64 is measured once more in this
        way.  For 0, all residuals are in FP64.
    sized : bool
        False if `solve` ignores max |r| of several columns.
    ahead : int
        For few unknowns and several columns: the number of corrections that are made in any case.  Only
        after them do the errors decide whether another correction follows.  A decision takes as long as a
        correction.
    watched : bool
        Whether the history has the errors before these corrections.  x does not depend on this.
    """

    def __init__(self, a, norm, solve, bound, near=np.inf, *, sized=True, ahead=0, watched=True):
        self._a, self._norm, self._solve, self._bound = a, norm, solve, bound
        self._is_small = len(a) <= SMALL
        self._wanted = bound if self._is_small else stopping.SURE * bound
        self._near = near if self._is_small else 0.0
        self._sized = sized
        self._ahead, self._watched = ahead if self._is_small else 0, watched
        self._times = None  # the function (x, b) -> b - A x; None until it is needed

    def _in_fp64(self, x, b):
        """Return b - A x in FP64."""
        if self._times is None:
            self._times = _difference(multiplier(self._a))
        return self._times(x, b)

    def _measured(self, x, b, size, is_near):
        """Return (b - A x, its largest entries, the errors) for x with the largest entries `size`.

        With `is_near`, the residual has the accuracy of long double.
        """
        if is_near:
            r = residual(self._a, x, b, (self._norm, size))
        else:
            r = self._in_fp64(x, b)
        rest = _top(r)
        return r, rest, rest / self._norm / size

    def meets(self, x, b):
        """Tell whether x (n,) or (n, k) meets the bound."""
        size = _top(x)
        if not (is_moderate(size) if x.ndim == 1 else _are_moderate(size)):
            return False
        met = self._measured(x, b, size, self._is_small)[2] <= self._bound
        return met if x.ndim == 1 else bool(met.all())

    def refined(self, b, most, contraction=0.5):
        """Return a result as that of `refine_shortly`, after at most `most` steps."""
        if b.size > len(b):
            return self._several(np.asfortranarray(b), most, contraction)  # LAPACK works on columns
        x, errors = self._one(b.reshape(-1), most, contraction)
        history = [(np.array([i]), np.array([e])) for i, e in enumerate(errors)]
        return None if x is None else (x, history[-1][1], history[-1][0], history)

    def answer(self, b, most):
        """Return the x of `refined` alone, or None."""
        if b.size == len(b):
            return self._one(b.reshape(-1), most)[0]
        found = self.refined(b, most)
        return found and found[0]

    # The tests of sizes and errors are False for NaN.

    def _one(self, b, most, contraction=0.5):
        """Return (x, errors) of one column, or (None, errors); numbers take the place of arrays."""
        size, errors = _top(b), []
        if not is_moderate(size):
            return None, errors
        x, before, is_near = self._solve(b, size), np.inf, np.inf <= self._near
        for _ in range(most + 1):
            size = _top(x)
            if not is_moderate(size):
                return None, errors
            r, rest, error = self._measured(x, b, size, is_near)
            if error <= self._wanted and self._near and not is_near:
                is_near = True
                continue
            errors.append(error)
            if error <= self._wanted:
                return x, errors
            if not error <= contraction * before:
                return None, errors
            x += self._solve(r, rest)
            before, is_near = error, error <= self._near
        return None, errors

    def _corrected_ahead(self, x, b, size, count):
        """Return x after `count` corrections, and (steps, errors) before each of them if `watched`, else [].

        No error decides about these corrections.
        """
        answers, residuals = [], []
        for _ in range(count):
            r = self._in_fp64(x, b)
            answers.append(x)
            residuals.append(r)
            x = x + self._solve(r, size)  # a new array
        if not self._watched:
            return x, []
        top = np.maximum.reduce(np.abs(np.array([*answers, *residuals])), axis=1)
        size, rest = top[:count], top[count:]
        errors = rest / self._norm / (size + ((size == 0) & (rest == 0)))
        steps = np.arange(count).repeat(b.shape[1]).reshape(count, -1)
        return x, list(zip(steps, errors, strict=True))

    def _size_of(self, b):
        """Return max |b| of each column, or 1 where b is zero; None if the solves do not need it."""
        if not self._sized:
            return None
        size = _top(b)
        return size + (size == 0)

    def _several(self, b, most, contraction):
        """Refine for several columns; those that have met the bound are not changed again."""
        size, left = self._size_of(b), None
        x, before, is_near = self._solve(b, size), np.inf, np.inf <= self._near
        ahead, history = min(self._ahead, most), []
        if ahead:
            (x, history), is_near = self._corrected_ahead(x, b, size, ahead), True
        steps = np.full(b.shape[1], ahead)
        for _ in range(most + 1 - ahead):
            size = _top(x)
            r, rest, error = self._measured(x, b, size, is_near)
            worst = np.maximum.reduce(error)
            if worst != worst and (zero := (size == 0) & (rest == 0)).any():
                # Where b is zero, x is zero, and has met the bound after the first solve.
                size, error = size + zero, np.where(zero, 0.0, error)
                worst = np.maximum.reduce(error)
            all_met = worst <= self._wanted
            if all_met and self._near and not is_near:
                is_near = True
                continue
            if left is None:
                answer, errors = x, error
            else:
                answer[:, left], errors = x, errors.copy()
                errors[left] = error
            history.append((steps, errors))
            if all_met:
                return (answer, errors, steps, history) if _are_moderate(size) else None
            if not np.logical_and.reduce(error <= np.maximum(contraction * before, self._wanted)):
                return None
            going, before, is_near = error > self._wanted, error, worst <= self._near
            if self._is_small:
                # It is faster to solve for all columns, and to discard some corrections.
                steps = steps + going
                np.add(x, self._solve(r, rest), out=x, where=going)
                continue
            if not np.logical_and.reduce(going):
                if not _are_moderate(size[~going]):
                    return None
                x, b, r = (v[:, going] for v in (x, b, r))
                rest, before = rest[going], error[going]
                left = going.nonzero()[0] if left is None else left[going]
            steps = steps.copy()
            steps[slice(None) if left is None else left] += 1
            x += self._solve(r, rest)
        return None


def _are_moderate(size):
    return 1 / TOP < np.minimum.reduce(size) and np.maximum.reduce(size) < TOP
