"""The number of cores and the name of the processor, from the operating system."""

import functools
import os
import pathlib
import platform

__all__ = ["cores", "cpu_name"]


def cores():
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def cpu_name():
    """Return the name of the processor, as the operating system knows it."""
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
