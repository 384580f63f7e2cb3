"""Stacks, structures, small and complex systems on a device: the library's factors, our verification.

One text serves one matrix and a stack of them.  Each matrix is factored in FP64 by `ops.vendor`; b and
two random probes are solved for together.  Norms of A, the residual of the x that is returned, and the
size of A^-1 times the probes are measured at once, with what is seen where a structure is read, and read by
the host once; of a long stack only where a matrix is not ordinary.  Where A may be singular to working
precision, its condition is estimated.  An x that misses the bound is corrected once by its residual.
Matrices whose entries are extreme, or whose x still misses it, are scaled by powers of two, factored again
and refined.
"""

import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tcsolve import _stop
from tcsolve._check import require_finite
from tcsolve._choose import choose_update, rates_of
from tcsolve._scale import NO_EXPONENT, exponent_of, ldexp
from tcsolve._solution import HistoryPoint, Solution, Status, code_of, contradicted, of_slices
from tcsolve._verify import SAFE, backward_errors
from tcsolve._wide import SMALL, residual

__all__ = ["goes_to_vendor", "read_matrix", "solve_by_vendor"]

# Unknowns up to which one real matrix is factored by the library: the launches of our LU take longer.
LARGEST_ALONE = 512
# Unknowns up to which a stack is factored at once; larger matrices fill the device one by one.
LARGEST_TOGETHER, LARGEST_DEFINITE_TOGETHER = 640, 1024
# Fewer matrices than this, of more unknowns than that, are sooner done one by one: at once, each has a small
# part of the device.
FEW, FEW_ROWS = 4, 128
# Unknowns up to which one matrix is measured by a single launch, in which it has one multiprocessor.
MEASURED_AT_ONCE = 192
# Bytes of the factors of a part of a long stack; matrices that the host judges as fast as the device.
CHUNK_BYTES, ON_HOST = 1 << 29, 4096
# Right-hand sides for which Python's numbers are faster than NumPy's.
FEW_COLUMNS = 16
# Rows of what `vendor.read_as` sees, and of what `vendor.measure` finds besides two for each column.
SEEN, MEASURED = 5, 4
# Random vectors that are solved for with b; see `_look`.
PROBES, MARGIN = 2, 100
# Sweeps of the condition estimate, and steps of refinement where the first answer misses the bound.
MAX_SWEEPS, MAX_STEPS = 4, 2
# A matrix whose answer needs a second look; larger than every code of a status.
REDO = 127
# Codes that are looked for.
CONVERGED, ILL_CONDITIONED, NONFINITE, NOT_DEFINITE = map(
    code_of,
    (
        Status.CONVERGED,
        Status.ILL_CONDITIONED,
        Status.NONFINITE_INPUT,
        Status.NOT_POSITIVE_DEFINITE,
    ),
)
TRIANGULAR = ("lower triangular", "upper triangular", "diagonal")
# What is read under a structure: diagonals below and above the main one, and what stands for the others (see
# `vendor.read_as`).  ALL are all diagonals of any matrix.
ALL = 1 << 40
BANDS = {
    "diagonal": (0, 0, 0),
    "tridiagonal": (1, 1, 0),
    "upper triangular": (0, ALL, 0),
    "lower triangular": (ALL, 0, 0),
}


def goes_to_vendor(ops, a, b, structure, precision):
    """Tell whether the system is solved here: on its device, where we have no faster road."""
    if ops.vendor is None or precision not in ("auto", "fp64"):
        return False
    if a.ndim > 2 or b.ndim > 2 or structure == "positive definite":
        return True
    if precision != "auto":
        return False
    return _kind_of(structure) != "general" or _is_faster(ops, a, 1 if b.ndim == 1 else b.shape[1])


def _kind_of(structure):
    """Return the kind of factors, as `ops.vendor.factor` knows them, for a structure."""
    return structure if structure in ("positive definite", *TRIANGULAR) else "general"


def _band_of(structure, lower, dtype):
    """Return what is read under a structure, as in BANDS, or None for all."""
    if structure in ("symmetric", "hermitian", "positive definite"):
        conjugate = structure != "symmetric" and dtype.kind == "c"
        return (*((ALL, 0) if lower else (0, ALL)), 2 if conjugate else 1)
    return BANDS.get(structure)


def _is_faster(ops, a, nrhs):
    """Tell whether the library's LU of a matrix is faster than ours."""
    n = a.shape[-1]
    if n <= LARGEST_ALONE:
        return True
    rates = rates_of(ops.device, getattr(ops, "properties", None))
    how = {"working": "fp32" if a.dtype.char in "fF" else "fp64", "is_complex": a.dtype.kind == "c"}
    return choose_update(n, nrhs, rates, **how) == "fp64"


