"""How the other launches of an LU and of a refinement are cut into blocks."""

from typing import NamedTuple

from tcsolve.kernels.arch import (
    CLUSTER_ARCH,
    LARGEST_SHARED_BYTES,
    PORTABLE_CLUSTER,
    arch_number,
    has_large_memory,
    shared_bytes,
)

# Right-hand sides triangular_solve.cu is compiled for, and the unknowns that it solves for at a time,
# by dtype char.
TRSV_COLUMNS = (1, 2, 4)
TRSV_BLOCK = {"f": 128, "d": 64}
TRSV_THREADS = 512

# Rows of a matrix that a warp of residual.cu may take at a time.
RESIDUAL_ROWS = (1, 4)

# Threads of a warp that measure_stack.cu gives to a row, and warps it gives to a matrix; threads of a block.
STACK_SHAPES, STACK_THREADS = ((4, 1), (8, 1), (16, 1), (32, 1), (32, 8)), 256
# Threads that solve_rows.cu gives to a matrix, of at most as many rows, and threads of its blocks.
ROWS_LANES, ROWS_THREADS = (4, 8, 16), 128
# Rows of the largest matrices that solve_block.cu takes, and threads of its blocks.
BLOCK_SHAPES = ((32, 32), (128, 256))
# Right-hand sides that they solve for, and random ones.
SOLVED_COLUMNS, PROBES = 1, 2
# Bytes of shared memory of solve_block.cu that do not depend on n, at most.
BLOCK_RESERVE = 2048
# Right-hand sides that measure_one.cu takes, and threads of its blocks.
MEASURED_COLUMNS, MEASURE_THREADS = 4, 256
# Rows and columns of a tile of read_structure.cu, and threads of its blocks.
TILE, TILE_THREADS = 32, (32, 8)

# 64 KB of shared memory can be had on every architecture.
STAGE_FLOATS = (64 << 10) // 4
# Columns of a block of move_rows.cu, and the blocks below which it has fewer.
MOVE_CHUNKS, FEW_BLOCKS = (32, 16, 8, 4), 64
# Rows that it can move at once, a few columns at a time.
MOST_MOVED = STAGE_FLOATS // 4


class TrsvShape(NamedTuple):
    """How many blocks triangular_solve.cu is launched with, and how many make a cluster; 0 is none."""

    blocks: int
    cluster: int

    @property
    def defines(self):
        """The macro of triangular_solve.cu."""
        return {"BLOCKS": self.cluster}


