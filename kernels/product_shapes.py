"""Which kernel multiplies, and how products of large matrices are cut into blocks."""

from typing import NamedTuple

from tcsolve.kernels.arch import CLUSTER_ARCH, HOPPER, PORTABLE_CLUSTER, arch_number

# Rows of the tiles of gemm_wgmma.cu, and how much of k it takes at a time.
WGMMA_ROWS, WGMMA_DEPTH = 128, 64

# Threads of a block of split_once.cu, with the fewest of them that share a row where columns have scales:
# whole lines of 128 bytes, or a half.  Two blocks of 256 share a multiprocessor, and one loads while the
# other stores.
SPLIT_BLOCKS = ((256, 8), (512, 4))
# FP32 entries that a thread keeps.
SPLIT_KEPT = 64


class SplitShape(NamedTuple):
    """How split_once.cu takes two matrices: the `share` of each is told there."""

    threads: int
    shares: tuple = ()
    blocks: tuple = ()

    @property
    def defines(self):
        """The macros of split_once.cu, but for the format."""
        return {"THREADS": self.threads, "CLUSTER": PORTABLE_CLUSTER}


def split_shape(matrices, arch):
    """Return the `SplitShape` for matrices (by_row, rows, cols), or None if they take two passes.

    One pass is for devices with clusters, and for matrices of which a block holds a whole row, or a cluster
    whole columns, whose largest entry is looked for.
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
    """Return how many warps hold a row, or how many lanes share one; None if they cannot."""
    if by_row:
        warps = (1 << e for e in range((threads // 32).bit_length()))
        return next((w for w in warps if 32 * w * SPLIT_KEPT >= cols), None)
    held = PORTABLE_CLUSTER * threads * SPLIT_KEPT // 4
    lanes = (32 >> e for e in range((32 // least).bit_length()))
    return next((share for share in lanes if held // share >= rows), None)


def _split_blocks(threads, share, matrix):
    """Return the blocks for a matrix, whole clusters."""
    by_row, rows, cols = matrix
    if by_row:
        return -(-rows // (threads // 32 // share * PORTABLE_CLUSTER)) * PORTABLE_CLUSTER
    return -(-cols // (4 * share)) * PORTABLE_CLUSTER


def fastest_update(how, char, m, k, arch):
    """Return how C -= L U is computed for the `Update` how: 'wgmma', or 'cublas' on packed operands.

    char is that of the dtype, L is m x k.
    """
    ours = how.format.name in ("fp16", "bf16") and char == "f"
    fills = m >= WGMMA_ROWS and k >= WGMMA_DEPTH
    return "wgmma" if ours and fills and arch_number(arch) == HOPPER else "cublas"


# Rows and columns of the tiles of gemm_wmma.cu, by TILE there.
WMMA_TILES = ((64, 64), (128, 128), (128, 256))
SMALL, SQUARE, WIDE = range(3)
# A wide block has its multiprocessor to itself: nobody multiplies while it stores, which takes a
# long k to pay (at n = 16384, 5 %; at k = 1024 it costs 8 %).
WIDE_DEPTH = 4096
# What a multiprocessor takes for a square tile alone, and for two side by side, if it takes 10 for each small
# tile and 10 to begin with (as products of n = 512 to 4096 did on an H200; no other device was measured).
ALONE, SIDE_BY_SIDE, EACH_SMALL = 49, 61, 10


def wmma_can_be_wide(t_in, arch):
    """Tell whether a block of gemm_wmma.cu can have 256 columns: 144 KB of shared memory, 255 registers."""
    number = arch_number(arch)
    return t_in != "float" and (number in (80, 87) or 90 <= number < 120)


def wmma_tile(m, n, k, t_in, arch, multiprocessors):
    """Return the tile of gemm_wmma.cu for a product of operands t_in."""
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
    # As there: FP32 is split between two buffers; TF32, and what needs no split, waits in stages.
    number, split = arch_number(arch), t_in == "float" and low != "tf32"
    stages = 2 if split or number < 80 else 3 if tile == SQUARE or number < CLUSTER_ARCH else 4
    if tile == SMALL and number >= 80:
        stages = 4
    threads = 256 if t_in == "float" or tile == WIDE else 128
    # 128 bytes of each row of both operands.
    return _wmma_blocks(m, n, tile), threads, stages * sum(WMMA_TILES[tile]) * 128
