"""How a strip of columns is covered by the blocks of panel.cu."""

from typing import NamedTuple

from tcsolve.kernels.arch import (
    CLUSTER_ARCH,
    LARGEST_CLUSTER,
    PORTABLE_CLUSTER,
    SMALLEST_CLUSTER,
    arch_number,
    has_large_memory,
)

# Threads that search, rows of each, leaf width, strip width and helpers of a block of panel.cu.  A leaf of
# 128 entries a thread leaves registers for its update; few warps make a short exchange.
CLUSTER_BLOCKS = ((128, 1, 32, 128, 128), (128, 2, 32, 128, 128), (128, 3, 32, 128, 128))
CLUSTER_BLOCKS += (
    (128, 4, 32, 96, 128),
    (128, 4, 32, 128, 128),
    (256, 3, 32, 128),
    (256, 4, 32, 128),
    (256, 6, 16, 64),
    (256, 8, 16, 64),
    (256, 8, 16, 128),
)
# Of those for most rows, the ones whose search is fast and the one for dominant strips.
*SEARCHED_BLOCKS, DOMINANT_BLOCK = CLUSTER_BLOCKS[-3:]
SEARCHED_STRIP = SEARCHED_BLOCKS[-1][3]
# The narrow strip, which shared memory holds where it does not hold a wider one.
NARROW_STRIP = 96
# Dynamic shared memory a block of panel.cu can have, where there is much, beside its static 24 KB.
LARGE_BYTES = 202 << 10
GRID_BLOCKS = ((256, 1, 32, 128), (256, 2, 32, 128), (256, 4, 32, 128))
# Blocks of a grid from which on a block takes more rows; the most there may be, as in exchange_grid.cuh.
MANY_BLOCKS = 48
MAX_BLOCKS = 256

# Bytes of struct Board of exchange_grid.cuh: two rows and candidates, sums and a stamp a block; the count.
BOARD_BYTES = MAX_BLOCKS * (2 * (16 + 4 * 32 + 8) + 4 * 128 + 4) + 16


class PanelShape(NamedTuple):
    """How a cluster, or a cooperative grid, covers a strip of blocks * threads * rows rows.

    `width` columns are in registers at a time, and at most `strip` are factored by one launch; `helpers`
    are threads of a block besides those that have rows.  Where there is memory for that, a strip whose
    diagonal is seen to be `dominant` is factored without a search.
    """

    cluster: bool
    blocks: int
    threads: int
    rows: int
    width: int
    strip: int
    helpers: int = 0
    dominant: bool = False

    @property
    def resident(self):
        """Whether the shared memory of the cluster holds the strip."""
        return self.cluster and self.dominant and self._bytes_of(self.strip) <= LARGE_BYTES

    def _bytes_of(self, columns):
        """Shared memory for the rows of a block, padded, and their places."""
        return 4 * self.threads * self.rows * (columns + 5)

    @property
    def all_threads(self):
        """Threads of a block."""
        return self.threads + self.helpers

    @property
    def shared_bytes(self):
        """Dynamic shared memory of a block: its rows of a leaf or of the strip, padded, and their places.

        Or the rows of the diagonal, one for its reciprocals, and as many padded rows as there are threads.
        """
        leaf = self._bytes_of(self.strip if self.resident else self.width)
        if not self.dominant:
            return leaf
        return max(leaf, 4 * ((self.strip + 1) * self.strip + self.all_threads * (self.strip + 4)))

    @property
    def defines(self):
        """The macros of panel.cu."""
        return {
            "BLOCKS": self.blocks if self.cluster else 0,
            "THREADS": self.threads,
            "HELPERS": self.helpers,
            "ROWS": self.rows,
            "WIDTH": self.width,
            "STRIP": self.strip,
            "DOMINANT": int(self.dominant),
            "RESIDENT": int(self.resident),
        }


def panel_shape(
    m, arch, multiprocessors, largest_cluster=LARGEST_CLUSTER, narrow=False, dominant=False
):
    """Return the `PanelShape` for a strip of m rows, or None if the device cannot hold it.

    A `narrow` strip of NARROW_STRIP columns is considered as well if it is wanted; of many rows, a strip
    that is expected to be `dominant` has more columns.

    One cluster where there are clusters and it holds the rows: few rows a thread come first.  Else a
    cooperative grid, at most a block for each multiprocessor.  `largest_cluster` = 8 is for devices
    (and partitions of them) in which larger clusters do not launch.
    """
    number = arch_number(arch)
    if number >= 110:
        largest_cluster = min(largest_cluster, PORTABLE_CLUSTER)
    shapes = []
    if number >= CLUSTER_ARCH:
        # st.async is for clusters: two blocks at least, though one could hold the rows.
        unwanted = SEARCHED_BLOCKS if dominant else (DOMINANT_BLOCK,)
        wanted = [block for block in CLUSTER_BLOCKS if block not in unwanted]
        blocks = [block for block in wanted if narrow or block[3] != NARROW_STRIP]
        needed = [(max(SMALLEST_CLUSTER, _blocks(m, block)), block) for block in blocks]
        clusters = [PanelShape(True, 1 << (n - 1).bit_length(), *block) for n, block in needed]
        shapes += [s for s in clusters if s.blocks <= min(largest_cluster, multiprocessors)]
    most = min(multiprocessors, MAX_BLOCKS)
    grids = [PanelShape(False, _blocks(m, block), *block) for block in GRID_BLOCKS]
    shapes += [s for s in grids if s.blocks <= MANY_BLOCKS]
    shapes += [s for s in grids[-1:] + grids[::-1] if s.blocks <= most]
    fits, large = _shared_limit(number), has_large_memory(number)
    shapes = [s._replace(dominant=large) for s in shapes if s.blocks <= most]
    return next((s for s in shapes if s.shared_bytes <= fits), None)


def panel_shapes(m, arch, multiprocessors, narrow=False, dominant=False):
    """Return each `PanelShape` to try for a strip of m rows: with clusters of 16, with clusters of 8, a grid.

    There is none if the device cannot hold the strip.  Arguments are as for `panel_shape`.
    """
    sizes = (LARGEST_CLUSTER, PORTABLE_CLUSTER, 0)
    found = [panel_shape(m, arch, multiprocessors, size, narrow, dominant) for size in sizes]
    return tuple(shape for shape in dict.fromkeys(found) if shape is not None)


def _shared_limit(number):
    """Return the dynamic shared memory a block of panel.cu can have, beside its static 24 KB."""
    if has_large_memory(number):
        return LARGE_BYTES
    return {75: 40 << 10, 80: 136 << 10, 87: 136 << 10}.get(number, 74 << 10)


def _blocks(m, block):
    threads, rows, *_ = block
    return -(-m // (threads * rows))


# Clusters of each size for the few rows of one block, and of two sizes for the others; grids.
_CLUSTERS = [PanelShape(True, 2**i, *CLUSTER_BLOCKS[0]) for i in range(1, 5)] + [
    PanelShape(True, cluster, *block)
    for cluster in (PORTABLE_CLUSTER, LARGEST_CLUSTER)
    for block in CLUSTER_BLOCKS[1:]
]
_GRIDS = [PanelShape(False, 1, *block) for block in GRID_BLOCKS]
PANELS = [shape._replace(dominant=x) for shape in _CLUSTERS + _GRIDS for x in (False, True)]