def trsv_shapes(count, arch, multiprocessors):
    """Return each `TrsvShape` to try for `count` blocks of unknowns: clusters if there are any, then none.

    Clusters have 8 blocks, which is portable; larger ones were no faster on an H200.
    """
    clusters = arch_number(arch) >= CLUSTER_ARCH and multiprocessors >= PORTABLE_CLUSTER
    found = []
    for cluster in (PORTABLE_CLUSTER, 0) if clusters else (0,):
        team = cluster or 1
        found.append(TrsvShape(team * min(multiprocessors // team, -(-count // team)), cluster))
    return tuple(found)


class StackShape(NamedTuple):
    """How measure_stack.cu is launched: threads of a row, warps of a matrix, blocks, shared bytes."""

    lanes: int
    team: int
    blocks: int
    shared: int

    @property
    def defines(self):
        """The macros of measure_stack.cu."""
        return {"LANES": self.lanes, "TEAM": self.team}


def stack_shape(count, n):
    """Return the `StackShape` for `count` matrices of n rows."""
    lanes, team = next((s for s in STACK_SHAPES if n <= s[0]), STACK_SHAPES[-1])
    warps = STACK_THREADS // 32
    return StackShape(lanes, team, -(-count * team // warps), 8 * warps * (-(-n // 32) * 32))


class SolveShape(NamedTuple):
    """How one launch solves small systems: the file, its macros, blocks, their threads and memory."""

    name: str
    defines: dict
    blocks: int
    threads: int
    shared: int


def solve_shape(count, n, is_complex, arch):
    """Return the `SolveShape` for `count` matrices of n rows, or None where they are too large."""
    lanes = next((lanes for lanes in ROWS_LANES if n <= lanes), None)
    if lanes:
        blocks = -(-count * lanes // ROWS_THREADS)
        return SolveShape("solve_rows", {"LANES": lanes}, blocks, ROWS_THREADS, 0)
    sides = SOLVED_COLUMNS + PROBES
    shared = n * ((n + sides | 1) + 1 + sides) * (16 if is_complex else 8)
    if n > BLOCK_SHAPES[-1][0] or shared + BLOCK_RESERVE > shared_bytes(arch):
        return None
    rows, threads = next(shape for shape in BLOCK_SHAPES if n <= shape[0])
    return SolveShape("solve_block", {"ROWS": rows, "THREADS": threads}, count, threads, shared)


def measure_blocks(n):
    """Return the blocks of measure_one.cu for a matrix of n rows."""
    return 1 + -(-n // (MEASURE_THREADS // 32)) + -(-n // 32)


def move_chunk(count, n):
    """Return how many of n columns a block of tcs_move_rows stages for `count` rows.

    Fewer than it could, where there would be few blocks.
    """
    for chunk in MOVE_CHUNKS:
        last = chunk == MOVE_CHUNKS[-1]
        if count * chunk <= STAGE_FLOATS and (last or n >= FEW_BLOCKS * chunk):
            return chunk
    raise ValueError(f"count is {count}; at most {MOST_MOVED} rows can be moved at once")


class SwapShape(NamedTuple):
    """How a block of swap_solve.cu takes its columns; `most` is how many there may be in all."""

    columns: int
    threads: int
    padding: int
    most: float

    def shared_bytes(self, rows):
        """Dynamic shared memory with `rows` rows on the move, beside the columns of L by tiles."""
        return 4 * 20 * 16 * sum(range(1, 9)) + 4 * rows * (self.columns + self.padding)

    @property
    def defines(self):
        """The macros of swap_solve.cu."""
        return {"COLUMNS": self.columns}


# Few columns a block make a short launch of few columns; many are bound by what is read of L.
SWAP_SHAPES = (
    SwapShape(8, 256, 1, 1536),
    SwapShape(16, 256, 1, 6144),
    SwapShape(64, 128, 1, float("inf")),
)


# Static shared memory of swap_solve.cu.
SWAP_STATIC = 1 << 10


def swap_shape(n, rows, arch):
    """Return the `SwapShape` for n columns with `rows` rows on the move, of those `arch` has room for."""
    limit = shared_bytes(arch)
    fit = [s for s in SWAP_SHAPES if s.shared_bytes(rows) + SWAP_STATIC <= limit]
    return next((shape for shape in fit if n <= shape.most), fit[-1])


class LowerShape(NamedTuple):
    """How a block of lower_solve.cu takes its columns; `most` is how many unknowns there may be."""

    most: int
    columns: int = 8
    threads: int = 256

    @staticmethod
    def shared_bytes(k):
        """Dynamic shared memory for k unknowns: four blocks of 16 columns of L, padded.

        And 64 rows, since rows are brought up to date in pairs, of which the second may not exist.
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
    """Return the `LowerShape` for k unknowns, or None if `arch` has no room for so many."""
    room = LARGEST_SHARED_BYTES if has_large_memory(arch_number(arch)) else shared_bytes(arch)
    if LowerShape.shared_bytes(k) + LOWER_STATIC > room:
        return None
    return next((shape for shape in LOWER_SHAPES if k <= shape.most), None)


class ShortShape(NamedTuple):
    """How a block of short_update.cu takes rows and columns of C."""

    columns: int
    rows: int = 64
    threads: int = 128

    def grid(self, m, n):
        """Return the blocks for a result of m x n."""
        return -(-m // self.rows), -(-n // self.columns)

    @property
    def shared_bytes(self):
        """Dynamic shared memory of a block: four stages of 32 columns of L and rows of U."""
        return 4 * 4 * 32 * (self.rows + self.columns)

    @property
    def defines(self):
        """The macro of short_update.cu."""
        return {"COLUMNS": self.columns}


SHORT_SHAPES = (ShortShape(96), ShortShape(64))


def short_shape(n):
    """Return the `ShortShape` for n columns: the one that has fewest to spare."""
    return min(SHORT_SHAPES, key=lambda shape: -n % shape.columns)
