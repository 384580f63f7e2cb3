"""The `Solution` of systems that `ops.vendor` has solved."""

import time
from dataclasses import replace

import numpy as np

from tcsolve._refine import stopping
from tcsolve._solution import HistoryPoint, Solution, Status, code_of, distinct, of_slices
from tcsolve._solve.vendor.system import CONVERGED, ILL_CONDITIONED, NONFINITE, Part

__all__ = ["codes_of_slices", "join", "solution_of", "stacked", "unfolded"]

CONDITION_UNKNOWN, NOT_CONVERGED, OVERFLOW, UNDERFLOW = (
    code_of(status)
    for status in (
        Status.CONDITION_UNKNOWN,
        Status.NOT_CONVERGED,
        Status.OVERFLOW,
        Status.UNDERFLOW,
    )
)
# Codes of a system with factors some of whose columns miss the bound.
MISSED_BY_SOME = NOT_CONVERGED, OVERFLOW, UNDERFLOW, code_of(Status.STALLED)


def stacked(found, ops, batch, shape, start):
    """Return the `Solution` of a stack from the `Solution` of each matrix."""
    codes = np.array([code_of(one.status) for one in found], np.int8)
    rconds, error = np.array([one.rcond for one in found]), [one.backward_error for one in found]
    x, steps = ops.xp.stack([one.x for one in found]), [one.iterations for one in found]
    none = np.zeros(len(codes), bool)
    part = Part(x, codes, rconds, np.array(error), np.array(steps), none, none)
    planned = max(one.bytes_planned for one in found)
    return replace(
        solution_of(part, ops, batch, shape, start, planned),
        precision=max(found, key=lambda one: len(one.rungs)).precision,
        rungs=tuple(dict.fromkeys(rung for one in found for rung in one.rungs)),
    )


def join(parts, ops):
    """Return one `Part` for all systems from the parts of consecutive systems."""
    if len(parts) == 1:
        return parts[0]
    x, *others = zip(*parts, strict=True)
    return Part(ops.xp.concatenate(x), *(np.concatenate(v) for v in others))


def solution_of(part, ops, batch, shape, start, planned):
    """Return the `Solution` for a `Part`, with the shapes that the caller expects."""
    k = part.error.shape[1]
    error, steps = part.error.reshape(*batch, k), part.steps.reshape(*batch, k)
    codes, rconds = part.codes.reshape(batch), part.rconds.reshape(batch)
    if distinct(codes).any():
        fields = of_slices(codes.astype(int), rconds)
    elif not batch:
        fields = {"status": Status.CONVERGED, "rcond": float(part.rconds[0])}
    else:
        fields = {
            "status": Status.CONVERGED,
            "rcond": float(distinct(part.rconds).min()),
            "rconds": rconds,
        }
        fields["statuses"] = np.broadcast_to(np.array(Status.CONVERGED, dtype=object), batch)
    total = time.perf_counter() - start
    return Solution(
        x=part.x.reshape(shape),
        precision="fp64",
        rungs=("fp64",),
        iterations=steps,
        backward_error=error,
        bound=stopping.target(part.x.dtype, part.x.shape[1]),
        history=(HistoryPoint("fp64", steps, error, False),),
        seconds={"factor": total, "total": total},
        bytes_planned=planned,
        device=ops.device,
        **fields,
    )


def codes_of_slices(ops, x, error, bound, codes, rconds):
    """Return the codes of systems that were solved as columns of one system, whose codes are `codes`.

    If the system has factors, but some of its columns miss the bound, each slice has a code of its own.

    Parameters
    ----------
    x : array, shape (..., n, k)
    error : ndarray, shape (..., k)
        The backward errors.
    codes, rconds : ndarray, shape (...)
        Those of the whole system, for each of its slices.
    """
    missed = np.isin(codes, MISSED_BY_SOME)
    if not missed.any():
        return codes
    finite, top = ops.host(ops.xp.isfinite(x).all(axis=-2), ops.xp.abs(x).max(axis=-2))
    met = error <= bound
    faint = (top < np.finfo(x.dtype).tiny) | met
    own = np.where(faint.all(axis=-1), UNDERFLOW, NOT_CONVERGED)
    own = np.where(finite.all(axis=-1), own, OVERFLOW)
    sound = np.where(rconds >= np.finfo(x.dtype).eps, CONVERGED, ILL_CONDITIONED)
    sound = np.where(np.isnan(rconds), CONDITION_UNKNOWN, sound)
    return np.where(missed, np.where(met.all(axis=-1), sound, own), codes)


def unfolded(ops, solution, shape, spoilt=None):
    """Return the `Solution` of a stack of right-hand sides from the `Solution` of their columns.

    Columns in `spoilt` (..., k), if it is given, were solved as zeros because b holds NaN or Inf there.
    """
    *batch, n, k = shape
    error = solution.backward_error.reshape(*batch, k)
    x = ops.xp.ascontiguousarray(ops.xp.moveaxis(solution.x.reshape(n, *batch, k), 0, -2))
    rconds = np.full(batch, solution.rcond)
    codes = np.full(batch, code_of(solution.status))
    codes = codes_of_slices(ops, x, error, solution.bound, codes, rconds)
    if spoilt is not None:
        x = ops.xp.where(ops.xp.asarray(spoilt)[..., None, :], ops.xp.nan, x)
        error = np.where(spoilt, np.nan, error)
        codes = np.where(spoilt.any(axis=-1), NONFINITE, codes)
    steps = solution.iterations.reshape(*batch, k)
    return replace(
        solution,
        x=x,
        backward_error=error,
        iterations=steps,
        history=(HistoryPoint(solution.precision, steps, error, False),),
        **of_slices(codes, rconds),
    )
