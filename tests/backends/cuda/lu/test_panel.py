"""The strips of a panel, and the columns next to them, compared with NumPy, on a device."""

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest
from on_device import NO_PIVOT, U32
from switches import skip_on_other_chips
from tcsolve.kernels.launch_shapes import SWAP_SHAPES, SWAP_STATIC, lower_shape
from tcsolve.kernels.panel_shapes import BOARD_BYTES, NARROW_STRIP, SEARCHED_STRIP, panel_shape

from tcsolve._backends.cpu.lu import HostLU
from tcsolve._backends.cuda.runtime import compiler
from tcsolve._backends.cuda.runtime.launch_counter import counted
from tcsolve._contract.lu import Pivots

pytestmark = pytest.mark.gpu


# ---- the panel -------------------------------------------------------------------------------

# The largest cluster `panel_shape` may choose: with none, a grid takes every strip.
CLUSTER, PORTABLE, GRID = (
    pytest.param(size, id=name) for size, name in ((16, "cluster"), (8, "portable"), (0, "grid"))
)
both_paths = pytest.mark.parametrize("largest", [CLUSTER, GRID])


class Factored(NamedTuple):
    """All that the panel kernel writes, as NumPy arrays; in `home` the rows are not swapped yet."""

    home: Any
    order: Any
    ipiv: Any
    dst: Any
    src: Any
    top: Any
    info: Any
    moves: Any

    @property
    def swapped(self):
        """Which row of the strip became row i."""
        rows = np.arange(len(self.home))
        rows[self.dst] = self.src
        return rows

    @property
    def lu(self):
        return self.home[self.swapped]


@pytest.fixture
def factor_panel(cupy):
    """A function that runs the panel kernel through a cluster of at most `largest`, or a grid."""
    arch = compiler.target_arch()
    multiprocessors = cupy.cuda.Device().attributes["MultiProcessorCount"]

    def factor(a, largest, *, offset=0, padding=0, row0=0, col0=0, reported=NO_PIVOT, order=None):
        m, w = a.shape
        wanted = w == NARROW_STRIP, w > SEARCHED_STRIP
        shape = panel_shape(m, arch, multiprocessors, largest, *wanted)
        if shape is None or shape.cluster != (largest > 0):
            reason = (
                f"{arch} with {multiprocessors} multiprocessors cannot hold {m} rows in this way"
            )
            # The sizes are chosen for compute capability 9.0 with 132 multiprocessors, where all must fit.
            assert (cupy.cuda.Device().compute_capability, multiprocessors) != ("90", 132), reason
            pytest.skip(reason)
        assert w <= shape.strip
        storage = cupy.full((m + 1, offset + w + padding), 7, cupy.float32)
        strip = storage[:m, offset : offset + w]
        strip[...] = cupy.asarray(a)
        order = None if order is None else cupy.asarray(order)
        ipiv, dst, src = (cupy.full(k, -1, cupy.int32) for k in (w, 2 * w, 2 * w + 1))
        top = cupy.full((w, w + 3), 7, cupy.float32)
        info, started = cupy.full(1, reported, cupy.int32), cupy.zeros(17, cupy.uint32)
        board = None if shape.cluster else cupy.zeros(BOARD_BYTES, cupy.uint8)
        outputs = (order, ipiv, dst, src, top, w + 3, info)
        compiler.kernel("panel", "tcs_panel", **shape.defines)(
            (shape.blocks,),
            (shape.all_threads,),
            (strip, storage.shape[1], m, w, *outputs, row0, col0, started, board),
            shared=shape.shared_bytes,
            cooperative=not shape.cluster,
        )
        flag, *bits = started.tolist()
        assert flag == 1 and not any(bits[8:])
        assert 1 <= sum(word.bit_count() for word in bits) <= shape.blocks
        assert (storage[m:] == 7).all() and (top[:, w:] == 7).all()
        assert (cupy.delete(storage, slice(offset, offset + w), axis=1) == 7).all()
        results = (strip, order, ipiv, dst, src[:-1], top[:, :w], info, src[-1:])
        return Factored(*(x if x is None else x.get() for x in results))

    return factor


