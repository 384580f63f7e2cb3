"""Tensor maps, which the copy engine (TMA) of compute capability 9.0 needs to copy a box of a matrix.

The driver encodes them.  CuPy does not wrap this function of the driver, so we call it through ctypes.
"""

import ctypes
import functools

import numpy as np

from tcsolve._errors import DeviceError

__all__ = ["PANEL", "panel_address", "panel_map", "result_address", "result_map"]

# Number of rows and columns of a box of operands, and of a box of results.  A row has 128 bytes, the width of
# the swizzle.
PANEL = 64
RESULT_ROWS, RESULT_COLUMNS = 16, 32

# Values of enumerations in cuda.h; TYPES has the type and the number of bytes of an entry.
FLOAT16, FLOAT32, BFLOAT16 = 6, 7, 9
INTERLEAVE_NONE, SWIZZLE_128B, L2_PROMOTION_256B, FILL_ZEROS = 0, 3, 3, 0
TYPES = {"fp16": (FLOAT16, 2), "bf16": (BFLOAT16, 2), "fp32": (FLOAT32, 4)}
MAP_BYTES = 128


@functools.cache
def _encode():
    """Return the function cuTensorMapEncodeTiled of the driver."""
    try:
        function = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError) as error:
        raise DeviceError(
            f"the CUDA driver has no cuTensorMapEncodeTiled ({error}); "
            "use engine='wmma', or a driver of CUDA 12 or later"
        ) from error
    function.restype = ctypes.c_int
    return function


@functools.lru_cache(maxsize=512)
def panel_map(pointer, rows, cols, ld, low):
    """Return the tensor map for boxes of PANEL x PANEL entries, as an argument of a kernel.

    The matrix is row-major, rows x cols, of the 16-bit format `low`, with leading dimension ld.  Each row
    starts on a 16-byte boundary.  Entries of a box outside of the matrix read as zero.
    """
    return _encoded(pointer, rows, cols, ld, low, (PANEL, PANEL))


@functools.lru_cache(maxsize=512)
def result_map(pointer, rows, cols, ld):
    """Return the tensor map for boxes of results in an FP32 matrix, as an argument of a kernel.

    The matrix is row-major.  Each row starts on a 16-byte boundary.
    """
    return _encoded(pointer, rows, cols, ld, "fp32", (RESULT_COLUMNS, RESULT_ROWS))


@functools.lru_cache(maxsize=512)
def panel_address(*args):
    """Return the address on the host of a `panel_map`, and the map."""
    found = panel_map(*args)
    return found.ctypes.data, found


@functools.lru_cache(maxsize=512)
def result_address(*args):
    """Return the address on the host of a `result_map`, and the map."""
    found = result_map(*args)
    return found.ctypes.data, found


def _encoded(pointer, rows, cols, ld, dtype, box):
    """Return the tensor map for boxes of (columns, rows), with a swizzle of 128 bytes."""
    kind, size = TYPES[dtype]
    # The map itself must start on a 64-byte boundary.
    memory = np.zeros(MAP_BYTES + 64, np.uint8)
    first = -memory.ctypes.data % 64
    encoded = memory[first : first + MAP_BYTES].view(np.dtype((np.void, MAP_BYTES)))
    status = _encode()(
        ctypes.c_void_p(encoded.ctypes.data),
        ctypes.c_int(kind),
        ctypes.c_uint32(2),
        ctypes.c_void_p(pointer),
        (ctypes.c_uint64 * 2)(cols, rows),
        (ctypes.c_uint64 * 1)(size * ld),
        (ctypes.c_uint32 * 2)(*box),
        (ctypes.c_uint32 * 2)(1, 1),
        ctypes.c_int(INTERLEAVE_NONE),
        ctypes.c_int(SWIZZLE_128B),
        ctypes.c_int(L2_PROMOTION_256B),
        ctypes.c_int(FILL_ZEROS),
    )
    if status:
        raise DeviceError(
            f"cuTensorMapEncodeTiled failed with CUresult {status} for {rows} x {cols} {dtype} "
            f"at {pointer:#x}, leading dimension {ld}"
        )
    return encoded
