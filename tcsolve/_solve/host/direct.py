"""Systems that LAPACK solves directly, without the ladder.

For a few dozen unknowns, a solve takes as long as a few dozen calls from Python; for a few hundred, these
calls are still a tenth of the time.  So these systems are solved with little overhead: a factorization by
LAPACK, a residual for each step, one condition estimate.  Band matrices, triangles and positive definite
matrices of any size have their own LAPACK routines.  The ladder takes systems with NaN or Inf, with a norm
that is zero or overflows, with a zero pivot in a general matrix, or with an error above the bound.  If FP32
factors do not suit a matrix, because it is badly scaled or too ill-conditioned, the next way takes it, or the
ladder if there is none.
"""

import functools
import math
import time
from typing import Any, NamedTuple

import numpy as np

from tcsolve._backends.cpu.blas import FEW_ROWS, infinity_norm, norms
from tcsolve._backends.cpu.ops import numpy_ops, sums
from tcsolve._lu.norms import Survey
from tcsolve._lu.scaling import TOP, exponent_of, ldexp, needs_scaling
from tcsolve._refine import stopping
from tcsolve._solution import HistoryPoint, Solution, Status
from tcsolve._solve.host import fp32_factors
from tcsolve._solve.host.fp32_refinement import refined_by_plan, refined_shortly
from tcsolve._solve.host.gains import least_rcond
from tcsolve._solve.host.lapack_factors import Band, Rounded
from tcsolve._solve.host.ways import GENERAL, GENERAL_IN_FP32, SINGLE
from tcsolve._solve.ladder.condition import TRUST
from tcsolve._solve.ladder.short_refinement import HostLoop, is_of_ordinary_size
from tcsolve._solve.verify.backward_error import backward_errors
from tcsolve._solve.verify.long_double_residual import SMALL, residual

__all__ = ["failed", "refined", "solve_directly"]

# Largest number of refinement steps with FP64 factors, or with FP32 factors for an answer in FP32; more steps
# gain nothing.
MOST_STEPS = 2
# Number of vectors per right-hand side that refinement with FP32 factors takes.
LOW_VECTORS = 6
# An FP32 system of up to this many unknowns is solved again with FP32 factors of A, and then of its
# transpose, if A is singular to working precision and x exceeds the range of FP32.  The rounding of these
# factors makes x smaller, and x may still meet the bound.
MOST_ROWS_AGAIN = 512
EPS = {char: float(np.finfo(char).eps) for char in "fdFD"}
FP64 = {"f": np.dtype(np.float64), "c": np.dtype(np.complex128)}
# Below this rcond, most systems need many corrections with FP32 factors.  If there are at least as many
# columns as unknowns, these corrections take longer than an LU in FP64.
FAST = 2.0**-14
LOW_EPS, LOW = 2.0**-24, {"d": np.float32, "D": np.complex64}


def solve_directly(a, b, way, request, tried=None):
    """Solve A x = b by LAPACK; return (its `Solution`, whether A was factored).

    The solution is None if another way or the ladder must solve the system.

    Parameters
    ----------
    a : ndarray, shape (n, n)
        The matrix that the structure describes.
    b : ndarray, shape (n,) or (n, k)
        The right-hand sides.
    way : Way
    request : Request
    tried : Way, optional
        A `Way` that was tried before and did not lead to an answer.
    """
    problem = _Problem.of(a, b, way, request)
    if problem is None:
        return None, False
    return _by_factors(problem, a, b, way, request, tried), True


