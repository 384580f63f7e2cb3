"""Solves with double-double residuals: x is accurate to its last bits, or the status says that it is not."""

import dataclasses
import functools
import itertools
import warnings

import numpy as np
import pytest
from bounds import ratio
from exact_solution import relative_error, solution
from switches import import_or_skip

import tcsolve
from tcsolve import AccuracyWarning, InputError, Plan, Status, matrices, solve, solve_ex
from tcsolve._backends.select import ops_for
from tcsolve._solve.verify.backward_error import accurate_errors

U = 2.0**-53
DD = {"residual": "double-double"}
LOW = Plan("fp32", fallback=False, basis=40)


@pytest.mark.parametrize("a_dtype, dtype", [("d", "d"), ("D", "D"), ("d", "D"), ("f", "d")])
@pytest.mark.parametrize("size", [2.0**-230, 1.0, 2.0**230, 2.0**-260])
def test_errors_far_below_the_rounding_of_fp64_residuals_are_measured(xp, a_dtype, dtype, size):
    rng, n = np.random.default_rng(1), 200
    a = (rng.integers(-8, 9, (n, n)) * (1 + 0.5j if a_dtype == "D" else 1)).astype(a_dtype)
    x = rng.integers(-8, 9, (n, 3)) * (1 - 2j if dtype == "D" else 1.0)
    b = a @ x
    b[5, 1] += 2.0**-36  # everything is exact, so that this is the residual
    ops, norm = ops_for(xp.asarray(a)), float(np.abs(a).sum(axis=1).max())

    found = accurate_errors(ops, *map(xp.asarray, (a, x * size, b * size)), norm)

    true = np.array([0, 2.0**-36, 0]) / norm / np.abs(x).max(axis=0)
    if size == 2.0**-260:
        assert np.isnan(found).all()  # products may underflow
    else:
        np.testing.assert_allclose(found, true, rtol=1e-12)


def system(family, cond, n=40, seed=1):
    a = matrices.generate(family, n, seed=seed, cond=cond).a
    return a, np.random.default_rng(seed).standard_normal(n)


FAMILIES = ["svd_geo", "svd_cluster1", "svd_cluster0"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "cond, precision",
    [
        *itertools.product([1e2, 1e7, 1e10, 1e14], ["auto", "fp32", "fp64"]),
        *itertools.product([1e2, 1e7, 1e10], [LOW]),
    ],
    ids=str,
)
def test_x_is_accurate_to_its_last_bit(family, cond, precision):
    a, b = system(family, cond)
    exact = solution(a, b)

    found = solve_ex(a, b, precision=precision, **DD)

    assert found.status.ok and found.backward_error[0] <= found.bound
    assert relative_error(found.x, exact) <= found.forward_error[0] <= 2 * U
    if cond >= 1e7:  # with an FP64 residual, x is less accurate
        assert relative_error(solve_ex(a, b, precision=precision).x, exact) > 4 * U


@pytest.mark.parametrize("cond", [1e14, 1e15])
@pytest.mark.parametrize("method", ["auto", "gmres"])
@pytest.mark.parametrize("update", ["fp32", "fp16x3"])
@pytest.mark.parametrize("family", [*FAMILIES, "svd_arith"])
def test_gmres_with_coarse_factors_is_accurate_up_to_1e15(family, update, method, cond):
    a, b = system(family, cond)
    plan = Plan(update, method=method, block=16, fallback=False, basis=40)

    found = solve_ex(a, b, precision=plan, **DD)

    assert found.status.ok and found.backward_error[0] <= found.bound
    assert relative_error(found.x, solution(a, b)) <= 2 * U


@pytest.mark.parametrize("update", ["fp32", "fp16x3"])
def test_coarse_factors_are_accurate_for_transposed_scaled_and_complex_systems(update):
    a, b = system("svd_cluster0", 1e13)
    plan = Plan(update, block=16, fallback=False, basis=40)
    rng = np.random.default_rng(3)
    scaled = a * 2.0 ** rng.integers(-8, 9, 40)[:, None] * 2.0 ** rng.integers(-8, 9, 40)
    z = a * (1 + 1j), b * (1 - 1j)  # its solution is -1j x

    for matrix in (a, np.asfortranarray(a), scaled):
        factors = tcsolve.factor(matrix, precision=plan)
        for trans, m in ((0, matrix), (1, matrix.T)):
            found = factors.solve_ex(b, trans=trans, **DD)
            assert found.status.ok and relative_error(found.x, solution(m, b)) <= 2 * U
    found = solve_ex(*z, precision=plan, **DD)
    assert found.status.ok
    assert relative_error(-found.x.imag, solution(a, b)) <= 4 * U


