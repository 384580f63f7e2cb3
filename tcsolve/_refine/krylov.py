"""FGMRES for several right-hand sides at once; each has its own Krylov space."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

__all__ = ["WARM_UP_STEPS", "Cycle", "basis_bytes", "fgmres"]

# Number of steps before the convergence rate of a cycle is trusted: GMRES often starts slowly.
WARM_UP_STEPS = 20
# Number of basis vectors in the first block of memory, for several columns and for one column.  Most cycles
# need no more, and each further block costs the host another product per step.
FIRST_VECTORS, FIRST_OF_ONE = 8, 32
# Number of vectors per column that FGMRES needs besides its bases and the vectors of classical refinement.
VECTORS_BESIDE = 2


class Cycle(NamedTuple):
    """The result of one cycle of `fgmres`.

    Attributes
    ----------
    d : array, shape (n, k)
        The corrections.
    steps : ndarray of int, shape (k,)
        Number of steps of each column.
    reductions : list of (ndarray of int, ndarray), both of shape (k,)
        For each step: the number of steps of each column so far, and the estimated norm of its residual
        divided by the norm at the start.
    most : int
        Largest basis that was allowed.
    """

    d: Any
    steps: np.ndarray
    reductions: list
    most: int


def fgmres(ops, apply, correct, r, *, basis, tol, give_up=None):
    """Reduce the residuals r by one cycle of flexible GMRES; all columns take each step together.

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
        Largest number of steps of each column, at least 1.
    tol : float
        A column is done when the estimate of its residual is at most `tol` times the norm at the start.
    give_up : callable, (steps, reduction) -> bool, optional
        Called after step 20 and each later step with the largest reduction of the columns that are not
        done.  The cycle ends if it returns True.

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
    # v: orthonormal basis of the Krylov space of each column.  z: the preconditioned basis vectors.
    v, z = _Vectors(ops, k, n, r.dtype, most + 1), _Vectors(ops, k, n, r.dtype, most)
    size = ops.column_max(r)  # scale r first: its squares may overflow or underflow in the norm
    r = r / size
    beta = xp.linalg.norm(r, axis=0)
    unit = v.append((r / beta).T)
    (start,) = ops.host(beta)
    triangle, reductions = _Triangle.of(k, basis, np.asarray(start), tol), []
    for j in range(most):
        # Apply the preconditioner and the operator.
        w = apply(z.append(correct(unit.T).T).T).T
        # Orthogonalize: classical Gram-Schmidt done twice is as stable as the modified one, and uses BLAS-2.
        h = 0.0
        for _ in range(2):
            s = v.products(w)
            w = w - v.combined(s)
            h = h + s
        length = xp.linalg.norm(w, axis=1)
        unit = v.append(w / xp.where(length > 0, length, 1.0)[:, None])
        h, length = ops.host(h[:, : j + 1], length)  # the one synchronisation of a step
        # Apply the old Givens rotations to the new column, and find the next one.
        triangle.append(np.asarray(h), np.asarray(length))
        reductions.append((triangle.steps.copy(), triangle.reduction.copy()))
        if triangle.done.all():
            break
        if give_up and j + 1 >= WARM_UP_STEPS and give_up(j + 1, triangle.worst):
            break
    # Solve the least-squares problems, and combine the preconditioned vectors.
    y = triangle.solve()
    y = y if np.issubdtype(r.dtype, np.complexfloating) else np.ascontiguousarray(y.real)
    # Weights of zero for the unused vectors: a product with a part of a block would copy it.
    weights = np.zeros((k, z.room), dtype=y.dtype)
    weights[:, : y.shape[1]] = y
    d = z.combined(ops.xp.asarray(weights)).T * size
    return Cycle(d, triangle.steps, reductions, most)


