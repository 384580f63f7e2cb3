"""Cholesky factors in FP16 with every operation rounded, of a scaled and shifted matrix."""

import numpy as np
import scipy.linalg

__all__ = ["Breakdown", "factor"]

U, XMAX, THETA = 2.0**-11, 65504.0, 0.1
# The shift is raised by U at a time, up to this many times.
MOST_SHIFTS = 100


class Breakdown(Exception):
    """No shift made the rounded matrix positive definite."""


def factor(a):
    """Return a function that applies an approximate inverse of the positive definite matrix a, and the shift.

    H = D a D has a unit diagonal.  H + c u I, times 0.1 of the largest FP16 number, is rounded to FP16 and
    factored; c = 2, 3, ... until the factorization exists [1]_.

    References
    ----------
    .. [1] N. J. Higham, S. Pranesh, SIAM J. Sci. Comput. 43 (2021), A258-A277, algorithm 3.2.
    """
    d = 1 / np.sqrt(a.diagonal())
    h = a * d[:, None] * d
    np.fill_diagonal(h, 1.0)
    for c in range(2, MOST_SHIFTS + 1):
        # mu is the largest power of two that keeps the entries below theta xmax.
        mu = 2.0 ** np.floor(np.log2(THETA * XMAX / (1 + c * U)))
        r = cholesky((mu * (h + c * U * np.eye(len(a)))).astype(np.float16))
        if r is not None:
            r = r.astype(float) / np.sqrt(mu)

            def correct(b, r=r):
                y = scipy.linalg.cho_solve((r, False), d[:, None] * b)
                return d[:, None] * y

            return correct, c
    raise Breakdown(f"no shift up to {MOST_SHIFTS} u is enough")


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
