"""A rung: the factors of a system with one update, and how to correct with them."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tcsolve._arithmetic.formats import Update
from tcsolve._cached import cached_property
from tcsolve._lu.factors import NativeFactors
from tcsolve._lu.scaling import Scaling
from tcsolve._refine.precise_inverse import multiplied

__all__ = ["Rung", "dtype_of_factors", "matrix_to_factor"]


@dataclass(frozen=True, eq=False)
class Rung:
    """The factors of a system, and how to correct with them.

    Attributes
    ----------
    how : Update
    factors : BlockedFactors or NativeFactors
        Those of A; with a `scaling`, those of diag(row) A diag(col).  For conjugate gradients, a multiple of
        the identity is added before a factorization in less than FP64.
    scaling : Scaling or None
    scaled_norm : float
        Infinity norm of the scaled matrix.
    """

    how: Update
    factors: Any
    scaling: Scaling | None = None
    scaled_norm: float = 0.0

    @property
    def is_exact(self):
        """Whether the factors are in FP64."""
        return self.how.storage == "float64"

    @property
    def bad_pivot(self):
        """1-based column of the first bad pivot, or 0.

        In our own LU, a pivot is bad if it is zero or not finite.  In the LU of LAPACK or cuSOLVER, only a
        zero pivot is bad.
        """
        return self.factors.bad_pivot

    @property
    def native(self):
        """(factors, adjoint): the `NativeFactors`, or None; and whether their adjoint solves the system."""
        return self.factors if type(self.factors) is NativeFactors else None, False

    def widened(self):
        """Return the rung with its factors converted to FP64; itself if they are in FP64."""
        return self if self.is_exact else replace(self, factors=self.factors.widened())

    def correct(self, r, adjoint=False):
        """Return approximately A**-1 r (or A**-H r) for FP64 r (n, k)."""
        if self.is_exact:
            return self.factors.solve(r, adjoint)
        if self.scaling is None:
            return self.factors.solve_scaled(r, adjoint)
        row, col = self.scaling.row, self.scaling.col
        if adjoint:
            row, col = col, row
        return self.factors.solve_scaled(r * row[:, None], adjoint) * col[:, None]

    @cached_property
    def _triangles(self):
        return self.factors.triangles()

    def multiplied(self, ops, w, transposed=False):
        """Return the product of a `Pair` w with the matrix that `correct` solves with, or its transpose."""
        lu, order, of_transpose = self._triangles
        flipped = transposed != of_transpose
        if self.scaling is None:
            return multiplied(ops, lu, order, w, flipped)
        row, col = 1 / self.scaling.row[:, None], 1 / self.scaling.col[:, None]
        if transposed:
            row, col = col, row
        return multiplied(ops, lu, order, w.times(col), flipped).times(row)


def dtype_of_factors(how, is_complex):
    """Return the dtype of factors with an `Update`."""
    kind = {"float32": "complex64", "float64": "complex128"} if is_complex else {}
    return np.dtype(kind.get(how.storage, how.storage))


def matrix_to_factor(system, how, copy):
    """Return a copy of the matrix, scaled if need be, that the factors may overwrite.

    `copy` is the copy of A from the survey, or None.  If possible, the result is stored in its memory.
    """
    scaling, ops = system.scaling_for(how), system.ops
    dtype = dtype_of_factors(how, system.is_complex)
    row, col = (None, None) if scaling is None else (scaling.row, scaling.col)
    if how.native:
        # The factors overwrite it, so it must be contiguous and not in memory that a recorded graph uses.
        copy = ops.xp.empty(system.a.shape, dtype)
    elif copy is not None and scaling is None and system.frame is None:
        return copy
    return ops.cast_scaled(system.matrix, row, col, dtype, out=copy)