def basis_bytes(n, k, steps, most, itemsize):
    """Return the bytes of both bases of `fgmres` after `steps` of `most` steps, and of its other vectors."""
    most = min(most, n)
    vectors = _room(k, steps + 1, most + 1) + _room(k, steps, most) + VECTORS_BESIDE
    return vectors * k * n * itemsize


def _room(k, count, most):
    """Return the capacity, in vectors of k columns, after `count` of at most `most` vectors were appended."""
    room = min(most, FIRST_OF_ONE if k == 1 else FIRST_VECTORS)
    while room < count:
        room = min(most, 2 * room)
    return room


class _Vectors:
    """Up to `most` vectors (k, n), in blocks of memory that grow without copying the older vectors."""

    def __init__(self, ops, k, n, dtype, most):
        self._ops, self._most, self._shape, self._dtype = ops, most, (k, n), dtype
        self._blocks, self._count, self.room = [], 0, 0

    def append(self, x):
        """Store a copy of x (k, n), and return the copy."""
        k, n = self._shape
        room = _room(k, self._count + 1, self._most)
        if room > self.room:
            # Zeros, because products use all vectors of a block, stored or not.
            self._blocks.append(self._ops.xp.zeros((k, room - self.room, n), dtype=self._dtype))
            self.room = room
        self._count += 1
        kept = self._blocks[-1][:, self._count - 1 - self.room]
        kept[...] = x
        return kept

    def products(self, w):
        """Return v^H w for each stored vector v and w (k, n): shape (k, room), zero for unused room."""
        w = w.conj()[:, :, None]
        found = [self._ops.product(v, w)[:, :, 0] for v in self._blocks]
        return (found[0] if len(found) == 1 else self._ops.xp.concatenate(found, axis=1)).conj()

    def combined(self, s):
        """Return the linear combination of the vectors with the coefficients s (k, room): shape (k, n)."""
        result, stop = None, 0
        for v in self._blocks:
            start, stop = stop, stop + v.shape[1]
            some = self._ops.product(s[:, None, start:stop], v)[:, 0]
            result = some if result is None else result + some
        return result


@dataclass
class _Triangle:
    """The Hessenberg least-squares problems of k columns, reduced to triangles by Givens rotations."""

    r: np.ndarray
    g: np.ndarray
    basis: np.ndarray
    beta: np.ndarray
    tol: float
    done: np.ndarray
    steps: np.ndarray
    reduction: np.ndarray
    rotations: list = field(default_factory=list)

    @classmethod
    def of(cls, k, basis, beta, tol):
        """Return the problems before the first step, for residuals with the norms beta (k,)."""
        most = basis.max()
        r, g = np.zeros((k, most, most), dtype=complex), np.zeros((k, most + 1), dtype=complex)
        g[:, 0] = beta
        done, steps, reduction = np.zeros(k, bool), np.zeros(k, int), np.ones(k)
        return cls(r, g, basis, beta, tol, done, steps, reduction)

    def append(self, h, size):
        """Append column j to the Hessenberg matrices: h (k, j + 1) and the subdiagonal `size` (k,)."""
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
        # A NaN ends its column too: no further step removes it.  The caller measures the error of x anyway.
        self.done |= ~(self.reduction > self.tol) | (size == 0) | (self.steps >= self.basis)

    @property
    def worst(self):
        """The largest reduction among the columns that are not done."""
        return self.reduction[~self.done].max()

    def solve(self):
        """Return the coefficients, shape (k, steps); zeros beyond the steps of a column."""
        y = np.zeros((len(self.steps), max(self.steps)), dtype=complex)
        for c, steps in enumerate(self.steps):
            r, g = self.r[c, :steps, :steps], self.g[c, :steps]
            if np.isfinite(r).all() and (r.diagonal() != 0).all():
                y[c, :steps] = np.linalg.solve(r, g)
            elif np.isfinite(r).all():  # singular: take the least-squares solution of minimum norm
                y[c, :steps] = np.linalg.lstsq(r, g)[0]
        return y
