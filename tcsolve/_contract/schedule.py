"""The schedule of an LU: its panels, strips and updates, as records that are made before any launch.

`schedule` is a pure function of sizes and of the `Rules` of a device.  The algorithm follows the records and
decides nothing itself.  Tests read the records without a device.

`goes_early` and `goes_ahead` are pure functions too.  They decide what a solve starts before it knows whether
the result is needed.
"""

import functools
from dataclasses import dataclass
from typing import Protocol

from tcsolve._arithmetic.formats import Update

__all__ = [
    "CatchUp",
    "PanelPlan",
    "Rules",
    "Schedule",
    "SolvePlan",
    "StepPlan",
    "goes_ahead",
    "goes_early",
    "schedule",
]


class Rules(Protocol):
    """The choices for an LU on a device, for a dtype and a memory layout of the matrix.

    Rules are immutable and hashable, and equal rules give equal answers.  `start` is the number of the
    first column of a panel, and `right` the number of columns right of it.

    Attributes
    ----------
    overlap_rows : float
        Look-ahead saves time if at least this many rows are below a panel.  These are the rows of the update.
        The next panel has the same rows, unless it is square.
    panel_rows : dict of {int: float}
        The keys are the numbers of products of an update (`Update.products`: 'fp16x3' has three).  Each value
        is the largest number of rows for which a panel takes longer than the update that runs at the same
        time.
    is_recorded : bool
        Whether the memory of the matrix has recorded graphs.
    """

    overlap_rows: float
    panel_rows: dict
    is_recorded: bool

    def block(self, left, update, dominant):
        """Return the width of the next panel of a trailing matrix with `left` rows and columns."""

    def strip(self, rows, columns, dominant):
        """Return the width of the next strip of a panel with `rows` rows and `columns` columns left."""

    def is_wide(self, columns, right):
        """Tell whether a panel is wide.

        The first strip of a wide panel that is not square does not wait for updates of the other columns.
        """

    def is_square(self, start, rows, columns, right, update):
        """Tell whether a panel of a dominant matrix is square: pivots are searched only in its square."""

    def inner_update(self, update, rows, columns):
        """Return the `Update` of products with L inside a panel; it is about as precise as the storage."""

    def near_update(self, update, columns):
        """Return the `Update` for the columns of the next panel: `update` or a more precise one.

        `columns` is the width of the panel that updates them.
        """


@dataclass(frozen=True)
class CatchUp:
    """A product inside a panel: some factored strips update the strips after them.

    Attributes
    ----------
    first, here, last : int
        Columns first:here of the panel are factored and update the columns here:last.
    swapped : int
        The first column of the last factored strip; its swaps are applied before the update.
    at_once : bool
        Whether first:here is a single strip; then one launch does its swaps and the solve for U.
    update : Update
        The arithmetic of the product.
    """

    first: int
    here: int
    last: int
    swapped: int
    at_once: bool
    update: Update


@dataclass(frozen=True)
class SolvePlan:
    """The solves with L11 for U right of a panel.

    Attributes
    ----------
    columns : int
        Number of columns of U.
    update : Update
        The arithmetic of a product with the inverse of L11.
    is_dominant : bool
        Whether pivots are expected on the diagonal.  Then L11 is well conditioned, and its inverse may be
        computed by the fastest method.
    """

    columns: int
    update: Update
    is_dominant: bool


@dataclass(frozen=True)
class PanelPlan:
    """A panel: columns start:stop, from row `start` on.

    Attributes
    ----------
    start, stop : int
        Range of its columns.
    rows : int
        Number of rows: those of the square for a square panel, else all from row `start` on.
    is_square : bool
        Whether pivots are searched only in the square; L below it is a product with U11**-1.
    strips : tuple of (int, int)
        Column ranges of the strips, counted from `start`.
    catch_ups : tuple of CatchUp
        One product before each strip except the first.
    is_wide : bool
        Whether the panel, unless it is square, may begin when the columns of its first strip are updated.
    ends_early : bool
        Whether the panel is expected to be factored before the simultaneous update ends.  If the panel is
        square or wide, the preparations that follow it then start at once.
    substitution : SolvePlan
        The solves for U right of the panel.
    """

    start: int
    stop: int
    rows: int
    is_square: bool
    strips: tuple[tuple[int, int], ...]
    catch_ups: tuple[CatchUp, ...]
    is_wide: bool
    ends_early: bool
    substitution: SolvePlan

    @property
    def first_columns(self):
        """The column of the matrix up to which all updates must be done before the panel begins."""
        return self.start + self.strips[0][1] if self.is_wide and not self.is_square else self.stop


@dataclass(frozen=True)
class StepPlan:
    """The elimination with a panel, in parts, so that the next panel can begin early.

    Attributes
    ----------
    is_ahead : bool
        Whether the columns of the next panel are updated first.
    is_overlapped : bool
        Whether the next panel is factored while other columns are updated.
    first : int
        The columns before this one are updated first.
    near : int
        The first column right of the next panel.  If `is_overlapped`, the columns first:near, if there are
        any, are updated while the next panel is factored.  Unless `is_ahead`, first and near are n.
    near_update, update : Update
        The arithmetic for the columns before `near`, and for all others.
    last_row : int or None
        If the next panel is square, the first row below the square.  Then the update that comes first stops
        at this row, and the rows below are updated with the other columns.
    """

    is_ahead: bool
    is_overlapped: bool
    first: int
    near: int
    near_update: Update
    update: Update
    last_row: int | None


