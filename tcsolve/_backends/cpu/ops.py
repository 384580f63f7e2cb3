"""The primitives on NumPy: LAPACK and BLAS, and emulated tensor cores."""

import math
import os
import time

import numpy as np

from tcsolve._arithmetic.matrix_parts import WIDENED, parts, real_parts
from tcsolve._backends.cpu import gemm as cpu_gemm
from tcsolve._backends.cpu.blas import matmul
from tcsolve._backends.cpu.lu import HostLU, column_max
from tcsolve._backends.cpu.short_chains import product
from tcsolve._contract.ops import BegunSurvey
from tcsolve._contract.vectors import held, signs, steepest
from tcsolve._locks import delays_fork

__all__ = ["NumpyOps", "numpy_ops", "sums"]

# Number of entries of a block that stays in the second-level cache while it is read several times.
CACHE_ENTRIES = 1 << 16
# Up to this many entries, sums by NumPy take less time than matrix products.
FEW_ENTRIES = 1 << 12


class NumpyOps:
    """Primitives on NumPy arrays (see `tcsolve._contract.ops.Ops`)."""

    xp = np
    device = "cpu"
    properties = None
    lu = HostLU()
    early_rows = ahead_rows = 0
    vendor = None

    def __reduce__(self):
        return "numpy_ops"  # pickle and copy return the one instance of this module

    def guarded(self, function, again=True):
        return delays_fork(function)

    def converted(self, x, dtype):
        return x.astype(dtype, copy=False)

    def reading(self, *arrays):
        return lambda: arrays

    def host(self, *arrays):
        return arrays

    def mark(self):
        return time.perf_counter()

    def free_bytes(self, enough):
        try:
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, ValueError, OSError):
            return math.inf  # this system does not report its free memory

    def replayed(self, w, name, body):
        return body(lambda: None)

    def aside(self, w, others, name, body, then=None):
        return None

    def extremes(self, a, dtype=None):
        rows, cols = sums(a)
        with np.errstate(all="ignore"):
            size = np.abs(a.diagonal()).astype(float)
            low, top = np.minimum.reduce, np.maximum.reduce  # faster than min() and max()
            dominance = low(2.0 * size - rows), low(3.0 * size - cols)
        found = top(rows), low(rows), top(cols), low(cols), *dominance
        return BegunSurvey(lambda: tuple(map(float, found)), None, False)

    def row_stats(self, a, col_scale=None):
        return HostRowStats(a, col_scale)

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

    def gemm(self, job):
        cpu_gemm.gemm(job)  # returns no function `again` (see `Ops.gemm`)

    def product(self, a, x, adjoint=False, triangle=None):
        if a.ndim > 2:
            return matmul(a, x)
        if a.dtype.char in "dD":  # BLAS gives no warnings
            # Conjugate x and the result, because a.conj() would be a copy of a.
            return product(a.T, x.conj()).conj() if adjoint else product(a, x)
        wide = np.result_type(a.dtype, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            y = np.zeros(x.shape, dtype=np.result_type(wide, x.dtype))
            for rows in parts(*a.shape, WIDENED["cpu"]):
                if adjoint:
                    y += product(a[rows].astype(wide).T, x[rows].conj()).conj()
                else:
                    y[rows] = product(a[rows].astype(wide), x)
            return y

    def residual(self, a, x, b):
        if callable(a):
            r = b - a(x)
        else:
            r = self.product(a, x)
            r = np.subtract(b, r, out=r if r.dtype == b.dtype else None)
        return r, column_max(r), column_max(x)

    def probes(self, n):
        return probes(np, n)

    def signs(self, v, state):
        return signs(np, v, state)

    def held(self, b, y, z):
        return held(np, b, y, z)

    def steepest(self, z, state, found):
        return steepest(np, z, state, found)


numpy_ops = NumpyOps()


class HostRowStats:
    """The `RowStats` of a diag(s), where s is `col_scale`; None stands for ones."""

    def __init__(self, a, col_scale):
        self._a, self._scale = a, col_scale

    @property
    def top(self):
        a, scale = self._a, self._scale
        if scale is None:
            return column_max(a.T)
        t = a.T
        found = [(np.abs(t[rows]) * scale[rows, None]).max(axis=0) for rows in _blocks(len(t))]
        return np.max(found, axis=0)

    @property
    def total(self):
        return sums(self._a if self._scale is None else self._a * self._scale)[0]


def sums(a):
    """Return the sum of |a| over each row and over each column, in FP64."""
    if a.size <= FEW_ENTRIES:
        with np.errstate(over="ignore", invalid="ignore"):
            size = np.abs(a).astype(np.float64, copy=False)
            return np.add.reduce(size, axis=1), np.add.reduce(size, axis=0)
    if not a.flags.c_contiguous and a.flags.f_contiguous:
        return sums(a.T)[::-1]
    n = a.shape[0]
    row_sum, col_sum, ones = np.empty(n), np.zeros(n), np.ones((n, 1))
    # The caller checks for overflow and NaN, so NumPy need not warn.
    with np.errstate(over="ignore", invalid="ignore"):
        for rows in _blocks(n):
            block = np.abs(a[rows]).astype(np.float64, copy=False)
            row_sum[rows] = matmul(block, ones)[:, 0]  # faster than sum(axis=1)
            col_sum += matmul(block.T, ones[: len(block)])[:, 0]
    return row_sum, col_sum


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


def _blocks(n):
    """Return slices of the rows of an n x n matrix that fit in the cache."""
    step = max(1, CACHE_ENTRIES // n)
    return [slice(i, i + step) for i in range(0, n, step)]
