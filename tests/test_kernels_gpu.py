"""Each CUDA kernel against its definition in NumPy, on a device."""

import ml_dtypes
import numpy as np
import pytest
from tcsolve.kernels import leaf_shape, move_chunk

from tcsolve import _jit

pytestmark = pytest.mark.gpu

NO_PIVOT = 2**31 - 1
U32 = 2.0**-24
STORED = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32}


# ---- the panel -------------------------------------------------------------------------------


@pytest.fixture
def factor_panel(cupy):
    """A function that runs the panel kernel and returns all it writes, as NumPy arrays."""
    arch = _jit.target_arch()
    if leaf_shape(1, arch) is None:
        pytest.skip(f"{arch} has no thread-block clusters")

    def factor(a, *, offset=0, padding=0, row0=0, col0=0, largest_cluster=16, reported=NO_PIVOT):
        m, w = a.shape
        shape = leaf_shape(m, arch, largest_cluster)
        if shape is None or w > shape.width:
            pytest.skip(f"no cluster of {arch} holds a panel of {m} x {w}")
        storage = cupy.full((m, offset + w + padding), 7, cupy.float32)
        panel = storage[:, offset : offset + w]
        panel[...] = cupy.asarray(a)
        order = cupy.arange(m, dtype=cupy.int32)
        ipiv, dst, src = (cupy.full(k, -1, cupy.int32) for k in (w, 2 * w, 2 * w))
        info = cupy.full(1, reported, cupy.int32)
        kernel = _jit.kernel("panel", "tcs_panel_cluster", **shape.defines)
        args = (panel, storage.shape[1], m, w, order, ipiv, dst, src, info, row0, col0, 0, 0)
        kernel((shape.cluster,), (shape.threads,), args)
        around = cupy.delete(storage, slice(offset, offset + w), axis=1)
        assert (around == 7).all()
        return [x.get() for x in (panel, order, ipiv, dst, src, info)]

    return factor


def reference_panel(a):
    """Return (factors, pivots) of LAPACK's unblocked LU, with the kernel's rounding.

    FP64 holds the product of two FP32 numbers, so that a - l u is rounded once but for rare ties.
    """
    a = a.copy()
    pivots = []
    for j in range(a.shape[1]):
        k = j + int(np.argmax(np.abs(a[j:, j])))
        pivots.append(k)
        a[[j, k]] = a[[k, j]]
        if a[j, j] != 0:
            a[j + 1 :, j] /= a[j, j]
            product = np.outer(a[j + 1 :, j].astype(float), a[j, j + 1 :].astype(float))
            a[j + 1 :, j + 1 :] = a[j + 1 :, j + 1 :] - product
    return a, np.array(pivots)


def check_panel(a, factored, row0=0):
    """Check pivots, factors, order and moves; return the value of info."""
    lu, order, ipiv, dst, src, info = factored
    m, w = a.shape
    expected, pivots = reference_panel(a)
    assert (ipiv - row0 == pivots).all()
    swapped = np.arange(m)
    for j, k in enumerate(pivots):
        swapped[[j, k]] = swapped[[k, j]]
    assert (order == swapped).all()
    moved = np.arange(m)
    moved[dst] = np.arange(m)[src]
    assert (moved == swapped).all()
    lower, upper = np.tril(lu, -1) + np.eye(m, w, dtype=np.float32), np.triu(lu[:w])
    assert np.abs(lower).max() <= 1
    error = np.abs(lower.astype(float) @ upper.astype(float) - a[swapped].astype(float))
    # Higham, Accuracy and Stability of Numerical Algorithms, theorem 9.3, entry by entry.
    assert (error <= w * U32 * (np.abs(lower).astype(float) @ np.abs(upper).astype(float))).all()
    # Tie of a tie: the double rounding of the reference may differ once in 2**29 operations.
    assert (lu != expected).sum() <= 1e-4 * lu.size
    return info[0]


