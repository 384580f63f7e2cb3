"""The LU made of the kernels, with look-ahead and without, on a device."""

import math

import numpy as np
import pytest
from on_device import random_matrix
from watched import Watched

from tcsolve._arithmetic.formats import UPDATES
from tcsolve._backends.cuda.runtime import compiler
from tcsolve._backends.cuda.runtime.launch_counter import counted
from tcsolve._contract.schedule import schedule
from tcsolve._lu.elimination import factor_blocked

pytestmark = pytest.mark.gpu


# ---- the gate --------------------------------------------------------------------------------


@pytest.fixture
def pass_gate(cupy):
    """A function that launches the gate, waits for it, and returns how many seconds that took."""
    kernel = compiler.kernel("wait_for_panel", "tcs_gate")

    def run(started, patience, meanwhile=lambda: None, more=0):
        before, after = cupy.cuda.Event(), cupy.cuda.Event()
        before.record()
        kernel((1,), (1,), (started, int(1e9 * patience), more))
        after.record()
        meanwhile()
        after.synchronize()
        return cupy.cuda.get_elapsed_time(before, after) / 1e3

    return run


def test_the_gate_is_open_once_the_flag_is_set(cupy, pass_gate):
    started = cupy.arange(1, 18, dtype=cupy.uint32)
    assert pass_gate(started, 5) < 1
    # Words 1 to 8 move to 9 to 16, where the update reads them.
    assert started.tolist() == [0] * 9 + list(range(2, 10))


def test_the_gate_takes_more_multiprocessors_the_lowest_first(cupy, pass_gate):
    started = cupy.array([1, 0xFFFFFFFF, 0b0110, 0x80000000, 0, 0, 0, 0, 0, *[7] * 8], cupy.uint32)
    pass_gate(started, 5, more=31)
    assert started.tolist() == [0] * 9 + [0xFFFFFFFF, 0xFFFFFFFF, 0x80000001, *[0] * 5]


def test_the_gate_opens_by_itself_when_its_patience_ends(cupy, pass_gate):
    assert 0.09 <= pass_gate(cupy.zeros(17, cupy.uint32), 0.1) < 1


def test_the_gate_opens_when_another_stream_sets_the_flag(cupy, pass_gate):
    started, stream = cupy.empty(17, cupy.uint32), cupy.cuda.Stream(non_blocking=True)

    def set_flag():
        cupy.cuda.runtime.memsetAsync(started.data.ptr, 1, started.nbytes, stream.ptr)

    set_flag()  # once before, because the first call may load a kernel
    cupy.cuda.Device().synchronize()
    started.fill(0)
    cupy.cuda.Device().synchronize()
    assert pass_gate(started, 5, set_flag) < 2


# ---- the LU ----------------------------------------------------------------------------------


@pytest.fixture
def watched(ops):
    """The primitives that launch the kernels, with a note of their calls."""
    return Watched(ops)


@pytest.fixture
def factor_on_device(watched, lu_sizes):
    """A function that factors a matrix, copied first, and returns its factors."""
    lu_sizes(overlap_rows=0)  # small matrices look ahead as well

    def run(a, update, block, look_ahead):
        watched.calls.clear()
        return factor_blocked(watched, a.copy(), UPDATES[update], block, look_ahead=look_ahead)

    return run


def matrix_on_device(cupy, n, update):
    return cupy.asarray(random_matrix(UPDATES[update].storage, n, n, seed=n))


def residual(cupy, a, factors):
    """Return the largest |l|, and the largest entry of P A - L U divided by that of U."""
    lu = factors.lu.astype(cupy.result_type(a.dtype, cupy.float64))
    lower, upper = cupy.tril(lu, -1) + cupy.eye(len(lu)), cupy.triu(lu)
    error = cupy.abs(a[factors.order] - lower @ upper).max() / cupy.abs(upper).max()
    return float(cupy.abs(lower).max()), float(error)


def same_bits(cupy, first, second):
    assert first.bad_pivot == second.bad_pivot
    assert bool((first.order == second.order).all())
    assert bool((first.lu == second.lu).all())


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize(
    "n, block",
    [(1500, 256), (1501, 512), (2050, 256), (3003, 512), (1999, 128), (2000, 128), (1300, 50)],
)
def test_look_ahead_changes_no_bit_and_the_factors_are_good(
    n, block, update, cupy, factor_on_device
):
    a = matrix_on_device(cupy, n, update)

    factors = factor_on_device(a, update, block, True)

    same_bits(cupy, factors, factor_on_device(a, update, block, True))
    same_bits(cupy, factors, factor_on_device(a, update, block, False))
    assert factors.bad_pivot == 0
    assert np.array_equal(np.sort(factors.order.get()), np.arange(n))
    largest, error = residual(cupy, a, factors)
    assert largest <= 1 + 1e-6
    assert error <= 4 * np.sqrt(n) * UPDATES[update].u