@pytest.mark.parametrize("cond", [1e3, 1e7])
@pytest.mark.parametrize("update", ["fp32", "fp16x3", "fp16x3@h200"])
def test_classical_refinement_is_enough_up_to_1e7(cond, update):
    a, b = system("svd_geo", cond, n=60)
    plan = Plan(update, block=16, fallback=False)

    found = solve_ex(a, b, precision=plan, **DD)

    assert relative_error(found.x, solution(a, b)) <= found.forward_error[0] <= 2 * U
    # No inner step of FGMRES: all errors in the history were measured.
    assert not any(point.estimated for point in found.history)


@pytest.mark.parametrize("cond", [1e15, 3e15])
def test_fp64_factors_are_enough_for_condition_numbers_of_about_1e15(cond):
    a, b = system("svd_geo", cond)
    found = solve_ex(a, b, precision="fp64", **DD)
    assert relative_error(found.x, solution(a, b)) <= found.forward_error[0] <= 2 * U


@pytest.mark.parametrize("family", ["svd_geo", "svd_cluster0"])
def test_at_condition_1e18_the_status_says_that_x_is_not_accurate(family):
    a, b = system(family, 1e18)
    exact = solution(a, b)

    found = solve_ex(a, b, precision="fp64", **DD)

    assert found.status is Status.NOT_ACCURATE and not found.status.ok
    # The estimate is of the size of the error.
    assert 0.1 * relative_error(found.x, exact) <= found.forward_error[0]
    with pytest.warns(AccuracyWarning, match="forward_error estimates"):
        solve(a, b, precision="fp64", **DD)


@pytest.mark.parametrize("precision", ["auto", "fp64", LOW])
@pytest.mark.parametrize("n", [6, 40, 200])
def test_no_answer_of_a_singular_matrix_is_called_accurate(n, precision):
    # Its entries are integers, so the residual of x = 1 is exactly zero.
    a = np.random.default_rng(n).integers(-3, 4, (n, n)).astype(float)
    a[-1] = a[0]

    found = solve_ex(a, a @ np.ones(n), precision=precision, **DD)

    assert not found.status.ok or found.status is Status.CONDITION_UNKNOWN
    assert found.forward_error is None or not found.forward_error[0] < 0.5


@pytest.mark.parametrize("exponent", [-60, -120, -200])
def test_a_tiny_block_does_not_hide_a_singular_one(exponent):
    rng = np.random.default_rng(-exponent)
    a = np.zeros((41, 41))
    a[:40, :40] = rng.integers(-3, 4, (40, 40))
    a[39], a[40, 40] = a[0], 2.0**exponent
    a[39, 40] = 0

    found = solve_ex(a, a @ np.ones(41), **DD)

    assert not found.status.ok


def test_a_column_that_is_not_finite_has_no_error():
    a = np.random.default_rng(40).integers(-3, 4, (40, 40)).astype(float)
    a[-1] = a[0]
    b = np.stack([a @ np.ones(40), np.full(40, np.nan)], axis=1)
    found = solve_ex(a, b, check_finite=False, **DD)
    assert found.forward_error is None or np.isnan(found.forward_error[1])


@pytest.mark.parametrize("precision", ["fp32", "fp16x3"])
def test_a_matrix_that_the_factors_show_to_be_singular_late_has_no_error(precision):
    a = np.array([[7.0, 3, 0], [-4, -4, -9], [15, 11, 18]])
    found = solve_ex(a, a @ np.ones(3), precision=precision, **DD)
    assert found.status is not Status.SINGULAR or found.forward_error is None
    assert not found.status.ok and np.isnan(found.x).all() or found.forward_error[0] >= 0.5


