"""The residuals that a solve refines with: in FP64, or with twice the digits for an accurate x.

An FP64 residual gives a small backward error.  The error of x itself is then about the condition number times
2**-53.  With a residual of twice the digits, a few more corrections give x to nearly its last bit [1]_.

References
----------
.. [1] E. Carson, N. J. Higham, SIAM J. Sci. Comput. 40 (2018), A817-A847.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tcsolve._arithmetic.matrix_parts import column_tops
from tcsolve._cached import cached_property
from tcsolve._lu.scaling import exponent_of, ldexp
from tcsolve._refine.double_double import Pair, product, residual
from tcsolve._refine.operator import measure
from tcsolve._refine.precise_inverse import solved
from tcsolve._solve.ladder.refine_rung import applied_in_fp64, operator_of, refine_with
from tcsolve._solve.problem.request import RESIDUALS

__all__ = ["ACCURATE", "BY_NAME", "missed_direction"]

U = 2.0**-53
# x counts as accurate up to this relative error.  Rounding x to FP64 causes half of it.
ACCURATE = 2 * U
# The relative rounding error of a double-double residual, which the condition number multiplies.
LOST = 2.0**-106
# A correction must be at most this part of the one before, or refinement has stalled.
CONTRACTION = 0.5
# The largest relative error that `missed_direction` allows for a solve whose solution v is known.  It is for
# a v whose entries are random multiples of those of x.  For the first v, which is not made from x, the limit
# is CONTRACTION.
MISSED = 0.1


class Fp64:
    """Refinement with FP64 residuals, until the backward error meets the bound."""

    def refine(self, ladder, rhs, bound, ahead=None):
        """Return the `Refined` of the loop with the current factors."""
        return refine_with(ladder, rhs, bound, ahead)


class DoubleDouble:
    """Refinement with FP64 residuals, then with residuals in double-double, until x is accurate.

    Each correction d solves A d = r as a system of its own, with FP64 residuals.  So its relative error is
    about the condition number times 2**-53, and this is the factor by which it reduces the error of x.

    If no rung follows, the Krylov methods multiply by A in double-double.  Unless the plan names another
    method, GMRES is used, with the whole preconditioned product in double-double.  If a rung follows, its
    factors take less time than these products.
    """

    def refine(self, ladder, rhs, bound, ahead=None):
        """Return the `Refined` of x, with its estimated relative error in `forward`."""
        solve = _Corrections(ladder)
        state = solve(rhs, bound, ahead)
        if not state.all_converged:
            return replace(state, forward=np.full(len(state.error), np.nan), accurate=False)
        return _improved(ladder, solve, rhs, state, bound)


BY_NAME = dict(zip(RESIDUALS, (Fp64(), DoubleDouble()), strict=True))


@dataclass
class _Corrections:
    """Solves with the current factors of a ladder, for one `DoubleDouble` refinement."""

    ladder: Any

    @cached_property
    def _precondition(self):
        ladder, correct = self.ladder, applied_in_fp64(self.ladder)
        if ladder.plan.method not in ("auto", "gmres"):
            return correct
        ops = ladder.system.ops

        def precisely(r):
            r = r if isinstance(r, Pair) else Pair.of(ops.xp, r)
            return solved(ops, lambda w: ladder.widened().multiplied(ops, w), correct, r)

        return precisely

    def __call__(self, rhs, bound, ahead=None):
        """Return the `Refined` for a right-hand side."""
        ladder = self.ladder
        if ladder.following(rhs.shape[1]) is not None:
            return refine_with(ladder, rhs, bound, ahead)
        ops, a = ladder.system.ops, ladder.system.matrix

        def pair(v):
            return product(ops, a, Pair.of(ops.xp, v))

        operator = replace(operator_of(ladder), product=lambda v: pair(v).high, pair=pair)
        how = {"operator": operator, "precondition": self._precondition}
        return refine_with(ladder, rhs, bound, ahead, **how)


def _improved(ladder, solve, rhs, state, bound):
    """Return `state` with a more accurate x, and with the estimated error of x.

    Notes
    -----
    The size of a correction d is about the error that x had before it.  If d is q times as large as the
    previous correction, the error of x + d is about q / (1 - q) times the size of d.  Two rounding errors are
    added: that of x, and that of the residual times a condition number.  The rounding error in a row of the
    residual is proportional to the norm of that row of A.  So the condition number that counts is that of A
    with its rows scaled to equal norms.  Its estimate is the largest gain: the size of x, or of a correction,
    divided by the size of its right-hand side, whose rows are scaled in the same way.  Refinement ends when
    a correction is below the rounding of x, or is not much smaller than the previous one.
    """
    system = ladder.system
    ops, k = system.ops, rhs.shape[1]
    x, weight = Pair.of(ops.xp, state.x.copy()), _weight(system)
    before, forward, steps = np.ones(k), np.full(k, np.nan), state.steps.copy()
    rows = ops.row_stats(system.matrix).total[:, None]
    gain = _relative(ops, state.x, rhs / rows, None)
    most, active = ladder.plan.max_steps or np.inf, np.arange(k)
    while active.size:
        some = ops.xp.asarray(active)
        here = x.columns(some)
        r, exponent = _residual(ops, system.matrix, here, rhs[:, some])
        found = solve(r, bound)
        d = ldexp(ops.xp, found.x, exponent)
        steps[active] += 1 + found.steps
        gain[active] = np.fmax(gain[active], _relative(ops, found.x, r / rows, None))
        size = _relative(ops, d, here.high, weight)
        with np.errstate(all="ignore"):
            ratio = size / before[active]
            # If a solve misses its bound, the error of d is its backward error times a condition number.
            lost = np.where(found.converged, 0.0, found.error * gain[active])
            rate = np.maximum(ratio, lost)
            good = rate <= CONTRACTION  # not if it is NaN
            size = np.where(lost <= CONTRACTION, size, np.fmax(size, before[active]))
            forward[active] = np.where(good, U + size * rate / (1 - rate), size)
        if good.any():
            kept = ops.xp.asarray(np.flatnonzero(good))
            better = here.columns(kept).plus(d[:, kept])
            for part, new in zip(x, better, strict=True):
                part[:, ops.xp.asarray(active[good])] = new
        before[active] = size
        active = active[good & (size > U) & (steps[active] < most)]
    forward += LOST * gain
    _, error = measure(ops, operator_of(ladder), x.high, rhs)
    return replace(
        state,
        x=x.high,
        error=error,
        steps=steps,
        converged=error <= bound,
        forward=forward,
        accurate=bool((forward <= ACCURATE).all()),
    )


def missed_direction(ladder, x, bound):
    """Solve for right-hand sides A v with known v; return the error of these solves if it is large, else 0.

    If A is exactly singular, A d = r has no unique solution, and small corrections do not show that x is
    accurate.  Then a solve for A v does not give v.  The first v is a solution for a random right-hand side.
    So if A is nearly singular in some direction, this v has nearly that direction.  There, a correction
    multiplies the error of x by about the error of the solve for A v.  The entries of the other v are random
    multiples of the entries of x.
    """
    system, solve = ladder.system, _Corrections(ladder)
    ops, xp = system.ops, system.ops.xp
    random = xp.asarray(ops.probes(len(system.matrix))[:, 2:], dtype=system.wide)
    missed = _missed(ops, system, solve, solve(random[:, :1], bound).x, bound)
    if missed > CONTRACTION:
        return missed
    if system.frame is not None:  # x is not the solution for `matrix`
        return 0.0
    some = x[:, :1] if system.is_complex else x[:, :1].real
    missed = max(_missed(ops, system, solve, some * random[:, i : i + 1], bound) for i in range(2))
    return missed if missed > MISSED else 0.0


def _missed(ops, system, solve, v, bound):
    """Return the relative error of a solve for A v, at most 1; 1 if it is not known, and 0 for v = 0."""
    xp = ops.xp
    v = ldexp(xp, v, -exponent_of(xp, v, 0))
    r, exponent = _residual(ops, system.matrix, Pair.of(xp, v), xp.zeros_like(v))  # -A v
    again = ldexp(xp, solve(r, bound).x, exponent)
    error = float(_relative(ops, again + v, v, _weight(system))[0])
    return error if error <= 1 else 1.0


def _residual(ops, a, x, b):
    """Return (r, e), where r 2**e is b - A x and the largest entry of each column of r is near 1."""
    r = residual(ops, a, x, b)
    exponent = exponent_of(ops.xp, r, 0)
    return ldexp(ops.xp, r, -exponent), exponent


def _weight(system):
    """Return the scales between the x that is refined and the caller's x, or None if no frame scales x."""
    if system.frame is None:
        return None
    col = system.frame.scaling.col
    return ldexp(system.ops.xp, col, -exponent_of(system.ops.xp, col, 0))[:, None]


def _relative(ops, d, x, weight):
    """Return ||d|| / ||x|| in infinity norms for each column, on the host; 0 for a zero d."""
    if weight is not None:
        d, x = d * weight, x * weight
    (d, x) = ops.host(column_tops(ops, d), column_tops(ops, x))
    with np.errstate(all="ignore"):
        return np.where(d == 0, 0.0, d / x)
