"""Systems and answers at the ends of the range, and beyond it."""

import numpy as np
import pytest
from bounds import LONG, host
from systems import gauss

import tcsolve
from tcsolve import Status, solve_ex


@pytest.mark.parametrize(
    "n, dtype, a_size, b_size",
    [
        (3, np.float32, 1e20, 1e-20),
        (40, np.float32, 1e30, 1e-30),
        (40, np.complex64, 1e30, 1e-30),
        (40, complex, 1e200, 1e-200),
        (1, float, 1e300, 1e-300),
        (1, np.float32, 1e20, 1e-22),
    ],
)
def test_an_answer_that_lost_its_digits_to_underflow_says_so(xp, n, dtype, a_size, b_size):
    a = (a_size * gauss(n)).astype(dtype)
    b = np.full((n, 2), b_size).astype(dtype)
    b[:, 1] = 0

    found = solve_ex(xp.asarray(a), xp.asarray(b))

    assert found.status is Status.UNDERFLOW and not found.status.ok
    assert found.backward_error[0] > found.bound and found.backward_error[1] == 0


@pytest.mark.parametrize("dtype, tiny", [(float, 2.0**-1060), (np.float32, 2.0**-140)])
def test_a_subnormal_answer_that_is_exact_is_an_answer(xp, dtype, tiny):
    b = xp.asarray(np.full(3, tiny, dtype=dtype))  # filled by CuPy it would be zero
    found = solve_ex(xp.eye(3, dtype=dtype), b)

    assert found.status is Status.CONVERGED and (host(found.x) == tiny).all()


@pytest.mark.parametrize("precision", ["fp16x3", "fp32", "fp64"])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("n, columns", [(1, 1), (3, 1), (3, 2)])
def test_subnormal_numbers_are_numbers(xp, precision, dtype, n, columns):
    tiny = np.float32(2.0**-140)
    a = (tiny * (1j if dtype is np.complex64 else 1) * np.eye(n)).astype(dtype)

    b = a @ np.ones((n, columns), dtype)
    found = solve_ex(xp.asarray(a), xp.asarray(b), assume_a="general", precision=precision)

    assert found.status is Status.CONVERGED and (host(found.x) == 1).all()