@pytest.mark.parametrize("update, dtype", [("fp16x3", "F"), ("fp64", "D")])
def test_look_ahead_changes_no_bit_where_the_library_factors_the_panels(
    update, dtype, cupy, factor_on_device
):
    a = cupy.asarray(random_matrix(dtype, 1301, 1301))

    factors = factor_on_device(a, update, 256, True)

    same_bits(cupy, factors, factor_on_device(a, update, 256, True))
    same_bits(cupy, factors, factor_on_device(a, update, 256, False))
    assert residual(cupy, a, factors)[1] <= 4 * np.sqrt(1301) * UPDATES[update].u


@pytest.mark.parametrize("look_ahead", [True, False])
@pytest.mark.parametrize("update, block", [("fp16", 128), ("fp16x3", 512), ("fp16x3", 1200)])
def test_a_dominant_matrix_keeps_its_rows(update, block, look_ahead, cupy, factor_on_device):
    n = 2500
    a = matrix_on_device(cupy, n, update)
    a += cupy.diag(2 * cupy.abs(a).sum(axis=0) * (-1) ** cupy.arange(n)).astype(a.dtype)

    factors = factor_on_device(a, update, block, look_ahead)

    assert (factors.order == cupy.arange(n)).all()
    assert residual(cupy, a, factors)[1] <= 4 * np.sqrt(n) * UPDATES[update].u
    same_bits(cupy, factors, factor_on_device(a, update, block, not look_ahead))


@pytest.fixture
def sizes_of_inverses(hopper, lu_sizes, monkeypatch):
    """Use inverses for few columns, too; the fixture is the set of the sizes of the inverses."""
    from tcsolve._backends.cuda.gemm import wgmma

    lu_sizes(least_columns=64)
    sizes, of = set(), wgmma.Lower.of
    monkeypatch.setattr(wgmma.Lower, "of", lambda x, *rest: sizes.add(len(x)) or of(x, *rest))
    return sizes


@pytest.mark.parametrize("wide", [129, 10000])
@pytest.mark.parametrize("update, block", [("fp16x3", 512), ("fp16x3", 192), ("fp16", 1000)])
def test_u_by_an_inverse_has_the_same_bits_whenever_it_is_made(
    update, block, wide, cupy, factor_on_device, lu_sizes, sizes_of_inverses
):
    """The inverse is made while the next panel is factored; a wide panel is updated strip by strip."""
    lu_sizes(wide=wide)
    a = matrix_on_device(cupy, 2500, update)

    factors = factor_on_device(a, update, block, True)

    assert sizes_of_inverses == {block}
    same_bits(cupy, factors, factor_on_device(a, update, block, False))
    assert residual(cupy, a, factors)[1] <= 4 * np.sqrt(2500) * UPDATES[update].u


def test_other_formats_make_no_inverse(cupy, factor_on_device, sizes_of_inverses):
    factor_on_device(matrix_on_device(cupy, 2500, "bf16"), "bf16", 512, True)
    assert not sizes_of_inverses


@pytest.mark.parametrize("update", UPDATES)
def test_a_wide_panel_updated_strip_by_strip_has_the_bits_of_one_updated_at_once(
    update, cupy, factor_on_device, lu_sizes
):
    lu_sizes(least_columns=64)
    a = matrix_on_device(cupy, 2500, update)

    factors = factor_on_device(a, update, 512, True)

    same_bits(cupy, factors, factor_on_device(a, update, 512, False))
    same_bits(cupy, factors, factor_on_device(a, update, 512, True))
    assert residual(cupy, a, factors)[1] <= 4 * np.sqrt(2500) * UPDATES[update].u


@pytest.mark.parametrize("update", [update for update in UPDATES if update != "fp64"])
def test_preparing_a_panel_during_an_update_changes_no_bit(
    update, cupy, ops, factor_on_device, lu_sizes
):
    """A panel of FP64 is one strip, so nothing is prepared for it."""
    lu_sizes(least_columns=64)
    a, how = matrix_on_device(cupy, 2500, update), UPDATES[update]

    def wide_panels():
        plan = schedule(len(a), how, ops.lu.rules(a.dtype, a), 512)
        return [panel.ends_early for panel in plan.panels if panel.is_wide]

    lu_sizes(panel_rows=((1, math.inf), (3, math.inf)))
    factors = factor_on_device(a, update, 512, True)
    assert wide_panels() and not any(wide_panels())

    lu_sizes(panel_rows=((1, 0), (3, 0)))
    same_bits(cupy, factors, factor_on_device(a, update, 512, True))
    same_bits(cupy, factors, factor_on_device(a, update, 512, False))
    assert wide_panels() and all(wide_panels())


