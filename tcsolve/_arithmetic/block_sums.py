"""Products of two matrices, added bit for bit as tensor cores add them (see `tensor_cores`).

The truncated terms of a block are integers times a power of two.  FP64 holds these integers and their sum
exactly.  So NumPy computes them in FP64, a tile of the result at a time.
"""

from typing import Any, NamedTuple

import numpy as np

__all__ = ["NAN", "multiply_add", "sum_of_terms"]

# The bits of every NaN that a tensor core returns.
NAN = 0x7FFFFFFF
# Rows and columns of a tile: its arrays stay in the second-level cache.
TILE_ROWS, TILE_COLUMNS = 64, 1024
# The exponent of an operand that is zero.  With it, the exponent of a product is below every `Sums.least`.
NOTHING = -1024
# FP64: number of bits of the fraction, and bias of the exponent.  FP32: number of bits of the fraction,
# smallest exponent, and first exponent that is too large.
FRACTION, BIAS, FRACTION_32, LEAST_32, BEYOND_32 = 52, 1023, 23, -126, 128
# The mask of the bits of an FP64 number that a truncation to FP32 keeps.
KEPT = np.int64(-(1 << (FRACTION - FRACTION_32)))


class _Operand(NamedTuple):
    """An operand with k as its first axis.

    Attributes
    ----------
    values : ndarray of float64, shape (k, m)
        Zero where the operand is Inf or NaN.
    exponents : ndarray of int16, shape (k, m)
    given : ndarray of float64, shape (k, m), or None
        The operand itself, if it holds an Inf or a NaN.
    """

    values: Any
    exponents: Any
    given: Any

    @classmethod
    def of(cls, x, fmt):
        """Return the operand for x (k, m), which holds numbers of the format."""
        x = np.ascontiguousarray(x, np.float64)
        finite = np.isfinite(x)
        given = None if finite.all() else x
        x = x if given is None else np.where(finite, x, 0.0)
        exponents = np.maximum(_exponents(x), fmt.emin)
        exponents[x == 0] = NOTHING
        return cls(x, exponents.astype(np.int16), given)

    def part(self, some):
        return _Operand(*(None if x is None else x[:, some] for x in self))

    def block(self, some):
        return _Operand(*(None if x is None else x[some] for x in self))


def sum_of_terms(parts_a, parts_b, terms, run, add):
    """Return the sum of the products of parts listed in `terms` (see `products.LEVELS`).

    The range of k is cut into pieces of length `run`.  For each piece, the products of all terms are summed;
    then the sums of the pieces are added.
    add(c, a, b) returns c + a b, and may overwrite c; None stands for c = 0.
    """
    total = None
    for q in range(0, parts_a[0].shape[-1], run):
        here = slice(q, q + run)
        partial = None
        for i, j in terms:
            partial = add(partial, parts_a[i][..., :, here], parts_b[j][..., here, :])
        if total is None:
            total = partial
        else:
            total += partial
    return total


def multiply_add(a, b, fmt, sums, c=None):
    """Return c + a b, added as the tensor cores of `sums` do.

    Parameters
    ----------
    a : ndarray, shape (m, k)
    b : ndarray, shape (k, n)
        Real; their entries are numbers of the format, in any dtype that represents them.
    fmt : Format
        The format of the operands.
    sums : Sums
    c : ndarray of float32, shape (m, n), optional
        By default zero.

    Returns
    -------
    ndarray of float32, shape (m, n)
        The blocks of k are added one after the other, from k = 0 on.  A last block that is not full counts as
        filled with zeros.  A NaN has the bits NAN.
    """
    (m, k), n = a.shape, b.shape[1]
    out = np.zeros((m, n), np.float32) if c is None else np.array(c, np.float32, order="C")
    with np.errstate(all="ignore"):
        a, b = _Operand.of(a.T, fmt), _Operand.of(b, fmt)
        for i in range(0, m, TILE_ROWS):
            rows = slice(i, i + TILE_ROWS)
            for j in range(0, n, TILE_COLUMNS):
                columns = slice(j, j + TILE_COLUMNS)
                tile = out[rows, columns]
                tile[...] = _chain(a.part(rows), b.part(columns), k, sums, tile.astype(np.float64))
    out.view(np.uint32)[np.isnan(out)] = NAN
    return out


def _chain(a, b, k, sums, total):
    """Add all blocks to `total`, and return the sum; both hold FP32 numbers, stored in FP64."""
    work = _Work.of(total.shape)
    for first in range(0, k, sums.block):
        some = slice(first, first + sums.block)
        total = _add_block(a.block(some), b.block(some), sums, total, work)
    return total


class _Work(NamedTuple):
    """Memory for a tile: products, their exponents, and the largest exponent of each sum."""

    product: Any
    exponent: Any
    top: Any

    @classmethod
    def of(cls, shape):
        return cls(np.empty(shape), np.empty(shape, np.int16), np.empty(shape, np.int16))


def _add_block(a, b, sums, total, work):
    """Return total + a b for one block of k; total and the result hold FP32 numbers, stored in FP64."""
    ieee = None
    if a.given is not None or b.given is not None or not np.isfinite(total).all():
        # Inf and NaN follow IEEE arithmetic.  FP64 does not overflow in sums of finite terms.
        ieee = total + _given(a).T @ _given(b)
        total = np.where(np.isfinite(total), total, 0.0)
    product, exponent, top = work
    top[...] = np.maximum(_exponents(total), LEAST_32)
    top[total == 0] = sums.least
    np.maximum(top, sums.least, out=top)
    for left, right in zip(a.exponents, b.exponents, strict=True):
        np.add(left[:, None], right, out=exponent)
        np.maximum(top, exponent, out=top)
    unit = top - np.int16(sums.fraction)
    scale = _power_of_two(-unit)
    whole = np.trunc(total * scale) + 0.0  # so that a sum of zeros is +0
    for left, right in zip(a.values, b.values, strict=True):
        np.multiply(left[:, None], right, out=product)
        product *= scale
        whole += np.trunc(product, out=product)
    result = _truncated(whole * _power_of_two(unit))
    return result if ieee is None else np.where(np.isfinite(ieee), result, ieee)


def _given(operand):
    return operand.values if operand.given is None else operand.given


def _exponents(x):
    """Return the exponents e of FP64 numbers x with 2**e <= |x| < 2**(e + 1); -BIAS for zero."""
    return (np.ascontiguousarray(x).view(np.int64) >> FRACTION & 0x7FF) - BIAS


def _power_of_two(e):
    return (e.astype(np.int64) + BIAS << FRACTION).view(np.float64)


def _truncated(x):
    """Truncate FP64 numbers to FP32, in place; those too large become infinite, and a zero is +0."""
    bits = x.view(np.int64)
    bits &= KEPT
    size = np.abs(x)
    faint = size < 2.0**LEAST_32
    if faint.any():
        unit = 2.0 ** (LEAST_32 - FRACTION_32)
        x[faint] = np.trunc(x[faint] / unit) * unit
    beyond = size >= 2.0**BEYOND_32
    if beyond.any():
        x[beyond] = np.copysign(np.inf, x[beyond])
    x += 0.0  # -0 becomes +0
    return x
