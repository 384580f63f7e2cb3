"""Launches of kernels on arrays; the argument list for the driver is prepared once."""

import functools
import struct

import cupy

from tcsolve._backends.cuda.runtime import compiler

__all__ = ["launch", "macros", "prepared", "steps"]


def steps(x):
    """Return an array, and its strides in entries, as arguments of a kernel."""
    size = x.itemsize
    return (x, *[stride // size for stride in x.strides])


def macros(a):
    """Return the macros T_A and COMPLEX for an array or a dtype."""
    dtype = getattr(a, "dtype", a)
    return {"T_A": "float" if dtype.char in "fF" else "double", "COMPLEX": int(dtype.kind == "c")}


def launch(entry, grid, block, args, defines, shared=0):
    """Launch an entry (file, name) on arrays, numbers and None; grid and block have two dimensions."""
    device, defines = cupy.cuda.runtime.getDevice(), tuple(defines.items())
    _prepared(device, entry, (grid, block, shared), len(args), defines)(args)


def prepared(entry, grid, block, args, defines, shared=0):
    """Return a function that launches an entry on the current device with its first arguments replaced.

    The arguments are those of `launch`.  In place of arrays that are not known yet, `args` has None.
    """
    args = [x if type(x) is int else _as_int(x) for x in args]
    run = compiler.kernel(*entry, **defines).prepared(grid, block, args, shared)
    return lambda first: run(enumerate([x if type(x) is int else _as_int(x) for x in first]))


def _as_int(x):
    """Return the integer for an argument: the bits of a float, 0 for None, or the address of an array."""
    if type(x) is float:
        return struct.unpack("q", struct.pack("d", x))[0]
    return 0 if x is None else x.data.ptr


@functools.lru_cache(maxsize=1024)
def _prepared(device, entry, shape, count, defines):
    grid, block, shared = shape
    return prepared(entry, grid, block, [0] * count, dict(defines), shared)
