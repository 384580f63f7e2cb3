"""The launch shapes of the kernels for LU, triangular solves, refinement, norms and emulated sums."""

from typing import NamedTuple

from tcsolve.kernels.arch import (
    CLUSTER_ARCH,
    LARGEST_SHARED_BYTES,
    PORTABLE_CLUSTER,
    arch_number,
    has_large_memory,
    shared_bytes,
)

# The numbers of right-hand sides that triangular_solve.cu is compiled for, and the number of unknowns that it
# solves for at a time, by dtype char.
TRSV_COLUMNS = (1, 2, 4)
TRSV_BLOCK = {"f": 128, "d": 64}
TRSV_THREADS = 512

# The number of rows that a warp of residual.cu takes: for few rows, and from MANY_ROWS on.
RESIDUAL_ROWS, MANY_ROWS = (1, 4), 8192

# Threads per row of measure_stack.cu, and threads of its blocks.
STACK_LANES, STACK_THREADS = (4, 8, 16, 32), 256
# measure_large.cu is fast for one system with up to MEASURED_COLUMNS right-hand sides.  A block takes
# MEASURED_TOGETHER of them and has MEASURE_THREADS threads.  If there are many rows, a warp takes
# MEASURED_ROWS of them.
MEASURED_COLUMNS, MEASURED_TOGETHER, MEASURED_ROWS, MEASURE_THREADS = 64, 4, 8, 256
# A warp takes one row if there would otherwise be fewer blocks than this for each multiprocessor.
MEASURED_BLOCKS = 8
# Number of rows and columns of a tile of read_structure.cu, and threads of its blocks.
TILE, TILE_THREADS = 32, (32, 8)

# Every architecture has at least 64 KB of shared memory for a block.
STAGE_FLOATS = (64 << 10) // 4
# Numbers of columns of a block of move_rows.cu.  With fewer than FEW_BLOCKS full blocks, a smaller number is
# taken.
MOVE_CHUNKS, FEW_BLOCKS = (32, 16, 8, 4), 64
# Largest number of rows that move_rows.cu can move, with the fewest columns at a time.
MOST_MOVED = STAGE_FLOATS // 4


def residual_rows(n):
    """Return the number of rows that a warp of residual.cu takes, of n rows."""
    few, many = RESIDUAL_ROWS
    return many if n >= MANY_ROWS else few


class TrsvShape(NamedTuple):
    """A launch shape of triangular_solve.cu: number of blocks, and blocks per cluster (0: no clusters)."""

    blocks: int
    cluster: int

    @property
    def defines(self):
        """The macro BLOCKS of triangular_solve.cu."""
        return {"BLOCKS": self.cluster}