@dataclass(frozen=True)
class Schedule:
    """The panels of a matrix, and the steps between them.

    Attributes
    ----------
    n : int
        Order of the matrix.
    update : Update
        The arithmetic of the trailing updates.
    panels : tuple of PanelPlan
        The panels from left to right.
    steps : tuple of StepPlan
        steps[i] eliminates with panels[i]; the next panel is panels[i + 1].
    is_recorded : bool
        Whether the launches are recorded, and replayed for the next matrix in the same memory.
    divisions : tuple of int
        The steps before which a recording is divided.
    """

    n: int
    update: Update
    panels: tuple[PanelPlan, ...]
    steps: tuple[StepPlan, ...]
    is_recorded: bool
    divisions: tuple[int, ...]


@functools.lru_cache(maxsize=256)
def schedule(n, update, rules, block=None, look_ahead=True, dominant=False):
    """Return the `Schedule` of the LU of an n x n matrix.

    Parameters
    ----------
    n : int
    update : Update
    rules : Rules
    block : int, optional
        Width of a panel; by default the best width for each trailing matrix.
    look_ahead : bool
        Whether a panel may be factored at the same time as an update.  The factors have the same bits with
        and without it.
    dominant : bool
        Whether pivots are expected on the diagonal.
    """
    panels, start = [], 0
    while start < n:
        stop = min(n, start + (block or rules.block(n - start, update, dominant)))
        panels.append(_panel(n, start, stop, update, rules, dominant))
        start = stop
    pairs = zip(panels[:-1], panels[1:], strict=True)
    steps = (_step(n, panel, following, update, rules, look_ahead) for panel, following in pairs)
    is_recorded = rules.is_recorded and not update.is_model
    return Schedule(
        n, update, tuple(panels), tuple(steps), is_recorded, _divisions(len(panels) - 1)
    )


def _divisions(steps):
    """Return the steps before which a recording is divided.

    The first part is short, because the device waits until it is launched.  While the device works on it, the
    host launches the second part, and so on.
    """
    return tuple(sorted({1, steps // 4} & set(range(1, steps))))


def _panel(n, start, stop, update, rules, dominant):
    columns, right = stop - start, n - stop
    is_square = dominant and rules.is_square(start, n - start, columns, right, update)
    rows = columns if is_square else n - start
    strips = _strips(rows, columns, rules, dominant)
    catch_ups = tuple(_catch_up(i, strips, rows, update, rules) for i in range(1, len(strips)))
    several = len(strips) > 1
    inner = update if is_square else rules.inner_update(update, rows, columns)
    return PanelPlan(
        start,
        stop,
        rows,
        is_square,
        strips,
        catch_ups,
        # A panel of one strip is never wide: its rows are swapped only together with the solve for U.
        is_wide=several and rules.is_wide(columns, right),
        ends_early=is_square or rows > rules.panel_rows[update.products],
        substitution=SolvePlan(right, inner, dominant),
    )


def _strips(rows, columns, rules, dominant):
    found, start = [], 0
    while start < columns:
        left = columns - start
        stop = start + min(left, rules.strip(rows - start, left, dominant))
        found.append((start, stop))
        start = stop
    return tuple(found)


def _catch_up(number, strips, rows, update, rules):
    """Return the product before strip `number`, in the order of the recursive LU.

    Let 2**t be the largest power of two that divides i = `number`.  The 2**t strips before strip i update the
    strips i, i + 1, ..., i + 2**t - 1.  So every strip has all updates when it is factored.  The products
    have large inner dimensions, and each column is read and written only a few times.
    """
    count = number & -number
    first, here = strips[number - count][0], strips[number][0]
    last = strips[min(number + count, len(strips)) - 1][1]
    how = rules.inner_update(update, rows - here, here - first)
    return CatchUp(first, here, last, strips[number - 1][0], count == 1, how)


def _step(n, panel, following, update, rules, look_ahead):
    if n - panel.stop < rules.overlap_rows:
        return StepPlan(False, False, n, n, update, update, None)
    near = rules.near_update(update, panel.stop - panel.start)
    last_row = following.stop if following.is_square else None
    first = following.first_columns
    return StepPlan(True, look_ahead, first, following.stop, near, update, last_row)


def goes_early(a, most):
    """Tell whether the LU of a may start before the survey of a is read, where `most` is `Ops.early_rows`.

    The answer depends only on the shape, the dtype and the layout of a, so that equal input gives equal bits.
    """
    return len(a) <= most and a.dtype.char in "fd" and a.flags.c_contiguous


def goes_ahead(a, b, most):
    """Tell whether `LUOps.ahead` supports a and b, where `most` is `Ops.ahead_rows`.

    The answer does not depend on what is cached.
    """
    if not (len(b) <= most and b.shape[1] == 1 and b.dtype.char == "d"):
        return False
    has_rows = a.strides[1] == a.itemsize and a.strides[0] > 0
    return a.size > 0 and a.dtype.char in "fd" and has_rows
