"""Scaling: multiply rows and columns of A by powers of two, before anything is rounded."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tcsolve._arithmetic.matrix_parts import parts, real_parts

__all__ = [
    "FRAME_EXPONENT",
    "TOP",
    "Frame",
    "Scaling",
    "equilibrate",
    "exponent_of",
    "largest_exponent",
    "ldexp",
    "needs_frame",
    "needs_scaling",
    "norm_and_exponent",
    "shift_columns",
]

# Rows and columns are scaled if the ratio of the smallest to the largest sum of a row, or of a column, is
# below 0.1.  This is the limit of xLAQGE.
SPREAD = 0.1
# With norms between 2**-SAFE_EXPONENT and 2**SAFE_EXPONENT, an FP32 factorization does not overflow.
SAFE_EXPONENT = 40
# FP64 products and norms may overflow if numbers are larger than 2**FRAME_EXPONENT, and underflow if numbers
# are smaller than 2**-FRAME_EXPONENT.
FRAME_EXPONENT = 300
TOP = 2.0**FRAME_EXPONENT
# The largest exponent of a scale, which must be a normal FP64 number.
MAX_EXPONENT = 1022
# Stands for the exponent of zero: smaller than the exponent of any scaled number.
NO_EXPONENT = -(2**20)


@dataclass(frozen=True)
class Scaling:
    """The scaling diag(row) A diag(col): two vectors of powers of two on the device, shape (n,)."""

    row: Any
    col: Any


@dataclass(frozen=True)
class Frame:
    """A scaled system in which FP64 cannot overflow: diag(row) A diag(col) y = diag(row) b 2**-shift.

    All scales are powers of two.  So x = diag(col) y 2**shift has no rounding error, unless x itself
    overflows or underflows.
    """

    scaling: Scaling

    def matrix(self, ops, a):
        """Return the scaled matrix, a copy in the dtype of a."""
        return ops.cast_scaled(a, self.scaling.row, self.scaling.col, a.dtype)

    def inside(self, xp, b):
        """Return (diag(row) b 2**-shift, shift) for b (n, k), with one shift for each column."""
        row = _exponents_of_scale(xp, self.scaling.row)
        top = largest_exponent(xp, b, row)
        return ldexp(xp, b, row - top), top

    def backward_error(self, ops, norm, r, y):
        """Return ``||b - A x|| / (||A|| ||x||)`` of the caller's system, for each column, on the host.

        Parameters
        ----------
        ops : Ops
        norm : (float, int)
            `norm_and_exponent` of the caller's A.
        r, y : array, shape (n, k)
            The residual and the solution of the scaled system.
        """
        xp = ops.xp
        rest = _size_and_exponent(xp, r, -_exponents_of_scale(xp, self.scaling.row))
        size = _size_and_exponent(xp, y, _exponents_of_scale(xp, self.scaling.col))
        rest, of_rest, size, of_size = ops.host(*rest, *size)
        with np.errstate(all="ignore"):
            error = np.ldexp(rest / norm[0] / size, of_rest - norm[1] - of_size)
        return np.where(rest == 0, 0.0, error)

    def swapped(self):
        """Return the frame of the transposed matrix."""
        return Frame(Scaling(self.scaling.col, self.scaling.row))

    def outside(self, xp, y, shift):
        """Return diag(col) y 2**shift."""
        return ldexp(xp, y, _exponents_of_scale(xp, self.scaling.col) + shift)


@dataclass(frozen=True)
class Shift:
    """A `Frame` that does not scale A; it divides each column of b, and of x, by a power of two."""

    exponent: Any

    def inside(self, xp, b):
        """Return (b 2**-shift, shift)."""
        return ldexp(xp, b, -xp.asarray(self.exponent)), xp.asarray(self.exponent)

    def outside(self, xp, y, shift):
        """Return y 2**shift."""
        return ldexp(xp, y, shift)


def shift_columns(size):
    """Return the `Shift` for columns with the largest entries `size`, or None if none is extreme."""
    exponent = np.frexp(size)[1]
    return Shift(exponent) if (np.abs(exponent) > FRAME_EXPONENT).any() else None


def needs_frame(survey):
    """Tell whether A has rows, columns or norms so extreme that refinement in FP64 needs a `Frame`."""
    spread = min(survey.row_spread, survey.col_spread)
    if survey.inf == 0:
        return False
    return not (survey.finite and 1 / TOP < survey.inf < TOP and (spread == 0 or spread > 1 / TOP))


def ldexp(xp, x, exponent):
    """Return x 2**exponent, real or complex."""
    exponent = xp.asarray(exponent, dtype=xp.int32)
    with np.errstate(over="ignore", under="ignore"):
        return _ldexp_parts(xp, x, exponent)


def _ldexp_parts(xp, x, exponent):
    if not xp.iscomplexobj(x):
        return xp.ldexp(x, exponent)
    # Not real + 1j * imaginary: 1j * inf has NaN in its real part.
    moved = xp.empty(np.broadcast_shapes(x.shape, exponent.shape), x.dtype)
    for to, part in zip(real_parts(moved), real_parts(x), strict=True):
        xp.ldexp(part, exponent, out=to)
    return moved


def exponent_of(xp, x, axis=()):
    """Return the exponent e of the largest entry along the axes, which are kept; by default, of each entry.

    The largest real or imaginary part is in [2**(e - 1), 2**e).  e is 0 if that is zero, NaN or Inf.
    """
    top = xp.abs(x.real)
    if xp.iscomplexobj(x):
        top = xp.maximum(top, xp.abs(x.imag))
    if axis != ():
        top = top.max(axis=axis, keepdims=True)
    return xp.where(xp.isfinite(top), xp.frexp(top)[1], 0)


def largest_exponent(xp, v, shift):
    """Return the largest exponent in each column of v 2**shift, for v (..., n, k) and shift (..., n, 1).

    It is 0 for a column of zeros; zeros in other columns are ignored.
    """
    exponent = xp.where(v == 0, NO_EXPONENT, exponent_of(xp, v) + shift).max(axis=-2)
    return xp.where(exponent == NO_EXPONENT, 0, exponent)


def _size_and_exponent(xp, v, shift):
    """Return (m, e) for each column of v 2**shift, where m 2**e is its largest modulus."""
    exponent = largest_exponent(xp, v, shift)
    return xp.abs(ldexp(xp, v, shift - exponent)).max(axis=0), exponent


def _exponents_of_scale(xp, scale):
    return xp.frexp(scale)[1][:, None] - 1


def norm_and_exponent(ops, a):
    """Return (m, e), where m 2**e is the infinity norm of a; no sum overflows, however large the entries."""
    rows = [ops.row_stats(part).top.max() for part in real_parts(a)]
    top = max(float(v) for v in ops.host(*rows))
    exponent = int(np.frexp(top)[1]) if np.isfinite(top) else 0
    wide, norms = np.result_type(a.dtype, np.float64), []
    with np.errstate(all="ignore"):
        for some in parts(*a.shape):
            part = ldexp(ops.xp, ops.converted(a[some], wide), -exponent)
            norms.append(ops.xp.abs(part).sum(axis=1).max())
        return float(np.max(ops.host(*norms))), exponent


def needs_scaling(survey):
    """Tell whether A must be scaled before it is rounded (see SPREAD and SAFE_EXPONENT)."""
    return (
        survey.row_spread < SPREAD
        or survey.col_spread < SPREAD
        or not 2.0**-SAFE_EXPONENT < survey.inf < 2.0**SAFE_EXPONENT
    )


def equilibrate(ops, a):
    """Return the `Scaling` that brings the largest entry of each row and column into [1/2, 1).

    Rows are scaled first, then columns [1]_.  The scales are powers of two, so scaling and undoing it are
    exact.

    References
    ----------
    .. [1] N. J. Higham, S. Pranesh, M. Zounon, SIAM J. Sci. Comput. 41 (2019), A2536-A2551,
       algorithm 2.4.
    """

    xp = ops.xp

    # For a complex entry, take the larger of its two parts: the modulus may overflow.  Compute in FP64,
    # because the reciprocal of the smallest FP32 numbers overflows in FP32.
    def largest(sizes):
        top = sizes[0] if len(sizes) == 1 else xp.maximum(*sizes)
        return ops.converted(top, np.float64)

    row = _inverse_power(xp, largest([ops.row_stats(part).top for part in real_parts(a)]))
    top = largest([ops.row_stats(part.T, row).top for part in real_parts(a)])
    col = _inverse_power(xp, top)
    tiny = xp.flatnonzero(top < np.finfo(np.float64).tiny)
    if tiny.size:  # these columns are zero, or underflow if only the rows are scaled
        exponent = largest_exponent(xp, a[:, tiny], _exponents_of_scale(xp, row))
        exponent = xp.clip(-exponent, -MAX_EXPONENT, MAX_EXPONENT)
        col[tiny] = xp.ldexp(xp.ones(len(exponent)), exponent)
    return Scaling(row, col)


def _inverse_power(xp, size):
    """Return 2**-e for size = m 2**e with m in [1/2, 1); 1 where size is zero."""
    _, exponent = xp.frexp(size)
    exponent = xp.clip(exponent, -MAX_EXPONENT, MAX_EXPONENT)
    return xp.where(size > 0, xp.ldexp(xp.ones_like(size), -exponent), 1.0)
