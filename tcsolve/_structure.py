"""Structured and batched systems, solved by SciPy on the host until they have a path of their own."""

import math
import re
import time
import warnings
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from tcsolve import _stop
from tcsolve._check import require_finite
from tcsolve._dispatch import as_host, is_cupy, numpy_ops, ops_for
from tcsolve._errors import LinAlgError, LinAlgWarning
from tcsolve._locks import ForkSafeLock
from tcsolve._scale import exponent_of, ldexp
from tcsolve._solution import Solution, Status
from tcsolve._wide import residual

__all__ = ["goes_to_scipy", "interpret", "solve_by_scipy"]

# Beyond 2**(+-FAR) matrices and right-hand sides are brought next to 1; norms and inverses may overflow.
FAR, FAR_FP32 = 500, 60
# Norms between 1 / SAFE and SAFE keep products in FP64, and their residuals, far from the ends of its range.
SAFE = 2.0**250

# Whoever catches warnings changes what all threads do with theirs.
_catching = ForkSafeLock()


def goes_to_scipy(a, b, structure, precision, device):
    """Tell whether the system has no path of its own yet: a stack, or a structure."""
    if a.ndim > 2 or b.ndim > 2:
        return True
    if structure == "positive definite":
        return True  # only a Cholesky can tell whether it is
    if precision != "auto" or device == "cuda":
        return False  # the caller asks for this LU
    if structure is None:
        return not is_cupy(a) and _looks_structured(a)
    return structure != "general" and not is_cupy(a)


def _looks_structured(a):
    """Tell whether the NumPy matrix a may be banded, triangular or symmetric, from its border.

    A necessary condition read in O(n): SciPy then looks at all of it and picks the method, so that a
    false alarm costs nothing but speed.
    """
    top, left, bottom, right = a[0, 1:], a[1:, 0], a[-1, :-1], a[:-1, -1]
    if not (top.any() and bottom[1:].any()) and not right[:-1].any():
        return True  # lower triangular, or no wider than tridiagonal
    if not (left.any() and right[1:].any()) and not bottom[:-1].any():
        return True  # upper triangular
    if not (top[1:].any() or left[1:].any() or bottom[:-1].any() or right[:-1].any()):
        return True
    symmetric = (top == left).all() and (bottom == right).all()
    return bool(symmetric or ((top == left.conj()).all() and (bottom == right.conj()).all()))


def interpret(xp, a, structure, lower):
    """Return the full matrix that SciPy reads a as under `structure`, a (..., n, n).

    What is not read is masked, not multiplied by zero: it may hold NaN.
    """
    if structure == "diagonal":
        return xp.triu(xp.tril(a))
    if structure == "tridiagonal":
        return xp.triu(xp.tril(a, 1), -1)
    if structure == "upper triangular":
        return xp.triu(a)
    if structure == "lower triangular":
        return xp.tril(a)
    if structure in ("symmetric", "hermitian", "positive definite"):
        conjugate = structure != "symmetric" and a.dtype.kind == "c"
        part = xp.tril(a, -1) if lower else xp.triu(a, 1)
        mirror = xp.swapaxes(part.conj() if conjugate else part, -1, -2)
        diagonal = xp.triu(xp.tril(a))
        return part + mirror + (diagonal.real.astype(a.dtype) if conjugate else diagonal)
    return a


def solve_by_scipy(a, b, structure, lower, check_finite, shape, dtype):
    """Solve through scipy.linalg.solve, and verify the answer against what it read."""
    ops = ops_for(a, b)
    mark = time.perf_counter()
    a, b = as_host(a), as_host(b).astype(dtype, copy=False)
    b_finite = np.isfinite(b).all()
    if check_finite:
        require_finite(np.isfinite(a).all(), "a")
        require_finite(b_finite, "b")
    bound = _stop.target(dtype, a.shape[-1])
    columns = b[:, None] if b.ndim == 1 else b
    full = interpret(np, a, structure, lower)
    found = _solve_and_polish(a, full, columns, structure, lower, bound)
    x, error, steps = found.x, found.error, found.steps
    if x is None:
        error = np.full((*shape[: len(shape) - (b.ndim > 1) - 1], columns.shape[-1]), np.nan)
        x, steps = np.full(shape, np.nan, dtype), np.zeros(error.shape, int)
    elif error is None or x.dtype != dtype:
        with np.errstate(all="ignore"):
            x = x.astype(dtype)
        error = _backward_errors(full, x, columns)
    took = time.perf_counter() - mark
    finite = bool(np.isfinite(full).all() and b_finite)
    return Solution(
        x=ops.array(x.reshape(shape)),
        status=_status_of_scipy(x, error, bound, found, finite),
        precision="scipy",
        rungs=("scipy",),
        iterations=steps,
        backward_error=error,
        bound=bound,
        rcond=found.rcond,
        seconds={"factor": took, "total": took},
        device="cpu",
    )


