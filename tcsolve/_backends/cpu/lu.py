"""The primitives of our own LU on NumPy: LAPACK factors the strips, updates emulate tensor cores.

The operands of an emulated update are rounded to the format and multiplied in FP32.  There the product of two
11-bit numbers is exact, so an update differs from that of tensor cores only in the order of the sums.  Tests
of the GPU compare with this code.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack

from tcsolve._arithmetic.formats import PREFIX, TOP_EXPONENT, UPDATES, round_to, split
from tcsolve._arithmetic.matrix_parts import real_parts
from tcsolve._backends.cpu.blas import blas_of, matmul

__all__ = ["HostRules", "LUOps", "lapack_of"]


def lapack_of(name, dtype):
    return getattr(lapack, PREFIX[dtype.char] + name)


@dataclass(frozen=True)
class HostRules:
    """The `Rules` of the host: LAPACK factors whole panels, and all work is sequential."""

    char: str

    def block(self, left, update, dominant):
        return 128 if left < 2048 else 256

    def strip(self, rows, columns, dominant):
        return columns

    def is_wide(self, columns, right):
        return False

    def is_square(self, start, rows, columns, right, update):
        return False  # no product is faster than LAPACK's panel

    def looks_ahead(self, rows):
        return False

    def panel_is_sooner(self, rows, update):
        return False

    def inner_update(self, update, column, rows, columns):
        return UPDATES["fp64" if self.char in "dD" else "fp32"]

    def near_update(self, update, start, columns):
        return update


class LUOps:
    """The part of `tcsolve._contract.ops.Ops` for LU in emulated arithmetic, and solves with its factors."""

    def lu_rules(self, dtype, w=None):
        return HostRules(np.dtype(dtype).char)

    def strip_lu(self, p, start, stop, ipiv, row0, order, info, started=None):
        leaf = p[start:, start:stop]
        lu, swaps, zero = lapack_of("getrf", p.dtype)(np.array(leaf, order="F"), overwrite_a=True)
        moved = np.arange(len(leaf))
        for j, i in enumerate(swaps):
            moved[j], moved[i] = moved[i], moved[j]
        leaf[moved] = lu  # the factored rows go back to their old places (see `Ops.strip_lu`)
        order[start:] = order[start:][moved]
        ipiv[start:stop] = row0 + start + swaps
        bad = np.flatnonzero(~np.isfinite(lu.diagonal()))
        first = min([zero] * (zero > 0) + [j + 1 for j in bad[:1]], default=0)
        if first:
            info[0] = min(info[0], row0 + start + first)
        dst = np.union1d(np.arange(len(swaps)), swaps)
        return dst, moved[dst]

    def block_row(self, rows, start, stop, swaps, first, last, substitution):
        self.swap_rows(rows[:, first:last], swaps)
        k, first = stop - start, max(first, stop)
        if first < last:
            self.solve_unit_lower(rows[:k, start:stop], rows[:k, first:last])

    def swap_rows(self, rows, swaps):
        dst, src = swaps
        rows[dst] = rows[src]

    def solve_unit_lower(self, l, b, substitution=None, share=None):
        b[...] = self._solve_triangle(l, b.copy(), lower=True, adjoint=False)

    def substitution(self, l, n, how, dominant, bound=None):
        return None

    def bound(self, u, beyond):
        return beyond

    def right_substitution(self, u, how, bound):
        return None

    def solve_right(self, l, u, substitution=None):
        trsm = blas_of("trsm", u.dtype)
        # BLAS is column-major.  It sees l**T, and U**T as a lower triangle, so it solves U**T X = l**T.
        l[...] = trsm(1.0, np.ascontiguousarray(u).T, np.ascontiguousarray(l).T, lower=True).T

    def merge_swaps(self, order, local, ipiv, start):
        dst = np.concatenate([np.arange(len(ipiv), dtype=np.int32), ipiv - start])
        src = local[dst]
        order[...] = order[local]
        local[...] = np.arange(len(local))
        return dst, src

    def report(self, info, ipiv, worst, beyond):
        moved = (ipiv != np.arange(len(ipiv))).sum()
        return np.array([info[0], moved, worst[0], beyond[0]], dtype=float)

    def together(self, first, second):
        first()
        second()

    def beside(self, step):
        step.do()

    def update(self, c, l, u, how):
        if c.size and l.size:
            self.subtract_product(c, self.operand(l, how), u)

    def operand(self, l, how, at_once=False, bound=None):
        if bound is not None and not (np.abs(l) <= 1).all():
            bound[0] = 1
        if how.native:
            return how, (l,)
        scaled = l * l.dtype.type(2.0**TOP_EXPONENT)  # the largest entry of L is 1
        if how.products == 1:
            return how, (_rounded(scaled, how.format),)
        return how, _split(scaled, how.format)

    def subtract_product(self, c, operand, u, share=None, first=0):
        how, parts = operand
        parts = [part[first : first + len(c)] for part in parts]
        if how.native:
            c -= matmul(parts[0], u)
            return
        # Scale U too, so that its largest entry is near 2**TOP_EXPONENT.
        scale = _scale_to_top(u)
        unscale, u = u.dtype.type(1 / (2.0**TOP_EXPONENT * scale)), u * u.dtype.type(scale)
        if how.products == 1:
            _subtract(c, parts[0], _rounded(u, how.format), unscale)
            return
        (l_hi, l_lo), (u_hi, u_lo) = parts, _split(u, how.format)
        # Sum the small products first, as the device does.
        l, u = np.hstack([l_hi, l_lo, l_hi]), np.vstack([u_lo, u_hi, u_hi])
        _subtract(c, l, u, unscale)

    def replayed(self, w, name, body):
        return body()

    def aside(self, w, others, name, body, then=None):
        return None

    def trusted(self, inverses, worst):
        return inverses

    def invert_diagonal_blocks(self, lu):
        return None  # trsm is limited by the memory bandwidth, so inverses would gain nothing

    def substitute(self, lu, b, adjoint, inverses, order):
        return None

    def goes_ahead(self, a, b):
        return False

    def ahead(self, lu, inverses, order, a, b, steps):
        return None

    def solve_factored(self, lu, b, adjoint):
        x = np.array(b, dtype=lu.dtype, order="F")
        # Solve with L, then with U; if adjoint, with U**H, then with L**H.
        for lower in (not adjoint, adjoint):
            x = self._solve_triangle(lu, x, lower=lower, adjoint=adjoint)
        return x

    def _solve_triangle(self, lu, b, *, lower, adjoint):
        """Return the solution with the unit lower or the upper triangle of the row-major lu.

        b may be overwritten.
        """
        # BLAS is column-major and sees t = lu.T.  So lower and upper are exchanged, and a solve without
        # transpose needs trans_a.  A solve with A**H needs conj(t) without transpose, which BLAS does not
        # have; so conjugate b and the result instead.
        trsm = blas_of("trsm", lu.dtype)
        t = np.ascontiguousarray(lu).T
        conjugate = adjoint and np.iscomplexobj(lu)
        b = np.asfortranarray(b.conj() if conjugate else b)
        x = trsm(1.0, t, b, lower=not lower, trans_a=not adjoint, diag=lower, overwrite_b=True)
        return x.conj() if conjugate else x


def _subtract(c, l, u, factor):
    """c -= factor l u, in place, with one temporary array."""
    product = matmul(l, u)
    product *= factor
    c -= product


def _scale_to_top(u):
    """Return the power of two s with s max |u| in (2**(TOP_EXPONENT - 1), 2**TOP_EXPONENT].

    It is 1 if max |u| is 0 or not finite.
    """
    top = max(float(np.abs(part).max()) for part in real_parts(u))
    if not 0 < top < math.inf:
        return 1.0
    mantissa, exponent = math.frexp(top)
    return 2.0 ** (TOP_EXPONENT - exponent + (mantissa == 0.5))


def _rounded(x, fmt):
    if np.iscomplexobj(x):
        return (round_to(x.real, fmt) + 1j * round_to(x.imag, fmt)).astype(x.dtype)
    return round_to(x, fmt)


def _split(x, fmt):
    if np.iscomplexobj(x):
        parts = zip(split(x.real, fmt), split(x.imag, fmt), strict=True)
        return tuple((re + 1j * im).astype(x.dtype) for re, im in parts)
    return split(x, fmt)
