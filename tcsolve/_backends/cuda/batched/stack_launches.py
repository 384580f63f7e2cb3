"""Kernels around the factors of the library: right-hand sides as rows, norms, verdicts, bands as matrices."""

import cupy
import numpy as np

from tcsolve._backends.cuda.runtime import compiler
from tcsolve._backends.cuda.runtime.prepared_launch import launch, macros, steps
from tcsolve.kernels.launch_shapes import STACK_THREADS, TILE, TILE_THREADS, stack_shape

__all__ = ["doubtful", "measure", "read_as", "rows", "sizes"]

# Number of threads of a block with one entry per thread; number of rows of a block of measure_systems.cu.
THREADS, SIZES_ROWS = 256, 128


def rows(b, probes):
    """Return the columns of b (m, n, k), then `probes` random vectors, as rows (m, k + probes, n) in FP64.

    There are at most two random vectors.  Their entries are uniform, with mean 0 and variance 1, and the same
    in every call.
    """
    m, n, k = b.shape
    out = cupy.empty((m, k + probes, n), np.result_type(b.dtype, np.float64))
    grid, args = (-(-out.size // THREADS), 1), (out, *steps(b), m, n, k, probes)
    launch(("read_structure", "tcs_rows"), grid, (THREADS, 1), args, macros(b))
    return out


def measure(a, x, b, y, info, out, *, residuals=None):
    """Fill `out` with the norms that verify the solutions x of A x = b.

    Parameters
    ----------
    a : array, shape (m, n, n)
    x, b : array, shape (m, n, k)
        They have the dtype of a.
    y : array, shape (m, c, n)
        A**-1 g for c vectors g of each matrix, in FP64 or complex128; y[s] is contiguous.
    info : array of int32, shape (m,), or None
        The info of the factorizations.
    out : array, shape (4 + 2 k, m), float64, contiguous
        Receives for each matrix: the infinity norm, the 1-norm, the largest 1-norm of a row of y, info (or
        0), max |b - A x| of each column, and max |x| of each column.
    residuals : array, shape (m, k, n), contiguous, optional
        Receives b - A x, in FP64 or complex128.
    """
    m, n, k = x.shape
    shape = stack_shape(m, n)
    arrays = (*steps(a), *steps(x), *steps(b), y, y.strides[0] // y.itemsize, y.shape[1])
    args, defines = (out, residuals, *arrays, info, m, n, k), macros(a) | shape.defines
    entry, grid = ("measure_stack", "tcs_stack_measure"), (shape.blocks, 1)
    launch(entry, grid, (STACK_THREADS, 1), args, defines, shape.shared)


def sizes(sums, answers, b, y, info, out):
    """Fill `out` as `measure` does, for one system, from the sums of |a_ij| and from A x.

    Parameters
    ----------
    sums : tuple of array, shape (n,), float64
        The sums of |a_ij| over the rows, and over the columns.
    answers : tuple of array, shape (n, k)
        x, in the dtype of b, and A x in FP64 or complex128.
    b : array, shape (n, k)
    y : array, shape (c, n), contiguous
        A**-1 g for c vectors g.
    info : array of int32, shape (1,), or None
        The info of the factorization.
    out : array, shape (4 + 2 k, 1)
        Zeros before the call.
    """
    (n, k), (x, ax) = b.shape, answers
    sums = (cupy.ascontiguousarray(x) for x in sums)
    args = (out, *sums, *steps(x), *steps(b), *steps(ax), y, len(y), info, n, k)
    grid = 2 + -(-k // 32) * -(-n // SIZES_ROWS), 1
    launch(("measure_systems", "tcs_sizes"), grid, (THREADS, 1), args, macros(b))


def doubtful(board, k, limits, triangular):
    """Return an array of bool (m,) on the device: True for systems that the host has to check.

    Parameters
    ----------
    board : array, shape (9 + 2 k, m), contiguous
        The rows `seen` of `read_as`, then the rows `out` of `measure`.
    k : int
        Number of right-hand sides.
    limits : tuple of float
        (largest backward error, smallest 1 / (||A||_1 ||y||_1), largest norm of A and of x, largest
        difference of mirror images).  The smallest norm is the reciprocal of the largest.  The difference is
        relative to the largest |a_ij|; it is -1 if no mirror images are read.
    triangular : bool
        True if a zero on the diagonal makes a matrix singular.
    """
    m = board.shape[1]
    found = cupy.empty(m, bool)
    kernel = compiler.kernel("measure_systems", "tcs_doubtful", T_A="double", COMPLEX=0)
    args = (found, board, m, k, *limits, int(triangular))
    kernel((-(-m // THREADS),), (THREADS,), args)
    return found


def read_as(a, below, above, mirror, seen):
    """Return the full matrices that are described by a band of a (m, n, n); fill `seen` with facts about a.

    Entries with -below <= j - i <= above are read.  Other entries of the result are zero (mirror 0), the
    entry on the other side of the diagonal (mirror 1), or its conjugate (mirror 2).

    Parameters
    ----------
    a : array, shape (m, n, n)
    below, above : int
        Numbers of diagonals below and above the main one that are read.
    mirror : {0, 1, 2}
        See above.
    seen : array, shape (5, m), float64, contiguous
        Zeros before the call.  Receives for each matrix: the largest difference between an entry that is not
        read and the entry of the result; the largest |a_ij| that is read; 1 if an entry that is not read is
        not zero; 1 if any entry is NaN or Inf; 1 if a diagonal entry is zero.  The first three ignore NaN.
    """
    (m, n), out = a.shape[:2], cupy.empty(a.shape, a.dtype)
    args = (out, *steps(a), m, n, below, above, mirror, seen)
    grid = m * (-(-n // TILE)) ** 2, 1
    launch(("read_structure", "tcs_read_as"), grid, TILE_THREADS, args, macros(a))
    return out
