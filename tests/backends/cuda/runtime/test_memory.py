"""Memory that runs out: a DeviceMemoryError is raised, arguments are unchanged, and the next call works."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from on_device import allocations_needed, same
from switches import skip_or_fail

import tcsolve
from tcsolve import matrices
from tcsolve._backends.cuda.runtime.out_of_memory import guarded, is_out_of_memory
from tcsolve._paths import replaced


def library_error(name, status):
    """Return an error as CuPy raises it for a status of one of CUDA's libraries."""
    error = type(name, (RuntimeError,), {})(f"status {status}")
    error.status = status
    return error


class OutOfMemoryError(RuntimeError):
    """As PyTorch raises it."""


@pytest.mark.parametrize(
    "error, expected",
    [
        (MemoryError("std::bad_alloc"), True),
        (OutOfMemoryError("CUDA out of memory"), True),
        (library_error("CUBLASError", 3), True),
        (library_error("CUBLASError", 1), True),
        (library_error("CUBLASError", 13), False),
        (library_error("CUSOLVERError", 2), True),
        (library_error("CUSOLVERError", 7), False),
        (library_error("NVRTCError", 1), True),
        (library_error("NVRTCError", 6), False),
        (library_error("CUDADriverError", 2), True),
        (library_error("CUDADriverError", 700), False),
        (library_error("CUDARuntimeError", 2), True),
        (library_error("CUDARuntimeError", 98), False),
        (RuntimeError("else"), False),
        (ValueError("else"), False),
    ],
    ids=str,
)
def test_which_errors_say_that_memory_ran_out(error, expected):
    assert is_out_of_memory(error) is expected
    with pytest.raises(tcsolve.DeviceMemoryError if expected else type(error), match=str(error)):
        guarded(fails_with(error), lambda: False)()


def fails_with(error):
    def call():
        raise error

    return call


def test_memory_of_the_host_is_not_that_of_the_device():
    with pytest.raises(MemoryError) as caught:
        guarded(lambda: np.empty(1 << 60, np.uint8), lambda: False)()
    assert not isinstance(caught.value, tcsolve.DeviceMemoryError)


class Kept:
    """Stands for cached memory that can be freed a given number of times."""

    def __init__(self, times):
        self.times = times

    def give_up(self):
        self.times -= 1
        return self.times >= 0


@pytest.mark.parametrize(
    "again, depth, times, expected",
    [(True, 1, 0, 1), (True, 1, 1, 2), (True, 1, 5, 2), (True, 3, 0, 1), (True, 3, 1, 2)]
    + [(True, 3, 5, 6), (False, 1, 0, 1), (False, 1, 5, 1), (False, 3, 0, 1), (False, 3, 5, 1)],
)
def test_a_call_is_repeated_only_after_memory_was_given_up(again, depth, times, expected):
    calls, kept = [], Kept(times)

    def function():
        calls.append(1)
        raise MemoryError("no")

    call = function
    for _ in range(depth):
        call = guarded(call, kept.give_up, again)
    with pytest.raises(tcsolve.DeviceMemoryError, match="unchanged"):
        call()
    assert len(calls) == expected


def test_a_step_that_must_not_be_repeated_is_repeated_by_the_outer_function():
    """A step has overwritten its input: cached memory is freed, and the outer function is called again."""
    kept, steps = Kept(1), []

    def step():
        steps.append(1)
        if len(steps) == 1:
            raise MemoryError("no")
        return "done"

    inner = guarded(step, kept.give_up, again=False)

    assert guarded(lambda: inner(), kept.give_up)() == "done"
    assert len(steps) == 2


def test_arrays_of_a_failed_call_are_gone_when_memory_is_given_up():
    import weakref

    class Array:
        pass

    alive = []

    def function():
        array = Array()
        alive.append(weakref.ref(array))
        raise MemoryError("no")

    def give_up():
        alive.append([ref() is not None for ref in alive])
        return False

    with pytest.raises(tcsolve.DeviceMemoryError):
        guarded(function, give_up)()
    assert alive[-1] == [False]


