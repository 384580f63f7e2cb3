"""The table of the CUDA sources, with the entries and the variants of each file.

In lu/:

- panel: tcs_panel, LU of a strip with partial pivoting; without a pivot search if the diagonal
  dominates
- swap_solve: tcs_swap_solve, the swaps of a strip, and U in the columns right of it
- lower_solve: tcs_lower_solve, the swaps of a wide panel, and U in a few columns; or L^-1
- merge_swaps: tcs_merge_swaps, tcs_restart, one list of the swaps of all strips of a panel;
  tcs_report, the report of a factorization
- wait_for_panel: tcs_gate, waits until the panel in another stream is resident
- move_rows: tcs_move_rows, w[dst] = w[src] in place
- pack_operands: tcs_pack_l, tcs_pack_u, rounded operands of the trailing update
- find_operand_scale: tcs_update_scale, the power of two that scales U for the format

In solve/:

- survey: tcs_row_stats, tcs_col_stats, tcs_survey, tcs_add_chunks, tcs_extremes, tcs_cast_scaled,
  norms, and the FP32 copy of A, which may be scaled
- triangular_solve: tcs_solve_triangle, triangular solve for a few right-hand sides
- invert_diagonal_blocks: tcs_invert_blocks, inverses of diagonal blocks for triangular_solve;
  tcs_begin_triangle, the same for a single triangle, and the right-hand sides of its solve
- residual: tcs_matrix_residual, b - A x for one right-hand side
- refinement_vectors: tcs_residual, tcs_column_max, tcs_combine, tcs_lower, tcs_raise, the vector
  operations of a refinement step
- condest: tcs_probes, tcs_signs, tcs_held, tcs_steepest, the vector operations of the condition
  estimate

In gemm/:

- gemm_naive, gemm_wmma, gemm_wgmma: tcs_gemm_naive, _wmma, _wgmma, three engines of `gemm`
- gemm_split: tcs_tops, tcs_split, tcs_split_by, scaled and split operands; tcs_finish, results
  without the scales
- split_once: tcs_split_once, scales and splits operands in one pass
- three_products: tcs_planes, tcs_add_product, tcs_join_planes, tcs_join_product, the passes around
  complex products by three real ones
- gemm_emulated: tcs_gemm_emulated, products with the sums of any tensor cores, in integers

In batched/:

- gemm_batched: tcs_gemm_batched, stacks of small products
- solve_thread, solve_jordan, solve_cholesky, solve_block: tcs_solve_thread, tcs_solve_jordan,
  tcs_solve_cholesky, tcs_solve_block, solve and verify small systems and stacks in one launch
- solve_team, solve_inverse: tcs_solve_team, tcs_solve_inverse, the same by an inverse in FP32; they leave
  some systems for solve_jordan or solve_block
- solve_across, solve_definite: tcs_solve_across, tcs_solve_definite, eliminate each system on many
  multiprocessors
- cholesky_squares: tcs_pack_squares, tcs_factor_square, tcs_finish_column, tcs_solve_squares, Cholesky
  factors of real matrices, each by many multiprocessors
- measure_large: tcs_measure_large, norms and residuals of large systems, each by many multiprocessors
- measure_stack: tcs_stack_measure, norms and residuals of a stack of systems
- measure_systems: tcs_sizes, norms and residuals of one large system, from A X
- read_structure: tcs_read_as, the matrices that a structure describes; tcs_rows, right-hand sides in
  the layout of the libraries; tcs_pack_cholesky, Cholesky factors as factors of an LU

The entries take integers as `long long` and reals as `double`, so that int and float of Python are
passed directly; only tcs_held takes two integers as `int`.  The modules `*_shapes` of this package have the
launch shapes, as pure functions of sizes.  Nothing here imports an array library.
"""

import itertools
from dataclasses import dataclass, field

