"""Refinement by GMRES on the left-preconditioned system, as in the papers; tcsolve itself uses FGMRES."""

import numpy as np
from scipy.sparse.linalg import LinearOperator, gmres

__all__ = ["count_steps"]

MOST_REFINEMENTS = 10


def count_steps(a, b, invert, tol, *, inner=1e-4):
    """Return the number of GMRES steps until the backward error of x is at most `tol`, or None.

    Parameters
    ----------
    a : ndarray, shape (n, n)
    b : ndarray, shape (n,)
    invert : callable, (n, k) -> (n, k)
        Approximately A**-1.  Each refinement solves ``invert(A) d = invert(r)`` until the residual of this
        system is at most `inner` times that at its start [1]_.
    tol : float
        Bound on ``||b - A x|| / (||A|| ||x|| + ||b||)`` in infinity norms.

    References
    ----------
    .. [1] E. Carson, N. J. Higham, SIAM J. Sci. Comput. 40 (2018), A817-A847, algorithm 3.1.
    """

    def apply(v):
        return invert((a @ v)[:, None])[:, 0]

    n, steps = len(b), 0
    operator = LinearOperator((n, n), matvec=apply, dtype=float)
    norm = np.abs(a).sum(axis=1).max()
    x = invert(b[:, None])[:, 0]

    def counted(_):
        nonlocal steps
        steps += 1

    with np.errstate(all="ignore"):
        for _ in range(MOST_REFINEMENTS + 1):
            r = b - a @ x
            if np.abs(r).max() <= tol * (norm * np.abs(x).max() + np.abs(b).max()):
                return steps
            if not np.isfinite(r).all():
                return None
            right = invert(r[:, None])[:, 0]
            how = {"rtol": inner, "restart": n, "maxiter": 1, "callback_type": "pr_norm"}
            x = x + gmres(operator, right, callback=counted, **how)[0]
    return None
