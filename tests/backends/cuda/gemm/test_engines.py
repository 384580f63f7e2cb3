"""Every engine of the products against exact arithmetic and the NumPy oracle, on a device."""

import functools
import gc
import itertools

import ml_dtypes
import numpy as np
import pytest
from products import operands, ratio
from switches import skip_on_other_chips
from tcsolve.kernels.product_shapes import SMALL, SQUARE, WIDE, wmma_can_be_wide

import tcsolve
from tcsolve import DeviceError, InputError, gemm, gemm_batched, gemm_bound, matrices
from tcsolve._arithmetic.formats import UPDATES
from tcsolve._arithmetic.products import Job, choose_product
from tcsolve._backends.cuda.runtime import compiler
from tcsolve._backends.cuda.runtime.launch_counter import counted

pytestmark = pytest.mark.gpu

BF16 = np.dtype(ml_dtypes.bfloat16)
OWN = ("naive", "wmma", "wgmma")
ENGINES = (*OWN, "cublas")
LEVELS = ("none", "a", "b", "ab", "full")
# One entry, a tile, a little more and less than a tile, short and long k, no multiples of a tile.
SIZES = [
    (1, 1, 1),
    (16, 16, 16),
    (128, 256, 64),
    (129, 257, 65),
    (127, 255, 63),
    (300, 520, 200),
    (5, 700, 33),
    (257, 3, 1030),
]
LAYOUTS = ("C", "F", "odd", "every other")


@pytest.fixture(params=ENGINES)
def engine(request, cupy):
    """Each engine that the device has."""
    if request.param == "wgmma":
        request.getfixturevalue("hopper")
    return request.param


def multiplies(engine, precision):
    """Tell whether an engine has a format."""
    if engine == "wgmma" and precision not in ("fp16", "bf16"):
        return False
    if engine == "cublas" and precision in ("fp32", "fp64", "int8"):
        return True
    return int(compiler.target_arch()[3:].rstrip("a")) >= 80 or precision == "fp16"


def product_or_refusal(engine, precision, run):
    """Return run(), or None where the engine lacks the format and says so."""
    if multiplies(engine, precision):
        return run()
    with pytest.raises(DeviceError, match="engine"):
        run()
    return None


@pytest.fixture
def on_device(cupy):
    """A function that puts a host matrix on the device in one of LAYOUTS."""

    def put(x, layout="C"):
        bits = x.view(np.uint16) if x.dtype == BF16 else x
        if layout == "F":
            stored = cupy.asfortranarray(cupy.asarray(bits))
        elif layout == "odd":  # the first row does not start on a 16-byte boundary
            room = cupy.zeros((x.shape[0], x.shape[1] + 3), bits.dtype)
            stored = room[:, 1 : 1 + x.shape[1]]
            stored[...] = cupy.asarray(bits)
        elif layout == "every other":
            stored = cupy.zeros((2 * x.shape[0], 2 * x.shape[1]), bits.dtype)[::2, ::2]
            stored[...] = cupy.asarray(bits)
        else:
            stored = cupy.ascontiguousarray(cupy.asarray(bits))
        return stored.view(x.dtype)

    return put


def host(x):
    return x.view(np.uint16).get().view(BF16) if x.dtype == BF16 else x.get()


def bound_on_device(a, b, **options):
    """Return the bound of a product that a device computes; a and b are on the host.

    A device has another default precision than the host.
    """
    if a.dtype == np.float32 and not options.keys() & {"precision", "refine"}:
        options["precision"] = "fp16"
    return gemm_bound(a, b, **options).bound


def check(result, a, b, **options):
    """Check that a device's result meets the bound of its arithmetic, and that integers are exact."""
    result = host(result)
    if a.dtype == np.int8:
        assert np.array_equal(result, a.astype(np.int64) @ b.astype(np.int64))
        return
    bound = bound_on_device(a, b, **options)
    # The result is rounded to FP32 at the end; for k = 1 this may be its only error.
    assert ratio(result, a, b, bound + 2.0**-24) <= 1


@pytest.mark.parametrize("m, n, k", SIZES)
@pytest.mark.parametrize("dtype", [np.float16, BF16, np.int8], ids=str)
def test_operands_in_their_own_format(dtype, m, n, k, engine, on_device):
    precision = {"float16": "fp16", "bfloat16": "bf16", "int8": "int8"}[np.dtype(dtype).name]
    a, b = operands(m, n, k, dtype)
    run = lambda: gemm(on_device(a), on_device(b), engine=engine)  # noqa: E731
    result = product_or_refusal(engine, precision, run)
    if result is not None:
        check(result, a, b, engine=engine)


@pytest.mark.parametrize("layout_a, layout_b", list(itertools.product(LAYOUTS, repeat=2)))
@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32, np.int8], ids=str)
def test_layouts(dtype, layout_a, layout_b, engine, on_device):
    precision = {"bfloat16": "bf16", "int8": "int8"}.get(np.dtype(dtype).name, "fp16")
    a, b = operands(200, 300, 136, dtype)
    run = lambda: gemm(on_device(a, layout_a), on_device(b, layout_b), engine=engine)  # noqa: E731
    result = product_or_refusal(engine, precision, run)
    if result is not None:
        check(result, a, b, engine=engine)


@pytest.mark.parametrize("transa, transb", list(itertools.product((False, True), repeat=2)))
def test_transposes(transa, transb, engine, on_device):
    a, b = operands(140, 260, 72, np.float16)
    x = on_device(np.ascontiguousarray(a.T) if transa else a)
    y = on_device(np.ascontiguousarray(b.T) if transb else b)
    check(gemm(x, y, transa=transa, transb=transb, engine=engine), a, b, engine=engine)