def fused(c, l, u):
    """Return c - l u for a column l and a row u of FP32 numbers, nearly always rounded only once."""
    product = np.multiply.outer(l.astype(np.longdouble), u.astype(np.longdouble))
    return (c - product).astype(np.float32)


def reference_panel(a):
    """Return (factors, pivots) of LAPACK's unblocked LU with the rounding of the kernel."""
    a = a.copy()
    pivots = []
    for j in range(a.shape[1]):
        k = j + int(np.argmax(np.abs(a[j:, j])))
        pivots.append(k)
        a[[j, k]] = a[[k, j]]
        if a[j, j] == 0:
            continue
        # In FP64, so that the reciprocal has its 24 bits whatever its size.
        fraction, exponent = np.frexp(a[j, j])
        reciprocal = np.ldexp(float(np.float32(1) / fraction), -exponent)
        a[j + 1 :, j] = (a[j + 1 :, j] * reciprocal).astype(np.float32)
        for i in range(j + 1, len(a), 1024):  # few enough rows for the processor's cache
            rows = slice(i, i + 1024)
            a[rows, j + 1 :] = fused(a[rows, j + 1 :], a[rows, j], a[j, j + 1 :])
    return a, np.array(pivots)


@functools.lru_cache(maxsize=4)
def random_panel(m, w):
    """Return a random strip, its factors and its pivots."""
    a = np.random.default_rng([m, w]).standard_normal((m, w)).astype(np.float32)
    return a, *reference_panel(a)


def after_swaps(m, pivots):
    """Return which of m rows becomes row i when rows j and pivots[j] are swapped in turn."""
    rows = np.arange(m)
    for j, k in enumerate(pivots):
        rows[[j, k]] = rows[[k, j]]
    return rows


def check_panel(factored, expected, pivots, row0=0):
    """Check the swaps, the factors and `top`; return info."""
    m, w = expected.shape
    swapped = factored.swapped
    assert np.array_equal(factored.ipiv - row0, pivots)
    assert np.array_equal(swapped, after_swaps(m, pivots))
    assert np.array_equal(factored.dst[:w], np.arange(w))
    assert np.array_equal(swapped[factored.dst], factored.src)
    assert np.array_equal(factored.lu, expected)
    assert np.array_equal(factored.top, expected[:w])
    return factored.info[0]


SIZES = [
    *((1, 1), (2, 1), (5, 5), (31, 30), (32, 32), (33, 33), (64, 61), (100, 77), (127, 127)),
    *((128, 128), (129, 100), (200, 124), (255, 3), (257, 96), (513, 64), (700, 45), (1025, 128)),
    *((2047, 33), (2049, 128), (3333, 65), (4097, 128), (5001, 127), (6144, 128), (6145, 96)),
    *((7003, 96), (8000, 128), (8192, 4), (8192, 96), (8193, 128), (9001, 31)),
    *((12289, 128), (16384, 100), (16384, 64)),
    *(
        (16385, 64),
        (16385, 128),
        (20001, 64),
        (20001, 68),
        (32768, 40),
        (32769, 48),
        (50000, 17),
        (65536, 64),
    ),
]
MOST_ROWS = {16: 32768, 8: 16384, 0: 65536}


def cases():
    for m, w in SIZES:
        for path in (CLUSTER, PORTABLE, GRID):
            (largest,) = path.values
            if m <= MOST_ROWS[largest]:
                w = min(
                    w, panel_shape(m, "sm_90a", 132, largest, dominant=w > SEARCHED_STRIP).strip
                )
                yield pytest.param(m, w, largest, id=f"{m}-{w}-{path.id}")


@pytest.mark.parametrize("m, w, largest", list(cases()))
def test_panel_has_the_bits_of_elimination_column_by_column(m, w, largest, factor_panel):
    a, expected, pivots = random_panel(m, w)

    assert check_panel(factor_panel(a, largest), expected, pivots) == NO_PIVOT


