"""The kernels that a solve is expected to launch, by its size and dtypes; they are compiled in parallel.

A kernel that is missing here is compiled when it is launched, and the solve waits for it.  The compilation of
a kernel that is not needed keeps a core busy.  So the lists are those of the usual solve: a real matrix that
is not known to be dominant, and one or a few right-hand sides.  The kernels of the trailing updates of a
dominant matrix are listed, too.
"""

from tcsolve._arithmetic.formats import UPDATES
from tcsolve._backends.cuda.lu.rules import SOLVE_WIDTH, DeviceRules
from tcsolve._backends.cuda.runtime import compiler
from tcsolve._contract.schedule import schedule
from tcsolve._paths import paths
from tcsolve.kernels.arch import CLUSTER_ARCH, HOPPER, PORTABLE_CLUSTER, arch_number
from tcsolve.kernels.launch_shapes import (
    LOWER_SHAPES,
    MOVE_CHUNKS,
    SWAP_SHAPES,
    TRSV_COLUMNS,
    residual_rows,
)
from tcsolve.kernels.panel_shapes import LARGEST_CLUSTER, panel_shape

__all__ = ["kernels_of", "prepare"]

REAL = {"f": "float", "d": "double"}
# The update of a general matrix.  A wide panel has products in fp16x3 even if the update is fp16.
USUAL = "fp16x3"

_largest = {}  # the largest n that was prepared, by device and dtypes


def prepare(device, arch, multiprocessors, n, char, factors):
    """Compile the kernels of a solve in other threads, if this was not done before in this process.

    The kernels of a smaller matrix are nearly all among those of a larger one.

    Parameters
    ----------
    device : int
    arch : str
    multiprocessors : int
    n : int
    char : str
        The character of the dtype of the matrix.
    factors : str or None
        The character of the dtype of the factors of our own LU; None for those of cuSOLVER.
    """
    key = device, char, factors
    if n > _largest.get(key, 0):
        _largest[key] = n
        compiler.compile_ahead(arch, kernels_of(n, char, factors, arch, multiprocessors))


def kernels_of(n, char, factors, arch, multiprocessors):
    """Return [(name of a kernel, its macros)] in the order of the launches.

    The arguments are those of `prepare`.
    """
    if char not in REAL:
        return []
    found = [("survey", {"T_IN": REAL[char], "COMPLEX": 0})]
    if factors == "f":
        found += _of_factors(n, arch, multiprocessors)
    return found + _of_refinement(n, char, factors or "d", arch, multiprocessors)


def _of_factors(n, arch, multiprocessors):
    """The kernels of an LU in FP32 with updates in FP16."""

    def shape(rows, narrow, dominant):
        return panel_shape(rows, arch, multiprocessors, LARGEST_CLUSTER, narrow, dominant)

    rules = DeviceRules(arch, "f", shape, paths())
    panels = schedule(n, UPDATES[USUAL], rules, None, True, False).panels
    shapes = [
        rules.panel_shape(panel.rows - start, panel.stop - panel.start - start, False)
        for panel in panels
        for start, _ in panel.strips
    ]
    found = [("panel", s.defines) for s in dict.fromkeys(shapes) if s is not None]
    is_wide = any(panel.stop - panel.start > SOLVE_WIDTH for panel in panels)
    few = SWAP_SHAPES[:2] if is_wide else SWAP_SHAPES
    # Shape i is used only for more than least[i] columns.
    least = (0, *(shape.most for shape in SWAP_SHAPES))
    found += [("swap_solve", s.defines) for s, most in zip(few, least, strict=False) if n > most]
    if len(panels) > 1:
        found += _of_updates(arch)
    if is_wide:
        found += [("lower_solve", s.defines) for s in LOWER_SHAPES]
        found += [("move_rows", {"CHUNK": chunk}) for chunk in MOVE_CHUNKS]
    return [*found, ("merge_swaps", {}), ("invert_diagonal_blocks", {"T_IN": "float"})]


def _of_updates(arch):
    """The kernels of the trailing updates of a general matrix, and of a dominant one."""
    found = [("find_operand_scale", {}), ("wait_for_panel", {})]
    if arch_number(arch) != HOPPER:
        pack = {"T_LOW": "fp16", "COMPLEX": 0}
        return [("pack_operands", pack | {"PRODUCTS": products}) for products in (3, 1)] + found
    wgmma = {"T_LOW": "fp16", "CLUSTER": 1, "SCALED": 0, "TRANS_A": 0, "TRANS_B": 0}
    found = [("gemm_wgmma", wgmma | {"REFINE": 3}), ("gemm_split", {"T_LOW": "fp16"}), *found]
    return [*found, ("gemm_wgmma", wgmma | {"REFINE": 0})]


def _of_refinement(n, char, factors, arch, multiprocessors):
    """The kernels of the first refinement steps and of the condition estimate."""
    clusters = arch_number(arch) >= CLUSTER_ARCH and multiprocessors >= PORTABLE_CLUSTER
    found = [
        ("refinement_vectors", {"T_LOW": REAL[factors]}),
        ("refinement_vectors", {"T_LOW": "double"}),
        ("condest", {}),
        ("residual", {"T_A": REAL[char], "ROWS": residual_rows(n)}),
    ]
    if factors == "d":
        found.append(("invert_diagonal_blocks", {"T_IN": "double"}))
    solve = {"T_IN": REAL[factors], "BLOCKS": PORTABLE_CLUSTER if clusters else 0}
    columns = TRSV_COLUMNS if factors == "f" else (min(TRSV_COLUMNS), max(TRSV_COLUMNS))
    for k, trans in ((k, trans) for trans in (0, 1) for k in columns if k == 1 or not trans):
        solves = ({"K": k, "TRANS": trans, "LOWER": lower} for lower in (1, 0))
        found += [("triangular_solve", solve | macros) for macros in solves]
    return found
