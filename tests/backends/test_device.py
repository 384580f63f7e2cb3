"""Where a solve runs, that repeated solves have the same bits, and what happens without memory."""

import contextlib
import gc
import itertools
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from on_device import Stingy

import tcsolve
from tcsolve import InputError, matrices
from tcsolve._backends.cpu.lu import HostLU
from tcsolve._backends.cpu.ops import NumpyOps
from tcsolve._backends.select import ops_for
from tcsolve._contract.lu import LUOps
from tcsolve._contract.ops import Ops


@pytest.mark.parametrize("precision", ["auto", "fp16", "fp16x3", "fp32", "fp64"])
def test_the_same_input_gives_the_same_bits_twice(xp, precision):
    problem = matrices.generate("svd_geo", 700, cond=1e3, nrhs=3, rhs="random")
    a, b = xp.asarray(problem.a), xp.asarray(problem.b)

    first, second = (tcsolve.solve_ex(a, b, precision=precision) for _ in range(2))

    assert bool((first.x == second.x).all())
    assert np.array_equal(first.backward_error, second.backward_error)
    assert first.rcond == second.rcond


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["auto", "fp16x3", "fp64"])
def test_host_arrays_go_to_the_device_and_come_back(cupy, precision):
    problem = matrices.generate("gauss", 600)

    there = tcsolve.solve_ex(problem.a, problem.b, precision=precision, device="cuda")
    direct = tcsolve.solve_ex(cupy.asarray(problem.a), cupy.asarray(problem.b), precision=precision)

    assert isinstance(there.x, np.ndarray) and there.device == "cuda"
    assert np.array_equal(there.x, direct.x.get())
    assert there.seconds["transfer"] > 0


@pytest.mark.gpu
@pytest.mark.parametrize("structure", [None, "sym", "general"])
def test_an_explicit_device_is_where_a_symmetric_matrix_is_solved(cupy, structure):
    problem = matrices.generate("heev_geo", 300)

    solution = tcsolve.solve_ex(problem.a, problem.b, assume_a=structure, device="cuda")

    assert solution.device == "cuda" and (solution.backward_error <= solution.bound).all()


@pytest.mark.gpu
def test_device_arrays_can_be_solved_on_the_host(cupy):
    problem = matrices.generate("gauss", 100)

    solution = tcsolve.solve_ex(cupy.asarray(problem.a), cupy.asarray(problem.b), device="cpu")

    assert isinstance(solution.x, cupy.ndarray) and solution.device == "cpu"
    assert (solution.backward_error <= solution.bound).all()


@pytest.mark.gpu
def test_a_solve_that_cannot_fit_says_so_before_it_allocates(cupy, monkeypatch):
    from tcsolve._backends.cuda.ops import CupyOps

    problem = matrices.generate("gauss", 3000)
    a, b = cupy.asarray(problem.a), cupy.asarray(problem.b)
    monkeypatch.setattr(CupyOps, "free_bytes", lambda self, enough: 10_000_000)
    with pytest.raises(tcsolve.DeviceMemoryError, match=r"[\d,]+ more bytes.*device='cpu'"):
        tcsolve.solve(a, b)
    # Arrays of the host: the error must come before a and b are copied.
    monkeypatch.setattr(cupy, "asarray", lambda *_, **__: pytest.fail("copied"))
    with pytest.raises(tcsolve.DeviceMemoryError, match=r"[\d,]+ more bytes"):
        tcsolve.solve(problem.a, problem.b, device="cuda")


@pytest.mark.gpu
def test_bytes_that_the_pool_has_are_counted_without_asking_the_driver(cupy, monkeypatch):
    from tcsolve._backends.cuda.ops import CupyOps

    ops, array = CupyOps(), cupy.empty(1 << 20)
    del array
    monkeypatch.setattr(cupy.cuda.runtime, "memGetInfo", lambda: (10, 1 << 40))
    pooled = cupy.get_default_memory_pool().free_bytes()
    assert 1 << 23 <= ops.free_bytes(1 << 23) == pooled
    assert ops.free_bytes(pooled + 1) == pooled + 10


class Elsewhere:
    """The attributes of a CuPy array that lies on another device than the current one."""

    size, data = 4, SimpleNamespace(device_id=1)


