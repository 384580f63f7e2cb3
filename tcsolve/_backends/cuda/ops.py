"""The primitives on CuPy: cuBLAS and cuSOLVER where they are as fast as the hardware, else our kernels.

Settings of CuPy or cuBLAS do not change a result (see `tcsolve._backends.cuda.runtime.cublas_calls`).
"""

import functools
import math

import cupy
import numpy as np

from tcsolve._arithmetic.matrix_parts import WIDENED, parts, real_parts
from tcsolve._backends.cuda.batched import library_factors
from tcsolve._backends.cuda.gemm import batched, engines
from tcsolve._backends.cuda.lu import first_steps
from tcsolve._backends.cuda.lu.cusolver_lu import NativeOps
from tcsolve._backends.cuda.lu.ops import LUOps
from tcsolve._backends.cuda.runtime import compiler, cublas_calls, current_device, recorded_graphs
from tcsolve._backends.cuda.runtime.async_read import Sent, reading
from tcsolve._backends.cuda.runtime.conversions import converted
from tcsolve._backends.cuda.runtime.cublas_calls import ld
from tcsolve._backends.cuda.runtime.current_device import turns_into_memory_error
from tcsolve._contract.ops import Stats
from tcsolve._contract.vectors import gram, held, signs, steepest
from tcsolve._paths import paths

__all__ = ["CupyOps"]

# Number of rows that one block of tcs_col_stats sums, and the smaller number for up to SMALL_ROWS rows, where
# there would be too few blocks.
ROWS_PER_CHUNK, ROWS_PER_SMALL_CHUNK, SMALL_ROWS = 512, 64, 4096
# Number of rows that one block of tcs_survey sums, as (largest n, rows), and number of its columns.
SURVEY_ROWS, SURVEY_COLUMNS = ((1024, 32), (4096, 64), (math.inf, 256)), 512
# The limit of CUDA for the second dimension of a grid.
MOST_BLOCKS_IN_Y = 65535


