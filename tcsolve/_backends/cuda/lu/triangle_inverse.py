"""Inverses of FP32 triangles on a device, for many right-hand sides.

Well-conditioned triangles are inverted by doubling.  First all diagonal blocks are inverted, then pairs of
inverted triangles are joined to one of twice the size: [A, 0; C, B]**-1 = [A**-1, 0; -B**-1 C A**-1, B**-1].
Upper triangles are joined in the same way.
"""

import functools

import cupy

from tcsolve._backends.cuda.lu.rules import SOLVE_WIDTH
from tcsolve._backends.cuda.lu.substitution import invert_diagonal_blocks
from tcsolve._backends.cuda.lu.unit_lower import invert, swap_solve
from tcsolve._backends.cuda.runtime import cublas_calls
from tcsolve._backends.cuda.runtime.cublas_calls import ld

__all__ = ["unit_lower_inverse", "upper_inverse"]


def unit_lower_inverse(l, well_conditioned):
    """Return L**-1, where L is the unit lower triangle of l; rows of l start on 16-byte boundaries.

    A `well_conditioned` L is inverted by doubling.  Others are inverted by substitution in L X = I, which
    takes longer and has a smaller residual (N. J. Higham, Accuracy and Stability of Numerical Algorithms,
    section 14.2).
    """
    k = len(l)
    if not well_conditioned:
        x = cupy.empty((k, k), cupy.float32)
        invert(l, x)
        return x
    x = _diagonal(k, 1.0)
    args = (x, ld(x), k, 0, None, None, l, ld(l), k, SOLVE_WIDTH)
    swap_solve(SOLVE_WIDTH, SOLVE_WIDTH, args, -(-k // SOLVE_WIDTH))
    _double(x, l, SOLVE_WIDTH, lower=True)
    return x


def upper_inverse(u):
    """Return U**-1, where U is the well-conditioned upper triangle of u.

    The number of rows is a multiple of TRSV_BLOCK["f"].
    """
    (_, blocks), _ = invert_diagonal_blocks(u)
    size = blocks.shape[1]
    x = _diagonal(len(u), 0.0)
    strides = 4 * size * (ld(x) + 1), 4 * ld(x), 4
    cupy.ndarray(blocks.shape, x.dtype, x.data, strides=strides)[...] = blocks
    _double(x, u, size, lower=False)
    return x


def _diagonal(k, value):
    """Return `value` times the k x k identity; a kernel fills it, because a memset in a graph is slower."""
    x = cupy.empty((k, k), cupy.float32)
    _fill_diagonal()(k, value, x.ravel())
    return x


@functools.cache
def _fill_diagonal():
    text = "x = i % (k + 1) ? 0.0f : value"
    return cupy.ElementwiseKernel("int64 k, float32 value", "float32 x", text, "tcs_invert_from")


def _double(x, t, size, lower):
    """Compute in x the inverse of a triangle of t; x begins as the inverses of blocks of `size` rows."""
    k = len(x)
    while size < k:
        count, left = divmod(k, 2 * size)
        if count:
            _join(x, t, (0, size, size), count, lower)
        if left > size:
            _join(x, t, (k - left, size, left - size), 1, lower)
        size *= 2


def _join(x, t, pair, count, lower):
    """Join `count` pairs of inverted triangles.

    `pair` has the first row of the first pair, and the numbers of rows of both triangles of a pair.
    """
    first, size, rest = pair
    one, two = slice(first, first + size), slice(first + size, first + size + rest)
    rows, columns = (two, one) if lower else (one, two)
    shape = (rest, size) if lower else (size, rest)
    between = cupy.empty((count, *shape), cupy.float32)
    step = 2 * size
    along_x, along_t = step * (ld(x) + 1), step * (ld(t) + 1)
    own = between[0], size * rest
    inner, outer = (x[columns, columns], along_x), (x[rows, rows], along_x)
    cublas_calls.gemm_strided(own, (t[rows, columns], along_t), inner, 1, count)
    cublas_calls.gemm_strided((x[rows, columns], along_x), outer, own, -1, count)
