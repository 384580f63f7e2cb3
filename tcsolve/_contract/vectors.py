"""Primitives on vectors with one implementation for NumPy and CuPy; `xp` is the library.

`order_of` works on the host.
"""

import numpy as np

__all__ = ["held", "order_of", "signs", "solve_scaled", "steepest"]

# The smallest normal number of a format.
SMALLEST = {"f": 2.0**-126, "d": 2.0**-1022}


def order_of(swaps, m=None):
    """Return the row that becomes row i, for each i, by the swaps of rows j and swaps[j], j = 0, 1, ..."""
    order = list(range(m or len(swaps)))
    for j, i in enumerate(swaps.tolist()):
        order[j], order[i] = order[i], order[j]
    return np.array(order, dtype=np.int32)


def signs(xp, v, state):
    """As `Ops.signs`."""
    if v.dtype.kind != "c":
        return (xp.copysign(1.0, v) * state[1])[:, None]
    with np.errstate(all="ignore"):
        size = xp.abs(v)
        return (xp.where(size > 0, v / xp.where(size > 0, size, 1), 1) * state[1])[:, None]


def held(xp, b, y, z):
    """As `Ops.held`."""
    r, k = b - y, b.shape[1] - z.shape[1]
    squares = [(xp.abs(v[:, :k]) ** 2).sum(axis=0) for v in (r, b)]
    return xp.concatenate([*squares, xp.abs((z.conj() * r[:, k:]).sum(axis=0))])


def steepest(xp, z, state, found):
    """As `Ops.steepest`."""
    with np.errstate(all="ignore"):
        size = xp.abs(z)
    top = size.argmax()  # the index of a NaN, if there is one
    goes_on = state[1] * (top != state[0])
    unit = (xp.arange(len(z)) == top) * goes_on
    # `found` and `state` are written last, so that this can be repeated if an allocation above fails.
    found[0], found[1] = top, size.take(top)
    state[0], state[1] = top, goes_on
    return unit[:, None]


def solve_scaled(xp, sizes, solve, b, dtype):
    """Return solve(v) for the columns v of b, which are divided by their largest |b_ij| to fit in `dtype`.

    `sizes` holds the largest |b_ij| of each column.  The scaling is undone in the result.
    """
    size = xp.maximum(sizes, SMALLEST[sizes.dtype.char])  # zeros stay zeros
    return solve((b / size).astype(dtype)) * size
