"""The choice of the kernel for a product, and the launch shapes of products of large matrices."""

import functools
from typing import NamedTuple

from tcsolve.kernels.arch import (
    CLUSTER_ARCH,
    HOPPER,
    PORTABLE_CLUSTER,
    arch_number,
    has_large_memory,
)

# Number of rows of a tile of gemm_wgmma.cu, and the part of k that it takes at a time.
WGMMA_ROWS, WGMMA_DEPTH = 128, 64

# (threads of a block, smallest number of threads that share a row) of split_once.cu, if columns have scales.
# Eight threads read a row in whole lines of 128 bytes, and four in halves of lines.  Two blocks of 256
# threads share a multiprocessor, and one loads while the other stores.
SPLIT_BLOCKS = ((256, 8), (512, 4))
# Number of FP32 entries that a thread keeps in registers.
SPLIT_KEPT = 64


class SplitShape(NamedTuple):
    """A launch shape of split_once.cu for two matrices; split_once.cu explains the `shares`."""

    threads: int
    shares: tuple = ()
    blocks: tuple = ()

    @property
    def defines(self):
        """The macros of split_once.cu except the format."""
        return {"THREADS": self.threads, "CLUSTER": PORTABLE_CLUSTER}


@functools.lru_cache(maxsize=1024)
def split_shape(matrices, arch):
    """Return the `SplitShape` for a tuple of matrices (by_row, rows, cols), or None if they need two passes.

    One pass needs a device with clusters.  It also needs a whole row to fit in a block, or whole columns in a
    cluster, because the largest entry is found before anything is scaled.
    """
    if arch_number(arch) < CLUSTER_ARCH:
        return None
    for threads, least in SPLIT_BLOCKS:
        shares = tuple(_split_share(threads, least, *matrix) for matrix in matrices)
        if None not in shares:
            pairs = zip(shares, matrices, strict=True)
            return SplitShape(threads, shares, tuple(_split_blocks(threads, *x) for x in pairs))
    return None


def _split_share(threads, least, by_row, rows, cols):
    """Return how many warps hold a row, or how many lanes share one; None if the matrix does not fit."""
    if by_row:
        warps = (1 << e for e in range((threads // 32).bit_length()))
        return next((w for w in warps if 32 * w * SPLIT_KEPT >= cols), None)
    held = PORTABLE_CLUSTER * threads * SPLIT_KEPT // 4
    lanes = (32 >> e for e in range((32 // least).bit_length()))
    return next((share for share in lanes if held // share >= rows), None)


def _split_blocks(threads, share, matrix):
    """Return the number of blocks for a matrix, a multiple of the cluster size."""
    by_row, rows, cols = matrix
    if by_row:
        return -(-rows // (threads // 32 // share * PORTABLE_CLUSTER)) * PORTABLE_CLUSTER
    return -(-cols // (4 * share)) * PORTABLE_CLUSTER


def fastest_update(how, char, m, k, arch):
    """Return the engine for the update C -= L U: 'wgmma', or 'cublas' on packed operands.

    `how` is the `Update`, `char` the character of the dtype; L is m x k.
    """
    ours = how.format.name in ("fp16", "bf16") and char == "f"
    fills = m >= WGMMA_ROWS and k >= WGMMA_DEPTH
    return "wgmma" if ours and fills and arch_number(arch) == HOPPER else "cublas"


# (rows, columns) of a tile of gemm_wmma.cu, by the macro TILE.
WMMA_TILES = ((64, 64), (128, 128), (128, 256))
SMALL, SQUARE, WIDE = range(3)
# A block with a wide tile takes a whole multiprocessor, which does not multiply while the block stores.  So
# wide tiles save time only for a large k: they gain 5 % at n = 16384, and lose 8 % at k = 1024.
WIDE_DEPTH = 4096
# Time of a multiprocessor, in some unit: ALONE for one square tile, SIDE_BY_SIDE for two at the same time,
# and (s + 1) EACH_SMALL for s small tiles.  Measured for n = 512 to 4096 on an H200 only.
ALONE, SIDE_BY_SIDE, EACH_SMALL = 49, 61, 10


def wmma_can_be_wide(t_in, arch):
    """Tell whether gemm_wmma.cu can have tiles of 256 columns.

    They take 144 KB of shared memory, 192 KB from compute capability 9 on, and 255 registers.
    """
    number = arch_number(arch)
    return t_in != "float" and (number in (80, 87) or has_large_memory(number))


def wmma_tile(m, n, k, t_in, arch, multiprocessors):
    """Return the fastest tile of gemm_wmma.cu for an m x n x k product of operands `t_in`."""
    if t_in == "float":
        return SQUARE
    small, square = (-(-_wmma_blocks(m, n, tile) // multiprocessors) for tile in (SMALL, SQUARE))
    if EACH_SMALL * (small + 1) <= SIDE_BY_SIDE * (square // 2) + ALONE * (square % 2):
        return SMALL
    many = _wmma_blocks(m, n, WIDE) >= multiprocessors and k >= WIDE_DEPTH
    return WIDE if many and wmma_can_be_wide(t_in, arch) else SQUARE


def _wmma_blocks(m, n, tile):
    rows, columns = WMMA_TILES[tile]
    return -(-m // rows) * -(-n // columns)


def wmma_shape(m, n, tile, t_in, low, arch):
    """Return (blocks, threads, bytes of dynamic shared memory) of a launch of gemm_wmma.cu."""
    # As in wmma_tile.cuh: operands that are split before they are stored in shared memory have two buffers;
    # all others have two to four stages.
    number, split = arch_number(arch), t_in == "float" and low != "tf32"
    stages = 2 if split or number < 80 else 3 if tile == SQUARE or number < CLUSTER_ARCH else 4
    if tile == SMALL and number >= 80:
        stages = 4
    threads = 256 if t_in == "float" or tile == WIDE else 128
    # A stage has 128 bytes of each row of op(A) and of each column of op(B).
    return _wmma_blocks(m, n, tile), threads, stages * sum(WMMA_TILES[tile]) * 128
