"""Structured and batched systems, solved by SciPy on the host until they have a path of their own."""

import math
import re
import threading
import time
import warnings

import numpy as np
import scipy.linalg

from tcsolve import _stop
from tcsolve._check import require_finite
from tcsolve._dispatch import as_host, is_cupy, numpy_ops, ops_for
from tcsolve._errors import LinAlgError, LinAlgWarning
from tcsolve._exact import nearly_meet, reconsidered, residual
from tcsolve._scale import ldexp
from tcsolve._solution import Solution, Status

__all__ = ["goes_to_scipy", "interpret", "solve_by_scipy"]

# Beyond 2**(+-FAR) matrices and right-hand sides are brought next to 1; norms and inverses may overflow.
FAR, FAR_FP32 = 500, 60
# Norms between 1 / SAFE and SAFE keep products in FP64, and their residuals, far from the ends of its range.
SAFE = 2.0**250

# Whoever catches warnings changes what all threads do with theirs.
_catching = threading.Lock()


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
    x, steps, rcond = _solve_and_polish(a, full, columns, structure, lower, bound)
    singular = x is None
    if singular:
        error = np.full((*shape[: len(shape) - (b.ndim > 1) - 1], columns.shape[-1]), np.nan)
        x, steps = np.full(shape, np.nan, dtype), np.zeros(error.shape, int)
    else:
        with np.errstate(all="ignore"):
            x = x.astype(dtype)
        error = reconsidered(full, x, columns, _backward_errors(full, x, columns), bound)
    took = time.perf_counter() - mark
    finite = bool(np.isfinite(full).all() and b_finite)
    return Solution(
        x=ops.array(x.reshape(shape)),
        status=_status_of_scipy(x, error, bound, rcond, singular, finite),
        precision="scipy",
        rungs=("scipy",),
        iterations=steps,
        backward_error=error,
        bound=bound,
        rcond=rcond,
        seconds={"factor": took, "total": took},
        device="cpu",
    )


def _solve_and_polish(a, full, b, structure, lower, bound):
    """Return (x, steps of refinement, rcond); x is None if a is singular.

    Near the ends of their range matrices and right-hand sides are brought next to 1, unless that loses a bit.
    """
    full, shift = _brought_near_one(full, (-2, -1))
    b, shift_b = _brought_near_one(b, -2)
    method = _method_for(full, structure)
    if method != structure:
        a = full
    elif shift.any():
        a = ldexp(np, a, -shift)
    promoted = a.dtype.char in "fF" and _is_far(_exponent(full, (-2, -1)), a.dtype)
    if promoted:  # LAPACK would leave the range of FP32 on its way
        a, b = (v.astype(np.result_type(v, np.float64)) for v in (a, b))
    y, rcond = _solve_on_host(a, b, method, lower)
    if y is None:
        return None, None, rcond
    if promoted and math.isnan(rcond):  # SciPy has not seen what is singular in FP32
        rcond = min(_rcond(matrix) for matrix in full.reshape(-1, *full.shape[-2:]))
    y, steps = _polish(lambda r: _solve_on_host(a, r, method, lower)[0], full, b, y, bound)
    with np.errstate(all="ignore"):
        return ldexp(np, y, shift_b - shift), steps, rcond


def _method_for(full, structure):
    """Return the structure that SciPy is told: 'banded' for some tridiagonal matrices.

    Up to 1.17 their norm, and so rcond, is computed without the last entry above the diagonal.
    """
    if structure not in (None, "tridiagonal") or full.shape[-1] < 2:
        return structure
    if full[..., 0, 2:].any() or full[..., 2:, 0].any() or full[..., -1, :-2].any():
        return structure
    size = np.abs(full)
    norm = size.sum(axis=-2).max(axis=-1)
    size[..., -2, -1] = 0
    return "banded" if (norm > 2 * size.sum(axis=-2).max(axis=-1)).any() else structure


def _rcond(matrix):
    """Return rcond of a matrix by its FP64 factors."""
    matrix = matrix.astype(np.result_type(matrix, np.float64))
    factors, zero_pivot = numpy_ops.getrf(matrix, matrix.dtype)
    return 0.0 if zero_pivot else numpy_ops.gecon(factors, float(np.abs(matrix).sum(axis=0).max()))


def _exponent(v, axis):
    """Return e, largest parts of entries along the axes (kept) being in [2**(e - 1), 2**e); 0 of NaN, Inf."""
    with np.errstate(invalid="ignore"):
        top = np.abs(v.real).max(axis=axis, keepdims=True, initial=0)
        if np.iscomplexobj(v):
            top = np.maximum(top, np.abs(v.imag).max(axis=axis, keepdims=True, initial=0))
    return np.where(np.isfinite(top), np.frexp(top)[1], 0)


