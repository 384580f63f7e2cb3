"""Triangular solves of a few right-hand sides with inverted diagonal blocks, one launch a triangle."""

import cupy

from tcsolve import _jit
from tcsolve._cublas import ld
from tcsolve.kernels import TRSV_BLOCK, TRSV_COLUMNS

__all__ = ["invert_diagonal_blocks", "substitute", "trusted"]

# Inverted diagonal blocks are used up to this condition || |D^-1| |D| ||: a solve with an inverse loses as
# many digits as that has, and refinement must still contract.
INVERSE_CONDITION = {"f": 1e4, "d": 1e8}
REAL = {"f": "float", "d": "double"}
INVERT_THREADS = 256


def invert_diagonal_blocks(lu, unit_lower=True):
    """Return what `substitute` needs of row-major real factors, and how good it is.

    Parameters
    ----------
    lu : array, shape (n, n), float32 or float64
        Both triangles, one of them with a unit diagonal that is not stored.
    unit_lower : bool
        Whether that is the lower one.

    Returns
    -------
    inverses : array, shape (2, ceil(n / block), block, block)
        Of the lower, then of the upper triangle's blocks, zero beyond n.
    worst : array, shape (1,)
        The largest || |D^-1| |D| || of a block D, for `trusted`.
    """
    char = lu.dtype.char
    n, size = lu.shape[0], TRSV_BLOCK[char]
    inverses = cupy.empty((2, -(-n // size), size, size), lu.dtype)
    worst = cupy.zeros(1)
    kernel = _jit.kernel("invert", "tcs_invert_blocks", T_IN=REAL[char])
    args = (inverses, worst, lu, ld(lu), n, int(unit_lower))
    kernel((inverses.shape[1], 2), (INVERT_THREADS,), args)
    return inverses, worst


def trusted(inverses, worst):
    """Return the inverses, or None if a block is too ill-conditioned to be inverted."""
    # A NaN is not at most anything.
    return inverses if float(worst[0]) <= INVERSE_CONDITION[inverses.dtype.char] else None


def substitute(lu, b, adjoint, inverses, before, after, multiprocessors):
    """Return x of (L U) x = b, or (L U)**T x = b, in FP64 for at most max(TRSV_COLUMNS) columns of b.

    lu is row-major, b is FP64 and may have any strides.  Row before[i] of b is taken for row i, and row
    i of x becomes row after[i]; None changes no place.  Every column is brought next to 1 in the range
    of the factors, and back.
    """
    (n, k), char = b.shape, lu.dtype.char
    width = next(width for width in TRSV_COLUMNS if width >= k)
    strides = tuple(s // b.itemsize for s in b.strides)
    sizes = cupy.zeros(k, cupy.uint64)
    # b, then what each triangle makes of it: all bits set stand for no value yet, in the tickets as well.
    stages = cupy.empty(3 * width * n + 2, lu.dtype)
    rhs, made = stages[: width * n], stages[width * n :]
    last, tickets = made[width * n : -2], made[-2:].view(cupy.uint32)
    grid, block = (-(-n // 256), k), (256,)
    _refine_kernel("tcs_column_max", char)(grid, block, (sizes, b, *strides, n))
    args = (rhs, made, made.nbytes // 4, b, *strides, before, sizes, n, k)
    _refine_kernel("tcs_lower", char)((grid[0], width), block, args)
    blocks = min(multiprocessors, inverses.shape[1])
    for stage, lower in enumerate((not adjoint, adjoint)):
        kernel = _trsv_kernel(char, width, lower, adjoint)
        to, of = (made, rhs) if stage == 0 else (last, made)
        args = (to, of, lu, ld(lu), n, inverses[0 if lower else 1], tickets[stage:])
        kernel((blocks,), (512,), args)
    x = cupy.empty((k, n))
    _refine_kernel("tcs_raise", char)(grid, block, (x, last, after, sizes, n))
    return x.T


def _refine_kernel(entry, char):
    return _jit.kernel("refine", entry, T_LOW=REAL[char])


def _trsv_kernel(char, width, lower, trans):
    defines = {"T_IN": REAL[char], "K": width, "LOWER": int(lower), "TRANS": int(trans)}
    return _jit.kernel("trsv", "tcs_solve_triangle", **defines)
