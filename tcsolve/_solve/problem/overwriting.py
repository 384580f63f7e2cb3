"""What `overwrite_a` and `overwrite_b` do: as in SciPy, they allow writing to the caller's arrays."""

from dataclasses import replace

import numpy as np

from tcsolve._arrays import is_cupy

__all__ = ["in_lent_memory", "is_lent", "solution_in"]


def is_lent(overwrite, x, other):
    """Tell whether x may be overwritten: as in SciPy, only a column-major array that is not a stack.

    Unlike in SciPy, a read-only x is never overwritten, nor an x that shares memory with the other argument.
    """
    if not overwrite or type(x) is not np.ndarray or is_cupy(other):
        return False
    usable = x.flags.f_contiguous and x.flags.behaved and x.dtype.isnative and x.ndim <= 2
    return usable and x.dtype.char in "fdFD" and not np.may_share_memory(x, np.asarray(other))


def in_lent_memory(way, a):
    """Return (way, copy of a); for an FP64 matrix, the way stores the factors in the memory of a.

    The residual needs the copy.
    """
    copy = a.copy(order="K")

    def factor(matrix):
        # If `matrix` was converted or scaled, the memory of a holds other entries.
        return way.factor(a, overwrite_a=True) if matrix is copy else way.factor(matrix)

    return way._replace(factor=factor), copy


def solution_in(b, solution):
    """Return the `Solution` with x in the memory of b, if it has the same shape and dtype."""
    x = solution.x
    if not isinstance(x, np.ndarray) or x.shape != b.shape or x.dtype != b.dtype:
        return solution
    b[...] = x
    return replace(solution, x=b)
