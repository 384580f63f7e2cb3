"""Systems that do not need the ladder: empty ones, 1 x 1 matrices, and systems that LAPACK solves directly.

For up to a few hundred unknowns, a solve takes as long as a few dozen calls from Python.  So these systems
are solved with little overhead: a factorization by LAPACK in FP64, one residual, one condition estimate.
Band matrices, triangles and positive definite matrices of any size have their own LAPACK factorizations.
Systems with NaN, extreme entries, a zero pivot in a general matrix, or an error above the bound are left to
the ladder.
"""

import functools
import math
import time

import numpy as np

from tcsolve._backends.cpu.ops import numpy_ops, sums
from tcsolve._checks import require_finite, result_dtype
from tcsolve._lu.scaling import FRAME_EXPONENT, exponent_of, ldexp
from tcsolve._refine import stopping
from tcsolve._solution import HistoryPoint, Solution, Status, of_slices
from tcsolve._solve.backward_error import backward_errors
from tcsolve._solve.lapack_factors import Banded, Cholesky, General, Triangular
from tcsolve._solve.long_double_residual import SMALL, residual
from tcsolve._solve.structures import detected

__all__ = [
    "factorization_for",
    "failed",
    "solve_directly",
    "solve_empty",
    "solve_one_element",
]

# Up to this n, LAPACK in FP64 is the fastest rung on a CPU.
LARGEST = 512
# Largest number of refinement steps with the FP64 factors of a structure; more steps gain nothing.
MOST_STEPS = 2
EPS = {char: float(np.finfo(char).eps) for char in "fdFD"}
TOP = 2.0**FRAME_EXPONENT
FAILURES = {
    Banded: Status.SINGULAR,
    Triangular: Status.SINGULAR,
    Cholesky: Status.NOT_POSITIVE_DEFINITE,
}


def factorization_for(a, structure):
    """Return a function that factors the NumPy matrix a (n, n) by LAPACK, or None for the ladder.

    Without an asserted structure, or with 'banded', the bands and triangles of a are detected, as in SciPy.
    """
    if structure in (None, "banded"):
        structure = detected(a)
    if structure in ("diagonal", "tridiagonal", "banded"):
        return Banded.of
    if structure == "positive definite":
        return Cholesky.of
    if structure in ("upper triangular", "lower triangular"):
        return functools.partial(Triangular.of, lower=structure == "lower triangular")
    return General.of if len(a) <= LARGEST else None


def solve_directly(a, b, factorization, dtype, start):
    """Solve A x = b by LAPACK in FP64, or return None if the system is not ordinary.

    Parameters
    ----------
    a : ndarray, shape (n, n)
        The matrix that the structure describes.
    b : ndarray, shape (n,) or (n, k)
        The right-hand sides.
    factorization : callable
        The result of `factorization_for`.
    dtype : dtype
        The dtype of x.
    start : float
        `time.perf_counter` at the start of the solve.
    """
    n = len(a)
    columns = b.reshape(n, -1)
    wide = np.dtype(np.complex128 if a.dtype.kind == "c" else np.float64)
    matrix = a.astype(wide, copy=False)
    # If A is real and b complex, the real and the imaginary parts of b are separate columns.
    paired = b.dtype.kind == "c" and wide.kind != "c"
    rhs = np.concatenate([columns.real, columns.imag], axis=1) if paired else columns
    rhs = rhs.astype(wide, copy=False)
    norm, norm_one = _norms(matrix)
    if not (norm < math.inf and norm_one < math.inf and norm > 0):
        return None
    ordinary = 1 / TOP < norm < TOP and norm_one < TOP
    exponent = 0
    if not ordinary:
        matrix, exponent = _near_one(matrix, (0, 1))
        _, norm_one = _norms(matrix)
    prepared = time.perf_counter()
    factors = factorization(matrix)
    factored = time.perf_counter()
    if factors.bad_pivot:
        failure = FAILURES.get(type(factors))
        return failure and failed(failure, b, dtype, factored - start)
    most = MOST_STEPS if type(factors) in FAILURES else n <= SMALL
    if ordinary:
        found = _refined(matrix, rhs, factors, norm, dtype, most)
        if found is None:
            return None
        x, error, steps = found
    else:
        near, of_b = _near_one(rhs, 0)
        x, steps = ldexp(np, factors.solve(near), of_b - exponent), np.zeros(rhs.shape[1], int)
        error = None
    if paired:
        k = columns.shape[1]
        x, steps = x[:, :k] + 1j * x[:, k:], steps.reshape(2, k).max(axis=0)
    if error is None or paired or x.dtype != dtype:
        x = x.astype(dtype, copy=False)
        error = backward_errors(numpy_ops, a, x, columns, norm)
    bound = stopping.target(dtype, n)
    overflows = dtype.char in "fF" and not np.isfinite(x).all()
    if not ((error <= bound).all() or overflows):
        return None
    solved = time.perf_counter()
    rcond = factors.rcond(norm_one)
    done = time.perf_counter()
    rcond = min(rcond, 1.0) if math.isfinite(rcond) else 0.0
    status = Status.CONVERGED if rcond >= EPS[dtype.char] else Status.ILL_CONDITIONED
    return Solution(
        x=np.ascontiguousarray(x.reshape(b.shape)),
        status=Status.OVERFLOW if overflows else status,
        precision="fp64",
        rungs=("fp64",),
        iterations=steps,
        backward_error=error,
        bound=bound,
        rcond=rcond,
        history=(HistoryPoint("fp64", steps, error, False),),
        seconds={
            "scale": prepared - start,
            "factor": factored - prepared,
            "refine": solved - factored,
            "rcond": done - solved,
            "total": done - start,
        },
        bytes_planned=matrix.nbytes + 2 * rhs.nbytes,
    )


