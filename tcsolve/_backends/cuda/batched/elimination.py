"""Solves by Gauss-Jordan elimination without factors, each on many multiprocessors (solve_across.cu)."""

import functools

import cupy
import numpy as np

from tcsolve._backends.cuda.batched.cholesky_squares import suits_squares
from tcsolve._backends.cuda.batched.one_launch import KINDS
from tcsolve._backends.cuda.runtime import current_device
from tcsolve._backends.cuda.runtime.prepared_launch import launch, macros, steps
from tcsolve.kernels.system_shapes import across_shape

__all__ = ["eliminate", "elimination_bytes", "eliminates"]

# By kind: the largest number of rows of a matrix that is eliminated.  For larger positive definite matrices,
# Cholesky factors are faster.
LARGEST = {"general": 1536, "positive definite": 1024}
# By kind: the matrices of a stack are eliminated if they have more rows than this.  Smaller ones are solved
# faster if each has a multiprocessor of its own.
ALONE = {"general": 640, "positive definite": 512}


def eliminates(dtype, kind, m, n, columns):
    """Tell whether `eliminate` is the fastest method for m systems.

    `columns` is the number of right-hand sides and random vectors of a system.
    """
    if kind not in KINDS or n > LARGEST[kind] or (m > 1 and n <= ALONE[kind]):
        return False
    if m > 1 and suits_squares(dtype, kind, n, columns):
        return False
    return _shape(n, columns, dtype) is not None


def elimination_bytes(dtype, m, n, columns):
    """Return the bytes that `eliminate` allocates besides its results."""
    entries = m * _shape(n, columns, dtype).room + 1
    return entries * np.result_type(dtype, np.float64).itemsize


def eliminate(a, kind, b, probes):
    """Return (info, y): `StackFactors.info`, and y as in `Stacks.factor_and_solve`."""
    (m, n, k), wide = b.shape, np.result_type(a.dtype, np.float64)
    shape, y = _shape(n, k + probes, a.dtype), cupy.empty((m, k + probes, n), wide)
    info, room = cupy.empty(m, cupy.int32), cupy.empty(m * shape.room + 1, wide)
    room.data.memset_async(0xFF, room.nbytes)
    args = (y, info, room, *steps(a), *steps(b), KINDS[kind], m, n, k, probes)
    entry, defines = ("solve_across", "tcs_solve_across"), macros(a) | shape.defines
    launch(entry, (m * shape.blocks, 1), (shape.threads, 1), args, defines)
    return info, y


def _shape(n, columns, dtype):
    return _shape_on(cupy.cuda.runtime.getDevice(), n, columns, np.dtype(dtype))


@functools.lru_cache(maxsize=1024)
def _shape_on(device, n, columns, dtype):
    chip = current_device.arch(device), current_device.multiprocessors()
    return across_shape(n, columns, dtype, arch=chip[0], multiprocessors=chip[1])
