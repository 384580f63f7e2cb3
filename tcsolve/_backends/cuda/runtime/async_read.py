"""Small arrays that the host reads while the device goes on."""

import collections
import contextlib
import threading

import cupy
import numpy as np

from tcsolve._backends.cuda.runtime import current_device

__all__ = ["Sent", "reading"]

# (event, memory of the host, array) of each copy that may be under way.
_under_way = collections.deque()


def reading(arrays, first=None):
    """Return a function that reads arrays as they are now, in a stream of its own, after first() there."""
    done = cupy.cuda.get_current_stream().record()

    def read():
        nonlocal first
        device = cupy.cuda.runtime.getDevice()
        reader = current_device.stream(device, threading.get_ident(), "reader")
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
            _keep_until_done(self._done, room, x)

    def get(self):
        """Return the array."""
        if self._room is None:
            return self._x.get()
        self._done.synchronize()
        return np.frombuffer(self._room, self._x.dtype, self._x.size).reshape(self._x.shape).copy()


def _keep_until_done(*copy):
    """Hold what a copy reads and writes until it has ended, and release what earlier copies held.

    Others may have this memory as soon as it is given back.  A finalizer of `Sent` cannot do this: the
    garbage collector may destroy the event of an unreachable cycle first.
    """
    _under_way.append(copy)
    with contextlib.suppress(IndexError):  # other threads do the same
        for _ in range(len(_under_way)):
            held = _under_way.popleft()
            if not held[0].done:
                _under_way.append(held)
