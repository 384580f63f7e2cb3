"""LU with partial pivoting, its trailing updates in any of the listed arithmetics.

Right-looking, blocked at two levels: panels, made of strips that one kernel (or LAPACK) factors.  The matrix
and the panel keep the storage precision; the operands of the update between panels are rounded, and so are,
to nearly that precision, those of products inside panels and of those with the inverse of L11 that make U.
A `Schedule` says what is done in which arithmetic; this module walks it.

Look-ahead: swaps, U and update reach the columns of the next panel first, and all others while that panel is
factored (`_Step`).  Where pivots are expected on the diagonal a panel may be square (`_Panel`); then L below
it, and U right of it, are products in the arithmetic of the updates.
"""

from tcsolve._contract.schedule import schedule
from tcsolve._lu.factors import NO_BAD_PIVOT, BlockedFactors

__all__ = ["factor_blocked"]


def factor_blocked(ops, w, update, block=None, look_ahead=True, dominant=False):
    """Factor the row-major n x n matrix w in place, updating with `update`.

    Parameters
    ----------
    ops : Ops
    w : array, shape (n, n), float32, float64 or complex
        Overwritten by the factors.
    update : Update
    block : int, optional
        Columns of a panel (see `schedule`).
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

    def launch():
        rules = ops.lu_rules(w.dtype, w)
        return _launch(ops, w, schedule(len(w), update, rules, *options))

    return BlockedFactors(ops, w, *ops.replayed(w, (update.name, *options), launch))


def _launch(ops, w, plan):
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
    first, *others = plan.panels
    panel = _Panel(ops, w, first, rows, ipiv, found, plan.update)
    panel.factor()
    for step_plan, panel_plan in zip(plan.steps, others, strict=True):
        following = _Panel(ops, w, panel_plan, rows, ipiv, found, plan.update)
        step = _Step(panel, following, step_plan)
        if step_plan.is_beside:
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

    def __init__(self, panel, following, plan):
        self._panel, self.following, self._plan, self.update = panel, following, plan, plan.update
        self._n, self._first, self._near = panel.w.shape[1], plan.first, plan.near
        self.swaps_known, self.fills = panel.unswapped == panel.stop, plan.first < plan.near
        self.completes = panel.is_square

    def solve_first(self):
        """Swap and solve for U in the columns that come first."""
        self._panel.solve_first(self._first)

    def complete(self):
        """Make L below a panel that is square."""
        self._panel.complete()

    def update_first(self):
        """Update them, if the next panel is square in its rows alone."""
        how, last_row = self._plan.near_update, self._plan.last_row
        self._panel.update(self._panel.stop, self._first, how, last_row=last_row)

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
            self._panel.update(self._first, self._near, self._plan.near_update)

    def solve_rest(self, share):
        """Solve for U in all columns beyond."""
        self._panel.solve(self._near, self._n, share)

    def rest(self, share):
        """Update what is left of the columns that came first, and all beyond."""
        how, last_row = self._plan.near_update, self._plan.last_row
        if last_row is not None:
            self._panel.update(self._panel.stop, self._first, how, first_row=last_row)
        self._panel.update(self._near, self._n, self.update, share)

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
    plan : PanelPlan
    strips : tuple of (int, int)
        Ranges of its columns.
    unswapped : int
        The first column, of those from `start` on, to which its swaps have not been applied.
    substitution : object or None
        What `substitute` made, for `solve` and, if the panel is square, `solve_first`.
    """

    def __init__(self, ops, w, plan, rows, ipiv, found, update):
        self.w, self.plan, self.start, self.stop = w, plan, plan.start, plan.stop
        start, stop = plan.start, plan.stop
        self.p, self.is_square = w[start : start + plan.rows, start:stop], plan.is_square
        self.strips = plan.strips
        self._ops, (self._info, self._beyond) = ops, found
        self._ipiv, self._update = ipiv[start:stop], update
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
        for (start, stop), catch_up in zip(self.strips[1:], self.plan.catch_ups, strict=True):
            self._catch_up(catch_up)
            self._swaps = self._factor_strip(start, stop, None)
        self._ops.swap_rows(self.p[start:], self._swaps)
        self._swaps = self._ops.merge_swaps(self._order, self._local, self._ipiv, self.start)
        self.unswapped = self.stop
        if self.is_square:
            self._bound = self._ops.bound(self.p, self._beyond)
        if self.plan.is_wide and self.plan.is_early:
            self._ops.together(self._prepare_l, self.substitute)

    def solve_first(self, last):
        """Swap and solve for U in the columns up to `last` that come first; round L meanwhile if it is wide.

        By substitution, unless the panel is square: they are few, and the inverse takes longer.  Where that
        is there already, and L rounded, by substitution all the same: no bit may depend on it.
        """

        def solve():
            self.swap(self.unswapped, last, self.substitution if self.is_square else None)

        if self.plan.is_wide and not self.plan.is_early:
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
            l, columns = self.p[: self.p.shape[1]], self.w.shape[1] - self.stop
            args = l, columns, self.plan.substitution, self.plan.is_dominant, self._bound
            self.substitution = self._ops.substitution(*args)

    def _factor_strip(self, start, stop, started):
        args = (self._ipiv, self.start, self._local, self._info, started)
        return self._ops.strip_lu(self.p, start, stop, *args)

    def _catch_up(self, plan):
        """Bring columns here:last of the panel up to date with first:here.

        The last strip of those still has its swaps to be done.
        """
        p, ops, first, here, last = self.p, self._ops, plan.first, plan.here, plan.last
        done, late, below = slice(first, here), slice(here, last), slice(here, None)
        if plan.at_once:
            ops.block_row(p[first:], first, here, self._swaps, 0, last, None)
            if last < p.shape[1]:
                ops.swap_rows(p[first:, last:], self._swaps)
        else:
            ops.swap_rows(p[plan.swapped :], self._swaps)
            ops.solve_unit_lower(p[done, done], p[done, late])
        ops.update(p[below, late], p[below, done], p[done, late], plan.update)

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
