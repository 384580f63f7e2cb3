"""The primitives on NumPy: LAPACK where it has them, emulated tensor cores where it has not.

Operands of an emulated update are rounded to the format exactly and multiplied in FP32; products of two
11-bit numbers are exact there, so this differs from a tensor core in the order of summation alone.
It is the oracle of the GPU tests.
"""

import math
import os
import time

import numpy as np
from scipy.linalg import blas, lapack

from tcsolve import _gemm_numpy
from tcsolve._formats import TOP_EXPONENT, UPDATES, round_to, split
from tcsolve._ops import Stats

__all__ = ["NumpyOps"]

# Entries of a block that stays in the second-level cache while five reductions pass over it.
CACHE_ENTRIES = 1 << 16
# Entries of a block of FP32 rows that is widened to FP64 at a time.
WIDEN_ENTRIES = 1 << 22

PREFIX = {"f": "s", "d": "d", "F": "c", "D": "z"}


def _blas(name, dtype):
    return getattr(blas, PREFIX[dtype.char] + name)


def _lapack(name, dtype):
    return getattr(lapack, PREFIX[dtype.char] + name)


class NumpyOps:
    """Primitives on NumPy arrays (see `tcsolve._ops.Ops`)."""

    xp = np
    device = "cpu"

    def array(self, host):
        return np.asarray(host)

    def reading(self, *arrays):
        return lambda: arrays

    def host(self, *arrays):
        return arrays

    def default_block(self, n, how, dominant=False):
        return 128 if n < 2048 else 256

    def mark(self):
        return time.perf_counter()

    def seconds(self, start, stop):
        return stop - start

    def clear_cache(self):
        return False

    def free_bytes(self, enough=math.inf):
        try:
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, ValueError, OSError):
            return math.inf  # not every system tells

    def stats(self, a):
        if not a.flags.c_contiguous and a.flags.f_contiguous:
            return Stats(*reversed(self.stats(a.T)))
        n = a.shape[0]
        row_sum, col_sum, ones = np.empty(n), np.zeros(n), np.ones(n)
        # A sum that overflows or meets a NaN is the caller's to find, not NumPy's to warn of.
        with np.errstate(over="ignore", invalid="ignore"):
            for rows in _blocks(n):
                block = np.abs(a[rows]).astype(np.float64, copy=False)
                row_sum[rows] = block @ ones  # faster than sum(axis=1)
                col_sum += ones[: len(block)] @ block
        return Stats(row_sum, col_sum)

    def extremes(self, a, dtype=None):
        rows, cols = self.stats(a)
        with np.errstate(all="ignore"):
            size = np.abs(a.diagonal()).astype(float)
            dominance = (2.0 * size - rows).min(), (3.0 * size - cols).min()
        found = rows.max(), rows.min(), cols.max(), cols.min(), *dominance
        return lambda: tuple(map(float, found)), None

    def goes_early(self, a):
        return False

    def starts_early(self, a, how):
        return False

    def row_max(self, a):
        return np.concatenate([np.abs(a[rows]).max(axis=1) for rows in _blocks(len(a))])

    def col_max(self, a, row_scale):
        parts = [(np.abs(a[rows]) * row_scale[rows, None]).max(axis=0) for rows in _blocks(len(a))]
        return np.max(parts, axis=0)

    def cast_scaled(self, a, row_scale, col_scale, dtype):
        with np.errstate(over="ignore", under="ignore"):
            if row_scale is None:
                return np.array(a, dtype=dtype, order="C")
            # Exponents are added first: r or s alone may leave the range that r s stays in.
            er, es = np.frexp(row_scale)[1] - 1, np.frexp(col_scale)[1] - 1
            out = np.empty(a.shape, dtype)
            for rows in _blocks(len(a)):
                exponent = er[rows, None] + es
                if np.iscomplexobj(a):
                    out.real[rows] = np.ldexp(a.real[rows], exponent)
                    out.imag[rows] = np.ldexp(a.imag[rows], exponent)
                else:
                    out[rows] = np.ldexp(a[rows], exponent)
            return out

    def strip_width(self, m, k, dtype, dominant=False):
        return k

    def strip_lu(self, p, start, stop, ipiv, row0, order, info, started=None):
        leaf = p[start:, start:stop]
        lu, swaps, zero = _lapack("getrf", p.dtype)(np.array(leaf, order="F"), overwrite_a=True)
        moved = np.arange(len(leaf))
        for j, i in enumerate(swaps):
            moved[j], moved[i] = moved[i], moved[j]
        leaf[moved] = lu  # the rows stay where they were
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
        b[...] = self._solve_triangle(l, b, lower=True, adjoint=False)

    def substitution(self, l, n, how, dominant, bound=None):
        return None

    def is_wide(self, k, n):
        return False

    def gains_square(self, p, n, how):
        return False  # there is no product that outruns LAPACK's panel

    def bound(self, u, beyond):
        return beyond

    def right_substitution(self, u, how, bound):
        return None

    def solve_right(self, l, u, substitution=None):
        trsm = _blas("trsm", u.dtype)
        # As BLAS sees them l is transposed, and U a lower triangle: it solves U**T X = l**T.
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

    def gains_beside(self, m):
        return False  # nothing runs beside anything

    def waits_for_update(self, m, how):
        return False

    def inner_update(self, how, l):
        return UPDATES["fp64" if l.dtype.char in "dD" else "fp32"]

    def near_update(self, how, p):
        return how

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
        scaled = l * l.dtype.type(2.0**TOP_EXPONENT)  # of entries no larger than 1
        if how.products == 1:
            return how, (_rounded(scaled, how.format),)
        return how, _split(scaled, how.format)

    def subtract_product(self, c, operand, u, share=None, first=0):
        how, parts = operand
        parts = [part[first : first + len(c)] for part in parts]
        if how.native:
            c -= parts[0] @ u
            return
        # The largest entry of U comes to 2**TOP_EXPONENT as well.
        scale = _scale_to_top(u)
        unscale, u = u.dtype.type(1 / (2.0**TOP_EXPONENT * scale)), u * u.dtype.type(scale)
        if how.products == 1:
            c -= parts[0] @ _rounded(u, how.format) * unscale
            return
        (l_hi, l_lo), (u_hi, u_lo) = parts, _split(u, how.format)
        # The small products first, as on a device.
        c -= np.hstack([l_hi, l_lo, l_hi]) @ np.vstack([u_lo, u_hi, u_hi]) * unscale

    def gemm(self, a, b, c, out, product, alpha, beta, engine):
        _gemm_numpy.gemm(a, b, c, out, product, alpha, beta, engine)

    def replayed(self, w, name, body):
        return body()

    def aside(self, w, others, name, body):
        return None

    def trusted(self, inverses, worst):
        return inverses

    def signature(self, options, *arrays):
        return None  # nothing here is short enough for checks to count

    def gemm_again(self, launch, a, b, c, out):
        return None

    def invert_diagonal_blocks(self, lu):
        return None  # LAPACK's substitution is at the speed of memory

    def substitute(self, lu, b, adjoint, inverses, order):
        return None

    def goes_ahead(self, a, b):
        return False

    def ahead(self, lu, inverses, order, a, b, steps):
        return None

    def solve_factored(self, lu, b, adjoint):
        if adjoint:
            y = self._solve_triangle(lu, b, lower=False, adjoint=True)
            return self._solve_triangle(lu, y, lower=True, adjoint=True)
        y = self._solve_triangle(lu, b, lower=True, adjoint=False)
        return self._solve_triangle(lu, y, lower=False, adjoint=False)

    def _solve_triangle(self, lu, b, *, lower, adjoint):
        """Solve with the unit lower or the upper triangle of the row-major lu."""
        # BLAS is column-major: it sees lu transposed, so lower is upper, and op(A) is turned once
        # more.  A**H of a row-major matrix is conj(A as BLAS sees it), which BLAS cannot apply
        # untransposed; conjugating b and the result does.
        trsm = _blas("trsm", lu.dtype)
        t = np.ascontiguousarray(lu).T
        conjugate = adjoint and np.iscomplexobj(lu)
        b = np.array(b, dtype=lu.dtype, order="F")
        if conjugate:
            b = b.conj()
        x = trsm(1.0, t, b, lower=not lower, trans_a=not adjoint, diag=lower, overwrite_b=True)
        return x.conj() if conjugate else x

    def getrf(self, a, dtype):
        # LAPACK is column-major.  A row-major a is the column-major a.T at no cost, so a.T is
        # factored instead, and the solves are transposed.
        transposed = not a.flags.f_contiguous
        with np.errstate(over="ignore", under="ignore"):  # an infinite pivot is reported as such
            t = np.array(a.T if transposed else a, dtype=dtype, order="F")
        lu, piv, info = _lapack("getrf", t.dtype)(t, overwrite_a=True)
        return (lu, piv, transposed), max(info, 0)

    def getrs(self, factors, b, adjoint):
        lu, piv, transposed = factors
        getrs = _lapack("getrs", lu.dtype)
        b = np.array(b, dtype=lu.dtype, order="F")
        if transposed and adjoint:  # a**H = conj(a.T), and lu is of a.T
            return getrs(lu, piv, b.conj(), trans=0)[0].conj()
        return getrs(lu, piv, b, trans=1 if transposed else 2 * adjoint)[0]

    def gecon(self, factors, norm_one):
        lu, _, transposed = factors
        rcond, _ = _lapack("gecon", lu.dtype)(lu, norm_one, norm="I" if transposed else "1")
        return float(rcond)

    def diagonal(self, factors):
        lu, piv, _ = factors
        return lu.diagonal(), 1 - 2 * (int((piv != np.arange(len(piv))).sum()) % 2)

    def product(self, a, x, adjoint=False):
        wide = np.result_type(a.dtype, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            if a.dtype == wide:
                return (a.conj().T if adjoint else a) @ x
            y = np.zeros(x.shape, dtype=np.result_type(wide, x.dtype))
            step = max(1, WIDEN_ENTRIES // a.shape[0])
            for i in range(0, a.shape[0], step):
                rows = a[i : i + step].astype(wide)
                if adjoint:
                    y += rows.conj().T @ x[i : i + step]
                else:
                    y[i : i + step] = rows @ x
            return y

    def residual(self, a, x, b):
        return self.difference(b, self.product(a, x), x)

    def difference(self, b, y, x):
        r = b - y
        return r, self.column_max(r), self.column_max(x)

    def column_max(self, v):
        return np.abs(v).max(axis=0)

    def gram(self, vectors):
        v = np.stack([x.T for x in vectors], axis=1)
        # Sums, not products: BLAS is slow where little comes of long vectors.
        return (v.conj()[:, :, None] * v[:, None]).sum(axis=-1)

    def mixed(self, vectors, weights):
        return sum(x * w for x, w in zip(vectors, weights.T, strict=True))

    def probes(self, n):
        return probes(np, n)

    def signs(self, v, state):
        return signs(np, v, state)

    def steepest(self, z, state, found):
        return steepest(np, z, state, found)


def probes(xp, n):
    i = xp.arange(n)
    alternating = xp.where(i % 2 == 0, 1.0, -1.0) * (1 + i / max(1, n - 1))
    return xp.stack([xp.full(n, 1 / n), alternating], axis=1)


def signs(xp, v, state):
    if v.dtype.kind != "c":
        return (xp.copysign(1.0, v) * state[1])[:, None]
    with np.errstate(all="ignore"):
        size = xp.abs(v)
        return (xp.where(size > 0, v / xp.where(size > 0, size, 1), 1) * state[1])[:, None]


def steepest(xp, z, state, found):
    with np.errstate(all="ignore"):
        size = xp.abs(z)
    top = size.argmax()  # a NaN, if there is one
    goes_on = state[1] * (top != state[0])
    unit = (xp.arange(len(z)) == top) * goes_on
    # What is overwritten comes last: where memory runs out this may be done again.
    found[0], found[1] = top, size.take(top)
    state[0], state[1] = top, goes_on
    return unit[:, None]


def _blocks(n):
    """Return slices of the rows of an n x n matrix that fit in the cache."""
    step = max(1, CACHE_ENTRIES // n)
    return [slice(i, i + step) for i in range(0, n, step)]


def _scale_to_top(u):
    """Return the power of two that brings max |u| into (2**(TOP-1), 2**TOP]; 1 if it is 0 or not finite."""
    parts = (u.real, u.imag) if np.iscomplexobj(u) else (u,)
    top = max(float(np.abs(part).max()) for part in parts)
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
