"""FGMRES for several right-hand sides side by side, each with its own Krylov space."""

from typing import Any, NamedTuple

import numpy as np

__all__ = ["WARM_UP_STEPS", "Cycle", "basis_bytes", "fgmres"]

# Steps before a cycle's own rate is trusted: GMRES often starts slowly.
WARM_UP_STEPS = 20
# Vectors there is room for at first, of several columns and of one: most cycles need no more, and products
# with two blocks cost the host twice as much.
FIRST_VECTORS, FIRST_OF_ONE = 8, 32
# Vectors of each column alive beside the bases that are not in classical refinement.
VECTORS_BESIDE = 2


class Cycle(NamedTuple):
    """What a cycle of `fgmres` found.

    Attributes
    ----------
    d : array, shape (n, k)
        The corrections.
    steps : ndarray of int, shape (k,)
        Steps each column used.
    reductions : list of (ndarray of int, ndarray), both of shape (k,)
        After each step, the steps of each column and the estimated norm of its residual relative to the
        first.
    most : int
        The largest basis that was allowed.
    """

    d: Any
    steps: np.ndarray
    reductions: list
    most: int


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
    Cycle

    References
    ----------
    .. [1] Y. Saad, SIAM J. Sci. Comput. 14 (1993), 461-469.
    """
    xp = ops.xp
    n, k = r.shape
    basis = np.minimum(np.broadcast_to(basis, k), n)
    most = int(basis.max())
    # The orthonormal basis of each column, and the preconditioned vectors.
    v, z = _Vectors(ops, k, n, r.dtype, most + 1), _Vectors(ops, k, n, r.dtype, most)
    size = ops.column_max(r)  # the squares in a norm of r itself may leave the range of FP64
    r = r / size
    beta = xp.linalg.norm(r, axis=0)
    unit = v.append((r / beta).T)
    (start,) = ops.host(beta)
    triangle, reductions = _Triangle(k, basis, np.asarray(start), tol), []
    for j in range(most):
        w = apply(z.append(correct(unit.T).T).T).T
        h = 0.0
        for _ in range(2):  # classical Gram-Schmidt twice is as orthogonal as modified, in BLAS-2
            s = v.products(w)
            w = w - v.combined(s)
            h = h + s
        length = xp.linalg.norm(w, axis=1)
        unit = v.append(w / xp.where(length > 0, length, 1.0)[:, None])
        h, length = ops.host(h[:, : j + 1], length)  # the one synchronisation of a step
        triangle.append(np.asarray(h), np.asarray(length))
        reductions.append((triangle.steps.copy(), triangle.reduction.copy()))
        if triangle.done.all():
            break
        if give_up and j + 1 >= WARM_UP_STEPS and give_up(j + 1, triangle.worst):
            break
    y = triangle.solve()
    y = y if np.issubdtype(r.dtype, np.complexfloating) else np.ascontiguousarray(y.real)
    weights = np.zeros((k, z.room), dtype=y.dtype)  # a part of a block would be copied
    weights[:, : y.shape[1]] = y
    d = z.combined(ops.array(weights)).T * size
    return Cycle(d, triangle.steps, reductions, most)


def basis_bytes(n, k, steps, most, itemsize):
    """Return the bytes of both bases of `fgmres` after so many steps of `most`, and of what is beside."""
    most = min(most, n)
    vectors = _room(k, steps + 1, most + 1) + _room(k, steps, most) + VECTORS_BESIDE
    return vectors * k * n * itemsize


def _room(k, count, most):
    """Return how many vectors of k columns, of `most`, there is room for where there are so many."""
    room = min(most, FIRST_OF_ONE if k == 1 else FIRST_VECTORS)
    while room < count:
        room = min(most, 2 * room)
    return room


class _Vectors:
    """Up to `most` vectors (k, n), in blocks of some: none is copied for more room, nor to be multiplied."""

    def __init__(self, ops, k, n, dtype, most):
        self._ops, self._most, self._shape, self._dtype = ops, most, (k, n), dtype
        self._blocks, self._count, self.room = [], 0, 0

    def append(self, x):
        """Take x (k, n); return it as it is kept."""
        k, n = self._shape
        room = _room(k, self._count + 1, self._most)
        if room > self.room:
            # Zero, as all vectors of a block are multiplied.
            self._blocks.append(self._ops.xp.zeros((k, room - self.room, n), dtype=self._dtype))
            self.room = room
        self._count += 1
        kept = self._blocks[-1][:, self._count - 1 - self.room]
        kept[...] = x
        return kept

    def products(self, w):
        """Return v^H w, (k, room), of each vector v and w (k, n); zero where there is none yet."""
        w = w.conj()[:, :, None]
        found = [self._ops.matmul(v, w)[:, :, 0] for v in self._blocks]
        return (found[0] if len(found) == 1 else self._ops.xp.concatenate(found, axis=1)).conj()

    def combined(self, s):
        """Return the sum of the vectors times s (k, room), shape (k, n)."""
        result, stop = None, 0
        for v in self._blocks:
            start, stop = stop, stop + v.shape[1]
            some = self._ops.matmul(s[:, None, start:stop], v)[:, 0]
            result = some if result is None else result + some
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
