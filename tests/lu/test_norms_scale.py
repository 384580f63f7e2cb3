"""Norms, the condition estimate, and scaling that is undone exactly."""

import math
import warnings

import numpy as np
import pytest
import scipy.linalg
from bounds import host

from tcsolve import matrices
from tcsolve._backends.cpu.ops import NumpyOps
from tcsolve._lu.norms import Sweep, begin_condest, condest, hold, joined, survey, sweeps_at_once
from tcsolve._lu.scaling import (
    Frame,
    Scaling,
    equilibrate,
    needs_frame,
    needs_scaling,
    norm_and_exponent,
    shift_columns,
)
from tcsolve._solve.problem.system import expects_dominance

OPS = NumpyOps()


def is_power_of_two(x):
    return (np.frexp(x)[0] == 0.5).all()


# ---- norms


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("n", [1, 2, 17, 300])
def test_the_sums_and_maxima_are_those_of_the_absolute_values(n, dtype, order):
    a = np.array(matrices.generate("gauss", n, dtype=dtype).a, order=order)

    rows, columns = OPS.row_stats(a), OPS.row_stats(a.T)

    exact = np.abs(a.astype(np.complex128))
    bound = 2 * np.finfo(dtype).eps + n * 2.0**-53  # each modulus, then the sum of n in FP64
    for mine, theirs in (
        (rows.total, exact.sum(axis=1)),
        (columns.total, exact.sum(axis=0)),
        (rows.top, exact.max(axis=1)),
        (columns.top, exact.max(axis=0)),
    ):
        assert mine.shape == (n,)
        assert (np.abs(mine - theirs) <= bound * theirs).all()


@pytest.mark.parametrize("n", [1, 17, 300])
def test_scaled_sums_and_maxima_are_those_of_the_scaled_rows(n):
    a = matrices.generate("gauss", n).a
    row = 2.0 ** np.random.default_rng(0).integers(-30, 30, n)

    stats, exact = OPS.row_stats(a.T, row), np.abs(a * row[:, None])
    assert np.array_equal(stats.top, exact.max(axis=0))
    np.testing.assert_allclose(stats.total, exact.sum(axis=0), rtol=n * 2.0**-53)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", [(0, 0), (150, 7), (299, 299)])
def test_a_nan_or_inf_reaches_the_norms(value, where):
    a = matrices.generate("gauss", 300).a
    a[where] = value

    found = survey(OPS, a)

    assert not found.finite
    assert not math.isfinite(found.inf) and not math.isfinite(found.one)


def test_norms_that_overflow_are_not_finite_and_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not survey(OPS, np.full((40, 40), 1e308)).finite


def test_the_survey_is_that_of_the_matrix():
    a = np.array([[4.0, -1, 0], [2, 8, 0.5], [0, 0, 2.0**-10]])

    found = survey(OPS, a)

    assert found.finite
    assert (found.inf, found.one) == (10.5, 9.0)
    assert found.row_spread == 2.0**-10 / 10.5
    assert found.col_spread == (2.0**-10 + 0.5) / 9


@pytest.mark.parametrize(
    "change, dominant", [(0.0, True), (2.999, True), (3.0, False), (4.0, False), (-4.0, False)]
)
def test_dominance_is_strict_and_by_rows(change, dominant):
    a = np.array([[5.0, 2, 0], [0, 5, 0], [0, 90, 100]])
    a[0, 2] = change

    assert (survey(OPS, a).dominance > 0) == dominant


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("excess", [1e-9, 1e-3, 1.0, 100.0])
@pytest.mark.parametrize("n", [1, 2, 30])
def test_dominance_bounds_the_condition(n, excess, dtype):
    for seed in range(5):
        a = matrices.generate("gauss", n, seed=seed, dtype=dtype).a
        # The rows have different sizes, so the columns need not be dominant.
        a *= np.float32(10.0) ** np.arange(n)[:, None] ** 0.3
        np.fill_diagonal(a, 0)
        np.fill_diagonal(a, np.abs(a.astype(complex)).sum(axis=1) * (1 + excess) + excess)
        found = survey(OPS, a)
        true = 1 / np.linalg.cond(a.astype(np.complex128), 1)

        least = found.least_rcond(n)

        assert least <= true * (1 + 1e-6)
        # The bound is not 0 unless rounding the diagonal to the dtype could remove the dominance.
        assert least > 0 or excess < 100 * np.finfo(dtype).eps * n