def _by_factors(problem, a, b, way, request, tried):
    """Return the `Solution` of a problem, or None; the arguments are those of `solve_directly`."""
    start, prepared = request.start, time.perf_counter()
    factors, is_singular = _factored(way, problem.band or problem.matrix)
    factored = time.perf_counter()
    if factors.bad_pivot:
        return way.failure and failed(way.failure, b, request.dtype, factored - start, tried)
    rcond, is_enough = _rcond(problem, factors, is_singular, way, request)
    estimated = time.perf_counter()
    # If rcond is far above their roundoff, FP32 factors give a good estimate of it, and refinement with them
    # converges fast.
    if way.plan and not (is_enough or rcond > _least_rcond_of_low(problem.rhs, way.plan)):
        return None
    if way is SINGLE and not fp32_factors.suffice(factors, rcond, problem.norm):
        return None
    if way is GENERAL_IN_FP32:
        found = refined_shortly(problem, factors)
    elif way.plan:
        # `solve` and `solve_ex` must give the same x, but `solve` may have no estimate of rcond.  So use the
        # lower bound of rcond, which is computed in both, if there is one.
        known = problem.least or rcond
        found = refined_by_plan(problem, factors, way.plan, known, watched=request.estimate)
    else:
        found = _solved(problem, factors, is_singular)
    answer = found and _measured(problem, found, a, b, rcond)
    if not answer:
        return None
    done = time.perf_counter()
    x, error, steps, history, overflows = answer
    rcond = min(rcond, 1.0) if math.isfinite(rcond) else 0.0
    status = Status.CONVERGED_AFTER_FALLBACK if tried else Status.CONVERGED
    status = status if rcond >= EPS[request.dtype.char] else Status.ILL_CONDITIONED
    # The last point gets the total number of steps and the errors of the returned x.
    history = (*history[:-1], (steps, error, False))
    return Solution(
        x=np.ascontiguousarray(x.reshape(b.shape)),
        status=_status_of_overflow(b) if overflows else status,
        precision=way.precision,
        rungs=(tried.precision, way.precision) if tried else (way.precision,),
        iterations=steps,
        backward_error=error,
        bound=stopping.target(request.dtype, len(a)),
        rcond=rcond,
        history=tuple([HistoryPoint(way.precision, *point) for point in history]),
        seconds={
            "scale": prepared - start,
            "factor": factored - prepared,
            "rcond": estimated - factored,
            "refine": done - estimated,
            "total": done - start,
        },
        bytes_planned=problem.matrix.nbytes + (LOW_VECTORS if way.plan else 2) * problem.rhs.nbytes,
    )


class _Problem(NamedTuple):
    """A system in FP64, with A scaled to near 1 if it has extreme entries, and what is known of its norms."""

    matrix: np.ndarray
    band: Any  # its `Band`, or None
    rhs: np.ndarray  # (n, k), not scaled
    dtype: np.dtype  # of the answer
    # Whether A is real and b complex.  Then the real and the imaginary parts of b are separate columns.
    paired: bool
    norm: float  # the infinity norm of A
    norm_one: float  # the 1-norm of `matrix`, or an upper bound
    is_bound: bool  # whether `norm_one` is only an upper bound
    least: float  # a lower bound of rcond, or 0
    ordinary: bool  # whether the entries are not extreme
    # `matrix` is A 2**-exponent.  The exponent is 0 if the entries are not extreme, or if bits would be lost.
    exponent: int

    @classmethod
    def of(cls, a, b, way, request):
        """Return the problem; None if a norm of A is zero or not finite, or if FP32 factors need scaling."""
        columns = b.reshape(len(a), -1)
        wide = FP64["c" if a.dtype.kind == "c" else "f"]
        matrix = a.astype(wide, copy=False)
        paired = b.dtype.kind == "c" and wide.kind != "c"
        rhs = np.concatenate([columns.real, columns.imag], axis=1) if paired else columns
        rhs = rhs.astype(wide, copy=False)
        band = Band.of(matrix, *way.bands) if way.bands else None
        is_bound = not (band or way.plan or request.estimate) and len(a) > FEW_ROWS
        if is_bound:  # then the 1-norm is needed only for an estimate of rcond
            norm, least = infinity_norm(matrix), 0.0
            norm_one = len(a) * norm
            is_bound = norm_one < TOP
        if not is_bound:
            norm, norm_one, least = (*band.norms(), 0.0) if band else _norms(matrix, way.plan)
        if not (norm < math.inf and norm_one < math.inf and norm > 0):
            return None
        ordinary, exponent = 1 / TOP < norm < TOP and norm_one < TOP, 0
        if not ordinary:
            matrix, exponent = _near_one(matrix, (0, 1))
            norm_one = _norms(matrix)[1]
            band = band and Band.of(matrix, *way.bands)
        known = norm, norm_one, is_bound, least
        return cls(matrix, band, rhs, request.dtype, paired, *known, ordinary, exponent)


