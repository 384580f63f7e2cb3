"""Stacks, structures, small and complex systems on a device: the library's factors, our verification.

One text serves one matrix and a stack of them.  Each matrix is factored in FP64 by `ops.vendor`; b and
two random probes are solved for together.  Norms of A, the residual of the x that is returned, and the
size of A^-1 times the probes are measured at once, and read by the host once.  Where they show that A may
be singular to working precision, its condition is estimated.  Matrices whose entries are extreme, or whose
x misses the bound, are scaled by powers of two, factored again and refined.
"""

import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tcsolve import _stop
from tcsolve._check import require_finite
from tcsolve._choose import choose_update, rates_of
from tcsolve._scale import NO_EXPONENT, exponent_of, ldexp
from tcsolve._solution import HistoryPoint, Solution, Status, code_of, of_slices
from tcsolve._verify import SAFE, backward_errors
from tcsolve._wide import SMALL, residual

__all__ = ["goes_to_vendor", "solve_by_vendor"]

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
# Random vectors that are solved for with b; see `_look`.
PROBES, MARGIN = 2, 100
# Sweeps of the condition estimate, and steps of refinement where the first answer misses the bound.
MAX_SWEEPS, MAX_STEPS = 4, 2
# A matrix whose answer needs a second look; larger than every code of a status.
REDO = 127
# Codes that are looked for.
CONVERGED, ILL_CONDITIONED, NONFINITE = (
    code_of(s) for s in (Status.CONVERGED, Status.ILL_CONDITIONED, Status.NONFINITE_INPUT)
)


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
    own = ("positive definite", "lower triangular", "upper triangular", "diagonal")
    return structure if structure in own else "general"


def _is_faster(ops, a, nrhs):
    """Tell whether the library's LU of a matrix is faster than ours."""
    n = a.shape[-1]
    if n <= LARGEST_ALONE:
        return True
    rates = rates_of(ops.device, getattr(ops, "properties", None))
    how = {"working": "fp32" if a.dtype.char in "fF" else "fp64", "is_complex": a.dtype.kind == "c"}
    return choose_update(n, nrhs, rates, **how) == "fp64"


class _System(NamedTuple):
    """Some systems, a (m, n, n) as it is read and b (m, n, k), of the dtype of x."""

    a: Any
    b: Any
    kind: str
    estimate: bool
    alone: bool  # one general matrix: what is not ordinary is left to the ladder of precisions

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
    if a.ndim == 2 and b.ndim > 2:
        return _solve_for_all(ops, a, b, structure, lower, alone, shape=shape, **options)
    start, kind = time.perf_counter(), _kind_of(structure)
    a, b = ops.converted(a, dtype), ops.converted(b, dtype)
    batch = shape[:-1] if b.ndim == 1 else shape[:-2]
    stack, columns = _as_stacks(ops.xp, a, b, batch)
    stack, unread = _read(ops, stack, structure, lower)
    size = _chunk(ops, stack, kind)
    if batch and size == 1 and kind == "general" and not _is_faster(ops, a, columns.shape[2]):
        _require_all_finite(ops, unread, check_finite)
        found = [alone(*one) for one in zip(stack, columns, strict=True)]
        return _stacked(found, ops, batch, shape, start)
    system = _System(stack, columns, kind, estimate, not batch and kind == "general")
    part = _in_parts(ops, system, size)
    if part is None:
        return None
    _require_all_finite(ops, unread, check_finite)
    if check_finite and (part.codes == NONFINITE).any():
        require_finite(bool(ops.xp.isfinite(a).all()), "a")
        require_finite(bool(ops.xp.isfinite(b).all()), "b")
    planned = (0 if unread is None else stack.nbytes) + _bytes(stack, columns, size)
    return _solution(part, ops, batch, shape, start, planned)


def _solve_for_all(ops, a, b, structure, lower, alone, *, shape, **options):
    """Solve a stack of systems with one matrix, all right-hand sides as its columns."""
    columns, found = ops.xp.moveaxis(b, -2, 0).reshape(len(a), -1), None
    if goes_to_vendor(ops, a, columns, structure, "auto"):
        args = (ops, a, columns, structure, lower, alone)
        found = solve_by_vendor(*args, shape=columns.shape, **options)
    if found is None:
        stack, unread = _read(ops, a[None], structure, lower)
        _require_all_finite(ops, unread, options["check_finite"])
        found = alone(stack[0], columns)
    return _unfolded(ops.xp, found, shape)


def _require_all_finite(ops, unread, check_finite):
    """Raise if what `_read` says of entries that are not read, too, must be good and is not."""
    if check_finite and unread is not None:
        require_finite(not int(ops.host(unread)[0][0]), "a")