def test_u_whose_inverse_leaves_the_range_is_reported(cupy, factor_on_device, sizes_of_inverses):
    n, k = 2500, 512
    a = cupy.eye(n, dtype=np.float32) - cupy.tri(n, k=-1, dtype=np.float32)
    a[:, k:] = matrix_on_device(cupy, n, "fp16x3")[:, k:]

    assert factor_on_device(a, "fp16x3", k, True).bad_pivot > k
    assert sizes_of_inverses == {k}


@pytest.mark.parametrize("squares", [True, False])
@pytest.mark.parametrize("update", ["fp16", "fp16x3"])
def test_factors_are_good_whether_a_dominant_matrix_is_expected_or_not(
    update, squares, cupy, ops, lu_sizes
):
    """If a dominant matrix is expected, strips of more than 16384 rows have 128 columns, not 64."""
    if not squares:
        lu_sizes(square_rows=math.inf)
    n, how = 17000, UPDATES[update]
    a = cupy.random.default_rng(7).standard_normal((n, n), dtype=np.float32)

    for shift in (0.0, 2.0 * n):
        cupy.fill_diagonal(a, shift)
        first, *others = (
            factor_blocked(ops, a.copy(), how, look_ahead=look_ahead, dominant=dominant)
            for look_ahead, dominant in ((True, True), (False, True), (True, False))
        )
        assert first.misled == others[0].misled == (squares and not shift)
        if not first.misled:
            same_bits(cupy, first, others[0])
        for factors in (first, others[1]):
            if factors.misled:
                continue
            assert not factors.bad_pivot
            assert residual(cupy, a, factors)[1] <= 4 * np.sqrt(n) * how.u
            assert bool((factors.order == cupy.arange(n)).all()) == (shift > 0)
        del first, others, factors


@pytest.mark.parametrize("k", [128, 256, 384, 512, 640, 1024, 1536, 2048])
def test_an_inverse_is_that_of_the_upper_triangle(k, cupy):
    from tcsolve._backends.cuda.lu.triangle_inverse import upper_inverse

    u = np.random.default_rng(k).uniform(-1, 1, (k, k)) / np.sqrt(k)
    np.fill_diagonal(u, np.random.default_rng(k).uniform(1, 2, k))
    storage = cupy.full((k, k + 4), np.nan, cupy.float32)
    storage[:, :k] = cupy.asarray(u)
    upper = np.triu(storage[:, :k].get().astype(float))

    inverse = upper_inverse(storage[:, :k]).get()

    assert np.array_equal(inverse, np.triu(inverse))
    exact = np.linalg.inv(upper)
    bound = 4 * k * 2.0**-24 * (np.abs(exact) @ np.abs(upper) @ np.abs(exact))
    assert (np.abs(inverse - exact) <= bound).all()


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("update", ["fp16", "fp16x3"])
@pytest.mark.parametrize("m, k", [(1, 128), (700, 512), (5000, 640), (3000, 1024), (1111, 1536)])
def test_products_with_an_inverse_solve_from_the_right(m, k, update, bounded, hopper):
    from tcsolve._backends.cuda.gemm import wgmma
    from tcsolve._backends.cuda.lu.triangle_inverse import upper_inverse

    rng, how = np.random.default_rng([m, k]), UPDATES[update]
    u = np.triu(rng.standard_normal((k, k)) / k, 1) + np.diag(rng.uniform(1, 2, k))
    u = u.astype(np.float32)
    l = rng.uniform(-1, 1, (m, k)) @ u
    x, beyond = hopper.asarray(l.astype(np.float32)), hopper.zeros(1, np.int32)
    bound = wgmma.Bound.of(hopper.asarray(u), beyond, 132) if bounded else None

    wgmma.Right.of(upper_inverse(hopper.asarray(u)), how, 132, bound).apply(x)

    error = np.abs(x.get() @ u.astype(float) - l)
    size = np.abs(l) @ np.abs(np.linalg.inv(u.astype(float))) @ np.abs(u)
    assert (error <= 8 * np.sqrt(k) * how.u * size.max()).all()
    assert int(beyond[0]) == 0


