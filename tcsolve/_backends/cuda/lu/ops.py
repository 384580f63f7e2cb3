"""The primitives of the LU on CuPy: strips, row swaps, updates on tensor cores, triangular solves."""

import functools
from typing import Any, NamedTuple

import cupy
import cupyx
import numpy as np
from cupyx.scipy.linalg import solve_triangular

from tcsolve._backends.cuda.gemm import emulated_sums, wgmma
from tcsolve._backends.cuda.gemm.layout import aligned
from tcsolve._backends.cuda.lu import (
    cublas_update,
    cusolver_lu,
    first_steps,
    row_swaps,
    unit_lower,
)
from tcsolve._backends.cuda.lu.look_ahead import overlap, together
from tcsolve._backends.cuda.lu.many_columns import solve_triangles
from tcsolve._backends.cuda.lu.many_columns import takes as takes_many
from tcsolve._backends.cuda.lu.row_swaps import Merged, Swaps
from tcsolve._backends.cuda.lu.rules import SOLVE_WIDTH, DeviceRules
from tcsolve._backends.cuda.lu.substitution import invert_diagonal_blocks, substitute
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
from tcsolve._backends.cuda.runtime.cublas_calls import ld
from tcsolve._backends.cuda.runtime.current_device import guarded, turns_into_memory_error
from tcsolve._contract.lu import Square
from tcsolve._contract.vectors import order_of, solve_scaled
from tcsolve._paths import paths
from tcsolve.kernels.launch_shapes import TRSV_BLOCK, TRSV_COLUMNS
from tcsolve.kernels.panel_shapes import BOARD_BYTES, NARROW_STRIP, SEARCHED_STRIP, panel_shapes
from tcsolve.kernels.product_shapes import fastest_update

__all__ = ["DeviceLU"]

# Up to this many right-hand sides, our triangular solves of a few columns at a time are faster than products.
SUBSTITUTED_COLUMNS = 16


@functools.lru_cache(maxsize=256)
def _rules(char, clusters, context, special, place):
    shape = _BestShape(clusters, context)
    return DeviceRules(current_device.arch(context[0]), char, shape, special, *place)


class _Native(NamedTuple):
    """L without rounding, for a product of cuBLAS."""

    l: Any

    def round(self):
        """Do nothing: nothing is rounded."""

    def subtract(self, c, u, share, first=0):
        cublas_calls.gemm(c, self.l[first : first + len(c)], u)


