"""The errors and warnings of `solve` for the statuses of a `Solution`, as those of scipy.linalg.solve."""

import numpy as np

from tcsolve._errors import (
    AccuracyWarning,
    LinAlgWarning,
    NotPositiveDefiniteError,
    SingularError,
    warn,
)
from tcsolve._report import message
from tcsolve._solution import MISSED, Status, code_of

__all__ = ["raise_or_warn", "warn_of_rcond"]


def raise_or_warn(solution, places=None):
    """Raise an error or give a warning for a bad status, as scipy.linalg.solve does.

    If the systems are a part of a larger stack, row i of `places` is the index of system i in that stack.

    - SingularError: a pivot is exactly zero.
    - NotPositiveDefiniteError: a Cholesky factorization broke down.  The message begins as SciPy's, which
      calls the matrix singular.
    - LinAlgWarning with rcond: the matrix is singular to working precision, its condition is unknown, or it
      holds NaN or Inf.
    - AccuracyWarning: the answer misses the bound, leaves the range of its dtype, or is less accurate than
      was asked for; or A contradicts `assume_a`.  SciPy gives no warning in these cases.
    """
    status, index = _told_of(solution)
    if status in (Status.CONVERGED, Status.CONVERGED_AFTER_FALLBACK):
        return
    which = "" if index == () else _in_slice(index if places is None else places[index[0]])
    rcond = solution.rcond if index == () else float(solution.rconds[index])
    if status is Status.SINGULAR:
        raise SingularError(f"A singular matrix detected{which}. {status.value}")
    if status is Status.NOT_POSITIVE_DEFINITE:
        raise NotPositiveDefiniteError(f"A singular matrix detected{which}. {status.value}")
    if status in MISSED:
        error = _worst(solution.backward_error[index])
        warn(
            f"backward error {error:.1e}, bound {solution.bound:.1e}, rcond {rcond:.1e}{which}: "
            + status.value,
            AccuracyWarning,
        )
    elif status is Status.CONDITION_UNKNOWN:
        warn(
            f"The condition of the matrix is unknown{which}: rcond = nan. {status.value}",
            LinAlgWarning,
        )
    elif status is Status.ILL_CONDITIONED:
        _warn_of_rcond(rcond, which, message(solution, status))
    elif status is Status.NONFINITE_INPUT and rcond == 0:
        _warn_of_rcond(rcond, which, status.value)


def warn_of_rcond(rcond, place):
    """Give the warning of ILL_CONDITIONED for a stack; `place` is the index of its first such matrix."""
    _warn_of_rcond(rcond, _in_slice(place), Status.ILL_CONDITIONED.value)


def _warn_of_rcond(rcond, which, text):
    warn(f"Ill-conditioned matrix detected: rcond = {rcond}{which}. {text}", LinAlgWarning)


def _told_of(solution):
    """Return (status, index): the worst status, and the first system of a stack that has it.

    The index of a single system is (), and so is that of an empty stack.  NONFINITE_INPUT counts only if a
    holds NaN or Inf, or is singular, as SciPy gives no warning if only b holds NaN or Inf.
    """
    statuses = solution.statuses
    if not (statuses.ndim and statuses.size):
        return solution.status, ()
    bad = statuses == solution.status
    if solution.status is Status.NONFINITE_INPUT:
        if (bad & (solution.rconds == 0)).any():
            bad &= solution.rconds == 0
        elif not bad.all():
            worst = max(statuses[~bad], key=code_of)
            return worst, tuple(np.argwhere(statuses == worst)[0])
    return solution.status, tuple(np.argwhere(bad)[0])


def _in_slice(place):
    index = tuple(map(int, place))
    return f" in slice {index if len(index) > 1 else index[0]} of the stack"


def _worst(errors):
    """Return the largest error: NaN if any is NaN, and 0 if there are none."""
    return float(np.max(errors, initial=0.0))