@pytest.mark.parametrize(
    "largest, expected", [(1.0, 0), (1 + 2**-20, 1), (np.nan, 1), (-np.inf, 1)]
)
@pytest.mark.parametrize("update", ["fp16", "fp16x3"])
def test_an_operand_tells_whether_an_entry_is_beyond_one(update, largest, expected, hopper):
    from tcsolve._backends.cuda.gemm import wgmma

    l = hopper.random.default_rng(1).uniform(-0.9, 0.9, (1001, 512), dtype=np.float32)
    l[1000, 511] = largest
    beyond = hopper.zeros(1, np.int32)
    bound = wgmma.Bound.of(hopper.eye(512, dtype=np.float32), beyond, 132)

    wgmma.Operand(l, UPDATES[update], 132, bound).round()

    assert int(beyond[0]) == expected


@pytest.mark.parametrize("times, expected", [(1.0, 0), (3.9, 1), (np.nan, 1)])
def test_a_bound_tells_whether_u_is_larger_than_expected(times, expected, hopper):
    from tcsolve._backends.cuda.gemm import wgmma

    l, c = hopper.ones((300, 512), np.float32), hopper.zeros((300, 600), np.float32)
    u = hopper.full((512, 600), 0.7, np.float32)
    u[77, 599] = times
    beyond = hopper.zeros(1, np.int32)
    operand = wgmma.Operand(
        l, UPDATES["fp16x3"], 132, wgmma.Bound.of(hopper.eye(512, dtype="f"), beyond, 132)
    )

    operand.subtract(c, u, None)

    assert int(beyond[0]) == expected
    if not expected:
        assert hopper.allclose(c, -(l @ u), rtol=1e-5)


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_a_bound_does_not_look_at_l(size, hopper):
    from tcsolve._backends.cuda.gemm import wgmma

    block = hopper.random.default_rng(1).uniform(-1, 1, (512, 512), dtype=np.float32)
    block = hopper.tril(block, -1) + np.float32(size) * hopper.eye(512, dtype="f")

    bound = wgmma.Bound.of(block, hopper.zeros(1, np.int32), 132)

    assert 2.0**13 < float(bound.scale[0]) * size <= 2.0**14


