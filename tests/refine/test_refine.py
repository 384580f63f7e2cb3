"""The refinement loop with the caller's operators and preconditioners, and its stopping rule."""

import math

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg
from bounds import MET, ratio

import tcsolve
from tcsolve import Plan, Status, matrices
from tcsolve._backends.cpu.ops import NumpyOps
from tcsolve._refine import stopping
from tcsolve._refine.krylov import fgmres
from tcsolve._refine.loop import refine_columns
from tcsolve._refine.operator import Operator, measure

OPS = NumpyOps()


def dominant(n=60, seed=0, dtype=float):
    return matrices.generate("gauss_dominant", n, seed=seed, dtype=dtype).a


def lu_correction(a):
    factors = scipy.linalg.lu_factor(a)
    return lambda r: scipy.linalg.lu_solve(factors, r.astype(a.dtype))


# ---- steps that were done ahead


@pytest.mark.parametrize("most", [3, 300])
@pytest.mark.parametrize("bound", [1e-15, 3e-9, 0.0, 1.0])
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("contraction", [1e-9, 1e-3, 0.015, 0.1, 0.4, 0.7, 2.0, math.nan])
def test_steps_done_ahead_count_as_those_of_the_loop(contraction, steps, bound, most):
    rng = np.random.default_rng(0)
    a = dominant(6)
    b, scale = rng.standard_normal((6, 1)), np.linalg.norm(a, np.inf)
    error = contraction * (rng.uniform(0.5, 1, (6, 1)) if contraction < 0.5 else np.ones((6, 1)))

    def correct(r):  # each component of the error contracts by at most this factor
        return (1 - error) * np.linalg.solve(a, r)

    done = []
    for _ in range(steps + 1):
        x = correct(b) if not done else done[-1][0] + correct(done[-1][1])
        done.append((x, *OPS.residual(a, x, b)))
    xs, rs, *sizes = map(np.array, zip(*done, strict=True))
    ahead = xs, rs, np.array(sizes)[:, :, 0]
    args = OPS, Operator.of(OPS, a, scale), b, correct, Plan("fp32"), bound

    found = refine_columns(*args, ahead=ahead, max_steps=most)

    expected = refine_columns(*args, max_steps=most)
    plain = [float((r / scale / x)[0]) for _, _, r, x in done]
    known = (
        plain if contraction < 0.5 else plain[:1]
    )  # classical refinement ends after a step that reduces the error too little
    for mine, theirs in zip(found.history, known, strict=False):
        assert mine.error == pytest.approx(theirs, nan_ok=True)
    assert found.converged == expected.converged
    assert found.steps == expected.steps and found.classical == expected.classical
    assert np.array_equal(found.x, expected.x, equal_nan=True)
    assert not np.shares_memory(found.x, xs)


@pytest.mark.parametrize("done_ahead", [False, True])
def test_a_column_that_only_just_meets_the_bound_is_corrected_once_more(done_ahead):
    a, b = dominant(6), np.random.default_rng(1).standard_normal((6, 1))
    args = OPS, Operator.of(OPS, a, np.linalg.norm(a, np.inf)), b

    def correct(r):  # a correction divides the error by ten
        return 0.9 * np.linalg.solve(a, r)

    errors = [p.error[0] for p in refine_columns(*args, correct, Plan("fp32"), 1e-9).history]
    ahead = ()
    if done_ahead:
        x = [correct(b)]
        x += [x[0] + correct(b - a @ x[0])]
        xs, rs, *sizes = map(np.array, zip(*((v, *OPS.residual(a, v, b)) for v in x), strict=True))
        ahead = xs, rs, np.array(sizes)[:, :, 0]

    def steps(bound, **options):
        found = refine_columns(*args, correct, Plan("fp32"), bound, ahead=ahead, **options)
        assert found.all_converged
        return int(found.steps[0])

    assert steps(errors[1] / 0.95) == steps(errors[1] / 0.85, sure=0.9) == 1
    assert steps(errors[1] / 0.95, sure=0.9) == 2
    assert steps(errors[1] / 0.95, sure=0.9, max_steps=1) == 1


# ---- which method corrects x


