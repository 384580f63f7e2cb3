"""Stacks of systems: on the host small ordinary systems are solved all at once; others, matrix by matrix."""

import functools
import math
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tcsolve._backends.select import numpy_ops
from tcsolve._lu.scaling import TOP
from tcsolve._refine import stopping
from tcsolve._solution import HistoryPoint, Solution, Status, code_of, of_slices
from tcsolve._solve.host.gains import vectors
from tcsolve._solve.host.lapack_factors import General, is_positive_definite
from tcsolve._solve.problem.structures import read_under
from tcsolve._solve.problem.zero_pivots import singular_triangles
from tcsolve._solve.verify.long_double_residual import residual, residual_of_stack

__all__ = ["plain_answer", "solve_stack"]

# Up to this n, one call of NumPy for a whole stack is faster than one solve per matrix.  The first limit is
# for matrices with a structure: a solve per matrix uses the structure.  The second is for general matrices.
LARGEST_STRUCTURED, LARGEST = 64, 128
# Up to this n, the inverses of a stack are faster than an estimate of rcond for each matrix.
LARGEST_INVERTED = 32
# Number of entries of A and b of the systems that are solved at a time.
CHUNK_ENTRIES = 1 << 20
# Approximate number of entries that are measured at a time, so that copies of A stay in the cache.
WORK_ENTRIES = 1 << 16
FP64 = np.dtype(np.float64)
# A stack is short if its matrices have at most this many entries together; n is then at most
# LARGEST_STRUCTURED.
SHORT = 4096
OK, ILL, APART = map(code_of, (Status.CONVERGED, Status.ILL_CONDITIONED, Status.NOT_AS_ASSERTED))


def solve_stack(ops, a, b, request, *, at_once, require_finite, solve_one):
    """Solve each system of a stack; return one `Solution` for all.

    Parameters
    ----------
    ops : Ops
        The `Ops` of a and b.
    a : array, shape (..., n, n)
    b : array, shape (n,) or (..., n, k)
        It broadcasts with a as in SciPy: a 1-D b is the same vector for every matrix.
    request : Request
    at_once : bool
        Whether small systems may be solved at once by LU in FP64; only for NumPy arrays.
    require_finite : callable, () -> None
        Raises the error for NaN or Inf in a or b, if it is wanted.
    solve_one : callable, (a, b) -> Solution
        Solves one system with a (n, n) and b (n, k), for the same structure.
    """
    start = time.perf_counter()
    columns = b[:, None] if b.ndim == 1 else b
    structure, estimate = request.structure, request.estimate
    found = _Gathered.of(ops, a, columns, request.dtype)
    is_general = structure in (None, "general")
    at_once = at_once and a.shape[-1] <= (LARGEST if is_general else LARGEST_STRUCTURED)
    # `_solve_at_once` reads all of a general A, so it finds NaN and Inf by itself.
    if not (at_once and is_general):
        require_finite()
    if at_once:
        _solve_at_once(found, structure, request.lower, estimate, require_finite)
    for left in found.left_by_matrix(a.shape[:-2]):
        _solve_group(left, found, solve_one)
    seconds = time.perf_counter() - start
    batch, precision = found.batch, "+".join(found.precisions)
    steps, error = found.steps.reshape(*batch, -1), found.error.reshape(*batch, -1)
    return Solution(
        x=found.x.reshape(request.shape),
        precision=precision,
        rungs=tuple(found.rungs),
        iterations=steps,
        backward_error=error,
        history=(HistoryPoint(precision, steps, error, False),),
        bound=stopping.target(request.dtype, a.shape[-1]),
        seconds={"solve": seconds, "total": seconds},
        bytes_planned=found.bytes_planned,
        device=found.device,
        forward_error=None if request.with_fp64 else found.forward.reshape(*batch, -1),
        **of_slices(found.codes.reshape(batch), found.rconds.reshape(batch)),
    )


def plain_answer(a, b):
    """Return x for a short stack in FP64 if all its systems are plain, else None.

    The answer is that of `solve_stack` for a general matrix.  For a few small systems most of the time is
    that of calls from Python, and this function makes fewer.
    """
    if not (
        type(a) is type(b) is np.ndarray and a.dtype is b.dtype is FP64 and a.ndim and b.ndim > 2
    ):
        return None
    n = a.shape[-1]
    if not (a.shape == (*b.shape[:-1], n) and n == b.shape[-2] and 0 < a.size <= SHORT and b.size):
        return None
    a, columns = a.reshape(-1, n, n), b.reshape(-1, *b.shape[-2:])
    x, _, _, plain = _solve_plainly(a, columns, FP64, None, np.empty(a.shape))
    return x.reshape(b.shape) if plain.all() else None


