"""A system: the matrix of the caller, what the survey tells about it, and how it is scaled."""

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tcsolve._cached import cached_property
from tcsolve._contract.schedule import goes_early
from tcsolve._lu.norms import Survey, survey
from tcsolve._lu.scaling import (
    FRAME_EXPONENT,
    Frame,
    Scaling,
    equilibrate,
    ldexp,
    needs_frame,
    needs_scaling,
    norm_and_exponent,
)
from tcsolve._refine.operator import Operator

__all__ = ["Near", "System", "expects_dominance"]

# Rounding errors of the dominance, relative to the largest row sum.
DOMINANCE_LOST = 2.0**-30


def expects_dominance(ops, a, survey):
    """Tell whether the pivots of an LU of a are expected on its diagonal.

    The answer is False if the LU may start before the survey is read (or `survey` is None), so that equal
    input gives equal bits.  Else it is True if each |a_ii| is at least the sum of the other |a_ij| of its
    row, up to rounding, and more than half the sum of the others of its column.
    """
    if survey is None or goes_early(a, ops.early_rows):
        return False
    return survey.dominance >= -DOMINANCE_LOST * survey.inf and survey.column_dominance > 0


@dataclass(frozen=True)
class Near:
    """The matrix A 2**-exponent and its 1-norm; its condition number is that of A."""

    a: Any
    norm: float
    exponent: int = 0


@dataclass(frozen=True, eq=False)
class System:
    """The matrix of the caller, its survey and its scaling; `surveyed` and `scaled` return a new system.

    Attributes
    ----------
    ops : Ops
    a : array, shape (n, n)
        The matrix of the caller.
    matrix : array, shape (n, n)
        The matrix that residuals are computed with: a itself, or, if there is a frame, the scaled copy of a.
        It is also the matrix that is factored, except that with a `scaling`, factors less precise than FP64
        are those of a scaled copy.
    survey : Survey or None
        That of `matrix`; None before it is read.
    norm_one, norm_inf : float
        The norms of a.
    finite : bool
        Whether a holds neither NaN nor Inf.
    scaling : Scaling or None
        The scaling of a badly scaled matrix, for factors less precise than FP64.
    frame : Frame or None
        The scaled system, if a has extreme entries.
    caller_norm : (float, int) or None
        `norm_and_exponent` of a, if there is a frame.
    """

    ops: Any
    a: Any
    matrix: Any
    survey: Survey | None = None
    norm_one: float = math.nan
    norm_inf: float = math.nan
    finite: bool = True
    scaling: Scaling | None = None
    frame: Frame | None = None
    caller_norm: tuple | None = None

    def surveyed(self, survey):
        """Return the system with the survey of a."""
        finite = survey.finite or bool(self.ops.xp.isfinite(self.a).all())
        return replace(self, survey=survey, norm_one=survey.one, norm_inf=survey.inf, finite=finite)

    def scaled(self, may_scale):
        """Return the system in a `Frame` if A has extreme entries.

        If A is only badly scaled, and `may_scale`, return the system with a `Scaling`.
        """
        ops = self.ops
        if not self.finite:
            return self
        if needs_frame(self.survey):
            frame = Frame(equilibrate(ops, self.a))
            norm = norm_and_exponent(ops, self.a)
            matrix = frame.matrix(ops, self.a)
            found = survey(ops, matrix)
            return replace(self, frame=frame, matrix=matrix, survey=found, caller_norm=norm)
        if may_scale and needs_scaling(self.survey):
            return replace(self, scaling=equilibrate(ops, self.a))
        return self

    @property
    def is_complex(self):
        return self.a.dtype.kind == "c"

    @property
    def is_plain(self):
        """Whether A is finite, and factored as it is."""
        return self.finite and self.frame is None and self.scaling is None

    @property
    def working(self):
        """The precision of an answer in the dtype of A: 'fp32' or 'fp64'."""
        return "fp32" if self.a.dtype.char in "fF" else "fp64"

    @property
    def wide(self):
        """The FP64 dtype, real or complex, in which the system is solved."""
        return np.dtype(np.complex128 if self.is_complex else np.float64)

    @property
    def has_zero_line(self):
        """Whether a row or a column of A is zero."""
        survey = self.survey
        return survey.inf == 0 or survey.row_spread == 0 or survey.col_spread == 0

    @cached_property
    def expects_dominance(self):
        """Whether `factor_blocked` should expect the pivots on the diagonal."""
        if self.is_complex or self.scaling is not None:
            return False
        return expects_dominance(self.ops, self.a, self.survey)

    def scaling_for(self, how):
        """Return the `Scaling` of factors of an `Update`, or None."""
        # FP64 factors need no scaling; SciPy does not scale either.
        return None if how.storage == "float64" else self.scaling

    def least_rcond(self):
        """Return the lower bound of rcond of a dominant A if it is at least machine epsilon, else 0."""
        # For complex64 the survey may have rounded the moduli to FP32, so its bound is not valid.
        if not self.finite or self.frame is not None or self.a.dtype.char == "F":
            return 0.0
        least = self.survey.least_rcond(self.a.shape[0])
        return least if least >= np.finfo(self.a.dtype).eps else 0.0

    def operator(self, scaling, scaled_norm):
        """Return the `Operator` for the refinement with factors that have this scaling."""
        outer = None
        if self.frame is not None:
            outer = functools.partial(self.frame.backward_error, self.ops, self.caller_norm)
        of_scaled = None if scaling is None else (scaling.row, scaling.col, scaled_norm)
        return Operator.of(self.ops, self.matrix, self.survey.inf, of_scaled, outer)

    def invert(self, correct, v, adjoint=False, exponent=0):
        """Return approximately A**-1 v (or A**-H v) times 2**exponent, for the caller's A.

        `correct(v, adjoint)` does the same for `matrix`, without an exponent.  Without a frame, the exponent
        must be 0.
        """
        if self.frame is None:
            return correct(v, adjoint)
        frame = self.frame.swapped() if adjoint else self.frame
        inside, shift = frame.inside(self.ops.xp, v)
        return frame.outside(self.ops.xp, correct(inside, adjoint), shift + exponent)

    def near_one(self):
        """Return `Near` with A, or with A times a power of two if norms or inverses may leave the range."""
        ops, exponent = self.ops, 0 if self.frame is None else self.caller_norm[1]
        if abs(exponent) <= FRAME_EXPONENT:
            return Near(self.a, self.norm_one)
        a = ldexp(ops.xp, self.a, -exponent)
        return Near(a, float(ops.host(ops.row_stats(a.T).total.max())[0]), exponent)
