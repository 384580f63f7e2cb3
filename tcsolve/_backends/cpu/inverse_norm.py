"""The 1-norm of an inverse and the condition number, estimated by a few solves."""

import math

import numpy as np

__all__ = ["estimated_rcond", "inverse_norm"]

# From this n on, `inverse_norm` takes less time than LAPACK's gecon, except for complex matrices.  Besides,
# LAPACK sums vectors of 256 or more real numbers in an order that depends on their address, so that the
# bits of gecon may differ between two calls.
LEAST_ESTIMATED = 250

# Largest number of columns of the inverse that are looked at; LAPACK looks at one column less.
MOST_COLUMNS = 5


def estimated_rcond(norm_one, solve, n, dtype):
    """Return 1 / (norm_one times the result of `inverse_norm`); None where gecon should be called instead."""
    if n < LEAST_ESTIMATED or dtype.kind == "c":
        return None
    found = inverse_norm(solve, n, dtype)
    return 1 / norm_one / found if 0 < found < math.inf else None


def inverse_norm(solve, n, dtype):
    """Return a lower bound of ``||A**-1||_1`` that is nearly always within a factor of 3.

    Parameters
    ----------
    solve : callable, (v, adjoint) -> A**-1 v or A**-T v, shape (n,)
    n : int
        At least 2.
    dtype : dtype
        That of A, float32 or float64.

    Returns
    -------
    float
        Not finite if a solve overflows.

    Notes
    -----
    This is the algorithm of LAPACK's gecon [1]_.  To avoid overflow, gecon solves for one unknown after the
    other, which takes twice as long for large n.

    References
    ----------
    .. [1] N. J. Higham, ACM Trans. Math. Software 14 (1988), 381-396.
    """
    i = np.arange(n)
    alternating = np.where(i % 2, -1.0, 1.0) * (1 + i / (n - 1))
    least = 2 * _length(solve(alternating.astype(dtype), False)) / (3 * n)
    x, column = solve(np.full(n, 1 / n, dtype), False), None
    found = _length(x)
    for _ in range(MOST_COLUMNS):
        size = np.abs(solve(np.copysign(dtype.type(1), x), True))
        steepest = int(size.argmax())
        if column is not None and size[steepest] <= size[column]:
            break
        column = steepest
        x = solve((i == column).astype(dtype), False)
        length = _length(x)
        if length <= found:
            break
        found = length
    return float(np.maximum(least, found))  # NaN if one of them is


def _length(x):
    return float(np.abs(x).sum(dtype=float))
