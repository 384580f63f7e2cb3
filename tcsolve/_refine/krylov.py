"""GMRES and FGMRES for several right-hand sides at once; each has its own Krylov space."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tcsolve._arithmetic.matrix_parts import column_tops

__all__ = ["WARM_UP_STEPS", "Cycle", "basis_bytes", "fgmres", "gmres"]

# Number of steps before the convergence rate of a cycle is trusted: GMRES often starts slowly.
WARM_UP_STEPS = 20
# Number of basis vectors in the first block of memory, for several columns and for one column.  Most cycles
# need no more, and each further block costs the host another product per step.
FIRST_VECTORS, FIRST_OF_ONE = 8, 32
# Number of vectors per column that a cycle needs besides its bases and the vectors of classical refinement,
# by the number of bases.  GMRES has A v and M^-1 A v at the same time.
VECTORS_BESIDE = {1: 3, 2: 2}
# The rounding error of a product with A, relative to ||A|| in the infinity norm.  The theory bounds it by
# about 2**-53; on ill-conditioned matrices of the SuiteSparse collection it was 20 to 200 times smaller.
ROUNDING = 2.0**-57
# A correction is accepted up to this estimated rounding error, relative to the residual at the start.  It is
# above one, because the estimate may be ten times too large.
LOSABLE = 4.0


class Cycle(NamedTuple):
    """The result of one cycle of `fgmres`, `gmres` or `cg`.

    Attributes
    ----------
    d : array, shape (n, k)
        The corrections.
    steps : ndarray of int, shape (k,)
        Number of steps of each column.
    reductions : list of (ndarray of int, ndarray), both of shape (k,)
        For each step: the number of steps of each column so far, and the estimated norm of its residual
        divided by the norm at the start.  FGMRES adds the estimated rounding error of the correction.
    most : int
        Largest basis that was allowed; 0 for CG, which stores none.
    """

    d: Any
    steps: np.ndarray
    reductions: list
    most: int


def fgmres(ops, apply, correct, r, *, basis, tol, norm=0.0, give_up=None):
    """Reduce the residuals r by one cycle of flexible GMRES; all columns take each step together.

    Parameters
    ----------
    ops : Ops
    apply : callable, (n, k) -> (n, k)
        The operator, in FP64.
    correct : callable, (n, k) -> (n, k), or None
        The preconditioner; it may change from step to step [1]_.  With None there is none, and the vectors
        are stored once instead of twice.
    r : array, shape (n, k)
        Residuals, nonzero and finite; float64 or complex128.
    basis : int or ndarray of int, shape (k,)
        Largest number of steps of each column, at least 1.
    tol : float or ndarray, shape (k,)
        A column is done when the estimate of its residual is at most `tol` times the norm at the start.
    norm : float
        Infinity norm of the operator, for the rounding errors of the correction; with 0 they are ignored.
    give_up : callable, (steps, reduction) -> bool, optional
        Called after step 20 and each later step.  `reduction` is the largest ratio of the present residual
        to that at the start, over all columns that are not done.  The cycle ends if it returns True.

    Returns
    -------
    Cycle

    Notes
    -----
    The correction is d = Z y, and the products A z_i have rounding errors.  So the residual of d differs from
    that of the least-squares problem for y by up to about 2**-53 ||A|| sum |y_i| ||z_i||.  If the vectors of
    Z are nearly dependent, the y_i grow while the residual of the least-squares problem falls [2]_.  So a
    column gets the correction of the last step for which these rounding errors are small.

    References
    ----------
    .. [1] Y. Saad, SIAM J. Sci. Comput. 14 (1993), 461-469.
    .. [2] M. Arioli, I. S. Duff, Electron. Trans. Numer. Anal. 33 (2009), 31-44.
    """
    xp = ops.xp
    n, k = r.shape
    basis = np.minimum(np.broadcast_to(basis, k), n)
    most = int(basis.max())
    # v: orthonormal basis of the Krylov space of each column.  z: the preconditioned basis vectors.
    v = _Vectors(ops, k, n, r.dtype, most + 1)
    z = _Vectors(ops, k, n, r.dtype, most) if correct else v
    # Scale r first: its squares may overflow or underflow in the norm.
    size = column_tops(ops, r)
    r = r / size
    beta = xp.linalg.norm(r, axis=0)
    unit = v.append((r / beta).T)
    (start,) = ops.host(beta)
    triangle, reductions = _Triangle.of(k, basis, np.asarray(start), tol), []
    lost = ROUNDING * norm
    for j in range(most):
        # Apply the preconditioner and the operator.
        found = z.append(correct(unit.T).T) if correct else unit
        w = apply(found.T).T
        # Orthogonalize: classical Gram-Schmidt done twice is as stable as the modified one, and uses BLAS-2.
        h = 0.0
        for _ in range(2):
            s = v.products(w)
            w = w - v.combined(s)
            h = h + s
        length = xp.linalg.norm(w, axis=1)
        unit = v.append(w / xp.where(length > 0, length, 1.0)[:, None])
        # Wait for the device.  Apart from this, a step waits only if `Ops.product` checks its result, which
        # it does for many columns.
        h, length, found = ops.host(h[:, : j + 1], length, xp.linalg.norm(found, axis=1))
        # Apply the old Givens rotations to the new column, and find the next one.
        triangle.append(np.asarray(h), np.asarray(length), lost * np.asarray(found))
        reductions.append((triangle.steps.copy(), triangle.reduction.copy()))
        if triangle.done.all():
            break
        if give_up and j + 1 >= WARM_UP_STEPS and give_up(j + 1, triangle.worst):
            break
    # Solve the least-squares problems, and combine the preconditioned vectors.
    y, rounding = triangle.solve()
    reductions = [(s, e + c) for (s, e), c in zip(reductions, rounding.T, strict=True)]
    y = y if np.issubdtype(r.dtype, np.complexfloating) else np.ascontiguousarray(y.real)
    # Weights of zero for the unused vectors: a product with a part of a block would copy it.
    weights = np.zeros((k, z.room), dtype=y.dtype)
    weights[:, : y.shape[1]] = y
    d = z.combined(ops.xp.asarray(weights)).T * size
    return Cycle(d, triangle.steps, reductions, most)


def gmres(ops, apply, correct, r, **how):
    """Reduce the preconditioned residuals M^-1 r by one cycle of GMRES for M^-1 A d = M^-1 r.

    The arguments are those of `fgmres`, but `correct`, v -> M^-1 v, must not change from step to step.  The
    reductions, and `tol`, are those of the preconditioned residual.  `correct` takes what `apply` returns,
    which may be a `Pair`.

    Returns
    -------
    Cycle

    Notes
    -----
    The basis is orthonormal, so the combination of its vectors loses no digits.  If `apply` returns FP64
    numbers, the rounding errors of the products with A remain, and M^-1 multiplies them by up to the
    condition number of M [1]_.  Then a `tol` below these errors is of no use.  A `Pair` avoids these errors.
    The caller computes a new residual after each cycle.

    References
    ----------
    .. [1] P. Amestoy et al., SIAM J. Matrix Anal. Appl. 45 (2024), 529-552.
    """
    return fgmres(ops, lambda v: correct(apply(v)), None, correct(r), **how)


def basis_bytes(n, k, steps, most, itemsize, *, bases=2):
    """Return the bytes that a cycle takes after `steps` of `most` steps.

    `bases` is 2 for `fgmres`, and 1 for `gmres`.
    """
    most = min(most, n)
    vectors = _room(k, steps + 1, most + 1) + (bases - 1) * _room(k, steps, most)
    return (vectors + VECTORS_BESIDE[bases]) * k * n * itemsize


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
    """The Hessenberg least-squares problems of k columns, reduced to triangles by Givens rotations.

    `lost[:, j]` is the rounding error that a coefficient y_j = 1 adds to the residual.
    """

    r: np.ndarray
    g: np.ndarray
    lost: np.ndarray
    basis: np.ndarray
    beta: np.ndarray
    tol: Any
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
        lost = np.zeros((k, most))
        return cls(r, g, lost, basis, beta, tol, done, steps, reduction)

    def append(self, h, size, lost):
        """Append column j: h (k, j + 1), the subdiagonal `size` (k,), and column j of `lost` (k,)."""
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
        self.lost[:, j] = lost
        self.g[:, j + 1] = -s.conj() * self.g[:, j]
        self.g[:, j] = c * self.g[:, j]
        self.steps[~self.done] = j + 1
        reduction = np.abs(self.g[:, j + 1]) / self.beta
        self.reduction = np.where(self.done, self.reduction, reduction)
        # A NaN ends its column too: no further step removes it.  The caller measures the error of x anyway.
        self.done |= ~(self.reduction > self.tol) | (size == 0) | (self.steps >= self.basis)

    @property
    def worst(self):
        """The largest ratio of the present residual to that at the start, over columns that are not done."""
        return self.reduction[~self.done].max()

    def solve(self):
        """Return the coefficients y, and the rounding errors / `beta` after each step; both (k, steps).

        The coefficients of a column are those of the last step with small rounding errors, with zeros for
        the later steps.  If no step has small rounding errors, the coefficients are those of the last step.
        """
        y = np.zeros((len(self.steps), max(self.steps)), dtype=complex)
        rounding = np.zeros(y.shape)
        for c, steps in enumerate(self.steps):
            r, g = self.r[c, :steps, :steps], self.g[c, :steps]
            if not np.isfinite(r).all():
                continue
            if (
                r.diagonal() == 0
            ).any():  # singular: take the least-squares solution of minimum norm
                y[c, :steps] = np.linalg.lstsq(r, g)[0]
                continue
            # Column j has the coefficients after step j + 1: the inverse of a leading block of r is the
            # leading block of the inverse.
            after = np.cumsum(np.linalg.inv(r) * g, axis=1)
            rounding[c, :steps] = self.lost[c, :steps] @ np.abs(after) / self.beta[c]
            small = np.flatnonzero(rounding[c, :steps] <= LOSABLE)
            taken = small[-1] + 1 if small.size else steps
            y[c, :taken] = np.linalg.solve(r[:taken, :taken], g[:taken])
        return y, rounding