@pytest.mark.parametrize("done_ahead", [False, True])
def test_a_plan_may_ask_for_one_method_alone(done_ahead):
    e = np.random.default_rng(0).standard_normal((80, 80))
    a = np.eye(80) + 0.8 * (e + e.T) / np.linalg.norm(e + e.T, 2)
    b, scale = np.ones((80, 1)), np.linalg.norm(a, np.inf)
    ahead = ()
    if done_ahead:
        x = [b, b + (b - a @ b)]
        x, r, *sizes = map(np.array, zip(*((v, *OPS.residual(a, v, b)) for v in x), strict=True))
        ahead = x, r, np.array(sizes)[:, :, 0]

    def run(method, contraction=0.5):
        plan = Plan("fp32", method=method, contraction=contraction)
        args = OPS, Operator.of(OPS, a, scale), b, lambda r: r, plan, 1e-14
        found = refine_columns(*args, max_steps=60, ahead=ahead)
        return found, sum(point.estimated for point in found.history)

    classical, inner = run("ir")
    assert inner == 0 and classical.classical and not classical.all_converged
    slow, inner = run("ir", contraction=0.999)  # it goes on while there is any contraction
    assert inner == 0 and slow.error < classical.error
    krylov, inner = run("fgmres")
    assert krylov.all_converged and inner == krylov.steps == len(krylov.history) - 2
    both, inner = run("auto")
    assert both.all_converged and 0 < inner < both.steps


# ---- refine


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("shape", [(60,), (60, 4)])
def test_jacobi_refines_a_dominant_matrix(dtype, shape):
    a, b = dominant(dtype=dtype), np.ones(shape)

    solution = tcsolve.refine(a, b, lambda r: r / np.diag(a)[:, None])

    assert solution.status is Status.CONVERGED
    assert solution.x.shape == shape
    assert solution.backward_error.shape == (b.reshape(60, -1).shape[1],)
    assert ratio(a, solution.x, b) <= MET


def test_stale_factors_solve_the_matrix_of_now():
    old = matrices.generate("svd_geo", 80, cond=1e3).a
    new = old + 1e-5 * np.random.default_rng(1).standard_normal((80, 80))
    b = np.ones(80)

    solution = tcsolve.refine(new, b, lu_correction(old))

    assert solution.status is Status.CONVERGED
    assert ratio(new, solution.x, b) <= MET
    assert ratio(old, solution.x, b) > MET


def test_fp32_factors_refine_an_ill_conditioned_system_to_fp64():
    problem = matrices.generate("svd_geo", 80, cond=1e8, seed=4)

    solution = tcsolve.refine(problem.a, problem.b, lu_correction(problem.a.astype(np.float32)))

    assert solution.status is Status.CONVERGED
    assert ratio(problem.a, solution.x, problem.b) <= MET


def test_an_operator_may_be_a_function_with_its_norm():
    a, b = dominant(), np.ones((60, 2))
    norm = np.linalg.norm(a, np.inf)

    solution = tcsolve.refine(lambda v: a @ v, b, lambda r: r / np.diag(a)[:, None], norm=norm)

    assert solution.status is Status.CONVERGED
    assert ratio(a, solution.x, b) <= MET


@pytest.mark.parametrize("of_a, of_x", [(0, -1040), (-1000, -40), (320, -1040), (-600, -450)])
@pytest.mark.parametrize("columns", [(), (2,)])
def test_the_error_of_a_function_is_true_where_products_underflow(of_a, of_x, columns):
    """With a correction to 20 bits, the residual underflows long before the error meets the bound."""
    a = np.ldexp(dominant(), of_a)
    norm = np.abs(a).sum(axis=1).max()
    x = np.random.default_rng(1).uniform(1, 2, (60, *columns))
    b = np.ldexp(np.ldexp(a, -of_a) @ x, of_a + of_x)
    inverse = np.linalg.inv(np.ldexp(a, -of_a)) * (1 + 2.0**-20)

    def correct(r):
        return np.ldexp(inverse @ r, -of_a)

    found = tcsolve.refine(lambda v: a @ v, b, correct, norm=norm)

    near_a, near_x = np.ldexp(a, -of_a), np.ldexp(found.x, -of_x)
    rest = np.abs(np.ldexp(b, -of_a - of_x) - near_a @ near_x).max(axis=0)
    true = rest / np.abs(near_a).sum(axis=1).max() / np.abs(near_x).max(axis=0)
    np.testing.assert_allclose(
        found.backward_error, np.atleast_1d(true), rtol=0.1, atol=found.bound
    )
    assert true.max() <= MET * found.bound or found.status is Status.STALLED


