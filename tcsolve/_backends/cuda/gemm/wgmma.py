"""Launches of gemm_wgmma.cu, for `gemm` and for the update of an LU."""

import cupy
import numpy as np

from tcsolve._arithmetic.formats import TOP_EXPONENT
from tcsolve._backends.cuda.gemm.layout import KINDS, empty_aligned, leading
from tcsolve._backends.cuda.gemm.tensor_maps import MAP_BYTES, panel_map, result_map
from tcsolve._backends.cuda.runtime import compiler, cublas_calls
from tcsolve.kernels.product_shapes import WGMMA_ROWS

__all__ = [
    "NO_ORIGIN",
    "TURN_WORDS",
    "Bound",
    "Lower",
    "Operand",
    "Right",
    "launch_wgmma",
    "maps_of",
    "results_of",
    "split_blocks",
    "split_kernel",
    "takes_turns",
]

# Where the largest entry of an operand is brought to.
TOP = 2.0**TOP_EXPONENT
# Entries a block of tcs_split takes.
SPLIT_ROWS, SPLIT_COLUMNS = 16, 256
# Threads of a block of gemm_wgmma.cu, and its shared memory.
THREADS, SHARED_BYTES = 384, (224 << 10) + 1024
# What its copy engine does with results.
BY_HAND, STORED, ADDED, PASSING = 0, 1, 2, 3
# Entries of C from which on it does not stay in the second-level cache until it is added to again.
PASSING_ENTRIES = 1 << 23
# No matrix for tcs_split_by, as the first, and as the second.
NOTHING, NOTHING_BY = (None, 0, 0, 0, None, None, 0, 1.0), (None, 0, 0, 0, None, None, 0, None)
# How much larger than U11 the block of A that becomes U, or L U11, is expected to be at most (see `Bound`),
# and how much larger than expected anything may be before FP16 overflows.
ROOM, SLACK = 16.0, 2.0
# Entries up to which U's power of two is found by every block that splits a part of it.
FEW_ENTRIES = 1 << 16
# Rows of a triangle that are multiplied at a time: with fewer, less of what is zero is.
PIECE = 512
# A tensor map that is not used, and the origin of operands that were not scaled.
NO_MAP = np.zeros(1, np.dtype((np.void, MAP_BYTES)))
NO_ORIGIN = (None, 0, 0, None, None, 0, 0, None)
# Words from which tiles are taken in turn: zero before a launch and after, and of one launch at a time.
TURN_WORDS = 2