def _norms(a):
    """Return the infinity norm and the 1-norm of a."""
    rows, cols = sums(a)
    return float(rows.max()), float(cols.max())


def _near_one(v, axis):
    """Return (v 2**-e, e), where the largest entry along the axis is near 1; e is 0 if bits would be lost."""
    exponent = exponent_of(np, v, axis)
    near = ldexp(np, v, -exponent)
    lost = (ldexp(np, near, exponent) != v) & (v == v)
    exponent = np.where(lost.any(axis=axis, keepdims=True), 0, exponent)
    return ldexp(np, v, -exponent), exponent


def _refined(a, b, factors, norm, dtype, most):
    """Return (x, errors, steps) for FP64 a and b if all errors meet the bound, else None."""
    n = len(a)
    bound, steps = stopping.before_rounding(dtype, n), np.zeros(b.shape[1], int)
    x = factors.solve(b)
    for step in range(most + 1):
        size = np.abs(x).max(axis=0)
        if not (size < TOP).all():  # also False if b holds NaN or Inf
            return None
        if not ((size > 1 / TOP) | ~b.any(axis=0)).all():  # products with x may underflow
            return None
        r = residual(a, x, b)
        rest = np.abs(r).max(axis=0)
        # For x = 0 the residual is b, so the bound is met only if b = 0.
        met = rest <= bound * norm * size
        if met.all():
            return x, rest / (norm * np.where(size > 0, size, 1.0)), steps
        if step == most:
            return None
        x = np.where(met, x, x + factors.solve(r))
        steps += ~met


def failed(status, b, dtype, seconds):
    """Return the `Solution`, with x = NaN, after a factorization that broke down; b is a NumPy array."""
    k = 1 if b.ndim == 1 else b.shape[-1]
    status = status if np.isfinite(b).all() else Status.NONFINITE_INPUT
    return Solution(
        x=np.full(b.shape, np.nan, dtype),
        status=status,
        precision="fp64",
        rungs=("fp64",),
        iterations=np.zeros(k, int),
        backward_error=np.full(k, np.nan),
        bound=stopping.target(dtype, len(b)),
        rcond=0.0 if status is Status.SINGULAR else math.nan,
        seconds={"factor": seconds, "total": seconds},
    )


