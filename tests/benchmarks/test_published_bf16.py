"""LU solves with BF16 factors, counted as a published program counts them."""

from fractions import Fraction

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
    assert 1e-4 < np.abs(start - x).max() < 0.2


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
    assert program.solves(exact) == program.solves(exact, 1e-10) == 1
    # One step of GMRES multiplies the residual by about 5e-4, so each of five cycles has one step.
    problem = program.Problem(np.diag([2.0, 2, 2, 2.002, 2.002, 2.002]), identity, ones)
    assert program.solves(problem, 1e-3) == 1 + 5 * (1 + 1)
    assert program.solves(problem, 1e-3, most=10) is None
    assert program.solves(problem) is None  # I - A has the eigenvalue -1.002


def test_each_correction_of_lu_ir_counts_as_one_solve(program):
    problem = program.Problem(1.25 * np.eye(4), identity_factors(program, 4), np.ones(4))
    # The error is 1/4 after the first x, and each correction divides it by -4, until it is 2 u.
    assert program.solves(problem) == 1 + 25
    problem.start = np.full(4, np.nan)
    assert program.solves(problem) is None


def test_the_best_tolerance_is_found(program):
    a = matrices.generate("svd_geo", 60, cond=1e6).a
    problem = program.Problem(a, program.factor(a), np.ones(60))
    each = [program.solves(problem, tol) for tol in program.INNER_TOLS]
    assert program.fewest(problem, "fgmres") == min(count for count in each if count)
    assert program.fewest(problem, "ir") is None


def test_the_counts_of_a_program_have_each_multiplier(program):
    counts = program.program_counts(matrices.generate("svd_geo", 30, cond=1e2).a)
    assert list(counts.fgmres) == list(counts.ir) == list(program.MULTIPLIERS)
    for method in ("ir", "fgmres"):
        assert len(counts.best(method)) == len(counts.plain(method)) == program.SOLUTIONS
    pairs = zip(counts.best("fgmres"), counts.plain("fgmres"), strict=True)
    assert all(3 <= best <= plain for best, plain in pairs)
    assert counts.zero_pivots == 0
    some = program.Counts({1.0: [3, None], 10.0: [2, None]}, {}, 0)
    assert some.best("ir") == [2, None] and some.plain("ir") == [3, None]
