"""What is known of a matrix before any plan is tried."""

import math

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

from tcsolve._backends.select import ops_on
from tcsolve._lu.scaling import equilibrate
from tcsolve._study.columns import FACTS

__all__ = ["facts_of"]

# The 2-norm condition number is computed up to this order; it takes ten to fifteen times as long as an LU.
MOST_FOR_2_NORM = 1000
# The inverse, for the condition of Bauer and Skeel, is computed up to this order.
MOST_FOR_INVERSE = 2000


def facts_of(problem):
    """Return facts about the matrix of a problem, as a dict with the keys `FACTS`, and 'zero_pivot'.

    Returns
    -------
    dict
        - n, nnz, dtype: order, number of nonzero entries, dtype.
        - kappa: condition number; kappa_norm says of which norm and how it was found: 'given', '2', or
          '1, estimated'.
        - kappa_scaled: 1-norm condition number, estimated, after rows and columns are scaled by powers of
          two [1]_.
        - skeel: ``|| |A^-1| |A| ||`` in the infinity norm; None for n above 2000, or with a zero pivot.
        - dominance: smallest ``|a_ii| / sum of the other |a_ij|`` of a row.
        - spread: largest ``|a_ij|`` divided by the smallest one that is not zero.
        - zero_pivot: 1-based column of a pivot that is exactly zero in FP64; 0 if there is none.

        If the matrix holds NaN or Inf, all but n, nnz, dtype and zero_pivot are None.

    References
    ----------
    .. [1] N. J. Higham, S. Pranesh, M. Zounon, SIAM J. Sci. Comput. 41 (2019), A2536-A2551,
       algorithm 2.4.
    """
    a = problem.a
    found = {"n": problem.n, "nnz": int(np.count_nonzero(a)), "dtype": str(a.dtype)}
    if not np.isfinite(a).all():
        return found | dict.fromkeys(FACTS[3:]) | {"zero_pivot": 0}
    with np.errstate(all="ignore"):
        size = np.abs(a)
        found |= {"dominance": _dominance(size), "spread": _spread(size)}
        wide = a.astype(np.result_type(a.dtype, np.float64))
        kappa, zero_pivot = _kappa_one(wide)
        found |= _kappa(problem, wide, kappa)
        found["kappa_scaled"] = _kappa_one(_equilibrated(wide))[0]
        found["skeel"] = None if zero_pivot else _skeel(wide, size)
    return found | {"zero_pivot": zero_pivot}


def _kappa(problem, a, estimate):
    if problem.cond is not None:
        return {"kappa": float(problem.cond), "kappa_norm": "given"}
    if problem.n > MOST_FOR_2_NORM:
        return {"kappa": estimate, "kappa_norm": "1, estimated"}
    try:
        values = scipy.linalg.svdvals(a, check_finite=False)
    except np.linalg.LinAlgError:
        return {"kappa": estimate, "kappa_norm": "1, estimated"}
    return {"kappa": _quotient(values[0], values[-1]), "kappa_norm": "2"}


def _kappa_one(a):
    """Return the 1-norm condition number, estimated, and the 1-based column of a zero pivot or 0."""
    getrf, gecon = lapack.get_lapack_funcs(("getrf", "gecon"), (a,))
    lu, _, info = getrf(a)
    if info > 0:
        return math.inf, int(info)
    rcond = float(gecon(lu, np.abs(a).sum(axis=0).max(), norm="1")[0])
    return _quotient(1.0, rcond), 0


def _equilibrated(a):
    scaling = equilibrate(ops_on("cpu"), a)
    return a * scaling.row[:, None] * scaling.col


def _skeel(a, size):
    if len(a) > MOST_FOR_INVERSE:
        return None
    try:
        inverse = np.linalg.inv(a)
    except np.linalg.LinAlgError:
        return math.inf
    return float((np.abs(inverse) @ size.sum(axis=1)).max())


def _dominance(size):
    diagonal = size.diagonal()
    rest = size.sum(axis=1) - diagonal
    return float(np.where(rest > 0, diagonal / np.where(rest > 0, rest, 1), np.inf).min())


def _spread(size):
    nonzero = size[size > 0]
    return _quotient(size.max(), nonzero.min()) if nonzero.size else math.inf


def _quotient(p, q):
    return float(p / q) if q > 0 else math.inf
