"""Operands of products, and how their errors compare with a bound."""

import numpy as np
from bounds import wide


def operands(m, n, k, dtype, seed=0, low=-1.0, high=1.0):
    """Return random a (m, k) and b (k, n) of a dtype."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype) == np.int8:
        return (rng.integers(-128, 128, s).astype(np.int8) for s in ((m, k), (k, n)))
    return (rng.uniform(low, high, s).astype(dtype) for s in ((m, k), (k, n)))


def ratio(c, a, b, bound):
    """Return the largest error of c = a b over the bound; inf if a, b or c is not finite."""
    a, b, c = wide(a), wide(b), wide(c)
    if not all(np.isfinite(x).all() for x in (a, b, c)):
        return np.inf
    sizes = np.linalg.norm(a.astype(float), axis=-1)[..., :, None]
    sizes = sizes * np.linalg.norm(b.astype(float), axis=-2)[..., None, :]
    error = np.abs(c - a @ b).astype(float)
    # An error of 0 meets any bound, also that of a row of zeros.
    return float(
        np.divide(error, bound * sizes, where=error > 0, out=np.zeros_like(error)).max(initial=0)
    )
