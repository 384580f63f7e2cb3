"""Products: every argument, the bound, the scaling, and misuse."""

import itertools
import tracemalloc
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from bounds import wide
from hypothesis import given
from hypothesis import strategies as st
from products import operands, ratio
from storage import STORED
from tcsolve.kernels.arch import ARCHS
from tcsolve.kernels.batched_shapes import Batched, batched_room, batched_shape
from tcsolve.kernels.product_shapes import fastest_update, wmma_shape, wmma_tile

from tcsolve import InputError, gemm, gemm_batched, gemm_bound
from tcsolve._arithmetic.block_sums import multiply_add
from tcsolve._arithmetic.formats import FORMATS, UPDATES
from tcsolve._arithmetic.products import CHAIN, LEVELS, Product, choose_product, error_bound
from tcsolve._arithmetic.tensor_cores import UNITS
from tcsolve._gemm import checks

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(np.float16), BF16, np.dtype(np.float32), np.dtype(np.float64)]
TENSOR = ("fp16", "bf16", "tf32")
SIZES = [(1, 1, 1), (16, 16, 16), (7, 5, 3), (33, 65, 129), (2, 100, 1000), (70, 1, 17)]


# ---- what is computed ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.int8)], ids=str)
@pytest.mark.parametrize("m, n, k", SIZES)
def test_the_defaults_lose_nothing_that_the_operands_carry(dtype, m, n, k):
    a, b = operands(m, n, k, dtype)
    c = gemm(a, b)
    if dtype == np.int8:
        assert c.dtype == np.int32
        assert np.array_equal(c, a.astype(np.int64) @ b.astype(np.int64))
        return
    assert c.dtype == (np.float64 if dtype == np.float64 else np.float32)
    # k units for the sum, and some more for the split of FP32 operands.
    unit = 2.0**-53 if dtype == np.float64 else 2.0**-24
    assert ratio(c, a, b, (k + 12) * unit) <= 1


@pytest.mark.parametrize("transa, transb", list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.int8)], ids=str)
def test_transposes_are_those_of_the_operands(transa, transb, dtype):
    a, b = operands(9, 14, 21, dtype)
    stored_a = np.ascontiguousarray(a.T) if transa else a
    stored_b = np.ascontiguousarray(b.T) if transb else b
    c = gemm(stored_a, stored_b, transa=transa, transb=transb)
    assert np.array_equal(c, gemm(a, b))


