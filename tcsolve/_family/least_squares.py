"""`lstsq` and `lstsq_ex`: least squares by QR factors in FP32, refined and verified."""

import functools
import time
from dataclasses import dataclass
from types import GenericAlias
from typing import Any

import numpy as np
import scipy.linalg

from tcsolve._arrays import is_cupy
from tcsolve._backends.select import numpy_ops, ops_for
from tcsolve._checks import check_array, require_finite, result_dtype
from tcsolve._errors import InputError
from tcsolve._family.augmented import QRFactors, refine_augmented
from tcsolve._family.device_memory import guards_memory
from tcsolve._family.stacks import RHS, over_stacks
from tcsolve._refine import stopping

__all__ = ["LeastSquares", "lstsq", "lstsq_ex"]

# SciPy's own function; `installed` may rebind this name in scipy.linalg.
_lstsq = scipy.linalg.lstsq
# From this m n^2 on, QR in FP32 and the refinement are faster than gelsy on the host.
WORTH = 2e7
# FP32 factors solve problems with an rcond down to about this.
LEAST = 2.0**-22
# If the largest entry is between 1 / TOP and TOP, norms in FP64 neither overflow nor underflow.
TOP = 2.0**300
GELSD = "gelsd"
DRIVERS = ("gelsd", "gelsy", "gelss")


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """The answer of `lstsq_ex`, and how it was computed.

    Attributes
    ----------
    x : array, shape (n,) or (n, k)
        The solution; NumPy or CuPy, as the arguments.
    residues : array, shape (k,) or ()
        The squares of the 2-norms of b - A x.  Empty if m <= n, if A does not have full rank, or if SciPy
        solves with 'gelsy'.
    rank : int
        The rank of A.
    s : array, shape (min(m, n),), or None
        The singular values, if the method computes them.
    method : str
        'qr fp32' for FP32 factors with refinement; otherwise the name of the driver of SciPy, or 'cupy'.
    reason : str
        Why no FP32 factors were used, in words; '' if they were.
    verified : bool
        Whether every backward error meets the bound.  False for the other methods, which measure none.
    backward_error : ndarray of float64, shape (k,), or None
        For 'qr fp32': x is the exact solution of a problem whose A and b differ from yours by about this
        much, relative to their norms.  The refinement computes x and also an approximation r to ``b - A x``.
        The error is computed in FP64 from both: from ``b - r - A x`` and from ``A^H r``.  None for the other
        methods.
    bound : float
        Largest backward error of a verified answer: the unit roundoff times sqrt(m).  An m below 4 counts as
        4, and for complex problems an m below 8 as 8.  0 for the other methods.
    iterations : int
        Number of corrections; each one corrects all columns.
    rcond : float
        Estimate of the reciprocal 1-norm condition number of R in A = Q R; NaN for the other methods.
    seconds : float
        Time of the call.
    device : str
        'cpu' or 'cuda'.

    Examples
    --------
    >>> import numpy as np
    >>> from tcsolve import lstsq_ex
    >>> found = lstsq_ex(np.array([[1.0, 0], [1, 1], [1, 2]]), [1.0, 3, 5])
    >>> found.x.round(12).tolist(), found.rank, found.reason
    ([1.0, 2.0], 2, 'the problem is small')
    """

    x: Any
    residues: Any
    rank: int
    s: Any
    method: str
    reason: str = ""
    verified: bool = False
    backward_error: Any = None
    bound: float = 0.0
    iterations: int = 0
    rcond: float = float("nan")
    seconds: float = 0.0
    device: str = "cpu"

    # Allows `LeastSquares[ndarray]` in annotations; only the type stubs of the package use the type of x.
    __class_getitem__ = classmethod(GenericAlias)


