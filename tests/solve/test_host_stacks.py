"""Stacks on the host: the answer and the status of a slice do not depend on the other slices."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.linalg

import tcsolve
from tcsolve import InputError, LinAlgWarning, Status, solve, solve_ex
from tcsolve._solve.verify.split_residual import split_residual


def systems(m, n, dtype=float, seed=0):
    """Return (a, b) of m random systems."""
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((m, n, n)), rng.standard_normal((m, n, 1))
    if np.dtype(dtype).kind == "c":
        a, b = a + 1j * rng.standard_normal(a.shape), b + 1j * rng.standard_normal(b.shape)
    return a.astype(dtype), b.astype(dtype)


def with_rcond(n, rcond, rng):
    """Return a random matrix with a condition near 1 / rcond, and without a zero pivot on this machine."""
    while True:
        u, v = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
        a = (u * np.append(np.ones(n - 1), rcond)) @ v
        if scipy.linalg.lapack.dgetrf(a)[2] == scipy.linalg.lapack.dgetrf(a.T)[2] == 0:
            return a


@pytest.mark.parametrize("dtype", [np.float32, float, complex])
@pytest.mark.parametrize("m, n", [(3000, 2), (2000, 4), (300, 16), (40, 40), (6, 64), (6, 100)])
def test_the_bits_of_a_slice_do_not_depend_on_the_others(m, n, dtype):
    a, b = systems(m, n, dtype)
    together = solve(a, b)
    beside = a.copy()
    beside[1], beside[2, 0, 0] = 0, np.inf

    found = solve_ex(beside, b, check_finite=False)

    assert found.status in (Status.SINGULAR, Status.NONFINITE_INPUT)
    good = np.delete(np.arange(m), [1, 2])
    alone = solve_ex(a, b)
    assert alone.status is Status.CONVERGED and (alone.x == together).all()
    assert (found.x[good] == together[good]).all()
    assert (found.backward_error[good] == alone.backward_error[good]).all()
    for i in (0, m // 2, m - 1):
        assert (solve(a[i : i + 1], b[i : i + 1]) == together[i]).all()
        assert (solve(a[i:][:3], b[i:][:3])[0] == together[i]).all()


def test_the_bits_of_a_large_slice_do_not_depend_on_an_ill_conditioned_one():
    a, b = systems(7, 100)
    a[3, :, 0] = np.linspace(0, 1, 100)  # its first entry, a corner of the matrix, is zero
    x = solve(a, b)

    for i in (0, 3, 6):
        assert (solve(a[i : i + 1], b[i : i + 1]) == x[i]).all()
    a[1] = with_rcond(100, 1e-19, np.random.default_rng(0))
    with pytest.warns(LinAlgWarning, match="slice 1 of the stack"):
        assert (np.delete(solve(a, b), 1, axis=0) == np.delete(x, 1, axis=0)).all()


@pytest.mark.parametrize("n", [1, 2, 4, 12, 16, 32])
@pytest.mark.parametrize("precision", [float, np.float32])
def test_every_answer_of_a_long_stack_meets_the_bound(n, precision):
    a, b = systems(4000 // n, n, precision)

    x, bound = solve(a, b).astype(np.longdouble), solve_ex(a, b).bound

    rest = np.abs(b - a.astype(np.longdouble) @ x).max(axis=(1, 2))
    scale = np.abs(a).astype(float).sum(axis=2).max(axis=1) * np.abs(x).max(axis=(1, 2))
    assert (rest <= scale * bound * 1.002).all()


@pytest.mark.parametrize("m", [2, 300])
@pytest.mark.parametrize("n", [3, 5, 16, 64, 100])
@pytest.mark.parametrize("dtype", [float, np.float32])
def test_one_ill_conditioned_slice_is_found(m, n, dtype):
    rng = np.random.default_rng(n)
    m = min(m, 12 if n > 16 else 300)
    for at in range(0, m, max(1, m // 8)):
        a, b = systems(m, n, dtype, seed=at)
        a[at] = with_rcond(n, np.finfo(dtype).eps / (40 * n), rng)

        with pytest.warns(LinAlgWarning, match=rf"rcond = .* in slice {at} of the stack"):
            solve(a, b)
        assert solve_ex(a, b).statuses[at] is Status.ILL_CONDITIONED


@pytest.mark.parametrize("m", [1, 3, 3000])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_is_named_before_b_if_both_hold_nan_or_inf(m, bad):
    a, b = systems(m, 4)
    b[0, 1] = bad
    with pytest.raises(InputError, match="b does"):
        solve(a, b)
    a[-1, 2, 3] = bad
    for assume_a in (None, "general"):
        with pytest.raises(InputError, match="a does"):
            solve(a, b, assume_a=assume_a)


@pytest.mark.parametrize("m", [1, 5])
@pytest.mark.parametrize("n", [6, 100])
def test_bands_and_triangles_in_a_stack(m, n):
    a, b = systems(3 * m, n)
    a += 20 * np.eye(n)
    a[:m], a[m : 2 * m] = np.triu(a[:m]), np.tril(np.triu(a[m : 2 * m], -1), 1)

    found = solve_ex(a, b)

    assert found.status is Status.CONVERGED
    assert np.allclose(found.x, scipy.linalg.solve(a, b), rtol=1e-9, atol=1e-12)
    assert (
        solve(a, b)[:, 0] == [solve(a[i : i + 1], b[i : i + 1])[0, 0] for i in range(3 * m)]
    ).all()


@pytest.mark.parametrize("n", [6, 100])
@pytest.mark.parametrize("structure", ["upper triangular", "pos", "sym", "tridiagonal", "banded"])
def test_asserted_structures_of_a_stack(structure, n):
    a, b = systems(4, n)
    a = np.tril(np.triu(a, -1), 1)
    a = a + a.swapaxes(1, 2) + 9 * np.eye(n)
    a = np.triu(a) if structure == "upper triangular" else a
    assert np.allclose(solve(a, b, assume_a=structure), np.linalg.solve(a, b), rtol=1e-12)

    a[2, -1, 0 if n == 6 else 1] = np.nan

    with pytest.raises(InputError, match="a does"):
        solve(a, b, assume_a=structure)


def test_zero_columns_and_extreme_slices_of_a_stack():
    a, b = systems(6, 4)
    b[1] = 0
    a[2], b[3], a[4] = a[2] * 2.0**800, b[3] * 2.0**-900, a[4] * 2.0**-900
    a[5], b[5] = a[5] * 2.0**-1010, b[5] * 2.0**-140

    found = solve_ex(a, b)

    assert found.status is Status.CONVERGED and (solve(a, b) == found.x).all()
    assert (found.x[1] == 0).all() and found.backward_error[1] == 0


def test_one_matrix_with_many_right_hand_sides_and_several_leading_axes():
    a, b = systems(6, 4)

    assert (
        solve(a.reshape(2, 3, 4, 4), b.reshape(2, 3, 4, 1)).reshape(6, 4, 1) == solve(a, b)
    ).all()
    assert (solve(a[0], b) == solve(np.stack([a[0]] * 6), b)).all()
    assert (solve(a[:, None], b[0]) == solve(a, np.stack([b[0]] * 6))[:, None]).all()


def test_the_caller_may_raise_floating_point_errors():
    a, b = systems(3, 3)
    a[0] *= 1e-200

    with np.errstate(all="raise"):
        x = tcsolve.solve(a, b)

    assert np.isfinite(x).all()


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("n", [1, 3, 16, 32])
def test_split_residuals_are_as_exact_as_in_long_double(n, is_complex):
    a, b = systems(20, n, complex if is_complex else float)
    a *= np.exp(np.random.default_rng(1).uniform(-20, 3, (20, n, n)))
    x = np.linalg.solve(a, b)
    norm, size = np.abs(a).sum(axis=2).max(axis=1), np.abs(x).max(axis=1)

    r = split_residual(a, x, b, norm, size, np.empty_like(a))

    for i in range(20):
        allowed = 2.0**-53 / 100 * norm[i] * size[i, 0]
        for row in range(n):
            exact = _exact_residual(a[i, row], x[i, :, 0], b[i, row, 0])
            assert abs(complex(*exact) - r[i, row, 0]) <= allowed


def _exact_residual(a, x, b):
    """Return the real and imaginary parts of b - a x for one row, rounded once."""
    re, im = Fraction(float(b.real)), Fraction(float(b.imag))
    for p, q in zip(a, x, strict=True):
        p, q = ([Fraction(float(v)) for v in (z.real, z.imag)] for z in (p, q))
        re -= p[0] * q[0] - p[1] * q[1]
        im -= p[0] * q[1] + p[1] * q[0]
    return float(re), float(im)


def test_a_pivot_that_is_zero_in_one_of_two_factorizations_spoils_no_other_slice(monkeypatch):
    a, b = systems(200, 4)
    a[5] = 0
    expected = solve_ex(a, b)
    # As if the determinant came from other factors than the solution.
    monkeypatch.setattr(np.linalg, "slogdet", lambda a: (np.ones(len(a)), np.zeros(len(a))))

    found = solve_ex(a, b)

    assert (found.statuses == expected.statuses).all() and found.statuses[5] is Status.SINGULAR
    assert np.array_equal(found.x, expected.x, equal_nan=True)


def test_a_matrix_that_is_singular_only_in_real_arithmetic_raises_nothing():
    """The LU for a complex b is in complex numbers.  It may round differently, and meet no zero pivot."""
    first = [[-6, 6, 36, 12, -4, 4, 29, 19], [44, -11, -14, -19, 38, 52, -58, -24]]
    first += [[-20, 7, -26, 25, -20, -30, 26, -10], [18, -15, -9, 23, 22, -13, 6, -7]]
    first += [[-18, -19, -1, -13, -6, -65, 12, 23], [-18, -2, 4, -18, -14, -26, 3, 15]]
    first += [[12, -2, -20, 3, 9, 11, -16, -17], [9, 0, 15, -27, -27, 25, 8, -12]]
    a = np.array([np.array(first, dtype=float), np.eye(8)])
    b = np.ones(8, np.complex64)

    found = solve_ex(a, b, assume_a="gen")

    assert found.statuses[0] in (Status.SINGULAR, Status.ILL_CONDITIONED)
    assert found.statuses[1] is Status.CONVERGED and (found.x[1] == 1).all()
