"""The condition number of a matrix, estimated with its current factors."""

import contextlib
import functools
import math

import numpy as np

from tcsolve._arithmetic.matrix_parts import column_tops
from tcsolve._errors import DeviceMemoryError
from tcsolve._lu.norms import begin_condest, condest, hold, joined, sweeps_at_once
from tcsolve._refine import stopping
from tcsolve._solve.ladder.refine_rung import invert, refine_with

__all__ = ["ConditionEstimate"]

# Factors of roundoff u show condition numbers up to about 1 / u.  An estimate of rcond above u / TRUST is
# nearly always right.
TRUST = 0.1
# Below that, and if the roundoff of the factors is below FINE, an estimate is trusted if a test of the solves
# with A gives a small number: `doubt` of `_lu.norms.Condition`.  DOUBTED has pairs (largest n, largest
# doubt).  Rounding errors grow with n, and so does the doubt.
FINE, DOUBTED = 2.0**-15, ((16384, 0.1), (math.inf, 0.3))
# Sampled estimates are good to a factor of sqrt(n).  If one is at most this multiple of epsilon, rcond is
# estimated with the next rung instead.
NEAR_SINGULAR = 1000
EPS = {"fp32": float(np.finfo(np.float32).eps), "fp64": float(np.finfo(np.float64).eps)}
# Seed and number of the random right-hand sides of sampled estimates.
SAMPLE_SEED, SAMPLES = 0, 2


class ConditionEstimate:
    """The reciprocal condition number of A, estimated once with each factorization of a ladder.

    If the factors are too coarse for an estimate, the ladder takes its next rung.

    Attributes
    ----------
    least : float
        A lower bound of rcond that may replace the estimate, or 0.
    """

    def __init__(self, ladder, least):
        self.ladder, self.least = ladder, least
        self._known = None, None  # the number of the factorization, and its estimate

    def with_ladder(self, ladder):
        """Return a copy for a copy of the ladder."""
        twin = ConditionEstimate(ladder, self.least)
        twin._known = self._known
        return twin

    def keep(self, made):
        """Take the estimate of factorization number `made`, if there is one, for the present factors too."""
        if self._known[0] == made:
            self._known = self.ladder.made, self._known[1]

    def rcond(self):
        """Return the estimate; see `Factorization.rcond`."""
        if not self._is_known:
            self.ladder.restore()
            rcond = self._estimate()
            self._known = self.ladder.made, min(rcond, 1.0) if rcond == rcond else rcond
        return self._known[1]

    def begin(self, count):
        """If an estimate is needed, start its solves, which run during the refinement.

        With one right-hand side (`count`), the products with A that test the estimate (`_lu.norms.hold`) may
        run during the refinement, too.  With more, they do not: they and the refinement would use one cuBLAS
        handle in two streams.  Then cuBLAS might not give the same bits each time.
        """
        ladder, system = self.ladder, self.ladder.system
        if self.least or self._is_known or ladder.is_busy:
            return
        if not system.finite or not self._as_given:
            return
        # LAPACK has gecon.  With factors of cuSOLVER, the estimate is made after the refinement.
        if ladder.rung.how.native:
            return

        a, ops = system.a, system.ops
        sweeps = sweeps_at_once(len(a), system.survey.dominance > 0)

        def solve():
            forward = functools.partial(invert, ladder)
            adjoint = functools.partial(forward, adjoint=True)
            found, rest = begin_condest(ops, len(a), forward, adjoint, sweeps)
            return found, (rest, joined(ops.xp, *rest))

        # A product may copy a real A that is not in FP64 or not contiguous, and a copy takes memory.
        plain = a.dtype.char == "d" and (a.flags.c_contiguous or a.flags.f_contiguous)

        def then(found, both):
            rest, block = both
            if plain and count == 1:
                found = ops.xp.concatenate([found, hold(ops, a, *block)])
            return found, rest

        with contextlib.suppress(DeviceMemoryError):  # then the estimate runs after the refinement
            ladder.begin_aside(("condest", sweeps), solve, then)

    @property
    def _is_known(self):
        return self._known[0] == self.ladder.made

    @property
    def _as_given(self):
        """Whether the factors are those of the caller's matrix, without any scaling."""
        return self.ladder.system.frame is None and self.ladder.rung.scaling is None

    def _estimate(self, near=None):
        ladder, system = self.ladder, self.ladder.system
        if not system.finite or ladder.is_singular:
            return 0.0
        if ladder.make_valid().bad_pivot:
            return self._estimate(near) if ladder.climb() else math.nan
        # Do not keep the rung in a variable: the factors must be freed when the ladder climbs.
        n, near, how = len(system.a), near or system.near_one(), ladder.rung.how
        if near.a is not system.a:
            ladder.note_bytes(1, near.a.nbytes)
        rcond = ladder.rung.factors.gecon(near.norm) if self._as_given else None
        own = self._condest(near) if rcond is None else None
        rcond = own.rcond if own else rcond
        if ladder.rung.is_exact:
            return rcond
        # An estimate far above u is wrong only if entries have grown extremely in the LU, which is very rare.
        # If our own estimator has run, its `doubt` costs little, so it is computed here too.
        well = rcond > how.u / TRUST
        # With scaling, `doubt` may show only the effect of the scaling, so it cannot confirm an estimate near
        # u.
        if own if well else self._as_given and how.u < FINE:
            own = own or self._condest(near)  # gecon has no `doubt`
            wanted = next(doubt for most, doubt in DOUBTED if n <= most)
            if own.doubt(wanted) <= wanted:
                return rcond
        elif well:
            return rcond
        least = NEAR_SINGULAR * EPS[system.working]
        if not rcond <= least:  # for a smaller rcond, a sample would not change the decision
            sample = self._sampled(near, rcond, own and own.column)
            if sample is not None and sample > least:
                return sample
        # Climb to a rung whose roundoff is small enough to show this rcond.
        if ladder.climb(most=TRUST * rcond):
            return self._estimate(near)
        return math.nan  # the factors are too coarse, and the plan forbids more precise ones

    def _condest(self, near):
        """Return the `Condition` from our own estimator; its first solves may have been started before."""
        ladder = self.ladder
        begun = ladder.finish()
        begun = begun if begun and ladder.rung.factors.are_good else None
        forward = functools.partial(invert, ladder, exponent=near.exponent)
        adjoint = functools.partial(forward, adjoint=True)
        return condest(ladder.system.ops, near.a, near.norm, forward, adjoint, begun)

    def _sampled(self, near, rcond, column):
        """Return the `sampled_rcond` that may replace the estimate rcond, or None."""
        # Try solves with a loose bound first.  If the sample is about as large as rcond, the relative errors
        # of these solves are about 1 %; if it is 0.1 rcond, they are about 10 %.
        system = self.ladder.system
        bound = stopping.target(system.a.dtype, len(system.a))
        sample = sampled_rcond(self.ladder, near, max(bound, 0.01 * rcond), column)
        if sample is None or sample < 0.1 * rcond:
            sample = sampled_rcond(self.ladder, near, bound, column)
        return sample