@dataclass(eq=False)
class _Gathered:
    """The systems of a stack, in row-major order of the batch, and the answers found so far."""

    ops: Any
    batch: tuple
    count: int
    a: Any
    b: Any
    x: Any
    error: np.ndarray
    steps: np.ndarray
    forward: np.ndarray
    codes: np.ndarray
    rconds: np.ndarray
    done: np.ndarray
    device: str
    precisions: list = field(default_factory=list)
    rungs: list = field(default_factory=list)
    bytes_planned: int = 0

    @classmethod
    def of(cls, ops, a, b, dtype):
        """Allocate the answers for stacks a (..., n, n) and b (..., n, k); no system is done."""
        (n, k), batch = b.shape[-2:], np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        count = math.prod(batch)
        return cls(
            ops,
            batch,
            count,
            a=_in_order(a, batch, count),
            b=_in_order(b, batch, count),
            x=ops.xp.full((count, n, k), np.nan, dtype),
            error=np.full((count, k), np.nan),
            steps=np.zeros((count, k), int),
            forward=np.full((count, k), np.nan),
            codes=np.zeros(count, int),
            rconds=np.full(count, np.nan),
            done=np.zeros(count, bool),
            device=ops.device,
        )

    def note(self, precision, rungs, bytes_planned, device):
        """Record how some systems were solved."""
        self.precisions += [precision] * (precision not in self.precisions)
        self.rungs += [rung for rung in rungs if rung not in self.rungs]
        self.bytes_planned, self.device = max(self.bytes_planned, bytes_planned), device

    def part(self, stack, numbers):
        """Return the matrices of some systems, (m, rows, columns); the stack broadcasts to the batch."""
        if stack.shape[:-2] == (self.count,):
            return stack[numbers if isinstance(numbers, slice) else self.ops.xp.asarray(numbers)]
        if isinstance(numbers, slice):
            numbers = np.arange(numbers.start, numbers.stop)
        whole = self.ops.xp.broadcast_to(stack, self.batch + stack.shape[-2:])
        return whole[tuple(self.ops.xp.asarray(i) for i in np.unravel_index(numbers, self.batch))]

    def left_by_matrix(self, shape):
        """Return the numbers of the undone systems, one array for each matrix of a batch `shape`."""
        left = np.flatnonzero(~self.done)
        if not left.size:
            return []
        matrices = np.arange(math.prod(shape)).reshape(shape)
        owner = np.broadcast_to(matrices, self.batch).ravel()[left]
        order = np.argsort(owner, kind="stable")
        return np.split(left[order], np.flatnonzero(np.diff(owner[order])) + 1)


def _in_order(stack, batch, count):
    """Return the stack as (count, rows, columns), if it has one matrix for each system."""
    whole = stack.shape[:-2] == batch
    return stack.reshape(count, *stack.shape[-2:]) if whole else stack