@pytest.mark.parametrize("tile", [SMALL, SQUARE, WIDE])
@pytest.mark.parametrize("dtype", [np.float16, BF16, np.int8], ids=str)
def test_every_tile_of_the_wmma_engine(dtype, tile, on_device, cupy):
    from tcsolve._backends.cuda.gemm import engines

    arch, name = compiler.target_arch(cupy.cuda.Device()), np.dtype(dtype).name
    precision = {"float16": "fp16", "bfloat16": "bf16", "int8": "int8"}[name]
    if tile == WIDE and not wmma_can_be_wide("fp16", arch):
        skip_on_other_chips(f"{arch} has no room for wide tiles")
    if not multiplies("wmma", precision):
        skip_on_other_chips(f"{arch} has no {precision}")
    for (m, n, k), turned, layout in itertools.product(SIZES, range(4), ("C", "odd")):
        a, b = operands(m, n, k, dtype)
        # Each operand is as it is stored, or the transpose of what is stored.
        x, y = (
            on_device(np.ascontiguousarray(z.T), layout).T
            if turned >> i & 1
            else on_device(z, layout)
            for i, z in enumerate((a, b))
        )
        out = cupy.full((m, n), 77, np.int32 if precision == "int8" else np.float32)
        product = choose_product(name, k, engine="wmma")
        job = Job(x, y, None, out, product, 1, 0, "wmma")
        with counted() as launches:
            engines.RUN["wmma"](engines.Work.of(job, arch, 132), tile=tile)
        check(out, a, b, engine="wmma")
        assert launches["tcs_gemm_wmma"] == 1


@pytest.mark.parametrize("m, n, k", SIZES)
@pytest.mark.parametrize("refine", LEVELS)
@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32"])
def test_refined_products(precision, refine, m, n, k, engine, on_device):
    a, b = operands(m, n, k, np.float32)
    options = {"precision": precision, "refine": refine, "engine": engine}
    result = product_or_refusal(
        engine, precision, lambda: gemm(on_device(a), on_device(b), **options)
    )
    if result is not None:
        check(result, a, b, **options)


@pytest.mark.parametrize("refine", LEVELS)
@pytest.mark.parametrize("layout_a, layout_b", list(itertools.product("CF", repeat=2)))
def test_rows_and_columns_of_all_sizes(refine, layout_a, layout_b, engine, on_device):
    rng = np.random.default_rng(3)
    a, b = operands(150, 280, 100, np.float32)
    a = (a * 2.0 ** rng.integers(-60, 60, (150, 1))).astype(np.float32)
    b = (b * 2.0 ** rng.integers(-60, 60, 280)).astype(np.float32)
    options = {"precision": "fp16", "refine": refine, "engine": engine}
    check(gemm(on_device(a, layout_a), on_device(b, layout_b), **options), a, b, **options)


# Not cuBLAS, which sums all k terms on the tensor cores.
@pytest.mark.parametrize("engine", OWN, indirect=True)
@pytest.mark.parametrize("m, n, k", [(4096, 4096, 4096), (300, 300, 4096)])
def test_the_default_is_as_accurate_as_sgemm(m, n, k, engine, on_device, request):
    if m < k:
        reason = "SGEMM splits k of a small result into several sums, and its errors are smaller"
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    a, b = operands(m, n, k, np.float32)
    exact = a.astype(float) @ b

    def errors(**options):
        return np.abs(host(gemm(on_device(a), on_device(b), **options)) - exact)

    ours, sgemm = errors(engine=engine), errors(precision="fp32")
    assert ours.max() <= sgemm.max() and ours.mean() <= sgemm.mean()


def test_integers_are_the_same_as_the_oracles_bit_for_bit(engine, on_device):
    # Sums of small integers are exact in any order, in FP16, BF16 and with splits.
    rng = np.random.default_rng(4)
    a = rng.integers(-8, 9, (130, 90)).astype(np.float32)
    b = rng.integers(-8, 9, (90, 270)).astype(np.float32)
    for precision, refine in itertools.product(("fp16", "bf16", "tf32"), LEVELS):
        options = {"precision": precision, "refine": refine}
        run = functools.partial(gemm, on_device(a), on_device(b), engine=engine, **options)
        result = product_or_refusal(engine, precision, run)
        if result is not None:
            assert np.array_equal(host(result), gemm(a, b, **options))