def sampled_rcond(ladder, near, bound, column):
    """Return 1 / (||A||_1 ||A^-1 g||) for random g, or None if the solves miss the bound.

    For a Gaussian g, the root mean square of ||A^-1 g||_2 is ||A^-1||_F (C. S. Kenney, A. J. Laub, SIAM J.
    Sci. Comput. 15 (1994), 36-61).  If `column` is given, the 1-norm of that column of A^-1 is used if it is
    larger.
    """
    system, ops, xp = ladder.system, ladder.system.ops, ladder.system.ops.xp
    n, frame = len(system.a), system.frame
    g = np.random.default_rng(SAMPLE_SEED).standard_normal((n, SAMPLES)).astype(system.wide)
    if column is not None:
        g = np.hstack([g, np.eye(n, 1, -column)])
    g = ops.xp.asarray(g)
    if frame is not None:
        g, shift = frame.inside(xp, g)
    state = refine_with(ladder, g, bound)
    if not state.all_converged:
        return None
    x = state.x if frame is None else frame.outside(xp, state.x, shift + near.exponent)
    # Divide x by its largest entry first: the squares of x may overflow or underflow.
    top = column_tops(ops, x)
    with np.errstate(all="ignore"):
        part = xp.abs(x / top)
        top, length, whole = ops.host(top, xp.linalg.norm(part, axis=0), part.sum(axis=0))
        most = top.max()
        scaled = length[:SAMPLES] * (top[:SAMPLES] / most)
        of_column = (whole * (top / most))[SAMPLES:]
        estimate = float(most * np.max([np.sqrt(np.mean(scaled**2)), *of_column]))
        return float(np.float64(1) / near.norm / estimate) if estimate > 0 else None