class _System(NamedTuple):
    """Some systems: a (m, n, n) and b (m, n, k), of the dtype of x."""

    a: Any  # as the caller has it where there is a band, else, and later, as it is read
    b: Any
    kind: str
    band: tuple | None  # what is read of a
    mirrored: bool  # whether what is not read is a mirror image
    estimate: bool
    alone: bool  # one general matrix: the ladder of precisions solves it if this road does not

    @property
    def bound(self):
        return _stop.target(self.b.dtype, self.b.shape[1])

    @property
    def broken(self):
        """The code of the status where a factorization breaks down."""
        definite = self.kind == "positive definite"
        return code_of(Status.NOT_POSITIVE_DEFINITE if definite else Status.SINGULAR)


class _Part(NamedTuple):
    """The answers to some systems: x (m, n, k) where they were, the rest on the host."""

    x: Any
    codes: np.ndarray  # (m,)
    rconds: np.ndarray  # (m,)
    error: np.ndarray  # (m, k)
    steps: np.ndarray  # (m, k)
    apart: np.ndarray  # (m,), whether entries that are not read contradict the structure
    spoilt: np.ndarray  # (m,), whether A holds NaN or Inf, where it is read or not


def solve_by_vendor(ops, a, b, structure, lower, alone, *, shape, dtype, check_finite, estimate):
    """Solve one system or a stack, or return None: one general matrix that the ladder should take.

    Parameters
    ----------
    ops : Ops
        With `vendor`.
    a : array, shape (..., n, n)
    b : array, shape (n,) or (..., n, nrhs)
    structure : str or None
    lower : bool
        Which triangle of symmetric matrices is read.
    alone : callable
        Returns the `Solution` for one general matrix (n, n) and b (n, nrhs), by its fastest road.
    shape : tuple of int
        Of x.
    dtype : dtype
        Of x.
    check_finite : bool
        Raise InputError if a or b holds NaN or Inf.
    estimate : bool
        Whether rcond must be an estimate; else it may be a lower bound that is at least machine epsilon, with
        the confidence that `_look` gives.
    """
    options = {"dtype": dtype, "check_finite": check_finite, "estimate": estimate}
    args = ops, a, b, structure, lower, alone
    if b.dtype.kind == "c" and a.dtype.kind != "c":
        return _solve_paired(*args, shape=shape, **options)
    if a.ndim == 2 and b.ndim > 2:
        return _solve_for_all(*args, shape=shape, **options)
    found = _solve_all(*args, shape=shape, **options)
    return found and contradicted(*found)


def _solve_all(ops, a, b, structure, lower, alone, *, shape, dtype, check_finite, estimate):
    """Return the `Solution` and which matrices contradict the structure, which it does not tell, or None."""
    start, kind = time.perf_counter(), _kind_of(structure)
    a, b = ops.converted(a, dtype), ops.converted(b, dtype)
    batch = shape[:-1] if b.ndim == 1 else shape[:-2]
    stack, columns = _as_stacks(ops.xp, a, b, batch)
    band, size = _band_of(structure, lower, a.dtype), _chunk(ops, stack, kind)
    how = {"kind": kind, "band": band, "mirrored": bool(band and band[2]), "estimate": estimate}
    system = _System(stack, columns, **how, alone=not batch and kind == "general")
    if batch and size == 1 and kind == "general" and not _is_faster(ops, a, columns.shape[2]):
        system, apart = _read(ops, system, check_finite)
        found = [alone(*one) for one in zip(system.a, columns, strict=True)]
        return _stacked(found, ops, batch, shape, start), apart.reshape(batch)
    part = _in_parts(ops, system, size)
    if part is None:
        return None
    if check_finite and (part.spoilt.any() or part.codes.max() > ILL_CONDITIONED):
        require_finite(not part.spoilt.any() and bool(ops.xp.isfinite(a).all()), "a")
        require_finite(bool(ops.xp.isfinite(b).all()), "b")
    solution = _solution(part, ops, batch, shape, start, _bytes(system, size))
    return solution, part.apart.reshape(batch)


def _solve_for_all(ops, a, b, structure, lower, alone, *, shape, **options):
    """Solve a stack of systems with one matrix, all right-hand sides as its columns."""
    columns, found = ops.xp.moveaxis(b, -2, 0).reshape(len(a), -1), None
    if goes_to_vendor(ops, a, columns, structure, "auto"):
        args = (ops, a, columns, structure, lower, alone)
        found = _solve_all(*args, shape=columns.shape, **options)
    if found is None:
        band = _band_of(structure, lower, a.dtype)
        system = _System(a[None], columns, "general", band, bool(band and band[2]), True, True)
        system, apart = _read(ops, system, options["check_finite"])
        found = alone(system.a[0], columns), apart[0]
    solution, apart = found
    solution = _unfolded(ops.xp, solution, shape)
    return contradicted(solution, np.broadcast_to(apart, solution.statuses.shape))


