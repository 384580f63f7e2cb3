"""Answers do not change when the system is scaled, permuted or written differently."""

import numpy as np
import pytest
from bounds import MET, forward_ratio, ratio
from hypothesis import given, settings
from hypothesis import strategies as st

from tcsolve import solve, solve_ex
from tcsolve._arithmetic.formats import UPDATES

PRECISIONS = ("auto", *UPDATES)

sizes = st.integers(2, 40)
seeds = st.integers(0, 2**32 - 1)
exponents = st.integers(-80, 80)
precisions = st.sampled_from(PRECISIONS)


@st.composite
def systems(draw):
    """Gaussian systems, not too badly conditioned for a forward comparison to mean anything."""
    n, rng = draw(sizes), np.random.default_rng(draw(seeds))
    a = rng.standard_normal((n, n)) + 3 * np.eye(n)
    b = rng.standard_normal((n, draw(st.integers(1, 3))))
    if draw(st.booleans()):
        a = a + 1j * rng.standard_normal((n, n))
    return a, b.astype(a.dtype), rng


@given(systems(), precisions)
def test_every_random_system_is_solved_to_the_bound(system, precision):
    a, b, _ = system
    solution = solve_ex(a, b, precision=precision)
    assert solution.status.ok
    assert ratio(a, solution.x, b) <= MET


@given(systems(), precisions)
def test_the_same_input_gives_the_same_bits(system, precision):
    a, b, _ = system
    first, second = (solve(a.copy(), b.copy(), precision=precision) for _ in range(2))
    assert np.array_equal(first, second)


@given(systems(), exponents, precisions)
def test_b_times_a_power_of_two_gives_x_times_it_bit_for_bit(system, exponent, precision):
    a, b, _ = system
    scale = 2.0**exponent
    assert np.array_equal(
        solve(a, scale * b, precision=precision), scale * solve(a, b, precision=precision)
    )


@given(systems(), st.integers(-30, 30), precisions)
def test_a_times_a_power_of_two_gives_x_divided_by_it_bit_for_bit(system, exponent, precision):
    a, b, _ = system
    scale = 2.0**exponent
    assert np.array_equal(
        solve(scale * a, b, precision=precision), solve(a, b, precision=precision) / scale
    )


@given(systems(), st.integers(60, 900), precisions)
def test_a_and_b_times_a_huge_power_of_two_have_the_same_answer(system, exponent, precision):
    a, b, _ = system
    for scale in (2.0**exponent, 2.0**-exponent):
        x = solve(scale * a, scale * b, precision=precision)
        assert ratio(a, x, b) <= MET


@given(systems(), precisions)
def test_rows_times_powers_of_two_have_the_same_answer(system, precision):
    a, b, rng = system
    rows = 2.0 ** rng.integers(-60, 60, (len(a), 1))
    # The matrix as it stands is ill-conditioned, and `solve` would say so, as SciPy does.
    solution = solve_ex(rows * a, rows * b, precision=precision)
    x = solution.x
    assert solution.status.ok
    assert ratio(rows * a, x, rows * b) <= MET
    # The x of the system with small rows must also solve the original system, except after an LU without
    # scaling.
    if precision not in ("auto", "fp64"):
        assert forward_ratio(a, x, np.linalg.solve(a, b)) <= MET


@given(systems(), precisions)
def test_columns_times_powers_of_two_divide_the_entries_of_x(system, precision):
    a, b, rng = system
    columns = 2.0 ** rng.integers(-30, 30, len(a))
    solution = solve_ex(a * columns, b, precision=precision)
    assert solution.status.ok
    assert ratio(a * columns, solution.x, b) <= MET


@given(systems(), precisions)
def test_the_order_of_the_equations_does_not_matter(system, precision):
    a, b, rng = system
    order = rng.permutation(len(a))
    x = solve(a[order], b[order], precision=precision)
    assert ratio(a, x, b) <= MET


@given(systems(), precisions)
def test_the_order_of_the_unknowns_permutes_x(system, precision):
    a, b, rng = system
    order = rng.permutation(len(a))
    y = solve(a[:, order], b, precision=precision)
    x = np.empty_like(y)
    x[order] = y
    assert ratio(a, x, b) <= MET


@given(systems(), precisions)
def test_each_column_is_solved_as_if_alone(system, precision):
    a, b, _ = system
    together = solve(a, b, precision=precision)
    for x, column in zip(together.T, b.T, strict=True):
        assert forward_ratio(a, x, solve(a, column, precision=precision)) <= MET


@given(systems(), precisions)
def test_a_unit_vector_gives_a_column_of_the_inverse(system, precision):
    a, _, _ = system
    inverse = solve(a, np.eye(len(a)), precision=precision)
    assert ratio(a, inverse, np.eye(len(a))) <= MET


@settings(max_examples=20)
@given(systems(), precisions)
def test_a_real_matrix_solves_for_real_and_imaginary_parts_apart(system, precision):
    a, b, rng = system
    a, b = a.real.copy(), b.real + 1j * rng.standard_normal(b.shape)
    x = solve(a, b, precision=precision)
    assert x.dtype == np.complex128
    assert ratio(a, x.real, b.real) <= MET and ratio(a, x.imag, b.imag) <= MET


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_zero_right_hand_side_has_the_zero_answer(xp, precision):
    a = xp.asarray(np.random.default_rng(0).standard_normal((20, 20)))
    b = xp.zeros((20, 2))
    b[3, 1] = 1
    solution = solve_ex(a, b, precision=precision)
    assert solution.status.ok
    assert not solution.x[:, 0].any() and solution.x[:, 1].all()
