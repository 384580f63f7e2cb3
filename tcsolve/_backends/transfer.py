"""Bring an array to the device that computes with it."""

import numpy as np

from tcsolve._arrays import is_cupy

__all__ = ["brought"]


def brought(ops, x):
    """Return x as an array on the device of `ops`; x itself if it is there."""
    if is_cupy(x) == (ops.device == "cuda"):
        return x
    # CuPy can be imported, because x is a CuPy array or `ops` uses a GPU.
    from tcsolve._backends.cuda.runtime import transfers

    return transfers.to_host(x) if is_cupy(x) else transfers.to_device(np.asarray(x))