@pytest.mark.parametrize("cond", 10.0 ** np.arange(1, 19))
def test_an_answer_that_is_called_accurate_is(cond):
    for seed in range(4):
        a, b = system("svd_geo", cond, n=24, seed=seed)
        exact = solution(a, b)
        for precision in ("fp64", LOW):
            found = solve_ex(a, b, precision=precision, **DD)
            error = relative_error(found.x, exact)
            assert error <= 2 * U or found.status in (
                Status.NOT_ACCURATE,
                Status.STALLED,
                Status.CONDITION_UNKNOWN,
            )
            assert np.isnan(found.rcond) == np.isnan(found.forward_error[0])


def test_more_precise_factors_follow_until_x_is_accurate():
    a, b = system("svd_geo", 1e13)
    found = solve_ex(a, b, precision="fp32", **DD)
    assert found.rungs == ("fp32", "fp64") and found.status is Status.CONVERGED_AFTER_FALLBACK
    assert found.forward_error[0] <= 2 * U


@pytest.mark.parametrize("precision", ["fp16x3", "fp16", "bf16", "tf32"])
@pytest.mark.parametrize("n, cond, seed", [(10, 1e13, 2), (20, 1e13, 3), (20, 1e12, 5)])
def test_a_correction_that_has_not_converged_does_not_make_x_accurate(n, cond, seed, precision):
    p = matrices.generate("svd_geo", n, cond=cond, seed=seed, nrhs=3)
    x = solve_ex(p.a, p.b, precision="fp64", residual="double-double").x

    found = solve_ex(p.a, p.b, precision=precision, residual="double-double")

    assert found.status.ok and (found.forward_error <= 2.0**-52).all()
    assert (np.abs(found.x - x).max(axis=0) <= 2.0**-51 * np.abs(x).max(axis=0)).all()


@pytest.mark.parametrize("dtype, size", [("d", 2.0**900), ("f", 2.0**100)])
@pytest.mark.parametrize("status", [Status.UNDERFLOW, Status.OVERFLOW])
def test_an_x_that_underflows_or_overflows_has_no_forward_error(dtype, size, status):
    size = size if status is Status.UNDERFLOW else 1 / size
    a = np.array([[2, 1], [1, 3]], dtype) * np.array(size, dtype)
    b = np.array([[1 / size, size], [1 / size, size]], dtype)  # the second column is in range
    for found in (
        solve_ex(a, b, **DD),
        solve_ex(a[None], b[None], **DD),
        tcsolve.factor(a).solve_ex(b, **DD),
    ):
        assert found.status is status
        assert np.isnan(found.forward_error).ravel().tolist() == [True, False]


def test_a_limit_of_two_steps_spoils_no_correction_that_contracts():
    plan, accurate = Plan("fp16x3", max_steps=2, fallback=False), 0
    for seed in range(40):
        a, b = system("svd_geo", 1e4, n=5, seed=seed)
        accurate += (
            solve_ex(a, b, precision=plan, assume_a="general", **DD).status is Status.CONVERGED
        )
    assert accurate >= 34


def test_columns_have_errors_of_their_own():
    a, _ = system("svd_geo", 1e11)
    b = np.random.default_rng(2).standard_normal((40, 3))
    b[:, 1] = 0

    found = solve_ex(a, b, **DD)

    assert found.forward_error.shape == (3,) and (found.forward_error <= 2 * U).all()
    for j in (0, 2):
        assert relative_error(found.x[:, j], solution(a, b[:, j])) <= 2 * U
    assert (found.x[:, 1] == 0).all()


@pytest.mark.parametrize("scale", [1e-290, 1e-30, 1e30, 1e290])
def test_the_range_does_not_matter(scale):
    a, b = system("svd_geo", 1e9, n=20)
    a = a * scale
    found = solve_ex(a, b * 1e3, **DD)
    assert relative_error(found.x, solution(a, b * 1e3)) <= found.forward_error[0] <= 2 * U


def test_badly_scaled_rows_and_columns_do_not_matter():
    a, b = system("svd_geo", 1e8, n=20)
    rng = np.random.default_rng(3)
    a = a * 2.0 ** rng.integers(-30, 30, 20)[:, None] * 2.0 ** rng.integers(-10, 10, 20)
    for precision in ("fp32", "fp64"):
        found = solve_ex(a, b, precision=precision, **DD)
        assert relative_error(found.x, solution(a, b)) <= found.forward_error[0] <= 2 * U


