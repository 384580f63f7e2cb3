"""Tell NumPy arrays from CuPy arrays without importing CuPy, and copy CuPy arrays that are not aligned."""

import sys

import numpy as np

__all__ = ["aligned", "as_host", "is_aligned", "is_cupy"]


def is_cupy(x):
    """Tell whether x is a CuPy array, without importing CuPy."""
    # While another thread imports CuPy, the module has no arrays yet.
    array = getattr(sys.modules.get("cupy"), "ndarray", None)
    return array is not None and isinstance(x, array)


def as_host(x):
    """Return x as a NumPy array; a CuPy array is copied from the device."""
    return x.get() if is_cupy(x) else np.asarray(x)


def is_aligned(x):
    """Tell whether the address of each entry of a CuPy array is a multiple of the size of an entry.

    A device cannot read other entries, and kernels get strides as numbers of entries.
    """
    size = x.itemsize
    return x.data.ptr % size == 0 and all(step % size == 0 for step in x.strides)


def aligned(x):
    """Return a CuPy array x itself if it is aligned, else a copy that is made byte by byte."""
    if not x.size or is_aligned(x):
        return x
    entries = type(x)((*x.shape, x.itemsize), np.uint8, x.data, (*x.strides, 1))
    return entries.copy().view(x.dtype).reshape(x.shape)
