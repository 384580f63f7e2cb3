"""The kernels that move, scale, round and measure, against their definitions in NumPy, on a device."""

import gc

import numpy as np
import pytest
from on_device import STORED, random_matrix
from tcsolve.kernels.launch_shapes import move_chunk

from tcsolve._arithmetic.formats import UPDATES
from tcsolve._backends.cpu.ops import NumpyOps
from tcsolve._backends.cuda.runtime import compiler
from tcsolve._lu.elimination import factor_blocked

pytestmark = pytest.mark.gpu


# ---- moves of rows ---------------------------------------------------------------------------


@pytest.mark.parametrize("n, offset", [(1, 0), (100, 0), (1000, 1), (64, 4), (1100, 0), (2100, 4)])
@pytest.mark.parametrize("count", [1, 64, 700, 2048, 2900])
# None: one block for each chunk of columns.  3: few blocks, each of which takes several chunks.
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
    kernel = compiler.kernel("move_rows", "tcs_move_rows", CHUNK=chunk)
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
    kernel = compiler.kernel("move_rows", "tcs_move_rows", CHUNK=chunk)
    launch = (-(-40 // chunk),), (256,)
    kernel(*launch, (*args, cupy.zeros(1, cupy.uint32)), shared=4 * chunk * 700)
    assert np.array_equal(device.get(), a)
    told = None if moving == 0 else cupy.full(1, int(moving is not None), cupy.uint32)
    kernel(*launch, (*args, told), shared=4 * chunk * 700)
    assert np.array_equal(device.get(), expected)


# ---- operands of the update ------------------------------------------------------------------


def rounded(x, low):
    """Round FP32 to the format; for TF32, by scaling to integers."""
    if low != "tf32":
        return x.astype(STORED[low])
    fraction, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.rint(fraction * 2**11), exponent - 11).astype(np.float32)


def split(x, low):
    hi = rounded(x, low)
    return hi, rounded(x - hi.astype(np.float32), low)


def pack_kernel(entry, low, products, is_complex):
    return compiler.kernel(
        "pack_operands", entry, T_LOW=low, PRODUCTS=products, COMPLEX=int(is_complex)
    )


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
    kernel = compiler.kernel("find_operand_scale", "tcs_update_scale")
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
    compiler.kernel("find_operand_scale", "tcs_update_scale")((7,), (256,), args)
    assert out.tolist() == [1, -(2.0**-14), 1]


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


# ---- norms and scaling -----------------------------------------------------------------------


def scale_kernel(entry, dtype):
    dtype = np.dtype(dtype)
    t_in = "float" if dtype.char in "fF" else "double"
    return compiler.kernel("survey", entry, T_IN=t_in, COMPLEX=int(dtype.kind == "c"))


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
    # A sum of n positive numbers has an error of n u in any order.  Moduli may be off by 4 u.
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
    read = ops.extremes(given).wait
    assert read() == close and read() == close
    found, copy, early = ops.extremes(given, "f")
    assert copy is not None or not early
    assert found() == close
    assert (copy is not None) == (dtype in "fd" and given.flags.c_contiguous)
    if copy is not None:
        assert copy.dtype == np.float32 and (copy == given.astype(np.float32)).all()
        assert (copy.data.ptr | copy.strides[0]) % 16 == 0
    given[n // 2, n // 3] = np.nan
    for wanted in (None, "f"):
        assert np.isnan(ops.extremes(given, wanted).wait()).all()


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


# A matrix that is not row-major is divided into parts of at least 2**18 entries: the first n gives one part,
# the second gives several.
@pytest.mark.parametrize("n", [300, 1100])
@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_a_matrix_in_any_order_is_scaled_and_measured(order, n, ops, cupy):
    a = random_matrix("d", n, n)
    given = cupy.asarray(a, order="C" if order == "strided" else order)
    if order == "strided":
        wide = cupy.zeros((n, n + 5))
        wide[:, 2:-3] = given
        given = wide[:, 2:-3]
    rng = np.random.default_rng(1)
    r, s = (2.0 ** rng.integers(-20, 20, n) for _ in range(2))
    on_device = cupy.asarray(r), cupy.asarray(s)

    w = ops.cast_scaled(given, *on_device, "f")
    scaled = w.get()
    plain = ops.cast_scaled(given, None, None, "f", out=w)

    assert np.array_equal(scaled, (r[:, None] * a * s).astype("f"))
    assert plain is w and np.array_equal(w.get(), a.astype("f"))
    for x, scale in ((a, None), (a.T, None), (a.T, r)):
        of_x = given if x is a else given.T
        stats = ops.row_stats(of_x, None if scale is None else on_device[0])
        exact = abs(x if scale is None else x * scale)
        assert np.array_equal(stats.top.get(), exact.max(axis=1))
        assert np.allclose(stats.total.get(), exact.sum(axis=1), rtol=1e-14)


# ---- residuals and corrections ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize("n, padding", [(1, 0), (2, 1), (33, 0), (700, 3), (1025, 0), (8200, 0)])
def test_the_residual_of_a_column_and_the_sizes(dtype, n, padding, cupy, ops):
    rng = cupy.random.default_rng(n)
    wide = rng.standard_normal((n, n + padding)).astype(dtype)
    a, x = wide[:, :n], rng.standard_normal((n, 1))
    b = (a.astype(float) @ x + 1e-3 * rng.standard_normal((n, 1))).repeat(2, axis=1)[:, ::2]
    r, top_r, top_x = ops.residual(a, x, b)
    # Each of the two residuals has the rounding errors of a sum of n products and of a subtraction.
    allowed = n * 2.0**-52 * (cupy.abs(a).astype(float) @ cupy.abs(x)) + 2.0**-52 * cupy.abs(b)
    assert (cupy.abs(r - (b - a.astype(float) @ x)) <= allowed).all()
    assert float(top_r[0]) == float(abs(r).max()) and float(top_x[0]) == float(abs(x).max())
    again, *_ = ops.residual(a, x, b)
    assert (r == again).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["a", "x", "b"])
def test_the_residual_and_the_sizes_show_what_is_not_finite(value, where, cupy, ops):
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
    # Columns of very different sizes, with strides that differ from those of x.
    b = cupy.asarray(rng.standard_normal((n, k + 1)) * 10.0 ** (40.0 * np.arange(k + 1) - 150))
    x = factors.solve_scaled(b[:, 1:], adjoint)
    residual = cupy.abs((a.T if adjoint else a) @ x - b[:, 1:]).max(axis=0)
    assert (residual <= 1e-5 * cupy.abs(b[:, 1:]).max(axis=0)).all()
    for j in range(k):  # other columns, of other sizes, do not make a column less accurate
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
    """Give the current stream work for some tens of milliseconds."""
    x = cupy.zeros(1 << 24)
    for _ in range(500):
        x += 1


def test_what_is_sent_to_the_host_is_as_it_was_then(cupy):
    from tcsolve._backends.cuda.runtime.async_read import Sent

    x = cupy.zeros((2, 250))
    keep_busy(cupy)
    x += 1
    sent = Sent(x)
    x += 1
    assert sent.get().shape == (2, 250) and (sent.get() == 1).all()


def test_memory_of_what_is_sent_is_not_given_to_others_before_it_has_come(cupy):
    from tcsolve._backends.cuda.runtime.async_read import Sent

    x = cupy.ones(64)
    keep_busy(cupy)
    Sent(x)  # no caller waits for this copy
    rooms = [cupy.cuda.alloc_pinned_memory(x.nbytes) for _ in range(8)]
    views = [np.frombuffer(room, float, x.size) for room in rooms]
    for view in views:
        view[:] = 7
    cupy.cuda.Device().synchronize()
    assert all((view == 7).all() for view in views)


def test_what_is_sent_may_be_in_a_cycle_that_is_collected(cupy):
    """The collector finalizes the event of such a cycle before or after the rest."""
    from tcsolve._backends.cuda.runtime.async_read import Sent

    for _ in range(50):
        cycle = [Sent(cupy.ones(64))]
        cycle.append(cycle)
        del cycle
        gc.collect()
    assert (Sent(cupy.arange(5.0)).get() == np.arange(5)).all()


def test_what_is_sent_is_read_late_without_pinned_memory(cupy, monkeypatch):
    from tcsolve._backends.cuda.runtime.async_read import Sent

    def refuse(size):
        raise cupy.cuda.runtime.CUDARuntimeError(2)

    monkeypatch.setattr(cupy.cuda, "alloc_pinned_memory", refuse)
    keep_busy(cupy)
    assert (Sent(cupy.arange(5.0)).get() == np.arange(5)).all()


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


@pytest.mark.parametrize("n", [1, 33, 1024, 5003])
@pytest.mark.parametrize("last", [0, 1, 3])
@pytest.mark.parametrize("kind", ["random", "nan", "complex"])
def test_sums_that_compare_columns_are_those_of_numpy(n, last, kind, cupy, ops):
    rng = np.random.default_rng(n)
    b, y, z = (rng.standard_normal((n, k)) for k in (4 + last, 4 + last, last))
    if kind == "complex":
        b, y, z = (v + 1j * rng.standard_normal(v.shape) for v in (b, y, z))
    if kind == "nan":
        y[n // 2, -1] = np.nan
    expected = NumpyOps().held(b, y, z)

    first, second = (ops.held(*(cupy.asarray(v) for v in (b, y, z))).get() for _ in range(2))

    assert first.shape == expected.shape == (8 + last,)
    assert np.isnan(expected).sum() == (kind == "nan")
    size = np.append(
        expected[:8], np.linalg.norm(z, axis=0) * np.linalg.norm((b - y)[:, 4:], axis=0)
    )
    assert (np.abs(first - expected) <= 1e-13 * size)[~np.isnan(expected)].all()
    assert np.array_equal(np.isnan(first), np.isnan(expected))
    assert np.array_equal(first, second, equal_nan=True)


# ---- launching -------------------------------------------------------------------------------


def test_a_kernel_that_is_loaded_is_returned_again(cupy):
    first = compiler.kernel("move_rows", "tcs_move_rows", CHUNK=8)
    assert compiler.kernel("move_rows", "tcs_move_rows", CHUNK=8) is first