def test_complex_systems():
    a, b = system("svd_geo", 1e9, n=20)
    imaginary, other = system("svd_geo", 1e3, n=20, seed=5)
    z, rhs = a + 1e-6j * imaginary, b + 1j * other
    exact = solution(
        np.block([[z.real, -z.imag], [z.imag, z.real]]), np.concatenate([rhs.real, rhs.imag])
    )

    for precision in ("fp32", "fp64"):
        found = solve_ex(z, rhs, precision=precision, **DD)
        parts = np.concatenate([found.x.real, found.x.imag])
        assert relative_error(parts, exact) <= 4 * U and found.forward_error[0] <= 2 * U
    of_real = solve_ex(a, rhs, **DD).x  # a real matrix, and a complex right-hand side
    assert relative_error(of_real.real, solution(a, b)) <= 2 * U
    assert relative_error(of_real.imag, solution(a, other)) <= 2 * U


def test_fp32_answers_are_accurate_in_fp32():
    a, b = (x.astype(np.float32) for x in system("svd_geo", 1e6))
    found = solve_ex(a, b, **DD)
    assert found.x.dtype == np.float32
    assert relative_error(found.x, solution(a, b)) <= found.forward_error[0] <= 1.01 * 2.0**-24


def test_stacks_structures_and_factors():
    a, b = system("svd_geo", 1e9, n=16)
    exact = solution(a, b)
    stacked = solve_ex(np.stack([a, a.T]), b, **DD)
    assert stacked.forward_error.shape == (2, 1) and (stacked.forward_error <= 2 * U).all()
    assert relative_error(stacked.x[0], exact) <= 2 * U
    upper = np.triu(a)
    for structure in ("upper triangular", "general", None):
        x = solve(upper, b, assume_a=structure, **DD)
        assert relative_error(x, solution(upper, b)) <= 2 * U
    factors = tcsolve.factor(a, precision="fp32")
    assert factors.solve_ex(b).forward_error is None
    assert relative_error(factors.solve(b, **DD), exact) <= 2 * U


def test_a_limit_of_steps_is_kept():
    a, b = system("svd_geo", 1e9)
    found = solve_ex(a, b, precision=Plan("fp64", max_steps=1, fallback=False), **DD)
    assert found.iterations[0] <= 2
    assert found.status is Status.NOT_ACCURATE or found.forward_error[0] <= 2 * U


def test_nan_and_zero_pivots_are_reported_as_with_fp64_residuals():
    a, b = system("svd_geo", 1e3)
    b[3] = np.nan
    assert solve_ex(a, b, check_finite=False, **DD).status is Status.NONFINITE_INPUT
    with pytest.raises(tcsolve.SingularError):
        solve(np.zeros((3, 3)), np.ones(3), **DD)
    assert solve_ex(np.ones((1, 1)), np.ones(1), **DD).forward_error is None


@pytest.mark.parametrize("residual", ["fp128", None, 2, "double"])
def test_an_unknown_residual_is_refused(residual):
    a, b = system("svd_geo", 1e3)
    message = "residual is .*needs one of fp64, double-double"
    with pytest.raises(InputError, match=message):
        solve(a, b, residual=residual)
    with pytest.raises(InputError, match=message):
        tcsolve.factor(a).solve(b, residual=residual)


