"""Small and structured systems: their errors are reported, and rounding alone causes no bad status."""

import functools
import itertools
from fractions import Fraction

import numpy as np
import pytest
import scipy.linalg
from bounds import LONG, MET, backward_error, ratio

from tcsolve import Status, solve, solve_ex


def as_fp32(solve, *args, **options):
    x, info = solve(*args, **options)
    return x.astype("f").astype("d"), info


@pytest.mark.parametrize("structure", ["symmetric", "banded", "upper triangular"])
def test_steps_of_a_structured_solve_are_counted(structure, monkeypatch):
    """They are counted for each column.  LAPACK's solves are replaced by solves of FP32 accuracy."""
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


@pytest.mark.parametrize("seeds", [range(60), range(900, 960)])
def test_an_fp32_answer_meets_the_bound_when_it_is_rounded(xp, seeds):
    for seed in seeds:
        rng = np.random.default_rng(seed)
        n = int(rng.integers(2, 6))
        a = (rng.standard_normal((n, n)) + 3 * np.eye(n)).astype(np.float32)
        b = (a.astype(float) @ np.ones(n)).astype(np.float32)

        found = solve_ex(xp.asarray(a), xp.asarray(b), assume_a="general")

        assert found.status is Status.CONVERGED and (found.backward_error <= found.bound).all()


F = np.float32


def test_a_dense_matrix_beside_an_ill_conditioned_one_does_not_hide_it():
    a = np.array([[1, 1e-3, 0, 0], [1e-3, 1, 0.1, 0], [0, 0.1, 1, 1e18], [0, 0, 0.1, 1]])
    dense = np.random.default_rng(0).standard_normal((4, 4))

    for stack in (a[None], np.stack([a, dense]), np.stack([dense, a])):
        assert solve_ex(stack, np.ones(4)).status is Status.ILL_CONDITIONED


def test_a_matrix_that_only_later_factors_show_to_be_singular_has_a_status():
    p, q, m = 20, 5, 22638
    a = np.zeros((1, 3, 3), F)
    a[0, :2, :2] = np.array([[p, p * m], [q, q * m]], float) * 2.0**-112
    a[0, 2] = [1, 0, 2.0**10]

    assert not solve_ex(a, F([2.0**100, 0, 0]), assume_a="general").status.ok


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


def test_an_ill_conditioned_tridiagonal_matrix_is_told_with_and_without_a_contradiction():
    a = np.array([[4.0, 1, 7], [1, 4, 1e18], [7, 1, 4]])  # the entries 7 are not read

    found = solve_ex(a, np.ones(3), assume_a="tridiagonal")

    assert found.status is Status.NOT_AS_ASSERTED
    a[0, 2] = a[2, 0] = 0
    assert found.rcond < 2.0**-52
    assert solve_ex(a, np.ones(3), assume_a="tridiagonal").status is Status.ILL_CONDITIONED
    assert ratio(a, found.x, np.ones(3)) <= MET


@pytest.mark.parametrize("columns", [0, 3])
def test_a_zero_without_right_hand_sides_is_no_failure(xp, columns):
    b = xp.zeros((1, columns))
    found = solve_ex(xp.zeros((1, 1)), b)

    assert found.x.shape == b.shape
    assert found.status is (Status.SINGULAR if columns else Status.CONVERGED)


@pytest.mark.parametrize("dtype", [np.float32, float, complex])
def test_small_systems_of_good_condition_raise_no_alarm(dtype):
    """Their residuals are as accurate as in long double: FP64 rounding would be as large as the bound."""
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


@pytest.mark.skipif(not LONG, reason="a long double is a double here")
@pytest.mark.parametrize("n", [5, 31, 32])
@pytest.mark.parametrize(
    "options", [{"assume_a": "general"}, {"assume_a": "symmetric"}, {"precision": "fp16x3"}]
)
def test_up_to_32_unknowns_the_error_is_rounded_less_than_fp64(options, n):
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((n, n)) + 5 * np.eye(n), rng.standard_normal(n)
    a = a + a.T

    found = solve_ex(a, b, **options)

    assert found.backward_error[0] == pytest.approx(backward_error(a, found.x, b), rel=0.01)


def test_an_error_that_is_rounding_alone_raises_no_alarm(xp):
    a = xp.asarray(
        [[3.5062906388508495, -0.6516972490267312], [0.3833075743713483, 4.470378589252156]]
    )
    b = xp.asarray([-0.33555553439140406, -0.6664717143692054])

    assert solve_ex(a, b, assume_a="general").status is Status.CONVERGED