@guards_memory
def lstsq(
    a,
    b,
    cond=None,
    overwrite_a=False,
    overwrite_b=False,
    check_finite=True,
    lapack_driver=None,
):
    """Return the x that minimizes ||b - A x||, and the rank of A.

    This function replaces `scipy.linalg.lstsq`.

    Parameters
    ----------
    a : array_like, shape (..., m, n)
        The matrix, or a stack of matrices; NumPy or CuPy.
    b : array_like, shape (m,) or (..., m, k)
        The right-hand sides.
    cond : float, optional
        Singular values below `cond` times the largest one count as zero.  By default machine epsilon, or, if
        CuPy solves, max(m, n) times that.
    overwrite_a, overwrite_b : bool
        Allow a and b to be overwritten.
    check_finite : bool
        Raise a ValueError if a or b holds NaN or Inf.
    lapack_driver : {'gelsd', 'gelsy', 'gelss'}, optional
        'gelsy' computes no singular values.  Then a large FP64 problem with m >= n is solved by QR factors in
        FP32 and refinement, and x is verified, unless A is too ill-conditioned for these factors; see
        `lstsq_ex`.  'gelsd' and 'gelss' are SciPy's own.  The default is 'gelsd', unless a program sets
        `default_lapack_driver` of this function, or of SciPy's.

    Returns
    -------
    x : array, shape (..., n) or (..., n, k)
    residues : array, shape (..., k) or (...)
        As in SciPy: empty for 'gelsy', if m <= n, or if A does not have full rank.
    rank : int, or array of int, shape (...)
    s : array, shape (..., min(m, n)), or None
        The singular values; for 'gelsy' None (for a stack an array of None), unless CuPy solves.

    Raises
    ------
    LinAlgError
        The singular values do not converge.
    InputError
        The driver is unknown.
    ValueError
        The shapes do not fit, a stack is empty, or a or b holds NaN or Inf.
    DeviceError, DeviceMemoryError
        As in `solve`, for CuPy arrays.

    See Also
    --------
    lstsq_ex : the same, with a report.

    Notes
    -----
    With 'gelsy', CuPy arrays in FP64 with m >= n are solved by QR factors in FP32 and refinement.  If this
    fails, and in all other cases, `cupy.linalg.lstsq` solves them.

    Examples
    --------
    >>> import numpy as np
    >>> from tcsolve import lstsq
    >>> a = np.array([[1.0, 0], [1, 1], [1, 2]])
    >>> x, _, rank, _ = lstsq(a, [1.0, 3, 5], lapack_driver="gelsy")
    >>> x.round(12).tolist(), int(rank)
    ([1.0, 2.0], 2)
    """
    driver = lapack_driver or _default_driver()
    if driver not in DRIVERS:
        raise InputError(f'LAPACK driver "{driver}" is not found; use one of {", ".join(DRIVERS)}')
    how = {"cond": cond, "driver": driver, "check_finite": check_finite}
    if any(np.ndim(x) > 2 for x in (a, b)):
        overwrite_a = overwrite_b = False
    how |= {"overwrite_a": overwrite_a, "overwrite_b": overwrite_b}
    return over_stacks(functools.partial(_solve_one, **how), (a, 2), (b, RHS), name="lstsq")


lstsq.default_lapack_driver = GELSD


def _default_driver():
    """Return the driver that a program has set for this function, or for SciPy's."""
    ours, theirs = (f.default_lapack_driver for f in (lstsq, scipy.linalg.lstsq))
    return theirs if ours == GELSD else ours


def _solve_one(a, b, **how):
    found = _solved(a, b, how)
    residues = found.residues
    if how["driver"] == "gelsy" and found.method != "gelsy":  # as SciPy does
        residues = (ops_for(found.x) if is_cupy(found.x) else numpy_ops).xp.empty(0, found.x.dtype)
    return found.x, residues, found.rank, found.s


@guards_memory
def lstsq_ex(a, b, cond=None, check_finite=True):
    """Return the `LeastSquares` of the x that minimizes ||b - A x||, verified if FP32 factors were used.

    Parameters
    ----------
    a : array_like, shape (m, n)
        The matrix; NumPy or CuPy.
    b : array_like, shape (m,) or (m, k)
        The right-hand sides.
    cond : float, optional
        Singular values below `cond` times the largest one count as zero.  By default machine epsilon, or, if
        CuPy solves, max(m, n) times that.
    check_finite : bool
        Raise a ValueError if a or b holds NaN or Inf.

    Returns
    -------
    LeastSquares
        x, its backward error, and how it was computed.  The singular values are None, unless the routine that
        solves computes them.

    Raises
    ------
    InputError
        The shapes do not fit.
    ValueError
        a or b holds NaN or Inf.
    DeviceError, DeviceMemoryError
        As in `solve`, for CuPy arrays.

    Notes
    -----
    FP32 factors correct r and x in ``r + A x = b, A^H r = 0``, whose residuals are computed in FP64 [1]_.
    If m < n, if the problem is small, if the answer is in FP32, or if A is too ill-conditioned for FP32
    factors, SciPy's 'gelsy' or CuPy's `lstsq` solves the problem, and `reason` says so.

    References
    ----------
    .. [1] E. Carson, N. J. Higham, S. Pranesh, SIAM J. Sci. Comput. 42 (2020), A4063-A4083.

    Examples
    --------
    >>> import numpy as np
    >>> from tcsolve import lstsq_ex
    >>> rng = np.random.default_rng(0)
    >>> found = lstsq_ex(rng.standard_normal((1000, 200)), np.ones(1000))
    >>> found.method, found.verified, found.rank
    ('qr fp32', True, 200)
    """
    how = {"cond": cond, "driver": "gelsy", "check_finite": check_finite}
    a, b = check_array(a, "a"), check_array(b, "b")
    if a.ndim != 2 or b.ndim not in (1, 2) or a.shape[0] != b.shape[0]:
        raise InputError(
            f"lstsq_ex: a has shape {a.shape} and b has shape {b.shape}; (m, n) and (m,) or (m, k) are needed"
        )
    return _solved(a, b, how | {"overwrite_a": False, "overwrite_b": False})