def _least_rcond_of_low(b, plan):
    """Return the rcond that a matrix must exceed to be solved with FP32 factors, for b (n, k)."""
    is_dear = plan.fallback and 1 < len(b) <= b.shape[1]
    return FAST if is_dear else LOW_EPS / TRUST


def _rcond(problem, factors, is_singular, way, request):
    """Return (rcond or a lower bound of it, whether no further test of rcond is needed).

    The number is 0 if A is singular, or if FP32 factors do not show that A is regular.
    """
    dtype, least = problem.dtype, problem.least
    if way is GENERAL_IN_FP32:
        return _rcond_of_regular(problem, factors, request)
    if problem.ordinary and not (request.estimate or way.plan):
        least = least_rcond(factors, len(problem.rhs), problem.norm, dtype, problem.matrix.dtype)
    is_enough = is_singular or not request.estimate and least >= EPS[dtype.char]
    if is_enough:
        return 0.0 if is_singular else least, True
    exact = norms(problem.matrix)[1] if problem.is_bound else problem.norm_one
    return factors.rcond(exact), False


def _rcond_of_regular(problem, factors, request):
    """Return (rcond or a lower bound, True) if FP32 factors show that A is regular, else (0, False).

    `plain_system` uses the same test, so that `solve` and `solve_ex` give the same x.
    """
    if not fp32_factors.show_regular(factors, problem.matrix):
        return 0.0, False
    return factors.rcond(problem.norm_one) if request.estimate else EPS[problem.dtype.char], True


def _solved(problem, factors, is_singular):
    """Return (x, errors or None, steps, history) of the columns of `rhs`; None if an error is too large."""
    rhs = problem.rhs
    if problem.ordinary and not is_singular:
        return refined(problem.band or problem.matrix, rhs, factors, problem.norm, problem.dtype)
    near, of_b = _near_one(rhs, 0)
    x = ldexp(np, factors.solve(near), of_b - problem.exponent)
    return x, None, np.zeros(rhs.shape[1], int), ()


def _measured(problem, found, a, b, rcond):
    """Return (x, errors, steps, history, whether x overflows) of the answer in its dtype.

    Return None if an error misses the bound and x does not overflow.  Errors that the refinement has not
    measured are measured here.
    """
    (x, error, steps, history), dtype, paired = found, problem.dtype, problem.paired
    if paired:
        steps, error, history = steps.reshape(2, -1).max(axis=0), None, ()
    x = _in_dtype(x, dtype, paired)
    if error is not None:
        return x, error, steps, history, False
    bound, columns = stopping.target(dtype, len(a)), b.reshape(len(a), -1)
    measured = functools.partial(backward_errors, numpy_ops, a, b=columns, norm=problem.norm)
    error = measured(x)
    overflows = dtype.char in "fF" and not np.isfinite(x).all()
    if overflows and rcond < EPS[dtype.char] and len(a) <= MOST_ROWS_AGAIN:
        for order in "FC":  # the factors of A, then those of its transpose
            by_fp32 = Rounded.of(problem.matrix, order).solve(problem.rhs)
            smaller = _in_dtype(by_fp32, dtype, paired)
            of_smaller = measured(smaller)
            if np.logical_and.reduce(of_smaller <= bound):
                return smaller, of_smaller, steps, history, False
    if not (overflows or np.logical_and.reduce(error <= bound)):
        return None
    return x, error, steps, history, overflows


def _factored(way, a):
    """Return the factors of a by a `Way`, and whether a is found to be singular to working precision.

    LAPACK factors the transpose of a row-major a.  If this has a zero pivot, a is singular to working
    precision, and rounding decides whether a pivot is zero.  Then a itself is factored, as in SciPy.
    """
    factors = way.factor(a)
    if not factors.bad_pivot or way != GENERAL or a.flags.f_contiguous:
        return factors, False
    return way.factor(np.asfortranarray(a)), True


def _in_dtype(x, dtype, paired):
    """Return x in `dtype`; if `paired`, its columns are first the real parts, then the imaginary parts."""
    if paired:
        k = x.shape[1] // 2
        x = x[:, :k] + 1j * x[:, k:]
    return x.astype(dtype, copy=False)