def solve_one_element(ops, a, b, check_finite, precision="fp64"):
    """Divide b by the one element of a; SciPy allows b of any shape for such a matrix.

    The LU of a 1 x 1 matrix has no trailing update, so it is the same in every precision.
    """
    start = time.perf_counter()
    dtype = result_dtype(a, b)
    # Divide in FP64: it has twice the digits of FP32, and CuPy flushes subnormal FP32 numbers to zero.
    wide = np.result_type(dtype, np.float64)
    pivot, b = ops.converted(a.reshape(()), wide), ops.converted(b, wide)
    a_finite, b_finite = bool(ops.xp.isfinite(pivot)), bool(ops.xp.isfinite(b).all())
    if check_finite:
        require_finite(a_finite, "a")
        require_finite(b_finite, "b")
    zero = bool(pivot == 0)
    singular = zero and b.size > 0  # an empty b needs no answer
    with np.errstate(all="ignore"):
        x, error = _quotient(ops, b, ops.xp.nan if singular else pivot, dtype)
    shape = _shape_of_quotient(a, b)
    if not (a_finite and b_finite):
        status = Status.NONFINITE_INPUT
    elif singular:
        status = Status.SINGULAR
    else:
        status = _status_of_quotient(ops.xp, x, error, dtype)
    of_columns = _shape_of_columns(shape, b.ndim < 2)
    if math.prod(of_columns) != error.size:  # b has more rows than a, so each entry is a system
        of_columns = (error.size,)
    error = ops.host(error)[0].astype(np.float64)
    return Solution(
        x=x.reshape(shape),
        status=status,
        precision=precision,
        rungs=(precision,),
        iterations=np.zeros(of_columns, int),
        backward_error=error.reshape(of_columns),
        bound=stopping.target(dtype, 1),
        rcond=1.0 if a_finite and not zero else 0.0,
        seconds={"total": time.perf_counter() - start},
        device=ops.device,
    )


def _quotient(ops, b, pivot, dtype):
    """Return b / pivot in `dtype`, and its backward errors; extreme numbers are scaled to near 1 first."""
    xp = ops.xp
    pivot = xp.asarray(pivot)
    of_b, of_pivot = exponent_of(xp, b), exponent_of(xp, pivot)
    shift = of_b - of_pivot
    far = bool((xp.abs(of_b) > FRAME_EXPONENT).any() | (xp.abs(of_pivot) > FRAME_EXPONENT))
    if far:
        b, pivot = ldexp(xp, b, -of_b), ldexp(xp, pivot, -of_pivot)
    x = b / pivot
    if b.dtype.kind == "c":  # one refinement step: complex division on the device loses a few bits
        mended = x + (b - pivot * x) / pivot
        x = xp.where(xp.isfinite(mended), mended, x)
    x = ops.converted(ldexp(xp, x, shift) if far else x, dtype)
    returned = ops.converted(x, b.dtype)
    returned = ldexp(xp, returned, -shift) if far else returned
    rest = xp.abs(b - pivot * returned)
    error = rest / (xp.abs(pivot) * xp.abs(returned))
    return x, xp.where(rest == 0, 0.0, error)


def _shape_of_quotient(a, b):
    """Return the shape of SciPy's x: a vector b broadcasts with the rows of a, a stack b with the stack a."""
    if b.ndim < 2:
        return np.broadcast_shapes(b.shape, a.shape[:-1])
    return np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + b.shape[-2:]


def _shape_of_columns(shape, vector):
    """Return the shape of arrays with one entry per right-hand side, for x of shape `shape`."""
    return (*shape[:-1], 1) if vector else (*shape[:-2], shape[-1])


def _status_of_quotient(xp, x, error, dtype):
    faint = (xp.abs(x) < np.finfo(dtype).tiny) & (error > stopping.target(dtype, 1))
    if not bool(xp.isfinite(x).all()):
        return Status.OVERFLOW
    return Status.UNDERFLOW if bool(faint.any()) else Status.CONVERGED


def solve_empty(ops, shape, dtype, vector):
    """Return the `Solution` of a system without equations or without right-hand sides, as in SciPy."""
    of_columns = _shape_of_columns(shape, vector)
    return Solution(
        x=ops.xp.empty(shape, dtype=dtype),
        precision="fp64",
        rungs=(),
        iterations=np.zeros(of_columns, int),
        backward_error=np.zeros(of_columns),
        bound=0.0,
        seconds={"total": 0.0},
        device=ops.device,
        **of_slices(np.zeros(of_columns[:-1], int), np.full(of_columns[:-1], np.nan)),
    )
