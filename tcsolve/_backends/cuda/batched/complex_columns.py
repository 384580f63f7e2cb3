"""Solves for many complex right-hand sides with the LU of one matrix, by real products.

For each block of BLOCK unknowns, the products with all unknowns that have been solved for are subtracted.
Then one half of the block is solved for after the other, each by a product with the inverse of a diagonal
block.  `three_products` computes these products, in FP64, or with sums of two BF16 numbers, which have 16
significant bits.
"""

import cupy

from tcsolve._backends.cuda.batched.layouts import addresses_of
from tcsolve._backends.cuda.batched.library_triangles import LOWER, OP_N, UPPER, solve_triangles
from tcsolve._backends.cuda.gemm.three_products import (
    COARSE,
    COLUMNS,
    FP64,
    add_product,
    bytes_of_product,
    joined,
    planes,
)
from tcsolve._backends.cuda.runtime import current_device
from tcsolve.kernels.arch import arch_number

__all__ = ["ComplexColumns", "bytes_in_planes", "takes"]

# Smallest n and number of right-hand sides for which `ComplexColumns` is faster than getrs.
LEAST_ROWS, LEAST_COLUMNS = 6144, 1024
# Rows of a block (see above), and of a diagonal block.
BLOCK, HALF = 512, 256
# The largest loss of accuracy by inverses, as `_inverted` measures it: for a solve in FP64, and for a coarse
# solve, which uses sums of two BF16 numbers.
LARGEST_LOSS, LARGEST_COARSE_LOSS = 1e6, 1e5
# A coarse solve needs a largest pivot between these two; then entries that matter are in the range of BF16.
SMALLEST, LARGEST = 2.0**-60, 2.0**60
# Smallest compute capability with products of BF16.
COARSE_ARCH = 80


def takes(n, columns):
    """Tell whether `ComplexColumns` is faster than getrs."""
    return n >= LEAST_ROWS and columns >= LEAST_COLUMNS


def bytes_in_planes(dtype, kind, n, columns):
    """Return the bytes of planes (see `three_products`) and inverses for one system; 0 if it needs none."""
    if dtype.kind != "c":
        return 0
    product, k = bytes_of_product(n, columns), min(columns, COLUMNS)
    if kind != "general" or not takes(n, columns):
        return product
    return max(product, 24 * (n * n + k * (n + BLOCK)) + 2 * n * HALF * (16 + 24))


class ComplexColumns:
    """The factors A = U.T L.T P, where P A.T = L U, for solves by products.

    Attributes
    ----------
    serve, serve_coarsely : bool
        Whether the inverses of the diagonal blocks are accurate enough for `solve` and `solve_coarsely`.
    """

    def __init__(self, lu, order, inverses, serve, serve_coarsely):
        self._lu, self._order, (self._of_lower, self._of_upper) = lu, order, inverses
        self.serve, self.serve_coarsely = serve, serve_coarsely

    @classmethod
    def of(cls, lu, order):
        """Invert the diagonal blocks of both triangles.

        Parameters
        ----------
        lu : array, shape (n, n), complex128
            The transpose of the factors, row-major: its lower triangle is U.T, and its upper triangle L.T.
        order : array of int, shape (n,)
            Row i of P A.T is row order[i] of A.T.
        """
        blocks = _diagonal_blocks(lu)
        lower, upper = cupy.tril(blocks), cupy.triu(blocks, 1) + cupy.eye(HALF)
        (of_lower, loss_of_lower), (of_upper, loss_of_upper) = (
            _inverted(lower, UPPER),  # cuBLAS sees the transpose
            _inverted(upper, LOWER),
        )
        losses = cupy.maximum(loss_of_lower, loss_of_upper), cupy.abs(lu.diagonal()).max()
        loss, pivot = cupy.stack(losses).get().tolist()
        arch = arch_number(current_device.arch(cupy.cuda.runtime.getDevice()))
        is_near = loss <= LARGEST_COARSE_LOSS and SMALLEST < pivot < LARGEST  # False for a NaN
        coarsely = is_near and arch >= COARSE_ARCH
        return cls(lu, order, (of_lower, of_upper), loss <= LARGEST_LOSS, coarsely)

    @property
    def nbytes(self):
        return self._of_lower.nbytes + self._of_upper.nbytes

    def solve(self, rhs):
        """Overwrite the rows of rhs (1, k, n) by the solutions, and return them."""
        return self._solve(rhs, FP64)

    def solve_coarsely(self, rhs):
        """As `solve`, with sums of two BF16 numbers, which have 16 significant bits."""
        return self._solve(rhs, COARSE)

    def _solve(self, rhs, numbers):
        lu, k = planes(self._lu, numbers), rhs.shape[1]
        room = cupy.empty(3 * min(k, COLUMNS) * BLOCK, numbers.char)
        triangles = [
            _Triangle(lu, planes(inverses, numbers), is_lower, room)
            for inverses, is_lower in ((self._of_lower, True), (self._of_upper, False))
        ]
        for first in range(0, k, COLUMNS):
            self._solve_some(triangles, rhs[0, first : first + COLUMNS], numbers)
        return rhs

    def _solve_some(self, triangles, rows, numbers):
        scale = _scale(rows) if numbers is COARSE else None
        x = planes(rows, numbers, scale)
        for triangle in triangles:
            triangle.solve(x)
        joined(x, rows, self._order, scale)


