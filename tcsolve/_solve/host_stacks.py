"""Stacks of systems on the host: small ordinary systems are solved all at once, others one by one."""

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tcsolve._backends.select import numpy_ops
from tcsolve._lu.scaling import FRAME_EXPONENT
from tcsolve._refine import stopping
from tcsolve._solution import Solution, Status, code_of, of_slices
from tcsolve._solve.backward_error import backward_errors
from tcsolve._solve.lapack_factors import is_positive_definite
from tcsolve._solve.structures import read_under

__all__ = ["solve_stack"]

# Up to this n, one call of numpy.linalg.solve for a stack is faster than one solve per matrix.
LARGEST = 64
# Number of entries that are solved at a time.  A, its inverse, b and x of these fit about into the cache.
CHUNK_ENTRIES = 1 << 18
TOP = 2.0**FRAME_EXPONENT
# If no estimate of rcond is wanted, PROBES random vectors bound ||A**-1|| from below.  If this gives an rcond
# of at least DOUBTFUL n eps, rcond is taken to be above eps.  This is wrong for one in 10**9 matrices.
PROBES, DOUBTFUL = 3, 1000
OK, ILL, APART = map(code_of, (Status.CONVERGED, Status.ILL_CONDITIONED, Status.NOT_AS_ASSERTED))


