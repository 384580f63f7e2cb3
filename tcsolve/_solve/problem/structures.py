"""The structures of `assume_a`: the entries that each reads, and tests whether a matrix has a structure."""

import functools
import math

import numpy as np
import scipy.linalg

from tcsolve._arithmetic.matrix_parts import parts
from tcsolve._arrays import is_zero

__all__ = ["MIRRORED", "by_bandwidth", "detected", "is_as_read", "read_under"]

MIRRORED = ("symmetric", "hermitian", "positive definite")
# The numbers of diagonals below and above the main one that are read.
BANDS = {
    "diagonal": (0, 0),
    "tridiagonal": (1, 1),
    "upper triangular": (0, math.inf),
    "lower triangular": (math.inf, 0),
}
# `by_bandwidth` calls a matrix banded if it has at most two, or at most n / NARROW_BAND, diagonals besides
# the main one.
NARROW_BAND = 8
# Up to FEW_ROWS rows, it takes less time to look for nonzero entries in one triangle than to find the
# bandwidths, and NumPy finds nonzero entries outside of a band in less time than SciPy.  Up to FEW_ROWS
# rows and from MANY_ROWS on, NumPy also compares a matrix with its transpose in less time than SciPy.
# Large matrices are compared in blocks of TILE rows and columns, which stay in the cache.
FEW_ROWS, MANY_ROWS, TILE = 64, 2048, 128


def read_under(ops, a, structure, lower):
    """Return (the matrices that `structure` describes, which matrices of a (..., n, n) contradict it).

    If a is one NumPy matrix that has the structure, as nearly always, a itself is returned.
    """
    if ops.xp is np and a.ndim == 2 and is_as_read(a, structure):
        return a, np.array(False)
    return interpret(ops.xp, a, structure, lower), contradicts(ops, a, structure, lower)


def is_as_read(a, structure):
    """Tell whether the NumPy matrix a has the structure; this is fast."""
    if structure in MIRRORED:
        return is_mirrored(a, conjugate=structure != "symmetric")
    if structure not in BANDS:
        return True
    if len(a) <= FEW_ROWS:
        return not a[_unread(structure, len(a))].any()
    return all(
        has <= most for has, most in zip(scipy.linalg.bandwidth(a), BANDS[structure], strict=True)
    )


@functools.lru_cache(maxsize=256)
def _unread(structure, n):
    """Return the Boolean matrix (n, n) that is True where a structure of BANDS has zeros."""
    (below, above), (i, j) = BANDS[structure], np.indices((n, n))
    return (i - j > below) | (j - i > above)


def is_mirrored(a, conjugate):
    """Tell whether the NumPy matrix a is its own transpose, or its own conjugate transpose, exactly."""
    conjugate, n = conjugate and a.dtype.kind == "c", len(a)
    if FEW_ROWS < n < MANY_ROWS and a.dtype.isnative:  # SciPy's functions take no other
        return (scipy.linalg.ishermitian if conjugate else scipy.linalg.issymmetric)(a)
    size = TILE if n > FEW_ROWS else max(n, 1)
    for i in range(0, n, size):
        for j in range(0, i + 1, size):
            mirror = a[j : j + size, i : i + size].T
            same = a[i : i + size, j : j + size] == (mirror.conj() if conjugate else mirror)
            if not np.logical_and.reduce(same, axis=None):
                return False
    return True


def interpret(xp, a, structure, lower):
    """Return the full matrices (..., n, n) that `structure` describes, as SciPy reads them.

    Entries that are not read are masked, not multiplied by zero, because they may be NaN.
    """
    if structure == "diagonal":
        return xp.triu(xp.tril(a))
    if structure == "tridiagonal":
        return xp.triu(xp.tril(a, 1), -1)
    if structure == "upper triangular":
        return xp.triu(a)
    if structure == "lower triangular":
        return xp.tril(a)
    if structure in MIRRORED:
        conjugate = structure != "symmetric" and a.dtype.kind == "c"
        part = xp.tril(a, -1) if lower else xp.triu(a, 1)
        mirror = xp.swapaxes(part.conj() if conjugate else part, -1, -2)
        diagonal = xp.triu(xp.tril(a))
        return part + mirror + (diagonal.real.astype(a.dtype) if conjugate else diagonal)
    return a


def detected(a):
    """Return (structure, bandwidths) of the NumPy matrix a (n, n): 'banded', a triangular one, or 'general'.

    The first and last rows and columns are read first, in O(n).  For most matrices they show that the matrix
    is 'general'; then the bandwidths are None.
    """
    n = len(a)
    if n > 3:
        of_upper, of_lower = a[0, -1] != 0, a[-1, 0] != 0
        if of_upper and of_lower:
            return "general", None
        if of_upper != of_lower and n <= FEW_ROWS:  # then a is a triangle, or general
            t = a.T if of_lower else a
            if _is_zero_below(t):
                bands = (n - 1, 0) if of_lower else (0, n - 1)
                return ("lower" if of_lower else "upper") + " triangular", bands
            return "general", None
    return by_bandwidth(a) if _may_be_sparse(a) else ("general", None)


