"""Copy small arrays to the host while the device continues."""

import collections
import contextlib
import threading

import cupy
import numpy as np

from tcsolve._backends.cuda.runtime import current_device

__all__ = ["Sent", "reading"]

# (event, host memory, device array) of each copy that may not have finished.
_under_way = collections.deque()


def reading(arrays, first=None):
    """Return a function that copies arrays to the host in a separate stream, after first() in that stream.

    The copy waits only for work launched before this call, so later work must not overwrite the arrays.
    """
    done = cupy.cuda.get_current_stream().record()

    def read():
        nonlocal first
        device = cupy.cuda.runtime.getDevice()
        reader = current_device.stream(device, threading.get_ident(), "reader")
        reader.wait_event(done)
        try:
            # Call `first` only once.  While its kernels run, `once` holds the memory that they read.
            once, first = first, None
            if once is not None:
                with reader:
                    once()
            return tuple(x.get(stream=reader) for x in arrays)
        except BaseException:
            # The current stream waits for the reader, which may still use memory that this stream will reuse.
            cupy.cuda.get_current_stream().wait_event(reader.record())
            raise

    return read


class Sent:
    """A copy of a small contiguous array to the host, which is launched when the object is made.

    The copy runs after the work that is in the current stream then.  Waiting for the copy takes little longer
    than waiting for this work.
    """

    _room = None

    def __init__(self, x):
        self._x, self._done = x, cupy.cuda.Event(disable_timing=True)
        # If there is no pinned memory, `get` copies the array instead.
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
    """Keep the memory of a copy alive until the copy has finished; release that of earlier copies.

    Freed memory may be reused at once, so it must not be freed before the copy has finished.  A finalizer of
    `Sent` cannot wait for that: if the object is in a reference cycle, its event may be destroyed first.
    """
    _under_way.append(copy)
    with contextlib.suppress(IndexError):  # another thread may have emptied the queue
        for _ in range(len(_under_way)):
            held = _under_way.popleft()
            if not held[0].done:
                _under_way.append(held)
