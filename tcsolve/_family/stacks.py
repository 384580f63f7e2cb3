"""Apply a function of single matrices to stacks, as the functions of scipy.linalg do."""

import math

import numpy as np

from tcsolve._arrays import is_cupy
from tcsolve._errors import InputError

__all__ = ["over_stacks", "xp_of"]

# The number of core dimensions of right-hand sides: (n,) is one vector, (..., n, k) are matrices.
RHS = "1|2"


def xp_of(*arrays):
    """Return CuPy if one of the arrays is CuPy's, else NumPy."""
    if any(is_cupy(x) for x in arrays):
        import cupy

        return cupy
    return np


def over_stacks(function, *arrays, name):
    """Return function(*arrays), for each slice if there are leading dimensions; these broadcast.

    Parameters
    ----------
    function : callable
        It returns an array or a tuple of arrays; those of all slices are stacked.
    arrays : (array, core) pairs
        `core` is the number of dimensions of one slice, or RHS.
    name : str
        The name of the public function, for errors.
    """
    given = [x for x, _ in arrays]
    if all(np.ndim(x) <= (2 if core == RHS else core) for x, core in arrays):
        return function(*given)
    xp = xp_of(*given)
    given = [xp.asarray(x) for x in given]
    cores = [
        min(x.ndim, 2) if core == RHS else core for x, (_, core) in zip(given, arrays, strict=True)
    ]
    shapes = [
        (x.shape[: x.ndim - core], x.shape[x.ndim - core :])
        for x, core in zip(given, cores, strict=True)
    ]
    try:
        batch = np.broadcast_shapes(*(outer for outer, _ in shapes))
    except ValueError:
        raise InputError(
            f"{name}: the leading dimensions {', '.join(str(outer) for outer, _ in shapes)} do not "
            "broadcast; make them equal or 1"
        ) from None
    if math.prod(batch) == 0:
        raise InputError(f"`{name}` does not support zero-size batches.")
    full = [xp.broadcast_to(x, batch + inner) for x, (_, inner) in zip(given, shapes, strict=True)]
    found = [function(*(x[i] for x in full)) for i in np.ndindex(batch)]
    if not isinstance(found[0], tuple):
        return _stacked(xp, found, batch)
    return tuple(_stacked(xp, some, batch) for some in zip(*found, strict=True))


def _stacked(xp, found, batch):
    stack = (xp if any(is_cupy(x) for x in found) else np).stack(found)
    return stack.reshape(batch + stack.shape[1:])
