"""LU with partial pivoting, its trailing updates in any of the listed arithmetics.

Right-looking, blocked at two levels: panels of `block` columns, made of leaves that one kernel (or LAPACK)
factors.  The matrix and the panel keep the storage precision; only the operands
of the update between panels are rounded.
"""

from dataclasses import dataclass
from typing import Any

from tcsolve._formats import UPDATES

__all__ = ["BlockedFactors", "NativeFactors", "factor_blocked", "factor_native"]

# info starts at a column no matrix has; the first bad pivot lowers it.
NO_BAD_PIVOT = 2**31 - 1


@dataclass(frozen=True)
class BlockedFactors:
    """P A = L U, packed row-major; order[i] is the row of A that became row i.

    Attributes
    ----------
    bad_pivot : int
        1-based column of the first pivot that is zero or not finite, 0 if there is none.
    inverses : array or None
        Inverses of diagonal blocks, where the device solves with them.
    """

    ops: Any
    lu: Any
    order: Any
    bad_pivot: int
    swaps_are_odd: bool
    inverses: Any = None

    @property
    def nbytes(self):
        extra = 0 if self.inverses is None else self.inverses.nbytes
        return self.lu.nbytes + self.order.nbytes + extra

    def solve(self, b, adjoint=False):
        """Return A**-1 b, or A**-H b, in the dtype of the factors."""
        if not adjoint:
            return self.ops.solve_factored(self.lu, b[self.order], False, self.inverses)
        y = self.ops.solve_factored(self.lu, b, True, self.inverses)
        x = self.ops.xp.empty_like(y)
        x[self.order] = y
        return x

    def diagonal(self):
        """Return the diagonal of U and the sign of the permutation."""
        return self.lu.diagonal(), -1 if self.swaps_are_odd else 1

    def gecon(self, norm_one):
        """Return None: the caller's own estimator is needed."""
        return None


@dataclass(frozen=True)
class NativeFactors:
    """The library's own LU (LAPACK's or cuSOLVER's getrf)."""

    ops: Any
    factors: Any
    bad_pivot: int
    nbytes: int

    def solve(self, b, adjoint=False):
        """Return A**-1 b, or A**-H b, in the dtype of the factors."""
        return self.ops.getrs(self.factors, b, adjoint)

    def diagonal(self):
        """Return the diagonal of U and the sign of the permutation."""
        return self.ops.diagonal(self.factors)

    def gecon(self, norm_one):
        """Return the library's rcond, or None if it has no estimator."""
        return self.ops.gecon(self.factors, norm_one)


def factor_native(ops, a, dtype):
    """Factor a with the library's getrf in `dtype`; a is not modified."""
    factors, bad_pivot = ops.getrf(a, dtype)
    return NativeFactors(ops, factors, bad_pivot, a.size * dtype.itemsize)


def factor_blocked(ops, w, update, block):
    """Factor the row-major n x n matrix w in place, updating with `update`.

    Parameters
    ----------
    ops : Ops
    w : array, shape (n, n), float32, float64 or complex
        Overwritten by the factors.
    update : Update
    block : int
        Columns of an outer panel.

    Returns
    -------
    BlockedFactors
    """
    n = w.shape[0]
    xp = ops.xp
    order = xp.arange(n, dtype=xp.int32)
    ipiv = xp.empty(n, dtype=xp.int32)
    info = xp.full(1, NO_BAD_PIVOT, dtype=xp.int32)
    for j in range(0, n, block):
        k = min(block, n - j)
        rest, right = slice(j + k, n), slice(j, j + k)
        # Where each row of the panel came from; moved with them, then applied to the other columns.
        local = xp.arange(n - j, dtype=xp.int32)
        _factor_panel(ops, w[j:, right], ipiv[right], j, local, info)
        dst = xp.concatenate([xp.arange(k, dtype=xp.int32), ipiv[right] - j])
        src = local[dst]
        ops.move_rows(w[j:, :j], dst, src)
        ops.move_rows(w[j:, rest], dst, src)
        order[j:] = order[j:][local]
        ops.solve_unit_lower(w[right, right], w[right, rest])
        ops.update(w[rest, rest], w[rest, right], w[right, rest], update)
    swapped = (ipiv != xp.arange(n, dtype=xp.int32)).sum()
    info, swapped = ops.host(info, swapped)
    bad_pivot = int(info[0]) if info[0] != NO_BAD_PIVOT else 0
    inverses = None if bad_pivot else ops.invert_diagonal_blocks(w)
    return BlockedFactors(ops, w, order, bad_pivot, bool(int(swapped) % 2), inverses)


def _factor_panel(ops, p, ipiv, row0, order, info):
    """Factor the m x k panel p in place, leaf by leaf.

    Rows of p, and `order`, are swapped as a whole; ipiv counts rows of the matrix, whose row row0 is
    row 0 of p.
    """
    m, k = p.shape
    storage = UPDATES["fp64" if p.dtype.char in "dD" else "fp32"]
    start = 0
    while start < k:
        stop = start + min(k - start, ops.leaf_width(m - start, k - start, p.dtype))
        done, rest = slice(start, stop), slice(stop, k)
        ops.panel_lu(p, start, stop, ipiv, row0, order, info)
        ops.update(p[stop:, rest], p[stop:, done], p[done, rest], storage)
        start = stop
