"""Unit lower triangles of FP32 on a device: L**-1 B by substitution and by halves, and inverses."""

import functools

import cupy

from tcsolve import _cublas, _device, _jit
from tcsolve._cublas import ld
from tcsolve.kernels import swap_shape

__all__ = ["SOLVE_WIDTH", "inverse", "solve", "swap_solve"]

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
    _cublas.gemm(b[below], l[below, above], b[above])
    solve(l[below, below], b[below])


def inverse(l, well_conditioned):
    """Return L**-1, L the unit lower triangle of l, whose rows start on 16-byte boundaries.

    One that is `well_conditioned` by blocks of the diagonal, all at once; then triangles twice as large are
    made of two and what is between them: [A, 0; C, B]**-1 = [A**-1, 0; -B**-1 C A**-1, B**-1].  Others by
    substitution in L X = I, which takes longer and leaves a smaller residual (N. J. Higham, Accuracy and
    Stability of Numerical Algorithms, section 14.2).
    """
    k = len(l)
    x = cupy.eye(k, dtype=cupy.float32)
    if not well_conditioned:
        solve(l, x)
        return x
    args = (x, ld(x), k, 0, None, None, l, ld(l), k, SOLVE_WIDTH)
    swap_solve(SOLVE_WIDTH, SOLVE_WIDTH, args, -(-k // SOLVE_WIDTH))
    size = SOLVE_WIDTH
    while size < k:
        count, left = divmod(k, 2 * size)
        if count:
            _join(x, l, 0, count, size, size)
        if left > size:
            _join(x, l, k - left, 1, size, left - size)
        size *= 2
    return x


def _join(x, l, first, count, size, rows):
    """Join `count` pairs of inverted triangles from row `first` on, of `size` and of so many rows."""
    left, down = slice(first, first + size), slice(first + size, first + size + rows)
    between = cupy.empty((count, rows, size), cupy.float32)
    step = 2 * size
    along_x, along_l = step * (ld(x) + 1), step * (ld(l) + 1)
    own = (between[0], rows * size)
    _cublas.gemm_strided(*own, l[down, left], along_l, x[left, left], along_x, 1, count)
    _cublas.gemm_strided(x[down, left], along_x, x[down, down], along_x, *own, -1, count)


@functools.cache
def _swap_kernel(device, shape):
    return _jit.kernel("swap_solve", "tcs_swap_solve", **shape.defines)


def swap_solve(n, rows, args, count=1):
    """Launch tcs_swap_solve on n columns with that many rows on the move, `count` times side by side."""
    device = cupy.cuda.runtime.getDevice()
    shape = swap_shape(n * count, rows, _device.arch(device))
    grid, block = (-(-n // shape.columns), count), (shape.threads, 1)
    _swap_kernel(device, shape)(grid, block, args, shared=shape.shared_bytes(rows))