def test_a_translated_error_pickles():
    with pytest.raises(tcsolve.DeviceMemoryError) as caught:
        guarded(fails_with(MemoryError("no")), lambda: True)()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


# ---- an allocator that fails at the k-th allocation --------------------------------------------------------


def system(cupy, n=300, seed=0):
    problem = matrices.generate("svd_geo", n, cond=1e4, seed=seed)
    return problem, cupy.asarray(problem.a), cupy.asarray(problem.b)


def calls_of(cupy, a, b):
    """Return a dict: for each of NAMES, a function that prepares a public call and returns it."""
    inverse = cupy.linalg.inv(a)
    many = cupy.stack([b] * 20, axis=1)

    def of_factors(call, **options):
        def prepare():
            f = tcsolve.factor(a, **options)
            return lambda: call(f)

        return prepare

    complex_b, symmetric = b * (1 + 2j), a + a.T
    on_host, stack = ((a @ a.T).get(), b.get()), (np.stack([a.get()] * 3), many.get())
    return {
        "solve": lambda: lambda: tcsolve.solve(a, b),
        "solve, fp16": lambda: lambda: tcsolve.solve(a, b, precision="fp16"),
        "solve, fp16x3": lambda: lambda: tcsolve.solve(a, b, precision="fp16x3"),
        "solve, fp64": lambda: lambda: tcsolve.solve(a, b, precision="fp64"),
        "solve, many": lambda: lambda: tcsolve.solve(a, many, precision="fp16x3"),
        "solve, complex b": lambda: lambda: tcsolve.solve(a, complex_b),
        "solve, symmetric": lambda: lambda: tcsolve.solve(symmetric, b, assume_a="sym"),
        "solve_ex": lambda: lambda: tcsolve.solve_ex(a, b).x,
        "factor": lambda: lambda: tcsolve.factor(a).shape,
        "Factorization.solve": of_factors(lambda f: f.solve(b)),
        "Factorization.solve_ex": of_factors(lambda f: f.solve_ex(many).x, precision="fp16x3"),
        "Factorization.rcond": of_factors(lambda f: f.rcond()),
        "Factorization.slogdet": of_factors(lambda f: f.slogdet(), precision="fp16x3"),
        "refine": lambda: lambda: tcsolve.refine(a, b, lambda r: inverse @ r).x,
        "solve, NumPy": lambda: lambda: tcsolve.solve(*on_host, assume_a="pos", device="cuda"),
        "solve, stack of NumPy": lambda: lambda: tcsolve.solve(*stack, device="cuda"),
    }


NAMES = (
    *("solve", "solve, fp16", "solve, fp16x3", "solve, fp64", "solve, many", "solve, complex b"),
    *("solve, symmetric", "solve_ex", "factor", "Factorization.solve", "Factorization.solve_ex"),
    *("Factorization.rcond", "Factorization.slogdet", "refine"),
    *("solve, NumPy", "solve, stack of NumPy"),
)


@pytest.mark.gpu
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_an_allocation_that_fails_harms_nothing(name, once, cupy, record_property):
    problem, a, b = system(cupy)
    prepare = calls_of(cupy, a, b)[name]
    tcsolve.clear_cache()
    expected = prepare()()

    def check():
        assert (a.get() == problem.a).all() and (b.get() == problem.b).all()
        assert same(prepare()(), expected)

    needed = allocations_needed(cupy, prepare, check, expected, once)

    record_property("allocations", needed)
    assert needed > 0


