"""Backward errors without rounding, of systems so small that rounding may decide about a bound."""

from fractions import Fraction

import numpy as np

__all__ = ["SMALL", "reconsidered"]

# Unknowns up to which the rounding of a residual in FP64 matters beside u sqrt(n), and how far above the
# bound it can have brought an error.
SMALL, NEAR = 32, 4


def reconsidered(a, x, b, error, bound):
    """Return the errors, those next above the bound computed once more without rounding.

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
    with np.errstate(invalid="ignore"):
        near = (error > bound) & (error <= NEAR * bound)
    if not near.any() or x.shape[-2] > SMALL:
        return error
    a, b = np.broadcast_to(a, error.shape[:-1] + a.shape[-2:]), np.broadcast_to(b, x.shape)
    error = error.copy()
    for *matrix, column in np.argwhere(near):
        at = tuple(matrix)
        error[(*at, column)] = _backward_error(a[at], x[at][:, column], b[at][:, column])
    return error


def _backward_error(a, x, b):
    """Return the backward error of one x, of finite numbers."""
    n = len(x)
    a, x, b = (_parts(v) for v in (a, x, b))
    residual = [
        tuple(
            b[part, i] - sum(sign * a[p, i, j] * x[q, j] for p, q, sign in terms for j in range(n))
            for part, terms in enumerate((((0, 0, 1), (1, 1, -1)), ((0, 1, 1), (1, 0, 1))))
        )
        for i in range(n)
    ]
    norm = max(sum(_modulus(a[:, i, j]) for j in range(n)) for i in range(n))
    size = max(_modulus(x[:, j]) for j in range(n))
    return float(max(map(_modulus, residual)) / norm / size)


def _parts(v):
    """Return the real and the imaginary parts of an array as fractions, (2, ...)."""
    parts = np.stack([v.real, v.imag if np.iscomplexobj(v) else np.zeros_like(v)])
    return np.vectorize(Fraction, otypes=[object])(parts.astype(float))


def _modulus(z):
    """Return |z| of a pair of fractions, complex ones to a relative error of 2**-50 or so."""
    re, im = abs(z[0]), abs(z[1])
    if not im or not re:
        return re or im
    small, large = min(re, im), max(re, im)
    return large * Fraction((1 + float(small / large) ** 2) ** 0.5)