def trsv_shapes(count, arch, multiprocessors):
    """Return each `TrsvShape` to try for `count` blocks of unknowns: with clusters, if any, then without.

    Clusters have the portable number of 8 blocks; larger ones were no faster on an H200.
    """
    clusters = arch_number(arch) >= CLUSTER_ARCH and multiprocessors >= PORTABLE_CLUSTER
    found = []
    for cluster in (PORTABLE_CLUSTER, 0) if clusters else (0,):
        team = cluster or 1
        found.append(TrsvShape(team * min(multiprocessors // team, -(-count // team)), cluster))
    return tuple(found)


class StackShape(NamedTuple):
    """A launch shape of measure_stack.cu: threads per row, blocks, shared bytes."""

    lanes: int
    blocks: int
    shared: int


def stack_shape(count, n):
    """Return the `StackShape` for `count` matrices of n rows."""
    lanes = next((lanes for lanes in STACK_LANES if n <= lanes), STACK_LANES[-1])
    warps = STACK_THREADS // 32
    return StackShape(lanes, -(-count // warps), 8 * warps * (-(-n // 32) * 32))


def measure_shape(shape, hermitian, multiprocessors):
    """Return (rows of a warp, blocks) of measure_large.cu, for `shape` (count, n, right-hand sides)."""
    (count, n, nrhs), warps = shape, MEASURE_THREADS // 32
    enough = MEASURED_BLOCKS * multiprocessors * warps
    each = MEASURED_ROWS if count * n >= MEASURED_ROWS * enough else 1
    looks = -(-nrhs // MEASURED_TOGETHER) * -(-n // (warps * each))
    return each, count * (1 + looks + (0 if hermitian else -(-n // 32)))


def move_chunk(count, n):
    """Return how many of the n columns a block of tcs_move_rows copies at a time, for `count` rows.

    With few columns in all, a block copies fewer than fit in shared memory, so that there are enough blocks.
    """
    for chunk in MOVE_CHUNKS:
        last = chunk == MOVE_CHUNKS[-1]
        if count * chunk <= STAGE_FLOATS and (last or n >= FEW_BLOCKS * chunk):
            return chunk
    raise ValueError(f"count is {count}; at most {MOST_MOVED} rows can be moved at once")


class SwapShape(NamedTuple):
    """A launch shape of swap_solve.cu with `columns` per block, for up to `most` columns in all."""

    columns: int
    threads: int
    padding: int
    most: float

    def shared_bytes(self, rows):
        """Return the bytes of dynamic shared memory: the tiles of L, and the `rows` rows that are staged."""
        return 4 * 20 * 16 * sum(range(1, 9)) + 4 * rows * (self.columns + self.padding)

    @property
    def defines(self):
        """The macros of swap_solve.cu."""
        return {"COLUMNS": self.columns}


# If there are few columns in all, few of them per block make the launch short.  If there are many, wide
# blocks read L less often.
SWAP_SHAPES = (
    SwapShape(8, 256, 1, 1536),
    SwapShape(16, 256, 1, 6144),
    SwapShape(64, 128, 1, float("inf")),
)


# Static shared memory of swap_solve.cu.
SWAP_STATIC = 1 << 10


def swap_shape(n, rows, arch):
    """Return the `SwapShape` for n columns with `rows` staged rows; it fits in the memory of `arch`."""
    limit = shared_bytes(arch)
    fit = [s for s in SWAP_SHAPES if s.shared_bytes(rows) + SWAP_STATIC <= limit]
    return next((shape for shape in fit if n <= shape.most), fit[-1])


class LowerShape(NamedTuple):
    """A launch shape of lower_solve.cu with `columns` per block, for up to `most` unknowns."""

    most: int
    columns: int = 8
    threads: int = 256

    @staticmethod
    def shared_bytes(k):
        """Return the bytes of dynamic shared memory for k unknowns: four padded blocks of 16 columns of L.

        There are 64 more rows: a warp updates two blocks of rows together, which begin 64 rows apart, and the
        second block may not exist.
        """
        return 4 * (16 + 4) * (4 * -(-k // 16) * 16 + 64)

    @property
    def defines(self):
        """The macro of lower_solve.cu."""
        return {"MOST": self.most}


LOWER_SHAPES = (LowerShape(256), LowerShape(512))
# Static shared memory of lower_solve.cu.
LOWER_STATIC = 1040


def lower_shape(k, arch):
    """Return the `LowerShape` for k unknowns, or None if k is too large for `arch`."""
    room = LARGEST_SHARED_BYTES if has_large_memory(arch_number(arch)) else shared_bytes(arch)
    if LowerShape.shared_bytes(k) + LOWER_STATIC > room:
        return None
    return next((shape for shape in LOWER_SHAPES if k <= shape.most), None)


# ---- gemm_emulated.cu ----------------------------------------------------------------------------


def emulated_sums(block, fraction, least, emin):
    """Return the macros of gemm_emulated.cu; emin is the smallest exponent of a normal number."""
    return {"BLOCK": block, "FRACTION": fraction, "LEAST": least, "EMIN": emin}


# The macros for all tensor cores and formats in tcsolve/_arithmetic/tensor_cores.py.
EMULATED_SUMS = tuple(
    emulated_sums(*sums)
    for sums in (
        (4, 23, -126, -14),
        (8, 24, -126, -14),
        (8, 24, -132, -14),
        (8, 24, -132, -126),
        (4, 24, -132, -126),
        (16, 25, -133, -14),
        (16, 25, -133, -126),
        (8, 25, -133, -126),
    )
)
