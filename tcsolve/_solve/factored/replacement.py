"""When FP64 factors replace those in FP32, because a `Factorization` has solved often.

FP32 factors take half the time to compute, but each solve with them takes longer.  The number of solves is
not known in advance.  So the time that the solves have lost is added up.  When it reaches the time by
which an FP64 factorization takes longer than one in FP32, the next solve factors in FP64.  Then both
factorizations and all solves take at most twice the time of the better choice in hindsight [1]_.  The times
are predicted from the sizes and the numbers of steps.  They are not measured, so that the same calls give the
same bits.

References
----------
.. [1] A. R. Karlin, M. S. Manasse, L. Rudolph, D. D. Sleator, Algorithmica 3 (1988), 79-119.
"""

from dataclasses import dataclass

from tcsolve._solve.choice.cost_model import CPU, factor_cost, pass_cost

__all__ = ["Replacement"]


@dataclass
class Replacement:
    """The solves of a `Factorization` with FP32 factors, and the time that they have lost.

    Attributes
    ----------
    allowed : bool
        Whether the factors may be replaced: on the host, for a matrix in FP64, if the caller has named no
        precision, allows a fallback, and has not asked for 'cg'.
    solves : int
        Number of solves with these factors so far.
    lost : float
        Predicted seconds that FP64 factors would have saved in these solves.
    after : int or None
        The number of solves after which the factors were replaced.
    """

    allowed: bool
    solves: int = 0
    lost: float = 0.0
    after: int | None = None

    @classmethod
    def of(cls, ladder, precision):
        """Return the `Replacement` for a `Ladder` and the `precision` that the caller gave."""
        system, asked = ladder.system, getattr(precision, "update", precision)
        is_free = asked == "auto" and ladder.plan.fallback and ladder.plan.method != "cg"
        return cls(is_free and system.ops.device == "cpu" and system.working == "fp64")

    def begin(self, ladder, condition):
        """Replace the factors if `lost` is at least the additional time of FP64 factors.

        Return a note, or '' if nothing was replaced.
        """
        if not (self.allowed and ladder.precision == "fp32"):
            return ""
        system = ladder.system
        how = len(system.a), CPU
        low, high = (factor_cost(x, *how, is_complex=system.is_complex) for x in ("fp32", "fp64"))
        if self.lost < high - low:
            return ""
        self.allowed, made = False, ladder.made
        try:
            ladder.replace_by_fp64()
        except MemoryError:  # the present factors are good enough
            return ""
        if ladder.precision != "fp64":
            return ""
        condition.keep(made)
        self.after = self.solves
        return f"fp64 factors replaced the fp32 factors after {self.solves} solves"

    def count(self, ladder, steps):
        """Count a solve with these numbers of corrections, one for each right-hand side."""
        if not (self.allowed and ladder.precision == "fp32" and steps.size):
            return
        system = ladder.system
        size = len(system.a), steps.size, CPU
        low, high = (pass_cost(x, *size, is_complex=system.is_complex) for x in ("fp32", "fp64"))
        # The first x takes one pass, and so does each correction.  Good FP64 factors need no correction.
        self.solves += 1
        self.lost += max(0.0, (1 + int(steps.max())) * low - high)