@pytest.mark.parametrize("precision", TENSOR)
@pytest.mark.parametrize("refine", list(LEVELS))
def test_strides_do_not_show(precision, refine):
    a, b = operands(10, 12, 40, np.float32)
    expected = gemm(a, b, precision=precision, refine=refine)
    spread = np.zeros((20, 120), np.float32)
    spread[::2, ::3] = a
    backward = np.ascontiguousarray(b[::-1, ::-1])[::-1, ::-1]
    for x in (spread[::2, ::3], np.asfortranarray(a)):
        for y in (backward, np.asfortranarray(b)):
            assert np.array_equal(gemm(x, y, precision=precision, refine=refine), expected)


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.int8)], ids=str)
@pytest.mark.parametrize("m, n, k", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_empty_operands_give_zeros_or_nothing(dtype, m, n, k):
    a, b = operands(m, n, k, dtype)
    result = gemm(a, b)
    assert result.shape == (m, n)
    assert (result == 0).all()
    c = np.full((m, n), 3, result.dtype)
    assert (gemm(a, b, c, beta=2) == 6).all()


def test_alpha_and_beta():
    a, b = operands(8, 6, 5, np.float32)
    c = np.full((8, 6), 2, np.float32)
    product = gemm(a, b)
    assert np.array_equal(gemm(a, b, alpha=-2), -2 * product)
    assert np.array_equal(gemm(a, b, c, alpha=0.5, beta=3), np.float32(0.5) * product + 6)
    assert (gemm(a, b, c, alpha=0, beta=0.5) == 1).all()


def test_what_is_multiplied_by_zero_is_not_read():
    a, b = operands(4, 4, 4, np.float32)
    nan = np.full((4, 4), np.nan, np.float32)
    assert np.array_equal(gemm(a, b, nan, beta=0), gemm(a, b))
    assert (gemm(nan, b, np.ones((4, 4), np.float32), alpha=0, beta=1) == 1).all()


def test_integers_are_exact_with_alpha_and_beta():
    a, b = operands(20, 30, 1000, np.int8)
    c = np.arange(600, dtype=np.int32).reshape(20, 30)
    exact = 3 * (a.astype(np.int64) @ b.astype(np.int64)) - 7 * c
    assert np.array_equal(gemm(a, b, c, alpha=3, beta=-7), exact)
    assert np.array_equal(gemm(a, b, c, alpha=3.0, beta=-7.0), exact)


def test_integers_at_the_largest_k_are_exact():
    a = np.full((1, 2**17 - 1), -128, np.int8)
    assert gemm(a, a.T)[0, 0] == 2**14 * (2**17 - 1)
    assert gemm(a, a.T // -2)[0, 0] == -(2**13) * (2**17 - 1)


@pytest.mark.parametrize("stored", [np.float16, BF16, np.float32], ids=str)
def test_out_is_written_and_returned(stored):
    a, b = operands(6, 5, 8, np.float16)
    out = np.zeros((6, 10), stored)[:, ::2]
    assert gemm(a, b, out=out) is out
    assert np.array_equal(out, gemm(a, b).astype(stored))


def test_out_may_be_c():
    a, b = operands(6, 5, 8, np.float32)
    c = np.ones((6, 5), np.float32)
    expected = gemm(a, b, c, beta=1)
    assert gemm(a, b, c, beta=1, out=c) is c
    assert np.array_equal(c, expected)


def test_a_wider_c_is_added_before_the_result_is_rounded():
    a, b = (np.ones((1, 1), np.float16) for _ in range(2))
    c = np.full((1, 1), 2.0**-11 + 2.0**-20, np.float32)
    # The exact sum lies above the tie between two FP16 numbers.  If c were rounded to FP16 first, the tie
    # would be rounded to even, which is below.
    out = np.zeros((1, 1), np.float16)
    assert gemm(a, b, c, beta=1, out=out)[0, 0] == 1 + 2.0**-10


def test_mixed_dtypes_meet_in_the_wider_one():
    a, b = operands(5, 6, 7, np.float16)
    assert gemm(a, b.astype(np.float32)).dtype == np.float32
    assert gemm(a.astype(float), b).dtype == np.float64
    mixed = gemm(a, b.astype(BF16))
    assert mixed.dtype == np.float32
    exact = wide(a) @ wide(b.astype(BF16))
    assert np.abs(mixed - exact).max() < 1e-6


@pytest.mark.parametrize("precision", TENSOR)
def test_rounding_is_that_of_the_format(precision):
    # k = 1 and a = 1, so the result is the rounded operand.
    x = np.random.default_rng(1).uniform(1, 2, (1, 500)).astype(np.float32)
    t = {"fp16": 11, "bf16": 8, "tf32": 11}[precision]
    rounded = np.rint(x.astype(float) * 2 ** (t - 1)) / 2 ** (t - 1)
    assert np.array_equal(
        gemm(np.eye(1, dtype=np.float32), x, precision=precision, refine="none"), rounded
    )


@pytest.mark.parametrize("precision", TENSOR)
def test_each_level_recovers_its_operand(precision):
    rng = np.random.default_rng(2)
    # One operand is exact in every format, so only the other one's rounding counts.
    fine = rng.standard_normal((40, 64)).astype(np.float32)
    coarse = rng.integers(-8, 9, (64, 30)).astype(np.float32)
    exact = fine.astype(float) @ coarse

    def error(a, b, refine):
        c = gemm(a, b, precision=precision, refine=refine)
        return np.abs(c - (exact if a is fine else exact.T)).max()

    u = Product(precision, "none", "float32").format.u
    for a, b, its, others in ((fine, coarse, "a", "b"), (coarse.T, fine.T, "b", "a")):
        assert error(a, b, others) == pytest.approx(error(a, b, "none"), rel=0.1)
        assert error(a, b, its) < 50 * max(u, 2.0**-13) * error(a, b, "none")
        assert error(a, b, "ab") <= 2 * error(a, b, its)


def test_all_levels_agree_on_operands_exact_in_the_format():
    a, b = operands(9, 9, 30, np.float16)
    expected = gemm(a, b, refine="none")
    for refine in LEVELS:
        assert np.array_equal(gemm(a, b, refine=refine), expected)
        assert gemm_bound(a, b, refine=refine).products == 1


def test_the_same_bits_every_time():
    a, b = operands(60, 70, 300, np.float32)
    first = gemm(a, b)
    assert all(np.array_equal(gemm(a, b), first) for _ in range(5))


# ---- range ------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", TENSOR)
@pytest.mark.parametrize(
    "scale_a, scale_b", [(1e30, 1e-30), (1e8, 1e8), (1e-7, 1e-9), (1e38, 1e-44)]
)
def test_scales_beyond_the_format_do_not_matter(precision, scale_a, scale_b):
    a, b = operands(20, 30, 50, np.float32)
    a, b = (a * np.float32(scale_a)).astype(np.float32), (b * np.float32(scale_b))
    bound = gemm_bound(a, b, precision=precision).bound
    # The smallest subnormal numbers have lost digits already in the operands.
    assert ratio(gemm(a, b, precision=precision), a, b, bound) <= 1


def test_rows_and_columns_have_scales_of_their_own():
    a, b = operands(40, 40, 64, np.float32)
    rows = 2.0 ** np.linspace(-60, 60, 40).round()
    graded_a = (a * rows[:, None]).astype(np.float32)
    graded_b = (b * rows[::-1]).astype(np.float32)
    expected = gemm(a, b).astype(float) * rows[:, None] * rows[::-1]
    assert np.array_equal(gemm(graded_a, graded_b), expected)


def test_fp64_operands_keep_their_range_in_any_precision():
    a, b = operands(10, 12, 20, np.float64)
    c = gemm(a * 1e300, b * 1e-305, precision="fp16")
    assert c.dtype == np.float64
    bound = gemm_bound(a, b, precision="fp16").bound
    assert ratio(c * 1e5, a, b, bound * 1.01) <= 1


@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16"])
@pytest.mark.parametrize("large, small", [(1.0, 1e-300), (1e200, 1e100), (-1.0, -5e-324)])
def test_entries_far_below_their_row_are_not_zero_beside_an_inf(precision, large, small):
    a, b = np.array([[large, small]]), np.array([[1.0], [np.inf]])

    assert gemm(a, b, precision=precision) == gemm(b.T, a.T, precision=precision) == small * np.inf


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_entries_far_below_their_row_count_as_zero(precision):
    a = np.array([[1, 1e-300]])

    assert gemm(a, np.array([[0], [1.0]]), precision=precision) == 0
    assert gemm(a, np.array([[1], [1.0]]), precision=precision) == 1


def test_a_result_that_overflows_16_bits_warns_of_nothing():
    a, out = np.full((2, 2), 1e3, np.float32), np.empty((2, 2), np.float16)
    for beta in (0, 1):
        assert np.isposinf(gemm(a, a, np.zeros((2, 2), np.float32), beta=beta, out=out)).all()


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32, np.float64], ids=str)
def test_nan_and_inf_go_where_ieee_arithmetic_sends_them(dtype):
    a, b = operands(30, 40, 20, dtype, low=0.25, high=1)
    a[3, 4], a[7, 1], b[5, 6], b[8, 30] = np.nan, np.inf, np.inf, -np.inf
    a[9, 2], b[2, :3] = np.inf, 0
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float32) @ b.astype(np.float32)
    c = gemm(a, b)
    assert np.array_equal(np.isnan(c), np.isnan(expected))
    infinite = np.isinf(expected)
    assert infinite.any() and np.isnan(expected).any()
    assert np.array_equal(c[infinite], expected[infinite])
    finite = np.isfinite(expected)
    assert np.allclose(c[finite].astype(float), expected[finite].astype(float), rtol=1e-2)


# ---- the bound ----------------------------------------------------------------------------------


