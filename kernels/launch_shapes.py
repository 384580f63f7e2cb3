"""The launch shapes of the kernels for LU, triangular solves, refinement, small systems and emulated sums."""

from typing import NamedTuple

from tcsolve.kernels.arch import (
    CLUSTER_ARCH,
    LARGEST_SHARED_BYTES,
    MULTIPROCESSOR_BYTES,
    PORTABLE_CLUSTER,
    RESERVED_BYTES,
    arch_number,
    has_large_memory,
    shared_bytes,
)

# The numbers of right-hand sides that triangular_solve.cu is compiled for, and the number of unknowns that it
# solves for at a time, by dtype char.
TRSV_COLUMNS = (1, 2, 4)
TRSV_BLOCK = {"f": 128, "d": 64}
TRSV_THREADS = 512

# The number of rows that a warp of residual.cu takes at a time: for few rows, and from MANY_ROWS on.
RESIDUAL_ROWS, MANY_ROWS = (1, 4), 8192

# (threads per row, warps per matrix) of measure_stack.cu, and threads of its blocks.
STACK_SHAPES, STACK_THREADS = ((4, 1), (8, 1), (16, 1), (32, 1), (32, 8)), 256
# (largest number of rows, threads of a matrix, threads of a block, threads for whose registers a
# multiprocessor has room) of solve_rows.cu, for real and for complex matrices.
ROWS_SHAPES = (
    ((4, 1, 128, 512), (8, 4, 128, 512), (16, 4, 64, 256), (24, 16, 64, 256), (32, 16, 64, 256)),
    ((4, 2, 128, 512), (8, 8, 128, 512), (16, 16, 128, 256), (32, 32, 64, 256)),
)
# (largest number of rows, columns of a block column, threads) of solve_block.cu, for real and for complex
# matrices.  The first shape that fits is taken; the last ones are for more right-hand sides than the others
# hold.  A multiprocessor has room for the registers of BLOCK_THREADS threads.
BLOCK_SHAPES = (
    ((64, 32, 64), (128, 32, 128), (256, 32, 256), (640, 32, 512), (1024, 16, 512))
    + ((128, 64, 128), (256, 64, 256)),
    ((64, 16, 64), (128, 16, 128), (256, 16, 256), (608, 16, 512), (1024, 8, 512))
    + ((64, 32, 64), (128, 32, 128), (256, 32, 256)),
)
BLOCK_THREADS = 512
# Number of columns of a panel of solve_block.cu.
BLOCK_PANEL = 8
# Number of right-hand sides of solve_rows.cu.
SOLVED_COLUMNS = 1
# Largest number of bytes of static shared memory of solve_block.cu.
BLOCK_STATIC = 1024
# Largest number of right-hand sides of measure_one.cu, and threads of its blocks.
MEASURED_COLUMNS, MEASURE_THREADS = 4, 256
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
    """Return the number of rows that a warp of residual.cu takes at a time, of n rows."""
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
    """A launch shape of measure_stack.cu: threads per row, warps per matrix, blocks, shared bytes."""

    lanes: int
    team: int
    blocks: int
    shared: int

    @property
    def defines(self):
        """The macros LANES and TEAM of measure_stack.cu."""
        return {"LANES": self.lanes, "TEAM": self.team}


def stack_shape(count, n):
    """Return the `StackShape` for `count` matrices of n rows."""
    lanes, team = next((s for s in STACK_SHAPES if n <= s[0]), STACK_SHAPES[-1])
    warps = STACK_THREADS // 32
    return StackShape(lanes, team, -(-count * team // warps), 8 * warps * (-(-n // 32) * 32))


class SolveShape(NamedTuple):
    """A launch that solves small systems: source, macros, blocks, threads of a block, shared memory, work.

    `work` is the number of entries of the memory for factors, in FP64 or complex128; 0 if there is none.
    """

    name: str
    defines: dict
    blocks: int
    threads: int
    shared: int
    work: int


def probes_of(dtype):
    """Return the number of random vectors of solve_rows.cu and solve_block.cu."""
    return 1 if dtype.char in "dD" else 2


def solve_shape(count, n, k, dtype, banded, *, arch, multiprocessors):
    """Return the `SolveShape` for `count` matrices of n rows, or None if they do not fit.

    Parameters
    ----------
    count, n, k : int
        Number of systems, of unknowns and of right-hand sides.
    dtype : dtype
    banded : bool
        True if a structure says which entries are read.
    arch : str
    multiprocessors : int
        Of the device.
    """
    parts, banded = 2 if dtype.kind == "c" else 1, {"BANDED": int(banded)}
    for most, lanes, threads, room in ROWS_SHAPES[parts - 1] if k == 1 else ():
        if n <= most:
            defines = banded | {"MOST": most, "LANES": lanes, "THREADS": threads}
            defines["RESIDENT"] = room // threads
            shared = (
                threads // 32 * _rows_bytes(most, lanes, parts, dtype.itemsize, probes_of(dtype))
            )
            blocks = -(-count * lanes // threads)
            return SolveShape("solve_rows", defines, blocks, threads, shared, 0)
    large = has_large_memory(arch_number(arch))
    limit = LARGEST_SHARED_BYTES if large else shared_bytes(arch)
    size = -(-n // BLOCK_PANEL) * BLOCK_PANEL
    for most, width, threads in BLOCK_SHAPES[parts - 1]:
        shared = _block_bytes(size, width, threads, parts) + BLOCK_STATIC
        if n > most or k + probes_of(dtype) > width or shared > limit:
            continue
        by_registers = BLOCK_THREADS // threads
        resident = (
            min(by_registers, MULTIPROCESSOR_BYTES // (shared + RESERVED_BYTES)) if large else 1
        )
        blocks = min(count, resident * multiprocessors)
        defines = {"MOST": most, "WIDTH": width, "THREADS": threads, "RESIDENT": by_registers}
        shared -= BLOCK_STATIC
        return SolveShape(
            "solve_block", banded | defines, blocks, threads, shared, blocks * size**2
        )
    return None


def _block_bytes(size, width, threads, parts):
    """Return the bytes of shared memory of solve_block.cu, as its struct Room says."""
    warps = threads // 32
    entries = (size + width) * (width + 4) + 2 * warps * BLOCK_PANEL + size
    return 8 * parts * entries + 16 * width + 8 * warps + 4 * size


def _rows_bytes(most, lanes, parts, itemsize, probes):
    """Return the bytes of shared memory of a warp of solve_rows.cu, as its constants say."""
    sides = SOLVED_COLUMNS + probes
    width, stride, banks = most + sides, most + 1 | 1, 128 // itemsize
    size = most * stride + (lanes - most) * stride % banks
    places = 0 if lanes == 1 else 32 * -(-parts * width // 2) + 16 * most * parts
    return 32 // lanes * places + -(-32 // lanes * size * itemsize // 16) * 16


def measure_blocks(n):
    """Return the number of blocks of measure_one.cu for a matrix of n rows."""
    return 1 + -(-n // (MEASURE_THREADS // 32)) + -(-n // 32)


def move_chunk(count, n):
    """Return how many of the n columns a block of tcs_move_rows copies at a time, for `count` rows.

    It is fewer than fit in shared memory if there would be too few blocks.
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


# Few columns per block make a launch of few columns short.  For many columns, wide blocks read L less often.
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