class CupyOps(LUOps, NativeOps):
    """Primitives on CuPy arrays (see `tcsolve._contract.ops.Ops`)."""

    xp = cupy
    device = "cuda"
    vendor = library_factors

    # ---- the device ------------------------------------------------------------------------

    @property
    def properties(self):
        """The properties of the current device that `cost_model.rates_of` needs."""
        return current_device.properties(cupy.cuda.runtime.getDevice())

    @property
    def _arch(self):
        return current_device.arch(cupy.cuda.runtime.getDevice())

    @turns_into_memory_error
    def array(self, host):
        return cupy.asarray(host)

    def host(self, *arrays):
        return tuple(x.get() if isinstance(x, cupy.ndarray | Sent) else x for x in arrays)

    @turns_into_memory_error
    def copied(self, x):
        return recorded_graphs.duplicate(x)

    def guarded(self, function, again=True):
        return turns_into_memory_error(function, again)

    @turns_into_memory_error
    def converted(self, x, dtype):
        return converted(x, np.dtype(dtype))

    def reading(self, *arrays):
        return reading(arrays)

    def mark(self):
        event = cupy.cuda.Event()
        event.record()
        return event

    def seconds(self, start, stop):
        stop.synchronize()
        return cupy.cuda.get_elapsed_time(start, stop) / 1e3

    def free_bytes(self, enough=math.inf):
        if not current_device.allocates_by_default():
            return math.inf  # only CuPy's default pool and the driver report their free memory
        pooled = cupy.get_default_memory_pool().free_bytes()
        if pooled >= enough:  # a call of the driver takes as long as a few launches
            return pooled
        free, _ = cupy.cuda.runtime.memGetInfo()
        return free + pooled

    def clear_cache(self):
        return recorded_graphs.clear()

    # ---- norms and scaling -----------------------------------------------------------------

    @turns_into_memory_error
    def stats(self, a):
        rows, cols = self._row_stats(a)[1], self._col_stats(a, None)[1]
        return Stats(*(x[0] if len(x) == 1 else x.sum(axis=0) for x in (rows, cols)))

    @turns_into_memory_error
    def extremes(self, a, dtype=None):
        at_once = dtype is not None and np.dtype(dtype).char == "f" and a.dtype.char in "fd"
        if at_once and a.flags.c_contiguous and paths().single_survey:
            rows, cols, copy = self._survey(a)
        else:
            rows, cols, copy = self._row_stats(a)[1], self._col_stats(a, None)[1], None
        out = cupy.empty(6)
        # Launch the kernel in the stream of the reader, so that later work in this stream need not wait.
        read = reading([out], functools.partial(_find_extremes, out, a, rows, cols))
        return lambda: tuple(read()[0].tolist()), copy

    def _survey(self, a):
        """Return the sums of |a_ij| of each row over chunks of columns, of each column over chunks of rows.

        Also return a copy of a in FP32.
        """
        m, n = a.shape
        w = self._room_for(a, np.dtype("f"))
        rows = next(rows for most, rows in SURVEY_ROWS if m <= most)
        grid = -(-n // SURVEY_COLUMNS), -(-m // rows)
        row_sum, col_sum = cupy.empty((grid[0], m)), cupy.empty((grid[1], n))
        launch = _scale_launch(_here(), "tcs_survey", a.dtype.char, grid, (256, 1), 9)
        sums = row_sum.data.ptr, col_sum.data.ptr
        launch(enumerate((*sums, w.data.ptr, ld(w), a.data.ptr, n, m, n, rows)))
        return row_sum, col_sum, w

    def _room_for(self, a, dtype):
        """Return an empty row-major matrix of the shape of a for the LU; rows start on 16-byte boundaries."""
        m, n = a.shape
        w = recorded_graphs.matrix(n, dtype) if self._records(a.shape, dtype) else None
        return cupy.empty((m, -(-n // 4) * 4), dtype=dtype)[:, :n] if w is None else w

    def goes_early(self, a):
        # For small n, waiting for the survey would take a large part of the time of the factorization.
        return len(a) <= paths().early_rows and a.dtype.char in "fd" and a.flags.c_contiguous

    def starts_early(self, a, how):
        blocked = self.goes_early(a) and not how.native
        return blocked and recorded_graphs.remembers(len(a), np.dtype(how.storage))

    def row_max(self, a):
        return self._row_stats(a)[0].max(axis=0)

    def col_max(self, a, row_scale):
        return self._col_stats(a, row_scale)[0].max(axis=0)

    def _row_stats(self, a):
        """Return max |a_ij| and sum |a_ij| of each row over chunks of columns, both (chunks, m)."""
        if not a.flags.c_contiguous:
            if a.flags.f_contiguous:
                return self._col_stats(a.T, None)
            found = [self._row_stats(part) for _, part, _ in _row_major(a)]
            return [cupy.concatenate(x, axis=1) for x in zip(*found, strict=True)]
        m, n = a.shape
        top, total = cupy.empty((1, m)), cupy.empty((1, m))
        grid = (-(-m // 8), 1)
        launch = _scale_launch(_here(), "tcs_row_stats", a.dtype.char, grid, (32, 8), 6)
        launch(enumerate((top.data.ptr, total.data.ptr, a.data.ptr, n, m, n)))
        return top, total

    def _col_stats(self, a, row_scale):
        """Return max r_i |a_ij| and sum r_i |a_ij| of each column over chunks of rows, both (chunks, n)."""
        if not a.flags.c_contiguous:
            if a.flags.f_contiguous and row_scale is None:
                return self._row_stats(a.T)
            found = [self._col_stats(*part) for _, *part in _row_major(a, row_scale)]
            tops, totals = zip(*found, strict=True)
            top = cupy.stack([x.max(axis=0) for x in tops])
            return top, cupy.stack([x.sum(axis=0) for x in totals])
        m, n = a.shape
        rows = ROWS_PER_SMALL_CHUNK if m <= SMALL_ROWS else ROWS_PER_CHUNK
        chunks = -(-m // rows)
        top, total = cupy.empty((chunks, n)), cupy.empty((chunks, n))
        grid = (-(-n // 128), chunks)
        launch = _scale_launch(_here(), "tcs_col_stats", a.dtype.char, grid, (128, 1), 8)
        scale = 0 if row_scale is None else row_scale.data.ptr
        launch(enumerate((top.data.ptr, total.data.ptr, a.data.ptr, n, m, n, scale, rows)))
        return top, total

    @turns_into_memory_error
    def cast_scaled(self, a, row_scale, col_scale, dtype, out=None):
        dtype = np.dtype(dtype)
        if dtype.char in "dD":  # nothing is rounded, so CuPy's elementwise functions suffice
            if row_scale is None:
                made = converted(a, dtype)
                return cupy.array(a, order="C") if made is a else cupy.ascontiguousarray(made)
            return _scaled_copy(a, row_scale, col_scale)
        w = self._room_for(a, dtype) if out is None else out
        for rows, part, scale in _row_major(a, row_scale):
            _cast(w[rows], part, scale, col_scale)
        return w

    def _records(self, shape, dtype):
        """Tell whether the LU of such a matrix can be recorded; it can if clusters factor its strips."""
        m, n = shape
        square = m == n > 0 and dtype.char == "f"
        return square and self.has_clusters(n) and recorded_graphs.recordable(n, dtype)

    # ---- products --------------------------------------------------------------------------

    def gemm(self, a, b, c, out, product, alpha, beta, engine):
        properties = self.properties
        if out.ndim == 3:
            args = (a, b, c, out, product, alpha, beta, self._arch, properties)
            return batched.gemm_batched(*args)
        count = properties["multiprocessors"]
        engines.gemm(a, b, c, out, product, alpha, beta, engine, self._arch, count)
        return None

    def signature(self, options, *arrays):
        return batched.signature(options, *arrays)

    @turns_into_memory_error
    def gemm_again(self, launch, a, b, c, out):
        return launch.again(a, b, c, out)

    # ---- residuals -------------------------------------------------------------------------

    @turns_into_memory_error
    def product(self, a, x, adjoint=False):
        wide = np.result_type(a.dtype, np.float64)
        if a.dtype == wide:
            return _product(a, x, adjoint)
        y = cupy.zeros(x.shape, dtype=np.result_type(wide, x.dtype))
        for rows in parts(*a.shape, WIDENED["cuda"]):
            if adjoint:
                y += _product(converted(a[rows], wide), x[rows], adjoint=True)
            else:
                y[rows] = _product(converted(a[rows], wide), x, adjoint=False)
        return y

    @turns_into_memory_error
    def matmul(self, a, b):
        return a @ b

    @turns_into_memory_error
    def residual(self, a, x, b):
        if x.shape[1] == 1 and x.dtype.char == b.dtype.char == "d" and first_steps.has_rows(a):
            return first_steps.residual(a, x, b)
        return self.difference(b, self.product(a, x), x)

    @turns_into_memory_error
    def difference(self, b, y, x):
        if not (b.size and b.dtype.char == y.dtype.char == x.dtype.char == "d"):
            r = b - y
            return r, *self.host(self.column_max(r), self.column_max(x))
        n, k = b.shape
        r, sizes = cupy.empty((k, n)), cupy.zeros((2, k), cupy.uint64)
        strides = [(v, *(s // v.itemsize for s in v.strides)) for v in (b, y, x)]
        kernel = compiler.kernel("refinement_vectors", "tcs_residual", T_LOW="double")
        kernel(_columns_grid(n, k), (256,), (r, sizes, *sum(strides, ()), n, k))
        return r.T, *sizes.get().view(np.float64)

    def column_max(self, v):
        if v.dtype.char != "d" or not v.size:
            return cupy.abs(v).max(axis=0)
        (n, k), sizes = v.shape, cupy.zeros(v.shape[1], cupy.uint64)
        kernel = compiler.kernel("refinement_vectors", "tcs_column_max", T_LOW="double")
        strides = (s // v.itemsize for s in v.strides)
        kernel(_columns_grid(n, k), (256,), (sizes, v, *strides, n, k))
        return sizes.view(np.float64)

    @turns_into_memory_error
    def gram(self, vectors, known=None):
        if first_steps.takes(vectors):
            return first_steps.gram(vectors)
        return gram(vectors, known, _dots)

    @turns_into_memory_error
    def mixed(self, vectors, weights):
        if first_steps.takes(vectors):
            return first_steps.mixed(vectors, weights)
        return sum(x * w for x, w in zip(vectors, cupy.asarray(weights).T, strict=True))

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


def _dots(pairs):
    return cupy.stack([(x.conj() * y).sum(axis=0) for x, y in pairs]).get()


def _columns_grid(n, k):
    """Return the grid of a kernel of refinement_vectors.cu for n rows and any number of columns."""
    return -(-n // 256), min(k, MOST_BLOCKS_IN_Y)


def _here():
    return cupy.cuda.runtime.getDevice()


def _find_extremes(out, a, rows, cols):
    """Fill `out` with the extremes of a, from its sums over chunks; `rows` and `cols` may be overwritten."""
    n, char, chunks = len(a), a.dtype.char, (len(rows), len(cols))
    if n * sum(chunks) > paths().most_sums:  # too many sums for the one block of tcs_extremes
        launch = _scale_launch(_here(), "tcs_add_chunks", char, (-(-n // 256), 2), (256, 1), 5)
        launch(enumerate((rows.data.ptr, chunks[0], cols.data.ptr, chunks[1], n)))
        chunks = 1, 1
    sums = rows.data.ptr, chunks[0], cols.data.ptr, chunks[1]
    launch = _scale_launch(_here(), "tcs_extremes", char, (1, 1), (1024, 1), 8)
    launch(enumerate((out.data.ptr, *sums, a.data.ptr, sum(a.strides) // a.itemsize, n)))


@functools.lru_cache(maxsize=1024)
def _scale_launch(device, entry, char, grid, block, count):
    """Return the prepared launch of an entry of survey.cu; all of its `count` arguments are placeholders."""
    real = "float" if char in "fF" else "double"
    kernel = compiler.kernel("survey", entry, T_IN=real, COMPLEX=int(char in "FD"))
    return kernel.prepared(grid, block, [0] * count, 0)


def _row_major(a, row_scale=None):
    """Yield (slice of rows, these rows of a, their scales); the rows are row-major.

    If a is row-major, there is one slice, of all rows.  Otherwise a is copied part by part.
    """
    if a.flags.c_contiguous:
        yield slice(None), a, row_scale
        return
    some, copy = parts(*a.shape), None
    for rows in some:
        part = a[rows]
        # All parts share one buffer.  The stream runs in order, so the last part has been read by now.
        copy = cupy.empty(part.shape, a.dtype) if copy is None else copy[: len(part)]
        copy[...] = part
        yield rows, copy, None if row_scale is None else row_scale[rows]


def _cast(w, a, row_scale, col_scale):
    """w := diag(r) a diag(s), where the rows of w and of a are contiguous."""
    m, n = a.shape
    floats = n * (2 if w.dtype.char == "F" else 1)
    grid = (-(-floats // 128), -(-m // 64))
    launch = _scale_launch(_here(), "tcs_cast_scaled", a.dtype.char, grid, (32, 8), 8)
    scales = (0 if x is None else x.data.ptr for x in (row_scale, col_scale))
    launch(enumerate((w.data.ptr, ld(w), a.data.ptr, n, m, n, *scales)))


def _product(a, x, adjoint):
    """Return a x or a**H x without a conjugated copy of a; one column is multiplied by gemv."""
    if adjoint:
        y = _product(a.T, x.conj(), adjoint=False)
        return y.conj()
    if x.shape[1] == 1 and a.dtype.char == x.dtype.char == "d" and _has_runs(a):
        y = cupy.empty((a.shape[0], 1))
        cublas_calls.gemv(y[:, 0], a, x[:, 0])
        return y
    return a @ x


def _has_runs(a):
    """Tell whether a is row-major or column-major without gaps, and not empty."""
    return a.size > 0 and (a.flags.c_contiguous or a.flags.f_contiguous)


def _scaled_copy(a, row_scale, col_scale):
    """Return diag(r) a diag(s) in FP64; the exponents of r and s are added first, one part at a time."""
    row, col = (cupy.frexp(s)[1] - 1 for s in (row_scale, col_scale))
    out = cupy.empty(a.shape, a.dtype)
    for rows in parts(*a.shape):
        exponent = row[rows, None] + col
        for to, part in zip(real_parts(out), real_parts(a), strict=True):
            cupy.ldexp(part[rows], exponent, out=to[rows])
    return out
