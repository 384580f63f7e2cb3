"""The condition number of a matrix, estimated with its current factors."""

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

# Factors of roundoff u show condition numbers up to about 1 / u.  An estimate of rcond above u / TRUST is
# trusted.
TRUST = 0.1
# Below that, an estimate is confirmed by `Condition.doubt` if the roundoff of the factors is below FINE.
# DOUBTED has the largest doubt as (largest n, doubt); it grows with n, because rounding errors accumulate.
FINE, DOUBTED = 2.0**-15, ((16384, 0.1), (math.inf, 0.3))
# Sampled estimates are good to a factor of sqrt(n).  Below this multiple of epsilon the next rung decides.
NEAR_SINGULAR = 1000
EPS = {"fp32": float(np.finfo(np.float32).eps), "fp64": float(np.finfo(np.float64).eps)}
# Seed and number of the random right-hand sides of sampled estimates.
SAMPLE_SEED, SAMPLES = 0, 2


class _Near(NamedTuple):
    """The matrix A 2**-exponent and its 1-norm; its condition number is that of A."""

    a: Any
    norm: float
    exponent: int = 0


class Conditioned(Ladder):
    """A ladder that estimates rcond; if the factors are too coarse for that, it takes the next rung."""

    @in_turn
    def rcond(self):
        """Estimate the reciprocal condition number in the 1-norm.

        Returns
        -------
        float
            0 if A is singular or not finite.  NaN if the factors are too coarse for an estimate, and the
            plan forbids a more precise factorization.

        Notes
        -----
        1. Higham's estimator runs with the factors.  It gives an upper bound of rcond that is nearly always
           within a factor of 3.
        2. Factors of roundoff u do not show an rcond below about u.  If the estimate is near u, it is
           compared with A.
        3. If the comparison does not confirm the estimate, the norm of the inverse is sampled by refined
           solves: for two random right-hand sides, and for the unit vector of the largest column that the
           estimator found.  This is good to a factor of about sqrt(n).
        4. If these solves do not converge, or the sample is near machine epsilon, A is factored by the next
           rung, up to FP64.
        """
        if self._rcond is None:
            self._restore()
            rcond = self._estimate_rcond()
            self._rcond = min(rcond, 1.0) if rcond == rcond else rcond
        return self._rcond

    @property
    def _as_given(self):
        """Whether the factors are those of the caller's matrix, without any scaling."""
        return self._frame is None and self._scales_for(UPDATES[self.precision])[0] is None

    def _begin_estimate(self, count):
        """Start the solves of the condition estimate, which run during the refinement, if it is needed.

        With one right-hand side (`count`), `hold` runs during the refinement, too.  With more, it does not:
        both would multiply with one cuBLAS handle, and cuBLAS gives the same bits each time only if a handle
        is used in a single stream.
        """
        if self._least_rcond or self._rcond is not None or self._estimate:
            return
        if not self._finite or not self._as_given:
            return
        n, how = self.shape[0], UPDATES[self.precision]
        if how.native:  # LAPACK has an estimator, gecon
            return

        sweeps = sweeps_at_once(n, self._survey.dominance > 0)

        def begin():
            adjoint = functools.partial(self._invert, adjoint=True)
            found, rest = begin_condest(self._ops, n, self._invert, adjoint, sweeps)
            return found, (rest, joined(xp, *rest))

        a, xp = self._a, self._ops.xp
        # Any other matrix would be copied for a product, which takes memory.
        plain = a.dtype.char == "d" and (a.flags.c_contiguous or a.flags.f_contiguous)

        def then(found, both):
            rest, block = both
            if plain and count == 1:
                found = xp.concatenate([found, hold(self._ops, a, *block)])
            return found, rest

        with contextlib.suppress(DeviceMemoryError):  # then the estimate runs after the refinement
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
        # An estimate far above u is wrong only if the pivots have grown extremely, which is very rare.  It is
        # still compared with A if that is cheap, because our own estimator has run.
        well = rcond > how.u / TRUST
        # With scaling, the comparison with A may show only the effect of the scaling, so it cannot confirm an
        # estimate near u.
        if own if well else self._as_given and how.u < FINE:
            own = own or self._condest(near)  # gecon has not compared its estimate with A
            wanted = next(doubt for most, doubt in DOUBTED if n <= most)
            if own.doubt(wanted) <= wanted:
                return rcond
        elif well:
            return rcond
        # Try a sample with a loose bound first.  If it agrees with the factors, its error is below 1 %.
        bound = stopping.target(self.dtype, n)
        column = own and own.column
        sample = self._sampled_rcond(n, near, max(bound, 0.01 * rcond), column)
        if sample is None or sample < 0.1 * rcond:
            sample = self._sampled_rcond(n, near, bound, column)
        if sample is not None and sample > NEAR_SINGULAR * EPS[self._working]:
            return sample
        if self._climb():
            return self._estimate_rcond(near)
        return math.nan  # the factors are too coarse, and the plan forbids more precise ones

    def _near_one(self):
        """Return A, or A times a power of two if norms or inverses may overflow or underflow."""
        if self._frame is None:
            return _Near(self._a, self._norm_one)
        ops = self._ops
        rows = [ops.row_stats(part).top.max() for part in real_parts(self._a)]
        _, exponent = math.frexp(max(x.item() for x in ops.host(*rows)))
        if abs(exponent) <= FRAME_EXPONENT:
            return _Near(self._a, self._norm_one)
        a = ldexp(ops.xp, self._a, -exponent)
        return _Near(a, float(ops.host(ops.row_stats(a.T).total.max())[0]), exponent)

    def _condest(self, near):
        """Return the `Condition` from our own estimator; its first solves may have been started before."""
        begun = self._drop_estimate()
        begun = begun if begun and self._factors.are_good else None
        invert = functools.partial(self._invert, exponent=near.exponent)
        adjoint = functools.partial(invert, adjoint=True)
        return condest(self._ops, near.a, near.norm, invert, adjoint, begun)

    def _sampled_rcond(self, n, near, bound, column):
        """Return 1 / (||A||_1 ||A^-1 g||) for random g, or None if the solves miss the bound.

        For a Gaussian g, the root mean square of ||A^-1 g||_2 is ||A^-1||_F (C. S. Kenney, A. J. Laub, SIAM
        J. Sci. Comput. 15 (1994), 36-61).  If `column` is given, the 1-norm of that column of A^-1 is used if
        it is larger.
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
        # Divide x by its largest entry first: the squares of x may overflow or underflow.
        top, xp = self._ops.column_max(x), self._ops.xp
        with np.errstate(all="ignore"):
            part = xp.abs(x / top)
            top, length, whole = self._ops.host(top, xp.linalg.norm(part, axis=0), part.sum(axis=0))
            most = top.max()
            scaled = length[:SAMPLES] * (top[:SAMPLES] / most)
            of_column = (whole * (top / most))[SAMPLES:]
            estimate = float(most * np.max([np.sqrt(np.mean(scaled**2)), *of_column]))
            return float(np.float64(1) / near.norm / estimate) if estimate > 0 else None
