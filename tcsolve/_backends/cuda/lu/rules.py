"""The choices for an LU on a GPU: pure functions of the architecture, of sizes, and of the memory layout.

The thresholds were measured on an H200; those of special paths are in `tcsolve._paths`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from tcsolve._arithmetic.formats import UPDATES
from tcsolve._paths import Paths
from tcsolve.kernels.panel_shapes import NARROW_STRIP
from tcsolve.kernels.product_shapes import WGMMA_ROWS, fastest_update

__all__ = ["SOLVE_WIDTH", "DeviceRules", "has_squares"]

# Largest number of unknowns for one launch of tcs_swap_solve.
SOLVE_WIDTH = 128
# Width of a panel as (largest n of the trailing matrix, width), by the number of products of the update.
BLOCKS = {
    1: ((4096, 128), (14336, 512), (math.inf, 1024)),
    3: ((6656, 128), (8192, 192), (16384, 512), (math.inf, 1024)),
}
# The same for square panels.  Only their square on the diagonal is factored, so they delay the update only
# for a short time.
SQUARE_BLOCKS = {
    1: ((4096, 128), (6000, 512), (12500, 1024), (17000, 1536), (math.inf, 2048)),
    3: ((4096, 128), (9000, 512), (math.inf, 1024)),
}
# An FP32 product inside a panel takes no longer than the two additional launches of fp16x3 if it has fewer
# than FEW_ROWS rows and at most FEW_COLUMNS columns of L.
FEW_ROWS, FEW_COLUMNS = 1024, 256


def has_squares(update, arch):
    """Tell whether panels may be square on an architecture, for an `Update`."""
    if update.is_model:
        return False
    fastest = fastest_update(update, "f", WGMMA_ROWS, SOLVE_WIDTH, arch)
    return fastest == "wgmma" and update.format.name == "fp16"


@dataclass(frozen=True)
class DeviceRules:
    """The `Rules` of a device.

    Attributes
    ----------
    arch : str
        The architecture, such as 'sm_90a'.
    char : str
        The character of the dtype of the matrix.
    shape : callable
        shape(rows, narrow, dominant) returns the best `PanelShape` that the device can run, or None.
    paths : Paths
        The special paths in force.
    itemsize, address, row_bytes : int
        Number of bytes of an entry; address of the matrix modulo 16; bytes between rows modulo 16.
    is_recorded : bool
        Whether the memory of the matrix has recorded graphs.
    """

    arch: str
    char: str
    shape: Callable
    paths: Paths
    itemsize: int = 4
    address: int = 0
    row_bytes: int = 0
    is_recorded: bool = False

    overlap_rows = property(lambda self: self.paths.overlap_rows)
    panel_rows = property(lambda self: dict(self.paths.panel_rows))

    def block(self, left, update, dominant):
        # With wide panels, the updates read and write C less often.  If the panels take longer than the
        # updates, narrow panels are best, because they have less work between their strips.
        squares = dominant and self._has_squares(update)
        blocks = SQUARE_BLOCKS if squares else BLOCKS
        return next(block for most, block in blocks[update.products] if left <= most)

    def strip(self, rows, columns, dominant):
        shape = self.panel_shape(rows, columns, dominant)
        return min(columns, shape.strip) if shape else columns

    def panel_shape(self, rows, columns, dominant):
        """Return the best launch shape for a strip of a panel with `columns` columns left, or None."""
        narrow = columns % NARROW_STRIP == 0 and columns % SOLVE_WIDTH != 0
        expects = dominant and self.paths.dominant_strips
        return self.shape(rows, narrow, expects) if self.char == "f" else None

    def is_wide(self, columns, right):
        return right >= self.paths.least_columns and columns >= self.paths.wide

    def is_square(self, start, rows, columns, right, update):
        fits = columns % SOLVE_WIDTH == 0 and self.char == "f" and self._is_aligned(start)
        wide = rows >= self.paths.square_rows and self.is_wide(columns, right)
        return wide and fits and self._has_squares(update)

    def _has_squares(self, update):
        return self.paths.square_rows < math.inf and has_squares(update, self.arch)

    def inner_update(self, update, rows, columns):
        if self.char != "f" or update.is_model:
            return UPDATES["fp64" if self.char in "dD" else "fp32"]
        # Products inside a panel run on the few multiprocessors that the update leaves free.  There a product
        # takes longer in FP32 than in fp16x3, unless it is small: fp16x3 needs two more launches.
        few, three = rows < FEW_ROWS and columns <= FEW_COLUMNS, UPDATES["fp16x3"]
        ours = not few and fastest_update(three, "f", rows, columns, self.arch) == "wgmma"
        # Another format may have been chosen for its range, so do not replace it by FP16.
        return three if ours and update.format.name == "fp16" else UPDATES["fp32"]

    def near_update(self, update, columns):
        # For so few columns of L, an FP32 product takes less time than rounding the operands.
        faster = self.char == "f" and columns <= SOLVE_WIDTH and not update.is_model
        return UPDATES["fp32"] if faster else update

    def _is_aligned(self, column):
        """Tell whether the rows of a block start on 16-byte boundaries; the block begins at `column`."""
        return self.row_bytes == 0 and (self.address + column * self.itemsize) % 16 == 0
