"""`Solution` and `Status`: the result of every solve."""

import math
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from types import GenericAlias
from typing import Any, NamedTuple

import numpy as np

from tcsolve._arrays import as_host, is_cupy
from tcsolve._report import as_text

__all__ = [
    "MISSED",
    "HistoryPoint",
    "Solution",
    "Status",
    "code_of",
    "contradicted",
    "distinct",
    "of_slices",
    "plain",
]


class HistoryPoint(NamedTuple):
    """One entry of `Solution.history`.

    Attributes
    ----------
    rung : str
        The update of the factors that gave the correction.
    step : ndarray of int, shape (nrhs,), or (..., nrhs) for a stack
        Number of corrections of each right-hand side so far, over all rungs.
    error : ndarray of float64, shape (nrhs,), or (..., nrhs) for a stack
        Smallest backward error of each right-hand side so far, with the factors of this rung.  If rows and
        columns are scaled, it is the larger one of two errors: that of the given and of the scaled system.
        After an inner step, the error is a prediction: FGMRES predicts the residual by its least-squares
        problem, and CG updates it.  GMRES predicts the preconditioned residual, and the error is assumed to
        fall by the same factor.  The next recomputed residual may show another error.
    estimated : bool
        False if `error` comes from a recomputed residual, True if an inner step predicted it.
    """

    rung: str
    step: Any
    error: Any
    estimated: bool


class Status(Enum):
    """The outcome of a solve; the value of each member is a message that says what to do.

    Attributes
    ----------
    value : str
        The message.
    ok : bool
        True if the answer meets the bound, is as accurate as was asked for, and A agrees with `assume_a`.

    Examples
    --------
    >>> import tcsolve
    >>> status = tcsolve.solve_ex([[1.0, 2], [2, 4]], [1.0, 2]).status
    >>> status is tcsolve.Status.SINGULAR, status.ok
    (True, False)
    """

    CONVERGED = "The backward error meets the bound; nothing needs to be done."
    CONVERGED_AFTER_FALLBACK = (
        "The backward error meets the bound, but the first precision was too low for this matrix and a more "
        "precise factorization was needed; ask for the precision that succeeded to save the time."
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
        "Refinement stalled before x met the bound, or the rounded matrix has a zero pivot, and there is no "
        "fallback; with solve, allow a fallback or choose a more precise update; with refine, give a better "
        "function `correct`."
    )
    NOT_CONVERGED = (
        "x misses the bound even with the most precise factorization; it is the best answer found, so judge "
        "it by backward_error; scaling the problem may help."
    )
    NOT_ACCURATE = (
        "The backward error meets the bound, but refinement with double-double residuals stalled before x "
        "was accurate to its last bits, because A is too ill-conditioned for its factors; forward_error "
        "estimates the error of x: allow a fallback to FP64 factors, or give Plan a larger basis."
    )
    SINGULAR = (
        "A pivot is exactly zero, so the matrix is singular to working precision; "
        "use a least-squares solver, or remove the dependent row or column."
    )
    NOT_POSITIVE_DEFINITE = (
        "A Cholesky factorization broke down, so the matrix is not positive definite, or singular to working "
        "precision; leave assume_a out, or give 'symmetric' or 'hermitian'."
    )
    NOT_AS_ASSERTED = (
        "The backward error meets the bound for the matrix that assume_a describes, but other entries of "
        "A contradict assume_a, so x may not solve the system with the whole matrix; leave assume_a out, or "
        "clear these entries."
    )
    NONFINITE_INPUT = (
        "a or b holds NaN or Inf, so x does too; clean the data (check_finite=True finds it)."
    )
    OVERFLOW = (
        "The solution has entries beyond the largest number of its dtype; scale a or b by a power "
        "of two and undo it in x."
    )
    UNDERFLOW = (
        "The solution is so small that its dtype keeps few of its digits, or none; scale a or b by a "
        "power of two and undo it in x."
    )

    @property
    def ok(self):
        """True if x meets the bound, is as accurate as was asked for, and A agrees with `assume_a`."""
        return self in (
            Status.CONVERGED,
            Status.CONVERGED_AFTER_FALLBACK,
            Status.ILL_CONDITIONED,
            Status.CONDITION_UNKNOWN,
        )


