"""When refinement has converged, is too slow, or must give up: pure functions of numbers."""

import math

import numpy as np

__all__ = ["before_rounding", "contracting", "converged", "projected_steps", "target"]


def target(dtype, n):
    """Return the bound on ``||r|| / (||A|| ||x||)`` for answers of this dtype: u sqrt(n), as xSGESV's.

    For the smallest systems n stands for 4 (complex: 8), as even the rounding of the exact x and of
    its residual can exceed u sqrt(n) there.
    """
    single = dtype.char in "fF"
    return (2.0**-24 if single else 2.0**-53) * math.sqrt(max(n, 8 if dtype.kind == "c" else 4))


def before_rounding(dtype, n):
    """Return the bound that x must meet in FP64, to meet `target` when it is rounded to this dtype."""
    bound = target(dtype, n)
    return bound - 2.0**-24 if dtype.char in "fF" else bound


def converged(error, bound):
    """Return which columns meet the bound.

    Not ``~(error > bound)``: a NaN must never count as converged.
    """
    return np.asarray(error) <= bound


def contracting(error, previous, factor):
    """Return which columns' errors fell by `factor` or more in the last step; NaN is not falling."""
    with np.errstate(invalid="ignore"):
        return np.asarray(error) <= factor * np.asarray(previous)


def projected_steps(error, start, steps, bound):
    """Return how many more steps a column needs if it goes on at its average rate so far.

    Parameters
    ----------
    error, start : float or array
        The error now, and `steps` steps ago.
    steps : int or array
    bound : float

    Returns
    -------
    array, of the shape of all of them
        0 where the bound is met, inf where the error does not fall or is NaN.
    """
    error, start, steps = map(np.asarray, (error, start, steps))
    falls = (steps >= 1) & (error > 0) & (error < start) & np.isfinite(start) & (bound > 0)
    with np.errstate(all="ignore"):
        rest = steps * np.log(error / bound) / np.log(start / error)
    return np.where(error <= bound, 0.0, np.where(falls, rest, np.inf))
