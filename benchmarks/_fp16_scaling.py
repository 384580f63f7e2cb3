"""Four ways to scale a matrix before it is rounded to FP16, and the factors of a program that rounds once.

The ways are algorithms 2.1, 2.2, 2.4 and 2.5 of [1]_; 2.4 and 2.5 with algorithm 2.3.

References
----------
.. [1] N. J. Higham, S. Pranesh, M. Zounon, SIAM J. Sci. Comput. 41 (2019), A2536-A2551.
"""

from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

import tcsolve
from tcsolve import Plan
from tcsolve._solve.factored.factorization import ladder_of

__all__ = ["SCALINGS", "XMAX", "factors", "flushed", "rounded_once", "scaled"]

SCALINGS = ("clamped", "one factor", "two-sided", "symmetric")
XMAX = 65504.0  # the largest number of FP16
TOP = 0.1 * XMAX  # leaves room for growth
# Algorithm 2.5 ends after SWEEPS sweeps, or when all row and column maxima differ from 1 by less than ENOUGH.
SWEEPS, ENOUGH = 10, 1e-4


class Scaled(NamedTuple):
    """The matrix ``mu diag(row) A diag(col)``, or A with clamped entries; shapes (n, n), (n,) and (n,)."""

    w: Any
    row: Any
    col: Any
    mu: float


def scaled(a, name):
    """Return `Scaled` for a name of `SCALINGS`; the scales are not rounded to powers of two."""
    ones = np.ones(len(a))
    if name == "clamped":
        return Scaled(np.clip(a, -TOP, TOP), ones, ones, 1.0)
    if name == "one factor":
        mu = min(1.0, TOP / np.abs(a).max())
        return Scaled(mu * a, ones, ones, mu)
    row, col = _two_sided(a) if name == "two-sided" else _symmetric(a)
    w = a * row[:, None] * col
    # Not max |w|: the program of [1] takes the largest entry with its sign.
    mu = TOP / w.max()
    return Scaled(mu * w, row, col, mu)


def flushed(a, top):
    """Return the percentage of the nonzeros of A that FP16 rounds to zero.

    Rows, then columns, are scaled, and all entries are multiplied by one number: the largest becomes `top`.
    """
    row, col = _two_sided(a)
    w = np.abs(a * row[:, None] * col)
    return float(100 * np.mean(_half(w[a != 0] * (top / w.max())) == 0))


def _two_sided(a):
    row = 1 / np.abs(a).max(axis=1)
    return row, 1 / np.abs(a * row[:, None]).max(axis=0)


def _symmetric(a):
    row, col, w = np.ones(len(a)), np.ones(len(a)), np.abs(a)
    for _ in range(SWEEPS):
        tops = w.max(axis=1), w.max(axis=0)
        by = [1 / np.sqrt(top) for top in tops]
        row, col, w = row * by[0], col * by[1], w * by[0][:, None] * by[1]
        if max(np.abs(top - 1).max() for top in tops) < ENOUGH:
            break
    return row, col


def factors(a, name, update, block):
    """Return a function (n, k) -> (n, k) that applies our factors in FP64; None if a pivot is bad.

    All scales are powers of two here.
    """
    plan = Plan(update, scale=name == "two-sided", fallback=False, block=block)
    row = col = np.ones(len(a))
    if name == "symmetric":
        row, col = (2.0 ** np.round(np.log2(scale)) for scale in _symmetric(a))
    w = scaled(a, name).w if name == "clamped" else a * row[:, None] * col
    ladder = ladder_of(tcsolve.factor(w, precision=plan, device="cpu"))
    if ladder.rung.bad_pivot:
        return None
    solve = ladder.widened().correct
    return lambda b: col[:, None] * solve(row[:, None] * b)


def rounded_once(a, name):
    """Return (correct, start) of a program that rounds the factors once; None if U is singular or overflows.

    The scaled matrix is rounded to FP16, its LU is computed in FP64, and L and U are rounded to FP16.
    `correct` applies them in FP64.  `start` makes the first x; it rounds b and the solutions of both
    triangular systems to FP16.
    """
    w, row, col, mu = scaled(a, name)
    place, lower, upper = scipy.linalg.lu(_half(w), p_indices=True)
    with np.errstate(over="ignore"):
        lower, upper = _half(lower), _half(upper)
    order = place.argsort()
    if not (np.isfinite(upper).all() and upper.diagonal().all()):
        return None
    how = {"check_finite": False}

    def forward(b):
        return scipy.linalg.solve_triangular(lower, b[order], lower=True, **how)

    def back(y):
        return scipy.linalg.solve_triangular(upper, y, **how)

    def correct(b):
        return col * back(forward(mu * row * b))

    def start(b):
        if name in ("clamped", "one factor"):
            return _half(back(_half(mu * forward(_half(b)))))
        size = np.abs(row * b).max()
        return mu * size * col * _half(back(_half(forward(_half(row * b / size)))))

    return correct, start


def _half(x):
    """Return x rounded to FP16, in FP64."""
    return x.astype(np.float16).astype(float)
