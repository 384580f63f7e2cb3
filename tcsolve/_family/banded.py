"""`solve_banded` and `solveh_banded`."""

import functools

import numpy as np
import scipy.linalg

from tcsolve._arrays import as_host, is_cupy
from tcsolve._backends.cpu.blas import blas_of
from tcsolve._backends.cpu.lu import lapack_of
from tcsolve._checks import result_dtype
from tcsolve._errors import InputError, SingularError
from tcsolve._family.device_memory import guards_memory
from tcsolve._family.stacks import RHS, over_stacks, xp_of
from tcsolve._family.systems import BandSystem, band_product, widest
from tcsolve._family.verification import (
    are_native,
    is_verified,
    may_overwrite,
    numbers_of,
    settled,
)
from tcsolve._solve.verify.long_double_residual import SMALL

__all__ = ["solve_banded", "solveh_banded"]

# SciPy's own functions; `installed` may rebind these names in scipy.linalg.
_solve_banded, _solveh_banded = scipy.linalg.solve_banded, scipy.linalg.solveh_banded


@guards_memory
def solve_banded(l_and_u, ab, b, overwrite_ab=False, overwrite_b=False, check_finite=True):
    """Solve A x = b for a band matrix A, and verify x.

    This function replaces `scipy.linalg.solve_banded`.

    Parameters
    ----------
    l_and_u : (int, int)
        l and u, the numbers of diagonals below and above the main one.
    ab : array_like, shape (..., l + u + 1, n)
        The diagonals: ``ab[u + i - j, j] == a[i, j]``.  If an argument is a CuPy array, the system is solved
        on the host, and x is a CuPy array.
    b : array_like, shape (n,) or (..., n, k)
        The right-hand sides.
    overwrite_ab, overwrite_b : bool
        Allow writing the factors to the memory of ab, and x to that of b.
    check_finite : bool
        Raise a ValueError if ab or b holds NaN or Inf.

    Returns
    -------
    x : array, shape (..., n) or (..., n, k)

    Raises
    ------
    LinAlgError
        A pivot is exactly zero.
    ValueError
        The shapes do not fit, a stack is empty, or ab or b holds NaN or Inf.
    DeviceError, DeviceMemoryError
        As in `solve`, for CuPy arrays.

    Warns
    -----
    AccuracyWarning
        The backward error of x is above ``u sqrt(n)``, see `Solution`.

    Examples
    --------
    >>> from tcsolve import solve_banded
    >>> solve_banded((1, 1), [[0, 1.0, 1], [2, 2, 2], [1, 1, 0]], [3.0, 4, 3]).round(12).tolist()
    [1.0, 1.0, 1.0]
    """
    lower, upper = l_and_u
    if not (overwrite_ab or overwrite_b):
        x = _by_lapack(lower, upper, ab, b, check_finite)
        if x is not None:
            return x
    arrays = (lower, 0), (upper, 0), (ab, 2), (b, RHS)
    how = {"overwrite_ab": overwrite_ab, "overwrite_b": overwrite_b, "check_finite": check_finite}
    return _solved(_solve_general, arrays, how, "solve_banded")


def _solve_general(lower, upper, ab, b, **how):
    solve = functools.partial(_solve_banded, (int(lower), int(upper)))
    alone, column = np.asarray(ab), np.asarray(b)
    are_numbers = alone.dtype.kind in "biufc" and column.dtype.kind in "biufc"
    # SciPy divides b by a matrix of one number in the dtype of b.
    if alone.shape == (lower + upper + 1, 1) and column.ndim in (1, 2) and are_numbers:
        ab, b = alone, column
        is_finite = not how["check_finite"] or bool(np.isfinite(b).all())
        if ab[upper, 0] == 0 and len(b) == 1 and b.size and is_finite:
            raise SingularError("singular matrix")
        b = b.astype(result_dtype(ab, b))

    def system(ab):
        return BandSystem.of(int(lower), int(upper), ab)

    product = functools.partial(_general_product, int(lower), int(upper))
    return _solve_one(solve, (system, product), ab, b, "solve_banded", **how)


