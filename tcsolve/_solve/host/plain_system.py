"""One small ordinary system on the host, solved and verified with few calls from Python, without a report.

For a few dozen unknowns a solve takes less time than the checks of all arguments and a report; for a few
hundred these still take a tenth of the time.  So systems that need none of these are solved first: two NumPy
arrays of one dtype, a matrix that agrees with `assume_a`, and numbers that are not extreme.  If x is not
verified or the matrix is not regular, the general code solves the system.
"""

import functools

import numpy as np

from tcsolve._backends.cpu.blas import infinity_norm, largest, norms
from tcsolve._backends.cpu.ops import numpy_ops
from tcsolve._refine import stopping
from tcsolve._solve.choice.device_choice import LEAST_N
from tcsolve._solve.choice.placement import faster_ops
from tcsolve._solve.host import fp32_factors
from tcsolve._solve.host.direct import refined
from tcsolve._solve.host.gains import vectors
from tcsolve._solve.host.lapack_factors import Band, Banded, Cholesky, General, Rounded
from tcsolve._solve.host.ways import LARGEST_DIRECT, is_single, way_in_fp64
from tcsolve._solve.ladder.short_refinement import HostLoop, is_moderate
from tcsolve._solve.problem.structures import is_as_read
from tcsolve._solve.problem.zero_pivots import ROUNDING

__all__ = ["plain_system"]

# Larger systems gain little, and `way_in_fp64` may have no way for them.
LARGEST = LARGEST_DIRECT
# Largest number of refinement steps with FP64 factors; more steps gain nothing.
MOST_STEPS = 2
GENERAL, DEFINITE = ("gen", "general"), ("pos", "positive definite")
# For these structures, `is_as_read` tests whether a has the structure.  If it has not, the general code
# solves the system.
SPARSE = ("diagonal", "tridiagonal", "upper triangular", "lower triangular")
WIDE = {x: np.dtype(np.complex128 if x in "FD" else np.float64) for x in "fdFD"}


def plain_system(a, b, assume_a, device):
    """Return x with A x = b if the system is plain, else None.

    Parameters
    ----------
    a : ndarray
    b : object
    assume_a : str or None
        As in `solve`.
    device : {'auto', 'cpu'}
    """
    if type(b) is not np.ndarray or not _fit(a, b):
        return None
    with np.errstate(all="ignore"):
        factor = _factor_for(a, assume_a)
        if factor is None:
            return None
        may_move = len(a) >= LEAST_N and device == "auto" and factor == General.of
        if may_move and _is_faster_there(a, b):
            return None
        wide = WIDE[a.dtype.char]
        wide_a, wide_b = a.astype(wide, copy=False), b.astype(wide, copy=False)
        if factor == General.of and is_single(len(a), a.dtype):
            return _solved_in_single(a, wide_a, wide_b)
        return _solved(wide_a, wide_b, factor, a.dtype)


def _factor_for(a, assume_a):
    """Return the function that factors a, or None if the general code must look at a."""
    if assume_a in GENERAL or assume_a is None and _has_corners(a):
        return General.of
    if assume_a in DEFINITE:
        return Cholesky.of if _is_hermitian(a) else None
    if not (assume_a in (None, "banded") or assume_a in SPARSE and is_as_read(a, assume_a)):
        return None
    way = way_in_fp64(a, assume_a)
    if way.bands:
        return functools.partial(_factored_band, way.bands)
    return way.factor


def _is_faster_there(a, b):
    """Tell whether a GPU is predicted to solve the system faster."""
    columns = 1 if b.ndim == 1 else b.shape[1]
    return faster_ops(numpy_ops, a, columns, "auto") is not numpy_ops


def _factored_band(bands, a):
    return Banded.of(Band.of(a, *bands))


def _fit(a, b):
    """Tell whether a small matrix and right-hand sides fit, and LAPACK can read them."""
    dtype, flags, n = a.dtype, a.flags, a.shape[0]
    is_known = b.dtype is dtype and dtype.isnative and dtype.char in WIDE
    if not is_known or not (flags.aligned and b.flags.aligned):
        return False
    if not (1 < n <= LARGEST and n == a.shape[1] and 0 < b.ndim < 3 and n == b.shape[0] and b.size):
        return False
    return flags.c_contiguous or flags.f_contiguous


