"""Products and residuals with about twice the digits of FP64, by exact products of slices.

A matrix or a vector is the sum of some slices and a small rest.  The entries of a slice are integers times a
power of two; each row of a matrix, and each column of vectors, has one such power.  The integers have so few
bits that FP64 holds the sums of their products exactly.  So BLAS may add them in any order [1]_.  When the
products of slices are added, the rounding error of each addition is computed, and these errors are added too.

References
----------
.. [1] K. Ozaki, T. Ogita, S. Oishi, S. M. Rump, Numer. Algorithms 59 (2012), 95-118.
"""

from typing import Any, NamedTuple

import numpy as np

from tcsolve._arithmetic.matrix_parts import WIDENED, parts, real_parts

__all__ = ["Pair", "product", "residual", "two_sum"]

# Number of slices.  Up to n = 2**17 each has at least 18 bits.  Then the products with a rest, which are not
# exact, are below 2**-54 of the largest products.  So their rounding errors are below 2**-107 of the largest
# products, times a factor that grows with n.
SLICES = 3
BITS = 53
# Number of entries of a block on the host: its slices stay in the second-level cache.
CACHE_ENTRIES = 1 << 16


class Pair(NamedTuple):
    """The unevaluated sum high + low of two FP64 arrays; high is the sum rounded to FP64."""

    high: Any
    low: Any

    @classmethod
    def of(cls, xp, x):
        return cls(x, xp.zeros_like(x))

    def plus(self, d):
        """Return the pair of high + low + d; its error is about 2**-106 of its size."""
        high, low = two_sum(self.high, d)
        return Pair(*two_sum(high, low + self.low))

    def minus(self, other):
        """Return self - other rounded to FP64, for a `Pair` with nearly the same numbers."""
        high, low = two_sum(self.high, -other.high)
        return high + (low + (self.low - other.low))

    def times(self, scale):
        """Return the product with powers of two, without a rounding error."""
        return Pair(self.high * scale, self.low * scale)

    def rows(self, some):
        return Pair(self.high[some], self.low[some])

    def columns(self, some):
        return Pair(self.high[:, some], self.low[:, some])


def two_sum(x, y):
    """Return x + y rounded to FP64, and the exact rounding error of this sum (Knuth)."""
    s = x + y
    part = s - x
    return s, (x - (s - part)) + (y - part)


def residual(ops, a, x, b):
    """Return b - A x for a `Pair` x, rounded to FP64.

    Parameters
    ----------
    ops : Ops
    a : array, shape (n, n)
        In any precision; complex if x and b are complex, else real.
    x : Pair of arrays, shape (n, k), float64 or complex128
    b : array, shape (n, k), float64 or complex128

    Returns
    -------
    array, shape (n, k)
        Besides the final rounding, the error is at most about n 2**-106 ||A|| ||x|| in infinity norms.
    """
    return _row_by_row(ops, a, x, b).high


def product(ops, a, x):
    """Return A x, a `Pair`, for a `Pair` x.

    Parameters
    ----------
    ops : Ops
    a : array, shape (m, n)
        As for `residual`; or an object with the attribute `shape`, of which `a[rows]` is an array.
    x : Pair of arrays, shape (n, k), float64 or complex128

    Returns
    -------
    Pair of arrays, shape (m, k)
        Its error is about that of `residual` before the final rounding.
    """
    xp = ops.xp
    zero = xp.zeros((a.shape[0], x.high.shape[1]), x.high.dtype)
    return Pair(*(-part for part in _row_by_row(ops, a, x, zero)))