def families(rng, m, n, k):
    """Yield (name, a, b) of many kinds, the worst for rounding and for sums among them."""
    normal = rng.standard_normal
    yield "normal", normal((m, k)), normal((k, n))
    yield "uniform", rng.random((m, k)), rng.random((k, n))
    yield "wide", normal((m, k)) * 10.0 ** rng.uniform(-8, 8, (m, k)), normal((k, n))
    yield "graded", normal((m, k)) * 2.0 ** -np.arange(k), normal((k, n))
    yield "sparse", normal((m, k)) * (rng.random((m, k)) < 0.02), normal((k, n))
    yield "large", 16 * rng.uniform(-1, 1, (m, k)), 16 * rng.uniform(-1, 1, (k, n))
    for t in (8, 11):  # just above half a unit of the format: all roundings go one way
        worst = 1 + 2.0**-t * (1 - 2.0**-8)
        yield f"worst {t}", np.full((m, k), worst), np.full((k, n), worst)
    yield "cancelling", np.tile([[1.0, -1.0]], (m, k // 2 + 1))[:, :k], 1 + 1e-3 * normal((k, n))


@pytest.mark.parametrize("precision", TENSOR)
@pytest.mark.parametrize("refine", list(LEVELS))
@pytest.mark.parametrize("k", [1, 5, 64, 1000, 5000])
def test_the_bound_holds_for_every_family(precision, refine, k):
    rng = np.random.default_rng(k)
    tried = 0
    for name, a, b in families(rng, 20, 24, k):
        a, b = a.astype(np.float32), b.astype(np.float32)
        bound = gemm_bound(a, b, precision=precision, refine=refine)
        c = gemm(a, b, precision=precision, refine=refine)
        assert ratio(c, a, b, bound.bound) <= 1, name
        assert (bound.precision, bound.refine) == (precision, refine)
        tried += 1
    assert tried >= 9


@pytest.mark.parametrize("precision, t", [("fp16", 11), ("bf16", 8), ("tf32", 11)])
@pytest.mark.parametrize("refine, least", [("none", 0.5), ("a", 0.5), ("b", 0.5)])
def test_the_bound_is_at_most_twice_the_error_where_rounding_counts(precision, t, refine, least):
    pairs = {name: pair for name, *pair in families(np.random.default_rng(0), 4, 4, 64)}
    a, b = (x.astype(np.float32) for x in pairs[f"worst {t}"])
    bound = gemm_bound(a, b, precision=precision, refine=refine).bound
    assert ratio(gemm(a, b, precision=precision, refine=refine), a, b, bound) >= least


def test_the_bound_of_refined_products_is_that_of_their_sums():
    # Three times the square of 2**-11 for the rounding, 80 units of 2**-23 for a chain of 64 terms on the
    # tensor cores, and k / 32 units for the FP32 sums of the chains.
    for k, most in ((64, 1.2e-5), (4096, 3e-5), (16384, 8e-5)):
        a = np.zeros((1, k), np.float32)
        assert 3 * 2.0**-22 < gemm_bound(a, a.T, precision="fp16").bound < most
    assert CHAIN == 64


@pytest.mark.parametrize("k", [1, 10, 1000])
def test_bounds_are_those_of_their_derivation(k):
    """For truncated sums of exact products, and for FP32 sums of operands with and without rounding."""
    u, ones = 2.0**-24, np.ones((1, k))
    exact = gemm_bound(ones.astype(np.float16), ones.T.astype(np.float16)).bound
    single, rounded = (
        gemm_bound(x, x.T, precision="fp32").bound for x in (ones.astype(np.float32), ones)
    )

    assert (1.25 * k + 1) * 2 * u <= exact <= 1.01 * (1.25 * k + 1) * 2 * u
    assert single == k * u
    assert rounded == (k + 2) * u


def test_an_rtol_that_is_the_bound_of_a_product_is_met_by_it():
    a = np.ones((4, 100), np.float32)
    for level in ("none", "a", "ab"):
        bound = gemm_bound(a, a.T, precision="fp16", refine=level)
        assert gemm_bound(a, a.T, precision="fp16", rtol=bound.bound).refine == level


def test_the_bound_knows_that_sums_of_tf32_end_after_8():
    a = np.zeros((1, 16384), np.float32)
    fp16, tf32 = (gemm_bound(a, a.T, precision=low).bound for low in ("fp16", "tf32"))
    more = 16384 * (1 / 8 - 1 / 16) * 2.0**-24
    assert 0.9 * more < tf32 - fp16 < 1.1 * more


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("t_in, low", [("fp16", "fp16"), ("float", "fp16"), ("float", "tf32")])
def test_a_block_of_the_wmma_engine_fits(t_in, low, arch):
    small, square, large = ((129, 257, 4096), (2048, 2047, 64), (8192, 8192, 4096))
    tiles = [wmma_tile(*size, t_in, arch, 132) for size in (small, square, large)]
    wide = t_in != "float" and arch in ("sm_80", "sm_90a", "sm_100a")
    assert tiles == ([1, 1, 1] if t_in == "float" else [0, 1, 2 if wide else 1])

    blocks, threads, shared = wmma_shape(129, 257, tiles[0], t_in, low, arch)
    assert blocks == (2 * 3 if t_in == "float" else 3 * 5)
    assert threads in (128, 256) and shared <= (64 if arch == "sm_75" else 99) << 10
    blocks, threads, shared = wmma_shape(8192, 8192, tiles[2], t_in, low, arch)
    assert blocks == 64 * (32 if wide else 64)
    if wide:
        assert (threads, shared) == (256, (144 if arch == "sm_80" else 192) << 10)


@pytest.mark.parametrize(
    "n, tile",
    [(512, 0), (1024, 0), (1280, 1), (1408, 1), (1536, 0), (2048, 1), (2304, 0), (3072, 1)],
)
def test_tiles_of_the_wmma_engine_are_small_where_multiprocessors_would_wait(n, tile):
    assert wmma_tile(n, n, n, "fp16", "sm_90a", 132) == tile


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    "size, t_in, kind, blocks",
    [(64, "fp16", 1, 6), (64, "bf16", 0, 5), (63, "fp16", 1, 0), (64, "float", 0, 0)],
)
def test_blocks_of_the_largest_batched_products_are_few_at_a_time(size, t_in, kind, blocks, arch):
    low, level = ("fp16", 3) if t_in == "float" else (t_in, 0)
    batched = Batched(size, size, size, t_in, low, level, 0, 0, 1, 1, kind, 0, 1)
    if (shape := batched_shape(batched, arch)) is None:
        assert arch == "sm_75" and t_in == "float"
        return
    room = batched_room(batched, shape, arch)
    if not (blocks and arch in ("sm_90a", "sm_100a")):
        assert room == shape.shared_bytes
        return
    assert room % 16 == 0 and room > shape.shared_bytes
    assert blocks * (room + 1024) <= 228 << 10 < (blocks + 1) * (room + 1024)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_bound_of_native_products_holds(dtype):
    precision = "fp32" if dtype == np.float32 else "fp64"
    for name, a, b in families(np.random.default_rng(1), 10, 12, 200):
        a, b = a.astype(dtype), b.astype(dtype)
        bound = gemm_bound(a, b, precision=precision).bound
        assert ratio(gemm(a, b, precision=precision), a, b, bound) <= 1, name


def test_fp32_keeps_the_range_and_the_type_of_fp64_operands():
    small, large = np.full((1, 1), 1e-50), np.full((1, 1), 1e50)

    assert gemm(small, large, precision="fp32")[0, 0] == pytest.approx(1, rel=1e-6)
    assert gemm(small, small, precision="fp32").dtype == np.float64
    found = gemm(small, large, small, beta=1, precision="fp32", out=large.copy())
    assert found[0, 0] == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("alpha", [0, 1, -3, 2**31, 2**40 + 5, -(2**70) + 7])
@pytest.mark.parametrize("beta", [1, 2**31, 2**32, 2**64 + 3])
def test_integers_are_exact_modulo_two_to_the_32_for_any_scalars(alpha, beta):
    a, b = (np.array(x, np.int8) for x in ([[7, -5]], [[3], [100]]))
    c = np.array([[123456789]], np.int32)

    found = gemm(a, b, c, alpha=alpha, beta=beta)

    exact = (alpha * (7 * 3 - 5 * 100) + beta * 123456789 + 2**31) % 2**32 - 2**31
    assert found.dtype == np.int32 and int(found[0, 0]) == exact


def test_a_scaled_addend_that_overflows_warns_of_nothing():
    ones = np.ones((2, 2), np.float32)
    assert np.isinf(gemm(ones, ones, ones, alpha=0, beta=1e300)).all()


@pytest.mark.parametrize(
    "a, b, options, message",
    [
        (np.zeros((2, 3)), np.zeros((5, 7)), {}, "can be multiplied"),
        (np.zeros(3), np.zeros((3, 3)), {}, "can be multiplied"),
        (np.zeros(()), np.zeros(()), {}, "can be multiplied"),
        (np.zeros((3, 3)), np.zeros((3, 3)), {"engine": "foo"}, "engine is 'foo'"),
    ],
)
def test_a_bound_is_given_for_products_alone(a, b, options, message):
    with pytest.raises(InputError, match=message):
        gemm_bound(a, b, **options)


def test_the_bound_of_fp64_operands_in_less_holds():
    for precision in (*TENSOR, "fp32"):
        for name, a, b in families(np.random.default_rng(2), 10, 12, 100):
            bound = gemm_bound(a, b, precision=precision).bound
            assert ratio(gemm(a, b, precision=precision), a, b, bound) <= 1, (precision, name)


def test_integers_have_no_error():
    a = np.zeros((2, 3), np.int8)
    assert gemm_bound(a, a.T) == (0.0, "int8", "none", 1)


def test_rtol_picks_the_cheapest_level_that_meets_it():
    a, b = operands(8, 8, 100, np.float32)
    found = {}
    for exponent in range(-5, 0):
        bound = gemm_bound(a, b, precision="fp16", rtol=1.2 * 10.0**exponent)
        assert bound.bound <= 1.2 * 10.0**exponent
        found[exponent] = bound.refine
        result = gemm(a, b, precision="fp16", rtol=1.2 * 10.0**exponent)
        assert np.array_equal(result, gemm(a, b, refine=bound.refine))
        cheaper = [r for r, terms in LEVELS.items() if len(terms) < bound.products]
        assert all(
            gemm_bound(a, b, refine=refine).bound > 1.2 * 10.0**exponent for refine in cheaper
        )
    assert found[-1] == "none" and found[-5] == "ab"
    assert gemm_bound(a, b, precision="fp16", rtol=6e-4).refine == "a"


@pytest.mark.parametrize("stored", [np.float32, np.float16, BF16], ids=str)
def test_fp32_products_on_the_host_are_those_of_blas(stored):
    a, b = operands(30, 20, 700, np.float32)
    other = b.astype(stored)
    expected = a @ other.astype(np.float32)
    assert gemm_bound(a, other) == (700 * 2.0**-24, "fp32", "none", 1)
    assert np.array_equal(gemm(a, other), expected)
    out = np.empty((30, 20), np.float32)
    assert gemm(a, other, out=out) is out and np.array_equal(out, expected)
    assert np.array_equal(gemm(a, other, alpha=2, out=out), 2 * expected)
    turned = np.empty((20, 30), np.float32).T
    assert ratio(gemm(a, other, out=turned), a, other, 700 * 2.0**-24) <= 1
    stack = np.stack([a, -a])
    assert np.array_equal(gemm_batched(stack, other)[1], -expected)
    # A named arithmetic is emulated.
    for named in ({"precision": "fp16"}, {"refine": "ab"}, {"refine": "none"}):
        assert not np.array_equal(gemm(a, other, **named), expected)
        assert gemm_bound(a, other, **named).precision == "fp16"


def test_an_rtol_on_the_host_takes_blas_if_its_bound_is_small_enough():
    a, b = operands(8, 8, 1000, np.float32)
    plain, emulated = gemm_bound(a, b), gemm_bound(a, b, precision="fp16")
    assert emulated.bound < plain.bound  # the sums are shorter
    assert gemm_bound(a, b, rtol=plain.bound) == plain
    assert gemm_bound(a, b, rtol=emulated.bound) == emulated
    assert np.array_equal(gemm(a, b, rtol=emulated.bound), gemm(a, b, precision="fp16"))
    for wrong in (-1, True, "small", [1e-3]):
        with pytest.raises(InputError, match="rtol is"):
            gemm(a, b, rtol=wrong)


@pytest.mark.parametrize("name", ["precision", "refine", "engine"])
def test_an_option_that_is_not_hashable_is_refused_by_name(name):
    a = np.ones((2, 2), np.float32)
    with pytest.raises(InputError, match=rf"{name} is \['fp16'\]"):
        gemm(a, a, **{name: ["fp16"]})


@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32"])
@pytest.mark.parametrize("refine", list(LEVELS))
def test_scales_are_undone_exactly(refine, precision):
    """A power of two for each row and column changes no bit, up to the ends of the range."""
    a, b = operands(12, 10, 130, np.float32)
    for spread in (20, 45, 70):
        rows = np.round(np.linspace(-spread, spread, 12))
        columns = np.round(np.linspace(spread // 2, -spread // 2, 10))
        x, y = np.ldexp(a, rows.astype(int)[:, None]), np.ldexp(b, columns.astype(int))
        expected = np.ldexp(
            gemm(a, b, precision=precision, refine=refine),
            (rows[:, None] + columns).astype(int),
        )
        assert np.array_equal(gemm(x, y, precision=precision, refine=refine), expected)


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_a_sum_of_small_products_keeps_its_bits_between_two_scales(precision):
    # If only the scale of a were undone first, the sum would be subnormal.
    x = 1 + 2.0**-7
    a = np.array([[1, 0, x * 2.0**-40]]) * 2.0**-45
    b = np.array([[0], [1], [x * 2.0**-70]]) * 2.0**45
    c = gemm(a.astype("f"), b.astype("f"), precision=precision, refine="none")
    assert c == x * x * 2.0**-110


def test_an_rtol_out_of_reach_is_refused_with_the_best_there_is():
    a, b = operands(8, 8, 100, np.float32)
    with pytest.raises(InputError, match=r"rtol is 1e-09.*1.0e-05 at best.*precision='fp64'"):
        gemm(a, b, rtol=1e-9)
    assert gemm_bound(a.astype(float), b, rtol=1e-9).precision == "fp64"


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 200),
    st.sampled_from(TENSOR),
    st.sampled_from(list(LEVELS)),
    st.integers(0, 2**32 - 1),
    st.floats(-30, 30),
)
def test_the_bound_holds_for_any_size_and_scale(m, n, k, precision, refine, seed, scale):
    a, b = operands(m, n, k, np.float32, seed)
    a = (a * np.float32(10.0**scale)).astype(np.float32)
    bound = gemm_bound(a, b, precision=precision, refine=refine).bound
    assert ratio(gemm(a, b, precision=precision, refine=refine), a, b, bound) <= 1


@given(st.integers(1, 2**22), st.sampled_from(TENSOR), st.sampled_from(["auto", "cublas"]))
def test_more_products_never_make_the_bound_worse(k, precision, engine):
    by_terms = {}
    for refine, terms in LEVELS.items():
        bound = error_bound(Product(precision, refine, "float32"), k, engine)
        by_terms.setdefault(len(terms), set()).add(bound)
    best = [min(by_terms[count]) for count in sorted(by_terms)]
    # cuBLAS adds one product after the other, and each may add a rounding error of one unit.
    assert all(y <= x + 2.0**-22 for x, y in itertools.pairwise(best))


def test_counting_ones_is_exact_up_to_two_to_the_24():
    for count in (2**24 - 1, 2**24):
        ones = np.ones((1, count), np.float16)
        assert gemm(ones, ones, transb=True)[0, 0] == count


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 50), st.integers(0, 2**32 - 1))
def test_products_of_small_integers_are_exact_in_fp16(m, n, k, seed):
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-2048, 2049, s).astype(np.float16) for s in ((m, k), (k, n)))
    exact = a.astype(np.int64) @ b.astype(np.int64)
    if np.abs(a.astype(np.int64)).sum(initial=0) * 2048 < 2**24:
        assert np.array_equal(gemm(a, b), exact)
    assert np.array_equal(gemm(a[:, :4], b[:4]), a[:, :4].astype(np.int64) @ b[:4].astype(np.int64))


