"""Recorded graphs: CUDA graphs that are kept for a size and replayed.

Up to a few thousand unknowns, the host takes longer to launch the kernels of a factorization than the device
takes to run them.  A CUDA graph is a single launch.  It reads and writes fixed addresses.  So the matrix is
in a `Tape`, which owns its memory and is lent to one factorization at a time.
"""

import weakref
from typing import NamedTuple

import cupy
import numpy as np

from tcsolve._backends.cuda.runtime import cublas_calls, recurring, shelf
from tcsolve._backends.cuda.runtime.out_of_memory import is_out_of_memory
from tcsolve._backends.cuda.runtime.tape import Tape
from tcsolve._locks import ForkSafeLock
from tcsolve._paths import paths

__all__ = [
    "Census",
    "census",
    "clear",
    "idle_bytes",
    "matrix",
    "recordable",
    "remembers",
    "retire",
    "tape_of",
]

# Largest numbers of tapes that are lent at the same time, and of idle tapes that are kept with their memory.
MOST_LENT, MOST_IDLE = 4, 3
# The part of the memory of a device that idle tapes may keep; a single tape may be larger.
MOST_IDLE_SHARE = 0.1

_lock = ForkSafeLock()
_idle = []  # idle tapes: those without recordings, then all others, the last used one at the end
_retired = []  # (device, pool) of closed tapes and of scratch memory, with memory that is still in use
_lent = 0


def recordable(n, dtype):
    """Tell whether an n x n matrix of this dtype may have a tape."""
    # For larger matrices the host launches fast enough.
    fits = paths().least_recorded <= n <= paths().most_recorded
    return dtype.char == "f" and fits and cublas_calls.recordable()


def remembers(n, dtype):
    """Tell whether `matrix` would return a matrix now if memory is not full and few enough tapes are lent."""
    if not recordable(n, dtype):
        return False
    return n <= paths().most_at_once or recurring.was_asked(_key(n, dtype))


def matrix(n, dtype):
    """Return an n x n row-major array on a tape, with rows on 16-byte boundaries, or None.

    It returns None for the first matrix of a large size, while too many tapes are lent, and if memory is
    full.  When the last array that shares the memory is freed, the tape is idle again.
    """
    key = _key(n, np.dtype(dtype))
    known = recurring.asked_before(key) or n <= paths().most_at_once
    tape = _borrow(key) if known else None
    if tape is None:
        return None
    lease = _Lease(tape)
    tape.settle(cupy.cuda.get_current_stream())
    memory = cupy.cuda.UnownedMemory(tape.w.data.ptr, tape.w.nbytes, lease, key[0])
    start = cupy.cuda.MemoryPointer(memory, 0)
    return cupy.ndarray(tape.w.shape, tape.w.dtype, start)[:, :n]


def _key(n, dtype):
    return cupy.cuda.runtime.getDevice(), n, dtype.char


def tape_of(x):
    """Return the tape that x is on, or None; x may be a view."""
    owner = getattr(x.data.mem, "_owner", None)
    return owner.tape if isinstance(owner, _Lease) else None


def clear():
    """Free the idle tapes, and forget the sizes that were used; return whether any memory was freed."""
    # Call this before taking `_lock`: a thread that holds the lock of `recurring` may run a finalizer that
    # waits for `_lock`.
    recurring.forget()
    with _lock:
        gone = shelf.clear(_idle)
        return _retire(gone) or bool(gone)


def idle_bytes():
    """Return the bytes that `clear` would free on the current device."""
    device = cupy.cuda.runtime.getDevice()
    with _lock:
        idle = sum(tape.nbytes for tape in _idle if tape.key[0] == device)
        return idle + sum(pool.free_bytes() for where, pool in _retired if where == device)


class Census(NamedTuple):
    """Numbers of idle tapes, of their recordings, of lent tapes, and of retired pools still in use."""

    idle: int
    recordings: int
    lent: int
    retired: int


def census():
    """Return the `Census` of all devices."""
    with _lock:
        recordings = sum(tape.recordings for tape in _idle)
        return Census(len(_idle), recordings, _lent, len(_retired))


class _Lease:
    """One use of a tape; when this object is collected, the tape is idle again."""

    def __init__(self, tape):
        self.tape = tape
        weakref.finalize(self, _give_back, tape).atexit = False


def _borrow(key):
    """Return an idle or a new tape, or None if MOST_LENT tapes are lent, or if memory is full."""
    global _lent
    with _lock:
        if _lent >= MOST_LENT:
            return None
        _lent += 1
    try:
        return _take(key) or Tape(key)
    except BaseException as error:
        with _lock:
            _lent -= 1
        if is_out_of_memory(error):  # the factorization also works without a tape
            return None
        raise


def _take(key):
    with _lock:
        return shelf.take(_idle, key)


def _give_back(tape):
    global _lent
    with _lock:
        _lent -= 1
        tape.idle_bytes = tape.nbytes
        _retire(shelf.put(_idle, tape, MOST_IDLE, MOST_IDLE_SHARE * tape.device_bytes))


def retire(pool):
    """Free a pool of the current device that makes no more arrays; blocks that are in use are freed later."""
    with _lock:
        _retired.append((cupy.cuda.runtime.getDevice(), pool))
        _retire(())


def _retire(tapes):
    """Close tapes, and free the memory of all retired pools as far as possible; return whether any was freed.

    Dropping a pool does not always free its memory, because the parts of a divided block refer to each other.
    So a pool is kept until no memory of it is in use.
    """
    for tape in tapes:
        _retired.extend((tape.key[0], reel.pool) for reel in tape.close())
    retired, freed = shelf.clear(_retired), False
    for device, pool in retired:
        with cupy.cuda.Device(device):
            before = pool.total_bytes()
            pool.free_all_blocks()
            left = pool.total_bytes()
        freed = freed or left < before
        if left:
            _retired.append((device, pool))
    return freed
