"""The launch shapes of the kernels that solve small systems."""

from typing import NamedTuple

from tcsolve.kernels.arch import (
    FAST_FP64,
    LARGEST_SHARED_BYTES,
    MULTIPROCESSOR_BYTES,
    RESERVED_BYTES,
    arch_number,
    has_large_memory,
    shared_bytes,
)

# By dtype char: (largest number of rows, threads of a block, blocks that a multiprocessor has registers for)
# of solve_thread.cu.
THREAD_SHAPES = {
    "d": ((4, 128, 5), (8, 64, 4)),
    "f": ((4, 128, 4), (8, 64, 4)),
    "D": ((4, 32, 12),),
    "F": ((4, 32, 12),),
}
# Number of right-hand sides of solve_thread.cu.
THREAD_COLUMNS = 1
# By dtype char: (largest number of rows, threads of a matrix, threads of a block, blocks that a
# multiprocessor has registers for) of solve_team.cu.  It takes at most INVERSE_SIDES right-hand sides.
TEAM_SHAPES = {
    "d": ((16, 8, 32, 16), (24, 8, 32, 10)),
    "f": ((16, 8, 64, 8), (24, 8, 64, 7)),
    "D": ((8, 8, 32, 16), (16, 16, 64, 8), (24, 8, 32, 8)),
    "F": ((8, 4, 64, 8), (16, 16, 32, 20), (24, 8, 32, 8)),
}
# (largest number of rows, threads of a matrix, blocks that a multiprocessor has registers for) of
# solve_jordan.cu, for real and for complex matrices.
JORDAN_SHAPES = (
    ((16, 32, 16), (24, 32, 16), (32, 32, 12), (48, 32, 8), (64, 64, 4), (96, 128, 2)),
    ((16, 32, 16), (24, 32, 8), (32, 32, 8), (48, 64, 4), (64, 128, 2)),
)
# The largest number of rows for solve_jordan.cu if a structure says which entries are read.
JORDAN_BANDED = 64
# Of solve_jordan.cu: number of threads that share a row; number of right-hand sides, including the random
# vectors.  Up to JORDAN_SHARES blocks share the right-hand sides of a system that is no stack.
JORDAN_ACROSS, JORDAN_SIDES, JORDAN_SHARES = 4, 8, 8
# By dtype char: (largest number of rows, rows of a warp divided by 16, columns of a chunk, blocks that a
# multiprocessor has registers for) of solve_inverse.cu.  Shapes with several chunks are for matrices whose
# entries are all read.  It takes at most INVERSE_SIDES right-hand sides, and needs compute capability 8.
INVERSE_SHAPES = {
    "d": ((32, 2, 32, 20), (48, 1, 48, 8), (64, 2, 64, 5), (96, 1, 96, 2), (128, 2, 32, 2))
    + ((128, 1, 128, 1),),
    "f": ((32, 2, 32, 20), (48, 1, 48, 8), (64, 2, 64, 8), (96, 2, 96, 4), (128, 2, 128, 2)),
    "D": ((32, 1, 32, 8), (48, 1, 48, 4), (64, 1, 16, 4), (96, 1, 16, 2), (128, 1, 16, 1))
    + ((64, 1, 64, 2), (96, 1, 96, 1)),
    "F": ((32, 1, 32, 8), (48, 1, 48, 4), (64, 2, 64, 4), (96, 1, 96, 2), (128, 1, 128, 1)),
}
INVERSE_SIDES, INVERSE_ARCH = 2, 80
# By dtype char: with more rows, positive definite systems are not given to solve_inverse.cu, because
# solve_cholesky.cu is faster.  That kernel takes no complex systems, so for these the number is the largest
# one of solve_inverse.cu.
INVERSE_DEFINITE = {"d": 48, "f": 64, "D": 128, "F": 128}
# (largest number of rows, columns of a block column, threads) of solve_block.cu, for real and for complex
# matrices.  The first shape that fits is taken; the last ones are for more right-hand sides than the others
# hold.  A multiprocessor has registers for BLOCK_THREADS threads.
BLOCK_SHAPES = (
    ((64, 32, 64), (128, 32, 128), (256, 32, 256), (640, 32, 512), (1024, 16, 512))
    + ((128, 64, 128), (256, 64, 256)),
    ((64, 16, 64), (128, 16, 128), (256, 16, 256), (608, 16, 512), (1024, 8, 512))
    + ((64, 32, 64), (128, 32, 128), (256, 32, 256)),
)
BLOCK_THREADS = 512
# (largest number of rows, threads of a block, blocks that a multiprocessor has registers for) of
# solve_cholesky.cu, which solves real positive definite systems from CHOLESKY_FROM rows on.  It takes at most
# CHOLESKY_COLUMNS right-hand sides, including the random vectors.  A system that is no stack gets a shape
# with at least CHOLESKY_ALONE threads.
CHOLESKY_SHAPES = ((64, 64, 8), (96, 128, 4), (128, 256, 2), (216, 512, 1))
CHOLESKY_FROM, CHOLESKY_COLUMNS, CHOLESKY_ALONE = 33, 64, 256
# Number of columns of a panel of solve_block.cu.
BLOCK_PANEL = 8
# The largest number of doubtful systems whose norms and residuals a kernel reports; as in small_solve.cuh.
TOLD = 256
# Largest number of bytes of static shared memory of solve_inverse.cu, solve_jordan.cu, solve_block.cu and
# solve_cholesky.cu.
STATIC = 1024
# (largest number of rows, threads, columns of a block) of solve_across.cu, for real and for complex matrices.
# A system may have at most ACROSS_BLOCKS blocks for each multiprocessor, also in solve_definite.cu.  Where
# the rate in FP64 is low, the libraries are faster.
ACROSS_SHAPES = (
    ((128, 128, 16), (256, 256, 16), (384, 384, 16), (512, 256, 16), (768, 256, 16))
    + ((1024, 256, 16), (1536, 256, 8)),
    ((128, 128, 8), (256, 256, 8), (384, 384, 8), (512, 256, 8), (768, 256, 8), (1024, 256, 8)),
)
ACROSS_BLOCKS = 2
# Threads of a block, rows of a square, and largest number of bytes of static shared memory of
# solve_definite.cu.
DEFINITE_THREADS, DEFINITE_SIDE, DEFINITE_STATIC = 512, 16, 8 << 10


