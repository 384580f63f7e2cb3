"""Products for residuals on a device, whose sums have short chains of additions.

cuBLAS sums all n products of an entry one after the other.  If all these additions round in one direction,
the error of a residual is many times the bound that the residual has to meet.  Here the sum is made of sums
of c products, with c from 2 sqrt(n) to 4 sqrt(n).

For many columns this would take up to twice the time.  So the long sums are kept if a check finds no such
rounding.  The check compares A (X S) by short sums with (A X) S: each column of S adds some columns of X with
random signs.  The signs do not depend on the rounding errors of the columns, so the error of such a sum is
rarely much smaller than that of one column.
"""

import math

import cupy
import numpy as np

from tcsolve._arithmetic.matrix_parts import SUMMED_COLUMNS, short_sum, sums_at_once
from tcsolve._backends.cuda.gemm import three_products
from tcsolve._backends.cuda.lu.first_steps import COMBINATIONS, column_max, combined
from tcsolve._backends.cuda.norms import col_stats
from tcsolve._backends.cuda.runtime.cublas_calls import gemm_in_blocks, gemv

__all__ = ["checked", "product"]

# Up to this n a product is one block.  Beyond SUMMED_COLUMNS columns, long sums are formed and checked.
ONE_BLOCK = 32
# The number of columns of a column-major matrix that one call of gemv multiplies; gemv has several chains for
# each entry.
GEMV_COLUMNS = 1024
# The sums that a check of Y = A X forms at once may together have 1 / CHECK_ROOM times as many entries as Y
# (see `sums_at_once`).  With few sums at once, a check takes several times as long.
CHECK_ROOM = 8
# The error of a long sum that is allowed, in units of u sqrt(n) ||A|| ||x||, for the average column.
ALLOWED = 4


def product(a, x, room=0):
    """Return A x for a (m, n) and x (n, k) in FP64 or complex FP64; for many columns by long sums.

    The short sums that are formed at once may have `room` entries in any case (see `sums_at_once`).
    """
    n, k = x.shape
    if n <= ONE_BLOCK or not (a.size and x.size):
        return a @ x
    if k > SUMMED_COLUMNS:
        return three_products.product(a, x) if three_products.multiplies(a, x) else a @ x
    return (
        _times_vector(a, x) if k == 1 and a.dtype == x.dtype == float else _times_matrix(a, x, room)
    )


def checked(y, x, times, row_sums):
    """Return y = A x, with short sums in place of long ones whose rounding errors do not look random.

    Parameters
    ----------
    y, x : arrays, shapes (m, k) and (n, k)
        y may be overwritten.
    times : callable, (n, k), room=0 -> (m, k)
        Multiplies by A, with `product`.
    row_sums : callable, () -> array (chunks, m)
        Returns sum |a_ij| of each row over chunks of columns.
    """
    n, k = x.shape
    if k <= SUMMED_COLUMNS or n <= ONE_BLOCK or not y.size:
        return y
    sizes = col_stats(x, None)[0].max(axis=0)
    of_x, of_y = (combined(v, sizes) for v in (x, y))
    # The host compares these numbers: on the device, each operation would be a launch.
    errors, sums = column_max(times(of_x, y.size // CHECK_ROOM) - of_y), row_sums()
    error, norm = errors.get().max(), sums.get().sum(axis=0).max()
    # The columns are scaled so that max |x| of each is from 1 to 2, and then added with random signs.
    allowed = ALLOWED * 2.0**-53 * math.sqrt(n) * math.sqrt(k / COMBINATIONS)
    if error > allowed * norm:  # False for NaN
        for first in range(0, k, SUMMED_COLUMNS):
            some = slice(first, first + SUMMED_COLUMNS)
            y[:, some] = times(x[:, some])
    return y


def _times_vector(a, x):
    """Return A x for x (n, 1); for a row-major matrix, gemv itself divides the sums."""
    a, x = _with_runs(a), _with_runs(x)
    y = cupy.empty((len(a), 1))
    step = len(x) if a.strides[1] == a.itemsize else GEMV_COLUMNS
    for first in range(0, len(x), step):
        some = slice(first, first + step)
        gemv(y[:, 0], a[:, some], x[some, 0], beta=int(first > 0))
    return y


def _times_matrix(a, x, room):
    """Return A x; several blocks are multiplied at once, so that they fill the device."""
    dtype = np.result_type(a, x)
    a, x = (_with_runs(v.astype(dtype, copy=False)) for v in (a, x))
    (m, n), k, c = a.shape, x.shape[1], short_sum(len(x))
    at_once = sums_at_once(m, n, k, room)
    sums = cupy.empty((at_once, m, k), x.dtype)
    gemm_in_blocks(sums, a, x, c)
    return sums.sum(axis=0) if at_once > 1 else sums[0]


def _with_runs(v):
    """Return v if its rows or its columns are contiguous and do not overlap, as cuBLAS needs; else a copy."""
    (m, n), (row, column) = v.shape, (step // v.itemsize for step in v.strides)
    has_rows = (column == 1 or n == 1) and (row >= n or m == 1)
    has_columns = (row == 1 or m == 1) and (column >= m or n == 1)
    return v if has_rows or has_columns else v.copy(order="C")
