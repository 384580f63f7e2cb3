"""The primitives on CuPy: cuBLAS and cuSOLVER where they are at the ceiling, our kernels elsewhere.

No setting of CuPy or cuBLAS changes a result (see `tcsolve._cublas`).
"""

import functools
import threading
from typing import Any, NamedTuple

import cupy
import numpy as np
from cupy_backends.cuda.libs import cublas, cusolver

from tcsolve import _cublas, _gemm_batched, _gemm_cupy, _jit, _record
from tcsolve._cublas import PREFIX, ld
from tcsolve._errors import DeviceMemoryError
from tcsolve._formats import TOP_EXPONENT
from tcsolve._ops import Stats
from tcsolve._substitute import invert_diagonal_blocks, substitute, trusted
from tcsolve.kernels import (
    BOARD_BYTES,
    TRSV_BLOCK,
    TRSV_COLUMNS,
    move_chunk,
    panel_shape,
    swap_shape,
)

__all__ = ["CupyOps"]

# Entries of FP32 rows that are widened to FP64 at a time.
WIDEN_ENTRIES = 1 << 26
# Rows one block of tcs_col_stats sums.
ROWS_PER_CHUNK = 512
# Rows below which an update is shorter than what it costs the host to run it beside a strip.
BESIDE_ROWS = 6144
# Nanoseconds the update may wait for the panel beside it to become resident.
GATE_PATIENCE = 200_000
# What decides how much of an update runs beside a strip, measured on an H200: seconds of a column of the
# strip and of a row of it, flops and bytes a second of the update, and the depth FP32 counts for.
STRIP_SECONDS, STRIP_SECONDS_ROW = 1.0e-6, 7e-11
BESIDE_FLOPS, BESIDE_BANDWIDTH, NATIVE_DEPTH = 4.5e14, 3e12, 10
# Right-hand sides up to which a few at a time are faster than the library's triangular solve of all.
SUBSTITUTED_COLUMNS = 16
# Unknowns one launch of tcs_swap_solve takes.
SOLVE_WIDTH = 128
# Columns of C that a thread block of a tensor-core product takes.
GEMM_TILE = 256


def _turns_into_memory_error(method):
    """Let a failed allocation end in our error; the caller's arrays are never written before it.

    Memory that is kept for later solves is given up first.
    """

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        try:
            return method(self, *args, **kwargs)
        except cupy.cuda.memory.OutOfMemoryError as error:
            if _record.clear():
                return call(self, *args, **kwargs)
            raise DeviceMemoryError(
                f"the device ran out of memory ({error}); a and b are unchanged: free memory "
                "(cupy.get_default_memory_pool().free_all_blocks()), or use device='cpu'"
            ) from error

    return call


class _Packed(NamedTuple):
    """Operands of an update: p (m, depth), q (r, depth), `parts` real columns of C to an entry of it."""

    p: Any
    q: Any
    low: str
    parts: int
    alpha: Any
    beta: Any


class _Flags:
    """Words on a device, one for each panel that runs beside an update, taken in turn.

    The gate clears them; one that is still set, or shared, opens a gate early, which costs time alone.
    """

    COUNT = 1024

    def __init__(self):
        self._words, self._taken = cupy.zeros(self.COUNT, cupy.uint32), 0

    @staticmethod
    @functools.cache
    def of(device):
        return _Flags()

    def next(self):
        self._taken = (self._taken + 1) % self.COUNT
        return self._words[self._taken : self._taken + 1]