class _Triangle:
    """A triangle T, given by the planes of a matrix and of the inverses of its diagonal blocks."""

    def __init__(self, lu, inverses, is_lower, room):
        self._lu, self._inverses, self._is_lower, self._room = lu, inverses, is_lower, room

    def solve(self, x):
        """Replace each row of x by T**-1 times it."""
        n = x.shape[1]
        starts = range(0, n, BLOCK)
        for first in starts if self._is_lower else reversed(starts):
            last = min(first + BLOCK, n)
            self._subtract(x, (first, last), (0, first) if self._is_lower else (last, n))
            middle = min(first + HALF, last)
            halves = (first, middle), (middle, last)
            one, two = halves if self._is_lower else reversed(halves)
            self._invert(x, one)
            self._subtract(x, two, one)
            self._invert(x, two)

    def _subtract(self, x, rows, known):
        """x[:, rows] -= x[:, known] T[rows, known].T"""
        if rows[0] < rows[1] and known[0] < known[1]:
            every = (0, x.shape[0])
            out, of = x.block(every, rows), x.block(every, known)
            add_product(out, of, self._lu.block(rows, known), -1, self._room)

    def _invert(self, x, rows):
        """x[:, rows] = x[:, rows] T[rows, rows]**-T"""
        if rows[0] < rows[1]:
            block = x.block((0, x.shape[0]), rows)
            inverse = self._inverses.block(rows, (0, rows[1] - rows[0]))
            add_product(block, block, inverse, 1, self._room, start=False)


def _scale(rows):
    """Return powers of two (k, 1), at most 2**1023, that bring the largest entry of each row near 1."""
    largest = cupy.abs(rows).max(axis=1, keepdims=True)
    exponent = cupy.minimum(-cupy.frexp(largest)[1], 1023)
    return cupy.ldexp(cupy.ones(largest.shape), exponent)


def _diagonal_blocks(lu):
    """Return a copy of the diagonal blocks (count, HALF, HALF).

    The diagonal of the last one is filled up with the last pivot.
    """
    n, step = len(lu), lu.strides[0] + lu.strides[1]
    whole, rest = divmod(n, HALF)
    blocks = cupy.empty((-(-n // HALF), HALF, HALF), lu.dtype)
    strides = (HALF * step, *lu.strides)
    blocks[:whole] = cupy.lib.stride_tricks.as_strided(lu, (whole, HALF, HALF), strides)
    if rest:
        blocks[-1] = lu[-1:, -1:] * cupy.eye(HALF)
        blocks[-1, :rest, :rest] = lu[-rest:, -rest:]
    return blocks


def _inverted(triangles, uplo):
    """Return the inverses of triangles T, one below the other, and the largest loss of accuracy.

    The residual of a product with the computed inverse is at most about u |T| |T**-1| |T| |x|.  The loss is
    the largest ratio of an entry of |T| |T**-1| |T| e to the same entry of |T| e, where e has ones.  |T|
    |T**-1| does not depend on the scaling of columns, so one small pivot does not make the loss large.
    `uplo` is the triangle that cuBLAS sees.
    """
    inverses = cupy.tile(cupy.eye(HALF, dtype=triangles.dtype), (len(triangles), 1, 1))
    solve_triangles(addresses_of(triangles), uplo, OP_N, inverses)
    size = cupy.abs(triangles)
    sums = size.sum(axis=2, keepdims=True)
    loss = size @ (cupy.abs(inverses) @ sums) / sums
    return inverses.reshape(-1, HALF), loss.max()
