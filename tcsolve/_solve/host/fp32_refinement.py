"""Refinement on the host with FP32 factors of a system that LAPACK solves directly.

The argument `problem` of the functions is a `_Problem` of `direct`.
"""

import math

import numpy as np

from tcsolve._backends.cpu.lu import column_max
from tcsolve._backends.cpu.ops import numpy_ops
from tcsolve._refine import stopping
from tcsolve._refine.loop import refine_columns
from tcsolve._refine.operator import Operator
from tcsolve._solve.host import fp32_factors
from tcsolve._solve.ladder.short_refinement import HostLoop, is_of_ordinary_size
from tcsolve._solve.verify.long_double_residual import SMALL, residual

__all__ = ["refined_by_plan", "refined_shortly"]

# Largest number of corrections with FP32 factors, unless the plan has one.  Systems whose rcond is large
# enough for these factors need less than half as many.
MOST_STEPS = 30
# After a step with FP32 factors that reduces the error to this number, the next step nearly always meets the
# bound of FP64.
NEAR = 2.0**-40
# Nearly every system needs AHEAD corrections with FP32 factors, and one more if rcond is below SLOW.
AHEAD, SLOW = 2, 2.0**-12


def refined_by_plan(problem, factors, plan, rcond, *, watched):
    """Return (x, errors or None, steps, history) by the loop with FP32 factors, or None.

    The history is complete only if `watched`.
    """
    a, b, norm, dtype = problem.matrix, problem.rhs, problem.norm, problem.dtype
    n = len(a)
    wanted = stopping.before_rounding(dtype, n)
    if dtype.kind == "c" and a.dtype.kind != "c":
        wanted /= math.sqrt(2)  # the modulus of the error combines the errors of both parts
    most = plan.max_steps or MOST_STEPS
    if plan.method in ("auto", "ir"):
        near, ahead = (NEAR, AHEAD + (rcond < SLOW)) if dtype.char in "dD" else (0.0, 0)
        solve, sized = factors.solver(b)
        how = {"sized": sized, "ahead": ahead, "watched": watched}
        loop = HostLoop(a, norm, solve, wanted, near, **how)
        if found := loop.refined(b, most, plan.contraction):
            x, error, steps, history = found
            error = None if dtype.char in "fF" else error
            return x.reshape(b.shape), error, steps, [(*point, False) for point in history]
    found = _by_general_loop(a, b, factors, norm, plan, wanted, most=most)
    if found is None:
        return None
    x, error, steps, history = found
    if dtype.char in "fF":
        error = None
    elif n <= SMALL:
        size = column_max(x)
        rest = np.maximum.reduce(np.abs(residual(a, x, b, (norm, size))))
        error = rest / (norm * (size + (size == 0)))
        if not np.logical_and.reduce(error <= wanted):
            return None
    return x, error, steps, history


def refined_shortly(problem, factors):
    """Return (x, errors, steps, history) by the loop that `plain_system` uses too, or None."""
    wanted = stopping.target(problem.dtype, len(problem.rhs))
    wanted /= math.sqrt(2) if problem.paired else 1  # as in `refined_by_plan`
    loop = fp32_factors.short_loop(factors, problem.matrix, problem.norm, problem.rhs, wanted)
    found = loop.refined(problem.rhs, fp32_factors.MOST_CORRECTIONS)
    if found is None:
        return None
    x, error, steps, history = found
    return x.reshape(problem.rhs.shape), error, steps, [(*point, False) for point in history]


def _by_general_loop(a, b, factors, norm, plan, wanted, *, most):
    """Return (x, errors, steps, history) by the general loop, which supports every `Plan`, or None."""
    operator = Operator.of(numpy_ops, a, norm)
    state = refine_columns(numpy_ops, operator, b, factors.solve, plan, wanted, max_steps=most)
    if not (state.all_converged and is_of_ordinary_size(column_max(state.x), b)):
        return None
    return state.x, state.error, state.steps, state.history
