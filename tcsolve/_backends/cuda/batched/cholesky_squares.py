"""Cholesky factors of real positive definite matrices, each by many multiprocessors (cholesky_squares.cu).

The class is a `StackFactors` of the contract, as those of `library_factors`.
"""

import functools

import cupy
import numpy as np

from tcsolve._backends.cuda.runtime import current_device
from tcsolve._backends.cuda.runtime.prepared_launch import launch, macros, steps
from tcsolve.kernels.square_shapes import (
    SQUARE,
    SQUARE_RING,
    SQUARE_SIDES,
    SQUARE_SOLVE_THREADS,
    SQUARE_THREADS,
    largest_in_squares,
    square_rows,
    square_solve_bytes,
    updated_squares,
)

__all__ = ["CholeskySquares", "bytes_of_squares", "suits_squares"]

# The least number of rows.
LEAST = 49
# The number of earlier columns of squares by which a column of squares is updated at a time.
PERIOD = 2


def suits_squares(dtype, kind, n, columns):
    """Tell whether `CholeskySquares` are the fastest factors of a stack, for `columns` right-hand sides."""
    if kind != "positive definite" or np.dtype(dtype).kind == "c" or n < LEAST or 2 * columns > n:
        return False
    return n <= _largest(cupy.cuda.runtime.getDevice())


@functools.lru_cache(maxsize=16)
def _largest(device):
    return largest_in_squares(current_device.arch(device))


def bytes_of_squares(m, n):
    """Return the bytes of `CholeskySquares` of m matrices."""
    rows = square_rows(n)
    return 8 * m * rows * (rows + 1) // 2 * SQUARE**2


class CholeskySquares:
    """A = L L**T of each matrix; L is stored in squares of SQUARE rows."""

    def __init__(self, l, n, info):
        self._l, self._n, self.info = l, n, info

    @classmethod
    def of(cls, a, *, lower=True, seen=None, period=PERIOD):
        """Factor a (m, n, n), real, which is not modified.

        The lower triangle is read, or with `lower` = False the upper one.  `seen` is filled as by
        `Stacks.read_as`.  Step j of the factorization updates some of the later columns of squares, each by
        at most `period` earlier ones.
        """
        (m, n), rows = a.shape[:2], square_rows(a.shape[1])
        squares = rows * (rows + 1) // 2
        l, info = cupy.empty((m, squares, SQUARE**2)), cupy.empty(m, cupy.int32)
        if a.strides[1] < a.strides[2]:  # neighbouring threads read neighbours of a row
            a, lower = cupy.swapaxes(a, 1, 2), not lower
        args = (l, *steps(a), rows, n, int(lower), seen, m)
        _launch("tcs_pack_squares", m * squares, args, a)
        for j in range(rows):
            others = updated_squares(rows, j, period)
            args = (l, info, m, others, rows, j, period)
            _launch("tcs_factor_square", m * (1 + others), args, l, shared=SQUARE_RING)
            if j + 1 < rows:
                _launch(
                    "tcs_finish_column",
                    2 * m * (rows - 1 - j),
                    (l, rows, j),
                    l,
                    SQUARE_THREADS // 2,
                )
        return cls(l, n, info)

    def solve(self, rhs, adjoint=False):
        m, c, n = rhs.shape
        rows = square_rows(n)
        args, shared = (rhs, self._l, rows, n, c), square_solve_bytes(n)
        blocks = m * -(-c // SQUARE_SIDES)
        _launch("tcs_solve_squares", blocks, args, rhs, SQUARE_SOLVE_THREADS, shared)
        return rhs

    def taken(self, which):
        which = cupy.asarray(which)
        return CholeskySquares(self._l[which], self._n, self.info[which])


def _launch(entry, blocks, args, a, threads=SQUARE_THREADS, shared=0):
    entry = "cholesky_squares", entry
    launch(entry, (blocks, 1), (threads, 1), args, macros(a), shared)
