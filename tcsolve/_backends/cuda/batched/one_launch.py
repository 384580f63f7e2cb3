"""Kernels that solve and verify small systems in one or two launches, or verify a large system in one."""

import functools
import threading
from typing import NamedTuple

import cupy
import numpy as np

from tcsolve._backends.cuda.runtime import compiler, current_device
from tcsolve._backends.cuda.runtime.prepared_launch import launch, macros, prepared, steps
from tcsolve.kernels.arch import FAST_FP64, arch_number
from tcsolve.kernels.launch_shapes import MEASURE_THREADS, measure_shape
from tcsolve.kernels.system_shapes import TOLD, solve_shape

__all__ = [
    "KINDS",
    "launch_bytes",
    "measure_large",
    "solve_and_judge",
    "solve_at_once",
]

# The numbers of the kinds in small_solve.cuh; all other kinds have the number TRIANGLE.
KINDS = {"general": 0, "positive definite": 1}
TRIANGLE = 2
# If rcond is estimated from one random vector, and is below this multiple of epsilon, it is computed from
# A**-1.  For p vectors the multiple is the pth root.  Only about one of 10**4 matrices with an rcond below
# epsilon has an estimate above this multiple; see `look_at` in `tcsolve._solve.vendor.measure`.
NEAR = 1e4
# The least 1 / (||A||_1 ||A^-1||_1) for which an inverse in FP32 may be accurate enough.  Below 2^-16 it also
# has to pass a test (fp32_trust.cuh).  For positive definite matrices the signs of the pivots have to be
# certain, too.
TRUSTED = {"general": 2.0**-23, "positive definite": 2.0**-13}
# Kernels that can run after solve_team.cu or solve_inverse.cu.
TAKE_LEFT = ("solve_jordan", "solve_block")
# Number of rows of `board` (see `Stacks.solve_at_once`), without the two for each right-hand side.
NUMBERS = 9
# The indices of the doubtful systems if there are none.
NONE = np.zeros(0, np.int64)
# (below, above, mirror) of `read_as` if all entries are read: more diagonals than any matrix has.
ALL_READ = (1 << 40, 1 << 40, 0)


# The largest n that one launch solves, for one system and for a stack.  For larger n, `factor_and_solve` is
# faster.  A single positive definite system with more than MOST_BY_BLOCK unknowns goes to solve_block.cu only
# if another kernel runs before it.  Triangles have limits of their own: the launch takes as many operations
# for them as for full matrices, while the library takes fewer; and for a single real triangle in FP64 there
# are other kernels.
MOST_ALONE, MOST_BY_BLOCK = {"general": 96, "positive definite": 216}, 64
# A single positive definite system with more than FEW_SIDES right-hand sides is not solved by
# solve_cholesky.cu if it has more than MOST_WITH_SIDES unknowns.
FEW_SIDES, MOST_WITH_SIDES = 8, 112
MOST_ALONE_COMPLEX = {"general": 64, "positive definite": 64}
MOST_TOGETHER = {"general": 640, "positive definite": 216}
MOST_TOGETHER_COMPLEX = {"general": 640, "positive definite": 512}
MOST_OF_TRIANGLE, MOST_OF_TRIANGLE_ALONE = 128, 64
# The same where the rate in FP64 is low.
MOST_ALONE_SLOWLY = {"general": 128, "positive definite": 64}
MOST_TOGETHER_SLOWLY = {"general": 1024, "positive definite": 512}


def launch_bytes(shape, dtype, kind, band, alone):
    """Return `StackPlan.launch_bytes`."""
    m, n, k = shape
    if kind not in KINDS:
        most = MOST_OF_TRIANGLE_ALONE if alone and dtype.char == "d" else MOST_OF_TRIANGLE
    else:
        most = _most_of(alone, dtype)[kind]
    if k == 0 or (taken := _shape(shape, dtype, (kind, band, alone))) is None:
        return None
    by_block = kind == "positive definite" and taken.name == "solve_block" and not taken.before
    if n > most or alone and by_block and n > MOST_BY_BLOCK:
        return None
    if alone and taken.name == "solve_cholesky" and k > FEW_SIDES and n > MOST_WITH_SIDES:
        return None
    flags = m if taken.before else 0
    return taken.work * np.result_type(dtype, np.float64).itemsize + flags


