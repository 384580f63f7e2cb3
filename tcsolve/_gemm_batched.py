"""Batches of small products on CuPy, at the speed of memory."""

import cupy
import numpy as np

from tcsolve import _jit
from tcsolve._errors import DeviceError
from tcsolve._gemm_cupy import KINDS, gemm, require_formats
from tcsolve.kernels import LARGEST_BATCHED, batched_shape

__all__ = ["gemm_batched"]

THREADS = 128
# Blocks of the kernel that a multiprocessor holds at most, by its registers.
BLOCKS = 8
# How an operand lies in memory (gemm_batched.cu).
ANYHOW, ONE_BEHIND_THE_OTHER, ONE_FOR_ALL = 0, 1, 2


def gemm_batched(a, b, c, out, product, alpha, beta, arch, properties):
    """out[s] = alpha a[s] b[s] + beta c[s] for stacks that are not empty; c is not read if beta is 0."""
    (m, k), n = a.shape[1:], b.shape[2]
    if product.native:
        _natively(a, b, c, out, product, alpha, beta)
    elif max(m, n, k) > LARGEST_BATCHED:
        for s in range(len(out)):
            addend = None if beta == 0 else c[s]
            count = properties["multiprocessors"]
            gemm(a[s], b[s], addend, out[s], product, alpha, beta, "auto", arch, count)
    else:
        require_formats(product, arch)
        _in_one_launch(a, b, c, out, product, alpha, beta, arch, properties)


def _natively(a, b, c, out, product, alpha, beta):
    """Multiply in FP64, which no setting of CuPy's turns into TF32, and round once."""
    result = cupy.matmul(a.astype(np.float64), b.astype(np.float64)) * alpha
    if beta != 0:
        result += beta * c.astype(np.float64)
    out[...] = result.astype(product.accumulator).astype(out.dtype)


def _in_one_launch(a, b, c, out, product, alpha, beta, arch, properties):
    if not _rows_contiguous(out):
        result = cupy.empty(out.shape, out.dtype)
        _in_one_launch(a, b, c, result, product, alpha, beta, arch, properties)
        _bits(out)[...] = _bits(result)
        return
    if beta != 0 and not _rows_contiguous(c):
        c = cupy.ascontiguousarray(_bits(c)).view(c.dtype)
    if not product.direct:
        a, b = (_as_float32(x) for x in (a, b))
    (count, m, k), n = a.shape, b.shape[2]
    store_a, trans_a = _how_stored(a)
    store_b, trans_b = _how_stored(b)
    t_in = product.precision if product.direct else "float"
    shape = batched_shape(m, n, k, t_in, trans_a, trans_b, store_a, store_b, arch)
    if shape is None:
        raise DeviceError(
            f"products of {m} x {k} by {k} x {n} in float32 need more shared memory than {arch} "
            "has; give float16 operands, or call gemm for each"
        )
    defines = {"T_IN": t_in, "T_LOW": product.precision, "REFINE": product.level}
    defines |= {"SIZE_M": m, "SIZE_N": n, "SIZE_K": k, "STORE_A": store_a, "STORE_B": store_b}
    defines |= {"TRANS_A": trans_a, "TRANS_B": trans_b} | shape.defines
    kernel = _jit.kernel("gemm_batched", "tcs_gemm_batched", **defines)
    blocks = max(1, min(BLOCKS, properties["shared_bytes"] // (shape.shared_bytes + 1024)))
    grid = min(-(-count // shape.count), blocks * properties["multiprocessors"])
    addend = (None, 0, 0) if beta == 0 else (c, *_strides(c)[:2])
    args = (out, *_strides(out)[:2], KINDS[out.dtype.name], *addend)
    args += (a, *_strides(a), b, *_strides(b), count, float(alpha), float(beta))
    kernel((grid,), (THREADS,), args, shared=shape.shared_bytes)


def _as_float32(x):
    """Return x in FP32; a matrix that stands for many is converted once."""
    if x.dtype == np.float32:
        return x
    if x.strides[0] == 0 and len(x) > 1:
        return cupy.broadcast_to(_as_float32(x[:1])[0], x.shape)
    if x.dtype.name == "bfloat16":
        return (x.view(cupy.uint16).astype(cupy.uint32) << 16).view(cupy.float32)
    return x.astype(np.float32)


def _bits(x):
    return x.view(cupy.uint16) if x.dtype.name == "bfloat16" else x


def _strides(x):
    """Return strides in entries, with those of axes of length 1 as if the array were contiguous."""
    strides, expected = [], 1
    for size, stride in zip(x.shape[::-1], x.strides[::-1], strict=True):
        strides.append(expected if size == 1 else stride // x.itemsize)
        expected = strides[-1] * size
    return tuple(strides[::-1])


def _rows_contiguous(x):
    """Tell whether entries of a row are neighbours and no two entries share a place."""
    batch, row, col = _strides(x)
    return col == 1 and row >= x.shape[2] and (batch >= row * x.shape[1] or len(x) == 1)


def _how_stored(x):
    """Return (STORE, TRANS) of gemm_batched.cu for a stack of matrices."""
    batch, row, col = _strides(x)
    rows, cols = x.shape[1:]
    if len(x) > 1 and batch == 0:
        return ONE_FOR_ALL, 0
    for turned, strides, length in ((0, (cols, 1), cols), (1, (1, rows), rows)):
        whole = length * x.itemsize % 16 == 0
        if (batch, row, col) == (rows * cols, *strides) and not (whole and x.data.ptr % 16):
            return ONE_BEHIND_THE_OTHER, turned
    return ANYHOW, 0
