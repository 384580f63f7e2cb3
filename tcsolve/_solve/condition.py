"""The condition number of a matrix, by the factors of the present rung."""

import contextlib
import functools
import math
from typing import Any, NamedTuple

import numpy as np

from tcsolve._arithmetic.formats import UPDATES
from tcsolve._arithmetic.matrix_parts import real_parts
from tcsolve._errors import DeviceMemoryError
from tcsolve._lu.norms import begin_condest, condest, hold, joined, sweeps_at_once
from tcsolve._lu.scaling import FRAME_EXPONENT, ldexp
from tcsolve._refine import stopping
from tcsolve._solve.ladder import Ladder, in_turn

__all__ = ["Conditioned"]

# Factors see condition numbers up to about 1 / u; this far below, their own estimate is trusted.
TRUST = 0.1
# Roundoff below which factors may vouch for the estimate where it is near that; how much of what they find
# may be an error of theirs, up to so many unknowns: rounding errors add up.
FINE, DOUBTED = 2.0**-15, ((16384, 0.1), (math.inf, 0.3))
# Sampled estimates are good to a factor of sqrt(n); this near to machine epsilon only FP64 decides.
NEAR_SINGULAR = 1000
EPS = {"fp32": float(np.finfo(np.float32).eps), "fp64": float(np.finfo(np.float64).eps)}
# Seed and number of the random right-hand sides that estimate a condition beyond that of the factors.
SAMPLE_SEED, SAMPLES = 0, 2


class _Near(NamedTuple):
    """A 2**-exponent, whose condition is that of A, and its 1-norm."""

    a: Any
    norm: float
    exponent: int = 0


