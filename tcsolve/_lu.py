"""LU with partial pivoting, its trailing updates in any of the listed arithmetics.

Right-looking, blocked at two levels: panels of `block` columns, made of strips that one kernel (or LAPACK)
factors.  The matrix and the panel keep the storage precision; the operands of the update between panels are
rounded, and so are, to nearly that precision and where `Ops.inner_update` says so, those of products inside
panels, and of those with the inverse of L11 that make U (`Ops.substitution`).  Look-ahead: swaps, U and
update reach the columns of the next panel first, and all others beside that and its factorization.
"""

from dataclasses import dataclass
from typing import Any

__all__ = ["BlockedFactors", "NativeFactors", "factor_blocked", "factor_native", "panels", "strips"]

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
        self._read_report, self._found = ops.reading(report), None

    def _read(self):
        """Return the first bad pivot and the number of swapped rows, waiting for the factorization once."""
        if self._found is None:
            (report,) = self._read_report()
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


def panels(ops, n, update, block=None):
    """Return the column ranges of the outer panels of an n x n matrix.

    block is their width; by default that is best for what is left of the matrix.
    """
    found, start = [], 0
    while start < n:
        stop = min(n, start + (block or ops.default_block(n - start, update)))
        found.append((start, stop))
        start = stop
    return found


def factor_blocked(ops, w, update, block=None, look_ahead=True):
    """Factor the row-major n x n matrix w in place, updating with `update`.

    Parameters
    ----------
    ops : Ops
    w : array, shape (n, n), float32, float64 or complex
        Overwritten by the factors.
    update : Update
    block : int, optional
        Columns of an outer panel (see `panels`).
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
    first, *others = panels(ops, n, update, block)
    panel = _Panel(ops, w, *first, order, ipiv, info, update)
    panel.factor()
    for start, stop in others:
        following = _Panel(ops, w, start, stop, order, ipiv, info, update)
        _eliminate(ops, panel, following, update, look_ahead)
        panel = following
    panel.swap(0, panel.start)
    panel.swap(panel.unswapped, n)
    inverses, worst = ops.invert_diagonal_blocks(w) or (None, xp.zeros(1))
    report = xp.empty(3)  # to be read at once
    report[:1], report[1], report[2:] = info, (ipiv != xp.arange(n, dtype=xp.int32)).sum(), worst
    return order, report, inverses


def _eliminate(ops, panel, following, update, look_ahead):
    """Eliminate with a factored panel, and factor the one that follows.

    The columns of that one come first, so that it can be factored beside the elimination in all others.
    """
    n = panel.w.shape[1]
    ahead = ops.gains_beside(n - panel.stop)
    near = following.stop if ahead else n

    def reach():
        panel.swap(panel.unswapped, near)
        how = ops.near_update(update, panel.p) if ahead else update
        panel.update(panel.stop, near, how)

    def prepare():
        panel.prepare()
        panel.swap(0, panel.start)
        panel.swap(near, n)

    def rest(share):
        panel.update(near, n, update, share)

    if ahead and look_ahead:
        # A panel of one strip finds its own rows when `reach` swaps them.
        at_once = panel.unswapped == panel.stop
        ops.beside(reach, following, prepare, rest, update, at_once)
    else:
        reach()
        following.factor()
        prepare()
        rest(None)


class _Panel:
    """Columns start:stop of w, from row `start` on: factored strip by strip, then eliminated with.

    Attributes
    ----------
    p : array, shape (n - start, stop - start)
        A view of w.
    strips : list of (int, int)
        Ranges of its columns.
    unswapped : int
        The first column, of those from `start` on, to which its swaps have not been applied.
    """

    def __init__(self, ops, w, start, stop, order, ipiv, info, update):
        self.w, self.start, self.stop, self.p = w, start, stop, w[start:, start:stop]
        self.strips = strips(ops, *self.p.shape, w.dtype)
        self._ops, self._order, self._info = ops, order[start:], info
        self._ipiv, self._update = ipiv[start:stop], update
        self.unswapped = start
        self._swaps, self._operands, self._substitution = None, {}, None
        # Where each row of the panel came from, if there is more than one strip; moved with them.
        self._local = None

    def factor(self):
        """Factor all strips."""
        self.begin(None)
        self.finish()

    def begin(self, started):
        """Factor the first strip; `started` is what `Ops.beside` hands over."""
        whole = len(self.strips) == 1
        xp = self._ops.xp
        self._local = self._order if whole else xp.arange(len(self.p), dtype=xp.int32)
        self._swaps = self._factor_strip(*self.strips[0], started)

    def finish(self):
        """Factor the other strips, and, if there is time, prepare the substitution for most of U."""
        if len(self.strips) == 1:
            return
        xp, local, k = self._ops.xp, self._local, self.p.shape[1]
        self._ops.swap_rows(self.p, self._swaps)
        for number, (start, stop) in enumerate(self.strips[1:], 1):
            self._catch_up(number)
            self._ops.swap_rows(self.p[start:], self._factor_strip(start, stop, None))
        dst = xp.concatenate([xp.arange(k, dtype=xp.int32), self._ipiv - self.start])
        self._swaps, self.unswapped = (dst, local[dst]), self.stop
        self._order[...] = self._order[local]
        if self._ops.waits_for_update(self._update, len(self.p)):
            self.prepare()

    def prepare(self):
        """Prepare the substitution for U in many columns."""
        l, columns = self.p[: self.p.shape[1]], self.w.shape[1] - self.stop
        if self._substitution is None and len(self.strips) > 1:
            how = self._ops.inner_update(self._update, self.p)
            self._substitution = self._ops.substitution(l, columns, how)

    def _factor_strip(self, start, stop, started):
        args = (self._ipiv, self.start, self._local, self._info, started)
        return self._ops.strip_lu(self.p, start, stop, *args)

    def _catch_up(self, number):
        """Bring strip `number`, and as many after it as its lowest bit says, up to date.

        With as many strips before it.  So every strip has been eliminated with all before it when its turn
        comes, as by recursion: products are deep, and few read and write the same columns.
        """
        p, ops, count = self.p, self._ops, number & -number
        first, here = (self.strips[i][0] for i in (number - count, number))
        last = self.strips[min(number + count, len(self.strips)) - 1][1]
        done, late, below = slice(first, here), slice(here, last), slice(here, None)
        how = ops.inner_update(self._update, p)
        ops.solve_unit_lower(p[done, done], p[done, late])
        ops.update(p[below, late], p[below, done], p[done, late], how)

    def swap(self, first, last):
        """Swap rows in columns first:last of w and, right of the panel, solve for those of U."""
        if first < last:
            args = (self.start, self.stop, self._swaps, first, last, self._substitution)
            self._ops.block_row(self.w[self.start :], *args)

    def update(self, first, last, how, share=None):
        """Update columns first:last of w, right of the panel, below its rows."""
        if first == last:
            return
        below, columns = slice(self.stop, None), slice(first, last)
        if how.name not in self._operands:
            self._operands[how.name] = self._ops.operand(self.w[below, self.start : self.stop], how)
        u = self.w[self.start : self.stop, columns]
        self._ops.subtract_product(self.w[below, columns], self._operands[how.name], u, share)


def strips(ops, m, k, dtype):
    """Return the column ranges of the strips of an m x k panel."""
    found, start = [], 0
    while start < k:
        stop = start + min(k - start, ops.strip_width(m - start, k - start, dtype))
        found.append((start, stop))
        start = stop
    return found