# ---- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.int8)], ids=str)
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (8, 8, 8), (5, 7, 3), (64, 64, 64), (17, 1, 33)])
@pytest.mark.parametrize("batch", [0, 1, 5])
def test_a_batch_is_its_products(dtype, m, n, k, batch):
    a, b = operands(m * batch, n * batch, k, dtype)
    a, b = a.reshape(batch, m, k), b.reshape(k, batch, n).swapaxes(0, 1)
    c = gemm_batched(a, b)
    assert c.shape == (batch, m, n)
    for x, y, z in zip(a, b, c, strict=True):
        bound = gemm_bound(x, y).bound + 2.0**-23
        assert ratio(z, x, y, bound) <= 1 if dtype != np.int8 else np.array_equal(z, gemm(x, y))


@pytest.mark.parametrize("transa, transb", list(itertools.product((False, True), repeat=2)))
def test_a_batch_has_transposes(transa, transb):
    a, b = operands(4 * 5, 6 * 5, 7, np.float32)
    a, b = a.reshape(5, 4, 7), b.reshape(7, 5, 6).swapaxes(0, 1)
    turned = [x.swapaxes(1, 2) if t else x for x, t in ((a, transa), (b, transb))]
    assert np.array_equal(gemm_batched(*turned, transa=transa, transb=transb), gemm_batched(a, b))


