"""Batches of small products on CuPy; the memory bandwidth limits their speed."""

import functools
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

from tcsolve._backends.cuda.gemm.engines import gemm, require_formats
from tcsolve._backends.cuda.gemm.layout import KINDS, Extents, bits
from tcsolve._backends.cuda.runtime import compiler, cublas_calls
from tcsolve._backends.cuda.runtime.conversions import converted
from tcsolve._errors import DeviceError
from tcsolve.kernels.batched_shapes import LARGEST_BATCHED, Batched, batched_room, batched_shape

__all__ = ["Launch", "gemm_batched"]

# The memory layout of an operand (gemm_batched.cu): any strides, contiguous, or one matrix for all products.
ANYHOW, ONE_BEHIND_THE_OTHER, ONE_FOR_ALL = 0, 1, 2
# Number of bytes of the words in which operands and results are moved.
ALIGNMENT = 16
# Largest number of products in one call of cuBLAS, which may use a dimension of a grid for them.
MOST_AT_ONCE = 32768


def gemm_batched(job, arch, properties):
    """Compute job.out for stacks of matrices, as the `Job` says.

    Return the `Launch` if the product was a single launch, else None.
    """
    if job.product.native:
        _natively(job)
    elif job.product.sums is not None or max(*job.a.shape[1:], job.b.shape[2]) > LARGEST_BATCHED:
        _one_by_one(job, arch, properties["multiprocessors"])
    else:
        require_formats(job.product, arch)
        return _in_one_launch(job, arch, properties)
    return None


def _one_by_one(job, arch, multiprocessors):
    """Compute each product by `gemm`."""
    a, b, c, out, *_ = job
    # Do not write to c directly: if memory runs out in the middle, c must be unchanged.
    result = out if c is None or c.data.ptr != out.data.ptr else cupy.empty(out.shape, out.dtype)
    for s in range(len(out)):
        one = {"a": a[s], "b": b[s], "c": None if c is None else c[s], "out": result[s]}
        gemm(job._replace(**one, engine="auto"), arch, multiprocessors)
    if result is not out:
        bits(out)[...] = bits(result)


def _natively(job):
    """Multiply in FP64, and round only the result."""
    out, (a, b) = job.out, (_dense_in_fp64(x) for x in (job.a, job.b))
    total = cupy.empty(out.shape, np.float64)
    m, n = out.shape[1:]
    steps = [0 if len(x) == 1 else x[0].size for x in (a, b)]
    for first in range(0, len(out), MOST_AT_ONCE):
        here, there = (x[0 if len(x) == 1 else first] for x in (a, b))
        count = min(MOST_AT_ONCE, len(out) - first)
        stacks = (total[first], m * n), (here, steps[0]), (there, steps[1])
        cublas_calls.gemm_strided(*stacks, 1.0, count)
    dtype = np.dtype(job.product.accumulator)
    alpha, beta = (float(dtype.type(v)) for v in (job.alpha, job.beta))
    total *= alpha
    if beta != 0:
        total += beta * converted(job.c, np.dtype(np.float64))
    out[...] = converted(converted(total, dtype), out.dtype)


def _dense_in_fp64(x):
    """Return x in FP64 and in C order; if the batch stride is 0, return only one matrix."""
    x = x[:1] if x.strides[0] == 0 else x
    return cupy.ascontiguousarray(converted(x, np.dtype(np.float64)))


def _in_one_launch(job, arch, properties):
    a, b, c, out, product, _, beta, _ = job
    if not _rows_contiguous(out):
        result = cupy.empty(out.shape, out.dtype)
        _in_one_launch(job._replace(out=result), arch, properties)
        bits(out)[...] = bits(result)
        return None
    if beta == 0:
        c = None
    elif _strides(c)[2] != 1:
        c = cupy.ascontiguousarray(bits(c)).view(c.dtype)
    if not product.direct:
        a, b = (_as_float32(x) for x in (a, b))
    launch = _launch_of(job._replace(a=a, b=b, c=c), arch, properties)
    launch.run(*(_address(x) for x in (a, b, c, out)))
    same = a is job.a and b is job.b and (c is None or c is job.c)
    return launch if same else None