@pytest.fixture
def factor_by_squares(hopper, watched, lu_sizes):
    """A function (a, update, block, look_ahead) that factors by square panels, as far as these fit."""
    lu_sizes(overlap_rows=0, square_rows=600, least_columns=256)

    def run(a, update, block, look_ahead):
        (n, _), how = a.shape, UPDATES[update]
        w = hopper.empty((n, -(-n // 4) * 4), a.dtype)[:, :n]  # as a solve stores it
        w[...] = a
        watched.calls.clear()
        factors = factor_blocked(watched, w, how, block, look_ahead, dominant=True)
        squares = [
            stop for stop in range(block, n, block) if n - stop >= 256 and n - stop + block >= 600
        ]
        assert [call.shapes[0] for call in watched.of("square")] == [(block, block)] * len(squares)
        return factors

    return run


@pytest.mark.parametrize("update", ["fp16", "fp16x3"])
@pytest.mark.parametrize("n, block", [(3000, 512), (3001, 640), (4100, 1024), (5003, 1536)])
def test_square_panels_look_ahead_without_changing_a_bit(n, block, update, cupy, factor_by_squares):
    a = matrix_on_device(cupy, n, update)
    a += cupy.diag(2 * cupy.abs(a).sum(axis=1) * (-1) ** cupy.arange(n)).astype(a.dtype)

    factors = factor_by_squares(a, update, block, True)

    assert not factors.misled and not factors.bad_pivot
    assert (factors.order == cupy.arange(n)).all()
    largest, error = residual(cupy, a, factors)
    assert largest <= 1 and error <= 4 * np.sqrt(n) * UPDATES[update].u
    same_bits(cupy, factors, factor_by_squares(a, update, block, True))
    same_bits(cupy, factors, factor_by_squares(a, update, block, False))
    # A times a power of two changes only the exponents of U.
    small = factor_by_squares(np.float32(2.0**-40) * a, update, block, True)
    assert (cupy.triu(small.lu) * np.float32(2.0**40) == cupy.triu(factors.lu)).all()
    assert (cupy.tril(small.lu, -1) == cupy.tril(factors.lu, -1)).all()


def test_pivots_inside_a_square_panel_are_found(cupy, factor_by_squares):
    n, block = 3000, 512
    a = matrix_on_device(cupy, n, "fp16x3")
    a += cupy.diag(2 * cupy.abs(a).sum(axis=1)).astype(a.dtype)
    a[:block] = a[cupy.asarray(np.random.default_rng(2).permutation(block))]

    factors = factor_by_squares(a, "fp16x3", block, True)

    assert not factors.misled and (factors.order[:block] != cupy.arange(block)).any()
    assert residual(cupy, a, factors)[1] <= 4 * np.sqrt(n) * UPDATES["fp16x3"].u
    same_bits(cupy, factors, factor_by_squares(a, "fp16x3", block, False))


@pytest.mark.parametrize("row, column", [(512, 0), (2999, 511), (2999, 1000)])
@pytest.mark.parametrize("times", [-1.01, 1e30, np.nan])
def test_a_pivot_below_a_square_panel_is_noticed(row, column, times, cupy, factor_by_squares):
    n = 3000
    a = matrix_on_device(cupy, n, "fp16x3")
    a += cupy.diag(2 * cupy.abs(a).sum(axis=1)).astype(a.dtype)
    a[row, column] = times * a[column, column]

    assert factor_by_squares(a, "fp16x3", 512, True).misled


@pytest.mark.parametrize("precision", ["fp16", "fp16x3", "auto"])
def test_a_matrix_whose_pivots_are_not_where_expected_is_factored_again(precision, hopper):
    """The diagonal dominates all rows and nearly all columns, but one pivot is not on it."""
    from tcsolve import Status, clear_cache, solve_ex

    n = 6000
    a = hopper.random.default_rng(4).standard_normal((n, n)) / (4 * n)
    a += hopper.eye(n)
    a[n - 1, 3], a[n - 1, n - 1] = 1.5, 4
    b = a @ hopper.ones(n)
    clear_cache()  # a replay of recorded work launches nothing

    with counted() as launches:
        found = solve_ex(a, b, precision=precision)

    assert launches["tcs_report"] == 2  # one for each factorization
    assert found.status == Status.CONVERGED and len(found.rungs) == 1
    assert float(hopper.abs(found.x - 1).max()) <= 1e-11
    again = solve_ex(a, b, precision=precision)
    assert (again.x == found.x).all()


def test_narrow_strips_factor_a_matrix(cupy, factor_on_device):
    a = matrix_on_device(cupy, 7000, "fp16x3")

    factors = factor_on_device(a, "fp16x3", 192, True)

    same_bits(cupy, factors, factor_on_device(a, "fp16x3", 192, False))
    assert residual(cupy, a, factors)[1] <= 4 * np.sqrt(7000) * UPDATES["fp16x3"].u


def test_rows_of_a_very_wide_panel_move_too(cupy, factor_on_device):
    a = matrix_on_device(cupy, 2501, "fp16x3")

    factors = factor_on_device(a, "fp16x3", 2000, True)

    assert residual(cupy, a, factors)[1] <= 4 * np.sqrt(2501) * UPDATES["fp16x3"].u


@pytest.mark.parametrize("block", [128, 512])
def test_look_ahead_repeats_itself_bit_for_bit(block, cupy, factor_on_device):
    a = matrix_on_device(cupy, 2999, "fp16x3")
    first = factor_on_device(a, "fp16x3", block, True)

    for _ in range(10):
        same_bits(cupy, first, factor_on_device(a, "fp16x3", block, True))


@pytest.mark.parametrize("look_ahead", [True, False])
@pytest.mark.parametrize("column", [0, 300, 511, 512, 1400, 1500])
def test_a_zero_column_is_reported_whatever_panel_it_is_in(
    column, look_ahead, cupy, factor_on_device
):
    a = matrix_on_device(cupy, 1501, "fp16x3")
    a[:, column] = 0

    assert factor_on_device(a, "fp16x3", 256, look_ahead).bad_pivot == column + 1


@pytest.mark.parametrize("m, k, n", [(1, 1, 1), (300, 256, 500), (777, 37, 65), (64, 512, 1001)])
@pytest.mark.parametrize("update", UPDATES)
def test_an_update_errs_by_the_roundoff_of_its_operands(update, m, k, n, cupy, ops):
    rng, how = np.random.default_rng(12), UPDATES[update]
    l = rng.uniform(-1, 1, (m, k)).astype(how.storage)
    u, c = (rng.standard_normal(shape).astype(how.storage) for shape in ((k, n), (m, n)))
    exact = c - l.astype(float) @ u.astype(float)
    size = np.abs(c) + np.abs(l).astype(float) @ np.abs(u).astype(float)
    result = cupy.asarray(c)

    ops.lu.operand(cupy.asarray(l), how)(result, cupy.asarray(u))

    storage = 2.0**-24 if how.storage == "float32" else 2.0**-53
    assert (np.abs(result.get() - exact) <= (4 * how.u + 2 * (k + 2) * storage) * size).all()
