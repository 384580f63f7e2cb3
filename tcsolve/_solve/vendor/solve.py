"""Stacks, structures, small and complex systems on a device, by its libraries or our own kernels.

A single matrix is treated as a stack of one.

1. `ops.vendor` solves for b and a few random vectors together, in FP64: by factors of each matrix, or by an
   elimination that keeps no factors.  Two kernels, solve_team.cu and solve_inverse.cu, invert matrices in
   FP32 and refine x instead; then rcond comes from the inverse.
2. The norms of A, the residual of x, and the size of A^-1 times the random vectors are measured, usually by
   one kernel.  Other numbers were found when the structure was read.  The host reads all of them at once; of
   a long stack without `estimate`, only those of doubtful systems (see `doubtful`).
3. If A may be singular to working precision, or if the caller wants an estimate of rcond, rcond is estimated.
   A kernel that factors and solves in one launch computes rcond from A^-1 instead.
4. An x that misses the bound is corrected by its residual, at most twice.
5. If it still misses the bound, or the norms of A are extreme, A is factored again, and x is refined.  Only
   an A with extreme norms, or whose first x is not finite, is scaled first, by powers of two.  A single
   general system is solved by the ladder instead.
"""

import time
from dataclasses import replace

import numpy as np

from tcsolve._checks import require_finite
from tcsolve._refine import stopping
from tcsolve._solution import HistoryPoint, Status, contradicted, distinct
from tcsolve._solve.choice.cost_model import first_update, rates_for
from tcsolve._solve.vendor.factors import Later
from tcsolve._solve.vendor.judged import PROBES, solve_and_judge, solve_at_once, with_few
from tcsolve._solve.vendor.measure import (
    MEASURED,
    all_ordinary,
    complex_errors,
    doubtful,
    is_large,
    measure,
    ordinary,
)
from tcsolve._solve.vendor.result import join, solution_of, stacked, unfolded
from tcsolve._solve.vendor.settle import corrected_once, settled
from tcsolve._solve.vendor.system import (
    ILL_CONDITIONED,
    SEEN,
    TRIANGULAR,
    System,
    as_stacks,
    band_of,
    kind_of,
    read_all,
    read_matrix,
    some_of,
)

__all__ = [
    "answer_by_factors",
    "answered",
    "goes_to_vendor",
    "require_finite_systems",
    "solve_by_vendor",
    "solved_together",
    "suits_vendor",
]

# Up to LARGEST_ALONE unknowns, `ops.vendor` solves a single general system in FP64, because the launches of
# our LU take longer.  Devices with less than FAST flop/s in FP64 have other limits: for one right-hand side,
# and for several.  For several, the refinement that follows our LU has more launches.
LARGEST_ALONE, LARGEST_SLOWLY, FAST = 1536, (512, 1024), 5e12
# CHUNK_BYTES: the factors that are computed at a time for a long stack have at most this many bytes.  CHUNK:
# the parts of a stack that `solve_at_once` solves have at most this many systems.  ON_HOST: up to this number
# of systems, the host checks them as fast as the device does.
CHUNK_BYTES, CHUNK, ON_HOST = 1 << 29, 1 << 19, 4096


def goes_to_vendor(ops, a, b, structure, precision):
    """Tell whether `solve_by_vendor` should solve the system: on a GPU, if no other method is faster."""
    if ops.vendor is None or precision not in ("auto", "fp64"):
        return False
    if a.ndim > 2 or b.ndim > 2 or structure == "positive definite":
        return True
    if precision != "auto":
        return False
    return kind_of(structure) != "general" or _is_faster(ops, a, 1 if b.ndim == 1 else b.shape[1])


def _is_faster(ops, a, nrhs):
    """Tell whether `ops.vendor` solves one general system faster than our LU."""
    if suits_vendor(ops, a.shape[-1], nrhs):
        return True
    return first_update(a, nrhs, "auto", rates_for(ops)) == "fp64"


def suits_vendor(ops, n, nrhs):
    """Tell whether `ops.vendor` solves one general system of n unknowns fastest, whatever its dtype."""
    is_fast = rates_for(ops).gemm_flops >= FAST
    return n <= (LARGEST_ALONE if is_fast else LARGEST_SLOWLY[nrhs > 1])


