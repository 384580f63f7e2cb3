"""The primitives of the LU on NumPy: LAPACK factors the strips, updates emulate tensor cores.

The operands of an emulated update are rounded to the format and multiplied in FP32.  There the product of two
11-bit numbers is exact, so an update differs from that of tensor cores only in the order and the truncation
of the sums.  An `Update` with `Sums` has the sums of tensor cores, too.  Tests of the GPU compare with this
code.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.linalg import lapack

from tcsolve._arithmetic.block_sums import sum_of_terms
from tcsolve._arithmetic.formats import PREFIX, TOP_EXPONENT, UPDATES, round_to, split
from tcsolve._arithmetic.matrix_parts import real_parts
from tcsolve._arithmetic.products import CHAIN, LEVELS
from tcsolve._backends.cpu.blas import blas_of, matmul
from tcsolve._backends.cpu.gemm import add_product
from tcsolve._backends.cpu.inverse_norm import estimated_rcond
from tcsolve._contract.lu import Square
from tcsolve._contract.vectors import order_of, solve_scaled

__all__ = ["HostLU", "HostRules", "column_max", "lapack_of"]

# Up to this many entries stay in the cache while they are read twice.
FEW_ENTRIES = 1 << 16
# The largest exponent of the scale of U, for BLAS and for emulated sums.  The limits are those of the device.
MOST_SCALE, MOST_SCALE_OF_SUMS = 112, 126


def lapack_of(name, dtype):
    return getattr(lapack, PREFIX[dtype.char] + name)


@dataclass(frozen=True)
class HostRules:
    """The `Rules` of the host: LAPACK factors whole panels, and all work is sequential."""

    char: str
    overlap_rows: ClassVar = math.inf
    panel_rows: ClassVar = {1: math.inf, 3: math.inf}
    is_recorded: ClassVar = False

    def block(self, left, update, dominant):
        return 128 if left < 2048 else 256

    def strip(self, rows, columns, dominant):
        return columns

    def is_wide(self, columns, right):
        return False

    def is_square(self, start, rows, columns, right, update):
        # A square panel is only the square on the diagonal, and L below it is computed by a product.  LAPACK
        # factors a panel with all its rows in no more time.
        return False

    def inner_update(self, update, rows, columns):
        return UPDATES["fp64" if self.char in "dD" else "fp32"]

    def near_update(self, update, columns):
        return update


class NumpyLU(NamedTuple):
    """The `LibraryLU` of LAPACK: the factors of the matrix, or of its transpose if `transposed`."""

    lu: Any
    swaps: Any
    transposed: bool
    inverses: Any = None  # LAPACK solves without them

    @property
    def order(self):
        return order_of(self.swaps)

    def solve(self, b, adjoint):
        getrs, b = lapack_of("getrs", self.lu.dtype), b.astype(self.lu.dtype, copy=False)
        # SciPy changes the pivots in place to count from one, and back again.  Other threads must not see
        # this, so give it a copy.
        swaps = self.swaps.copy()
        if self.transposed and adjoint:  # a**H = conj(a.T), and lu has the factors of a.T
            return getrs(self.lu, swaps, b.conj(), trans=0)[0].conj()
        trans = 1 if self.transposed else 2 * adjoint
        return getrs(self.lu, swaps, b, trans=trans)[0]

    def gecon(self, norm_one):
        rcond = estimated_rcond(norm_one, self.solve, len(self.lu), self.lu.dtype)
        if rcond is not None:
            return rcond
        norm = "I" if self.transposed else "1"
        return float(lapack_of("gecon", self.lu.dtype)(self.lu, norm_one, norm=norm)[0])


class HostLU:
    """The `tcsolve._contract.lu.LUOps` of NumPy: emulated arithmetic, and the LU of LAPACK."""

    def rules(self, dtype, w=None):
        return HostRules(np.dtype(dtype).char)

    def strip(self, p, start, stop, pivots, started=None):
        leaf = p[start:, start:stop]
        lu, swaps, zero = lapack_of("getrf", p.dtype)(np.array(leaf, order="F"), overwrite_a=True)
        moved = order_of(swaps, len(leaf))
        leaf[moved] = lu  # the factored rows go back to their old places (see `LUOps.strip`)
        row, ipiv, order, info = pivots
        order[start:] = order[start:][moved]
        ipiv[start:stop] = row + start + swaps
        bad = np.flatnonzero(~np.isfinite(lu.diagonal()))
        first = min([zero] * (zero > 0) + [j + 1 for j in bad[:1]], default=0)
        if first:
            info[0] = min(info[0], row + start + first)
        dst = np.union1d(np.arange(len(swaps)), swaps)
        return dst, moved[dst]

    def block_row(self, rows, panel, columns, swaps, solve=None):
        self.swap_rows(rows[:, columns], swaps)
        k, right = panel.stop - panel.start, slice(max(columns.start, panel.stop), columns.stop)
        if right.start < right.stop:
            (solve or self.solver(rows[:k, panel]))(rows[:k, right])

    def swap_rows(self, rows, swaps):
        dst, src = swaps
        rows[dst] = rows[src]

    def solver(self, l, plan=None):
        def solve(b, share=None):
            b[...] = _solve_triangle(l, b.copy(), lower=True, adjoint=False)

        return solve

    def square(self, p, plan, beyond):
        trsm = blas_of("trsm", p.dtype)

        def divide(l):
            # BLAS is column-major.  It sees l**T, and U**T as a lower triangle, so it solves U**T X = l**T.
            t = np.ascontiguousarray(l).T
            l[...] = trsm(1.0, np.ascontiguousarray(p).T, t, lower=True).T

        return Square(None, divide, beyond)

    def merge_swaps(self, order, local, ipiv, start):
        dst = np.concatenate([np.arange(len(ipiv), dtype=np.int32), ipiv - start])
        src = local[dst]
        order[...] = order[local]
        local[...] = np.arange(len(local))
        return dst, src

    def finish(self, lu, ipiv, info, beyond):
        moved = (ipiv != np.arange(len(ipiv))).sum()
        # No inverses: trsm is limited by the memory bandwidth, so they would gain nothing.
        return np.array([info[0], moved, 0, beyond[0]], dtype=float), None

    def cholesky_panel(self, p):
        top, below = p[: p.shape[1]], p[p.shape[1] :]
        found, info = lapack_of("potrf", p.dtype)(np.asfortranarray(top), lower=True)
        if info or not np.isfinite(found).all():
            return False
        top[...] = found
        if below.size:  # X L**H = A21
            trsm = blas_of("trsm", p.dtype)
            below[...] = trsm(1.0, found, below, side=1, lower=True, trans_a=2)
        return True

    def together(self, first, second):
        first()
        second()

    def overlap(self, step):
        step.do()

    def operand(self, l, how, at_once=False, bound=None):
        if bound is not None and not (np.abs(l) <= 1).all():
            bound[0] = 1
        if how.native:
            return functools.partial(_subtract_native, l)
        # |l| is at most about 1, or sqrt(2) if complex; `bound` reports exceptions.
        scaled = l * l.dtype.type(2.0**TOP_EXPONENT)
        if how.products == 1:
            return functools.partial(_subtract_rounded, how, (_rounded(scaled, how.format),))
        return functools.partial(_subtract_rounded, how, _split(scaled, how.format))

    def solve_packed(self, packed, b, adjoint):
        lu, order, _ = packed

        def solve(v):
            x = np.array(v if adjoint else v[order], dtype=lu.dtype, order="F")
            # Solve with L, then with U; if adjoint, with U**H, then with L**H.
            for lower in (not adjoint, adjoint):
                x = _solve_triangle(lu, x, lower=lower, adjoint=adjoint)
            if not adjoint:
                return x
            y = np.empty_like(x)
            y[order] = x
            return y

        return solve_scaled(np, column_max(b), solve, b, lu.dtype)

    def ahead(self, packed, a, b, steps):
        return None

    def getrf(self, a, dtype, overwrite_a=False):
        # LAPACK is column-major.  A row-major a is a column-major a.T without a copy.  So a.T is factored
        # instead, and the solves are transposed.
        transposed = not a.flags.f_contiguous
        t = a.T if transposed else a
        if t.dtype != dtype:
            # An overflow in the conversion shows later, as a pivot that is not finite.
            with np.errstate(over="ignore", under="ignore"):
                t, overwrite_a = t.astype(dtype, order="F"), True
        lu, swaps, info = lapack_of("getrf", dtype)(t, overwrite_a=overwrite_a)
        return NumpyLU(lu, swaps, transposed), max(info, 0)


def column_max(v):
    """Return max |v| of each column of v (n, k); NaN propagates."""
    if v.dtype.kind == "c" or v.size <= FEW_ENTRIES:
        # NumPy is slow if it reduces short contiguous runs.  So for short columns, make the rows contiguous.
        return np.maximum.reduce(np.abs(v, order="C" if len(v) < v.shape[1] else "K"))
    # Faster if |v| does not stay in the cache.
    return np.maximum(np.abs(np.maximum.reduce(v)), np.abs(np.minimum.reduce(v)))


def _solve_triangle(lu, b, *, lower, adjoint):
    """Return T**-1 b, or T**-H b, where T is the unit lower or the upper triangle of the row-major lu.

    b may be overwritten.
    """
    # BLAS is column-major and sees t = lu.T.  So lower and upper are exchanged, and a solve without transpose
    # needs trans_a.  A solve with T**H needs conj(t) without transpose, which BLAS does not have; so
    # conjugate b and the result instead.
    trsm = blas_of("trsm", lu.dtype)
    t = np.ascontiguousarray(lu).T
    conjugate = adjoint and np.iscomplexobj(lu)
    b = np.asfortranarray(b.conj() if conjugate else b)
    x = trsm(1.0, t, b, lower=not lower, trans_a=not adjoint, diag=lower, overwrite_b=True)
    return x.conj() if conjugate else x


def _subtract_native(l, c, u, share=None, first=0):
    if c.size and u.size:
        c -= matmul(l[first : first + len(c)], u)


def _subtract_rounded(how, parts, c, u, share=None, first=0):
    if not (c.size and u.size):
        return
    parts = [part[first : first + len(c)] for part in parts]
    # Scale U too, so that its largest entry is near 2**TOP_EXPONENT.
    scale = _scale_to_top(u, MOST_SCALE if how.sums is None else MOST_SCALE_OF_SUMS)
    unscale, u = u.dtype.type(1 / (2.0**TOP_EXPONENT * scale)), u * u.dtype.type(scale)
    of_u = (_rounded(u, how.format),) if how.products == 1 else _split(u, how.format)
    product = (_multiplied if how.sums is None else _emulated)(how, parts, of_u)
    product *= unscale
    c -= product


def _multiplied(how, of_l, of_u):
    """Return the product of rounded operands in FP32."""
    if how.products == 1:
        return matmul(of_l[0], of_u[0])
    (l_hi, l_lo), (u_hi, u_lo) = of_l, of_u
    # Sum the small products first, as the device does.
    return matmul(np.hstack([l_hi, l_lo, l_hi]), np.vstack([u_lo, u_hi, u_hi]))


def _emulated(how, of_l, of_u):
    """Return the product of rounded operands with the sums of tensor cores."""
    k = of_l[0].shape[1]
    # A complex entry counts as two real ones, along k too, as on the device.
    if np.iscomplexobj(of_l[0]):
        of_l = [np.ascontiguousarray(l).view(np.float32) for l in of_l]
        of_u = [_real_rows(u) for u in of_u]
        return _emulated(how, of_l, of_u).view(np.complex64)
    # With three products, the partial sums are short, as on the device.
    level, run = ("none", k) if how.products == 1 else ("ab", CHAIN)
    return sum_of_terms(of_l, of_u, LEVELS[level], run, functools.partial(add_product, how))


def _real_rows(u):
    """Return the real matrix (2k, 2n) for a complex u (k, n): each entry becomes ((re, im), (-im, re))."""
    rows = np.empty((len(u), 2, 2 * u.shape[1]), np.float32)
    rows[:, 0], rows[:, 1] = u.view(np.float32), (1j * u).astype(np.complex64).view(np.float32)
    return rows.reshape(2 * len(u), -1)


def _scale_to_top(u, most):
    """Return the power of two s with s max |u| in (2**(TOP_EXPONENT - 1), 2**TOP_EXPONENT].

    It is at most 2**most, and 1 if max |u| is 0 or not finite.
    """
    top = max(float(np.abs(part).max()) for part in real_parts(u))
    if not 0 < top < math.inf:
        return 1.0
    mantissa, exponent = math.frexp(top)
    return 2.0 ** min(TOP_EXPONENT - exponent + (mantissa == 0.5), most)


def _rounded(x, fmt):
    if np.iscomplexobj(x):
        return (round_to(x.real, fmt) + 1j * round_to(x.imag, fmt)).astype(x.dtype)
    return round_to(x, fmt)


def _split(x, fmt):
    if np.iscomplexobj(x):
        parts = zip(split(x.real, fmt), split(x.imag, fmt), strict=True)
        return tuple((re + 1j * im).astype(x.dtype) for re, im in parts)
    return split(x, fmt)
