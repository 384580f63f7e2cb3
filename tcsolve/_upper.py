"""Inverses of upper triangles of FP32 on a device."""

import cupy

from tcsolve import _cublas
from tcsolve._cublas import ld
from tcsolve._substitute import invert_diagonal_blocks

__all__ = ["upper_inverse"]


def upper_inverse(u):
    """Return U**-1, U the well-conditioned upper triangle of u, of whole diagonal blocks of TRSV_BLOCK.

    The blocks of the diagonal all at once; then triangles twice as large are made of two and what is between
    them: [A, B; 0, C]**-1 = [A**-1, -A**-1 B C**-1; 0, C**-1].
    """
    (_, blocks), _ = invert_diagonal_blocks(u)
    count, size, _ = blocks.shape
    x = cupy.zeros_like(u, order="C")
    along = size * (ld(x) + 1)
    diagonal = cupy.ndarray(blocks.shape, x.dtype, x.data, strides=(4 * along, 4 * ld(x), 4))
    diagonal[...] = blocks
    k = len(u)
    while size < k:
        count, left = divmod(k, 2 * size)
        if count:
            _join(x, u, 0, count, size, size)
        if left > size:
            _join(x, u, k - left, 1, size, left - size)
        size *= 2
    return x


def _join(x, u, first, count, size, columns):
    """Join `count` pairs of inverted triangles from row `first` on, of `size` and of so many columns."""
    up, right = slice(first, first + size), slice(first + size, first + size + columns)
    between = cupy.empty((count, size, columns), cupy.float32)
    step = 2 * size
    along_x, along_u = step * (ld(x) + 1), step * (ld(u) + 1)
    own = (between[0], size * columns)
    _cublas.gemm_strided(*own, u[up, right], along_u, x[right, right], along_x, 1, count)
    _cublas.gemm_strided(x[up, right], along_x, x[up, up], along_x, *own, -1, count)
