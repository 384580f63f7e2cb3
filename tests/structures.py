"""Matrices and right-hand sides of the structures in KINDS."""

import numpy as np

KINDS = (
    None,
    "general",
    "diagonal",
    "tridiagonal",
    "upper triangular",
    "lower triangular",
    "symmetric",
    "hermitian",
    "positive definite",
)


def matrices(kind, dtype, *shape, seed=0):
    """Return well-conditioned matrices (..., n, n) of a kind."""
    rng, n = np.random.default_rng(seed), shape[-1]
    a = rng.standard_normal((*shape, n))
    if np.dtype(dtype).kind == "c":
        a = a + 1j * rng.standard_normal(a.shape)
    if kind == "positive definite":
        a = a @ np.swapaxes(a.conj(), -1, -2) / n
    return as_read((a + (1 + n**0.5) * np.eye(n)).astype(dtype), kind).astype(dtype)


def as_read(a, kind, lower=False):
    """Return the full matrices that SciPy reads under a structure."""
    keep = {
        "diagonal": lambda v: np.triu(np.tril(v)),
        "tridiagonal": lambda v: np.triu(np.tril(v, 1), -1),
        "upper triangular": np.triu,
        "lower triangular": np.tril,
    }
    if kind in keep:
        return keep[kind](a)
    if kind not in ("symmetric", "hermitian", "positive definite"):
        return a
    part = np.tril(a, -1) if lower else np.triu(a, 1)
    other = np.swapaxes(part, -1, -2)
    diagonal = np.triu(np.tril(a))
    if kind == "symmetric":
        return part + other + diagonal
    return part + other.conj() + diagonal.real


def right_hand_sides(dtype, *shape, seed=1):
    rng = np.random.default_rng(seed)
    b = rng.standard_normal(shape)
    return (b + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else b).astype(dtype)
