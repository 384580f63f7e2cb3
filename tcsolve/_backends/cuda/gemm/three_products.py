"""Products of large complex matrices by three real products.

    (u + i v) (p + i q) = (u p - v q) + i ((u + v) (p + q) - u p - v q)

This takes three quarters of the operations of a complex product.  In norm, its error is as small as that of a
complex product (N. J. Higham, Stability of a method for multiplying complex matrices with three real matrix
multiplications, SIAM J. Matrix Anal. Appl. 13, 1992).  The *planes* of a complex matrix are u, v and u + v.
"""

from typing import Any, NamedTuple

import cupy

from tcsolve._backends.cuda.runtime.cublas_calls import gemm_of_stack
from tcsolve._backends.cuda.runtime.prepared_launch import launch, steps

__all__ = [
    "COARSE",
    "COLUMNS",
    "FP64",
    "Planes",
    "add_product",
    "bytes_of_product",
    "joined",
    "multiplies",
    "planes",
    "product",
]

# Smallest n and number of columns for which three real products are faster than one complex product.
LEAST_ROWS, LEAST_COLUMNS = 4096, 1024
# Numbers of rows and of columns of the product that are computed together.
ROWS, COLUMNS = 2048, 8192
# Number of threads of a block of three_products.cu, and largest number of blocks for the rows.
THREADS, MOST_BLOCKS = 256, 65535


class _Format(NamedTuple):
    """The numbers in planes: FP64, or sums of two BF16 numbers; such a sum has 16 significant bits."""

    precision: str  # of the products
    char: str  # of sums of products
    low: str  # of planes
    parts: int
    pairs: tuple  # (part of x, part of y) of each product, without that of the two smaller parts
    defines: dict


FP64 = _Format("fp64", "d", "d", 1, ((0, 0),), {"T_A": "double", "T_LOW": "double"})
COARSE = _Format("bf16", "f", "H", 2, ((0, 0), (0, 1), (1, 0)), {"T_A": "float", "T_LOW": "bf16"})


class Planes(NamedTuple):
    """The planes of a complex matrix or of a block of it.

    Blocks are made from addresses, because views of arrays take the host longer than a launch.
    """

    memory: Any  # the array (parts, 3, rows, columns) of the whole matrix
    numbers: _Format
    address: int
    plane: int  # number of entries between planes
    ld: int
    shape: tuple

    @classmethod
    def empty(cls, shape, numbers):
        memory = cupy.empty((numbers.parts, 3, *shape), numbers.low)
        return cls(memory, numbers, memory.data.ptr, shape[0] * shape[1], shape[1], shape)

    def block(self, rows, columns):
        """Return a block; `rows` and `columns` are pairs (first, last)."""
        (first, last), (start, stop) = rows, columns
        address = self.address + self.memory.itemsize * (first * self.ld + start)
        return self._replace(address=address, shape=(last - first, stop - start))

    def part(self, i):
        """Return the address, the leading dimension, and the number of entries between planes of a part."""
        return self.address + self.memory.itemsize * 3 * i * self.plane, self.ld, self.plane


def multiplies(a, x):
    """Tell whether `product` is faster than one complex product."""
    if not (a.dtype.char == x.dtype.char == "D" and a.ndim == x.ndim == 2):
        return False
    return min(a.shape) >= LEAST_ROWS and x.shape[1] >= LEAST_COLUMNS


def product(a, x):
    """Return a x in complex128."""
    y = cupy.empty((len(a), x.shape[1]), x.dtype)
    for first in range(0, x.shape[1], COLUMNS):
        columns = slice(first, first + COLUMNS)
        _store_product(a, planes(x[:, columns], FP64), y[:, columns])
    return y


def _store_product(a, x, y):
    """y = a x, where x is given by its planes."""
    m, r = y.shape
    room = cupy.empty(3 * min(m, ROWS) * r)
    for first in range(0, m, ROWS):
        rows = y[first : first + ROWS]
        _multiply(room, planes(a[first : first + ROWS], FP64), x, transposed=False)
        _launch("tcs_join_product", rows.shape, (rows, rows.strides[0] // 16, room), FP64)


def bytes_of_product(n, columns):
    """Return the bytes of planes and products while `product` runs, or 0 if one complex product is faster."""
    if n < LEAST_ROWS or columns < LEAST_COLUMNS:
        return 0
    k = min(columns, COLUMNS)
    return 24 * (n * k + ROWS * (n + k))


def planes(z, numbers, scale=None):
    """Return the `Planes` of a matrix z; with `scale`, row i is multiplied by the power of two scale[i]."""
    x = Planes.empty(z.shape, numbers)
    _launch("tcs_planes", z.shape, (x.memory, x.plane, x.ld, *steps(z), scale), numbers)
    return x


def add_product(out, x, y, sign, room, *, start=True):
    """out = out + sign x y.T for three `Planes`; without `start`, out = sign x y.T.

    `room` is an array for the three products.  out may be x.
    """
    _multiply(room, x, y, transposed=True)
    args = out.address, out.plane, out.ld, room, float(sign), int(start)
    _launch("tcs_add_product", out.shape, args, out.numbers)


def joined(x, z, order, scale=None):
    """Store the complex matrix with planes x in z, column j as column order[j]; `scale` is undone."""
    args = z, z.strides[0] // z.itemsize, order, scale, x.memory, x.plane, x.ld
    _launch("tcs_join_planes", x.shape, args, x.numbers)


def _multiply(room, x, y, *, transposed):
    """Store the three products of x and y, or of x and y.T, in `room`."""
    (m, k), r = x.shape, y.shape[0 if transposed else 1]
    out = room.data.ptr, r, m * r
    for number, (i, j) in enumerate(x.numbers.pairs):
        how = min(number, 1), transposed, x.numbers.precision
        gemm_of_stack((3, m, r, k), out, x.part(i), y.part(j), how)


def _launch(entry, shape, args, numbers):
    grid = -(-shape[1] // THREADS), min(shape[0], MOST_BLOCKS)
    entry = "three_products", entry
    launch(entry, grid, (THREADS, 1), (*args, *shape), numbers.defines)