@pytest.mark.parametrize("change", [3.0, 4.0, np.nan, np.inf])
def test_without_dominance_there_is_no_bound_on_the_condition(change):
    a = np.array([[5.0, 2, 0], [0, 5, 0], [0, 90, 100]])
    assert survey(OPS, a).least_rcond(3) > 0
    a[0, 2] = change

    assert survey(OPS, a).least_rcond(3) == 0


def test_the_sum_of_float32_entries_does_not_overflow_in_float32():
    assert survey(OPS, np.full((20, 20), 3e38, np.float32)).inf == pytest.approx(6e39)


# ---- the condition estimate


REAL_OR_COMPLEX = [
    ("gauss", {}),
    ("svd_geo", {"cond": 1e3}),
    ("svd_geo", {"cond": 1e12}),
    ("svd_cluster0", {"cond": 1e8}),
    ("svd_cluster1", {"cond": 1e8}),
    ("svd_arith", {"cond": 1e6}),
]
# The inverse of a larger Frank matrix cannot be computed in FP64.
REAL = [("kahan", 60), ("frank", 5), ("minij", 60)]
ESTIMATED = [
    (name, options, n, dtype)
    for dtype in (float, complex)
    for n in (1, 2, 5, 60)
    for name, options in REAL_OR_COMPLEX
] + [(name, {}, n, float) for name, largest in REAL for n in (1, 2, 5, 60) if n <= largest]


@pytest.mark.parametrize("name, options, n, dtype", ESTIMATED)
def test_the_estimate_is_at_most_a_factor_of_ten_above_the_true_rcond(name, options, n, dtype):
    a = matrices.generate(name, n, dtype=dtype, **options).a
    inverse = np.linalg.inv(a)
    true = 1 / (np.linalg.norm(a, 1) * np.linalg.norm(inverse, 1))

    rcond, *_ = condest(
        OPS, a, np.linalg.norm(a, 1), lambda v: inverse @ v, lambda v: inverse.conj().T @ v
    )

    # ||A^-1|| is estimated from below.
    assert true * (1 - 1e-6) <= rcond <= 10 * true


def test_the_estimate_uses_few_solves():
    a = matrices.generate("gauss", 200).a
    inverse, calls = np.linalg.inv(a), []

    def solve(v):
        calls.append(v.shape[1])
        return inverse @ v

    def solve_adjoint(v):
        calls.append(v.shape[1])
        return inverse.T @ v

    condest(OPS, a, np.linalg.norm(a, 1), solve, solve_adjoint)

    assert sum(calls) <= 11


@pytest.mark.parametrize("name", ["gauss", "kahan", "uniform", "gauss_dominant"])
def test_the_estimate_is_the_same_however_many_sweeps_are_begun(name):
    a = matrices.generate(name, 30).a
    inverse, norm = np.linalg.inv(a), np.linalg.norm(a, 1)
    solvers = (lambda v: inverse @ v), (lambda v: inverse.T @ v)
    whole = condest(OPS, a, norm, *solvers)

    for sweeps in (1, 2, 3, 4):
        begun = begin_condest(OPS, 30, *solvers, sweeps)
        found = condest(OPS, a, norm, *solvers, begun)
        assert found[:2] == whole[:2] and found.doubt(0.1) == whole.doubt(0.1)


@pytest.mark.parametrize("dtype", [float, complex])
def test_sweeps_begun_in_vain_solve_for_nothing(dtype):
    a = matrices.generate("gauss", 30, dtype=dtype).a
    inverse, wanted = np.linalg.inv(a), []

    def solve_by(inverse):
        def solve(v):
            wanted.append(bool(v.any()))
            return inverse @ v

        return solve

    begin_condest(OPS, 30, solve_by(inverse), solve_by(inverse.conj().T), 4)

    assert len(wanted) == 9
    first_in_vain = wanted.index(False)
    assert first_in_vain < 8 and not any(wanted[first_in_vain:])


def test_a_dominant_matrix_needs_no_more_sweeps_at_once_than_others():
    assert [sweeps_at_once(n, True) for n in (100, 4097, 8192, 20000)] == [2, 2, 2, 2]
    assert [sweeps_at_once(n, False) for n in (100, 4097, 8192, 20000)] == [2, 4, 4, 2]


@pytest.mark.parametrize("norm", [0.0, math.inf, math.nan])
def test_no_norm_gives_no_condition(norm):
    unreachable = lambda v: pytest.fail("nothing to solve")  # noqa: E731
    found = condest(OPS, np.eye(5), norm, unreachable, unreachable)
    assert (found.rcond, found.doubt(0.1)) == (0.0, math.inf)


