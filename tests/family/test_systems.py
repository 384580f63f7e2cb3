"""The classes of `_family.systems`: measured errors and corrections; a copy of NumPy stands in for CuPy."""

import types
import warnings

import numpy as np
import pytest
import scipy.linalg

from tcsolve._backends.cpu.ops import NumpyOps
from tcsolve._family.systems import CholeskySystem, DenseSystem, LUSystem, ProductSystem, transposed
from tcsolve._family.verification import settled


class DeviceOps(NumpyOps):
    """NumPy's primitives with an array module that is not NumPy, as on a device."""

    xp = types.SimpleNamespace(**vars(np))


@pytest.mark.parametrize("kind", ["matrix", "factors"])
def test_rounding_gives_no_warning_for_any_of_many_columns_of_few_unknowns(kind):
    """A few columns miss the bound by rounding, and an FP64 residual would not correct all of them."""
    ops, (first, second) = DeviceOps(), map(np.random.default_rng, (0, 1))
    a = np.triu(first.standard_normal((3, 3)) + 9 * np.eye(3))
    b = second.standard_normal((3, 70_000))
    inverse = np.linalg.inv(a)

    def solved(b):
        return inverse @ b

    factors = [np.eye(3), a]
    system = DenseSystem.of(ops, a) if kind == "matrix" else ProductSystem.of(ops, factors)
    x = solved(b)
    missed = system.errors(x, b) > 2.0**-52
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = settled(system, x, b, solved, "solve_triangular")

    assert missed.any()
    assert (DenseSystem.of(NumpyOps(), a).errors(x, b) <= 2.0**-52).all()


@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize("of_a, of_b", ["dd", "dD", "Dd", "DD", "ff", "FF"])
@pytest.mark.parametrize("scale", [1.0, 2.0**30])
def test_factors_of_getrf_are_measured_as_their_product_is(trans, of_a, of_b, scale):
    n, rng = 40, np.random.default_rng(2)
    a, b = (
        (rng.standard_normal(shape) + 1j * rng.standard_normal(shape) * (char in "FD"))
        for char, shape in ((of_a, (n, n)), (of_b, (n, 3)))
    )
    a, b = (
        scale * (v if char in "FD" else v.real).astype(char) for v, char in ((a, of_a), (b, of_b))
    )
    lu, swaps = scipy.linalg.lu_factor(a)
    x = scipy.linalg.lu_solve((lu, swaps), b, trans=trans)
    wide = lu.astype(np.result_type(lu, np.float64))
    order = np.arange(n)
    for i, j in enumerate(swaps):
        order[[i, j]] = order[[j, i]]
    lower = np.empty_like(wide)
    lower[order] = np.tril(wide, -1) + np.eye(n)
    product = transposed(lower @ np.triu(wide), trans)
    size = transposed(np.abs(lower) @ np.abs(np.triu(wide)), trans) @ np.abs(x)

    for wrong in (1.0, 1 + 1e-3):
        y = (wrong * x).astype(x.dtype)
        system, rest = LUSystem.of(lu, swaps, trans), b - product @ y
        expected = np.abs(rest).max(axis=0) / size.max(axis=0)
        assert np.abs(system.errors(y, b) - expected).max() <= 1e-2 * expected.max() + 1e-16
        assert np.abs(system.residual(y, b) - rest).max() <= 1e-13 * size.max()
    spoilt = LUSystem.of(lu * np.nan, swaps, trans)
    assert np.isnan(spoilt.errors(x, b)).all() and spoilt.is_finite  # so there is a warning
    assert np.isnan(system.errors(x * np.nan, b)).all()


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("of_a, of_b", ["dd", "dD", "Dd", "DD", "ff", "FF"])
@pytest.mark.parametrize(
    "scale, order, columns", [(1.0, "F", 3), (2.0**30, "C", 1), (2.0**-600, "F", 1)]
)
def test_factors_of_cholesky_are_measured_as_their_product_is(
    lower, of_a, of_b, scale, order, columns
):
    n, rng = 40, np.random.default_rng(2)
    scale = scale if of_a in "dD" or scale > 1e-30 else 2.0**-30
    a, b = (
        (rng.standard_normal(shape) + 1j * rng.standard_normal(shape) * (char in "FD"))
        for char, shape in ((of_a, (n, n)), (of_b, (n, columns)))
    )
    a, b = (
        scale * (v if char in "FD" else v.real).astype(char) for v, char in ((a, of_a), (b, of_b))
    )
    a = (np.linalg.qr(a / scale)[0] + 3 * np.eye(n)) * (1 + np.arange(n)) * scale**0.5
    c = (np.tril(a) if lower else np.triu(a)).astype(of_a)
    first, second = (c, c.conj().T) if lower else (c.conj().T, c)
    first, second = (v.astype(np.result_type(v, np.float64)) for v in (first, second))
    product, size = first @ second, np.abs(first) @ np.abs(second)
    other = np.tri(n, k=-1, dtype=bool)  # the triangle that is not read
    given = np.where(other.T if lower else other, np.nan, c)
    given = np.asarray(given.astype(of_a), order=order)
    x = scipy.linalg.cho_solve((c, lower), b)

    for wrong in (1.0, 1 + 1e-3):
        y = (wrong * x).astype(x.dtype)
        system, rest = CholeskySystem.of(given, lower), b - product @ y
        expected = np.abs(rest).max(axis=0) / (size @ np.abs(y)).max(axis=0)
        assert np.abs(system.errors(y, b) - expected).max() <= 1e-2 * expected.max() + 1e-15
        top = (size @ np.abs(y)).max()
        assert np.abs(system.residual(y, b) - rest).max() <= 1e-13 * top


@pytest.mark.parametrize("n", [60, 300])
@pytest.mark.parametrize("lower", [False, True])
def test_a_wrong_answer_of_scipys_cholesky_factors_is_corrected(n, lower):
    a = np.random.default_rng(n).standard_normal((n, n))
    factors = scipy.linalg.cho_factor(a @ a.T + n * np.eye(n), lower=lower)
    b = np.random.default_rng(1).standard_normal(n)
    x = scipy.linalg.cho_solve(factors, b)
    system = CholeskySystem.of(*factors)

    def solve(r):
        return scipy.linalg.cho_solve(factors, r)

    found = settled(system, x * (1 + 1e-9), b, solve, "cho_solve")
    assert (system.errors(found[:, None], b[:, None]) <= 2.0**-53 * n**0.5).all()
    assert np.abs(found - x).max() <= 1e-13 * np.abs(x).max()
