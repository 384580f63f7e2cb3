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
from tcsolve.kernels.launch_shapes import RESIDUAL_ROWS

__all__ = [
    "ahead",
    "gram",
    "has_rows",
    "held",
    "mixed",
    "probes",
    "residual",
    "signs",
    "steepest",
    "takes",
]

# From this many rows on, each warp of the residual kernel takes several rows.
MANY_ROWS = 8192
THREADS = 256
# Largest number of vectors for tcs_gram and tcs_mix; number of threads of a kernel that runs as one block.
MOST_VECTORS, GRAM_THREADS = 4, 1024


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
    _residual(a, a.data.ptr, None, r.data.ptr, sizes.data.ptr, x.data.ptr, b.data.ptr, step)
    sizes = sizes.get().view(np.float64)
    return r, sizes[:1], sizes[1:]


def takes(vectors):
    """Tell whether `gram` and `mixed` support these vectors: few, of shape (n, 1), FP64, contiguous."""
    few = len(vectors) <= MOST_VECTORS
    return few and all(
        v.dtype.char == "d" and v.size and v.shape[1] == 1 and v.strides[0] == v.itemsize
        for v in vectors
    )


def gram(vectors):
    """Return the Gram matrix v_i . v_j on the host, shape (1, m, m)."""
    m, found = len(vectors), cupy.empty((MOST_VECTORS, MOST_VECTORS))
    kernel = compiler.kernel("refinement_vectors", "tcs_gram", T_LOW="double")
    kernel((1,), (GRAM_THREADS,), (found, *_four(vectors, None), m, len(vectors[0])))
    return found.get()[None, :m, :m]


def mixed(vectors, weights):
    """Return the sum of weights[0, i] v_i."""
    n, x = len(vectors[0]), cupy.empty_like(vectors[0])
    kernel = compiler.kernel("refinement_vectors", "tcs_mix", T_LOW="double")
    args = x, *_four(vectors, None), *_four(weights[0].tolist(), 0.0), len(vectors), n
    kernel((-(-n // THREADS),), (THREADS,), args)
    return x


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
    _condest("tcs_steepest")((1,), (GRAM_THREADS,), args)
    return unit


def held(b, y, z):
    """As `Ops.held`, for real arguments."""
    (n, k), last = b.shape, z.shape[1]
    sums = cupy.empty(2 * (k - last) + last)
    b, y, z = (cupy.ascontiguousarray(v) for v in (b, y, z))
    _condest("tcs_held")((k,), (GRAM_THREADS,), (sums, b, y, z, n, k, last))
    return sums


def _condest(entry):
    return compiler.kernel("condest", entry)


def _four(some, filler):
    return [*some, *(MOST_VECTORS - len(some)) * [filler]]


def ahead(tape, lu, inverses, order, a, b, steps):
    """Start x_0 = (L U)^-1 b and x_i+1 = x_i + (L U)^-1 (b - a x_i), i = 0 ... steps - 1.

    These steps are a recorded graph, which belongs to the tape of lu.  Each call may have another a.

    Returns
    -------
    callable
        Waits, and returns (x, r, sizes) for `refine_columns`: all x_i and their residuals, both of shape
        (steps + 1, n, 1), and max |r| and max |x| of each on the host, shape (2, steps + 1).
    """
    n, count = len(b), steps + 1

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
            _residual(a, None, where.data.ptr, *places, 1)
            if i < steps:
                correct(r[i], x[i + 1 : i + 2], sizes=sizes[2 * i :], known=True, onto=x[i])
        return found

    name = ("ahead", steps, a.dtype.char, ld(a))
    inputs = b[:, 0], np.array([a.data.ptr], np.uint64)
    found = tape.apply(name, inputs, body, (inverses.data.ptr, order.data.ptr))
    sizes = Sent(found[2 * n * count : -1])

    def wait():
        x, r = found[: 2 * n * count].reshape(2, count, n, 1)
        return x, r, sizes.get().reshape(count, 2).T

    return wait


def _correct(lu, inverses, order, r, out, **options):
    substitute(lu, r[:, None], False, inverses, order, None, out=out, **options)


def _residual(a, address, where, r, sizes, x, b, step):
    launch = _residual_launch(cupy.cuda.runtime.getDevice(), a.dtype.char, len(a))
    launch(enumerate((r, sizes, address or 0, where or 0, ld(a), x, b, step)))


@functools.lru_cache(maxsize=256)
def _residual_launch(device, char, n):
    """Return the prepared launch of tcs_matrix_residual for n rows; its addresses are placeholders."""
    few, many = RESIDUAL_ROWS
    rows = many if n >= MANY_ROWS else few
    defines = {"T_A": "float" if char == "f" else "double", "ROWS": rows}
    kernel = compiler.kernel("residual", "tcs_matrix_residual", **defines)
    return kernel.prepared((-(-n // (8 * rows)), 1), (THREADS, 1), [0] * 8 + [n], 0)
