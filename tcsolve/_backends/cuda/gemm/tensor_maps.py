"""Tensor maps: how the copy engine of compute capability 9 finds a box of a matrix.

The driver encodes them; CuPy has no wrapper of that call, so it is made through ctypes.
"""

import ctypes
import functools

import numpy as np

from tcsolve._errors import DeviceError

__all__ = ["PANEL", "panel_map", "result_map"]

# Rows and columns of a box of operands, and of a box of results: the swizzle spans 128 bytes.
PANEL = 64
RESULT_ROWS, RESULT_COLUMNS = 16, 32

# Values of the enumerations in cuda.h, and bytes of an entry.
FLOAT16, FLOAT32, BFLOAT16 = 6, 7, 9
INTERLEAVE_NONE, SWIZZLE_128B, L2_PROMOTION_256B, FILL_ZEROS = 0, 3, 3, 0
TYPES = {"fp16": (FLOAT16, 2), "bf16": (BFLOAT16, 2), "fp32": (FLOAT32, 4)}
MAP_BYTES = 128


@functools.cache
def _encode():
    """Return cuTensorMapEncodeTiled of the driver."""
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
    """Return the map of boxes of PANEL x PANEL entries, as an argument of a kernel.

    The matrix is row-major rows x cols of 16-bit numbers `low`, with leading dimension ld; it starts
    on 16 bytes and so does each row.  What lies outside reads as zero.
    """
    return _encoded(pointer, rows, cols, ld, low, (PANEL, PANEL))


@functools.lru_cache(maxsize=512)
def result_map(pointer, rows, cols, ld):
    """Return the map of boxes of results in an FP32 matrix, as an argument of a kernel.

    The matrix is row-major; it starts on 16 bytes and so does each row.
    """
    return _encoded(pointer, rows, cols, ld, "fp32", (RESULT_COLUMNS, RESULT_ROWS))


def _encoded(pointer, rows, cols, ld, dtype, box):
    """Return the driver's map of boxes of (columns, rows), swizzled by 128 bytes."""
    kind, size = TYPES[dtype]
    # The driver wants the map itself on a boundary of 64 bytes.
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
