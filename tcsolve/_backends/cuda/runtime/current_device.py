"""Properties and streams of the current CUDA device, and the guard against its full memory."""

import functools

import cupy

from tcsolve._backends.cuda.runtime import compiler, out_of_memory, recorded_graphs

__all__ = [
    "allocates_by_default",
    "arch",
    "guarded",
    "multiprocessors",
    "properties",
    "stream",
    "turns_into_memory_error",
]


def guarded(function, again=True):
    """Return the function so that it raises a DeviceMemoryError when memory runs out.

    First the memory that is cached for later solves is freed.  If there was any, and `again` is True, the
    function is called a second time.  The error says that the caller's operands are unchanged, so the
    function must allocate all its memory before it writes to them.
    """
    return out_of_memory.guarded(function, recorded_graphs.clear, again)


def turns_into_memory_error(function):
    """Decorate a function with `guarded`; it keeps its name."""
    return functools.wraps(function)(guarded(function))


def allocates_by_default():
    """Tell whether CuPy's default pool is the current allocator; others do not report their free memory."""
    return cupy.cuda.get_allocator() == cupy.get_default_memory_pool().malloc


@functools.cache
def arch(device):
    """Return the architecture of a device to compile for, such as 'sm_90a'."""
    return compiler.target_arch(cupy.cuda.Device(device))


@functools.cache
def properties(device):
    """Return the properties of a device that `cost_model.rates_of` and the launches need."""
    device = cupy.cuda.Device(device)
    attributes = device.attributes
    bits = attributes.get("GlobalMemoryBusWidth", 0)
    # Two transfers per clock; programs reach about seven eighths of this peak.
    bandwidth = 2e3 * attributes.get("MemoryClockRate", 0) * bits / 8 * 0.87
    return {
        "arch": int(device.compute_capability),
        "multiprocessors": attributes["MultiProcessorCount"],
        "clock": 1e3 * attributes["ClockRate"],
        "bandwidth": bandwidth or 4e11,
    }


def multiprocessors():
    """Return how many multiprocessors the current device has."""
    return properties(cupy.cuda.runtime.getDevice())["multiprocessors"]


@functools.lru_cache(maxsize=128)
def stream(device, thread, purpose, priority=0):
    """Return the stream of a thread for a purpose; the device runs streams of priority -1 first.

    Each thread has its own streams, because no other thread may launch in a stream that captures a graph.
    """
    with cupy.cuda.Device(device):
        return cupy.cuda.Stream(non_blocking=True, priority=priority)