class DeviceLU:
    """The `tcsolve._contract.lu.LUOps` of CuPy: our kernels, and the LU of cuSOLVER."""

    def rules(self, dtype, w=None):
        char, place = np.dtype(dtype).char, () if w is None else _place_of(w)
        where = cluster_launch.in_force(), cluster_launch.present_context()
        return _rules(char, *where, paths(), place)

    def has_clusters(self, n):
        """Tell whether a cluster can probably hold a strip of n rows.

        For an exact answer, kernels would have to be compiled.
        """
        may_fit = cluster_launch.in_force().may_fit
        shapes = _known_shapes(cupy.cuda.runtime.getDevice(), n)
        return next((s.cluster for s in shapes if not s.cluster or may_fit(_panel(s))), False)

    def strip(self, p, start, stop, pivots, started=None):
        (m, _), w = p.shape, stop - start
        if p.dtype.char == "f":
            where = cluster_launch.in_force(), cluster_launch.present_context()
            narrow = w % NARROW_STRIP == 0 and w % SOLVE_WIDTH != 0
            shapes = _panel_shapes(*where, m - start, narrow, w > SEARCHED_STRIP)
            shapes = (shape for shape in shapes if w <= shape.strip)
            # Compute addresses: making views of arrays takes the host longer than the launches.
            row, ipiv, order, info = pivots
            first, ld_top, ld_p = row + start, -(-w // 4) * 4, ld(p)
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
        return _strip_by_library(p, start, stop, pivots, started)

    def block_row(self, rows, panel, columns, swaps, solve=None):
        first, last = columns.start, columns.stop
        if isinstance(swaps, Swaps):
            dst, src, top, ld_top, width, _ = swaps
            a, n = rows.data.ptr + 4 * first, last - first
            args = (a, ld(rows), n, max(panel.stop - first, 0), dst, src, top, ld_top, width, 0)
            swap_solve(n, 2 * width, args)
            return
        k = panel.stop - panel.start
        l = rows[:k, panel]
        fused = isinstance(swaps, Merged) and solve is None and first >= panel.stop
        if fused and l.dtype.char == "f" and aligned(l) and takes(k, last - first):
            unit_lower.solve(l, rows[:, columns], swaps)
            return
        self.swap_rows(rows[:, columns], swaps)
        first = max(first, panel.stop)
        if first < last:
            (solve or self.solver(l))(rows[:k, first:last])

    def swap_rows(self, rows, swaps):
        if isinstance(swaps, Swaps):
            dst, src, top, ld_top, width, _ = swaps
            n = rows.shape[1]
            args = (rows, ld(rows), n, n, dst, src, top, ld_top, width, 0)
            swap_solve(n, 2 * width, args)
        else:
            row_swaps.move_rows(rows, *swaps)

    def solver(self, l, plan=None):
        by_inverse = None if plan is None else _by_inverse(l, plan)
        if by_inverse is not None:
            return by_inverse
        by_ours = l.dtype.char == "f" and aligned(l)
        substitute = unit_lower.solve if by_ours else cublas_calls.solve_right

        def solve(b, share=None):
            if b.size:
                substitute(l, b)

        return solve

    def square(self, p, plan, beyond):
        bound, made = _bound(p, beyond), {}

        def divide():
            made["divide"] = guarded(_upper(p, plan, bound).apply)

        def solve():
            made["solve"] = _by_inverse(p, plan, bound)

        together(divide, solve)
        return Square(**made, bound=bound)

    @turns_into_memory_error
    def merge_swaps(self, order, local, ipiv, start):
        return row_swaps.merge_swaps(order, local, ipiv, start)

    def cholesky_panel(self, p):
        top, below = p[: p.shape[1]], p[p.shape[1] :]
        with cupyx.errstate(linalg="ignore"):  # an indefinite block fails the tests below
            found = cupy.linalg.cholesky(top)
        pivots = found.diagonal().real
        if not bool(cupy.isfinite(found).all() & (pivots > 0).all()):
            return False
        top[...] = found
        if below.size:  # L11 X**H = A21**H
            of_below = solve_triangular(found, below.conj().T, lower=True)
            below[...] = of_below.conj().T
        return True

    def together(self, first, second):
        together(first, second)

    def overlap(self, step):
        overlap(step, self.rules(step.following.p.dtype))

    @turns_into_memory_error
    def finish(self, lu, ipiv, info, beyond):
        inverses, condition = None, None
        if paths().triangular_kernels and lu.dtype.char in TRSV_BLOCK:
            with scratch_memory.results():
                inverses, condition = invert_diagonal_blocks(lu)
        condition = cupy.zeros(1) if condition is None else condition
        return row_swaps.report(info, ipiv, condition, beyond), inverses

    @turns_into_memory_error
    def operand(self, l, how, at_once=False, bound=None):
        product = _product_with(l, how, bound)
        if at_once:
            product.round()
        of_product = guarded(product.subtract)

        def subtract(c, u, share=None, first=0):
            if c.size and u.size:
                of_product(c, u, share, first)

        return subtract

    @turns_into_memory_error
    def solve_packed(self, packed, b, adjoint):
        lu, order, inverses = packed
        if inverses is not None and b.dtype.char == "d" and 0 < b.shape[1] <= SUBSTITUTED_COLUMNS:
            before, after = (None, order) if adjoint else (order, None)
            return _substitute_columns(lu, b, adjoint, inverses, before, after)
        if takes_many(lu, inverses, b.shape[1]):
            solve = functools.partial(solve_triangles, lu, order, adjoint, inverses)
        else:
            solve = functools.partial(_solve_by_trsm, lu, order, adjoint)
        return solve_scaled(cupy, first_steps.column_max(b), solve, b, lu.dtype)

    @turns_into_memory_error
    def ahead(self, packed, a, b, steps):
        tape = recorded_graphs.tape_of(packed.lu)
        return None if tape is None else first_steps.ahead(tape, packed, a, b, steps)

    def getrf(self, a, dtype, overwrite_a=False):
        # A call that fails must not be repeated if the factors may have overwritten a.
        factored = guarded(cusolver_lu.factored, again=not overwrite_a)
        return factored(a, dtype, overwrite_a)


@turns_into_memory_error
def _by_inverse(l, plan, bound=None):
    """Return a function solve(b, share=None) by a product with L**-1, or None if substitution is faster."""
    # Without a bound, the panel is not square.  Then plan.update is fp16x3, FP32 or FP64, and of these wgmma
    # has only fp16x3.
    few = plan.columns < paths().least_columns or len(l) <= SOLVE_WIDTH
    if few or (bound is None and plan.update.name != "fp16x3") or not aligned(l):
        return None
    inverse = unit_lower_inverse(l, plan.is_dominant)
    product = wgmma.Lower.of(inverse, plan.update, current_device.multiprocessors(), bound)
    return guarded(product.apply)  # it allocates before it overwrites b


@turns_into_memory_error
def _upper(u, plan, bound):
    """Return the inverse of U for products."""
    return wgmma.Right.of(upper_inverse(u), plan.update, current_device.multiprocessors(), bound)


@turns_into_memory_error
def _bound(u, beyond):
    return wgmma.Bound.of(u, beyond, current_device.multiprocessors())


def _product_with(l, how, bound):
    """Return the object that subtracts products with L."""
    if how.native:
        return _Native(l)
    if how.sums is not None:
        return emulated_sums.Operand.of(l, how)
    device, count = cupy.cuda.runtime.getDevice(), current_device.multiprocessors()
    if fastest_update(how, l.dtype.char, *l.shape, current_device.arch(device)) == "wgmma":
        return wgmma.Operand(l, how, count, bound)
    return cublas_update.Operand.of(l, how, count)


def _strip_by_library(p, start, stop, pivots, started):
    """Do `LUOps.strip` by cuSOLVER, because no kernel of ours fits."""
    row, ipiv, order, info = pivots
    order = order[start:]
    dst, src = _strip_by_cusolver(p[start:, start:stop], ipiv[start:stop], row + start, info)
    order[dst] = order[src]
    if started is not None:
        started[0] = 1
    return dst, src


def _strip_by_cusolver(leaf, ipiv, first, info):
    """Factor a strip by cuSOLVER, and return (dst, src); the pivots are copied to the host."""
    w = leaf.shape[1]
    lu, swaps, _ = cusolver_lu.getrf_in_place(cupy.array(leaf, order="F"))
    diagonal = lu.diagonal()
    bad = cupy.nonzero(~cupy.isfinite(diagonal) | (diagonal == 0))[0][:1]
    swaps, bad = swaps.get(), bad.get()
    if len(bad):
        cupy.minimum(info, first + int(bad[0]) + 1, out=info)
    swaps = swaps - 1
    ipiv[...] = cupy.asarray((first + swaps).astype(np.int32))
    moved = order_of(swaps, leaf.shape[0])
    dst = np.union1d(np.arange(w), swaps).astype(np.int32)
    dst, src = cupy.asarray(dst), cupy.asarray(moved[dst])
    leaf[...] = lu
    leaf[src] = lu[dst]  # the factored rows go back to their old places (see `LUOps.strip`)
    return dst, src


def _solve_by_trsm(lu, order, adjoint, b):
    """Return A**-1 b, or A**-H b, in the dtype of the factors, where A[order] = L U."""
    conjugate = adjoint and lu.dtype.char == "F"
    x = cupy.array(b if adjoint else b[order], dtype=lu.dtype, order="F")
    if conjugate:
        cupy.conj(x, out=x)
    # Solve with L, then with U; if adjoint, with U**H, then with L**H.
    for lower in (not adjoint, adjoint):
        cublas_calls.solve_left(lu, lower, x, adjoint)
    if conjugate:
        cupy.conj(x, out=x)
    if not adjoint:
        return x
    y = cupy.empty_like(x)
    y[order] = x
    return y


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
    """A function (rows, narrow, dominant) that returns the best shape of a strip, or None."""

    clusters: Any
    context: tuple

    def __call__(self, rows, narrow, dominant):
        return _best_shape(self.clusters, self.context, rows, narrow, dominant)


def _place_of(w):
    """Return where the rows of w lie, and whether graphs are recorded there: fields of `DeviceRules`."""
    recorded = recorded_graphs.tape_of(w) is not None
    return w.itemsize, w.data.ptr % 16, w.strides[0] % 16, recorded


def _panel_shapes(clusters, context, m, narrow, dominant):
    """Yield the shapes to try; each is checked only when needed, because a check compiles its kernel."""
    best = _best_shape(clusters, context, m, narrow, dominant)
    shapes = _known_shapes(context[0], m, narrow, dominant)
    if best is not None:
        yield best
        yield from _fitting(clusters, shapes[shapes.index(best) + 1 :])


@functools.cache
def _best_shape(clusters, context, m, narrow, dominant):
    return next(_fitting(clusters, _known_shapes(context[0], m, narrow, dominant)), None)


def _fitting(clusters, shapes):
    return (s for s in shapes if not s.cluster or clusters.fits(_panel(s)))


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