@pytest.mark.parametrize("stored", [np.float32, np.float16, BF16], ids=str)
@pytest.mark.parametrize("order", ["C", "F", "beside"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_out_alpha_and_beta(dtype, order, stored, engine, on_device, cupy):
    stored = np.dtype(stored)
    bits = np.uint16 if stored == BF16 else stored
    a, b = operands(130, 151, 64, dtype)
    c, _ = operands(130, 151, 1, np.float32)
    c = c * np.ones((1, 151), np.float32)
    c = c.astype(stored)
    room = cupy.full((130, 153), 7, bits, order="F" if order == "F" else "C")
    out = room[:, 1:152].view(stored) if order == "beside" else room[:, :151].view(stored)
    if order == "C":
        out = cupy.zeros((130, 151), bits).view(stored)
    gemm(on_device(a), on_device(b), on_device(c), alpha=1.5, beta=-0.5, engine=engine, out=out)
    expected = 1.5 * (a.astype(float) @ b.astype(float)) - 0.5 * c.astype(float)
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(stored.name, 2.0**-24)
    error = np.abs(host(out).astype(float) - expected)
    assert (error <= 3 * unit * (np.abs(expected) + 1) + 64 * 2.0**-22).all()
    if order == "beside":
        assert (room[:, 0] == 7).all() and (room[:, 152] == 7).all()


def test_in_place(engine, on_device):
    a, b = operands(200, 200, 100, np.float32)
    c = on_device(np.ones((200, 200), np.float32))
    gemm(on_device(a), on_device(b), c, beta=1, alpha=-1, out=c, engine=engine)
    assert np.abs(host(c) - (1 - a.astype(float) @ b)).max() < 1e-4


def test_integer_scalars(engine, on_device):
    a, b = operands(130, 150, 64, np.int8)
    c = np.arange(130 * 150, dtype=np.int32).reshape(130, 150)
    exact = 3 * (a.astype(np.int64) @ b.astype(np.int64)) - 7 * c
    options = {"alpha": 3, "beta": -7, "engine": engine}
    run = lambda: gemm(on_device(a), on_device(b), on_device(c), **options)  # noqa: E731
    result = product_or_refusal(engine, "int8", run)
    assert result is None or np.array_equal(host(result), exact)


@pytest.mark.parametrize("m, n, k", [*SIZES, (129, 131, 70), (257, 100, 1030), (4, 8, 12)])
@pytest.mark.parametrize("alpha, beta", [(1, 0), (1, 1), (3, -2), (2**32 + 5, 2**31 - 1)])
def test_integers_of_every_size(alpha, beta, m, n, k, on_device):
    a, b = operands(m, n, k, np.int8)
    c = np.arange(m * n, dtype=np.int32).reshape(m, n)
    expected = gemm(a, b, c, alpha=alpha, beta=beta)
    for engine, layout in itertools.product(("auto", "cublas"), LAYOUTS):
        out, options = on_device(c, layout), {"alpha": alpha, "beta": beta, "engine": engine}
        gemm(on_device(a, layout), on_device(b), out, out=out, **options)
        assert np.array_equal(host(out), expected)


# cuBLAS refuses sizes such as 144 x 160 x 64 for row-major operands, although they are multiples of 4.
@pytest.mark.parametrize(
    "m, n, k", [(144, 160, 64), (144, 144, 80), (144, 272, 80), (132, 136, 68)]
)
@pytest.mark.parametrize("layout_a, layout_b", list(itertools.product("CF", repeat=2)))
def test_cublas_multiplies_integers_of_every_layout(layout_a, layout_b, m, n, k, on_device):
    a, b = operands(m, n, k, np.int8)
    check(gemm(on_device(a, layout_a), on_device(b, layout_b), engine="cublas"), a, b)


def test_out_beside_an_operand_is_no_overlap(engine, on_device, cupy):
    room = cupy.ones((128, 256), cupy.float32)
    a, out = room[:, :128], room[:, 128:]
    with pytest.raises(InputError, match="out overlaps a"):
        gemm(a, a.copy(), out=room[:, 127:255], engine=engine)
    gemm(a, a.copy(), out=out, engine=engine)
    assert (out == 128).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_nan_and_inf(dtype, engine, on_device):
    a, b = operands(150, 270, 90, dtype, low=0.25, high=1)
    a[3, 4], a[77, 1], b[5, 6], b[8, 100] = np.nan, np.inf, np.inf, -np.inf
    a[9, 2], b[2, :3] = np.inf, 0
    expected = gemm(a, b)
    result = host(gemm(on_device(a), on_device(b), engine=engine))
    odd = ~np.isfinite(expected)
    assert odd.any()
    assert np.array_equal(result[odd], expected[odd], equal_nan=True)
    assert np.isfinite(result[~odd]).all()


def test_the_same_bits_every_time(engine, on_device):
    for dtype in (np.float16, np.float32):
        a, b = (on_device(x) for x in operands(700, 900, 500, dtype))
        first = gemm(a, b, engine=engine)
        assert all((gemm(a, b, engine=engine) == first).all() for _ in range(10))


def test_an_engine_the_device_lacks_is_named(cupy):
    from tcsolve._backends.cuda.gemm import engines

    a, out = cupy.ones((2, 2), cupy.float32), cupy.empty((2, 2), cupy.float32)

    def run(engine, precision, arch):
        product = choose_product("float32", 2, precision, engine=engine)
        engines.gemm(Job(a, a, None, out, product, 1, 0, engine), arch, 132)

    with pytest.raises(DeviceError, match="'wgmma' needs compute capability 9.0.*sm_80"):
        run("wgmma", "fp16", "sm_80")
    with pytest.raises(DeviceError, match="'bf16' needs compute capability 8.0"):
        run("wmma", "bf16", "sm_75")


def test_an_engine_without_the_format_is_named(cupy):
    a = cupy.ones((2, 2), cupy.int8)
    if compiler.target_arch() == "sm_90a":
        with pytest.raises(DeviceError, match="'wgmma' multiplies 'fp16' and 'bf16', not 'int8'"):
            gemm(a, a, engine="wgmma")
    with pytest.raises(DeviceError, match="'wmma' has no products in 'fp64'"):
        gemm(cupy.ones((2, 2)), cupy.ones((2, 2)), engine="wmma")


def test_arrays_of_two_places_are_refused(cupy):
    with pytest.raises(InputError, match="all must be NumPy or all CuPy"):
        gemm(np.ones((2, 2)), cupy.ones((2, 2)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_native_products(dtype, on_device):
    a, b = operands(100, 120, 80, dtype)
    precision = "fp32" if dtype == np.float32 else "fp64"
    check(gemm(on_device(a), on_device(b, "F"), precision=precision), a, b, precision=precision)


def test_fp64_operands_in_fp16(on_device):
    a, b = operands(100, 120, 80, np.float64)
    result = gemm(on_device(a * 1e300), on_device(b * 1e-305), precision="fp16")
    check(result * 1e5, a, b, precision="fp16")


def test_rtol_picks_a_level(on_device):
    a, b = operands(100, 120, 80, np.float32)
    x, y = on_device(a), on_device(b)
    for rtol, refine in ((1e-2, "none"), (7e-4, "a"), (1e-4, "ab")):
        assert gemm_bound(x, y, rtol=rtol).refine == refine
        assert (gemm(x, y, rtol=rtol) == gemm(x, y, refine=refine)).all()


# ---- results that the copy engine stores, and products with columns of an operand -------------------


@pytest.mark.parametrize(
    "m, n, k", [(128, 128, 64), (520, 776, 200), (1000, 1028, 33), (2904, 2900, 64)]
)
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("refine", LEVELS)
def test_results_added_in_place_have_the_bits_of_new_ones(refine, precision, m, n, k, hopper):
    # In place, whole tiles are added by the copy engine; else C is read, added to and written by threads.
    a, b = (hopper.asarray(x) for x in operands(m, n, k, np.float32))
    c = hopper.random.default_rng(1).standard_normal((m, n)).astype(np.float32)
    options = {"precision": precision, "refine": refine, "engine": "wgmma"}
    product = gemm(a, b, **options)
    for alpha in (1, -1, 0.25):  # powers of two, because alpha x may be added without being rounded
        expected = gemm(a, b, c, alpha=alpha, beta=1, **options)
        out = c.copy()
        assert (gemm(a, b, out, alpha=alpha, beta=1, out=out, **options) == expected).all()
        assert (gemm(a, b, alpha=alpha, **options) == np.float32(alpha) * product).all()
    a[m // 2, k // 3] = np.inf
    out = c.copy()
    gemm(a, b, out, beta=1, out=out, **options)
    expected = gemm(a, b, c, beta=1, **options)
    assert ((out == expected) | (hopper.isnan(out) & hopper.isnan(expected))).all()
    assert not hopper.isfinite(out[m // 2]).any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_tiles_in_turn_have_the_bits_of_fixed_shares(dtype, hopper):
    from tcsolve._backends.cuda.gemm import engines

    m, n, k = 2900, 3100, 200
    a, b = (hopper.asarray(x) for x in operands(m, n, k, dtype))
    product = choose_product(np.dtype(dtype).name, k)
    results = []
    for multiprocessors in (16, 132, 10**6):  # with so many, each cluster has one tile
        out = hopper.full((m, n), np.nan, np.float32)
        work = engines.Work.of(
            Job(a, b, None, out, product, 1, 0, "wgmma"), "sm_90a", multiprocessors
        )
        engines.RUN["wgmma"](work)
        assert not work.turns.any()
        results.append(out)
    assert all((result == results[0]).all() for result in results)


@pytest.fixture
def turn_words(cupy):
    """Words that count the tiles taken; all launches of a test share them, as in a recorded graph."""
    from tcsolve._backends.cuda.runtime import cublas_calls

    words = cupy.zeros(64, cupy.uint32)
    workspace = cupy.empty(cublas_calls.WORKSPACE_BYTES, cupy.uint8)
    with cublas_calls.recorded(lambda lane: workspace, lambda lane: words, set()):
        yield words


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize(
    "m, k, r",
    [(128, 64, 128), (300, 200, 520), (1030, 512, 777), (4096, 64, 2304), (2500, 1024, 2500)],
)
def test_an_update_by_columns_meets_the_bound_with_the_same_bits(
    m, k, r, shift, hopper, turn_words
):
    from tcsolve._backends.cuda.gemm.wgmma import Operand

    room = np.random.default_rng([m, k, r]).uniform(-1, 1, (m + k, -(-(r + k) // 4) * 4 + 4))
    room = hopper.asarray(room.astype(np.float32))
    w = room[:, shift : r + k + shift]
    l, u, c = w[k:, :k], 3e5 * w[:k, k:], w[k:, k:]
    first = c.copy()
    exact = first.astype(float) - l.astype(float) @ u.astype(float)

    prepared = Operand(l, UPDATES["fp16x3"], 132)
    with counted() as launches:
        prepared.subtract(c, u, None)

    whole, error = c.copy(), np.abs((c - exact).get())
    size = np.linalg.norm(l.get(), axis=1)[:, None] * np.linalg.norm(u.get(), axis=0)
    bound = gemm_bound(l.get(), u.get(), refine="ab").bound + 2.0**-23
    assert (error <= bound * size + 2.0**-23 * np.abs(exact.get())).all()
    for width in (256, 1280):
        c[...] = first
        for start in range(0, r, width):
            columns = slice(start, min(r, start + width))
            prepared.subtract(c[:, columns], u[:, columns], None)
        assert (c == whole).all()
    assert launches["tcs_gemm_wgmma"] == 1 and not turn_words.any()


@pytest.mark.parametrize("transb", [False, True])
@pytest.mark.parametrize("transa", [False, True])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("low", ["fp16", "bf16", "tf32"])
@pytest.mark.parametrize(
    "m, k, n",
    [
        (1, 1, 1),
        (5, 7, 3),
        (70, 1024, 129),
        (20, 4096, 260),
        (33, 4101, 36),
        (8, 8193, 20),
        (9, 16384, 70),
        (3, 16385, 9),
        (2, 32769, 5),
        (4100, 64, 8200),
    ],
)
def test_one_pass_splits_as_two_do(m, k, n, low, shift, transa, transb, hopper):
    from tcsolve._backends.cuda.gemm import job

    rng = np.random.default_rng([m, k, n])

    def operand(rows, cols, transposed):
        x = rng.standard_normal((cols, rows) if transposed else (rows, cols)).astype(np.float32)
        x *= np.exp2(rng.integers(-60, 60, x.shape[0])).astype(np.float32)[:, None]
        x *= np.exp2(rng.integers(-60, 60, x.shape[1])).astype(np.float32)
        x[0], x[:, -1] = 0.0, 1e-42
        x[x.shape[0] // 2, x.shape[1] // 2] = np.nan
        x[-1, x.shape[1] // 3] = -np.inf
        room = hopper.zeros((x.shape[0], x.shape[1] + 4), np.float32)
        room[:, shift : shift + x.shape[1]] = hopper.asarray(x)
        view = room[:, shift : shift + x.shape[1]]
        return view.T if transposed else view

    a, b = operand(m, k, transa), operand(k, n, transb)
    out = hopper.empty((m, n), np.float32)
    product = choose_product("float32", k, low, "b")

    pairs, in_one_pass = [], []
    for arch in ("sm_90a", "sm_80"):  # without clusters, two passes
        work = job.Work.of(Job(a, b, None, out, product, 1, 0, "wgmma"), arch, 132)
        with counted() as launches:
            parts = work.split(*product.splits)
        assert parts[0][1] is None
        found = [work.top_a, work.top_b, parts[0][0], *parts[1]]
        pairs.append([x.view(np.uint32 if x.itemsize == 4 else np.uint16).get() for x in found])
        in_one_pass.append(launches["tcs_split_once"])

    # One pass takes rows of up to 32768 entries, and columns of up to 16384.
    along_rows = transb and not transa
    assert in_one_pass == [int(k <= (32768 if along_rows else 16384)), 0]
    for once, twice in zip(*pairs, strict=True):
        assert np.array_equal(once, twice)


@pytest.mark.parametrize("transb", [False, True])
@pytest.mark.parametrize("transa", [False, True])
@pytest.mark.parametrize("k, parts", [(16684, 3), (16284, 2), (8192, 1)])
@pytest.mark.parametrize("refine", ["a", "ab", "full"])
def test_a_long_k_is_multiplied_in_parts(refine, k, parts, transa, transb, hopper):
    rng = np.random.default_rng(k)
    a, b, c = (rng.standard_normal(s).astype(np.float32) for s in ((150, k), (k, 260), (150, 260)))
    a[3, k - 1], a[5, 0], a[5, k - 1] = np.inf, np.inf, -np.inf
    how = {"precision": "fp16", "refine": refine, "engine": "wgmma", "transa": transa}
    stored = [
        hopper.asarray(np.ascontiguousarray(x.T) if t else x) for x, t in ((a, transa), (b, transb))
    ]
    there, out = hopper.asarray(c), hopper.asarray(c)

    with counted() as launches:
        apart = gemm(*stored, there, alpha=0.5, beta=2.0, transb=transb, **how)
        gemm(*stored, out, alpha=0.5, beta=2.0, out=out, transb=transb, **how)

    with np.errstate(invalid="ignore"):
        exact = 0.5 * (a.astype(float) @ b) + 2.0 * c
    good = np.isfinite(exact)
    # Each of the parts, and C, is rounded once more.
    size = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=0) + np.abs(c)
    bound = gemm_bound(a, b, precision="fp16", refine=refine, engine="wgmma").bound
    for result in (apart.get(), out.get()):
        with np.errstate(invalid="ignore"):
            error = np.abs(result - exact)
        assert (error <= (bound + parts * 2.0**-23) * size)[good].all()
        # Rows of A with an Inf give what IEEE arithmetic gives.
        assert np.array_equal(result[[3, 5]], exact[[3, 5]], equal_nan=True)
    assert launches["tcs_gemm_wgmma"] == 2 * parts


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("top", [1.0, 2.0**14, 3e-39, 0.0, np.nan, np.inf])
@pytest.mark.parametrize(
    "m, k, r", [(128, 64, 40), (700, 128, 301), (5000, 128, 512), (300, 65, 999)]
)
def test_a_small_u_is_scaled_on_the_way_with_the_same_bits(m, k, r, top, shift, hopper):
    from tcsolve._backends.cuda.gemm import wgmma

    rng = np.random.default_rng([m, k, r])
    l = hopper.asarray(rng.uniform(-1, 1, (m, k)).astype(np.float32))
    u = rng.uniform(-1, 1, (k, r)).astype(np.float32) * np.float32(min(top, 1.0))
    u[k // 2, r // 2] = top
    found = []

    # U alone, and with so many copies of it to its right that a separate kernel finds the scale.
    for copies in (1, wgmma.FEW_ENTRIES // u.size + 1):
        room = hopper.zeros((k, copies * r + 4), np.float32)
        beside = room[:, shift : copies * r + shift]
        beside[...] = hopper.asarray(np.tile(u, (1, copies)))
        for at_once in (False, True):
            operand = wgmma.Operand(l, UPDATES["fp16x3"], 132)
            result = hopper.ones((m, copies * r), np.float32)
            if at_once:
                operand.round()
            with counted() as launches:
                operand.subtract(result, beside, None)
            found.append(result[:, :r].get())
            assert launches["tcs_update_scale"] == (copies > 1)

    assert all(np.array_equal(x, found[0], equal_nan=True) for x in found)
    assert np.isfinite(found[0]).all() == np.isfinite(top)


@pytest.mark.parametrize("update", ["fp16", "bf16", "fp16x3"])
@pytest.mark.parametrize("m, k, r", [(128, 64, 40), (700, 128, 300), (3000, 512, 2900)])
def test_two_launches_that_share_an_update_give_its_bits(m, k, r, update, hopper, turn_words):
    """The two launches have different numbers of blocks.

    In the last two cases, the first launch must leave some, or all, multiprocessors free.
    """
    from tcsolve._backends.cuda.gemm.wgmma import Operand

    rng = np.random.default_rng([m, k, r])
    make = lambda *shape: hopper.asarray(rng.uniform(-1, 1, shape).astype(np.float32))  # noqa: E731
    l, u, c = make(m, k), make(k, r), make(m, r)
    expected = c.copy()
    Operand(l, UPDATES[update], 132).subtract(expected, u, None)
    assert np.abs((expected - (c - l @ u)).get()).max() <= 8 * np.sqrt(k) * UPDATES[update].u

    class Both:
        def __init__(self, first, second, taken=0):
            self.first, self.second = first, second
            self.taken = hopper.full(8, taken, hopper.uint32)

        def launch(self, launch, multiprocessors):
            assert multiprocessors == 132
            launch(self.first, self.second, self.taken.data.ptr)
            launch(self.second, self.first)

    for blocks in ((5, 127), (116, 16), (132, 16, 0x00FF00FF), (132, 1, 0xFFFFFFFF)):
        result = c.copy()
        Operand(l, UPDATES[update], 132).subtract(result, u, Both(*blocks))
        assert (result == expected).all()
        assert not turn_words.any()


def test_an_update_of_something_not_finite_is_not_finite(hopper):
    from tcsolve._backends.cuda.gemm.wgmma import Operand

    for bad in (np.nan, np.inf):
        l, u, c = (hopper.ones((256, 256), np.float32) for _ in range(3))
        u[7, 100] = bad
        Operand(l, UPDATES["fp16x3"], 132).subtract(c, u, None)
        assert not hopper.isfinite(c[:, 100]).any()


# ---- batches ---------------------------------------------------------------------------------------

BATCHED = [(1, 1, 1), (2, 3, 4), (8, 8, 8), (5, 7, 3), (16, 16, 16), (17, 33, 20), (40, 24, 63)]
BATCHED += [(64, 64, 64), (64, 1, 2), (1, 64, 64), (33, 31, 8), (8, 24, 16), (63, 63, 63)]


def stacks(batch, m, n, k, dtype):
    a, b = operands(batch * m, batch * n, k, dtype)
    return a.reshape(batch, m, k), np.ascontiguousarray(b.reshape(k, batch, n).swapaxes(0, 1))


def check_batch(result, a, b, **options):
    result = host(result)
    if a.dtype == np.int8:
        assert np.array_equal(result, a.astype(np.int64) @ b.astype(np.int64))
    else:
        assert ratio(result, a, b, bound_on_device(a, b, **options) + 2.0**-23) <= 1


def stack_on_device(cupy, x):
    bits = x.view(np.uint16) if x.dtype == BF16 else x
    return cupy.asarray(bits).view(x.dtype)


@pytest.mark.parametrize("m, n, k", BATCHED)
@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32, np.int8], ids=str)
def test_batches_of_all_sizes(dtype, m, n, k, cupy):
    a, b = stacks(37, m, n, k, dtype)
    x, y = stack_on_device(cupy, a), stack_on_device(cupy, b)
    check_batch(gemm_batched(x, y), a, b)
    turned = [cupy.ascontiguousarray(_bits(z).swapaxes(1, 2)).view(z.dtype) for z in (x, y)]
    check_batch(gemm_batched(*turned, transa=True, transb=True), a, b)


def _bits(x):
    return x.view(np.uint16) if x.dtype == BF16 else x


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("precision", [None, "fp32"])
@pytest.mark.parametrize("count, one", [(1, False), (3, False), (3, True)])
def test_a_single_row_that_was_a_column_is_a_matrix(dtype, precision, count, one, cupy):
    """The stride of its only row is one entry."""
    rng = np.random.default_rng(8)
    a = rng.standard_normal((1 if one else count, 100, 1)).astype(dtype)
    b = rng.standard_normal((count, 5, 100)).astype(dtype)
    x, y = cupy.asarray(a), cupy.asarray(b)

    found = gemm_batched(x, y, transa=True, transb=True, precision=precision)

    expected = a.swapaxes(1, 2).astype(float) @ b.swapaxes(1, 2)
    size = np.linalg.norm(a, axis=1)[..., None] * np.linalg.norm(b, axis=2)[:, None]
    bound = gemm_bound(x.swapaxes(1, 2), y.swapaxes(1, 2), precision=precision).bound
    assert (np.abs(found.get() - expected) <= bound * size).all()
    single = gemm(x[0], y[0], transa=True, transb=True, precision=precision).get()
    assert (np.abs(single - expected[0]) <= bound * size[0]).all()


@pytest.mark.parametrize("refine", LEVELS)
@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32"])
def test_batches_are_refined(precision, refine, cupy):
    for m, n, k in ((8, 8, 8), (16, 24, 40)):
        a, b = stacks(9, m, n, k, np.float32)
        a *= (2.0 ** np.random.default_rng(1).integers(-60, 60, (9, m, 1))).astype(np.float32)
        options = {"precision": precision, "refine": refine}
        result = gemm_batched(cupy.asarray(a), cupy.asarray(b), **options)
        check_batch(result, a, b, **options)


@pytest.mark.parametrize("size", range(1, 65))
def test_every_square_size(size, cupy):
    a, b = stacks(5, size, size, size, np.float16)
    check_batch(gemm_batched(cupy.asarray(a), cupy.asarray(b)), a, b)


@pytest.mark.parametrize("batch", [0, 1, 2, 31, 70000])
def test_batches_of_any_length(batch, cupy):
    a, b = stacks(batch, 8, 8, 8, np.float16)
    check_batch(gemm_batched(cupy.asarray(a), cupy.asarray(b)), a, b)


def test_ten_million_products(cupy):
    a = cupy.ones((10_000_000, 2, 2), cupy.float16)
    b = cupy.arange(4, dtype=cupy.float16).reshape(2, 2)
    result = gemm_batched(a, b)
    assert (result == cupy.asarray([[2, 4], [2, 4]], cupy.float32)).all()


@pytest.mark.parametrize("size", [4, 8, 16, 33])
def test_broadcast_is_not_repeated_in_memory(size, cupy):
    a, b = stacks(3000, size, size, size, np.float16)
    b[:] = b[0]
    x, y = cupy.asarray(a), cupy.asarray(b[0])
    pool = cupy.get_default_memory_pool()
    out = cupy.empty((3000, size, size), cupy.float32)
    for one in (y, y[None], cupy.broadcast_to(y, b.shape)):
        out.fill(cupy.nan)
        gc.collect()  # else arrays of earlier tests may be freed between the two readings
        used = pool.used_bytes()
        result = gemm_batched(x, one, out=out)
        assert pool.used_bytes() == used
        check_batch(result, a, b)
    check_batch(gemm_batched(y, x), b, a)


def test_strides_of_a_batch(cupy):
    a, b = stacks(40, 16, 16, 16, np.float16)
    wide = cupy.zeros((80, 16, 20), cupy.float16)
    wide[::2, :, 1:17] = cupy.asarray(a)
    check_batch(gemm_batched(wide[::2, :, 1:17], cupy.asarray(b)), a, b)
    out = cupy.zeros((40, 16, 40), cupy.float32)[:, :, ::2][:, :, :16]
    check_batch(gemm_batched(cupy.asarray(a), cupy.asarray(b), out=out), a, b)
    shifted = cupy.zeros(a.size + 1, cupy.float16)[1:].reshape(a.shape)
    shifted[...] = cupy.asarray(a)
    check_batch(gemm_batched(shifted, cupy.asarray(b)), a, b)


@pytest.mark.parametrize("stored", [np.float16, np.float32])
@pytest.mark.parametrize("size", [4, 8, 16, 33])
def test_batches_have_alpha_beta_and_out(size, stored, cupy):
    a, b = stacks(50, size, size, size, np.float16)
    c = cupy.full((50, size, size), 2, stored)
    gemm_batched(cupy.asarray(a), cupy.asarray(b), c, alpha=-1, beta=3, out=c)
    expected = 6 - a.astype(float) @ b.astype(float)
    unit = 2.0**-11 if stored == np.float16 else 2.0**-22
    assert (np.abs(c.get() - expected) <= 2 * unit * (np.abs(expected) + size)).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_nan_and_inf_stay_in_their_product(dtype, cupy):
    for size in (6, 8, 20):
        a, b = stacks(8, size, size, size, dtype)
        a[2, 1, 1], b[5, 0, 2], b[5, 1, 3] = np.nan, np.inf, -np.inf
        expected = gemm_batched(a, b)
        result = gemm_batched(cupy.asarray(a), cupy.asarray(b)).get()
        odd = ~np.isfinite(expected)
        assert np.array_equal(result[odd], expected[odd], equal_nan=True)
        assert np.isfinite(result[~odd]).all()


def test_alpha_of_a_batch_in_fp32_is_a_number_of_fp32(cupy):
    rng = np.random.default_rng(8)
    a, b = (cupy.asarray(rng.integers(-40, 41, (3, 6, 6)).astype("f")) for _ in range(2))
    found = gemm_batched(a, b, alpha=0.1, precision="fp32")
    assert (found == gemm_batched(a, b, precision="fp32") * np.float32(0.1)).all()


def test_larger_matrices_are_multiplied_one_by_one(cupy):
    a, b = stacks(3, 100, 80, 90, np.float32)
    check_batch(gemm_batched(cupy.asarray(a), cupy.asarray(b)), a, b)


# ---- subnormal rows, and Inf beyond 1e38, by every engine --------------------------------------------


@pytest.mark.parametrize("refine", LEVELS)
@pytest.mark.parametrize(
    "precision, layout_a, layout_b",
    [*itertools.product(["fp16"], "CF", "CF"), ("bf16", "C", "C"), ("tf32", "C", "C")],
)
def test_rows_of_subnormal_numbers_meet_the_bound(
    precision, refine, layout_a, layout_b, engine, on_device
):
    rng = np.random.default_rng(5)
    m, n, k = 150, 280, 100
    # Rows near or below the smallest normal number, some ordinary rows, columns with entries of all sizes.
    size = np.where(np.arange(m) % 5, 2.0 ** rng.uniform(-149, -120, m), 1.0)[:, None]
    a = (rng.standard_normal((m, k)) * size).astype(np.float32)
    b = (rng.standard_normal((k, n)) * 10.0 ** rng.uniform(-6, 6, (k, n)) * 2.0**90).astype("f4")
    for turned in (False, True):
        x, y = (b.T, a.T) if turned else (a, b)
        options = {"precision": precision, "refine": refine, "engine": engine}
        run = functools.partial(gemm, on_device(x, layout_a), on_device(y, layout_b), **options)
        result = product_or_refusal(engine, precision, run)
        if result is not None:
            check(result, x, y, **options)


@pytest.mark.parametrize("k", [90, 9000])  # one sum, and parts of k after one another
@pytest.mark.parametrize("refine", LEVELS)
@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32"])
def test_finite_sums_that_overflow_do_not_hide_an_inf(precision, refine, k, engine, on_device):
    rng = np.random.default_rng(6)
    a, b = (rng.uniform(-3e38, 3e38, s).astype(np.float32) for s in ((140, k), (k, 270)))
    a[3, -1], a[77, 1], b[5, 6], b[-2, 100], a[9, 2] = np.inf, -np.inf, np.inf, -np.inf, np.nan
    b[-1, :3], a[77, 5] = 0, 1e-42
    with np.errstate(invalid="ignore"):
        expected = a.astype(float) @ b.astype(float)
    odd = ~np.isfinite(expected)
    options = {"precision": precision, "refine": refine, "engine": engine}
    run = lambda: gemm(on_device(a), on_device(b), **options)  # noqa: E731
    result = product_or_refusal(engine, precision, run)
    if result is not None:
        assert np.array_equal(host(result)[odd], expected[odd], equal_nan=True)


@pytest.mark.parametrize("size", [8, 20, 64])
@pytest.mark.parametrize("refine", LEVELS)
def test_batches_of_subnormal_rows_meet_the_bound(refine, size, cupy):
    rng = np.random.default_rng(size)
    a, b = stacks(9, size, size, size, np.float32)
    a *= (2.0 ** rng.uniform(-149, -120, (9, size, 1))).astype(np.float32)
    b *= (10.0 ** rng.uniform(-6, 6, b.shape) * 2.0**90).astype(np.float32)
    options = {"precision": "fp16", "refine": refine}
    for x, y in ((a, b), (b.swapaxes(1, 2), a.swapaxes(1, 2))):
        result = gemm_batched(cupy.asarray(x), cupy.asarray(y), **options)
        check_batch(result, x, y, **options)


# ---- sizes beyond the limits of a grid ---------------------------------------------------------------


def thin(cupy, count, dtype):
    """Return a (count, 3) and b (3, 2) of small integers, and their product."""
    a = (cupy.arange(3 * count).reshape(count, 3) % 7 - 3).astype(dtype)
    b = cupy.asarray([[1, -2], [3, 0], [-1, 2]], dtype)
    columns = [sum(a[:, q].astype(cupy.int32) * int(b[q, j]) for q in range(3)) for j in range(2)]
    return a, b, cupy.stack(columns, axis=1)


ARITHMETICS = [
    ("f2", "fp16"), ("f4", "fp16"), ("f4", "tf32"), ("f4", "fp32"), ("f4", "fp64"), ("f8", "fp64"),
    ("f8", "fp16"), ("i1", "int8"),
]  # fmt: skip


def has(engine, dtype, precision):
    """Tell whether an engine has a product, on a device of compute capability 8.0 or more."""
    if engine == "cublas":
        return True
    formats = ("fp16", "bf16") if engine == "wgmma" else ("fp16", "bf16", "tf32", "int8")
    return dtype != "f8" and precision in formats


@pytest.mark.parametrize("count", [70_000, 3_000_000, 17_000_000])
@pytest.mark.parametrize(
    "engine, dtype, precision",
    [(e, *how) for e in ENGINES for how in ARITHMETICS if has(e, *how)],
    indirect=["engine"],
)
def test_a_dimension_of_millions(engine, dtype, precision, count, cupy):
    a, b, expected = thin(cupy, count, dtype)
    options = {"precision": precision, "engine": engine}
    tall = product_or_refusal(engine, precision, lambda: gemm(a, b, **options))
    if tall is None:
        return
    assert (tall == expected).all()
    del tall
    wide = gemm(b.T, a.T, **options)
    assert (wide == expected.T).all()
    if dtype == "f4":
        gemm(b.T, a.T, wide, beta=1, out=wide, **options)
        assert (wide == 2 * expected.T).all()


@pytest.mark.parametrize("batch", [70_000, 3_000_000])
@pytest.mark.parametrize(
    "dtype, precision",
    [
        ("f2", "fp16"),
        ("f4", "fp16"),
        ("f4", "fp32"),
        ("f4", "fp64"),
        ("f8", "fp16"),
        ("i1", "int8"),
    ],
)
def test_a_batch_of_millions(dtype, precision, batch, cupy):
    a = (cupy.arange(4 * batch).reshape(batch, 2, 2) % 5 - 2).astype(dtype)
    b, c = cupy.asarray([[1, -2], [3, 1]], dtype), cupy.asarray([[5, 0], [0, 7]], "i1")
    left = cupy.stack([a[..., 0] + 3 * a[..., 1], a[..., 1] - 2 * a[..., 0]], axis=2)
    right = cupy.stack([a[:, 0] - 2 * a[:, 1], 3 * a[:, 0] + a[:, 1]], axis=1)
    turned = cupy.ascontiguousarray(a.swapaxes(1, 2))
    for operand, transposed in ((a, False), (turned, True)):
        result = gemm_batched(operand, b, transa=transposed, precision=precision)
        assert (result == left).all()
    assert (gemm_batched(b, a, precision=precision) == right).all()
    repeated = cupy.broadcast_to(b, a.shape)
    result = gemm_batched(a, repeated, c, beta=1, precision=precision)
    assert (result == left + c).all()
    same = gemm_batched(repeated, b, precision=precision)
    assert (same == cupy.asarray([[-5, -4], [6, -5]])).all()


def test_seventy_thousand_products_of_larger_matrices(cupy):
    a, b = cupy.ones((65, 2), cupy.float32), cupy.arange(2, dtype=cupy.float32).reshape(2, 1)
    result = gemm_batched(a, cupy.broadcast_to(b, (70_000, 2, 1)))
    assert result.shape == (70_000, 65, 1) and (result == 1).all()


# ---- memory that runs out ----------------------------------------------------------------------------


class Failing:
    """An allocator that succeeds a given number of times, and then fails."""

    def __init__(self, cupy, granted):
        self.error, self.pool = cupy.cuda.memory.OutOfMemoryError, cupy.cuda.MemoryPool()
        self.granted, self.requests = granted, 0

    def __call__(self, size):
        self.requests += 1
        if self.requests > self.granted:
            raise self.error(size, 0)
        return self.pool.malloc(size)


def memory_cases():
    """Yield (name, product, shapes of a and b, dtypes of a, b, c and out, options, whether out is c)."""
    f2, f4, f8, i1, i4 = "f2", "f4", "f8", "i1", "i4"
    matrix, small, large = ((150, 90), (90, 140)), ((5, 8, 9), (5, 9, 7)), ((3, 70, 9), (3, 9, 70))
    for engine in ENGINES:
        options = {"engine": engine, "precision": "fp16"}
        yield engine, gemm, matrix, (f4, f4, f4, f4), options, False
        yield f"{engine} in place", gemm, matrix, (f4, f4, f4, f4), options, True
        yield f"{engine} direct", gemm, matrix, (f2, f2, f4, f2), options, False
    yield "fp32", gemm, matrix, (f2, f4, f4, f4), {"precision": "fp32"}, True
    yield "fp64", gemm, matrix, (f4, f8, f4, f8), {}, False
    yield "narrowed", gemm, matrix, (f8, f4, f8, f8), {"precision": "fp16"}, True
    yield "int8", gemm, matrix, (i1, i1, i4, i4), {}, True
    yield "int8 by cublas", gemm, matrix, (i1, i1, i4, i4), {"engine": "cublas"}, True
    for name, shapes in (("small", small), ("large", large)):
        yield f"{name} stack", gemm_batched, shapes, (f4, f4, f4, f4), {}, False
        yield f"{name} stack in place", gemm_batched, shapes, (f4, f4, f4, f4), {}, True
        yield f"{name} stack, direct", gemm_batched, shapes, (f2, f2, f4, f2), {}, False
        yield (
            f"{name} stack in fp32",
            gemm_batched,
            shapes,
            (f4, f4, f4, f4),
            {"precision": "fp32"},
            True,
        )
        yield (
            f"{name} stack, narrowed",
            gemm_batched,
            shapes,
            (f8, f4, f8, f8),
            {"precision": "fp16"},
            True,
        )


MEMORY = [pytest.param(*case[1:], id=case[0]) for case in memory_cases()]


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("product, shapes, dtypes, options, in_place", MEMORY)
def test_each_allocation_may_fail(product, shapes, dtypes, options, in_place, fresh, cupy):
    if options.get("engine") == "wgmma" and cupy.cuda.Device().compute_capability != "90":
        skip_on_other_chips("the engine is for compute capability 9.0")
    rng = np.random.default_rng(7)
    given = [rng.integers(-3, 4, s).astype(d) for s, d in zip(shapes, dtypes, strict=False)]
    shape = (*shapes[0][:-1], shapes[1][-1])
    given += [rng.integers(-3, 4, shape).astype(d) for d in dtypes[2:]]
    a, b, c, out = (cupy.asarray(x) for x in given)
    target = None if fresh else c if in_place else out
    alphas = itertools.count(1)  # a new one each time, so that no launch is repeated from memory

    def run(allocator=None):
        alpha = next(alphas)
        with cupy.cuda.using_allocator(allocator):
            found = product(a, b, c, alpha=alpha, beta=2, out=target, **options)
        return alpha, found.get()

    exact = (given[0].astype(float) @ given[1].astype(float)), given[2].astype(float)

    def check_run(alpha, found):
        assert np.array_equal(found, (alpha * exact[0] + 2 * exact[1]).astype(found.dtype))
        c[...] = cupy.asarray(given[2])

    check_run(*run())  # makes the allocations that only a first call needs
    counted = Failing(cupy, np.inf)
    check_run(*run(counted))
    assert counted.requests or not fresh
    out[...] = cupy.asarray(given[3])
    # `out` may hold the first results of a stack of larger matrices, unless it is c.
    exempt = product is gemm_batched and max(shape[1:]) > 64 and target is out
    for granted in range(counted.requests):
        with pytest.raises(tcsolve.DeviceMemoryError, match="unchanged"):
            run(Failing(cupy, granted))
        kept = zip((a, b, c) if exempt else (a, b, c, out), given, strict=False)
        assert all(np.array_equal(x.get(), y) for x, y in kept)
    check_run(*run())


def test_memory_that_is_kept_for_solves_is_given_up_for_a_product(hopper):
    for seed in range(3):  # a solve keeps memory for the next one of its size
        problem = matrices.generate("gauss", 600, seed=seed)
        tcsolve.solve(hopper.asarray(problem.a), hopper.asarray(problem.b), precision="fp16x3")
    a, requests = hopper.ones((200, 200), np.float32), []

    def fails_once(size):
        requests.append(size)
        return Failing(hopper, 0 if len(requests) == 1 else 1)(size)

    with hopper.cuda.using_allocator(fails_once):
        assert (gemm(a, a).get() == 200).all()
