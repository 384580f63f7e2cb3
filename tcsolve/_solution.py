"""What a solve returns: one type, always."""

import warnings
from dataclasses import dataclass, field, replace
from enum import Enum
from types import GenericAlias
from typing import Any, NamedTuple

import numpy as np

from tcsolve._errors import (
    AccuracyWarning,
    LinAlgWarning,
    NotPositiveDefiniteError,
    SingularError,
)

__all__ = [
    "HistoryPoint",
    "Solution",
    "Status",
    "code_of",
    "contradicted",
    "of_slices",
    "raise_or_warn",
]


class HistoryPoint(NamedTuple):
    """One entry of `Solution.history`.

    Attributes
    ----------
    rung : str
        The update whose factors gave the correction.
    step : ndarray of int, shape (nrhs,)
        Corrections of each right-hand side so far, over all rungs.
    error : ndarray of float64, shape (nrhs,)
        The least backward error so far of each right-hand side; for an inner step of FGMRES what its
        least-squares problem predicts.
    estimated : bool
        False for the error of a recomputed residual, True for the prediction of an inner step.
    """

    rung: str
    step: Any
    error: Any
    estimated: bool


class Status(Enum):
    """How a solve ended; the value is the sentence a person needs, with the remedy."""

    CONVERGED = "The backward error meets the bound; nothing needs to be done."
    CONVERGED_AFTER_FALLBACK = (
        "The backward error meets the bound, but the first precision stalled and a more precise "
        "factorization was needed; ask for the precision that succeeded to save the time."
    )
    ILL_CONDITIONED = (
        "The backward error meets the bound, but the matrix is singular to working precision "
        "(rcond < eps), so x may have no correct digit; check the model, or regularise it."
    )
    CONDITION_UNKNOWN = (
        "The backward error meets the bound, but the factors of this plan are too coarse to tell whether the "
        "matrix is singular to working precision, and the plan forbids more precise ones, so rcond is NaN; "
        "allow a fallback to learn it."
    )
    STALLED = (
        "Refinement stalled before the bound, or the rounded matrix has a zero pivot, and the plan forbids a "
        "fallback; allow it, or choose a more precise update."
    )
    NOT_CONVERGED = (
        "Even the most precise factorization does not meet the bound; x is the best answer found, "
        "judge it by backward_error; scaling the problem may help."
    )
    SINGULAR = (
        "A pivot is exactly zero, so the matrix is singular and there is no unique solution; "
        "use a least-squares solver, or remove the dependent row or column."
    )
    NOT_POSITIVE_DEFINITE = (
        "A Cholesky factorization broke down, so the matrix is not positive definite, or singular to working "
        "precision; leave assume_a out, or give 'symmetric' or 'hermitian'."
    )
    NOT_AS_ASSERTED = (
        "The backward error meets the bound for the matrix that is read under assume_a, but the entries that "
        "are not read contradict assume_a, so x may not solve the system of the whole matrix; leave assume_a "
        "out, or clear these entries."
    )
    NONFINITE_INPUT = (
        "a or b holds NaN or Inf, so x does too; clean the data (check_finite=True finds it)."
    )
    OVERFLOW = (
        "The solution has entries beyond the largest number of its type; scale a or b by a power "
        "of two and undo it in x."
    )
    UNDERFLOW = (
        "The solution is so small that its type holds too few digits of it, or none; scale a or b by a "
        "power of two and undo it in x."
    )

    @property
    def ok(self):
        """True if the answer meets the bound."""
        return self in (
            Status.CONVERGED,
            Status.CONVERGED_AFTER_FALLBACK,
            Status.ILL_CONDITIONED,
            Status.CONDITION_UNKNOWN,
        )


# From the mildest to the worst, which is the status of a stack.
SEVERITY = (
    Status.CONVERGED,
    Status.CONVERGED_AFTER_FALLBACK,
    Status.CONDITION_UNKNOWN,
    Status.ILL_CONDITIONED,
    Status.NOT_AS_ASSERTED,
    Status.UNDERFLOW,
    Status.OVERFLOW,
    Status.STALLED,
    Status.NOT_CONVERGED,
    Status.NONFINITE_INPUT,
    Status.NOT_POSITIVE_DEFINITE,
    Status.SINGULAR,
)
_BY_CODE = np.array(SEVERITY, dtype=object)


def code_of(status):
    """Return the number of a `Status`, for arrays of them; a worse status has a larger number."""
    return SEVERITY.index(status)


def of_slices(codes, rconds):
    """Return the fields of a `Solution` that tell of each matrix of a stack, and of all together.

    Parameters
    ----------
    codes : ndarray of int, shape (...)
        The status of each matrix by `code_of`.
    rconds : ndarray of float64, shape (...)
    """
    return {
        "status": SEVERITY[np.max(codes, initial=0)],
        "statuses": np.asarray(_BY_CODE[codes], dtype=object),
        "rcond": float(np.fmin.reduce(rconds, axis=None, initial=np.nan)),
        "rconds": rconds,
    }


# Of which `solve` warns, as SciPy does not look.
MISSED = (
    Status.NOT_AS_ASSERTED,
    Status.UNDERFLOW,
    Status.OVERFLOW,
    Status.STALLED,
    Status.NOT_CONVERGED,
)


