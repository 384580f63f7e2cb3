"""Conjugate gradients for several right-hand sides of a positive definite system at once."""

import numpy as np

from tcsolve._arithmetic.matrix_parts import column_tops
from tcsolve._refine.krylov import WARM_UP_STEPS, Cycle

__all__ = ["cg"]


def cg(ops, apply, correct, r, *, most, tol, give_up=None):
    """Reduce the residuals r by one cycle of flexible conjugate gradients.

    Parameters
    ----------
    ops : Ops
    apply : callable, (n, k) -> (n, k)
        The operator in FP64, Hermitian and positive definite.
    correct : callable, (n, k) -> (n, k)
        The preconditioner, Hermitian and positive definite up to its rounding errors.
    r : array, shape (n, k)
        Residuals, nonzero and finite; float64 or complex128.
    most : ndarray of int, shape (k,)
        Largest number of steps of each column, at least 1.
    tol : float or ndarray, shape (k,)
        A column is done when the norm of its residual is at most `tol` times the norm at the start.  This
        residual is updated in each step, not recomputed.
    give_up : callable, (steps, reduction) -> bool, optional
        As for `krylov.fgmres`.

    Returns
    -------
    Cycle

    Notes
    -----
    The rounding errors of a preconditioner in low precision change from step to step.  So the next direction
    is p = z + beta p_last with beta = z^H (r - r_last) / (z_last^H r_last), where the usual method has z^H r
    in the numerator [1]_.  A column also ends when p^H A p is not positive: then A is not positive definite,
    or p is zero or not finite.

    References
    ----------
    .. [1] G. H. Golub, Q. Ye, SIAM J. Sci. Comput. 21 (1999), 1305-1320.
    """
    xp, k = ops.xp, r.shape[1]
    # Scale r first: its squares may overflow or underflow in the products.
    size = column_tops(ops, r)
    r = r / size
    d, z = xp.zeros_like(r), correct(r)
    p, descent = z, _inner(r, z)
    (start,) = map(np.asarray, ops.host(xp.linalg.norm(r, axis=0)))
    steps, reduction, done = np.zeros(k, int), np.ones(k), np.zeros(k, bool)
    reductions = []
    for step in range(1, int(np.max(most)) + 1):
        w = apply(p)
        curvature = _inner(p, w)
        # A column that is done keeps its d, whatever its other vectors are.
        goes = xp.asarray(~done) & (curvature > 0)
        length = xp.where(goes, descent / xp.where(goes, curvature, 1.0), 0.0)
        d = d + xp.where(goes, length * p, 0.0)
        last, r = r, xp.where(goes, r - length * w, r)
        norm, going = map(np.asarray, ops.host(xp.linalg.norm(r, axis=0), goes))
        steps[going] = step
        reduction = np.where(going, norm / start, reduction)
        reductions.append((steps.copy(), reduction.copy()))
        done |= ~going | ~(reduction > tol) | (steps >= most)
        if done.all():
            break
        if give_up and step >= WARM_UP_STEPS and give_up(step, reduction[~done].max()):
            break
        z = correct(r)
        turn = _inner(r - last, z) / xp.where(descent != 0, descent, 1.0)
        descent = _inner(r, z)
        p = z + turn * p
    return Cycle(d * size, steps, reductions, 0)


def _inner(x, y):
    """Return the real parts of the inner products of the columns."""
    return (x.conj() * y).sum(axis=0).real