def _is_hermitian(a):
    return (a == (a.T.conj() if a.dtype.kind == "c" else a.T)).all()


def _has_corners(a):
    """Tell whether two corners of a are not zero, so that a is neither triangular nor banded."""
    return a[0, -1] != 0 and a[-1, 0] != 0


def _solved(a, b, factor, dtype):
    """Return x in `dtype` for a and b in FP64, or None."""
    if factor == General.of and dtype is a.dtype and fp32_factors.suit(a, b.size // len(b)):
        x = _solved_in_fp32(a, b)
        if x is not None:
            return x
    norm = infinity_norm(a)
    # The 1-norm is at most len(a) * norm.  If a norm is extreme, `solve_directly` scales the matrix.
    if not (is_moderate(norm) and is_moderate(len(a) * norm)):
        return None
    factors = factor(a)
    if factors.bad_pivot or not _is_regular(a, factors, norm, dtype):
        return None
    bound = stopping.target(dtype, len(a))
    loop = HostLoop(a, norm, lambda r, _: factors.solve(r), bound, sized=False)
    if dtype is a.dtype:
        x = loop.answer(b, MOST_STEPS)
    else:  # nearly all of the error comes from rounding x to FP32, so a correction does not help
        columns = b.reshape(-1) if b.size == len(b) else np.asfortranarray(b)
        x = factors.solve(columns).astype(dtype)
        x = x if loop.meets(x.astype(a.dtype), columns) else None
    return None if x is None else np.ascontiguousarray(x.reshape(b.shape))


def _solved_in_fp32(a, b):
    """Return x by FP32 factors and refinement, or None; the arithmetic is that of `direct`."""
    survey = fp32_factors.survey_of_well_scaled(a)
    factors = survey and Rounded.of(a)
    if not factors or factors.bad_pivot or not fp32_factors.show_regular(factors, a):
        return None
    bound = stopping.target(a.dtype, len(a))
    loop = fp32_factors.short_loop(factors, a, survey.inf, b, bound)
    x = loop.answer(b, fp32_factors.MOST_CORRECTIONS)
    return None if x is None else np.ascontiguousarray(x.reshape(b.shape))


def _solved_in_single(a, wide_a, wide_b):
    """Return x in FP32 by FP32 factors, or None; the arithmetic is that of `direct`."""
    norm, norm_one = norms(wide_a)
    if not (is_moderate(norm) and is_moderate(len(a) * norm)):
        return None
    factors = Rounded(General.of(a), a.dtype)
    if factors.bad_pivot or not fp32_factors.suffice(factors, factors.rcond(norm_one), norm):
        return None
    rows = wide_b.reshape(len(a), -1)
    x = factors.solve(rows).reshape(wide_b.shape).astype(a.dtype, order="C")
    loop = HostLoop(wide_a, norm, None, stopping.target(a.dtype, len(a)))
    columns = np.asfortranarray if wide_b.size > len(a) else np.ravel
    if loop.meets(columns(x.astype(wide_a.dtype)), columns(wide_b)):
        return x
    found = refined(wide_a, rows, factors, norm, a.dtype)  # a correction is needed
    if found is None or found[1] is None:  # x misses the bound, or overflows
        return None
    return np.ascontiguousarray(found[0].reshape(wide_b.shape), a.dtype)


def _is_regular(a, factors, norm, dtype):
    """Tell whether rcond is above epsilon, by random vectors, or by an estimate if these leave it open.

    If there is a zero on the diagonal, and the estimate is so small that rounding may be the cause, the
    general code has to look at A.
    """
    g, limit = vectors(len(a), dtype.char)
    gain = norm * largest(factors.solve(g.astype(a.dtype, copy=False)))
    if gain < limit:
        return True
    rcond = factors.rcond(norms(a)[1])
    return rcond >= np.finfo(dtype).eps and (rcond >= ROUNDING * len(a) or a.diagonal().all())
