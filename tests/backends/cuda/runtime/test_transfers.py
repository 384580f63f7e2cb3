"""Copies of large arrays: every byte arrives, in order, and no buffer is reused while it is in use."""

import ctypes
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from switches import skip_or_fail

import tcsolve
from tcsolve import matrices
from tcsolve._backends.cuda.runtime import pipeline
from tcsolve._solve.choice import device_choice

# ---- the pure parts ------------------------------------------------------------------------------


@pytest.mark.parametrize("rows, row_bytes, most", [(10, 3, 7), (10, 8, 8), (1, 5, 5), (7, 1, 100)])
def test_parts_are_whole_rows_that_fit_and_cover_all(rows, row_bytes, most):
    found = pipeline.parts(rows, row_bytes, most)

    assert [row for part in found for row in range(part.start, part.stop)] == list(range(rows))
    assert all((part.stop - part.start) * row_bytes <= most for part in found)
    assert pipeline.parts(0, 8, 8) == []


class Buffer:
    """A buffer that notes its content, and whether it is full."""

    def __init__(self):
        self.content, self.full = None, False


@pytest.mark.parametrize("count", [0, 1, 3, 4, 50])
def test_what_is_filled_is_sent_before_its_buffer_is_used_again(count):
    buffers, out = [Buffer() for _ in range(4)], []

    def fill(job, buffer):
        assert not buffer.full
        time.sleep(0.002 * (job % 3))
        buffer.content, buffer.full = job, True

    def send(job, buffer):
        assert buffer.full and buffer.content == job
        out.append(job)
        buffer.full = False

    pipeline.sent(range(count), buffers, fill, send)

    assert sorted(out) == list(range(count))


@pytest.mark.parametrize("count", [0, 1, 3, 4, 50])
def test_what_is_fetched_is_drained_before_its_buffer_is_used_again(count):
    buffers, out = [Buffer() for _ in range(4)], []

    def fetch(job, buffer):
        assert not buffer.full
        buffer.content, buffer.full = job, True

    def drain(job, buffer):
        time.sleep(0.002 * (job % 3))
        assert buffer.full and buffer.content == job
        out.append(job)
        buffer.full = False

    pipeline.received(range(count), buffers, fetch, drain)

    assert sorted(out) == list(range(count))


@pytest.mark.parametrize("copy", [pipeline.sent, pipeline.received])
@pytest.mark.parametrize("which", [0, 1])
def test_no_thread_is_left_behind_by_an_error(copy, which):
    running = []

    def slow(job, buffer):
        running.append(job)
        time.sleep(0.02)
        running.remove(job)

    def fail(job, buffer):
        if job == 5:
            raise MemoryError("no room")
        slow(job, buffer)

    actions = [slow, slow]
    actions[which] = fail
    with pytest.raises(MemoryError, match="no room"):
        copy(range(20), [Buffer() for _ in range(3)], *actions)

    assert not running


# ---- a stream that runs its work as late as possible ------------------------------------------------


class LateStream:
    """A stream whose copies run only when a caller waits for them."""

    def __init__(self):
        self.work, self.done, self.lock = [], 0, threading.Lock()

    def add(self, copy):
        self.work.append(copy)

    def run_to(self, count):
        with self.lock:
            for copy in self.work[self.done : count]:
                copy()
            self.done = max(self.done, count)


class LateEvent:
    def __init__(self, **_):
        self.stream = self.count = None

    def record(self, stream):
        self.stream, self.count = stream, len(stream.work)

    def synchronize(self):
        if self.stream is not None:
            self.stream.run_to(self.count)


class Pointer:
    def __init__(self, address):
        self.address = address

    def __add__(self, offset):
        return Pointer(self.address + offset)

    def copy_from_host_async(self, source, size, stream):
        stream.add(lambda: ctypes.memmove(self.address, source, size))

    def copy_to_host_async(self, target, size, stream):
        stream.add(lambda: ctypes.memmove(target, self.address, size))


class Array:
    """The attributes of a CuPy array that the copies use."""

    def __init__(self, values):
        self.values, self.data = values, Pointer(values.ctypes.data)
        self.nbytes, self.shape, self.dtype = values.nbytes, values.shape, values.dtype
        self.flags = values.flags

    def get(self):
        return self.values.copy(order="A")


class Pinned(np.ndarray):
    ptr = property(lambda self: self.ctypes.data)


def module_of_transfers():
    """Return the module, which can be imported where CuPy is installed, also without a GPU."""
    try:
        from tcsolve._backends.cuda.runtime import transfers
    except ImportError as error:
        skip_or_fail(f"CuPy cannot be imported: {error}", "TCSOLVE_REQUIRE_NVRTC")
    return transfers


