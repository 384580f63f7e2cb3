"""Swaps of whole rows on a device: what strips leave of them, those of a panel as one, and the moves."""

from typing import Any, NamedTuple

import cupy

from tcsolve._backends.cuda.runtime import compiler, current_device
from tcsolve._backends.cuda.runtime.cublas_calls import ld
from tcsolve.kernels.launch_shapes import MOST_MOVED, move_chunk

__all__ = ["Merged", "Swaps", "merge_swaps", "move_rows", "report"]

# Entries that are copied at a time where rows are too many for tcs_move_rows.
STAGED_ENTRIES = 1 << 22
# Most blocks of tcs_move_rows on a multiprocessor.
MOVE_BLOCKS = 2
# Threads of a block of merge_swaps.cu.
MERGE_THREADS, REPORT_THREADS = 256, 1024


class Swaps(NamedTuple):
    """What tcs_panel leaves for tcs_swap_solve: addresses in `memory`, and the columns of the strip."""

    dst: int
    src: int
    top: int
    ld_top: int
    width: int
    memory: Any


class Merged(NamedTuple):
    """The swaps of all strips of a panel, and a word that is zero if all rows stay where they are."""

    dst: Any
    src: Any
    moves: Any


def merge_swaps(order, local, ipiv, start):
    """As `Ops.merge_swaps`, as `Merged`."""
    m, k = len(order), len(ipiv)
    dst, src = cupy.empty((2, 2 * k), cupy.int32)
    moved, moves = cupy.empty_like(order), cupy.empty(1, cupy.uint32)
    grid, block = (-(-m // MERGE_THREADS),), (MERGE_THREADS,)
    args = (dst, src, moved, order, local, m, ipiv, k, start)
    compiler.kernel("merge_swaps", "tcs_merge_swaps")(grid, block, args)
    args = (order, local, moved, m, moves, ipiv, k, start)
    compiler.kernel("merge_swaps", "tcs_restart")(grid, block, args)
    return Merged(dst, src, moves)


def report(info, ipiv, worst, beyond):
    """As `Ops.report`."""
    found = cupy.empty(4)
    args = found, info, ipiv, len(ipiv), worst, beyond
    compiler.kernel("merge_swaps", "tcs_report")((1,), (REPORT_THREADS,), args)
    return found


def move_rows(w, dst, src, moves=None):
    """w[dst] = w[src], all reads before any write; `moves`, if known, is zero if all stay where they are."""
    words = w.dtype.itemsize // 4  # a complex64 or float64 entry moves as two
    columns, count = w.shape[1] * words, len(dst)
    if not (columns and count):
        return
    if count > MOST_MOVED:
        width = max(1, STAGED_ENTRIES // count)
        for start in range(0, w.shape[1], width):
            some = w[:, start : start + width]
            some[dst] = some[src]
        return
    chunk = move_chunk(count, columns)
    kernel = compiler.kernel("move_rows", "tcs_move_rows", CHUNK=chunk)
    args = (w, ld(w) * words, columns, dst, src, count, moves)
    # Room is left for shorter launches, which need not wait until the rows have moved.
    blocks = min(-(-columns // chunk), MOVE_BLOCKS * current_device.multiprocessors())
    kernel((blocks,), (256,), args, shared=4 * count * chunk)
