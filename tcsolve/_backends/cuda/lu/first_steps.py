"""Refinement of one right-hand side on CuPy: a residual in one launch, the first steps in one graph.

This module also has the vector kernels of the condition estimate, which runs at the same time.
"""

import functools

import cupy
import numpy as np

from tcsolve._backends.cuda.lu.substitution import substitute
from tcsolve._backends.cuda.runtime import compiler
from tcsolve._backends.cuda.runtime.async_read import Sent
from tcsolve._backends.cuda.runtime.cublas_calls import ld
from tcsolve._paths import paths
from tcsolve.kernels.launch_shapes import residual_rows

__all__ = [
    "COMBINATIONS",
    "ahead",
    "column_max",
    "combined",
    "difference",
    "has_rows",
    "held",
    "probes",
    "residual",
    "signs",
    "steepest",
]

THREADS = 256
# Number of sums of columns that `combined` returns: one for each lane of a warp.
COMBINATIONS = 32
# The limit of CUDA for the second dimension of a grid.
MOST_BLOCKS_IN_Y = 65535
# Number of threads of a kernel with one block for each vector.
ONE_BLOCK = 1024


def has_rows(a):
    """Tell whether the residual kernel takes a: it is real and not empty, and has contiguous rows."""
    real = paths().residual_kernel and a.size > 0 and a.dtype.char in "fd"
    return real and a.strides[1] == a.itemsize and a.strides[0] > 0


def residual(a, x, b):
    """Return r = b - a x for FP64 x and b (n, 1), and max |r| and max |x| on the host, of shape (1,)."""
    n = len(x)
    x = cupy.ascontiguousarray(x)
    r, sizes = cupy.empty((n, 1)), cupy.zeros(2, cupy.uint64)
    step = b.strides[0] // b.itemsize
    places = r.data.ptr, sizes.data.ptr, x.data.ptr, b.data.ptr
    _residual(a, places, step, address=a.data.ptr)
    sizes = sizes.get().view(np.float64)
    return r, sizes[:1], sizes[1:]


