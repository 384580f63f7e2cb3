"""Copies of large arrays between host and device, through small pinned buffers.

A copy over the bus reads or writes only pinned memory.  Pinning the user's memory would take as long as the
copy.  Instead several threads copy pieces of the array to small pinned buffers of their own, and send each
buffer as soon as it is full.  Arrays from the device come back through such buffers.

All copies are in the current stream, so that the kernels that follow there find all pieces.  An event
of each buffer tells when its last copy has finished; before that, no thread writes to the buffer.
"""

import contextlib

import cupy
import numpy as np

from tcsolve._backends.cuda.runtime import pipeline, shelf
from tcsolve._backends.cuda.runtime.out_of_memory import is_out_of_memory
from tcsolve._locks import ForkSafeLock

__all__ = ["LEAST_BYTES", "clear", "to_device", "to_host"]

# Smaller arrays are copied by CuPy, in one thread.  On an H200 that is as fast up to about this size.
LEAST_BYTES = 16 << 20
# Bytes of a buffer, and number of buffers: each thread fills one while another one is being sent.  An array
# smaller than all buffers together is cut into about as many pieces as there are buffers, so that all threads
# have work.
BUFFER_BYTES, BUFFERS = 4 << 20, 2 * pipeline.THREADS
# Number of rings, which are sets of BUFFERS buffers, that are kept for later copies.
MOST_IDLE = 2

_lock = ForkSafeLock()
_idle = []


def to_device(x):
    """Return the NumPy array x as a CuPy array, in the memory order that `cupy.asarray` gives it.

    When this function returns, x has been read, but the last copies may still be under way in the current
    stream.
    """
    rows = _rows(x)
    if rows is None:
        return cupy.asarray(x)
    with _ring() as ring:
        if ring is None:
            return cupy.asarray(x)
        out = cupy.empty(x.shape, x.dtype, order=_order(x))
        stream, row_bytes = cupy.cuda.get_current_stream(), rows[0].nbytes

        def fill(part, buffer):
            buffer.wait(ring.device)
            piece = rows[part]
            np.copyto(buffer.bytes[: piece.nbytes].view(x.dtype).reshape(piece.shape), piece)

        def send(part, buffer):
            there = out.data + part.start * row_bytes
            there.copy_from_host_async(buffer.pointer, rows[part].nbytes, stream)
            buffer.event.record(stream)

        jobs = pipeline.parts(len(rows), row_bytes, _piece_bytes(x))
        pipeline.sent(jobs, ring.buffers, fill, send)
    return out


def to_host(x):
    """Return the CuPy array x as a NumPy array; large contiguous arrays keep their memory order."""
    if x.nbytes < LEAST_BYTES or not (x.flags.c_contiguous or x.flags.f_contiguous):
        return x.get()
    with _ring() as ring:
        if ring is None:
            return x.get()
        out = np.empty(x.shape, x.dtype, order=_order(x))
        flat = out.ravel(order="K").view(np.uint8)  # a view, because the array is contiguous
        stream = cupy.cuda.get_current_stream()

        def fetch(part, buffer):
            buffer.wait(ring.device)
            here = x.data + part.start
            here.copy_to_host_async(buffer.pointer, part.stop - part.start, stream)
            buffer.event.record(stream)

        def drain(part, buffer):
            buffer.event.synchronize()
            np.copyto(flat[part], buffer.bytes[: part.stop - part.start])

        jobs = pipeline.parts(x.nbytes, 1, _piece_bytes(x))
        pipeline.received(jobs, ring.buffers, fetch, drain)
    return out


def clear():
    """Give the memory that is kept for later copies back to CuPy's pool of pinned memory."""
    with _lock:
        gone = shelf.clear(_idle)
    for ring in gone:
        ring.settle()


def _piece_bytes(x):
    return min(BUFFER_BYTES, -(-x.nbytes // BUFFERS))


def _order(x):
    return "F" if x.flags.fnc else "C"


def _rows(x):
    """Return a view of x whose rows lie one behind the other in the copy; None if CuPy should copy x."""
    if type(x) is not np.ndarray and not isinstance(x, np.memmap):
        return None
    if x.nbytes < LEAST_BYTES or not x.dtype.isnative or x.dtype.char not in "fdFDeiIlLqQbBhH":
        return None
    rows = x.T if x.flags.fnc else x
    if rows.ndim > 2 and rows.flags.c_contiguous:
        rows = rows.reshape(-1, rows.shape[-1])
    return rows if rows[0].nbytes <= BUFFER_BYTES else None


class _Buffer:
    """A piece of pinned memory, and the event of the last copy from it or to it."""

    def __init__(self, memory, offset):
        self.pointer = memory.ptr + offset
        self.bytes = np.frombuffer(memory, np.uint8, BUFFER_BYTES, offset)
        self.event = cupy.cuda.Event(block=True, disable_timing=True)

    def wait(self, device):
        """Make `device` current in the calling thread, and wait until the last copy has finished."""
        cupy.cuda.runtime.setDevice(device)
        self.event.synchronize()


class _Ring:
    """Pinned buffers that one copy uses at a time; the events belong to the current device."""

    def __init__(self):
        self.device = self.key = cupy.cuda.runtime.getDevice()
        self._memory = cupy.cuda.alloc_pinned_memory(BUFFERS * BUFFER_BYTES)
        self.buffers = [_Buffer(self._memory, i * BUFFER_BYTES) for i in range(BUFFERS)]

    def settle(self):
        """Wait for all copies, so that the memory may be used for something else."""
        for buffer in self.buffers:
            buffer.event.synchronize()


@contextlib.contextmanager
def _ring():
    """Lend a ring of the current device; None if there is no pinned memory."""
    device = cupy.cuda.runtime.getDevice()
    with _lock:
        ring = shelf.take(_idle, device)
    try:
        ring = ring or _Ring()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        yield None
        return
    try:
        yield ring
    finally:
        with _lock:
            _idle.append(ring)
            gone = _idle[:-MOST_IDLE]
            del _idle[:-MOST_IDLE]
        for one in gone:
            one.settle()
