"""Kernels that solve and verify small systems in one launch, or verify a large system in one launch."""

import functools
import threading

import cupy
import numpy as np

from tcsolve._backends.cuda.runtime import current_device
from tcsolve._backends.cuda.runtime.prepared_launch import launch, macros, steps
from tcsolve.kernels.arch import arch_number
from tcsolve.kernels.launch_shapes import (
    MEASURE_THREADS,
    MEASURED_COLUMNS,
    measure_blocks,
    probes_of,
    solve_shape,
)

__all__ = [
    "bytes_at_once",
    "measure_one",
    "measures_one",
    "solve_and_judge",
    "solve_at_once",
    "takes_at_once",
]

# The numbers of the kinds in small_solve.cuh; all other kinds are triangles.
KINDS = {"general": 0, "positive definite": 1}
TRIANGLE = 2
# By the number of random vectors from which rcond is estimated: if the estimate is below this multiple of
# epsilon, rcond is computed from A**-1.  Only about one of 10**4 matrices with an rcond below epsilon has a
# larger estimate; see `look_at`.
NEAR = {1: 1e4, 2: 100.0}
# A band of more diagonals than any matrix has, without mirror images.
ALL_READ = (1 << 40, 1 << 40, 0)


# The largest n for which one launch solves one system, and a stack.  For larger n, the library is faster.
# The limit of triangles is lower, because the launch takes as many operations for them as for full matrices.
MOST_ALONE = {"general": 256, "positive definite": 256}
MOST_ALONE_COMPLEX = {"general": 192, "positive definite": 192}
MOST_TOGETHER = {"general": 1024, "positive definite": 512}
MOST_OF_TRIANGLE = 128
# A single system has one multiprocessor.  Where its rate in FP64 is low, larger systems need
# all multiprocessors.
FAST_FP64, MOST_ALONE_SLOWLY = (80, 90, 100), {"general": 128, "positive definite": 64}


def takes_at_once(alone, n, k, dtype, kind):
    """Tell whether one launch solves one system (`alone`) or a stack of n unknowns and k right-hand sides."""
    most = (_most_alone(dtype) if alone else MOST_TOGETHER).get(kind, MOST_OF_TRIANGLE)
    return k > 0 and n <= most and _shape(1, n, k, dtype, None) is not None


def _most_alone(dtype):
    number = arch_number(current_device.arch(cupy.cuda.runtime.getDevice()))
    if number not in FAST_FP64:
        return MOST_ALONE_SLOWLY
    return MOST_ALONE_COMPLEX if dtype.kind == "c" else MOST_ALONE


def bytes_at_once(m, n, k, dtype, band):
    """Return the bytes that this launch needs for its factors."""
    shape = _shape(m, n, k, dtype, band)
    return shape.work * np.result_type(dtype, np.float64).itemsize


def solve_at_once(a, b, kind, band, bound, board, *, exact=False):
    """Return x of A x = b for a stack of small systems, and fill `board` with its verification.

    Parameters
    ----------
    a : array, shape (m, n, n)
    b : array, shape (m, n, k)
        Of the dtype of a.
    kind : str
        The kind of factors, as in `library_factors.factor`, of the matrix that is read.
    band : tuple of int or None
        (below, above, mirror), as in `stack_launches.read_as`; None if all entries are read.
    bound : float
        Bound on max |b - A x| / (||A|| max |x|).  Each column of x that misses it is corrected once.
    board : array, shape (9 + 2 k, m), float64, contiguous
        Receives the rows `seen` of `stack_launches.read_as`, then the rows `out` of
        `stack_launches.measure`.  If all entries are read, only the fourth of the rows `seen` has a meaning.
        The 1-norm of y is that of A**-1 g for one or two random g.  If `exact`, or if rcond may be below
        epsilon, it is that of A**-1.  info is the step at which the factorization broke down, or 0.
    exact : bool
        See `board`.
    """
    near = np.inf if exact else _near(a.dtype)
    return _solve(a, b, kind, band, (board, None, None), (bound, near, 0.0, 0.0, 0.0))


