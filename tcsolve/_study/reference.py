"""The solution that the errors of all plans are measured against."""

import numpy as np

from tcsolve._backends.select import ops_on
from tcsolve._errors import TcsolveError
from tcsolve._refine.double_double import Pair, residual
from tcsolve._solve.api import factor

__all__ = ["forward_error", "reference_of"]

# The options of the most accurate solve, and the relative error of its x (see `_solve.ladder.residuals`).
HOW, ACCURATE = {"precision": "fp64"}, 2.0**-52


def reference_of(problem, device="cpu"):
    """Return the solution of A x = b for the stored b, as a `Pair` with more digits than FP64, or None.

    Parameters
    ----------
    problem : matrices.Problem
        Its `x_true` is not used: b is A x_true rounded, so `x_true` solves a system that differs.
    device : {'auto', 'cpu', 'cuda'}

    Returns
    -------
    Pair of arrays, or None
        The relative error in the infinity norm is about ``(kappa 2**-53) 2**-53``.  None if x with an error
        of `ACCURATE` is not found, as for condition numbers above 1e15.

    Notes
    -----
    FP64 factors and double-double residuals give x to about its last bit.  One more correction gives the
    digits that follow.  It is not added to x, but is the low part of the `Pair`.
    """
    a, b = (v.astype(np.result_type(v.dtype, np.float64)) for v in (problem.a, problem.b))
    try:
        factors = factor(a, device=device, **HOW)
        solution = factors.solve_ex(b, residual="double-double")
        if not (solution.status.ok and np.max(solution.forward_error) <= ACCURATE):
            return None
        with np.errstate(all="ignore"):
            columns = [v.reshape(len(a), -1) for v in (solution.x, b)]
            r = residual(ops_on("cpu"), a, Pair.of(np, columns[0]), columns[1])
        low = factors.solve_ex(r).x.reshape(b.shape)
    except (TcsolveError, MemoryError):
        return None
    return Pair(solution.x, np.where(np.isfinite(low), low, 0))


def forward_error(x, reference):
    """Return ``||x - reference|| / ||reference||`` in the infinity norm, or None if it is not known."""
    if reference is None or not np.isfinite(x).all():
        return None
    size = np.abs(reference.high).max()
    return float(np.abs((x - reference.high) - reference.low).max() / size) if size else None
