"""Each CUDA kernel against its definition in NumPy, and the LU made of them, on a device."""

import functools
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from tcsolve.kernels import (
    BOARD_BYTES,
    KERNELS,
    NARROW_STRIP,
    SEARCHED_STRIP,
    SWAP_SHAPES,
    SWAP_STATIC,
    TRSV_BLOCK,
    TRSV_THREADS,
    lower_shape,
    move_chunk,
    panel_shape,
)

from tcsolve import _jit
from tcsolve._formats import UPDATES
from tcsolve._lu import factor_blocked
from tcsolve._ops_numpy import NumpyOps

pytestmark = pytest.mark.gpu

NO_PIVOT = 2**31 - 1
U32 = 2.0**-24
STORED = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32}


@pytest.fixture
def ops(cupy):
    """The primitives that launch the kernels."""
    from tcsolve._ops_cupy import CupyOps

    return CupyOps()


def random_matrix(dtype, m, n, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((m, n))
    return (a + 1j * rng.standard_normal((m, n)) if np.dtype(dtype).kind == "c" else a).astype(
        dtype
    )


# ---- the panel -------------------------------------------------------------------------------

# The largest cluster `panel_shape` may choose: with none, a grid takes every strip.
CLUSTER, PORTABLE, GRID = (
    pytest.param(size, id=name) for size, name in ((16, "cluster"), (8, "portable"), (0, "grid"))
)
both_paths = pytest.mark.parametrize("largest", [CLUSTER, GRID])


class Factored(NamedTuple):
    """All that the panel kernel writes, as NumPy arrays; `home` has its rows where they were."""

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
    arch = _jit.target_arch()
    multiprocessors = cupy.cuda.Device().attributes["MultiProcessorCount"]

    def factor(a, largest, *, offset=0, padding=0, row0=0, col0=0, reported=NO_PIVOT, order=None):
        m, w = a.shape
        wanted = w == NARROW_STRIP, w > SEARCHED_STRIP
        shape = panel_shape(m, arch, multiprocessors, largest, *wanted)
        if shape is None or shape.cluster != (largest > 0):
            reason = f"{arch} with {multiprocessors} multiprocessors cannot hold {m} rows so"
            # Which the tests' sizes are for.
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
        _jit.kernel("panel", "tcs_panel", **shape.defines)(
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
    """c - l u of a column l and a row u of FP32 numbers, rounded once."""
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
    """Check every output but info, which is returned."""
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
    """Return a strip whose diagonal dominates its columns: the others add up to nine tenths of it."""
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
def test_panel_has_the_same_numbers_where_the_diagonal_spares_the_search(
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
    shape = panel_shape(m, _jit.target_arch(), multiprocessors, largest, *wanted)
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
def test_panel_searches_where_words_are_not_whole(w, padding, largest, factor_panel):
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
def test_panel_inside_a_matrix_has_leaves_of_several_rows_a_thread(
    m, w, offset, padding, factor_panel
):
    a, expected, pivots = random_panel(m, w)

    factored = factor_panel(a, 16, offset=offset, padding=padding, row0=100, col0=10)

    assert check_panel(factored, expected, pivots, row0=100) == NO_PIVOT


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


# ---- swaps and substitution beside the strip -------------------------------------------------


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
        pytest.skip(f"{shared} bytes of shared memory are more than a block may have")
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
    kernel = _jit.kernel("swap_solve", "tcs_swap_solve", **shape.defines)
    kernel((-(-n // shape.columns),), (shape.threads,), args, shared=shared)

    result = device.get()
    solved = np.zeros(a.shape, bool)
    solved[:w, stop:n] = True
    assert np.array_equal(result[~solved], moved[~solved])
    check_substitution(lower, result[:w, stop:n], moved[:w, stop:n])


def lower_problem(cupy, m, k, n, padding, swaps):
    """Return L on the device, with NaN where it does not count, and in FP64; B; swaps; B after them."""
    from tcsolve._rows import Merged

    _, factors, _ = random_panel(max(k, 200), k)
    l = cupy.full((k, -(-k // 4) * 4 + 4), np.nan, np.float32)
    l[:, :k] = cupy.asarray(np.where(np.tri(k, k, -1), factors[:k], np.nan))
    lower = np.tril(factors[:k], -1).astype(float) + np.eye(k)
    a = np.random.default_rng(8).standard_normal((m, n + padding)).astype(np.float32)
    known = swaps == "none, known"
    ipiv = swaps_to_random_rows(m, k) if known else SWAPS[swaps](m, k)
    rows, order = after_swaps(m, ipiv), np.arange(m, dtype="i")
    dst, src = NumpyOps().merge_swaps(order, rows.astype("i"), ipiv.astype("i"), 0)
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
    from tcsolve import _unit_lower

    if not _unit_lower.takes(k, n):
        assert lower_shape(k, _jit.target_arch(cupy.cuda.Device())) is None
        pytest.skip(f"{k} unknowns take more shared memory than this device has")
    l, lower, a, merged, moved = lower_problem(cupy, m, k, n, padding, swaps)

    device = cupy.asarray(a)
    _unit_lower.solve(l, device[:, :n], merged)

    result = device.get()
    solved = np.zeros(a.shape, bool)
    solved[:k, :n] = True
    assert np.array_equal(result[~solved], moved[~solved])
    check_substitution(lower, result[:k, :n], moved[:k, :n])
    if k > 128 and swaps == "none":  # no swaps are given
        device = cupy.asarray(a)
        _unit_lower.solve(l, device[:k, :n])
        assert np.array_equal(device.get(), result)


@pytest.mark.parametrize("beyond", [0, 1])
def test_rows_right_of_a_wide_panel_take_one_launch_where_columns_are_few(
    beyond, cupy, ops, monkeypatch
):
    from tcsolve import _unit_lower

    m, k = 400, 160
    n = 8 * cupy.cuda.Device().attributes["MultiProcessorCount"] + beyond
    l, lower, b, merged, moved = lower_problem(cupy, m, k, n, 0, "random")
    rows = cupy.zeros((m, k + n + -n % 4), np.float32)  # k is a multiple of 4, too
    rows[:k, :k], rows[:, k : k + n] = l, cupy.asarray(b)
    launches, launch = [], _unit_lower._lower_solve
    spy = lambda *args: launches.append(args) or launch(*args)  # noqa: E731
    monkeypatch.setattr(_unit_lower, "_lower_solve", spy)

    ops.block_row(rows, 0, k, merged, k, k + n, None)

    assert len(launches) == (0 if beyond else 1)
    result = rows[:, k : k + n].get()
    assert np.array_equal(result[k:], moved[k:])
    check_substitution(lower, result[:k], moved[:k])


def check_substitution(lower, x, b):
    """Check lower x = b to the bound of substitution (Higham, theorem 8.5)."""
    bound = len(lower) * U32 * (np.abs(lower) @ np.abs(x))
    assert (np.abs(lower @ x - b) <= (1 + 1e-6) * bound).all()


# ---- short updates -----------------------------------------------------------------------------


def short_operands(m, n, k):
    """Return a matrix in which L, U and C lie as in an LU, with entries of at most 1, and views of them."""
    first = k + -k % 4  # column of U and C, where rows start on 16-byte boundaries
    shape = k + m, first + n + -n % 4 + 4
    w = np.random.default_rng([m, n, k]).uniform(-1, 1, shape).astype(np.float32)
    return w, *short_views(w, n, k)


def short_views(w, n, k):
    right = slice(k + -k % 4, k + -k % 4 + n)
    return w[k:, :k], w[:k, right], w[k:, right]


@pytest.fixture
def short_update(cupy):
    """A function that subtracts L U in a matrix of `short_operands`, and returns it."""
    from tcsolve import _short

    if not _jit.supported("short_update", _jit.target_arch(cupy.cuda.Device())):
        pytest.skip("mma.sync of TF32 needs compute capability 8.0 or later")

    def run(w, n, k):
        w = cupy.array(w)
        l, u, c = short_views(w, n, k)
        _short.subtract(c, l, u)
        return w.get()

    return run


@pytest.mark.parametrize(
    "m, n, k",
    [
        *(
            (1, 1, 4),
            (5, 3, 8),
            (64, 64, 32),
            (64, 96, 96),
            (63, 95, 64),
            (129, 63, 4),
            (65, 97, 100),
        ),
        *((1000, 1, 128), (777, 193, 192), (5, 300, 256), (4000, 128, 128), (333, 31, 120)),
        *((8000, 192, 192), (70, 40, 33), (130, 90, 101), (3, 5, 2), (1, 1, 1)),
    ],
)
def test_a_short_update_is_as_good_as_one_in_fp32(m, n, k, short_update):
    w, *operands = short_operands(m, n, k)
    l, u, c = (x.astype(float) for x in operands)

    result = short_update(w, n, k)

    # What is dropped of each product, the sum of its sixteens, and the last subtraction.
    unit = 2.0**-22 + (k / 16 + 4) * U32
    bound = unit * (np.abs(l) @ np.abs(u)) + U32 * np.abs(c)
    error = np.abs(short_views(result, n, k)[2] - (c - l @ u))
    assert (error <= bound).all()
    again = short_update(w, n, k)
    assert np.array_equal(result, again)
    short_views(again, n, k)[2][...] = operands[2]
    assert np.array_equal(again, w)  # nothing else was written


@pytest.mark.parametrize(
    "bits", [0x7F800000, 0xFF800000, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001]
)
def test_a_short_update_keeps_what_is_not_finite(bits, short_update):
    m, n, k = 200, 70, 64
    w, l, u, _ = short_operands(m, n, k)
    l.view(np.uint32)[7, 3] = u.view(np.uint32)[9, 5] = bits

    bad = ~np.isfinite(short_views(short_update(w, n, k), n, k)[2])

    assert bad[7].all() and bad[:, 5].all() and bad.sum() == m + n - 1


# ---- triangles and their diagonal blocks -----------------------------------------------------

REAL = {"f": "float", "d": "double"}


def well_conditioned(char, n, padding=0):
    """Return both triangles of a matrix, NaN in the padding of its rows."""
    rng = np.random.default_rng([n, padding])
    lu = np.full((n, n + padding), np.nan)
    lu[:, :n] = rng.uniform(-1, 1, (n, n)) / np.sqrt(n)
    np.fill_diagonal(lu, rng.uniform(1, 2, n) * rng.choice([-1, 1], n))
    return lu.astype(char)


def triangle(lu, lower, unit):
    """Return one triangle of a square matrix in FP64."""
    t = np.tril(lu.astype(float)) if lower else np.triu(lu.astype(float))
    if unit:
        np.fill_diagonal(t, 1)
    return t


def diagonal_blocks(t, size):
    """Return inverses of the diagonal blocks of a triangle, zero beyond it, and their condition."""
    count = -(-len(t) // size)
    blocks, worst = np.zeros((count, size, size)), 0
    for i in range(count):
        part = slice(i * size, (i + 1) * size)
        d = t[part, part]
        blocks[i, : len(d), : len(d)] = np.linalg.inv(d)
        worst = max(worst, (np.abs(np.linalg.inv(d)) @ np.abs(d)).sum(axis=1).max())
    return blocks, worst


@pytest.fixture
def invert_blocks(cupy):
    """A function that returns the inverses and `worst` of a matrix on the host."""

    def run(lu, n, unit_lower):
        char = lu.dtype.char
        size = TRSV_BLOCK[char]
        inverses = cupy.full((2, -(-n // size), size, size), 7, char)
        worst = cupy.zeros(1)
        kernel = _jit.kernel("invert", "tcs_invert_blocks", T_IN=REAL[char])
        args = (inverses, worst, cupy.asarray(lu), lu.shape[1], n, unit_lower)
        kernel((inverses.shape[1], 2), (256,), args)
        return inverses.get(), float(worst[0])

    return run


@pytest.mark.parametrize("unit_lower", [0, 1])
@pytest.mark.parametrize("n, padding", [(1, 0), (31, 1), (64, 0), (129, 3), (300, 4), (512, 0)])
@pytest.mark.parametrize("char", ["f", "d"])
def test_diagonal_blocks_are_inverted(char, n, padding, unit_lower, invert_blocks):
    lu = well_conditioned(char, n, padding)

    inverses, worst = invert_blocks(lu, n, unit_lower)

    conditions = []
    for half, lower in enumerate((True, False)):
        t = triangle(lu[:, :n], lower, lower == bool(unit_lower))
        expected, condition = diagonal_blocks(t, TRSV_BLOCK[char])
        conditions.append(condition)
        assert (inverses[half][expected == 0] == 0).all()
        error = np.abs(inverses[half] - expected).max()
        assert error <= 10 * np.finfo(char).eps * condition * np.abs(expected).max()
    assert worst == pytest.approx(max(conditions), rel=1e-4)


@pytest.mark.parametrize("bad", [0, np.nan, np.inf])
@pytest.mark.parametrize("at", [0, 70, 299])
@pytest.mark.parametrize("char", ["f", "d"])
def test_a_pivot_without_an_inverse_makes_the_worst_condition(char, at, bad, invert_blocks):
    lu = well_conditioned(char, 300)
    lu[at, at] = bad

    assert not np.isfinite(invert_blocks(lu, 300, 1)[1])


def clusters_of(name, cupy):
    """Return the sizes of clusters that a kernel is compiled with for this device; 0 is none."""
    arch = _jit.target_arch(cupy.cuda.Device())
    return {v["BLOCKS"] for v in KERNELS[name].variants_for(arch)}


@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("lower", [0, 1])
@pytest.mark.parametrize("columns", [1, 2, 4])
@pytest.mark.parametrize("char", ["f", "d"])
def test_triangle_is_solved_with_the_same_bits_by_any_blocks(char, columns, lower, trans, cupy):
    for n, padding in ((1, 0), (100, 0), (128, 4), (600, 3), (1029, 3), (2000, 0), (2500, 0)):
        lu = well_conditioned(char, n, padding)
        t = triangle(lu[:, :n], lower, False)
        inverses, _ = diagonal_blocks(t, TRSV_BLOCK[char])
        b = np.random.default_rng(n).standard_normal((columns, n)).astype(char)
        inputs = (cupy.asarray(b), cupy.asarray(lu), n + padding, n, cupy.asarray(inverses, char))
        results = []
        for cluster in clusters_of("trsv", cupy):
            defines = {"K": columns, "LOWER": lower, "TRANS": trans, "BLOCKS": cluster}
            kernel = _jit.kernel("trsv", "tcs_solve_triangle", T_IN=REAL[char], **defines)
            for blocks in (48, 48, 8):  # more than there is to do, and one cluster that does it all
                x = cupy.full((columns, n * b.itemsize), 255, cupy.uint8).view(char)
                ticket = cupy.full(1, 2**32 - 1, cupy.uint32)
                kernel((blocks,), (TRSV_THREADS,), (x, *inputs, ticket, None))
                results.append(x.get())
        expected = np.linalg.solve(t.T if trans else t, b.T.astype(float)).T
        error = np.abs(results[0] - expected).max()
        assert all(np.array_equal(results[0], other) for other in results[1:])
        assert error <= 50 * np.finfo(char).eps * np.abs(expected).max()


@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("char", ["f", "d"])
def test_a_nan_of_all_bits_is_passed_on_as_another(char, trans, cupy):
    """Were it passed on as it is, others would wait for it forever."""
    n, at = 1500, 70
    lu = well_conditioned(char, n)
    inverses, _ = diagonal_blocks(triangle(lu, 1, False), TRSV_BLOCK[char])
    b = np.ones((1, n), char)
    b.view(np.uint8)[:, at * b.itemsize : (at + 1) * b.itemsize] = 255
    inputs = (cupy.asarray(b), cupy.asarray(lu), n, n, cupy.asarray(inverses, char))
    for cluster in clusters_of("trsv", cupy):
        defines = {"K": 1, "LOWER": 1, "TRANS": trans, "BLOCKS": cluster}
        kernel = _jit.kernel("trsv", "tcs_solve_triangle", T_IN=REAL[char], **defines)
        x = cupy.full((1, n * b.itemsize), 255, cupy.uint8).view(char)
        kernel((16,), (TRSV_THREADS,), (x, *inputs, cupy.full(1, 2**32 - 1, cupy.uint32), None))

        bits = x.get().view(np.uint8).reshape(n, -1)
        assert np.isnan(x.get()[0, 0 if trans else -1]) and not (bits == 255).all(axis=1).any()


def test_a_solution_is_added_to_what_there_is(cupy, ops):
    from tcsolve._substitute import substitute

    n, rng = 1029, np.random.default_rng(0)
    lu = cupy.asarray(well_conditioned("f", n, 3))[:, :n]
    inverses, _ = ops.invert_diagonal_blocks(lu)
    b, base = cupy.asarray(rng.standard_normal((n, 1))), cupy.asarray(rng.standard_normal((1, n)))
    x = substitute(lu, b, False, inverses, None, None)

    out, sizes = cupy.empty((2, n)), cupy.zeros(1)
    for row, known in ((out[:1], False), (out[1:], True)):
        options = {"out": row, "onto": base, "sizes": sizes, "known": known}
        substitute(lu, b, False, inverses, None, None, **options)
        assert sizes[0] == (abs(b).max() / 8 if known else abs(b).max())
        sizes /= 8  # what is known is taken as it is; a power of two changes no bit of x

    assert (out == base + x.T).all()


@pytest.mark.parametrize("columns", [1, 4])
def test_a_triangle_is_not_read_where_all_is_zero(columns, cupy):
    n = 1029
    lu, inverses = (cupy.full(shape, np.nan, "f") for shape in ((n, n), (9, 128, 128)))
    x, tops = cupy.full((columns, n), np.nan, "f"), cupy.zeros(columns, cupy.uint64)
    b, ticket = cupy.zeros_like(x), cupy.full(1, 2**32 - 1, cupy.uint32)
    for cluster in clusters_of("trsv", cupy):
        x[...] = np.nan
        defines = {"T_IN": "float", "K": columns, "LOWER": 1, "TRANS": 0, "BLOCKS": cluster}
        kernel = _jit.kernel("trsv", "tcs_solve_triangle", **defines)

        kernel((24,), (TRSV_THREADS,), (x, b, lu, n, n, inverses, ticket, tops))

        assert (x == 0).all() and int(ticket[0]) == 2**32 - 1


# ---- conversion ------------------------------------------------------------------------------


@pytest.mark.parametrize("of, to", ["fd", "df", "FD", "DF", "fD", "fF", "dD", "ff"])
@pytest.mark.parametrize("order", "CF")
def test_conversions_keep_subnormal_numbers(of, to, order, cupy, ops):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 5, 8)) * 2.0 ** rng.integers(-150, 120, (2, 5, 8))
    x[:, 0, :6] = 2.0**-149, -(2.0**-140), 3 * 2.0**-150, np.inf, np.nan, -0.0
    x = np.stack(x, axis=-1).view(complex)[..., 0] if of in "FD" else x[0]
    x = np.array(x, dtype=of, order=order)

    for part in (np.s_[:], np.s_[::2, 1::2]):
        given = cupy.asarray(x)[part]
        got = ops.converted(given, to)
        assert got.dtype.char == to and (got is given) == (of == to)
        assert np.array_equal(got.get(), x[part].astype(to), equal_nan=True)
        if part == np.s_[:]:
            assert got.flags.f_contiguous == (order == "F")


# ---- the condition estimate ------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 31, 1000, 1024, 5003])
def test_the_probes_are_those_of_numpy(n, ops):
    assert np.array_equal(ops.probes(n).get(), NumpyOps().probes(n))


@pytest.mark.parametrize("kind", ["random", "tie", "nan", "inf", "zero"])
@pytest.mark.parametrize("n, step", [(1, 1), (40, 2), (1025, 1), (5003, 2)])
@pytest.mark.parametrize("goes_on, same", [(True, False), (True, True), (False, False)])
def test_signs_and_the_steepest_entry_are_those_of_numpy(n, step, kind, goes_on, same, cupy, ops):
    z = np.random.default_rng(n).standard_normal((n, step))[:, 0]
    if kind == "zero":
        z[:] = -0.0
    for at in (n // 2, n - 1):
        z[at] = {"tie": -9.0, "nan": np.nan, "inf": -np.inf}.get(kind, z[at])
    z[n // 3] = 9.0 if kind == "tie" else np.inf if kind == "nan" else z[n // 3]
    last = float(np.abs(z).argmax()) if same else -1.0
    results = []
    for xp, own in ((np, NumpyOps()), (cupy, ops)):
        v = xp.empty((n, step))
        v[:, 0], state, found = xp.asarray(z), xp.asarray([last, float(goes_on)]), xp.empty(2)
        sign = own.signs(v[:, 0], state)
        results.append([sign, own.steepest(v[:, 0], state, found), state, found])

    expected, got = results
    assert all(
        np.array_equal(a, b.get(), equal_nan=True) for a, b in zip(expected, got, strict=True)
    )
    assert expected[1].any() == (goes_on and not same)


# ---- rows of U right of a panel --------------------------------------------------------------


@pytest.mark.parametrize("update", ["fp32", "fp16x3"])
@pytest.mark.parametrize("n", [40, 5000])
@pytest.mark.parametrize("k", [1, 100, 129, 300, 512, 1000])
def test_substitution_by_halves_or_by_an_inverse(k, n, update, cupy, ops):
    rng = np.random.default_rng([k, n])
    l = (rng.uniform(-1, 1, (k, k)) / np.sqrt(k)).astype(np.float32)
    b = rng.standard_normal((k, n)).astype(np.float32)
    storage = cupy.full((k, -(-k // 4) * 4 + 4), 7, cupy.float32)
    storage[:, :k] = cupy.asarray(l)
    x = cupy.asarray(b)

    def solve(x):
        by = ops.substitution(storage[:, :k], n, UPDATES[update], False)
        assert (by is not None) == (update == "fp16x3" and k > 128 and n == 5000)
        ops.solve_unit_lower(storage[:, :k], x, by)

    solve(x)

    lower = np.tril(l.astype(float), -1) + np.eye(k)
    error = np.abs(lower @ x.get() - b)
    assert (error <= 8 * np.sqrt(k) * UPDATES[update].u * (np.abs(lower) @ np.abs(x.get()))).all()
    again = cupy.asarray(b)
    solve(again)
    assert (x == again).all()


def inverted(cupy, k, well_conditioned):
    """Return a unit lower triangle, as NumPy's and FP64, and its inverse on the device."""
    from tcsolve._inverse import unit_lower_inverse

    l = np.random.default_rng(k).uniform(-1, 1, (k, k)) / np.sqrt(k)
    storage = cupy.full((k, -(-k // 4) * 4 + 4), np.nan, cupy.float32)
    storage[:, :k] = cupy.asarray(l)
    lower = np.tril(storage[:, :k].get().astype(float), -1) + np.eye(k)
    cupy.full((k, k), np.nan, cupy.float32)  # the memory that the inverse will have
    return lower, unit_lower_inverse(storage[:, :k], well_conditioned)


both_inverses = pytest.mark.parametrize("well_conditioned", [True, False])
orders = pytest.mark.parametrize("k", [100, 128, 129, 192, 300, 512, 1000, 1024])


@both_inverses
@orders
def test_an_inverse_is_that_of_the_unit_triangle(k, well_conditioned, cupy):
    lower, made = inverted(cupy, k, well_conditioned)

    inverse = made.get()
    assert np.array_equal(inverse, np.tril(inverse)) and (inverse.diagonal() == 1).all()
    # By substitution, as far as that goes, then of halves (Higham, section 14.2.2).
    u = 2.0**-24
    exact = np.linalg.inv(lower)
    bound = 4 * k * u * (np.abs(exact) @ np.abs(lower) @ np.abs(exact))
    assert (np.abs(inverse - exact) <= bound).all()


@both_inverses
@orders
@pytest.mark.parametrize("columns", [1, 700, 5000])
def test_products_with_an_inverse_solve(columns, k, well_conditioned, hopper):
    from tcsolve import _wgmma

    lower, made = inverted(hopper, k, well_conditioned)
    b = np.random.default_rng([k, columns]).standard_normal((k, columns)).astype(np.float32)
    x = hopper.asarray(b)

    _wgmma.Lower(made, UPDATES["fp16x3"], 132).apply(x, None)

    error = np.abs(lower @ x.get() - b)
    size = np.abs(lower) @ np.abs(np.linalg.inv(lower)) @ np.abs(b)
    assert (error <= 8 * np.sqrt(k) * UPDATES["fp16x3"].u * size.max(axis=0)).all()


@pytest.mark.parametrize("m, k, start", [(1, 1, 0), (300, 300, 0), (300, 7, 5), (5000, 512, 1024)])
def test_the_swaps_of_a_panels_strips_become_one(m, k, start, cupy, ops):
    rng = np.random.default_rng([m, k])
    order, local = rng.permutation(m).astype("i"), rng.permutation(m).astype("i")
    ipiv = (start + rng.integers(0, m, k)).astype("i")
    there = [cupy.asarray(x) for x in (order, local, ipiv)]

    dst, src, moves = (x.get() for x in ops.merge_swaps(*there, start))

    numpy_dst, numpy_src = NumpyOps().merge_swaps(order, local, ipiv, start)
    assert np.array_equal(dst, numpy_dst) and np.array_equal(src, numpy_src)
    assert np.array_equal(there[0].get(), order) and np.array_equal(there[1].get(), local)
    assert bool(moves[0]) == (ipiv - start != np.arange(k)).any()


@pytest.mark.parametrize("n, moved", [(1, 0), (31, 31), (1024, 5), (5000, 4999)])
def test_a_report_counts_the_rows_that_were_exchanged(n, moved, cupy, ops):
    ipiv = np.arange(n, dtype="i")
    ipiv[np.random.default_rng(n).choice(n, moved, replace=False)] += 1
    info, beyond, worst = np.full(1, NO_PIVOT, "i"), np.ones(1, "i"), np.array([np.nan])

    report = ops.report(*(cupy.asarray(x) for x in (info, ipiv, worst, beyond))).get()

    assert report[1] == moved
    assert np.array_equal(report, NumpyOps().report(info, ipiv, worst, beyond), equal_nan=True)


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
        swaps = ops.strip_lu(p, start, stop, ipiv, row0, order, info, started)
        assert int(started[0]) == 1
        for first, last in ((0, start), (start, k)) if apart else ((0, k),):
            if first < last:
                ops.block_row(p[start:], start, stop, swaps, first, last, None)
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

    p, ipiv, order, info = run_strip(a, start, stop, 100)

    moved = check_moves(a, start, stop, 100, ipiv, order)
    assert info == NO_PIVOT
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
        pytest.skip("strips are searched in any case: too little shared memory")
    ipiv, info = cupy.empty(128, cupy.int32), cupy.full(1, NO_PIVOT, cupy.int32)
    order = cupy.arange(m, dtype=cupy.int32)

    def seconds(a):
        strips = [cupy.asarray(a) for _ in range(count)]
        before, after = cupy.cuda.Event(), cupy.cuda.Event()
        before.record()
        for p in strips:
            ops.strip_lu(p, 0, 128, ipiv, 0, order, info)
        after.record()
        after.synchronize()
        return cupy.cuda.get_elapsed_time(before, after) / 1e3

    a = dominant_panel(m, 128)
    random = np.random.default_rng(2).standard_normal((m, 128)).astype(np.float32)
    seconds(a)  # loads the kernel

    assert min(seconds(a) for _ in range(5)) < 0.8 * min(seconds(random) for _ in range(5))
    assert int(info[0]) == NO_PIVOT


# ---- the gate --------------------------------------------------------------------------------


@pytest.fixture
def pass_gate(cupy):
    """A function that passes the gate and returns how many seconds that took."""
    kernel = _jit.kernel("gate", "tcs_gate")

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
    assert started.tolist() == [0] * 9 + list(range(2, 10))  # moved, for the update to read


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

    set_flag()  # once before, as what it launches may be loaded only now
    cupy.cuda.Device().synchronize()
    started.fill(0)
    cupy.cuda.Device().synchronize()
    assert pass_gate(started, 5, set_flag) < 2


# ---- the LU ----------------------------------------------------------------------------------


@pytest.fixture
def factor_on_device(cupy, ops, monkeypatch):
    """A function that factors a matrix, copied first, and returns its factors."""
    from tcsolve import _look_ahead

    monkeypatch.setattr(_look_ahead, "BESIDE_ROWS", 0)  # small matrices look ahead as well

    def run(a, update, block, look_ahead):
        return factor_blocked(ops, a.copy(), UPDATES[update], block, look_ahead=look_ahead)

    return run


def matrix_on_device(cupy, n, update):
    return cupy.asarray(random_matrix(UPDATES[update].storage, n, n, seed=n))


def residual(cupy, a, factors):
    """Return the largest entries of L and, over that of U, of P A - L U."""
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
def count_inverses(hopper, monkeypatch):
    """Use inverses for few columns, too; a list of the sizes of those made."""
    from tcsolve import _wgmma

    monkeypatch.setattr("tcsolve._lu_cupy.LEAST_COLUMNS", 64)
    made, lower = [], _wgmma.Lower

    def spy(inverse, *rest):
        made.append(len(inverse))
        return lower(inverse, *rest)

    monkeypatch.setattr(_wgmma, "Lower", spy)
    return made


@pytest.mark.parametrize("rows", [129, 10000])
@pytest.mark.parametrize("update, block", [("fp16x3", 512), ("fp16x3", 192), ("fp16", 1000)])
def test_u_by_an_inverse_has_the_same_bits_whoever_makes_it(
    update, block, rows, cupy, factor_on_device, monkeypatch, count_inverses
):
    """It is made beside the next panel, which is reached strip by strip if it is wide."""
    monkeypatch.setattr("tcsolve._lu_cupy.WIDE", rows)
    a = matrix_on_device(cupy, 2500, update)

    factors = factor_on_device(a, update, block, True)

    assert set(count_inverses) == {block}
    same_bits(cupy, factors, factor_on_device(a, update, block, False))
    assert residual(cupy, a, factors)[1] <= 4 * np.sqrt(2500) * UPDATES[update].u


def test_other_formats_make_no_inverse(cupy, factor_on_device, count_inverses):
    factor_on_device(matrix_on_device(cupy, 2500, "bf16"), "bf16", 512, True)
    assert not count_inverses


@pytest.mark.parametrize("update", UPDATES)
def test_a_wide_panel_reached_strip_by_strip_has_the_bits_of_one_reached_at_once(
    update, cupy, factor_on_device, monkeypatch
):
    monkeypatch.setattr("tcsolve._lu_cupy.LEAST_COLUMNS", 64)
    a = matrix_on_device(cupy, 2500, update)

    factors = factor_on_device(a, update, 512, True)

    same_bits(cupy, factors, factor_on_device(a, update, 512, False))
    same_bits(cupy, factors, factor_on_device(a, update, 512, True))
    assert residual(cupy, a, factors)[1] <= 4 * np.sqrt(2500) * UPDATES[update].u


@pytest.mark.parametrize("update", [update for update in UPDATES if update != "fp64"])
def test_what_is_prepared_beside_an_update_has_the_bits_of_what_is_prepared_later(
    update, cupy, factor_on_device, monkeypatch
):
    """A panel of FP64 is one strip, so there nothing is."""
    from tcsolve._lu import _Panel

    monkeypatch.setattr("tcsolve._lu_cupy.LEAST_COLUMNS", 64)
    a, early = matrix_on_device(cupy, 2500, update), []
    finish, prepare, panel = _Panel.finish, _Panel._prepare_l, []

    def spy_finish(self):
        panel.append(self)
        finish(self)
        panel.clear()

    def spy_prepare(self):
        early.append(bool(panel))
        prepare(self)

    monkeypatch.setattr(_Panel, "finish", spy_finish)
    monkeypatch.setattr(_Panel, "_prepare_l", spy_prepare)
    factors = factor_on_device(a, update, 512, True)
    assert early and not any(early)
    early.clear()

    monkeypatch.setattr("tcsolve._look_ahead.PANEL_ROWS", {1: 0, 3: 0})
    same_bits(cupy, factors, factor_on_device(a, update, 512, True))
    same_bits(cupy, factors, factor_on_device(a, update, 512, False))
    assert early and all(early)


def test_u_whose_inverse_leaves_the_range_is_reported(cupy, factor_on_device, count_inverses):
    n, k = 2500, 512
    a = cupy.eye(n, dtype=np.float32) - cupy.tri(n, k=-1, dtype=np.float32)
    a[:, k:] = matrix_on_device(cupy, n, "fp16x3")[:, k:]

    assert factor_on_device(a, "fp16x3", k, True).bad_pivot > k


@pytest.mark.parametrize("squares", [True, False])
@pytest.mark.parametrize("update", ["fp16", "fp16x3"])
def test_what_is_expected_of_pivots_is_a_matter_of_speed_alone(
    update, squares, cupy, ops, monkeypatch
):
    """Strips of more than 16384 rows have 128 columns, whether all pivots are on the diagonal or not."""
    from tcsolve import _lu_cupy

    if not squares:
        monkeypatch.setattr(_lu_cupy.LUOps, "has_squares", lambda self, how: False)
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
    from tcsolve._inverse import upper_inverse

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
    from tcsolve import _wgmma
    from tcsolve._inverse import upper_inverse

    rng, how = np.random.default_rng([m, k]), UPDATES[update]
    u = np.triu(rng.standard_normal((k, k)) / k, 1) + np.diag(rng.uniform(1, 2, k))
    u = u.astype(np.float32)
    l = rng.uniform(-1, 1, (m, k)) @ u
    x, beyond = hopper.asarray(l.astype(np.float32)), hopper.zeros(1, np.int32)
    bound = _wgmma.Bound(hopper.asarray(u), beyond, 132) if bounded else None

    _wgmma.Right(upper_inverse(hopper.asarray(u)), how, 132, bound).apply(x)

    error = np.abs(x.get() @ u.astype(float) - l)
    size = np.abs(l) @ np.abs(np.linalg.inv(u.astype(float))) @ np.abs(u)
    assert (error <= 8 * np.sqrt(k) * how.u * size.max()).all()
    assert int(beyond[0]) == 0


@pytest.mark.parametrize(
    "largest, expected", [(1.0, 0), (1 + 2**-20, 1), (np.nan, 1), (-np.inf, 1)]
)
@pytest.mark.parametrize("update", ["fp16", "fp16x3"])
def test_an_operand_tells_whether_an_entry_is_beyond_one(update, largest, expected, hopper):
    from tcsolve import _wgmma

    l = hopper.random.default_rng(1).uniform(-0.9, 0.9, (1001, 512), dtype=np.float32)
    l[1000, 511] = largest
    beyond = hopper.zeros(1, np.int32)
    bound = _wgmma.Bound(hopper.eye(512, dtype=np.float32), beyond, 132)

    _wgmma.Operand(l, UPDATES[update], 132, bound).round()

    assert int(beyond[0]) == expected


@pytest.mark.parametrize("times, expected", [(1.0, 0), (3.9, 1), (np.nan, 1)])
def test_a_bound_tells_whether_u_is_larger_than_expected(times, expected, hopper):
    from tcsolve import _wgmma

    l, c = hopper.ones((300, 512), np.float32), hopper.zeros((300, 600), np.float32)
    u = hopper.full((512, 600), 0.7, np.float32)
    u[77, 599] = times
    beyond = hopper.zeros(1, np.int32)
    operand = _wgmma.Operand(
        l, UPDATES["fp16x3"], 132, _wgmma.Bound(hopper.eye(512, dtype="f"), beyond, 132)
    )

    operand.subtract(c, u, None)

    assert int(beyond[0]) == expected
    if not expected:
        assert hopper.allclose(c, -(l @ u), rtol=1e-5)


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_a_bound_does_not_look_at_l(size, hopper):
    from tcsolve import _wgmma

    block = hopper.random.default_rng(1).uniform(-1, 1, (512, 512), dtype=np.float32)
    block = hopper.tril(block, -1) + np.float32(size) * hopper.eye(512, dtype="f")

    bound = _wgmma.Bound(block, hopper.zeros(1, np.int32), 132)

    assert 2.0**13 < float(bound.scale[0]) * size <= 2.0**14


@pytest.fixture
def factor_by_squares(hopper, factor_on_device, ops, monkeypatch):
    """A function (a, update, block, look_ahead) that factors by square panels while there are columns."""
    from tcsolve import _wgmma

    monkeypatch.setattr("tcsolve._lu_cupy.SQUARE_ROWS", 600)
    monkeypatch.setattr("tcsolve._lu_cupy.LEAST_COLUMNS", 256)
    applied, apply = [], _wgmma.Right.apply

    def spy(self, l):
        applied.append(l.shape)
        apply(self, l)

    monkeypatch.setattr(_wgmma.Right, "apply", spy)

    def run(a, update, block, look_ahead):
        (n, _), how = a.shape, UPDATES[update]
        w = hopper.empty((n, -(-n // 4) * 4), a.dtype)[:, :n]  # as a solve has it
        w[...] = a
        applied.clear()
        factors = factor_blocked(ops, w, how, block, look_ahead, dominant=True)
        squares = [
            stop for stop in range(block, n, block) if n - stop >= 256 and n - stop + block >= 600
        ]
        assert applied == [(n - stop, block) for stop in squares]
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
    # Other sizes of A, other exponents of the factors.
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
def test_a_matrix_whose_pivots_are_not_where_expected_is_factored_again(
    precision, hopper, ops, monkeypatch
):
    """Rows that dominate and columns that might: pivots are looked for on the diagonal, in vain."""
    from tcsolve import Status, _ladder, solve_ex
    from tcsolve._ladder import expects_dominance
    from tcsolve._norms import survey

    n = 6000
    a = hopper.random.default_rng(4).standard_normal((n, n)) / (4 * n)
    a += hopper.eye(n)
    a[n - 1, 3], a[n - 1, n - 1] = 1.5, 4
    assert expects_dominance(ops, a, survey(ops, a))
    b, expected = a @ hopper.ones(n), []

    def spy(*args, dominant, **options):
        expected.append(dominant)
        return factor_blocked(*args, dominant=dominant, **options)

    monkeypatch.setattr(_ladder, "factor_blocked", spy)

    found = solve_ex(a, b, precision=precision)

    assert expected == [True, False]
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

    ops.update(result, cupy.asarray(l), cupy.asarray(u), how)

    storage = 2.0**-24 if how.storage == "float32" else 2.0**-53
    assert (np.abs(result.get() - exact) <= (4 * how.u + 2 * (k + 2) * storage) * size).all()


# ---- moves of rows ---------------------------------------------------------------------------


@pytest.mark.parametrize("n, offset", [(1, 0), (100, 0), (1000, 1), (64, 4), (1100, 0), (2100, 4)])
@pytest.mark.parametrize("count", [1, 64, 700, 2048, 2900])
# One block for each chunk of columns, and few that take several.
@pytest.mark.parametrize("blocks", [None, 3])
def test_move_rows_reads_before_it_writes(n, offset, count, blocks, cupy):
    rng = np.random.default_rng(count)
    a = rng.standard_normal((3000, n + 7)).astype(np.float32)
    dst, src = (rng.permutation(3000)[:count].astype(np.int32) for _ in range(2))
    dst[-1:], src[-1:] = dst[:1], src[:1]  # an entry may occur twice
    expected, columns = a.copy(), slice(offset, offset + n)
    expected[dst, columns] = a[src, columns]
    device, chunk = cupy.asarray(a), move_chunk(count, n)
    args = (device[:, columns], n + 7, n, cupy.asarray(dst), cupy.asarray(src), count, None)
    kernel = _jit.kernel("move_rows", "tcs_move_rows", CHUNK=chunk)
    kernel((blocks or -(-n // chunk),), (256,), args, shared=4 * chunk * count)
    assert np.array_equal(device.get(), expected)


@pytest.mark.parametrize("moving", [None, 0, 333, 699])
def test_move_rows_takes_the_one_that_moves(moving, cupy):
    a = np.random.default_rng(9).standard_normal((3000, 40)).astype(np.float32)
    dst, expected = np.arange(700, dtype=np.int32), a.copy()
    src = dst.copy()
    if moving is not None:
        src[moving], expected[moving] = 2999, a[2999]
    device, chunk = cupy.asarray(a), move_chunk(700, 40)
    args = (device, 40, 40, cupy.asarray(dst), cupy.asarray(src), 700)
    kernel = _jit.kernel("move_rows", "tcs_move_rows", CHUNK=chunk)
    launch = (-(-40 // chunk),), (256,)
    kernel(*launch, (*args, cupy.zeros(1, cupy.uint32)), shared=4 * chunk * 700)
    assert np.array_equal(device.get(), a)
    told = None if moving == 0 else cupy.full(1, int(moving is not None), cupy.uint32)
    kernel(*launch, (*args, told), shared=4 * chunk * 700)
    assert np.array_equal(device.get(), expected)


# ---- operands of the update ------------------------------------------------------------------


def rounded(x, low):
    """Round FP32 to the format, by a way of its own for TF32: scaled to integers."""
    if low != "tf32":
        return x.astype(STORED[low])
    fraction, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.rint(fraction * 2**11), exponent - 11).astype(np.float32)


def split(x, low):
    hi = rounded(x, low)
    return hi, rounded(x - hi.astype(np.float32), low)


def pack_kernel(entry, low, products, is_complex):
    return _jit.kernel("pack", entry, T_LOW=low, PRODUCTS=products, COMPLEX=int(is_complex))


@pytest.mark.parametrize("low", STORED)
@pytest.mark.parametrize("products", [1, 3])
@pytest.mark.parametrize("m, k, padding", [(1, 1, 0), (300, 256, 0), (77, 512, 4), (65, 37, 3)])
def test_pack_l(low, products, m, k, padding, cupy):
    a = np.random.default_rng(0).uniform(-1, 1, (m, k + padding)).astype(np.float32)
    a[0, 0] = 1
    hi, lo = split(a[:, :k] * np.float32(2**14), low)
    expected = np.hstack([hi, lo, hi][:products])
    out = cupy.zeros(expected.nbytes, cupy.uint8)
    grid, block = (-(-m // 8), -(-k // 256)), (32, 8)
    kernel = pack_kernel("tcs_pack_l", low, products, False)
    kernel(grid, block, (out, cupy.asarray(a), k + padding, m, k, 2.0**14))
    assert out.get().tobytes() == expected.tobytes()


@pytest.mark.parametrize("low", STORED)
@pytest.mark.parametrize("products", [1, 3])
@pytest.mark.parametrize("k, r, padding", [(1, 1, 0), (256, 500, 0), (512, 64, 4), (37, 65, 3)])
def test_pack_u(low, products, k, r, padding, cupy):
    u = np.random.default_rng(1).standard_normal((k, r + padding)).astype(np.float32)
    hi, lo = split(u[:, :r] * np.float32(2**10), low)
    expected = np.vstack([lo, hi, hi] if products == 3 else [hi]).T
    out = cupy.zeros(expected.nbytes, cupy.uint8)
    kernel = pack_kernel("tcs_pack_u", low, products, False)
    scale = cupy.full(1, 2.0**10, cupy.float32)
    grid = (-(-r // 64), -(-k // 64))
    kernel(grid, (256,), (out, cupy.asarray(u), r + padding, k, r, scale))
    assert out.get().tobytes() == expected.tobytes()


@pytest.mark.parametrize("products", [1, 3])
@pytest.mark.parametrize("m, k, r", [(1, 1, 1), (70, 96, 130), (33, 21, 35)])
def test_packed_complex_operands_give_the_complex_product(products, m, k, r, cupy):
    # Gaussian integers of few bits: every rounding is exact, so the product is.
    rng = np.random.default_rng(2)
    lower, upper = (
        (rng.integers(-9, 10, shape) + 1j * rng.integers(-9, 10, shape)).astype(np.complex64)
        for shape in ((m, k), (k, r))
    )
    depth = products * 2 * k
    p, q = cupy.zeros((m, depth), cupy.float16), cupy.zeros((2 * r, depth), cupy.float16)
    scale = cupy.full(1, 0.25, cupy.float32)
    pack_l = pack_kernel("tcs_pack_l", "fp16", products, True)
    pack_u = pack_kernel("tcs_pack_u", "fp16", products, True)
    args = (p, cupy.asarray(lower), 2 * k, m, 2 * k, 4.0)
    pack_l((-(-m // 8), -(-2 * k // 256)), (32, 8), args)
    grid = (-(-2 * r // 64), -(-k // 32))
    pack_u(grid, (256,), (q, cupy.asarray(upper), 2 * r, k, 2 * r, scale))
    product = p.get().astype(np.float32) @ q.get().astype(np.float32).T
    assert np.array_equal(product.view(np.complex64), lower @ upper)


def test_update_scale_is_the_largest_that_fits(cupy):
    kernel = _jit.kernel("range", "tcs_update_scale")
    work = cupy.zeros(2, cupy.uint32)
    rng = np.random.default_rng(3)
    for k, r, ldu, amax in (
        (1, 1, 1, 1.0),
        (5, 4097, 4100, 3.0),
        (256, 1000, 1001, 2.0**-30),
        (64, 300, 304, 6e30),
        (32, 8, 8, 4.0),
    ):
        u = rng.uniform(-0.5, 0.5, (k, ldu)).astype(np.float32) * np.float32(amax)
        u[:, r:] = np.nan  # beside the block
        u[rng.integers(k), rng.integers(r)] = -amax
        out = cupy.zeros(3, cupy.float32)
        args = (out[0:], out[1:], out[2:], work, cupy.asarray(u), ldu, k, r, 2.0**14, None)
        kernel((50,), (256,), args)
        scale, alpha, beta = out.get()
        assert 2**13 < scale * np.float32(amax) <= 2**14
        assert np.frexp(scale)[0] == 0.5
        assert alpha * scale * 2**14 == -1
        assert beta == 1
        assert not work.any()


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_update_scale_is_one_where_there_is_none(bad, cupy):
    u = cupy.zeros((3, 40), cupy.float32)
    u[1, 2] = bad
    out, work = cupy.zeros(3, cupy.float32), cupy.zeros(2, cupy.uint32)
    args = (out[0:], out[1:], out[2:], work, u, 40, 3, 40, 2.0**14, None)
    _jit.kernel("range", "tcs_update_scale")((7,), (256,), args)
    assert out.tolist() == [1, -(2.0**-14), 1]


# ---- norms and scaling -----------------------------------------------------------------------


def scale_kernel(entry, dtype):
    dtype = np.dtype(dtype)
    t_in = "float" if dtype.char in "fF" else "double"
    return _jit.kernel("scale", entry, T_IN=t_in, COMPLEX=int(dtype.kind == "c"))


@pytest.fixture
def row_stats(cupy):
    def run(a, ld):
        m, n = a.shape
        top, total = cupy.zeros(m), cupy.zeros(m)
        storage = cupy.zeros((m, ld), a.dtype)
        storage[:, :n] = cupy.asarray(a)
        args = (top, total, storage, ld, m, n)
        scale_kernel("tcs_row_stats", a.dtype)((-(-m // 8),), (32, 8), args)
        return top.get(), total.get()

    return run


@pytest.fixture
def col_stats(cupy):
    def run(a, ld, r, rows_per_chunk):
        m, n = a.shape
        chunks = -(-m // rows_per_chunk)
        top, total = cupy.zeros((chunks, n)), cupy.zeros((chunks, n))
        storage = cupy.zeros((m, ld), a.dtype)
        storage[:, :n] = cupy.asarray(a)
        scale = None if r is None else cupy.asarray(r)
        args = (top, total, storage, ld, m, n, scale, rows_per_chunk)
        scale_kernel("tcs_col_stats", a.dtype)((-(-n // 128), chunks), (128,), args)
        return top.get().max(axis=0), total.get().sum(axis=0)

    return run


def check_stats(top, total, size, axis):
    # Sums of positive numbers in any order: n u; hypot is good to 1 ulp, abs is exact.
    bound = (size.shape[axis] + 4) * 2.0**-53
    assert (np.abs(top - size.max(axis=axis)) <= 4 * 2.0**-53 * top).all()
    assert (np.abs(total - size.sum(axis=axis)) <= bound * total).all()


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("m, n, padding", [(1, 1, 0), (300, 1000, 0), (50, 333, 1), (9, 700, 4)])
def test_row_and_col_stats(dtype, m, n, padding, row_stats, col_stats):
    a = random_matrix(dtype, m, n)
    size = np.abs(a.astype(np.result_type(a, np.float64)))
    check_stats(*row_stats(a, n + padding), size, axis=1)
    check_stats(*col_stats(a, n + padding, None, 64), size, axis=0)
    r = 2.0 ** np.random.default_rng(1).integers(-30, 30, m)
    check_stats(*col_stats(a, n + padding, r, 64), size * r[:, None], axis=0)


@pytest.mark.parametrize("dtype", "fdFD")
def test_nan_reaches_maximum_and_sum(dtype, row_stats, col_stats):
    a = random_matrix(dtype, 70, 90)
    a[60, 80] = np.nan
    for x in row_stats(a, 90):
        assert np.flatnonzero(np.isnan(x)).tolist() == [60]
    for x in col_stats(a, 90, None, 16):
        assert np.flatnonzero(np.isnan(x)).tolist() == [80]


@pytest.mark.parametrize("order", ["C", "F", "strided"])
@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("n", [1, 70, 1500, 2049, 4501])
def test_extremes_are_those_of_the_sums(n, dtype, order, cupy, ops):
    a = random_matrix(dtype, n, 2 * n)[:, ::2]
    given = cupy.asarray(a, order="C" if order == "strided" else order)
    if order == "strided":
        given = cupy.repeat(given, 2, axis=1)[:, ::2]
    size = np.abs(a).astype(float)
    rows, cols = size.sum(axis=1), size.sum(axis=0)
    dominance = [(times * size.diagonal() - x).min() for times, x in ((2, rows), (3, cols))]
    expected = (rows.max(), rows.min(), cols.max(), cols.min(), *dominance)
    close = pytest.approx(expected, rel=1e-6 if dtype in "fF" else 1e-13)
    read, _ = ops.extremes(given)
    assert read() == close and read() == close
    found, copy = ops.extremes(given, "f")
    assert found() == close
    assert (copy is not None) == (dtype in "fd" and given.flags.c_contiguous)
    if copy is not None:
        assert copy.dtype == np.float32 and (copy == given.astype(np.float32)).all()
        assert (copy.data.ptr | copy.strides[0]) % 16 == 0
    given[n // 2, n // 3] = np.nan
    for wanted in (None, "f"):
        assert np.isnan(ops.extremes(given, wanted)[0]()).all()


@pytest.fixture
def cast_scaled(cupy):
    def run(a, r, s, padding):
        m, n = a.shape
        out = cupy.full(
            (m, n + padding), 7, cupy.complex64 if a.dtype.kind == "c" else cupy.float32
        )
        r, s = (None if x is None else cupy.asarray(x) for x in (r, s))
        floats = 2 * n if a.dtype.kind == "c" else n
        args = (out, n + padding, cupy.asarray(a), n, m, n, r, s)
        grid = (-(-floats // 128), -(-m // 64))
        scale_kernel("tcs_cast_scaled", a.dtype)(grid, (32, 8), args)
        assert (out[:, n:] == 7).all()
        return out[:, :n].get()

    return run


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("m, n, padding", [(1, 1, 0), (300, 1000, 0), (70, 333, 1), (200, 64, 4)])
def test_cast_scaled_rounds_once(dtype, m, n, padding, cast_scaled):
    a = random_matrix(dtype, m, n)
    rng = np.random.default_rng(1)
    r, s = 2.0 ** rng.integers(-20, 20, m), 2.0 ** rng.integers(-20, 20, n)
    target = np.complex64 if a.dtype.kind == "c" else np.float32
    assert np.array_equal(cast_scaled(a, r, s, padding), (r[:, None] * a * s).astype(target))
    assert np.array_equal(cast_scaled(a, None, None, padding), a.astype(target))


def test_cast_scaled_stays_in_range(cast_scaled):
    # Each of r a, a s and r s leaves the range of FP64 somewhere; r a s does not.
    a = np.array([[1e300, 1e-300], [3e-320, 1e-300], [1e-300, 1e300]])
    r, s = 2.0 ** np.array([-1000, 1023, 0]), 2.0 ** np.array([3, 971])
    exponent = np.frexp(r)[1][:, None] + np.frexp(s)[1] - 2
    with np.errstate(over="ignore", under="ignore"):
        expected = np.ldexp(a, exponent).astype(np.float32)
    assert np.array_equal(cast_scaled(a, r, s, 0), expected)
    assert np.isfinite(expected[:2, 0]).all() and expected[0, 0] != 0


def test_cast_scaled_keeps_subnormal_results(cast_scaled):
    a = np.array([[3.0, 5.0, 7.0]])
    s = np.full(3, 2.0**-148)
    assert np.array_equal(cast_scaled(a, None, s, 0), (a * s).astype(np.float32))
    assert cast_scaled(a, None, s, 0).all()


# ---- residuals and corrections ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize("n, padding", [(1, 0), (2, 1), (33, 0), (700, 3), (1025, 0), (8200, 0)])
def test_the_residual_of_a_column_and_the_sizes(dtype, n, padding, cupy, ops):
    rng = cupy.random.default_rng(n)
    wide = rng.standard_normal((n, n + padding)).astype(dtype)
    a, x = wide[:, :n], rng.standard_normal((n, 1))
    b = (a.astype(float) @ x + 1e-3 * rng.standard_normal((n, 1))).repeat(2, axis=1)[:, ::2]
    r, top_r, top_x = ops.residual(a, x, b)
    # Two sums of n products, and the same residual to subtract.
    allowed = n * 2.0**-52 * (cupy.abs(a).astype(float) @ cupy.abs(x)) + 2.0**-52 * cupy.abs(b)
    assert (cupy.abs(r - (b - a.astype(float) @ x)) <= allowed).all()
    assert float(top_r[0]) == float(abs(r).max()) and float(top_x[0]) == float(abs(x).max())
    again, *_ = ops.residual(a, x, b)
    assert (r == again).all()


@pytest.mark.parametrize("dtype, k", [(float, 1), (float, 3), (complex, 1)])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [1, 33, 1025, 40000])
def test_vectors_are_multiplied_and_mixed(n, count, dtype, k, cupy, ops):
    rng = np.random.default_rng(n)
    vectors = [rng.standard_normal((n, k)).astype(dtype) * 10.0**-i for i in range(count)]
    weights = rng.standard_normal((k, count))
    there = [cupy.asarray(v) for v in vectors]

    gram, mixed = ops.gram(there), ops.mixed(there, weights)

    size = np.stack([np.linalg.norm(v, axis=0) for v in vectors], axis=1)
    error = np.abs(gram - NumpyOps().gram(vectors))
    assert gram.shape == (k, count, count)
    assert (error <= 1e-14 * size[:, :, None] * size[:, None]).all()
    assert np.array_equal(gram, gram.conj().transpose(0, 2, 1))
    np.testing.assert_allclose(mixed.get(), NumpyOps().mixed(vectors, weights), 1e-12, 1e-14)
    assert np.array_equal(gram, ops.gram(there))


def test_a_product_of_vectors_meets_nan(cupy, ops):
    vectors = [cupy.ones((700, 1)) for _ in range(3)]
    vectors[1][650] = np.nan
    nan = np.isnan(ops.gram(vectors)[0])
    assert nan[1].all() and nan[:, 1].all() and nan.sum() == 5


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["a", "x", "b"])
def test_the_residual_meets_what_is_not_finite(value, where, cupy, ops):
    n = 300
    arrays = {"a": cupy.ones((n, n)), "x": cupy.ones((n, 1)), "b": cupy.ones((n, 1))}
    arrays[where][170] = value
    r, top_r, top_x = ops.residual(*arrays.values())
    assert not np.isfinite(top_r) and (~cupy.isfinite(r)).sum() == (n if where == "x" else 1)
    assert np.isfinite(top_x) == (where != "x")


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("n, k", [(1, 1), (129, 1), (700, 2), (700, 3), (700, 7)])
def test_substitution_solves_with_the_factors(n, k, adjoint, cupy, ops):
    rng = np.random.default_rng(n + k)
    a = cupy.asarray(rng.standard_normal((n, n)) + n * np.eye(n))
    factors = factor_blocked(ops, ops.cast_scaled(a, None, None, "f"), UPDATES["fp32"], 512)
    assert factors.inverses is not None
    # Columns of very different sizes, and a layout of their own.
    b = cupy.asarray(rng.standard_normal((n, k + 1)) * 10.0 ** (40.0 * np.arange(k + 1) - 150))
    x = factors.solve_scaled(b[:, 1:], adjoint)
    residual = cupy.abs((a.T if adjoint else a) @ x - b[:, 1:]).max(axis=0)
    assert (residual <= 1e-5 * cupy.abs(b[:, 1:]).max(axis=0)).all()
    for j in range(k):  # whatever stands beside it
        alone = factors.solve_scaled(b[:, j + 1 : j + 2], adjoint)
        assert cupy.abs(alone[:, 0] - x[:, j]).max() <= 1e-5 * cupy.abs(x[:, j]).max()


@pytest.mark.parametrize("n", [1 << 13, 1 << 20])
def test_what_is_done_aside_sees_what_was_done_before(n, cupy, ops):
    x = cupy.zeros(n)
    for _ in range(200):
        x += 1

    joins = [ops.aside(x, (), "sum", lambda: (x[-8:] * 3, x * 2)) for _ in range(3)]
    for sent, x2 in [join() for join in joins]:
        (found,) = ops.host(sent)
        assert isinstance(found, np.ndarray) and (found == 600).all()
        assert (x2 == 400).all()


def keep_busy(cupy):
    """Give the current stream some tens of milliseconds to do."""
    x = cupy.zeros(1 << 24)
    for _ in range(500):
        x += 1


def test_what_is_sent_to_the_host_is_as_it_was_then(cupy):
    from tcsolve._to_host import Sent

    x = cupy.zeros((2, 250))
    keep_busy(cupy)
    x += 1
    sent = Sent(x)
    x += 1
    assert sent.get().shape == (2, 250) and (sent.get() == 1).all()


def test_memory_of_what_is_sent_is_not_given_to_others_before_it_has_come(cupy):
    from tcsolve._to_host import Sent

    x = cupy.ones(64)
    keep_busy(cupy)
    Sent(x)  # which nobody waits for
    rooms = [cupy.cuda.alloc_pinned_memory(x.nbytes) for _ in range(8)]
    views = [np.frombuffer(room, float, x.size) for room in rooms]
    for view in views:
        view[:] = 7
    cupy.cuda.Device().synchronize()
    assert all((view == 7).all() for view in views)


def test_what_is_sent_is_read_late_without_pinned_memory(cupy, monkeypatch):
    from tcsolve._to_host import Sent

    def refuse(size):
        raise cupy.cuda.runtime.CUDARuntimeError(2)

    monkeypatch.setattr(cupy.cuda, "alloc_pinned_memory", refuse)
    keep_busy(cupy)
    assert (Sent(cupy.arange(5.0)).get() == np.arange(5)).all()


# ---- launching -------------------------------------------------------------------------------


def test_kernels_are_loaded_once_per_device(cupy):
    first = _jit.kernel("move_rows", "tcs_move_rows", CHUNK=8)
    assert _jit.kernel("move_rows", "tcs_move_rows", CHUNK=8) is first
