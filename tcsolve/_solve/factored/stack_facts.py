"""rcond and the determinant of each matrix of a factored stack."""

import math
from typing import Any, NamedTuple

import numpy as np

from tcsolve._lu.scaling import ldexp
from tcsolve._solve.ladder.determinant import determinants
from tcsolve._solve.vendor.rcond import rconds_of, rconds_of_scaled
from tcsolve._solve.vendor.repair import exponents_of
from tcsolve._solve.verify.backward_error import SAFE

__all__ = ["determinants_of_stack", "rconds_of_stack"]


def rconds_of_stack(ops, a, factors):
    """Return rcond of the matrices a (m, n, n), (m,) on the host; 0 for one that is singular or not finite.

    `factors` are those of `ops.vendor`, or None for an empty stack.
    """
    if factors is None:
        return np.zeros(0)
    look, rconds = _look_at(ops, a, factors), rconds_of(ops, a, factors.solve)
    if look.scaled:
        rconds[look.extreme] = rconds_of_scaled(ops, *look.scaled)
    rconds[look.singular | ~look.finite] = 0.0
    return rconds


def determinants_of_stack(ops, a, factors):
    """Return the signs of the determinants and the logarithms of their moduli, (m,) each, on the host."""
    if factors is None:
        return np.zeros(0, np.result_type(a.dtype, np.float64)), np.zeros(0)
    look, (signs, logs) = _look_at(ops, a, factors), determinants(ops, factors)
    if look.scaled:
        _, row, col, of_scaled = look.scaled
        signs[look.extreme], found = determinants(ops, of_scaled)
        (exponents,) = ops.host(row.sum(axis=(1, 2)) + col.sum(axis=(1, 2)))
        logs[look.extreme] = found + exponents * math.log(2)
    signs[look.singular], logs[look.singular] = 0.0, -math.inf
    signs[~look.finite], logs[~look.finite] = math.nan, math.nan
    return signs, logs


class _Scaled(NamedTuple):
    """Matrices a (m, n, n) in FP64, and the factors of ``diag(2**-row) a diag(2**-col)``."""

    a: Any
    row: Any
    col: Any
    factors: Any


class _Look(NamedTuple):
    """Which matrices are singular or finite, and the scaled factors of those with extreme entries."""

    singular: np.ndarray
    finite: np.ndarray
    extreme: np.ndarray  # indices
    scaled: _Scaled | None


def _look_at(ops, a, factors):
    xp = ops.xp
    finite, top, info = ops.host(
        xp.isfinite(a).all(axis=(1, 2)), xp.abs(a).max(axis=(1, 2)), factors.info
    )
    singular, scaled = info != 0, None
    extreme = np.flatnonzero(finite & ~((top > 1 / SAFE) & (top < SAFE)))
    if extreme.size:
        scaled = _scaled(ops, a[xp.asarray(extreme)])
        (info,) = ops.host(scaled.factors.info)
        singular[extreme] = info != 0
    return _Look(singular, finite, extreme, scaled)


def _scaled(ops, a):
    a = ops.converted(a, np.result_type(a.dtype, np.float64))
    row, col = exponents_of(ops.xp, a, "general")
    near = ldexp(ops.xp, ldexp(ops.xp, a, -row), -col)
    return _Scaled(a, row, col, ops.vendor.factor(near, "general", 2))
