"""One system by Gauss-Jordan elimination on many multiprocessors (solve_across.cu), without factors."""

import functools

import cupy
import numpy as np

from tcsolve._backends.cuda.runtime import current_device
from tcsolve._backends.cuda.runtime.prepared_launch import launch, macros, steps
from tcsolve.kernels.system_shapes import across_shape

__all__ = ["eliminate", "elimination_bytes", "eliminates"]

# By kind: the number of solve_across.cu.
KINDS = {"general": 0, "positive definite": 1}
# For larger positive definite matrices, Cholesky factors are faster.
LARGEST_DEFINITE = 1024


def eliminates(dtype, kind, n, columns):
    """Tell whether `eliminate` solves one system, `columns` right-hand sides and random vectors, fastest."""
    if kind not in KINDS or kind != "general" and n > LARGEST_DEFINITE:
        return False
    return _shape(n, columns, dtype) is not None


def elimination_bytes(dtype, n, columns):
    """Return the bytes that `eliminate` allocates besides its results."""
    return _shape(n, columns, dtype).room * np.result_type(dtype, np.float64).itemsize


def eliminate(a, kind, b, probes):
    """Return (info, y): `StackFactors.info`, and y as in `Stacks.factor_and_solve`, for a (1, n, n)."""
    (_, n, k), wide = b.shape, np.result_type(a.dtype, np.float64)
    shape, y = _shape(n, k + probes, a.dtype), cupy.empty((1, k + probes, n), wide)
    info, room = cupy.empty(1, cupy.int32), cupy.empty(shape.room, wide)
    room.data.memset_async(0xFF, room.nbytes)
    args = (y, info, room, *steps(a[0]), *steps(b[0]), KINDS[kind], n, k, probes)
    entry, defines = ("solve_across", "tcs_solve_across"), macros(a) | shape.defines
    launch(entry, (shape.blocks, 1), (shape.threads, 1), args, defines)
    return info, y


def _shape(n, columns, dtype):
    return _shape_on(cupy.cuda.runtime.getDevice(), n, columns, np.dtype(dtype))


@functools.lru_cache(maxsize=1024)
def _shape_on(device, n, columns, dtype):
    chip = current_device.arch(device), current_device.multiprocessors()
    return across_shape(n, columns, dtype, arch=chip[0], multiprocessors=chip[1])