@pytest.mark.parametrize("value", [math.inf, math.nan, 0.0])
def test_solves_that_break_down_give_rcond_zero(value):
    broken = lambda v: np.full(v.shape, value)  # noqa: E731
    with np.errstate(all="ignore"):
        found = condest(OPS, np.eye(5), 1.0, broken, broken)
        assert (found.rcond, found.doubt(0.1)) == (0.0, math.inf)


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("smallest, doubt", [(1e-6, 0), (1e-9, 1), (0, 1)])
def test_doubt_tells_whether_the_solves_see_the_smallest_singular_value(smallest, doubt, dtype):
    a = matrices.generate("gauss", 40, seed=6, dtype=dtype).a
    u, s, vh = np.linalg.svd(a)
    of_a, of_solves = (np.append(s[:-1], last) for last in (smallest, smallest + 1e-7))
    # In the solves, the smallest singular value has an error of 1e-7, as with factors of low precision.
    inverse = (vh.conj().T / of_solves) @ u.conj().T
    solvers = (lambda v: inverse @ v), (lambda v: inverse.conj().T @ v)

    found = condest(OPS, (u * of_a) @ vh, np.linalg.norm(a, 1), *solvers)

    assert found.doubt(0.1) == pytest.approx(doubt, abs=0.1)


@pytest.mark.parametrize("sweeps", [2, 3, 4])
@pytest.mark.parametrize("alternative, largest", [(1, 19), (90, 21), (190, 21)])
def test_doubt_is_about_the_largest_column(alternative, largest, sweeps):
    a, rng = np.eye(3), np.random.default_rng(0)
    vectors = [Sweep(*rng.standard_normal((3, 3, 1))) for _ in range(sweeps)]
    # Each row is a sweep: the estimate rises to 10, then to `largest`, and no further.
    rows = [(0, 9, 10), (1, 9, largest), (1, 9, 0), (1, 9, 0)][:sweeps]
    probes = rng.standard_normal((3, 4))  # the solves are exact for these
    begun = np.array([1, alternative, *sum(rows, ())], float), (probes, probes, vectors)
    solves = lambda v: -v  # noqa: E731

    found = condest(OPS, a, 1.0, solves, solves, begun)

    e, v, _ = vectors[1]
    z = vectors[2].z if sweeps > 2 else -np.sign(v)
    expected = math.inf if alternative == 190 else abs((z.T @ (e - a @ v)).item()) / largest
    assert found.doubt(0.1) == pytest.approx(expected, rel=1e-12)
    assert found.rcond == 1 / max(largest, 2 * alternative / 9) and found.column == 1


class Counted(NumpyOps):
    """Primitives that count the products with a matrix."""

    products = 0

    def product(self, a, x, adjoint=False):
        self.products += 1
        return super().product(a, x, adjoint)


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("sweeps", [2, 3, 4])
@pytest.mark.parametrize("smallest", [1e-3, 1e-6, 1e-9])
def test_solves_that_were_checked_with_a_before_are_not_checked_again(smallest, sweeps, dtype):
    a = matrices.generate("gauss", 40, seed=6, dtype=dtype).a
    u, s, vh = np.linalg.svd(a)
    s[-1] = smallest
    a, inverse = (u * s) @ vh, (vh.conj().T / (s + 1e-7)) @ u.conj().T
    solvers = (lambda v: inverse @ v), (lambda v: inverse.conj().T @ v)
    norm, ops = np.linalg.norm(a, 1), Counted()
    whole = condest(OPS, a, norm, *solvers)
    found, rest = begin_condest(ops, 40, *solvers, sweeps)

    held = hold(ops, a, *joined(np, *rest))
    condition = condest(ops, a, norm, *solvers, (np.concatenate([found, held]), rest))

    assert held.shape == (8 + sweeps - 1,) and condition[:2] == whole[:2]
    assert condition.doubt(0.1) == pytest.approx(whole.doubt(0.1), rel=1e-6)
    # The product is that of `hold`: it includes the largest column, and the probes need no refinement.
    assert ops.products == 1


