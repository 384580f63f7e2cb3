"""CUDA sources of the GPU primitives, and the table of what each file holds.

| file         | entries                           | primitive                                    |
| ---          | ---                               | ---                                          |
| panel.cu     | tcs_panel_cluster                 | LU of a leaf panel with partial pivoting     |
| move_rows.cu | tcs_move_rows                     | w[dst] = w[src] in place                     |
| pack.cu      | tcs_pack_l, tcs_pack_u            | rounded operands of the trailing update      |
| range.cu     | tcs_update_scale                  | power of two that fits them into the format  |
| trsv.cu      | tcs_solve_triangle                | triangular solve of a few right-hand sides   |
| scale.cu     | tcs_row_stats, tcs_col_stats,     | norms, and the equilibrated FP32 copy of a   |
|              | tcs_cast_scaled                   |                                              |
| gemm_naive.cu, gemm_wmma.cu,                     | gemm: the engines 'naive', 'wmma', 'wgmma'   |
| gemm_wgmma.cu: tcs_gemm_naive, _wmma, _wgmma     |                                              |
| gemm_split.cu: tcs_row_top, tcs_col_top,         | gemm: scales, split operands and the last    |
|                tcs_split, tcs_finish             | step for engines that need them              |
| gemm_batched.cu: tcs_gemm_batched                | gemm_batched                                 |

Integers are `long long` and reals `double` in every entry, so that Python's int and float can be
passed as they are.  Nothing here imports an array library.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = [
    "ARCHS",
    "KERNELS",
    "LARGEST_BATCHED",
    "PORTABLE_CLUSTER",
    "BatchedShape",
    "KernelSpec",
    "LeafShape",
    "arch_number",
    "batched_shape",
    "leaf_shape",
    "move_chunk",
    "wmma_shape",
]

# Every architecture that must compile, in the spelling `target_arch` gives.
ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")

# Largest cluster that every device with clusters launches; more needs permission (and 16 SMs of
# one GPC, which compute capability 12 has not).
SMALLEST_CLUSTER = 2
PORTABLE_CLUSTER = 8
LARGEST_CLUSTER = 16

# Rows a thread, and the width at which that many rows fit in 128 registers a thread.
LEAF_ROWS = ((1, 32), (2, 32), (4, 16), (8, 8))
LEAF_THREADS = 512

# Right-hand sides trsv.cu is compiled for, and the unknowns it solves for at a time, by dtype char.
TRSV_COLUMNS = (1, 2, 4)
TRSV_BLOCK = {"f": 128, "d": 64}

# 64 KB of shared memory can be had on every architecture.
STAGE_FLOATS = (64 << 10) // 4


def arch_number(arch):
    """Return 90 for 'sm_90' and 'sm_90a'."""
    return int(arch.removeprefix("sm_").rstrip("af"))


class LeafShape(NamedTuple):
    """How one cluster covers a leaf panel of cluster * threads * rows rows and `width` columns."""

    cluster: int
    threads: int
    rows: int
    width: int

    @property
    def defines(self):
        """The macros of panel.cu."""
        return {name.upper(): value for name, value in self._asdict().items()}


def leaf_shape(m, arch, largest_cluster=LARGEST_CLUSTER):
    """Return the `LeafShape` for a panel of m rows, or None if one cluster cannot hold it.

    Few rows a thread come first: a column takes 1.2 us with 16 blocks of one row a thread and 1.5
    us with 8 blocks of two (m = 8192, H200).  `largest_cluster` = 8 is for a partition of the
    device's SMs, in which larger clusters do not launch.
    """
    number = arch_number(arch)
    if number < KERNELS["panel"].min_arch:
        return None
    if number >= 110:
        largest_cluster = min(largest_cluster, PORTABLE_CLUSTER)
    for rows, width in LEAF_ROWS:
        blocks = -(-m // (LEAF_THREADS * rows))
        if blocks <= largest_cluster:
            # st.async is for clusters: two blocks at least, though one could hold the rows.
            cluster = max(SMALLEST_CLUSTER, 1 << (blocks - 1).bit_length())
            return LeafShape(cluster, LEAF_THREADS, rows, width)
    return None


def move_chunk(count):
    """Return how many columns a block of tcs_move_rows stages for `count` rows."""
    for chunk in (32, 16, 8):
        if count * chunk <= STAGE_FLOATS:
            return chunk
    raise ValueError(f"count is {count}; at most {STAGE_FLOATS // 8} rows can be moved at once")


# Sizes gemm_batched.cu multiplies, bytes of operands a block copies at a time, and the shared memory
# that every block may have (64 KB before compute capability 8, 99 KB and more since).
LARGEST_BATCHED = 64
BATCHED_BYTES = 8 << 10
BATCHED_SHARED = {75: 64 << 10, 80: 99 << 10}
IN_BYTES = {"fp16": 2, "bf16": 2, "float": 4, "int8": 1}


class BatchedShape(NamedTuple):
    """How a block of gemm_batched.cu takes `count` products at a time, in `stages` steps ahead."""

    count: int
    stages: int
    shared_bytes: int

    @property
    def defines(self):
        """The macros of gemm_batched.cu."""
        return {name.upper(): value for name, value in self._asdict().items()}


def _operand_bytes(across, k, along_k, store, size, count):
    """Return the shared memory of `count` matrices, as the struct Operand of gemm_batched.cu."""
    rows, row_bytes = (across, k * size) if along_k else (k, across * size)
    whole = row_bytes % 16 == 0
    pitch = row_bytes + 16 if whole and row_bytes // 16 % 2 == 0 else row_bytes
    matrices = rows * pitch * (1 if store == 2 else count)
    return -(-matrices // 16) * 16 + (0 if whole else 16)


def batched_shape(m, n, k, t_in, trans_a, trans_b, store_a, store_b, arch):
    """Return the `BatchedShape` of a product of sizes m, n, k, or None if nothing fits."""
    size = IN_BYTES[t_in]
    each = (m * k * (store_a != 2) + k * n * (store_b != 2)) * size
    # An even number keeps the pairs of very small products together; up to 32 rows, two give every
    # warp something to do.
    count = max(2 if m <= 32 else 1, min(256, BATCHED_BYTES // max(each, 1)) // 2 * 2)
    limit = max(limit for least, limit in BATCHED_SHARED.items() if arch_number(arch) >= least)
    for stages in (3, 2):
        total = 0
        for across, along_k, store in ((m, not trans_a, store_a), (n, bool(trans_b), store_b)):
            part = _operand_bytes(across, k, along_k, store, size, count)
            total += part if store == 2 else stages * part
        if total <= limit:
            return BatchedShape(count, stages, total)
    return None


def wmma_shape(t_in, arch):
    """Return (threads, bytes of dynamic shared memory) of a block of gemm_wmma.cu."""
    return 256 if t_in == "float" else 128, (3 if arch_number(arch) >= 80 else 2) * 32 << 10


@dataclass(frozen=True)
class KernelSpec:
    """What a .cu file offers: entries, the macro sets it is compiled with, the oldest device.

    Attributes
    ----------
    entries : tuple of str
    variants : tuple of dict
        Macro sets that every device from `min_arch` on runs.
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
        """Return the macro sets that are compiled for `arch`."""
        number = arch_number(arch)
        more = (v for least, sets in self.later.items() if number >= least for v in sets)
        return (*self.variants, *more)


