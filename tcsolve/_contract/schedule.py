"""How an LU is cut into panels, strips and updates: decided once, before anything is launched, as records.

`schedule` is a pure function of sizes and of the `Rules` of a device.  Algorithms walk the records and ask
nothing; tests read them without a device.
"""

import functools
from dataclasses import dataclass
from typing import Protocol

from tcsolve._arithmetic.formats import Update

__all__ = ["CatchUp", "PanelPlan", "Rules", "Schedule", "StepPlan", "schedule"]


class Rules(Protocol):
    """What decides how a matrix is cut: of a device, a dtype, and where the matrix lies.

    Rules are immutable and hashable, and equal rules give equal answers.  `start` and `column` name the first
    column of a block of the matrix; `right` counts the columns right of a panel.
    """

    def block(self, left, update, dominant):
        """Return the columns of the next panel where `left` rows and columns are left."""

    def strip(self, rows, columns, dominant):
        """Return the columns of the next strip of a panel where so many rows and columns are left."""

    def is_wide(self, columns, right):
        """Tell whether a panel is reached strip by strip: its first one does not wait for the others."""

    def is_square(self, start, rows, columns, right, update):
        """Tell whether a panel of a dominant matrix looks for pivots in its diagonal block alone."""

    def looks_ahead(self, rows):
        """Tell whether a panel and an update of so many rows are done sooner side by side."""

    def panel_is_sooner(self, rows, update):
        """Tell whether a panel of so many rows is factored before the update that runs with it is over."""

    def inner_update(self, update, column, rows, columns):
        """Return the `Update`, as precise as storage or nearly so, of products with L inside a panel."""

    def near_update(self, update, start, columns):
        """Return the `Update`, this one or a more precise one, of the columns that follow a panel."""


@dataclass(frozen=True)
class CatchUp:
    """The product inside a panel that brings some strips up to date with as many before them.

    Attributes
    ----------
    first, here, last : int
        Columns first:here of the panel are done; here:last are updated.
    swapped : int
        The first column of the last strip that is done: its swaps are applied now.
    at_once : bool
        Whether only one strip is done since: swaps and the solve with it take one launch.
    update : Update
    """

    first: int
    here: int
    last: int
    swapped: int
    at_once: bool
    update: Update


@dataclass(frozen=True)
class PanelPlan:
    """A panel: columns start:stop, from row `start` on.

    Attributes
    ----------
    start, stop : int
    rows : int
        Of a square panel those of its diagonal block, else all below `start`.
    is_square : bool
        Whether pivots are looked for in the diagonal block alone; L below it is a product with U11**-1.
    is_dominant : bool
        Whether pivots are expected on the diagonal.
    strips : tuple of (int, int)
        Ranges of its columns.
    catch_ups : tuple of CatchUp
        One before each strip but the first.
    is_wide : bool
        Whether the next step may begin as soon as the columns of the first strip are up to date.
    is_early : bool
        Whether the panel is factored before the update that runs with it is over: then what follows from it
        is prepared at once.
    substitution : Update
        Of the product that makes U right of the panel.
    """

    start: int
    stop: int
    rows: int
    is_square: bool
    is_dominant: bool
    strips: tuple[tuple[int, int], ...]
    catch_ups: tuple[CatchUp, ...]
    is_wide: bool
    is_early: bool
    substitution: Update

    @property
    def first_columns(self):
        """The column up to which all must be up to date when the panel begins."""
        return self.start + self.strips[0][1] if self.is_wide and not self.is_square else self.stop


@dataclass(frozen=True)
class StepPlan:
    """The elimination with a panel, cut so that the next panel can begin early.

    Attributes
    ----------
    is_ahead : bool
        Whether the columns of the next panel come first.
    is_beside : bool
        Whether the next panel is factored while other columns are updated.
    first : int
        Columns up to this one come first.
    near : int
        Columns up to this one belong to the next panel; those beyond `first` follow while it is factored.
    near_update, update : Update
        Of these columns, and of all others.
    last_row : int or None
        If the next panel is square, the row behind it: columns that come first are updated above it first.
    """

    is_ahead: bool
    is_beside: bool
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
    update : Update
    panels : tuple of PanelPlan
    steps : tuple of StepPlan
        steps[i] lies between panels[i] and panels[i + 1].
    """

    n: int
    update: Update
    panels: tuple[PanelPlan, ...]
    steps: tuple[StepPlan, ...]


@functools.lru_cache(maxsize=256)
def schedule(n, update, rules, block=None, look_ahead=True, dominant=False):
    """Return the `Schedule` of the LU of an n x n matrix.

    Parameters
    ----------
    n : int
    update : Update
    rules : Rules
    block : int, optional
        Columns of a panel; by default those that are best for what is left of the matrix.
    look_ahead : bool
        Whether panels may run beside updates; the factors are the same bits with and without.
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
    return Schedule(n, update, tuple(panels), tuple(steps))


def _panel(n, start, stop, update, rules, dominant):
    columns, right = stop - start, n - stop
    is_square = dominant and rules.is_square(start, n - start, columns, right, update)
    rows = columns if is_square else n - start
    strips = _strips(rows, columns, rules, dominant)
    catch_ups = tuple(
        _catch_up(i, strips, start, rows, update, rules) for i in range(1, len(strips))
    )
    several = len(strips) > 1
    inner = update if is_square else rules.inner_update(update, start, rows, columns)
    return PanelPlan(
        start,
        stop,
        rows,
        is_square,
        dominant,
        strips,
        catch_ups,
        # The swaps of a single strip are done with its columns.
        is_wide=several and rules.is_wide(columns, right),
        is_early=is_square or rules.panel_is_sooner(rows, update),
        substitution=inner,
    )


def _strips(rows, columns, rules, dominant):
    found, start = [], 0
    while start < columns:
        left = columns - start
        stop = start + min(left, rules.strip(rows - start, left, dominant))
        found.append((start, stop))
        start = stop
    return tuple(found)


def _catch_up(number, strips, start, rows, update, rules):
    """Return what is done before strip `number`: it and others, as many as its lowest bit says, catch up.

    So each strip has been eliminated with all before it when its turn comes, as by recursion: products are
    deep, and few read and write the same columns.
    """
    count = number & -number
    first, here = strips[number - count][0], strips[number][0]
    last = strips[min(number + count, len(strips)) - 1][1]
    how = rules.inner_update(update, start + first, rows - here, here - first)
    return CatchUp(first, here, last, strips[number - 1][0], count == 1, how)


def _step(n, panel, following, update, rules, look_ahead):
    if not rules.looks_ahead(n - panel.stop):
        return StepPlan(False, False, n, n, update, update, None)
    near = rules.near_update(update, panel.start, panel.stop - panel.start)
    last_row = following.stop if following.is_square else None
    first = following.first_columns
    return StepPlan(True, look_ahead, first, following.stop, near, update, last_row)
