"""The primitives on CuPy: cuBLAS and cuSOLVER where these reach the speed of the hardware, else our kernels.

Settings of CuPy or cuBLAS do not change a result (see `tcsolve._backends.cuda.runtime.cublas_calls`).
"""

import functools
import math

import cupy
import numpy as np

from tcsolve._arithmetic.matrix_parts import WIDENED, parts, real_parts
from tcsolve._backends.cuda import short_chains
from tcsolve._backends.cuda.batched import vendor
from tcsolve._backends.cuda.gemm import batched, engines
from tcsolve._backends.cuda.lu import first_steps, needed
from tcsolve._backends.cuda.lu.ops import DeviceLU
from tcsolve._backends.cuda.norms import (
    DeviceRowStats,
    col_stats,
    row_major,
    row_stats,
    scale_launch,
)
from tcsolve._backends.cuda.runtime import (
    concurrent,
    current_device,
    recorded_graphs,
)
from tcsolve._backends.cuda.runtime.async_read import Sent, reading
from tcsolve._backends.cuda.runtime.conversions import converted
from tcsolve._backends.cuda.runtime.cublas_calls import gemm_strided, ld
from tcsolve._backends.cuda.runtime.current_device import guarded, turns_into_memory_error
from tcsolve._contract.ops import BegunSurvey
from tcsolve._contract.schedule import goes_early
from tcsolve._contract.vectors import held, signs, steepest
from tcsolve._paths import paths

__all__ = ["CupyOps"]

# From this number of columns on, a triangle is multiplied one block of rows after the other; the largest
# number of blocks, and the smallest number of rows of a block.
TRIANGLE_COLUMNS, TRIANGLE_PARTS, TRIANGLE_ROWS = 1024, 16, 512
# Number of rows that one block of tcs_survey sums, as (largest n, rows), and number of its columns.
SURVEY_ROWS, SURVEY_COLUMNS = ((1024, 32), (4096, 64), (math.inf, 256)), 512