def _solved(a, b, how):
    """Return the `LeastSquares` by FP32 factors; where they cannot be used, by SciPy or CuPy."""
    start = time.perf_counter()
    reason = _why_not(a, b, how["driver"])
    if not reason:
        ops = ops_for(a, b)
        with np.errstate(all="ignore"):
            found = _by_factors(ops, a, b, start=start, **how)
        if isinstance(found, LeastSquares):
            return found
        reason = found
    by = _by_cupy if is_cupy(a) else _by_scipy
    return by(a, b, how, reason, start)


def _why_not(a, b, driver):
    """Return why FP32 factors are not used for these arrays, or ''."""
    if driver != "gelsy":
        return f"{driver} computes singular values"
    if not (is_cupy(a) and is_cupy(b) or type(a) is type(b) is np.ndarray):
        a, b = np.asarray(a), np.asarray(b)
    if not (a.ndim == 2 and b.ndim in (1, 2) and a.shape[0] == b.shape[0]):
        return "the shapes do not fit"  # SciPy or CuPy raises the error
    m, n = a.shape
    if m < n:
        return "m < n"
    if not b.size or not n:
        return "there is nothing to solve"
    kinds = a.dtype.kind in "biufc" and b.dtype.kind in "biufc"
    if not kinds or result_dtype(a, b).char in "fF":
        return "the answer is in FP32"
    if not is_cupy(a) and m * n * n < WORTH:
        return "the problem is small"
    return ""


def _by_factors(ops, a, b, *, start, cond, check_finite, **_):
    """Return the `LeastSquares` by FP32 factors, or the reason why they cannot be used."""
    a, b = (ops.xp.asarray(v) for v in (a, b))
    dtype = result_dtype(a, b)
    if check_finite:
        for name, v in (("a", a), ("b", b)):
            require_finite(bool(ops.xp.isfinite(v).all()), name)
    a, columns = ops.converted(a, dtype), ops.converted(b, dtype).reshape(len(b), -1)
    m, n = a.shape
    (largest,) = ops.host(ops.xp.abs(a).max())
    if not 1 / TOP < largest < TOP or not bool((ops.xp.abs(columns) < TOP).all()):
        return "entries are not finite, or too large or small for norms in FP64"
    factors = QRFactors.of(ops, a)
    scaled, rcond = factors.rcond()
    least = 10 * (np.finfo(dtype).eps if cond is None else cond)
    if not (scaled > LEAST and rcond > least):
        return f"rcond is about {min(scaled, rcond):.1e}, too small for FP32 factors"
    bound = stopping.target(dtype, m)
    x, _, error, steps = refine_augmented(factors, a, columns, bound)
    if not (error <= bound).all():
        return "refinement with FP32 factors stalled"
    rest = ops.xp.abs(columns - ops.product(a, x)) ** 2
    residues = rest.sum(axis=0) if m > n else rest[:0, 0]
    return LeastSquares(
        x=ops.xp.ascontiguousarray(x).reshape((n, *b.shape[1:])),
        residues=residues[0] if b.ndim == 1 and m > n else residues,
        rank=n,
        s=None,
        method="qr fp32",
        verified=True,
        backward_error=error,
        bound=bound,
        iterations=steps,
        rcond=min(rcond, 1.0),
        seconds=time.perf_counter() - start,
        device=ops.device,
    )


def _by_scipy(a, b, how, reason, start):
    names = ("cond", "overwrite_a", "overwrite_b", "check_finite")
    options = {name: how[name] for name in names}
    x, residues, rank, s = _lstsq(a, b, lapack_driver=how["driver"], **options)
    seconds = time.perf_counter() - start
    residues = np.asarray(residues) if how["driver"] == "gelsy" else residues
    return LeastSquares(x, residues, rank, s, how["driver"], reason, seconds=seconds)


def _by_cupy(a, b, how, reason, start):
    ops = ops_for(a, b)
    if how["check_finite"]:
        for name, v in (("a", a), ("b", b)):
            require_finite(bool(ops.xp.isfinite(v).all()), name)
    x, residues, rank, s = _cupy_lstsq(a, b, how["cond"])
    seconds = time.perf_counter() - start
    how = {"seconds": seconds, "device": ops.device}
    return LeastSquares(x, residues, int(rank), s, "cupy", reason, **how)


def _cupy_lstsq(a, b, cond):
    from cupy.linalg import lstsq as on_device

    return on_device(a, b, rcond=cond)