@pytest.mark.parametrize("dtype", [float, complex])
def test_doubt_sees_a_null_vector_next_to_a_larger_column(dtype):
    """One block, with the largest column, is inverted exactly; the inverse of the other block is wrong."""
    a = matrices.generate("gauss", 20, seed=1, dtype=dtype).a
    u, s, vh = np.linalg.svd(a)
    s[-1] = 0
    good, bad = np.eye(30) - 2 * np.eye(30, k=1), (u * s) @ vh
    a, rng = scipy.linalg.block_diag(good, bad), np.random.default_rng(0)
    bad = bad + 1e-6 * rng.standard_normal((20, 20))
    inverse = scipy.linalg.block_diag(np.linalg.inv(good), np.linalg.inv(bad))

    found = condest(OPS, a, 1.0, lambda v: inverse @ v, lambda v: inverse.conj().T @ v)

    assert found.column < 30 and found.doubt(0.1) > 0.5


# ---- scaling


def badly_scaled(n=30, decades=40, seed=0):
    return matrices.generate("mixed_scales", n, seed=seed, decades=decades).a


def scaled(a, scaling):
    return np.ldexp(
        np.ldexp(a, np.frexp(scaling.row)[1][:, None] - 1), np.frexp(scaling.col)[1] - 1
    )


@pytest.mark.parametrize("decades", [0, 8, 40, 120])
@pytest.mark.parametrize("seed", range(3))
def test_equilibration_brings_rows_and_columns_to_one(decades, seed):
    a = badly_scaled(decades=decades, seed=seed)

    scaling = equilibrate(OPS, a)

    assert is_power_of_two(scaling.row) and is_power_of_two(scaling.col)
    result = np.abs(scaled(a, scaling))
    assert ((result.max(axis=0) >= 0.5) & (result.max(axis=0) < 1)).all()
    assert (result.max(axis=1) < 1).all() and result.max(axis=1).min() > 2.0**-20


def test_a_zero_row_and_column_are_left_alone():
    a = badly_scaled()
    a[3], a[:, 5] = 0, 0

    scaling = equilibrate(OPS, a)

    assert scaling.row[3] == 1 and scaling.col[5] == 1
    assert np.isfinite(scaled(a, scaling)).all()


def test_subnormal_rows_are_scaled_by_representable_powers():
    a = matrices.generate("gauss", 6).a
    a[2] *= 5e-324

    scaling = equilibrate(OPS, a)

    assert np.isfinite(scaling.row).all() and is_power_of_two(scaling.row)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("order", "CF")
def test_a_scaled_cast_rounds_each_entry_once(dtype, order):
    complex_ = np.dtype(dtype).kind == "c"
    a = matrices.generate("mixed_scales", 20, dtype=complex if complex_ else float, decades=20).a
    a = np.array(a, order=order)
    scaling = equilibrate(OPS, a)

    w = OPS.cast_scaled(a, scaling.row, scaling.col, np.dtype(dtype))

    assert w.dtype == dtype and w.flags.c_contiguous
    assert np.array_equal(w, (a * scaling.row[:, None] * scaling.col).astype(dtype))


def test_scales_that_leave_the_range_one_by_one_may_cancel():
    a = np.array([[2.0**-1000]])
    w = OPS.cast_scaled(a, np.array([2.0**1020]), np.array([2.0**-20]), np.dtype(float))
    assert w[0, 0] == 1
    w = OPS.cast_scaled(np.array([[1.5]]), np.array([2.0**1000]), np.array([2.0**-1000]), w.dtype)
    assert w[0, 0] == 1.5


@pytest.mark.parametrize(
    "factor, needed", [(1.0, False), (2.0**-39, True), (2.0**45, True), (2.0**-60, True)]
)
def test_scaling_is_for_matrices_that_fp32_could_not_hold(factor, needed):
    a = np.full((4, 4), 0.9) * factor
    if factor == 2.0**-39:
        a = np.diag([1.0, 1, 1, 0.05])
    assert needs_scaling(survey(OPS, a)) == needed


@pytest.mark.parametrize("dtype", [float, complex])
def test_a_frame_goes_in_and_out_without_a_rounding_error(dtype):
    rng = np.random.default_rng(1)
    row, col = (2.0 ** rng.integers(-500, 500, 20) for _ in range(2))
    frame = Frame(Scaling(row, col))
    b = rng.standard_normal((20, 3)).astype(dtype) * [1e-250, 1.0, 1e250] / row[:, None] ** 0.25

    inside, shift = frame.inside(np, b)

    assert np.isfinite(inside).all()
    top = np.maximum(np.abs(inside.real), np.abs(inside.imag)).max(axis=0)
    assert ((top >= 0.25) & (top <= 2)).all()
    # Undone by a frame whose column scales are the inverses of these row scales.
    back = Frame(Scaling(col, 1 / row)).outside(np, inside, shift)
    assert np.array_equal(back, b)


