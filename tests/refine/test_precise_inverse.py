"""Products with P^T L U and with its inverse, against exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.linalg

from tcsolve import matrices
from tcsolve._backends.cpu.ops import numpy_ops
from tcsolve._refine.double_double import Pair
from tcsolve._refine.precise_inverse import multiplied, solved


def fractions(x):
    return [[Fraction(float(v)) for v in row] for row in x]


def times(a, b):
    return [
        [sum(u * v for u, v in zip(row, col, strict=True)) for col in zip(*b, strict=True)]
        for row in a
    ]


def exact_matrix(lu, order):
    """Return P^T L U as fractions."""
    n = len(lu)
    rows = times(fractions(np.tril(lu, -1) + np.eye(n)), fractions(np.triu(lu)))
    return [rows[i] for i in np.argsort(order)]


def pair(n, k, seed):
    rng = np.random.default_rng(seed)
    high = rng.standard_normal((n, k))
    return Pair(high, np.ldexp(high, -54) * rng.uniform(-1, 1, (n, k)))


def value(p, i, j):
    return Fraction(float(p.high[i, j])) + Fraction(float(p.low[i, j]))


def factors(n, seed=1):
    lu = np.random.default_rng(seed).standard_normal((n, n))
    return lu, np.random.default_rng(seed + 1).permutation(n)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("order_of_lu", "CF")
@pytest.mark.parametrize("n", [1, 2, 9, 30])
def test_a_product_with_the_factors_has_the_digits_of_two_numbers(n, order_of_lu, transposed):
    lu, order = factors(n)
    w = pair(n, 2, 3)
    m = exact_matrix(lu, order)
    m = list(map(list, zip(*m, strict=True))) if transposed else m
    of_w = [[value(w, i, j) for j in range(2)] for i in range(n)]

    found = multiplied(numpy_ops, np.array(lu, order=order_of_lu), order, w, transposed)

    size = n * n * np.abs(lu).max() ** 2 * np.abs(w.high).max()
    for i, row in enumerate(times(m, of_w)):
        for j, wanted in enumerate(row):
            assert abs(value(found, i, j) - wanted) <= 2.0**-102 * size


def test_a_product_of_many_rows_is_that_of_its_parts(monkeypatch):
    from tcsolve._refine import double_double

    lu, order = factors(50)
    whole = [multiplied(numpy_ops, lu, order, pair(50, 2, 3), t) for t in (False, True)]
    monkeypatch.setattr(double_double, "CACHE_ENTRIES", 50 * 20)
    again = [multiplied(numpy_ops, lu, order, pair(50, 2, 3), t) for t in (False, True)]
    np.testing.assert_allclose(again, whole, rtol=2.0**-51, atol=2.0**-100)


def test_a_complex_product_is_that_of_its_parts():
    (one, order), (two, _) = factors(9), factors(9, seed=5)
    lu, w = one + 1j * two, pair(9, 2, 3)
    z = Pair(w.high * (1 + 2j), w.low * (1 + 2j))
    lower, upper = np.tril(lu, -1) + np.eye(9), np.triu(lu)

    found = multiplied(numpy_ops, lu, order, z).high

    np.testing.assert_allclose(found[order], lower @ (upper @ z.high), rtol=1e-13)


@pytest.mark.parametrize("cond", [1e4, 1e10, 1e14])
def test_a_solve_with_the_factors_is_exact_but_for_its_last_bit(cond):
    n = 24
    a = matrices.generate("svd_geo", n, cond=cond, seed=1).a
    lu, swaps = scipy.linalg.lu_factor(a.astype(np.float32))
    lu = lu.astype(float)
    order = scipy.linalg.lu_solve((np.eye(n), swaps), np.eye(n)).argmax(axis=1)
    x = pair(n, 1, 4)
    wanted = np.array([[value(x, i, 0)] for i in range(n)])
    y = times(exact_matrix(lu, order), wanted.tolist())
    high = np.array(y, dtype=float)
    low = np.array(
        [
            [float(v - Fraction(u)) for v, u in zip(*rows, strict=True)]
            for rows in zip(y, high, strict=True)
        ]
    )

    found = solved(
        numpy_ops,
        lambda w: multiplied(numpy_ops, lu, order, w),
        lambda r: scipy.linalg.lu_solve((lu, swaps), r),
        Pair(high, low),
    )

    assert np.abs(found - x.high).max() <= 2.0**-52 * np.abs(x.high).max()
    plain = scipy.linalg.lu_solve((lu, swaps), high)
    assert cond < 1e10 or np.abs(plain - x.high).max() > 2.0**-50 * np.abs(x.high).max()


def test_a_solve_with_singular_factors_gives_no_number():
    with np.errstate(all="ignore"):
        found = solved(numpy_ops, lambda w: w, lambda r: r * np.nan, Pair.of(np, np.ones((3, 1))))
    assert np.isnan(found).all()