def split_blocks(rows, cols):
    """Return the blocks of tcs_split for a matrix."""
    return -(-rows // SPLIT_ROWS) * -(-cols // SPLIT_COLUMNS)


def split_kernel(entry, low="fp16"):
    """Return a kernel of gemm_split.cu."""
    return compiler.kernel("gemm_split", entry, T_LOW=low)


def launch_wgmma(defines, m, n, args, blocks, others=0, taken=None):
    """Launch for a result of m x n with so many blocks; another launch, of `others`, may share its tiles.

    taken is None, or the address of the bits of multiprocessors that are not to be used.
    """
    cluster, tiles = defines["CLUSTER"], _tiles(defines, m, n)
    own, beside = (min(tiles, x // cluster) for x in (blocks, others))
    kernel = compiler.kernel("gemm_wgmma", "tcs_gemm_wgmma", **defines)
    kernel((own * cluster,), (THREADS,), (*args, own + beside, taken), shared=SHARED_BYTES)


def takes_turns(defines, m, n, multiprocessors):
    """Tell whether there are more tiles than clusters, so that it matters who takes which."""
    return _tiles(defines, m, n) > multiprocessors // defines["CLUSTER"]


def _tiles(defines, m, n):
    """Return the tiles of whole clusters in a result of m x n."""
    cluster = defines["CLUSTER"]
    rows, columns = (
        (WGMMA_ROWS, 128 * cluster) if defines["REFINE"] else (WGMMA_ROWS * cluster, 256)
    )
    return -(-m // rows) * -(-n // columns)


def maps_of(pairs, low):
    """Return the tensor maps hi, lo of each operand."""
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
    added = PASSING if out.size >= PASSING_ENTRIES else ADDED
    how = STORED if beta == 0 else added if beta == 1 and in_place else BY_HAND
    if not fits or how == BY_HAND:
        return NO_MAP, BY_HAND
    return result_map(out.data.ptr, *out.shape, ld), how


class Bound:
    """How large entries next to a block on the diagonal of dominant factors may be.

    |l| <= 1; no entry of U is larger than that on the diagonal of its row, as the diagonal of A dominates
    its rows and elimination keeps it so; and A, before it becomes L or U, is not ROOM times as large as U but
    in the worst case.  So their powers of two are known without a look at them; where an entry is larger,
    beyond[0] becomes 1.
    """

    def __init__(self, u, beyond, multiprocessors):
        self.beyond = beyond
        # A copy: below the diagonal there is L, which has a size of its own.
        pivots = u.diagonal().copy()[None]
        self.scale, self.alpha, _ = _scale(pivots, TOP, None, multiprocessors)


class Operand:
    """L (m x k), split or rounded once, to compute C -= L U on Hopper.

    L and U have one power of two each for all their entries, unlike those of `gemm`: |l| <= 1, and U's is
    found on the device, or that of the `Bound`.  Next to an Inf or NaN a result is Inf or NaN, but not always
    the one IEEE arithmetic has.
    """

    def __init__(self, l, how, multiprocessors, bound=None):
        self._l, self._how, self._multiprocessors, self._bound = l, how, multiprocessors, bound
        self._parts = None

    def round(self):
        """Round L now, rather than with the first U; look for |l| > 1 if there is a `Bound`."""
        if self._parts is None:
            _split(self._how, self._begin(), NOTHING_BY, self._bound, TOP)

    def _begin(self):
        """Make room for L's parts; return the arguments to split it."""
        self._parts, *args = _room(self._l, self._how)
        return *args, TOP

    def subtract(self, c, u, share, first=0):
        """c -= l u for an FP32 c with contiguous rows, with l from row `first` on."""
        (m, n), bound, found = c.shape, self._bound, None
        if bound is not None:
            scale, alpha, work = bound.scale, bound.alpha, cublas_calls.zeros(TURN_WORDS)
            self.round()  # for itself: it is looked at more closely
        elif u.size <= FEW_ENTRIES:
            scale, work, found = None, cublas_calls.zeros(TURN_WORDS), cupy.empty(2, cupy.float32)
            alpha = found[1:]
        else:
            scale, alpha, work = _scale(u, TOP, None, self._multiprocessors)
        hi_lo, *args = _room(u, self._how)
        l_too = NOTHING if self._parts else self._begin()
        _split(self._how, l_too, (*args, scale), bound, SLACK * TOP, found=found)
        to, how = results_of(c, c, 1.0)
        rows = _cut(self._parts, slice(first, None))
        maps, results = maps_of([rows, hi_lo], self._how.format.name), (to, how, alpha, work)
        target = c, leading(c), KINDS["float32"], c, leading(c)
        args = (*maps, *results, *target, *NO_ORIGIN, m, n, len(u), 1.0, 1.0)

        def launch(*blocks, held=(hi_lo, self._parts)):  # which the maps have addresses of
            launch_wgmma(_defines(self._how), m, n, args, *blocks)

        if share is None:
            launch(self._multiprocessors)
        else:
            share.launch(launch, self._multiprocessors)


class _Triangle:
    """A triangular FP32 matrix (k x k), split once, to multiply others with it.

    As `Operand`, but its power of two, too, is found on the device.
    """

    def __init__(self, x, how, multiprocessors, bound=None):
        self._how, self._multiprocessors, self._bound = how, multiprocessors, bound
        if bound is None:
            self._by, self._alpha = _scale(x, 1.0, None, multiprocessors)[0], None
        else:
            self._by, self._alpha, _ = _scale(x, 1 / ROOM, bound.scale, multiprocessors)
        self._parts, *args = _room(x, how)
        _split(how, NOTHING, (*args, self._by))

    def _divide(self, x):
        """Return (hi, lo) of a matrix, and what belongs to its product with the triangle."""
        bound, (parts, *args) = self._bound, _room(x, self._how)
        if bound is None:
            scale, alpha, work = _scale(x, 1.0, self._by, self._multiprocessors)
            _split(self._how, NOTHING, (*args, scale))
            return parts, alpha, work
        _split(self._how, NOTHING, (*args, bound.scale), bound, SLACK * TOP, 1 / ROOM)
        return parts, self._alpha, cublas_calls.zeros(TURN_WORDS)

    def _multiply(self, a, b, out, alpha, work):
        """out := a b, both of parts."""
        to, engine = results_of(out, None, 0.0)
        target = out, leading(out), KINDS["float32"], None, 0
        maps, results = maps_of([a, b], self._how.format.name), (to, engine, alpha, work)
        # alpha subtracts.
        args = (*maps, *results, *target, *NO_ORIGIN, *out.shape, a[0].shape[1], -1.0, 0.0)
        launch_wgmma(_defines(self._how), *out.shape, args, self._multiprocessors)


class Right(_Triangle):
    """An upper triangular X: L := L X."""

    def apply(self, l):
        """l := l x for an FP32 l with contiguous rows."""
        parts, alpha, work = self._divide(l)
        for first, stop in _pieces(l.shape[1]):  # below `stop` X is zero
            x = _cut(self._parts, slice(stop), slice(first, stop))
            self._multiply(_cut(parts, slice(None), slice(stop)), x, l[:, first:stop], alpha, work)


class Lower(_Triangle):
    """A lower triangular L: U := L U."""

    def apply(self, u, share):
        """u := l u for an FP32 u with contiguous rows, the products when the panel of `share` is resident."""
        k, n = u.shape
        parts, alpha, work = self._divide(u)
        if share is not None:
            share.await_panel()
        # One launch where pieces would not keep the multiprocessors busy.
        many = takes_turns(_defines(self._how), k, n, self._multiprocessors)
        for first, stop in _pieces(k) if many else [(0, k)]:  # right of `stop` L is zero
            l = _cut(self._parts, slice(first, stop), slice(stop))
            self._multiply(l, _cut(parts, slice(stop)), u[first:stop], alpha, work)


def _pieces(k):
    """Return the ranges into which k rows of a triangle are cut: in half, and where they are many further."""
    width = min(PIECE, -(-k // (2 * WGMMA_ROWS)) * WGMMA_ROWS)
    return [(first, min(k, first + width)) for first in range(0, k, width)]


def _defines(how):
    # One by one: a block must be free to leave a multiprocessor that is taken.
    refine = {"T_LOW": how.format.name, "REFINE": 3 if how.products == 3 else 0, "CLUSTER": 1}
    return refine | {"TRANS_A": 0, "TRANS_B": 0}


def _scale(u, top, other, multiprocessors):
    """Find u's power of two; return it, -1 over all powers of two, and words to take tiles from."""
    k, n = u.shape
    # Written by find_operand_scale.cu, which leaves `work` zero, as a product does that takes tiles from it.
    scalars, work = cupy.empty(3, cupy.float32), cublas_calls.zeros(TURN_WORDS)
    scale, alpha, beta = scalars[0:], scalars[1:], scalars[2:]
    args = (scale, alpha, beta, work, u, leading(u), k, n, top, other)
    # A few blocks for each multiprocessor, each striding over rows of U.
    kernel = compiler.kernel("find_operand_scale", "tcs_update_scale")
    kernel((min(k, 4 * multiprocessors),), (256,), args)
    return scale, alpha, work


def _room(x, how):
    """Return (hi, lo) for a matrix, and the arguments of tcs_split_by to split it, up to its scale."""
    hi = empty_aligned(x.shape, cupy.uint16)
    lo = empty_aligned(x.shape, cupy.uint16) if how.products == 3 else None
    return (hi, lo), x, leading(x), *x.shape, hi, lo, hi.strides[0] // hi.itemsize


def _cut(parts, *where):
    """Return a view of each part; a part that is not there is None."""
    return [None if part is None else part[where] for part in parts]


def _split(how, first, second, bound=None, limit=0.0, part=1.0, found=None):
    """Split up to two matrices, the first scaled by a number, the second by one on the device, and `part`.

    Given a `Bound`, what is split is expected to be no larger than `limit`.  Given `found`, the second number
    is found on the way, and goes there with the factor of the product.
    """
    blocks = sum(split_blocks(rows, cols) for _, _, rows, cols, *_ in (first, second))
    args = *first, *second, part, bound and bound.beyond, limit, found, TOP
    split_kernel("tcs_split_by", how.format.name)((blocks,), (32, 8), args)


def _map(x, low):
    # The leading dimension of a single row is never used, but must be a multiple of 16 bytes, too.
    rows, cols = x.shape
    return panel_map(x.data.ptr, rows, cols, -(-cols // 8) * 8 if rows == 1 else leading(x), low)
