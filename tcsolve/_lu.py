"""LU with partial pivoting, its trailing updates in any of the listed arithmetics.

Right-looking, blocked at two levels: panels of `block` columns, made of strips that one kernel (or LAPACK)
factors.  The matrix and the panel keep the storage precision; only the operands of the update between
panels are rounded.  An update reaches the columns of the next panel first, the others beside that panel's
strips (look-ahead), a part beside each.
"""

from dataclasses import dataclass
from typing import Any

from tcsolve._formats import UPDATES

__all__ = ["BlockedFactors", "NativeFactors", "factor_blocked", "factor_native"]

# info starts at a column no matrix has; the first bad pivot lowers it.
NO_BAD_PIVOT = 2**31 - 1


class BlockedFactors:
    """P A = L U, packed row-major; order[i] is the row of A that became row i.

    How the factorization went is read when it is first asked for: what is launched before that runs on
    without waiting, and counts only if the factors turn out good.

    Attributes
    ----------
    inverses : array or None
        Inverses of diagonal blocks, where the device solves with them; None once they are known to be bad.
    """

    def __init__(self, ops, lu, order, report, inverses=None):
        self.ops, self.lu, self.order, self.inverses = ops, lu, order, inverses
        self._report, self._found = report, None

    def _read(self):
        """Return the first bad pivot and the number of swapped rows, waiting for the factorization once."""
        if self._found is None:
            (report,) = self.ops.host(self._report)
            info, swapped, worst = (float(x) for x in report)
            bad_pivot = 0 if info == NO_BAD_PIVOT else int(info)
            inverses = self.inverses
            if inverses is not None:
                self.inverses = None if bad_pivot else self.ops.trusted(inverses, worst)
            self._found = bad_pivot, int(swapped)
        return self._found

    @property
    def bad_pivot(self):
        """1-based column of the first pivot that is zero or not finite, 0 if there is none."""
        return self._read()[0]

    @property
    def nbytes(self):
        """Bytes held."""
        extra = 0 if self.inverses is None else self.inverses.nbytes
        return self.lu.nbytes + self.order.nbytes + extra

    def solve(self, b, adjoint=False):
        """Return A**-1 b, or A**-H b, in the dtype of the factors."""
        if not adjoint:
            return self.ops.solve_factored(self.lu, b[self.order], False)
        y = self.ops.solve_factored(self.lu, b, True)
        x = self.ops.xp.empty_like(y)
        x[self.order] = y
        return x

    def solve_scaled(self, b, adjoint=False):
        """Return A**-1 b, or A**-H b, for FP64 b of any size, to the precision of the factors."""
        x = self.ops.substitute(self.lu, b, adjoint, self.inverses, self.order)
        return _solve_scaled(self, self.lu.dtype, b, adjoint) if x is None else x

    def aside(self, name, body):
        """Start body(), which solves with these factors, as `Ops.aside`; it counts if they prove good."""
        if self.inverses is None:
            return None
        return self.ops.aside(self.lu, (self.order, self.inverses), name, body)

    def ahead(self, a, b, steps):
        """Start the first steps with these factors of a, as `Ops.ahead`; they count if they prove good."""
        if self.inverses is None:
            return None
        return self.ops.ahead(self.lu, self.inverses, self.order, a, b, steps)

    @property
    def are_good(self):
        """Whether what was solved before anything was known of the factors stands."""
        return not self.bad_pivot and self.inverses is not None

    def diagonal(self):
        """Return the diagonal of U and the sign of the permutation."""
        return self.lu.diagonal(), -1 if self._read()[1] % 2 else 1

    def gecon(self, norm_one):
        """Return None: the caller's own estimator is needed."""
        return None


@dataclass(frozen=True)
class NativeFactors:
    """The library's own LU (LAPACK's or cuSOLVER's getrf)."""

    ops: Any
    dtype: Any
    factors: Any
    bad_pivot: int
    nbytes: int

    def solve(self, b, adjoint=False):
        """Return A**-1 b, or A**-H b, in the dtype of the factors."""
        return self.ops.getrs(self.factors, b, adjoint)

    def solve_scaled(self, b, adjoint=False):
        """Return A**-1 b, or A**-H b, for FP64 b of any size, to the precision of the factors."""
        return _solve_scaled(self, self.dtype, b, adjoint)

    def ahead(self, a, b, steps):
        """Start nothing: the library's solves are done one by one."""
        return None

    def aside(self, name, body):
        """Start nothing: the library's solves leave nothing beside them."""
        return None

    def diagonal(self):
        """Return the diagonal of U and the sign of the permutation."""
        return self.ops.diagonal(self.factors)

    def gecon(self, norm_one):
        """Return the library's rcond, or None if it has no estimator."""
        return self.ops.gecon(self.factors, norm_one)


def _solve_scaled(factors, dtype, b, adjoint):
    """Bring the columns of b to size 1, where small ones cannot underflow in `dtype`, solve, undo it."""
    xp = factors.ops.xp
    size = factors.ops.column_max(b)
    size = xp.where(size > 0, size, 1.0)
    return factors.solve((b / size).astype(dtype), adjoint) * size


