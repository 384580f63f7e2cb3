"""Small arrays that the host reads while the device goes on."""

import sys
import threading

import cupy
import numpy as np

from tcsolve import _device

__all__ = ["Sent", "reading"]


def reading(arrays, first=None):
    """Return a function that reads arrays as they are now, in a stream of its own, after first() there."""
    done = cupy.cuda.get_current_stream().record()

    def read():
        device = cupy.cuda.runtime.getDevice()
        reader = _device.stream(device, threading.get_ident(), "reader")
        reader.wait_event(done)
        if first is not None:
            with reader:
                first()
        return tuple(x.get(stream=reader) for x in arrays)

    return read


class Sent:
    """A small array, contiguous, that is on its way to the host from now on.

    It leaves behind what the current stream has to do; to wait for it later takes hardly longer than that.
    """

    _done = None

    def __init__(self, x):
        self._x, self._room = x, cupy.cuda.alloc_pinned_memory(x.nbytes)
        x.data.copy_to_host_async(self._room.ptr, x.nbytes)
        event = cupy.cuda.Event(disable_timing=True)
        self._done = cupy.cuda.get_current_stream().record(event)

    def get(self):
        """Return the array."""
        self._done.synchronize()
        return np.frombuffer(self._room, self._x.dtype, self._x.size).reshape(self._x.shape).copy()

    def __del__(self):
        # Others may get this memory of the host as soon as it is given back.
        if self._done is not None and not sys.is_finalizing():
            self._done.synchronize()
