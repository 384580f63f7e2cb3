"""The primitives of our own LU on CuPy: strips, row swaps, updates on tensor cores, triangular solves."""

import functools
import threading
from typing import Any, NamedTuple

import cupy
import numpy as np

from tcsolve._backends.cuda.gemm import wgmma
from tcsolve._backends.cuda.gemm.layout import aligned
from tcsolve._backends.cuda.lu import (
    cublas_update,
    cusolver_lu,
    first_steps,
    row_swaps,
    short_update,
    unit_lower,
)
from tcsolve._backends.cuda.lu.look_ahead import LookAhead
from tcsolve._backends.cuda.lu.row_swaps import Merged, Swaps
from tcsolve._backends.cuda.lu.rules import SHORT, SOLVE_WIDTH, DeviceRules
from tcsolve._backends.cuda.lu.substitution import invert_diagonal_blocks, substitute, trusted
from tcsolve._backends.cuda.lu.triangle_inverse import unit_lower_inverse, upper_inverse
from tcsolve._backends.cuda.lu.unit_lower import swap_solve, takes
from tcsolve._backends.cuda.runtime import (
    cluster_launch,
    compiler,
    cublas_calls,
    current_device,
    recorded_graphs,
    scratch_memory,
)
from tcsolve._backends.cuda.runtime.async_read import Sent
from tcsolve._backends.cuda.runtime.cublas_calls import ld
from tcsolve._backends.cuda.runtime.current_device import turns_into_memory_error
from tcsolve._paths import paths
from tcsolve.kernels.launch_shapes import TRSV_BLOCK, TRSV_COLUMNS
from tcsolve.kernels.panel_shapes import BOARD_BYTES, NARROW_STRIP, SEARCHED_STRIP, panel_shapes
from tcsolve.kernels.product_shapes import fastest_update

__all__ = ["LUOps"]

# Up to this many right-hand sides, our triangular solves of a few columns at a time are faster than trsm.
SUBSTITUTED_COLUMNS = 16


class _Native(NamedTuple):
    """L without rounding, for a product of cuBLAS."""

    l: Any

    def subtract(self, c, u, share, first=0):
        cublas_calls.gemm(c, self.l[first : first + len(c)], u)


