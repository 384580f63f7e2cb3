"""A tape: memory for a matrix, and the CUDA graphs that are recorded for work there."""

import contextlib
import threading

import cupy
import numpy as np

from tcsolve._backends.cuda.runtime import cublas_calls
from tcsolve._backends.cuda.runtime.recurring import asked_before, was_asked
from tcsolve._paths import paths

__all__ = ["Tape", "duplicate"]

# Number of zero words for the kernels of a lane (see `cublas_calls.zeros`).
MOST_WORDS = 32
# cudaErrorMemoryAllocation; and cudaStreamPerThread, which is a different stream in each thread.
OUT_OF_MEMORY, PER_THREAD = 2, 2


def _block(size):
    """Allocate a block for the pool of a tape; if memory is full, raise CuPy's OutOfMemoryError.

    After CUDA's own error, the pool would free its unused blocks and try again.  But graphs still write to
    blocks that the pool counts as unused.
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
    """Memory for a matrix and for the work on it, with the graphs that are recorded there.

    Attributes
    ----------
    key : tuple
        Device, number of rows and dtype of the matrix.
    w : array
        The matrix, with the padding of its rows.
    device_bytes, idle_bytes : int
        The total memory of the device, and the bytes that the tape held when it was last returned.
    """

    def __init__(self, key):
        self.key = key
        self._reel, self._beside = _Reel(key), None
        # The stream that used the tape last; the event at the end of its work, and the event at the end of
        # the work that runs beside it (see `aside` in `run`).
        self._last, self._done, self._done_aside = None, _event(), None
        self._lock, self._inputs = threading.RLock(), {}
        _, n, char = key
        _, self.device_bytes = cupy.cuda.runtime.memGetInfo()
        self.idle_bytes = 0
        with self._reel.memory():
            self.w = cupy.empty((n, -(-n // 4) * 4), char)

    @property
    def nbytes(self):
        """Number of bytes held on the device."""
        with cupy.cuda.Device(self.key[0]):
            return sum(reel.pool.total_bytes() for reel in self._reels)

    @property
    def recordings(self):
        """Number of recorded bodies; `divide` may make several graphs of one."""
        return sum(len(reel.graphs) for reel in self._reels)

    @property
    def _reels(self):
        return [reel for reel in (self._reel, self._beside) if reel]

    def close(self):
        """Release the graphs and the memory; return the reels, because arrays may still use their pools."""
        reels = self._reels
        self.w, self._reel, self._beside = None, None, None
        self._inputs.clear()
        for reel in reels:
            reel.close()
        return reels

    def run(self, name, body, where=(), aside=False):
        """Return body(), which is recorded and replayed.

        For a large matrix, the first call launches it, and only the second one records it.

        body launches kernels for arrays of this tape and reads nothing back.  Its result is memory of the
        tape, valid until the next run.  Equal `name` and `where` (addresses) mean equal work.  For work
        `aside`, the current stream is a separate one, which already waits for earlier work of the tape.  Such
        work has memory of its own and writes only there.
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

    def divide(self):
        """Let one graph end here and another one begin, if a body is being recorded without `aside`.

        The host takes about a microsecond for each kernel of a graph before the first one starts.  While the
        device works on one graph, the host prepares the next one.
        """
        self._reel.divide()

    def apply(self, name, inputs, body, where=()):
        """Let `run` run body on copies of `inputs`, NumPy or CuPy vectors; return a copy of its result."""
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
        """Let `settle` wait for the work that `stream` has now, which runs `aside` (see `run`)."""
        with self._lock:
            self._done_aside = _mark(stream)

    def follow(self, stream):
        """Let later work in `stream` wait for the work with this tape in other streams."""
        here = stream.ptr, threading.get_ident() if stream.ptr == PER_THREAD else 0
        if self._last not in (None, here):
            stream.wait_event(self._done)
        self._last = here

    def settle(self, stream):
        """Let later work in `stream`, which overwrites the matrix, wait for all work with it."""
        self.follow(stream)
        if self._done_aside:
            stream.wait_event(self._done_aside)
            self._done_aside = None


class _Reel:
    """Graphs that run one after the other, and the memory that they share.

    Attributes
    ----------
    pool : MemoryPool
        The pool of this memory.
    graphs : dict
        (name, addresses, `Paths`) -> (list of graphs, result of its body).
    """

    def __init__(self, key):
        self.pool, self.graphs = cupy.cuda.MemoryPool(_block), {}
        self._key, self._workspaces = key, {}
        self._handles = set()  # keeps the cuBLAS handles alive as long as the graphs
        self._unrecordable = set()  # names of bodies that could not be recorded
        self._recorded = None  # the graphs of the body that is being recorded
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
        """Return body(), launched or replayed in `stream`."""
        key, known = (name, where, paths()), (*self._key, name, paths())
        if key not in self.graphs and name not in self._unrecordable:
            _, n, _ = self._key
            launched = was_asked(known)
            if launched or n <= paths().most_at_once:
                try:
                    self.graphs[key] = self._record(body)
                except (RuntimeError, MemoryError):  # CUDA's and CuPy's errors; nothing has run
                    # What cannot be recorded before a first launch may be recorded after it.
                    if launched:
                        self._unrecordable.add(name)
        if key not in self.graphs:
            result = self._launch(stream, body)
            asked_before(known)
            return result
        graphs, result = self.graphs[key]
        for graph in graphs:
            graph.launch(stream)
        return result

    def _launch(self, stream, body):
        self._stream.wait_event(_mark(stream))
        try:
            with self.memory(), self._stream:
                self._words.fill(0)
                result = body()
        except BaseException:
            cupy.cuda.Device().synchronize()  # side streams may still use the tape
            raise
        stream.wait_event(_mark(self._stream))
        return result

    def _record(self, body):
        with self.memory(), self._stream:
            self._stream.begin_capture()
            self._recorded = []
            try:
                # The graph fills the words each time, because work that failed may not have restored them.
                self._words.fill(0)
                result = body()
                graphs = [*self._recorded, self._stream.end_capture()]
            except BaseException:
                with contextlib.suppress(RuntimeError):  # a side stream has not been joined
                    self._stream.end_capture()
                raise
            finally:
                self._recorded = None
            return graphs, result

    def divide(self):
        """As `Tape.divide`."""
        if self._recorded is not None:
            self._recorded.append(self._stream.end_capture())
            self._stream.begin_capture()

    @contextlib.contextmanager
    def memory(self):
        """Let allocations in the with block come from the pool, also the workspaces of cuBLAS."""
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
    """Return a contiguous copy of x."""
    copy = cupy.empty(x.shape, x.dtype)
    _copy(copy, x)
    return copy


def _copy(to, x):
    """to[...] = x, where `to` is contiguous and x is a NumPy or CuPy array."""
    if isinstance(x, np.ndarray):
        # NumPy arrays are small here, such as one address.  For so few bytes, the call returns only after it
        # has read them.
        to.data.copy_from_host_async(x.ctypes.data, x.nbytes)
    elif x.flags.c_contiguous:
        # This takes the host half the time of an assignment.
        to.data.copy_from_device_async(x.data, x.nbytes)
    else:
        to[...] = x


def _event():
    return cupy.cuda.Event(disable_timing=True)


def _mark(stream):
    return stream.record(_event())
