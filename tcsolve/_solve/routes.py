"""Choose how to solve: one division, stacks, structures, LAPACK, `ops.vendor` of a device, or the ladder."""

import functools
import time
from dataclasses import replace

import numpy as np

from tcsolve._arrays import as_host
from tcsolve._checks import require_finite, result_dtype
from tcsolve._solution import Status, contradicted
from tcsolve._solve.choice.device_choice import LEAST_N
from tcsolve._solve.choice.placement import moved, require_room_there, target_ops
from tcsolve._solve.host.direct import failed, solve_directly
from tcsolve._solve.host.lapack_factors import is_positive_definite
from tcsolve._solve.host.stacks import solve_stack
from tcsolve._solve.host.ways import GENERAL, ways_for
from tcsolve._solve.ladder.condition import ConditionEstimate
from tcsolve._solve.ladder.ladder import Ladder
from tcsolve._solve.ladder.residuals import BY_NAME
from tcsolve._solve.ladder.verified import Solve
from tcsolve._solve.overflow import in_range
from tcsolve._solve.problem.overwriting import in_lent_memory
from tcsolve._solve.problem.request import real_if, require_finite_arrays
from tcsolve._solve.problem.structures import detected, read_under
from tcsolve._solve.problem.trivial import solve_empty, solve_one_element
from tcsolve._solve.problem.zero_pivots import if_singular
from tcsolve._solve.vendor.solve import goes_to_vendor, solve_by_vendor
from tcsolve._solve.vendor.system import read_matrix
from tcsolve._steps import guarded

__all__ = ["solve_request"]

# Structures whose matrices have no known zeros.  None counts as 'general' until `detected` reads the entries.
WITHOUT_ZEROS = (None, "general", "symmetric", "hermitian", "positive definite")
TURNED = {"upper triangular": "lower triangular", "lower triangular": "upper triangular"}


def solve_request(ops, a, b, request):
    """Return the `Solution` for the result of `check_solve`."""
    # Every result is checked, so the floating-point settings of the caller must not raise or warn inside.
    with np.errstate(all="ignore"):
        return guarded(ops, _solve)(ops, a, b, request)


def _solve(ops, a, b, request):
    """Return the `Solution` for checked arrays; x is on the device of a and b."""
    target, shape, dtype = ops, request.shape, request.dtype
    if request.device != "auto":
        target = target_ops(ops, a, 1, request.precision, request.device)
    if shape is None:
        return _solve_on(target, _solve_one_element, ops, a, b, request)
    if request.transposed:
        a, request = ops.xp.swapaxes(a, -1, -2), _turned(request)
    if 0 in shape or 0 in a.shape:
        if request.check_finite:
            require_finite_arrays(ops.xp, a=a, b=b)
        return solve_empty(ops, shape, dtype, b.ndim < 2)
    if not a.dtype == b.dtype == dtype:
        a, b = ops.converted(a, real_if(a, dtype)), ops.converted(b, real_if(b, dtype))
    b = b.reshape(1) if b.ndim == 0 else b  # a scalar b is allowed for a stack of 1 x 1 systems
    if a.ndim > 2 or b.ndim > 2:
        solution = _solve_on(target, _solve_stack, ops, a, b, request)
    else:
        if request.device == "auto":
            target = _faster(ops, a, b, request)
        solution = _solve_one(ops, a, b, request, target)
    return solution if solution.x.shape == shape else replace(solution, x=solution.x.reshape(shape))


def _faster(ops, a, b, request):
    """Return the `Ops` of the device where one system is solved fastest."""
    structure, nrhs = request.structure, 1 if b.ndim == 1 else b.shape[-1]
    if ops.device == "cuda" or structure not in WITHOUT_ZEROS or len(a) < LEAST_N:
        return ops
    target = target_ops(ops, a, nrhs, request.precision, "auto")
    # LAPACK solves bands and triangles as fast as they could be copied to the device.
    if target is not ops and structure is None and detected(a)[0] not in WITHOUT_ZEROS:
        return ops
    return target


