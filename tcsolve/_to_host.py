"""Small arrays that the host reads while the device goes on."""

import collections
import contextlib
import sys
import threading

import cupy
import numpy as np

from tcsolve import _device

__all__ = ["Sent", "reading"]

# What copies that nobody waited for still read and write.
_abandoned = collections.deque()


def reading(arrays, first=None):
    """Return a function that reads arrays as they are now, in a stream of its own, after first() there."""
    done = cupy.cuda.get_current_stream().record()

    def read():
        nonlocal first
        device = cupy.cuda.runtime.getDevice()
        reader = _device.stream(device, threading.get_ident(), "reader")
        reader.wait_event(done)
        try:
            if first is not None:
                with reader:
                    first()
                first = None  # once
            return tuple(x.get(stream=reader) for x in arrays)
        except BaseException:
            # Whose memory this stream may have for something else.
            cupy.cuda.get_current_stream().wait_event(reader.record())
            raise

    return read


class Sent:
    """A small array, contiguous, that is on its way to the host from now on.

    It leaves behind what the current stream has to do; to wait for it later takes hardly longer than that.
    Whoever asks for it in another stream lets that wait for this one.
    """

    _room = None

    def __init__(self, x):
        self._x, self._done = x, cupy.cuda.Event(disable_timing=True)
        # Without such memory it is read when it is asked for.
        with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
            room = cupy.cuda.alloc_pinned_memory(x.nbytes)
            x.data.copy_to_host_async(room.ptr, x.nbytes)
            self._done.record()
            self._room = room

    def get(self):
        """Return the array."""
        if self._room is None:
            return self._x.get()
        self._done.synchronize()
        return np.frombuffer(self._room, self._x.dtype, self._x.size).reshape(self._x.shape).copy()

    def __del__(self):
        # Others may have this memory of the host as soon as it is given back: not before the copy is there.
        if self._room is None or sys.is_finalizing():
            return
        _abandoned.append((self._done, self._room, self._x))
        with contextlib.suppress(IndexError):  # other threads do the same
            for _ in range(len(_abandoned)):
                held = _abandoned.popleft()  # and have it no more
                if not held[0].done:
                    _abandoned.append(held)
