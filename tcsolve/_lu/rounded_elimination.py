"""LU with partial pivoting in which the result of every operation is rounded to a format.

This is the model of many papers on mixed precision: the matrix, the multipliers, the products and the
differences are numbers of the format.  No hardware works like this: tensor cores keep the sums in FP32.
"""

import math

from tcsolve._arithmetic.formats import FORMATS, round_in
from tcsolve._contract.lu import Packed
from tcsolve._lu.factors import NO_BAD_PIVOT, BlockedFactors

__all__ = ["factor_rounded"]

# The largest entry is scaled to between 2**-(ROOM + 2) and 2**-(ROOM + 1) of the largest number, so that the
# entries may grow.  N. J. Higham, S. Pranesh, M. Zounon, SIAM J. Sci. Comput. 41 (2019), A2536-A2551,
# scale it to 0.1 of the largest number.
ROOM = 4


def factor_rounded(ops, w, update):
    """Factor the row-major n x n matrix w in place; every operation is rounded to `update.format`.

    Parameters
    ----------
    ops : Ops
    w : array, shape (n, n), float32 or complex64
        Overwritten by the factors.  In a format with a small range it is scaled by a power of two first.
    update : Update

    Returns
    -------
    BlockedFactors

    Notes
    -----
    Each operation is computed in FP32 and then rounded to the format.  For real numbers and formats of up to
    11 bits this gives the same result as rounding once, because FP32 has 24 bits [1]_.  A complex product may
    be rounded several times in FP32; then its real and its imaginary part are rounded to the format.

    References
    ----------
    .. [1] S. A. Figueroa, When is double rounding innocuous?, SIGNUM Newsletter 30 (1995), 21-26.
    """
    xp, n = ops.xp, len(w)
    scale = _scale(xp, w, update.format)
    w *= scale
    w[...] = round_in(xp, w, update.format)
    order, ipiv = xp.arange(n, dtype=xp.int32), xp.arange(n, dtype=xp.int32)
    info, beyond = xp.full(1, NO_BAD_PIVOT, dtype=xp.int32), xp.zeros(1, dtype=xp.int32)
    for j in range(n):
        i = j + int(xp.abs(w[j:, j]).argmax())
        ipiv[j] = i
        if i != j:
            for rows in (w, order):
                rows[[j, i]] = rows[[i, j]]
        pivot = w[j, j]
        if not (bool(xp.isfinite(pivot)) and bool(pivot != 0)):
            info[0] = j + 1
            break
        below, right = slice(j + 1, n), w[j, j + 1 :]
        w[below, j] = round_in(xp, w[below, j] / pivot, update.format)
        product = round_in(xp, w[below, j, None] * right, update.format)
        w[below, j + 1 :] = round_in(xp, w[below, j + 1 :] - product, update.format)
    w[...] = xp.tril(w, -1) + xp.triu(w) / scale
    report, inverses = ops.lu.finish(w, ipiv, info, beyond)
    return BlockedFactors.of(ops, Packed(w, order, inverses), report)


def _scale(xp, w, fmt):
    """Return the power of two that leaves room for growth in a format with a smaller range than FP32."""
    if fmt.emax == FORMATS["fp32"].emax:
        return 1.0
    top = float(xp.abs(w).max())
    return 2.0 ** (fmt.emax - ROOM - math.frexp(top)[1]) if 0 < top < math.inf else 1.0
