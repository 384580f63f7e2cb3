"""The primitives on NumPy: LAPACK and BLAS, and emulated tensor cores."""

import math
import os
import time

import numpy as np

from tcsolve._arithmetic.matrix_parts import WIDENED, parts, real_parts
from tcsolve._backends.cpu import gemm as cpu_gemm
from tcsolve._backends.cpu.blas import matmul
from tcsolve._backends.cpu.lu import LUOps, lapack_of
from tcsolve._contract.ops import Stats
from tcsolve._contract.vectors import gram, held, signs, steepest

__all__ = ["NumpyOps", "numpy_ops"]

# Number of entries of a block that stays in the second-level cache while it is read several times.
CACHE_ENTRIES = 1 << 16


class NumpyOps(LUOps):
    """Primitives on NumPy arrays (see `tcsolve._contract.ops.Ops`)."""

    xp = np
    device = "cpu"
    vendor = None

    def __reduce__(self):
        return "numpy_ops"  # pickle and copy return the one instance of this module

    def array(self, host):
        return np.asarray(host)

    def copied(self, x):
        return x.copy()

    def guarded(self, function, again=True):
        return function

    def converted(self, x, dtype):
        return x.astype(dtype, copy=False)

    def reading(self, *arrays):
        return lambda: arrays

    def host(self, *arrays):
        return arrays

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
            return math.inf  # this system does not report its free memory

    def stats(self, a):
        if not a.flags.c_contiguous and a.flags.f_contiguous:
            return Stats(*reversed(self.stats(a.T)))
        n = a.shape[0]
        row_sum, col_sum, ones = np.empty(n), np.zeros(n), np.ones((n, 1))
        # The caller checks for overflow and NaN, so NumPy need not warn.
        with np.errstate(over="ignore", invalid="ignore"):
            for rows in _blocks(n):
                block = np.abs(a[rows]).astype(np.float64, copy=False)
                row_sum[rows] = matmul(block, ones)[:, 0]  # faster than sum(axis=1)
                col_sum += matmul(block.T, ones[: len(block)])[:, 0]
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

    def cast_scaled(self, a, row_scale, col_scale, dtype, out=None):
        with np.errstate(over="ignore", under="ignore"):
            out = np.empty(a.shape, dtype) if out is None else out
            if row_scale is None:
                out[...] = a
                return out
            # Add the exponents first: scaling by r alone may overflow although r s does not.
            er, es = np.frexp(row_scale)[1] - 1, np.frexp(col_scale)[1] - 1
            for rows in _blocks(len(a)):
                exponent = er[rows, None] + es
                for to, part in zip(real_parts(out), real_parts(a), strict=True):
                    to[rows] = np.ldexp(part[rows], exponent)
            return out

    def gemm(self, a, b, c, out, product, alpha, beta, engine):
        cpu_gemm.gemm(a, b, c, out, product, alpha, beta, engine)

    def signature(self, options, *arrays):
        return None  # on the CPU the checks are short compared with any product

    def gemm_again(self, launch, a, b, c, out):
        return None

    def getrf(self, a, dtype, overwrite_a=False):
        # LAPACK is column-major.  A row-major a is a column-major a.T without a copy.  So a.T is factored
        # instead, and the solves are transposed.
        transposed = not a.flags.f_contiguous
        # An overflow in the conversion shows later, as a pivot that is not finite.
        with np.errstate(over="ignore", under="ignore"):
            take = np.asarray if overwrite_a else np.array
            t = take(a.T if transposed else a, dtype=dtype, order="F")
        lu, piv, info = lapack_of("getrf", t.dtype)(t, overwrite_a=True)
        return (lu, piv, transposed), max(info, 0)

    def getrs(self, factors, b, adjoint):
        lu, piv, transposed = factors
        getrs = lapack_of("getrs", lu.dtype)
        b = np.array(b, dtype=lu.dtype, order="F")
        # SciPy changes the pivots in place to count from one, and back again.  Other threads must not see
        # this, so give it a copy.
        piv = piv.copy()
        if transposed and adjoint:  # a**H = conj(a.T), and lu has the factors of a.T
            return getrs(lu, piv, b.conj(), trans=0)[0].conj()
        return getrs(lu, piv, b, trans=1 if transposed else 2 * adjoint)[0]

    def gecon(self, factors, norm_one):
        lu, _, transposed = factors
        rcond, _ = lapack_of("gecon", lu.dtype)(lu, norm_one, norm="I" if transposed else "1")
        return float(rcond)

    def diagonal(self, factors):
        lu, piv, _ = factors
        return lu.diagonal(), 1 - 2 * (int((piv != np.arange(len(piv))).sum()) % 2)

    def product(self, a, x, adjoint=False):
        wide = np.result_type(a.dtype, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            if a.dtype == wide:
                # Conjugate x and the result, because a.conj() would be a copy of a.
                return matmul(a.T, x.conj()).conj() if adjoint else matmul(a, x)
            y = np.zeros(x.shape, dtype=np.result_type(wide, x.dtype))
            for rows in parts(*a.shape, WIDENED["cpu"]):
                if adjoint:
                    y += matmul(a[rows].astype(wide).T, x[rows].conj()).conj()
                else:
                    y[rows] = matmul(a[rows].astype(wide), x)
            return y

    def matmul(self, a, b):
        return matmul(a, b)

    def residual(self, a, x, b):
        return self.difference(b, self.product(a, x), x)

    def difference(self, b, y, x):
        r = b - y
        return r, self.column_max(r), self.column_max(x)

    def column_max(self, v):
        if v.dtype.kind == "c":
            return np.abs(v).max(axis=0)
        # Twice as fast as np.abs(v).max(), which stores |v|.
        return np.maximum(np.abs(v.max(axis=0)), np.abs(v.min(axis=0)))

    def gram(self, vectors, known=None):
        return gram(vectors, known, _dots)

    def mixed(self, vectors, weights):
        return sum(x * w for x, w in zip(vectors, weights.T, strict=True))

    def probes(self, n):
        return probes(np, n)

    def signs(self, v, state):
        return signs(np, v, state)

    def held(self, b, y, z):
        return held(np, b, y, z)

    def steepest(self, z, state, found):
        return steepest(np, z, state, found)


numpy_ops = NumpyOps()


def probes(xp, n):
    i = xp.arange(n)
    alternating = xp.where(i % 2 == 0, 1.0, -1.0) * (1 + i / max(1, n - 1))
    # Hash the index of each entry by the last steps of MurmurHash3.
    bits = xp.arange(2 * n, dtype=xp.uint32).reshape(n, 2)
    bits = (bits ^ bits >> 16) * xp.uint32(0x85EBCA6B)
    bits = (bits ^ bits >> 13) * xp.uint32(0xC2B2AE35)
    bits ^= bits >> 16
    random = (bits * 2.0**-31 - 1) * 3**0.5
    return xp.concatenate([xp.full((n, 1), 1 / n), alternating[:, None], random], axis=1)


def _dots(pairs):
    # Elementwise products and sums: BLAS is slow for few inner products of long vectors.
    return np.stack([np.multiply(x.conj().T, y.T, order="C").sum(axis=-1) for x, y in pairs])


def _blocks(n):
    """Return slices of the rows of an n x n matrix that fit in the cache."""
    step = max(1, CACHE_ENTRIES // n)
    return [slice(i, i + step) for i in range(0, n, step)]