class CupyOps:
    """Primitives on CuPy arrays (see `tcsolve._contract.ops.Ops`)."""

    xp = cupy
    device = "cuda"
    lu = DeviceLU()
    vendor = vendor

    # ---- the device ------------------------------------------------------------------------

    early_rows = property(lambda self: paths().early_rows)
    ahead_rows = property(lambda self: paths().ahead_rows if paths().residual_kernel else 0)

    @property
    def properties(self):
        """The properties of the current device that `cost_model.rates_of` needs."""
        return current_device.properties(cupy.cuda.runtime.getDevice())

    @property
    def _arch(self):
        return current_device.arch(cupy.cuda.runtime.getDevice())

    def host(self, *arrays):
        return tuple(x.get() if isinstance(x, cupy.ndarray | Sent) else x for x in arrays)

    def guarded(self, function, again=True):
        return guarded(function, again)

    @turns_into_memory_error
    def converted(self, x, dtype):
        return converted(x, np.dtype(dtype))

    def reading(self, *arrays):
        return reading(arrays)

    def mark(self):
        return Mark()

    def free_bytes(self, enough):
        if not current_device.allocates_by_default():
            return math.inf  # only CuPy's default pool and the driver report their free memory
        pooled = cupy.get_default_memory_pool().free_bytes()
        if pooled >= enough:  # a call of the driver takes as long as a few launches
            return pooled
        free = pooled + cupy.cuda.runtime.memGetInfo()[0]
        if free < enough and recorded_graphs.clear():
            return cupy.get_default_memory_pool().free_bytes() + cupy.cuda.runtime.memGetInfo()[0]
        return free

    def replayed(self, w, name, body):
        return concurrent.replayed(w, name, body)

    def aside(self, w, others, name, body, then=None):
        return concurrent.aside(w, others, name, body, then)

    # ---- norms and scaling -----------------------------------------------------------------

    @turns_into_memory_error
    def extremes(self, a, dtype=None):
        # This is the first launch of a solve, so start the compilation of its other kernels now.
        factors = None if dtype is None else np.dtype(dtype).char
        device, count = cupy.cuda.runtime.getDevice(), self.properties["multiprocessors"]
        needed.prepare(device, self._arch, count, len(a), a.dtype.char, factors)
        # For small n, waiting for the survey would take a large part of the time of the factorization.
        early = dtype is not None and goes_early(a, self.early_rows)
        early = early and recorded_graphs.remembers(len(a), np.dtype(dtype))
        at_once = dtype is not None and np.dtype(dtype).char == "f" and a.dtype.char in "fd"
        if at_once and a.flags.c_contiguous and paths().single_survey:
            rows, cols, copy = self._survey(a)
        else:
            rows, cols, copy = row_stats(a)[1], col_stats(a, None)[1], None
        out = cupy.empty(6)
        # Launch the kernel in the stream in which `reading` copies, so that later work in the current stream
        # need not wait for it.
        read = reading([out], functools.partial(_find_extremes, out, a, rows, cols))
        return BegunSurvey(lambda: tuple(read()[0].tolist()), copy, early)

    def _survey(self, a):
        """Return sums of |a_ij|, and a copy of a in FP32.

        The sums are those of each row over chunks of columns, and of each column over chunks of rows.
        """
        m, n = a.shape
        w = self._room_for(a, np.dtype("f"))
        rows = next(rows for most, rows in SURVEY_ROWS if m <= most)
        grid = -(-n // SURVEY_COLUMNS), -(-m // rows)
        row_sum, col_sum = cupy.empty((grid[0], m)), cupy.empty((grid[1], n))
        launch = scale_launch("tcs_survey", a.dtype.char, grid, (256, 1), 9)
        sums = row_sum.data.ptr, col_sum.data.ptr
        launch(enumerate((*sums, w.data.ptr, ld(w), a.data.ptr, n, m, n, rows)))
        return row_sum, col_sum, w

    def _room_for(self, a, dtype):
        """Return an empty row-major matrix of the shape of a for the LU; rows start on 16-byte boundaries."""
        m, n = a.shape
        w = recorded_graphs.matrix(n, dtype) if self._records(a.shape, dtype) else None
        return cupy.empty((m, -(-n // 4) * 4), dtype=dtype)[:, :n] if w is None else w

    def row_stats(self, a, col_scale=None):
        return DeviceRowStats(a, col_scale)

    @turns_into_memory_error
    def cast_scaled(self, a, row_scale, col_scale, dtype, out=None):
        dtype = np.dtype(dtype)
        if dtype.char in "dD":  # nothing is rounded, so CuPy's elementwise functions suffice
            if row_scale is None:
                made = converted(a, dtype)
                return cupy.array(a, order="C") if made is a else cupy.ascontiguousarray(made)
            return _scaled_copy(converted(a, dtype), row_scale, col_scale)
        w = self._room_for(a, dtype) if out is None else out
        for rows, part, scale in row_major(a, row_scale):
            _cast(w[rows], part, scale, col_scale)
        return w

    def _records(self, shape, dtype):
        """Tell whether the LU of such a matrix can be recorded; only strips factored by clusters can be."""
        m, n = shape
        square = m == n > 0 and dtype.char == "f"
        return square and self.lu.has_clusters(n) and recorded_graphs.recordable(n, dtype)

    # ---- products --------------------------------------------------------------------------

    def gemm(self, job):
        properties = self.properties
        if job.out.ndim == 3:
            launch = batched.gemm_batched(job, self._arch, properties)
        else:
            launch = engines.gemm(job, self._arch, properties["multiprocessors"])
        return None if launch is None else guarded(launch.again)

    # ---- residuals -------------------------------------------------------------------------

    @turns_into_memory_error
    def product(self, a, x, adjoint=False, triangle=None):
        return _checked_product(a, x, adjoint, triangle)

    def residual(self, a, x, b):
        if callable(a):
            return _difference(b, a(x), x)  # if memory runs out, a(x) is not computed again
        return _residual(a, x, b)

    @turns_into_memory_error
    def probes(self, n):
        return first_steps.probes(n)

    @turns_into_memory_error
    def signs(self, v, state):
        return first_steps.signs(v, state) if v.dtype.char == "d" else signs(cupy, v, state)

    @turns_into_memory_error
    def held(self, b, y, z):
        real = b.dtype.char == y.dtype.char == z.dtype.char == "d"
        return first_steps.held(b, y, z) if real else held(cupy, b, y, z)

    @turns_into_memory_error
    def steepest(self, z, state, found):
        if z.dtype.char == "d":
            return first_steps.steepest(z, state, found)
        return steepest(cupy, z, state, found)


@turns_into_memory_error
def _residual(a, x, b):
    if x.shape[1] == 1 and x.dtype.char == b.dtype.char == "d" and first_steps.has_rows(a):
        return first_steps.residual(a, x, b)
    return _difference(b, _checked_product(a, x), x)


@turns_into_memory_error
def _difference(b, y, x):
    """Return r = b - y, and on the host max |r| and max |x| of each column."""
    if not (b.size and b.dtype.char == y.dtype.char == x.dtype.char == "d"):
        r = b - y
        sizes = first_steps.column_max(r), first_steps.column_max(x)
        return r, *(size.get() for size in sizes)
    return first_steps.difference(b, y, x)


class Mark:
    """A time stamp of the current stream; the difference of two is in seconds."""

    def __init__(self):
        self._event = cupy.cuda.Event()
        self._event.record()

    def __sub__(self, start):
        self._event.synchronize()
        return cupy.cuda.get_elapsed_time(start._event, self._event) / 1e3


def _find_extremes(out, a, rows, cols):
    """Fill `out` with the extremes of a, from its sums over chunks; `rows` and `cols` may be overwritten."""
    n, char, chunks = len(a), a.dtype.char, (len(rows), len(cols))
    if n * sum(chunks) > paths().most_sums:  # too many sums for the one block of tcs_extremes
        launch = scale_launch("tcs_add_chunks", char, (-(-n // 256), 2), (256, 1), 5)
        launch(enumerate((rows.data.ptr, chunks[0], cols.data.ptr, chunks[1], n)))
        chunks = 1, 1
    sums = rows.data.ptr, chunks[0], cols.data.ptr, chunks[1]
    launch = scale_launch("tcs_extremes", char, (1, 1), (1024, 1), 8)
    launch(enumerate((out.data.ptr, *sums, a.data.ptr, sum(a.strides) // a.itemsize, n)))


def _cast(w, a, row_scale, col_scale):
    """w := diag(r) a diag(s), where the rows of w and of a are contiguous."""
    m, n = a.shape
    floats = n * (2 if w.dtype.char == "F" else 1)
    grid = (-(-floats // 128), -(-m // 64))
    launch = scale_launch("tcs_cast_scaled", a.dtype.char, grid, (32, 8), 8)
    scales = (0 if x is None else x.data.ptr for x in (row_scale, col_scale))
    launch(enumerate((w.data.ptr, ld(w), a.data.ptr, n, m, n, *scales)))


def _checked_product(a, x, adjoint=False, triangle=None):
    """Return what `Ops.product` returns; long sums that round in one direction are replaced."""
    if a.ndim > 2:
        return a @ x
    dense = functools.partial(_in_fp64, a, adjoint)
    in_parts = triangle and x.shape[1] >= TRIANGLE_COLUMNS
    y = _of_triangle(a, triangle, x) if in_parts else dense(x)
    return short_chains.checked(y, x, dense, lambda: row_stats(a.T if adjoint else a)[1])


def _of_triangle(a, triangle, x):
    """Return a x for a triangle a, one block of rows after the other, without the columns of zeros."""
    n, y = len(x), cupy.empty(x.shape, np.result_type(a.dtype, x.dtype, np.float64))
    is_real = a.dtype.char == x.dtype.char == "d" and a.flags.c_contiguous and x.flags.c_contiguous
    step = max(TRIANGLE_ROWS, -(-n // TRIANGLE_PARTS))
    for first in range(0, n, step):
        rows = slice(first, first + step)
        read = slice(first, n) if triangle == "upper" else slice(0, rows.stop)
        if is_real:  # without copies of blocks
            gemm_strided((y[rows], 0), (a[rows, read], 0), (x[read], 0), 1, 1)
        else:
            y[rows] = _in_fp64(cupy.ascontiguousarray(a[rows, read]), False, x[read])
    return y


def _in_fp64(a, adjoint, x, room=0):
    """Return a x or a**H x in FP64; a matrix of another precision is converted part by part.

    `room` as in `short_chains.product`.
    """
    wide = np.result_type(a.dtype, np.float64)
    if a.dtype == wide:
        return _product(a, x, adjoint, room)
    y = cupy.zeros((a.shape[1] if adjoint else len(a), x.shape[1]), np.result_type(wide, x.dtype))
    for rows in parts(*a.shape, WIDENED["cuda"]):
        if adjoint:
            y += _product(converted(a[rows], wide), x[rows], True, room)
        else:
            y[rows] = _product(converted(a[rows], wide), x, False, room)
    return y


def _product(a, x, adjoint, room):
    """Return a x or a**H x without a conjugated copy of a."""
    if adjoint:
        return _product(a.T, x.conj(), False, room).conj()
    return short_chains.product(a, x, room)


def _scaled_copy(a, row_scale, col_scale):
    """Return diag(r) a diag(s) in the dtype of a, part by part; the exponents of r and s are added first."""
    row, col = (cupy.frexp(s)[1] - 1 for s in (row_scale, col_scale))
    out = cupy.empty(a.shape, a.dtype)
    for rows in parts(*a.shape):
        exponent = row[rows, None] + col
        for to, part in zip(real_parts(out), real_parts(a), strict=True):
            cupy.ldexp(part[rows], exponent, out=to[rows])
    return out