def _row_by_row(ops, a, x, b):
    """Return the `Pair` of b - A x; a part of the rows of A is sliced at a time."""
    xp, r = ops.xp, Pair(ops.xp.empty_like(b), ops.xp.empty_like(b))
    wide, is_complex = np.dtype(np.float64), b.dtype.kind == "c"
    bits = (BITS - int(a.shape[1] - 1).bit_length()) // 2
    of_x = [_Vectors.of(xp, Pair(*part), bits) for part in zip(*map(real_parts, x), strict=True)]
    blocks = _blocks(a.shape, ops.device)
    room = (SLICES + 1, min(blocks[0].stop, a.shape[0]), a.shape[1])
    rooms = [xp.empty(room) for _ in of_x]
    for rows in blocks:
        # A, x and b have equally many parts: one, or a real and an imaginary part.
        of_a = [
            _Matrix.of(xp, ops.converted(part, wide), bits, room)
            for part, room in zip(real_parts(a[rows]), rooms, strict=True)
        ]
        if not is_complex:
            _less(xp, r.rows(rows), b[rows], of_a[0].times(ops, of_x[0]), [])
            continue
        (real, imaginary), (re, im) = of_a, of_x
        r_re, r_im = (
            Pair(*both) for both in zip(*(real_parts(part[rows]) for part in r), strict=True)
        )
        _less(xp, r_re, b.real[rows], real.times(ops, re), imaginary.times(ops, im))
        _less(xp, r_im, b.imag[rows], real.times(ops, im) + imaginary.times(ops, re), [])
    return r


def _blocks(shape, device):
    """Return ranges of rows of a matrix; on the host, the slices of a range stay in the cache."""
    if device != "cpu":
        return parts(*shape, WIDENED[device])
    step = max(1, CACHE_ENTRIES // shape[1])
    return [slice(first, first + step) for first in range(0, shape[0], step)]


class _Vectors(NamedTuple):
    """k vectors: their slices side by side (n, SLICES k), their rests, and the vectors rounded to FP64."""

    slices: Any
    rest: Any
    rounded: Any

    @classmethod
    def of(cls, xp, x, bits):
        pieces, rest = _sliced(xp, xp.ascontiguousarray(x.high), 0, bits)
        return cls(xp.concatenate(pieces, axis=1), rest + x.low, x.high)


class _Matrix(NamedTuple):
    """Some rows of a matrix: their slices, their rests, and the rows themselves."""

    slices: list
    rest: Any
    whole: Any

    @classmethod
    def of(cls, xp, a, bits, room):
        a = xp.ascontiguousarray(a)
        return cls(*_sliced(xp, a, 1, bits, room[:, : len(a)]), a)

    def times(self, ops, x):
        """Return terms (m, k) whose sum is nearly the product with the vectors."""
        k = x.rest.shape[1]
        terms = []
        for piece in self.slices:
            found = ops.product(piece, x.slices)
            terms += [found[:, i : i + k] for i in range(0, SLICES * k, k)]
        return [*terms, ops.product(self.whole, x.rest), ops.product(self.rest, x.rounded)]


def _sliced(xp, v, axis, bits, room=None):
    """Return ([slice, ...], rest), whose sum is v; the integers of a slice have at most `bits` bits.

    The power of two is the same for all entries along `axis`.  The slices and the rest are stored in `room`,
    shape (SLICES + 1, *v.shape), if it is given: allocating memory takes the host longer than the
    arithmetic does.
    """
    *pieces, rest = xp.empty((SLICES + 1, *v.shape)) if room is None else room
    top = xp.abs(v, out=rest).max(axis=axis, keepdims=True)
    exponent = xp.frexp(top)[1]
    for piece in pieces:
        exponent = exponent - bits
        # v + shift is rounded to a multiple of 2**exponent, because shift has that unit in the last place.
        shift = xp.ldexp(xp.full_like(top, 1.5), exponent + (BITS - 1))
        xp.add(v, shift, out=piece)
        piece -= shift
        v = xp.subtract(v, piece, out=rest)
    return pieces, rest


def _less(xp, r, b, minus, plus):
    """Store b - sum(minus) + sum(plus) in the `Pair` r.

    The rounding error of each addition is computed, and the sum of these errors is added to the result.
    """
    total, lost = b, xp.zeros_like(b)
    for sign, terms in ((-1.0, minus), (1.0, plus)):
        for term in terms:
            total, error = two_sum(total, sign * term)
            lost = lost + error
    r.high[...], r.low[...] = two_sum(total, lost)
