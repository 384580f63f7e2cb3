"""The stopping rules of refinement: pure functions of numbers."""

import math

import numpy as np

__all__ = ["SURE", "before_rounding", "contracting", "converged", "projected_steps", "target"]

# For many unknowns, the rounding error of an FP64 residual is not small compared with the bound.  So an x
# with an error below the bound, but above SURE times the bound, is corrected once more.
SURE = 0.9


def target(dtype, n):
    """Return the bound on ``||r|| / (||A|| ||x||)`` for answers of this dtype: u sqrt(n), as in DSGESV.

    n counts as at least 4 (complex: 8): for smaller systems the rounding of the exact x and of its residual
    can exceed u sqrt(n).
    """
    single = dtype.char in "fF"
    return (2.0**-24 if single else 2.0**-53) * math.sqrt(max(n, 8 if dtype.kind == "c" else 4))


def before_rounding(dtype, n):
    """Return the bound for x in FP64, so that x meets `target` after it is rounded to this dtype."""
    bound = target(dtype, n)
    return bound - 2.0**-24 if dtype.char in "fF" else bound


def converged(error, bound):
    """Return which columns meet the bound.

    The test is not ``~(error > bound)``, because a NaN must never count as converged.
    """
    return np.asarray(error) <= bound


def contracting(error, previous, factor):
    """Return for which columns error <= factor * previous; False if one of them is NaN."""
    return np.asarray(error) <= factor * np.asarray(previous)


def projected_steps(error, start, steps, bound):
    """Return how many more steps a column needs, if it continues at its average rate so far.

    Parameters
    ----------
    error, start : float or array
        The error now, and `steps` steps ago.
    steps : int or array
    bound : float
        The error to reach.

    Returns
    -------
    array, with the broadcast shape of the arguments
        0 where the bound is met, inf where the error does not fall or is NaN.
    """
    error, start, steps = map(np.asarray, (error, start, steps))
    falls = (steps >= 1) & (error > 0) & (error < start) & np.isfinite(start) & (bound > 0)
    with np.errstate(all="ignore"):
        rest = steps * np.log(error / bound) / np.log(start / error)
    return np.where(error <= bound, 0.0, np.where(falls, rest, np.inf))