def _solve_paired(ops, a, b, structure, lower, alone, *, shape, dtype, **options):
    """Solve real systems for complex b: its real and imaginary parts are columns of their own."""
    xp, vector, real = ops.xp, b.ndim == 1, np.dtype(dtype.char.lower())
    columns = ops.converted(b[:, None] if vector else b, dtype)
    n, k = a.shape[-1], columns.shape[-1]
    batch = shape[:-1] if vector else shape[:-2]
    pairs = xp.concatenate([columns.real, columns.imag], axis=-1)
    args, of_pairs = (structure, lower, alone), (*batch, n, 2 * k)
    found = solve_by_vendor(ops, a, pairs, *args, shape=of_pairs, dtype=real, **options)
    if found is None:
        return None
    x, band = xp.empty((*batch, n, k), dtype), _band_of(structure, lower, real)
    x.real[...], x.imag[...] = found.x[..., :k], found.x[..., k:]
    stack, columns = _as_stacks(xp, ops.converted(a, real), columns, batch)
    system = _System(stack, columns, "general", band, False, False, False)
    error = _complex_errors(ops, _read(ops, system, False)[0], x.reshape(-1, n, k))
    error, bound = error.reshape(*batch, k), _stop.target(dtype, n)
    met = (found.backward_error <= found.bound).all(axis=-1)
    if (met != (error <= bound).all(axis=-1)).any():  # the parts say another thing than the whole
        whole = ops.converted(a, dtype), b
        return solve_by_vendor(ops, *whole, *args, shape=shape, dtype=dtype, **options)
    steps = found.iterations.reshape(*batch, 2, k).max(axis=-2)
    history = () if batch else (HistoryPoint("fp64", steps, error, False),)
    how = {"backward_error": error, "bound": bound, "iterations": steps, "history": history}
    return replace(found, x=x.reshape(shape), **how)


def _complex_errors(ops, system, x):
    """Return the backward errors (m, k), on the host, of complex x and b and real A."""
    (m, n, k), wide = x.shape, np.result_type(x.dtype, np.float64)
    if m == 1 and n > MEASURED_AT_ONCE:
        return _errors(ops, system, x)
    found, none = ops.xp.zeros((MEASURED + 2 * k, m)), ops.xp.zeros((m, 0, n), wide)
    ops.vendor.measure(ops.converted(system.a, x.dtype), x, system.b, none, None, found)
    (found,) = ops.host(found)
    rest, size = found[MEASURED : MEASURED + k], found[MEASURED + k :]
    with np.errstate(all="ignore"):
        return np.where(rest == 0, 0.0, rest / found[0] / size).T


# ---- from arguments to stacks, and back --------------------------------------------------------


def _as_stacks(xp, a, b, batch):
    """Return a as (m, n, n) and b as (m, n, k), broadcast against each other."""
    b = b[:, None] if b.ndim == 1 else b
    if not batch:
        return a[None], b[None]
    n, k = b.shape[-2:]
    a, b = (
        v if v.shape[:-2] == batch else xp.broadcast_to(v, (*batch, *v.shape[-2:])) for v in (a, b)
    )
    return a.reshape(-1, n, n), b.reshape(-1, n, k)


def _read(ops, system, check_finite):
    """Return the system as it is read, all at once, and which matrices contradict that."""
    if system.band is None:
        return system, np.zeros(len(system.a), bool)
    seen = ops.xp.zeros((SEEN, len(system.a)))
    read = ops.vendor.read_as(system.a, *system.band, seen)
    (seen,) = ops.host(seen)
    if check_finite:
        require_finite(not seen[3].any(), "a")
    return system._replace(a=read, band=None), _contradicts(seen, system)


def read_matrix(ops, a, structure, lower, check_finite):
    """Return the matrix that is read in a (n, n) on a device, and whether a contradicts the structure."""
    band = _band_of(structure, lower, a.dtype)
    system = _System(a[None], a[None], "general", band, bool(band and band[2]), False, False)
    system, apart = _read(ops, system, check_finite)
    return system.a[0], apart[0]


def _contradicts(seen, system):
    """Tell by what `vendor.read_as` has seen which matrices contradict the structure.

    As `_structure.contradicts`: mirror images may differ by rounding, or be zero; all else must be zero.
    """
    difference, size, beyond = seen[:3]
    return (beyond != 0) & ~(difference <= _tolerance(system) * size)


def _tolerance(system):
    """Return by how much mirror images may differ, in the largest entry; -1 where none stand for entries."""
    n, eps = system.a.shape[1], float(np.finfo(system.a.dtype).eps)
    return 4 * n * eps if system.mirrored else -1.0


