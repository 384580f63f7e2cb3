"""Backward errors of many systems, and estimates of rcond by random vectors, measured together."""

from typing import NamedTuple

import numpy as np

from tcsolve._solve.vendor.system import (
    ALL_READ,
    CONVERGED,
    REDO,
    SEEN,
    TRIANGULAR,
    contradicting,
    some_of,
    tolerance,
)
from tcsolve._solve.verify.backward_error import SAFE, backward_errors

__all__ = [
    "AT_ONCE",
    "MARGIN",
    "MEASURED",
    "MEASURED_AT_ONCE",
    "all_ordinary",
    "complex_errors",
    "doubtful",
    "errors_of",
    "errors_on",
    "is_large",
    "limits",
    "look_at",
    "measure",
    "measure_again",
    "ordinary",
    "rconds_alone",
    "rows_of",
    "safe_errors",
]

# Number of rows of the result of `vendor.measure`, besides two for each right-hand side.
MEASURED = 4
# Up to this n, a single system with many right-hand sides is measured without products.
MEASURED_AT_ONCE = 192
# Up to this n, a warp measures a system.
AT_ONCE = 32
# For more than AT_ONCE unknowns, one launch on the whole device measures all systems of a stack, or a single
# system.  A single system with more than MEASURED_AT_ONCE unknowns may have at most `vendor.MEASURED_COLUMNS`
# right-hand sides, and one with more than FEW_ROWS unknowns at most FEW.  For more right-hand sides, products
# are faster.
FEW, FEW_ROWS = 4, 1536
# By kind: the triangle outside of which A is zero.
TRIANGLES = {"upper triangular": "upper", "lower triangular": "lower"}
# See `look_at`.
MARGIN = 100


def measure(ops, system, y, info, board):
    """Return (system, x), and fill `board` with the norms that verify x (m, n, k), which has its final dtype.

    The system has `ax` or `residuals` if these were computed.

    Parameters
    ----------
    ops : Ops
    system : System
    y : array, shape (m, k + c, n)
        The solutions for the right-hand sides and for c random vectors, in FP64 or complex128.
    info : array of int32, shape (m,), or None
        The info of the factorizations.
    board : array, shape (SEEN + 4 + 2 k, m)
        The first SEEN rows are those of `vendor.read_as`.  If A was not read before, they are zeros, and this
        function may fill them.  The other rows are zeros before the call.
    """
    a, b, (m, n, k) = system.a, system.b, system.b.shape
    if is_large(ops, b):
        # A correction starts from the residual.  The residual is kept only for a single system that is not
        # triangular: triangles rarely need a correction, and few systems of a stack do.
        keeps = system.alone and system.kind not in TRIANGULAR
        r = ops.xp.empty((1, k, n), y.dtype) if keeps else None
        x = _measure_large(ops, system, y, info, board, r)
        return system._replace(residuals=r), x
    x, found = _as_answer(ops, y[:, :k], b.dtype), board[SEEN:]
    if m > 1 or n <= MEASURED_AT_ONCE:
        ops.vendor.measure(a, x, b, y[:, k:], info, found)
    else:  # products with a large matrix use the whole device
        rows = ops.row_stats(a[0]).total
        is_hermitian = system.kind == "positive definite"
        columns = rows if is_hermitian else ops.row_stats(a[0].T).total
        wide = ops.converted(x[0], np.result_type(x.dtype, np.float64))
        ax = ops.product(a[0], wide, triangle=TRIANGLES.get(system.kind))
        ops.vendor.measure(a, x, b, y[:, k:], info, found, known=(rows, columns, ax))
        system = system._replace(ax=ax)
    return system, x


def measure_again(ops, system, y, residuals=None):
    """Return (x, board) for other answers, the rows of y (m, k, n), in FP64 or complex128.

    `system` may have a band only if `measure_large` measures it.  Otherwise its matrices have all entries
    that the structure describes.  `residuals`, an array like y, receives b - A x.  The rows of the board are
    those of `measure`, but those of the random vectors and of the factors stay zero.
    """
    a, b, (m, _, k) = system.a, system.b, system.b.shape
    board = ops.xp.zeros((SEEN + MEASURED + 2 * k, m))
    if is_large(ops, b):
        return _measure_large(ops, system, y, None, board, residuals), board
    x = _as_answer(ops, y, b.dtype)
    ops.vendor.measure(a, x, b, y[:, :0], None, board[SEEN:], residuals=residuals)
    return x, board


def _measure_large(ops, system, y, info, board, residuals):
    band, is_hermitian = system.band or ALL_READ, system.kind == "positive definite"
    how = {"residuals": residuals, "hermitian": is_hermitian}
    return ops.vendor.measure_large(system.a, band, y, system.b, info, board, **how)


