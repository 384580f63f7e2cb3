"""Exact solutions of small systems of FP64 numbers, as fractions."""

import functools
from fractions import Fraction

import numpy as np

__all__ = ["relative_error", "solution"]


def integers(v):
    """Return integers and a power of two; the entries are the integers divided by this power."""
    exact = [Fraction(float(x)) for x in np.ravel(v)]
    scale = max(x.denominator for x in exact)
    return [int(x * scale) for x in exact], scale


def solution(a, b):
    """Return the exact x of A x = b as fractions."""
    (entries, scale), (of_b, scale_b) = integers(a), integers(b)
    return [x * scale / scale_b for x in _solved(tuple(entries), tuple(of_b))]


# Several tests solve the same system.
@functools.lru_cache(maxsize=256)
def _solved(entries, of_b):
    """Return the exact x of a system of integers, by fraction-free elimination (Bareiss)."""
    n = len(of_b)
    rows = [[*entries[i * n : (i + 1) * n], of_b[i]] for i in range(n)]
    before = 1
    for k in range(n):
        pivot = next(i for i in range(k, n) if rows[i][k])
        rows[k], rows[pivot] = rows[pivot], rows[k]
        of_k, *right = rows[k][k:]
        for row in rows[k + 1 :]:
            of_i, *others = row[k:]
            pairs = zip(others, right, strict=True)
            row[k + 1 :] = [(of_k * x - of_i * y) // before for x, y in pairs]
        before = of_k
    # `before` is the determinant but for its sign; its products with the entries of x are integers.
    products = [0] * n
    for i in reversed(range(n)):
        known = sum(rows[i][j] * products[j] for j in range(i + 1, n))
        products[i] = (rows[i][n] * before - known) // rows[i][i]
    return [Fraction(product, before) for product in products]


def relative_error(x, exact):
    """Return max |x - exact| / max |exact|."""
    errors = (abs(Fraction(float(u)) - v) for u, v in zip(x, exact, strict=True))
    return float(max(errors) / max(map(abs, exact)))
