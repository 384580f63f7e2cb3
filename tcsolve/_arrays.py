"""Tell NumPy arrays from CuPy arrays without importing CuPy."""

import sys

import numpy as np

__all__ = ["as_host", "is_cupy"]


def is_cupy(x):
    """Tell whether x is a CuPy array, without importing CuPy."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, cupy.ndarray)


def as_host(x):
    """Return x as a NumPy array; a CuPy array is copied from the device."""
    return x.get() if is_cupy(x) else np.asarray(x)
