"""LU with partial pivoting, its trailing updates in any of the listed arithmetics.

Right-looking, blocked at two levels: panels of `block` columns, made of strips that one kernel (or LAPACK)
factors.  The matrix and the panel keep the storage precision; the operands of the update between panels are
rounded, and so are, to nearly that precision and where `Ops.inner_update` says so, those of products inside
panels, and of those with the inverse of L11 that make U (`Ops.substitution`).  Look-ahead: swaps, U and
update reach the columns of the next panel first, and all others beside that and its factorization (`_Step`).

Where pivots are expected on the diagonal a panel may be square (`_Panel`); U and L beside a square are
products in the arithmetic of the updates.
"""

from tcsolve._lu.factors import NO_BAD_PIVOT, BlockedFactors

__all__ = ["factor_blocked", "panels", "strips"]


def panels(ops, n, update, block=None, dominant=False):
    """Return the column ranges of the outer panels of an n x n matrix, `dominant` or not.

    block is their width; by default that is best for what is left of the matrix.
    """
    found, start = [], 0
    while start < n:
        stop = min(n, start + (block or ops.default_block(n - start, update, dominant)))
        found.append((start, stop))
        start = stop
    return found


def factor_blocked(ops, w, update, block=None, look_ahead=True, dominant=False):
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
    dominant : bool
        Whether A is expected to be diagonally dominant by rows, and its pivots on the diagonal: a matter of
        speed, and of rounding.  If it is not, the factors may be `misled`.

    Returns
    -------
    BlockedFactors
    """
    options = (block, look_ahead, dominant)
    name = (update.name, *options)
    return BlockedFactors(ops, w, *ops.replayed(w, name, lambda: _launch(ops, w, update, *options)))


def _launch(ops, w, update, block, look_ahead, dominant):
    """Factor w in place without waiting for it.

    Returns
    -------
    order : array, shape (n,)
    report : array, shape (4,)
        The first bad pivot (or NO_BAD_PIVOT), the number of rows that were exchanged, the measure of the
        inverses, and whether something was not as it was expected of a dominant matrix.
    inverses : array or None
        Of the diagonal blocks, where the device solves with them.
    """
    n, xp = w.shape[0], ops.xp
    order = xp.arange(n, dtype=xp.int32)
    ipiv = xp.empty(n, dtype=xp.int32)
    found = xp.full(1, NO_BAD_PIVOT, dtype=xp.int32), xp.zeros(1, dtype=xp.int32)
    rows = order, xp.arange(n, dtype=xp.int32)
    first, *others = panels(ops, n, update, block, dominant)
    panel = _Panel(ops, w, *first, rows, ipiv, found, update, dominant)
    panel.factor()
    for start, stop in others:
        following = _Panel(ops, w, start, stop, rows, ipiv, found, update, dominant)
        step = _Step(ops, panel, following, update)
        if step.ahead and look_ahead:
            ops.beside(step)
        else:
            step.do()
        panel = following
    panel.swap(0, panel.start)
    panel.swap(panel.unswapped, n)
    inverses, worst = ops.invert_diagonal_blocks(w) or (None, xp.zeros(1))
    info, beyond = found
    return order, ops.report(info, ipiv, worst, beyond), inverses  # the report will be read at once


class _Step:
    """The elimination with a factored panel, and the factorization of the one that follows, in parts.

    The columns of that one come first, so that it can be factored beside the elimination in all others: of a
    wide one even those of its first strip.  `Ops.beside` tells which parts need which.

    Attributes
    ----------
    following : _Panel
    update : Update
        That of `rest`.
    swaps_known : bool
        Whether swaps may be done in any order: a panel of one strip finds its own rows in `solve_first`, and
        swaps where it solves.
    fills : bool
        Whether there is anything to `fill`.
    completes : bool
        Whether there is anything to `complete`.
    """

    def __init__(self, ops, panel, following, update):
        self._panel, self.following, self.update = panel, following, update
        self._n = panel.w.shape[1]
        self.ahead = ops.gains_beside(self._n - panel.stop)
        self._near = following.stop if self.ahead else self._n
        self._first = following.first_columns if self.ahead else self._n
        self._how = ops.near_update(update, panel.p) if self.ahead else update
        self.swaps_known, self.fills = panel.unswapped == panel.stop, self._first < self._near
        self.completes = panel.is_square

    def solve_first(self):
        """Swap and solve for U in the columns that come first."""
        self._panel.solve_first(self._first)

    def complete(self):
        """Make L below a panel that is square."""
        self._panel.complete()

    def update_first(self):
        """Update them, if the next panel is square in its rows alone."""
        self._panel.update(self._panel.stop, self._first, self._how, last_row=self._last_row)

    def substitute(self):
        """Prepare the substitution for U in all others, if it is not done."""
        self._panel.substitute()

    def swap_rest(self):
        """Swap in all columns beyond those that come first, if the swaps are known."""
        if self.swaps_known:
            self._panel.swap_rows(self._first, self._n)

    def swap_done(self):
        """Swap in the columns that are done."""
        self._panel.swap(0, self._panel.start)

    def fill(self):
        """Solve for U and update in the other columns of the next panel."""
        if self.fills:
            self._panel.solve(self._first, self._near)
            self._panel.update(self._first, self._near, self._how)

    def solve_rest(self, share):
        """Solve for U in all columns beyond."""
        self._panel.solve(self._near, self._n, share)

    def rest(self, share):
        """Update what is left of the columns that came first, and all beyond."""
        if self._last_row is not None:
            self._panel.update(self._panel.stop, self._first, self._how, first_row=self._last_row)
        self._panel.update(self._near, self._n, self.update, share)

    @property
    def _last_row(self):
        return self.following.stop if self.ahead and self.following.is_square else None

    def do(self):
        """Do it all, one after the other."""
        self.solve_first()
        self.complete()
        self.update_first()
        self.swap_rest()
        self.substitute()
        self.fill()
        self.following.factor()
        self.swap_done()
        self.solve_rest(None)
        self.rest(None)


class _Panel:
    """Columns start:stop of w, from row `start` on: factored strip by strip, then eliminated with.

    Of a square one only the first rows are: no pivot is looked for below them.  L there is A U11**-1, a
    product, and where it has an entry larger than one the factors are said to be misled.  Else every pivot
    was the largest of its whole column, up to the rounding of that product.

    Attributes
    ----------
    p : array, shape (n - start, stop - start), or square
        A view of w.
    is_square : bool
    strips : list of (int, int)
        Ranges of its columns.
    unswapped : int
        The first column, of those from `start` on, to which its swaps have not been applied.
    substitution : object or None
        What `substitute` made, for `solve` and, if the panel is square, `solve_first`.
    """

    def __init__(self, ops, w, start, stop, rows, ipiv, found, update, dominant):
        self.w, self.start, self.stop, self.p = w, start, stop, w[start:, start:stop]
        self.is_square = dominant and ops.gains_square(self.p, w.shape[1] - stop, update)
        if self.is_square:
            self.p = self.p[: stop - start]
        self.strips = strips(ops, *self.p.shape, w.dtype, dominant)
        self._ops, (self._info, self._beyond) = ops, found
        self._ipiv, self._update, self._dominant = ipiv[start:stop], update, dominant
        self.unswapped = start
        self.substitution, self._right, self._bound = None, None, None
        self._swaps, self._operands = None, {}
        # With several strips, `local` tells where each row of the panel came from, and is moved with them.
        order, local = rows
        self._order = order[start : start + len(self.p)]
        self._local = local[: len(self.p)] if len(self.strips) > 1 else self._order

    def factor(self):
        """Factor all strips."""
        self.begin(None)
        self.finish()

    def begin(self, started):
        """Factor the first strip; `started` is what `Ops.beside` hands over."""
        self._swaps = self._factor_strip(*self.strips[0], started)

    def finish(self):
        """Factor the other strips; if there is time, or the panel is square, prepare what is done with it."""
        if len(self.strips) == 1:
            return
        for number, (start, stop) in enumerate(self.strips[1:], 1):
            self._catch_up(number)
            self._swaps = self._factor_strip(start, stop, None)
        self._ops.swap_rows(self.p[start:], self._swaps)
        self._swaps = self._ops.merge_swaps(self._order, self._local, self._ipiv, self.start)
        self.unswapped = self.stop
        if self.is_square:
            self._bound = self._ops.bound(self.p, self._beyond)
        if self._is_wide and self._is_early:
            self._ops.together(self._prepare_l, self.substitute)

    @property
    def first_columns(self):
        """The column up to which all must be up to date when the panel begins."""
        return self.start + self.strips[0][1] if self._is_wide and not self.is_square else self.stop

    def solve_first(self, last):
        """Swap and solve for U in the columns up to `last` that come first; round L meanwhile if it is wide.

        By substitution, unless the panel is square: they are few, and the inverse takes longer.  Where that
        is there already, and L rounded, by substitution all the same: no bit may depend on it.
        """

        def solve():
            self.swap(self.unswapped, last, self.substitution if self.is_square else None)

        if self._is_wide and not self._is_early:
            self._ops.together(self._prepare_l, solve)
        else:
            solve()

    def _prepare_l(self):
        """Round L below the panel's rows, or begin to make it."""
        if self.is_square:
            self._right = self._ops.right_substitution(self.p, self._update, self._bound)
        else:
            self._operand(self._update, at_once=True)

    def complete(self):
        """Make L below the rows of a square panel, and look at it."""
        if self.is_square:
            l = self.w[self.stop :, self.start : self.stop]
            self._ops.solve_right(l, self.p, self._right)
            self._operand(self._update, at_once=True, bound=self._bound)

    def substitute(self):
        """Prepare the substitution for U in many columns, if there are several strips and it is not done."""
        if len(self.strips) > 1 and self.substitution is None:
            how = self._update if self.is_square else self._ops.inner_update(self._update, self.p)
            l, columns = self.p[: self.p.shape[1]], self.w.shape[1] - self.stop
            args = l, columns, how, self._dominant, self._bound
            self.substitution = self._ops.substitution(*args)

    @property
    def _is_wide(self):
        # The swaps of a single strip are done with its columns.
        k, columns = self.p.shape[1], self.w.shape[1] - self.stop
        return len(self.strips) > 1 and self._ops.is_wide(k, columns)

    @property
    def _is_early(self):
        # Where a panel is factored before the update beside it is over, what follows is prepared meanwhile.
        return self.is_square or self._ops.waits_for_update(len(self.p), self._update)

    def _factor_strip(self, start, stop, started):
        args = (self._ipiv, self.start, self._local, self._info, started)
        return self._ops.strip_lu(self.p, start, stop, *args)

    def _catch_up(self, number):
        """Bring strip `number`, and as many after it as its lowest bit says, up to date.

        With as many strips before it, the last of which still has its swaps to be done.  So every strip has
        been eliminated with all before it when its turn comes, as by recursion: products are deep, and few
        read and write the same columns.
        """
        p, ops, count = self.p, self._ops, number & -number
        first, here = (self.strips[i][0] for i in (number - count, number))
        last = self.strips[min(number + count, len(self.strips)) - 1][1]
        done, late, below = slice(first, here), slice(here, last), slice(here, None)
        how = ops.inner_update(self._update, p[below, done])
        if count == 1:  # at once
            ops.block_row(p[first:], first, here, self._swaps, 0, last, None)
            if last < p.shape[1]:
                ops.swap_rows(p[first:, last:], self._swaps)
        else:
            ops.swap_rows(p[self.strips[number - 1][0] :], self._swaps)
            ops.solve_unit_lower(p[done, done], p[done, late])
        ops.update(p[below, late], p[below, done], p[done, late], how)

    def swap_rows(self, first, last):
        """Swap rows in columns first:last of w."""
        if first < last:
            self._ops.swap_rows(self.w[self.start :, first:last], self._swaps)

    def solve(self, first, last, share=None):
        """Solve for U in columns first:last of w, right of the panel; swap them first if it is one strip."""
        if len(self.strips) == 1:
            self.swap(first, last)
        elif first < last:
            rows = slice(self.start, self.stop)
            args = self.w[rows, rows], self.w[rows, first:last], self.substitution, share
            self._ops.solve_unit_lower(*args)

    def swap(self, first, last, substitution=None):
        """Swap rows in columns first:last of w and, right of the panel, solve for those of U."""
        if first < last:
            args = (self.start, self.stop, self._swaps, first, last, substitution)
            self._ops.block_row(self.w[self.start :], *args)

    def update(self, first, last, how, share=None, first_row=None, last_row=None):
        """Update columns first:last of w, right of the panel, in all rows below it or some of them."""
        if first == last:
            return
        first_row = self.stop if first_row is None else first_row
        c, u = self.w[first_row:last_row, first:last], self.w[self.start : self.stop, first:last]
        self._ops.subtract_product(c, self._operand(how), u, share, first_row - self.stop)

    def _operand(self, how, **options):
        """Return L below the panel's rows as `how` rounds it, perhaps when it is used."""
        if how.name not in self._operands:
            l = self.w[self.stop :, self.start : self.stop]
            self._operands[how.name] = self._ops.operand(l, how, **options)
        return self._operands[how.name]


def strips(ops, m, k, dtype, dominant=False):
    """Return the column ranges of the strips of an m x k panel."""
    found, start = [], 0
    while start < k:
        width = ops.strip_width(m - start, k - start, dtype, dominant)
        stop = start + min(k - start, width)
        found.append((start, stop))
        start = stop
    return found
