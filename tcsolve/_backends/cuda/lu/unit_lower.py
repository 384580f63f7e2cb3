"""Substitution with unit lower triangles of FP32 on a device: L**-1 B and L**-1.

If L is too large for one launch, or B has many columns, L is divided recursively into two parts.
"""

import functools

import cupy

from tcsolve._backends.cuda.lu.rules import SOLVE_WIDTH
from tcsolve._backends.cuda.runtime import compiler, cublas_calls, current_device
from tcsolve._backends.cuda.runtime.cublas_calls import ld
from tcsolve.kernels.launch_shapes import lower_shape, swap_shape

__all__ = ["invert", "solve", "swap_solve", "takes"]


def takes(k, n):
    """Tell whether lower_solve.cu can hold k unknowns and is the fastest kernel for n columns.

    It is the fastest if n is so small that each multiprocessor reads L only once.
    """
    shape = _lower_shape(k)
    return shape is not None and n <= shape.columns * current_device.multiprocessors()


def solve(l, b, swaps=None):
    """b := L**-1 b in place, where L is the unit lower triangle of l; its rows start on 16-byte boundaries.

    With `swaps`, a result of `row_swaps.merge_swaps`, b also has all rows below those of L.  The rows of b
    are swapped before the solve.  `swaps` may be given only if takes(k, n) is True.
    """
    k, n = len(l), b.shape[1]
    if swaps is not None or (k > SOLVE_WIDTH and takes(k, n)):
        _lower_solve(l, (b, ld(b)), (b, ld(b)), n, swaps=swaps)
    elif k <= SOLVE_WIDTH:
        swap_solve(n, k, (b, ld(b), n, 0, None, None, l, ld(l), k, 0))
    else:
        above, below = _halves(k)
        solve(l[above, above], b[above])
        cublas_calls.gemm(b[below], l[below, above], b[above])
        solve(l[below, below], b[below])


def invert(l, x):
    """x := L**-1, by substitution in L X = I."""
    k = len(l)
    if _lower_shape(k):
        _lower_solve(l, (None, 0), (x, ld(x)), k)
    else:
        above, below = _halves(k)
        x[above, below] = x[below, above] = 0
        invert(l[above, above], x[above, above])
        invert(l[below, below], x[below, below])
        cublas_calls.gemm(x[below, above], l[below, above], x[above, above])
        solve(l[below, below], x[below, above])


def _halves(k):
    """Return slices of two parts of k; the first is SOLVE_WIDTH times a power of two.

    So there are few products, with large inner dimensions.
    """
    half = SOLVE_WIDTH << ((k - 1) // SOLVE_WIDTH).bit_length() - 1
    return slice(half), slice(half, None)


def _lower_solve(l, b, out, n, *, swaps=None):
    k, shape = len(l), _lower_shape(len(l))
    kernel = compiler.kernel("lower_solve", "tcs_lower_solve", **shape.defines)
    swaps = swaps or (None, None, None)
    grid, args = (-(-n // shape.columns), 1), (*b, *out, n, l, ld(l), k, *swaps)
    kernel(grid, (shape.threads, 1), args, shared=shape.shared_bytes(k))


def _lower_shape(k):
    """Return the `LowerShape` for k unknowns, or None if there are too many."""
    return _shape_on(cupy.cuda.runtime.getDevice(), k)


@functools.cache
def _shape_on(device, k):
    return lower_shape(k, current_device.arch(device))


@functools.cache
def _swap_kernel(device, shape):
    return compiler.kernel("swap_solve", "tcs_swap_solve", **shape.defines)


def swap_solve(n, rows, args, count=1):
    """Launch tcs_swap_solve on n columns for `count` triangles; it holds `rows` rows in shared memory."""
    device = cupy.cuda.runtime.getDevice()
    shape = swap_shape(n * count, rows, current_device.arch(device))
    grid, block = (-(-n // shape.columns), count), (shape.threads, 1)
    _swap_kernel(device, shape)(grid, block, args, shared=shape.shared_bytes(rows))
