"""What goes wrong, by name: each Status has a problem that reaches it, and no failure looks like success."""

import functools
import math
import re
import warnings
from fractions import Fraction

import numpy as np
import pytest
import scipy.linalg
from bounds import MET, host, ratio

import tcsolve
from tcsolve import Plan, Status, matrices, solve, solve_ex
from tcsolve._arithmetic.formats import UPDATES
from tcsolve._backends import select
from tcsolve._backends.cpu.ops import NumpyOps
from tcsolve._solve.cost_model import bytes_needed
from tcsolve._solve.factorization import Factorization
from tcsolve._solve.ladder import require_room

EVERY = ("auto", *UPDATES)


def gauss(n=40, seed=0):
    return np.random.default_rng(seed).standard_normal((n, n))


def spoilt(value, row, column, n=40):
    a = gauss(n)
    a[row, column] = value
    return a


def growth_both_ways(n):
    """Return a matrix with exponential growth whether it or its transpose is factored."""
    w = matrices.generate("wilkinson_growth", n).a
    return np.block([[w, np.zeros((n, n))], [np.zeros((n, n)), w.T]])


def nearly_of_rank_one(n):
    rng = np.random.default_rng(0)
    return np.outer(rng.standard_normal(n), rng.standard_normal(n)) + 1e-18 * gauss(n)


# For each status: a, b and the precision that reach it.
REACHES = {
    Status.CONVERGED: lambda: (gauss(), np.ones(40), "fp16x3"),
    Status.CONVERGED_AFTER_FALLBACK: lambda: (
        matrices.generate("svd_cluster0", 60, cond=1e12).a,
        np.ones(60),
        Plan("bf16", max_steps=3),
    ),
    Status.ILL_CONDITIONED: lambda: (
        matrices.generate("svd_geo", 40, cond=1e17).a,
        np.ones(40),
        "auto",
    ),
    Status.STALLED: lambda: (
        matrices.generate("svd_geo", 60, cond=1e12).a,
        np.ones(60),
        Plan("bf16", block=16, fallback=False),  # one panel of all columns rounds nothing
    ),
    Status.NOT_CONVERGED: lambda: (
        growth_both_ways(120),
        gauss(240)[0],
        Plan("fp64", max_steps=1),
    ),
    Status.SINGULAR: lambda: (matrices.generate("zero_column_middle", 40).a, np.ones(40), "fp16"),
    Status.NOT_POSITIVE_DEFINITE: lambda: (gauss() + gauss().T, np.ones(40), "auto"),
    Status.CONDITION_UNKNOWN: lambda: (
        nearly_of_rank_one(100),
        nearly_of_rank_one(100) @ np.ones(100),
        Plan("fp32", fallback=False),
    ),
    Status.NOT_AS_ASSERTED: lambda: (gauss() + 20 * np.eye(40), np.ones(40), "auto"),
    Status.NONFINITE_INPUT: lambda: (spoilt(np.nan, 3, 5), np.ones(40), "auto"),
    Status.OVERFLOW: lambda: (1e-200 * gauss(), 1e200 * np.ones(40), "auto"),
    Status.UNDERFLOW: lambda: (1e200 * gauss(), 1e-200 * np.ones(40), "auto"),
}


ASSUMED = {
    Status.NOT_POSITIVE_DEFINITE: "positive definite",
    Status.NOT_AS_ASSERTED: "symmetric",
}
RAISES = {
    Status.SINGULAR: tcsolve.SingularError,
    Status.NOT_POSITIVE_DEFINITE: tcsolve.NotPositiveDefiniteError,
}


@pytest.mark.parametrize("status", Status, ids=lambda status: status.name)
def test_each_status_is_reached_by_a_problem(xp, status):
    a, b, precision = REACHES[status]()
    assumed = ASSUMED.get(status)
    options = {"check_finite": False, "precision": precision, "assume_a": assumed}

    solution = solve_ex(xp.asarray(a), xp.asarray(b), **options)

    assert solution.status is status
    met = bool((solution.backward_error <= solution.bound).all())
    assert status.ok <= met
    if status.ok:
        assert ratio(a, solution.x, b) <= MET


