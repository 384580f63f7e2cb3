"""Launches of gemm_wgmma.cu, for `gemm` and for the trailing update of an LU."""

import cupy
import numpy as np

from tcsolve._arithmetic.formats import TOP_EXPONENT
from tcsolve._backends.cuda.gemm.layout import KINDS, empty_aligned, leading
from tcsolve._backends.cuda.gemm.tensor_maps import MAP_BYTES, panel_map, result_map
from tcsolve._backends.cuda.runtime import compiler, cublas_calls
from tcsolve.kernels.product_shapes import WGMMA_ROWS

__all__ = [
    "BY_HAND",
    "NO_MAP",
    "NO_ORIGIN",
    "TURN_WORDS",
    "Bound",
    "Lower",
    "Operand",
    "Right",
    "grid_of",
    "launch_wgmma",
    "maps_of",
    "results_of",
    "split_blocks",
    "split_kernel",
    "takes_turns",
]

# Operands are scaled so that their largest entry is near this number.
TOP = 2.0**TOP_EXPONENT
# Number of rows and columns of a matrix that one block of tcs_split splits.
SPLIT_ROWS, SPLIT_COLUMNS = 16, 256
# Number of threads of a block of gemm_wgmma.cu, and bytes of its shared memory.
THREADS, SHARED_BYTES = 384, (224 << 10) + 1024
# How gemm_wgmma.cu writes results: by its threads, or by the copy engine (TMA), which stores them, adds them
# to C, or adds them to a C that should not stay in the second-level cache.
BY_HAND, STORED, ADDED, PASSING = 0, 1, 2, 3
# From this many entries on, C does not stay in the second-level cache until the next update.
PASSING_ENTRIES = 1 << 23
# The arguments of tcs_split_by if there is no first matrix, or no second one.
NOTHING, NOTHING_BY = (None, 0, 0, 0, None, None, 0, 1.0), (None, 0, 0, 0, None, None, 0, None)
# The entries of a block of A that becomes L or U are expected to be at most ROOM times as large as the
# largest entry of U11 (see `Bound`).  If this holds, the scaled entries are at most TOP.  Scaled entries
# above SLACK * TOP are reported; FP16 overflows near 4 * TOP.
ROOM, SLACK = 16.0, 2.0
# Up to this many entries of U, each thread block that splits a part of U also reads all of U.  So it finds
# the power of two by which U is scaled, and no other launch is needed.
FEW_ENTRIES = 1 << 16
# Number of rows of a `Lower`, or of columns of a `Right`, that are multiplied at a time.  With fewer of them,
# fewer zeros are multiplied.
PIECE = 512
# The arguments for an unused tensor map, and for the origin of operands that were not scaled.
NO_MAP = np.zeros(1, np.dtype((np.void, MAP_BYTES)))
NO_ORIGIN = (None, 0, 0, None, None, 0, 0, None)
# Number of words that count the tiles that were taken.  They are zero before and after a product, and only
# the launches of one product may use them at a time.
TURN_WORDS = 2


