"""Judges of answers.  Each sentence that a judge returns describes a promise that was not kept."""

from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from fuzz.exact import (
    EPS,
    backward_errors,
    is_rounded_solution,
    rcond,
    rounding_of_residual,
    target,
)
from fuzz.outcome import Outcome
from tcsolve import (
    AccuracyWarning,
    LinAlgError,
    LinAlgWarning,
    NotPositiveDefiniteError,
    SingularError,
    Status,
)

__all__ = ["System", "Verdict", "error_complaints", "judge_solution", "outcome_complaints"]

CONVERGED = (Status.CONVERGED, Status.CONVERGED_AFTER_FALLBACK)
# Statuses that promise an answer that meets the bound for the matrix that was read.
MEETS = (*CONVERGED, Status.ILL_CONDITIONED, Status.CONDITION_UNKNOWN, Status.NOT_AS_ASSERTED)
MISSES = (Status.NOT_CONVERGED, Status.STALLED, Status.OVERFLOW, Status.UNDERFLOW)
# Unknowns up to which the condition number is computed with proved digits.
LARGEST_EXACT_CONDITION = 24
# Unit roundoff of the factors by the name of their update; others have that of the answer.
ROUNDOFF = {
    "fp16": 2.0**-11,
    "tf32": 2.0**-11,
    "bf16": 2.0**-8,
    "fp16x3": 2.0**-21,
    "fp32": 2.0**-24,
}
# The warnings with which `solve` ends for each status of `solve_ex`.
ENDS = {
    **dict.fromkeys(CONVERGED, ()),
    **dict.fromkeys((Status.ILL_CONDITIONED, Status.CONDITION_UNKNOWN), (LinAlgWarning,)),
    **dict.fromkeys((*MISSES, Status.NOT_AS_ASSERTED), (AccuracyWarning,)),
}
RAISES = {
    Status.SINGULAR: SingularError,
    Status.NOT_POSITIVE_DEFINITE: NotPositiveDefiniteError,
}


class System(NamedTuple):
    """One or more systems that `solve` was called for, as a stack of NumPy arrays.

    Attributes
    ----------
    a : ndarray, shape (m, n, n)
        The matrices that are read under the options, in the precision of the answer.
    b : ndarray, shape (m, n, k)
        In the precision of the answer.
    dtype : dtype
        Of the answer.
    fallback : bool
        Whether a more precise factorization is allowed.
    """

    a: Any
    b: Any
    dtype: Any
    fallback: bool = True


class Verdict(NamedTuple):
    """What SciPy says of the same systems.

    Attributes
    ----------
    x : ndarray, shape (m, n, k), or None
    doubts : bool
        Whether it raised LinAlgError, or warned.
    """

    x: Any
    doubts: bool


def judge_solution(system, solution, x, theirs):
    """Return what is wrong with a `Solution`.

    Parameters
    ----------
    system : System
    solution : Solution
    x : ndarray, shape (m, n, k)
        `solution.x` on the host.
    theirs : Verdict
    """
    m, n, k = x.shape
    found = []
    bound = target(system.dtype, n)
    if not solution.bound <= bound * (1 + 2.0**-50):
        found.append(f"the bound is {solution.bound}, promised is {bound}")
    statuses = np.ravel(solution.statuses)
    reported = np.ravel(solution.backward_error)
    if len(statuses) != m or len(reported) != m * k:
        shapes = np.shape(solution.statuses), np.shape(solution.backward_error)
        found.append(
            f"the statuses or errors of a stack are missing: shapes {shapes} for ({m}, {k})"
        )
        if len(reported) != m * k or solution.status not in MEETS:
            return found
        statuses = np.full(m, solution.status)  # no matrix has a worse status
    for s in range(m):
        of_slice = reported[s * k : (s + 1) * k]
        found += error_complaints(system.a[s], x[s], system.b[s], of_slice, statuses[s], bound)
        excused = statuses[s] is Status.STALLED and not system.fallback
        if (
            statuses[s] is Status.UNDERFLOW
        ):  # x may be the best there is; SciPy's x then meets the bound by chance
            here = system.a[s], x[s], system.b[s]
            excused = is_rounded_solution(*here) or _is_faint(*here, bound)
        if statuses[s] in MISSES and not excused and theirs.x is not None:
            if _error(system.a[s], theirs.x[s], system.b[s]) <= bound:
                ratio = _error(system.a[s], x[s], system.b[s]) / bound
                found.append(
                    f"{statuses[s].name}, {ratio:.3g} of the bound; SciPy's answer meets it"
                )
    if np.size(solution.statuses) != m:
        return found
    return found + _condition_complaints(system, solution, statuses, theirs.doubts)


def _error(a, x, b):
    """Return an upper bound on the largest backward error of the columns."""
    error, radius = backward_errors(a, x, b)
    return float(np.max(error + radius))


