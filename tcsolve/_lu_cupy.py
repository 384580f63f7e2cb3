"""The primitives of our own LU on CuPy: strips, row moves, updates on tensor cores, triangular solves."""

import functools
import threading
from typing import Any, NamedTuple

import cupy
import numpy as np

from tcsolve import _cublas, _cusolver, _device, _jit, _record, _step
from tcsolve._cublas import ld
from tcsolve._device import turns_into_memory_error
from tcsolve._formats import TOP_EXPONENT
from tcsolve._substitute import invert_diagonal_blocks, substitute, trusted
from tcsolve._wgmma import Operands
from tcsolve.kernels import (
    BOARD_BYTES,
    TRSV_BLOCK,
    TRSV_COLUMNS,
    fastest_update,
    move_chunk,
    panel_shape,
    swap_shape,
)

__all__ = ["LUOps"]

# Rows below which an update is shorter than what it costs the host to run it beside a strip.
BESIDE_ROWS = 6144
# Nanoseconds the update may wait for the panel beside it to become resident.
GATE_PATIENCE = 200_000
# What decides how much of an update runs beside a strip, measured on an H200: seconds of a column of the
# strip and of a row of it, flops and bytes a second of the update, and the depth FP32 counts for.
STRIP_SECONDS, STRIP_SECONDS_ROW = 1.0e-6, 7e-11
BESIDE_FLOPS, BESIDE_BANDWIDTH, NATIVE_DEPTH = 5.1e14, 3e12, 11
# Right-hand sides up to which a few at a time are faster than the library's triangular solve of all.
SUBSTITUTED_COLUMNS = 16
# Unknowns up to which a step takes the host longer than the device.
AHEAD_ROWS = 4096
# Unknowns one launch of tcs_swap_solve takes.
SOLVE_WIDTH = 128
# Columns of C that a thread block of a tensor-core product takes.
GEMM_TILE = 256


class _Packed(NamedTuple):
    """Operands of an update: p (m, depth), q (r, depth), `parts` real columns of C to an entry of it."""

    p: Any
    q: Any
    low: str
    parts: int
    alpha: Any
    beta: Any

    @property
    def depth(self):
        """Products on the tensor cores for each entry of C."""
        return self.p.shape[1]


class _Flags:
    """Words on a device, one for each panel that runs beside an update, taken in turn.

    The gate clears them; one that is still set, or shared, opens a gate early, which costs time alone.
    """

    COUNT = 1024

    def __init__(self):
        # Of no pool: these words outlive every tape's.
        memory = cupy.cuda.MemoryPointer(cupy.cuda.Memory(4 * self.COUNT), 0)
        self._words, self._taken = cupy.ndarray(self.COUNT, cupy.uint32, memory), 0
        self._words.fill(0)

    @staticmethod
    @functools.cache
    def of(device):
        return _Flags()

    def next(self):
        self._taken = (self._taken + 1) % self.COUNT
        return self._words[self._taken : self._taken + 1]


