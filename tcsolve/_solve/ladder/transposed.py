"""The ladder of the transposed matrix: the factors of A solve A^T x = b too."""

from dataclasses import replace

from tcsolve._cached import cached_property
from tcsolve._lu.scaling import Scaling, norm_and_exponent

__all__ = ["TransposedLadder"]


class TransposedLadder:
    """The `Ladder` of A^T, which shares its rungs, factors and memory with the ladder of A.

    It has the attributes of a `Ladder` that a `Solve` uses.
    """

    def __init__(self, ladder):
        self._ladder = ladder

    plan = property(lambda self: self._ladder.plan)
    memory = property(lambda self: self._ladder.memory)
    phases = property(lambda self: self._ladder.phases)
    rates = property(lambda self: self._ladder.rates)
    rungs = property(lambda self: self._ladder.rungs)
    made = property(lambda self: self._ladder.made)
    precision = property(lambda self: self._ladder.precision)
    is_singular = property(lambda self: self._ladder.is_singular)

    @property
    def fell_back(self):
        """As `Ladder.fell_back`; the ladders of A and of its transpose share it."""
        return self._ladder.fell_back

    @fell_back.setter
    def fell_back(self, value):
        self._ladder.fell_back = value

    @cached_property
    def system(self):
        """The `System` of A^T."""
        return _transposed_system(self._ladder.system)

    @property
    def rung(self):
        """The `TransposedRung` of the current rung, or None."""
        rung = self._ladder.rung
        return rung and TransposedRung(self.system, rung)

    def restore(self):
        """As `Ladder.restore`."""
        self._ladder.restore()

    def make_valid(self):
        """As `Ladder.make_valid`."""
        return TransposedRung(self.system, self._ladder.make_valid())

    def climb(self, columns=1):
        """As `Ladder.climb`."""
        return self._ladder.climb(columns)

    def following(self, columns=1):
        """As `Ladder.following`."""
        return self._ladder.following(columns)

    def finish(self):
        """As `Ladder.finish`."""
        return self._ladder.finish()

    def ahead(self, rhs):
        """Return None: no step is started before the factors are read."""
        return None

    def widened(self):
        """As `Ladder.widened`."""
        return TransposedRung(self.system, self._ladder.widened())

    def note_bytes(self, nrhs, kept):
        """As `Ladder.note_bytes`."""
        self._ladder.note_bytes(nrhs, kept)


class TransposedRung:
    """The `Rung` of A^T: it solves with the factors of A."""

    def __init__(self, system, rung):
        self._system, self._rung = system, rung

    @property
    def bad_pivot(self):
        """As `Rung.bad_pivot`."""
        return self._rung.bad_pivot

    @property
    def scaling(self):
        """The `Scaling` of A^T, or None."""
        return _swapped(self._rung.scaling)

    @property
    def native(self):
        """As `Rung.native`; None for complex factors, whose adjoint is not their transpose."""
        return (None if self._system.is_complex else self._rung.native[0]), True

    def correct(self, r, adjoint=False):
        """Return approximately A^-T r (or the inverse of conj(A) times r) for FP64 r (n, k)."""
        if r.dtype.kind != "c":
            return self._rung.correct(r, not adjoint)
        return self._rung.correct(r.conj(), not adjoint).conj()

    def multiplied(self, ops, w):
        """As `Rung.multiplied`."""
        return self._rung.multiplied(ops, w, transposed=True)

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
    turned = survey._replace(
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
