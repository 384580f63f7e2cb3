"""The launch shapes of panel.cu: the division of the rows of a strip among blocks and threads."""

from typing import NamedTuple

from tcsolve.kernels.arch import (
    CLUSTER_ARCH,
    LARGEST_CLUSTER,
    PORTABLE_CLUSTER,
    SMALLEST_CLUSTER,
    arch_number,
    has_large_memory,
)

# (threads with rows, rows per thread, leaf width, strip width, helper threads) of a block of panel.cu in a
# cluster.  A leaf of at most 128 entries per thread leaves registers for its update.  Few warps make the
# exchange of pivots short.
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
# The last three shapes hold the most rows.  The first two of them have a fast pivot search; the third is for
# dominant strips.
*SEARCHED_BLOCKS, DOMINANT_BLOCK = CLUSTER_BLOCKS[-3:]
SEARCHED_STRIP = SEARCHED_BLOCKS[-1][3]
# Width of a narrow strip, which may fit in shared memory if a wider one does not.
NARROW_STRIP = 96
# The most dynamic shared memory of a block of panel.cu on devices with large memory.  Its static memory takes
# up to 24 KB more.
LARGE_BYTES = 202 << 10
# As CLUSTER_BLOCKS, for a block in a cooperative grid, without clusters.
GRID_BLOCKS = ((256, 1, 32, 128), (256, 2, 32, 128), (256, 4, 32, 128))
# With more than MANY_BLOCKS blocks in a grid, each block takes more rows.  MAX_BLOCKS is the limit of
# exchange_grid.cuh.
MANY_BLOCKS = 48
MAX_BLOCKS = 256

# Bytes of struct Board of exchange_grid.cuh.  For each block it has two rows, their two candidates, 128 sums
# and a stamp.  It also has one count.
BOARD_BYTES = MAX_BLOCKS * (2 * (16 + 4 * 32 + 8) + 4 * 128 + 4) + 16


class PanelShape(NamedTuple):
    """A launch shape of panel.cu: a cluster or a cooperative grid, for up to blocks * threads * rows rows.

    `width` columns are in registers at a time: a leaf.  One launch factors at most `strip` columns.  A block
    has `helpers` further threads without rows.  With `dominant`, which needs large shared memory, the kernel
    factors a strip without a pivot search if it finds that the diagonal dominates.
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
        """Whether the whole strip stays in the shared memory of the cluster."""
        return self.cluster and self.dominant and self._bytes_of(self.strip) <= LARGE_BYTES

    def _bytes_of(self, columns):
        """Return the bytes of shared memory for the padded rows of a block and their places."""
        return 4 * self.threads * self.rows * (columns + 5)

    @property
    def all_threads(self):
        """Number of threads of a block."""
        return self.threads + self.helpers

    @property
    def shared_bytes(self):
        """Bytes of dynamic shared memory of a block: its padded rows of a leaf or of the strip.

        With `dominant`, a factorization without a search uses the same memory for the rows of the diagonal,
        one row of reciprocals, and one padded row per thread.
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

    With `narrow`, strips of NARROW_STRIP columns are allowed, too.  With many rows, a strip that is expected
    to be `dominant` has more columns.

    The shape is one cluster if the device has clusters and one can hold the rows; shapes with few rows per
    thread come first.  Otherwise it is a cooperative grid with at most one block per multiprocessor.
    `largest_cluster` = 8 is for devices, or partitions of devices, that do not launch larger clusters; with 0
    the shape is a grid.
    """
    number = arch_number(arch)
    if number >= 110:
        largest_cluster = min(largest_cluster, PORTABLE_CLUSTER)
    shapes = []
    if number >= CLUSTER_ARCH:
        # st.async works only between the blocks of a cluster, so there are at least two blocks.
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
    """Return each `PanelShape` to try for m rows: a cluster of up to 16 blocks, one of up to 8, a grid.

    The result is empty if the device cannot hold the strip.  The arguments are as for `panel_shape`.
    """
    sizes = (LARGEST_CLUSTER, PORTABLE_CLUSTER, 0)
    found = [panel_shape(m, arch, multiprocessors, size, narrow, dominant) for size in sizes]
    return tuple(shape for shape in dict.fromkeys(found) if shape is not None)


def _shared_limit(number):
    """Return the bytes of dynamic shared memory of a block of panel.cu, without its static 24 KB."""
    if has_large_memory(number):
        return LARGE_BYTES
    return {75: 40 << 10, 80: 136 << 10, 87: 136 << 10}.get(number, 74 << 10)


def _blocks(m, block):
    threads, rows, *_ = block
    return -(-m // (threads * rows))


# All shapes that a launch may have: clusters of every size for the first block shape, clusters of two sizes
# for the others, and grids.
_CLUSTERS = [PanelShape(True, 2**i, *CLUSTER_BLOCKS[0]) for i in range(1, 5)] + [
    PanelShape(True, cluster, *block)
    for cluster in (PORTABLE_CLUSTER, LARGEST_CLUSTER)
    for block in CLUSTER_BLOCKS[1:]
]
_GRIDS = [PanelShape(False, 1, *block) for block in GRID_BLOCKS]
PANELS = [shape._replace(dominant=x) for shape in _CLUSTERS + _GRIDS for x in (False, True)]
