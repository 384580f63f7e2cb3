"""One matrix, many right-hand sides: solves, determinant, memory, and changing rungs."""

import functools
import gc
import math
import sys
import time
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from bounds import MET, host, ratio
from systems import matrix_of, problem

import tcsolve
from tcsolve import InputError, Plan, Status, factor, matrices
from tcsolve._arithmetic.formats import UPDATES
from tcsolve._backends.cpu.lu import HostLU, HostRules
from tcsolve._backends.cpu.ops import NumpyOps

EVERY = ("auto", *UPDATES)


@pytest.mark.parametrize("precision", EVERY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_the_factors_solve_for_one_right_hand_side_after_another(xp, dtype, precision):
    a = problem(dtype=dtype).a
    rng = np.random.default_rng(1)

    f = factor(xp.asarray(a), precision=precision)

    for shape in ((60,), (60, 1), (60, 7)):
        b = rng.standard_normal(shape).astype(dtype)
        x = f.solve(xp.asarray(b))
        assert isinstance(x, xp.ndarray) and x.dtype == dtype and x.shape == shape
        assert ratio(a, x, b) <= MET
    assert f.shape == (60, 60) and f.dtype == dtype


def test_the_factors_are_computed_once(xp):
    f = factor(xp.asarray(problem().a), precision="fp16x3")
    first = f.solve_ex(xp.ones(60))
    second = f.solve_ex(xp.ones(60))

    assert first.rungs == second.rungs == f.rungs == ("fp16x3",)
    assert "factor" in first.seconds and "factor" not in second.seconds
    assert np.array_equal(host(first.x), host(second.x))


def test_a_copy_of_the_matrix_is_kept_and_planned_unless_it_may_be_overwritten(xp):
    a = problem().a
    given, lent = xp.array(a), xp.array(a)

    own = factor(given, precision="fp16x3")
    leave = factor(lent, overwrite_a=True, precision="fp16x3")

    assert own.bytes_planned - leave.bytes_planned == a.nbytes
    assert own.nbytes == leave.nbytes
    given[:] = 0
    b = np.ones(60)
    x = own.solve(xp.asarray(b))
    assert ratio(a, x, b) <= MET and np.array_equal(host(x), host(leave.solve(xp.asarray(b))))


@pytest.mark.parametrize("precision", ["fp64", "fp16x3"])
@pytest.mark.parametrize("n", [60, 1300])
def test_threads_share_factors(xp, n, precision):
    rng = np.random.default_rng(1)
    f = factor(xp.asarray(problem(n).a), precision=precision)
    systems = [xp.asarray(rng.standard_normal(n)) for _ in range(8)]
    expected = [host(f.solve(b)) for b in systems]

    def solve(b):
        return [host(f.solve(b)) for _ in range(200 if n < 100 else 6)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(len(systems)) as pool:
            found = list(pool.map(solve, systems))
    finally:
        sys.setswitchinterval(interval)

    for xs, x in zip(found, expected, strict=True):
        assert all(np.array_equal(y, x) for y in xs)


def test_threads_share_factors_that_are_replaced_meanwhile(xp):
    p = matrices.generate("svd_geo", 200, cond=1e10, seed=2)
    b = xp.asarray(p.b)
    for _ in range(3):
        f = factor(xp.asarray(p.a), precision="bf16")
        asked = [lambda f=f: f.solve_ex(b).status] * 4
        asked += [lambda f=f: f.rcond() > 0, lambda f=f: math.isfinite(f.slogdet()[1])]
        with ThreadPoolExecutor(len(asked)) as pool:
            *found, condition, determinant = pool.map(lambda ask: ask(), asked)
        assert all(status.ok for status in found) and condition and determinant


def test_threads_do_not_mix_up_the_conditions_of_their_matrices():
    n, filters = 40, list(warnings.filters)
    good = 2 * np.eye(n) + 0.1 * np.eye(n, k=1) + 0.1 * np.eye(n, k=-1)
    poor = np.diag(np.logspace(0, -20, n)) + 1e-3 * np.eye(n, k=1)

    def statuses(a):
        return {tcsolve.solve_ex(a, np.ones(n)).status for _ in range(200)}

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(statuses, [good, poor]))

    assert found == [{Status.CONVERGED}, {Status.ILL_CONDITIONED}]
    assert warnings.filters == filters


def test_an_rcond_that_is_known_takes_little_time(xp):
    a = problem(1000, dtype=np.float32).a
    f, b = factor(xp.asarray(a)), xp.ones((1000, 50), np.float32)
    f.solve(b)

    seconds = min((f.solve_ex(b).seconds for _ in range(5)), key=lambda s: s["total"])

    assert seconds["rcond"] < 0.1 * seconds["total"]


@pytest.mark.parametrize("precision", ["fp16", "fp16x3", "fp32"])
def test_the_determinant_leaves_the_factors_as_they_are(xp, precision):
    f = factor(xp.asarray(problem().a), precision=precision)
    before = f.nbytes

    f.slogdet()

    assert f.nbytes == before and f.precision == precision
    assert f.solve_ex(xp.ones(60)).rungs == (precision,)


def test_a_rung_that_stalls_is_replaced_for_later_solves_too(xp):
    a = problem(100, 1e10, seed=2).a
    f = factor(xp.asarray(a), precision="bf16")
    assert (f.precision, f.rungs) == ("bf16", ("bf16",))

    first, second = (f.solve_ex(xp.asarray(a @ np.ones(100))) for _ in range(2))

    assert first.rungs[0] == "bf16" and len(first.rungs) > 1
    assert f.precision == first.precision == second.precision != "bf16"
    assert second.rungs == first.rungs


def test_a_plan_without_fallback_keeps_its_rung(xp):
    a = problem(100, 1e10, seed=2).a
    f = factor(xp.asarray(a), precision=Plan("bf16", block=16, fallback=False))

    solution = f.solve_ex(xp.asarray(a @ np.ones(100)))

    assert solution.status is Status.STALLED
    assert f.rungs == ("bf16",)


def test_a_real_matrix_solves_for_complex_right_hand_sides(xp):
    a = problem().a
    b = np.random.default_rng(0).standard_normal((60, 2, 2)) @ [1, 1j]

    solution = factor(xp.asarray(a), precision="fp16x3").solve_ex(xp.asarray(b))

    assert solution.x.dtype == np.complex128
    assert solution.iterations.shape == solution.backward_error.shape == (2,)
    assert ratio(a, solution.x, b) <= MET


def test_a_single_precision_matrix_solves_a_double_right_hand_side_in_double(xp):
    a, b = problem(dtype=np.float32).a, np.ones(60)

    x = factor(xp.asarray(a)).solve(xp.asarray(b))

    assert x.dtype == np.float64
    assert ratio(a, x, b) <= MET


# ---- the matrix is the caller's


def test_the_callers_matrix_may_change_after_factoring(xp):
    a, b = problem().a, np.ones(60)
    given = xp.array(a)
    f = factor(given, precision="fp16x3")

    given[...] = 0

    assert ratio(a, f.solve(xp.asarray(b)), b) <= MET


@pytest.mark.parametrize("overwrite", [False, True])
def test_factoring_and_solving_leave_the_inputs_alone(xp, overwrite):
    a, b = problem().a, np.ones((60, 2))
    given = xp.array(a), xp.array(b)

    factor(given[0], overwrite, precision="fp16").solve(given[1])

    assert np.array_equal(host(given[0]), a) and np.array_equal(host(given[1]), b)


# ---- refusals


@pytest.mark.parametrize(
    "a, message",
    [
        (np.ones((3, 4)), r"\(3, 4\)"),
        (np.ones((2, 3, 4)), "square matrices"),
        (np.ones((0, 0)), "n > 0"),
        (np.ones(3), "square matrices"),
    ],
)
def test_anything_but_square_matrices_is_refused(xp, a, message):
    with pytest.raises(tcsolve.InputError, match=message):
        factor(xp.asarray(a))


def test_other_structures_are_refused(xp):
    with pytest.raises(tcsolve.InputError, match="use solve"):
        factor(xp.eye(3), assume_a="pos")


@pytest.mark.parametrize("shape", [(59,), (1, 60), (), (2, 60)])
def test_a_right_hand_side_that_does_not_fit_is_refused(xp, shape):
    f = factor(xp.asarray(problem().a))
    with pytest.raises(tcsolve.InputError, match="60 rows"):
        f.solve(xp.ones(shape))


def test_a_stack_of_right_hand_sides_is_refused(xp):
    f = factor(xp.asarray(problem().a))
    with pytest.raises(tcsolve.InputError):
        f.solve(xp.ones((2, 60, 3)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_is_refused_unless_told_not_to_look(xp, value):
    a, b = problem().a, np.ones((60, 2))
    b[3, 0] = value
    f = factor(xp.asarray(a))

    with pytest.raises(tcsolve.InputError, match="b does"):
        f.solve(xp.asarray(b))
    x = host(f.solve(xp.asarray(b), check_finite=False))
    assert np.isnan(x[:, 0]).all() and ratio(a, x[:, 1], b[:, 1]) <= MET
    a[0, 0] = value
    with pytest.raises(tcsolve.InputError, match="a does"):
        factor(xp.asarray(a))
    assert factor(xp.asarray(a), check_finite=False).rcond() == 0


def test_no_right_hand_sides_have_no_solutions(xp):
    assert factor(xp.asarray(problem().a)).solve(xp.ones((60, 0))).shape == (60, 0)


# ---- singular matrices


@pytest.mark.parametrize("precision", EVERY)
def test_a_singular_matrix_is_found_by_the_solve(xp, precision):
    f = factor(xp.asarray(matrices.generate("zero_column_middle", 40).a), precision=precision)

    assert f.solve_ex(xp.ones(40)).status is Status.SINGULAR
    with pytest.raises(tcsolve.SingularError):
        f.solve(xp.ones(40))
    assert f.rcond() == 0
    sign, log = f.slogdet()
    assert sign == 0 and log == -math.inf


# ---- determinant


@pytest.mark.parametrize("precision", EVERY)
@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("n", [1, 2, 5, 60])
@pytest.mark.parametrize("order", "CF")
def test_slogdet_is_numpys(xp, n, dtype, precision, order):
    a = np.array(matrices.generate("gauss", n, seed=n, dtype=dtype).a, order=order)
    sign, log = np.linalg.slogdet(a)

    mine = factor(xp.asarray(a), precision=precision).slogdet()

    assert complex(host(mine[0])) == pytest.approx(complex(sign), abs=1e-12)
    rounded = precision not in ("auto", "fp64")
    assert mine[1] == pytest.approx(log, rel=1e-8 if rounded else 1e-12, abs=1e-12)
    assert mine._fields == ("sign", "logabsdet") and mine == (mine.sign, mine.logabsdet)


def own_lu(xp):
    """Return the class of the primitives of an LU for arrays of NumPy or CuPy."""
    if xp is np:
        return HostLU
    from tcsolve._backends.cuda.lu.ops import DeviceLU

    return DeviceLU


@pytest.mark.parametrize("precision", ["fp16x3", "fp32"])
def test_a_determinant_that_the_factors_give_to_eight_digits_needs_no_others(
    xp, precision, monkeypatch
):
    n = 400
    a = xp.asarray(np.eye(n) * 3 + matrices.generate("gauss", n).a * 2e-5)
    f = factor(a, precision=precision)
    expected = np.linalg.slogdet(host(a))

    def refuse(*args, **options):
        raise MemoryError("not in FP64")

    with monkeypatch.context() as patch:
        patch.setattr(own_lu(xp), "getrf", refuse)
        found = f.slogdet()

    assert found.sign == expected.sign
    assert found.logabsdet == pytest.approx(expected.logabsdet, rel=1e-8)


def test_factors_that_are_too_coarse_do_not_give_the_determinant(xp):
    a = problem(300, 1e9).a
    for precision in ("bf16", "fp32"):
        found = factor(xp.asarray(a), precision=precision).slogdet()
        assert found.logabsdet == pytest.approx(np.linalg.slogdet(a)[1], rel=1e-10)
        assert found.sign == np.linalg.slogdet(a)[0]


@pytest.mark.parametrize("precision", ["fp16x3", "fp32"])
def test_a_large_determinant_of_a_complex_matrix_has_an_accurate_sign(xp, precision):
    """An error of eight digits of its logarithm would leave few digits of the sign."""
    n = 150
    a = matrices.generate("gauss", n, dtype=complex).a * 2.0**800
    expected = np.linalg.slogdet(a * 2.0**-800)

    found = factor(xp.asarray(a), precision=precision).slogdet()

    assert complex(found.sign) == pytest.approx(complex(expected.sign), abs=1e-11)
    assert found.logabsdet == pytest.approx(expected.logabsdet + 800 * n * np.log(2), rel=1e-12)


# ---- transposed systems


@pytest.mark.parametrize("precision", EVERY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("trans", [0, 1, 2])
def test_the_factors_solve_transposed_systems(xp, dtype, precision, trans):
    a = problem(dtype=dtype).a
    solved = (a, a.T, a.conj().T)[trans]
    f, rng = factor(xp.asarray(a), precision=precision), np.random.default_rng(1)

    for shape in ((60,), (60, 7), (60, 0)):
        b = rng.standard_normal(shape).astype(dtype)
        report = f.solve_ex(xp.asarray(b), trans=trans)
        assert report.x.dtype == dtype and report.x.shape == shape and report.status.ok
        assert ratio(solved, report.x, b) <= MET
        assert (report.backward_error <= report.bound).all()


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_letters_name_transposes_as_numbers_do(xp, precision):
    f, b = factor(xp.asarray(problem(dtype=complex).a), precision=precision), xp.ones(60)
    for letter, number in zip("NTC", (0, 1, 2), strict=True):
        assert f.solve(b, trans=letter).tobytes() == f.solve(b, trans=number).tobytes()


@pytest.mark.parametrize("kind", ["badly scaled", "huge", "hard"])
@pytest.mark.parametrize("precision", ["auto", "fp16", "fp16x3", "fp32"])
@pytest.mark.parametrize("turn", [1, 1 + 2j])
def test_a_transposed_system_that_is_hard_is_verified_too(xp, kind, precision, turn):
    a, b = matrix_of(kind) * turn, np.arange(1.0, 81)
    f = factor(xp.asarray(a), precision=precision)

    for trans, solved in ((1, a.T), (2, a.conj().T)):
        report = f.solve_ex(xp.asarray(b), trans=trans)
        assert report.status.ok
        assert kind == "huge" or ratio(solved, report.x, b) <= MET


def test_a_complex_right_hand_side_of_a_real_transposed_system_is_its_two_parts(xp):
    a, b = problem().a, np.arange(60) * (1 + 2j) + 1j
    for trans in (1, 2):
        assert ratio(a.T, factor(xp.asarray(a)).solve(xp.asarray(b), trans=trans), b) <= MET


@pytest.mark.parametrize("precision", ["auto", "fp16x3", Plan("fp32", fallback=False)])
@pytest.mark.parametrize("turn", [1, 1 + 2j])
def test_a_transposed_system_is_solved_accurately_too(xp, precision, turn):
    a, x = np.round(problem(100, 1e6).a * 2.0**20) * turn, np.arange(1.0, 101)
    f = factor(xp.asarray(a), precision=precision)

    for trans, solved in ((1, a.T), (2, a.conj().T)):
        b = solved @ x  # whole numbers, so exact
        report = f.solve_ex(xp.asarray(b), trans=trans, residual="double-double")
        assert np.abs(host(report.x) - x).max() <= 2.0**-52 * 100
        assert report.forward_error.max() <= 2.0**-52


def test_factors_that_a_transposed_system_needs_are_kept(xp):
    f = factor(xp.asarray(problem(100, 1e10, seed=2).a), precision="bf16")
    first, second = (f.solve_ex(xp.ones(100), trans=1) for _ in range(2))
    assert f.precision == first.precision == second.precision != "bf16"
    assert f.solve_ex(xp.ones(100)).precision == f.precision


@pytest.mark.parametrize("trans", [3, -1, "H", "t", None, 1.5, [0]])
def test_another_trans_is_refused(xp, trans):
    with pytest.raises(InputError, match="trans is .*; it needs 0 or 'N'"):
        factor(xp.eye(3)).solve(xp.ones(3), trans=trans)


def test_a_singular_matrix_has_a_singular_transpose(xp):
    f = factor(xp.asarray(matrices.generate("zero_column_middle", 40).a))
    assert f.solve_ex(xp.ones(40), trans=1).status is Status.SINGULAR
    with pytest.raises(tcsolve.SingularError):
        f.solve(xp.ones(40), trans=2)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_slogdet_does_not_overflow_nor_lose_its_scale(xp, scale):
    a = matrices.generate("gauss", 40).a
    sign, log = np.linalg.slogdet(a)

    mine = factor(xp.asarray(scale * a)).slogdet()

    assert float(host(mine[0])) == sign
    assert mine[1] == pytest.approx(log + 40 * math.log(scale), rel=1e-12)


# ---- attributes and repr


@pytest.mark.parametrize("precision", ["fp16x3", "fp64"])
def test_the_bytes_are_those_of_matrix_and_factors(xp, precision):
    f = factor(xp.asarray(problem().a), precision=precision)
    low = 8 if precision == "fp64" else 4

    # On a device also the inverses of the diagonal blocks, two of 128 x 128 here.
    spare = 100 * 60 * 8 + (0 if xp is np else 2 * 128 * 128 * 4)
    assert 60 * 60 * (8 + low) <= f.nbytes <= 60 * 60 * (8 + low) + spare


def test_its_text_names_shape_type_and_precision(xp):
    f = factor(xp.asarray(problem().a), precision="fp16")
    assert repr(f) == "<Factorization of (60, 60) float64, precision fp16>"


def test_the_report_says_what_was_done(xp):
    a = problem().a
    solution = factor(xp.asarray(a), precision="fp16x3").solve_ex(xp.ones((60, 3)))

    assert solution.precision == "fp16x3"
    assert {"scale", "factor", "refine", "rcond", "total"} <= set(solution.seconds)
    assert all(seconds >= 0 for seconds in solution.seconds.values())
    parts = sum(seconds for phase, seconds in solution.seconds.items() if phase != "total")
    assert 0 < parts <= solution.seconds["total"] + 1e-9
    assert solution.history[-1][0] == "fp16x3"
    assert (solution.history[-1].error <= solution.bound).all()
    assert "precision       fp16x3\n" in str(solution)
    assert solution.device == ("cpu" if xp is np else "cuda")


@pytest.mark.parametrize("precision", ["fp16", "fp16x3", "fp64"])
def test_the_total_is_the_time_of_this_solve(precision, xp):
    rng = np.random.default_rng(0)
    a, b = xp.asarray(rng.standard_normal((40, 40)) + 40 * np.eye(40)), xp.asarray(np.ones(40))
    f = factor(a, precision=precision)
    begun = time.perf_counter()
    first = f.solve_ex(b).seconds
    took = time.perf_counter() - begun
    # The seconds of the first solve include those of the factorization.
    assert first["factor"] > 0 and first["total"] <= took + 1.1 * (first["factor"] + first["scale"])
    for _ in range(20):
        with pytest.raises(InputError):
            f.solve(b * np.nan)
    begun = time.perf_counter()
    later = f.solve_ex(b).seconds
    assert "factor" not in later and 0 < later["total"] <= time.perf_counter() - begun


def frees(make):
    """Tell whether the object of make() is freed with its last reference, without the garbage collector."""
    gc.disable()
    try:
        made = make()
        gone = weakref.ref(made)
        del made
        return gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("precision", ["fp16", "fp16x3", "fp32", "fp64"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_factors_go_with_the_last_reference(fails, precision, xp):
    rng = np.random.default_rng(0)
    a, b = xp.asarray(rng.standard_normal((40, 40)) + 40 * np.eye(40)), xp.asarray(np.ones(40))

    def used():
        f = factor(a, precision=precision)
        if fails:
            with pytest.raises(InputError):
                f.solve(b * np.nan)
        else:
            f.solve(b)
        return f

    assert frees(used)


# ---- factors that are started before anything is known of the matrix


def start_early(monkeypatch):
    """Let the LU start before the survey is read, if the survey makes the copy in which the LU works."""
    begin = NumpyOps.extremes

    def extremes(self, a, dtype=None):
        return begin(self, a, dtype)._replace(is_early=dtype is not None)

    monkeypatch.setattr(NumpyOps, "extremes", extremes)


@pytest.mark.parametrize("precision", ["fp16x3", "fp16", "auto", Plan("fp16x3", scale=False)])
@pytest.mark.parametrize("kind", ["good", "badly scaled", "huge", "singular", "not finite", "hard"])
def test_factors_that_are_started_early_change_nothing(kind, precision, monkeypatch):
    a, b = matrix_of(kind), np.ones(80)
    solve = functools.partial(tcsolve.solve_ex, a, b, precision=precision, check_finite=False)
    expected = solve(assume_a="general")

    start_early(monkeypatch)
    found = solve(assume_a="general")

    assert found.status is expected.status and found.rungs == expected.rungs
    assert np.array_equal(found.x, expected.x, equal_nan=True)
    assert found.bytes_planned == expected.bytes_planned
    for name in ("iterations", "backward_error", "rcond"):
        assert np.array_equal(getattr(found, name), getattr(expected, name), equal_nan=True), name


def test_a_matrix_that_is_not_finite_is_refused_whenever_its_factors_were_started(monkeypatch):
    start_early(monkeypatch)

    with pytest.raises(tcsolve.InputError, match="infs or NaNs"):
        factor(matrix_of("not finite"), precision="fp16x3")


@dataclass(frozen=True)
class SquareRules(HostRules):
    def strip(self, rows, columns, dominant):
        return 8

    def is_wide(self, columns, right):
        return columns > 8

    def is_square(self, start, rows, columns, right, update):
        return right > 8


@pytest.fixture
def square_panels(monkeypatch):
    """Use square panels on NumPy, too; the fixture is a list that tells of each LU whether it had them."""
    factored, squares = [], []
    finish, square = HostLU.finish, HostLU.square

    def ends(self, *args):
        factored.append(bool(squares))
        squares.clear()
        return finish(self, *args)

    def has_squares(self, p, *args):
        squares.append(p.shape)
        return square(self, p, *args)

    monkeypatch.setattr(HostLU, "finish", ends)
    monkeypatch.setattr(HostLU, "square", has_squares)
    monkeypatch.setattr(
        HostLU, "rules", lambda self, dtype, w=None: SquareRules(np.dtype(dtype).char)
    )
    return factored


def nearly_dominant(n, largest, dtype=float):
    """Return a matrix that is dominant by rows, and by columns but for one entry below the first square."""
    a = np.eye(n) + problem(n, cond=10.0).a / n
    a[n - 1, 3], a[n - 1, n - 1] = largest, 4
    return a.astype(dtype)


@pytest.mark.parametrize("precision", ["fp16x3", "fp16", "tf32"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_matrix_whose_pivots_are_not_where_expected_is_factored_again(
    dtype, precision, square_panels
):
    a, b = nearly_dominant(80, 1.5, dtype), np.ones(80, dtype)

    f = factor(a, precision=Plan(precision, block=16))
    found = f.solve_ex(b)

    assert square_panels == [True, False]
    assert found.status is Status.CONVERGED and found.rungs == (precision,)
    assert ratio(a, found.x, b) <= MET
    assert 0.9 <= found.rcond * np.linalg.cond(a.astype(float), 1) <= 3.1
    assert np.array_equal(f.solve(b), found.x)
    assert square_panels == [True, False]


def test_the_condition_after_a_second_factorization_is_that_of_the_good_factors(square_panels):
    a = nearly_dominant(80, 1.5)
    expected = factor(a, precision=Plan("fp16x3", block=80))

    found = factor(a, precision=Plan("fp16x3", block=16)).rcond()

    assert square_panels[1:3] == [True, False]
    assert found == pytest.approx(expected.rcond(), rel=1e-4)


def test_square_panels_of_a_dominant_matrix_are_kept(square_panels):
    a, b = nearly_dominant(80, 0.5), np.ones(80)

    found = tcsolve.solve_ex(a, b, precision=Plan("fp16x3", block=16), assume_a="general")

    assert square_panels == [True]
    assert found.status is Status.CONVERGED and ratio(a, found.x, b) <= MET


@pytest.mark.parametrize("change", ["scaled", "complex"])
def test_scaled_and_complex_matrices_have_no_square_panels(change, square_panels):
    a = nearly_dominant(80, 0.5)
    a = a * np.logspace(0, 6, 80)[:, None] if change == "scaled" else a.astype(complex)

    found = tcsolve.solve_ex(a, np.ones(80), precision=Plan("fp16x3", block=16))

    assert square_panels == [False]
    assert found.status is Status.CONVERGED


@pytest.fixture
def refuse_once(monkeypatch):
    """A function after which the next LU of LAPACK raises a DeviceMemoryError."""
    getrf, refusals = HostLU.getrf, []

    def refuse(self, *args, **options):
        if not refusals:
            return getrf(self, *args, **options)
        raise tcsolve.DeviceMemoryError(refusals.pop())

    monkeypatch.setattr(HostLU, "getrf", refuse)
    return lambda: refusals.append("no room")


def test_a_rung_there_is_no_memory_for_leaves_the_factorization_usable(refuse_once):
    a, b = problem(80, 1e12).a, np.ones(80)
    f = factor(a, precision="fp16")
    refuse_once()

    with pytest.raises(tcsolve.DeviceMemoryError, match="no room"):
        f.solve(b)
    assert f.rungs == ("fp16",)
    found = f.solve_ex(b)

    assert found.status is Status.CONVERGED_AFTER_FALLBACK
    assert found.rungs[0] == "fp16" and len(found.rungs) > 1
    assert ratio(a, found.x, b) <= MET


@pytest.mark.parametrize("update, most", [("fp32", 1), ("fp32", 2), ("fp16", 3)])
def test_small_systems_keep_their_budget_of_steps(update, most):
    for seed in range(300):
        p = matrices.generate("gauss", 2 + seed % 6, seed=seed)
        f = factor(p.a, precision=Plan(update, max_steps=most, fallback=False))
        assert f.solve_ex(np.random.default_rng(seed).standard_normal(p.n)).iterations[0] <= most


@pytest.mark.parametrize("ask", [lambda f: f.slogdet(), lambda f: f.solve(np.ones(80))])
def test_factors_stay_if_more_precise_ones_cannot_be_made(ask, monkeypatch):
    a, b = problem(80, 1e12).a, problem(80, 1e3).b
    f = factor(a, precision=Plan("fp32"))

    def refuse(self, a, dtype, overwrite_a=False):
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(HostLU, "getrf", refuse)
        with pytest.raises(MemoryError, match="no room"):
            ask(f)
    assert f.precision == "fp32"
    assert f.solve_ex(b).rungs[0] == "fp32"


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("ask", [lambda f: f.rcond(), lambda f: f.slogdet()[1]])
def test_rcond_and_determinant_are_found_after_a_rung_had_no_memory(ask, precision, refuse_once):
    a = problem(80, 1e12).a
    f = factor(a, precision=precision)
    refuse_once()
    with pytest.raises(tcsolve.DeviceMemoryError, match="no room"):
        f.solve(np.ones(80))

    assert ask(f) == ask(factor(a, precision=precision))


@pytest.mark.gpu
def test_factors_on_a_device_solve_for_numpy_arrays(cupy):
    case = matrices.generate("svd_geo", 300, cond=1e4, seed=0)
    f = factor(case.a, device="cuda")
    for b in (case.b, np.stack([case.b, case.b * (1 + 2j)], axis=1), case.b[:, None][:, :0]):
        x = f.solve(b)
        assert isinstance(x, np.ndarray) and x.shape == b.shape
        assert x.size == 0 or ratio(case.a, x, b) <= MET
    assert f.solve_ex(case.b).device == "cuda" and isinstance(
        f.solve(cupy.asarray(case.b)), cupy.ndarray
    )
    with pytest.raises(InputError, match=r"cupy.*ndarray, but the factors are on the cpu"):
        factor(case.a, device="cpu").solve(cupy.asarray(case.b))