def _by_lapack(lower, upper, ab, b, check_finite):
    """Return the verified x of the routine that SciPy's function calls, or None.

    None: x is not verified, or the arguments are left to that function, which also raises the errors.
    """
    if not type(lower) is type(upper) is int or min(lower, upper) < 0:
        return None
    if not _suits(ab, b, lower + upper + 1, check_finite):
        return None
    n = len(b)
    if lower == upper == 1:
        *_, x, info = lapack_of("gtsv", ab.dtype)(ab[2, :-1], ab[1], ab[0, 1:], b)
    else:
        room = np.zeros((2 * lower + upper + 1, n), ab.dtype, order="F")
        room[lower:] = ab
        *_, x, info = lapack_of("gbsv", ab.dtype)(lower, upper, room, b, overwrite_ab=True)
    return _if_verified(x, info, b, functools.partial(_general_product, lower, upper, ab))


def _if_verified(x, info, b, product):
    """Return the x of a routine of LAPACK if it meets the bound, else None; product(x) is A x."""
    with np.errstate(all="ignore"):
        return x if not info and is_verified(x, b, product(x)) else None


def _general_product(lower, upper, ab, x):
    """Return A x for a band matrix and a vector; for few unknowns in long double."""
    if len(x) <= SMALL:
        ab = widest(ab, len(x))
    if lower == upper == 1 and len(x) > 1:
        return _tridiagonal_product(ab[2, :-1], ab[1], ab[0, 1:], x)
    if len(x) <= SMALL:
        return band_product(lower, upper, ab, x[:, None])[:, 0]
    return blas_of("gbmv", x.dtype)(len(x), len(x), lower, upper, 1.0, ab, x)


def _tridiagonal_product(below, diagonal, above, x):
    """Return A x for a tridiagonal A; with three diagonals this takes less time than BLAS."""
    y = diagonal * x
    y[:-1] += above * x[1:]
    y[1:] += below * x[:-1]
    return y


def _suits(ab, b, rows, check_finite):
    """Tell whether LAPACK takes ab and one vector b as they are; with `check_finite`, ab must also be finite.

    NaN or Inf in b makes an x that is not verified.
    """
    n = len(b) if are_native(ab, b) and b.ndim == 1 else 0
    return n > 1 and ab.shape == (rows, n) and not (check_finite and not np.isfinite(ab).all())


@guards_memory
def solveh_banded(ab, b, overwrite_ab=False, overwrite_b=False, lower=False, check_finite=True):
    """Solve A x = b for a positive definite band matrix A, and verify x.

    This function replaces `scipy.linalg.solveh_banded`.

    Parameters
    ----------
    ab : array_like, shape (..., u + 1, n)
        The diagonals of one triangle: ``ab[u + i - j, j] == a[i, j]`` for the upper one, and
        ``ab[i - j, j] == a[i, j]`` for the lower one.  If an argument is a CuPy array, the system is solved
        on the host, and x is a CuPy array.
    b : array_like, shape (n,) or (..., n, k)
        The right-hand sides.
    overwrite_ab, overwrite_b : bool
        Allow writing the factor to the memory of ab, and x to that of b.
    lower : bool
        Whether ab has the lower triangle.
    check_finite : bool
        Raise a ValueError if ab or b holds NaN or Inf.

    Returns
    -------
    x : array, shape (..., n) or (..., n, k)

    Raises
    ------
    LinAlgError
        The matrix is not positive definite.
    ValueError
        The shapes do not fit, a stack is empty, or ab or b holds NaN or Inf.
    DeviceError, DeviceMemoryError
        As in `solve`, for CuPy arrays.

    Warns
    -----
    AccuracyWarning
        The backward error of x is above ``u sqrt(n)``, see `Solution`.

    Examples
    --------
    >>> from tcsolve import solveh_banded
    >>> solveh_banded([[0, 1.0, 1], [2, 2, 2]], [3.0, 4, 3]).round(12).tolist()
    [1.0, 1.0, 1.0]
    """
    if not (overwrite_ab or overwrite_b):
        x = _definite_by_lapack(lower, ab, b, check_finite)
        if x is not None:
            return x
    how = {"overwrite_ab": overwrite_ab, "overwrite_b": overwrite_b, "check_finite": check_finite}
    solve = functools.partial(_solve_definite, lower)
    return _solved(solve, ((ab, 2), (b, RHS)), how, "solveh_banded")