def _most_of(alone, dtype):
    """Return the largest n that one launch solves, by kind."""
    number = arch_number(current_device.arch(cupy.cuda.runtime.getDevice()))
    if number not in FAST_FP64:
        return MOST_ALONE_SLOWLY if alone else MOST_TOGETHER_SLOWLY
    if dtype.kind == "c":
        return MOST_ALONE_COMPLEX if alone else MOST_TOGETHER_COMPLEX
    return MOST_ALONE if alone else MOST_TOGETHER


def solve_at_once(a, b, kind, band, bound, board, *, alone=False, exact=False):
    """As `Stacks.solve_at_once`."""
    near = np.inf if exact else None
    results, limits = (board, None, None), (bound, near, 0.0, 0.0, 0.0)
    return _solve(a, b, (kind, band, alone), results, limits)


def solve_and_judge(a, b, kind, band, limits, *, alone=False):
    """As `Stacks.solve_and_judge`."""
    (m, _, k), (bound, *others) = b.shape, limits
    numbers = NUMBERS + 2 * k if m > 1 else 0
    doubts = _doubts(cupy.cuda.runtime.getDevice(), threading.get_ident(), numbers)
    doubtful = cupy.empty(m, bool) if m > 1 else None
    results = doubts.board if m > 1 else None, doubtful, doubts.cleared()
    try:
        x = _solve(a, b, (kind, band, alone), results, (bound, None, *others))
        count = doubts.count()
    except BaseException:  # the launch may still write to the memory that the next call uses
        cupy.cuda.get_current_stream().synchronize()
        raise
    if not count:
        return x, NONE, None
    if m == 1:
        return x, np.zeros(1, np.int64), None
    return x, *(doubts.told(count) if count <= TOLD else (np.flatnonzero(doubtful.get()), None))


@functools.lru_cache(maxsize=32)
def _doubts(device, thread, numbers):
    return _Doubts(numbers)


class _Doubts:
    """What a launch reports about doubtful systems: their count, and the index and `numbers` numbers of each.

    A device can write to pinned memory of the host, so that the host reads this without copies.  Each thread
    of the host has an object of its own.
    """

    def __init__(self, numbers):
        self._memory = cupy.cuda.alloc_pinned_memory(8 + 8 * TOLD * (1 + numbers))
        self._count = np.frombuffer(self._memory, np.int32, 1)
        rows = np.frombuffer(self._memory, np.float64, 1 + TOLD * (1 + numbers))[1:]
        self._rows, self.board = rows.reshape(TOLD, 1 + numbers), self._memory.ptr + 8

    def cleared(self):
        """Set the count to zero, and return its address."""
        self._count[0] = 0
        return self._memory.ptr

    def count(self):
        """Wait for the work in the current stream, and return how many doubtful systems it has found."""
        cupy.cuda.get_current_stream().synchronize()
        return int(self._count[0])

    def told(self, count):
        """Return the indices of `count` systems, and the columns of the board for them."""
        rows = self._rows[:count]
        rows = rows[np.argsort(rows[:, 0])]
        return rows[:, 0].astype(np.int64), rows[:, 1:].T


