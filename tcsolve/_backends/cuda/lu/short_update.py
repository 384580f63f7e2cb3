"""Launches of short_update.cu: C -= L U for L with few columns; the operands need no preparation."""

import functools

import cupy

from tcsolve._backends.cuda.gemm.layout import aligned
from tcsolve._backends.cuda.runtime import compiler, current_device
from tcsolve._backends.cuda.runtime.cublas_calls import ld
from tcsolve._paths import paths
from tcsolve.kernels.arch import HOPPER, arch_number
from tcsolve.kernels.launch_shapes import short_shape

__all__ = ["Operand", "subtract", "takes"]


def takes(*operands):
    """Tell whether short_update.cu supports these views, and is known to be fast on this device."""
    arch = current_device.arch(cupy.cuda.runtime.getDevice())
    fast = paths().short_update and arch_number(arch) == HOPPER
    return fast and all(x.dtype.char == "f" and aligned(x) for x in operands)


def subtract(c, l, u):
    """c -= l u, by three TF32 products."""
    (m, n), shape = c.shape, short_shape(c.shape[1])
    kernel = _kernel(cupy.cuda.runtime.getDevice(), shape)
    args = c, ld(c), l, ld(l), u, ld(u), m, n, len(u)
    kernel(shape.grid(m, n), (shape.threads, 1), args, shared=shape.shared_bytes)


class Operand:
    """The operand L (m x k), without preparation."""

    def __init__(self, l):
        self._l = l

    def subtract(self, c, u, share, first=0):
        """c -= l u, where l begins at row `first` of L."""
        subtract(c, self._l[first : first + len(c)], u)


@functools.cache
def _kernel(device, shape):
    return compiler.kernel("short_update", "tcs_short_update", **shape.defines)
