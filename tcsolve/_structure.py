"""Structured and batched systems, solved by SciPy on the host until they have a path of their own."""

import re
import warnings

import numpy as np
import scipy.linalg

from tcsolve._errors import LinAlgError, LinAlgWarning

__all__ = ["interpret", "looks_structured", "solve_on_host"]


def looks_structured(a):
    """Tell whether the NumPy matrix a may be banded, triangular or symmetric, from its border.

    A necessary condition read in O(n): SciPy then looks at all of it and picks the method, so that a
    false alarm costs nothing but speed.
    """
    top, left, bottom, right = a[0, 1:], a[1:, 0], a[-1, :-1], a[:-1, -1]
    if not (top.any() and bottom[1:].any()) and not right[:-1].any():
        return True  # lower triangular, or no wider than tridiagonal
    if not (left.any() and right[1:].any()) and not bottom[:-1].any():
        return True  # upper triangular
    if not (top[1:].any() or left[1:].any() or bottom[:-1].any() or right[:-1].any()):
        return True
    symmetric = (top == left).all() and (bottom == right).all()
    return bool(symmetric or ((top == left.conj()).all() and (bottom == right.conj()).all()))


def interpret(xp, a, structure, lower):
    """Return the full matrix that SciPy reads a as under `structure`, a (..., n, n).

    What is not read is masked, not multiplied by zero: it may hold NaN.
    """
    if structure == "diagonal":
        return xp.triu(xp.tril(a))
    if structure == "tridiagonal":
        return xp.triu(xp.tril(a, 1), -1)
    if structure == "upper triangular":
        return xp.triu(a)
    if structure == "lower triangular":
        return xp.tril(a)
    if structure in ("symmetric", "hermitian", "positive definite"):
        conjugate = structure != "symmetric" and a.dtype.kind == "c"
        part = xp.tril(a, -1) if lower else xp.triu(a, 1)
        mirror = xp.swapaxes(part.conj() if conjugate else part, -1, -2)
        diagonal = xp.triu(xp.tril(a))
        return part + mirror + (diagonal.real.astype(a.dtype) if conjugate else diagonal)
    return a


def solve_on_host(a, b, structure, lower):
    """Solve with scipy.linalg.solve; return (x, singular, rcond).

    rcond is NaN where SciPy does not tell it, that is unless it warns.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            x = scipy.linalg.solve(a, b, lower=lower, check_finite=False, assume_a=structure)
        except LinAlgError as error:
            # Bad info codes are LinAlgErrors too, but only singularity is an outcome.
            if "singular" not in str(error) and "definite" not in str(error):
                raise
            return None, True, 0.0
    rconds = [np.nan]
    for warning in caught:
        if issubclass(warning.category, LinAlgWarning):
            found = re.findall(r"rcond *= *([-+]?\d[.\d]*(?:e[-+]?\d+)?|nan)", str(warning.message))
            rconds += [_as_rcond(value) for value in found]
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return x, False, float(np.nanmin(rconds)) if len(rconds) > 1 else np.nan


def _as_rcond(text):
    value = 0.0 if text == "nan" else float(text.rstrip("."))
    # SciPy before 1.19 reports the condition number itself for diagonal matrices.
    return 1 / value if value > 1 else value
