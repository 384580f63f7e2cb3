"""How an LU is cut on a device: pure functions of its architecture, of sizes, and of where the matrix lies.

Thresholds were found on an H200.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from tcsolve._arithmetic.formats import FORMATS, UPDATES, Update
from tcsolve.kernels.arch import HOPPER, arch_number
from tcsolve.kernels.panel_shapes import NARROW_STRIP
from tcsolve.kernels.product_shapes import WGMMA_ROWS, fastest_update

__all__ = ["LIMITS", "SHORT", "SOLVE_WIDTH", "DeviceRules", "Limits", "has_squares"]

# Unknowns one launch of tcs_swap_solve takes.
SOLVE_WIDTH = 128
# Rows up to which a panel has so many columns, by the products of the update.
BLOCKS = {
    1: ((4096, 128), (14336, 512), (math.inf, 1024)),
    3: ((6656, 128), (8192, 192), (16384, 512), (math.inf, 1024)),
}
# The same where panels are square, which keep the update waiting for a short time only.
SQUARE_BLOCKS = {
    1: ((4096, 128), (6000, 512), (12500, 1024), (17000, 1536), (math.inf, 2048)),
    3: ((4096, 128), (9000, 512), (math.inf, 1024)),
}
# Rows and columns of L up to which a product inside a panel is so short that launches count.
FEW_ROWS, FEW_COLUMNS = 1024, 256
# Columns of L up to which short_update.cu is faster than launches that scale, split and multiply: inside a
# panel, with one strip of it at a time, and for the columns that follow it.
SHORT_INSIDE, SHORT_NEAR = 128, 192
# What it does: FP32 in range, and nearly in precision.
SHORT = Update("tf32x3", FORMATS["tf32"], 3, "float32")


@dataclass(frozen=True)
class Limits:
    """Sizes from which on something pays.

    Attributes
    ----------
    square_rows : float
        Rows of a panel that looks for its pivots in its diagonal block alone; infinity for never.
    least_columns : int
        Columns right of a panel for which U is a product with an inverse.
    wide : int
        Columns of a panel that is reached strip by strip.
    beside_rows : int
        Rows of an update that takes longer than to fork and join streams.
    panel_rows : tuple of (int, float)
        By the products of an update, the rows up to which a panel takes longer than the update that runs with
        it.
    """

    square_rows: float = 4096
    least_columns: int = 2048
    wide: int = 512
    beside_rows: int = 256
    panel_rows: tuple[tuple[int, float], ...] = ((1, math.inf), (3, 15000))


LIMITS = Limits()


def has_squares(update, arch):
    """Tell whether there are square panels of FP32 on an architecture, for an `Update`."""
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
        Of the dtype of the matrix.
    shape : callable
        shape(rows, narrow, dominant) returns the best `PanelShape` that the device runs, or None.
    limits : Limits
    itemsize, address, row_bytes : int
        Bytes of an entry; its address, and the bytes from one row to the next, modulo 16.
    """

    arch: str
    char: str
    shape: Callable
    limits: Limits
    itemsize: int = 4
    address: int = 0
    row_bytes: int = 0

    def block(self, left, update, dominant):
        # Wide panels save traffic of C in the update; where that is hidden behind the panels, the narrowest
        # have least to do between one another.
        squares = dominant and self._has_squares(update)
        blocks = SQUARE_BLOCKS if squares else BLOCKS
        return next(block for most, block in blocks[update.products] if left <= most)

    def strip(self, rows, columns, dominant):
        shape = self.panel_shape(rows, columns, dominant)
        return min(columns, shape.strip) if shape else columns

    def panel_shape(self, rows, columns, dominant):
        """Return the best shape for a strip of a panel of which so many columns are left, or None."""
        narrow = columns % NARROW_STRIP == 0 and columns % SOLVE_WIDTH != 0
        return self.shape(rows, narrow, dominant) if self.char == "f" else None

    def is_wide(self, columns, right):
        return right >= self.limits.least_columns and columns >= self.limits.wide

    def is_square(self, start, rows, columns, right, update):
        fits = columns % SOLVE_WIDTH == 0 and self.char == "f" and self._is_aligned(start)
        wide = rows >= self.limits.square_rows and self.is_wide(columns, right)
        return wide and fits and self._has_squares(update)

    def _has_squares(self, update):
        return self.limits.square_rows < math.inf and has_squares(update, self.arch)

    def looks_ahead(self, rows):
        return rows >= self.limits.beside_rows

    def panel_is_sooner(self, rows, update):
        return rows > dict(self.limits.panel_rows)[update.products]

    def inner_update(self, update, column, rows, columns):
        if self.char != "f":
            return UPDATES["fp64" if self.char in "dD" else "fp32"]
        if self._is_short(update, column, columns, SHORT_INSIDE):
            return SHORT
        # On the few multiprocessors that an update leaves to its panel FP32 products take longest, unless
        # they take less than two more launches.
        few, three = rows < FEW_ROWS and columns <= FEW_COLUMNS, UPDATES["fp16x3"]
        ours = not few and fastest_update(three, "f", rows, columns, self.arch) == "wgmma"
        # Other formats may have been chosen for the range that FP16 has not.
        return three if ours and update.format.name == "fp16" else UPDATES["fp32"]

    def near_update(self, update, start, columns):
        if self._is_short(update, start, columns, SHORT_NEAR):
            return SHORT
        # So short a product takes less time than rounding its operands.
        return UPDATES["fp32"] if self.char == "f" and columns <= SOLVE_WIDTH else update

    def _is_short(self, update, column, columns, most):
        """Tell whether short_update.cu is fastest, and as good, for an L of so many columns at most."""
        fits = self.char == "f" and self._is_aligned(column) and columns % 4 == 0
        return not update.native and columns <= most and fits and arch_number(self.arch) == HOPPER

    def _is_aligned(self, column):
        """Tell whether the rows of a block that begins at a column start on 16-byte boundaries."""
        return self.row_bytes == 0 and (self.address + column * self.itemsize) % 16 == 0
