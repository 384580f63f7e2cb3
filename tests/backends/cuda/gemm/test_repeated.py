"""Products of arrays that are alike: the second product takes its launches from the first one."""

import numpy as np
import pytest

import tcsolve
from tcsolve import gemm

pytestmark = pytest.mark.gpu

SHAPES = [(256, 384, 192), (257, 391, 203), (1024, 1030, 2048), (2048, 2048, 2048)]


def operands(cupy, m, n, k, seed, transa=False, transb=False):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((k, m) if transa else (m, k)).astype(np.float32)
    b = rng.standard_normal((n, k) if transb else (k, n)).astype(np.float32)
    return cupy.asarray(a), cupy.asarray(b)


@pytest.mark.parametrize("refine", ["none", "a", "b", "ab", "full"])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("m, n, k", SHAPES[:3])
def test_the_second_product_has_the_bits_of_the_first(cupy, m, n, k, precision, refine):
    how = {"precision": precision, "refine": refine}
    for transa, transb in ((False, False), (True, False), (False, True)):
        how |= {"transa": transa, "transb": transb}
        a, b = operands(cupy, m, n, k, 1, transa, transb)
        first = gemm(a, b, **how)
        others = operands(cupy, m, n, k, 2, transa, transb)
        second, again = gemm(*others, **how), gemm(a, b, **how)
        # Options that differ are another kind of product, which is computed in the ordinary way.
        alone = gemm(*others, **how, alpha=1.0, beta=0.0, engine="wgmma") if k >= 64 else second

        assert cupy.array_equal(first, again)
        assert not cupy.array_equal(first, second)
        assert cupy.array_equal(second, alone)


def test_results_in_memory_of_the_caller(cupy):
    a, b = operands(cupy, *SHAPES[3], 3)
    expected = gemm(a, b, precision="fp16", refine="ab")
    out = cupy.empty_like(expected)
    for _ in range(3):
        out.fill(7)
        assert gemm(a, b, precision="fp16", refine="ab", out=out) is out
        assert cupy.array_equal(out, expected)


def test_a_result_that_overlaps_an_operand_is_refused_each_time(cupy):
    a, b = operands(cupy, *SHAPES[3], 4)
    how, out = {"precision": "fp16", "refine": "ab"}, cupy.empty_like(a)
    kept, expected = (a.copy(), b.copy()), gemm(a, b, **how)
    for _ in range(2):
        assert cupy.array_equal(gemm(a, b, **how, out=out), expected)
        for name, operand in (("a", a), ("b", b)):
            with pytest.raises(tcsolve.InputError, match=f"out overlaps {name}"):
                gemm(a, b, **how, out=operand)
    assert cupy.array_equal(a, kept[0]) and cupy.array_equal(b, kept[1])


def test_streams_have_separate_scratch_memory(cupy):
    a, b = operands(cupy, *SHAPES[3], 5)
    how = {"precision": "fp16", "refine": "ab"}
    expected = [gemm(a, b, **how), gemm(b, a, **how)]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    cupy.cuda.Device().synchronize()
    for _ in range(5):
        found = []
        for stream, (x, y) in zip(streams, ((a, b), (b, a)), strict=True):
            with stream:
                found.append(gemm(x, y, **how))
        for stream in streams:
            stream.synchronize()
        assert all(cupy.array_equal(x, y) for x, y in zip(found, expected, strict=True))