def test_one_matrix_serves_a_whole_batch():
    a, b = operands(5 * 4, 6, 7, np.float32)
    a = a.reshape(5, 4, 7)
    expected = gemm_batched(a, np.stack([b] * 5))
    for one in (b, b[None], np.broadcast_to(b, (5, 7, 6))):
        assert np.array_equal(gemm_batched(a, one), expected)
    assert gemm_batched(a[0], b).shape == (1, 4, 6)


def test_one_c_is_added_to_a_whole_batch():
    a, b = operands(5 * 4, 6, 7, np.float32)
    a, c = a.reshape(5, 4, 7), np.ones((4, 6), np.float32)
    assert np.array_equal(gemm_batched(a, b, c, beta=2), gemm_batched(a, b) + 2)


# ---- misuse --------------------------------------------------------------------------------------

ONES = np.ones((3, 3), np.float32)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"b": np.ones((4, 3), np.float32)}, r"op\(a\) has shape \(3, 3\).*transa"),
        ({"a": np.ones(3, np.float32)}, r"a has shape \(3,\).*gemm_batched"),
        ({"a": ONES.astype(np.complex64)}, "a has dtype complex64.*float64"),
        ({"b": ONES.astype(np.int32)}, "b has dtype int32"),
        ({"a": ONES.astype(np.int8)}, "int8 is multiplied only by int8"),
        ({"precision": "fp8"}, "precision is 'fp8'; needs"),
        ({"precision": "int8"}, "precision is 'int8' for operands of dtype float32"),
        ({"refine": "c"}, "refine is 'c'; needs one of 'none', 'a'"),
        ({"precision": "fp16", "a": ONES.astype(float), "b": ONES, "refine": "x"}, "refine is"),
        ({"precision": "fp32", "a": ONES.astype(float), "refine": "ab"}, "'fp32', which is not"),
        ({"engine": "cutlass"}, "engine is 'cutlass'; needs"),
        ({"engine": "wmma"}, "engine is 'wmma', which runs on a GPU"),
        ({"beta": 1}, "there is no c"),
        ({"beta": 1, "c": np.ones((2, 3), np.float32)}, r"c has shape \(2, 3\).*\(3, 3\)"),
        ({"beta": 1, "c": np.ones((3, 3))}, r"c has dtype float64.*astype\('float32'\)"),
        ({"alpha": "1"}, "alpha is '1'; a real number"),
        ({"beta": 1j, "c": ONES}, "beta is 1j; a real number"),
        ({"out": np.ones((2, 3), np.float32)}, r"out has shape \(2, 3\)"),
        ({"out": np.ones((3, 3), np.int32)}, "out has dtype int32.*float32 or float16"),
        ({"rtol": 1e-3, "refine": "a"}, "give one of them"),
        ({"rtol": 0}, "needs a positive number"),
        ({"rtol": float("nan")}, "needs a positive number"),
        ({"rtol": "x"}, "rtol is 'x', needs a positive number"),
        ({"precision": ["fp16"]}, r"precision is \['fp16'\]"),
        ({"refine": ["ab"]}, r"refine is \['ab'\]"),
        ({"transa": "N"}, "transa is 'N', needs True or False"),
        ({"transb": "T"}, "transb is 'T', needs True or False"),
        ({"alpha": 10**400}, "alpha or beta is beyond the range of FP64"),
        ({"alpha": Fraction(10**400)}, "alpha or beta is beyond the range of FP64"),
        ({"out": [[0.0]]}, "out is a builtins.list; a numpy.ndarray"),
        ({"a": ONES * 1j}, "a has dtype complex.*multiply real and imaginary parts"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(arguments, message):
    arguments = {"a": ONES, "b": ONES} | arguments
    with pytest.raises(InputError, match=message):
        gemm(arguments.pop("a"), arguments.pop("b"), arguments.pop("c", None), **arguments)


@pytest.mark.parametrize("name, value", [("alpha", 0.5), ("beta", float("inf")), ("alpha", 1.5)])
def test_integers_take_integer_scalars(name, value):
    a = np.ones((2, 2), np.int8)
    with pytest.raises(InputError, match=f"{name} is {value}; products of int8 are integers"):
        gemm(a, a, np.ones((2, 2), np.int32), **{name: value})


def test_sums_that_could_overflow_int32_are_refused():
    a = np.ones((1, 2**17), np.int8)
    with pytest.raises(InputError, match="k is 131072.*131071.*slices"):
        gemm(a, a.T)


def test_out_may_not_overlap_what_is_read():
    memory = np.ones((8, 8), np.float32)
    a, c = memory[:4, :4], memory[2:6, 4:]
    with pytest.raises(InputError, match="out overlaps a"):
        gemm(a, ONES[:1, :1] * np.ones((4, 4), np.float32), out=memory[:4, :4])
    with pytest.raises(InputError, match="out overlaps c without being c"):
        gemm(
            np.ones((4, 4), np.float32), np.ones((4, 4), np.float32), c, beta=1, out=memory[:4, 4:]
        )
    # Two arrays that lie next to each other in the same rows do not overlap.
    gemm(a, np.ones((4, 4), np.float32), out=memory[:4, 4:])
    half = np.ones((4, 8), np.float16)
    with pytest.raises(InputError, match="out overlaps b"):  # b is half of the memory of out
        gemm(np.ones((4, 4), np.float16), half[:, 1::2], out=half.view(np.float32))


def test_overlap_is_found_without_a_look_at_the_entries():
    # The array pretends to have 2**20 x 2**20 entries, but has two words of memory.
    memory, shape, strides = np.zeros(2, np.float32), (1 << 20, 1 << 20), (1 << 23, 8)
    even, odd = (np.lib.stride_tricks.as_strided(memory[i:], shape, strides) for i in (0, 1))
    assert checks.overlap(even, even.T) and not checks.overlap(even, odd)


def test_out_must_be_writeable():
    out = np.zeros((3, 3), np.float32)
    out.flags.writeable = False
    with pytest.raises(InputError, match="read-only"):
        gemm(ONES, ONES, out=out)


@pytest.mark.parametrize(
    "dtype, precision", [("f2", None), ("f4", None), ("i1", None), ("f8", "fp16")]
)
@pytest.mark.parametrize("of_two", [False, True])
def test_a_matrix_in_all_products_is_not_repeated_in_memory(dtype, precision, of_two):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((100, 100), (400, 100, 1)))
    expected = np.matmul(a.astype(float), b.astype(float))
    a = a if of_two else a[None]

    tracemalloc.start()
    try:
        found = gemm_batched(a, b, precision=precision)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert most < 100 * 100 * 400  # one byte for each entry of the repeated matrices
    np.testing.assert_allclose(found.astype(float), expected, rtol=1e-6)


