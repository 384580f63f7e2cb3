"""Helpers of the tests of kernels."""

import itertools

import ml_dtypes
import numpy as np

from tcsolve import DeviceMemoryError

NO_PIVOT = 2**31 - 1
U32 = 2.0**-24
STORED = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32}


def random_matrix(dtype, m, n, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((m, n))
    return (a + 1j * rng.standard_normal((m, n)) if np.dtype(dtype).kind == "c" else a).astype(
        dtype
    )


class Stingy:
    """An allocator that fails at allocation k, counted from 0; unless `once` is set, later ones fail, too."""

    def __init__(self, cupy, k, once):
        self._cupy, self._k, self._once = cupy, k, once
        self._malloc, self._memory = cupy.get_default_memory_pool().malloc, cupy.cuda.Memory
        self.count, self.failures = 0, 0

    def _fails(self):
        number, self.count = self.count, self.count + 1
        fails = number == self._k or (number > self._k and not self._once)
        self.failures += fails
        return fails

    def malloc(self, size):
        if self._fails():
            raise self._cupy.cuda.memory.OutOfMemoryError(size, 0, 0)
        return self._malloc(size)

    def memory(self, size):
        """In the place of cupy.cuda.Memory, which asks CUDA itself."""
        if self._fails():
            raise self._cupy.cuda.runtime.CUDARuntimeError(2)
        return self._memory(size)

    def __enter__(self):
        self._using = self._cupy.cuda.using_allocator(self.malloc)
        self._using.__enter__()
        self._cupy.cuda.Memory = self.memory
        return self

    def __exit__(self, *exception):
        self._cupy.cuda.Memory = self._memory
        return self._using.__exit__(*exception)


def same(found, expected):
    """Tell whether two arrays or numbers, or two tuples of them, are equal."""
    if isinstance(expected, tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    equal = found == expected
    return bool(equal.all() if hasattr(equal, "all") else equal)


def allocations_needed(cupy, prepare, check, expected, once):
    """Let the allocations of a public call fail, each in its turn; return how many there are.

    prepare() returns the call.  If an allocation fails, the call must raise a DeviceMemoryError, or succeed
    without that memory and return `expected`.  After each call, check() makes another one.
    """
    for k in itertools.count():
        call = prepare()
        with Stingy(cupy, k, once) as allocator:
            try:
                found = call()
            except DeviceMemoryError as error:
                assert "unchanged" in str(error)
                found = None
        assert found is None or same(found, expected)
        assert allocator.failures or found is not None
        check()
        if not allocator.failures:
            return k


def strided(cupy, x, how):
    """Return x on the device: as it is, transposed in memory, or with gaps."""
    if how == "turned":
        return cupy.swapaxes(cupy.asarray(np.ascontiguousarray(np.swapaxes(x, 1, 2))), 1, 2)
    if how == "gaps":
        room = cupy.zeros((2 * x.shape[0], x.shape[1], 2 * x.shape[2]), x.dtype)
        room[::2, :, 1::2] = cupy.asarray(x)
        return room[::2, :, 1::2]
    return cupy.asarray(x)