class CupyOps:
    """Primitives on CuPy arrays (see `tcsolve._ops.Ops`)."""

    xp = cupy
    device = "cuda"

    # ---- the device ------------------------------------------------------------------------

    @property
    def properties(self):
        """What `_choose.rates_of` asks of the current device."""
        return _properties(cupy.cuda.runtime.getDevice())

    @property
    def _arch(self):
        return _arch(cupy.cuda.runtime.getDevice())

    def _solver(self):
        return cupy.cuda.device.get_cusolver_handle()

    def array(self, host):
        return cupy.asarray(host)

    def host(self, *arrays):
        return tuple(x.get() if isinstance(x, cupy.ndarray) else x for x in arrays)

    def default_block(self, n, how):
        # Wider panels save traffic of C in the update and cost more of it inside the panel.
        return 512

    def mark(self):
        event = cupy.cuda.Event()
        event.record()
        return event

    def seconds(self, start, stop):
        stop.synchronize()
        return cupy.cuda.get_elapsed_time(start, stop) / 1e3

    def free_bytes(self):
        free, _ = cupy.cuda.runtime.memGetInfo()
        return free + cupy.get_default_memory_pool().free_bytes() + _record.idle_bytes()

    # ---- norms and scaling -----------------------------------------------------------------

    @_turns_into_memory_error
    def stats(self, a):
        return Stats(self._row_stats(a)[1], self._col_stats(a, None)[1].sum(axis=0))

    @_turns_into_memory_error
    def extremes(self, a, stats):
        out = cupy.empty(5)
        kernel = self._scale_kernel("tcs_extremes", a.dtype.char)
        kernel((1,), (1024,), (out, *stats, a, sum(a.strides) // a.itemsize, len(a)))
        return tuple(out.get().tolist())

    def row_max(self, a):
        return self._row_stats(a)[0]

    def col_max(self, a, row_scale):
        return self._col_stats(a, row_scale)[0].max(axis=0)

    def _row_stats(self, a):
        """Return max |a_ij| and sum |a_ij| of each row."""
        if not a.flags.c_contiguous:
            if a.flags.f_contiguous:
                top, total = self._col_stats(a.T, None)
                return top.max(axis=0), total.sum(axis=0)
            a = cupy.ascontiguousarray(a)
        m, n = a.shape
        top, total = cupy.empty(m), cupy.empty(m)
        kernel = self._scale_kernel("tcs_row_stats", a.dtype.char)
        kernel((-(-m // 8),), (32, 8), (top, total, a, n, m, n))
        return top, total

    def _col_stats(self, a, row_scale):
        """Return max r_i |a_ij| and sum r_i |a_ij| of each column, over each chunk of rows."""
        if not a.flags.c_contiguous:
            if a.flags.f_contiguous and row_scale is None:
                top, total = self._row_stats(a.T)
                return top[None], total[None]
            a = cupy.ascontiguousarray(a)
        m, n = a.shape
        chunks = -(-m // ROWS_PER_CHUNK)
        top, total = cupy.empty((chunks, n)), cupy.empty((chunks, n))
        kernel = self._scale_kernel("tcs_col_stats", a.dtype.char)
        grid = (-(-n // 128), chunks)
        kernel(grid, (128,), (top, total, a, n, m, n, row_scale, ROWS_PER_CHUNK))
        return top, total

    @_turns_into_memory_error
    def cast_scaled(self, a, row_scale, col_scale, dtype):
        dtype = np.dtype(dtype)
        if dtype.char in "dD":  # FP64 keeps its range: exponents may be applied one after the other
            if row_scale is None:
                return cupy.array(a, dtype=dtype, order="C")
            return _scaled_copy(a, row_scale, col_scale)
        a = cupy.ascontiguousarray(a)
        m, n = a.shape
        # Rows of whole 16-byte words, for the kernels of the LU.
        w = _record.matrix(n, dtype) if self._records(a.shape, dtype) else None
        if w is None:
            w = cupy.empty((m, -(-n // 4) * 4), dtype=dtype)[:, :n]
        kernel = self._scale_kernel("tcs_cast_scaled", a.dtype.char)
        floats = n * (2 if dtype.char == "F" else 1)
        grid = (-(-floats // 128), -(-m // 64))
        kernel(grid, (32, 8), (w, ld(w), a, n, m, n, row_scale, col_scale))
        return w

    def _records(self, shape, dtype):
        """Tell whether the LU of such a matrix can be recorded: clusters take its strips."""
        m, n = shape
        panel = self._panel_shape(n, dtype) if m == n > 0 else None
        return bool(panel and panel.cluster) and _record.recordable(n, dtype)

    def _scale_kernel(self, entry, char):
        real = "float" if char in "fF" else "double"
        return _jit.kernel("scale", entry, T_IN=real, COMPLEX=int(char in "FD"))

    # ---- LU --------------------------------------------------------------------------------

    @_turns_into_memory_error
    def replayed(self, w, name, body):
        tape = _record.tape_of(w)
        return body() if tape is None else tape.run(name, body)

    def strip_width(self, m, k, dtype):
        shape = self._panel_shape(m, dtype)
        return min(k, shape.strip) if shape else k

    def _panel_shape(self, m, dtype):
        return _panel_shape(cupy.cuda.runtime.getDevice(), m) if dtype.char == "f" else None

    def panel_lu(self, p, start, stop, ipiv, row0, order, info, started=None):
        (m, k), w = p.shape, stop - start
        shape = self._panel_shape(m - start, p.dtype)
        if shape is None or w > shape.strip:
            self._panel_by_cusolver(p, start, stop, ipiv, row0, order, info)
            if started is not None:
                started.fill(1)
            return
        # Addresses instead of views, which take the host longer than the launches.
        first, ld_top, ld_p = row0 + start, -(-w // 4) * 4, ld(p)
        work = cupy.empty(w * (4 + ld_top), cupy.int32)
        dst, rows = work.data.ptr, p.data.ptr + 4 * start * ld_p
        src, top = dst + 8 * w, dst + 16 * w
        board = None if shape.cluster else cupy.zeros(BOARD_BYTES, cupy.uint8)
        strip = (rows + 4 * start, ld_p, m - start, w)
        outputs = (
            order.data.ptr + 4 * start,
            ipiv.data.ptr + 4 * start,
            dst,
            src,
            top,
            ld_top,
            info,
        )
        _panel_kernel(cupy.cuda.runtime.getDevice(), shape)(
            (shape.blocks,),
            (shape.threads,),
            (*strip, *outputs, first, first, started, board),
            shared=shape.shared_bytes,
            cooperative=not shape.cluster,
        )
        args = (rows, ld_p, k, stop, dst, src, top, ld_top, w)
        _swap_solve(k, 2 * w, args)

    def _panel_by_cusolver(self, p, start, stop, ipiv, row0, order, info):
        """Factor a leaf that no cluster holds; the pivots pass through the host."""
        leaf, w = p[start:, start:stop], stop - start
        lu, swaps, _ = self._getrf_in_place(cupy.array(leaf, order="F"))
        diagonal = lu.diagonal()
        bad = cupy.nonzero(~cupy.isfinite(diagonal) | (diagonal == 0))[0][:1]
        swaps, bad = self.host(swaps, bad)
        if len(bad):
            cupy.minimum(info, row0 + start + int(bad[0]) + 1, out=info)
        swaps = swaps[:w] - 1
        ipiv[start:stop] = cupy.asarray((row0 + start + swaps).astype(np.int32))
        moved = _order_of(swaps, leaf.shape[0])
        dst = np.unique(np.concatenate([np.arange(w), swaps])).astype(np.int32)
        dst, src = cupy.asarray(dst), cupy.asarray(moved[dst])
        self._move(p[start:], dst, src, start, stop)
        part = order[start:]
        part[dst] = part[src]
        leaf[...] = lu
        self.solve_unit_lower(p[start:stop, start:stop], p[start:stop, stop:])

    def move_rows(self, w, dst, src):
        self._move(w, dst, src, 0, 0)

    def _move(self, w, dst, src, skip_start, skip_stop):
        """w[dst] = w[src] for all columns but skip_start:skip_stop."""
        words = w.dtype.itemsize // 4  # a complex64 or float64 entry moves as two
        columns = w.shape[1] * words
        count = len(dst)
        moving = columns - (skip_stop - skip_start) * words
        if not (moving and count):
            return
        chunk = move_chunk(count)
        kernel = self._move_kernel(chunk)
        skip_start, skip_stop = skip_start * words, skip_stop * words
        kernel(
            (-(-skip_start // chunk) - (skip_stop - columns) // chunk,),
            (256,),
            (w, ld(w) * words, columns, skip_start, skip_stop, dst, src, count),
            shared=4 * count * chunk,
        )

    def _move_kernel(self, chunk):
        return _jit.kernel("move_rows", "tcs_move_rows", CHUNK=chunk)

    def solve_unit_lower(self, l, b):
        if not b.size:
            return
        if b.dtype.char != "f" or not _aligned(l):
            _cublas.solve_right(l, b)
            return
        k = len(b)
        for start in range(0, k, SOLVE_WIDTH):
            stop = min(k, start + SOLVE_WIDTH)
            done, w, n = slice(start, stop), stop - start, b.shape[1]
            args = (b[done], ld(b), n, 0, None, None, l[done, done], ld(l), w)
            _swap_solve(n, w, args)
            if stop < k:
                _cublas.gemm(b[stop:], l[stop:, done], b[done])

    def gains_beside(self, m):
        return m >= BESIDE_ROWS

    def beside(self, panel, update):
        device = cupy.cuda.runtime.getDevice()
        main, side = cupy.cuda.get_current_stream(), _side_stream(device, threading.get_ident())
        started = _Flags.of(device).next()
        side.wait_event(main.record())
        with side, _cublas.own_handles():
            panel(started)
        # The update takes every multiprocessor it finds: the panel must have its own by then.
        _jit.kernel("gate", "tcs_gate")((1,), (1,), (started, GATE_PATIENCE))
        update()
        main.wait_event(side.record())

    def columns_beside(self, m, width, operands):
        strip = width * (STRIP_SECONDS + m * STRIP_SECONDS_ROW)
        l = operands[0]
        depth = l.shape[1] if isinstance(operands, _Packed) else l.shape[1] * NATIVE_DEPTH
        column = m * max(2 * depth / BESIDE_FLOPS, 8 / BESIDE_BANDWIDTH)
        return -(-int(strip / column) // GEMM_TILE) * GEMM_TILE

    @_turns_into_memory_error
    def update(self, c, l, u, how):
        if c.size and l.size:
            self.subtract_product(c, self.operands(l, u, how), slice(0, c.shape[1]))

    @_turns_into_memory_error
    def operands(self, l, u, how):
        return (l, u) if how.native else self._pack(l, u, how)

    def subtract_product(self, c, operands, columns):
        if not c.size:
            return
        if not isinstance(operands, _Packed):
            l, u = operands
            _cublas.gemm(c, l, u[:, columns])
            return
        p, q, low, parts, *scalars = operands
        q = q[columns.start * parts : columns.stop * parts]
        _cublas.gemm_packed(c, (len(c), len(q)), ld(c) * parts, p, q, low, *scalars)

    def _pack(self, l, u, how):
        """Round, split and pack both operands along k, for one product on the tensor cores."""
        parts = 2 if l.dtype.char == "F" else 1  # a complex entry counts as two real ones
        m, k, r = l.shape[0], l.shape[1], u.shape[1] * parts
        low, depth = how.format.name, how.products * k * parts
        stored = cupy.uint32 if low == "tf32" else cupy.uint16
        p, q = cupy.empty((m, depth), stored), cupy.empty((r, depth), stored)
        scalars, work = cupy.empty(3, cupy.float32), cupy.zeros(2, cupy.uint32)
        scale, alpha, beta = scalars[0:], scalars[1:], scalars[2:]
        scale_l = 2.0**TOP_EXPONENT  # |l| <= 1
        find_scale, pack_l, pack_u = self._pack_kernels(low, how.products, parts == 2)
        ld_l, ld_u = ld(l) * parts, ld(u) * parts
        # A few blocks for each multiprocessor, each striding over rows of U.
        blocks = min(k, 4 * self.properties["multiprocessors"])
        find_scale((blocks,), (256,), (scale, alpha, beta, work, u, ld_u, k, r, scale_l))
        width = k * parts
        pack_l((-(-m // 8), -(-width // 256)), (32, 8), (p, l, ld_l, m, width, scale_l))
        grid = (-(-r // 64), -(-k // (64 // parts)))
        pack_u(grid, (256,), (q, u, ld_u, k, r, scale))
        return _Packed(p, q, low, parts, alpha, beta)

    def _pack_kernels(self, low, products, is_complex):
        defines = {"T_LOW": low, "PRODUCTS": products, "COMPLEX": int(is_complex)}
        return (
            _jit.kernel("range", "tcs_update_scale"),
            _jit.kernel("pack", "tcs_pack_l", **defines),
            _jit.kernel("pack", "tcs_pack_u", **defines),
        )

    @_turns_into_memory_error
    def gemm(self, a, b, c, out, product, alpha, beta, engine):
        properties = self.properties
        if out.ndim == 3:
            args = (a, b, c, out, product, alpha, beta, self._arch, properties)
            return _gemm_batched.gemm_batched(*args)
        count = properties["multiprocessors"]
        _gemm_cupy.gemm(a, b, c, out, product, alpha, beta, engine, self._arch, count)
        return None

    def signature(self, options, *arrays):
        return _gemm_batched.signature(options, *arrays)

    @_turns_into_memory_error
    def gemm_again(self, launch, a, b, c, out):
        return launch.again(a, b, c, out)

    # ---- solves ----------------------------------------------------------------------------

    @_turns_into_memory_error
    def invert_diagonal_blocks(self, lu):
        return invert_diagonal_blocks(lu) if lu.dtype.char in TRSV_BLOCK else None

    def trusted(self, inverses, worst):
        return trusted(inverses, worst)

    @_turns_into_memory_error
    def solve_factored(self, lu, b, adjoint):
        conjugate = adjoint and lu.dtype.char == "F"
        x = cupy.array(b, dtype=lu.dtype, order="F")
        if conjugate:
            cupy.conj(x, out=x)
        for lower in (not adjoint, adjoint):  # L then U, but U**H then L**H
            _cublas.solve_left(lu, lower, x, adjoint)
        return cupy.conj(x, out=x) if conjugate else x

    @_turns_into_memory_error
    def substitute(self, lu, b, adjoint, inverses, order):
        if inverses is None or b.dtype.char != "d" or not 0 < b.shape[1] <= SUBSTITUTED_COLUMNS:
            return None
        before, after = (None, order) if adjoint else (order, None)
        rest = adjoint, inverses, before, after, self.properties["multiprocessors"]
        tape = _record.tape_of(lu)
        if tape is None:
            return _substitute_columns(lu, b, *rest)
        where = (inverses.data.ptr, order.data.ptr)
        name = ("substitute", adjoint)
        return tape.apply(name, b, lambda b: _substitute_columns(lu, b, *rest), where)

    @_turns_into_memory_error
    def getrf(self, a, dtype):
        # cuSOLVER is column-major: as in NumpyOps, a row-major a is factored as a.T.
        transposed = not a.flags.f_contiguous
        t = cupy.array(a.T if transposed else a, dtype=dtype, order="F")
        lu, swaps, info = self._getrf_in_place(t)
        info, on_host = self.host(info, swaps)
        order = inverses = None
        if lu.dtype.char in TRSV_BLOCK:
            order = cupy.asarray(_order_of(on_host - 1))
            # In lu.T the triangles change places: the lower one is U.T, the upper one L.T.
            inverses = trusted(*invert_diagonal_blocks(lu.T, unit_lower=False))
        return (lu, swaps, transposed, order, inverses), max(int(info[0]), 0)

    def _getrf_in_place(self, t):
        m, n = t.shape
        char = PREFIX[t.dtype.char]
        handle = self._solver()
        size = getattr(cusolver, char + "getrf_bufferSize")(handle, m, n, t.data.ptr, m)
        work = cupy.empty(size, t.dtype)
        swaps, info = cupy.empty(min(m, n), cupy.int32), cupy.empty(1, cupy.int32)
        getrf = getattr(cusolver, char + "getrf")
        getrf(handle, m, n, t.data.ptr, m, work.data.ptr, swaps.data.ptr, info.data.ptr)
        return t, swaps, info

    @_turns_into_memory_error
    def getrs(self, factors, b, adjoint):
        lu, swaps, transposed, order, inverses = factors
        if inverses is not None and 0 < b.shape[1] <= max(TRSV_COLUMNS):
            return self._getrs_by_substitution(factors, b, adjoint)
        x = cupy.array(b, dtype=lu.dtype, order="F")
        n, k = x.shape
        conjugate = transposed and adjoint and lu.dtype.char in "FD"
        if transposed:
            op = cublas.CUBLAS_OP_N if adjoint else cublas.CUBLAS_OP_T
        else:
            op = cublas.CUBLAS_OP_C if adjoint else cublas.CUBLAS_OP_N
        if conjugate:
            cupy.conj(x, out=x)
        info = cupy.empty(1, cupy.int32)
        getrs = getattr(cusolver, PREFIX[lu.dtype.char] + "getrs")
        args = (n, k, lu.data.ptr, n, swaps.data.ptr, x.data.ptr, n, info.data.ptr)
        getrs(self._solver(), op, *args)
        return cupy.conj(x, out=x) if conjugate else x

    def _getrs_by_substitution(self, factors, b, adjoint):
        """Solve for a few columns, with lu.T as row-major factors: P t = L U is t.T P.T = U.T L.T."""
        lu, _, transposed, order, inverses = factors
        b, multiprocessors = b.astype(np.float64, copy=False), self.properties["multiprocessors"]
        # t**-1 is lu.T read by its transpose; a.T = t or a = t, so two of the four cases transpose.
        if transposed != adjoint:  # t.T y = b: U.T, then L.T, then P.T
            x = substitute(lu.T, b, False, inverses, None, order, multiprocessors)
        else:
            x = substitute(lu.T, b, True, inverses, order, None, multiprocessors)
        return x.astype(lu.dtype, copy=False)

    def gecon(self, factors, norm_one):
        return None  # cuSOLVER has none

    def diagonal(self, factors):
        lu, swaps = factors[:2]
        (odd,) = self.host((swaps != cupy.arange(1, len(swaps) + 1)).sum())
        return lu.diagonal(), 1 - 2 * (int(odd) % 2)

    # ---- residuals -------------------------------------------------------------------------

    @_turns_into_memory_error
    def product(self, a, x, adjoint=False):
        wide = np.result_type(a.dtype, np.float64)
        if a.dtype == wide:
            return _product(a, x, adjoint)
        y = cupy.zeros(x.shape, dtype=np.result_type(wide, x.dtype))
        step = max(1, WIDEN_ENTRIES // a.shape[0])
        for i in range(0, a.shape[0], step):
            rows = a[i : i + step].astype(wide)
            if adjoint:
                y += _product(rows, x[i : i + step], adjoint=True)
            else:
                y[i : i + step] = _product(rows, x, adjoint=False)
        return y

    @_turns_into_memory_error
    def residual(self, b, y, x):
        if not (b.size and b.dtype.char == y.dtype.char == x.dtype.char == "d"):
            r = b - y
            return r, *self.host(self.column_max(r), self.column_max(x))
        n, k = b.shape
        r, sizes = cupy.empty((k, n)), cupy.zeros((2, k), cupy.uint64)
        strides = [(v, *(s // v.itemsize for s in v.strides)) for v in (b, y, x)]
        kernel = _jit.kernel("refine", "tcs_residual", T_LOW="double")
        kernel((-(-n // 256), k), (256,), (r, sizes, *sum(strides, ()), n, k))
        return r.T, *sizes.get().view(np.float64)

    def column_max(self, v):
        if v.dtype.char != "d" or not v.size:
            return cupy.abs(v).max(axis=0)
        (n, k), sizes = v.shape, cupy.zeros(v.shape[1], cupy.uint64)
        kernel = _jit.kernel("refine", "tcs_column_max", T_LOW="double")
        kernel((-(-n // 256), k), (256,), (sizes, v, *(s // v.itemsize for s in v.strides), n))
        return sizes.view(np.float64)


def _substitute_columns(lu, b, *rest):
    """Solve for a few columns at a time."""
    (n, k), most = b.shape, max(TRSV_COLUMNS)
    if k <= most:
        return substitute(lu, b, *rest)
    x = cupy.empty((n, k), order="F")
    for i in range(0, k, most):
        x[:, i : i + most] = substitute(lu, b[:, i : i + most], *rest)
    return x


def _aligned(x):
    """Tell whether the rows of a row-major view start on 16-byte boundaries."""
    return (x.data.ptr | x.strides[0]) % 16 == 0


@functools.lru_cache(maxsize=64)
def _side_stream(device, thread):
    """The stream of a thread's panels that run beside an update; what it launches goes first.

    Each thread has its own: nothing else may enter a stream while it is recorded.
    """
    with cupy.cuda.Device(device):
        return cupy.cuda.Stream(non_blocking=True, priority=-1)


@functools.cache
def _panel_shape(device, m):
    return panel_shape(m, _arch(device), _properties(device)["multiprocessors"])


@functools.cache
def _panel_kernel(device, shape):
    return _jit.kernel("panel", "tcs_panel", **shape.defines)


@functools.cache
def _swap_kernel(device, shape):
    return _jit.kernel("swap_solve", "tcs_swap_solve", **shape.defines)


def _swap_solve(n, rows, args):
    """Launch tcs_swap_solve on n columns with that many rows on the move."""
    device = cupy.cuda.runtime.getDevice()
    shape = swap_shape(n, _arch(device))
    grid, block = (-(-n // shape.columns),), (shape.threads,)
    _swap_kernel(device, shape)(grid, block, args, shared=shape.shared_bytes(rows))


@functools.cache
def _arch(device):
    return _jit.target_arch(cupy.cuda.Device(device))


@functools.cache
def _properties(device):
    device = cupy.cuda.Device(device)
    attributes = device.attributes
    bits = attributes.get("GlobalMemoryBusWidth", 0)
    # Two transfers a clock; about seven eighths of that can be had.
    bandwidth = 2e3 * attributes.get("MemoryClockRate", 0) * bits / 8 * 0.87
    return {
        "arch": int(device.compute_capability),
        "multiprocessors": attributes["MultiProcessorCount"],
        "shared_bytes": attributes.get("MaxSharedMemoryPerMultiprocessor", 64 << 10),
        "clock": 1e3 * attributes["ClockRate"],
        "bandwidth": bandwidth or 4e11,
    }


def _order_of(swaps, m=None):
    """Return which row becomes row i when rows j and swaps[j] are exchanged in turn (0-based)."""
    order = list(range(m or len(swaps)))
    for j, i in enumerate(swaps.tolist()):
        order[j], order[i] = order[i], order[j]
    return np.array(order, dtype=np.int32)


def _product(a, x, adjoint):
    """Return a x or a**H x without a conjugated copy of a; one column goes through gemv."""
    if adjoint:
        y = _product(a.T, x.conj(), adjoint=False)
        return y.conj()
    if x.shape[1] == 1 and a.dtype.char == x.dtype.char == "d" and _has_runs(a):
        y = cupy.empty((a.shape[0], 1))
        _cublas.gemv(y[:, 0], a, x[:, 0])
        return y
    return a @ x


def _has_runs(a):
    """Tell whether the rows or the columns of a are contiguous, one behind the other."""
    return a.size > 0 and (a.flags.c_contiguous or a.flags.f_contiguous)


def _scaled_copy(a, row_scale, col_scale):
    """Return diag(r) a diag(s) in FP64 by adding exponents, block by block."""
    row, col = (cupy.frexp(s)[1] - 1 for s in (row_scale, col_scale))
    out = cupy.empty(a.shape, a.dtype)
    step = max(1, WIDEN_ENTRIES // a.shape[0])
    for i in range(0, a.shape[0], step):
        exponent = (row[i : i + step, None] + col).astype(cupy.int32)
        if a.dtype.kind == "c":
            out.real[i : i + step] = cupy.ldexp(a.real[i : i + step], exponent)
            out.imag[i : i + step] = cupy.ldexp(a.imag[i : i + step], exponent)
        else:
            out[i : i + step] = cupy.ldexp(a[i : i + step], exponent)
    return out