def _solve_at_once(found, structure, lower, estimate, require_finite):
    """Solve the systems that LU in FP64 suits, CHUNK_ENTRIES entries at a time; the others stay undone."""
    n, k = found.x.shape[-2:]
    known = _constants(n, k, found.x.dtype.char)
    step = min(max(1, CHUNK_ENTRIES // (n * (n + k))), found.count)
    measured = min(max(1, WORK_ENTRIES // (n * (n + 24 * k))), step)
    work = np.empty((measured, n, n), np.result_type(found.a, np.float64))
    for first in range(0, found.count, step):
        some = slice(first, min(first + step, found.count))
        a = found.part(found.a, some)
        if structure is None and n > LARGEST_STRUCTURED and not (dense := _has_corners(a)).all():
            some, a = first + np.flatnonzero(dense), a[dense]
        b = found.part(found.b, some)
        a, apart = read_under(numpy_ops, a, structure, lower)
        x, error, gains, plain = _solve_plainly(a, b, found.x.dtype, structure, work)
        done = plain.copy()
        if (rest := np.flatnonzero(~plain)).size:
            if not (np.isfinite(a[rest]).all() and np.isfinite(b[rest]).all()):
                require_finite()
            x[rest], error[rest], done[rest] = _refined(a[rest], b[rest], x[rest], error[rest])
        # An upper bound of rcond in the infinity norm.
        rcond = np.abs(known.g).max() / gains.max(axis=0)
        near = np.flatnonzero(done if estimate else done & ~(gains < known.limit).all(axis=0))
        if near.size:
            rcond[near] = _rcond(a if near.size == len(a) else a[near])
            done &= rcond > 0
        codes = np.where(rcond < np.finfo(x.dtype).eps, ILL, OK)
        some_done = np.flatnonzero(done)
        done[singular_triangles(numpy_ops, a, some_done, rcond[some_done])] = False
        found.x[some], found.error[some], found.rconds[some] = x, error, rcond
        found.codes[some], found.done[some] = np.where(apart, APART, codes), done
    if found.done.any():
        planned = work.itemsize * step * n * (3 * n + 3 * k)
        found.note("fp64", ("fp64",), planned, "cpu")


def _has_corners(a):
    """Tell which matrices have two nonzero corners, so that they are neither triangular nor banded."""
    return (a[:, 0, -1] != 0) & (a[:, -1, 0] != 0)


def _solve_plainly(a, b, dtype, structure, work):
    """Solve m systems by LU in FP64; return (x, errors, gains, plain).

    A system is plain if x meets the bound, no norm is extreme, and all its gains, ``||A|| ||A**-1 g||``, are
    below the limit of `_constants`.  Then rcond is above eps (see `gains`).  `work`, shape (l, n, n), is
    overwritten; at most l systems are measured at a time.

    Notes
    -----
    LU solves for b and for the Gaussian vectors of `gains`.
    """
    m, n, k = b.shape
    known = _constants(n, k, dtype.char)
    probes = known.g.shape[1]
    if a.dtype.char not in "dD":
        a = a.astype(np.result_type(a, np.float64))
    with np.errstate(all="ignore"):
        rhs = np.empty((m, n, k + probes), np.result_type(a, b))
        rhs[..., :k], rhs[..., k:] = b, known.g
        found = _lu_solve(a, rhs)
        if structure == "positive definite":
            found[~_definite(a)] = np.nan
        x = found[..., :k].astype(dtype)
        if dtype.char in "fF":
            found[..., :k] = x
        if m <= len(work):
            norms = _norms(a, b, x, found, work[:m], known.ones)
        else:
            norms = np.empty((1 + 2 * k + probes, m))
            for first in range(0, m, len(work)):
                i = slice(first, first + len(work))
                norms[:, i] = _norms(a[i], b[i], x[i], found[i], work[: m - first], known.ones)
        norms[1:-k] *= norms[0]
        norm_and_scales, gains = norms[: 1 + k], norms[1 + k : -k]
        error = norms[-k:] / norm_and_scales[1:]
        inside = norms[:-k] < known.most
        inside[: 1 + k] &= norm_and_scales > 1 / TOP
        inside[1 : 1 + k] &= error <= known.bound
    return x, error.T, gains, np.logical_and.reduce(inside)


def _norms(a, b, x, found, work, ones):
    """Return the infinity norms of A, and of the columns of `found` and of b - A x, as rows."""
    (m, n, k), columns = x.shape, 1 + found.shape[-1]
    # In this order of the axes, NumPy finds the largest of n moduli fast.
    moduli = np.empty((n, columns + k, m))
    turned = moduli.transpose(2, 0, 1)
    np.vecdot(np.abs(a, out=work.real), ones, out=turned[..., 0])
    np.abs(found, out=turned[..., 1:columns])

    def known():
        norms = np.maximum.reduce(moduli[:, : 1 + k])
        return norms[0], norms[1:].T

    r = residual_of_stack(a, x, b, x.dtype.char in "fF", known, work)
    np.abs(r, out=turned[..., columns:])
    return np.maximum.reduce(moduli)


class _Constants(NamedTuple):
    """What depends only on n, k and the dtype of the systems."""

    ones: np.ndarray  # (n,)
    g: np.ndarray  # (n, probes), the random vectors
    limit: float  # the largest gain of a plain system
    most: np.ndarray  # (1 + k + probes, 1), the largest ||A||, ||A|| ||x|| and gains
    bound: float  # the largest backward error


@functools.lru_cache(maxsize=64)
def _constants(n, k, char):
    g, limit = vectors(n, char)
    most = np.array([[TOP]] * (1 + k) + [[limit]] * g.shape[1])
    return _Constants(np.ones(n), g, limit, most, stopping.target(np.dtype(char), n))


def _lu_solve(a, b):
    """Return A**-1 b for each system; NaN for a matrix with a zero pivot.

    A parallel BLAS may round differently in a second factorization.  If a pivot becomes zero only there, the
    systems are solved one by one.
    """
    try:
        return np.linalg.solve(a, b)
    except np.linalg.LinAlgError:  # a pivot is zero, so the sign of that determinant is 0
        singular = np.linalg.slogdet(a)[0] == 0
    try:
        found = np.linalg.solve(np.where(singular[:, None, None], np.eye(a.shape[-1]), a), b)
        found[singular] = np.nan
        return found
    except np.linalg.LinAlgError:
        return np.stack([_solved(*one) for one in zip(a, b, strict=True)])


def _solved(a, b):
    """Return A**-1 b for one system, or NaN."""
    try:
        return np.linalg.solve(a, b)
    except np.linalg.LinAlgError:
        return np.full_like(b, np.nan)


def _refined(a, b, x, error):
    """Return (x, errors, done) for m systems; x is refined once if its error misses the bound, or is NaN.

    A system is done if its numbers are not extreme and x meets the bound.
    """
    n, dtype = a.shape[-1], x.dtype
    bound = stopping.target(dtype, n)
    a = a.astype(np.result_type(a, np.float64), copy=False)
    with np.errstate(all="ignore"):
        norm = np.abs(a).sum(axis=-1).max(axis=-1)
        missed = ~(error <= bound).all(axis=-1)
        if missed.any():
            some, of_b, of_x = a[missed], b[missed], x[missed]
            of_x += _lu_solve(some, residual(some, of_x, of_b)).astype(dtype)
            rest, size = (np.abs(v).max(axis=-2) for v in (residual(some, of_x, of_b), of_x))
            x[missed] = of_x
            error[missed] = np.where(rest == 0, 0.0, rest / norm[missed, None] / size)
        size = np.abs(x).max(axis=-2)
        done = (norm > 1 / TOP) & (norm < TOP)
        done &= ((size < TOP) & ((size > 1 / TOP) | ~b.any(axis=-2))).all(axis=-1)
    return x, error, done & (error <= bound).all(axis=-1)


def _rcond(a):
    """Return 1 / (||A||_1 ||A**-1||_1) for each matrix, at most 1; for a large n, an estimate."""
    a = a.astype(np.result_type(a, np.float64), copy=False)
    n = a.shape[-1]
    with np.errstate(all="ignore"):
        norm = _norm_one(a)
        if n > LARGEST_INVERTED:
            rcond = [General.of(one).rcond(size) for one, size in zip(a, norm, strict=True)]
        else:
            identity = np.broadcast_to(np.eye(n), a.shape)
            rcond = 1 / norm / _norm_one(_lu_solve(a, identity))
        return np.minimum(rcond, 1)


def _norm_one(a):
    return (np.ones(a.shape[-2]) @ np.abs(a)).max(axis=-1)


def _definite(a):
    """Tell which matrices of a stack are positive definite."""
    try:
        np.linalg.cholesky(a)
        return np.ones(len(a), bool)
    except np.linalg.LinAlgError:  # one matrix is not, so test each by itself
        return np.array([is_positive_definite(matrix) for matrix in a])


def _solve_group(numbers, found, solve_one):
    """Solve some systems with the same matrix, which is factored once for all of them unless one fails."""
    xp, (n, k) = found.ops.xp, found.x.shape[-2:]
    matrix, some = found.part(found.a, numbers[:1])[0], found.part(found.b, numbers)
    together = solve_one(matrix, xp.moveaxis(some, 0, 1).reshape(n, -1))
    if len(numbers) > 1 and not together.status.ok:  # solve each again, to find its own status
        for number, one in zip(numbers, some, strict=True):
            _store(found, number, solve_one(matrix, one), slice(None))
        return
    for place, number in enumerate(numbers):
        _store(found, number, together, slice(place * k, place * k + k))


def _store(found, number, solution, columns):
    """Store some columns of a `Solution` as the answer of one system of the stack."""
    found.x[number] = solution.x[:, columns]
    found.error[number] = solution.backward_error[columns]
    found.steps[number] = solution.iterations[columns]
    if solution.forward_error is not None:
        found.forward[number] = solution.forward_error[columns]
    found.codes[number], found.rconds[number] = code_of(solution.status), solution.rcond
    found.note(solution.precision, solution.rungs, solution.bytes_planned, solution.device)