def _solve(a, b, systems, results, limits):
    """Return x; `limits` are bound, near, least, safe, agrees of small_solve.cuh; near may be None.

    `systems` is (kind, band, alone).
    """
    how = cupy.cuda.runtime.getDevice(), b.shape, a.dtype.char, systems, limits
    launches, x = _prepared(*how), cupy.empty(b.shape, b.dtype)
    of_systems = *steps(a), *steps(b)
    if launches.before:
        results = *results, cupy.empty(len(b), np.uint8)
        launches.before((x, *results, *of_systems))
    elif launches.takes_left:
        results = *results, None
    if launches.work:
        results = *results, cupy.empty(launches.work, np.result_type(a.dtype, np.float64))
    launches.last((x, *results, *of_systems[: 4 + launches.of_b]))
    return x


class _Launches(NamedTuple):
    """The launches that solve small systems; each is called with the arrays, and their strides.

    `before` leaves systems for `last`; it may be None.  `work` is the number of entries of the work memory of
    `last`, and `of_b` the number of its arguments that describe b.
    """

    before: object
    last: object
    takes_left: bool  # whether `last` has an argument for the systems that `before` has left
    work: int
    of_b: int


@functools.lru_cache(maxsize=256)
def _prepared(device, shape, char, systems, limits):
    """Return the `_Launches`."""
    (m, n, k), (kind, band, _), dtype = shape, systems, np.dtype(char)
    taken, (bound, near, *others) = _shape(shape, dtype, systems), limits
    eps = float(np.finfo(dtype).eps)
    if near is None:
        near = NEAR ** (1 / taken.probes) * eps
    of_b, takes_left = 3 if taken.name == "solve_thread" else 4, taken.name in TAKE_LEFT

    def prepare(taken, of_b, arrays, near, numbers):
        entry, defines = (taken.name, "tcs_" + taken.name), macros(dtype) | taken.defines
        of_systems = *(band or ALL_READ), KINDS.get(kind, TRIANGLE)
        args = (
            *[None] * (arrays + 4 + of_b),
            *of_systems,
            *map(float, (bound, near, *others)),
            *numbers,
        )
        return prepared(entry, (taken.blocks, 1), (taken.threads, 1), args, defines, taken.shared)

    before = None
    if taken.before:
        kernels = [(shape.name, macros(dtype) | shape.defines) for shape in (taken.before, taken)]
        compiler.compile_ahead(current_device.arch(device), kernels)
        before = prepare(taken.before, 4, 5, max(8 * eps, TRUSTED[kind]), (m, n, k))
    numbers = (m, n) if of_b == 3 else (m, n, k, *((taken.share,) if taken.share else ()))
    last = prepare(taken, of_b, 4 + takes_left + bool(taken.work), near, numbers)
    return _Launches(before, last, takes_left, taken.work, of_b)


def _shape(shape, dtype, systems):
    return _shape_on(cupy.cuda.runtime.getDevice(), shape, np.dtype(dtype), systems)


@functools.lru_cache(maxsize=1024)
def _shape_on(device, shape, dtype, systems):
    kind, band, alone = systems
    how = {
        "arch": current_device.arch(device),
        "multiprocessors": current_device.multiprocessors(),
        "definite": kind == "positive definite",
        "triangle": kind not in KINDS,
        "alone": alone,
    }
    return solve_shape(*shape, dtype, band is not None, **how)


def measure_large(a, band, y, b, info, board, *, residuals=None, hermitian=False):
    """As `Stacks.measure_large`."""
    (m, n, k), x, (below, above, mirror) = b.shape, cupy.empty(b.shape, b.dtype), band
    if mirror == 1 and a.strides[1] < a.strides[2]:  # the kernel reads rows
        a, below, above = cupy.swapaxes(a, 1, 2), above, below
    of_y = y, y.strides[0] // y.itemsize, y.shape[1] - k
    each, blocks = measure_shape(b.shape, hermitian, current_device.multiprocessors())
    sizes = m, n, k, int(hermitian), each
    args = (board, x, *steps(a), below, above, mirror, *steps(b), *of_y, info, residuals, *sizes)
    entry = "measure_large", "tcs_measure_large"
    launch(entry, (blocks, 1), (MEASURE_THREADS, 1), args, macros(a))
    return x
