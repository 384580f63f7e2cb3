"""Stacks as cuBLAS and cuSOLVER take them: in FP64 or complex128, row-major, by addresses."""

import cupy
import numpy as np

from tcsolve._backends.cuda.runtime.conversions import converted

__all__ = ["addresses_of", "conjugate", "copied", "wide"]


def addresses_of(x):
    """Return the addresses of x[0], x[1], ..., as an array on the device; x must be contiguous."""
    step = x.nbytes // len(x)
    return cupy.arange(x.data.ptr, x.data.ptr + step * len(x), step, dtype=cupy.uintp)


def wide(a):
    """Return a in FP64 or complex128; a itself if it has this dtype."""
    return converted(a, np.result_type(a.dtype, np.float64))


def copied(a, conjugated=False):
    """Return a row-major copy in FP64 or complex128."""
    made = wide(a)
    made = cupy.array(a, order="C") if made is a else cupy.ascontiguousarray(made)
    return conjugate(made) if conjugated else made


def conjugate(x):
    """Conjugate x in place if it is complex; return x."""
    return cupy.conj(x, out=x) if x.dtype.kind == "c" else x