def _launch_of(job, arch, properties):
    """Return the `Launch` for these arrays; it can be repeated on other arrays, as `Ops.gemm` describes."""
    a, b, c, out, product, alpha, beta, _ = job
    batched = _batched_of(a, b, c, out, product)
    count = len(out)
    kernel, shape, room, most = _kernel_of(cupy.cuda.runtime.getDevice(), batched, arch)
    if kernel is None:
        raise DeviceError(
            f"products of {batched.size_m} x {batched.size_k} by {batched.size_k} x {batched.size_n} "
            f"in float32 need more shared memory than {arch} has; give float16 operands, or call "
            "gemm for each"
        )
    grid = shape.grid(count, most * properties["multiprocessors"])
    addend = (0, 0) if c is None else _strides(c)[:2]
    args = (None, *_strides(out)[:2], None, *addend, None, *_strides(a), None, *_strides(b))
    args += (count, float(alpha), float(beta))
    run = kernel.prepared((grid, 1), (shape.threads, 1), args, room)
    return Launch(run, Extents.of(a, b, c, out), out.shape, out.dtype)


def _batched_of(a, b, c, out, product):
    (m, k), n = a.shape[1:], b.shape[2]
    store_a, trans_a = _how_stored(a)
    store_b, trans_b = _how_stored(b)
    t_in = product.precision if product.direct else "float"
    arithmetic = (t_in, product.precision, product.level, trans_a, trans_b, store_a, store_b)
    dense = _strides(out) == (m * n, n, 1) and out.data.ptr % ALIGNMENT == 0
    return Batched(m, n, k, *arithmetic, KINDS[out.dtype.name], int(c is not None), int(dense))


@functools.lru_cache(maxsize=4096)
def _kernel_of(device, batched, arch):
    """Return (kernel, shape, bytes of shared memory, resident blocks per multiprocessor).

    Each of the four is None if no shape fits in shared memory.
    """
    shape = batched_shape(batched, arch)
    if shape is None:
        return None, None, None, None
    kernel = compiler.kernel("gemm_batched", "tcs_gemm_batched", **batched.defines, **shape.defines)
    room = batched_room(batched, shape, arch)
    return kernel, shape, room, kernel.resident_blocks(shape.threads, room)


# The positions of the addresses of out, c, a and b among the arguments of the kernel.
OUT, C, A, B = 0, 3, 6, 10


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of gemm_batched.cu for all arrays that are alike (see repeated.py); only addresses change."""

    prepared: Any
    extents: Extents
    shape: tuple
    dtype: Any

    def run(self, a, b, c, out):
        """Launch for arrays at these addresses; c is 0 without an addend."""
        self.prepared(((OUT, out), (C, c), (A, a), (B, b)))

    def again(self, a, b, c, out):
        """Compute another product of arrays that are alike; None if `out` may overlap another array."""
        a, b, addend = a.data.ptr, b.data.ptr, _address(c)
        if out is None:
            out = cupy.ndarray(self.shape, self.dtype)  # faster than `empty`
        elif self.extents.may_overlap(a, b, 0 if c is out else addend, out.data.ptr):
            return None
        self.run(a, b, addend, out.data.ptr)
        return out


def _address(x):
    return 0 if x is None else x.data.ptr


def _as_float32(x):
    """Return x in FP32; with a batch stride of 0, the one matrix is converted once."""
    if x.dtype == np.float32:
        return x
    if x.strides[0] == 0 and len(x) > 1:
        return cupy.broadcast_to(_as_float32(x[:1])[0], x.shape)
    return converted(x, np.dtype(np.float32))


def _strides(x):
    """Return the strides in entries; an axis of length 1 gets the stride of a contiguous array."""
    strides, expected = [], 1
    for size, stride in zip(x.shape[::-1], x.strides[::-1], strict=True):
        strides.append(expected if size == 1 else stride // x.itemsize)
        expected = strides[-1] * size
    return tuple(strides[::-1])


def _rows_contiguous(x):
    """Tell whether the rows are contiguous and no two entries share memory."""
    batch, row, col = _strides(x)
    return col == 1 and row >= x.shape[2] and (batch >= row * x.shape[1] or len(x) == 1)


def _how_stored(x):
    """Return the macros (STORE, TRANS) of gemm_batched.cu for a stack of matrices."""
    batch, row, col = _strides(x)
    rows, cols = x.shape[1:]
    if len(x) > 1 and batch == 0:
        return ONE_FOR_ALL, 0
    for turned, strides, length in ((0, (cols, 1), cols), (1, (1, rows), rows)):
        whole = length * x.itemsize % 16 == 0
        if (batch, row, col) == (rows * cols, *strides) and not (whole and x.data.ptr % 16):
            return ONE_BEHIND_THE_OTHER, turned
    return ANYHOW, 0