class _Found(NamedTuple):
    """What came of a system: x, None where there is none; its errors, None where they are not known yet."""

    x: Any
    rcond: float
    failure: Status | None = None
    error: Any = None
    steps: Any = None


def _solve_and_polish(a, full, b, structure, lower, bound):
    """Return what was `_Found`, after steps of refinement where x misses the bound.

    Near the ends of their range matrices and right-hand sides are brought next to 1, unless that loses a bit.
    """
    full, of_a = _brought_near_one(full, (-2, -1))
    b, of_b = _brought_near_one(b, -2)
    if of_a is not None:
        a = ldexp(np, a, -of_a)
    moved = of_a is not None or of_b is not None
    shift = (0 if of_b is None else of_b) - (0 if of_a is None else of_a)  # x is y 2**shift
    promoted = a.dtype.char in "fF" and _is_far(full, a.dtype)
    if promoted:  # LAPACK would leave the range of FP32 on its way
        a, b = (v.astype(np.result_type(v, np.float64)) for v in (a, b))
    found = _solve_on_host(a, b, structure, lower)
    if found.failure:
        return found
    y, rcond = found.x, found.rcond
    if moved and not np.isfinite(y).all():  # x may be within the range, though y is not
        wide_a, wide_b = (v.astype(np.result_type(v, np.float64)) for v in (a, b))
        down = np.where(np.isfinite(y).all(axis=-2, keepdims=True), 0, np.maximum(-shift, 0))
        moved_b = ldexp(np, wide_b, -down)
        again = _solve_on_host(wide_a, moved_b, structure, lower).x
        if again is not None:
            a, b, y, shift = wide_a, moved_b, again, shift + down
    # What SciPy does not see: singular in FP32 alone, and in some tridiagonal matrices.
    unseen = _seems_better(full, structure) | (promoted and math.isnan(rcond))
    if unseen.any():
        rcond = float(np.nanmin([rcond, *map(_rcond, full[unseen])]))
    y, error, steps = _polish(lambda r: _solve_on_host(a, r, structure, lower).x, full, b, y, bound)
    if not moved:
        return _Found(y, rcond, error=error, steps=steps)
    with np.errstate(all="ignore"):
        return _Found(ldexp(np, y, shift), rcond, steps=steps)


def _seems_better(full, structure):
    """Tell which of some matrices, if tridiagonal, SciPy gives an rcond more than ten times too large.

    Up to 1.17 it leaves out the last entry above the diagonal from their norm.  By default it takes
    none of less than four rows for tridiagonal.
    """
    least = {"tridiagonal": 2, None: 4}.get(structure)
    if least is None or full.shape[-1] < least:
        return np.zeros(full.shape[:-2], bool)
    corners = full[..., 0, 2:], full[..., 2:, 0], full[..., -1, :-2]
    tridiagonal = ~np.any([corner.any(axis=-1) for corner in corners], axis=0)
    if not tridiagonal.any():
        return tridiagonal
    with np.errstate(all="ignore"):
        size = np.abs(full)
        norm = size.sum(axis=-2).max(axis=-1)
        size[..., -2, -1] = 0
        return tridiagonal & (norm / 10 > size.sum(axis=-2).max(axis=-1))


def _rcond(matrix):
    """Return rcond of a matrix by its FP64 factors."""
    matrix = matrix.astype(np.result_type(matrix, np.float64))
    factors, zero_pivot = numpy_ops.getrf(matrix, matrix.dtype)
    norm = float(np.abs(matrix).sum(axis=0).max())
    return 0.0 if zero_pivot else numpy_ops.gecon(factors, norm)


def _is_far(v, dtype):
    """Tell whether v is so far from 1 that norms, or inverses, may leave the range of dtype."""
    far = FAR_FP32 if dtype.char in "fF" else FAR
    return bool((np.abs(exponent_of(np, v, (-2, -1))) > far).any())