def _is_far(exponent, dtype):
    """Tell whether numbers of this size are so far from 1 that norms, or inverses, may leave their range."""
    return bool((np.abs(exponent) > (FAR_FP32 if dtype.char in "fF" else FAR)).any())


def _brought_near_one(v, axis):
    """Return (v 2**-e, e), one e along the axes; 0 where they are not far from 1, or bits would be lost."""
    exponent = _exponent(v, axis)
    if v.dtype.char not in "fdFD" or not _is_far(exponent, v.dtype):
        return v, np.zeros_like(exponent)
    near = ldexp(np, v, -exponent)
    lost = (ldexp(np, near, exponent) != v) & (v == v)
    exponent = np.where(lost.any(axis=axis, keepdims=True), 0, exponent)
    return ldexp(np, v, -exponent), exponent


def _status_of_scipy(x, error, bound, rcond, singular, finite):
    if not finite:
        return Status.NONFINITE_INPUT
    if singular:
        return Status.NOT_POSITIVE_DEFINITE if math.isnan(rcond) else Status.SINGULAR
    if not np.isfinite(x).all():
        return Status.OVERFLOW
    if not (error <= bound).all():
        size = np.abs(x).max(axis=-2)
        faint = size < np.finfo(x.dtype).tiny
        return Status.UNDERFLOW if (faint | (error <= bound)).all() else Status.NOT_CONVERGED
    return Status.ILL_CONDITIONED if rcond < np.finfo(x.dtype).eps else Status.CONVERGED


def _polish(solve, full, b, x, bound):
    """Return (x, steps) after the refinement that helps: at most two steps, and one by exact residuals."""
    wide = np.result_type(full.dtype, np.float64)
    error = _backward_errors(full, x, b)
    steps = np.zeros(error.shape, int)
    for _ in range(2):
        wanted = error > bound
        if not wanted.any():  # met, or not a number
            break
        steps += wanted
        with np.errstate(all="ignore"):
            d = solve((b - full.astype(wide) @ x).astype(x.dtype))
            trial = x if d is None else x + d
        after = _backward_errors(full, trial, b)
        better = after < error
        if not better.any():
            break
        x = np.where(better[..., None, :], trial, x)
        error = np.where(better, after, error)
    error = reconsidered(full, x, b, error, bound)
    near = nearly_meet(full.shape[-1], error, bound)
    if near.any() and (d := solve(residual(full, x, b, near).astype(x.dtype))) is not None:
        steps, x = steps + near, x + d
    return x, steps


def _backward_errors(a, x, b):
    """Return ||b - A x|| / (||A|| ||x||) for stacks a (..., n, n), x and b (..., n, k)."""
    wide = np.result_type(a.dtype, np.float64)
    a, x, b = (v.astype(np.result_type(v, wide), copy=False) for v in (a, x, b))
    with np.errstate(all="ignore"):
        norm, size = np.abs(a).sum(axis=-1).max(axis=-1), np.abs(x).max(axis=-2)
        if not all(((v > 1 / SAFE) & (v < SAFE)).all() for v in (norm, size)):
            of_a, of_x = _exponent(a, (-2, -1)), _exponent(x, -2)
            # Of a zero x such that b is something.
            of_x = np.where(size[..., None, :] > 0, of_x, _exponent(b, -2) - of_a)
            a, x, b = ldexp(np, a, -of_a), ldexp(np, x, -of_x), ldexp(np, b, -of_a - of_x)
            norm, size = np.abs(a).sum(axis=-1).max(axis=-1), np.abs(x).max(axis=-2)
        rest = np.abs(b - a @ x).max(axis=-2)
        error = rest / norm[..., None] / size
    return np.where(rest == 0, 0.0, error)


def _solve_on_host(a, b, structure, lower):
    """Solve with scipy.linalg.solve; return (x, rcond), x None for a singular matrix.

    rcond is NaN where SciPy does not tell it, that is unless it warns, and where a Cholesky breaks down.
    """
    with _catching, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            x = scipy.linalg.solve(a, b, lower=lower, check_finite=False, assume_a=structure)
        except LinAlgError as error:
            # Bad info codes are LinAlgErrors too, but only singularity is an outcome.
            if "singular" not in str(error) and "definite" not in str(error):
                raise
            return None, math.nan if structure == "positive definite" else 0.0
    rconds = [np.nan]
    for warning in caught:
        if issubclass(warning.category, LinAlgWarning):
            found = re.findall(
                r"rcond *= *([-+]?\d[.\d]*(?:e[-+]?\d+)?|nan|inf)", str(warning.message)
            )
            rconds += [_as_rcond(value) for value in found or ["nan"]]
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return x, float(np.nanmin(rconds)) if len(rconds) > 1 else np.nan


def _as_rcond(text):
    value = 0.0 if text == "nan" else float(text.rstrip("."))
    # SciPy before 1.19 reports the condition number itself for diagonal matrices.
    return 1 / value if value > 1 else value