@pytest.mark.parametrize("exponent", [-1000, 1021])
@pytest.mark.parametrize("structure", [None, "symmetric"])
@pytest.mark.parametrize("dtype", [float, complex])
def test_stacks_near_the_ends_of_fp64_are_not_taken_for_solved(structure, dtype, exponent):
    a = np.random.default_rng(0).uniform(-1, 1, (2, 20, 20)).astype(dtype)
    a[1] *= 1j if dtype is complex else 1
    a = a + a.swapaxes(1, 2)
    b = np.random.default_rng(1).standard_normal((2, 20, 3))
    huge = np.ldexp(a.real, exponent - 1) + (
        1j * np.ldexp(a.imag, exponent - 1) if dtype is complex else 0
    )

    found = solve_ex(huge, np.ldexp(b, exponent // 2), assume_a=structure)

    near = np.linalg.solve(a, b)
    x = np.ldexp(found.x.real, exponent - 1 - exponent // 2) + (
        1j * np.ldexp(found.x.imag, exponent - 1 - exponent // 2) if dtype is complex else 0
    )
    assert found.status is Status.CONVERGED and np.allclose(x, near, rtol=1e-10, atol=0)
    vector = solve_ex(huge, np.ldexp(b[0, :, 0], exponent // 2) + 0j, assume_a=structure)
    assert vector.status is Status.CONVERGED and np.allclose(
        vector.x[0], found.x[0, :, 0], rtol=1e-10, atol=0
    )


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(
    "structure", [None, "diagonal", "symmetric", "upper triangular", "banded", "positive definite"]
)
@pytest.mark.parametrize("exponent", [-140, -120, 120])
def test_structured_systems_may_be_near_the_ends_of_fp32(structure, dtype, exponent):
    a = np.diag([4.0, 3, 5, 2]) + (0 if structure == "diagonal" else np.eye(4, k=1))
    if structure in ("symmetric", "banded", "positive definite"):
        a = a + np.eye(4, k=-1)
    a = (a * 2.0**exponent).astype(dtype)  # exactly

    for stacked in (a, np.stack([a, a])):
        for b in (a @ np.ones((4, 2), dtype), a @ np.ones((4, 2), dtype) * np.complex64(1j)):
            found = solve_ex(stacked, b, assume_a=structure)
            assert found.status is Status.CONVERGED and found.x.dtype == b.dtype
            assert np.allclose(abs(found.x), 1, rtol=1e-6)
            assert (found.backward_error <= found.bound).all()


F = np.float32


@pytest.mark.parametrize(
    "a",
    [
        F([[1e20, 1e20], [0, 1e10]]),
        F([[1e19, 2e19], [3e19, 6.000001e19]]),
        F([[1e38, 0], [1e-30, 1e-7]]),
        np.diag(F([1e10, 1e-30])),
        np.diag([1e20, 1e-300]),
        np.diag([1e300, 1e-20, 1.0]),
        np.eye(5) * 4
        + np.eye(5, k=1)
        + np.eye(5, k=-1)
        + 1e18 * np.eye(5, k=1) * (np.arange(5) == 4),
    ],
)
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("dtype", [None, np.complex64])
def test_structured_matrices_of_great_range_are_not_silently_ill_conditioned(a, stacked, dtype):
    a = a.astype(dtype) if dtype and a.dtype == F else a

    found = solve_ex(a[None] if stacked else a, np.ones(len(a), a.dtype))

    assert found.status is Status.ILL_CONDITIONED and found.rcond < np.finfo(a.dtype).eps


@pytest.mark.parametrize("exponent", [-1022, -1015, 1010, 1016])
@pytest.mark.parametrize("precision", ["auto", "fp16x3", "fp64"])
def test_the_condition_near_the_ends_of_fp64_is_that_near_1(xp, exponent, precision):
    a = np.random.default_rng(0).standard_normal((60, 60)) + 8 * np.eye(60)
    far = xp.asarray(np.ldexp(a, exponent))

    found = solve_ex(far, far @ xp.full(60, 2.0**-8), assume_a="general", precision=precision)

    near = solve_ex(xp.asarray(a), xp.ones(60), assume_a="general", precision=precision)
    assert found.status is Status.CONVERGED
    assert 0.5 * near.rcond <= found.rcond <= 2 * near.rcond
    of_factors = tcsolve.factor(far, precision=precision).rcond()
    assert 0.5 * found.rcond <= of_factors <= 2 * found.rcond


@pytest.mark.parametrize(
    "a, b, x",
    [
        (np.diag([1e200, 1e-200]), [1.0, 1], [1e-200, 1e200]),
        (np.diag([1e152, 1e-165]), [3e152, 7e-165], [3.0, 7]),
        (np.diag([1e300, 1e-20, 1]), [1.0, 1, 1], [1e-300, 1e20, 1]),
        (np.diag([1e200, 1e-107]), [1, 1e10], [1e-200, 1e117]),
        (np.diag([1e160, 1, 1e-140]), [1, 1, 1e10], [1e-160, 1, 1e150]),
    ],
)
@pytest.mark.parametrize("structure", [None, "diagonal", "tridiagonal", "symmetric"])
def test_no_entry_of_a_matrix_of_great_range_is_lost(a, b, x, structure):
    found = solve_ex(a, np.array(b), assume_a=structure)

    assert found.status is Status.ILL_CONDITIONED
    np.testing.assert_allclose(found.x, x, rtol=1e-14)


@pytest.mark.parametrize(
    "a, x", [([[1, 1e200], [0, 1]], [-1e200, 1]), (F([[1, 1e25], [0, 1]]), [-1e25, 1])]
)
@pytest.mark.parametrize("structure", [None, "upper triangular"])
@pytest.mark.parametrize("stacked", [False, True])
def test_answers_at_the_end_of_the_range_are_found(a, x, structure, stacked):
    a = np.array([a, np.eye(2)], np.asarray(a).dtype) if stacked else np.asarray(a)

    found = solve_ex(a, np.ones(2, a.dtype), assume_a=structure)

    assert found.status is Status.ILL_CONDITIONED
    np.testing.assert_allclose(found.x[0] if stacked else found.x, x, rtol=1e-6)
    small = np.array([[1e-250, 1e-251], [0, 1e-250]])
    found = solve_ex(np.stack([small, small]) if stacked else small, np.array([0, 1e-200]))
    np.testing.assert_allclose(found.x.reshape(-1, 2)[0], [-1e49, 1e50], rtol=1e-12)


@pytest.mark.parametrize("entry", [1e17, 1e160, 1e200, 1e300])
@pytest.mark.parametrize("n, structure", [(2, "tridiagonal"), (3, "tridiagonal"), (6, None)])
def test_a_huge_last_entry_of_a_tridiagonal_matrix_is_not_singular(n, structure, entry):
    a = np.eye(n)
    a[-2, -1] = entry

    found = solve_ex(a, np.ones(n), assume_a=structure)

    assert found.status is Status.ILL_CONDITIONED and 0 <= found.rcond < 1e-16
    np.testing.assert_allclose(found.x, [*np.ones(n - 2), -entry, 1], rtol=1e-12)


@pytest.mark.parametrize("dtype, top", [(F, 3.3e38), (float, 1.7e308)])
def test_an_error_above_the_bound_is_told_near_the_largest_number(dtype, top):
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(2, 5))
        a = rng.uniform(-1, 1, (n, n)) * top
        a, b = ((a / 2 + a.T / 2).astype(dtype), rng.standard_normal(n).astype(dtype))

        found = solve_ex(a, b, assume_a="symmetric")

        scaled = a.astype(np.longdouble) / top
        y = found.x.astype(np.longdouble) * top
        true = abs(b - scaled @ y).max() / abs(scaled).sum(axis=1).max() / abs(y).max()
        assert true <= (1.01 if dtype is F or LONG else 3) * found.bound or not found.status.ok


@pytest.mark.parametrize("structure", [None, "symmetric", "upper triangular", "general"])
@pytest.mark.parametrize("size, small", [(1e-20, 1e-320), (1.0, 1e-318), (1e100, 1e-200)])
def test_tiny_right_hand_sides_are_solved_as_others(structure, size, small):
    a = np.array([[3.0, 1, 2], [1, 5, 1], [2, 1, 7]]) * size
    a = np.triu(a) if structure == "upper triangular" else a
    b = np.array([1.0, 2, 3]) * small
    exact = np.linalg.solve(a / size, b / small)  # b may have been rounded
    expected = exact * (small / size)

    found = solve_ex(a, b, assume_a=structure)

    if small / size < np.finfo(float).tiny * 1e3:
        rounded = 2.0**-1074 / abs(expected).max()
        assert found.status is (Status.UNDERFLOW if rounded > found.bound else Status.CONVERGED)
    else:
        assert found.status is Status.CONVERGED
    np.testing.assert_allclose(found.x, expected, rtol=1e-14, atol=2.0**-1074)


@pytest.mark.parametrize("size", [1, 1 + 2j])
@pytest.mark.parametrize("scales", [(1e-290, 1e56), (1e200, 1e-250), (1e-200, 1e200)])
def test_columns_of_very_different_sizes_are_not_singular(xp, scales, size):
    a = np.array([[1, 2], [3, -1]]) * scales * size
    b = np.array([7e-100, 0]) * size

    found = solve_ex(xp.asarray(a), xp.asarray(b))

    assert found.status is Status.ILL_CONDITIONED
    assert np.isfinite(host(found.x)).all() and found.backward_error <= found.bound


def test_an_answer_is_measured_again_where_products_of_the_loop_overflow():
    a = np.array([[0, 1e54, -1e71], [1e54, 1e-291, 0], [-1e71, 0, -1e-236]])

    found = solve_ex(a, np.ones(3))

    assert found.status is Status.ILL_CONDITIONED and found.backward_error <= found.bound


def test_a_quotient_that_meets_the_bound_is_reported_so():
    found = solve_ex([[0.0789355862776766 - 0.6340074848501693j]], [1.1782058736214845e146 + 0j])
    assert found.status is Status.CONVERGED and found.backward_error <= found.bound


@pytest.mark.parametrize("n", [120, 150])
def test_solve_and_solve_ex_agree_where_n_times_the_norm_overflows(n):
    rng = np.random.default_rng(n)
    a = gauss(n) * 10.0 ** rng.uniform(-3, 0, (n, 1)) * 10.0 ** rng.uniform(-3, 0, n)
    b = rng.random((n, 3))
    a *= 1e307 / np.abs(a).sum(axis=1).max()

    found = solve_ex(a, b)

    assert found.status is Status.CONVERGED
    assert tcsolve.solve(a, b).tobytes() == found.x.tobytes()


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("dtype, of_b", [(np.float32, 1), (np.complex64, 1), (np.float32, 1j)])
def test_a_singular_fp32_matrix_has_an_answer_if_its_fp32_factors_find_one(stacked, dtype, of_b):
    """With the FP64 factors, whose last pivot is tiny, x is beyond the range of FP32; with FP32 it is not."""
    rng = np.random.default_rng(3)
    a = rng.integers(-9, 10, (20, 20)) * (1 + 2j if dtype is np.complex64 else 1)
    a[:, -1] = a[:, :-1].sum(axis=1)
    b = 1e26 * of_b * rng.standard_normal((20, 2))
    a, b = a.astype(dtype), b.astype(np.result_type(dtype, np.complex64 if of_b == 1j else dtype))

    found = solve_ex(a[None] if stacked else a, b)

    assert found.status is Status.ILL_CONDITIONED
    assert np.isfinite(found.x).all() and found.backward_error.max() <= found.bound


def test_an_answer_of_a_structured_system_that_underflows_says_so():
    a, b = np.array([[2e266, 1e266], [1e266, 3e266]]), np.array([1e-200, 3e-200])
    for stacked in (a, a[None]):
        assert solve_ex(stacked, b).status is Status.UNDERFLOW
    found = solve_ex([[3e-10]], [5e-320])
    assert found.status is Status.UNDERFLOW and found.backward_error[0] > found.bound


def test_huge_right_hand_sides_of_structured_systems_are_no_failures():
    a = np.array([[2.0, 1], [1, 3]]) * 1e3
    for b in (np.array([1e306, 1.7e308]), np.array([1e306, 1.7e308 + 1e308j])):
        found = solve_ex(a, b)
        assert found.status is Status.CONVERGED
        np.testing.assert_allclose(found.x, np.linalg.solve(a, b / 2) * 2, rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, complex])
def test_what_leaves_the_range_warns_of_nothing_else(xp, dtype):
    size = 1e-30 if dtype is np.float32 else 1e-200
    a = (size * gauss()).astype(dtype) * (1 if dtype is np.float32 else 1 + 1j)

    found = solve_ex(xp.asarray(a), xp.full(40, 1 / size, dtype=dtype))

    assert found.status is Status.OVERFLOW
