"""FGMRES for several right-hand sides side by side, each with its own Krylov space."""

import numpy as np

__all__ = ["fgmres"]

# Steps before a cycle's own rate is trusted: GMRES often starts slowly.
WARM_UP_STEPS = 20
# Steps there is room for at first; most cycles need no more.
FIRST_STEPS = 8


def fgmres(ops, apply, correct, r, *, basis, tol, give_up=None):
    """Reduce the residuals r by one cycle of flexible GMRES, column by column in lockstep.

    Parameters
    ----------
    ops : Ops
    apply : callable, (n, k) -> (n, k)
        The operator, in FP64.
    correct : callable, (n, k) -> (n, k)
        The preconditioner; it may change from step to step [1]_.
    r : array, shape (n, k)
        Residuals, nonzero and finite; float64 or complex128.
    basis : int or ndarray of int, shape (k,)
        Steps of each column at most, at least 1.
    tol : float
        A column is done when its residual estimate is below tol times its start.
    give_up : callable, (steps, reduction) -> bool, optional
        Asked after each step past the first 20 with the worst reduction so far of those that go on.

    Returns
    -------
    d : array, shape (n, k)
        The corrections.
    steps : ndarray of int, shape (k,)
        Steps each column used.

    References
    ----------
    .. [1] Y. Saad, SIAM J. Sci. Comput. 14 (1993), 461-469.
    """
    xp = ops.xp
    n, k = r.shape
    basis = np.minimum(np.broadcast_to(basis, k), n)
    most = int(basis.max())
    # v[c] holds the orthonormal basis of column c as rows, z[c] the preconditioned vectors.
    room = min(most, FIRST_STEPS)
    v = xp.zeros((k, room + 1, n), dtype=r.dtype)
    z = xp.zeros((k, room, n), dtype=r.dtype)
    size = ops.column_max(r)  # the squares in a norm of r itself may leave the range of FP64
    r = r / size
    beta = xp.linalg.norm(r, axis=0)
    v[:, 0] = (r / beta).T
    (start,) = ops.host(beta)
    triangle = _Triangle(k, basis, np.asarray(start), tol)
    for j in range(most):
        if j == room:
            room = min(most, 2 * room)
            v, z = _longer(xp, v, room + 1), _longer(xp, z, room)
        z[:, j] = correct(v[:, j].T).T
        w = apply(z[:, j].T).T
        h = xp.zeros((k, j + 1), dtype=r.dtype)
        for _ in range(2):  # classical Gram-Schmidt twice is as orthogonal as modified, in BLAS-2
            s = (v[:, : j + 1].conj() @ w[:, :, None])[:, :, 0]
            w = w - (s[:, None, :] @ v[:, : j + 1])[:, 0]
            h += s
        length = xp.linalg.norm(w, axis=1)
        v[:, j + 1] = w / xp.where(length > 0, length, 1.0)[:, None]
        h, length = ops.host(h, length)  # the one synchronisation of a step
        triangle.append(np.asarray(h), np.asarray(length))
        if triangle.done.all():
            break
        if give_up and j + 1 >= WARM_UP_STEPS and give_up(j + 1, triangle.worst):
            break
    y = triangle.solve()
    y = y if np.issubdtype(r.dtype, np.complexfloating) else np.ascontiguousarray(y.real)
    used = y.shape[1]
    d = (ops.array(y)[:, None, :] @ z[:, :used])[:, 0].T
    return d * size, triangle.steps


def _longer(xp, x, rows):
    """Return x (k, m, n) with room for so many rows instead of m."""
    k, m, n = x.shape
    result = xp.zeros((k, rows, n), dtype=x.dtype)
    result[:, :m] = x
    return result


class _Triangle:
    """The Hessenberg least-squares problems of k columns, kept triangular by Givens rotations."""

    def __init__(self, k, basis, beta, tol):
        most = basis.max()
        self.r = np.zeros((k, most, most), dtype=complex)
        self.g = np.zeros((k, most + 1), dtype=complex)
        self.g[:, 0] = beta
        self.rotations = []
        self.beta, self.tol, self.basis = beta, tol, basis
        self.done = np.zeros(k, bool)
        self.steps = np.zeros(k, int)
        self.reduction = np.ones(k)

    def append(self, h, size):
        """Add column j of the Hessenberg matrices: h (k, j + 1) above the diagonal, size below."""
        j = h.shape[1] - 1
        h = h.astype(complex)
        for i, (c, s) in enumerate(self.rotations):
            upper, lower = h[:, i].copy(), h[:, i + 1].copy()
            h[:, i], h[:, i + 1] = c * upper + s * lower, c * lower - s.conj() * upper
        radius = np.hypot(np.abs(h[:, j]), size)
        safe = np.where(radius > 0, radius, 1.0)
        phase = np.where(h[:, j] != 0, h[:, j] / np.where(h[:, j] != 0, np.abs(h[:, j]), 1), 1)
        c, s = np.where(radius > 0, np.abs(h[:, j]) / safe, 1.0), phase * size / safe
        h[:, j] = phase * radius
        self.rotations.append((c, s))
        self.r[:, : j + 1, j] = h
        self.g[:, j + 1] = -s.conj() * self.g[:, j]
        self.g[:, j] = c * self.g[:, j]
        self.steps[~self.done] = j + 1
        reduction = np.abs(self.g[:, j + 1]) / self.beta
        self.reduction = np.where(self.done, self.reduction, reduction)
        # A NaN ends its column too: no further step can mend it, and the caller measures x itself.
        self.done |= ~(self.reduction > self.tol) | (size == 0) | (self.steps >= self.basis)

    @property
    def worst(self):
        """The largest reduction of those that are not done."""
        return self.reduction[~self.done].max()

    def solve(self):
        """Return the coefficients, shape (k, steps), zero beyond the steps a column used."""
        y = np.zeros((len(self.steps), max(self.steps)), dtype=complex)
        for c, steps in enumerate(self.steps):
            r, g = self.r[c, :steps, :steps], self.g[c, :steps]
            if np.isfinite(r).all() and (r.diagonal() != 0).all():
                y[c, :steps] = np.linalg.solve(r, g)
            elif np.isfinite(r).all():  # a singular preconditioned operator: the shortest answer
                y[c, :steps] = np.linalg.lstsq(r, g)[0]
        return y
