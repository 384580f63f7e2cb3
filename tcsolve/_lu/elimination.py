"""Right-looking LU with partial pivoting; the trailing update has the arithmetic of an `Update`.

`rounded_elimination` has the LU for an `Update` with `rounds_each`.

There are two levels of blocks.  A panel consists of strips; one kernel, LAPACK or cuSOLVER factors a strip.
The matrix and the panel keep the storage precision.  The operands of the trailing update are rounded.
Products inside a panel, and products with the inverse of L11 that compute U, are about as precise as the
storage.  A `Schedule` lists all steps with their arithmetic; this module does them.

Look-ahead: row swaps, the solve for U and the update are done first for the columns of the next panel.  Then
the next panel is factored while all other columns are updated (`_Step`).

If pivots are expected on the diagonal, a panel may be square (`_Panel`).  Then the blocks of L below it and
of U right of it are products in the arithmetic of the updates.
"""

import functools
from typing import Any, NamedTuple

from tcsolve._contract.lu import Packed, Pivots
from tcsolve._contract.schedule import schedule
from tcsolve._lu.factors import NO_BAD_PIVOT, BlockedFactors
from tcsolve._paths import paths

__all__ = ["factor_blocked"]


def factor_blocked(ops, w, update, block=None, look_ahead=True, dominant=False):
    """Factor the row-major n x n matrix w in place, with the arithmetic `update` of the trailing updates.

    Parameters
    ----------
    ops : Ops
    w : array, shape (n, n), float32, float64 or complex
        Overwritten by the factors.
    update : Update
    block : int, optional
        Number of columns of a panel (see `schedule`).
    look_ahead : bool
        Whether a panel may be factored at the same time as an update.  The factors have the same bits
        with and without it.
    dominant : bool
        Whether A is expected to be diagonally dominant by rows, with its pivots on the diagonal.  This
        changes the speed and the rounding.  If A is not dominant, the factors may be unusable
        (`BlockedFactors.misled`).

    Returns
    -------
    BlockedFactors
    """
    options = (block, look_ahead and paths().look_ahead, dominant)
    plan = schedule(len(w), update, ops.lu.rules(w.dtype, w), *options)
    name = (update.name, *options) if plan.is_recorded else None
    order, report, inverses = ops.replayed(w, name, functools.partial(_launch, ops, w, plan))
    return BlockedFactors.of(ops, Packed(w, order, inverses), report)


def _launch(ops, w, plan, divide):
    """Launch the factorization of w in place, without waiting for it; `divide` as for `Ops.replayed`.

    Returns
    -------
    order : array, shape (n,)
        order[i] is the row of A that becomes row i.
    report : array, shape (4,)
        That of `LUOps.finish`, where info is the first bad pivot or NO_BAD_PIVOT.
    inverses : array or None
        The inverses of the diagonal blocks, if the device solves with them.
    """
    n, xp = w.shape[0], ops.xp
    order = xp.arange(n, dtype=xp.int32)
    ipiv = xp.empty(n, dtype=xp.int32)
    info, beyond = xp.full(1, NO_BAD_PIVOT, dtype=xp.int32), xp.zeros(1, dtype=xp.int32)
    local = xp.arange(n, dtype=xp.int32)
    matrix = _Matrix(w, plan.update, order, local, ipiv, info, beyond)
    first, *others = plan.panels
    panel = _Panel.of(ops.lu, matrix, first)
    panel.factor()
    for number, (step_plan, panel_plan) in enumerate(zip(plan.steps, others, strict=True)):
        if number in plan.divisions:
            divide()
        following = _Panel.of(ops.lu, matrix, panel_plan)
        step = _Step(panel, following, step_plan)
        if step_plan.is_overlapped:
            ops.lu.overlap(step)
        else:
            step.do()
        panel = following
    panel.swap(0, panel.start)
    panel.swap(panel.unswapped, n)
    report, inverses = ops.lu.finish(w, ipiv, info, beyond)
    return order, report, inverses


class _Matrix(NamedTuple):
    """The matrix that is factored, and the arrays that all panels share.

    Attributes
    ----------
    w : array, shape (n, n)
    update : Update
        The arithmetic of the trailing updates.
    order : array, shape (n,)
        order[i] is the row of A that is now row i.
    local : array, shape (n,)
        Memory for the order of the rows of one panel.
    ipiv : array, shape (n,)
        The pivots, as in `Pivots`.
    info, beyond : array, shape (1,)
        The first bad pivot, and whether an entry was larger than is expected of a dominant matrix.
    """

    w: Any
    update: Any
    order: Any
    local: Any
    ipiv: Any
    info: Any
    beyond: Any