def _is_zero_below(a):
    """Tell whether all entries below the diagonal of a small matrix are zero."""
    upper = a.flags.c_contiguous
    entries = (a if upper else a.T).ravel()
    return not entries[_beside(len(a), upper)].any()


@functools.lru_cache(maxsize=2 * FEW_ROWS)
def _beside(n, below):
    """Return the places of the entries below (or above) the diagonal in a row-major matrix (n, n)."""
    rows, columns = np.tril_indices(n, -1) if below else np.triu_indices(n, 1)
    return rows * n + columns


def by_bandwidth(a):
    """Return (structure, bandwidths) of the NumPy matrix a (n, n), from its bandwidths alone.

    `detected` reads the first and last rows and columns first.  For a matrix with many zeros, this function
    is faster.
    """
    below, above = bands = scipy.linalg.bandwidth(a)
    if (below + above) * NARROW_BAND <= len(a) or below + above <= 2:
        return "banded", bands
    if below == 0:
        return "upper triangular", bands
    return ("lower triangular" if above == 0 else "general"), bands


def _may_be_sparse(a):
    """Tell whether the first and last rows and columns of a allow a band or a triangle."""
    top, left, bottom, right = a[0, 1:], a[1:, 0], a[-1, :-1], a[:-1, -1]
    is_lower = not (top.any() or right.any())
    is_upper = not (left.any() or bottom.any())
    half = len(top) // 2
    is_band = not (
        top[half:].any() or left[half:].any() or bottom[:half].any() or right[:half].any()
    )
    return is_lower or is_upper or is_band


def contradicts(ops, a, structure, lower):
    """Tell which matrices have entries that `structure` does not read and that contradict it.

    For a symmetric, Hermitian or positive definite matrix, one triangle is not read.  It must be zero, or the
    mirror image of the other one up to 4 n eps times the largest entry.  For a Hermitian or positive definite
    matrix, the imaginary parts of the diagonal are not read either.  They must be zero up to 2 n eps times
    the largest entry.  For other structures, entries outside of the triangle or the band must be zero.  A NaN
    that is not read never contradicts.

    Parameters
    ----------
    ops : Ops
    a : array, shape (..., n, n)
    structure : str or None
    lower : bool

    Returns
    -------
    ndarray of bool, shape (...)
    """
    xp = ops.xp
    if structure in (None, "general", "banded") or not a.size:
        return np.zeros(a.shape[:-2], bool)
    if structure not in MIRRORED:
        read = interpret(xp, a, structure, lower)
        found = ((read != a) & ~xp.isnan(a)).any(axis=(-2, -1))
    elif xp is np and a.ndim == 2 and _agrees_exactly(a, structure, lower):
        found = np.array(False)
    else:
        found = _is_not_mirrored(xp, a, structure, lower)
    return np.asarray(ops.host(found)[0])


def _agrees_exactly(a, structure, lower):
    """Tell whether the unread triangle of the NumPy matrix a is zero, or the exact mirror image.

    The comparison stops at the first difference, or at the end of the block that has it.  For nearly every
    matrix this test is enough.
    """
    if is_mirrored(a, conjugate=structure != "symmetric"):
        return True
    if structure == "symmetric":
        return 0 == scipy.linalg.bandwidth(a)[1 if lower else 0]
    return not a.diagonal().imag.any() and 0 == scipy.linalg.bandwidth(a)[1 if lower else 0]


def _is_not_mirrored(xp, a, structure, lower):
    """Tell which of a (..., n, n) are neither mirrored up to rounding nor zero in the unread triangle.

    A single matrix is compared some rows at a time.
    """
    n, conjugate = a.shape[-1], structure != "symmetric" and a.dtype.kind == "c"
    turned = xp.swapaxes(a.conj() if conjugate else a, -1, -2)
    pieces = parts(n, n) if a.ndim == 2 else [slice(None)]
    column = xp.arange(n)
    zero, difference, on_diagonal, size = True, 0.0, 0.0, 0.0
    for rows in pieces:
        some, row = a[..., rows, :], column[rows, None]
        unread, is_number = (column > row) if lower else (column < row), ~xp.isnan(some)
        off = (unread | (column == row) if conjugate else unread) & is_number
        apart = xp.where(off, xp.abs(some - turned[..., rows, :]), 0)
        zero = zero & (~unread | ~is_number | is_zero(some)).all(axis=(-2, -1))
        difference = xp.maximum(difference, apart.max(axis=(-2, -1)))
        imaginary = xp.where(column == row, apart, 0).max(axis=(-2, -1))
        on_diagonal = xp.maximum(on_diagonal, imaginary)
        size = xp.maximum(size, xp.where(unread, 0, xp.abs(some)).max(axis=(-2, -1)))
    most = 4 * n * np.finfo(a.dtype).eps * size
    return ~(zero & (on_diagonal <= most) | (difference <= most))
