"""Solves by Gauss-Jordan elimination without factors, each on many multiprocessors."""

import functools

import cupy
import numpy as np

from tcsolve._backends.cuda.batched.cholesky_squares import suits_squares
from tcsolve._backends.cuda.batched.one_launch import KINDS
from tcsolve._backends.cuda.runtime import current_device
from tcsolve._backends.cuda.runtime.prepared_launch import launch, macros, steps
from tcsolve.kernels.system_shapes import across_shape

__all__ = ["eliminate", "elimination_bytes", "eliminates"]

# By kind: the largest number of rows of a matrix that solve_across.cu eliminates.  For larger positive
# definite matrices, Cholesky factors are faster.  solve_definite.cu takes all that fit.
LARGEST = {"general": 1536, "positive definite": 1024}
# By kind: the matrices of a stack are eliminated if they have more rows than this.  Smaller ones are solved
# faster if each has a multiprocessor of its own.
ALONE = {"general": 640, "positive definite": 512}


def eliminates(dtype, kind, m, n, columns):
    """Tell whether `eliminate` is the fastest method for m systems.

    `columns` is the number of right-hand sides and random vectors of a system.
    """
    if kind not in KINDS or (m > 1 and n <= ALONE[kind]):
        return False
    if m > 1 and suits_squares(dtype, kind, n, columns):
        return False
    shape = _shape(n, columns, dtype, kind)
    return shape is not None and (n <= LARGEST[kind] or shape.name == "solve_definite")


def elimination_bytes(dtype, kind, m, n, columns):
    """Return the bytes that `eliminate` allocates besides its results."""
    entries = m * _shape(n, columns, dtype, kind).room + 1
    return entries * np.result_type(dtype, np.float64).itemsize


def eliminate(a, kind, b, probes):
    """Return (info, y): `StackFactors.info`, and y as in `Stacks.factor_and_solve`."""
    (m, n, k), wide = b.shape, np.result_type(a.dtype, np.float64)
    shape, y = _shape(n, k + probes, a.dtype, kind), cupy.empty((m, k + probes, n), wide)
    info, room = cupy.empty(m, cupy.int32), cupy.empty(m * shape.room + 1, wide)
    room.data.memset_async(0xFF, room.nbytes)
    kinds = (KINDS[kind],) if shape.name == "solve_across" else ()
    args = (y, info, room, *steps(a), *steps(b), *kinds, m, n, k, probes)
    entry, defines = (shape.name, f"tcs_{shape.name}"), macros(a) | shape.defines
    launch(entry, (m * shape.blocks, 1), (shape.threads, 1), args, defines, shape.shared)
    return info, y


def _shape(n, columns, dtype, kind):
    device = cupy.cuda.runtime.getDevice()
    return _shape_on(device, n, columns, np.dtype(dtype), kind == "positive definite")


@functools.lru_cache(maxsize=1024)
def _shape_on(device, n, columns, dtype, definite):
    arch, multiprocessors = current_device.arch(device), current_device.multiprocessors()
    chip = {"arch": arch, "multiprocessors": multiprocessors}
    return across_shape(n, columns, dtype, **chip, definite=definite)
