"""Estimates of rcond of a stack of matrices, from their factors."""

import numpy as np

from tcsolve._lu.scaling import exponent_of, ldexp

__all__ = ["rconds_of", "rconds_of_scaled"]

# Largest number of sweeps of the estimate after the first solve.
MAX_SWEEPS = 4


def rconds_of(ops, a, solve):
    """Estimate 1 / (||A||_1 ||A^-1||_1) of each matrix of a stack, on the host.

    Up to rounding, each estimate is an upper bound of rcond.  It is nearly always within a factor of 3 [1]_.
    It is 0 if a solve overflows.

    Parameters
    ----------
    ops : Ops
    a : array, shape (m, n, n)
    solve : callable
        The method `solve` of the factors.

    References
    ----------
    .. [1] N. J. Higham, ACM Trans. Math. Software 14 (1988), 381-396 (xLACN2).
    """
    xp, (m, n, _), wide = ops.xp, a.shape, np.result_type(a.dtype, np.float64)
    start = xp.empty((m, 2, n), wide)
    # Start with 1 / n and the alternating vector.  The latter helps for matrices that mislead the iteration.
    start[:] = ops.probes(n).T[:2]
    with np.errstate(all="ignore"):
        y = solve(start)
        v, alternating = y[:, :1], 2 * xp.abs(y[:, 1]).sum(axis=1) / (3 * n)
        estimate = xp.abs(v[:, 0]).sum(axis=1)
        for _ in range(MAX_SWEEPS):
            size = xp.abs(v)
            sign = xp.where(size > 0, v / xp.where(size > 0, size, 1), 1)
            z = solve(xp.ascontiguousarray(sign), adjoint=True)
            unit = xp.zeros(z.shape, z.dtype)
            unit[:, 0][xp.arange(m), xp.abs(z[:, 0]).argmax(axis=1)] = 1
            v_new = solve(unit)
            new = xp.abs(v_new[:, 0]).sum(axis=1)
            better = new > estimate
            if not bool(better.any()):
                break
            estimate = xp.where(better, new, estimate)
            v = xp.where(better[:, None, None], v_new, v)
        largest = xp.maximum(estimate, alternating)
        rcond = ops.host(1 / _norm_one(ops, a) / largest)[0]
    return np.where(np.isfinite(rcond), np.minimum(rcond, 1.0), 0.0)


def rconds_of_scaled(ops, a, row, col, factors):
    """Return the estimates of rcond of A from factors of diag(2**-row) A diag(2**-col)."""
    xp = ops.xp
    of_a = exponent_of(xp, a, (1, 2))
    near = ldexp(xp, a, -of_a)

    row = xp.swapaxes(row, 1, 2)

    def solve(v, adjoint=False):
        # Combine the exponent of A with those of its rows: each alone may overflow.
        before, after = (col, row - of_a) if adjoint else (row - of_a, col)
        inside = xp.ascontiguousarray(ldexp(xp, v, -before))
        return ldexp(xp, factors.solve(inside, adjoint), -after)

    return rconds_of(ops, near, solve)


def _norm_one(ops, a):
    if len(a) == 1:
        return ops.row_stats(a[0].T).total.max()[None]
    wide = ops.converted(a, np.result_type(a.dtype, np.float64))
    return ops.xp.abs(wide).sum(axis=1).max(axis=1)
