"""Triangular solves of many right-hand sides with FP32 factors, by products of cuBLAS.

A triangle is halved until its blocks are those with known inverses.  A diagonal block is solved by a product
with its inverse, and the other blocks are multiplied.  The host takes longer to launch these products than
the device takes to compute them, so they are recorded if the factors are on a tape.
"""

import cupy

from tcsolve._backends.cuda.runtime.cublas_calls import gemm_at, ld
from tcsolve._backends.cuda.runtime.recorded_graphs import tape_of

__all__ = ["solve_triangles", "takes"]

# The numbers of columns with recorded graphs.  Other numbers are padded with columns of zeros, so that few
# graphs are made, although the number of columns falls as columns converge.
RECORDED = (32, 64, 128, 256, 512, 1024)
# From this n on, products are also faster than trsm if they are launched one by one.
LEAST_LAUNCHED = 8192


def takes(lu, inverses, k):
    """Tell whether `solve_triangles` is faster than trsm for k right-hand sides."""
    if inverses is None or lu.dtype.char != "f":
        return False
    return len(lu) >= LEAST_LAUNCHED or k <= RECORDED[-1] and tape_of(lu) is not None


def solve_triangles(lu, order, adjoint, inverses, b):
    """Return A**-1 b, or A**-T b, where A[order] = L U.

    Parameters
    ----------
    lu : array, shape (n, n), float32, row-major
    order : array of int, shape (n,)
    adjoint : bool
    inverses : array, shape (2, count, size, size), float32
        The inverses of the diagonal blocks, as `invert_diagonal_blocks` returns them.
    b : array, shape (n, k), float32
    """
    (n, k), tape = b.shape, tape_of(lu)
    recorded = tape is not None and k <= RECORDED[-1]
    width = next(width for width in RECORDED if k <= width) if recorded else k
    x = (cupy.empty if width == k else cupy.zeros)((n, width), lu.dtype)
    x[:, :k] = b if adjoint else b[order]

    def body(x):
        return _solved(lu, inverses, adjoint, x.reshape(n, width))

    if recorded:
        x = tape.apply(("many columns", width, adjoint), (x.ravel(),), body, (inverses.data.ptr,))
    else:
        x = body(x)
    if not adjoint:
        return x[:, :k]
    y = cupy.empty((n, k), lu.dtype)
    y[order] = x[:, :k]
    return y


def _solved(lu, inverses, adjoint, x):
    """Solve with L, then with U; if adjoint, with U**T, then with L**T.  The result is in the memory of x."""
    y = cupy.empty_like(x)
    for lower in (not adjoint, adjoint):
        _Triangle(lu, inverses[0 if lower else 1], lower, adjoint, x, y).solve(0, len(x))
        x, y = y, x
    return x


class _Triangle:
    """The solve op(T) y = x with a triangle T of the factors; op(T) is T or its transpose.  x is overwritten.

    Addresses are computed here, because making views of arrays takes the host longer than the launches.
    """

    def __init__(self, lu, inverses, lower, adjoint, x, y):
        self._lu, self._ld, self._size = lu.data.ptr, ld(lu), inverses.shape[-1]
        self._inverses, self._x, self._y = inverses.data.ptr, x.data.ptr, y.data.ptr
        self._forward, self._adjoint, self._columns = lower != adjoint, adjoint, x.shape[1]

    def solve(self, first, last):
        """Solve for the rows from `first` to `last`."""
        size = self._size
        if last - first <= size:
            block, rows = (self._inverses + 4 * first * size, size), (first, last)
            self._multiply(rows, rows, block, (1, 0), to=self._y, of=self._x)
            return
        middle = first + size * (-(-(last - first) // size) // 2)
        one, two = (first, middle), (middle, last)
        if not self._forward:
            one, two = two, one
        self.solve(*one)
        row, column = (one, two) if self._adjoint else (two, one)
        block = self._lu + 4 * (row[0] * self._ld + column[0]), self._ld
        self._multiply(two, one, block, (-1, 1), to=self._x, of=self._y)
        self.solve(*two)

    def _multiply(self, rows, columns, block, scale, *, to, of):
        """to[rows] = alpha op(block) of[columns] + beta to[rows], where `scale` is (alpha, beta)."""
        (first, last), (start, stop), width = rows, columns, self._columns
        shape = last - first, width, stop - start
        result, factor = to + 4 * first * width, of + 4 * start * width
        gemm_at(shape, (result, width), block, (factor, width), scale, self._adjoint)