def dominant_panel(m, w):
    """Return a dominant strip: the other entries of a column add up to nine tenths of the diagonal one."""
    a = np.random.default_rng([m, w, 1]).standard_normal((m, w))
    diagonal = np.arange(w)
    a[diagonal, diagonal] = 0
    a[diagonal, diagonal] = np.abs(a).sum(axis=0) / 0.9 * (-1.0) ** diagonal
    return a.astype(np.float32)


@pytest.mark.parametrize(
    "m, w",
    [
        *((64, 64), (128, 128), (129, 128), (161, 128), (1000, 128), (2049, 128), (4096, 128)),
        *((4097, 128), (6145, 96), (8192, 96), (8192, 128), (8193, 128), (12345, 128)),
        *((16385, 64), (16385, 128), (20000, 128), (32768, 64), (32768, 128)),
    ],
)
@both_paths
def test_panel_has_the_same_numbers_where_a_dominant_diagonal_needs_no_search(
    m, w, largest, cupy, factor_panel
):
    a = dominant_panel(m, w)
    expected, pivots = reference_panel(a)
    order = np.random.default_rng(1).permutation(m).astype(np.int32)

    factored = factor_panel(a, largest, order=order, padding=4, row0=30, col0=7)

    assert np.array_equal(pivots, np.arange(w))
    assert check_panel(factored, expected, pivots, row0=30) == NO_PIVOT
    assert np.array_equal(factored.order, order)
    multiprocessors = cupy.cuda.Device().attributes["MultiProcessorCount"]
    wanted = w == NARROW_STRIP, w > SEARCHED_STRIP
    shape = panel_shape(m, compiler.target_arch(), multiprocessors, largest, *wanted)
    assert factored.moves == (not shape.dominant or w < shape.strip)


@pytest.mark.parametrize(
    "row, column, times",
    [
        *((-1, 0, 1.5), (-1, 126, 1.5), (127, 31, -1.0), (-1, 64, 1e20)),
        *((-1, 100, 0.2), (5, 5, 0.0), (127, 127, 0.001)),
    ],
)
@pytest.mark.parametrize("m", [128, 1000])
@both_paths
def test_panel_searches_where_one_column_is_not_dominated(
    m, row, column, times, largest, factor_panel
):
    a = dominant_panel(m, 128)
    a[row, column] = times * a[column, column]

    factored = factor_panel(a, largest)

    assert check_panel(factored, *reference_panel(a)) == NO_PIVOT
    assert factored.moves == 1


@pytest.mark.parametrize("scale", [2.0**110, 2.0**-120])
@both_paths
def test_panel_searches_where_the_reciprocals_may_not_be_normal(scale, largest, factor_panel):
    a = dominant_panel(600, 128) * np.float32(scale)

    factored = factor_panel(a, largest)

    assert check_panel(factored, *reference_panel(a)) == NO_PIVOT
    assert factored.moves == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row, column", [(-1, 90), (90, 90), (3, 127)])
@both_paths
def test_panel_searches_where_something_is_not_finite(bad, row, column, largest, factor_panel):
    a = dominant_panel(600, 128)
    a[row, column] = bad

    factored = factor_panel(a, largest)

    assert factored.moves == 1
    assert np.array_equal(factored.ipiv[:column], np.arange(column))
    assert not np.isfinite(factored.lu).all()


@pytest.mark.parametrize("w, padding", [(128, 1), (127, 1), (100, 4)])
@both_paths
def test_panel_searches_where_rows_are_not_aligned_or_columns_are_missing(
    w, padding, largest, factor_panel
):
    a = dominant_panel(600, w)

    factored = factor_panel(a, largest, padding=padding)

    assert check_panel(factored, *reference_panel(a)) == NO_PIVOT
    assert factored.moves == 1


@pytest.mark.parametrize("m, w", [(700, 128), (5000, 64)])
@both_paths
def test_panel_is_a_factorization_with_multipliers_up_to_one(m, w, largest, factor_panel):
    a, *_ = random_panel(m, w)

    factored = factor_panel(a, largest)

    lu = factored.lu.astype(float)
    lower, upper = np.tril(lu, -1) + np.eye(m, w), np.triu(lu[:w])
    assert np.abs(lower).max() <= 1
    error = np.abs(lower @ upper - a[factored.swapped])
    # Higham, Accuracy and Stability of Numerical Algorithms, theorem 9.3, and the reciprocal's rounding.
    assert (error <= (w + 1) * U32 * (np.abs(lower) @ np.abs(upper))).all()