def test_the_matrix_of_a_frame_solves_the_same_system():
    rng = np.random.default_rng(2)
    row, col = 10.0 ** rng.uniform(-130, 130, 12), 10.0 ** rng.uniform(-130, 130, 12)
    core = matrices.generate("gauss_dominant", 12).a
    a = row[:, None] * core * col
    found = survey(OPS, a)
    frame = Frame(equilibrate(OPS, a))
    b = row[:, None] * rng.standard_normal((12, 2))

    inside, shift = frame.inside(np, b)
    x = frame.outside(np, np.linalg.solve(frame.matrix(OPS, a), inside), shift)

    expected = np.linalg.solve(core, b / row[:, None]) / col[:, None]
    assert needs_frame(found)
    np.testing.assert_allclose(x, expected, rtol=1e-11)


def test_the_error_in_a_frame_is_that_of_the_callers_system():
    rng = np.random.default_rng(3)
    a, y, r = rng.standard_normal((9, 9)), rng.standard_normal((9, 3)), rng.standard_normal((9, 3))
    row, col = 2.0 ** rng.integers(-30, 30, (2, 9))
    frame = Frame(Scaling(row, col))

    error = frame.backward_error(OPS, norm_and_exponent(OPS, a), r, y)

    largest = [np.abs(v).max(axis=0) for v in (r / row[:, None], y * col[:, None])]
    assert error == pytest.approx(largest[0] / np.abs(a).sum(axis=1).max() / largest[1])


def test_swapping_a_frame_swaps_rows_and_columns():
    frame = Frame(Scaling(np.array([2.0]), np.array([4.0])))
    assert (frame.swapped().scaling.row, frame.swapped().scaling.col) == (4.0, 2.0)


@pytest.mark.parametrize(
    "largest, needed",
    [(1.0, False), (1e80, False), (1e-80, False), (1e100, True), (1e-100, True), (0.0, False)],
)
def test_a_frame_is_for_matrices_at_the_ends_of_fp64(largest, needed):
    assert needs_frame(survey(OPS, largest * np.eye(3))) == needed


@pytest.mark.parametrize(
    "size, needed",
    [
        *(([1.0, 1e80], False), ([1.0, 1e200], True), ([0.0], False)),
        # The largest and the smallest entry that need no frame, and the next ones.
        *(([2.0**299], False), ([2.0**300], True), ([2.0**-301], False), ([2.0**-302], True)),
    ],
)
def test_columns_are_shifted_only_where_they_must_be(size, needed):
    shift = shift_columns(np.array(size))
    assert (shift is not None) == needed


def test_a_shift_is_undone_exactly(xp):
    b = xp.asarray(np.random.default_rng(0).standard_normal((9, 3)) * [1e-280, 1.0, 1e280])
    shift = shift_columns(host(abs(b).max(axis=0)))

    inside, by = shift.inside(xp, b)

    top = host(abs(inside).max(axis=0))
    assert ((top >= 0.5) & (top <= 1)).all()
    assert np.array_equal(host(shift.outside(xp, inside, by)), host(b))


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("shift, dominant", [(0, False), (60, True), (-60, True)])
def test_pivots_are_expected_on_a_dominant_diagonal_if_that_is_known_in_any_case(
    shift, dominant, early
):
    class Early(NumpyOps):
        early_rows = 50 if early else 49

    a = np.random.default_rng(3).uniform(-1, 1, (50, 50)) + shift * np.eye(50)

    expected = expects_dominance(Early(), a, survey(Early(), a))

    assert expected == (dominant and not early)
    assert not expects_dominance(Early(), a, None)


@pytest.mark.parametrize("part, expected", [(1.0, True), (1 - 1e-12, True), (1 - 1e-6, False)])
def test_pivots_are_expected_on_a_diagonal_that_equals_the_sum_beside_it(part, expected):
    a = np.random.default_rng(3).uniform(-1, 1, (50, 50))
    np.fill_diagonal(a, 0)
    np.fill_diagonal(a, part * np.abs(a).sum(axis=1))

    assert expects_dominance(OPS, a, survey(OPS, a)) == expected


@pytest.mark.parametrize("entry, expected", [(1.0, True), (1.9, True), (2.1, False), (-2.1, False)])
def test_no_pivot_is_expected_on_the_diagonal_of_a_column_with_twice_as_much_beside_it(
    entry, expected
):
    a = np.diag([1.0, 8, 8, 8])
    a[2, 0] = entry

    found = survey(OPS, a)

    assert found.dominance > 0
    assert expects_dominance(OPS, a, found) == expected