@pytest.mark.parametrize("of_a, of_b", [(-800, 0), (1000, 1020)])
def test_a_large_error_of_a_function_is_true_where_parts_of_it_overflow(of_a, of_b):
    a, b, x0 = np.ldexp(dominant(), of_a), np.full(60, 2.0**of_b), np.full(60, 2.0**-25)
    norm = np.abs(a).sum(axis=1).max()

    found = tcsolve.refine(lambda v: a @ v, b, lambda r: 0 * r, x0=x0, norm=norm)

    rest = np.abs(b - a @ x0).max()
    assert found.status is Status.STALLED
    np.testing.assert_allclose(found.backward_error, rest / norm * 2.0**25, rtol=1e-10)


@pytest.mark.parametrize("dtype", [float, complex])
def test_a_matrix_whose_row_sums_overflow_is_refined(dtype):
    a = (dominant() * (1 if dtype is float else 1 + 1j)).astype(dtype)
    a *= 1e308 / np.maximum(abs(a.real), abs(a.imag)).max()
    a[0] = a[0].max()  # so that the sum of this row overflows
    a[0, 0] = -a[0, 1]
    inverse = np.linalg.inv(a / 2.0**1000).astype(np.complex64 if dtype is complex else np.float32)
    b = a[:, 3] / 2

    found = tcsolve.refine(a, b, lambda r: inverse @ np.ldexp(r.view(float), -1000).view(dtype))

    assert found.status is Status.CONVERGED and found.iterations[0] > 0
    expected = np.zeros(60)
    expected[3] = 0.5
    np.testing.assert_allclose(found.x, expected, atol=1e-13)


def test_a_function_without_its_norm_is_refused():
    with pytest.raises(tcsolve.InputError, match="norm"):
        tcsolve.refine(lambda v: v, np.ones(3), lambda r: r)


