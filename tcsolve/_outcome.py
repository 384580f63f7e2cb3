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
from tcsolve._solution import MISSED, Status

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
    status = solution.status
    if status in (Status.CONVERGED, Status.CONVERGED_AFTER_FALLBACK):
        return
    which = _first_bad(solution, places)
    if status is Status.SINGULAR:
        raise SingularError(f"A singular matrix detected{which}. {status.value}")
    if status is Status.NOT_POSITIVE_DEFINITE:
        raise NotPositiveDefiniteError(f"A singular matrix detected{which}. {status.value}")
    if status in MISSED:
        error = _worst(solution.backward_error)
        warn(
            f"backward error {error:.1e}, bound {solution.bound:.1e}, rcond {solution.rcond:.1e}{which}: "
            + status.value,
            AccuracyWarning,
        )
    elif status is Status.CONDITION_UNKNOWN:
        warn(
            f"The condition of the matrix is unknown{which}: rcond = nan. {status.value}",
            LinAlgWarning,
        )
    elif status is Status.ILL_CONDITIONED or (
        status is Status.NONFINITE_INPUT and solution.rcond == 0
    ):
        _warn_of_rcond(solution.rcond, which, message(solution))


def warn_of_rcond(rcond, place):
    """Give the warning of ILL_CONDITIONED for a stack; `place` is the index of its first such matrix."""
    _warn_of_rcond(rcond, _in_slice(place), Status.ILL_CONDITIONED.value)


def _warn_of_rcond(rcond, which, text):
    warn(f"Ill-conditioned matrix detected: rcond = {rcond}{which}. {text}", LinAlgWarning)


def _first_bad(solution, places):
    """Return the words that name the first matrix of a stack with the worst status; '' for one matrix."""
    if not solution.statuses.ndim:
        return ""
    index = np.argwhere(solution.statuses == solution.status)[0]
    return _in_slice(index if places is None else places[index[0]])


def _in_slice(place):
    index = tuple(map(int, place))
    return f" in slice {index if len(index) > 1 else index[0]} of the stack"


def _worst(errors):
    """Return the largest error: NaN if any is NaN, and 0 if there are none."""
    return float(np.max(errors, initial=0.0))
