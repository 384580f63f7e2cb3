"""Launches of short_update.cu: C -= L U for a few columns and a short U, operands as they are."""

import functools

import cupy

from tcsolve import _jit
from tcsolve._cublas import ld
from tcsolve.kernels import short_shape

__all__ = ["Operand"]


class Operand:
    """L (m x k), FP32, rows on 16-byte boundaries, to compute C -= L U by three TF32 products."""

    def __init__(self, l):
        self._l = l

    def subtract(self, c, u, share, first=0):
        """c -= l u, with l from row `first` on; rows of c and u start on 16-byte boundaries, too."""
        (m, n), l = c.shape, self._l[first:]
        shape = short_shape(n)
        grid, block = shape.grid(m, n), (shape.threads, 1)
        args = c, ld(c), l, ld(l), u, ld(u), m, n, len(u)
        _kernel(cupy.cuda.runtime.getDevice(), shape)(grid, block, args, shared=shape.shared_bytes)


@functools.cache
def _kernel(device, shape):
    return _jit.kernel("short_update", "tcs_short_update", **shape.defines)
