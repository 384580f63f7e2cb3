"""A ladder seen from the transposed matrix: the factors of A solve A^T x = b too."""

from dataclasses import replace

from tcsolve._lu.scaling import Scaling, norm_and_exponent
from tcsolve._solve.refine_rung import refine_with

__all__ = ["TransposedLadder"]


class TransposedLadder:
    """The `Ladder` of A^T, which shares its steps, factors and memory with the ladder of A.

    A `Solve` can use it as a ladder.  Attributes that are not defined here are those of the ladder of A.
    """

    def __init__(self, ladder):
        self.__dict__.update(_ladder=ladder, _of=None, _system=None)

    def __getattr__(self, name):
        return getattr(self._ladder, name)

    def __setattr__(self, name, value):
        setattr(self._ladder, name, value)

    @property
    def system(self):
        """The `System` of A^T."""
        system = self._ladder.system
        if system is not self._of:
            self.__dict__.update(_of=system, _system=_transposed_system(system))
        return self._system

    @property
    def rung(self):
        """The `TransposedRung` of the current rung, or None."""
        rung = self._ladder.rung
        return rung and TransposedRung(self, rung)

    def make_valid(self):
        """As `Ladder.make_valid`."""
        self._ladder.make_valid()
        return self.rung

    def ahead(self, rhs):
        """Return None: no step is started before the factors are read."""
        return None

    def invert(self, v, adjoint=False, exponent=0):
        """Return approximately A^-T v times 2**exponent; see `System.invert`."""
        return self.system.invert(self.rung.correct, v, adjoint, exponent)

    @property
    def operator(self):
        """The `Operator` of the refinement with the current factors."""
        rung = self.rung
        return self.system.operator(rung.scaling, rung.scaled_norm)

    def widened(self):
        """As `Ladder.widened`."""
        return TransposedRung(self, self._ladder.widened())

    def refine(self, rhs, bound, ahead=None, *, operator=None, precondition=None):
        """As `Ladder.refine`."""
        how = {"operator": operator, "precondition": precondition}
        return refine_with(self, rhs, bound, ahead, **how)


class TransposedRung:
    """The factors of A, as those of A^T."""

    def __init__(self, ladder, rung):
        self._system, self._rung = ladder.system, rung
        self.bad_pivot = rung.bad_pivot
        self.scaling = _swapped(rung.scaling)

    @property
    def native(self):
        """As `Rung.native`; None for complex factors, whose adjoint is not their transpose."""
        return (None if self._system.is_complex else self._rung.native[0]), True

    def correct(self, r, adjoint=False):
        """Return approximately A^-T r (or the inverse of conj(A) times r) for FP64 r (n, k)."""
        if r.dtype.kind != "c":
            return self._rung.correct(r, not adjoint)
        return self._rung.correct(r.conj(), not adjoint).conj()

    @property
    def scaled_norm(self):
        """The infinity norm of the scaled A^T, or 0 without scaling."""
        if self.scaling is None:
            return 0.0
        ops, sums = self._system.ops, self._system.ops.row_stats
        sizes = sums(self._system.matrix, self.scaling.col).total * self.scaling.row
        return float(ops.host(sizes.max())[0])


def _transposed_system(system):
    """Return the `System` of A^T, without a copy of A."""
    survey, a = system.survey, system.a.T
    turned = replace(
        survey,
        inf=survey.one,
        one=survey.inf,
        row_spread=survey.col_spread,
        col_spread=survey.row_spread,
    )
    frame, norm = system.frame, system.caller_norm
    if frame is not None:
        frame, norm = frame.swapped(), norm_and_exponent(system.ops, a)
    matrix = a if system.matrix is system.a else system.matrix.T
    return replace(
        system,
        a=a,
        matrix=matrix,
        survey=turned,
        norm_one=system.norm_inf,
        norm_inf=system.norm_one,
        scaling=_swapped(system.scaling),
        frame=frame,
        caller_norm=norm,
    )


def _swapped(scaling):
    return None if scaling is None else Scaling(scaling.col, scaling.row)