def test_batches_must_match():
    a, b = np.ones((2, 3, 3), np.float32), np.ones((5, 3, 3), np.float32)
    with pytest.raises(InputError, match=r"\(2, 3, 3\).*\(5, 3, 3\).*equal, or 1"):
        gemm_batched(a, b)
    with pytest.raises(InputError, match=r"a has shape \(3,\).*reshape"):
        gemm_batched(np.ones(3, np.float32), b)
    with pytest.raises(InputError, match="supports only engine='auto'"):
        gemm_batched(a, a, engine="wmma")


# ---- emulated tensor cores ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fp16@v100", "fp16@h200", "bf16@a100"])
def test_operands_in_the_format_are_added_as_the_unit_does(name):
    low, unit = name.split("@")
    a, b = operands(20, 30, 100, BF16 if low == "bf16" else np.dtype(np.float16))
    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
    expected = multiply_add(wide_a, wide_b, FORMATS[low], UNITS[unit].sums[low])

    assert np.array_equal(gemm(a, b, precision=name), expected)
    assert np.array_equal(gemm_batched(np.stack([a, -a]), b, precision=name)[1], -expected)
    c = np.ones((20, 30), np.float32)
    assert np.array_equal(gemm(a, b, c, alpha=0.5, beta=2, precision=name), 0.5 * expected + 2)


@pytest.mark.parametrize("name", ["fp16@h200", "bf16@h200", "tf32@h200", "tf32@a100"])
@pytest.mark.parametrize("refine", list(LEVELS))
def test_the_bound_holds_for_emulated_sums(name, refine):
    a, b = operands(40, 50, 300, np.dtype(np.float32))
    bound = gemm_bound(a, b, precision=name, refine=refine)

    c = gemm(a, b, precision=name, refine=refine)

    assert bound.precision == name
    assert ratio(c, a, b, bound.bound) <= 1
    assert not np.array_equal(c, gemm(a, b, precision=name[:4], refine=refine))


@pytest.mark.parametrize(
    "name", ["fp16@t800", "bf16@v100", "fp16@each", "fp16x3@h200", "int8@h200"]
)
def test_a_product_that_no_unit_has_is_refused_with_the_units(name):
    a = np.ones((2, 2), np.float32)
    with pytest.raises(InputError, match=f"precision is '{name}'.*GPUs are v100, t4, a100"):
        gemm(a, a, precision=name)


def test_an_emulated_unit_has_no_engines():
    a = np.ones((2, 2), np.float32)
    with pytest.raises(InputError, match="engine is 'wmma' with the emulated.*'h200'"):
        gemm(a, a, precision="fp16@h200", engine="wmma")


def test_a_product_knows_what_it_is_made_of():
    product = choose_product("float32", 10)
    assert (product.precision, product.refine) == ("fp16", "ab")
    assert product.splits == (True, True) and not product.direct and not product.exact
    assert Product("fp16", "a", "float32").swapped().refine == "b"
    assert Product("fp16", "ab", "float32").swapped().refine == "ab"
    assert choose_product("float16", 10).direct
    assert choose_product("float16", 10, "tf32").exact


@pytest.mark.parametrize(
    "name, char, m, k, arch, engine",
    [
        ("fp16x3", "f", 4096, 512, "sm_90a", "wgmma"),
        ("fp16x3", "f", 128, 64, "sm_90a", "wgmma"),
        ("fp16x3", "f", 127, 512, "sm_90a", "cublas"),
        ("fp16x3", "f", 4096, 63, "sm_90a", "cublas"),
        ("fp16x3", "F", 4096, 512, "sm_90a", "cublas"),
        ("fp16x3", "f", 4096, 512, "sm_80", "cublas"),
        ("fp16x3", "f", 4096, 512, "sm_100a", "cublas"),
        ("fp16", "f", 4096, 512, "sm_90a", "wgmma"),
        ("fp16", "f", 4096, 512, "sm_89", "cublas"),
        ("bf16", "f", 4096, 512, "sm_90a", "wgmma"),
        ("tf32", "f", 4096, 512, "sm_90a", "cublas"),
    ],
)
def test_updates_of_16_bit_operands_are_ours_on_hopper(name, char, m, k, arch, engine):
    assert fastest_update(UPDATES[name], char, m, k, arch) == engine


# ---- subnormal numbers, and numbers next to an Inf ----------------------------------------------


def put(xp, x):
    """Return a host array in the library xp."""
    if xp is np:
        return x
    bits = x.view(np.uint16) if x.dtype == BF16 else x
    return xp.asarray(bits).view(x.dtype)


