"""Backward errors of inverses and of factors, measured with a few random vectors of signs.

For a random vector v of signs, ``||R v||`` shows the size of R: the root mean square of entry i of R v is the
2-norm of row i of R.  So a product of n x n matrices is verified in O(n^2) operations [1]_.

References
----------
.. [1] R. Freivalds, Probabilistic machines can use less running time, IFIP Congress 1977, 839-842.
"""

import functools
import math

import numpy as np

from tcsolve._arithmetic.matrix_parts import real_parts
from tcsolve._backends.cpu.blas import blas_of, matmul
from tcsolve._backends.cpu.lu import lapack_of
from tcsolve._lu.scaling import FRAME_EXPONENT, exponent_of, ldexp
from tcsolve._solve.verify.backward_error import SAFE
from tcsolve._solve.verify.long_double_residual import SMALL

__all__ = ["error_of_factors", "error_of_inverse", "product", "signs"]

SEED, VECTORS = 0, 4


@functools.lru_cache(maxsize=16)
def signs(n):
    """Return the vectors v as the columns of a read-only array (n, k).

    For few unknowns they are the n columns of the identity matrix.  Then the products R v are the columns of
    R, so its size is measured, not estimated.
    """
    if n <= SMALL:
        found = np.eye(n)
    else:
        found = np.random.default_rng(SEED).choice([-1.0, 1.0], (n, VECTORS))
    found.flags.writeable = False
    return found


def error_of_inverse(a, x, enough=0.0):
    """Return ``||I - A X|| / (||A|| ||X||)``, or that of ``I - X A`` if it is smaller, for each matrix.

    Parameters
    ----------
    a, x : ndarray, shape (..., n, n)
    enough : float
        If all errors of ``I - A X`` are at most this, those of ``I - X A`` are not measured.

    Returns
    -------
    ndarray of float64, shape (...)
        NaN where a or x is not finite.

    Notes
    -----
    The norms of A and X are infinity norms.  The norm of a residual is the largest entry of its product with
    `signs`.  An inverse by xGETRI has a small residual on one side only [1]_.

    References
    ----------
    .. [1] J. J. Du Croz, N. J. Higham, IMA J. Numer. Anal. 12 (1992), 1-19.
    """
    a, x = (v.astype(np.result_type(v, np.float64), copy=False) for v in (a, x))
    norm = _norm(a), _norm(x)
    if not all((1 / SAFE < v).all() and (v < SAFE).all() for v in norm):
        exponent = exponent_of(np, a, (-2, -1))
        a, x = ldexp(np, a, -exponent), ldexp(np, x, exponent)
        norm = _norm(a), _norm(x)
    v, size = signs(a.shape[-1]), norm[0] * norm[1]
    error = None
    for p, q in ((a, x), (x, a)):
        rest = np.abs(v - product(p, product(q, v))).max(axis=(-2, -1)) / size
        error = rest if error is None else np.minimum(error, rest)
        if (error <= enough).all():
            break
    return np.where(np.isfinite(size), error, np.nan)


def product(a, b):
    """Return a b; for two FP64 matrices by SciPy's BLAS.

    LAPACK has just used the threads of SciPy's BLAS.  The threads of NumPy's BLAS would compete with these.
    """
    by_scipy = a.ndim == b.ndim == 2 and {a.dtype.char, b.dtype.char} <= set("dD")
    return matmul(a, b) if by_scipy else a @ b


def error_of_factors(a, lu, swaps):
    """Return ``||A - P L U|| / || |L| |U| ||`` for a (n, n), its factors and the row swaps of getrf.

    Parameters
    ----------
    a, lu : ndarray, shape (n, n), float64 or complex128, column-major
        A real lu is overwritten: allocating a new array takes as long as some of the products.
    swaps : ndarray of int, shape (n,)
    """
    top = max(max(part.max(), -part.min()) for part in real_parts(a))
    exponent = math.frexp(top)[1]  # 0 for zero, NaN and Inf
    if abs(exponent) > FRAME_EXPONENT:  # then U is extreme, too: scale A and U alike
        a, upper = ldexp(np, a, -exponent), ldexp(np, np.triu(lu), -exponent)
    else:
        upper = lu
    trmm, size_of = blas_of("trmm", lu.dtype), blas_of("trmm", np.dtype(float))
    v = signs(len(a)).astype(lu.dtype)
    y = trmm(1.0, lu, trmm(1.0, upper, v), lower=True, diag=True)
    y = lapack_of("laswp", y.dtype)(y, swaps, inc=-1, overwrite_a=True)  # P y
    ones, lower = np.ones((len(a), 1)), np.abs(lu, out=lu if lu.dtype.kind == "f" else None)
    upper = lower if upper is lu else np.abs(upper)
    size = size_of(1.0, lower, size_of(1.0, upper, ones), lower=True, diag=True).max()
    rest = np.abs(matmul(a, v) - y).max()
    return float(rest / size) if rest else float(rest)


def _norm(a):
    return np.abs(a).sum(axis=-1).max(axis=-1)
