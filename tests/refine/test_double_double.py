"""Residuals with twice the digits, against exact fractions."""

from fractions import Fraction

import numpy as np
import pytest

from tcsolve._backends.cpu.ops import numpy_ops
from tcsolve._refine.double_double import Pair, product, residual, two_sum


def exactly(a, x, b):
    """Return b - A x as fractions, for a real A and one right-hand side."""
    rows = [[Fraction(float(v)) for v in row] for row in a]
    return [
        Fraction(float(of_b)) - sum(u * v for u, v in zip(row, x, strict=True))
        for row, of_b in zip(rows, b, strict=True)
    ]


def numbers(shape, spread, seed):
    rng = np.random.default_rng(seed)
    return np.ldexp(rng.standard_normal(shape), rng.integers(-spread, spread + 1, shape))


@pytest.mark.parametrize("n", [1, 2, 7, 64, 150])
@pytest.mark.parametrize("spread", [0, 12, 60])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_residual_is_rounded_about_once(n, spread, dtype):
    a, x = numbers((n, n), spread, 1).astype(dtype), numbers((n, 2), spread, 2)
    pair = Pair(x, np.ldexp(x, -54) * numbers((n, 2), 0, 3))
    pair = Pair(*two_sum(*pair))
    b = a.astype(float) @ x  # then nearly all digits of b - A x cancel

    r = residual(numpy_ops, a, pair, b)

    for j in range(2):
        exact_x = [
            Fraction(float(u)) + Fraction(float(v))
            for u, v in zip(*(p[:, j] for p in pair), strict=True)
        ]
        exact = exactly(a, exact_x, b[:, j])
        size = np.abs(a).astype(float).sum(axis=1).max() * np.abs(x[:, j]).max()
        for found, wanted in zip(r[:, j], exact, strict=True):
            error = abs(float(Fraction(float(found)) - wanted))
            assert error <= 2.0**-53 * abs(float(wanted)) + n * 2.0**-105 * size


def test_a_complex_residual_is_that_of_its_parts():
    a, x, b = (numbers(s, 3, 5) + 1j * numbers(s, 3, 6) for s in ((9, 9), (9, 2), (9, 2)))
    real = np.block([[a.real, -a.imag], [a.imag, a.real]])
    parts = residual(
        numpy_ops, real, Pair.of(np, np.vstack([x.real, x.imag])), np.vstack([b.real, b.imag])
    )

    found = residual(numpy_ops, a, Pair.of(np, x), b)

    np.testing.assert_allclose(found, parts[:9] + 1j * parts[9:], rtol=2.0**-51)


def test_a_product_is_the_exact_one_rounded():
    a, x = numbers((40, 40), 20, 7), numbers((40, 1), 20, 8)
    exact = [-r for r in exactly(a, [Fraction(float(v)) for v in x[:, 0]], np.zeros(40))]
    size = np.abs(a).sum(axis=1).max() * np.abs(x).max()
    for found, wanted in zip(product(numpy_ops, a, Pair.of(np, x)).high[:, 0], exact, strict=True):
        error = abs(float(Fraction(float(found)) - wanted))
        assert error <= 2.0**-53 * abs(float(wanted)) + 2.0**-99 * size


def test_many_rows_are_done_in_parts(monkeypatch):
    from tcsolve._refine import double_double

    a, x, b = numbers((50, 50), 5, 1), numbers((50, 3), 5, 2), numbers((50, 3), 5, 3)
    whole = residual(numpy_ops, a, Pair.of(np, x), b)
    monkeypatch.setattr(double_double, "CACHE_ENTRIES", 50 * 20)

    np.testing.assert_array_equal(residual(numpy_ops, a, Pair.of(np, x), b), whole)


def test_zeros_are_zeros():
    a, x = np.zeros((3, 3)), np.zeros((3, 1))
    np.testing.assert_array_equal(
        residual(numpy_ops, a, Pair.of(np, x), np.ones((3, 1))), np.ones((3, 1))
    )
    np.testing.assert_array_equal(residual(numpy_ops, np.eye(3), Pair.of(np, x), x), x)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["d", "D", "f"])
def test_the_residual_of_the_device_is_that_of_the_host(kind, cupy, ops):
    a, x, b = numbers((300, 300), 9, 1), numbers((300, 2), 9, 2), numbers((300, 2), 9, 3)
    if kind == "D":
        a, x, b = (v + 1j * v[::-1] for v in (a, x, b))
    a = a.astype(kind)
    expected = residual(numpy_ops, a, Pair.of(np, x), b)

    found = residual(ops, cupy.asarray(a), Pair.of(cupy, cupy.asarray(x)), cupy.asarray(b))

    size = np.abs(a).sum(axis=1).max() * np.abs(x).max()
    assert (
        np.abs(found.get() - expected).max() <= 2.0**-52 * np.abs(expected).max() + 2.0**-95 * size
    )