_LEAF_SHAPES = [LeafShape(2**i, LEAF_THREADS, *LEAF_ROWS[0]) for i in range(1, 5)] + [
    LeafShape(cluster, LEAF_THREADS, *rows_width)
    for cluster in (PORTABLE_CLUSTER, LARGEST_CLUSTER)
    for rows_width in LEAF_ROWS[1:]
]

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


def _wmma(products):
    """Return the macro sets of gemm_wmma.cu, the one without a swizzle included."""
    every = [p | trans | {"SWIZZLE": 1} for p in products for trans in _TRANSPOSES]
    plain = [p | _TRANSPOSES[0] | {"SWIZZLE": 0} for p in products if p == _EXACT["fp16"]]
    return (*every, *plain)


def _batched(products, arch):
    """Return some of the macro sets of gemm_batched.cu: sizes are macros, so that there are many."""
    sets = []
    for p in products:
        for m, n, k in ((1, 1, 1), (8, 8, 8), (5, 7, 3), (16, 16, 16), (33, 17, 40), (64, 64, 64)):
            for trans, stores in ((0, (1, 1)), (1, (1, 1)), (0, (0, 2))):
                shape = batched_shape(m, n, k, p["T_IN"], trans, trans, *stores, arch)
                if shape is not None:
                    sizes = {
                        "SIZE_M": m,
                        "SIZE_N": n,
                        "SIZE_K": k,
                        "TRANS_A": trans,
                        "TRANS_B": trans,
                    }
                    sizes |= {"STORE_A": stores[0], "STORE_B": stores[1]}
                    sets.append(p | sizes | shape.defines)
    return tuple(sets)


KERNELS = {
    "panel": KernelSpec(
        ("tcs_panel_cluster",), tuple(shape.defines for shape in _LEAF_SHAPES), min_arch=90
    ),
    "move_rows": KernelSpec(("tcs_move_rows",), tuple({"CHUNK": chunk} for chunk in (8, 16, 32))),
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
            {"T_IN": t, "K": k, "LOWER": lower, "TRANS": trans}
            for t in ("float", "double")
            for k in TRSV_COLUMNS
            for lower in (0, 1)
            for trans in (0, 1)
        ),
    ),
    "scale": KernelSpec(
        ("tcs_row_stats", "tcs_col_stats", "tcs_cast_scaled"),
        tuple({"T_IN": t, "COMPLEX": c} for t in ("float", "double") for c in (0, 1)),
    ),
    "gemm_naive": KernelSpec(("tcs_gemm_naive",), _PRODUCTS_75, later={80: _PRODUCTS_80}),
    "gemm_wmma": KernelSpec(
        ("tcs_gemm_wmma",), _wmma(_PRODUCTS_75), later={80: _wmma(_PRODUCTS_80)}
    ),
    "gemm_wgmma": KernelSpec(
        ("tcs_gemm_wgmma",),
        tuple(
            {"T_LOW": low, "REFINE": level, "CLUSTER": 2} | trans
            for low in ("fp16", "bf16")
            for level in range(5)
            for trans in _TRANSPOSES
        )
        # Alone, to show what sharing the tiles of op(B) is worth.
        + tuple({"T_LOW": "fp16", "REFINE": r, "CLUSTER": 1} | _TRANSPOSES[0] for r in (0, 3)),
        min_arch=90,
        max_arch=90,
    ),
    "gemm_split": KernelSpec(
        ("tcs_row_top", "tcs_col_top", "tcs_split", "tcs_finish"),
        tuple({"T_LOW": low} for low in ("fp16", "bf16", "tf32")),
    ),
    "gemm_batched": KernelSpec(
        ("tcs_gemm_batched",),
        _batched((_EXACT["fp16"], _ROUNDED["fp16"][3]), "sm_75"),
        later={80: _batched((_EXACT["bf16"], _EXACT["int8"], _ROUNDED["tf32"][3]), "sm_80")},
    ),
}