def factor_native(ops, a, dtype):
    """Factor a with the library's getrf in `dtype`; a is not modified."""
    factors, bad_pivot = ops.getrf(a, dtype)
    return NativeFactors(ops, dtype, factors, bad_pivot, a.size * dtype.itemsize)


def factor_blocked(ops, w, update, block, look_ahead=True):
    """Factor the row-major n x n matrix w in place, updating with `update`.

    Parameters
    ----------
    ops : Ops
    w : array, shape (n, n), float32, float64 or complex
        Overwritten by the factors.
    update : Update
    block : int
        Columns of an outer panel.
    look_ahead : bool
        Whether panels may run beside updates; the factors are the same bits with and without.

    Returns
    -------
    BlockedFactors
    """
    name = (update.name, block, look_ahead)
    return BlockedFactors(
        ops, w, *ops.replayed(w, name, lambda: _launch(ops, w, update, block, look_ahead))
    )


def _launch(ops, w, update, block, look_ahead):
    """Factor w in place without waiting for it.

    Returns
    -------
    order : array, shape (n,)
    report : array, shape (3,)
        The first bad pivot (or NO_BAD_PIVOT), the number of rows that were exchanged, and the measure of the
        inverses.
    inverses : array or None
        Of the diagonal blocks, where the device solves with them.
    """
    n, xp = w.shape[0], ops.xp
    order = xp.arange(n, dtype=xp.int32)
    ipiv = xp.empty(n, dtype=xp.int32)
    info = xp.full(1, NO_BAD_PIVOT, dtype=xp.int32)
    last = None
    for j in range(0, n, block):
        k = min(block, n - j)
        rest, right = slice(j + k, n), slice(j, j + k)
        if last is not None:
            last.update(j, j + k)
        # Where each row of the panel came from; moved with them, then applied to the other columns.
        local = xp.arange(n - j, dtype=xp.int32)
        beside = _Remainder(ops, last, j + k, look_ahead)
        _factor_panel(ops, w[j:, right], ipiv[right], j, local, info, beside)
        dst = xp.concatenate([xp.arange(k, dtype=xp.int32), ipiv[right] - j])
        src = local[dst]
        order[j:] = order[j:][local]
        ops.move_rows(w[j:, :j], dst, src)
        ops.move_rows(w[j:, rest], dst, src)
        ops.solve_unit_lower(w[right, right], w[right, rest])
        last = beside = None  # its operands are freed before the next are allocated
        if j + k < n:
            last = _Update(ops, w[rest, rest], j + k, w[rest, right], w[right, rest], update)
    inverses, worst = ops.invert_diagonal_blocks(w) or (None, xp.zeros(1))
    report = xp.empty(3)  # to be read at once
    report[:1], report[1], report[2:] = info, (ipiv != xp.arange(n, dtype=xp.int32)).sum(), worst
    return order, report, inverses


class _Update:
    """The trailing update of a panel: c -= l u, by columns of the matrix; those of c start at `first`."""

    def __init__(self, ops, c, first, l, u, how):
        self._ops, self._c, self._first = ops, c, first
        self.operands = ops.operands(l, u, how)

    @property
    def stop(self):
        return self._first + self._c.shape[1]

    def update(self, start, stop):
        columns = slice(start - self._first, stop - self._first)
        self._ops.subtract_product(self._c[:, columns], self.operands, columns)


class _Remainder:
    """The part of an update right of the next panel, done beside that panel's strips."""

    def __init__(self, ops, last, first, look_ahead):
        self._ops, self._last, self._next, self._look_ahead = ops, last, first, look_ahead

    def run_beside(self, panel, rows, width, is_last):
        """Run panel(started), a strip of `width` columns, and as much as takes about as long, or all."""
        last, first = self._last, self._next
        if last is None or first == last.stop:
            return panel(None)
        columns = self._ops.columns_beside(rows, width, last.operands)
        self._next = stop = last.stop if is_last else min(last.stop, first + columns)

        def update():
            last.update(first, stop)

        if self._look_ahead and self._ops.gains_beside(rows):
            return self._ops.beside(panel, update)
        panel(None)
        update()


def _strips(ops, m, k, dtype):
    """Return the column ranges of the strips of an m x k panel."""
    strips, start = [], 0
    while start < k:
        stop = start + min(k - start, ops.strip_width(m - start, k - start, dtype))
        strips.append((start, stop))
        start = stop
    return strips


def _factor_panel(ops, p, ipiv, row0, order, info, beside):
    """Factor the m x k panel p in place, strip by strip.

    Rows of p, and `order`, are swapped as a whole; ipiv counts rows of the matrix, whose row row0 is
    row 0 of p.
    """
    m, k = p.shape
    storage = UPDATES["fp64" if p.dtype.char in "dD" else "fp32"]
    for start, stop in _strips(ops, m, k, p.dtype):
        done, rest = slice(start, stop), slice(stop, k)

        def panel(started, start=start, stop=stop):
            ops.panel_lu(p, start, stop, ipiv, row0, order, info, started)

        beside.run_beside(panel, m - start, stop - start, is_last=stop == k)
        ops.update(p[stop:, rest], p[stop:, done], p[done, rest], storage)