def _chunk(ops, a, kind):
    """Return how many matrices are factored at once."""
    m, n = a.shape[:2]
    definite = kind == "positive definite"
    largest = LARGEST_DEFINITE_TOGETHER if definite else LARGEST_TOGETHER
    if n > largest or m < FEW and n > FEW_ROWS:
        return 1
    item = np.result_type(a.dtype, np.float64).itemsize
    return min(ops.vendor.most_at_once(kind, n), max(1, CHUNK_BYTES // (n * n * item)))


def _bytes(system, size):
    """Return the bytes of copies, factors, right-hand sides and solutions of what is solved at once."""
    (m, n, k), narrow = system.b.shape, system.a.itemsize
    wide = np.result_type(system.a.dtype, np.float64).itemsize
    read = n * n * narrow if system.band else 0
    return min(size, m) * ((n * n + (2 * k + PROBES) * n) * wide + read)


def _stacked(found, ops, batch, shape, start):
    """Return the `Solution` of a stack from those of its matrices."""
    codes = np.array([code_of(one.status) for one in found], np.int8)
    rconds, error = np.array([one.rcond for one in found]), [one.backward_error for one in found]
    x, steps = ops.xp.stack([one.x for one in found]), [one.iterations for one in found]
    none = np.zeros(len(codes), bool)
    part = _Part(x, codes, rconds, np.array(error), np.array(steps), none, none)
    planned = max(one.bytes_planned for one in found)
    return replace(
        _solution(part, ops, batch, shape, start, planned),
        precision=max(found, key=lambda one: len(one.rungs)).precision,
        rungs=tuple(dict.fromkeys(rung for one in found for rung in one.rungs)),
    )


def _join(parts, ops):
    if len(parts) == 1:
        return parts[0]
    x, *others = zip(*parts, strict=True)
    return _Part(ops.xp.concatenate(x), *(np.concatenate(v) for v in others))


def _solution(part, ops, batch, shape, start, planned):
    """Return the `Solution` with the shapes of the caller."""
    k = part.error.shape[1]
    error, steps = part.error.reshape(*batch, k), part.steps.reshape(*batch, k)
    codes, rconds = part.codes.reshape(batch), part.rconds.reshape(batch)
    if codes.any():
        fields = of_slices(codes.astype(int), rconds)
    elif not batch:
        fields = {"status": Status.CONVERGED, "rcond": float(part.rconds[0])}
    else:
        fields = {"status": Status.CONVERGED, "rcond": float(rconds.min()), "rconds": rconds}
        fields["statuses"] = np.broadcast_to(np.array(Status.CONVERGED, dtype=object), batch)
    total = time.perf_counter() - start
    return Solution(
        x=part.x.reshape(shape),
        precision="fp64",
        rungs=("fp64",),
        iterations=steps,
        backward_error=error,
        bound=_stop.target(part.x.dtype, part.x.shape[1]),
        history=() if batch else (HistoryPoint("fp64", steps, error, False),),
        seconds={"factor": total, "total": total},
        bytes_planned=planned,
        device=ops.device,
        **fields,
    )


def _unfolded(xp, solution, shape):
    """Return the `Solution` of a stack of right-hand sides from that of all their columns, of one matrix."""
    *batch, n, k = shape
    error = solution.backward_error.reshape(*batch, k)
    codes = np.full(batch, code_of(solution.status))
    if not solution.status.ok and solution.rcond > 0:  # some columns are bad, and not the matrix
        ill = solution.rcond < np.finfo(solution.x.dtype).eps
        met = (error <= solution.bound).all(axis=-1)
        codes = np.where(met, ILL_CONDITIONED if ill else CONVERGED, codes)
    x = xp.moveaxis(solution.x.reshape(n, *batch, k), 0, -2)
    return replace(
        solution,
        x=xp.ascontiguousarray(x),
        backward_error=error,
        iterations=solution.iterations.reshape(*batch, k),
        history=(),
        **of_slices(codes, np.full(batch, solution.rcond)),
    )


# ---- solving -----------------------------------------------------------------------------------


def _in_parts(ops, system, size):
    """Return the `_Part` of all systems, so many at a time, or None where one is left to the ladder."""
    if len(system.a) <= size:
        return _solve_some(ops, system)
    some = [slice(first, first + size) for first in range(0, len(system.a), size)]
    parts = [_solve_some(ops, system._replace(a=system.a[i], b=system.b[i])) for i in some]
    return _join(parts, ops)


def _solve_some(ops, system):
    """Return the `_Part` of some systems, or None where one is left to the ladder."""
    m, _, k = system.b.shape
    board = ops.xp.zeros((SEEN + MEASURED + 2 * k, m))
    if system.band:
        read = ops.vendor.read_as(system.a, *system.band, board[:SEEN])
        system = system._replace(a=read, band=None)
    factors = ops.vendor.factor(system.a, system.kind, k + PROBES)
    y = factors.solve(ops.vendor.rows(system.b, PROBES))
    x = _as_answer(ops, y[:, :k], system.b.dtype)
    info = None if system.kind in TRIANGULAR else factors.info
    _measure(ops, system, (x, y[:, k:]), info, board[SEEN:])
    if m > ON_HOST and not system.estimate:
        return _settle_few(ops, system, x, factors, board)
    return _settled(ops, system, x, factors, ops.host(board)[0])


def _settle_few(ops, system, x, factors, board):
    """Return the `_Part` of a long stack: the host looks at those matrices alone that are not ordinary.

    Where all is well, the errors are given as the bound that they meet; rcond is the least lower bound.
    """
    m, _, k = system.b.shape
    codes, apart, spoilt = np.zeros(m, np.int8), np.zeros(m, bool), np.zeros(m, bool)
    error, least = np.broadcast_to(np.float64(system.bound), (m, k)), MARGIN * _eps(system)
    steps = np.zeros((m, k), np.int64)
    limits = system.bound, least, SAFE, _tolerance(system)
    doubtful = ops.vendor.doubtful(board, k, limits, system.kind in TRIANGULAR)
    few = ops.xp.flatnonzero(doubtful)
    if few.size:
        some = system._replace(a=system.a[few], b=system.b[few])
        found = _settled(ops, some, x[few], factors.taken(few), ops.host(board[:, few])[0])
        x[few] = found.x
        (at,) = ops.host(few)
        codes[at], apart[at], spoilt[at] = found.codes, found.apart, found.spoilt
        steps[at] = found.steps
        least = np.fmin.reduce(found.rconds, initial=least)
        if codes.any() or apart.any():
            error = _look(ops.host(board)[0], system).error.copy()
            error[at] = found.error
    rconds = np.broadcast_to(np.float64(least), m)
    return _Part(x, codes, rconds, error, steps, apart, spoilt)


def _settled(ops, system, x, factors, board):
    """Return the `_Part` by what was measured, on the host, or None where one is left to the ladder."""
    m, _, k = system.b.shape
    steps = np.zeros((m, k), np.int64)
    if m == 1 and k <= FEW_COLUMNS and not system.estimate and (one := _ordinary(board, system)):
        least, error = one
        no, error = np.zeros(1, bool), np.array([error])
        return _Part(x, np.zeros(1, np.int8), np.array([least]), error, steps, no, no)
    look = _look(board, system)
    part = _Part(x, look.codes, look.least, look.error, steps, look.apart, look.spoilt)
    redo = np.flatnonzero(part.codes == REDO)
    if redo.size:
        redo = _corrected(ops, system, part, redo[look.is_safe[redo]], factors)
    if redo.size and system.alone:
        return None
    sound = part.codes == CONVERGED
    if redo.size:
        _repair(ops, system, part, redo, look.is_safe)
        sound |= (part.codes == NONFINITE) & (part.rconds > 0)  # of b alone
    _set_rconds(ops, system, part, sound & (system.estimate | look.is_near), factors)
    part.codes[(part.codes == CONVERGED) & ~(part.rconds >= _eps(system))] = ILL_CONDITIONED
    _clear(ops, part, np.flatnonzero(part.codes == system.broken))
    return part


def _ordinary(board, system):
    """Return (rcond, errors) of one system that needs no second look by `_look`, or None.

    The same with Python's numbers, which for few of them takes a tenth of the time.
    """
    numbers, k = board[:, 0].tolist(), system.b.shape[2]
    difference, largest, beyond, spoilt, zero = numbers[:SEEN]
    inf, one, grown, info = numbers[SEEN : SEEN + MEASURED]
    rest, size = numbers[SEEN + MEASURED :][:k], numbers[SEEN + MEASURED + k :]
    agrees = beyond == 0 or difference <= _tolerance(system) * largest
    if system.kind in TRIANGULAR:
        info = zero
    if not (agrees and spoilt == 0 == info and 1 / SAFE < inf < SAFE and 0 < one < SAFE):
        return None
    if not (0 < grown < SAFE and all(1 / SAFE < of_x < SAFE for of_x in size)):
        return None
    error = [r / inf / of_x for r, of_x in zip(rest, size, strict=True)]
    least = min(1 / one / grown, 1.0)
    met = all(e <= system.bound for e in error)  # never a NaN
    return (least, error) if met and least >= MARGIN * _eps(system) else None


def _corrected(ops, system, part, which, factors):
    """Correct x of some matrices by their residuals; return the numbers of all that need a second look."""
    m = len(system.b)
    if which.size:
        some, here = (which, ops.array(which)) if which.size < m else (slice(None), slice(None))
        near = system._replace(a=system.a[here], b=system.b[here])
        few = factors if which.size == m else factors.taken(which)
        x, error = _step(ops, near, part.x[here], few)
        better = (error <= part.error[which]).all(axis=1)  # never where there is NaN
        part.x[here] = ops.xp.where(ops.array(better)[:, None, None], x, part.x[here])
        part.error[which] = np.where(better[:, None], error, part.error[which])
        part.steps[which] = better[:, None]
        met = better & (error <= system.bound).all(axis=1)
        part.codes[which[met]] = CONVERGED
    return np.flatnonzero(part.codes == REDO)


def _step(ops, system, x, factors):
    """Return x + A^-1 (b - A x), and its backward errors (m, k) on the host."""
    if len(x) == 1 and x.shape[1] > MEASURED_AT_ONCE:
        return _step_of_large(ops, system, x, factors)
    xp, (m, n, k), wide = ops.xp, x.shape, np.result_type(x.dtype, np.float64)
    found, r = xp.zeros((MEASURED + 2 * k, m)), xp.empty((m, k, n), wide)
    ops.vendor.measure(system.a, x, system.b, r[:, :0], None, found, residuals=r)
    y = xp.swapaxes(factors.solve(r), 1, 2)
    with np.errstate(all="ignore"):
        x = ops.converted(ops.converted(x, wide) + y, x.dtype)
    ops.vendor.measure(system.a, x, system.b, r[:, :0], None, found)
    board = np.concatenate([np.zeros((SEEN, m)), ops.host(found)[0]])
    look = _look(board, system)
    return x, np.where((look.codes == CONVERGED)[:, None], look.error, np.inf)


def _step_of_large(ops, system, x, factors):
    """As `_step`, of one large matrix, by products that fill the device."""
    xp, wide = ops.xp, np.result_type(x.dtype, np.float64)
    (a,), (b,), before = system.a, ops.converted(system.b, wide), ops.converted(x, wide)
    r = b - ops.product(a, before[0])
    y = factors.solve(xp.ascontiguousarray(r.T)[None])
    with np.errstate(all="ignore"):
        x = ops.converted(before + xp.swapaxes(y, 1, 2), x.dtype)
    (norm,) = ops.host(ops.stats(a).row_sum.max())
    return x, backward_errors(ops, a, x[0], system.b[0], float(norm))[None]


def _as_answer(ops, y, dtype):
    """Return the rows y (m, k, n) as x (m, n, k) in its dtype."""
    x = ops.xp.swapaxes(y, 1, 2).copy()  # never a view, which would keep the probes
    with np.errstate(over="ignore", under="ignore"):
        return ops.converted(x, dtype)


def _measure(ops, system, answers, info, out):
    """Do what `vendor.measure` does for x and y; of one large matrix by products that fill the device."""
    a, b, (x, y) = system.a, system.b, answers
    if len(a) > 1 or a.shape[1] <= MEASURED_AT_ONCE:
        ops.vendor.measure(a, x, b, y, info, out)
        return
    ax = ops.product(a[0], ops.converted(x[0], np.result_type(x.dtype, np.float64)))
    ops.vendor.sizes(ops.stats(a[0]), (x[0], ax), b[0], y[0], info, out)


class _Look(NamedTuple):
    """What the measured numbers say of each matrix."""

    codes: np.ndarray  # of CONVERGED, of a broken factorization, or REDO
    error: np.ndarray  # (m, k)
    least: np.ndarray  # hardly more than rcond
    is_near: np.ndarray  # whether rcond may be below epsilon
    is_safe: np.ndarray  # whether the norms of A are far from the ends of FP64
    apart: np.ndarray  # whether entries that are not read contradict the structure
    spoilt: np.ndarray  # whether A holds NaN or Inf


def _look(board, system):
    """Return the `_Look` at what was seen and measured.

    A random probe g has entries of mean 0 and variance 1.  Entry i of A^-1 g is on average at least 0.7
    times the length of row i of A^-1 (Khinchine), and so of any entry of it: ||A^-1 g||_1 is on average at
    least 0.7 ||A^-1||_1, and at most n times as large.  It is below 1 / MARGIN of ||A^-1||_1 only where the
    row vector that dominates A^-1 is nearly orthogonal to g: in one of 100 cases for one probe, in one of
    10^4 for two.  So where 1 / (||A||_1 ||A^-1 g||_1) is at least MARGIN epsilon, rcond is taken to be at
    least epsilon.
    """
    k, seen, found = system.b.shape[2], board[:SEEN], board[SEEN:]
    (inf, one, grown, info), rest, size = found[:4], found[4 : 4 + k], found[4 + k :]
    info = seen[4] if system.kind in TRIANGULAR else info
    with np.errstate(all="ignore"):
        error = rest / inf / size
        error = np.where(np.isfinite(size), np.where(rest == 0, 0.0, error), np.nan)
        least = np.minimum(1 / one / grown, 1.0)
        is_safe = (inf > 1 / SAFE) & (inf < SAFE) & (one < SAFE)
        # Else products with x may leave the range; a zero x is met if b is zero.
        exact = (size < SAFE) & ((size > 1 / SAFE) | (size == 0) & (rest == 0))
        met = is_safe & (exact & (error <= system.bound)).all(axis=0)
        codes = np.where(met, CONVERGED, REDO)
        codes = np.where(is_safe & (info != 0), system.broken, codes).astype(np.int8)
        is_near = ~(least >= MARGIN * _eps(system))
    apart, spoilt = _contradicts(seen, system), seen[3] != 0
    return _Look(codes, error.T, least, is_near, is_safe, apart, spoilt)


def _eps(system):
    return float(np.finfo(system.b.dtype).eps)


# ---- the condition -----------------------------------------------------------------------------


def _set_rconds(ops, system, part, wanted, factors):
    """Estimate rcond of the matrices that are wanted; it is 0 where the factorization broke down."""
    part.rconds[part.codes == system.broken] = 0.0
    which = np.flatnonzero(wanted)
    if not which.size:
        return
    a = system.a
    if which.size < len(wanted):
        a, factors = a[ops.array(which)], factors.taken(which)
    part.rconds[which] = _rconds(ops, a, factors.solve)


def _rconds(ops, a, solve):
    """Estimate 1 / (||A||_1 ||A^-1||_1) of each matrix of a stack, on the host.

    Each is an upper bound up to rounding, nearly always within a factor of 3 [1]_; 0 if a solve overflows.

    Parameters
    ----------
    a : array, shape (m, n, n)
    solve : callable
        As `solve` of the factors.

    References
    ----------
    .. [1] N. J. Higham, ACM Trans. Math. Software 14 (1988), 381-396 (xLACN2).
    """
    xp, (m, n, _), wide = ops.xp, a.shape, np.result_type(a.dtype, np.float64)
    start = xp.empty((m, 2, n), wide)
    # 1 / n, and the alternating vector that the ascent cannot see coming.
    start[:] = ops.probes(n).T[:2]
    with np.errstate(all="ignore"):
        y = solve(start)
        v, alternating = y[:, :1], 2 * xp.abs(y[:, 1]).sum(axis=1) / (3 * n)
        estimate = xp.abs(v[:, 0]).sum(axis=1)
        for _ in range(MAX_SWEEPS):
            size = xp.abs(v)
            sign = xp.where(size > 0, v / xp.where(size > 0, size, 1), 1)
            z = solve(xp.ascontiguousarray(sign), adjoint=True)
            unit = xp.zeros(z.shape, z.dtype)
            unit[:, 0][xp.arange(m), xp.abs(z[:, 0]).argmax(axis=1)] = 1
            v_new = solve(unit)
            new = xp.abs(v_new[:, 0]).sum(axis=1)
            better = new > estimate
            if not bool(better.any()):
                break
            estimate = xp.where(better, new, estimate)
            v = xp.where(better[:, None, None], v_new, v)
        largest = xp.maximum(estimate, alternating)
        rcond = ops.host(1 / _norm_one(ops, a) / largest)[0]
    return np.where(np.isfinite(rcond), np.minimum(rcond, 1.0), 0.0)


def _norm_one(ops, a):
    if len(a) == 1:
        return ops.stats(a[0]).col_sum.max()[None]
    wide = ops.converted(a, np.result_type(a.dtype, np.float64))
    return ops.xp.abs(wide).sum(axis=1).max(axis=1)


# ---- what is not ordinary ----------------------------------------------------------------------


def _repair(ops, system, part, which, is_safe):
    """Look again at systems that hold NaN or Inf or extreme entries, or whose x misses the bound."""
    xp, here = ops.xp, ops.array(which)
    some = system._replace(a=system.a[here], b=system.b[here])
    finite_a, finite_b = ops.host(
        xp.isfinite(some.a).all(axis=(1, 2)), xp.isfinite(some.b).all(axis=1)
    )
    good = finite_a & finite_b.all(axis=1)
    if (~good).any():
        _spoil(ops, part, which, finite_a[:, None] & finite_b, good)
        part.rconds[which[~finite_a]] = 0.0
    if not good.any():
        return
    here = ops.array(np.flatnonzero(good))
    some = some._replace(a=some.a[here], b=some.b[here])
    again = _solve_scaled(ops, some, part.x[ops.array(which[good])], is_safe[which[good]])
    part.x[ops.array(which[good])] = again.x
    for to, found in zip(part[1:5], again[1:5], strict=True):
        to[which[good]] = found


def _spoil(ops, part, which, finite, good):
    """Note where the input holds NaN or Inf, finite (m, k) telling where not; these columns are NaN."""
    bad = which[~good]
    part.codes[bad] = NONFINITE
    part.error[which] = np.where(finite, part.error[which], np.nan)
    xp, here = ops.xp, ops.array(which)
    part.x[here] = xp.where(ops.array(finite)[:, None, :], part.x[here], xp.nan)


def _clear(ops, part, which):
    """Set the answers of some systems to NaN: there are none."""
    if which.size:
        part.x[ops.array(which)] = ops.xp.nan
        part.error[which] = np.nan
        part.rconds[which] = np.where(part.codes[which] == NOT_DEFINITE, np.nan, 0.0)


def _solve_scaled(ops, system, x, is_safe):
    """Return the `_Part` of systems that are brought next to 1 where they are not safe, and refined.

    x, the first answer, is kept where it meets the bound when it is measured with care.
    """
    xp, wide = ops.xp, np.result_type(system.a.dtype, np.float64)
    a, b = ops.converted(system.a, wide), ops.converted(system.b, wide)
    row, col = (
        xp.where(ops.array(is_safe)[:, None, None], 0, e) for e in _exponents(xp, a, system.kind)
    )
    scaled = ldexp(xp, ldexp(xp, a, -row), -col)
    factors = ops.vendor.factor(scaled, system.kind, b.shape[2])
    with np.errstate(all="ignore"):
        refined = ops.converted(_refined(ops, factors, scaled, b, (row, col)), x.dtype)
    error, steps = _errors(ops, system, x), np.full(b.shape[::2], MAX_STEPS)
    kept = (error <= system.bound).all(axis=1)
    x = xp.where(ops.array(kept)[:, None, None], x, refined)
    steps[kept] = 0
    error = np.where(kept[:, None], error, _errors(ops, system, x))
    (info,) = ops.host(factors.info)
    codes = _codes_of(ops, system, x, error)
    codes[(info != 0) & ~kept] = system.broken
    none = np.zeros(len(codes), bool)
    return _Part(x, codes, _scaled_rconds(ops, a, row, col, factors), error, steps, none, none)


def _refined(ops, factors, scaled, b, exponents):
    """Return x = C y 2**top in FP64, where R A C y = R b 2**-top after some steps of refinement.

    R = 2**-row and C = 2**-col are diagonal, and `scaled` is R A C: exact but for numbers that are negligible
    next to the others.
    """
    xp, (row, col) = ops.xp, exponents
    top = xp.where(b == 0, NO_EXPONENT, exponent_of(xp, b) - row).max(axis=1, keepdims=True)
    top = xp.where(top == NO_EXPONENT, 0, top)
    b = ldexp(xp, b, -row - top)

    def solve(v):
        return xp.swapaxes(factors.solve(xp.swapaxes(v, 1, 2).copy()), 1, 2)

    y = solve(b)
    for _ in range(MAX_STEPS):
        y = y + solve(_residual(ops, scaled, y, b))
    return xp.ascontiguousarray(ldexp(xp, y, top - xp.swapaxes(col, 1, 2)))


def _exponents(xp, a, kind):
    """Return the exponents of rows (m, n, 1) and columns (m, 1, n) that bring A next to 1."""
    if kind == "positive definite":  # symmetric, as is A; its largest entries are on the diagonal
        diagonal = xp.diagonal(a, axis1=1, axis2=2).real
        half = exponent_of(xp, diagonal) // 2
        return half[:, :, None], half[:, None, :]
    row = exponent_of(xp, a, -1)
    return row, exponent_of(xp, ldexp(xp, a, -row), -2)


def _residual(ops, a, x, b):
    """Return b - A x in FP64, for few unknowns rounded about once."""
    if a.shape[-1] <= SMALL:
        return ops.array(residual(*ops.host(a, x, b)))
    return b - a @ x


def _errors(ops, system, x):
    """Return the backward errors (m, k) of x for the caller's a and b."""
    if len(x) == 1:
        return backward_errors(ops, system.a[0], x[0], system.b[0])[None]
    return backward_errors(ops, system.a, x, system.b)


def _codes_of(ops, system, x, error):
    """Return the codes of answers that are what they are, without a look at the condition."""
    finite, top = ops.host(ops.xp.isfinite(x).all(axis=(1, 2)), ops.xp.abs(x).max(axis=1))
    met = error <= system.bound
    faint = (top < np.finfo(x.dtype).tiny) | met
    codes = np.where(faint.all(axis=1), code_of(Status.UNDERFLOW), code_of(Status.NOT_CONVERGED))
    codes = np.where(met.all(axis=1), CONVERGED, codes)
    return np.where(finite, codes, code_of(Status.OVERFLOW)).astype(np.int8)


def _scaled_rconds(ops, a, row, col, factors):
    """Return rcond of A from factors of 2**-row A 2**-col."""
    xp = ops.xp
    of_a = exponent_of(xp, a, (1, 2))
    near = ldexp(xp, a, -of_a)

    row = xp.swapaxes(row, 1, 2)

    def solve(v, adjoint=False):
        # The exponent of A goes with that of its rows, as either alone may leave the range.
        before, after = (col, row - of_a) if adjoint else (row - of_a, col)
        inside = xp.ascontiguousarray(ldexp(xp, v, -before))
        return ldexp(xp, factors.solve(inside, adjoint), -after)

    return _rconds(ops, near, solve)