@pytest.mark.parametrize("w", [128, 100, 77, 32, 5])
@pytest.mark.parametrize(
    "offset, padding", [(0, 4), (4, 0), (0, 1), (1, 3), (3, 2), (4, "aligned"), (2, "aligned")]
)
@both_paths
def test_panel_inside_a_matrix(offset, padding, w, largest, factor_panel):
    a, expected, pivots = random_panel(700, w)
    padding = -(offset + w) % 4 if padding == "aligned" else padding
    order = np.random.default_rng(1).permutation(5000)[:700].astype(np.int32)

    place = {"offset": offset, "padding": padding, "row0": 100, "col0": 10}
    factored = factor_panel(a, largest, order=order, **place)

    assert check_panel(factored, expected, pivots, row0=100) == NO_PIVOT
    assert np.array_equal(factored.order, order[factored.swapped])


@pytest.mark.parametrize("m, w", [(3000, 128), (5001, 71), (6001, 128), (8000, 96), (8000, 33)])
@pytest.mark.parametrize("offset, padding", [(0, 1), (1, 3), (4, 0)])
def test_tall_panel_inside_a_matrix_has_several_rows_a_thread(
    m, w, offset, padding, cupy, factor_panel
):
    a, expected, pivots = random_panel(m, w)

    factored = factor_panel(a, 16, offset=offset, padding=padding, row0=100, col0=10)

    assert check_panel(factored, expected, pivots, row0=100) == NO_PIVOT
    multiprocessors = cupy.cuda.Device().attributes["MultiProcessorCount"]
    wanted = w == NARROW_STRIP, w > SEARCHED_STRIP
    assert panel_shape(m, compiler.target_arch(), multiprocessors, 16, *wanted).rows > 1


@pytest.mark.parametrize(
    "m, w",
    [(60, 60), (130, 128), (1500, 64), (9000, 40), (700, 33), (2500, 65), (5000, 94), (8000, 126)],
)
@pytest.mark.parametrize("low, high", [(-1, 1), (0, 1), (-3, 3), (1, 1), (0, 0)])
@both_paths
def test_panel_breaks_ties_as_lapack(m, w, low, high, largest, factor_panel):
    a = np.random.default_rng(2).integers(low, high, (m, w), endpoint=True).astype(np.float32)
    expected, pivots = reference_panel(a)
    zero = np.flatnonzero(expected.diagonal() == 0)

    info = check_panel(factor_panel(a, largest, col0=40), expected, pivots)

    assert info == (40 + zero[0] + 1 if len(zero) else NO_PIVOT)


@pytest.mark.parametrize("columns", [[0], [5, 9], [31, 32], [63], [2, 50]])
@both_paths
def test_panel_reports_a_zero_column_and_goes_on(columns, largest, factor_panel):
    a = np.random.default_rng(3).standard_normal((900, 64)).astype(np.float32)
    a[:, columns] = 0

    factored = factor_panel(a, largest, col0=64)

    assert check_panel(factored, *reference_panel(a)) == 64 + columns[0] + 1
    assert (factored.lu[:, columns] == 0).all()


@both_paths
def test_panel_keeps_subnormal_numbers(largest, factor_panel):
    a = (1e-40 * np.random.default_rng(4).standard_normal((300, 64))).astype(np.float32)

    assert check_panel(factor_panel(a, largest), *reference_panel(a)) == NO_PIVOT