@pytest.mark.parametrize("m", [1, 5, 31, 32, 33, 512, 513, 1000, 4096, 8192, 16384, 32768, 50000])
def test_panel_factors_as_lapack(m, factor_panel):
    width = min(m, leaf_shape(m, "sm_90").width)
    for w in {1, max(1, width - 3), width}:
        a = np.random.default_rng(m + w).standard_normal((m, w)).astype(np.float32)
        assert check_panel(a, factor_panel(a)) == NO_PIVOT


@pytest.mark.parametrize("m", [2000, 8192, 16000])
def test_panel_with_portable_clusters(m, factor_panel):
    w = leaf_shape(m, "sm_90", 8).width
    a = np.random.default_rng(m).standard_normal((m, w)).astype(np.float32)
    assert check_panel(a, factor_panel(a, largest_cluster=8)) == NO_PIVOT


@pytest.mark.parametrize("offset, padding", [(0, 4), (4, 0), (0, 1), (1, 3), (3, 2)])
def test_panel_inside_a_matrix(offset, padding, factor_panel):
    a = np.random.default_rng(1).standard_normal((700, 32)).astype(np.float32)
    factored = factor_panel(a, offset=offset, padding=padding, row0=100, col0=10)
    assert check_panel(a, factored, row0=100) == NO_PIVOT


@pytest.mark.parametrize("m", [60, 1500, 20000])
@pytest.mark.parametrize("low, high", [(-1, 1), (0, 1), (-3, 3), (1, 1), (0, 0)])
def test_panel_breaks_ties_as_lapack(m, low, high, factor_panel):
    w = leaf_shape(m, "sm_90").width
    a = np.random.default_rng(2).integers(low, high, (m, w), endpoint=True).astype(np.float32)
    lu, _ = reference_panel(a)
    zero = np.flatnonzero(lu.diagonal() == 0)
    info = check_panel(a, factor_panel(a, col0=40))
    assert info == (40 + zero[0] + 1 if len(zero) else NO_PIVOT)


def test_panel_reports_a_zero_column_and_goes_on(factor_panel):
    a = np.random.default_rng(3).standard_normal((900, 32)).astype(np.float32)
    a[:, [5, 9]] = 0
    factored = factor_panel(a, col0=64)
    assert check_panel(a, factored) == 64 + 6
    assert np.isfinite(factored[0]).all()
    assert (factored[0][:, 5] == 0).all()