def is_large(ops, b):
    """Tell whether `vendor.measure_large` measures systems with right-hand sides b (m, n, k)."""
    (m, n, k), most = b.shape, ops.vendor.MEASURED_COLUMNS
    if n <= AT_ONCE or not most:
        return False
    return m > 1 or n <= MEASURED_AT_ONCE or k <= (min(most, FEW) if n > FEW_ROWS else most)


def rows_of(ops, x):
    """Return x (m, n, k) as rows (m, k, n), in FP64 or complex128."""
    return ops.xp.swapaxes(ops.converted(x, np.result_type(x.dtype, np.float64)), 1, 2)


def _as_answer(ops, y, dtype):
    """Return the rows y (m, k, n) as x (m, n, k) in the dtype of x."""
    x = ops.xp.swapaxes(y, 1, 2).copy()  # a view would keep the memory of all of y
    with np.errstate(over="ignore", under="ignore"):
        return ops.converted(x, dtype)


class _Look(NamedTuple):
    """The conclusions from the measured norms, for each matrix."""

    codes: np.ndarray  # CONVERGED, REDO, or the code of a factorization that broke down
    error: np.ndarray  # (m, k), backward errors
    # an estimate of rcond from the random vectors, or rcond from A^-1 (see `System.exact`)
    least: np.ndarray
    is_near: np.ndarray  # True if rcond may be below epsilon
    is_safe: np.ndarray  # True if the norms of A are not extreme
    apart: np.ndarray  # True if entries that are not read contradict the structure
    spoilt: np.ndarray  # True if A holds NaN or Inf


def look_at(board, system):
    """Return the `_Look` for the numbers in `board`.

    The entries of a random vector g are uniform, with mean 0 and variance 1.  On average, the modulus of
    entry i of A^-1 g is at least 0.7 times the length of row i of A^-1 (Khinchine).  So on average
    ||A^-1 g||_1 is from 0.7 to n times ||A^-1||_1.  It is below ||A^-1||_1 / MARGIN only if g is nearly
    orthogonal to the longest row of A^-1.  This happens for one of 100 single vectors, and for one of 10^4
    pairs.  So if 1 / (||A||_1 ||A^-1 g||_1) is at least MARGIN epsilon, rcond is taken to be at least
    epsilon.
    """
    seen, (_, one, grown, info) = board[:SEEN], board[SEEN : SEEN + MEASURED]
    info = seen[4] if system.kind in TRIANGULAR else info
    error, met, is_safe = errors_on(board, system)
    with np.errstate(all="ignore"):
        least = np.minimum(1 / one / grown, 1.0)
        codes = np.where(met, CONVERGED, REDO)
        codes = np.where(is_safe & (info != 0), system.broken, codes).astype(np.int8)
        is_near = ~(least >= _least(system))
    apart, spoilt = contradicting(seen, system), seen[3] != 0
    return _Look(codes, error, least, is_near, is_safe, apart, spoilt)


