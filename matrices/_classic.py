"""Classic test matrices: random ones, matrices known for their condition or growth, and benchmarks.

In formulas, rows i and columns j count from 1.

References
----------
N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM (2002),
chapters 9 and 28.
"""

import numpy as np

from ._spectrum import standard_normal


def _indices(n):
    """Return the row numbers as a column and the column numbers as a row, both from 1."""
    k = np.arange(1.0, n + 1)
    return k[:, None], k


def gauss(n, rng, dtype):
    """Independent standard normal entries: the typical dense matrix."""
    return standard_normal(rng, (n, n), dtype)


def gauss_dominant(n, rng, dtype):
    """Normal entries plus n on the diagonal: diagonally dominant, well conditioned."""
    return gauss(n, rng, dtype) + n * np.eye(n)


def uniform(n, rng, dtype):
    """Entries uniform on (-1, 1); real and imaginary part each for complex types."""
    a = rng.uniform(-1, 1, (n, n))
    return a + 1j * rng.uniform(-1, 1, (n, n)) if np.dtype(dtype).kind == "c" else a


def hilbert(n):
    """Hilbert matrix 1/(i + j - 1): numerically singular from n = 12."""
    i, j = _indices(n)
    return 1 / (i + j - 1)


def frank(n):
    """Frank matrix: upper Hessenberg, n + 1 - max(i, j), determinant 1."""
    i, j = _indices(n)
    return np.where(j >= i - 1, n + 1 - np.maximum(i, j), 0)


def kahan(n, *, theta=1.2):
    """Kahan matrix: triangular, with a tiny singular value that no diagonal entry shows."""
    s, c = np.sin(theta), np.cos(theta)
    return s ** np.arange(n)[:, None] * (np.eye(n) - c * np.triu(np.ones((n, n)), 1))


def wilkinson_growth(n):
    """Wilkinson's matrix: partial pivoting lets the last column grow to 2^(n-1)."""
    a = np.eye(n) - np.tril(np.ones((n, n)), -1)
    a[:, -1] = 1
    return a


def foster_growth(n, *, kh=0.6):
    """Foster's matrix: exponential growth under partial pivoting, from an integral equation.

    The trapezoidal rule with step h for a Volterra equation with the constant kernel k gives this matrix;
    ``kh`` is their product. The growth is proportional to ((2 + kh) / (2 - kh))^n.

    References
    ----------
    L. V. Foster, Gaussian elimination with partial pivoting can fail in practice, SIAM J. Matrix
    Anal. Appl. 15 (1994), 1354-1362.
    """
    a = (1 - kh / 2) * np.eye(n) - kh * np.tril(np.ones((n, n)), -1)
    a[:, 0] = -kh / 2
    a[0, 0] = 1
    if n > 1:
        a[:, -1] -= 1
    return a


def minij(n):
    """Positive definite matrix min(i, j): condition number about (4 n / pi)^2."""
    i, j = _indices(n)
    return np.minimum(i, j)


def moler(n):
    """Moler matrix min(i, j) - 2, diagonal i: positive definite, with one tiny eigenvalue."""
    i, j = _indices(n)
    return np.where(i == j, i, np.minimum(i, j) - 2)


def lehmer(n):
    """Lehmer matrix min(i, j) / max(i, j): positive definite, condition number below 4 n^2."""
    i, j = _indices(n)
    return np.minimum(i, j) / np.maximum(i, j)


def cauchy(n):
    """Cauchy matrix 1/(i + j): as badly conditioned as the Hilbert matrix."""
    i, j = _indices(n)
    return 1 / (i + j)


def parter(n):
    """Parter matrix 1/(i - j + 1/2): Cauchy and Toeplitz, most singular values near pi."""
    i, j = _indices(n)
    return 1 / (i - j + 0.5)


def toeplitz(n, rng, dtype):
    """Toeplitz matrix of 2 n - 1 independent standard normal numbers."""
    t = standard_normal(rng, 2 * n - 1, dtype)
    k = np.arange(n)
    return t[k[:, None] - k + n - 1]


def hpl_mxp(n, *, mu=-0.5):
    """HPL-MxP benchmark matrix 1/(mu i + j + n) + delta_ij: no pivoting is needed for mu > -1.

    References
    ----------
    C. Moler, A matrix for the new HPL-AI benchmark, Cleve's Corner, MathWorks (2019).
    """
    if not -1 <= mu <= 1:
        raise ValueError(f"mu is {mu}; it must lie between -1 and 1")
    i, j = _indices(n)
    return 1 / (mu * i + j + n) + np.eye(n)


def poisson2d(n):
    """Five-point Laplacian on a square grid, dense; n is rounded to the nearest square."""
    m = max(1, round(np.sqrt(n)))
    t = 2 * np.eye(m) - np.eye(m, k=1) - np.eye(m, k=-1)
    return np.kron(t, np.eye(m)) + np.kron(np.eye(m), t)


def _minij_condition(n, **_):
    # Eigenvalues 1 / (4 sin^2((2 k - 1) pi / (4 n + 2))), k = 1, ..., n.
    smallest, largest = np.sin(np.pi * np.array([1, 2 * n - 1]) / (4 * n + 2)) ** 2
    return float(largest / smallest)


def _poisson2d_condition(n, **_):
    # Eigenvalues 4 sin^2(k pi / (2 m + 2)) + 4 sin^2(l pi / (2 m + 2)), k, l = 1, ..., m.
    return float(np.tan(np.pi / (2 * np.sqrt(n) + 2)) ** -2)


GENERATORS = {
    generator.__name__: generator
    for generator in (
        gauss,
        gauss_dominant,
        uniform,
        hilbert,
        frank,
        kahan,
        wilkinson_growth,
        foster_growth,
        minij,
        moler,
        lehmer,
        cauchy,
        parter,
        toeplitz,
        hpl_mxp,
        poisson2d,
    )
}
CONDITIONS = {"minij": _minij_condition, "poisson2d": _poisson2d_condition}