def _near(dtype):
    return NEAR[probes_of(dtype)] * float(np.finfo(dtype).eps)


def solve_and_judge(a, b, kind, band, limits):
    """Return (x, which systems are doubtful, their number) for a stack of small systems.

    The first arguments are those of `solve_at_once`, and x has the same bits.  A system is doubtful under the
    rules and `limits` of `stack_launches.doubtful`.  x and the flags are on the device, the number is on the
    host.  For a single system there are no flags (None): the number tells whether it is doubtful.
    """
    count = _count(cupy.cuda.runtime.getDevice(), threading.get_ident())
    doubtful, (bound, *others) = cupy.empty(len(a), bool) if len(a) > 1 else None, limits
    results = None, doubtful, count.doubts
    x = _solve(a, b, kind, band, results, (bound, _near(a.dtype), *others))
    return x, doubtful, count.new()


@functools.lru_cache(maxsize=128)
def _count(device, thread):
    return _Count()


class _Count:
    """The number of doubtful systems that one thread has met on a device; it only grows."""

    def __init__(self):
        # Outside of any pool, because the number stays.
        memory = cupy.cuda.MemoryPointer(cupy.cuda.Memory(4), 0)
        self.doubts, self._before = cupy.ndarray(1, cupy.int32, memory), 0
        self.doubts.fill(0)

    def new(self):
        """Wait for the work in the current stream, and return how many doubtful systems it has found."""
        before, self._before = self._before, int(self.doubts.get()[0])
        return (self._before - before) % 2**32


def _solve(a, b, kind, band, results, limits):
    m, n, k = b.shape
    shape, x = _shape(m, n, k, a.dtype, band), cupy.empty(b.shape, b.dtype)
    how = (*(band or ALL_READ), KINDS.get(kind, TRIANGLE), *map(float, limits))
    if shape.work:
        work = cupy.empty(shape.work, np.result_type(a.dtype, np.float64))
        args = (x, *results, work, *steps(a), *steps(b), *how, m, n, k)
    else:
        args = (x, *results, *steps(a), *steps(b)[:3], *how, m, n)
    entry, defines = (shape.name, "tcs_" + shape.name), macros(a) | shape.defines
    launch(entry, (shape.blocks, 1), (shape.threads, 1), args, defines, shape.shared)
    return x


def _shape(m, n, k, dtype, band):
    return _shape_on(cupy.cuda.runtime.getDevice(), m, n, k, np.dtype(dtype), band is not None)


@functools.lru_cache(maxsize=1024)
def _shape_on(device, m, n, k, dtype, banded):
    arch, multiprocessors = current_device.arch(device), current_device.multiprocessors()
    return solve_shape(m, n, k, dtype, banded, arch=arch, multiprocessors=multiprocessors)


def measures_one(k):
    """Tell whether `measure_one` supports k right-hand sides."""
    return k <= MEASURED_COLUMNS


def measure_one(a, band, y, b, info, board):
    """Return x of one system, and fill `board` with its verification, by one launch on the whole device.

    Parameters
    ----------
    a : array, shape (n, n)
    band : tuple of int
        (below, above): the numbers of diagonals that are read.  Other entries count as zero.
    y : array, shape (k + c, n), contiguous
        The columns of A**-1 b, then A**-1 g for c vectors g, in FP64 or complex128.
    b : array, shape (n, k)
        It has the dtype of a, and so has x.
    info : array of int32, shape (1,), or None
        The info of the factorization.
    board : array, shape (9 + 2 k, 1), float64, contiguous
        Zeros before the call.  Receives the rows `seen` of `stack_launches.read_as`, then the rows `out` of
        `stack_launches.measure`.
    """
    (n, k), x = b.shape, cupy.empty(b.shape, b.dtype)
    args = (board, x, *steps(a), *band, *steps(b), y, len(y) - k, info, n, k)
    grid = measure_blocks(n), 1
    launch(("measure_one", "tcs_measure_one"), grid, (MEASURE_THREADS, 1), args, macros(a))
    return x
