"""The current CUDA device: what it is, and what happens when its memory is not enough."""

import functools

import cupy

from tcsolve._backends.cuda.runtime import compiler, out_of_memory, recorded_graphs

__all__ = [
    "allocates_by_default",
    "arch",
    "multiprocessors",
    "properties",
    "stream",
    "turns_into_memory_error",
]


def turns_into_memory_error(function, again=True):
    """Let a failed allocation end in our error; the caller's arrays are never written before it.

    Memory that is kept for later solves is given up first, and the function called once more if it may be.
    """
    return out_of_memory.guarded(function, recorded_graphs.clear, again)


def allocates_by_default():
    """Tell whether CuPy's own pool is the current allocator: of others we know neither state nor order."""
    return cupy.cuda.get_allocator() == cupy.get_default_memory_pool().malloc


@functools.cache
def arch(device):
    """Return the architecture of a device to compile for, such as 'sm_90a'."""
    return compiler.target_arch(cupy.cuda.Device(device))


@functools.cache
def properties(device):
    """Return what `cost_model.rates_of` and the launches ask of a device."""
    device = cupy.cuda.Device(device)
    attributes = device.attributes
    bits = attributes.get("GlobalMemoryBusWidth", 0)
    # Two transfers a clock; about seven eighths of that can be had.
    bandwidth = 2e3 * attributes.get("MemoryClockRate", 0) * bits / 8 * 0.87
    return {
        "arch": int(device.compute_capability),
        "multiprocessors": attributes["MultiProcessorCount"],
        "shared_bytes": attributes.get("MaxSharedMemoryPerMultiprocessor", 64 << 10),
        "clock": 1e3 * attributes["ClockRate"],
        "bandwidth": bandwidth or 4e11,
    }


def multiprocessors():
    """Return how many multiprocessors the current device has."""
    return properties(cupy.cuda.runtime.getDevice())["multiprocessors"]


@functools.lru_cache(maxsize=128)
def stream(device, thread, purpose, priority=0):
    """Return the stream of a thread for a purpose; what is launched in those of priority -1 goes first.

    Each thread has its own: nothing else may enter a stream while it is recorded.
    """
    with cupy.cuda.Device(device):
        return cupy.cuda.Stream(non_blocking=True, priority=priority)
