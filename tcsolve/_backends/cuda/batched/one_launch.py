"""Small systems on a device, solved and verified by one launch; large ones, verified by one launch."""

import cupy

from tcsolve._backends.cuda.runtime import current_device
from tcsolve._backends.cuda.runtime.prepared_launch import launch, macros, steps
from tcsolve.kernels.launch_shapes import (
    MEASURE_THREADS,
    MEASURED_COLUMNS,
    SOLVED_COLUMNS,
    measure_blocks,
    solve_shape,
)

__all__ = ["measure_one", "measures_one", "solve_at_once", "takes_at_once"]

# As in small_solve.cuh; other kinds are triangles.
KINDS = {"general": 0, "positive definite": 1}
TRIANGLE = 2


def takes_at_once(n, k, is_complex):
    """Tell whether `solve_at_once` takes systems of n unknowns with k right-hand sides on this device."""
    return 0 < k <= SOLVED_COLUMNS and solve_shape(1, n, is_complex, _arch()) is not None


def solve_at_once(a, b, kind, band, bound, board):
    """Return x of A x = b for a stack of small systems, and fill board with what verifies it.

    Parameters
    ----------
    a : array, shape (m, n, n)
    b : array, shape (m, n, 1)
        Of the dtype of a.
    kind : str
        As `_vendor.factor` has it, of the matrix that is read.
    band : tuple of int
        (below, above, mirror): how a is read, as in `_vendor.read_as`.
    bound : float
        Of max |b - A x| / (||A|| max |x|); an x that misses it is corrected once.
    board : array, shape (11, m), float64, contiguous
        Becomes what `_vendor.read_as` sees, and behind it what `_vendor.measure` finds; the 1-norms are those
        of A**-1 g for two random g, and info is the step at which the factorization broke down, or 0.
    """
    (m, n, _), is_complex = b.shape, a.dtype.kind == "c"
    shape, x = solve_shape(m, n, is_complex, _arch()), cupy.empty(b.shape, b.dtype)
    how = (*band, KINDS.get(kind, TRIANGLE), bound)
    args = (x, board, *steps(a), *steps(b)[:3], *how, m, n)
    entry, defines = (shape.name, "tcs_" + shape.name), macros(a) | shape.defines
    launch(entry, (shape.blocks, 1), (shape.threads, 1), args, defines, shape.shared)
    return x


def measures_one(k):
    """Tell whether `measure_one` takes k right-hand sides."""
    return k <= MEASURED_COLUMNS


def measure_one(a, band, y, b, info, board):
    """Return x of one system, and fill board with what verifies it, by a launch that fills the device.

    Parameters
    ----------
    a : array, shape (n, n)
    band : tuple of int
        (below, above): the diagonals that are read; other entries are taken for zero.
    y : array, shape (k + c, n), contiguous
        The columns of A**-1 b, then A**-1 of some vectors, in FP64 or complex128.
    b : array, shape (n, k)
        Of the dtype of a, as is x.
    info : array of int32, shape (1,), or None
    board : array, shape (9 + 2 k, 1), float64, contiguous
        Zeros before; becomes what `_vendor.read_as` sees, and behind it what `_vendor.measure` finds.
    """
    (n, k), x = b.shape, cupy.empty(b.shape, b.dtype)
    args = (board, x, *steps(a), *band, *steps(b), y, len(y) - k, info, n, k)
    grid = measure_blocks(n), 1
    launch(("measure_one", "tcs_measure_one"), grid, (MEASURE_THREADS, 1), args, macros(a))
    return x


def _arch():
    return current_device.arch(cupy.cuda.runtime.getDevice())