@pytest.fixture
def late(monkeypatch):
    """The module of transfers with small buffers and a stream that runs late, and that stream."""
    transfers = module_of_transfers()

    stream, made = LateStream(), []

    def allocate(size):
        made.append(size)
        return np.zeros(size, np.uint8).view(Pinned)

    runtime = SimpleNamespace(getDevice=lambda: 0, setDevice=lambda device: None)
    cuda = SimpleNamespace(
        runtime=runtime,
        Event=LateEvent,
        get_current_stream=lambda: stream,
        alloc_pinned_memory=allocate,
    )
    fake = SimpleNamespace(
        cuda=cuda,
        empty=lambda shape, dtype, order: Array(np.full(shape, 7, dtype, order)),
        asarray=lambda x: Array(np.array(x, order="F" if x.flags.fnc else "C")),
    )
    transfers.clear()
    monkeypatch.setattr(transfers, "cupy", fake)
    monkeypatch.setattr(transfers, "LEAST_BYTES", 1000)
    monkeypatch.setattr(transfers, "BUFFER_BYTES", 1024)
    monkeypatch.setattr(transfers, "BUFFERS", 3)
    yield SimpleNamespace(module=transfers, stream=stream, cuda=cuda, made=made)
    stream.run_to(len(stream.work))
    transfers.clear()


def kinds():
    """Return arrays of all layouts, by name."""
    a = np.random.default_rng(0).standard_normal((60, 50))
    locked = a.copy()
    locked.flags.writeable = False
    return {
        "C": a,
        "F": np.asfortranarray(a),
        "strided": np.repeat(a, 2, axis=1)[::2, ::-2],
        "read-only": locked,
        "vector": a.ravel(),
        "stack": a.reshape(10, 6, 50),
        "stack, F": np.asfortranarray(a.reshape(10, 6, 50)),
        "broadcast": np.broadcast_to(a[0], (60, 50)),
        "complex": a + 1j,
        "FP32": a.astype(np.float32),
        "integers": np.arange(3000),
        "wide rows": a[:4].repeat(20, axis=1),
        "other byte order": a.astype(">f8"),
        "small": a[:2],
        "empty": a[:0],
    }


@pytest.mark.parametrize("kind", kinds())
def test_every_byte_arrives_where_copies_run_late(late, kind):
    x = kinds()[kind]

    there = late.module.to_device(x)
    late.stream.run_to(len(late.stream.work))

    assert np.array_equal(there.values, x) and there.dtype.kind == x.dtype.kind
    assert there.flags.fnc == x.flags.fnc
    staged = kind not in ("wide rows", "other byte order", "small", "empty")
    assert bool(late.stream.work) == staged


@pytest.mark.parametrize("kind", kinds())
def test_every_byte_returns_where_copies_run_late(late, kind):
    x = kinds()[kind]

    here = late.module.to_host(Array(x))

    assert np.array_equal(here, x) and here.flags.writeable
    assert here.flags.fnc == (x.flags.fnc and x.size > 0)


def test_a_memory_mapped_array_is_read(late, tmp_path):
    x = kinds()["C"]
    np.save(tmp_path / "a.npy", x)

    there = late.module.to_device(np.load(tmp_path / "a.npy", mmap_mode="r"))
    late.stream.run_to(len(late.stream.work))

    assert np.array_equal(there.values, x)


def test_a_later_change_of_the_array_changes_no_copy(late):
    x = kinds()["C"].copy()
    expected = x.copy()

    there = late.module.to_device(x)
    x[:] = 0
    late.stream.run_to(len(late.stream.work))

    assert np.array_equal(there.values, expected)


def test_the_buffers_are_kept_and_freed(late):
    for _ in range(3):
        late.module.to_device(kinds()["C"])
    assert late.made == [3 * 1024]
    late.module.clear()
    assert late.stream.done == len(late.stream.work)  # before the memory is freed
    late.module.to_device(kinds()["C"])
    assert len(late.made) == 2


def test_threads_that_copy_at_the_same_time_share_no_buffer(late):
    arrays = [np.full((40, 50), i, float) for i in range(12)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(late.module.to_device, arrays))
    late.stream.run_to(len(late.stream.work))

    assert all(np.array_equal(f.values, a) for f, a in zip(found, arrays, strict=True))
    assert 1 <= len(late.made) <= 12


def test_without_pinned_memory_cupy_copies(late):
    def fail(size):
        error = type("CUDARuntimeError", (RuntimeError,), {})("out of memory")
        error.status = 2
        raise error

    late.cuda.alloc_pinned_memory = fail
    x = kinds()["C"]

    assert np.array_equal(late.module.to_device(x).values, x) and not late.stream.work
    assert np.array_equal(late.module.to_host(Array(x)), x)