def _is_faint(a, x, b, bound):
    """Tell whether x misses the bound by no more than the rounding of subnormal numbers may cause."""
    error, radius = backward_errors(a, x, b)
    info, top = np.finfo(x.dtype), np.abs(x).max(axis=0)
    with np.errstate(all="ignore"):
        # Half the spacing of the entries; for complex ones each part is rounded.
        rounding = float(info.smallest_subnormal) / top * (0.75 if x.dtype.kind == "c" else 0.5)
    missed = ~(error + radius <= bound)
    faint = (top > 0) & (top < info.tiny) & (error <= bound + rounding)
    return bool(missed.any() and faint[missed].all())


def error_complaints(a, x, b, reported, status, bound, rounding=None):
    """Return what is wrong with the reported errors of one system, and with a status that relies on them.

    rounding is how far the reported errors may be from the true ones, by default as for `solve`.
    """
    n, is_complex = len(a), x.dtype.kind == "c"
    in_fp64 = rounding_of_residual(n, in_fp64=True, is_complex=is_complex)
    if rounding is None:  # a long double residual is promised for FP64 answers only
        is_single = x.dtype.char in "fF"
        rounding = in_fp64 if is_single else rounding_of_residual(n, is_complex=is_complex)
    for exactly in (False, True):
        error, radius = backward_errors(a, x, b, exactly)
        found = _error_complaints((error, radius), reported, status, bound, (rounding, in_fp64))
        if not found or not radius.any():
            break
    if status in MEETS and not np.isfinite(x).all():
        found.append(f"{status.name}, but x is not finite")
    return found


def _error_complaints(true, reported, status, bound, roundings):
    """Return what is wrong; true is (error, radius), roundings that of the promise and that of FP64."""
    (error, radius), (rounding, in_fp64), found = true, roundings, []
    # The norms are sums of moduli in the precision of the matrix: relative errors of a few units.
    of_norms = 2.0**-21 if bound > 2.0**-24 else 1e-9
    finite = np.isfinite(error)
    # Far above the bound the rounding of a residual in FP64 does not count.
    rounding = np.where(error > 4 * bound, max(rounding, in_fp64), rounding)
    with np.errstate(invalid="ignore"):
        off = np.abs(error - reported) > rounding + of_norms * error + radius
    if (off & finite).any() or np.isnan(reported[finite]).any():
        found.append(f"the reported error is {reported}, the true one is {error}")
    if np.isfinite(reported[np.isinf(error)]).any():
        found.append(f"the reported error is {reported}, but x solves nothing: {error}")
    if status in MEETS and not (error <= bound * (1 + of_norms) + rounding + radius).all():
        over = float(np.max(error) / bound)
        found.append(f"{status.name}, but the error is {over:.3g} times the bound")
    return found


def _is_doubted(a, b):
    """Tell whether SciPy raises or warns for one matrix of a stack."""
    outcome = Outcome(lambda: scipy.linalg.solve(a, b, assume_a="gen"))
    return outcome.error is not None or bool(outcome.warnings)


def _condition_complaints(system, solution, statuses, they_doubt):
    """Return what is wrong with statuses and rcond, compared with the true rcond and with SciPy's verdict."""
    n = system.a.shape[-1]
    if n > LARGEST_EXACT_CONDITION or not n:
        return []
    eps, found = EPS[system.dtype.char], []
    true = [rcond(a) for a in system.a]
    for a, b, status, value in zip(system.a, system.b, statuses, true, strict=True):
        if status in CONVERGED and value < eps / 10:
            if they_doubt if len(true) == 1 else _is_doubted(a, b):
                found.append(f"{status.name}, but rcond is {value:.3g}, and SciPy warns or raises")
        # An LU in working precision is that of a matrix that differs by at most n eps in the norm, unless its
        # pivots grow.  If they do, SciPy doubts the matrix as well.
        doubts = (Status.ILL_CONDITIONED, Status.SINGULAR, Status.NOT_POSITIVE_DEFINITE)
        if status in doubts and not they_doubt and value > (n + 1) * eps:
            found.append(f"{status.name}, but rcond is {value:.3g}, and SciPy does not doubt it")
    told, least = solution.rcond, min(true)
    # Estimates of ||A^-1|| are lower bounds, up to the relative error n u / rcond of factors of roundoff u.
    u = ROUNDOFF.get(solution.precision, eps)
    if least > 100 * n * u and told < least / 2:
        found.append(f"rcond is reported as {told:.3g}, and is {least:.3g}")
    return found


def outcome_complaints(solution, outcome):
    """Compare the error or warning of `solve` with the status of `solve_ex`; return what does not agree."""
    if solution.status in RAISES:
        good = isinstance(outcome.error, RAISES[solution.status])
        good &= isinstance(outcome.error, LinAlgError)
    elif solution.status is Status.NONFINITE_INPUT:
        good = outcome.error is None and outcome.warnings in ((), (LinAlgWarning,))
    else:
        good = outcome.error is None and outcome.warnings == ENDS[solution.status]
    return [] if good else [f"{solution.status.name}, but `solve` ended with {outcome}"]