@pytest.mark.parametrize("status", Status, ids=lambda status: status.name)
def test_solve_raises_or_warns_exactly_where_the_status_is_not_plain_success(xp, status):
    a, b, precision = REACHES[status]()
    options = {"check_finite": False, "precision": precision, "assume_a": ASSUMED.get(status)}
    expected = {
        Status.CONVERGED: [],
        Status.CONVERGED_AFTER_FALLBACK: [],
        Status.ILL_CONDITIONED: [tcsolve.LinAlgWarning],
        Status.CONDITION_UNKNOWN: [tcsolve.LinAlgWarning],
        Status.NONFINITE_INPUT: [tcsolve.LinAlgWarning],
    }.get(status, [tcsolve.AccuracyWarning])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if status in RAISES:
            with pytest.raises(RAISES[status], match=re.escape(status.value)):
                solve(xp.asarray(a), xp.asarray(b), **options)
            return
        solve(xp.asarray(a), xp.asarray(b), **options)

    assert [w.category for w in caught] == expected
    assert all(status.value in str(w.message) for w in caught)


def test_the_value_of_each_status_is_a_sentence():
    for status in Status:
        assert status.value.endswith(".") and " " in status.value


# ---- beyond the range


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


def as_fp32(solve, *args, **options):
    x, info = solve(*args, **options)
    return x.astype("f").astype("d"), info


