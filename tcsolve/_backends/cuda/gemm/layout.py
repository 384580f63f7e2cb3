"""The memory layout of operands and results of products on a device."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import cupy
import numpy as np

from tcsolve._backends.cuda.runtime.conversions import converted

__all__ = [
    "KINDS",
    "Extents",
    "Stored",
    "aligned",
    "as_stored",
    "bits",
    "copied",
    "empty_aligned",
    "leading",
    "rows_contiguous",
]

# The numbers of the dtypes of a result in the kernels (gemm.cuh).
KINDS = {"float32": 0, "float16": 1, "bfloat16": 2, "int32": 3}


def rows_contiguous(x):
    """Tell whether the rows of a matrix are contiguous and do not overlap."""
    rows, cols = x.shape
    row, col = (s // x.itemsize for s in x.strides)
    return (col == 1 or cols == 1) and (rows == 1 or row >= cols)


def leading(x):
    """Return the leading dimension, in entries, of a matrix with contiguous rows."""
    return x.shape[1] if x.shape[0] == 1 else x.strides[0] // x.itemsize


@dataclass(frozen=True)
class Stored:
    """An operand op(x): an array with contiguous rows that holds op(x), or its transpose."""

    array: Any
    transposed: bool

    @property
    def ld(self):
        return leading(self.array)

    @property
    def op(self):
        """op(x), a view of the array."""
        return self.array.T if self.transposed else self.array

    def cut(self, rows, cols):
        """Return op(x)[rows, cols] as `Stored`; rows and cols are slices."""
        return Stored(
            self.array[(cols, rows) if self.transposed else (rows, cols)], self.transposed
        )

    @property
    def strides(self):
        """Strides of op(x) in entries, between rows and between columns."""
        return (1, self.ld) if self.transposed else (self.ld, 1)


class Extents(NamedTuple):
    """(first, last + 1) of the bytes of operands and of a result, relative to their addresses."""

    operands: list
    result: tuple

    @classmethod
    def of(cls, *arrays):
        """Return the extents of arrays, the result last; an operand may be None."""
        *operands, result = (None if x is None else _extent(x) for x in arrays)
        return cls(operands, result)

    def may_overlap(self, *places):
        """Tell whether the result may overlap an operand, from their addresses; 0 stands for no operand."""
        *places, out = places
        first, last = self.result
        return any(
            place and place + extent[0] < out + last and out + first < place + extent[1]
            for place, extent in zip(places, self.operands, strict=True)
        )


def _extent(x):
    steps = [(size - 1) * stride for size, stride in zip(x.shape, x.strides, strict=True)]
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + x.itemsize


def aligned(x):
    """Tell whether the rows of a row-major view start on 16-byte boundaries."""
    return (x.data.ptr | x.strides[0]) % 16 == 0


def as_stored(x, dtype=None):
    """Return x in `dtype` as `Stored`; x is copied only if it is converted, or if no axis is contiguous."""
    if dtype is not None:
        x = converted(x, dtype)
    if rows_contiguous(x):
        return Stored(x, False)
    if rows_contiguous(x.T):
        return Stored(x.T, True)
    return Stored(copied(x), False)


def bits(x):
    """Return x, or a view of bfloat16 as uint16, which every version of CuPy can copy."""
    return x.view(cupy.uint16) if x.dtype.name == "bfloat16" else x


def copied(x):
    return cupy.ascontiguousarray(bits(x)).view(x.dtype)


def empty_aligned(shape, dtype):
    """Return an empty matrix with contiguous rows that start on 16-byte boundaries."""
    rows, cols = shape
    run = 16 // np.dtype(dtype).itemsize
    return cupy.empty((rows, -(-cols // run) * run), dtype)[:, :cols]
