"""Cholesky factors in FP16 with every operation rounded, of a scaled and shifted matrix; and in FP32."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg

__all__ = ["Breakdown", "Factors", "factor", "factor_single", "factor_unscaled"]

U, U_SINGLE, XMAX, THETA = 2.0**-11, 2.0**-24, 65504.0, 0.1
# The first shift, in units of U.  It is raised by U at a time, up to MOST_SHIFTS times U.
FIRST_SHIFT, MOST_SHIFTS = 2, 100


class Breakdown(Exception):
    """No shift made the rounded matrix positive definite."""


class Factors(NamedTuple):
    """An approximate inverse.

    Attributes
    ----------
    correct : callable, (n, k) -> (n, k)
        Applies the factors in FP64.
    start : callable, (n,) -> (n,)
        Makes the first x of CG-IR, and with FP32 factors also of GMRES-IR.  With FP16 factors the solutions
        of both triangular systems are rounded to FP16; with FP32 factors both are computed in FP32.
    shift : int
        In units of the roundoff.
    """

    correct: Callable
    start: Callable
    shift: int


def factor(a):
    """Return the `Factors` in FP16 of the positive definite matrix a.

    D is diagonal, and H = D a D has a unit diagonal.  H + c u I, times 0.1 of the largest FP16 number, is
    rounded to FP16 and factored, for c = 2, 3, ... until the factorization exists [1]_.  u is the roundoff of
    FP16.

    References
    ----------
    .. [1] N. J. Higham, S. Pranesh, SIAM J. Sci. Comput. 43 (2021), A258-A277, algorithm 3.2.
    """
    d = np.sqrt(a.diagonal())
    h = a / d[:, None] / d
    np.fill_diagonal(h, 1.0)
    return _shifted(h, d)


def factor_unscaled(a):
    """Return the `Factors` in FP16 without scaling: of a + c u t I, where t is the largest diagonal entry.

    This matrix is multiplied by one number only, so that its largest entry is 0.1 of the largest FP16 number.
    """
    top = a.diagonal().max()
    return _shifted(a / top, np.sqrt(top))


def _shifted(h, d):
    """Return the `Factors` of diag(d) h diag(d); h has diagonal entries up to 1."""
    mu = THETA * XMAX
    for c in range(FIRST_SHIFT, MOST_SHIFTS + 1):
        r = cholesky((mu * (h + c * U * np.eye(len(h)))).astype(np.float16))
        if r is not None:
            r = r.astype(float) / np.sqrt(mu) * d
            return Factors(_solver(r), _rounded_solver(r), c)
    raise Breakdown(f"no shift up to {MOST_SHIFTS} u is enough")


def factor_single(a):
    """Return the `Factors` in FP32 of a + c u diag(a), with c = 2."""
    shifted = a + FIRST_SHIFT * U_SINGLE * np.diag(a.diagonal())
    try:
        r = scipy.linalg.cholesky(shifted.astype(np.float32))
    except np.linalg.LinAlgError as reason:
        raise Breakdown("the matrix is not definite in FP32") from reason

    def start(b):
        return scipy.linalg.cho_solve((r, False), b.astype(np.float32)).astype(float)

    return Factors(_solver(r.astype(float)), start, FIRST_SHIFT)


def _solver(r):
    return lambda b: scipy.linalg.cho_solve((r, False), b, check_finite=False)


def _rounded_solver(r):
    def start(b):
        for trans in ("T", "N"):
            b = scipy.linalg.solve_triangular(r, b, trans=trans, check_finite=False)
            b = b.astype(np.float16).astype(float)
        return b

    return start


def cholesky(a):
    """Return R with R^T R = a, every operation rounded to FP16; None if a pivot is not positive."""
    a = a.copy()
    with np.errstate(all="ignore"):
        for k in range(len(a)):
            if not (a[k, k] > 0 and np.isfinite(a[k, k])):
                return None
            a[k, k:] = a[k, k:] / np.sqrt(a[k, k])
            row = a[k, k + 1 :]
            a[k + 1 :, k + 1 :] -= (
                row[:, None] * row
            )  # NumPy rounds products and differences to FP16
    return np.triu(a)