# ---- from arguments to stacks, and back --------------------------------------------------------


def _as_stacks(xp, a, b, batch):
    """Return a as (m, n, n) and b as (m, n, k), broadcast against each other."""
    n, b = a.shape[-1], b[:, None] if b.ndim == 1 else b
    a = xp.broadcast_to(a, (*batch, n, n)).reshape(-1, n, n)
    return a, xp.broadcast_to(b, (*batch, n, b.shape[-1])).reshape(-1, n, b.shape[-1])


def _read(ops, a, structure, lower):
    """Return the matrices that are read under a structure, and whether all of a is finite, or None."""
    n = a.shape[-1]
    bands = {
        "diagonal": (0, 0, 0),
        "tridiagonal": (1, 1, 0),
        "upper triangular": (0, n, 0),
        "lower triangular": (n, 0, 0),
    }
    if structure in ("symmetric", "hermitian", "positive definite"):
        conjugate = structure != "symmetric" and a.dtype.kind == "c"
        bands[structure] = (*((n, 0) if lower else (0, n)), 2 if conjugate else 1)
    if structure not in bands:
        return a, None
    return ops.vendor.read_as(a, *bands[structure])


def _chunk(ops, a, kind):
    """Return how many matrices are factored at once."""
    m, n = a.shape[:2]
    definite = kind == "positive definite"
    largest = LARGEST_DEFINITE_TOGETHER if definite else LARGEST_TOGETHER
    if n > largest or m < FEW and n > FEW_ROWS:
        return 1
    item = np.result_type(a.dtype, np.float64).itemsize
    return min(ops.vendor.most_at_once(kind), max(1, CHUNK_BYTES // (n * n * item)))


def _bytes(stack, columns, size):
    """Return the bytes of factors, right-hand sides and solutions of what is solved at once."""
    wide = np.result_type(stack.dtype, np.float64).itemsize
    each = (stack[0].size + 2 * columns[0].size + PROBES * len(stack[0])) * wide
    return min(size, len(stack)) * each


def _stacked(found, ops, batch, shape, start):
    """Return the `Solution` of a stack from those of its matrices."""
    codes = np.array([code_of(one.status) for one in found], np.int8)
    rconds, error = np.array([one.rcond for one in found]), [one.backward_error for one in found]
    x, steps = ops.xp.stack([one.x for one in found]), [one.iterations for one in found]
    part = _Part(x, codes, rconds, np.array(error), np.array(steps))
    planned = max(one.bytes_planned for one in found)
    return replace(
        _solution(part, ops, batch, shape, start, planned),
        precision=max(found, key=lambda one: len(one.rungs)).precision,
        rungs=tuple(dict.fromkeys(rung for one in found for rung in one.rungs)),
    )


def _join(parts, xp):
    if len(parts) == 1:
        return parts[0]
    x, *others = zip(*parts, strict=True)
    return _Part(xp.concatenate(x), *(np.concatenate(v) for v in others))


def _solution(part, ops, batch, shape, start, planned):
    """Return the `Solution` with the shapes of the caller."""
    k = part.error.shape[1]
    error, steps = part.error.reshape(*batch, k), part.steps.reshape(*batch, k)
    codes, rconds = part.codes.reshape(batch), part.rconds.reshape(batch)
    if codes.any():
        fields = of_slices(codes.astype(int), rconds)
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
    some = [slice(first, first + size) for first in range(0, len(system.a), size)]
    parts = [_solve_some(ops, system._replace(a=system.a[i], b=system.b[i])) for i in some]
    return None if parts[0] is None else _join(parts, ops.xp)


def _solve_some(ops, system):
    """Return the `_Part` of some systems, or None where one is left to the ladder."""
    m, n, k = system.b.shape
    factors = ops.vendor.factor(system.a, system.kind, k + PROBES)
    y = factors.solve(_with_probes(ops, system.b))
    x = _as_answer(ops, y[:, :k], system.b.dtype)
    found = _measured(ops, system, x, y[:, k:], factors.info)
    steps = np.broadcast_to(np.int64(0), (m, k))
    if m > ON_HOST and not system.estimate:
        error, least, ordinary = _if_ordinary(ops, found, system)
        if ordinary:
            return _Part(x, np.broadcast_to(np.int8(0), m), np.broadcast_to(least, m), error, steps)
    look = _look(np, ops.host(found)[0], system)
    part = _Part(x, look.codes, look.least, look.error, steps.copy())
    redo = np.flatnonzero(part.codes == REDO)
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


def _with_probes(ops, b):
    """Return the rows to solve for, (m, k + PROBES, n) in FP64: the columns of b, and the probes."""
    xp, (m, n, k) = ops.xp, b.shape
    wide = np.result_type(b.dtype, np.float64)
    rows = xp.empty((m, k + PROBES, n), wide)
    rows[:, :k] = xp.swapaxes(ops.converted(b, wide), 1, 2)
    rows[:, k:] = ops.probes(n).T[-PROBES:]
    return rows


def _as_answer(ops, y, dtype):
    """Return the rows y (m, k, n) as x (m, n, k) in its dtype."""
    x = ops.xp.swapaxes(y, 1, 2).copy()  # never a view, which would keep the probes
    with np.errstate(over="ignore", under="ignore"):
        return ops.converted(x, dtype)


def _measured(ops, system, x, y, info):
    """Return what `vendor.measure` does; of one large matrix by products that fill the device."""
    a, b, xp = system.a, system.b, ops.xp
    if len(a) > 1 or a.shape[1] <= MEASURED_AT_ONCE:
        return ops.vendor.measure(a, x, b, y, info)
    wide = np.result_type(x.dtype, np.float64)
    a, x, b = a[0], ops.converted(x[0], wide), ops.converted(b[0], wide)
    stats = ops.stats(a)
    grown = xp.abs(y[0]).sum(axis=1).max()
    ends = [stats.row_sum.max(), stats.col_sum.max(), grown, info[0].astype(np.float64)]
    rest = ops.column_max(b - ops.product(a, x))
    return xp.concatenate([xp.stack(ends), rest, ops.column_max(x)])[:, None]


class _Look(NamedTuple):
    """What the measured numbers say of each matrix, in arrays of the library they are in."""

    codes: Any  # of CONVERGED, of a broken factorization, or REDO
    error: Any  # (m, k)
    least: Any  # hardly more than rcond
    is_near: Any  # whether rcond may be below epsilon
    is_safe: Any  # whether the norms of A are far from the ends of FP64


def _look(xp, found, system):
    """Return the `_Look` at what was measured.

    A random probe g has entries of mean 0 and variance 1.  Entry i of A^-1 g is on average at least 0.7
    times the length of row i of A^-1 (Khinchine), and so of any entry of it: ||A^-1 g||_1 is on average at
    least 0.7 ||A^-1||_1, and at most n times as large.  It is below 1 / MARGIN of ||A^-1||_1 only where the
    row vector that dominates A^-1 is nearly orthogonal to g: in one of 100 cases for one probe, in one of
    10^4 for two.  So where 1 / (||A||_1 ||A^-1 g||_1) is at least MARGIN epsilon, rcond is taken to be at
    least epsilon.
    """
    k = system.b.shape[2]
    (inf, one, grown, info), rest, size = found[:4], found[4 : 4 + k], found[4 + k :]
    with np.errstate(all="ignore"):
        error = rest / inf / size
        error = xp.where(xp.isfinite(size), xp.where(rest == 0, 0.0, error), xp.nan)
        least = 1 / one / grown
        is_safe = (inf > 1 / SAFE) & (inf < SAFE) & (one < SAFE)
        # Else products with x may leave the range; a zero x is met if b is zero.
        exact = (size < SAFE) & ((size > 1 / SAFE) | (size == 0) & (rest == 0))
        met = is_safe & (exact & (error <= system.bound)).all(axis=0)
        codes = xp.where(met, CONVERGED, REDO)
        codes = xp.where(is_safe & (info != 0), system.broken, codes).astype(np.int8)
        is_near = ~(least >= MARGIN * _eps(system))
    return _Look(codes, error.T, least, is_near, is_safe)


def _if_ordinary(ops, found, system):
    """Return the errors and the least rcond on the host, and whether all matrices are good."""
    look, xp = _look(ops.xp, found, system), ops.xp
    good = ((look.codes == CONVERGED) & ~look.is_near).all()
    good, least = ops.host(xp.stack([good.astype(np.float64), look.least.min()]))[0].tolist()
    return (*ops.host(look.error if good else None), least, bool(good))


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
    start[:] = ops.probes(n).T[
        :2
    ]  # 1 / n, and the alternating vector that the ascent cannot see coming
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
    return np.where(np.isfinite(rcond), rcond, 0.0)


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
    for to, found in zip(part[1:], again[1:], strict=True):
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
    return _Part(x, codes, _scaled_rconds(ops, a, row, col, factors), error, steps)


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
    """Return the backward errors (m, k) of what was asked for."""
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
        before, after = (col, row) if adjoint else (row, col)
        inside = xp.ascontiguousarray(ldexp(xp, v, -before))
        return ldexp(xp, factors.solve(inside, adjoint), of_a - after)

    return _rconds(ops, near, solve)