# From the mildest to the worst status.  A stack has the worst status of its matrices.
SEVERITY = (
    Status.CONVERGED,
    Status.CONVERGED_AFTER_FALLBACK,
    Status.CONDITION_UNKNOWN,
    Status.ILL_CONDITIONED,
    Status.NOT_ACCURATE,
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
    """Return an integer for a `Status`, to store in arrays; a worse status has a larger integer."""
    return SEVERITY.index(status)


def distinct(values):
    """Return an array, or only its first entry (still as an array) if all its strides are 0."""
    repeats = values.size and not any(values.strides)
    return values[(slice(1),) * values.ndim] if repeats else values


def of_slices(codes, rconds):
    """Return the fields status, statuses, rcond and rconds of the `Solution` of a stack.

    Parameters
    ----------
    codes : ndarray of int, shape (...)
        `code_of` the status of each matrix.
    rconds : ndarray of float64, shape (...)
    """
    worst = np.max(codes, initial=0)
    if worst == 0:  # nearly always: one object stands for all
        statuses = np.broadcast_to(_BY_CODE[0], codes.shape)
    else:
        statuses = np.asarray(_BY_CODE[codes], dtype=object)
    return {
        "status": SEVERITY[worst],
        "statuses": statuses,
        "rcond": float(np.fmin.reduce(rconds, axis=None, initial=np.nan)),
        "rconds": rconds,
    }


# `solve` gives an AccuracyWarning for these.  SciPy does not check for them.
MISSED = (
    Status.NOT_ACCURATE,
    Status.NOT_AS_ASSERTED,
    Status.UNDERFLOW,
    Status.OVERFLOW,
    Status.STALLED,
    Status.NOT_CONVERGED,
)


@dataclass(frozen=True, eq=False)
class Solution:
    """The answer of a solve, with its status, its errors and the way in which it was computed.

    Attributes
    ----------
    x : ndarray, shape (..., n) or (..., n, nrhs)
        The solution; NumPy or CuPy, as the arguments.
    status : Status
        The outcome; its value is a message.
    precision : str
        The update of the factors that gave x: 'fp16', 'fp16x3', ..., 'fp64'.  For a stack with different
        updates, their names joined by '+', or, for large matrices on a GPU, the update of the matrix that
        tried the most updates.  'user' if the caller supplied the corrections.
    rungs : tuple of str
        Every update that was tried, in order.
    iterations : ndarray of int, shape (..., nrhs)
        Number of corrections of each right-hand side, over all rungs: steps of classical refinement plus
        inner steps of FGMRES, GMRES or CG.
    backward_error : ndarray of float64, shape (..., nrhs)
        ``||b - A x|| / (||A|| ||x||)`` in infinity norms for each right-hand side, recomputed in FP64
        from the returned x.  For more than 32 unknowns, the rounding of this residual changes the number,
        usually by less than `bound`, in the worst case by n units of roundoff.  If `assume_a`
        asserts a structure, A is the matrix that it describes: the entries that the structure ignores do not
        count.
    bound : float
        Largest backward error of a verified answer: the unit roundoff of x's dtype times sqrt(n).  An n
        below 4 counts as 4, and for complex systems an n below 8 as 8.  With `refine(tol=...)`, it is `tol`.
        For an empty system, it may be 0.
    rcond : float
        Estimate of the reciprocal condition number in the 1-norm; see `Factorization.rcond`.  NaN if it is
        not known: with CONDITION_UNKNOWN or NOT_POSITIVE_DEFINITE, after `refine`, for an empty system, and
        sometimes with another status that is not `ok`, such as STALLED or NONFINITE_INPUT.  For a stack, the
        smallest one.
    history : tuple of HistoryPoint
        One entry for each x whose error the loop of refinement measures, and for each inner step of a Krylov
        method.  The last entry has the errors `backward_error`.  Corrections by double-double residuals have
        no entries of their own.  A stack has only the last entry, and so has a system that LAPACK or a GPU
        solves in FP64 without the loop of refinement.  A real A with a complex b may have only the last
        entry, too.  The history may be empty if x has no entries, or the status is SINGULAR,
        NOT_POSITIVE_DEFINITE or NONFINITE_INPUT.
    seconds : dict of str to float
        Time of each phase: 'check', 'transfer', 'scale', 'factor', 'refine', 'rcond', and the 'total'.
        Phases that were not timed have no key.  A stack, and a system that a GPU solves in FP64 without the
        loop of refinement, has one phase, 'solve' or 'factor', for all but 'transfer'.  The total may differ
        from the sum of the phases.  If a GPU estimates the condition during the refinement, 'rcond' is only
        the time after it.  If the estimate needs a more precise factorization, 'factor' includes the time of
        that factorization too.
    bytes_planned : int
        Predicted peak of the memory that the solve takes on its device, in bytes.  Arguments count only if
        they are copied there.  On a GPU, the prediction of a rung is compared with the free memory before the
        rung allocates.  The bytes of Krylov bases and of a scaled copy of A are not part of this comparison;
        they are added to the number.  The number is no upper bound: for n from 4096 to 32768 measured
        peaks were up to 1 % above it, and up to 5 % with another allocator than CuPy's default pool.
    device : str
        'cpu' or 'cuda'.
    statuses : ndarray of Status, shape (...)
        The status of each matrix of a stack; `status` is the worst of them.  Shape () for one matrix.
    rconds : ndarray of float64, shape (...)
        rcond of each matrix of a stack.
    forward_error : ndarray of float64, shape (..., nrhs), or None
        Estimate of the largest error of x relative to its largest entry, for each right-hand side.  NaN if
        rcond is unknown or x misses the bound.  None if the residual was not 'double-double', if A is
        singular, not finite or not positive definite as asserted, if every factorization broke down, if no
        column of b is finite, if the system is empty, or if A has one entry, by which `solve_ex` divides b.
        For singular matrices of a stack it is NaN.
    note : str
        A sentence if this solve has replaced the factors of a `Factorization` by FP64 factors; else empty.

    Notes
    -----
    Two solutions are equal only if they are the same object.

    Examples
    --------
    >>> import tcsolve
    >>> solution = tcsolve.solve_ex([[2.0, 1], [1, 3]], [3.0, 4])
    >>> solution.status.name, solution.precision, bool(solution.backward_error[0] <= solution.bound)
    ('CONVERGED', 'fp64', True)
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
    forward_error: Any = None
    note: str = ""

    # Allows `Solution[ndarray]` in annotations; only the type stubs of the package use the type of x.
    __class_getitem__ = classmethod(GenericAlias)

    def __post_init__(self):
        if self.statuses is None:
            object.__setattr__(self, "statuses", np.array(self.status))
        if self.rconds is None:
            object.__setattr__(self, "rconds", np.array(self.rcond))

    def to_dict(self):
        """Return all fields as a dict of types that JSON has.

        Returns
        -------
        dict
            Arrays become lists, also those on a device.  A complex number becomes [real, imaginary], a status
            its name, and NaN or an infinity None.

        Examples
        --------
        >>> import json, tcsolve
        >>> report = tcsolve.solve_ex([[2.0, 1], [1, 3]], [3.0, 4]).to_dict()
        >>> json.loads(json.dumps(report))["status"]
        'CONVERGED'
        """
        return {one.name: plain(getattr(self, one.name)) for one in fields(self)}

    def __str__(self):
        return as_text(self)


def plain(value):
    """Return value with only types that JSON has; NaN and infinity become None, which JSON writes as null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.name
    if is_cupy(value) or isinstance(value, np.ndarray | np.generic):
        return plain(as_host(value).tolist())
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def contradicted(solution, apart):
    """Return the `Solution` with NOT_AS_ASSERTED for matrices that contradict the asserted structure.

    `apart` is a Boolean array of the shape of the statuses: True for such matrices.  A worse status stays.
    """
    if not (distinct(apart).any() if apart.ndim else apart):
        return solution
    codes = np.vectorize(code_of, otypes=[int])(solution.statuses)
    # A worse status has a larger code, so the maximum keeps it.
    codes = np.maximum(codes, np.where(apart, code_of(Status.NOT_AS_ASSERTED), 0))
    return replace(solution, **of_slices(codes, solution.rconds))
