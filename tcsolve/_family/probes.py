"""Backward errors of inverses and of factors, measured with a few random vectors of signs.

For a random vector v of signs, ``||R v||`` shows the size of R: each entry has the root mean square of a
row of R.  So a product of n x n matrices is verified in O(n^2) operations [1]_.

References
----------
.. [1] R. Freivalds, Probabilistic machines can use less running time, IFIP Congress 1977, 839-842.
"""

import numpy as np

from tcsolve._lu.scaling import exponent_of, ldexp
from tcsolve._solve.long_double_residual import SMALL

__all__ = ["error_of_factors", "error_of_inverse", "signs"]

SEED, VECTORS = 0, 4


def signs(n):
    """Return the vectors (n, k); for few unknowns, all unit vectors instead, so that the result is exact."""
    if n <= SMALL:
        return np.eye(n)
    return np.random.default_rng(SEED).choice([-1.0, 1.0], (n, VECTORS))


def error_of_inverse(a, x):
    """Return ``||I - A X|| / (||A|| ||X||)``, or that of ``I - X A`` if it is smaller, for each matrix.

    Parameters
    ----------
    a, x : ndarray, shape (..., n, n)

    Returns
    -------
    ndarray of float64, shape (...)
        NaN where x is not finite.

    Notes
    -----
    An inverse by xGETRI has a small residual on one side only [1]_.

    References
    ----------
    .. [1] J. J. Du Croz, N. J. Higham, IMA J. Numer. Anal. 12 (1992), 1-19.
    """
    a, x = (v.astype(np.result_type(v, np.float64)) for v in (a, x))
    exponent = exponent_of(np, a, (-2, -1))
    a, x = ldexp(np, a, -exponent), ldexp(np, x, exponent)
    v = signs(a.shape[-1])
    norm = _norm(a) * _norm(x)
    right, left = (np.abs(v - p @ (q @ v)).max(axis=(-2, -1)) for p, q in ((a, x), (x, a)))
    return np.where(np.isfinite(norm), np.minimum(right, left) / norm, np.nan)


def error_of_factors(a, lu, swaps):
    """Return ``||A - P L U|| / || |L| |U| ||`` for a (n, n), its factors and the row exchanges of getrf."""
    exponent = exponent_of(np, a, (0, 1))
    a, u = ldexp(np, a, -exponent), ldexp(np, np.triu(lu), -exponent)
    l = np.tril(lu, -1)
    np.fill_diagonal(l, 1)
    v = signs(len(a))
    y = l @ (u @ v)
    for i, j in reversed(list(enumerate(swaps))):
        y[[i, j]] = y[[j, i]]
    size = (np.abs(l) @ np.abs(u).sum(axis=1)).max()
    rest = np.abs(a @ v - y).max()
    return float(rest / size) if rest else float(rest)


def _norm(a):
    return np.abs(a).sum(axis=-1).max(axis=-1)
