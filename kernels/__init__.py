"""CUDA sources of the GPU primitives, and the table of what each file holds.

| file         | entries                           | primitive                                    |
| ---          | ---                               | ---                                          |
| panel.cu     | tcs_panel                         | LU of a strip with partial pivoting, without |
|              |                                   | a search where the diagonal dominates        |
| swap_solve.cu| tcs_swap_solve                    | its swaps and U in the rest of its panel     |
| short_update.cu | tcs_short_update               | C -= L U of a few columns, and a short U     |
| merge_swaps.cu  tcs_merge_swaps, tcs_restart     | the swaps of all strips of a panel as one    |
|              | tcs_report                        | what is known of a factorization             |
| gate.cu      | tcs_gate                          | waits until the panel of another stream runs |
| move_rows.cu | tcs_move_rows                     | w[dst] = w[src] in place                     |
| pack.cu      | tcs_pack_l, tcs_pack_u            | rounded operands of the trailing update      |
| range.cu     | tcs_update_scale                  | power of two that fits them into the format  |
| trsv.cu      | tcs_solve_triangle                | triangular solve of a few right-hand sides   |
| invert.cu    | tcs_invert_blocks                 | the diagonal blocks' inverses for that       |
| residual.cu  | tcs_matrix_residual               | b - A x of one right-hand side               |
| refine.cu    | tcs_residual, tcs_column_max,     | the vector work of a refinement step         |
|              | tcs_lower, tcs_raise, tcs_gram,   |                                              |
|              | tcs_mix                           |                                              |
| condest.cu   | tcs_probes, tcs_signs,            | the vector work of the condition estimate    |
|              | tcs_steepest                      |                                              |
| scale.cu     | tcs_row_stats, tcs_col_stats,     | norms, and the equilibrated FP32 copy of a   |
|              | tcs_survey, tcs_extremes,         |                                              |
|              | tcs_cast_scaled                   |                                              |
| gemm_naive.cu, gemm_wmma.cu,                     | gemm: the engines 'naive', 'wmma', 'wgmma'   |
| gemm_wgmma.cu: tcs_gemm_naive, _wmma, _wgmma     |                                              |
| gemm_split.cu: tcs_tops, tcs_split, tcs_finish   | gemm: scales, split operands and the last    |
|                                                  | step for engines that need them              |
| split_once.cu: tcs_split_once                    | gemm: scales and split operands in one pass  |
| gemm_batched.cu: tcs_gemm_batched                | gemm_batched                                 |

Integers are `long long` and reals `double` in every entry, so that Python's int and float can be
passed as they are.  Nothing here imports an array library.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = [
    "ARCHS",
    "BOARD_BYTES",
    "HOPPER",
    "KERNELS",
    "LARGEST_BATCHED",
    "MOST_MOVED",
    "PORTABLE_CLUSTER",
    "RESIDUAL_ROWS",
    "SHORT_SHAPES",
    "SWAP_SHAPES",
    "SWAP_STATIC",
    "WGMMA_DEPTH",
    "WGMMA_ROWS",
    "Batched",
    "BatchedShape",
    "KernelSpec",
    "PanelShape",
    "ShortShape",
    "SplitShape",
    "SwapShape",
    "arch_number",
    "batched_shape",
    "batched_shape_of",
    "fastest_update",
    "move_chunk",
    "panel_shape",
    "short_shape",
    "split_shape",
    "swap_shape",
    "wmma_can_be_wide",
    "wmma_shape",
]

# Every architecture that must compile, in the spelling `target_arch` gives.
ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")

# Largest cluster that every device with clusters launches; more needs permission (and 16 SMs of
# one GPC, which compute capability 12 has not).
CLUSTER_ARCH = 90
SMALLEST_CLUSTER = 2
PORTABLE_CLUSTER = 8
LARGEST_CLUSTER = 16

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

# Right-hand sides trsv.cu is compiled for, and the unknowns it solves for at a time, by dtype char.
TRSV_COLUMNS = (1, 2, 4)
TRSV_BLOCK = {"f": 128, "d": 64}
TRSV_THREADS = 512

# Rows of a matrix that a warp of residual.cu may take at a time.
RESIDUAL_ROWS = (1, 4)

# Bytes of struct Board of exchange_grid.cuh: two rows and candidates, sums and a stamp a block; the count.
BOARD_BYTES = MAX_BLOCKS * (2 * (16 + 4 * 32 + 8) + 4 * 128 + 4) + 16

# The architecture of gemm_wgmma.cu, rows of its tiles, and how much of k it takes at a time.
HOPPER, WGMMA_ROWS, WGMMA_DEPTH = 90, 128, 64

# 64 KB of shared memory can be had on every architecture.
STAGE_FLOATS = (64 << 10) // 4
# Columns of a block of move_rows.cu, and the blocks below which it has fewer.
MOVE_CHUNKS, FEW_BLOCKS = (32, 16, 8, 4), 64
# Rows that it can move at once, a few columns at a time.
MOST_MOVED = STAGE_FLOATS // 4


def arch_number(arch):
    """Return 90 for 'sm_90' and 'sm_90a'."""
    return int(arch.removeprefix("sm_").rstrip("af"))


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
    fits, large = _shared_limit(number), _has_large_memory(number)
    shapes = [s._replace(dominant=large) for s in shapes if s.blocks <= most]
    return next((s for s in shapes if s.shared_bytes <= fits), None)


def _has_large_memory(number):
    return number == 90 or 100 <= number < 110


def _shared_limit(number):
    """Return the dynamic shared memory a block of panel.cu can have, beside its static 24 KB."""
    if _has_large_memory(number):
        return LARGE_BYTES
    return {75: 40 << 10, 80: 136 << 10, 87: 136 << 10}.get(number, 74 << 10)


def _blocks(m, block):
    threads, rows, *_ = block
    return -(-m // (threads * rows))


class TrsvShape(NamedTuple):
    """How many blocks trsv.cu is launched with, and how many of them make a cluster; 0 is none."""

    blocks: int
    cluster: int

    @property
    def defines(self):
        """The macro of trsv.cu."""
        return {"BLOCKS": self.cluster}


def trsv_shape(count, arch, multiprocessors):
    """Return the `TrsvShape` for `count` blocks of unknowns.

    Clusters of the size that every device with clusters launches; larger ones were no faster on an H200.
    """
    cluster = PORTABLE_CLUSTER if arch_number(arch) >= CLUSTER_ARCH else 0
    if multiprocessors < cluster:
        cluster = 0
    team = cluster or 1
    return TrsvShape(team * min(multiprocessors // team, -(-count // team)), cluster)


def move_chunk(count, n):
    """Return how many of n columns a block of tcs_move_rows stages for `count` rows.

    Fewer than it could, where there would be few blocks.
    """
    for chunk in MOVE_CHUNKS:
        last = chunk == MOVE_CHUNKS[-1]
        if count * chunk <= STAGE_FLOATS and (last or n >= FEW_BLOCKS * chunk):
            return chunk
    raise ValueError(f"count is {count}; at most {MOST_MOVED} rows can be moved at once")


# Shared memory that every block may have: 64 KB before compute capability 8, 99 KB and more since.
SHARED_BYTES = {75: 64 << 10, 80: 99 << 10}


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
    limit = max(limit for least, limit in SHARED_BYTES.items() if arch_number(arch) >= least)
    fit = [s for s in SWAP_SHAPES if s.shared_bytes(rows) + SWAP_STATIC <= limit]
    return next((shape for shape in fit if n <= shape.most), fit[-1])


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


# Sizes gemm_batched.cu multiplies, bytes of operands a block copies at a time, registers for the rows of A
# that a warp holds.
LARGEST_BATCHED = 64
BATCHED_BYTES = 8 << 10
BATCHED_REGISTERS = 72
IN_BYTES = {"fp16": 2, "bf16": 2, "tf32": 4, "float": 4, "int8": 1}
# Kinds of results (gemm.cuh) and their bytes.
OUT_BYTES = (4, 2, 2, 4)


class BatchedShape(NamedTuple):
    """How a block of gemm_batched.cu takes `count` products at a time, in `stages` steps ahead.

    A warp multiplies `height` strips of 16 rows together.  `brief` and `bulk` are told in
    gemm_batched.cu.
    """

    threads: int
    count: int
    height: int
    stages: int
    shared_bytes: int
    brief: int = 0
    bulk: int = 0

    @property
    def defines(self):
        """The macros of gemm_batched.cu."""
        return {name.upper(): value for name, value in self._asdict().items()}

    def grid(self, products, most):
        """Return how many blocks to launch where the device holds `most` at a time."""
        chunks = -(-products // self.count)
        return chunks if self.brief else min(chunks, most)


class Batched(NamedTuple):
    """What gemm_batched.cu is compiled for; the names of its macros in lower case."""

    size_m: int
    size_n: int
    size_k: int
    t_in: str
    t_low: str
    refine: int
    trans_a: int
    trans_b: int
    store_a: int
    store_b: int
    kind: int
    addend: int
    dense: int

    @property
    def defines(self):
        return {name.upper(): value for name, value in self._asdict().items()}

    @property
    def operands(self):
        """(entries across k, whether rows lie along k, how stored) of A and of B."""
        a = (self.size_m, not self.trans_a, self.store_a)
        return a, (self.size_n, bool(self.trans_b), self.store_b)

    @property
    def two(self):
        """Whether two products are computed at a time."""
        return self.size_m <= 8 and self.size_k <= 16 // IN_BYTES[self.t_low]

    @property
    def strips(self):
        return 1 if self.two else -(-self.size_m // 16)

    def row_bytes(self, operand):
        across, along_k, _ = operand
        return (self.size_k if along_k else across) * IN_BYTES[self.t_in]

    def in_blocks(self, operand):
        """Tell whether ldmatrix takes an operand as it is."""
        sixteen = self.t_in in ("fp16", "bf16")
        return sixteen and self.row_bytes(operand) % 16 == 0 and self.size_k % 8 == 0

    def operand_bytes(self, operand, count):
        """Return the shared memory of `count` matrices, as the struct Operand of gemm_batched.cu."""
        across, along_k, store = operand
        row_bytes = self.row_bytes(operand)
        whole = row_bytes % 16 == 0
        pitch = row_bytes + 16 if self.t_in == "float" and row_bytes % 128 == 0 else row_bytes
        matrices = (across if along_k else self.size_k) * pitch * (1 if store == 2 else count)
        return -(-matrices // 16) * 16 + (0 if whole else 16)

    def gathered_bytes(self, height, bulk=0):
        """Return the shared memory in which a warp gathers results."""
        size = OUT_BYTES[self.kind]
        tiles, turn = (2 if self.size_n > 8 else 1), not self.in_blocks(self.operands[1])
        traded = not turn and self.size_n % 8 == 0 and (size == 2 or self.size_n >= 32)
        run = 4 if tiles == 2 and (turn or traded) else 2
        if not self.dense or (self.size_n % run == 0 and not bulk):
            return 0
        rows = 2 * self.size_m if self.two else min(self.size_m, 16 * height)
        return -(-rows * self.size_n * size // 16) * 16 + 16


def batched_shape(batched, arch):
    """Return the `BatchedShape` for a `Batched`, or None if nothing fits."""
    limit = max(limit for least, limit in SHARED_BYTES.items() if arch_number(arch) >= least)
    height = _height(batched)
    size = IN_BYTES[batched.t_in] * batched.size_k
    each = size * sum(across for across, _, store in batched.operands if store != 2)
    count = max(1, min(256, BATCHED_BYTES // max(each, 1)))
    count += count % 2 if batched.two else 0
    if count == 1 and batched.dense and (batched.store_a, batched.store_b) == (1, 1):
        # One product is all that a block copies at a time.
        words = batched.size_m * batched.size_n * OUT_BYTES[batched.kind] % 16 == 0
        bulk = int(words and batched.t_in != "float" and arch_number(arch) >= CLUSTER_ARCH)
        shape = batched_shape_of(batched, height, 1, 1, brief=1, bulk=bulk)
        if shape.shared_bytes <= limit:
            return shape
    for number, stages in ((count, _stages(batched, each)), (count, 1), (1, 1)):
        shape = batched_shape_of(batched, height, number, stages)
        if shape.shared_bytes <= limit:
            return shape
    return None


def _stages(batched, each):
    """Return how many steps a block is ahead; `each` are the bytes of the operands of a product.

    With one, more blocks fit on a multiprocessor, and they hide each other's waiting (seen on an H200).
    """
    short_and_rounded = batched.t_in == "float" and each < 4 << 10
    long_results = each >= 16 << 10 and batched.in_blocks(batched.operands[1])
    return 3 if short_and_rounded or (long_results and OUT_BYTES[batched.kind] == 4) else 1


def batched_shape_of(batched, height, count, stages, warps=4, **how):
    """Return the `BatchedShape` of given numbers; `how` are `brief` and `bulk`."""
    tasks = -(-count // 2) if batched.two else count * -(-batched.strips // height)
    warps = min(warps, tasks)
    total = warps * batched.gathered_bytes(height, how.get("bulk", 0))
    for operand in batched.operands:
        part = batched.operand_bytes(operand, count)
        total += part if operand[2] == 2 else stages * part
    return BatchedShape(32 * warps, count, height, stages, total, **how)


def _height(batched):
    """Return how many strips share what a warp loads of B: one where ldmatrix makes that cheap."""
    if batched.in_blocks(batched.operands[1]):
        return 1
    slices = -(-batched.size_k // (32 // IN_BYTES[batched.t_low]))
    registers = slices * (8 if batched.refine else 4)
    most = max(1, min(4, BATCHED_REGISTERS // registers))
    parts = -(-batched.strips // most)
    return -(-batched.strips // parts)


def wmma_can_be_wide(t_in, arch):
    """Tell whether a block of gemm_wmma.cu can have 256 columns: 144 KB of shared memory, 255 registers."""
    number = arch_number(arch)
    return t_in != "float" and (number in (80, 87) or 90 <= number < 120)


def fastest_update(how, char, m, k, arch):
    """Return how C -= L U is computed for the `Update` how: 'wgmma', or 'cublas' on packed operands.

    char is that of the dtype, L is m x k.
    """
    ours = how.format.name in ("fp16", "bf16") and char == "f"
    fills = m >= WGMMA_ROWS and k >= WGMMA_DEPTH
    return "wgmma" if ours and fills and arch_number(arch) == HOPPER else "cublas"


def wmma_shape(t_in, low, wide, arch):
    """Return (threads, bytes of dynamic shared memory) of a block of gemm_wmma.cu."""
    number = arch_number(arch)
    if wide:
        return 256, (4 if number >= CLUSTER_ARCH else 3) * 48 << 10
    two = number < 80 or t_in == "float" and low != "tf32"
    return 256 if t_in == "float" else 128, (2 if two else 3) * 32 << 10


@dataclass(frozen=True)
class KernelSpec:
    """What a .cu file offers: entries, the macro sets it is compiled with, the oldest device.

    Attributes
    ----------
    entries : tuple of str
    variants : tuple of dict
        Macro sets for devices from `min_arch` on; those with BLOCKS, a cluster, need clusters, and those with
        DOMINANT are for devices with large shared memory.
    min_arch, max_arch : int
        The oldest and the newest compute capability; wgmma is Hopper's alone.
    later : dict of int to tuple of dict
        Macro sets for devices from that compute capability on.
    """

    entries: tuple[str, ...]
    variants: tuple[dict[str, int | str], ...]
    min_arch: int = 75
    max_arch: int = 10**9
    later: dict[int, tuple[dict[str, int | str], ...]] = field(default_factory=dict)

    def variants_for(self, arch):
        """Return the macro sets that `arch` can run."""
        number = arch_number(arch)
        more = (v for least, sets in self.later.items() if number >= least for v in sets)
        clusters, large = number >= CLUSTER_ARCH, _has_large_memory(number)
        return [
            v
            for v in (*self.variants, *more)
            if (clusters or not v.get("BLOCKS")) and v.get("DOMINANT", large) == large
        ]


_CLUSTERS = [PanelShape(True, 2**i, *CLUSTER_BLOCKS[0]) for i in range(1, 5)] + [
    PanelShape(True, cluster, *block)
    for cluster in (PORTABLE_CLUSTER, LARGEST_CLUSTER)
    for block in CLUSTER_BLOCKS[1:]
]
_GRIDS = [PanelShape(False, 1, *block) for block in GRID_BLOCKS]
_PANELS = [shape._replace(dominant=x) for shape in _CLUSTERS + _GRIDS for x in (False, True)]

# What the tensor cores multiply: an operand in its own format, or FP32 rounded (and split) to one.
# Only FP16 is there before compute capability 8.
_ROUNDED = {
    low: tuple({"T_IN": "float", "T_LOW": low, "REFINE": level} for level in range(5))
    for low in ("fp16", "bf16", "tf32")
}
_EXACT = {low: {"T_IN": low, "T_LOW": low, "REFINE": 0} for low in ("fp16", "bf16", "int8")}
_PRODUCTS_75 = (_EXACT["fp16"], *_ROUNDED["fp16"])
_PRODUCTS_80 = (_EXACT["bf16"], _EXACT["int8"], *_ROUNDED["bf16"], *_ROUNDED["tf32"])
_TRANSPOSES = tuple({"TRANS_A": i, "TRANS_B": j} for i in (0, 1) for j in (0, 1))


def _wmma(products, wide=(0,)):
    """Return the macro sets of gemm_wmma.cu, the one without a swizzle included.

    FP32 operands of a single product are rounded to 16 bits before.
    """
    sets = []
    for p in products:
        if p["T_IN"] == "float" and p["REFINE"] == 0 and p["T_LOW"] != "tf32":
            continue
        for width in wide if p["T_IN"] != "float" else (0,):
            sets += [p | trans | {"SWIZZLE": 1, "WIDE": width} for trans in _TRANSPOSES]
            if p == _EXACT["fp16"]:
                sets.append(p | _TRANSPOSES[0] | {"SWIZZLE": 0, "WIDE": width})
    return tuple(sets)


def _batched(products, arch):
    """Return some of the macro sets of gemm_batched.cu: sizes are macros, so that there are many."""
    sizes = (
        (1, 1, 1),
        (8, 8, 8),
        (5, 7, 3),
        (16, 16, 16),
        (33, 17, 40),
        (63, 63, 63),
        (64, 64, 64),
    )
    sets = []
    for p in products:
        own = 3 if p["T_IN"] == "int8" else 0
        narrow = {"fp16": 1, "bf16": 2, "tf32": 1, "int8": 3}[p["T_LOW"]]
        for size in sizes:
            for trans, stores, kind, addend, dense in (
                (0, (1, 1), own, 0, 1),
                (1, (1, 1), narrow, 1, 1),
                (0, (0, 2), own, 1, 0),
            ):
                arithmetic = (p["T_IN"], p["T_LOW"], p["REFINE"], trans, trans, *stores)
                batched = Batched(*size, *arithmetic, kind, addend, dense)
                shape = batched_shape(batched, arch)
                if shape is not None:
                    sets.append(batched.defines | shape.defines)
    return tuple(sets)


KERNELS = {
    "panel": KernelSpec(("tcs_panel",), tuple(shape.defines for shape in _PANELS)),
    "swap_solve": KernelSpec(("tcs_swap_solve",), tuple(s.defines for s in SWAP_SHAPES)),
    "short_update": KernelSpec(
        ("tcs_short_update",), tuple(s.defines for s in SHORT_SHAPES), min_arch=80
    ),
    "gate": KernelSpec(("tcs_gate",), ({},)),
    "merge_swaps": KernelSpec(("tcs_merge_swaps", "tcs_restart", "tcs_report"), ({},)),
    "move_rows": KernelSpec(("tcs_move_rows",), tuple({"CHUNK": chunk} for chunk in MOVE_CHUNKS)),
    "pack": KernelSpec(
        ("tcs_pack_l", "tcs_pack_u"),
        tuple(
            {"T_LOW": low, "PRODUCTS": products, "COMPLEX": is_complex}
            for low in ("fp16", "bf16", "tf32")
            for products in (1, 3)
            for is_complex in (0, 1)
        ),
    ),
    "range": KernelSpec(("tcs_update_scale",), ({},)),
    "trsv": KernelSpec(
        ("tcs_solve_triangle",),
        tuple(
            {"T_IN": t, "K": k, "LOWER": lower, "TRANS": trans, "BLOCKS": cluster}
            for t in ("float", "double")
            for k in TRSV_COLUMNS
            for lower in (0, 1)
            for trans in (0, 1)
            for cluster in (0, PORTABLE_CLUSTER)
        ),
    ),
    "invert": KernelSpec(("tcs_invert_blocks",), ({"T_IN": "float"}, {"T_IN": "double"})),
    "residual": KernelSpec(
        ("tcs_matrix_residual",),
        tuple({"T_A": t, "ROWS": rows} for t in ("float", "double") for rows in RESIDUAL_ROWS),
    ),
    "refine": KernelSpec(
        ("tcs_residual", "tcs_column_max", "tcs_lower", "tcs_raise", "tcs_gram", "tcs_mix"),
        ({"T_LOW": "float"}, {"T_LOW": "double"}),
    ),
    "condest": KernelSpec(("tcs_probes", "tcs_signs", "tcs_steepest"), ({},)),
    "scale": KernelSpec(
        ("tcs_row_stats", "tcs_col_stats", "tcs_survey", "tcs_extremes", "tcs_cast_scaled"),
        tuple({"T_IN": t, "COMPLEX": c} for t in ("float", "double") for c in (0, 1)),
    ),
    "gemm_naive": KernelSpec(("tcs_gemm_naive",), _PRODUCTS_75, later={80: _PRODUCTS_80}),
    "gemm_wmma": KernelSpec(
        ("tcs_gemm_wmma",),
        _wmma(_PRODUCTS_75),
        later={80: _wmma(_PRODUCTS_80) + _wmma(_EXACT.values(), wide=(1,))},
    ),
    "gemm_wgmma": KernelSpec(
        ("tcs_gemm_wgmma",),
        tuple(
            {"T_LOW": low, "REFINE": level, "CLUSTER": 2} | trans
            for low in ("fp16", "bf16")
            for level in range(5)
            for trans in _TRANSPOSES
        )
        # Alone, for the update of an LU, and to show what sharing the tiles of op(B) is worth.
        + tuple(
            {"T_LOW": low, "REFINE": r, "CLUSTER": 1} | _TRANSPOSES[0]
            for low, r in (("fp16", 0), ("fp16", 3), ("bf16", 0), ("bf16", 3))
        ),
        min_arch=90,
        max_arch=90,
    ),
    "gemm_split": KernelSpec(
        ("tcs_tops", "tcs_split", "tcs_split_by", "tcs_finish"),
        tuple({"T_LOW": low} for low in ("fp16", "bf16", "tf32")),
    ),
    "split_once": KernelSpec(
        ("tcs_split_once",),
        tuple(
            {"T_LOW": low} | SplitShape(threads).defines
            for low in ("fp16", "bf16", "tf32")
            for threads, _ in SPLIT_BLOCKS
        ),
        min_arch=CLUSTER_ARCH,
    ),
    "gemm_batched": KernelSpec(
        ("tcs_gemm_batched",),
        _batched((_EXACT["fp16"], _ROUNDED["fp16"][3]), "sm_75"),
        later={
            80: _batched((_EXACT["bf16"], _EXACT["int8"], _ROUNDED["tf32"][3]), "sm_80"),
            90: tuple(v for v in _batched((_EXACT["fp16"],), "sm_90a") if v["BULK"]),
        },
    ),
}
