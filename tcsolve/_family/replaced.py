"""The functions that replace those of numpy.linalg and cupy.linalg, with their dtypes and errors."""

import functools

import numpy as np

from tcsolve._arrays import is_cupy
from tcsolve._errors import LinAlgError
from tcsolve._family.inverse import det, verify_inverse
from tcsolve._outcome import raise_or_warn
from tcsolve._solution import MISSED, Status
from tcsolve._solve.api import solve_ex

__all__ = ["NUMPY", "cupy_functions"]

# NumPy's own functions; `installed` may rebind these names in numpy.linalg.
_solve, _inv, _det = np.linalg.solve, np.linalg.inv, np.linalg.det


def _solve_as_numpy(a, b):
    """As numpy.linalg.solve: FP32 arguments are solved in FP64, and no warning is given for a small rcond."""
    if not (_is_usual(a) and _is_usual(b) and _fits(a, b)):
        return _solve(a, b)
    # NumPy takes integers for float64.
    dtype = np.result_type(*(np.float64 if v.dtype.kind in "iu" else v.dtype for v in (a, b)))
    given = a, b
    # A real A stays real, also if b is complex.
    a, b = (v.astype(np.result_type(v, np.float64), copy=False) for v in (a, b))
    solution = solve_ex(a, b, check_finite=False)
    if solution.status is Status.NONFINITE_INPUT:
        return _solve(*given)
    if solution.status is Status.SINGULAR:
        raise LinAlgError("Singular matrix")
    if solution.status in MISSED:
        raise_or_warn(solution)
    return solution.x.astype(dtype, copy=False)


def _inv_as_numpy(a):
    """As numpy.linalg.inv, and verified."""
    x = _inv(a)
    if _is_usual(a) and x.size:
        verify_inverse(a, x, "inv")
    return x


def _det_as_numpy(a):
    """As numpy.linalg.det: the determinant has the dtype of A, or float64 if A holds integers."""
    if not (_is_usual(a) and a.ndim >= 2 and a.shape[-1] == a.shape[-2] and a.size):
        return _det(a)
    wide = a.astype(np.result_type(a, np.float64), copy=False)
    found = det(wide, check_finite=False)
    return found.astype(a.dtype.newbyteorder("=")) if a.dtype.kind in "fc" else found


NUMPY = {"solve": _solve_as_numpy, "inv": _inv_as_numpy, "det": _det_as_numpy}


def cupy_functions(linalg):
    """Return {name: function} for the module cupy.linalg.

    For arguments that tcsolve does not solve, each calls the function that `linalg` has now under this name.
    """
    return {
        "solve": functools.partial(_solve_as_cupy, linalg.solve),
        "inv": functools.partial(_inv_as_cupy, linalg.inv),
    }


def _solve_as_cupy(original, a, b):
    """As cupy.linalg.solve: a singular matrix raises only where `cupyx.errstate` asks for it."""
    if not (is_cupy(a) and is_cupy(b) and _is_plain(a) and _is_plain(b) and _fits(a, b)):
        return original(a, b)
    solution = solve_ex(a, b, check_finite=False)
    if solution.status is Status.SINGULAR:
        _raise_if_asked()
    elif solution.status in MISSED:
        raise_or_warn(solution)
    return solution.x


def _inv_as_cupy(original, a):
    """As cupy.linalg.inv; each column is verified."""
    if not (is_cupy(a) and _is_plain(a) and a.ndim == 2 and a.shape[0] == a.shape[1] and a.size):
        return original(a)
    import cupy

    return _solve_as_cupy(lambda a, b: original(a), a, cupy.eye(len(a), dtype=a.dtype))


def _raise_if_asked():
    import cupyx

    if cupyx.geterr()["linalg"] == "raise":
        raise LinAlgError("Singular matrix")


def _is_plain(x):
    """Tell whether the functions of CuPy, NumPy and tcsolve all accept the dtype of the array x."""
    return x.dtype.char in "fdFD"


def _is_usual(x):
    """Tell whether x is an array that NumPy's functions and tcsolve's treat in the same way."""
    return type(x) is np.ndarray and (_is_plain(x) or x.dtype.kind in "iu")


def _fits(a, b):
    """Tell whether a (..., n, n) and b, a vector or (..., n, k), fit and are not empty."""
    if a.ndim < 2 or a.shape[-1] != a.shape[-2] or not (a.size and b.size and b.ndim):
        return False
    return (b.shape[0] if b.ndim == 1 else b.shape[-2]) == a.shape[-1]