@pytest.mark.parametrize(
    "a, b, message",
    [
        (np.eye(3), np.ones(4), "4 rows"),
        (np.eye(3)[:2], np.ones(3), r"must be \(3, 3\)"),
        (np.eye(3), np.ones((3, 1, 1)), r"\(3, 1, 1\)"),
        (np.eye(0), np.ones(0), "n > 0"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(a, b, message):
    with pytest.raises(tcsolve.InputError, match=message):
        tcsolve.refine(a, b, lambda r: r)


def test_a_correction_may_overwrite_what_it_gets():
    a, b = matrices.generate("gauss", 50).a + 3 * np.eye(50), np.arange(50.0)
    factors = scipy.linalg.lu_factor(a)

    found = tcsolve.refine(a, b, lambda r: scipy.linalg.lu_solve(factors, r, overwrite_b=True))

    assert found.status.ok and ratio(a, found.x, b) <= MET


@pytest.mark.parametrize(
    "options, message",
    [
        ({"x0": np.zeros((3, 6))}, r"x0 has shape \(3, 6\)"),
        ({"x0": np.zeros(6)}, r"x0 has shape \(6,\)"),
        ({"norm": -1.0}, "norm is -1.0"),
        ({"correct": lambda r: r[:, 0]}, r"correct returned \(6,\) for \(6, 3\)"),
        ({"norm": "x"}, "norm is 'x'"),
        ({"tol": -1e-9}, "tol is -1e-09, needs a real number that is not negative"),
        ({"tol": float("nan")}, "tol is nan"),
        ({"tol": 1j}, "tol is 1j"),
        ({"max_steps": 0}, "max_steps is 0, needs a positive integer"),
        ({"max_steps": 2.5}, "max_steps is 2.5"),
        ({"plan": "fp16"}, "plan is 'fp16'; a Plan, or None, is needed"),
        ({"x0": np.zeros((6, 3), complex)}, "x0 is complex128, but a and b are real"),
        ({"correct": lambda r: None}, "correct returned NoneType"),
        ({"correct": lambda r: r * 1j}, "correct returned complex128, but a and b are real"),
        ({"a": lambda v: v.T, "norm": 1.0}, r"a returned \(3, 6\) for \(6, 3\)"),
        ({"a": lambda v: v.astype(np.float32), "norm": 1.0}, "a returned float32 .* in FP64"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options, message):
    options = {"a": 2 * np.eye(6), "correct": lambda r: r / 2} | options
    with pytest.raises(tcsolve.InputError, match=message):
        tcsolve.refine(b=np.ones((6, 3)), **options)


def test_a_correction_may_return_the_same_memory_each_time():
    a, b, kept = dominant(), np.arange(60.0), np.empty((60, 1))

    def correct(r):
        kept[...] = r / np.diag(a)[:, None]
        return kept

    first = tcsolve.refine(a, b, correct)
    x = first.x.copy()
    second = tcsolve.refine(a, 10 * b, correct)

    assert first.status is second.status is Status.CONVERGED
    assert np.array_equal(first.x, x) and ratio(a, x, b) <= MET


def test_an_operator_may_overwrite_what_it_gets():
    d = np.arange(1.0, 7.0)[:, None]

    def product(v):
        v *= d
        return v

    found = tcsolve.refine(product, np.ones(6), lambda r: r / (1.1 * d), norm=6.0)

    assert found.status is Status.CONVERGED
    np.testing.assert_allclose(found.x, 1 / d[:, 0], rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_corrections_of_low_precision_give_an_fp64_x(dtype):
    a = matrices.generate("gauss", 100, seed=1).a + 20 * np.eye(100)
    inverse = np.linalg.inv(a).astype(dtype)

    def correct(r):
        size = np.abs(r).max(axis=0)
        return (inverse @ (r / size).astype(dtype)) * size.astype(dtype)

    found = tcsolve.refine(a, a @ np.ones(100), correct)

    assert found.status is Status.CONVERGED and found.iterations[0] > 0
    assert found.x.dtype == np.float64
    assert ratio(a, found.x, a @ np.ones(100)) <= MET


@pytest.mark.parametrize("most", [1, 2, 5])
def test_no_step_is_taken_beyond_the_budget(most):
    a = matrices.generate("svd_geo", 60, cond=1e6).a

    found = tcsolve.refine(a, np.ones(60), lambda r: 0.3 * r, max_steps=most)

    assert found.iterations[0] <= most


def test_a_good_start_costs_no_step_and_is_not_modified():
    a, b = dominant(), np.ones(60)
    start = np.linalg.solve(a, b)
    kept = start.copy()

    solution = tcsolve.refine(a, b, lambda r: pytest.fail("no correction is needed"), x0=start)

    assert solution.iterations.tolist() == [0]
    assert np.array_equal(start, kept)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_any_start_converges_and_is_not_modified(value):
    a, b, start = dominant(), np.ones((60, 3)), np.full((60, 3), value)

    solution = tcsolve.refine(a, b, lambda r: r / np.diag(a)[:, None], x0=start)

    assert solution.status is Status.CONVERGED
    assert ratio(a, solution.x, b) <= MET
    assert (start == value).all()


def test_the_callers_tolerance_stops_earlier():
    a, b = dominant(), np.ones(60)
    jacobi = lambda r: r / np.diag(a)[:, None]  # noqa: E731

    loose, tight = (tcsolve.refine(a, b, jacobi, tol=tol) for tol in (1e-4, 1e-14))

    assert loose.bound == 1e-4
    assert loose.iterations[0] < tight.iterations[0]
    assert loose.backward_error[0] <= 1e-4


def test_a_preconditioner_that_does_nothing_useful_stalls():
    a = matrices.generate("svd_geo", 80, cond=1e12).a

    solution = tcsolve.refine(a, np.ones(80), lambda r: 0 * r, max_steps=20)

    assert solution.status is Status.STALLED


def test_the_budget_of_steps_is_kept():
    a = matrices.generate("svd_geo", 200, cond=1e8).a

    solution = tcsolve.refine(a, np.ones((200, 2)), lambda r: r, max_steps=25)

    assert solution.iterations.max() <= 25


def test_no_column_costs_more_steps_than_its_budget():
    """Even if the other columns have steps left; these columns go on with their own steps."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        n, k, max_steps = (int(rng.integers(*ends)) for ends in ((2, 40), (2, 6), (1, 30)))
        a, b = rng.standard_normal((n, n)), rng.standard_normal((n, k))
        correct = lu_correction(
            a * (1 + 10.0 ** rng.uniform(-8, 0.3) * rng.standard_normal((n, n)))
        )

        assert tcsolve.refine(a, b, correct, max_steps=max_steps).iterations.max() <= max_steps


def test_a_nan_in_b_is_nonfinite_input():
    b = np.ones(60)
    b[3] = np.nan

    assert tcsolve.refine(dominant(), b, lambda r: r).status is Status.NONFINITE_INPUT


def test_a_converged_column_is_not_touched_again():
    a = matrices.generate("svd_cluster0", 60, cond=1e6, seed=2).a
    u, s, vh = np.linalg.svd(a)
    b = np.random.default_rng(0).standard_normal((60, 4))
    b[:, 0], b[:, 2] = s[0] * u[:, 0], s[1] * u[:, 1]
    rough = lu_correction(a + 1e-7 * np.random.default_rng(3).standard_normal((60, 60)))
    widths = []

    def correct(r):
        widths.append(r.shape[1])
        return rough(r)

    start = np.stack([vh[0], np.ones(60), vh[1], np.ones(60)], axis=1)
    solution = tcsolve.refine(a, b, correct, x0=start)

    assert solution.status is Status.CONVERGED
    assert solution.iterations[[0, 2]].tolist() == [0, 0]
    assert solution.iterations[[1, 3]].min() >= 2
    assert set(widths) <= {1, 2}
    assert ratio(a, solution.x, b) <= MET


def test_columns_take_about_as_many_steps_together_as_alone():
    a = matrices.generate("svd_geo", 60, cond=1e5, seed=2).a
    b = np.random.default_rng(0).standard_normal((60, 4)) * 10.0 ** np.arange(4)
    b[:, 2] = a @ np.ones(60)
    rough = lu_correction(a.astype(np.float32))

    together = tcsolve.refine(a, b, rough)
    alone = [tcsolve.refine(a, column, rough) for column in b.T]

    steps = [int(s.iterations[0]) for s in alone]
    assert np.abs(together.iterations - steps).max() <= 1


def test_the_history_never_rises_and_ends_at_the_reported_error():
    a = matrices.generate("svd_geo", 60, cond=1e6, seed=2).a

    solution = tcsolve.refine(a, np.ones((60, 2)), lu_correction(a.astype(np.float32)))

    errors = np.array([point.error for point in solution.history if not point.estimated])
    assert len(errors) >= 2
    assert (np.diff(errors, axis=0) <= 0).all()
    assert (errors[-1] <= solution.bound).all()
    assert (errors[-1] == solution.backward_error).all()


def test_the_history_of_a_matrix_with_huge_entries_ends_at_the_reported_error():
    """The loop refines a scaled system, and measures its errors."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((20, 20)) * 1e300, rng.standard_normal(20)
    inverse = np.linalg.inv(a / 1e300)

    solution = tcsolve.refine(a, b, lambda r: (inverse @ r) / 1e300 * (1 + 1e-3))

    assert solution.status is Status.CONVERGED
    assert solution.history[-1].error == solution.backward_error


# ---- the loop that `refine` calls


@pytest.mark.parametrize("norm, of_scaled", [(1.0, 1e30), (1e30, 1.0)])
def test_the_error_of_a_scaled_system_is_the_larger_one_of_both(norm, of_scaled):
    """The norms are made up: the first pair makes the unscaled error larger, the second the scaled one."""
    rng = np.random.default_rng(0)
    a, x, b = rng.standard_normal((5, 5)), rng.standard_normal((5, 2)), rng.standard_normal((5, 2))
    row, col = 2.0 ** rng.integers(-9, 9, (2, 5))

    _, error = measure(OPS, Operator(lambda v: a @ v, norm, row, col, of_scaled), x, b)

    r = b - a @ x
    r, y = (r, x) if norm == 1 else (row[:, None] * r, x / col[:, None])
    assert error == pytest.approx(np.abs(r).max(axis=0) / np.abs(y).max(axis=0))


def test_the_scaled_residual_must_meet_the_bound_too():
    # Without the scaling, the error in the small last row is invisible.
    row = np.array([1.0, 1.0, 2.0**30])
    a = np.array([[2.0, 1, 1], [1, 3, 1], [1, 1, 4]]) / row[:, None]
    b = a @ np.ones(3)
    x = np.linalg.solve(a + np.diag([0, 0, 2.0**-55]), b)[:, None]
    scaled = Operator(
        lambda v: a @ v,
        np.linalg.norm(a, np.inf),
        row,
        np.ones(3),
        np.linalg.norm(a * row[:, None], np.inf),
    )
    plain = Operator(lambda v: a @ v, np.linalg.norm(a, np.inf))
    bound = 2.0**-50
    exact = lu_correction(a)

    unseen, seen = (
        refine_columns(OPS, op, b[:, None], exact, Plan(), bound, x0=x) for op in (plain, scaled)
    )

    assert unseen.steps[0] == 0 and seen.steps[0] >= 1
    assert seen.all_converged


# ---- slow refinement


def rough(n, contraction, dtype=float, seed=0):
    """Return a matrix, and a function of corrections whose contraction tends to `contraction`."""
    a = matrices.generate("gauss", n, seed=seed, dtype=dtype).a
    noise = matrices.generate("gauss", n, seed=seed + 1, dtype=dtype).a
    rate = np.abs(np.linalg.eigvals(np.linalg.solve(a, noise))).max()
    return a, lu_correction(a + contraction / rate * noise)


def classical(a, b, correct, bound):
    """Return x by classical refinement alone, and the steps of each column."""
    norm, x = np.abs(a).sum(axis=1).max(), correct(b).astype(b.dtype)
    steps, going = np.zeros(b.shape[1], int), np.ones(b.shape[1], bool)
    while going.any():
        r, residual, size = OPS.residual(a, x, b)
        going &= ~(residual / norm / size <= bound)
        assert steps.max() < 50
        x = np.where(going, x + correct(r), x)
        steps += going
    return x, steps


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("contraction", [1e-4, 0.06, 0.2])
@pytest.mark.parametrize("exponent", [-570, 0, 570])
def test_what_contracts_is_refined_classically(exponent, contraction, dtype):
    a, correct = rough(200, contraction, dtype)
    b = np.random.default_rng(0).standard_normal((200, 3)).astype(dtype) * 2.0**exponent

    found = tcsolve.refine(a, b, correct)

    x, steps = classical(a, b, correct, found.bound)
    assert found.status is Status.CONVERGED
    assert found.iterations.tolist() == steps.tolist()
    assert np.allclose(found.x, x, rtol=1e-13, atol=0)
    assert ratio(a, found.x, b) <= MET


@pytest.mark.parametrize(
    "family, options",
    [
        ("gauss", {}),
        ("gauss_dominant", {}),
        ("svd_geo", {"cond": 1e2}),
        ("svd_geo", {"cond": 1e6}),
        ("svd_arith", {"cond": 1e6}),
        ("svd_cluster1", {"cond": 1e4}),
        ("svd_cluster0", {"cond": 1e6}),
        ("uniform", {}),
    ],
)
def test_single_precision_factors_refine_in_the_steps_of_classical_refinement(family, options):
    a = matrices.generate(family, 200, **options).a
    b = np.stack([a @ np.ones(200), np.random.default_rng(0).standard_normal(200)], axis=1)
    correct = lu_correction(a.astype(np.float32))

    found = tcsolve.refine(a, b, correct)

    assert found.status is Status.CONVERGED
    assert found.iterations.tolist() == classical(a, b, correct, found.bound)[1].tolist()


def test_slow_columns_take_about_as_many_steps_together_as_alone():
    a, correct = rough(200, 0.1)
    b = np.random.default_rng(2).standard_normal((200, 4)) * 10.0 ** np.arange(4)
    b[:, 1] = a @ np.ones(200)

    together = tcsolve.refine(a, b, correct)

    alone = [int(tcsolve.refine(a, column, correct).iterations[0]) for column in b.T]
    assert together.status is Status.CONVERGED
    assert np.abs(together.iterations - alone).max() <= 1


@pytest.mark.parametrize("calls", [3, 5])
def test_a_nan_after_some_steps_stops_with_the_best_x(calls):
    a, correct = rough(200, 0.2)
    made = []

    def failing(r):
        made.append(1)
        return correct(r) if len(made) <= calls else np.full_like(r, np.nan)

    solution = tcsolve.refine(a, np.ones(200), failing)

    assert solution.status is Status.STALLED
    assert np.isfinite(solution.x).all()
    assert solution.backward_error[0] == solution.history[calls - 1].error[0]


# ---- FGMRES


def test_one_cycle_of_fgmres_reaches_the_bound():
    a, correct = rough(200, 0.8)

    solution = tcsolve.refine(a, np.ones(200), correct)

    errors = [point.error[0] for point in solution.history if not point.estimated]
    assert solution.status is Status.CONVERGED
    assert errors[-2] > 1e6 * solution.bound


def relative_residual(a, d, r):
    return np.linalg.norm(r - a @ d, axis=0) / np.linalg.norm(r, axis=0)


# For one column, the basis takes one block of memory or two; for several columns, blocks are smaller.
@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("k, steps", [(1, 1), (1, 2), (1, 12), (1, 36), (2, 5), (2, 8), (2, 20)])
def test_fgmres_is_gmres_when_the_preconditioner_does_not_change(dtype, k, steps):
    a, rng = matrices.generate("gauss", 60, dtype=dtype).a, np.random.default_rng(1)
    r = rng.standard_normal((60, k)).astype(dtype)

    d, used, *_ = fgmres(OPS, lambda v: a @ v, lambda v: v, r, basis=steps, tol=1e-300)

    assert used.tolist() == k * [steps]
    for c in range(k):
        norms, how = [], {"callback_type": "pr_norm", "rtol": 0, "restart": 60, "maxiter": 1}
        scipy.sparse.linalg.gmres(a, r[:, c], callback=norms.append, **how)
        found = relative_residual(a, d[:, [c]], r[:, [c]])[0]
        assert found == pytest.approx(norms[steps - 1], rel=1e-10, abs=1e-14)


def test_fgmres_minimises_over_the_preconditioned_space():
    rng = np.random.default_rng(2)
    a, r = dominant(20), rng.standard_normal((20, 1))
    seen = []

    def changing(v):  # another preconditioner each time
        z = v / np.diag(a)[:, None] * rng.uniform(0.5, 2, (20, 1))
        seen.append(z.copy())
        return z

    d, *_ = fgmres(OPS, lambda v: a @ v, changing, r, basis=4, tol=1e-300)

    z = np.hstack(seen)
    best = r - a @ z @ np.linalg.lstsq(a @ z, r)[0]
    assert np.linalg.norm(r - a @ d) == pytest.approx(np.linalg.norm(best), rel=1e-10)


@pytest.mark.parametrize("dtype", [float, complex])
def test_columns_in_lockstep_do_not_mix(dtype):
    a = dominant(40, dtype=dtype)
    r = np.random.default_rng(0).standard_normal((40, 3)).astype(dtype) * [1, 1e-200, 1e200]

    together, steps, *_ = fgmres(OPS, lambda v: a @ v, lambda v: v, r, basis=30, tol=1e-8)

    assert (
        relative_residual(a, together / [1, 1e-200, 1e200], r / [1, 1e-200, 1e200]) <= 1e-7
    ).all()
    for c in range(3):
        alone, one, *_ = fgmres(OPS, lambda v: a @ v, lambda v: v, r[:, [c]], basis=30, tol=1e-8)
        assert one[0] == steps[c]
        np.testing.assert_allclose(together[:, [c]], alone, rtol=1e-6)


def test_an_exact_preconditioner_needs_one_step():
    a = dominant(40)

    d, steps, *_ = fgmres(
        OPS, lambda v: a @ v, lu_correction(a), np.ones((40, 2)), basis=20, tol=1e-10
    )

    assert steps.tolist() == [1, 1]
    assert (relative_residual(a, d, np.ones((40, 2))) <= 1e-10).all()


def test_a_full_space_is_exact_and_the_basis_stops_at_n():
    a = matrices.generate("gauss", 6, seed=5).a

    d, steps, *_ = fgmres(OPS, lambda v: a @ v, lambda v: v, np.ones((6, 1)), basis=50, tol=1e-300)

    assert steps[0] <= 6
    assert relative_residual(a, d, np.ones((6, 1)))[0] <= 1e-12


def test_a_singular_preconditioner_gives_finite_corrections():
    a, project = dominant(10), np.diag([1.0] * 5 + [0] * 5)

    d, *_ = fgmres(
        OPS, lambda v: a @ v, lambda v: project @ v, np.ones((10, 1)), basis=10, tol=1e-9
    )

    assert np.isfinite(d).all()


def near_singular(amplitude, seed, n=60, small=5, cond=1e10):
    """Return A with a few small singular values, a function that applies its inverse with errors, and b.

    The errors lie in the directions of the small singular values.  They change from call to call, like those
    of triangular solves whose precision is too low.
    """
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    size = np.where(np.arange(n) < n - small, 1.0, 1 / cond)

    def correct(v):
        errors = amplitude * cond * right[:, -small:] @ rng.standard_normal((small, v.shape[1]))
        return (right / size) @ (left.T @ v) + errors

    return (left * size) @ right.T, correct, rng.standard_normal((n, 1))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("amplitude", [1, 1e2, 1e4])
def test_the_estimates_count_the_digits_that_the_basis_loses(amplitude, seed):
    a, correct, r = near_singular(amplitude, seed)
    norm = np.linalg.norm(a, np.inf)

    cycle = fgmres(OPS, lambda v: a @ v, correct, r, basis=60, tol=1e-9, norm=norm)

    true = relative_residual(a, cycle.d, r)
    assert true > 1e-7  # although the least-squares problem has a residual of 1e-9
    assert true / 10 < cycle.reductions[-1][1] < 10 * true


@pytest.mark.parametrize("seed", range(5))
def test_a_cycle_takes_no_step_that_adds_only_rounding_errors(seed):
    def found(norm):
        a, correct, r = near_singular(1e6, seed)
        d, *_ = fgmres(OPS, lambda v: a @ v, correct, r, basis=60, tol=1e-9, norm=norm)
        return relative_residual(a, d, r)

    aware, unaware = found(np.linalg.norm(near_singular(1e6, seed)[0], np.inf)), found(0.0)

    assert aware < 5 and aware < unaware


def test_a_preconditioner_with_fewer_errors_takes_over_what_did_not_converge():
    a, coarse, b = near_singular(1e5, 0)
    norm, calls = np.linalg.norm(a, np.inf), []

    def precise(r):
        calls.append(r)
        return np.linalg.solve(a, r)

    plan = Plan("fp32", method="fgmres", basis=100)
    args = OPS, Operator.of(OPS, a, norm), b, coarse, plan, 1e-15

    assert not refine_columns(*args, max_steps=200).all_converged
    found = refine_columns(*args, max_steps=200, precise=precise)

    assert found.all_converged and calls
    assert found.history[-1].error <= 1e-15


# ---- the stopping rule


def test_a_nan_error_is_never_converged_nor_contracting():
    errors = np.array([np.nan, 1e-17, 1e-3])
    assert stopping.converged(errors, 1e-16).tolist() == [False, True, False]
    assert stopping.contracting(errors, np.full(3, 1e-2), 0.5).tolist() == [False, True, True]
    assert not stopping.contracting(1e-3, np.nan, 0.5)
    assert not stopping.converged(0.0, np.nan)


def test_the_bound_is_met_when_it_is_equalled():
    assert stopping.converged(1e-16, 1e-16)
    assert stopping.contracting(0.5, 1.0, 0.5) and not stopping.contracting(0.51, 1.0, 0.5)


@pytest.mark.parametrize("char, rounding", [("f", 2.0**-24), ("F", 2.0**-24), ("d", 0), ("D", 0)])
def test_before_x_is_rounded_to_fp32_the_bound_is_less_by_that_rounding(char, rounding):
    for n in (1, 2, 100):
        before = stopping.before_rounding(np.dtype(char), n)
        assert 0 < before == stopping.target(np.dtype(char), n) - rounding


def test_the_target_is_u_sqrt_n():
    assert stopping.target(np.dtype(np.float64), 100) == 10 * 2.0**-53
    assert stopping.target(np.dtype(np.complex64), 100) == 10 * 2.0**-24


@pytest.mark.parametrize(
    "error, start, steps, bound, expected",
    [
        (1e-4, 1e0, 4, 1e-8, 4.0),
        (1e-2, 1e0, 4, 1e-8, 12.0),
        (1e-9, 1e0, 4, 1e-8, 0.0),
        (1.0, 1.0, 4, 1e-8, math.inf),
        (2.0, 1.0, 4, 1e-8, math.inf),
        (math.nan, 1.0, 4, 1e-8, math.inf),
        (1e-4, math.nan, 4, 1e-8, math.inf),
        (1e-4, math.inf, 4, 1e-8, math.inf),
        (1e-4, 1.0, 0, 1e-8, math.inf),
        (1e-4, 1.0, 4, 0.0, math.inf),
    ],
)
def test_the_rest_is_projected_at_the_average_rate(error, start, steps, bound, expected):
    assert stopping.projected_steps(error, start, steps, bound) == pytest.approx(expected)