def test_another_error_is_not_hidden(late):
    def fail(size):
        raise RuntimeError("a lost device")

    late.cuda.alloc_pinned_memory = fail
    with pytest.raises(RuntimeError, match="a lost device"):
        late.module.to_device(kinds()["C"])


def test_the_choice_of_the_device_knows_which_arrays_go_through_the_buffers():
    transfers = module_of_transfers()

    assert transfers.LEAST_BYTES == device_choice.LARGE_BYTES


# ---- on a device -----------------------------------------------------------------------------------


@pytest.fixture
def transfers(cupy, monkeypatch):
    from tcsolve._backends.cuda.runtime import transfers

    # With this limit, arrays of a few megabytes are copied in pieces.
    monkeypatch.setattr(transfers, "LEAST_BYTES", 4 << 20)
    yield transfers
    transfers.clear()


def large(kind, rows=1500):
    """Return an array that is copied in many pieces; only "small" is copied in one, by CuPy."""
    a = np.random.default_rng(1).standard_normal((rows, 1300))
    return {
        "C": a,
        "F": np.asfortranarray(a),
        "strided": np.repeat(a, 2, axis=1)[::-1, ::2],
        "vector": a.ravel(),
        "stack": a.reshape(3, -1, 1300),
        "complex": a + 2j,
        "FP32": a.astype(np.float32),
        "small": a[:3],
    }[kind]


LARGE = ("C", "F", "strided", "vector", "stack", "complex", "FP32", "small")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", LARGE)
def test_the_bits_of_an_array_stay(cupy, transfers, kind):
    x = large(kind)
    for _ in range(3):  # the buffers are new, and then used again
        there = transfers.to_device(x)
        expected = cupy.asarray(x)
        assert there.dtype == expected.dtype and there.strides == expected.strides
        assert bool((there == expected).all())
        here = transfers.to_host(there)
        # CuPy's own copy would be row-major.
        assert np.array_equal(here, x) and here.strides == expected.strides


@pytest.mark.gpu
def test_read_only_and_mapped_arrays_are_copied(cupy, transfers, tmp_path):
    x = large("C")
    np.save(tmp_path / "a.npy", x)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    x.flags.writeable = False

    assert np.array_equal(transfers.to_device(x).get(), x)
    assert np.array_equal(transfers.to_device(mapped).get(), x)


@pytest.mark.gpu
def test_the_order_in_a_stream_is_kept(cupy, transfers):
    x = large("C")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for i in range(20):
            x[:] = i
            there = transfers.to_device(x)
            x[:] = -1  # x has been read
            there += 1
            assert (transfers.to_host(there) == i + 1).all()


@pytest.mark.gpu
def test_threads_with_streams_of_their_own_copy_at_the_same_time(cupy, transfers):
    def round_trip(i):
        x = np.full((900, 1100), float(i))
        with cupy.cuda.Stream(non_blocking=True):
            return bool((transfers.to_host(transfers.to_device(x) + 1) == i + 1).all())

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(round_trip, range(60)))


@pytest.mark.gpu
def test_no_memory_of_the_user_stays_registered(cupy, transfers):
    x = large("C")
    transfers.to_device(x)
    # Registering fails if any page of the range is registered already.
    cupy.cuda.runtime.hostRegister(x.ctypes.data, x.nbytes, 0)
    cupy.cuda.runtime.hostUnregister(x.ctypes.data)


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_a_solve_of_numpy_arrays_has_the_bits_of_one_on_the_device(cupy, order):
    problem = matrices.generate("gauss", 1500)
    a = {
        "C": problem.a,
        "F": np.asfortranarray(problem.a),
        "strided": np.repeat(problem.a, 2, axis=1)[:, ::2],
    }[order]
    there = tcsolve.solve(cupy.asarray(a), cupy.asarray(problem.b))
    assert np.array_equal(tcsolve.solve(a, problem.b, device="cuda"), there.get())


@pytest.mark.gpu
def test_an_allocation_that_fails_is_a_device_memory_error(cupy):
    problem = matrices.generate("gauss", 1200)
    a = problem.a.copy()
    malloc = cupy.get_default_memory_pool().malloc

    def stingy(size):
        if size > 1_000_000:
            raise cupy.cuda.memory.OutOfMemoryError(size, 0, 1_000_000)
        return malloc(size)

    with cupy.cuda.using_allocator(stingy), pytest.raises(tcsolve.DeviceMemoryError):
        tcsolve.solve(a, problem.b, device="cuda")
    assert np.array_equal(a, problem.a)
    solution = tcsolve.solve_ex(a, problem.b, device="cuda")
    assert solution.device == "cuda" and (solution.backward_error <= solution.bound).all()