@pytest.mark.gpu
@pytest.mark.parametrize(
    "most_at_once, earlier", [(8192, 0), (8192, 1), (0, 1), (0, 2), (0, 3), (0, 4)]
)
def test_an_allocation_that_fails_harms_no_recorded_factorization(
    most_at_once, earlier, cupy, lu_sizes, record_property
):
    """The first solve of a small size is recorded.

    Of a large size, the first solve is launched, the second allocates a tape, and the third records on it.
    """
    lu_sizes(most_at_once=most_at_once)
    problem, a, b = system(cupy, 500)
    tcsolve.clear_cache()
    expected = tcsolve.solve(a, b, precision="fp16x3")

    def prepare():
        tcsolve.clear_cache()
        for _ in range(earlier):
            tcsolve.solve(a, b, precision="fp16x3")
        return lambda: tcsolve.solve(a, b, precision="fp16x3")

    def check():
        assert (a.get() == problem.a).all() and (b.get() == problem.b).all()
        assert (tcsolve.solve(a, b, precision="fp16x3") == expected).all()

    needed = allocations_needed(cupy, prepare, check, expected, once=False)

    record_property("allocations", needed)
    assert needed > 0


@pytest.mark.gpu
@pytest.mark.parametrize("status", ["cublas", "cusolver", "driver", "runtime"])
def test_errors_of_the_real_libraries_are_recognized(status, cupy):
    from cupy_backends.cuda.api import driver, runtime
    from cupy_backends.cuda.libs import cublas, cusolver

    error = {
        "cublas": lambda: cublas.CUBLASError(3),
        "cusolver": lambda: cusolver.CUSOLVERError(2),
        "driver": lambda: driver.CUDADriverError(2),
        "runtime": lambda: runtime.CUDARuntimeError(2),
    }[status]()
    assert is_out_of_memory(error)


# ---- other allocators ------------------------------------------------------------------------------------