def difference(b, y, x):
    """Return r = b - y for FP64 arrays (n, k), and on the host max |r| and max |x| of each column."""
    n, k = b.shape
    r, sizes = cupy.empty((k, n)), cupy.zeros((2, k), cupy.uint64)
    strides = [(v, *(s // v.itemsize for s in v.strides)) for v in (b, y, x)]
    kernel = compiler.kernel("refinement_vectors", "tcs_residual", T_LOW="double")
    kernel(_columns_grid(n, k), (THREADS,), (r, sizes, *sum(strides, ()), n, k))
    return r.T, *sizes.get().view(np.float64)


def column_max(v):
    """Return max |v| of each column of v (n, k); NaN propagates."""
    if v.dtype.char != "d" or not v.size:
        return cupy.abs(v).max(axis=0)
    (n, k), sizes = v.shape, cupy.zeros(v.shape[1], cupy.uint64)
    kernel = compiler.kernel("refinement_vectors", "tcs_column_max", T_LOW="double")
    strides = (s // v.itemsize for s in v.strides)
    kernel(_columns_grid(n, k), (THREADS,), (sizes, v, *strides, n, k))
    return sizes.view(np.float64)


def combined(v, sizes):
    """Return 32 sums of columns of v (n, k), which is in FP64 or complex FP64, as an array (n, 32).

    Column j is multiplied by a random sign, and divided by the power of two at or below sizes[j].
    """
    (n, k), parts = v.shape, v.itemsize // 8
    out = cupy.empty((n, COMBINATIONS), v.dtype)
    kernel = compiler.kernel("refinement_vectors", "tcs_combine", T_LOW="double")
    strides = (s // 8 for s in v.strides)
    kernel((-(-n // 8),), (THREADS,), (out, v, *strides, parts, sizes, n, k))
    return out


def _columns_grid(n, k):
    """Return the grid of a kernel of refinement_vectors.cu for n rows and any number of columns."""
    return -(-n // THREADS), min(k, MOST_BLOCKS_IN_Y)


def probes(n):
    """As `Ops.probes`."""
    found = cupy.empty((n, 4))
    _condest("tcs_probes")((-(-n // THREADS),), (THREADS,), (found, n))
    return found


def signs(v, state):
    """As `Ops.signs`, for real v."""
    n, sign = len(v), cupy.empty((len(v), 1))
    args = sign, v, v.strides[0] // v.itemsize, state, n
    _condest("tcs_signs")((-(-n // THREADS),), (THREADS,), args)
    return sign


def steepest(z, state, found):
    """As `Ops.steepest`, for real z."""
    n, unit = len(z), cupy.empty((len(z), 1))
    args = unit, found, state, z, z.strides[0] // z.itemsize, n
    _condest("tcs_steepest")((1,), (ONE_BLOCK,), args)
    return unit


def held(b, y, z):
    """As `Ops.held`, for real arguments."""
    (n, k), last = b.shape, z.shape[1]
    sums = cupy.empty(2 * (k - last) + last)
    b, y, z = (cupy.ascontiguousarray(v) for v in (b, y, z))
    _condest("tcs_held")((k,), (ONE_BLOCK,), (sums, b, y, z, n, k, last))
    return sums


def _condest(entry):
    return compiler.kernel("condest", entry)


def ahead(tape, packed, a, b, steps):
    """Start x_0 = (L U)^-1 b and x_i+1 = x_i + (L U)^-1 (b - a x_i), i = 0 ... steps - 1.

    These steps are a recorded graph, which belongs to the tape of lu.  Each call may have another a.

    Returns
    -------
    callable
        Waits, and returns (x, r, sizes) for `refine_columns`: all x_i and their residuals, both of shape
        (steps + 1, n, 1), and max |r| and max |x| of each on the host, shape (2, steps + 1).
    """
    (lu, order, inverses), n, count = packed, len(b), steps + 1

    def body(b, where):
        # Order in memory: all x, all r, (max |r|, max |x|) of each step, max |b|.
        found = cupy.empty((2 * n + 2) * count + 1)
        x, r = found[: 2 * n * count].reshape(2, count, n)
        sizes = found[2 * n * count :]
        sizes.fill(0)
        correct = functools.partial(_correct, lu, inverses, order)
        correct(b, x[:1], sizes=sizes[-1:])
        for i in range(count):
            places = r[i].data.ptr, sizes[2 * i :].data.ptr, x[i].data.ptr, b.data.ptr
            _residual(a, places, 1, where=where.data.ptr)
            if i < steps:
                correct(r[i], x[i + 1 : i + 2], sizes=sizes[2 * i :], known=True, onto=x[i])
        return found

    name = ("ahead", steps, a.dtype.char, ld(a))
    inputs = b[:, 0], np.array([a.data.ptr], np.uint64)
    found = tape.apply(name, inputs, body, (inverses.data.ptr, order.data.ptr))
    sizes = Sent(found[2 * n * count : -1])
    x, r = found[: 2 * n * count].reshape(2, count, n, 1)

    def wait():
        return x, r, sizes.get().reshape(count, 2).T

    return wait


def _correct(lu, inverses, order, r, out, **options):
    substitute(lu, r[:, None], False, inverses, order, None, out=out, **options)


def _residual(a, places, step, *, address=0, where=0):
    """Launch tcs_matrix_residual.

    `places` are the addresses of r, of (max |r|, max |x|), of x and of b; b has the stride `step`.  The
    matrix is at `address`, or at the address that is stored at `where`.
    """
    r, sizes, x, b = places
    launch = _residual_launch(cupy.cuda.runtime.getDevice(), a.dtype.char, len(a))
    launch(enumerate((r, sizes, address, where, ld(a), x, b, step)))


@functools.lru_cache(maxsize=256)
def _residual_launch(device, char, n):
    """Return the prepared launch of tcs_matrix_residual for n rows; its addresses are placeholders."""
    rows = residual_rows(n)
    defines = {"T_A": "float" if char == "f" else "double", "ROWS": rows}
    kernel = compiler.kernel("residual", "tcs_matrix_residual", **defines)
    return kernel.prepared((-(-n // (8 * rows)), 1), (THREADS, 1), [0] * 8 + [n], 0)
