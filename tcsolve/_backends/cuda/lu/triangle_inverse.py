"""Inverses of triangles of FP32 on a device, for many right-hand sides.

By doubling: blocks of the diagonal, all at once, then triangles twice as large are made of two and what is
between them: [A, 0; C, B]**-1 = [A**-1, 0; -B**-1 C A**-1, B**-1], and likewise above the diagonal.
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
    """Return L**-1, L the unit lower triangle of l, whose rows start on 16-byte boundaries.

    One that is `well_conditioned` by doubling; others by substitution in L X = I, which takes longer and
    leaves a smaller residual (N. J. Higham, Accuracy and Stability of Numerical Algorithms, section 14.2).
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
    """Return U**-1, U the well-conditioned upper triangle of u, of whole blocks of TRSV_BLOCK["f"] rows."""
    (_, blocks), _ = invert_diagonal_blocks(u)
    size = blocks.shape[1]
    x = _diagonal(len(u), 0.0)
    strides = 4 * size * (ld(x) + 1), 4 * ld(x), 4
    cupy.ndarray(blocks.shape, x.dtype, x.data, strides=strides)[...] = blocks
    _double(x, u, size, lower=False)
    return x


def _diagonal(k, value):
    """Return value times the identity of k rows; by a kernel, since in a graph a memset waits for longer."""
    x = cupy.empty((k, k), cupy.float32)
    _fill_diagonal()(k, value, x.ravel())
    return x


@functools.cache
def _fill_diagonal():
    text = "x = i % (k + 1) ? 0.0f : value"
    return cupy.ElementwiseKernel("int64 k, float32 value", "float32 x", text, "tcs_invert_from")


def _double(x, t, size, lower):
    """Make the inverse of a triangle of t from those of its diagonal blocks, of `size` rows, which x has."""
    k = len(x)
    while size < k:
        count, left = divmod(k, 2 * size)
        if count:
            _join(x, t, 0, count, size, size, lower)
        if left > size:
            _join(x, t, k - left, 1, size, left - size, lower)
        size *= 2


def _join(x, t, first, count, size, rest, lower):
    """Join `count` pairs of inverted triangles from row `first` on, of `size` rows and of `rest`."""
    one, two = slice(first, first + size), slice(first + size, first + size + rest)
    rows, columns = (two, one) if lower else (one, two)
    shape = (rest, size) if lower else (size, rest)
    between = cupy.empty((count, *shape), cupy.float32)
    step = 2 * size
    along_x, along_t = step * (ld(x) + 1), step * (ld(t) + 1)
    own = (between[0], size * rest)
    cublas_calls.gemm_strided(
        *own, t[rows, columns], along_t, x[columns, columns], along_x, 1, count
    )
    cublas_calls.gemm_strided(x[rows, columns], along_x, x[rows, rows], along_x, *own, -1, count)