@pytest.mark.parametrize("structure", ["symmetric", "banded", "upper triangular"])
def test_steps_of_a_structured_solve_are_counted(structure, monkeypatch):
    """Column by column; here LAPACK's solves are as good as FP32's, and know one answer."""
    a = (
        np.diag(np.arange(1.0, 31))
        + np.eye(30, k=1)
        + (np.eye(30, k=-1) if structure != "upper triangular" else 0)
    )
    b = np.stack([a @ np.sin(np.arange(30)), a @ np.ones(30)], axis=1)
    for name in ("dgetrs", "dgbtrs", "dtrtrs"):
        solve = getattr(scipy.linalg.lapack, name)
        monkeypatch.setattr(scipy.linalg.lapack, name, functools.partial(as_fp32, solve))

    found = solve_ex(a, b, assume_a=structure)

    assert found.status is Status.CONVERGED
    assert found.iterations[0] in (1, 2) and found.iterations[1] == 0
    assert np.allclose(found.x[:, 0], np.sin(np.arange(30)), rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype, tiny", [(float, 2.0**-1060), (np.float32, 2.0**-140)])
def test_a_subnormal_answer_that_is_exact_is_an_answer(xp, dtype, tiny):
    b = xp.asarray(np.full(3, tiny, dtype=dtype))  # filled by CuPy it would be zero
    found = solve_ex(xp.eye(3, dtype=dtype), b)

    assert found.status is Status.CONVERGED and (host(found.x) == tiny).all()


@pytest.mark.parametrize("seeds", [range(60), range(900, 960)])
def test_an_fp32_answer_meets_the_bound_when_it_is_rounded(xp, seeds):
    for seed in seeds:
        rng = np.random.default_rng(seed)
        n = int(rng.integers(2, 6))
        a = (rng.standard_normal((n, n)) + 3 * np.eye(n)).astype(np.float32)
        b = (a.astype(float) @ np.ones(n)).astype(np.float32)

        found = solve_ex(xp.asarray(a), xp.asarray(b), assume_a="general")

        assert found.status is Status.CONVERGED and (found.backward_error <= found.bound).all()


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
    assert vector.status is Status.CONVERGED and np.allclose(vector.x[0], found.x[0, :, 0])


def test_parts_of_a_complex_vector_may_be_nan(xp):
    b = xp.asarray(np.array([complex(np.nan, 1), 1, 1]))
    a = xp.asarray(2 * np.eye(3) + 1)

    found = solve_ex(a, b, check_finite=False, assume_a="general")

    assert found.status is Status.NONFINITE_INPUT and np.isnan(found.backward_error).all()
    assert np.allclose(host(found.x).imag, np.linalg.solve(host(a), [1, 0, 0]))


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
# Whether residuals of small systems are rounded less than FP64.
LONG = np.finfo(np.longdouble).nmant > 52


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


def test_a_dense_matrix_beside_it_hides_no_ill_conditioned_one():
    a = np.array([[1, 1e-3, 0, 0], [1e-3, 1, 0.1, 0], [0, 0.1, 1, 1e18], [0, 0, 0.1, 1]])
    dense = np.random.default_rng(0).standard_normal((4, 4))

    for stack in (a[None], np.stack([a, dense]), np.stack([dense, a])):
        assert solve_ex(stack, np.ones(4)).status is Status.ILL_CONDITIONED


@pytest.mark.parametrize("exponent", [-1022, -1015, 1010, 1016])
@pytest.mark.parametrize("precision", ["auto", "fp16x3", "fp64"])
def test_the_condition_near_the_ends_of_fp64_is_that_near_1(xp, exponent, precision):
    a = np.random.default_rng(0).standard_normal((60, 60)) + 8 * np.eye(60)
    far = xp.asarray(np.ldexp(a, exponent))

    found = solve_ex(far, far @ xp.full(60, 2.0**-8), assume_a="general", precision=precision)

    near = solve_ex(xp.asarray(a), xp.ones(60), assume_a="general", precision=precision)
    assert found.status is Status.CONVERGED
    assert 0.5 * near.rcond <= found.rcond <= 2 * near.rcond
    assert tcsolve.factor(far, precision=precision).rcond() == pytest.approx(found.rcond, rel=1)


def test_what_is_singular_at_the_second_look_is_no_crash():
    p, q, m = 20, 5, 22638
    a = np.zeros((1, 3, 3), F)
    a[0, :2, :2] = np.array([[p, p * m], [q, q * m]], float) * 2.0**-112
    a[0, 2] = [1, 0, 2.0**10]

    assert not solve_ex(a, F([2.0**100, 0, 0]), assume_a="general").status.ok


def test_of_a_stack_with_nan_the_other_answers_are_there():
    a = np.stack([np.triu(np.tril(3 * np.eye(4) + 1, 1), -1)] * 3).astype("F") * np.complex64(1e30)
    a[1, 0, 0] = np.nan

    found = solve_ex(a, np.ones((3, 4, 2), "F"), assume_a="general", check_finite=False)

    assert found.status is Status.NONFINITE_INPUT
    for i in (0, 2):
        x = solve_ex(a[i], np.ones((4, 2), "F"), assume_a="general").x
        np.testing.assert_allclose(found.x[i], x, rtol=1e-5)


@pytest.mark.parametrize(
    "a, b, shape",
    [
        ((1, 1, 1), (3, 1, 2), (3, 2)),
        ((1, 1), (3, 1, 2), (3, 2)),
        ((1, 1, 1), (1, 2), (1, 2)),
        ((2, 1, 1), (1, 2), (2, 2)),
        ((1, 1), (1,), (1,)),
        ((0, 3, 3), (3, 2), (0, 2)),
        ((2, 3, 3), (3, 0), (2, 0)),
        ((2, 3, 3), (3,), (2, 1)),
        ((0, 0), (0,), (1,)),
    ],
)
def test_every_right_hand_side_has_an_error_and_a_count(a, b, shape):
    found = solve_ex(np.ones(a) + 2 * np.eye(a[-1]), np.ones(b))

    assert found.backward_error.shape == found.iterations.shape == shape
    assert (found.backward_error <= found.bound).all()


def test_a_tridiagonal_matrix_is_asserted_and_ill_conditioned_where_scipy_does_not_see_it():
    a = np.array([[4.0, 1, 7], [1, 4, 1e18], [7, 1, 4]])  # sevens are not read

    found = solve_ex(a, np.ones(3), assume_a="tridiagonal")

    assert found.status is Status.NOT_AS_ASSERTED
    a[0, 2] = a[2, 0] = 0
    assert found.rcond < 2.0**-52
    assert solve_ex(a, np.ones(3), assume_a="tridiagonal").status is Status.ILL_CONDITIONED
    assert ratio(a, found.x, np.ones(3)) <= MET


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
def test_no_bit_of_a_matrix_of_great_range_is_lost(a, b, x, structure):
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
    np.testing.assert_allclose(found.x, expected, rtol=1e-11, atol=1e-4 * small / size + 2.0**-1074)


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


@pytest.mark.parametrize("columns", [0, 3])
def test_a_zero_without_right_hand_sides_is_no_failure(xp, columns):
    b = xp.zeros((1, columns))
    found = solve_ex(xp.zeros((1, 1)), b)

    assert found.x.shape == b.shape
    assert found.status is (Status.SINGULAR if columns else Status.CONVERGED)


@pytest.mark.parametrize("dtype", [np.float32, float, complex])
def test_small_systems_of_good_condition_raise_no_alarm(dtype):
    """Where the rounding of a residual is as large as the bound it is computed without."""
    rng = np.random.default_rng(7)
    for n in (3, 2, 3, 5):
        a = rng.uniform(-1, 1, (3000, n, n)) + 3 * n * np.eye(n)
        a, b = (
            (a + a.swapaxes(1, 2)).astype(dtype),
            rng.uniform(-1, 1, (3000, n, 1)).astype(dtype),
        )
        assert solve_ex(a, b).status is Status.CONVERGED


@pytest.mark.skipif(not LONG, reason="a long double is a double here")
@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize(
    "options", [{"assume_a": "general"}, {"assume_a": "symmetric"}, {"precision": "fp16x3"}]
)
def test_small_answers_meet_the_bound_without_rounding(options, dtype):
    rng, fractions = np.random.default_rng(0), np.vectorize(Fraction, otypes=[object])
    for _ in range(400):
        n = int(rng.integers(2, 8))
        a, b = rng.uniform(-1, 1, (n, n)), rng.uniform(-1, 1, n)
        a = a + 1j * rng.uniform(-1, 1, (n, n)) if dtype is complex else a
        a = a + a.T

        found = solve_ex(a, b, **options)

        p, q, x, y, c, d = (fractions(v) for z in (a, found.x, b) for v in (z.real, z.imag))
        rest = np.hypot((c - p @ x + q @ y).astype(float), (d - p @ y - q @ x).astype(float)).max()
        true = rest / abs(a).sum(axis=1).max() / abs(found.x).max()
        assert found.status.ok and true <= 1.001 * found.bound


def test_an_error_that_is_rounding_alone_raises_no_alarm(xp):
    a = xp.asarray(
        [[3.5062906388508495, -0.6516972490267312], [0.3833075743713483, 4.470378589252156]]
    )
    b = xp.asarray([-0.33555553439140406, -0.6664717143692054])

    assert solve_ex(a, b, assume_a="general").status is Status.CONVERGED


@pytest.mark.parametrize("dtype", [np.float32, complex])
def test_what_leaves_the_range_warns_of_nothing_else(xp, dtype):
    size = 1e-30 if dtype is np.float32 else 1e-200
    a = (size * gauss()).astype(dtype) * (1 if dtype is np.float32 else 1 + 1j)

    found = solve_ex(xp.asarray(a), xp.full(40, 1 / size, dtype=dtype))

    assert found.status is Status.OVERFLOW


def test_of_a_stack_one_bad_answer_is_no_success(xp):
    singular = matrices.generate("svd_geo", 240, cond=1e18).a
    stack = xp.asarray(np.stack([growth_both_ways(120), singular]))

    found = solve_ex(stack, xp.asarray(gauss(240)[0]), precision=Plan("fp64", max_steps=1))

    assert found.status is Status.NOT_CONVERGED
    assert found.statuses.tolist() == [Status.NOT_CONVERGED, Status.ILL_CONDITIONED]
    assert found.backward_error.max() > found.bound


# ---- NaN and Inf


@pytest.mark.parametrize("precision", EVERY)
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", [(0, 0), (0, 39), (39, 0), (20, 21), (39, 39)])
def test_an_unchecked_nan_in_the_matrix_is_never_an_answer(xp, where, value, precision):
    a = spoilt(value, *where)

    solution = solve_ex(
        xp.asarray(a), xp.asarray(np.ones((40, 2))), check_finite=False, precision=precision
    )

    assert solution.status is Status.NONFINITE_INPUT
    assert np.isnan(host(solution.x)).all()
    assert not (solution.backward_error <= solution.bound).any()


@pytest.mark.parametrize("precision", EVERY)
@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("row", [0, 17, 39])
def test_an_unchecked_nan_in_b_spoils_its_own_column_alone(xp, row, value, precision):
    a, b = gauss(), gauss(seed=1)[:, :3]
    b[row, 1] = value

    solution = solve_ex(xp.asarray(a), xp.asarray(b), check_finite=False, precision=precision)

    x = host(solution.x)
    assert solution.status is Status.NONFINITE_INPUT
    assert np.isnan(x[:, 1]).all() and np.isnan(solution.backward_error[1])
    assert ratio(a, x[:, [0, 2]], b[:, [0, 2]]) <= MET


@pytest.mark.parametrize("precision", EVERY)
def test_all_of_b_nan_is_not_convergence(xp, precision):
    solution = solve_ex(
        xp.asarray(gauss()), xp.full(40, xp.nan), check_finite=False, precision=precision
    )

    assert solution.status is Status.NONFINITE_INPUT


def test_a_correction_that_returns_nan_is_not_convergence(xp):
    a, b = xp.asarray(gauss()), xp.ones(40)

    solution = tcsolve.refine(a, b, lambda r: r * xp.nan)

    assert solution.status is Status.STALLED
    assert not (solution.backward_error <= solution.bound).any()


def test_a_correction_that_turns_nan_late_keeps_the_best_x(xp):
    host_a = gauss() + 20 * np.eye(40)
    a, calls = xp.asarray(host_a), []

    def correct(r):
        calls.append(1)
        return r / xp.diag(a)[:, None] * (xp.nan if len(calls) > 4 else 1.0)

    solution = tcsolve.refine(a, xp.ones(40), correct)

    assert solution.status is Status.STALLED
    assert np.isfinite(host(solution.x)).all()
    assert ratio(host_a, solution.x, np.ones(40)) > MET


# ---- singular matrices


@pytest.mark.parametrize("precision", EVERY)
@pytest.mark.parametrize("which", ["first", "middle", "last"])
@pytest.mark.parametrize("n", [5, 40, 300])
def test_a_zero_column_is_singular_wherever_it_is(xp, n, which, precision):
    a = matrices.generate(f"zero_column_{which}", n).a

    solution = solve_ex(xp.asarray(a), xp.ones(n), precision=precision)

    assert solution.status is Status.SINGULAR
    assert solution.rcond == 0
    assert np.isnan(host(solution.x)).all()


@pytest.mark.parametrize("precision", EVERY)
@pytest.mark.parametrize("row", [0, 20, 39])
def test_a_zero_row_is_singular_wherever_it_is(xp, row, precision):
    a = gauss()
    a[row] = 0

    assert solve_ex(xp.asarray(a), xp.ones(40), precision=precision).status is Status.SINGULAR


@pytest.mark.parametrize("precision", EVERY)
@pytest.mark.parametrize("seed", range(3))
def test_dependent_rows_are_never_plain_success(xp, seed, precision):
    a = matrices.generate("dependent_rows", 40, seed=seed).a

    status = solve_ex(xp.asarray(a), xp.ones(40), precision=precision).status

    assert status not in (Status.CONVERGED, Status.CONVERGED_AFTER_FALLBACK)


def test_a_matrix_singular_in_fp16_alone_is_solved_by_a_higher_rung(xp):
    # Equal once they are rounded to 11 bits, then exactly cancelled by elimination.
    a = np.eye(300)
    a[:150, 150:] = a[150:, :150] = 0.5
    a += 2.0**-18 * gauss(300)

    solution = solve_ex(xp.asarray(a), xp.ones(300), precision="fp16")

    assert solution.status.ok
    assert ratio(a, solution.x, np.ones(300)) <= MET


# ---- growth and stagnation


@pytest.mark.parametrize("precision", ["auto", "fp16x3", "fp32", "fp64"])
@pytest.mark.parametrize("n", [60, 80, 100])
def test_wilkinsons_growth_is_refined_away(xp, n, precision):
    a, b = growth_both_ways(n), np.random.default_rng(0).standard_normal(2 * n)

    solution = solve_ex(xp.asarray(a), xp.asarray(b), precision=precision)

    assert solution.status.ok
    assert ratio(a, solution.x, b) <= MET


@pytest.mark.parametrize(
    "start, second", [("bf16", "fp16x3"), ("fp16", "fp16x3"), ("tf32", "fp16x3")]
)
def test_a_rung_that_stalls_is_followed_by_the_next(xp, start, second):
    problem = matrices.generate("svd_geo", 200, cond=1e10, seed=2)

    solution = solve_ex(xp.asarray(problem.a), xp.asarray(problem.b), precision=start)

    assert solution.status is Status.CONVERGED_AFTER_FALLBACK
    assert solution.rungs[:2] == (start, second)
    assert solution.precision == solution.rungs[-1]
    assert ratio(problem.a, solution.x, problem.b) <= MET
    assert {point.rung for point in solution.history} == set(solution.rungs)


def test_the_ladder_ends_with_fp64(xp):
    problem = matrices.generate("svd_geo", 200, cond=1e14, seed=2)

    solution = solve_ex(xp.asarray(problem.a), xp.asarray(problem.b), precision="bf16")

    assert solution.rungs == ("bf16", "fp16x3", "fp64")
    assert ratio(problem.a, solution.x, problem.b) <= MET


@pytest.mark.parametrize("update", ["bf16", "fp16", "tf32"])
def test_without_fallback_a_stall_is_reported_with_the_best_x(xp, update):
    problem = matrices.generate("svd_geo", 100, cond=1e10, seed=2)

    solution = solve_ex(
        xp.asarray(problem.a),
        xp.asarray(problem.b),
        precision=Plan(update, block=16, fallback=False),
    )

    assert solution.status is Status.STALLED and not solution.status.ok
    assert solution.rungs == (update,)
    assert np.isfinite(host(solution.x)).all()
    assert ratio(problem.a, solution.x, problem.b) > 1


@pytest.mark.parametrize("update", ["fp16", "fp16x3", "fp32"])
@pytest.mark.parametrize("decades", [30, 40])
def test_scaling_saves_what_would_underflow_in_fp32(xp, decades, update):
    problem = matrices.generate("mixed_scales", 60, decades=decades)

    without, scaled = (
        solve_ex(
            xp.asarray(problem.a),
            xp.asarray(problem.b),
            precision=Plan(update, fallback=False, scale=scale),
        )
        for scale in (False, True)
    )

    assert not without.status.ok
    assert scaled.status.ok
    assert ratio(problem.a, scaled.x, problem.b) <= MET


# ---- devices and memory


def test_a_missing_device_is_an_error_that_says_why(monkeypatch):
    monkeypatch.setattr(select, "why_no_cuda", lambda: "the machine has no such device")
    with pytest.raises(tcsolve.DeviceError, match="no such device; or use device='cpu'"):
        solve(gauss(), np.ones(40), device="cuda")
    with pytest.raises(tcsolve.DeviceError, match="no such device"):
        tcsolve.factor(gauss(), device="cuda")


class SmallDevice(NumpyOps):
    """A device with 1000 free bytes, on which nothing large may be allocated."""

    device = "cuda"

    def free_bytes(self, enough=math.inf):
        return 1000

    def getrf(self, a, dtype, overwrite_a=False):
        pytest.fail("getrf was called, although the factors do not fit")

    def cast_scaled(self, a, row_scale, col_scale, dtype, out=None):
        pytest.fail("a copy was made, although it does not fit")


@pytest.mark.parametrize("spare, fits", [(0, True), (10**9, True), (-1, False)])
@pytest.mark.parametrize("held", [0, 5000])
def test_a_solve_fits_where_enough_bytes_are_told_or_more(spare, fits, held):
    from tcsolve._solve.cost_model import bytes_needed
    from tcsolve._solve.ladder import require_room

    asked = []

    class Device(SmallDevice):
        def free_bytes(self, enough=math.inf):
            asked.append(enough)
            return needed - held + spare

        def default_block(self, *args):
            return 128

    needed = bytes_needed("fp16x3", 300, 1, np.dtype("d"), block=128, on_device=True)
    if fits:
        assert require_room(Device(), "fp16x3", 300, 1, np.dtype("d"), held_bytes=held) == needed
    else:
        with pytest.raises(tcsolve.DeviceMemoryError):
            require_room(Device(), "fp16x3", 300, 1, np.dtype("d"), held_bytes=held)
    assert asked[0] == needed - held


@pytest.mark.parametrize("update", UPDATES)
def test_a_solve_that_would_not_fit_is_refused_before_it_allocates(update):
    with pytest.raises(tcsolve.DeviceMemoryError) as caught:
        Factorization(SmallDevice(), gauss(), update)

    text = str(caught.value)
    needed = int(re.search(r"needs ([\d,]+) more bytes", text)[1].replace(",", ""))
    assert needed >= 4 * 40 * 40
    assert "1,000 are free" in text and "device='cpu'" in text
    assert ("precision='fp16x3'" in text) == (update == "fp64")
    assert isinstance(caught.value, MemoryError)


def test_a_copy_that_is_there_already_needs_no_more_room():
    device = SmallDevice()
    needed = bytes_needed("fp16x3", 40, 1, np.dtype("d"), block=16, on_device=True)
    with pytest.raises(tcsolve.DeviceMemoryError):
        require_room(device, "fp16x3", 40, 1, np.dtype("d"), 16, held_bytes=needed - 1001)
    assert (
        require_room(device, "fp16x3", 40, 1, np.dtype("d"), 16, held_bytes=needed - 1000) == needed
    )


def test_the_bytes_that_were_reserved_are_reported(xp):
    solution = solve_ex(xp.asarray(gauss()), xp.ones(40), precision="fp64")

    assert solution.bytes_planned >= 8 * 40 * 40


def test_an_allocation_that_fails_leaves_the_inputs_and_the_library_intact(monkeypatch):
    a, b = gauss(), np.ones(40)
    kept = a.copy(), b.copy()

    def getrf(*_):
        raise MemoryError("no more")

    with monkeypatch.context() as patched:
        patched.setattr(NumpyOps, "getrf", getrf)
        with pytest.raises(MemoryError):
            solve(a, b, overwrite_a=True, overwrite_b=True, precision=Plan("fp32"))

    assert np.array_equal(a, kept[0]) and np.array_equal(b, kept[1])
    assert ratio(a, solve(a, b, precision=Plan("fp32")), b) <= MET


@pytest.mark.parametrize(
    "options, message",
    [
        ({"update": "fp8"}, "update is 'fp8', needs one of fp16, bf16"),
        ({"block": 0}, "block is 0, needs a positive integer"),
        ({"block": 1.5}, "block is 1.5"),
        ({"block": 64.0}, "block is 64.0"),
        ({"block": float("inf")}, "block is inf"),
        ({"basis": float("nan")}, "basis is nan"),
        ({"max_steps": -1}, "max_steps is -1"),
        ({"basis": 0}, "basis is 0"),
        ({"contraction": 0}, "needs 0 < contraction < 1"),
        ({"contraction": 1.0}, "needs 0 < contraction < 1"),
        ({"contraction": float("nan")}, "contraction is nan"),
        ({"contraction": "x"}, "contraction is 'x', needs 0 < contraction < 1"),
        ({"basis": True}, "basis is True, needs a positive integer"),
        ({"basis": None}, "basis is None, needs a positive integer"),
        ({"fallback": 3}, "fallback is 3, needs True or False"),
        ({"scale": "no"}, "scale is 'no', needs True or False"),
        ({"update": ["fp16"]}, "update is \\['fp16'\\]"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_when_it_is_made(options, message):
    with pytest.raises(tcsolve.InputError, match=message):
        Plan(**options)
