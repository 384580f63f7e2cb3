"""Maxima and sums of the rows and columns of a matrix on a device, by kernels that read it once."""

import functools

import cupy

from tcsolve._arithmetic.matrix_parts import parts
from tcsolve._backends.cuda.lu.first_steps import column_max
from tcsolve._backends.cuda.runtime import compiler
from tcsolve._backends.cuda.runtime.current_device import turns_into_memory_error

__all__ = ["DeviceRowStats", "col_stats", "row_major", "row_stats", "scale_launch"]

# Number of rows that one block of tcs_col_stats sums, and the smaller number for up to SMALL_ROWS rows, where
# there would otherwise be too few blocks.
ROWS_PER_CHUNK, ROWS_PER_SMALL_CHUNK, SMALL_ROWS = 512, 64, 4096


class DeviceRowStats:
    """The `RowStats` of a diag(s), where s is `col_scale`; None stands for ones."""

    def __init__(self, a, col_scale):
        self._a, self._scale = a, col_scale

    @property
    @turns_into_memory_error
    def top(self):
        m, n = self._a.shape
        if self._scale is None and m < n and self._a.dtype.char in "dD":
            return column_max(self._a.T)  # many blocks work on each row
        return self._in_chunks()[0].max(axis=0)

    @property
    @turns_into_memory_error
    def total(self):
        totals = self._in_chunks()[1]
        return totals[0] if len(totals) == 1 else totals.sum(axis=0)

    def _in_chunks(self):
        """Return the maxima and the sums over chunks of columns, both (chunks, m)."""
        a, scale = self._a, self._scale
        return row_stats(a) if scale is None else col_stats(a.T, scale)


def row_stats(a):
    """Return max |a_ij| and sum |a_ij| of each row over chunks of columns, both (chunks, m)."""
    if not a.flags.c_contiguous:
        if a.flags.f_contiguous:
            return col_stats(a.T, None)
        found = [row_stats(part) for _, part, _ in row_major(a)]
        return [cupy.concatenate(x, axis=1) for x in zip(*found, strict=True)]
    m, n = a.shape
    top, total = cupy.empty((1, m)), cupy.empty((1, m))
    grid = (-(-m // 8), 1)
    launch = scale_launch("tcs_row_stats", a.dtype.char, grid, (32, 8), 6)
    launch(enumerate((top.data.ptr, total.data.ptr, a.data.ptr, n, m, n)))
    return top, total


def col_stats(a, row_scale):
    """Return max r_i |a_ij| and sum r_i |a_ij| of each column over chunks of rows, both (chunks, n)."""
    if not a.flags.c_contiguous:
        if a.flags.f_contiguous and row_scale is None:
            return row_stats(a.T)
        found = [col_stats(*part) for _, *part in row_major(a, row_scale)]
        tops, totals = zip(*found, strict=True)
        top = cupy.stack([x.max(axis=0) for x in tops])
        return top, cupy.stack([x.sum(axis=0) for x in totals])
    m, n = a.shape
    rows = ROWS_PER_SMALL_CHUNK if m <= SMALL_ROWS else ROWS_PER_CHUNK
    chunks = -(-m // rows)
    top, total = cupy.empty((chunks, n)), cupy.empty((chunks, n))
    grid = (-(-n // 128), chunks)
    launch = scale_launch("tcs_col_stats", a.dtype.char, grid, (128, 1), 8)
    scale = 0 if row_scale is None else row_scale.data.ptr
    launch(enumerate((top.data.ptr, total.data.ptr, a.data.ptr, n, m, n, scale, rows)))
    return top, total


def scale_launch(entry, char, grid, block, count):
    """Return the prepared launch of an entry of survey.cu; all of its `count` arguments are placeholders."""
    return _launch_on(cupy.cuda.runtime.getDevice(), entry, char, grid, block, count)


@functools.lru_cache(maxsize=1024)
def _launch_on(device, entry, char, grid, block, count):
    real = "float" if char in "fF" else "double"
    kernel = compiler.kernel("survey", entry, T_IN=real, COMPLEX=int(char in "FD"))
    return kernel.prepared(grid, block, [0] * count, 0)


def row_major(a, row_scale=None):
    """Yield (slice of rows, these rows of a, their scales); the rows are row-major.

    If a is row-major, there is one slice, of all rows.  Otherwise a is copied part by part.
    """
    if a.flags.c_contiguous:
        yield slice(None), a, row_scale
        return
    some, copy = parts(*a.shape), None
    for rows in some:
        part = a[rows]
        # All parts share one buffer.  The stream runs in order: a part is read before the next one is copied.
        copy = cupy.empty(part.shape, a.dtype) if copy is None else copy[: len(part)]
        copy[...] = part
        yield rows, copy, None if row_scale is None else row_scale[rows]