def _solve_one(here, a, b, request, target):
    """Solve one system on the device `target`; x is on the device `here`."""
    if target is not here and target.device == "cuda" and request.structure in (None, "general"):
        by_vendor = goes_to_vendor(target, a, b, request.structure, request.precision)
        if not (by_vendor and request.with_fp64):
            return _solve_by_ladder(here, a, b, request, target)
        nrhs = 1 if b.ndim == 1 else b.shape[-1]
        require_room_there(target, a, nrhs, request.precision, a.nbytes + b.nbytes)
    return _solve_on(target, _solve_matrix, here, a, b, request)


def _turned(request):
    """Return the request for the transposed matrix, with its structure and triangle."""
    structure = TURNED.get(request.structure, request.structure)
    return request._replace(lower=not request.lower, structure=structure)


def _solve_on(target, solve, here, a, b, request):
    """Call `solve` on the device `target`; return its `Solution` with x on the device `here`."""
    if target is here:
        return solve(here, a, b, request)
    solution = moved(solve, target, here, a, b, request)
    return replace(solution, bytes_planned=solution.bytes_planned + a.nbytes + b.nbytes)


def _solve_one_element(ops, a, b, request):
    """Divide b by the one element of a.

    A negative element is no error for 'positive definite', as in SciPy.
    """
    matrix = ops.converted(a.reshape(1, 1), real_if(a, request.dtype))
    matrix, apart = read_under(ops, matrix, request.structure, request.lower)
    asked = getattr(request.precision, "update", request.precision)
    precision = "fp64" if asked == "auto" else asked
    args = matrix.reshape(a.shape), b, request.check_finite, precision
    return contradicted(solve_one_element(ops, *args), apart)


def _solve_stack(ops, a, b, request):
    """Solve each system of a stack with the same request."""
    if a.size == 1 and request.structure == "positive definite":
        request = request._replace(structure="hermitian")  # a negative element is no error in SciPy
    if solution := _solve_by_vendor(ops, a, b, request):
        return solution

    def check():
        if request.check_finite:
            require_finite_arrays(ops.xp, a=a, b=b)

    at_once = ops.device == "cpu" and request.precision == "auto" and request.with_fp64
    how = {"at_once": at_once, "require_finite": check}
    solve_one = functools.partial(_solve_in_stack, ops, request=request)
    return solve_stack(ops, a, b, request, **how, solve_one=solve_one)


def _solve_in_stack(ops, a, b, request):
    """Solve one system (n, n), (n, nrhs) of a stack."""
    how = {"device": ops.device, "shape": b.shape, "dtype": result_dtype(a, b)}
    return _solve_matrix(ops, a, b, request._replace(**how))


def _solve_matrix(ops, a, b, request):
    """Solve with the matrix that the structure describes; the status tells if A contradicts the structure."""
    structure, lower = request.structure, request.lower
    if solution := _solve_by_vendor(ops, a, b, request):
        return solution
    if structure in (None, "general"):
        return _solve_full(ops, a, b, request)
    if ops.vendor is not None:
        read, apart = read_matrix(ops, a, structure, lower, request.check_finite)
    else:
        read, apart = read_under(ops, a, structure, lower)
        if request.check_finite and read is not a:  # SciPy checks unread entries, too
            require_finite_arrays(ops.xp, a=a)
    return contradicted(_solve_full(ops, read, b, request), apart)


def _solve_by_vendor(ops, a, b, request):
    """Return the `Solution` of `solve_by_vendor`, or None if another method must solve the system."""
    if not request.with_fp64 or not goes_to_vendor(ops, a, b, request.structure, request.precision):
        return None
    return solve_by_vendor(
        ops,
        a,
        b,
        request.structure,
        request.lower,
        functools.partial(_solve_alone, ops, request=request),
        shape=request.shape,
        dtype=request.dtype,
        check_finite=request.check_finite,
        estimate=request.estimate,
    )


