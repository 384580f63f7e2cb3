"""A scaled product that is repeated on arrays that are alike: two launches with prepared arguments.

Arrays are alike if they have the same dtypes, shapes and strides, and the same addresses modulo 16.

The host takes longer to find the arguments of the launches than the device takes to compute a small product.
"""

from dataclasses import dataclass
from typing import Any

import cupy
from cupy_backends.cuda.api import driver

from tcsolve._backends.cuda.gemm.layout import KINDS, Extents, leading
from tcsolve._backends.cuda.gemm.tensor_maps import panel_address, result_address
from tcsolve._backends.cuda.gemm.wgmma import (
    BY_HAND,
    NO_MAP,
    TURN_WORDS,
    grid_of,
    results_of,
    takes_turns,
)
from tcsolve._backends.cuda.runtime import cluster_launch, compiler

__all__ = ["Repeated", "repeated"]

# Each part of an operand starts at a multiple of UNIT bytes in the scratch memory.
UNIT = 512
# The positions of the addresses among the arguments of tcs_split_once: x, its largest entries, hi, lo.
SPLIT_A, SPLIT_B = (0, 2, 6, 7), (11, 13, 17, 18)
# The same for tcs_gemm_wgmma: four maps of parts and the map of the result, the words that count tiles, the
# result, and each operand with its largest entries.
MAPS, WORK, OUT, ORIGIN_A, ORIGIN_B = range(5), 7, 8, (13, 16), (17, 20)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of an operand in the scratch memory: its first byte, sizes and leading dimension."""

    first: int
    rows: int
    cols: int
    ld: int

    def address(self, start, low):
        """Return (address of the tensor map, the map) if the scratch memory begins at `start`."""
        return panel_address(start + self.first, self.rows, self.cols, self.ld, low)


@dataclass(frozen=True, slots=True)
class Repeated:
    """The launches of a product, for all arrays that are alike.

    Attributes
    ----------
    split, product : Prepared
        The launches of tcs_split_once and tcs_gemm_wgmma.
    low : str
        The format of the parts.
    parts : tuple of _Part or None
        hi and lo of a, hi and lo of b.
    tops : tuple of int
        Where the largest entries of a and b, and the words that count tiles, begin in the scratch memory.
    cleared, room : int
        Number of bytes at the beginning of the scratch memory that must be zero, and of the whole memory.
    counts_tiles : bool
        Whether there are more tiles than clusters.  Then the clusters count the tiles that they have taken.
    by_copies : bool
        Whether the copy engine stores the result.
    extents : Extents
        Those of a, b and the result.
    shape, dtype
        Those of a new result.
    """

    split: Any
    product: Any
    low: str
    parts: tuple
    tops: tuple
    cleared: int
    room: int
    counts_tiles: bool
    by_copies: bool
    extents: Any
    shape: tuple
    dtype: Any

    def again(self, a, b, c, out):
        """Compute the product of other arrays; see `Ops.gemm`.  c is None."""
        a, b = a.data.ptr, b.data.ptr
        if out is None:
            out = cupy.ndarray(self.shape, self.dtype)  # faster than `empty`
        elif self.extents.may_overlap(a, b, out.data.ptr):
            return None
        memory = cupy.empty(self.room, cupy.uint8).data  # held until the launches are in the stream
        memory.memset_async(0, self.cleared)
        start = memory.ptr
        top_a, top_b, turns = (start + first for first in self.tops)
        places = [0 if part is None else start + part.first for part in self.parts]
        of_a, of_b = (a, top_a, *places[:2]), (b, top_b, *places[2:])
        try:
            self.split((*zip(SPLIT_A, of_a, strict=True), *zip(SPLIT_B, of_b, strict=True)))
        except driver.CUDADriverError as error:
            # A launch of this shape has succeeded before, but a green context may be too small for it.  Then
            # the caller chooses the launches anew.
            if error.status in cluster_launch.TOO_LARGE:
                return None
            raise
        hi_a, lo_a, hi_b, lo_b = self.parts
        used = hi_a, lo_a or hi_a, hi_b, lo_b or hi_b
        maps = [part.address(start, self.low) for part in used]
        if self.by_copies:
            maps.append(result_address(out.data.ptr, *self.shape, self.shape[1]))
        self.product(
            (
                (WORK, turns if self.counts_tiles else 0),
                (OUT, out.data.ptr),
                *zip(ORIGIN_A, (a, top_a), strict=True),
                *zip(ORIGIN_B, (b, top_b), strict=True),
            ),
            [(i, address) for i, (address, _) in zip(MAPS, maps, strict=False)],
        )
        return out


def repeated(work, pairs, defines):
    """Return the `Repeated` of a `Work` that was computed by split_once and gemm_wgmma, or None.

    `pairs` are its split operands; `defines` are those of gemm_wgmma without the transposes.
    """
    out, (m, n) = work.out, (work.m, work.n)
    one_row = 1 in (m, n) or 1 in work.a.array.shape or 1 in work.b.array.shape
    if work.split_how is None or work.beta != 0 or one_row or leading(out) != n:
        return None
    tops = 0, 4 * m, 4 * (m + n)
    cleared = tops[2] + 4 * TURN_WORDS
    room, parts = -(-cleared // UNIT) * UNIT, []
    for x in (x for pair in pairs for x in pair):
        parts.append(None if x is None else _Part(room, *x.shape, leading(x)))
        room += 0 if x is None else -(-x.shape[0] * x.strides[0] // UNIT) * UNIT
    _, how = results_of(out, None, 0.0)
    target = 0, n, KINDS[out.dtype.name], None, 0
    a, b = work.a, work.b
    origin = 0, *a.strides, 0, 0, *b.strides, 0
    grid, threads, shared, tiles = grid_of(defines, m, n, work.multiprocessors)
    maps = [0] * len(MAPS)
    args = (*maps, how, None, 0, *target, *origin, *work.sizes, tiles, None)
    kernel = compiler.kernel("gemm_wgmma", "tcs_gemm_wgmma", **defines, **work.transposes)
    product = kernel.prepared((grid, 1), (threads, 1), args, shared)
    if how == BY_HAND:
        product.keep(MAPS[-1], NO_MAP)
    return Repeated(
        split=_prepared_split(work, parts),
        product=product,
        low=work.product.precision,
        parts=tuple(parts),
        tops=tops,
        cleared=cleared,
        room=room,
        counts_tiles=takes_turns(defines, m, n, work.multiprocessors),
        by_copies=how != BY_HAND,
        extents=Extents.of(a.array, b.array, out),
        shape=out.shape,
        dtype=out.dtype,
    )


def _prepared_split(work, parts):
    """Return the prepared launch of tcs_split_once."""
    defines, shape = work.split_how
    (share_a, share_b), (blocks_a, blocks_b) = shape.shares, shape.blocks
    of_a, of_b = (
        (0, x.ld, 0, by_row, *x.array.shape, 0, 0, hi.ld)
        for x, by_row, hi in (
            (work.a, int(not work.a.transposed), parts[0]),
            (work.b, int(work.b.transposed), parts[2]),
        )
    )
    args = *of_a, share_a, blocks_a, *of_b, share_b
    kernel = compiler.kernel("split_once", "tcs_split_once", **defines)
    return kernel.prepared((blocks_a + blocks_b, 1), (shape.threads, 1), args, 0)
