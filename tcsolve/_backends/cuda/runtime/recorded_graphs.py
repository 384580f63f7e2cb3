"""Work recorded once and replayed: CUDA graphs, and matrices that remember what is done with them.

Below some thousand unknowns the host takes longer to launch the kernels of a factorization than the device
takes to run them; a graph of them is one launch.  It reads and writes the addresses it was recorded with, so
the matrix lives in a `Tape`, which has memory of its own and is lent to one factorization at a time.
"""

import collections
import contextlib
import threading
import weakref

import cupy
import numpy as np

from tcsolve._backends.cuda.runtime import cublas_calls, shelf
from tcsolve._backends.cuda.runtime.out_of_memory import is_out_of_memory
from tcsolve._locks import ForkSafeLock

__all__ = [
    "clear",
    "duplicate",
    "idle_bytes",
    "matrix",
    "recordable",
    "remembers",
    "retire",
    "tape_of",
]

# Unknowns beyond which a matrix is not kept: the host launches fast enough there.
MOST_ROWS = 32768
# Tapes that are lent at a time, and kept, with their memory, while nobody uses them; sizes whose first use is
# remembered.
MOST_LENT, MOST_IDLE, MOST_REMEMBERED = 4, 3, 256
# Share of a device's memory that tapes nobody uses may keep; the last one is kept in any case.
MOST_IDLE_SHARE = 0.1
# Words that kernels find zero and leave zero.
MOST_WORDS = 32
# cudaErrorMemoryAllocation, and the stream that is another one in every thread (cudaStreamPerThread).
OUT_OF_MEMORY, PER_THREAD = 2, 2

_lock = ForkSafeLock()
_idle = []  # tapes, the last used at the end
_retired = []  # pools of tapes that are gone, with their devices, while anything of theirs is held
_lent = 0
_remembered = collections.OrderedDict()


def recordable(n, dtype):
    """Tell whether an n x n matrix of this dtype is worth a tape here."""
    return dtype.char == "f" and 0 < n <= MOST_ROWS and cublas_calls.recordable()


def remembers(n, dtype):
    """Tell whether `matrix` would return one, if there is room."""
    if not recordable(n, dtype):
        return False
    return _was_asked((cupy.cuda.runtime.getDevice(), n, dtype.char))


def matrix(n, dtype):
    """Return an n x n row-major array, rows on 16-byte boundaries, that has a tape, or None.

    There is none the first time, and while too many are in use.  Its memory goes back to the tape, and the
    tape to those kept, with the last array that shares it.
    """
    key = (cupy.cuda.runtime.getDevice(), n, np.dtype(dtype).char)
    tape = _borrow(key) if _asked_before(key) else None
    if tape is None:
        return None
    lease = _Lease(tape)
    tape.settle(cupy.cuda.get_current_stream())
    memory = cupy.cuda.UnownedMemory(tape.w.data.ptr, tape.w.nbytes, lease, key[0])
    start = cupy.cuda.MemoryPointer(memory, 0)
    return cupy.ndarray(tape.w.shape, tape.w.dtype, start)[:, :n]


def tape_of(x):
    """Return the tape of the matrix that x is a view of, or None."""
    owner = getattr(x.data.mem, "_owner", None)
    return owner.tape if isinstance(owner, _Lease) else None


def clear():
    """Free the tapes that nobody uses, and forget what was asked; return whether there was anything."""
    with _lock:
        gone = shelf.clear(_idle)
        _remembered.clear()
        return _retire(gone) or bool(gone)


def idle_bytes():
    """Return the bytes that `clear` would free on the current device."""
    device = cupy.cuda.runtime.getDevice()
    with _lock:
        idle = sum(tape.nbytes for tape in _idle if tape.key[0] == device)
        return idle + sum(pool.free_bytes() for where, pool in _retired if where == device)


class _Lease:
    """One use of a tape; the tape is free again when this is collected."""

    def __init__(self, tape):
        self.tape = tape
        weakref.finalize(self, _give_back, tape).atexit = False


def _was_asked(key):
    with _lock:
        return key in _remembered


def _asked_before(key):
    """Tell whether this was asked before, and remember it."""
    with _lock:
        known = key in _remembered
        _remembered[key] = True
        _remembered.move_to_end(key)
        if len(_remembered) > MOST_REMEMBERED:
            _remembered.popitem(last=False)
        return known


