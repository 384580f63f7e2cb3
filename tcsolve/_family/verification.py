"""Measure the backward error of an answer from the caller's arrays; correct an x that misses the bound."""

import functools

import numpy as np

from tcsolve._arrays import is_cupy
from tcsolve._backends.cpu.blas import largest
from tcsolve._backends.select import ops_for
from tcsolve._checks import require_finite, result_dtype
from tcsolve._errors import AccuracyWarning, warn
from tcsolve._family.systems import CholeskySystem, LUSystem
from tcsolve._refine import stopping
from tcsolve._solve.verify.backward_error import SAFE

__all__ = [
    "are_native",
    "device_operands",
    "is_verified",
    "may_overwrite",
    "numbers_of",
    "settled",
    "solved",
    "warn_missed",
]

# Corrections continue while each halves the error of some column, as in LAPACK's xGERFS; at most MOST.
CONTRACTION, MOST = 0.5, 10
# ||A|| ||x|| is at least this number times the computed ||A x||, in spite of rounding errors.
CERTAIN = 0.9
LEAST = 1 / SAFE


def are_native(a, b):
    """Tell whether a and b are NumPy arrays of one dtype, float64 or complex128, that BLAS takes as it is."""
    if not type(a) is type(b) is np.ndarray:
        return False
    return a.dtype == b.dtype and a.dtype.char in "dD" and a.dtype.isnative


def device_operands(a, b, checked):
    """Return CuPy arrays a and b in their common dtype; the arrays of the dict `checked` must be finite."""
    ops = ops_for(a, b)
    for name, x in checked.items():
        require_finite(bool(ops.xp.isfinite(x).all()), name)
    dtype = result_dtype(a, b)
    return ops.converted(a, dtype), ops.converted(b, dtype)


def may_overwrite(overwrite, x, *others):
    """Tell whether x may be overwritten: a writable NumPy array that shares no memory with the others.

    Others that are None or CuPy arrays do not matter.
    """
    if not (overwrite and isinstance(x, np.ndarray) and x.flags.writeable):
        return False
    others = (y for y in others if y is not None and not is_cupy(y))
    return not any(np.may_share_memory(x, np.asarray(y)) for y in others)


def numbers_of(xp, b, dtype):
    """Return the array of a b that may be any array-like; strings and objects are converted to `dtype`."""
    b = xp.asarray(b)
    return b if b.dtype.kind in "biufc" else b.astype(dtype)


def solved(solve, system, b, name, *, overwrite_b, check_finite):
    """Call `solve`, which takes SciPy's arguments; return its x, verified by the result of `system()`.

    With `overwrite_b`, b is an array that shares no memory with the matrix or the factors.
    """
    kept = b.copy() if overwrite_b else b
    x = solve(b, overwrite_b=overwrite_b, check_finite=check_finite)
    if not x.size:
        return x
    given = system()
    kept = numbers_of(given.ops.xp, kept, x.dtype)
    if isinstance(given, LUSystem | CholeskySystem) and _is_product_near(given, x, kept):
        return x
    return settled(given, x, kept, functools.partial(solve, check_finite=False), name)


def _is_product_near(system, x, b):
    """Tell whether x meets the bound for a product of factors, by A x alone; False if this cannot be told."""
    if not x.dtype.char == b.dtype.char in "dD":
        return False
    with np.errstate(all="ignore"):
        return is_verified(x, b, system.product(x.reshape(len(x), -1)).reshape(x.shape))


def is_verified(x, b, ax):
    """Tell whether x meets the bound, from A x and without the norm of A; False if this cannot be told.

    ``||A x||`` is at most ``||A|| ||x||``, so the backward error is at most ``||b - A x|| / ||A x||``.

    Parameters
    ----------
    x, b, ax : ndarray, shape (n,) or (n, k)
        In FP64; ax may be in long double.
    """
    bound = CERTAIN * stopping.target(x.dtype, len(x))
    if x.ndim == 1:  # numbers take less time than arrays
        rest, size, right = largest(b - ax), largest(x), largest(b)
        safe = LEAST < size < SAFE and LEAST < right < SAFE
        # ||A x|| is at least ||b|| - ||b - A x||.
        return bool(safe and rest <= bound * (right - rest))
    rest, size, image = (np.maximum.reduce(np.abs(v)) for v in (b - ax, x, ax))
    safe = (LEAST < size) & (size < SAFE) & (LEAST < image) & (image < SAFE)
    return bool((safe & (rest <= bound * image)).all())


def settled(system, x, b, correct, name):
    """Return x, corrected in place if a backward error misses the bound; warn if one still does.

    Parameters
    ----------
    system : DenseSystem, BandSystem, ProductSystem or LUSystem
        Measures x.
    x, b : array, shape (n,) or (n, k)
        The answer, which may be modified, and the right-hand sides.
    correct : callable, (n, k) -> (n, k)
        Solves approximately for a residual.
    name : str
        The name of the public function.
    """
    if not x.size:
        return x
    with np.errstate(all="ignore"):
        columns, rhs = (v.reshape(len(v), -1) for v in (x, b))
        if system.ops.device == "cuda":  # the kernels need row-major arrays
            columns, rhs = map(system.ops.xp.ascontiguousarray, (columns, rhs))
        bound = stopping.target(x.dtype, len(x))
        error = system.errors(columns, rhs)
        if (error <= bound).all():
            return x
        better, error = _corrected(system, columns, rhs, correct, error, bound)
        if better is not columns:
            x[...] = better.reshape(x.shape)
    if not (error <= bound).all() and system.is_finite and bool(system.ops.xp.isfinite(b).all()):
        warn_missed(name, error, bound)
    return x


def _corrected(system, x, b, correct, error, bound):
    """Return (x, errors) after corrections, which continue while each halves the error of some column."""
    xp = system.ops.xp
    for _ in range(MOST):
        trial = x + correct(system.residual(x, b))
        trial = system.ops.converted(trial, x.dtype)
        after = system.errors(trial, b)
        better = after < error
        if not better.any():
            break
        x = xp.where(system.ops.xp.asarray(better), trial, x)
        halved = (after <= CONTRACTION * error).any()
        error = np.where(better, after, error)
        if (error <= bound).all() or not halved:
            break
    return x, error


def warn_missed(name, error, bound):
    """Give an AccuracyWarning for an answer that misses the bound."""
    worst = float(np.max(error))  # NaN if any is NaN
    warn(
        f"{name}: backward error {worst:.1e}, bound {bound:.1e}: the answer is not verified; "
        "the matrix may be singular to working precision, or its factors too inaccurate",
        AccuracyWarning,
    )
