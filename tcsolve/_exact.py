"""Residuals without rounding, of systems so small that rounding may decide whether they meet a bound."""

from fractions import Fraction

import numpy as np

from tcsolve._scale import exponent_of, ldexp

__all__ = ["SMALL", "near_one", "nearly_meet", "reconsidered", "residual"]

# Unknowns up to which the rounding of a residual in FP64 matters beside u sqrt(n), and how far above the
# bound it can have brought an error.
SMALL, NEAR = 32, 4


def nearly_meet(n, error, bound):
    """Return which errors of systems of n unknowns may be above the bound by rounding alone."""
    with np.errstate(invalid="ignore"):
        return (error > bound) & (error <= NEAR * bound) & (n <= SMALL)


def reconsidered(a, x, b, error, bound):
    """Return the errors, those next above the bound computed once more, from exact residuals.

    Parameters
    ----------
    a : ndarray, shape (..., n, n)
    x, b : ndarray, shape (..., n, k)
        Real or complex, of any precision; leading dimensions are broadcast.
    error : ndarray, shape (..., k)
        ``||b - A x|| / (||A|| ||x||)`` in infinity norms, by FP64.
    bound : float

    Returns
    -------
    ndarray, shape (..., k)
    """
    near = nearly_meet(x.shape[-2], error, bound)
    if not near.any():
        return error
    with np.errstate(all="ignore"):
        a, x, b = near_one(a, x, b)
        norm, size = np.abs(a).sum(axis=-1).max(axis=-1), np.abs(x).max(axis=-2)
        exact = np.abs(residual(a, x, b, near)).max(axis=-2) / norm[..., None] / size
    return np.where(near, exact, error)


def near_one(a, x, b):
    """Return A, x and b in FP64, the first two brought next to 1 by powers of two; the error is the same."""
    a, x, b = (v.astype(np.result_type(v, np.float64), copy=False) for v in (a, x, b))
    of_a, of_x = exponent_of(np, a, (-2, -1)), exponent_of(np, x, -2)
    # Of a zero x such that b is something.
    zero = (x == 0).all(axis=-2, keepdims=True)
    of_x = np.where(zero, exponent_of(np, b, -2) - of_a, of_x)
    return ldexp(np, a, -of_a), ldexp(np, x, -of_x), ldexp(np, b, -of_a - of_x)


def residual(a, x, b, wanted):
    """Return b - A x in FP64, rounded once, of the columns that are wanted (..., k), and 0 for the others."""
    a, b = np.broadcast_to(a, wanted.shape[:-1] + a.shape[-2:]), np.broadcast_to(b, x.shape)
    r = np.zeros(x.shape, np.result_type(a, x, b, np.float64))
    for *matrix, column in np.argwhere(wanted):
        at = tuple(matrix)
        r[at][:, column] = _residual(a[at], x[at][:, column], b[at][:, column])
    return r


def _residual(a, x, b):
    """Return b - A x of one x."""
    a, x, b = (_parts(v) for v in (a, x, b))
    re, im = b[0] - a[0] @ x[0] + a[1] @ x[1], b[1] - a[0] @ x[1] - a[1] @ x[0]
    re, im = re.astype(float), im.astype(float)
    return re + 1j * im if im.any() else re


def _parts(v):
    """Return the real and the imaginary part of an array of finite numbers, as fractions."""
    fractions = np.vectorize(Fraction, otypes=[object])
    return fractions(v.real.astype(float)), fractions(v.imag.astype(float))
