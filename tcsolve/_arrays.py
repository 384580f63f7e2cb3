"""Tell NumPy arrays from CuPy arrays without importing CuPy."""

import sys

import numpy as np

__all__ = ["as_host", "is_cupy"]


def is_cupy(x):
    """Tell whether x is a CuPy array, without importing CuPy."""
    # While another thread imports CuPy, the module has no arrays yet.
    array = getattr(sys.modules.get("cupy"), "ndarray", None)
    return array is not None and isinstance(x, array)


def as_host(x):
    """Return x as a NumPy array; a CuPy array is copied from the device."""
    return x.get() if is_cupy(x) else np.asarray(x)