def split_blocks(rows, cols):
    """Return the number of blocks of tcs_split for a matrix."""
    return -(-rows // SPLIT_ROWS) * -(-cols // SPLIT_COLUMNS)


def split_kernel(entry, low="fp16"):
    """Return the kernel of an entry of gemm_split.cu for the format `low`."""
    return compiler.kernel("gemm_split", entry, T_LOW=low)


def launch_wgmma(defines, m, n, args, blocks, *, others=0, taken=None):
    """Launch gemm_wgmma.cu with `blocks` blocks for an m x n result.

    Another launch, of `others` blocks, may share its tiles.  `taken` is None, or the address of bits that
    mark the multiprocessors that the launch must not use.
    """
    grid, threads, shared, sharing = grid_of(defines, m, n, blocks, others)
    kernel = compiler.kernel("gemm_wgmma", "tcs_gemm_wgmma", **defines)
    kernel((grid,), (threads,), (*args, sharing, taken), shared=shared)


def grid_of(defines, m, n, blocks, others=0):
    """Return blocks, threads, bytes of shared memory, and how many clusters share the tiles."""
    cluster, tiles = defines["CLUSTER"], _tiles(defines, m, n)
    own, beside = (min(tiles, x // cluster) for x in (blocks, others))
    return own * cluster, THREADS, SHARED_BYTES, own + beside


def takes_turns(defines, m, n, multiprocessors):
    """Tell whether there are more tiles than clusters, so that a cluster takes several tiles."""
    return _tiles(defines, m, n) > multiprocessors // defines["CLUSTER"]


def _tiles(defines, m, n):
    """Return the number of tiles of an m x n result; a tile is the part that one cluster computes."""
    cluster = defines["CLUSTER"]
    rows, columns = (
        (WGMMA_ROWS, 128 * cluster) if defines["REFINE"] else (WGMMA_ROWS * cluster, 256)
    )
    return -(-m // rows) * -(-n // columns)


def maps_of(pairs, low):
    """Return the tensor maps of hi and lo of each operand."""
    maps = []
    for hi, lo in pairs:
        map_hi = _map(hi, low)
        # The kernel needs a valid map for lo even if there is no lo.
        maps += [map_hi, map_hi if lo is None else _map(lo, low)]
    return maps


def results_of(out, c, beta):
    """Return (tensor map of out, how its results are written: BY_HAND, STORED, ADDED or PASSING)."""
    ld = leading(out)
    fits = out.dtype == np.float32 and (out.data.ptr | 4 * ld) % 16 == 0
    in_place = c is not None and (c.data.ptr, leading(c)) == (out.data.ptr, ld)
    added = PASSING if out.size >= PASSING_ENTRIES else ADDED
    how = STORED if beta == 0 else added if beta == 1 and in_place else BY_HAND
    if not fits or how == BY_HAND:
        return NO_MAP, BY_HAND
    return result_map(out.data.ptr, *out.shape, ld), how


class Bound:
    """Expected bounds on the entries of the factors of a dominant matrix, from U11, a diagonal block of U.

    - |l| <= 1.  This is not certain: a diagonal entry of A may be smaller than the sum of the others of its
      column.
    - No entry of U is larger than the diagonal entry of its row, because A is dominant by rows, and
      elimination preserves this.
    - The entries of a block of A that becomes L or U are at most ROOM times as large as the largest entry of
      U11, except in rare cases.

    So the powers of two that scale these blocks are known without reading the blocks.  beyond[0] becomes 1
    if |l| > 1, if a scaled entry of another block is larger than SLACK * TOP, or if an entry is NaN.
    """

    def __init__(self, beyond, scale, alpha):
        self.beyond, self.scale, self.alpha = beyond, scale, alpha

    @classmethod
    def of(cls, u, beyond, multiprocessors):
        """Return the bound for a factored diagonal block u, which holds L11 and U11.

        The largest entry of U11 is expected on its diagonal, so the scale is found from the diagonal alone.
        """
        pivots = u.diagonal().copy()[None]
        scale, alpha, _ = _scale(pivots, TOP, None, multiprocessors)
        return cls(beyond, scale, alpha)


class Operand:
    """The operand L (m x k), split or rounded once, to compute C -= L U on Hopper.

    Unlike in `gemm`, all entries of L are scaled by one power of two, and all entries of U by another.  That
    of L is known, because |l| <= 1; with a `Bound`, `round` checks this.  That of U comes from the `Bound`,
    or is found on the device.  If an operand has an Inf or NaN, the result is Inf or NaN, but not always the
    one of IEEE arithmetic.
    """

    def __init__(self, l, how, multiprocessors, bound=None):
        self._l, self._how, self._multiprocessors, self._bound = l, how, multiprocessors, bound
        self._parts = None

    def round(self):
        """Round L now, not with the first U; with a `Bound`, check that |l| <= 1."""
        if self._parts is None:
            _split(self._how, self._begin(), NOTHING_BY, bound=self._bound, limit=TOP)

    def _begin(self):
        """Allocate the parts of L; return the arguments to split it."""
        self._parts, *args = _room(self._l, self._how)
        return *args, TOP

    def subtract(self, c, u, share, first=0):
        """c -= l u for an FP32 c with contiguous rows, where l begins at row `first` of L."""
        (m, n), bound, found = c.shape, self._bound, None
        if bound is not None:
            scale, alpha, work = bound.scale, bound.alpha, cublas_calls.zeros(TURN_WORDS)
            self.round()  # separately from U, because the entries of L have another limit
        elif u.size <= FEW_ENTRIES:
            scale, work, found = None, cublas_calls.zeros(TURN_WORDS), cupy.empty(2, cupy.float32)
            alpha = found[1:]
        else:
            scale, alpha, work = _scale(u, TOP, None, self._multiprocessors)
        hi_lo, *args = _room(u, self._how)
        l_too = NOTHING if self._parts else self._begin()
        _split(self._how, l_too, (*args, scale), bound=bound, limit=SLACK * TOP, found=found)
        to, how = results_of(c, c, 1.0)
        rows = _cut(self._parts, slice(first, None))
        maps, results = maps_of([rows, hi_lo], self._how.format.name), (to, how, alpha, work)
        target = c, leading(c), KINDS["float32"], c, leading(c)
        args = (*maps, *results, *target, *NO_ORIGIN, m, n, len(u), 1.0, 1.0)

        def launch(blocks, others=0, taken=None, held=(hi_lo, self._parts)):
            # `held` keeps these arrays alive, because the maps contain their addresses.
            launch_wgmma(_defines(self._how), m, n, args, blocks, others=others, taken=taken)

        if share is None:
            launch(self._multiprocessors)
        else:
            share.launch(launch, self._multiprocessors)


class _Triangle:
    """A triangular FP32 matrix (k x k), split once, for products with other matrices.

    All its entries are scaled by one power of two, which is found on the device.
    """

    def __init__(self, how, multiprocessors, bound, parts, scale):
        self._how, self._multiprocessors, self._bound = how, multiprocessors, bound
        self._parts, (self._by, self._alpha) = parts, scale

    @classmethod
    def of(cls, x, how, multiprocessors, bound=None):
        """Scale and split x."""
        if bound is None:
            by, alpha = _scale(x, 1.0, None, multiprocessors)[0], None
        else:
            by, alpha, _ = _scale(x, 1 / ROOM, bound.scale, multiprocessors)
        parts, *args = _room(x, how)
        _split(how, NOTHING, (*args, by))
        return cls(how, multiprocessors, bound, parts, (by, alpha))

    def _divide(self, x):
        """Split x; return (hi, lo), alpha and words that count tiles, for its product with the triangle."""
        bound, (parts, *args) = self._bound, _room(x, self._how)
        if bound is None:
            scale, alpha, work = _scale(x, 1.0, self._by, self._multiprocessors)
            _split(self._how, NOTHING, (*args, scale))
            return parts, alpha, work
        scaled = (*args, bound.scale)
        _split(self._how, NOTHING, scaled, bound=bound, limit=SLACK * TOP, part=1 / ROOM)
        return parts, self._alpha, cublas_calls.zeros(TURN_WORDS)

    def _multiply(self, a, b, out, alpha, work):
        """out := a b, where a and b are pairs (hi, lo)."""
        to, engine = results_of(out, None, 0.0)
        target = out, leading(out), KINDS["float32"], None, 0
        maps, results = maps_of([a, b], self._how.format.name), (to, engine, alpha, work)
        # The number `alpha` on the device is negative, so multiply by -1.
        args = (*maps, *results, *target, *NO_ORIGIN, *out.shape, a[0].shape[1], -1.0, 0.0)
        launch_wgmma(_defines(self._how), *out.shape, args, self._multiprocessors)


class Right(_Triangle):
    """An upper triangular X, for L := L X."""

    def apply(self, l):
        """l := l x for an FP32 l with contiguous rows."""
        parts, alpha, work = self._divide(l)
        for first, stop in _pieces(l.shape[1]):  # the rows of X from `stop` on are zero here
            x = _cut(self._parts, slice(stop), slice(first, stop))
            self._multiply(_cut(parts, slice(None), slice(stop)), x, l[:, first:stop], alpha, work)


class Lower(_Triangle):
    """A lower triangular L, for U := L U."""

    def apply(self, u, share=None):
        """u := l u for an FP32 u with contiguous rows.

        The products wait until the panel of `share` is resident.
        """
        k, n = u.shape
        parts, alpha, work = self._divide(u)
        if share is not None:
            share.await_panel()
        # Use one launch if the pieces are too small to keep all multiprocessors busy.
        many = takes_turns(_defines(self._how), k, n, self._multiprocessors)
        for first, stop in _pieces(k) if many else [(0, k)]:  # columns of L from `stop` on are zero
            l = _cut(self._parts, slice(first, stop), slice(stop))
            self._multiply(l, _cut(parts, slice(stop)), u[first:stop], alpha, work)


def _pieces(k):
    """Return the ranges of the rows (of the columns, for a `Right`) of the pieces of a k x k triangle.

    The pieces are halves, or have PIECE rows (columns).
    """
    width = min(PIECE, -(-k // (2 * WGMMA_ROWS)) * WGMMA_ROWS)
    return [(first, min(k, first + width)) for first in range(0, k, width)]


def _defines(how):
    # No clusters: a block on a multiprocessor that `taken` marks ends at once (see `launch_wgmma`), and in a
    # cluster the other blocks would need its tiles.
    refine = {"T_LOW": how.format.name, "REFINE": 3 if how.products == 3 else 0, "CLUSTER": 1}
    return refine | {"TRANS_A": 0, "TRANS_B": 0, "SCALED": 0}


def _scale(u, top, other, multiprocessors):
    """Return (s, -1 / (s top other), words that count tiles), for a product of u with another matrix.

    The power of two s brings the largest |u| near TOP.  The other matrix is scaled by `top` times `other`, so
    the second result undoes both scales, and changes the sign.  `top` is a number, and `other` is a number on
    the device, or None, which stands for one.
    """
    k, n = u.shape
    # find_operand_scale.cu uses `work` and leaves it zero.  So does the product, which counts its tiles
    # there.
    scalars, work = cupy.empty(3, cupy.float32), cublas_calls.zeros(TURN_WORDS)
    scale, alpha, beta = scalars[0:], scalars[1:], scalars[2:]
    args = (scale, alpha, beta, work, u, leading(u), k, n, top, other)
    # A few blocks per multiprocessor; each block loops over rows of U.
    kernel = compiler.kernel("find_operand_scale", "tcs_update_scale")
    kernel((min(k, 4 * multiprocessors),), (256,), args)
    return scale, alpha, work


def _room(x, how):
    """Allocate (hi, lo) of a matrix; return it, and the arguments of tcs_split_by except the scale."""
    hi = empty_aligned(x.shape, cupy.uint16)
    lo = empty_aligned(x.shape, cupy.uint16) if how.products == 3 else None
    return (hi, lo), x, leading(x), *x.shape, hi, lo, hi.strides[0] // hi.itemsize


def _cut(parts, *where):
    """Return part[where] for each part; None stays None."""
    return [None if part is None else part[where] for part in parts]


def _split(how, first, second, *, bound=None, limit=0.0, part=1.0, found=None):
    """Split up to two matrices.

    The first is scaled by a number, the second by a number on the device times `part`.  With a `Bound`,
    scaled entries that are larger than `limit`, or NaN, are reported in it.  With `found`, the kernel finds
    the second number itself.  It stores this number in found[0], and the factor `alpha` of the product of the
    matrices in found[1].
    """
    blocks = sum(split_blocks(rows, cols) for _, _, rows, cols, *_ in (first, second))
    args = *first, *second, part, bound and bound.beyond, limit, found, TOP
    split_kernel("tcs_split_by", how.format.name)((blocks,), (32, 8), args)


def _map(x, low):
    # The leading dimension of a single row is not used, but it must be a multiple of 16 bytes.
    rows, cols = x.shape
    return panel_map(x.data.ptr, rows, cols, -(-cols // 8) * 8 if rows == 1 else leading(x), low)
