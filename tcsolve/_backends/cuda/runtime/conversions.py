"""Conversions between floating-point dtypes on CuPy that keep subnormal FP32 numbers; CuPy's do not."""

import functools

import cupy
import numpy as np

__all__ = ["converted", "widened"]

# PTX instructions that keep subnormal numbers, regardless of the options that CuPy compiles with.
WIDEN = 'asm("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x))'
NARROW = 'asm("cvt.rn.f32.f64 %0, %1;" : "=f"(y) : "d"(x))'
# Round to bfloat16, to nearest even, by integer operations; a NaN stays a NaN.
BFLOAT16 = """
    const unsigned int bits = __float_as_uint(x);
    y = x != x ? (bits >> 16) | 0x40 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16
"""
SINGLE, DOUBLE = "fF", "dD"


def converted(x, dtype):
    """Return x in `dtype`, rounded to nearest, in the same memory order; x itself if it has this dtype."""
    if x.dtype == dtype:
        return x
    if x.dtype.name == "bfloat16":
        return converted(widened(x), dtype)
    if dtype.name == "bfloat16":
        return _to_bfloat16()(converted(x, np.dtype(np.float32))).view(dtype)
    crosses = x.dtype.char in SINGLE + DOUBLE and dtype.char in SINGLE + DOUBLE
    if not crosses or (x.dtype.char in SINGLE) == (dtype.char in SINGLE):
        return x.astype(dtype)
    convert = _kernel(dtype.char in DOUBLE)
    if dtype.kind != "c":
        return convert(x.real, cupy.empty_like(x, dtype))
    y = cupy.zeros_like(x, dtype)
    convert(x.real, y.real)
    if x.dtype.kind == "c":
        convert(x.imag, y.imag)
    return y


def widened(x):
    """Return the bfloat16 array x in FP32; bfloat16 has the first 16 bits of the FP32 number."""
    return (x.view(cupy.uint16).astype(cupy.uint32) << 16).view(cupy.float32)


@functools.cache
def _to_bfloat16():
    return cupy.ElementwiseKernel("float32 x", "uint16 y", BFLOAT16, "tcsolve_to_bfloat16")


@functools.cache
def _kernel(widens):
    real = ("float32", "float64")
    of, to = real if widens else real[::-1]
    name = "tcsolve_widen" if widens else "tcsolve_narrow"
    return cupy.ElementwiseKernel(f"{of} x", f"{to} y", WIDEN if widens else NARROW, name)
