"""What NumPy and CuPy do not have in common: places, alignment, zeros; without importing CuPy."""

import sys

import numpy as np

from tcsolve._errors import InputError

__all__ = ["as_host", "is_aligned", "is_cupy", "is_zero", "require_aligned"]


def is_cupy(x):
    """Tell whether x is a CuPy array, without importing CuPy."""
    # While another thread imports CuPy, the module has no arrays yet.
    array = getattr(sys.modules.get("cupy"), "ndarray", None)
    return array is not None and isinstance(x, array)


def as_host(x):
    """Return x as a NumPy array; a CuPy array is copied from the device."""
    if not is_cupy(x):
        return np.asarray(x)
    require_aligned(x, "an array")
    return x.get()


def is_aligned(x):
    """Tell whether the address of each entry of a CuPy array is a multiple of the size of an entry."""
    size = x.itemsize
    steps = zip(x.strides, x.shape, strict=True)
    return x.data.ptr % size == 0 and all(step % size == 0 or n == 1 for step, n in steps)


def require_aligned(x, name):
    """Raise an InputError if a CuPy array is not aligned.

    A device cannot read entries at other addresses, and kernels get strides as numbers of entries.
    """
    if x.size and not is_aligned(x):
        raise InputError(
            f"{name} has the address {x.data.ptr} and the strides {x.strides}, which are not all multiples "
            f"of the {x.itemsize} bytes of an entry; make the array contiguous before you change its dtype "
            "by `view`"
        )


def is_zero(x):
    """Tell which entries of x are zero; CuPy's own comparison takes subnormal FP32 numbers for zero."""
    if not is_cupy(x) or x.dtype.char not in "fF":
        return x == 0
    if x.dtype.kind == "c":
        return is_zero(x.real) & is_zero(x.imag)
    return x.view(np.uint32) << 1 == 0  # all bits but the sign