from tcsolve.kernels.arch import CLUSTER_ARCH, PORTABLE_CLUSTER, arch_number, has_large_memory
from tcsolve.kernels.batched_shapes import Batched, batched_shape
from tcsolve.kernels.launch_shapes import (
    EMULATED_SUMS,
    LOWER_SHAPES,
    MOVE_CHUNKS,
    RESIDUAL_ROWS,
    STACK_LANES,
    SWAP_SHAPES,
    TRSV_COLUMNS,
)
from tcsolve.kernels.panel_shapes import PANELS
from tcsolve.kernels.product_shapes import SMALL, SPLIT_BLOCKS, SQUARE, WIDE, SplitShape
from tcsolve.kernels.system_shapes import (
    BLOCK_SHAPES,
    BLOCK_THREADS,
    CHOLESKY_SHAPES,
    DEFINITE_THREADS,
    INVERSE_ARCH,
    JORDAN_ACROSS,
    TEAM_SHAPES,
    THREAD_SHAPES,
    across_defines,
    inverse_defines,
    jordan_shapes,
)

__all__ = ["KERNELS", "KernelSpec"]


@dataclass(frozen=True)
class KernelSpec:
    """The entries of a .cu file, the macro sets that it is compiled with, and the devices that it runs on.

    Attributes
    ----------
    entries : tuple of str
        Names of the kernels in the file.
    variants : tuple of dict
        Macro sets for devices from `min_arch` on.  Those with nonzero BLOCKS need clusters.  Those with
        DOMINANT = 1 are for devices with large shared memory, and those with DOMINANT = 0 for all others.
    min_arch, max_arch : int
        The lowest and the highest compute capability; for instance, only Hopper has wgmma.
    later : dict of int to tuple of dict
        Further macro sets for devices from a compute capability on.
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
        clusters, large = number >= CLUSTER_ARCH, has_large_memory(number)
        return [
            v
            for v in (*self.variants, *more)
            if (clusters or not v.get("BLOCKS")) and v.get("DOMINANT", large) == large
        ]


def _each(**values):
    """Return the macro sets with every combination of the values; the last macro changes fastest."""
    return tuple(dict(zip(values, x, strict=True)) for x in itertools.product(*values.values()))


# The operands of tensor-core products: in their own format, or FP32 that is rounded (and split).  Before
# compute capability 8.0, only FP16 is used.
_ROUNDED = {
    low: tuple({"T_IN": "float", "T_LOW": low, "REFINE": level} for level in range(5))
    for low in ("fp16", "bf16", "tf32")
}
_EXACT = {low: {"T_IN": low, "T_LOW": low, "REFINE": 0} for low in ("fp16", "bf16", "int8")}
_PRODUCTS_75 = (_EXACT["fp16"], *_ROUNDED["fp16"])
_PRODUCTS_80 = (_EXACT["bf16"], _EXACT["int8"], *_ROUNDED["bf16"], *_ROUNDED["tf32"])
_TRANSPOSES = _each(TRANS_A=(0, 1), TRANS_B=(0, 1))
# The number types of the kernels for systems: real or complex, in one of two precisions.
_NUMBERS = _each(T_A=("float", "double"), COMPLEX=(0, 1))
_CHARS = {("float", 0): "f", ("double", 0): "d", ("float", 1): "F", ("double", 1): "D"}


def _wmma(products, tiles=(SMALL, SQUARE)):
    """Return the macro sets of gemm_wmma.cu; for FP16, also one for each tile without a swizzle, to compare.

    REFINE 0 with FP32 operands and a 16-bit format is left out: an earlier launch rounds these operands.  All
    other products of FP32 operands have square tiles.
    """
    sets = []
    for p in products:
        if p["T_IN"] == "float" and p["REFINE"] == 0 and p["T_LOW"] != "tf32":
            continue
        for tile in tiles if p["T_IN"] != "float" else (SQUARE,):
            sets += [p | trans | {"SWIZZLE": 1, "TILE": tile} for trans in _TRANSPOSES]
            if p == _EXACT["fp16"]:
                sets.append(p | _TRANSPOSES[0] | {"SWIZZLE": 0, "TILE": tile})
    return tuple(sets)


def _batched(products, arch):
    """Return some macro sets of gemm_batched.cu; sizes are macros, so there are too many to compile all."""
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
    "panel": KernelSpec(("tcs_panel",), tuple(shape.defines for shape in PANELS)),
    "swap_solve": KernelSpec(("tcs_swap_solve",), tuple(s.defines for s in SWAP_SHAPES)),
    "lower_solve": KernelSpec(("tcs_lower_solve",), tuple(shape.defines for shape in LOWER_SHAPES)),
    "wait_for_panel": KernelSpec(("tcs_gate",), ({},)),
    "merge_swaps": KernelSpec(("tcs_merge_swaps", "tcs_restart", "tcs_report"), ({},)),
    "move_rows": KernelSpec(("tcs_move_rows",), tuple({"CHUNK": chunk} for chunk in MOVE_CHUNKS)),
    "pack_operands": KernelSpec(
        ("tcs_pack_l", "tcs_pack_u"),
        _each(T_LOW=("fp16", "bf16", "tf32"), PRODUCTS=(1, 3), COMPLEX=(0, 1)),
    ),
    "find_operand_scale": KernelSpec(("tcs_update_scale",), ({},)),
    "triangular_solve": KernelSpec(
        ("tcs_solve_triangle",),
        _each(
            T_IN=("float", "double"),
            K=TRSV_COLUMNS,
            LOWER=(0, 1),
            TRANS=(0, 1),
            BLOCKS=(0, PORTABLE_CLUSTER),
        ),
    ),
    "invert_diagonal_blocks": KernelSpec(
        ("tcs_invert_blocks", "tcs_begin_triangle"),
        _each(T_IN=("float", "double")),
    ),
    "residual": KernelSpec(
        ("tcs_matrix_residual",),
        _each(T_A=("float", "double"), ROWS=RESIDUAL_ROWS),
    ),
    "refinement_vectors": KernelSpec(
        ("tcs_residual", "tcs_column_max", "tcs_combine", "tcs_lower", "tcs_raise"),
        _each(T_LOW=("float", "double")),
    ),
    "condest": KernelSpec(("tcs_probes", "tcs_signs", "tcs_steepest", "tcs_held"), ({},)),
    "measure_stack": KernelSpec(
        ("tcs_stack_measure",),
        tuple(number | {"LANES": lanes} for number in _NUMBERS for lanes in STACK_LANES),
    ),
    "solve_thread": KernelSpec(
        ("tcs_solve_thread",),
        tuple(
            number | {"BANDED": banded, "MOST": most, "THREADS": threads, "RESIDENT": resident}
            for number in _NUMBERS
            for banded in (0, 1)
            for most, threads, resident in THREAD_SHAPES[_CHARS[tuple(number.values())]]
        ),
    ),
    "solve_team": KernelSpec(
        ("tcs_solve_team",),
        tuple(
            number
            | {"BANDED": banded, "MOST": most, "LANES": lanes, "THREADS": threads}
            | {"RESIDENT": resident}
            for number in _NUMBERS
            for banded in (0, 1)
            for most, lanes, threads, resident in TEAM_SHAPES[_CHARS[tuple(number.values())]]
        ),
    ),
    "solve_jordan": KernelSpec(
        ("tcs_solve_jordan",),
        tuple(
            number
            | {"BANDED": banded, "MOST": most, "ACROSS": JORDAN_ACROSS, "THREADS": threads}
            | {"RESIDENT": resident}
            for number in _NUMBERS
            for banded in (0, 1)
            for most, threads, resident in jordan_shapes(1 + number["COMPLEX"], banded)
        ),
    ),
    "solve_inverse": KernelSpec(
        ("tcs_solve_inverse",),
        tuple(
            number | {"BANDED": banded} | defines
            for number in _NUMBERS
            for banded in (0, 1)
            for defines in inverse_defines(_CHARS[tuple(number.values())], banded)
        ),
        min_arch=INVERSE_ARCH,
    ),
    "solve_block": KernelSpec(
        ("tcs_solve_block",),
        tuple(
            number
            | {"BANDED": banded, "MOST": most, "WIDTH": width, "THREADS": threads}
            | {"RESIDENT": BLOCK_THREADS // threads}
            for number in _NUMBERS
            for banded in (0, 1)
            for most, width, threads in BLOCK_SHAPES[number["COMPLEX"]]
        ),
    ),
    "solve_cholesky": KernelSpec(
        ("tcs_solve_cholesky",),
        tuple(
            number | {"BANDED": 1, "THREADS": threads, "RESIDENT": resident}
            for number in _NUMBERS
            if not number["COMPLEX"]
            for _, threads, resident in CHOLESKY_SHAPES
        ),
    ),
    "solve_across": KernelSpec(
        ("tcs_solve_across",),
        tuple(
            number | defines
            for number in _NUMBERS
            for defines in across_defines(1 + number["COMPLEX"])
        ),
    ),
    "solve_definite": KernelSpec(
        ("tcs_solve_definite",),
        tuple(
            number | {"THREADS": DEFINITE_THREADS} for number in _NUMBERS if not number["COMPLEX"]
        ),
        min_arch=80,
    ),
    "cholesky_squares": KernelSpec(
        ("tcs_pack_squares", "tcs_factor_square", "tcs_finish_column", "tcs_solve_squares"),
        tuple(number for number in _NUMBERS if not number["COMPLEX"]),
        min_arch=80,
    ),
    "measure_large": KernelSpec(
        ("tcs_measure_large",),
        _NUMBERS,
    ),
    "measure_systems": KernelSpec(
        ("tcs_sizes",),
        _NUMBERS,
    ),
    "read_structure": KernelSpec(
        ("tcs_read_as", "tcs_rows", "tcs_pack_cholesky"),
        _NUMBERS,
    ),
    "survey": KernelSpec(
        (
            *("tcs_row_stats", "tcs_col_stats", "tcs_survey"),
            *("tcs_add_chunks", "tcs_extremes", "tcs_cast_scaled"),
        ),
        _each(T_IN=("float", "double"), COMPLEX=(0, 1)),
    ),
    "gemm_naive": KernelSpec(("tcs_gemm_naive",), _PRODUCTS_75, later={80: _PRODUCTS_80}),
    "gemm_wmma": KernelSpec(
        ("tcs_gemm_wmma",),
        _wmma(_PRODUCTS_75),
        later={80: _wmma(_PRODUCTS_80) + _wmma(_EXACT.values(), tiles=(WIDE,))},
    ),
    "gemm_wgmma": KernelSpec(
        ("tcs_gemm_wgmma",),
        # SCALED 1: rows of op(A) and columns of op(B) were scaled when they were rounded from FP32.  SCALED
        # 0: operands that are given in T_LOW, and those of an LU, which have one scale for a whole matrix.
        tuple(
            {"T_LOW": low, "REFINE": level, "CLUSTER": 2, "SCALED": scaled} | trans
            for low in ("fp16", "bf16")
            for level in range(5)
            for scaled in ((0, 1) if level == 0 else (1,))
            for trans in _TRANSPOSES
        )
        # Without clusters: the update of an LU.
        + tuple(
            {"T_LOW": low, "REFINE": level, "CLUSTER": 1, "SCALED": 0} | _TRANSPOSES[0]
            for low in ("fp16", "bf16")
            for level in (0, 3)
        ),
        min_arch=90,
        max_arch=90,
    ),
    "three_products": KernelSpec(
        ("tcs_planes", "tcs_add_product", "tcs_join_planes", "tcs_join_product"),
        ({"T_A": "float", "T_LOW": "bf16"}, {"T_A": "double", "T_LOW": "double"}),
    ),
    "gemm_emulated": KernelSpec(("tcs_gemm_emulated",), EMULATED_SUMS),
    "gemm_split": KernelSpec(
        ("tcs_tops", "tcs_split", "tcs_split_by", "tcs_finish"),
        _each(T_LOW=("fp16", "bf16", "tf32")),
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