def errors_on(board, system):
    """Return the backward errors (m, k), which systems meet the bound, and which A have no extreme norm."""
    (inf, one, _, _), found = board[SEEN : SEEN + MEASURED], board[SEEN + MEASURED :]
    rest, size = found[: len(found) // 2], found[len(found) // 2 :]
    with np.errstate(all="ignore"):
        error = rest / inf / size
        error = np.where(np.isfinite(size), np.where(rest == 0, 0.0, error), np.nan)
        is_safe = (inf > 1 / SAFE) & (inf < SAFE) & (one < SAFE)
        # With a larger or smaller x, products may overflow or underflow.  A zero x is exact if b is zero.
        exact = (size < SAFE) & ((size > 1 / SAFE) | (size == 0) & (rest == 0))
        met = is_safe & (exact & (error <= system.bound)).all(axis=0)
    return error.T, met, is_safe


def ordinary(board, system, which=0, limit=None):
    """Return (rcond, errors) of one system, or None if it is not ordinary; its errors may miss the bound.

    A system is ordinary if A is finite and agrees with its structure, the factorization did not break down,
    no norm is extreme, and rcond is at least `limit`, by default the limit of `_least`.  For such a system,
    this function finds what `look_at` finds, in a fraction of the time.
    """
    numbers = board[:, which]
    difference, largest, beyond, spoilt, zero = numbers[:SEEN].tolist()
    _, one, grown, info = numbers[SEEN : SEEN + MEASURED].tolist()
    agrees = beyond == 0 or difference <= tolerance(system) * largest
    if system.kind in TRIANGULAR:
        info = zero
    if not (agrees and spoilt == 0 == info and 0 < one < SAFE and 0 < grown < SAFE):
        return None
    least = min(1 / one / grown, 1.0)
    error = safe_errors(numbers, system)
    if error is None or least < (_least(system) if limit is None else limit):
        return None
    return least, error


def rconds_alone(board, system):
    """Return the rconds of some systems, or None.

    None: a system misses the bound, or it is not `ordinary` for another reason than its rcond.
    """
    rconds = []
    for which in range(board.shape[1]):
        found = ordinary(board, system, which, 0.0)
        if found is None or not found[1].max() <= system.bound:
            return None
        rconds.append(found[0])
    return rconds


def all_ordinary(board, system):
    """Return (rconds, errors) of several systems, or None if one is not `ordinary` or misses the bound."""
    most, least = (v.tolist() for v in (board.max(axis=1), board.min(axis=1)))  # NaN if one is NaN
    beyond, spoilt, zero = most[2:SEEN]
    inf, one, grown, _ = board[SEEN : SEEN + MEASURED]
    broken = zero if system.kind in TRIANGULAR else most[SEEN + 3]
    k, first = system.b.shape[2], SEEN + MEASURED
    rest, size = board[first : first + k], board[first + k :]
    if beyond and not ((board[2] == 0) | (board[0] <= tolerance(system) * board[1])).all():
        return None
    # A NaN makes a comparison below False, at the latest that of `error`.
    is_safe = spoilt == 0 == broken and 1 / SAFE < least[SEEN] and most[SEEN] < SAFE
    is_safe = is_safe and 0 < least[SEEN + 1] and most[SEEN + 1] < SAFE and 0 < least[SEEN + 2]
    if not (is_safe and most[SEEN + 2] < SAFE):
        return None
    if not (1 / SAFE < min(least[first + k :]) and max(most[first + k :]) < SAFE):
        return None
    with np.errstate(all="ignore"):
        rconds, error = np.minimum(1 / one / grown, 1.0), rest / inf / size
    if not (rconds.min() >= _least(system) and error.max() <= system.bound):
        return None
    return rconds, error.T


def safe_errors(numbers, system):
    """Return the backward errors (k,) from the numbers of one system, or None if the norms are extreme."""
    k, inf = system.b.shape[2], numbers[SEEN]
    rest, size = numbers[SEEN + MEASURED :][:k], numbers[SEEN + MEASURED + k :]
    # False for a NaN
    is_safe = 1 / SAFE < inf < SAFE and 1 / SAFE < size.min() and size.max() < SAFE
    return rest / inf / size if is_safe else None


def doubtful(board, system):
    """Return an array of bool (m,) on the device: True for systems that the host has to check.

    The other systems are regular, meet the bound, agree with their structure, and have ordinary norms.
    """
    difference, largest, beyond, spoilt, zero = board[:SEEN]
    (inf, one, grown, info), found = board[SEEN : SEEN + MEASURED], board[SEEN + MEASURED :]
    rest, size = found[: len(found) // 2], found[len(found) // 2 :]
    bound, least, safe, agrees = limits(system)
    info = zero if system.kind in TRIANGULAR else info
    with np.errstate(all="ignore"):
        good = (spoilt == 0) & ((beyond == 0) | (difference <= agrees * largest)) & (info == 0)
        good &= (inf > 1 / safe) & (inf < safe) & (one < safe) & (1 / one / grown >= least)
        met = (size > 1 / safe) & (size < safe) & (rest / inf / size <= bound)
        return ~(good & (met | (size == 0) & (rest == 0)).all(axis=0))


def limits(system):
    """Return the argument `limits` of `vendor.solve_and_judge`."""
    return system.bound, _least(system), SAFE, tolerance(system)


def _least(system):
    """Return the smallest measured rcond of an ordinary system.

    It is epsilon if rcond comes from A^-1, and MARGIN epsilon if it is estimated from random vectors.
    """
    return system.eps if system.exact else MARGIN * system.eps


def complex_errors(ops, system, x):
    """Return the backward errors (m, k) on the host, for complex x and b and real A."""
    m, n, k = x.shape
    if m == 1 and n > MEASURED_AT_ONCE:
        return errors_of(ops, system, x)
    system = system._replace(a=ops.converted(system.a, x.dtype))
    _, board = measure_again(ops, system, rows_of(ops, x).copy())
    error, met, _ = errors_on(*ops.host(board), system)
    # Where x or A is extreme, the measured error may be wrong.
    if (missed := np.flatnonzero(~met)).size:
        error = error.copy()
        error[missed] = errors_of(ops, some_of(ops, system, missed), x[ops.xp.asarray(missed)])
    return error


def errors_of(ops, system, x):
    """Return the backward errors (m, k) of x for the caller's a and b."""
    if len(x) == 1:
        return backward_errors(ops, system.a[0], x[0], system.b[0])[None]
    return backward_errors(ops, system.a, x, system.b)