def fetched(x):
    """Return an array of either library on the host."""
    if isinstance(x, np.ndarray):
        return x
    return x.view(np.uint16).get().view(BF16) if x.dtype == BF16 else x.get()


def fractions(x):
    return [[Fraction(float(entry)) for entry in row] for row in x]


def exact_ratio(c, a, b, bound, least=0.0):
    """Return the largest error of c = a b over the bound, in rational arithmetic.

    A subnormal result may have a further error of the smallest subnormal number for each product.  In the
    norms, entries other than zero count as at least `least`.
    """
    if not np.isfinite(c).all():
        return np.inf
    info, worst = np.finfo(c.dtype), Fraction(0)
    tiny, unit = Fraction(float(info.tiny)), Fraction(float(info.smallest_subnormal))
    rows, columns = fractions(a), fractions(b.T)
    sizes = [
        [sum(max(abs(x), Fraction(least)) ** 2 if x else 0 for x in line) for line in lines]
        for lines in (rows, columns)
    ]
    for i, j in np.ndindex(*c.shape):
        exact = sum(x * y for x, y in zip(rows[i], columns[j], strict=True))
        error = abs(Fraction(float(c[i, j])) - exact)
        if abs(exact) < tiny:
            error = max(Fraction(0), error - len(b) * unit)
        if error:
            size = sizes[0][i] * sizes[1][j]
            worst = max(worst, error**2 / (size * Fraction(bound) ** 2)) if size else np.inf
    return float(worst) ** 0.5


def subnormal_families(seed=0, m=6, n=5, k=24):
    """Yield (name, a, b) of float32 operands whose products are normal numbers, or nearly all of them."""
    rng = np.random.default_rng(seed)
    normal, tiny = rng.standard_normal, np.finfo(np.float32).tiny
    spread = 10.0 ** rng.uniform(-6, 6, (k, n))
    yield "all below", normal((m, k)) * 1e-39, normal((k, n)) * 1e20
    yield "around", tiny * 2.0 ** rng.integers(-20, 20, (m, k)), normal((k, n)) * 1e6
    yield "a few bits", rng.integers(-9, 10, (m, k)) * 2.0**-149, normal((k, n)) * spread * 2.0**100
    rows = np.where(np.arange(m) % 2, 2.0**-135, 1.0)[:, None]
    yield "some rows", normal((m, k)) * rows, normal((k, n)) * spread * 2.0**60
    entries = np.where(rng.random((m, k)) < 0.5, 1e-42, 1e30)
    yield "some entries", normal((m, k)) * entries, normal((k, n))
    yield "one", np.full((1, 1), 1e-38), np.full((1, 1), 1e6)


SUBNORMALS = [
    pytest.param(a.astype(np.float32), b.astype(np.float32), id=name)
    for name, a, b in subnormal_families()
]
# Precisions with their levels.
ARITHMETICS = [*itertools.product(TENSOR, LEVELS), ("fp32", "none"), ("fp64", "none")]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("a, b", SUBNORMALS)
def test_subnormal_entries_of_fp32_operands_count(a, b, turned, xp):
    if turned:
        a, b = b.T.copy(), a.T.copy()
    x, y = put(xp, a), put(xp, b)
    for precision, refine in ARITHMETICS:
        options = {"precision": precision, "refine": refine}
        bound = gemm_bound(a, b, **options).bound
        found = fetched(gemm(x, y, **options))
        assert exact_ratio(found, a, b, bound) <= 1, options
        stacked = gemm_batched(xp.stack([x, x]), y, **options)
        for one in fetched(stacked):
            assert exact_ratio(one, a, b, bound) <= 1, options


@pytest.mark.parametrize("a, b", SUBNORMALS)
def test_subnormal_entries_count_beside_a_float64_partner(a, b, xp):
    for u, v in ((a.astype(np.float64), b), (a, b.astype(np.float64))):
        x, y = put(xp, u), put(xp, v)
        for precision in ("fp64", "fp32", "fp16", "tf32"):
            bound = gemm_bound(u, v, precision=precision).bound
            found = fetched(gemm(x, y, precision=precision))
            assert found.dtype == np.float64
            assert exact_ratio(found, a, b, bound) <= 1, precision
            stacked = fetched(gemm_batched(x, xp.stack([y, y]), precision=precision))
            assert exact_ratio(stacked[1], a, b, bound) <= 1, precision


@pytest.mark.parametrize("precision", ["fp64", "fp32", "tf32"])
def test_subnormal_entries_of_bfloat16_count(precision, xp):
    rng = np.random.default_rng(1)
    a = (rng.standard_normal((4, 9)) * 1e-39).astype(BF16)
    b = (rng.standard_normal((9, 5)) * 1e15).astype(BF16)
    bound = gemm_bound(a, b, precision=precision).bound
    found = fetched(gemm(put(xp, a), put(xp, b), precision=precision))
    assert exact_ratio(found, a, b, bound) <= 1
    found = fetched(gemm_batched(put(xp, a[None]), put(xp, b), precision=precision))
    assert exact_ratio(found[0], a, b, bound) <= 1


@pytest.mark.parametrize(
    "dtype, small, least", [("f2", 2.0**-18, 2.0**-14), (BF16, 2.0**-131, 2.0**-126)], ids=str
)
@pytest.mark.parametrize("m, n, k", [(200, 33, 2), (9, 8, 12), (130, 70, 3)])
def test_rows_of_subnormal_16_bit_numbers_count_as_normal_in_the_bound(
    dtype, small, least, m, n, k, xp
):
    rng = np.random.default_rng(k)
    a = (rng.standard_normal((3, m, k)) * small).astype(dtype)
    b = (rng.standard_normal((3, k, n)) * 10.0 ** rng.uniform(-3, 3, (3, k, n))).astype(dtype)
    if dtype == BF16:
        b = (b.astype(np.float32) * np.float32(2.0**100)).astype(BF16)
    # On the host, the bound holds without a special rule for subnormal entries.
    least = 0.0 if xp is np else least
    x, y = put(xp, a), put(xp, b)
    stack = fetched(gemm_batched(x, y))
    bound = gemm_bound(a, b).bound
    for s in range(3):
        assert exact_ratio(stack[s, :20], a[s, :20], b[s], bound, least) <= 1
        assert exact_ratio(fetched(gemm(x[s], y[s]))[:20], a[s, :20], b[s], bound, least) <= 1
        exact = gemm_bound(a, b, precision="tf32").bound
        found = fetched(gemm(x[s], y[s], precision="tf32"))[:20]
        assert exact_ratio(found, a[s, :20], b[s], exact) <= 1