class LUOps(LookAhead):
    """The part of `tcsolve._contract.ops.Ops` that factors by our kernels, and solves with such factors."""

    # again=False: a body that fails has overwritten part of w, so it cannot be repeated.
    @functools.partial(turns_into_memory_error, again=False)
    def replayed(self, w, name, body):
        tape = recorded_graphs.tape_of(w)
        if tape is not None:
            return tape.run(name, body)
        return scratch_memory.in_order_of(cupy.cuda.get_current_stream(), body)

    @functools.partial(turns_into_memory_error, again=False)
    def aside(self, w, others, name, body, then=None):
        tape = recorded_graphs.tape_of(w)
        if not paths().condition_aside:
            return None
        if tape is None and not current_device.allocates_by_default():
            # Another allocator may give the memory that a stream has freed to another stream too early.
            return None
        side = current_device.stream(cupy.cuda.runtime.getDevice(), threading.get_ident(), "idle")
        where = tuple(x.data.ptr for x in others)
        side.wait_event(cupy.cuda.get_current_stream().record())
        try:
            with side:
                found, rest = body() if tape is None else tape.run(name, body, where, aside=True)
                if then is not None:
                    found, rest = then(found, rest)
                    if tape is not None:
                        tape.follow_aside(side)
                # `found` is memory of the tape, which the next solve may overwrite.  So copy it to the host
                # now.  For more rows, do not: the host reads residuals at this time, and their copies would
                # wait behind this one.
                found = Sent(found) if len(w) <= paths().ahead_rows else found
        except BaseException:
            cupy.cuda.get_current_stream().wait_event(side.record())
            raise
        done = side.record()

        def wait():
            cupy.cuda.get_current_stream().wait_event(done)
            return found, rest

        return wait

    def lu_rules(self, dtype, w=None):
        char, device = np.dtype(dtype).char, cupy.cuda.runtime.getDevice()
        where = cluster_launch.in_force(), cluster_launch.present_context()
        lies = {} if w is None else _place_of(w)
        return DeviceRules(current_device.arch(device), char, _BestShape(*where), paths(), **lies)

    def has_clusters(self, n):
        """Tell whether a cluster can probably hold a strip of n rows; the exact answer compiles kernels."""
        may_fit = cluster_launch.in_force().may_fit
        shapes = _known_shapes(cupy.cuda.runtime.getDevice(), n)
        return next((s.cluster for s in shapes if not s.cluster or may_fit(_panel(s))), False)

    def strip_lu(self, p, start, stop, ipiv, row0, order, info, started=None):
        (m, _), w, shapes = p.shape, stop - start, ()
        if p.dtype.char == "f":
            where = cluster_launch.in_force(), cluster_launch.present_context()
            narrow = w % NARROW_STRIP == 0 and w % SOLVE_WIDTH != 0
            shapes = _panel_shapes(*where, m - start, narrow, w > SEARCHED_STRIP)
            shapes = [shape for shape in shapes if w <= shape.strip]
        if shapes:
            # Compute addresses: making views of arrays takes the host longer than the launches.
            first, ld_top, ld_p = row0 + start, -(-w // 4) * 4, ld(p)
            work = cupy.empty(w * (4 + ld_top) + 4, cupy.int32)
            dst = work.data.ptr
            src, top = dst + 8 * w, dst + 16 * (w + 1)
            strip = (p.data.ptr + 4 * (start * ld_p + start), ld_p, m - start, w)
            moved = order.data.ptr + 4 * start, ipiv.data.ptr + 4 * start
            args = (*strip, *moved, dst, src, top, ld_top, info, first, first, started)
            if cluster_launch.in_force().launch(
                "panel", shapes, functools.partial(_launch_panel, args)
            ):
                return Swaps(dst, src, top, ld_top, w, work)
        leaf, pivots = p[start:, start:stop], ipiv[start:stop]
        return self._strip_by_library(leaf, pivots, row0 + start, order[start:], info, started)

    def _strip_by_library(self, leaf, ipiv, first, order, info, started):
        """Do `strip_lu` of all rows of a strip by cuSOLVER, because no kernel of ours fits."""
        dst, src = self._strip_by_cusolver(leaf, ipiv, first, info)
        order[dst] = order[src]
        if started is not None:
            started[0] = 1
        return dst, src

    def _strip_by_cusolver(self, leaf, ipiv, first, info):
        """Factor a strip by cuSOLVER, and return (dst, src); the pivots are copied to the host."""
        w = leaf.shape[1]
        lu, swaps, _ = cusolver_lu.getrf_in_place(cupy.array(leaf, order="F"))
        diagonal = lu.diagonal()
        bad = cupy.nonzero(~cupy.isfinite(diagonal) | (diagonal == 0))[0][:1]
        swaps, bad = swaps.get(), bad.get()
        if len(bad):
            cupy.minimum(info, first + int(bad[0]) + 1, out=info)
        swaps = swaps[:w] - 1
        ipiv[...] = cupy.asarray((first + swaps).astype(np.int32))
        moved = cusolver_lu.order_of(swaps, leaf.shape[0])
        dst = np.union1d(np.arange(w), swaps).astype(np.int32)
        dst, src = cupy.asarray(dst), cupy.asarray(moved[dst])
        leaf[...] = lu
        leaf[src] = lu[dst]  # the factored rows go back to their old places (see `Ops.strip_lu`)
        return dst, src

    def block_row(self, rows, start, stop, swaps, first, last, substitution):
        if isinstance(swaps, Swaps):
            dst, src, top, ld_top, width, _ = swaps
            a, n = rows.data.ptr + 4 * first, last - first
            args = (a, ld(rows), n, max(stop - first, 0), dst, src, top, ld_top, width, 0)
            swap_solve(n, 2 * width, args)
            return
        k, l = stop - start, rows[: stop - start, start:stop]
        fused = isinstance(swaps, Merged) and substitution is None and first >= stop
        if fused and l.dtype.char == "f" and aligned(l) and takes(k, last - first):
            unit_lower.solve(l, rows[:, first:last], swaps)
            return
        self.swap_rows(rows[:, first:last], swaps)
        first = max(first, stop)
        if first < last:
            self.solve_unit_lower(l, rows[:k, first:last], substitution)

    def swap_rows(self, rows, swaps):
        if isinstance(swaps, Swaps):
            dst, src, top, ld_top, width, _ = swaps
            n = rows.shape[1]
            args = (rows, ld(rows), n, n, dst, src, top, ld_top, width, 0)
            swap_solve(n, 2 * width, args)
        else:
            row_swaps.move_rows(rows, *swaps)

    def solve_unit_lower(self, l, b, substitution=None, share=None):
        if not b.size:
            return
        if b.dtype.char != "f" or not aligned(l):
            cublas_calls.solve_right(l, b)
        elif substitution is not None:
            self._apply(substitution, b, share)
        else:
            unit_lower.solve(l, b)

    @turns_into_memory_error
    def _apply(self, substitution, b, share):
        substitution.apply(b, share)  # may be repeated: it allocates before it overwrites b

    @turns_into_memory_error
    def substitution(self, l, n, how, dominant, bound=None):
        k = len(l)
        # `how` is fp16x3 if the products can run on wgmma.
        few = n < paths().least_columns or k <= SOLVE_WIDTH
        if few or (bound is None and how.name != "fp16x3") or not aligned(l):
            return None
        return wgmma.Lower(
            unit_lower_inverse(l, dominant), how, current_device.multiprocessors(), bound
        )

    @turns_into_memory_error
    def bound(self, u, beyond):
        return wgmma.Bound(u, beyond, current_device.multiprocessors())

    @turns_into_memory_error
    def right_substitution(self, u, how, bound):
        return wgmma.Right(upper_inverse(u), how, current_device.multiprocessors(), bound)

    @turns_into_memory_error
    def solve_right(self, l, u, substitution=None):
        substitution.apply(l)

    @turns_into_memory_error
    def merge_swaps(self, order, local, ipiv, start):
        return row_swaps.merge_swaps(order, local, ipiv, start)

    @turns_into_memory_error
    def report(self, info, ipiv, worst, beyond):
        return row_swaps.report(info, ipiv, worst, beyond)

    @turns_into_memory_error
    def update(self, c, l, u, how):
        if c.size and l.size:
            self.operand(l, how).subtract(c, u, None)

    @turns_into_memory_error
    def operand(self, l, how, at_once=False, bound=None):
        device = cupy.cuda.runtime.getDevice()
        if how.native:
            return _Native(l)
        if how is SHORT:
            return short_update.Operand(l)
        engine = fastest_update(how, l.dtype.char, *l.shape, current_device.arch(device))
        if engine != "wgmma":
            return cublas_update.Operand(l, how, current_device.multiprocessors())
        operand = wgmma.Operand(l, how, current_device.multiprocessors(), bound)
        if at_once:
            operand.round()
        return operand

    @turns_into_memory_error
    def subtract_product(self, c, operand, u, share=None, first=0):
        if c.size and u.size:
            operand.subtract(c, u, share, first)

    @turns_into_memory_error
    def invert_diagonal_blocks(self, lu):
        solves = paths().triangular_kernels and lu.dtype.char in TRSV_BLOCK
        if not solves:
            return None
        with scratch_memory.results():
            return invert_diagonal_blocks(lu)

    def trusted(self, inverses, worst):
        return trusted(inverses, worst)

    @turns_into_memory_error
    def ahead(self, lu, inverses, order, a, b, steps):
        tape = recorded_graphs.tape_of(lu)
        return None if tape is None else first_steps.ahead(tape, lu, inverses, order, a, b, steps)

    def goes_ahead(self, a, b):
        one = len(b) <= paths().ahead_rows and b.shape[1] == 1 and b.dtype.char == "d"
        return one and first_steps.has_rows(a)

    @turns_into_memory_error
    def solve_factored(self, lu, b, adjoint):
        conjugate = adjoint and lu.dtype.char == "F"
        x = cupy.array(b, dtype=lu.dtype, order="F")
        if conjugate:
            cupy.conj(x, out=x)
        # Solve with L, then with U; if adjoint, with U**H, then with L**H.
        for lower in (not adjoint, adjoint):
            cublas_calls.solve_left(lu, lower, x, adjoint)
        return cupy.conj(x, out=x) if conjugate else x

    @turns_into_memory_error
    def substitute(self, lu, b, adjoint, inverses, order):
        if inverses is None or b.dtype.char != "d" or not 0 < b.shape[1] <= SUBSTITUTED_COLUMNS:
            return None
        before, after = (None, order) if adjoint else (order, None)
        return _substitute_columns(lu, b, adjoint, inverses, before, after)


def _substitute_columns(lu, b, *rest):
    """Call `substitute` for a few columns at a time, as many as its kernels take."""
    (n, k), most = b.shape, max(TRSV_COLUMNS)
    if k <= most:
        return substitute(lu, b, *rest)
    x = cupy.empty((n, k), order="F")
    for i in range(0, k, most):
        x[:, i : i + most] = substitute(lu, b[:, i : i + most], *rest)
    return x


class _BestShape(NamedTuple):
    """The best shape of a strip by what is known of clusters, as `DeviceRules` asks for it."""

    clusters: Any
    context: tuple

    def __call__(self, rows, narrow, dominant):
        shapes = _panel_shapes(self.clusters, self.context, rows, narrow, dominant)
        return next(iter(shapes), None)


def _place_of(w):
    """Return where the rows of w lie, as `DeviceRules` takes it."""
    return {
        "itemsize": w.itemsize,
        "address": w.data.ptr % 16,
        "row_bytes": w.strides[0] % 16,
    }


@functools.cache
def _panel_shapes(clusters, context, m, narrow, dominant):
    shapes = _known_shapes(context[0], m, narrow, dominant)
    return tuple(s for s in shapes if not s.cluster or clusters.fits(_panel(s)))


@functools.cache
def _known_shapes(device, m, narrow=False, dominant=False):
    count = current_device.properties(device)["multiprocessors"]
    return panel_shapes(m, current_device.arch(device), count, narrow, dominant)


@functools.cache
def _panel(shape):
    defines = tuple(shape.defines.items())
    needs = shape.blocks, shape.all_threads, shape.shared_bytes
    return cluster_launch.Variant("panel", "tcs_panel", defines, *needs)


def _launch_panel(args, shape):
    board = None if shape.cluster else cupy.zeros(BOARD_BYTES, cupy.uint8)
    kernel = _panel_kernel(cupy.cuda.runtime.getDevice(), shape, paths().dominant_strips)
    options = {"shared": shape.shared_bytes, "cooperative": not shape.cluster}
    kernel((shape.blocks,), (shape.all_threads,), (*args, board), **options)


@functools.cache
def _panel_kernel(device, shape, dominant):
    defines = shape.defines if dominant else shape.defines | {"DOMINANT": 0}
    return compiler.kernel("panel", "tcs_panel", **defines)