def solve_stack(ops, a, b, request, *, at_once, solve_one):
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
    solve_one : callable, (a, b) -> Solution
        Solves one system with a (n, n) and b (n, k), for the same structure.
    """
    start = time.perf_counter()
    columns = b[:, None] if b.ndim == 1 else b
    batch = np.broadcast_shapes(a.shape[:-2], columns.shape[:-2])
    found = _Gathered.empty(ops, batch, a.shape[-1], columns.shape[-1], request.dtype)
    if at_once and a.shape[-1] <= LARGEST:
        _solve_at_once(a, columns, request, found)
    for left in found.left_by_matrix(a.shape[:-2]):
        _solve_group(a, columns, left, found, solve_one)
    seconds = time.perf_counter() - start
    return Solution(
        x=found.x.reshape(request.shape),
        precision="+".join(found.precisions),
        rungs=tuple(found.rungs),
        iterations=found.steps.reshape(*batch, -1),
        backward_error=found.error.reshape(*batch, -1),
        bound=stopping.target(request.dtype, a.shape[-1]),
        seconds={"solve": seconds, "total": seconds},
        bytes_planned=found.bytes_planned,
        device=found.device,
        **of_slices(found.codes.reshape(batch), found.rconds.reshape(batch)),
    )


@dataclass
class _Gathered:
    """The answers found so far for a stack of systems, in row-major order of the batch."""

    ops: Any
    batch: tuple
    x: Any
    error: np.ndarray
    steps: np.ndarray
    codes: np.ndarray
    rconds: np.ndarray
    done: np.ndarray
    precisions: list = field(default_factory=list)
    rungs: list = field(default_factory=list)
    bytes_planned: int = 0
    device: str = ""

    @classmethod
    def empty(cls, ops, batch, n, k, dtype):
        """Return NaN for each system (n, n), (n, k) of a batch."""
        count = math.prod(batch)
        return cls(
            ops,
            batch,
            x=ops.xp.full((count, n, k), np.nan, dtype),
            error=np.full((count, k), np.nan),
            steps=np.zeros((count, k), int),
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
        whole = self.ops.xp.broadcast_to(stack, self.batch + stack.shape[-2:])
        return whole[tuple(self.ops.array(i) for i in np.unravel_index(numbers, self.batch))]

    def left_by_matrix(self, shape):
        """Return the numbers of the undone systems, one array for each matrix of a batch `shape`."""
        left = np.flatnonzero(~self.done)
        if not left.size:
            return []
        matrices = np.arange(math.prod(shape)).reshape(shape)
        owner = np.broadcast_to(matrices, self.batch).ravel()[left]
        order = np.argsort(owner, kind="stable")
        return np.split(left[order], np.flatnonzero(np.diff(owner[order])) + 1)


def _solve_at_once(a, b, request, found):
    """Solve the ordinary systems, CHUNK_ENTRIES entries at a time; the others stay undone."""
    count, n, k = found.x.shape
    step = max(1, CHUNK_ENTRIES // (n * (n + k)))
    for first in range(0, count, step):
        numbers = np.arange(first, min(first + step, count))
        given = found.part(a, numbers)
        some, apart = read_under(numpy_ops, given, request.structure, request.lower)
        x, error, rcond, done = _lu_of_all(some, found.part(b, numbers), request)
        codes = np.where(rcond < np.finfo(found.x.dtype).eps, ILL, OK)
        found.x[numbers], found.error[numbers], found.rconds[numbers] = x, error, rcond
        found.codes[numbers] = np.where(apart, APART, codes)
        found.done[numbers] = done
    if found.done.any():
        found.note("fp64", ("fp64",), 8 * step * n * (2 * n + 3 * k), "cpu")


def _solve_group(a, b, numbers, found, solve_one):
    """Solve some systems with the same matrix, which is factored once for all of them unless one fails."""
    xp, (n, k) = found.ops.xp, found.x.shape[-2:]
    matrix, some = found.part(a, numbers[:1])[0], found.part(b, numbers)
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
    found.codes[number], found.rconds[number] = code_of(solution.status), solution.rcond
    found.note(solution.precision, solution.rungs, solution.bytes_planned, solution.device)


def _lu_of_all(a, b, request):
    """Return (x, errors, rconds, done) for m systems, by LU in FP64.

    A system is done if its numbers are not extreme and x meets the bound.  The inverse of A is computed with
    the same factors as x; without `estimate`, only A**-1 g for a few random g.
    """
    (n, k), dtype, estimate = b.shape[-2:], request.dtype, request.estimate
    wide = a.astype(np.result_type(a, np.float64), copy=False)
    with np.errstate(all="ignore"):
        norm = np.abs(wide).sum(axis=-2).max(axis=-1)
        done = (norm > 1 / TOP) & (norm < TOP) & np.isfinite(b).all(axis=(-2, -1))
        eye = np.eye(n)
        safe = np.where(done[:, None, None], wide, eye)
        if request.structure == "positive definite":
            done &= _definite(safe)
        probes = eye if estimate else np.random.default_rng(0).standard_normal((n, PROBES))
        rhs = np.concatenate([b, np.broadcast_to(probes, (len(a), *probes.shape))], axis=-1)
        try:
            found = np.linalg.solve(safe, rhs)
        except np.linalg.LinAlgError:  # one matrix is singular; the sign of its determinant is 0
            done &= np.linalg.slogdet(safe)[0] != 0
            found = np.linalg.solve(np.where(done[:, None, None], safe, eye), rhs)
        x = found[..., :k].astype(dtype)
        size = np.abs(x).max(axis=-2, initial=0)
        done &= ((size < TOP) & ((size > 1 / TOP) | ~b.any(axis=-2))).all(axis=-1)
        gains = np.abs(found[..., k:]).sum(axis=-2) / np.abs(probes).sum(axis=0)
        rcond = 1 / norm / gains.max(axis=-1)
        near = done & ~(rcond > DOUBTFUL * n * np.finfo(dtype).eps)
        if near.any() and not estimate:
            inverse = np.linalg.solve(safe[near], np.broadcast_to(eye, safe[near].shape))
            rcond[near] = 1 / norm[near] / np.abs(inverse).sum(axis=-2).max(axis=-1)
    error = backward_errors(numpy_ops, a, x, b)
    done &= (error <= stopping.target(np.dtype(dtype), n)).all(axis=-1) & (rcond > 0)
    return x, error, np.minimum(rcond, 1), done


def _definite(a):
    """Tell which matrices of a stack are positive definite."""
    try:
        np.linalg.cholesky(a)
        return np.ones(len(a), bool)
    except np.linalg.LinAlgError:  # one matrix is not, so test each by itself
        return np.array([is_positive_definite(matrix) for matrix in a])
