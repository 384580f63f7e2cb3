"""Products for residuals on a device, whose sums have short chains of additions.

cuBLAS sums all n products of an entry one after the other.  If all these additions round in one direction,
the error of a residual is many times the bound that the residual has to meet.  Here the sum is made of sums
of c products, with c from 2 sqrt(n) to 4 sqrt(n).  For many columns this would take up to twice the time.
"""

import cupy
import numpy as np

from tcsolve._arithmetic.matrix_parts import power_of_two_from
from tcsolve._backends.cuda.gemm import three_products
from tcsolve._backends.cuda.runtime.cublas_calls import gemm_in_blocks, gemv

__all__ = ["product"]

# Up to this n, and beyond this number of columns, a product is one block.
ONE_BLOCK, MOST_COLUMNS = 32, 256
# The number of columns that one call of gemv multiplies; it has several chains for each entry.
GEMV_COLUMNS = 1024
# All sums of one call have at most ENTRIES entries, or those of A divided by ROOM; one sum is always allowed.
ROOM, ENTRIES = 64, 1 << 16


def product(a, x):
    """Return A x for a (m, n) and x (n, k) in FP64 or complex FP64."""
    n, k = x.shape
    if three_products.multiplies(a, x):
        return three_products.product(a, x)
    if n <= ONE_BLOCK or k > MOST_COLUMNS or not (a.size and x.size):
        return a @ x
    dtype = np.result_type(a, x)
    a, x = (_with_runs(v.astype(dtype, copy=False)) for v in (a, x))
    return _times_vector(a, x) if k == 1 and dtype.char == "d" else _times_matrix(a, x)


def _times_vector(a, x):
    """Return A x for x (n, 1); gemv splits the rows of a row-major matrix."""
    y = cupy.empty((len(a), 1))
    step = len(x) if a.strides[1] == a.itemsize else GEMV_COLUMNS
    for first in range(0, len(x), step):
        some = slice(first, first + step)
        gemv(y[:, 0], a[:, some], x[some, 0], beta=int(first > 0))
    return y


def _times_matrix(a, x):
    """Return A x; several blocks are multiplied at once, so that they fill the device."""
    (m, n), k, c = a.shape, x.shape[1], power_of_two_from(2 * len(x) ** 0.5)
    at_once = max(1, min(n // c, max(m * n // ROOM, ENTRIES) // (m * k)))
    sums = cupy.empty((at_once, m, k), x.dtype)
    gemm_in_blocks(sums, a, x, c)
    return sums.sum(axis=0) if at_once > 1 else sums[0]


def _with_runs(v):
    """Return v if its rows or its columns are contiguous and do not overlap, as for cuBLAS; else a copy."""
    (m, n), (row, column) = v.shape, (step // v.itemsize for step in v.strides)
    has_rows = (column == 1 or n == 1) and (row >= n or m == 1)
    has_columns = (row == 1 or m == 1) and (column >= m or n == 1)
    return v if has_rows or has_columns else v.copy(order="C")