@both_paths
def test_panel_takes_pivots_of_every_size(largest, factor_panel):
    rng = np.random.default_rng(9)
    a = rng.uniform(-1, 1, (1000, 96)) * 2.0 ** np.resize(np.arange(-145, 125, 3), 96)
    a = a.astype(np.float32)

    assert check_panel(factor_panel(a, largest), *reference_panel(a)) == NO_PIVOT


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 7, 33, 63])
@both_paths
def test_panel_reports_a_pivot_that_is_not_finite(column, bad, largest, factor_panel):
    a, _, pivots = random_panel(3000, 64)
    before = after_swaps(3000, pivots[:column])
    row = before[2500]
    a = a.copy()
    a[row, column] = bad

    factored = factor_panel(a, largest, col0=96)

    assert factored.info[0] == 96 + column + 1
    assert np.array_equal(factored.ipiv[:column], pivots[:column])
    assert factored.ipiv[column] == 2500
    assert (np.arange(64) <= factored.ipiv).all() and (factored.ipiv < 3000).all()
    assert np.array_equal(factored.swapped, after_swaps(3000, factored.ipiv))


@pytest.mark.parametrize("bad", [[np.nan] * 3, [np.inf] * 3, [-np.inf, np.inf, np.inf]])
@pytest.mark.parametrize("column", [0, 7, 33, 63])
@both_paths
def test_of_pivots_that_are_not_finite_the_first_row_wins(column, bad, largest, factor_panel):
    a, _, pivots = random_panel(3000, 64)
    before = after_swaps(3000, pivots[:column])
    a = a.copy()
    a[before[[2500, 1200, 2999]], column] = bad

    factored = factor_panel(a, largest, col0=96)

    assert factored.info[0] == 96 + column + 1
    assert factored.ipiv[column] == 1200


@both_paths
def test_a_pivot_that_is_no_number_is_larger_than_infinity(largest, factor_panel):
    a, _, _ = random_panel(3000, 64)
    a = a.copy()
    a[[100, 2000, 2900], 0] = np.inf, np.nan, -np.inf

    assert factor_panel(a, largest).ipiv[0] == 2000


@pytest.mark.parametrize("reported, kept", [(NO_PIVOT, 11), (12, 11), (3, 3)])
@both_paths
def test_panel_keeps_an_earlier_report(reported, kept, largest, factor_panel):
    a = np.zeros((40, 8), np.float32)

    assert factor_panel(a, largest, col0=10, reported=reported).info[0] == kept


@pytest.mark.parametrize("m, w", [(1000, 128), (16384, 64)])
@both_paths
def test_panel_repeats_itself_bit_for_bit(m, w, largest, factor_panel):
    a = np.random.default_rng(6).standard_normal((m, w)).astype(np.float32)
    order = np.arange(m, dtype=np.int32)
    first = factor_panel(a, largest, order=order)

    for _ in range(20):
        again = factor_panel(a, largest, order=order)
        assert all(np.array_equal(x, y) for x, y in zip(first, again, strict=True))


# ---- swaps and substitution in other columns -------------------------------------------------


def swaps_to_random_rows(m, w):
    return np.random.default_rng([m, w]).integers(np.arange(w), m)


SWAPS = {
    "none": lambda m, w: np.arange(w),
    "none, known": lambda m, w: np.arange(w),
    "random": swaps_to_random_rows,
    "among the first": lambda m, w: swaps_to_random_rows(w, w),
    "with one row": lambda m, w: np.full(w, m - 1),
}