def solve_by_vendor(ops, a, b, structure, lower, alone, *, shape, dtype, check_finite, estimate):
    """Solve one system or a stack; return None for a single general system that the ladder must solve.

    Parameters
    ----------
    ops : Ops
        It has a `vendor`.
    a : array, shape (..., n, n)
    b : array, shape (n,) or (..., n, nrhs)
    structure : str or None
        Long name of the structure.
    lower : bool
        As in `tcsolve.solve`.
    alone : callable
        Returns the `Solution` for one general matrix (n, n) and b (n, nrhs), by the fastest method.
    shape : tuple of int
        Shape of x.
    dtype : dtype
        Dtype of x.
    check_finite : bool
        Raise an InputError if a or b holds NaN or Inf.
    estimate : bool
        True: rcond must come from a condition estimator, or from A^-1.  False: the estimate by
        random vectors is enough if `look_at` finds that rcond is at least machine epsilon.

    Returns
    -------
    Solution or None
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
    """Return (Solution, which matrices contradict the structure), or None.

    The statuses of this `Solution` do not have NOT_AS_ASSERTED yet.
    """
    start, kind = time.perf_counter(), kind_of(structure)
    a, b = ops.converted(a, dtype), ops.converted(b, dtype)
    batch = shape[:-1] if b.ndim == 1 else shape[:-2]
    stack, columns = as_stacks(ops.xp, a, b, batch)
    band = band_of(structure, lower, a.dtype)
    how = {"kind": kind, "band": band, "mirrored": bool(band and band[2]), "estimate": estimate}
    system = System(stack, columns, **how, alone=not batch)
    size = _chunk(ops, system)
    if batch and size == 1 and kind == "general" and not _is_faster(ops, a, columns.shape[2]):
        system, apart = read_all(ops, system, check_finite)
        found = [alone(*one) for one in zip(system.a, columns, strict=True)]
        return stacked(found, ops, batch, shape, start), apart.reshape(batch)
    part = _in_parts(ops, system, size)
    if part is None:
        return None
    require_finite_systems(ops, system, part, check_finite)
    solution = solution_of(part, ops, batch, shape, start, _bytes(ops, system, size))
    return solution, part.apart.reshape(batch)


def require_finite_systems(ops, system, part, check_finite, which=None):
    """Raise an InputError if `check_finite` and A or b holds NaN or Inf.

    `system` has the caller's arrays, and `part` the answers to the systems `which`; None stands for all.
    """
    bad = distinct(part.spoilt).any() or distinct(part.codes).max() > ILL_CONDITIONED
    if check_finite and bad:
        system = some_of(ops, system, which)
        require_finite(not part.spoilt.any() and bool(ops.xp.isfinite(system.a).all()), "a")
        require_finite(bool(ops.xp.isfinite(system.b).all()), "b")


def _solve_for_all(ops, a, b, structure, lower, alone, *, shape, **options):
    """Solve a stack of systems with one matrix: all right-hand sides become columns of one system."""

    def solved(columns):
        if goes_to_vendor(ops, a, columns, structure, "auto"):
            args = (ops, a, columns, structure, lower, alone)
            if found := _solve_all(*args, shape=columns.shape, **options):
                return found
        read, apart = read_matrix(ops, a, structure, lower, options["check_finite"])
        return alone(read, columns), apart

    def folded(b):
        return xp.moveaxis(b, -2, 0).reshape(len(a), -1)

    xp, spoilt = ops.xp, None
    solution, apart = solved(folded(b))
    if (
        solution.status is Status.NONFINITE_INPUT
    ):  # NaN or Inf in one column changes nothing for the others
        finite = xp.isfinite(b).all(axis=-2)
        solution, apart = solved(folded(xp.where(finite[..., None, :], b, 0)))
        (spoilt,) = ops.host(~finite)
    solution = unfolded(ops, solution, shape, spoilt)
    return contradicted(solution, np.broadcast_to(apart, solution.statuses.shape))


def _solve_paired(ops, a, b, structure, lower, alone, *, shape, dtype, **options):
    """Solve real systems for complex b: its real and imaginary parts become separate columns."""
    xp, vector, real = ops.xp, b.ndim == 1, np.dtype(dtype.char.lower())
    columns = ops.converted(b[:, None] if vector else b, dtype)
    n, k = a.shape[-1], columns.shape[-1]
    batch = shape[:-1] if vector else shape[:-2]
    pairs = xp.concatenate([columns.real, columns.imag], axis=-1)
    args, of_pairs = (structure, lower, alone), (*batch, n, 2 * k)
    found = solve_by_vendor(ops, a, pairs, *args, shape=of_pairs, dtype=real, **options)
    if found is None:
        return None
    x, band = xp.empty((*batch, n, k), dtype), band_of(structure, lower, real)
    x.real[...], x.imag[...] = found.x[..., :k], found.x[..., k:]
    stack, columns = as_stacks(xp, ops.converted(a, real), columns, batch)
    system = System(stack, columns, "general", band, False, False, False)
    error = complex_errors(ops, read_all(ops, system, False)[0], x.reshape(-1, n, k))
    error, bound = error.reshape(*batch, k), stopping.target(dtype, n)
    met = (found.backward_error <= found.bound).all(axis=-1)
    # Real and imaginary part may meet the bound although the complex x does not, or the reverse.
    if (met != (error <= bound).all(axis=-1)).any():
        whole = ops.converted(a, dtype), b
        return solve_by_vendor(ops, *whole, *args, shape=shape, dtype=dtype, **options)
    steps = found.iterations.reshape(*batch, 2, k).max(axis=-2)
    history = (HistoryPoint("fp64", steps, error, False),)
    how = {"backward_error": error, "bound": bound, "iterations": steps, "history": history}
    return replace(found, x=x.reshape(shape), **how)


# ---- solving -----------------------------------------------------------------------------------


def _chunk(ops, system):
    """Return how many systems are solved together."""
    n, dtype = system.b.shape[1], system.a.dtype
    by_memory = max(1, CHUNK_BYTES // (n * n * np.result_type(dtype, np.float64).itemsize))
    plan = _plan(ops, system)
    return min(plan.together if plan.launch_bytes is None else CHUNK, by_memory)


def _bytes(ops, system, size):
    """Return the bytes of copies, factors, right-hand sides and solutions of `size` systems."""
    (m, n, k), narrow = system.b.shape, system.a.itemsize
    if _is_judged(ops, system):
        return m * (n * k * narrow + 1) + _plan(ops, system).launch_bytes
    wide = np.result_type(system.a.dtype, np.float64).itemsize
    read = n * n * narrow if system.band else 0
    count = min(size, m)
    work = _plan(ops, system, count).work_bytes
    if size == 1:  # A x, or b - A x
        work += n * k * wide
    return count * ((n * n + (2 * k + PROBES) * n) * wide + read) + work


def _in_parts(ops, system, size):
    """Return the `Part` of all systems, solved `size` at a time, or None if the ladder must solve one."""
    if _is_judged(ops, system):
        return solve_and_judge(ops, system)
    if len(system.a) <= size:
        return _solve_some(ops, system)
    some = [slice(first, first + size) for first in range(0, len(system.a), size)]
    parts = [_solve_some(ops, system._replace(a=system.a[i], b=system.b[i])) for i in some]
    return join(parts, ops)


def _solve_some(ops, system):
    """Return the `Part` of some systems, or None if the ladder must solve one."""
    m, n, k = system.b.shape
    board = ops.xp.zeros((SEEN + MEASURED + 2 * k, m))
    if _is_one_launch(ops, system):
        system = system._replace(exact=True)
        x, factors = solve_at_once(ops, system, board), Later(ops, system, PROBES)
    else:
        system, x, factors = _solve_by_factors(ops, system, board)
    return answered(ops, system, x, factors, board)


def solved_together(ops, system):
    """Tell whether `answer_by_factors` can solve a stack of several systems.

    All of them must fit into one part, and must be so few that the host can check each.
    """
    m = len(system.a)
    return m <= ON_HOST and 1 < m <= _chunk(ops, system)


def answer_by_factors(ops, system, batch, shape, check_finite):
    """Solve one system or a short stack; return (x, its `Solution`), or None if the ladder must solve it.

    Return (x, None) if all systems are `ordinary` and meet the bound.  If there is only one system, it may
    need one correction for this.  `batch` and `shape` are the shapes of the stack and of x.
    """
    m, _, k = system.b.shape
    start, board = time.perf_counter(), ops.xp.zeros((SEEN + MEASURED + 2 * k, m))
    read, x, factors = _solve_by_factors(ops, system, board)
    (found,) = ops.host(board)
    if m > 1:
        if all_ordinary(found, read):
            return x.reshape(shape), None
    elif one := ordinary(found, read):
        if answer := corrected_once(ops, read, x, factors, one[1]):
            return answer[0].reshape(shape), None
        read = read._replace(residuals=None)  # they may be overwritten
    part = settled(ops, read, x, factors, found)
    if part is None:
        return None
    require_finite_systems(ops, system, part, check_finite)
    solution = solution_of(part, ops, batch, shape, start, _bytes(ops, system, m))
    return solution.x, contradicted(solution, part.apart.reshape(batch))


def answered(ops, system, x, factors, board):
    """Return the `Part` from the measured numbers on the device, or None if the ladder must solve a system.

    Of a long stack without `estimate`, the host looks only into the doubtful systems.
    """
    if len(system.a) > ON_HOST and not system.estimate:
        few = ops.xp.flatnonzero(doubtful(board, system))
        found = ops.host(few, board[:, few]) if few.size else ((), None)
        return with_few(ops, system, x, *found, factors)
    return settled(ops, system, x, factors, ops.host(board)[0])


def _is_judged(ops, system):
    """Tell whether one launch solves all systems and finds the doubtful ones."""
    is_long = len(system.a) > ON_HOST and not system.estimate
    return is_long and _is_one_launch(ops, system)


def _is_one_launch(ops, system):
    """Tell whether one launch solves the systems."""
    return _plan(ops, system).launch_bytes is not None


def _plan(ops, system, count=None):
    """Return the `StackPlan` of `count` of the systems, by default of all."""
    m, n, k = system.b.shape
    args = (count or m, n, k), system.a.dtype, system.kind, system.band, PROBES
    return ops.vendor.plan(*args, alone=system.alone, factors=system.estimate)


def _solve_by_factors(ops, system, board):
    """Return (system, x, factors), and fill the board.

    If the factors or the measurement need it, the system has copies of the matrices as they are read.
    """
    # Only `measure_large` can measure with the caller's matrices and a band.  Everything else needs copies.
    how = {"band": system.band, "seen": board[:SEEN], "copies": not is_large(ops, system.b)}
    args = system.a, system.kind, system.b, PROBES
    factors, y, read = ops.vendor.factor_and_solve(*args, alone=system.alone, **how)
    if read is not system.a:
        system = system._replace(a=read, band=None)
    info = None if system.kind in TRIANGULAR else factors.info
    return *measure(ops, system, y, info, board), factors
