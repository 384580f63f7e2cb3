"""Kernels before and after the factorizations of the libraries.

They copy right-hand sides to rows and bands to full matrices, and compute norms.
"""

import cupy
import numpy as np

from tcsolve._backends.cuda.runtime.prepared_launch import launch, macros, steps
from tcsolve.kernels.launch_shapes import STACK_THREADS, TILE, TILE_THREADS, stack_shape

__all__ = ["measure", "read_as", "rows"]

# Number of threads of a block of tcs_rows and of tcs_sizes; number of rows of a block of tcs_sizes.
THREADS, SIZES_ROWS = 256, 128


def rows(b, probes):
    """Return the columns of b (m, n, k), then `probes` random vectors, as rows (m, k + probes, n).

    The rows are in FP64 or complex128.  There are at most two random vectors (see `Stacks.factor_and_solve`).
    """
    m, n, k = b.shape
    out = cupy.empty((m, k + probes, n), np.result_type(b.dtype, np.float64))
    grid, args = (-(-out.size // THREADS), 1), (out, *steps(b), m, n, k, probes)
    launch(("read_structure", "tcs_rows"), grid, (THREADS, 1), args, macros(b))
    return out


def measure(a, x, b, y, info, out, *, residuals=None, known=None):
    """As `Stacks.measure`."""
    if known is not None:
        _measure_by(known, x[0], b[0], y[0], info, out)
        return
    m, n, k = x.shape
    shape = stack_shape(m, n)
    arrays = (*steps(a), *steps(x), *steps(b), y, y.strides[0] // y.itemsize, y.shape[1])
    args, defines = (out, residuals, *arrays, info, m, n, k), macros(a) | {"LANES": shape.lanes}
    entry, grid = ("measure_stack", "tcs_stack_measure"), (shape.blocks, 1)
    launch(entry, grid, (STACK_THREADS, 1), args, defines, shape.shared)


def _measure_by(known, x, b, y, info, out):
    """Fill `out` for one system from the sums of |a_ij| and from A x."""
    (n, k), (*sums, ax) = b.shape, known
    sums = map(cupy.ascontiguousarray, sums)
    args = (out, *sums, *steps(x), *steps(b), *steps(ax), y, len(y), info, n, k)
    grid = 2 + -(-k // 32) * -(-n // SIZES_ROWS), 1
    launch(("measure_systems", "tcs_sizes"), grid, (THREADS, 1), args, macros(b))


def read_as(a, below, above, mirror, seen):
    """As `Stacks.read_as`."""
    (m, n), out = a.shape[:2], cupy.empty(a.shape, a.dtype)
    args = (out, *steps(a), m, n, below, above, mirror, seen)
    grid = m * (-(-n // TILE)) ** 2, 1
    launch(("read_structure", "tcs_read_as"), grid, TILE_THREADS, args, macros(a))
    return out
