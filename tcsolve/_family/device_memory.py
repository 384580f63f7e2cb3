"""Report that a device has too little memory, in the functions that replace those of SciPy."""

import functools
import sys

import numpy as np

from tcsolve._arrays import is_cupy
from tcsolve._backends.select import ops_for

__all__ = ["guards_memory"]


def guards_memory(function):
    """Decorate a function so that it raises a DeviceMemoryError if the device of its arguments is full.

    The function must not overwrite its arguments on a device: after cached memory was freed, it is called
    again.
    """

    @functools.wraps(function)
    def call(*args, **kwargs):
        if "cupy" not in sys.modules:  # then no argument is on a device
            return function(*args, **kwargs)
        for given in (*args, *kwargs.values()):
            if type(given) is np.ndarray:
                continue
            # If `given` is a pair of factors, test the matrix that the pair keeps: reading lu or piv may
            # compute them.
            array = given
            if isinstance(given, tuple):
                array = getattr(given, "matrix", None)
                array = next(iter(given), None) if array is None else array
            if is_cupy(array):
                return ops_for(array).guarded(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return call
