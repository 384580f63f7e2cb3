"""Cholesky factorization of a scaled and shifted matrix, with the arithmetic of an `Update`.

The factors precondition a positive definite system.  Rounding may make a positive definite matrix indefinite;
a shift of its diagonal by a few units of roundoff prevents that [1]_.

References
----------
.. [1] N. J. Higham, S. Pranesh, SIAM J. Sci. Comput. 43 (2021), A258-A277.
"""

import numpy as np

from tcsolve._contract.lu import Packed
from tcsolve._lu.factors import NO_BAD_PIVOT, BlockedFactors
from tcsolve._lu.scaling import Scaling

__all__ = ["factor_shifted", "scale_alike"]

# The first shift in units of roundoff, as in algorithm 3.2 of [1]_.  It is doubled until the factors exist,
# at most DOUBLINGS times.
FIRST_SHIFT, DOUBLINGS = 2.0, 7


def scale_alike(ops, a, each):
    """Return the symmetric `Scaling` D A D with a diagonal in [1/4, 1), by powers of two.

    If `each` is False, all rows have the same scale, and the largest diagonal entry is in [1/4, 1).
    """
    xp = ops.xp
    diagonal = ops.converted(a.diagonal().real, np.dtype(np.float64))
    size = diagonal if each else xp.full_like(diagonal, diagonal.max())
    exponent = xp.frexp(xp.where(size > 0, size, 0.5))[1]
    scale = xp.ldexp(xp.ones_like(size), -((exponent + 1) // 2))
    return Scaling(scale, scale)


def factor_shifted(ops, w, update, block):
    """Factor w + c u I = L L^H, with the smallest c of 2, 4, 8, ... for which L exists.

    Parameters
    ----------
    ops : Ops
    w : array, shape (n, n), float32 or complex64
        Hermitian, with a diagonal below 1; overwritten by the factors.
    update : Update
        The arithmetic of the trailing updates; u is its roundoff.
    block : int
        Number of columns of a panel.

    Returns
    -------
    BlockedFactors
        L and L^H as L D**-1 and D L^H, where D is the diagonal of L.  If no shift of up to 256 u is
        enough, they have a bad pivot.
    """
    xp, n = ops.xp, len(w)
    info, beyond = xp.full(1, NO_BAD_PIVOT, dtype=xp.int32), xp.zeros(1, dtype=xp.int32)
    for doubling in range(DOUBLINGS + 1):
        trial = w.copy()
        trial[xp.arange(n), xp.arange(n)] += w.dtype.type(FIRST_SHIFT * 2**doubling * update.u)
        bad = _cholesky(ops, trial, update, block)
        if not bad:
            break
    if bad:
        info[0] = bad
    lower = xp.tril(trial)
    diagonal = lower.diagonal().real.copy()
    w[...] = xp.tril(lower / diagonal, -1) + diagonal[:, None] * lower.conj().T
    order = xp.arange(n, dtype=xp.int32)
    report, inverses = ops.lu.finish(w, order, info, beyond)
    return BlockedFactors.of(ops, Packed(w, order, inverses), report)


def _cholesky(ops, w, update, block):
    """Overwrite the lower triangle of w by L; return 0.

    If a panel has no L, return its first column, counted from 1.
    """
    xp, n = ops.xp, len(w)
    width = n if update.native else block
    for start in range(0, n, width):
        panel, rest = slice(start, start + width), slice(start + width, n)
        if not ops.lu.cholesky_panel(w[start:, panel]):
            return start + 1
        if rest.start < n:
            below = xp.ascontiguousarray(w[rest, panel])
            subtract = ops.lu.operand(below, update)
            subtract(w[rest, rest], xp.ascontiguousarray(below.conj().T))
    return 0