class Slab:
    """A stream-ordered allocator of one block of memory, like RMM's.

    A request gets the memory that was freed last, on any stream and in any thread.  Its stream waits for the
    stream that used this memory before.
    """

    GRAIN = 512

    def __init__(self, cupy, size):
        self._cupy, self._lock = cupy, threading.RLock()
        self._memory = cupy.cuda.Memory(size)
        self._free = [(0, size, None)]  # first byte, bytes, event after which they are free

    def malloc(self, size):
        cupy, size = self._cupy, max(1, -(-size // self.GRAIN)) * self.GRAIN
        stream = cupy.cuda.get_current_stream()
        with self._lock:
            at = next((i for i, x in enumerate(self._free) if x[1] >= size), None)
            if at is None:
                raise MemoryError(f"std::bad_alloc: {size} bytes")
            first, room, event = self._free.pop(at)
            if room > size:
                self._free.insert(0, (first + size, room - size, event))
        if event is not None:
            stream.wait_event(event)
        owner = _Buffer(self, first, size, stream)
        memory = cupy.cuda.UnownedMemory(self._memory.ptr + first, size, owner, 0)
        return cupy.cuda.MemoryPointer(memory, 0)

    def give_back(self, first, size, stream):
        event = stream.record(self._cupy.cuda.Event(disable_timing=True))
        with self._lock:
            # Not joined with its neighbours: a test asks for few blocks.
            self._free.insert(0, (first, size, event))


class _Buffer:
    def __init__(self, slab, *block):
        self._slab, self._block = slab, block

    def __del__(self):
        self._slab.give_back(*self._block)


def solutions(cupy, systems, precision):
    return [tcsolve.solve_ex(a, b, precision=precision) for a, b in systems]


def large_systems(cupy, n):
    rng = np.random.default_rng(5)
    a = rng.standard_normal((n, n))
    matrices = a, a + 2 * n**0.5 * np.eye(n)
    return [(cupy.asarray(x), cupy.asarray(rng.standard_normal((n, 3)))) for x in matrices]


def use(cupy, kind):
    """Return malloc of an allocator of another kind."""
    if kind == "async":
        return cupy.cuda.MemoryAsyncPool().malloc
    if kind == "slab":
        return Slab(cupy, 12 << 30).malloc
    try:
        import torch
    except ImportError as error:
        skip_or_fail(f"torch cannot be imported: {error}", "TCSOLVE_REQUIRE_TORCH")

    def take(size, device):
        stream = cupy.cuda.get_current_stream().ptr
        return torch.cuda.caching_allocator_alloc(size, device, stream)

    def give_back(address, device):
        torch.cuda.caching_allocator_delete(address)

    return cupy.cuda.PythonFunctionAllocator(take, give_back).malloc


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["async", "slab", "torch"])
@pytest.mark.parametrize("precision", ["fp16", "fp16x3", "fp64"])
def test_other_allocators_give_the_same_bits(precision, kind, cupy):
    systems = large_systems(cupy, 3000)
    expected = solutions(cupy, systems, precision)
    malloc = use(cupy, kind)
    tcsolve.clear_cache()

    # In turn, FP32 factorizations are launched, launched in the memory of a tape, recorded, and replayed.
    for most_at_once in (0, 0, 8192, 8192):
        with replaced(most_at_once=most_at_once), cupy.cuda.using_allocator(malloc):
            found = solutions(cupy, systems, precision)
        for x, y in zip(found, expected, strict=True):
            assert (x.x == y.x).all() and x.rungs == y.rungs and x.rcond == y.rcond
        del found, x


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["async", "slab"])
def test_scratch_is_safe_where_another_thread_is_given_what_was_freed(kind, cupy):
    n, wrong = 5000, []
    malloc = use(cupy, kind)
    systems = large_systems(cupy, n)
    expected = solutions(cupy, systems, "fp16x3")

    def work(number):
        a, b = systems[number % 2]
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream, cupy.cuda.using_allocator(malloc):
            for _ in range(6):
                tcsolve.clear_cache()  # factorizations that are launched, and allocate
                x = tcsolve.solve(a, b, precision="fp16x3")
                if not bool((x == expected[number % 2].x).all()):
                    wrong.append(number)
                # Memory that was freed is overwritten at once.
                del x
                cupy.full(1 << 22, cupy.nan)
            stream.synchronize()

    cupy.cuda.Device().synchronize()
    with replaced(most_at_once=0), ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))  # raises what a thread raised
    assert not wrong


@pytest.mark.gpu
@pytest.mark.parametrize("error", [MemoryError("std::bad_alloc"), OutOfMemoryError("CUDA out")])
def test_errors_of_other_allocators_are_translated(error, cupy):
    problem, a, b = system(cupy)
    expected = tcsolve.solve(a, b)

    def refuse(size):
        raise error

    with (
        cupy.cuda.using_allocator(refuse),
        pytest.raises(tcsolve.DeviceMemoryError, match=str(error)),
    ):
        tcsolve.solve(a, b)
    assert (tcsolve.solve(a, b) == expected).all() and (a.get() == problem.a).all()


@pytest.mark.gpu
def test_nothing_is_refused_that_another_allocator_has_room_for(cupy):
    """Most of the device belongs to another allocator: the driver has less free memory than a solve needs."""
    tcsolve.clear_cache()
    cupy.get_default_memory_pool().free_all_blocks()
    n, rest = 12000, 1 << 30
    free, _ = cupy.cuda.runtime.memGetInfo()
    slab = Slab(cupy, (free - rest) // Slab.GRAIN * Slab.GRAIN)
    with cupy.cuda.using_allocator(slab.malloc):
        a = cupy.random.default_rng(2).standard_normal((n, n))
        b, held = cupy.ones(n), []
        while (
            free := cupy.cuda.runtime.memGetInfo()[0]
        ) >= a.nbytes:  # other processes free memory
            held.append(cupy.cuda.Memory(free - rest))
        found = tcsolve.solve_ex(a, b, precision="fp64")
        assert found.status.ok and found.bytes_planned > rest
        del a, b, found
