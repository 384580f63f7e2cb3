"""FP32 to FP64 and back on CuPy, whose own conversions take subnormal FP32 numbers for zero."""

import functools

import cupy

__all__ = ["converted"]

# Instructions of PTX that flush nothing, whatever CuPy compiles with.
WIDEN = 'asm("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x))'
NARROW = 'asm("cvt.rn.f32.f64 %0, %1;" : "=f"(y) : "d"(x))'
SINGLE, DOUBLE = "fF", "dD"


def converted(x, dtype):
    """Return x in `dtype`, rounded to nearest, as it lies in memory; x itself if it has that."""
    if x.dtype == dtype:
        return x
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


@functools.cache
def _kernel(widens):
    real = ("float32", "float64")
    of, to = real if widens else real[::-1]
    name = "tcsolve_widen" if widens else "tcsolve_narrow"
    return cupy.ElementwiseKernel(f"{of} x", f"{to} y", WIDEN if widens else NARROW, name)
