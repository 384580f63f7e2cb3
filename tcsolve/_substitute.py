"""Triangular solves of a few right-hand sides with inverted diagonal blocks, one launch a triangle."""

import cupy
import numpy as np
from cupy.lib.stride_tricks import as_strided
from cupy_backends.cuda.libs import cublas

from tcsolve import _jit
from tcsolve._cublas import PREFIX, handle, ld, scalar, triangle
from tcsolve.kernels import TRSV_BLOCK, TRSV_COLUMNS

__all__ = ["invert_diagonal_blocks", "substitute"]

# Inverted diagonal blocks are used up to this condition || |D^-1| |D| ||: a solve with an inverse loses as
# many digits as that has, and refinement must still contract.
INVERSE_CONDITION = {"f": 1e4, "d": 1e8}


def invert_diagonal_blocks(lu, unit_lower=True):
    """Return what `substitute` needs of row-major real factors, or None.

    Parameters
    ----------
    lu : array, shape (n, n), float32 or float64
        Both triangles, one of them with a unit diagonal that is not stored.
    unit_lower : bool
        Whether that is the lower one.

    Returns
    -------
    inverses : array, shape (2, ceil(n / block), block, block), or None
        Of the lower, then of the upper triangle's blocks, zero beyond n.  None for complex factors
        and where a block is too ill-conditioned to be inverted.
    """
    char = lu.dtype.char
    if char not in TRSV_BLOCK:
        return None
    n, size = lu.shape[0], TRSV_BLOCK[char]
    blocks = -(-n // size)
    last = n - (blocks - 1) * size
    inverses = cupy.zeros((2, blocks, size, size), lu.dtype)
    inverses[:, :, cupy.arange(size), cupy.arange(size)] = 1
    inverses[:, -1, cupy.arange(last, size), cupy.arange(last, size)] = 0
    worst = 0.0
    for lower, inverse in zip((True, False), inverses, strict=True):
        unit = lower == unit_lower
        _invert(lu, inverse, lower, unit, last)
        worst = np.fmax(worst, _condition(lu, inverse, lower, unit, last))
    return inverses if worst <= INVERSE_CONDITION[char] else None


def _invert(lu, inverse, lower, unit, last):
    """Turn the identities in `inverse` into the inverses of the diagonal blocks of a triangle."""
    blocks, size, _ = inverse.shape
    char, itemsize = lu.dtype.char, lu.dtype.itemsize
    # Column-major cuBLAS sees every block transposed, and returns its inverse so.
    how = (cublas.CUBLAS_SIDE_LEFT, *triangle(lower, unit, cublas.CUBLAS_OP_N))
    if blocks > 1:
        step = np.arange(blocks - 1, dtype=np.uint64)
        of = cupy.asarray(lu.data.ptr + step * np.uint64(size * (ld(lu) + 1) * itemsize))
        into = cupy.asarray(inverse.data.ptr + step * np.uint64(size * size * itemsize))
        args = (size, size, scalar(1, char), of.data.ptr, ld(lu), into.data.ptr, size, blocks - 1)
        getattr(cublas, PREFIX[char] + "trsmBatched")(handle(), *how, *args)
    corner, end = lu[-last:, -last:], inverse[-1]
    args = (last, last, scalar(1, char), corner.data.ptr, ld(lu), end.data.ptr, size)
    getattr(cublas, PREFIX[char] + "trsm")(handle(), *how, *args)


def _condition(lu, inverse, lower, unit, last):
    """Return the largest || |D^-1| |D| || (infinity norm) of the diagonal blocks; inf for NaN."""
    worst = [_condition_of_tiles(lu, inverse[:-1], lower, unit)] if len(inverse) > 1 else []
    worst.append(_condition_of_tiles(lu[-last:, -last:], inverse[-1:, :last, :last], lower, unit))
    return max(value if value == value else np.inf for value in worst)


def _condition_of_tiles(lu, inverses, lower, unit):
    count, size, _ = inverses.shape
    row, column = lu.strides
    tiles = as_strided(lu, (count, size, size), ((row + column) * size, row, column))
    part = cupy.tril(tiles, -int(unit)) if lower else cupy.triu(tiles, int(unit))
    sums = cupy.abs(part).sum(axis=2, keepdims=True) + int(unit)
    return float((cupy.abs(inverses) @ sums).max())


def substitute(lu, b, adjoint, inverses, multiprocessors):
    """Return (L U)**-1 b, or (L U)**-T b, for at most max(TRSV_COLUMNS) columns of b.

    lu is row-major; the result is Fortran-ordered.
    """
    n, k = b.shape
    width = next(width for width in TRSV_COLUMNS if width >= k)
    stages = cupy.empty((3, width, n), lu.dtype)  # b, then what each triangle makes of it
    stages[0, :k], stages[0, k:] = b.T, 0
    tickets = cupy.empty(2, cupy.uint32)
    stages[1:].data.memset_async(0xFF, stages[1:].nbytes)  # all-ones: no value yet
    tickets.data.memset_async(0xFF, tickets.nbytes)
    blocks = min(multiprocessors, inverses.shape[1])
    for stage, lower in enumerate((not adjoint, adjoint)):
        kernel = _trsv_kernel(lu.dtype.char, width, lower, adjoint)
        args = (stages[stage + 1], stages[stage], lu, ld(lu), n, inverses[0 if lower else 1])
        kernel((blocks,), (512,), (*args, tickets[stage:]))
    return stages[2, :k].T


def _trsv_kernel(char, width, lower, trans):
    real = {"f": "float", "d": "double"}[char]
    defines = {"T_IN": real, "K": width, "LOWER": int(lower), "TRANS": int(trans)}
    return _jit.kernel("trsv", "tcs_solve_triangle", **defines)