def _norms(a, low=None):
    """Return the infinity norm and the 1-norm of a, and a lower bound of rcond or 0.

    `low` is the plan of FP32 factors, or None.  If these factors need a scaled matrix, the norms are NaN.
    """
    if low:
        few = len(a) <= SMALL
        found = _survey_of_few(a) if few else fp32_factors.survey_of_well_scaled(a)
        if found is None:
            return math.nan, math.nan, 0.0
        return found.inf, found.one, found.least_rcond(len(a))
    if len(a) > FEW_ROWS:
        return *(float(v.max()) for v in sums(a)), 0.0
    return *norms(np.abs(a) if a.dtype.kind == "c" else a), 0.0


def _survey_of_few(a):
    """As `survey_of_well_scaled`.  Lists of few numbers are faster than arrays."""
    size = np.abs(a)
    rows, columns = np.add.reduce(size, axis=1).tolist(), np.add.reduce(size, axis=0).tolist()
    if not math.isfinite(sum(rows)):
        return None
    dominance = min([2 * v - row for v, row in zip(size.diagonal().tolist(), rows, strict=True)])
    found = Survey.of(max(rows), min(rows), max(columns), min(columns), dominance)
    return None if needs_scaling(found) else found


def _near_one(v, axis):
    """Return (v 2**-e, e), where the largest entry along the axis is near 1; e is 0 if bits would be lost."""
    exponent = exponent_of(np, v, axis)
    near = ldexp(np, v, -exponent)
    lost = (ldexp(np, near, exponent) != v) & (v == v)
    exponent = np.where(lost.any(axis=axis, keepdims=True), 0, exponent)
    return ldexp(np, v, -exponent), exponent


def refined(a, b, factors, norm, dtype):
    """Return (x, errors, steps, history) for FP64 a and b if all errors meet the bound, else None.

    `a` is a matrix or a `Band`.  FP32 answers are rounded before they are measured, unless they overflow;
    then the errors are None.
    """
    bound, steps, overflows = stopping.target(dtype, len(b)), np.zeros(b.shape[1], int), False
    if type(a) is not Band and dtype.char in "dD":  # nearly always this is enough
        loop = HostLoop(a, norm, lambda r, _: factors.solve(r), bound, sized=False)
        if found := loop.refined(b, MOST_STEPS):
            x, error, steps, _ = found
            return x.reshape(b.shape), error, steps, ()
    x = factors.solve(b)
    for _ in range(MOST_STEPS + 1):
        if dtype.char in "fF":
            rounded = x.astype(LOW[x.dtype.char]).astype(x.dtype)
            overflows = not np.isfinite(rounded).all()
            x = x if overflows else rounded
        size = np.maximum.reduce(np.abs(x))
        if not is_of_ordinary_size(size, b):
            return None
        r = a.residual(x, b) if type(a) is Band else residual(a, x, b)
        error = np.maximum.reduce(np.abs(r)) / (norm * (size + (size == 0)))
        met = error <= bound
        if np.logical_and.reduce(met):
            return x, None if overflows else error, steps, ()
        x = np.where(met, x, x + factors.solve(r))
        steps += ~met
    return None


def _status_of_overflow(b):
    """Return the status of an x that is not finite: OVERFLOW, unless b is not finite either."""
    return Status.OVERFLOW if np.isfinite(b).all() else Status.NONFINITE_INPUT


def failed(status, b, dtype, seconds, tried=None):
    """Return the `Solution`, with x = NaN, after a factorization that broke down; b is a NumPy array.

    `tried` is as in `solve_directly`.
    """
    k = 1 if b.ndim == 1 else b.shape[-1]
    status = status if np.isfinite(b).all() else Status.NONFINITE_INPUT
    return Solution(
        x=np.full(b.shape, np.nan, dtype),
        status=status,
        precision="fp64",
        rungs=(tried.precision, "fp64") if tried else ("fp64",),
        iterations=np.zeros(k, int),
        backward_error=np.full(k, np.nan),
        bound=stopping.target(dtype, len(b)),
        rcond=0.0 if status is Status.SINGULAR else math.nan,
        seconds={"factor": seconds, "total": seconds},
    )
