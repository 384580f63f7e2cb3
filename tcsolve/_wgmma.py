"""Launches of gemm_wgmma.cu, for `gemm` and for the update of an LU."""

import cupy
import numpy as np

from tcsolve import _jit
from tcsolve._formats import TOP_EXPONENT
from tcsolve._stored import KINDS, empty_aligned, leading
from tcsolve._tensor_map import MAP_BYTES, panel_map, result_map
from tcsolve.kernels import WGMMA_ROWS

__all__ = [
    "NO_ORIGIN",
    "Operands",
    "launch_wgmma",
    "maps_of",
    "results_of",
    "split_blocks",
    "split_kernel",
]

# Entries a block of tcs_split takes.
SPLIT_ROWS, SPLIT_COLUMNS = 16, 256
# Threads of a block of gemm_wgmma.cu, and its shared memory.
THREADS, SHARED_BYTES = 384, (224 << 10) + 1024
# What its copy engine does with results.
BY_HAND, STORED, ADDED = 0, 1, 2
# A tensor map that is not used, and the origin of operands that were not scaled.
NO_MAP = np.zeros(1, np.dtype((np.void, MAP_BYTES)))
NO_ORIGIN = (None, 0, 0, None, None, 0, 0, None)


def split_blocks(rows, cols):
    """Return the blocks of tcs_split for a matrix."""
    return -(-rows // SPLIT_ROWS) * -(-cols // SPLIT_COLUMNS)


def split_kernel(entry, low="fp16"):
    """Return a kernel of gemm_split.cu."""
    return _jit.kernel("gemm_split", entry, T_LOW=low)


def launch_wgmma(defines, m, n, args, multiprocessors):
    """Launch for a result of m x n."""
    cluster, columns = defines["CLUSTER"], 128 if defines["REFINE"] else 256
    tiles = -(-m // (WGMMA_ROWS * cluster)) * -(-n // columns)
    grid = min(tiles, multiprocessors // cluster) * cluster
    kernel = _jit.kernel("gemm_wgmma", "tcs_gemm_wgmma", **defines)
    kernel((grid,), (THREADS,), args, shared=SHARED_BYTES)


def maps_of(pairs, low):
    """Return the tensor maps a_hi, a_lo, b_hi, b_lo."""
    maps = []
    for hi, lo in pairs:
        map_hi = _map(hi, low)
        # A map that is not used must be one, too.
        maps += [map_hi, map_hi if lo is None else _map(lo, low)]
    return maps


def results_of(out, c, beta):
    """Return (tensor map of out, what the copy engine does with it)."""
    ld = leading(out)
    fits = out.dtype == np.float32 and (out.data.ptr | 4 * ld) % 16 == 0
    in_place = c is not None and (c.data.ptr, leading(c)) == (out.data.ptr, ld)
    how = STORED if beta == 0 else ADDED if beta == 1 and in_place else BY_HAND
    if not fits or how == BY_HAND:
        return NO_MAP, BY_HAND
    return result_map(out.data.ptr, *out.shape, ld), how


class Operands:
    """L (m x k) and U (k x r), split once, to compute C -= L U on Hopper by slices of columns.

    Each has one power of two for all its entries, unlike those of `gemm`: |l| <= 1, and U's is found on the
    device.  Next to an Inf or NaN a result is Inf or NaN, but not always the one IEEE arithmetic has.

    Attributes
    ----------
    depth : int
        Products on the tensor cores for each entry of C.
    """

    def __init__(self, l, u, low, multiprocessors):
        self._k, r = u.shape
        self.depth, self._multiprocessors = 3 * self._k, multiprocessors
        # Written by range.cu, which leaves `work` zero, as does each product that takes tiles from it.
        self._scalars, self._work = cupy.empty(3, cupy.float32), cupy.zeros(2, cupy.uint32)
        scale, alpha, beta = self._scalars[0:], self._scalars[1:], self._scalars[2:]
        self._alpha = alpha
        top, k = 2.0**TOP_EXPONENT, self._k
        args = (scale, alpha, beta, self._work, u, leading(u), k, r, top)
        # A few blocks for each multiprocessor, each striding over rows of U.
        find_scale = _jit.kernel("range", "tcs_update_scale")
        find_scale((min(k, 4 * multiprocessors),), (256,), args)
        self._pairs, args, blocks = [], [], 0
        for x, by in ((l, top), (u, scale)):
            hi, lo = (empty_aligned(x.shape, cupy.uint16) for _ in range(2))
            self._pairs.append((hi, lo))
            args += [x, leading(x), *x.shape, hi, lo, hi.strides[0] // hi.itemsize, by]
            blocks += split_blocks(*x.shape)
        split_kernel("tcs_split_by", low)((blocks,), (32, 8), args)
        self._maps = maps_of(self._pairs, low)
        # With such short sums blocks that wait for each other lose more than they save.
        self._defines = {"T_LOW": low, "REFINE": 3, "CLUSTER": 1, "TRANS_A": 0, "TRANS_B": 0}

    def subtract(self, c, columns):
        """c -= L U[:, columns] for an FP32 c with contiguous rows."""
        m, n = c.shape
        target = c, leading(c), KINDS["float32"], c, leading(c)
        results = *results_of(c, c, 1.0), self._alpha, self._work
        sizes = m, n, self._k, 1.0, 1.0
        args = (*self._maps, columns.start, *results, *target, *NO_ORIGIN, *sizes)
        launch_wgmma(self._defines, m, n, args, self._multiprocessors)


def _map(x, low):
    # The leading dimension of a single row is never used, but must be a multiple of 16 bytes, too.
    rows, cols = x.shape
    return panel_map(x.data.ptr, rows, cols, -(-cols // 8) * 8 if rows == 1 else leading(x), low)