@pytest.mark.parametrize("shape", SWAP_SHAPES, ids=lambda shape: str(shape.columns))
@pytest.mark.parametrize("swaps", SWAPS)
@pytest.mark.parametrize(
    "m, w, n, stop, padding",
    [
        *((1, 1, 1, 1, 0), (1, 1, 40, 1, 0), (5, 3, 20, 9, 1), (40, 31, 70, 40, 0)),
        *(
            (64, 32, 96, 32, 0),
            (200, 33, 130, 64, 2),
            (300, 45, 300, 77, 4),
            (128, 128, 256, 128, 0),
        ),
        *((700, 64, 64, 64, 0), (700, 100, 333, 101, 3), (3000, 127, 512, 384, 0)),
        *((9000, 128, 520, 200, 1), (700, 2, 1000, 999, 0)),
    ],
)
def test_swap_solve_moves_all_columns_and_solves_those_on_the_right(
    m, w, n, stop, padding, swaps, shape, cupy
):
    shared = shape.shared_bytes(2 * w)
    room = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    if shared + SWAP_STATIC > room:
        assert room < 227 << 10
        skip_on_other_chips(f"{shared} bytes of shared memory are more than a block may have")
    _, factors, _ = random_panel(max(w, 200), w)
    lower = np.tril(factors[:w], -1).astype(float) + np.eye(w)
    a = np.random.default_rng(8).standard_normal((m, n + padding)).astype(np.float32)
    rows = after_swaps(m, SWAPS[swaps](m, w))
    dst = np.concatenate([np.arange(w), np.argsort(rows)[:w]]).astype(np.int32)
    src = np.concatenate([rows[:w], np.arange(w), [swaps != "none, known"]]).astype(np.int32)
    ld_top = -(-w // 4) * 4
    top = np.full((w, ld_top), np.nan, np.float32)
    top[:, :w] = factors[:w]
    moved = a.copy()
    moved[:, :n] = a[rows, :n]

    device = cupy.asarray(a)
    moves = (cupy.asarray(dst), cupy.asarray(src))
    args = (device, n + padding, n, stop, *moves, cupy.asarray(top), ld_top, w, 0)
    kernel = compiler.kernel("swap_solve", "tcs_swap_solve", **shape.defines)
    kernel((-(-n // shape.columns),), (shape.threads,), args, shared=shared)

    result = device.get()
    solved = np.zeros(a.shape, bool)
    solved[:w, stop:n] = True
    assert np.array_equal(result[~solved], moved[~solved])
    check_substitution(lower, result[:w, stop:n], moved[:w, stop:n])


def lower_problem(cupy, m, k, n, padding, swaps):
    """Return L on the device, with NaN where it must not be read; L in FP64; B; swaps; B after them."""
    from tcsolve._backends.cuda.lu.row_swaps import Merged

    _, factors, _ = random_panel(max(k, 200), k)
    l = cupy.full((k, -(-k // 4) * 4 + 4), np.nan, np.float32)
    l[:, :k] = cupy.asarray(np.where(np.tri(k, k, -1), factors[:k], np.nan))
    lower = np.tril(factors[:k], -1).astype(float) + np.eye(k)
    a = np.random.default_rng(8).standard_normal((m, n + padding)).astype(np.float32)
    known = swaps == "none, known"
    ipiv = swaps_to_random_rows(m, k) if known else SWAPS[swaps](m, k)
    rows, order = after_swaps(m, ipiv), np.arange(m, dtype="i")
    dst, src = HostLU().merge_swaps(order, rows.astype("i"), ipiv.astype("i"), 0)
    moved = a.copy()
    if not known:
        moved[:, :n] = a[rows, :n]
    there = (cupy.asarray(x) for x in (dst, src, np.full(1, not known, np.uint32)))
    return l[:, :k], lower, a, Merged(*there), moved


@pytest.mark.parametrize("swaps", SWAPS)
@pytest.mark.parametrize(
    "m, k, n, padding",
    [
        *((1, 1, 1, 0), (5, 3, 9, 1), (40, 16, 7, 2), (300, 192, 128, 4), (257, 200, 33, 3)),
        *((400, 256, 64, 4), (2000, 257, 100, 8), (600, 500, 12, 1), (9000, 512, 128, 4)),
        *((192, 192, 40, 0), (512, 512, 20, 4)),
    ],
)
def test_lower_solve_moves_rows_and_solves_for_those_that_become_u(m, k, n, padding, swaps, cupy):
    from tcsolve._backends.cuda.lu import unit_lower

    if not unit_lower.takes(k, n):
        assert lower_shape(k, compiler.target_arch(cupy.cuda.Device())) is None
        skip_on_other_chips(f"{k} unknowns take more shared memory than this device has")
    l, lower, a, merged, moved = lower_problem(cupy, m, k, n, padding, swaps)

    device = cupy.asarray(a)
    unit_lower.solve(l, device[:, :n], merged)

    result = device.get()
    solved = np.zeros(a.shape, bool)
    solved[:k, :n] = True
    assert np.array_equal(result[~solved], moved[~solved])
    check_substitution(lower, result[:k, :n], moved[:k, :n])
    if k > 128 and swaps == "none":  # the result is the same if no swaps are given
        device = cupy.asarray(a)
        unit_lower.solve(l, device[:k, :n])
        assert np.array_equal(device.get(), result)


@pytest.mark.parametrize("beyond", [0, 1])
def test_rows_right_of_a_wide_panel_take_one_launch_where_columns_are_few(beyond, cupy, ops):
    m, k = 400, 160
    n = 8 * cupy.cuda.Device().attributes["MultiProcessorCount"] + beyond
    l, lower, b, merged, moved = lower_problem(cupy, m, k, n, 0, "random")
    rows = cupy.zeros((m, k + n + -n % 4), np.float32)  # k is a multiple of 4, too
    rows[:k, :k], rows[:, k : k + n] = l, cupy.asarray(b)

    with counted() as launches:
        ops.lu.block_row(rows, slice(0, k), slice(k, k + n), merged)

    assert launches["tcs_lower_solve"] == (0 if beyond else 1)
    assert beyond or sum(launches.values()) == 1
    result = rows[:, k : k + n].get()
    assert np.array_equal(result[k:], moved[k:])
    check_substitution(lower, result[:k], moved[:k])


def check_substitution(lower, x, b):
    """Check lower x = b to the bound of substitution (Higham, theorem 8.5)."""
    bound = len(lower) * U32 * (np.abs(lower) @ np.abs(x))
    assert (np.abs(lower @ x - b) <= (1 + 1e-6) * bound).all()


# ---- a strip of a panel ----------------------------------------------------------------------


@pytest.fixture
def run_strip(cupy, ops):
    """A function that factors a strip inside a larger matrix, swaps rows, and returns all it writes."""

    def run(a, start, stop, row0, offset=0, padding=0, apart=False):
        m, k = a.shape
        storage = cupy.full((m, offset + k + padding), 7, a.dtype)
        p = storage[:, offset : offset + k]
        p[...] = cupy.asarray(a)
        ipiv, info = cupy.full(k, -1, cupy.int32), cupy.full(1, NO_PIVOT, cupy.int32)
        order, started = cupy.arange(m, dtype=cupy.int32), cupy.zeros(17, cupy.uint32)
        swaps = ops.lu.strip(p, start, stop, Pivots(row0, ipiv, order, info), started)
        assert int(started[0]) == 1
        for first, last in ((0, start), (start, k)) if apart else ((0, k),):
            if first < last:
                ops.lu.block_row(p[start:], slice(start, stop), slice(first, last), swaps)
        assert (cupy.delete(storage, slice(offset, offset + k), axis=1) == 7).all()
        return p.get(), ipiv.get(), order.get(), int(info[0])

    return run


def check_moves(a, start, stop, row0, ipiv, order):
    """Check ipiv and order against each other; return a with its rows swapped."""
    assert (np.delete(ipiv, slice(start, stop)) == -1).all()
    swaps = ipiv[start:stop] - row0 - start
    assert np.array_equal(order[:start], np.arange(start))
    assert np.array_equal(order[start:], start + after_swaps(len(a) - start, swaps))
    return a[order]


@pytest.mark.parametrize(
    "m, k, start, stop, offset, padding",
    [
        *(
            (1, 1, 0, 1, 0, 0),
            (40, 72, 8, 40, 0, 0),
            (300, 96, 32, 96, 0, 0),
            (301, 99, 33, 98, 1, 1),
        ),
        *((700, 256, 64, 192, 0, 0), (700, 256, 128, 256, 4, 0), (1999, 130, 0, 77, 3, 0)),
        *((5000, 512, 128, 256, 0, 0), (20000, 200, 64, 128, 0, 0), (40000, 48, 4, 36, 0, 0)),
    ],
)
def test_a_strip_is_factored_and_its_rows_brought_up_to_date(
    m, k, start, stop, offset, padding, run_strip
):
    a = np.random.default_rng([m, k]).standard_normal((m, k)).astype(np.float32)
    expected, pivots = reference_panel(a[start:, start:stop])

    p, ipiv, order, info = run_strip(a, start, stop, 100, offset, padding)
    by_parts = run_strip(a, start, stop, 100, offset, padding, apart=True)
    assert np.array_equal(p, by_parts[0])

    moved = check_moves(a, start, stop, 100, ipiv, order)
    assert info == NO_PIVOT
    assert np.array_equal(ipiv[start:stop], 100 + start + pivots)
    assert np.array_equal(p[:, :start], moved[:, :start])
    assert np.array_equal(p[start:, start:stop], expected)
    assert np.array_equal(p[:start, start:], a[:start, start:])
    assert np.array_equal(p[stop:, stop:], moved[stop:, stop:])
    w = stop - start
    lower = np.tril(expected[:w], -1).astype(float) + np.eye(w)
    check_substitution(lower, p[start:stop, stop:], moved[start:stop, stop:])


@pytest.mark.parametrize(
    "dtype, m, k, start, stop", [("f", 700, 300, 20, 270), ("d", 900, 96, 32, 64)]
)
def test_strip_lu_leaves_to_the_library_what_the_kernel_does_not_hold(
    dtype, m, k, start, stop, run_strip
):
    a = np.random.default_rng(10).standard_normal((m, k)).astype(dtype)

    with counted() as launches:
        p, ipiv, order, info = run_strip(a, start, stop, 100)

    moved = check_moves(a, start, stop, 100, ipiv, order)
    assert info == NO_PIVOT and launches["tcs_panel"] == 0
    assert np.array_equal(p[:, :start], moved[:, :start])
    assert np.array_equal(p[stop:, stop:], moved[stop:, stop:])
    w, lu = stop - start, p[start:, start:stop].astype(float)
    lower, upper = np.tril(lu, -1) + np.eye(*lu.shape), np.triu(lu[:w])
    u = np.finfo(dtype).eps
    assert np.abs(lower).max() <= 1 + u
    error = np.abs(lower @ upper - moved[start:, start:stop])
    assert (error <= w * u * (np.abs(lower) @ np.abs(upper))).all()
    right = p[start:stop, stop:].astype(float)
    error = np.abs(lower[:w] @ right - moved[start:stop, stop:])
    assert (error <= 4 * w * u * (np.abs(lower[:w]) @ np.abs(right)).max(axis=0)).all()


@pytest.mark.parametrize(
    "column, info", [(8, 100 + 9), (20, 100 + 21), (39, 100 + 40), (5, NO_PIVOT)]
)
def test_strip_lu_reports_a_zero_column_of_its_strip(column, info, run_strip):
    a = np.random.default_rng(11).standard_normal((500, 64)).astype(np.float32)
    a[:, column] = 0

    assert run_strip(a, 8, 40, 100)[-1] == info


def test_strips_whose_diagonal_dominates_take_less_time(cupy, ops):
    m, count = 16384, 12
    if cupy.cuda.Device().compute_capability not in ("90", "100", "103"):
        skip_on_other_chips("strips are searched in any case: too little shared memory")
    ipiv, info = cupy.empty(128, cupy.int32), cupy.full(1, NO_PIVOT, cupy.int32)
    order = cupy.arange(m, dtype=cupy.int32)

    def seconds(a):
        strips = [a.copy() for _ in range(count)]
        before, after = cupy.cuda.Event(), cupy.cuda.Event()
        before.record()
        for p in strips:
            ops.lu.strip(p, 0, 128, Pivots(0, ipiv, order, info))
        after.record()
        after.synchronize()
        return cupy.cuda.get_elapsed_time(before, after) / 1e3

    a = cupy.asarray(dominant_panel(m, 128))
    random = cupy.random.default_rng(2).standard_normal((m, 128), dtype=cupy.float32)
    seconds(a)  # loads the kernel

    # They take turns, because other processes may use the device.
    fast, slow = zip(*((seconds(a), seconds(random)) for _ in range(20)), strict=True)
    assert min(fast) < 0.8 * min(slow)
    assert int(info[0]) == NO_PIVOT
