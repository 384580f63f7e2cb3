"""Matrices that several modules of tests factor."""

import numpy as np

from tcsolve import matrices


def problem(n=60, cond=1e3, seed=0, dtype=float):
    return matrices.generate("svd_geo", n, cond=cond, seed=seed, dtype=dtype)


def matrix_of(kind):
    a = problem(80, 1e3, seed=4).a
    if kind == "badly scaled":
        a = a * 10.0 ** np.linspace(0, 12, 80)[:, None]
    elif kind == "huge":
        a = a * 1e300
    elif kind == "singular":
        a[:, 7] = 0
    elif kind == "not finite":
        a[3, 5] = np.nan
    elif kind == "hard":
        a = problem(80, 1e14, seed=4).a
    return a


def gauss(n=40, seed=0):
    return np.random.default_rng(seed).standard_normal((n, n))


def general(n, dtype=float, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((n, n))
    return (a + 1j * rng.standard_normal((n, n)) if np.dtype(dtype).kind == "c" else a).astype(
        dtype
    )


def spoilt(value, row, column, n=40):
    a = gauss(n)
    a[row, column] = value
    return a


def growth_both_ways(n):
    """Return a matrix with exponential growth whether it or its transpose is factored."""
    w = matrices.generate("wilkinson_growth", n).a
    return np.block([[w, np.zeros((n, n))], [np.zeros((n, n)), w.T]])
