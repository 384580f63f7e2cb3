"""Further corrections of an x that misses the bound by rounding, or only just meets it."""

import functools

import numpy as np

from tcsolve._arithmetic.matrix_parts import by_parts
from tcsolve._lu.scaling import exponent_of, ldexp
from tcsolve._refine import stopping
from tcsolve._solve.ladder.refine_rung import invert
from tcsolve._solve.verify.backward_error import accurate_errors, backward_errors
from tcsolve._solve.verify.long_double_residual import SMALL, residual

__all__ = ["MOST_MENDING", "NEAR", "errors_of", "look_closer", "mended", "surer"]

# An error of up to NEAR times the bound may come from rounding alone, so more corrections are tried.
NEAR = 4
# Largest number of corrections of an x that misses the bound by rounding.
MOST_MENDING = 4


def mended(ladder, x, b, error, bound):
    """Return (x, errors, steps) after more corrections of columns that miss the bound by rounding.

    Columns may miss it if the loop has measured the error of a scaled system, or if the rounding of the FP64
    residual matters.  Up to two corrections use the current factors, and up to two more those of the next
    rung.
    """
    ops, steps = ladder.system.ops, np.zeros(len(error), int)
    error = _closer(ladder, x, b, error, bound)
    for step in range(MOST_MENDING):
        if not ((error > bound) & (error <= NEAR * bound)).any():
            break
        if step == 2 and not (ladder.climb(len(error)) and not ladder.make_valid().bad_pivot):
            break
        trial = _corrected(ladder, x, b)
        after = _closer(ladder, trial, b, errors_of(ladder, trial, b), bound)
        steps += error > bound
        better = after < error
        x = ops.xp.where(ops.xp.asarray(better), trial, x)
        error = np.where(better, after, error)
    return x, error, steps


def surer(ladder, x, b, error, bound):
    """Return (x, errors, steps) after one more correction of columns that only just meet the bound."""
    xp, some = ladder.system.ops.xp, error > stopping.SURE * bound
    few = xp.asarray(np.flatnonzero(some))
    trial = _corrected(ladder, x[:, few], b[:, few])
    after = np.full(len(error), np.inf)
    after[some] = errors_of(ladder, trial, b[:, few])
    better = after < error
    if better.any():
        x[:, xp.asarray(np.flatnonzero(better))] = trial[:, xp.asarray(better[some])]
    return x, np.where(better, after, error), some.astype(int)


def look_closer(ladder, x, rhs, bound, most):
    """Return (x, errors, steps) with residuals as in long double, after up to `most` more corrections."""
    system, ops = ladder.system, ladder.system.ops
    a, b = ops.host(system.matrix, rhs)

    def measured(x):
        (y,) = ops.host(x)
        r = residual(a, y, b)
        rest, size = np.abs(r).max(axis=0), np.abs(y).max(axis=0)
        with np.errstate(all="ignore"):
            return r, np.where(rest == 0, 0.0, rest / system.survey.inf / size)

    r, error = measured(x)
    for step in range(most):
        if (error <= bound).all():
            return x, error, step
        trial = x + ladder.rung.correct(ops.xp.asarray(r))
        rest, after = measured(trial)
        better = after < error
        x = ops.xp.where(ops.xp.asarray(better), trial, x)
        r, error = np.where(better, rest, r), np.where(better, after, error)
    return x, error, most


def errors_of(ladder, x, b):
    """Return the backward errors (k,) of x for the caller's a and b."""
    system = ladder.system
    return backward_errors(system.ops, system.a, x, b, system.norm_inf)


def _closer(ladder, x, b, error, bound):
    """Return the errors, measured more accurately where the rounding of residuals may decide.

    There, residuals with twice the digits replace those in FP64.
    """
    system, near = ladder.system, (error > bound) & (error <= NEAR * bound)
    if len(b) <= SMALL or not near.any():  # for few unknowns, the residuals were as in long double
        return error
    some = system.ops.xp.asarray(np.flatnonzero(near))
    found = accurate_errors(system.ops, system.a, x[:, some], b[:, some], system.norm_inf)
    closer = error.copy()
    closer[near] = np.where(np.isnan(found), error[near], found)
    return closer


def _corrected(ladder, x, b):
    """Return x after one more correction; for few unknowns, the residual is as accurate as in long double."""
    system, solve = ladder.system, functools.partial(invert, ladder)
    a, ops, xp, is_complex = system.a, system.ops, system.ops.xp, system.is_complex
    if len(b) > SMALL:
        r = b - by_parts(xp, functools.partial(ops.product, a), x, is_complex)
        return x + by_parts(xp, solve, r, is_complex)
    # Divide each column of x, and with a frame also A, by a power of two that brings it near 1.  Divide b by
    # the product of these powers.
    of_a = exponent_of(xp, a, (0, 1)) if system.frame is not None else 0
    of_x = exponent_of(xp, x, 0)
    near = (ldexp(xp, v, -e) for v, e in ((a, of_a), (x, of_x), (b, of_x + of_a)))
    near_a, near_x, near_b = ops.host(*near)
    r = xp.asarray(residual(near_a, near_x, near_b))
    d = by_parts(xp, functools.partial(solve, exponent=of_a), r, is_complex)
    return ldexp(xp, xp.asarray(near_x) + d, of_x)