def _definite_by_lapack(lower, ab, b, check_finite):
    """Return the verified x of the routine that SciPy's function calls, or None as `_by_lapack`."""
    if not are_native(ab, b) or ab.ndim != 2 or not _suits(ab, b, len(ab), check_finite):
        return None
    if len(ab) == 2:
        diagonal, beside = (ab[0], ab[1, :-1]) if lower else (ab[1], ab[0, 1:].conj())
        *_, x, info = lapack_of("ptsv", ab.dtype)(diagonal.real, beside, b)
    else:
        _, x, info = lapack_of("pbsv", ab.dtype)(ab, b, lower=lower)
    return _if_verified(x, info, b, functools.partial(_definite_product, lower, ab))


def _definite_product(lower, ab, x):
    """Return A x for a Hermitian band matrix and a vector; for few unknowns in long double."""
    if len(x) <= SMALL:
        ab = widest(ab, len(x))
    if len(ab) == 2 and len(x) > 1:
        diagonal, beside = (ab[0], ab[1, :-1].conj()) if lower else (ab[1], ab[0, 1:])
        return _tridiagonal_product(beside.conj(), diagonal.real, beside, x)
    if len(x) <= SMALL:
        u = len(ab) - 1
        return band_product(u, u, _both_triangles(lower, ab), x[:, None])[:, 0]
    name = "hbmv" if x.dtype.kind == "c" else "sbmv"
    return blas_of(name, x.dtype)(len(ab) - 1, 1.0, ab, x, lower=lower)


def _solve_definite(lower, ab, b, **how):
    solve = functools.partial(_solveh_banded, lower=lower)
    system = functools.partial(_definite_system, lower)

    product = functools.partial(_definite_product, lower)
    return _solve_one(solve, (system, product), ab, b, "solveh_banded", **how)


def _solved(solve, arrays, how, name):
    """Call `solve` for each slice, on the host, and return x where the arrays are."""
    xp = xp_of(*(x for x, _ in arrays))
    if xp is not np:
        arrays = [(as_host(x) if is_cupy(x) else x, core) for x, core in arrays]
    (ab, _), (b, _) = arrays[-2:]
    if np.ndim(ab) < 2:
        raise InputError(f"{name}: ab has shape {np.shape(ab)}; (..., diagonals, n) is needed")
    is_stack = np.ndim(ab) > 2 or np.ndim(b) > 2
    how = how | {
        "overwrite_ab": not is_stack and may_overwrite(how["overwrite_ab"], ab, b),
        "overwrite_b": not is_stack and may_overwrite(how["overwrite_b"], b, ab),
    }
    found = over_stacks(functools.partial(solve, **how), *arrays, name=name)
    return found if xp is np else xp.asarray(found)


def _solve_one(solve, measures, ab, b, name, *, overwrite_ab, overwrite_b, check_finite):
    """Return x, verified by `measures`, a pair of functions.

    system(ab) returns the `BandSystem`; product(ab, x) returns A x for one vector x.
    """
    system, product = measures
    kept_ab = np.array(ab) if overwrite_ab else ab
    kept_b = np.array(b) if overwrite_b else b
    how = {"overwrite_ab": overwrite_ab, "overwrite_b": overwrite_b}
    x = solve(ab, b, check_finite=check_finite, **how)
    if not x.size:
        return x
    kept_ab, kept_b = np.asarray(kept_ab), numbers_of(np, kept_b, x.dtype)
    alike = kept_ab.dtype == x.dtype == kept_b.dtype and x.dtype.char in "dD"
    if alike and x.ndim == 1 and len(x) >= len(kept_ab):
        with np.errstate(all="ignore"):
            if is_verified(x, kept_b, product(kept_ab, x)):
                return x

    def correct(r):
        return solve(kept_ab, r, check_finite=False)

    return settled(system(kept_ab), x, kept_b, correct, name)


def _definite_system(lower, ab):
    """Return the `BandSystem` of the Hermitian matrix of which ab has one triangle."""
    return BandSystem.of(len(ab) - 1, len(ab) - 1, _both_triangles(lower, ab))


def _both_triangles(lower, ab):
    """Return, in the storage of `solve_banded`, the Hermitian matrix of which ab has one triangle."""
    u, n = ab.shape[0] - 1, ab.shape[1]
    full = np.zeros((2 * u + 1, n), ab.dtype)
    for d in range(min(u, n - 1) + 1):  # a[j, j + d] and a[j + d, j]
        above = ab[d, : n - d].conj() if lower else ab[u - d, d:]
        full[u - d, d:] = above
        full[u + d, : n - d] = above.conj() if d else above.real
    return full
