"""What `gemm` asks of its scalars, its addend and the array for its result."""

import math
import numbers
import sys

import numpy as np

from tcsolve._arrays import is_cupy
from tcsolve._checks import check_array
from tcsolve._errors import InputError

__all__ = ["check_addend", "check_out", "check_scalars", "overlap", "overlaps_itself"]

# Dtypes a result of each accumulator can be stored in.
RESULTS = {
    "float32": ("float32", "float16", "bfloat16"),
    "float64": ("float64",),
    "int32": ("int32",),
}
# Dtypes of c that each accumulator holds exactly.
ADDENDS = {
    "float32": ("float16", "bfloat16", "float32", "int8", "int16", "uint8"),
    "float64": ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "uint8"),
    "int32": ("int8", "int16", "int32", "uint8", "uint16"),
}


def check_scalars(alpha, beta, accumulator):
    """Return alpha and beta, of int32 sums modulo 2**32; refuse what those cannot be multiplied by."""
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not isinstance(value, numbers.Real):
            raise InputError(f"{name} is {value!r}; a real number is needed")
        if accumulator != "int32" and isinstance(value, int) and abs(value) > sys.float_info.max:
            raise InputError(f"{name} is an integer beyond the range of FP64; give a smaller one")
        if accumulator == "int32" and (not math.isfinite(value) or value != int(value)):
            raise InputError(
                f"{name} is {value!r}; products of int8 are integers, so {name} must be one: "
                "convert the operands to float16 for another"
            )
    if accumulator == "int32":
        alpha, beta = ((int(x) + 2**31) % 2**32 - 2**31 for x in (alpha, beta))
    return alpha, beta


def check_addend(c, beta, shape, accumulator):
    """Return c if it is to be added, else None."""
    if beta == 0:
        return None
    if c is None:
        raise InputError(f"beta is {beta}, but there is no c to multiply by it: give c, or beta=0")
    c = check_array(c, "c")
    if c.shape != shape:
        raise InputError(f"c has shape {c.shape}; the product has shape {shape}: reshape c")
    if c.dtype.name not in ADDENDS[accumulator]:
        raise InputError(
            f"c has dtype {c.dtype}, which {accumulator} sums cannot hold; "
            f"convert with c.astype('{accumulator}')"
        )
    return c


def check_out(xp, out, shape, accumulator, operands):
    """Raise unless the result can be stored in `out`; operands are a, b and c (None if not read)."""
    a, b, c = operands
    if not isinstance(out, xp.ndarray):
        kind = f"{type(out).__module__}.{type(out).__name__}"
        raise InputError(f"out is a {kind}; a {xp.__name__}.ndarray, as a and b are, is needed")
    if out.shape != shape:
        raise InputError(f"out has shape {out.shape}; the product has shape {shape}")
    if out.dtype.name not in RESULTS[accumulator]:
        raise InputError(
            f"out has dtype {out.dtype}; this product is stored as {' or '.join(RESULTS[accumulator])}"
        )
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise InputError("out is read-only; give an array that can be written")
    if overlaps_itself(out):
        raise InputError(
            f"out has shape {out.shape} and strides {out.strides}, so that some of its entries share "
            "memory; give an array in which each entry has its own, as out.copy()"
        )
    for name, x in (("a", a), ("b", b)):
        if overlap(out, x):
            raise InputError(
                f"out overlaps {name}, which is read while out is written; copy {name}"
            )
    if c is not None and not _same_place(out, c) and overlap(out, c):
        raise InputError("out overlaps c without being c; give out=c, or an array of its own")


def _same_place(x, y):
    def place(z):
        return _address(z), z.shape, z.strides, z.dtype

    return place(x) == place(y)


def overlap(x, y):
    """Tell whether two arrays have a byte in common, from their shapes alone.

    CuPy's shares_memory sorts the addresses of all entries, and waits for that.
    """
    return np.shares_memory(*(np.asarray(_Shadow(z)) for z in (x, y)))


def overlaps_itself(x):
    """Tell whether two entries of an array have a byte in common, from its shape alone."""
    shadow = np.asarray(_Shadow(x))
    # Two entries differ first along some axis.  All pairs with the same distance are alike, so that the lower
    # one can have index 0 along this axis and those before it.
    while shadow.size and shadow.ndim:
        if np.shares_memory(shadow[:1], shadow[1:]):
            return True
        shadow = shadow[0, ...]  # still an array: an entry by itself would be read
    return False


class _Shadow:
    """A host array where a device's array is: its entries are never touched."""

    def __init__(self, x):
        self.__array_interface__ = {
            "version": 3,
            "data": (_address(x), True),
            "shape": x.shape,
            "strides": x.strides,
            "typestr": f"|V{x.itemsize}",
        }


def _address(x):
    return x.data.ptr if is_cupy(x) else x.ctypes.data