@pytest.mark.parametrize("dtype", [np.float32, float, complex])
def test_every_low_rung_of_one_panel_gives_the_same_x(dtype):
    rng = np.random.default_rng(3)
    for n, k in ((7, 1), (20, 100), (120, 3)):
        a, b = rng.standard_normal((n, n)).astype(dtype), rng.standard_normal((n, k)).astype(dtype)
        found = {name: solve_ex(a, b, precision=name) for name in ("fp16", "bf16", "fp16x3")}

        for name, one in found.items():
            assert one.status is Status.CONVERGED and one.rungs == (name,)
            assert np.array_equal(one.x, found["fp16"].x)
            assert one.rcond == pytest.approx(1 / np.linalg.cond(a, 1), rel=0.5)
            steps = [point.step.max() for point in one.history]
            assert steps == list(range(one.iterations.max() + 1)), (
                "every residual is in the history"
            )
            last = max(one.history[-1].error)
            assert last <= one.bound and last <= one.history[0].error.max()
            assert max(ratio(a, one.x[:, i], b[:, i]) for i in range(k)) <= MET


def test_fp64_factors_follow_where_one_panel_in_fp32_is_not_enough():
    u, _, v = np.linalg.svd(np.random.default_rng(0).standard_normal((60, 60)))
    a = u * np.logspace(0, -11, 60) @ v

    found = solve_ex(a, a @ np.ones((60, 5)), precision="fp16")

    assert found.status is Status.CONVERGED_AFTER_FALLBACK and found.rungs[-1] == "fp64"


@pytest.mark.skipif(not LONG, reason="long double is FP64 here")
def test_errors_of_many_columns_are_rounded_less_than_fp64():
    rng = np.random.default_rng(9)
    for n in (5, 20, 32):
        a, b = rng.standard_normal((n, n)), rng.standard_normal((n, 500))
        found = solve_ex(a, b, assume_a="gen")
        long = np.longdouble
        true = abs(b - a.astype(long) @ found.x.astype(long)).max(axis=0)
        true = true / abs(a).sum(axis=1).max() / abs(found.x).max(axis=0)
        assert np.allclose(found.backward_error, true.astype(float), rtol=0.01, atol=0)


@pytest.mark.parametrize("precision, n", [("auto", 8), ("auto", 80), ("fp16", 20)])
def test_a_column_of_zeros_changes_no_other_column_and_no_planned_byte(precision, n):
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, 3))
    usual = solve_ex(a, b, precision=precision, device="cpu")
    b[:, 1] = 0

    found = solve_ex(a, b, precision=precision, device="cpu")

    assert not found.x[:, 1].any() and (found.x[:, ::2] == usual.x[:, ::2]).all()
    assert found.bytes_planned == usual.bytes_planned


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("n", [3, 14, 40])
def test_solve_and_solve_ex_give_the_same_bits_where_one_norm_is_great(n, dtype):
    """Only the 1-norm is beyond 2**300, from which on a matrix is scaled."""
    for seed, order in itertools.product(range(10), "CF"):
        rng = np.random.default_rng(seed)
        a = rng.standard_normal((n, n)).astype(dtype)
        a += 1j * rng.standard_normal((n, n)) if dtype is complex else 0
        a[:, 0] *= n
        a = np.array(a * (0.9 * 2.0**300 / np.abs(a).sum(axis=1).max()), order=order)
        b = rng.standard_normal(n).astype(dtype)
        assert (solve(a, b) == solve_ex(a, b).x).all()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("margin", [1e-3, 1e-6])
def test_solve_gives_the_x_of_solve_ex_for_barely_dominant_matrices(precision, margin):
    for n in (4, 8, 20, 32):
        a = np.random.default_rng(n).standard_normal((n, n))
        np.fill_diagonal(a, 0)
        np.fill_diagonal(a, np.abs(a).sum(axis=1) * (1 + margin))
        b = np.random.default_rng(0).standard_normal((n, 5 * n))
        x = solve(a, b, precision=precision)
        assert np.array_equal(x, solve_ex(a, b, precision=precision).x)


@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize("structure", ["general", "tridiagonal"])
def test_a_zero_column_changes_neither_the_factors_nor_the_bytes(structure, dtype):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((30, 30)) + 30 * np.eye(30)
    a = (np.triu(np.tril(a, 1), -1) if structure == "tridiagonal" else a).astype(dtype)
    b = rng.standard_normal((30, 3)).astype(dtype)
    usual = solve_ex(a, b, assume_a=structure)
    b[:, 1] = 0

    found = solve_ex(a, b, assume_a=structure)

    assert found.status is Status.CONVERGED and not found.x[:, 1].any()
    assert (found.rungs, found.bytes_planned) == (usual.rungs, usual.bytes_planned)
