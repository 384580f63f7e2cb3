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
from tcsolve._dispatch import as_host, is_cupy, ops_for
from tcsolve._errors import LinAlgError, LinAlgWarning
from tcsolve._scale import ldexp
from tcsolve._solution import Solution, Status

__all__ = ["goes_to_scipy", "interpret", "solve_by_scipy"]

# Beyond 2**(+-EXTREME) FP32 matrices are solved in FP64.
EXTREME = 60
# Beyond 2**(+-FAR) FP64 matrices are brought next to 1 before; norms may leave the range.
FAR = 500

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
    n = a.shape[-1]
    bound = _stop.target(dtype, n)
    vector = b.ndim == 1
    columns = b[:, None] if vector else b
    if _leaves_range_of_fp32(a):  # which LAPACK would do on its way
        a, columns = (v.astype(np.result_type(v, np.float64)) for v in (a, columns))
    a, columns = _brought_near_one(a, columns)
    full = interpret(np, a, structure, lower)
    x, singular, rcond = _solve_on_host(a, columns, structure, lower)
    error = np.full((*shape[: len(shape) - (1 if vector else 2)], columns.shape[-1]), np.nan)
    steps = np.zeros(error.shape, int)
    if singular:
        x = np.full(shape, np.nan, dtype)
    else:
        x, error, steps = _polish(a, full, columns, x, structure, lower, bound)
        if x.dtype != dtype:
            with np.errstate(all="ignore"):
                x = x.astype(dtype)
            error = _backward_errors(full, x.astype(np.result_type(x, np.float64)), columns)
        x = x.reshape(shape)
    took = time.perf_counter() - mark
    return Solution(
        x=ops.array(x),
        status=_status_of_scipy(
            x, error, bound, rcond, singular, bool(np.isfinite(full).all() and b_finite), dtype
        ),
        precision="scipy",
        rungs=("scipy",),
        iterations=steps,
        backward_error=error,
        bound=bound,
        rcond=rcond,
        seconds={"factor": took, "total": took},
        device="cpu",
    )


def _leaves_range_of_fp32(a):
    """Tell whether a is in FP32, and a norm so small or large that its inverse may not be."""
    if a.dtype.char not in "fF" or not a.size:
        return False
    top = np.abs(a).max()
    return 0 < top < 2.0**-EXTREME or 2.0**EXTREME < top < np.inf


def _brought_near_one(a, b):
    """Return matrices near the ends of FP64, and what belongs to them, times powers of two; else the same."""
    if a.dtype.char not in "dD" or not a.size:
        return a, b
    with np.errstate(invalid="ignore"):
        exponent = np.frexp(np.abs(a).max(axis=(-2, -1), keepdims=True))[1]
    far = np.abs(exponent) > FAR
    if not far.any():
        return a, b
    exponent = np.where(far, -exponent, 0)
    return tuple(ldexp(np, v, exponent) for v in (a, b))


def _status_of_scipy(x, error, bound, rcond, singular, finite, dtype):
    if not finite:
        return Status.NONFINITE_INPUT
    if singular:
        return Status.NOT_POSITIVE_DEFINITE if math.isnan(rcond) else Status.SINGULAR
    if not np.isfinite(x).all():
        return Status.OVERFLOW
    if not (error <= bound).all():
        return Status.NOT_CONVERGED
    return Status.ILL_CONDITIONED if rcond < np.finfo(dtype).eps else Status.CONVERGED


def _polish(a, full, b, x, structure, lower, bound):
    """Return (x, backward errors, steps) after as many steps of refinement as help, at most two."""
    error = _backward_errors(full, x, b)
    steps = np.zeros(error.shape, int)
    for _ in range(2):
        wanted = error > bound
        if not wanted.any():  # met, or not a number
            break
        steps += wanted
        with np.errstate(all="ignore"):
            d, singular, _ = _solve_on_host(a, (b - full @ x).astype(x.dtype), structure, lower)
            trial = x if singular else x + d
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
    with np.errstate(all="ignore"):
        norm = np.abs(a.astype(wide)).sum(axis=-1).max(axis=-1)
        residual = np.abs(b - a.astype(wide) @ x).max(axis=-2)
        error = residual / norm[..., None] / np.abs(x).max(axis=-2)
    return np.where(residual == 0, 0.0, error)


def _solve_on_host(a, b, structure, lower):
    """Solve with scipy.linalg.solve; return (x, singular, rcond).

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
            return None, True, math.nan if structure == "positive definite" else 0.0
    rconds = [np.nan]
    for warning in caught:
        if issubclass(warning.category, LinAlgWarning):
            found = re.findall(r"rcond *= *([-+]?\d[.\d]*(?:e[-+]?\d+)?|nan)", str(warning.message))
            rconds += [_as_rcond(value) for value in found]
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return x, False, float(np.nanmin(rconds)) if len(rconds) > 1 else np.nan


def _as_rcond(text):
    value = 0.0 if text == "nan" else float(text.rstrip("."))
    # SciPy before 1.19 reports the condition number itself for diagonal matrices.
    return 1 / value if value > 1 else value
