"""Checks of the arguments alpha, beta, c and out of `gemm`."""

import math
import numbers

import numpy as np

from tcsolve._arrays import is_cupy, require_aligned
from tcsolve._checks import check_array
from tcsolve._errors import InputError

__all__ = ["check_addend", "check_out", "check_scalars", "overlap", "overlaps_itself"]

# For each dtype that a new array would have (`Task.accumulator`), the dtypes that are allowed for `out`.
RESULTS = {
    "float32": ("float32", "float16", "bfloat16"),
    "float64": ("float64",),
    "int32": ("int32",),
}
# For each of the same dtypes, the dtypes that are allowed for c.  All their numbers are exact in the dtype of
# the new array.
ADDENDS = {
    "float32": ("float16", "bfloat16", "float32", "int8", "int16", "uint8"),
    "float64": ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "uint8"),
    "int32": ("int8", "int16", "int32", "uint8", "uint16"),
}


def check_scalars(alpha, beta, accumulator):
    """Return alpha and beta, or raise an InputError; for int32 sums both are reduced modulo 2**32."""
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not isinstance(value, numbers.Real):
            raise InputError(f"{name} is {value!r}; a real number is needed")
        if accumulator == "int32" and not _is_whole(value):
            raise InputError(
                f"{name} is {value!r}; products of int8 are integers, so {name} must be an integer: "
                "convert the operands to float16 for any other number"
            )
    if accumulator == "int32":
        return tuple((int(x) + 2**31) % 2**32 - 2**31 for x in (alpha, beta))
    try:
        return float(alpha), float(beta)
    except OverflowError as error:
        raise InputError("alpha or beta is beyond the range of FP64; give a smaller one") from error


def _is_whole(value):
    if isinstance(value, numbers.Rational):  # also those beyond the range of FP64
        return value == int(value)
    return math.isfinite(value) and value == int(value)


def check_addend(c, beta, shape, accumulator):
    """Return c, or None if beta is 0; raise an InputError if c cannot be added to the product."""
    if beta == 0:
        return None
    if c is None:
        raise InputError(f"beta is {beta}, but there is no c to multiply by it: give c, or beta=0")
    c = check_array(c, "c")
    if c.shape != shape:
        raise InputError(f"c has shape {c.shape}; the product has shape {shape}: reshape c")
    if c.dtype.name not in ADDENDS[accumulator]:
        raise InputError(
            f"c has dtype {c.dtype}, which cannot be added to {accumulator} sums; "
            f"convert with c.astype('{accumulator}')"
        )
    return c


def check_out(xp, out, shape, accumulator, operands):
    """Raise an InputError unless the result can be stored in `out`.

    `operands` are a, b and c; c is None if it is not read.
    """
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
    if is_cupy(out):
        require_aligned(out, "out")
    if overlaps_itself(out):
        raise InputError(
            f"out has shape {out.shape} and strides {out.strides}, so that some of its entries share "
            "memory; give an array in which no entries share memory, such as out.copy()"
        )
    for name, x in (("a", a), ("b", b)):
        if overlap(out, x):
            raise InputError(
                f"out overlaps {name}, which is read while out is written; copy {name}"
            )
    if c is not None and not _same_place(out, c) and overlap(out, c):
        raise InputError("out overlaps c without being c; give out=c, or a separate array")


def _same_place(x, y):
    def place(z):
        return _address(z), z.shape, z.strides, z.dtype

    return place(x) == place(y)


def overlap(x, y):
    """Tell whether two arrays have a byte in common, from their addresses, shapes and strides.

    CuPy's shares_memory takes too long: it sorts the addresses of all entries on the device, and waits for
    the result.
    """
    of_x, of_y = _extent(x), _extent(y)
    if of_x[0] >= of_y[1] or of_y[0] >= of_x[1]:
        return False
    return np.shares_memory(*(_shadow(z) for z in (x, y)))


def overlaps_itself(x):
    """Tell whether two entries of an array have a byte in common, from its shape and strides."""
    if x.flags.c_contiguous or x.flags.f_contiguous:
        return False
    shadow = _shadow(x)
    # Take two entries, and the first axis along which their indices differ.  Only the difference of the
    # indices matters, so we may assume that one of the entries has index 0 along this axis and all before it.
    while shadow.size and shadow.ndim:
        if np.shares_memory(shadow[:1], shadow[1:]):
            return True
        shadow = shadow[0, ...]  # the Ellipsis keeps it an array; a scalar would read the entry
    return False


class _Interface:
    """The array interface of NumPy, for memory that is not read."""

    def __init__(self, interface):
        self.__array_interface__ = interface


def _shadow(x):
    """Return a NumPy view with the address, shape and strides of any array; its entries must not be read."""
    place = {"data": (_address(x), True), "shape": x.shape, "strides": x.strides}
    return np.asarray(_Interface({"version": 3, "typestr": f"|V{x.itemsize}", **place}))


def _extent(x):
    """Return the addresses of the first byte of an array, and of the first byte behind it."""
    first = _address(x)
    if x.flags.c_contiguous or x.flags.f_contiguous:
        return first, first + x.nbytes
    steps = [(size - 1) * stride for size, stride in zip(x.shape, x.strides, strict=True)]
    last = first + sum(step for step in steps if step > 0) + x.itemsize
    return first + sum(step for step in steps if step < 0), last if x.size else first


def _address(x):
    return x.data.ptr if is_cupy(x) else x.ctypes.data
