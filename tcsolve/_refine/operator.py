"""The matrix as the loop uses it, and the error of an approximate solution."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tcsolve._arithmetic.matrix_parts import column_tops

__all__ = ["Operator", "measure", "quotient"]


@dataclass(frozen=True)
class Operator:
    """The matrix A for the loop: products, residuals, and the norms of the stopping test.

    Attributes
    ----------
    product : callable, (n, k) -> (n, k)
        v -> A v in FP64.
    norm : float
        Infinity norm of A.
    row, col : array, shape (n,), optional
        The scaling diag(row) A diag(col), if there is one.  Then the backward error of the scaled system must
        meet the bound too, so that small rows are as accurate as large ones.
    scaled_norm : float
        Infinity norm of diag(row) A diag(col).
    matrix : array, shape (n, n), optional
        A itself, unless only `product` is known.
    outer : callable, (r, x) -> error of each column, optional
        The backward error of the caller's system, if this system is a scaled one (`Frame`).  It must meet the
        bound too.
    pair : callable, (n, k) -> Pair (n, k), optional
        v -> A v in double-double, for GMRES with a preconditioner that takes a `Pair`.
    """

    product: Callable
    norm: float
    row: Any = None
    col: Any = None
    scaled_norm: float = 0.0
    matrix: Any = None
    outer: Callable | None = None
    pair: Callable | None = None

    @classmethod
    def of(cls, ops, matrix, norm, scaled=None, outer=None):
        """Return the operator for a matrix; `scaled` has row, col and scaled_norm, if there is a scaling."""
        row, col, scaled_norm = scaled or (None, None, 0.0)
        return cls(lambda v: ops.product(matrix, v), norm, row, col, scaled_norm, matrix, outer)

    @property
    def measures_the_caller(self):
        """Whether `measure` returns the backward error of A alone, with neither scaling nor `outer`."""
        return self.row is None and self.outer is None

    def residual(self, ops, x, b):
        """Return r = b - A x, and max |r| and max |x| of each column on the host."""
        return ops.residual(self.product if self.matrix is None else self.matrix, x, b)


def measure(ops, operator, x, b):
    """Return the residual r = b - A x, and the error of each column on the host.

    The error is ``||r|| / (||A|| ||x||)`` in infinity norms.  With a scaling or an outer system it is the
    largest of this error and those of the other systems.  It is 0 for an exactly zero residual, and NaN if
    x is not finite.
    """
    xp = ops.xp
    # This waits for the device.  A step waits again only if there is a scaling or an outer system, or if
    # `Ops.product` checks its result, which it does for many columns.
    r, residual, size = operator.residual(ops, x, b)
    error = quotient(residual, operator.norm, size)
    if operator.row is not None:
        scaled = r * operator.row[:, None], x / operator.col[:, None]
        (sizes,) = ops.host(xp.stack([column_tops(ops, v) for v in scaled]))
        error = np.maximum(error, quotient(sizes[0], operator.scaled_norm, sizes[1]))
    if operator.outer is not None:
        error = np.maximum(error, operator.outer(r, x))
    return r, error


def quotient(residual, norm, x):
    """Return residual / norm / x: 0 for a zero residual, NaN if x is not finite."""
    residual, x = np.asarray(residual, dtype=float), np.asarray(x)
    with np.errstate(all="ignore"):
        # Two divisions: the product of the norms may overflow or underflow.
        error = residual / norm / x
        # A zero residual means an error of zero, also for x = 0.  An infinite x is never an answer.
        error[residual == 0] = 0.0
        error += x - x
    return error
