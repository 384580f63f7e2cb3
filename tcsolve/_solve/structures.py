"""The structures of SciPy's `assume_a`: what each reads, and whether a matrix has one."""

import math

import numpy as np
import scipy.linalg

from tcsolve._arithmetic.matrix_parts import parts

__all__ = ["MIRRORED", "detected", "read_under"]

MIRRORED = ("symmetric", "hermitian", "positive definite")
# Diagonals below and above the main one that are read.
BANDS = {
    "diagonal": (0, 0),
    "tridiagonal": (1, 1),
    "upper triangular": (0, math.inf),
    "lower triangular": (math.inf, 0),
}
# A band LU pays up to this share of the columns.
NARROW_BAND = 8


def read_under(ops, a, structure, lower):
    """Return a (..., n, n) as it is read under `structure`, and which matrices contradict that.

    One NumPy matrix that is as it is read is returned itself; nearly every matrix is.
    """
    if ops.xp is np and a.ndim == 2 and _is_as_read(a, structure):
        return a, np.array(False)
    return interpret(ops.xp, a, structure, lower), contradicts(ops, a, structure, lower)


def _is_as_read(a, structure):
    """Tell whether the NumPy matrix a has the structure; compiled code reads it and stops at a difference."""
    if structure in MIRRORED:
        return (scipy.linalg.issymmetric if structure == "symmetric" else scipy.linalg.ishermitian)(
            a
        )
    if structure not in BANDS:
        return True
    return all(
        has <= most for has, most in zip(scipy.linalg.bandwidth(a), BANDS[structure], strict=True)
    )


def interpret(xp, a, structure, lower):
    """Return the full matrix that SciPy reads a as under `structure`, a (..., n, n).

    Entries that are not read are masked, not multiplied by zero: they may hold NaN.
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
    """Return the structure of the NumPy matrix a (n, n) that has a faster solver than a general matrix has.

    'banded', a triangular one, or 'general'.  The border is read first, in O(n); most matrices end there.
    """
    if not _may_be_sparse(a):
        return "general"
    below, above = scipy.linalg.bandwidth(a)
    if (below + above) * NARROW_BAND <= len(a) or below + above <= 2:
        return "banded"
    if below == 0:
        return "upper triangular"
    return "lower triangular" if above == 0 else "general"


def _may_be_sparse(a):
    """Tell whether the border of a allows a band or a triangle."""
    top, left, bottom, right = a[0, 1:], a[1:, 0], a[-1, :-1], a[:-1, -1]
    is_lower = not (top.any() or right.any())
    is_upper = not (left.any() or bottom.any())
    half = len(top) // 2
    is_band = not (
        top[half:].any() or left[half:].any() or bottom[:half].any() or right[:half].any()
    )
    return is_lower or is_upper or is_band


def contradicts(ops, a, structure, lower):
    """Tell which matrices have entries that `structure` does not read and that do not agree with it.

    The triangle that is not read of a symmetric, Hermitian or positive definite matrix must be zero, or the
    mirror image of the other one up to rounding: 4 n u times the largest entry.  Outside of a triangle, or of
    a band, entries must be zero.  A NaN says nothing.

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

    Read by compiled code that stops at the first difference; nearly every matrix needs no more.
    """
    if structure == "symmetric":
        return scipy.linalg.issymmetric(a) or 0 == scipy.linalg.bandwidth(a)[1 if lower else 0]
    if scipy.linalg.ishermitian(a):
        return True
    return not a.diagonal().imag.any() and 0 == scipy.linalg.bandwidth(a)[1 if lower else 0]


def _is_not_mirrored(xp, a, structure, lower):
    """Compare the triangles of a (..., n, n) up to rounding, some rows at a time where a is one matrix."""
    n, conjugate = a.shape[-1], structure != "symmetric" and a.dtype.kind == "c"
    turned = xp.swapaxes(a.conj() if conjugate else a, -1, -2)
    pieces = parts(n, n) if a.ndim == 2 else [slice(None)]
    column = xp.arange(n)
    zero, difference, size = True, 0.0, 0.0
    for rows in pieces:
        some, row = a[..., rows, :], column[rows, None]
        unread = (column > row) if lower else (column < row)
        off = unread | (column == row) if conjugate else unread
        off = off & ~xp.isnan(some)
        apart = xp.where(off, xp.abs(some - turned[..., rows, :]), 0)
        rest = xp.where(column == row, 1j * some.imag, some) if conjugate else some
        zero = zero & (xp.where(off, rest, 0) == 0).all(axis=(-2, -1))
        difference = xp.maximum(difference, apart.max(axis=(-2, -1)))
        size = xp.maximum(size, xp.where(unread, 0, xp.abs(some)).max(axis=(-2, -1)))
    return ~(zero | (difference <= 4 * n * np.finfo(a.dtype).eps * size))