class LUOps:
    """The part of `tcsolve._ops.Ops` that factors by our own kernels, and solves with such factors."""

    # Not twice: a body that fails has overwritten part of w.
    @functools.partial(turns_into_memory_error, again=False)
    def replayed(self, w, name, body):
        tape = _record.tape_of(w)
        return body() if tape is None else tape.run(name, body)

    @functools.partial(turns_into_memory_error, again=False)
    def aside(self, w, others, name, body):
        side = _idle_stream(cupy.cuda.runtime.getDevice(), threading.get_ident())
        tape = _record.tape_of(w)
        where = tuple(x.data.ptr for x in others)
        side.wait_event(cupy.cuda.get_current_stream().record())
        try:
            with side:
                result = body() if tape is None else tape.run(name, body, where, aside=True)
        except BaseException:
            cupy.cuda.get_current_stream().wait_event(side.record())
            raise
        done = side.record()

        def wait():
            cupy.cuda.get_current_stream().wait_event(done)
            return result

        return wait

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
        lu, swaps, _ = _cusolver.getrf_in_place(cupy.array(leaf, order="F"))
        diagonal = lu.diagonal()
        bad = cupy.nonzero(~cupy.isfinite(diagonal) | (diagonal == 0))[0][:1]
        swaps, bad = swaps.get(), bad.get()
        if len(bad):
            cupy.minimum(info, row0 + start + int(bad[0]) + 1, out=info)
        swaps = swaps[:w] - 1
        ipiv[start:stop] = cupy.asarray((row0 + start + swaps).astype(np.int32))
        moved = _cusolver.order_of(swaps, leaf.shape[0])
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
        is_native = type(operands) is tuple
        depth = operands[0].shape[1] * NATIVE_DEPTH if is_native else operands.depth
        column = m * max(2 * depth / BESIDE_FLOPS, 8 / BESIDE_BANDWIDTH)
        return -(-int(strip / column) // GEMM_TILE) * GEMM_TILE

    @turns_into_memory_error
    def update(self, c, l, u, how):
        if c.size and l.size:
            self.subtract_product(c, self.operands(l, u, how), slice(0, c.shape[1]))

    @turns_into_memory_error
    def operands(self, l, u, how):
        if how.native:
            return l, u
        (m, k), r, device = l.shape, u.shape[1], cupy.cuda.runtime.getDevice()
        if fastest_update(how, l.dtype.char, m, k, r, _device.arch(device)) == "wgmma":
            return Operands(l, u, how.format.name, _device.multiprocessors())
        return self._pack(l, u, how)

    def subtract_product(self, c, operands, columns):
        if not c.size:
            return
        if isinstance(operands, Operands):
            operands.subtract(c, columns)
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
        blocks = min(k, 4 * _device.multiprocessors())
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

    @turns_into_memory_error
    def invert_diagonal_blocks(self, lu):
        return invert_diagonal_blocks(lu) if lu.dtype.char in TRSV_BLOCK else None

    def trusted(self, inverses, worst):
        return trusted(inverses, worst)

    @turns_into_memory_error
    def ahead(self, lu, inverses, order, a, b, steps):
        tape = _record.tape_of(lu)
        if tape is None or len(b) > AHEAD_ROWS or b.shape[1] != 1 or b.dtype.char != "d":
            return None
        return _step.ahead(tape, lu, inverses, order, a, b, steps) if _step.has_rows(a) else None

    @turns_into_memory_error
    def solve_factored(self, lu, b, adjoint):
        conjugate = adjoint and lu.dtype.char == "F"
        x = cupy.array(b, dtype=lu.dtype, order="F")
        if conjugate:
            cupy.conj(x, out=x)
        for lower in (not adjoint, adjoint):  # L then U, but U**H then L**H
            _cublas.solve_left(lu, lower, x, adjoint)
        return cupy.conj(x, out=x) if conjugate else x

    @turns_into_memory_error
    def substitute(self, lu, b, adjoint, inverses, order):
        if inverses is None or b.dtype.char != "d" or not 0 < b.shape[1] <= SUBSTITUTED_COLUMNS:
            return None
        before, after = (None, order) if adjoint else (order, None)
        return _substitute_columns(lu, b, adjoint, inverses, before, after)


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


@functools.lru_cache(maxsize=64)
def _idle_stream(device, thread):
    """The stream of what a thread wants done where multiprocessors are idle."""
    with cupy.cuda.Device(device):
        return cupy.cuda.Stream(non_blocking=True)


@functools.cache
def _panel_shape(device, m):
    return panel_shape(m, _device.arch(device), _device.properties(device)["multiprocessors"])


@functools.cache
def _panel_kernel(device, shape):
    return _jit.kernel("panel", "tcs_panel", **shape.defines)


@functools.cache
def _swap_kernel(device, shape):
    return _jit.kernel("swap_solve", "tcs_swap_solve", **shape.defines)


def _swap_solve(n, rows, args):
    """Launch tcs_swap_solve on n columns with that many rows on the move."""
    device = cupy.cuda.runtime.getDevice()
    shape = swap_shape(n, rows, _device.arch(device))
    grid, block = (-(-n // shape.columns),), (shape.threads,)
    _swap_kernel(device, shape)(grid, block, args, shared=shape.shared_bytes(rows))
