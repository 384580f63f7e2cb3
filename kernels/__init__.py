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

Integers are `long long` and reals `double` in every entry, so that Python's int and float can be
passed as they are.  Nothing here imports an array library.
"""

from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "ARCHS",
    "KERNELS",
    "PORTABLE_CLUSTER",
    "KernelSpec",
    "LeafShape",
    "arch_number",
    "leaf_shape",
    "move_chunk",
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


@dataclass(frozen=True)
class KernelSpec:
    """What a .cu file offers: entries, the macro sets it is compiled with, the oldest device."""

    entries: tuple[str, ...]
    variants: tuple[dict[str, int | str], ...]
    min_arch: int = 75


_LEAF_SHAPES = [LeafShape(2**i, LEAF_THREADS, *LEAF_ROWS[0]) for i in range(1, 5)] + [
    LeafShape(cluster, LEAF_THREADS, *rows_width)
    for cluster in (PORTABLE_CLUSTER, LARGEST_CLUSTER)
    for rows_width in LEAF_ROWS[1:]
]

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
}