def test_arrays_of_another_device_than_the_current_one_are_refused(monkeypatch):
    runtime = SimpleNamespace(getDevice=lambda: 0)
    module = SimpleNamespace(ndarray=Elsewhere, cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", module)
    with pytest.raises(InputError, match=r"device 1, but 0 is.*with cupy.cuda.Device\(1\)"):
        ops_for(Elsewhere(), Elsewhere())


class Failing:
    """Primitives on NumPy arrays that lack memory at one of their calls, counted from 0."""

    # These primitives allocate nothing.
    NOT_COUNTED = {"guarded", "mark", "free_bytes", "rules"}

    def __init__(self, monkeypatch):
        self.calls, self.fails_at = 0, None
        for contract, own in ((Ops, NumpyOps), (LUOps, HostLU)):
            for name in vars(contract).keys() - self.NOT_COUNTED:
                body = getattr(own, name, None)
                if callable(body) and not name.startswith("_"):
                    monkeypatch.setattr(own, name, self.counted(body))
        monkeypatch.setattr(NumpyOps, "guarded", staticmethod(self.guarded))

    def counted(self, body):
        def call(*args, **options):
            number, self.calls = self.calls, self.calls + 1
            if number == self.fails_at:
                raise MemoryError
            return body(*args, **options)

        return call

    @staticmethod
    def guarded(function, again=True):
        def call(*args, **options):
            try:
                return function(*args, **options)
            except MemoryError as error:
                raise tcsolve.DeviceMemoryError("guarded") from error

        return call


@pytest.mark.parametrize("structure, spread", [("symmetric", 0), ("general", 30), ("general", 0)])
def test_memory_that_is_missing_anywhere_in_a_solve_is_our_error(structure, spread, monkeypatch):
    options = {"precision": "fp16", "assume_a": structure}
    a, b = matrices.generate("svd_geo", 200, cond=1e6).a, np.ones(200)
    a = a * 2.0 ** np.linspace(-spread, spread, 200)[:, None]
    a = a + a.T if structure == "symmetric" else a
    expected = tcsolve.solve_ex(a, b, **options).x
    ops = Failing(monkeypatch)
    assert np.array_equal(tcsolve.solve_ex(a, b, **options).x, expected)
    number, ops.calls = ops.calls, 0
    assert number >= 1

    # Each of the first calls, which copy and scale matrices, and about twenty of the later ones.
    for ops.fails_at in sorted({*range(min(number, 20)), *range(0, number, 1 + number // 20)}):
        ops.calls = 0
        with pytest.raises(tcsolve.DeviceMemoryError, match="guarded"):
            tcsolve.solve_ex(a, b, **options)

    ops.fails_at, ops.calls = None, 0
    assert np.array_equal(tcsolve.solve_ex(a, b, **options).x, expected)


@pytest.mark.gpu
def test_memory_that_is_missing_in_krylov_spaces_is_our_error(cupy, monkeypatch):
    from tcsolve._backends.cuda.ops import CupyOps

    product = CupyOps.product

    def fails(self, a, x, adjoint=False):
        if a.ndim < 3:
            return product(self, a, x, adjoint)
        raise cupy.cuda.memory.OutOfMemoryError(1 << 40, 0, 0)

    problem = matrices.generate("svd_geo", 200, cond=1e6)
    a, b = cupy.asarray(problem.a), cupy.asarray(problem.b)
    monkeypatch.setattr(CupyOps, "product", fails)  # products with the vectors of a basis
    with pytest.raises(tcsolve.DeviceMemoryError, match="ran out of memory"):
        tcsolve.solve(a, b, precision=tcsolve.Plan("fp16", method="fgmres"))


@pytest.mark.gpu
def test_threads_that_end_give_back_the_handles_of_cublas(cupy, monkeypatch):
    from cupy_backends.cuda.libs import cublas

    from tcsolve._backends.cuda.runtime import cublas_calls

    alive, make, free = set(), cublas.create, cublas.destroy

    def create():
        alive.add(number := make())
        return number

    def destroy(number):
        free(number)
        alive.discard(number)

    problem = matrices.generate("gauss", 700)
    a, b = cupy.asarray(problem.a), cupy.asarray(problem.b)
    expected, found = tcsolve.solve(a, b, precision="fp16x3"), []
    monkeypatch.setattr(cublas, "create", create)
    monkeypatch.setattr(cublas, "destroy", destroy)

    def solve():
        with cupy.cuda.Stream():
            x = tcsolve.solve(a, b, precision="fp16x3").get()
            cublas_calls.handle()
            found.append((x, len(alive)))

    for _ in range(5):
        thread = threading.Thread(target=solve)
        thread.start()
        thread.join()
    tcsolve.clear_cache()  # recorded work keeps the handles that it was recorded with
    gc.collect()

    assert len(found) == 5 and max(count for _, count in found) > 0 and not alive
    assert all(np.array_equal(x, expected.get()) for x, _ in found)


@pytest.mark.gpu
def test_an_allocation_that_fails_leaves_the_arrays_alone(cupy, monkeypatch):
    problem = matrices.generate("gauss", 2000)
    a, b = cupy.asarray(problem.a), cupy.asarray(problem.b)
    malloc, memory = cupy.get_default_memory_pool().malloc, cupy.cuda.Memory

    def stingy(allocate):
        def limited(size):
            if size > 8_000_000:
                raise cupy.cuda.memory.OutOfMemoryError(size, 0, 8_000_000)
            return allocate(size)

        return limited

    with (
        monkeypatch.context() as patch,
        cupy.cuda.using_allocator(stingy(malloc)),
        pytest.raises(tcsolve.DeviceMemoryError, match="unchanged"),
    ):
        patch.setattr(cupy.cuda, "Memory", stingy(memory))  # allocates for recorded graphs
        tcsolve.solve(a, b, precision="fp16x3")
    assert np.array_equal(a.get(), problem.a) and np.array_equal(b.get(), problem.b)
    assert (tcsolve.solve_ex(a, b).backward_error <= tcsolve.solve_ex(a, b).bound).all()


@pytest.mark.gpu
def test_factors_that_have_overwritten_a_are_not_factored_again(cupy, ops):
    rng = cupy.random.default_rng(1)
    a = rng.standard_normal((300, 300)).astype(cupy.float32)
    small, right = rng.standard_normal((64, 64)), cupy.ones(64)
    expected = ops.lu.getrf(a, a.dtype)[0].lu.copy()
    for k in itertools.count():
        for _ in range(3):  # keeps memory, which is freed when the next call runs out of memory
            tcsolve.solve(small, right, precision="fp16x3")
        given, found = a.copy(), None
        with (
            Stingy(cupy, k, once=True) as allocator,
            contextlib.suppress(tcsolve.DeviceMemoryError),
        ):
            found = ops.lu.getrf(given, a.dtype, overwrite_a=True)[0].lu
        if found is None:  # factored once, or not at all
            assert bool((given == a).all()) or bool((given.T == expected).all())
        else:
            assert (found == expected).all() and (given.T == expected).all()
        if not allocator.failures:
            break
    assert k >= 2