@dataclass(frozen=True, eq=False)
class Solution:
    """The answer of a solve with the evidence for it.

    Attributes
    ----------
    x : ndarray, shape (..., n) or (..., n, nrhs)
        The solution, in the array type of the caller.
    status : Status
        How the solve ended; its value is a sentence.
    precision : str
        The update whose factors gave x: 'fp16', 'fp16x3', ..., 'fp64', joined by '+' where those of the
        matrices of a stack differ, or 'user' where the caller gave the corrections.
    rungs : tuple of str
        Every update that was tried, in order.
    iterations : ndarray of int, shape (..., nrhs)
        Corrections applied to each right-hand side, over all rungs: steps of classical
        refinement plus inner steps of FGMRES.
    backward_error : ndarray of float64, shape (..., nrhs)
        ``||b - A x|| / (||A|| ||x||)`` in infinity norms for each right-hand side, recomputed in FP64
        from the x that is returned.  Where a structure was asserted by `assume_a`, A is the matrix that is
        read under it: what it takes for zero, or for a mirror image, is not looked at.
    bound : float
        What the backward error had to meet: unit roundoff of the result type times sqrt(n).
    rcond : float
        Estimate of the reciprocal condition number in the 1-norm; see `Factorization.rcond`.  NaN where the
        factors cannot tell it (CONDITION_UNKNOWN).  Of a stack the least one.
    history : tuple of HistoryPoint
        For each recomputed residual and each inner step of FGMRES (rung, step, error, estimated), where step
        counts the corrections of each right-hand side over all rungs.
    seconds : dict of str to float
        Time of each phase: 'check', 'transfer', 'scale', 'factor', 'refine', 'rcond'; and the 'total'.  The
        total may differ from the sum of the phases.  On a GPU the condition is estimated during the
        refinement, and 'rcond' is the time that it needs after that; a rung that the estimate needs counts
        in 'factor' as well.
    bytes_planned : int
        Bytes on the device that solved, beyond the arguments unless these had to be copied there: the most
        that any rung was predicted to take.  This is predicted, and compared with the free memory, before the
        rung allocates.  After the solve, the bytes that slow refinement kept are added: combined iterates and
        bases of FGMRES; so is the scaled copy of a matrix with extreme entries.  For 1000 unknowns and more
        and few right-hand sides, the bytes used are within a few percent of this number.
    device : str
        'cpu' or 'cuda'.
    statuses : ndarray of Status, shape (...)
        The status of each matrix of a stack; `status` is the worst of them.  Shape () for one matrix.
    rconds : ndarray of float64, shape (...)
        rcond of each matrix of a stack.

    Notes
    -----
    Two solutions are equal if they are the same object.
    """

    x: Any
    status: Status
    precision: str
    rungs: tuple
    iterations: Any
    backward_error: Any
    bound: float
    rcond: float
    history: tuple = ()
    seconds: dict = field(default_factory=dict)
    bytes_planned: int = 0
    device: str = "cpu"
    statuses: Any = None
    rconds: Any = None

    # `Solution[ndarray]` in annotations; the type of x is in the types of the package alone.
    __class_getitem__ = classmethod(GenericAlias)

    def __post_init__(self):
        for name, one in (("statuses", self.status), ("rconds", self.rcond)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.array(one))

    def __str__(self):
        worst = _worst(self.backward_error)
        steps = int(max(self.iterations.ravel(), default=0))
        return (
            f"{self.status.name.lower()}: precision {self.precision} "
            f"(tried {', '.join(self.rungs)}), {steps} steps, backward error {worst:.1e} "
            f"(bound {self.bound:.1e}), rcond {self.rcond:.1e}, {self.seconds.get('total', 0):.3g} s"
        )


def contradicted(solution, apart):
    """Return the `Solution`, its statuses telling where entries that were not read contradict the structure.

    apart, of the shape of the statuses, tells for which matrices they do.
    """
    if not apart.any():
        return solution
    codes = np.vectorize(code_of, otypes=[int])(solution.statuses)
    # The code of a worse status is larger.
    codes = np.maximum(codes, np.where(apart, code_of(Status.NOT_AS_ASSERTED), 0))
    return replace(solution, **of_slices(codes, solution.rconds))


def _worst(errors):
    """Return the largest, NaN if there is one, 0 if there are none."""
    return float(np.max(errors, initial=0.0))


def raise_or_warn(solution, stacklevel=3):
    """Raise or warn as scipy.linalg.solve would, and where its answer would be silently worse.

    SingularError for an exactly zero pivot, NotPositiveDefiniteError for a Cholesky factorization that breaks
    down (SciPy calls both matrices singular), LinAlgWarning with rcond for a matrix that is singular to
    working precision (or holds NaN), AccuracyWarning for an answer that misses the bound.
    """
    status = solution.status
    if status in (Status.CONVERGED, Status.CONVERGED_AFTER_FALLBACK):
        return
    which = _first_bad(solution)
    if status is Status.SINGULAR:
        raise SingularError(f"A singular matrix detected{which}. {status.value}")
    if status is Status.NOT_POSITIVE_DEFINITE:
        raise NotPositiveDefiniteError(f"A singular matrix detected{which}. {status.value}")
    if status in MISSED:
        error = _worst(solution.backward_error)
        warnings.warn(
            f"backward error {error:.1e}, bound {solution.bound:.1e}, rcond {solution.rcond:.1e}{which}: "
            + status.value,
            AccuracyWarning,
            stacklevel=stacklevel,
        )
    elif status in (Status.ILL_CONDITIONED, Status.CONDITION_UNKNOWN) or (
        status is Status.NONFINITE_INPUT and solution.rcond == 0
    ):
        warnings.warn(
            f"Ill-conditioned matrix detected: rcond = {solution.rcond}{which}. {status.value}",
            LinAlgWarning,
            stacklevel=stacklevel,
        )


def _first_bad(solution):
    """Return the words that name the first matrix of a stack with the worst status; none for one matrix."""
    if not solution.statuses.ndim:
        return ""
    index = np.argwhere(solution.statuses == solution.status)[0].tolist()
    return f" in slice {tuple(index) if len(index) > 1 else index[0]} of the stack"