def _borrow(key):
    """Return a tape that nobody else uses, or None: factors that live on shall not each keep one."""
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
        if is_out_of_memory(error):  # a tape is a luxury
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
    """Free the blocks of a pool of the current device that is used no more, at once or when they are back."""
    with _lock:
        _retired.append((cupy.cuda.runtime.getDevice(), pool))
        _retire(())


def _retire(tapes):
    """Give the memory of tapes that nobody will use back to the device; return whether any was.

    A pool that is dropped need not do that: the parts of a divided block refer to each other, and CuPy leaves
    them to nobody.  So it is kept until all that it has lent out is gone.
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


def _block(size):
    """Allocate for a tape's pool; its graphs write to blocks that are free as far as the pool knows.

    CuPy's pools give all free blocks back when CUDA refuses one more, unless what they allocate with raises
    this error.
    """
    for last in (False, True):
        try:
            return cupy.cuda.MemoryPointer(cupy.cuda.Memory(size), 0)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if error.status != OUT_OF_MEMORY:
                raise
            if last:
                raise cupy.cuda.memory.OutOfMemoryError(size, -1) from error
        cupy.get_default_memory_pool().free_all_blocks()


class Tape:
    """Memory for a matrix and for what is computed with it, and the graphs recorded there.

    Attributes
    ----------
    key : tuple
        Device, rows and dtype of the matrix.
    w : array
        The matrix, with its padding.
    device_bytes, idle_bytes : int
        The memory of the device, all of it, and what the tape held when it was last given back.
    """

    def __init__(self, key):
        self.key = key
        self._reel, self._beside = _Reel(key), None
        # Where it was used last, and the ends of that and of what was done aside.
        self._last, self._done, self._done_aside = None, _event(), None
        self._lock, self._inputs = threading.RLock(), {}
        _, n, char = key
        _, self.device_bytes = cupy.cuda.runtime.memGetInfo()
        self.idle_bytes = 0
        with self._reel.memory():
            self.w = cupy.empty((n, -(-n // 4) * 4), char)

    @property
    def nbytes(self):
        """Bytes held on its device."""
        with cupy.cuda.Device(self.key[0]):
            return sum(reel.pool.total_bytes() for reel in self._reels)

    @property
    def recordings(self):
        """How many graphs there are."""
        return sum(len(reel.graphs) for reel in self._reels)

    @property
    def _reels(self):
        return [reel for reel in (self._reel, self._beside) if reel]

    def close(self):
        """Drop all that is held; return the reels, whose pools have what others still hold."""
        reels = self._reels
        self.w, self._reel, self._beside = None, None, None
        self._inputs.clear()
        for reel in reels:
            reel.close()
        return reels

    def run(self, name, body, where=(), aside=False):
        """Return body(), launched the first time, recorded the next, replayed from then on.

        body launches kernels for arrays of this tape and reads nothing back; what it returns is memory of
        the tape, good until it runs again.  Equal `name` and `where` (addresses) mean the same work.  What
        runs `aside`, in a stream of its own that waits for what was done here before, has memory of its own
        and writes nowhere else.
        """
        stream = cupy.cuda.get_current_stream()
        with self._lock:
            if aside:
                self._beside = self._beside or _Reel(self.key)
                result = self._beside.run(stream, name, body, where)
                self._done_aside = _mark(stream)
                return result
            self.follow(stream)
            result = self._reel.run(stream, name, body, where)
            stream.record(self._done)
            return result

    def apply(self, name, inputs, body, where=()):
        """Return a copy of body(*inputs), recorded; inputs are vectors, of NumPy or CuPy, that are copied."""
        with self._lock:
            self.follow(cupy.cuda.get_current_stream())
            if name not in self._inputs:
                with self._reel.memory():
                    self._inputs[name] = [cupy.empty(len(x), x.dtype) for x in inputs]
            held = self._inputs[name]
            for to, x in zip(held, inputs, strict=True):
                _copy(to, x)
            result = duplicate(self.run(name, lambda: body(*held), where))
            cupy.cuda.get_current_stream().record(self._done)
            return result

    def follow_aside(self, stream):
        """Let whoever has the tape next wait for what was done on a stream beside this one, too."""
        with self._lock:
            self._done_aside = _mark(stream)

    def follow(self, stream):
        """Let what comes on a stream wait for what was done with this tape on others."""
        here = stream.ptr, threading.get_ident() if stream.ptr == PER_THREAD else 0
        if self._last not in (None, here):
            stream.wait_event(self._done)
        self._last = here

    def settle(self, stream):
        """Let what comes on a stream, and writes to the matrix, wait for all that was done with it."""
        self.follow(stream)
        if self._done_aside:
            stream.wait_event(self._done_aside)
            self._done_aside = None


class _Reel:
    """Graphs that run one after the other, and the memory they share.

    Attributes
    ----------
    pool : MemoryPool
    graphs : dict
        By name and addresses, a graph and what its body returned.
    """

    def __init__(self, key):
        self.pool, self.graphs = cupy.cuda.MemoryPool(_block), {}
        self._key, self._workspaces = key, {}
        self._handles = set()  # which are not destroyed before the graphs
        self._unrecordable = set()  # names of bodies whose recording failed
        self._stream = cupy.cuda.Stream(non_blocking=True)
        with cupy.cuda.using_allocator(self.pool.malloc):
            self._words = cupy.empty((cublas_calls.LANES, MOST_WORDS), cupy.uint32)

    def close(self):
        """Drop the graphs and all memory."""
        self.graphs.clear()
        self._workspaces.clear()
        self._handles.clear()
        self._words = None

    def run(self, stream, name, body, where):
        """Return body(), launched, or replayed, on a stream."""
        key, known = (name, where), (*self._key, name)
        if key not in self.graphs:
            if name in self._unrecordable:
                return self._launch(stream, body)
            # Kernels that were never launched may not be loaded, and then cannot be recorded.
            if not _was_asked(known):
                result = self._launch(stream, body)
                _asked_before(known)
                return result
            try:
                self.graphs[key] = self._record(body)
            except (RuntimeError, MemoryError):  # CUDA's and CuPy's errors; nothing has run
                self._unrecordable.add(name)
                return self._launch(stream, body)
        graph, result = self.graphs[key]
        graph.launch(stream)
        return result

    def _launch(self, stream, body):
        self._stream.wait_event(_mark(stream))
        try:
            with self.memory(), self._stream:
                self._words.fill(0)
                result = body()
        except BaseException:
            cupy.cuda.Device().synchronize()  # the tape will be lent again, and a side stream may run as well
            raise
        stream.wait_event(_mark(self._stream))
        return result

    def _record(self, body):
        with self.memory(), self._stream:
            self._stream.begin_capture()
            try:
                # Each time: what failed half way has not left them zero.
                self._words.fill(0)
                result = body()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # of a side stream that has not come back
                    self._stream.end_capture()
                raise
            return self._stream.end_capture(), result

    @contextlib.contextmanager
    def memory(self):
        """Allocate from the pool, cuBLAS's workspaces, too."""
        with (
            cupy.cuda.using_allocator(self.pool.malloc),
            cublas_calls.recorded(self._workspace, self._words_of, self._handles),
        ):
            yield

    def _words_of(self, lane):
        return self._words[lane]

    def _workspace(self, lane):
        if lane not in self._workspaces:
            self._workspaces[lane] = cupy.empty(cublas_calls.WORKSPACE_BYTES, cupy.uint8)
        return self._workspaces[lane]


def duplicate(x):
    """Return a copy of x, contiguous."""
    copy = cupy.empty(x.shape, x.dtype)
    _copy(copy, x)
    return copy


def _copy(to, x):
    """to[...] = x, where `to` is contiguous, and x of NumPy or CuPy."""
    if isinstance(x, np.ndarray):
        # So few bytes have been read when it returns.
        to.data.copy_from_host_async(x.ctypes.data, x.nbytes)
    elif x.flags.c_contiguous:
        # Half of what an assignment costs the host.
        to.data.copy_from_device_async(x.data, x.nbytes)
    else:
        to[...] = x


def _event():
    return cupy.cuda.Event(disable_timing=True)


def _mark(stream):
    return stream.record(_event())