def test_panel_keeps_subnormal_numbers(factor_panel):
    a = (1e-40 * np.random.default_rng(4).standard_normal((300, 32))).astype(np.float32)
    lu, _, ipiv, *_ = factor_panel(a)
    expected, pivots = reference_panel(a)
    assert (ipiv == pivots).all()
    assert np.array_equal(lu, expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_panel_reports_a_non_finite_pivot(bad, factor_panel):
    a = np.random.default_rng(5).standard_normal((3000, 32)).astype(np.float32)
    a[2500, 7] = bad
    *_, ipiv, _, _, info = factor_panel(a, col0=96)
    assert info[0] == 96 + 8
    assert ipiv[7] == 2500


@pytest.mark.parametrize("reported, kept", [(NO_PIVOT, 11), (12, 11), (3, 3)])
def test_panel_keeps_an_earlier_report(reported, kept, factor_panel):
    a = np.zeros((40, 8), np.float32)
    assert factor_panel(a, col0=10, reported=reported)[-1][0] == kept


def test_panel_repeats_itself_bit_for_bit(factor_panel):
    a = np.random.default_rng(6).standard_normal((16384, 32)).astype(np.float32)
    first = factor_panel(a)
    for _ in range(20):
        assert all(np.array_equal(x, y) for x, y in zip(first, factor_panel(a), strict=True))


@pytest.mark.parametrize(
    "m, start, w, k", [(40, 8, 32, 72), (700, 64, 32, 256), (9000, 0, 32, 512)]
)
def test_panel_swaps_and_solves_the_columns_beside_it(m, start, w, k, cupy, factor_panel):
    a = np.random.default_rng(8).standard_normal((m, k)).astype(np.float32)
    arch = _jit.target_arch()
    shape, panel = leaf_shape(m, arch), cupy.asarray(a)
    ipiv, info = cupy.zeros(w, cupy.int32), cupy.full(1, NO_PIVOT, cupy.int32)
    moves = cupy.zeros(4 * w, cupy.int32)
    leaf = panel[:, start : start + w]
    args = (leaf, k, m, w, None, ipiv, moves, moves[2 * w :], info, 0, 0, start, k - start - w)
    kernel = _jit.kernel("panel", "tcs_panel_cluster", **shape.defines)
    kernel((shape.cluster,), (shape.threads,), args)
    factors, order, pivots, *_ = factor_panel(a[:, start : start + w])
    assert np.array_equal(ipiv.get(), pivots)
    expected = a[order].astype(np.float64)
    l11 = np.tril(factors[:w], -1).astype(np.float64) + np.eye(w)
    right = slice(start + w, k)
    u12 = np.linalg.solve(l11, expected[:w, right])
    result = panel.get()
    assert np.array_equal(leaf.get(), factors)
    assert np.array_equal(result[:, :start], a[order][:, :start])
    assert np.array_equal(result[w:, right], a[order][w:, right])
    # Substitution's bound: |L| |U| times w units of roundoff.
    bound = w * 2.0**-24 * (np.abs(l11) @ np.abs(u12))
    assert (np.abs(l11 @ result[:w, right] - expected[:w, right]) <= 2 * bound).all()


# ---- moves of rows ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "n, skip", [(1, (0, 0)), (100, (0, 0)), (1000, (64, 96)), (64, (0, 32)), (64, (32, 64))]
)
@pytest.mark.parametrize("count", [1, 64, 700, 2048])
def test_move_rows_reads_before_it_writes(n, skip, count, cupy):
    rng = np.random.default_rng(count)
    a = rng.standard_normal((3000, n + 3)).astype(np.float32)
    dst, src = (rng.permutation(3000)[:count].astype(np.int32) for _ in range(2))
    dst[-1:], src[-1:] = dst[:1], src[:1]  # an entry may occur twice
    expected = a.copy()
    columns = [j for j in range(n) if not skip[0] <= j < skip[1]]
    expected[np.ix_(dst, columns)] = a[np.ix_(src, columns)]
    device, chunk = cupy.asarray(a), move_chunk(count)
    grid = -(-skip[0] // chunk) - (skip[1] - n) // chunk
    args = (device, n + 3, n, *skip, cupy.asarray(dst), cupy.asarray(src), count)
    kernel = _jit.kernel("move_rows", "tcs_move_rows", CHUNK=chunk)
    kernel((grid,), (256,), args, shared=4 * chunk * count)
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
    expected = np.vstack([hi, hi, lo] if products == 3 else [hi]).T
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
        args = (out[0:], out[1:], out[2:], work, cupy.asarray(u), ldu, k, r, 2.0**14)
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
    args = (out[0:], out[1:], out[2:], work, u, 40, 3, 40, 2.0**14)
    _jit.kernel("range", "tcs_update_scale")((7,), (256,), args)
    assert out.tolist() == [1, -(2.0**-14), 1]


# ---- norms and scaling -----------------------------------------------------------------------


def scale_kernel(entry, dtype):
    dtype = np.dtype(dtype)
    t_in = "float" if dtype.char in "fF" else "double"
    return _jit.kernel("scale", entry, T_IN=t_in, COMPLEX=int(dtype.kind == "c"))


def random_matrix(dtype, m, n, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((m, n))
    return (a + 1j * rng.standard_normal((m, n)) if np.dtype(dtype).kind == "c" else a).astype(
        dtype
    )


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


# ---- launching -------------------------------------------------------------------------------


def test_kernels_are_loaded_once_per_device(cupy):
    first = _jit.kernel("move_rows", "tcs_move_rows", CHUNK=8)
    assert _jit.kernel("move_rows", "tcs_move_rows", CHUNK=8) is first