def test_the_usual_residual_changes_nothing():
    a, b = system("svd_geo", 1e5, n=300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(solve(a, b, residual="fp64"), solve(a, b))


@functools.cache
def by_mpmath(mpmath, family, cond):
    """Return a function that gives the relative error of an x of system(family, cond, n=30)."""
    a, b = system(family, cond, n=30)
    with mpmath.workdps(60):
        exact = mpmath.lu_solve(mpmath.matrix(a.tolist()), mpmath.matrix(b.tolist()))
        size = max(abs(v) for v in exact)

    def error(x):
        with mpmath.workdps(60):
            pairs = zip(x, exact, strict=True)
            return float(max(abs(mpmath.mpf(float(u)) - v) for u, v in pairs) / size)

    return error


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cond", [1e6, 1e12, 1e14, 1e15, 1e18])
def test_the_error_against_mpmath_is_at_most_the_estimate(family, cond):
    a, b = system(family, cond, n=30)
    error = by_mpmath(import_or_skip("mpmath"), family, cond)

    for precision in ("auto", "fp64", LOW):
        found = solve_ex(a, b, precision=precision, **DD)

        # Without an estimate, rcond is unknown or the status is bad.
        estimate = found.forward_error[0]
        assert error(found.x) <= estimate or np.isnan(estimate) and np.isnan(found.rcond)
        assert not found.status.ok or error(found.x) <= 2 * U
        if cond <= 1e14 and precision != LOW:
            assert found.status.ok and estimate <= 2 * U
        if cond == 1e18:
            assert not found.status.ok


@pytest.mark.parametrize("update", ["fp32", "fp16x3"])
@pytest.mark.parametrize("family", FAMILIES)
def test_classical_refinement_with_coarse_factors_is_enough_up_to_1e6(family, update):
    a, b = system(family, 1e6, n=30)
    error = by_mpmath(import_or_skip("mpmath"), family, 1e6)
    plan = Plan(update, block=16, fallback=False, method="ir")

    found = solve_ex(a, b, precision=plan, **DD)

    assert found.status.ok and error(found.x) <= found.forward_error[0] <= 2 * U


def test_the_warning_of_an_ill_conditioned_matrix_tells_a_forward_error_that_is_small():
    a, b = system("svd_cluster0", 1e15, n=30)
    found = solve_ex(a, b, precision="fp64", **DD)
    assert found.status is Status.ILL_CONDITIONED
    assert relative_error(found.x, solution(a, b)) <= found.forward_error[0] <= 2 * U
    for residual, told, not_told in (
        ("double-double", f"forward error.* is {found.forward_error[0]:.1e}", "no correct digit"),
        ("fp64", "no correct digit", "forward error"),
    ):
        with pytest.warns(tcsolve.LinAlgWarning, match=told) as caught:
            solve(a, b, precision="fp64", residual=residual)
        assert len(caught) == 1 and caught[0].category is tcsolve.LinAlgWarning
        assert not_told not in str(caught[0].message)
    assert "no correct digit" not in str(found)


def test_a_stack_tells_a_forward_error_only_if_all_are_small():
    a, b = system("svd_cluster0", 1e15, n=30)
    found = solve_ex(np.stack([a, np.eye(30)]), b, precision="fp64", **DD)
    assert found.status is Status.ILL_CONDITIONED
    assert f"{found.forward_error.max():.1e}; x is accurate" in " ".join(str(found).split())
    for worse in (0.5, np.nan):
        errors = np.array([[worse], [1e-16]])
        some = dataclasses.replace(found, forward_error=errors)
        assert "no correct digit" in str(some)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "precision",
    [
        "fp16x3",
        "fp32",
        "fp64",
        *(Plan(u, block=16, fallback=False, basis=40) for u in ("fp16x3", "fp32")),
    ],
    ids=str,
)
@pytest.mark.parametrize("cond", [1e3, 1e7, 1e13, 1e14])
def test_x_is_accurate_on_the_device(precision, cond, cupy):
    a, b = system("svd_geo", cond)

    found = solve_ex(cupy.asarray(a), cupy.asarray(b), precision=precision, **DD)

    assert found.status.ok and relative_error(found.x.get(), solution(a, b)) <= 2 * U
    assert found.status is Status.CONDITION_UNKNOWN or found.forward_error[0] <= 2 * U


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize(
    "n, columns",
    [
        *itertools.product([33, 64, 105, 256, 400, 579], [1, 2, 40]),
        (1001, 1),
        (1001, 40),
        (1500, 1),
    ],
)
@pytest.mark.parametrize("precision", ["auto", "fp32"])
@pytest.mark.parametrize("factor", [1, 1 + 1j])
def test_rounding_in_one_direction_does_not_hide_an_error(order, n, columns, precision, factor):
    a, b = rounded_one_way(n, columns, factor)

    found = solve_ex(np.array(a, order=order), b, precision=precision)

    x = np.unique(found.x, axis=1)  # all columns of b are equal
    assert found.status.ok and ratio(a, x, b[:, : x.shape[1]]) <= 3


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("n", [47, 63, 95, 127])
@pytest.mark.parametrize("columns", [1, 2])
def test_equal_products_do_not_hide_an_error(order, n, columns):
    """The products of a row are equal but for the diagonal, so that many additions round one way."""
    met = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        rows = 1 + 1e-3 * rng.standard_normal((n, 1))
        a = np.full((n, n), rng.uniform(0.1, 1)) * rows + n * np.eye(n) * rng.uniform(0.01, 2)
        b = a @ np.full((n, columns), rng.uniform(0.1, 1))

        found = solve_ex(np.array(a, order=order), b)

        assert not found.status.ok or ratio(a, found.x, b) <= 1.8
        met += found.status.ok
    assert met >= 30