@pytest.mark.parametrize("stored", [np.float32, BF16, np.float64], ids=str)
@pytest.mark.parametrize("alpha", [0, 1])
def test_a_subnormal_addend_is_added(stored, alpha, xp):
    c = (np.random.default_rng(2).standard_normal((5, 4)) * 1e-39).astype(np.float32)
    dtype = np.float64 if stored == np.float64 else np.float32
    expected = (c.astype(np.float64) * 3).astype(dtype).astype(stored).astype(float)
    a, b = put(xp, np.zeros((5, 3), dtype)), put(xp, np.zeros((3, 4), dtype))
    one, two = (put(xp, np.ones(shape, stored)) for shape in ((5, 4), (2, 5, 4)))
    gemm(a, b, put(xp, c), alpha=alpha, beta=3, out=one)
    assert np.array_equal(fetched(one).astype(float), expected)
    gemm_batched(a, xp.stack([b, b]), put(xp, c), alpha=alpha, beta=3, out=two)
    assert (fetched(two).astype(float) == expected).all()


@pytest.mark.parametrize("precision, refine", [*itertools.product(TENSOR, LEVELS)])
def test_finite_sums_that_overflow_do_not_hide_an_inf(precision, refine, xp):
    rng = np.random.default_rng(3)
    a, b = (rng.uniform(-3e38, 3e38, s).astype(np.float32) for s in ((12, 20), (20, 9)))
    a[2, 19], a[5, 0], a[7, 3], b[4, 1], b[19, 6], b[9, 8] = (
        np.inf, -np.inf, np.nan, np.inf, -np.inf, np.nan
    )  # fmt: skip
    a[5, 4], b[0, 2] = 1e-42, 0
    with np.errstate(invalid="ignore"):
        expected = a.astype(float) @ b.astype(float)
    odd = ~np.isfinite(expected)
    x, y = put(xp, a), put(xp, b)
    found = fetched(gemm(x, y, precision=precision, refine=refine))
    assert np.array_equal(found[odd], expected[odd], equal_nan=True)
    found = fetched(gemm_batched(xp.stack([x, x, x]), y, precision=precision, refine=refine))
    assert np.array_equal(found[2][odd], expected[odd], equal_nan=True)


# ---- memory: results that overlap themselves, operands that are not aligned ------------------------


def strided(xp, shape, strides, dtype=np.float32):
    """Return a new array with these strides in bytes."""
    reach = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    before = -sum(r for r in reach if r < 0)
    room = before + sum(r for r in reach if r > 0) + np.dtype(dtype).itemsize
    if xp is np:
        memory = np.zeros(room, np.uint8)
        return np.ndarray(shape, dtype, memory, before, strides)
    memory = xp.zeros(room, np.uint8)
    return xp.ndarray(shape, dtype, memory.data + before, strides)


def shares(shape, strides, itemsize):
    """Tell whether any two entries share a byte, by looking at each."""
    places = [
        sum(i * stride for i, stride in zip(index, strides, strict=True))
        for index in np.ndindex(*shape)
    ]
    places.sort()
    return any(y - x < itemsize for x, y in itertools.pairwise(places))


@pytest.mark.parametrize("dims", [2, 3])
def test_out_is_refused_if_and_only_if_it_overlaps_itself(dims, xp):
    rng = np.random.default_rng(dims)
    refused = taken = 0
    for _ in range(150):
        shape = tuple(int(size) for size in rng.choice([1, 2, 4] if dims == 2 else [1, 3], dims))
        strides = tuple(4 * int(step) for step in rng.integers(-9, 10, dims))
        out = strided(xp, shape, strides)
        a, b = xp.ones((*shape[:-1], 2), np.float32), xp.ones((2, shape[-1]), np.float32)
        product = gemm if dims == 2 else gemm_batched
        if shares(shape, strides, 4):
            refused += 1
            with pytest.raises(InputError, match=r"out has shape .* strides .* share memory.*copy"):
                product(a, b, out=out)
            assert (out == 0).all()
        else:
            taken += 1
            assert (product(a, b, out=out) == 2).all()
    assert refused > 20 and taken > 20


def test_out_whose_entries_overlap_by_some_bytes_is_refused():
    out = strided(np, (3, 2), (2, 12))
    with pytest.raises(InputError, match="share memory"):
        gemm(np.ones((3, 2), np.float32), np.ones((2, 2), np.float32), out=out)


def test_out_that_repeats_one_row_is_refused(xp):
    a, c = xp.ones((4, 4), np.float32), xp.zeros((1, 4), np.float32)
    repeated = xp.lib.stride_tricks.as_strided(c, (4, 4), (0, 4))
    with pytest.raises(InputError, match="share memory"):
        gemm(a, a, repeated, beta=1, out=repeated)
    assert (c == 0).all()
    assert (gemm(a, a, repeated, beta=1) == 4).all()


@pytest.mark.parametrize("store", STORED)
@pytest.mark.parametrize(
    "dtype, c_dtype, out_dtype",
    [("f2", "f4", "f2"), ("f4", "f4", "f4"), ("f8", "f4", "f8"), ("i1", "i4", "i4"),
     (BF16, BF16, BF16), ("f4", "f2", "f2")],
    ids=str,
)  # fmt: skip
def test_products_of_arrays_that_are_not_aligned(dtype, c_dtype, out_dtype, store):
    rng = np.random.default_rng(4)
    a, b = ((9 * rng.standard_normal(s)).astype(dtype) for s in ((2, 30, 20), (20, 40)))
    c = (9 * rng.standard_normal((30, 40))).astype(c_dtype)
    out = np.zeros((2, 30, 40), out_dtype)
    expected = gemm_batched(a, b, c, beta=2, out=out.copy())
    for result in (out.copy(), store(out)):
        assert gemm_batched(store(a), store(b), store(c), beta=2, out=result) is result
        assert np.array_equal(result.astype(out.dtype), expected)
    assert gemm(store(a[0]), store(b)).tobytes() == gemm(a[0], b).tobytes()
    assert gemm(store(a[0]).T.copy().T, store(b)).tobytes() == gemm(a[0], b).tobytes()


@pytest.mark.parametrize("store", STORED)
def test_a_result_that_is_not_aligned_may_be_c(store):
    a = np.arange(9, dtype=np.float32).reshape(3, 3)
    for dtype in (np.float32, np.float64):
        c = store(a.astype(dtype))
        assert gemm(a.astype(dtype), a.astype(dtype), c, beta=2, out=c) is c
        assert np.array_equal(c, a @ a + 2 * a)


def test_alpha_of_integer_products_has_no_largest_number():
    """It counts modulo 2**32, as the sums."""
    a = np.arange(-6, 6, dtype=np.int8).reshape(3, 4)
    expected = gemm(a, a.T, alpha=3)
    for alpha in (2**2000 + 3, Fraction(2**2000 + 3), 3.0):
        assert np.array_equal(gemm(a, a.T, alpha=alpha), expected)
    for alpha in (0.5, Fraction(1, 3), float("inf"), float("nan")):
        with pytest.raises(InputError, match="must be an integer"):
            gemm(a, a.T, alpha=alpha)