def _brought_near_one(v, axis):
    """Return (v 2**-e, e), one e along the axes, 0 where bits would be lost; or (v, None), near 1 already."""
    far = FAR_FP32 if v.dtype.char in "fF" else FAR
    exponent = exponent_of(np, v, axis)
    if not (np.abs(exponent) > far).any():
        return v, None
    near = ldexp(np, v, -exponent)
    lost = (ldexp(np, near, exponent) != v) & (v == v)
    exponent = np.where(lost.any(axis=axis, keepdims=True), 0, exponent)
    return ldexp(np, v, -exponent), exponent


def _status_of_scipy(x, error, bound, found, finite):
    if not finite:
        return Status.NONFINITE_INPUT
    if found.failure:
        return found.failure
    if not np.isfinite(x).all():
        return Status.OVERFLOW
    if not (error <= bound).all():
        faint = np.abs(x).max(axis=-2) < np.finfo(x.dtype).tiny
        return Status.UNDERFLOW if (faint | (error <= bound)).all() else Status.NOT_CONVERGED
    return Status.ILL_CONDITIONED if found.rcond < np.finfo(x.dtype).eps else Status.CONVERGED


def _polish(solve, full, b, x, bound):
    """Return (x, errors, steps) after as many steps of refinement as help, at most two."""
    error = _backward_errors(full, x, b)
    steps = np.zeros(error.shape, int)
    for _ in range(2):
        wanted = error > bound
        if not wanted.any():  # met, or not a number
            break
        steps += wanted
        with np.errstate(all="ignore"):
            d = solve(residual(full, x, b).astype(x.dtype))
            trial = x if d is None else x + d
        after = _backward_errors(full, trial, b)
        better = after < error
        if not better.any():
            break
        x = np.where(better[..., None, :], trial, x)
        error = np.where(better, after, error)
    return x, error, steps


def _backward_errors(a, x, b):
    """Return ||b - A x|| / (||A|| ||x||) for stacks a (..., n, n), x and b (..., n, k)."""
    wide = np.result_type(a.dtype, np.float64)
    a, x, b = (v.astype(np.result_type(v, wide), copy=False) for v in (a, x, b))
    with np.errstate(all="ignore"):
        norm, size = np.abs(a).sum(axis=-1).max(axis=-1), np.abs(x).max(axis=-2)
        if not all(((v > 1 / SAFE) & (v < SAFE)).all() for v in (norm, size)):
            a, x, b = _near_one(a, x, b)
            norm, size = np.abs(a).sum(axis=-1).max(axis=-1), np.abs(x).max(axis=-2)
        rest = np.abs(residual(a, x, b)).max(axis=-2)
        error = rest / norm[..., None] / size
    return np.where(rest == 0, 0.0, error)


def _near_one(a, x, b):
    """Return A, x and b with the first two brought next to 1 by powers of two; the error is the same."""
    of_a, of_x = exponent_of(np, a, (-2, -1)), exponent_of(np, x, -2)
    # Of a zero x such that b is something.
    zero = (x == 0).all(axis=-2, keepdims=True)
    of_x = np.where(zero, exponent_of(np, b, -2) - of_a, of_x)
    return ldexp(np, a, -of_a), ldexp(np, x, -of_x), ldexp(np, b, -of_a - of_x)


def _solve_on_host(a, b, structure, lower):
    """Solve with scipy.linalg.solve; return what was `_Found`.

    rcond is NaN where SciPy does not tell it, that is unless it warns.
    """
    with _catching, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            x = scipy.linalg.solve(a, b, lower=lower, check_finite=False, assume_a=structure)
        except LinAlgError as error:
            # Bad info codes are LinAlgErrors too, but only singularity is an outcome.
            if "singular" not in str(error) and "definite" not in str(error):
                raise
            if structure == "positive definite":
                return _Found(None, math.nan, Status.NOT_POSITIVE_DEFINITE)
            return _Found(None, 0.0, Status.SINGULAR)
    rconds = []
    for warning in caught:
        if issubclass(warning.category, LinAlgWarning):
            found = re.findall(
                r"rcond *= *([-+]?\d[.\d]*(?:e[-+]?\d+)?|nan|inf)", str(warning.message)
            )
            rconds += [_as_rcond(value) for value in found] or [0.0]
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return _Found(x, min(rconds, default=math.nan))


def _as_rcond(text):
    value = 0.0 if text == "nan" else float(text.rstrip("."))
    # SciPy before 1.19 reports the condition number itself for diagonal matrices.
    return 1 / value if value > 1 else value