def _solve_alone(ops, a, b, request):
    """Solve one general system of a stack by the method that is fastest for it."""
    request = request._replace(structure="general", start=time.perf_counter())
    return _solve_in_stack(ops, a, b, request)


def _solve_full(ops, a, b, request):
    """Solve with the full matrix a: directly by LAPACK if that is fastest, else by the ladder."""
    structure, precision = request.structure, request.precision
    columns = 1 if b.ndim == 1 else b.shape[-1]
    direct, tried = ops.device == "cpu" and request.with_fp64, None
    how = a, columns, structure, precision, request.dtype
    for way in ways_for(ops, *how) if direct else ():
        if request.lent and way == GENERAL:
            way, a = in_lent_memory(way, a)
        solution, factored = solve_directly(a, b, way, request, tried)
        # A precision that was asked for is named in the rungs, even if its factors were not made.
        tried = way if factored or precision != "auto" else tried
        if solution is None and way.plan and way.plan.fallback and len(a) <= columns:
            # For so many right-hand sides FP64 factors take less time than refinement that contracts slowly.
            solution, _ = solve_directly(a, b, GENERAL, request, tried)
        if solution:
            if request.check_finite and not solution.status.ok:
                require_finite(bool(np.isfinite(b).all()), "b")
            return if_singular(ops, a, solution)
    if structure == "positive definite" and not _may_be_definite(ops, a):
        if request.check_finite:
            require_finite_arrays(ops.xp, b=b)
        seconds = time.perf_counter() - request.start
        found = failed(Status.NOT_POSITIVE_DEFINITE, as_host(b), request.dtype, seconds)
        return replace(found, x=ops.xp.asarray(found.x), device=ops.device)
    return _solve_by_ladder(ops, a, b, request)


def _may_be_definite(ops, a):
    """Tell whether a is positive definite; True if it holds NaN or Inf, which a later check finds."""
    if ops.vendor is not None:
        (info,) = ops.host(ops.vendor.factor(a[None], "positive definite", 1).info)
        if not info[0]:
            return True
    # On a device, the factorization failed, but perhaps because of extreme entries; the host scales them.
    host = as_host(a)
    return not np.isfinite(host).all() or is_positive_definite(host)


def _solve_by_ladder(here, a, b, request, target=None):
    """Return the `Solution` by the ladder on `target`, by default on `here`; x is on `here`."""
    mark = time.perf_counter()
    seconds, nrhs = {"check": mark - request.start}, 1 if b.ndim == 1 else b.shape[-1]
    if target is None or target is here:
        return _climb(here, a, b, request, {"nrhs": nrhs, "seconds": seconds})
    moved_bytes = a.nbytes + b.nbytes
    require_room_there(target, a, nrhs, request.precision, moved_bytes)

    def climb(ops, a, b, request):
        seconds["transfer"] = time.perf_counter() - mark
        options = {"nrhs": nrhs, "seconds": seconds, "moved_bytes": moved_bytes}
        return _climb(ops, a, b, request, options)

    return moved(climb, target, here, a, b, request)


def _climb(ops, a, b, request, options):
    """Return the `Solution` by the ladder; the options are those of `Ladder.begin`.

    If x overflows, factors without scaling may give another x.
    """
    how = {"check_finite": request.check_finite, "timed": request.estimate, **options}
    ladder = Ladder.begin(ops, a, request.precision, **how)
    least = 0.0 if request.estimate else ladder.system.least_rcond()
    condition, residual = ConditionEstimate(ladder, least), BY_NAME[request.residual]
    solution = Solve(ladder, condition, request.dtype, residual).solution(b, request.check_finite)
    may_fall_back = ladder.plan.fallback and request.with_fp64
    if solution.status is Status.OVERFLOW and may_fall_back and request.dtype.char in "dD":
        del ladder, condition  # their memory is free for other factors
        solution = in_range(ops, a, b, solution)
    return if_singular(ops, a, solution)