class SolveShape(NamedTuple):
    """A launch that solves small systems: source, macros, blocks, threads of a block, shared memory.

    `probes` is the number of random vectors.  `work` is the number of entries of the memory for factors, in
    FP64 or complex128; 0 if there is none.  `share` is the number of right-hand sides of a block of
    solve_jordan.cu; 0 for the other kernels.  `before` is a launch that solves most systems, and leaves the
    others for this one.
    """

    name: str
    defines: dict
    blocks: int
    threads: int
    shared: int
    probes: int
    work: int = 0
    share: int = 0
    before: "SolveShape | None" = None


class AcrossShape(NamedTuple):
    """A launch of solve_across.cu or solve_definite.cu: source, macros, blocks of a system, threads of each.

    `room` is the memory of a system, in entries.  All systems together need one entry more.  `shared` is the
    dynamic shared memory of a block in bytes.
    """

    name: str
    defines: dict
    blocks: int
    threads: int
    room: int
    shared: int = 0


def across_defines(parts):
    """Return the macros of solve_across.cu for entries of one or two real numbers, one set for each shape."""
    return [
        {"MOST": most, "THREADS": threads, "COLUMNS": columns}
        for most, threads, columns in ACROSS_SHAPES[parts - 1]
    ]


def across_shape(n, columns, dtype, *, arch, multiprocessors, definite=False):
    """Return the `AcrossShape` for systems of n unknowns, or None.

    None: the device is not suited, or n or the number of columns is too large.

    `columns` is the number of right-hand sides and random vectors of a system; `definite` tells whether the
    matrices are positive definite.
    """
    if arch_number(arch) not in FAST_FP64:
        return None
    most_blocks = ACROSS_BLOCKS * multiprocessors
    if definite and _parts(dtype) == 1:
        shape = _definite_shape(n, columns, arch)
        if shape is not None:
            return shape if shape.blocks <= most_blocks else None
    for defines in across_defines(_parts(dtype)):
        width, most = defines["COLUMNS"], defines["MOST"]
        blocks = -(-n // width) + -(-columns // width)
        if n <= most:
            if blocks > most_blocks:
                return None
            room = (n + n % 2) * most
            return AcrossShape("solve_across", defines, blocks, defines["THREADS"], room)
    return None


def _definite_shape(n, columns, arch):
    """Return the `AcrossShape` of solve_definite.cu; None if a column of squares is too large for a block."""
    squares, sides = -(-n // DEFINITE_SIDE), -(-columns // DEFINITE_SIDE)
    shared = squares * DEFINITE_SIDE**2 * 8
    large = has_large_memory(arch_number(arch))
    if shared + DEFINITE_STATIC > (LARGEST_SHARED_BYTES if large else shared_bytes(arch)):
        return None
    defines, room = {"THREADS": DEFINITE_THREADS}, squares * (squares + 1) * DEFINITE_SIDE**2 + 2
    return AcrossShape("solve_definite", defines, squares + sides, DEFINITE_THREADS, room, shared)


def jordan_shapes(parts, banded):
    """Return the shapes of solve_jordan.cu for entries of one or two real numbers."""
    return [s for s in JORDAN_SHAPES[parts - 1] if not banded or s[0] <= JORDAN_BANDED]


def solve_shape(
    count,
    n,
    k,
    dtype,
    banded,
    *,
    arch,
    multiprocessors,
    definite=False,
    triangle=False,
    alone=False,
):
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
    definite : bool
        True if the systems are positive definite.
    triangle : bool
        True if the systems are triangular or diagonal.
    alone : bool
        True for one system that is no stack.  False for a stack of one: the bits of an answer in a stack must
        not depend on `count`.
    """
    large = has_large_memory(arch_number(arch))
    limit = LARGEST_SHARED_BYTES if large else shared_bytes(arch)
    shape = before = None
    if k == THREAD_COLUMNS:
        shape = _thread_shape(count, n, dtype)
    slow = triangle or definite and n > INVERSE_DEFINITE[dtype.char]
    if shape is None and k <= INVERSE_SIDES and not slow:
        before = _team_shape(count, n, dtype)
        if before is None and arch_number(arch) >= INVERSE_ARCH:
            before = _inverse_shape(count, n, dtype, banded, limit)
    if before is None and shape is None and definite and banded:
        shape = _cholesky_shape(n, k, dtype, limit, alone)
    shares = -(-k // (JORDAN_SIDES - _fewest_probes(dtype)))
    if shape is None and shares <= (JORDAN_SHARES if alone else 1):
        shapes = jordan_shapes(_parts(dtype), banded)
        shape = _jordan_shape(shapes, n, -(-k // shares), dtype, limit)
        shape = shape and shape._replace(blocks=count * shares)
    if shape is None:
        shape = _block_shape(n, k, dtype, limit)
    if shape is None:
        return None
    if not shape.blocks:
        by_memory = MULTIPROCESSOR_BYTES // (shape.shared + STATIC + RESERVED_BYTES)
        resident = min(shape.defines["RESIDENT"], by_memory) if large else 1
        blocks = min(count, multiprocessors * resident)
        shape = shape._replace(blocks=blocks, work=blocks * shape.work)
    if before is not None:
        most = multiprocessors * shape.defines["RESIDENT"]
        before = before._replace(defines=before.defines | {"BANDED": int(banded)})
        shape = shape._replace(blocks=min(shape.blocks, most), before=before)
    return shape._replace(defines=shape.defines | {"BANDED": int(banded)})


def _fewest_probes(dtype):
    """Return the least number of random vectors; solve_thread.cu has exactly this number."""
    return 1 if dtype.char in "dD" else 2


def _parts(dtype):
    """Return the number of real numbers of an entry."""
    return 2 if dtype.kind == "c" else 1


def _thread_shape(count, n, dtype):
    probes = _fewest_probes(dtype)
    for most, threads, resident in THREAD_SHAPES[dtype.char]:
        if n <= most:
            defines = {"MOST": most, "THREADS": threads, "RESIDENT": resident}
            shared = threads // 32 * _matrices_bytes(most, 1, dtype.itemsize)
            return SolveShape(
                "solve_thread", defines, -(-count // threads), threads, shared, probes
            )
    return None


def _team_shape(count, n, dtype):
    """Return the shape of a launch that leaves few systems for another one, or None."""
    for most, lanes, threads, resident in TEAM_SHAPES[dtype.char]:
        if n <= most:
            defines = {"MOST": most, "LANES": lanes, "THREADS": threads, "RESIDENT": resident}
            blocks, places = -(-count * lanes // threads), 20 * _parts(dtype) * most + 16
            of_warp = 32 // lanes * places + _matrices_bytes(most, lanes, dtype.itemsize)
            return SolveShape("solve_team", defines, blocks, threads, threads // 32 * of_warp, 0)
    return None


def _matrices_bytes(most, lanes, itemsize):
    """Return the bytes of shared memory for the matrices of a warp, as matrices_of_warp.cuh says."""
    stride, banks = most + 1 | 1, 128 // itemsize
    size = most * stride + (lanes - most) * stride % banks
    return -(-32 // lanes * size * itemsize // 16) * 16


def _jordan_shape(shapes, n, share, dtype, limit):
    """Return the shape with a single block."""
    parts = _parts(dtype)
    for most, threads, resident in shapes:
        shared = _jordan_bytes(n, most, threads, parts, dtype.itemsize)
        if n <= most and shared + STATIC <= limit:
            defines = {"MOST": most, "ACROSS": JORDAN_ACROSS, "THREADS": threads}
            defines["RESIDENT"] = resident
            probes = JORDAN_SIDES - share
            return SolveShape("solve_jordan", defines, 1, threads, shared, probes, 0, share)
    return None


def _jordan_bytes(n, most, threads, parts, itemsize):
    """Return the bytes of shared memory of solve_jordan.cu, as its struct Room says."""
    warps, pairs = threads // 32, (most // JORDAN_SIDES + 1) * JORDAN_ACROSS
    numbers = 2 * warps * 2 * pairs + JORDAN_SIDES * (most + 2) + most
    return 8 * parts * numbers + 4 * most + 16 * warps + n * (n | 1) * itemsize


def inverse_defines(char, banded):
    """Return the macros of solve_inverse.cu: one set for each largest number of rows in INVERSE_SHAPES.

    With `banded`, shapes with several chunks are left out.  Of the others with the same number of rows, the
    first is taken.
    """
    found = {}
    for most, high, chunk, resident in INVERSE_SHAPES[char]:
        if chunk == most or not banded:
            shape = {"MOST": most, "HIGH": high, "CHUNK": chunk, "RESIDENT": resident}
            found.setdefault(most, shape)
    return list(found.values())


def _inverse_shape(count, n, dtype, banded, limit):
    """Return the shape of a launch that leaves few systems for another one, or None."""
    for defines in inverse_defines(dtype.char, banded):
        most, chunk = defines["MOST"], defines["CHUNK"]
        shared = _inverse_bytes(most, chunk, _parts(dtype), dtype.itemsize)
        if n <= most and shared + STATIC <= limit:
            threads = 2 * most // defines["HIGH"]
            return SolveShape("solve_inverse", defines, count, threads, shared, 0)
    return None


def _inverse_bytes(most, chunk, parts, itemsize):
    """Return the bytes of shared memory of solve_inverse.cu, as its structs Room and Chunks say."""
    top = -(-most // 32) * 32 + 8
    doubles, floats = parts * most + most, parts * (12 * most + 8 * top + most)
    of_chunks = (most + 1) * itemsize if chunk == most else 2 * (chunk * itemsize + 16)
    return 8 * doubles + 4 * floats + 8 * most + most * of_chunks


def _cholesky_shape(n, k, dtype, limit, alone):
    """Return the shape without the number of blocks."""
    probes, rows = _fewest_probes(dtype), -(-n // 8)
    tiles = -(-(k + probes) // 8)
    if _parts(dtype) > 1 or n < CHOLESKY_FROM or k + probes > CHOLESKY_COLUMNS:
        return None
    shared = _cholesky_bytes(rows, tiles)
    for most, threads, resident in CHOLESKY_SHAPES:
        enough = threads >= CHOLESKY_ALONE or not alone
        if n <= most and enough and shared + STATIC <= limit:
            defines = {"THREADS": threads, "RESIDENT": resident}
            return SolveShape("solve_cholesky", defines, 0, threads, shared, 8 * tiles - k)
    return None


def _cholesky_bytes(rows, tiles):
    """Return the bytes of shared memory of solve_cholesky.cu, as its struct Room says."""
    entries = 64 * (rows * (rows + 1) // 2 + tiles * rows) + 8 * rows + 16 * tiles
    return 8 * entries + 8


def _block_shape(n, k, dtype, limit):
    """Return the shape without the number of blocks; its `work` is that of one block."""
    parts, probes = _parts(dtype), _fewest_probes(dtype)
    size = -(-n // BLOCK_PANEL) * BLOCK_PANEL
    for most, width, threads in BLOCK_SHAPES[parts - 1]:
        shared = _block_bytes(size, width, threads, parts)
        if n <= most and k + probes <= width and shared + STATIC <= limit:
            defines = {"MOST": most, "WIDTH": width, "THREADS": threads}
            defines["RESIDENT"] = BLOCK_THREADS // threads
            probes = -(-(k + probes) // 8) * 8 - k  # they fill the last tile of 8 columns
            return SolveShape("solve_block", defines, 0, threads, shared, probes, size**2)
    return None


def _block_bytes(size, width, threads, parts):
    """Return the bytes of shared memory of solve_block.cu, as its struct Room says."""
    warps = threads // 32
    entries = (size + width) * (width + 4) + 2 * warps * BLOCK_PANEL + size
    return 8 * parts * entries + 16 * width + 8 * warps + 4 * size
