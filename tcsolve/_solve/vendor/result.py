"""The `Solution` of systems that `ops.vendor` has solved."""

import time
from dataclasses import replace

import numpy as np

from tcsolve._refine import stopping
from tcsolve._solution import HistoryPoint, Solution, Status, code_of, distinct, of_slices
from tcsolve._solve.vendor.system import CONVERGED, ILL_CONDITIONED, Part

__all__ = ["join", "solution_of", "stacked", "unfolded"]


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


def unfolded(xp, solution, shape, codes=None):
    """Return the `Solution` of a stack of right-hand sides from the `Solution` of their columns.

    `codes` has the code of each status; by default, that of `solution`.  If rcond is above 0, a system that
    meets the bound becomes CONVERGED or ILL_CONDITIONED, even if `solution` has a worse status.
    """
    *batch, n, k = shape
    error = solution.backward_error.reshape(*batch, k)
    if codes is None:
        codes = np.full(batch, code_of(solution.status))
    # rcond > 0: the matrix is good, but some right-hand sides are not.
    if not solution.status.ok and solution.rcond > 0:
        ill = solution.rcond < np.finfo(solution.x.dtype).eps
        met = (error <= solution.bound).all(axis=-1)
        codes = np.where(met, ILL_CONDITIONED if ill else CONVERGED, codes)
    x = xp.moveaxis(solution.x.reshape(n, *batch, k), 0, -2)
    steps = solution.iterations.reshape(*batch, k)
    return replace(
        solution,
        x=xp.ascontiguousarray(x),
        backward_error=error,
        iterations=steps,
        history=(HistoryPoint(solution.precision, steps, error, False),),
        **of_slices(codes, np.full(batch, solution.rcond)),
    )
