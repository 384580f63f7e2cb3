"""Row swaps on a device: those of a strip, the merged ones of a panel, and the kernel that moves rows."""

from typing import Any, NamedTuple

import cupy

from tcsolve._backends.cuda.runtime import compiler, current_device
from tcsolve._backends.cuda.runtime.cublas_calls import ld
from tcsolve.kernels.launch_shapes import MOST_MOVED, move_chunk

__all__ = ["Merged", "Swaps", "merge_swaps", "move_rows", "report"]

# Number of entries to copy at a time if there are too many rows for tcs_move_rows.
STAGED_ENTRIES = 1 << 22
# Largest number of blocks of tcs_move_rows per multiprocessor.
MOVE_BLOCKS = 2
# Number of threads in the blocks of merge_swaps.cu.
MERGE_THREADS, REPORT_THREADS = 256, 1024


class Swaps(NamedTuple):
    """The swaps of a strip, and its L11 and U11 at `top`: tcs_panel stores them for tcs_swap_solve."""

    dst: int
    src: int
    top: int
    ld_top: int
    width: int
    memory: Any


class Merged(NamedTuple):
    """The swaps of all strips of a panel; `moves` is zero on the device if no row moves."""

    dst: Any
    src: Any
    moves: Any


def merge_swaps(order, local, ipiv, start):
    """Return the result of `LUOps.merge_swaps` as `Merged`."""
    m, k = len(order), len(ipiv)
    dst, src = cupy.empty((2, 2 * k), cupy.int32)
    moved, moves = cupy.empty_like(order), cupy.empty(1, cupy.uint32)
    grid, block = (-(-m // MERGE_THREADS),), (MERGE_THREADS,)
    args = (dst, src, moved, order, local, m, ipiv, k, start)
    compiler.kernel("merge_swaps", "tcs_merge_swaps")(grid, block, args)
    args = (order, local, moved, m, moves, ipiv, k, start)
    compiler.kernel("merge_swaps", "tcs_restart")(grid, block, args)
    return Merged(dst, src, moves)


def report(info, ipiv, condition, beyond):
    """Return the report of `LUOps.finish`.

    `condition` has the largest condition number of a diagonal block.
    """
    found = cupy.empty(4)
    args = found, info, ipiv, len(ipiv), condition, beyond
    compiler.kernel("merge_swaps", "tcs_report")((1,), (REPORT_THREADS,), args)
    return found


def move_rows(w, dst, src, moves=None):
    """w[dst] = w[src], with all reads before any write; `moves`, if given, is zero if no row moves."""
    words = w.dtype.itemsize // 4  # a complex64 or float64 entry moves as two words
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
    # Few blocks, so that shorter launches find room and need not wait until the rows have moved.
    blocks = min(-(-columns // chunk), MOVE_BLOCKS * current_device.multiprocessors())
    kernel((blocks,), (256,), args, shared=4 * count * chunk)
