"""LU solves with BF16 factors, counted as a published program counts them."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tcsolve import matrices


@pytest.fixture
def program(script):
    return script("_bf16_program")


def identity_factors(program, n):
    return program.Factors(np.eye(n, dtype=np.float32), np.arange(n), 0)


def test_the_nearest_number_of_bf16_is_taken_ties_to_even(program):
    x = [1 + 2.0**-8, 1 + 3 * 2.0**-8, -(1 + 2.0**-7 + 2.0**-20), np.inf, 3.4e38]
    assert program.rounded(x).tolist() == [1, 1 + 2.0**-6, -(1 + 2.0**-7), np.inf, np.inf]
    assert program.rounded(np.float32(2.0**-130)) == 2.0**-130


def test_rows_then_columns_are_scaled_to_one(program):
    w = program.by_rows_and_columns(np.array([[4.0, -8], [1, 0.5]]))
    assert w.tolist() == [[0.5, -1], [1, 0.5]]


@pytest.mark.parametrize("density", [0.2, 1.0])
def test_the_factors_are_those_of_a_loop_over_all_entries(program, density):
    rng, n = np.random.default_rng(3), 14
    a = rng.standard_normal((n, n)) * (rng.random((n, n)) < density) + np.eye(n)
    w, order = program.rounded(a), list(range(n))
    for k in range(n):
        best = k + int(np.abs(w[k:, k]).argmax())
        w[[k, best]], order[k], order[best] = w[[best, k]], order[best], order[k]
        inverse = program.rounded(1 / w[k, k])
        for i in range(k + 1, n):
            w[i, k] = program.rounded(w[i, k] * inverse)
            for j in range(k + 1, n):
                w[i, j] = program.rounded(w[i, j] - program.rounded(w[i, k] * w[k, j]))

    found = program.factor(a)

    assert found.lu.tolist() == w.tolist() and found.order.tolist() == order
    assert found.zero_pivots == 0


def test_a_zero_pivot_is_replaced_and_counted(program):
    found = program.factor(np.array([[4.0, 2], [4, 2]]))
    assert found.lu.tolist() == [[4, 2], [1, 2.0**-6]] and found.zero_pivots == 1


def test_the_first_x_is_as_exact_as_bf16(program):
    a = matrices.generate("svd_geo", 40, cond=4.0).a
    x = np.linspace(1, 2, 40)
    start = program.Problem(a, program.factor(a), x).start
    assert (start == program.rounded(start)).all()
    assert 1e-4 < np.abs(start - x).max() < 0.15


def test_the_residual_is_accurate_where_nearly_all_digits_cancel(program):
    a = matrices.generate("svd_geo", 30, cond=1e14).a
    x = np.random.default_rng(0).standard_normal(30)
    problem = program.Problem(a, identity_factors(program, 30), x)
    near = x * (1 + 1e-15) + np.linalg.svd(a)[2][-1] * 1e-3

    r = problem.residual(near)

    parts = [Fraction(float(u)) - Fraction(float(v)) for u, v in zip(x, near, strict=True)]
    exact = [sum(Fraction(float(u)) * v for u, v in zip(row, parts, strict=True)) for row in a]
    error = max(abs(float(Fraction(float(u)) - v)) for u, v in zip(r, exact, strict=True))
    # One rounding to FP64, and sums of products of 64 bits.
    bound = 2.0**-53 * np.abs(r).max() + 32 * 2.0**-64 * (np.abs(a) @ np.abs(x - near)).max()
    assert error <= bound < 1e-3 * np.abs(r).max()


def test_the_first_x_and_each_start_of_gmres_count_as_solves(program):
    identity, ones = identity_factors(program, 6), np.ones(6)
    exact = program.Problem(np.eye(6), identity, ones)
    assert program.run(exact) == program.run(exact, 1e-10) == (1, 0)
    # One step of GMRES multiplies the residual by about 5e-4, so each of five cycles has one step.
    problem = program.Problem(np.diag([2.0, 2, 2, 2.002, 2.002, 2.002]), identity, ones)
    assert program.run(problem, 1e-3) == (1 + 5 * (1 + 1), 1)
    assert program.run(problem, 1e-3, most=10).solves is None
    assert program.run(problem).solves is None  # I - A has the eigenvalue -1.002


def test_each_correction_of_lu_ir_counts_as_one_solve(program):
    problem = program.Problem(1.25 * np.eye(4), identity_factors(program, 4), np.ones(4))
    # The error is 1/4 after the first x, and each correction divides it by -4, until it is 2 u.
    assert program.run(problem).solves == 1 + 25
    problem.start = np.full(4, np.nan)
    assert program.run(problem).solves is None


def test_the_best_tolerance_is_found(program):
    for n, cond in ((30, 1e3), (60, 1e6)):
        a = matrices.generate("svd_geo", n, cond=cond).a
        problem = program.Problem(a, program.factor(a), np.ones(n))
        for precisions in ("BSS", "BSD", "BDD"):
            tols = sorted(program.INNER_TOLS, reverse=True)
            each = [program.run(problem, tol, 200, precisions) for tol in tols]
            best = min((found.solves for found in each if found.solves), default=None)
            assert program.fewest(problem, precisions, 200) == best
            assert [found.first for found in each] == sorted(found.first for found in each)
            if best:
                assert program.fewest(problem, precisions, best - 1) is None
    assert program.fewest(problem, "ir") is None


def test_bf16_vectors_round_each_operation(script):
    module, rng = script("_counted_refinement"), np.random.default_rng(4)
    a, z = np.eye(9) + 0.05 * rng.standard_normal((9, 9)), rng.standard_normal(9)
    exact = np.linalg.solve(a, z)
    errors = []
    for dtype in (ml_dtypes.bfloat16, np.float32, np.float64):
        d, steps = module.gmres(lambda v: a @ v.astype(float), z, 1e-14, 9, dtype)
        assert d.dtype == dtype and steps <= 9
        errors.append(np.abs(d.astype(float) - exact).max())
    assert 1e-4 < errors[0] < 0.1 and 1e-8 < errors[1] < 1e-5 and errors[2] < 1e-13


def test_sums_in_bf16_are_rounded_in_their_order(script):
    module = script("_counted_refinement")
    ones = np.ones(400, ml_dtypes.bfloat16)
    assert module.dot(ones, ones) == 256  # 256 + 1 is 256 in BF16
    assert module.norm_of(ones) == 20
    u = np.array([[2, 1], [0, 4]], ml_dtypes.bfloat16)
    assert module.solved(u, np.array([3, 4], ml_dtypes.bfloat16)).tolist() == [1, 1]


@pytest.mark.parametrize("n", [5, 32, 70])
@pytest.mark.parametrize("lower", [False, True])
def test_products_in_extended_precision_have_more_digits(program, n, lower):
    a = matrices.generate("svd_geo", n, cond=1e3).a
    factors, v = program.factor(a), np.random.default_rng(n).standard_normal(n)
    problem = program.Problem(a, factors, np.ones(n))
    found = {t: problem.products(t) for t in (np.float32, np.float64, np.longdouble)}
    exact = [f(v) for f in found[np.longdouble]][int(lower)]
    assert exact.dtype == np.longdouble
    errors = [np.abs(found[t][int(lower)](v) - exact).max() for t in (np.float32, np.float64)]
    size = np.abs(exact).max()
    assert 1e-10 * size < errors[0] < 1e-2 * size and 1e-19 * size < errors[1] < 1e-11 * size


def test_the_counts_of_a_program_have_each_multiplier(program):
    counts = program.program_counts(matrices.generate("svd_geo", 30, cond=1e2).a)
    for method in ("ir", *program.GMRES):
        many = method in ("ir", program.FP64_GMRES)
        assert list(counts.found[method]) == list(program.MULTIPLIERS)
        assert len(counts.best(method)) == len(counts.plain(method))
        assert len(counts.best(method)) == (program.SOLUTIONS if many else 1)
    for method in program.GMRES:
        pairs = zip(counts.best(method), counts.plain(method), strict=True)
        assert all(3 <= best <= plain for best, plain in pairs)
    assert counts.best("BBS") > counts.best("BSS") >= counts.best("BDQ")[:1]
    assert counts.zero_pivots == 0
    some = program.Counts({"ir": {1.0: [3, None], 10.0: [2, None]}}, 0)
    assert some.best("ir") == [2, None] and some.plain("ir") == [3, None]