class _Step:
    """One step of the LU in parts: eliminate with a factored panel, and factor the following panel.

    The columns of the following panel are updated first, so that it can be factored while all other columns
    are updated.  If the following panel is wide but not square, only the columns of its first strip come
    first.  `LUOps.overlap` lists which part needs which.

    Attributes
    ----------
    following : _Panel
        The following panel.
    update : Update
        The arithmetic of `rest` for the columns right of the following panel.
    swaps_known : bool
        Whether the swaps have been applied to all columns of the panel, so that they may be applied to other
        columns at any time.  For a panel of one strip they have not: `solve_first` applies them to the panel,
        and each solve for U applies them to the columns that it solves for.
    fills : bool
        Whether `fill` has anything to do.
    completes : bool
        Whether `complete` has anything to do.
    """

    def __init__(self, panel, following, plan):
        self._panel, self.following, self._plan, self.update = panel, following, plan, plan.update
        self._n, self._first, self._near = panel.w.shape[1], plan.first, plan.near
        self.swaps_known, self.fills = panel.unswapped == panel.stop, plan.first < plan.near
        self.completes = panel.is_square

    def solve_first(self):
        """Swap rows and solve for U in the columns that come first."""
        self._panel.solve_first(self._first)

    def complete(self):
        """Compute L below a square panel."""
        self._panel.complete()

    def update_first(self):
        """Update the columns that come first; if the following panel is square, only its rows."""
        how, last_row = self._plan.near_update, self._plan.last_row
        self._panel.update(self._panel.stop, self._first, how, last_row=last_row)

    def substitute(self):
        """Prepare the solves for U in the other columns, unless that is done already."""
        self._panel.substitute()

    def swap_rest(self):
        """Swap rows in all columns right of those that come first, if the swaps are known."""
        if self.swaps_known:
            self._panel.swap_rows(self._first, self._n)

    def swap_done(self):
        """Swap rows of L in the columns left of the panel."""
        self._panel.swap(0, self._panel.start)

    def fill(self):
        """Solve for U and update in the columns of the following panel that did not come first."""
        if self.fills:
            self._panel.solve(self._first, self._near)
            self._panel.update(self._first, self._near, self._plan.near_update)

    def solve_rest(self, share):
        """Solve for U in all columns right of the following panel."""
        self._panel.solve(self._near, self._n, share)

    def rest(self, share):
        """Update all columns right of the following panel, and the rows below it if it is square."""
        how, last_row = self._plan.near_update, self._plan.last_row
        if last_row is not None:
            self._panel.update(self._panel.stop, self._first, how, first_row=last_row)
        self._panel.update(self._near, self._n, self.update, share)

    def do(self):
        """Do all parts, one after the other."""
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
    """A panel: columns start:stop of w, from row `start` on.

    It is factored strip by strip, and then used to eliminate in the columns right of it.

    A square panel has only the first stop - start of these rows, and its pivots are searched only there.  The
    block of L below it is the product of the updated block below the square and U11**-1.  If an entry of this
    block is larger than one, the factors must not be used (`misled`).  Otherwise every pivot was the largest
    entry of its whole column, up to the rounding of the product.

    Attributes
    ----------
    p : array, shape (n - start, stop - start) or (stop - start, stop - start)
        The panel, a view of w.
    is_square : bool
        Whether this is a square panel.
    plan : PanelPlan
        The strips of this panel, and the products between them.
    strips : tuple of (int, int)
        Column ranges of the strips, counted from `start`.
    unswapped : int
        The swaps have been applied to columns start:unswapped of w.
    """

    def __init__(self, lu, matrix, plan, p, order, pivots):
        self._lu, self._matrix, self.w, self.plan = lu, matrix, matrix.w, plan
        self.start, self.stop, self.strips = plan.start, plan.stop, plan.strips
        self.is_square = plan.is_square
        self.p, self._order, self._pivots = p, order, pivots
        self.unswapped, self._swaps, self._operands = plan.start, None, {}
        self._solve = self._square = None

    @classmethod
    def of(cls, lu, matrix, plan):
        """Take the views of a `_Matrix` that a `PanelPlan` needs."""
        columns, rows = slice(plan.start, plan.stop), slice(plan.start, plan.start + plan.rows)
        order = matrix.order[rows]
        # With several strips, local[i] is the number of the row that is now row i of the panel.
        local = matrix.local[: plan.rows] if len(plan.strips) > 1 else order
        pivots = Pivots(plan.start, matrix.ipiv[columns], local, matrix.info)
        return cls(lu, matrix, plan, matrix.w[rows, columns], order, pivots)

    def factor(self):
        """Factor all strips."""
        self.begin(None)
        self.finish()

    def begin(self, started):
        """Factor the first strip; `started` comes from `LUOps.overlap`."""
        self._swaps = self._lu.strip(self.p, *self.strips[0], self._pivots, started)

    def finish(self):
        """Factor the other strips.

        If the panel is square, also prepare the products that compute L below it and U right of it.  If it is
        wide and `ends_early` (`PanelPlan`), but not square, also round L and prepare the solves for U.
        """
        if len(self.strips) > 1:
            self._factor_others()
        if self.is_square:
            plan, beyond = self.plan.substitution, self._matrix.beyond
            self._square = self._lu.square(self.p, plan, beyond)
            self._solve = self._square.solve
        elif self.plan.is_wide and self.plan.ends_early:
            self._lu.together(self._round, self.substitute)

    def _factor_others(self):
        """Factor the strips after the first, and put the swaps of all strips together."""
        for (start, stop), catch_up in zip(self.strips[1:], self.plan.catch_ups, strict=True):
            self._catch_up(catch_up)
            self._swaps = self._lu.strip(self.p, start, stop, self._pivots)
        self._lu.swap_rows(self.p[start:], self._swaps)
        row, ipiv, local, _ = self._pivots
        self._swaps = self._lu.merge_swaps(self._order, local, ipiv, row)
        self.unswapped = self.stop

    def solve_first(self, last):
        """Swap rows and solve for U in the columns up to `last`.

        At the same time, round L of a wide panel, unless `finish` has done that.  L of a square panel is
        not known yet; `complete` computes and rounds it.

        For so few columns, substitution is faster than an inverse of L11, unless the panel is square.
        Substitute even if the inverse exists already, so that no bit depends on the timing.
        """

        def solve():
            self.swap(self.unswapped, last, self._solve if self.is_square else None)

        if self.plan.is_wide and not self.plan.ends_early:
            self._lu.together(self._round, solve)
        else:
            solve()

    def _round(self):
        """Round L below the rows of U."""
        self._operand(self._matrix.update, at_once=True)

    def complete(self):
        """Compute L below a square panel, and check that its entries are at most one."""
        if self.is_square:
            self._square.divide(self.w[self.stop :, self.start : self.stop])
            self._operand(self._matrix.update, at_once=True, bound=self._square.bound)

    def substitute(self):
        """Prepare the solves for U in many columns, if there are several strips; do it only once."""
        if len(self.strips) > 1 and self._solve is None:
            self._solve = self._lu.solver(self.p[: self.p.shape[1]], self.plan.substitution)

    def _catch_up(self, plan):
        """Apply the updates of columns first:here of the panel to its columns here:last.

        The swaps of the last strip of first:here have not been applied yet.
        """
        p, lu, first, here, last = self.p, self._lu, plan.first, plan.here, plan.last
        done, late, below = slice(first, here), slice(here, last), slice(here, None)
        if plan.at_once:
            lu.block_row(p[first:], done, slice(0, last), self._swaps)
            if last < p.shape[1]:
                lu.swap_rows(p[first:, last:], self._swaps)
        else:
            lu.swap_rows(p[plan.swapped :], self._swaps)
            lu.solver(p[done, done])(p[done, late])
        lu.operand(p[below, done], plan.update)(p[below, late], p[done, late])

    def swap_rows(self, first, last):
        """Swap rows in columns first:last of w."""
        if first < last:
            self._lu.swap_rows(self.w[self.start :, first:last], self._swaps)

    def solve(self, first, last, share=None):
        """Solve for U in columns first:last of w, right of the panel; a panel of one strip swaps first."""
        if len(self.strips) == 1:
            self.swap(first, last)
        elif first < last:
            self._solve(self.w[self.start : self.stop, first:last], share)

    def swap(self, first, last, solve=None):
        """Swap rows in columns first:last of w, and solve for U in those right of the panel."""
        if first < last:
            panel, columns = slice(self.start, self.stop), slice(first, last)
            self._lu.block_row(self.w[self.start :], panel, columns, self._swaps, solve)

    def update(self, first, last, how, share=None, first_row=None, last_row=None):
        """Update columns first:last of w, right of the panel, in rows first_row:last_row below U."""
        if first == last:
            return
        first_row = self.stop if first_row is None else first_row
        c, u = self.w[first_row:last_row, first:last], self.w[self.start : self.stop, first:last]
        self._operand(how)(c, u, share, first_row - self.stop)

    def _operand(self, how, **options):
        """Return `LUOps.operand` of L below the rows of U; it is made once for each `Update`."""
        if how.name not in self._operands:
            l = self.w[self.stop :, self.start : self.stop]
            self._operands[how.name] = self._lu.operand(l, how, **options)
        return self._operands[how.name]