@pytest.mark.parametrize("n", [40, 100, 300])
@pytest.mark.parametrize("columns", [1, 5])
@pytest.mark.parametrize("assume_a", [None, "gen"])
def test_rounding_in_one_direction_does_not_hide_an_error_of_a_stack(n, columns, assume_a):
    a, b = rounded_one_way(n, columns)

    found = solve_ex(np.stack([a] * 3), np.stack([b] * 3), assume_a=assume_a)

    assert found.status.ok and ratio(a, found.x[1], b) <= 3


@pytest.mark.gpu
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("n", [33, 64, 300, 1001, 2048, 4096])
@pytest.mark.parametrize("columns", [1, 2, 40, 256, 257, 2048])
@pytest.mark.parametrize("factor", [1, 1 + 1j])
def test_rounding_in_one_direction_does_not_hide_an_error_on_a_device(
    order, n, columns, factor, cupy
):
    a, b = rounded_one_way(n, columns, factor)

    found = solve_ex(cupy.array(a, order=order), cupy.asarray(b))

    some = np.unique([0, columns // 2, columns - 1])
    assert found.status.ok and ratio(a, found.x.get()[:, some], b[:, some]) <= 4.7


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f", "d", "D"])
@pytest.mark.parametrize("columns", [257, 1000, 20000])
def test_columns_of_any_size_are_right_where_long_sums_are_compared(columns, dtype, cupy):
    n, rng = 200, np.random.default_rng(4)
    a = (rng.standard_normal((n, n)) * (1 + 1j if dtype == "D" else 1)).astype(dtype)
    b = rng.standard_normal((n, columns)) * 2.0 ** rng.integers(-900, 900, columns)
    b[:, 7] = 0

    found = solve_ex(cupy.asarray(a), cupy.asarray(b))

    some = np.array([0, columns - 1])
    assert found.status.ok and not found.x[:, 7].any()
    assert ratio(a, found.x.get()[:, some], b[:, some]) <= 1.2


@pytest.mark.gpu
@pytest.mark.parametrize("n", [40, 100, 300])
@pytest.mark.parametrize("columns", [1, 5])
def test_rounding_in_one_direction_does_not_hide_an_error_of_a_stack_on_a_device(n, columns, cupy):
    a, b = rounded_one_way(n, columns)

    found = solve_ex(*(cupy.stack([cupy.asarray(v)] * 3) for v in (a, b)))

    assert found.status.ok and ratio(a, found.x[1].get(), b) <= 4.7


def rounded_one_way(n, columns, factor=1):
    """Return A and its row sums, where each addition of a row loses nearly half a unit.

    So a sum of the n terms in their order would have an error of many times the bound.
    """
    a = np.full((n, n), 0.45 * 2.0**-52)
    a[:, 0] = 1
    a[range(n), range(n)] += 0.25
    b = (a.astype(np.longdouble) @ np.ones((n, 1))).astype(float)
    return factor * a, factor * b.repeat(columns, axis=1)


@pytest.mark.parametrize("cond", [1e1, 1e3])
def test_corrections_of_both_kinds_are_counted(cond):
    """Those by double-double residuals come after max_steps others."""
    a, _ = system("svd_geo", cond, 32)
    plan = Plan("fp32", max_steps=2, fallback=False)

    found = solve_ex(a, a @ np.ones((32, 3)), assume_a="general", precision=plan, **DD)

    assert (found.iterations > 2).all()
