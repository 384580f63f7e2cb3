"""Unit lower triangles of FP32 on a device: L**-1 B by substitution and by halves."""

import functools

import cupy

from tcsolve import _cublas, _device, _jit, _short
from tcsolve._cublas import ld
from tcsolve.kernels import swap_shape

__all__ = ["SOLVE_WIDTH", "solve", "swap_solve"]

# Unknowns one launch of tcs_swap_solve takes.
SOLVE_WIDTH = 128


def solve(l, b):
    """b := L**-1 b in place, L the unit lower triangle of l; rows of l start on 16-byte boundaries."""
    k, n = b.shape
    if k <= SOLVE_WIDTH:
        swap_solve(n, k, (b, ld(b), n, 0, None, None, l, ld(l), k, 0))
        return
    # By halves, whole widths above: the products are few and deep.
    half = SOLVE_WIDTH << ((k - 1) // SOLVE_WIDTH).bit_length() - 1
    above, below = slice(half), slice(half, None)
    solve(l[above, above], b[above])
    subtract = _short.subtract if _short.takes(l, b) else _cublas.gemm
    subtract(b[below], l[below, above], b[above])
    solve(l[below, below], b[below])


@functools.cache
def _swap_kernel(device, shape):
    return _jit.kernel("swap_solve", "tcs_swap_solve", **shape.defines)


def swap_solve(n, rows, args, count=1):
    """Launch tcs_swap_solve on n columns with that many rows on the move, `count` times side by side."""
    device = cupy.cuda.runtime.getDevice()
    shape = swap_shape(n * count, rows, _device.arch(device))
    grid, block = (-(-n // shape.columns), count), (shape.threads, 1)
    _swap_kernel(device, shape)(grid, block, args, shared=shape.shared_bytes(rows))