class Conditioned(Ladder):
    """A ladder that estimates the condition, and climbs where factors are too coarse to see it."""

    @in_turn
    def rcond(self):
        """Estimate the reciprocal condition number in the 1-norm.

        Returns
        -------
        float
            From the factors by Higham's estimator (an upper bound of the true value, nearly always
            within a factor of 3).  Factors of roundoff u cannot see below about u: where their estimate
            comes near it, and their smallest singular value may not be one of A, the inverse is sampled
            by refined solves instead, for two random right-hand sides and for the unit vector of the largest
            column that the factors show (good to about sqrt(n)), and if even these do not converge, or find
            A singular to working precision, the matrix is factored in FP64; NaN if the plan forbids that.
        """
        if self._rcond is None:
            self._restore()
            rcond = self._estimate_rcond()
            self._rcond = min(rcond, 1.0) if rcond == rcond else rcond
        return self._rcond

    @property
    def _as_given(self):
        """Whether the factors are those of the caller's matrix, neither moved nor scaled."""
        return self._frame is None and self._scales_for(UPDATES[self.precision])[0] is None

    def _begin_estimate(self, count):
        """Start the solves of the condition estimate beside those of the refinement, if it is needed.

        What they are worth is found there, too, if there is one right-hand side: the refinement of `count` of
        them multiplies by the same handle of cuBLAS, which gives the same bits each time in one stream only.
        """
        if self._least_rcond or self._rcond is not None or self._estimate:
            return
        if not self._finite or not self._as_given:
            return
        n, how = self.shape[0], UPDATES[self.precision]
        if how.native:  # its library may have an estimator
            return

        sweeps = sweeps_at_once(n, self._survey.dominance > 0)

        def begin():
            adjoint = functools.partial(self._invert, adjoint=True)
            found, rest = begin_condest(self._ops, n, self._invert, adjoint, sweeps)
            return found, (rest, joined(xp, *rest))

        a, xp = self._a, self._ops.xp
        # Others are copied for a product, which takes memory.
        plain = a.dtype.char == "d" and (a.flags.c_contiguous or a.flags.f_contiguous)

        def then(found, both):
            rest, block = both
            if plain and count == 1:
                found = xp.concatenate([found, hold(self._ops, a, *block)])
            return found, rest

        with contextlib.suppress(DeviceMemoryError):  # what is not begun now is done later
            self._estimate = self._factors.aside(("condest", sweeps), begin, then)

    def _estimate_rcond(self, near=None):
        if not self._finite or self._singular():
            return 0.0
        if self._bad_pivot():
            return self._estimate_rcond(near) if self._climb() else math.nan
        n, near, how = self.shape[0], near or self._near_one(), UPDATES[self.precision]
        if near.a is not self._a:
            self._note_bytes(1, near.a.nbytes)
        rcond = self._factors.gecon(near.norm) if self._as_given else None
        own = self._condest(near) if rcond is None else None
        rcond = own.rcond if own else rcond
        if how.storage == "float64":
            return rcond
        # Far above u an estimate is only wrong where pivots have grown by as much as they hardly ever do: for
        # that one looks where it costs little.
        well = rcond > how.u / TRUST
        # Where rows or columns were scaled what is held against A may tell of that alone: it does not vouch.
        if own if well else self._as_given and how.u < FINE:
            own = own or self._condest(near)  # the library looks at its factors alone
            wanted = next(doubt for most, doubt in DOUBTED if n <= most)
            if own.doubt(wanted) <= wanted:
                return rcond
        elif well:
            return rcond
        # A rough sample suffices if it agrees with the factors: its own error is then below 1 %.
        bound = stopping.target(self.dtype, n)
        column = own and own.column
        sample = self._sampled_rcond(n, near, max(bound, 0.01 * rcond), column)
        if sample is None or sample < 0.1 * rcond:
            sample = self._sampled_rcond(n, near, bound, column)
        if sample is not None and sample > NEAR_SINGULAR * EPS[self._working]:
            return sample
        if self._climb():
            return self._estimate_rcond(near)
        return math.nan  # the factors cannot tell, and the plan forbids finer ones

    def _near_one(self):
        """Return A, or where norms and inverses may leave the range A times a power of two."""
        if self._frame is None:
            return _Near(self._a, self._norm_one)
        ops = self._ops
        rows = [ops.row_max(part).max() for part in real_parts(self._a)]
        _, exponent = math.frexp(max(x.item() for x in ops.host(*rows)))
        if abs(exponent) <= FRAME_EXPONENT:
            return _Near(self._a, self._norm_one)
        a = ldexp(ops.xp, self._a, -exponent)
        return _Near(a, float(ops.host(ops.stats(a).col_sum.max())[0]), exponent)

    def _condest(self, near):
        """Return the `Condition` by our own estimator, which may have begun before."""
        begun = self._drop_estimate()
        begun = begun if begun and self._factors.are_good else None
        invert = functools.partial(self._invert, exponent=near.exponent)
        adjoint = functools.partial(invert, adjoint=True)
        return condest(self._ops, near.a, near.norm, invert, adjoint, begun)

    def _sampled_rcond(self, n, near, bound, column):
        """Return 1 / (||A||_1 ||A^-1 g||) for random g, or None if the solves miss the bound.

        ||A^-1 g||_2 of a Gaussian g is ||A^-1||_F on average (C. S. Kenney, A. J. Laub, SIAM J. Sci.
        Comput. 15 (1994), 36-61).  A column of A^-1, if one is named, counts if its 1-norm is larger.
        """
        rng = np.random.default_rng(SAMPLE_SEED)
        g = rng.standard_normal((n, SAMPLES)).astype(np.complex128 if self._complex else np.float64)
        if column is not None:
            g = np.hstack([g, np.eye(n, 1, -column)])
        g = self._ops.array(g)
        if self._frame is not None:
            g, shift = self._frame.inside(self._ops.xp, g)
        state = self._refine(g, bound)
        if not state.all_converged:
            return None
        x = state.x
        if self._frame is not None:
            x = self._frame.outside(self._ops.xp, x, shift + near.exponent)
        # Divided by its largest entry first: squares of x itself may leave the range of FP64.
        top, xp = self._ops.column_max(x), self._ops.xp
        with np.errstate(all="ignore"):
            part = xp.abs(x / top)
            top, length, whole = self._ops.host(top, xp.linalg.norm(part, axis=0), part.sum(axis=0))
            most = top.max()
            scaled = length[:SAMPLES] * (top[:SAMPLES] / most)
            of_column = (whole * (top / most))[SAMPLES:]
            estimate = float(most * np.max([np.sqrt(np.mean(scaled**2)), *of_column]))
            return float(np.float64(1) / near.norm / estimate) if estimate > 0 else None
