"""Factors and norms of stacks on the host.

On the host, this module takes the place of a device's `vendor`.  It has only the functions of `Stacks` that
the LU of a stack needs.

LAPACK has no routine for a stack, so it factors one matrix after the other.  Systems of few unknowns are
then solved together: each step of the substitution treats one unknown of all systems.
"""

import numpy as np

from tcsolve._backends.cpu.lu import lapack_of
from tcsolve._backends.cpu.short_chains import BY_NUMPY
from tcsolve._contract.stacks import StackPlan
from tcsolve._solve.verify.long_double_residual import residual_of_stack

__all__ = ["MEASURED_COLUMNS", "factor", "measure", "plan"]

# Up to this n, substitution for all systems together takes less time than one call of LAPACK for each.
ACROSS = 24
# Number of matrices that are transposed together.  They share cache lines, which then stay in the cache.
TRANSPOSED = 64
# Largest number of right-hand sides for `measure_large`, which this module does not have (see `Stacks`).
MEASURED_COLUMNS = 0
# Approximate number of entries of A that are measured at a time, so that copies of them stay in the cache.
WORK_ENTRIES = 1 << 16


def plan(shape, dtype, kind, band, probes, *, alone=False, factors=False):
    """As `Stacks.plan`: any number of systems is factored together."""
    return StackPlan(None, 1 << 60, 0)


def factor(a, kind, columns, careful=False):
    """Return the LU factors of general matrices a (m, n, n), in FP64 or complex128."""
    if kind != "general":
        raise NotImplementedError(f"only general matrices are factored here, not {kind}")
    return (LUAcross if a.shape[1] <= ACROSS else LUEach).of(a)


def _factored(a):
    """Return the transposes of L and U (m, n, n), the pivots (m, n), and info (m,)."""
    wide = np.result_type(a.dtype, np.float64)
    lu = np.array(np.swapaxes(a, 1, 2), wide, order="C")  # each lu[s].T is column-major
    pivots, info = np.empty(lu.shape[:2], np.int32), np.zeros(len(lu), np.int32)
    getrf = lapack_of("getrf", wide)
    for s, t in enumerate(lu):
        _, pivots[s], info[s] = getrf(t.T, overwrite_a=True)
    return lu, pivots, info


class LUEach:
    """P A = L U of each matrix; the substitution is LAPACK's, for one matrix after the other.

    The array lu (m, n, n) holds the transposes of L and U.
    """

    def __init__(self, lu, pivots, info):
        self._lu, self._pivots, self.info = lu, pivots, info
        self.nbytes = lu.nbytes + pivots.nbytes

    @classmethod
    def of(cls, a):
        """Factor a (m, n, n)."""
        return cls(*_factored(a))

    def solve(self, rhs, adjoint=False):
        getrs, trans = lapack_of("getrs", rhs.dtype), 2 if adjoint else 0
        # SciPy's getrs counts the pivots from 1 during its call, so other threads must not see them.
        for t, pivots, some in zip(self._lu, self._pivots.copy(), rhs, strict=True):
            some.T[...] = getrs(t.T, pivots, some.T, trans=trans, overwrite_b=True)[0]
        return rhs

    def diagonal(self):
        """Return the diagonals of U (m, n), and the signs of the permutations (m,)."""
        return np.diagonal(self._lu, axis1=1, axis2=2), _signs(self._pivots)

    def taken(self, which):
        return LUEach(self._lu[which], self._pivots[which], self.info[which])


class LUAcross:
    """P A = L U of each matrix; each step of the substitution treats all matrices.

    The last axis of the array t (n, n, m) counts the matrices, so that each step reads vectors.  For matrix
    s, row order[s, 0, i] of A becomes row i.
    """

    def __init__(self, t, pivots, info, order):
        self._t, self._pivots, self.info, self._order = t, pivots, info, order
        self.nbytes = t.nbytes + pivots.nbytes + order.nbytes

    @classmethod
    def of(cls, a):
        """Factor a (m, n, n)."""
        m, n, _ = a.shape
        t = np.empty((n, n, m), np.result_type(a.dtype, np.float64))
        pivots, info = np.empty((m, n), np.int32), np.empty(m, np.int32)
        for some in _parts(m):
            lu, pivots[some], info[some] = _factored(a[some])
            t[..., some] = lu.transpose(2, 1, 0)
        return cls(t, pivots, info, _orders(pivots)[:, None, :])

    def solve(self, rhs, adjoint=False):
        t, order = self._t, self._order
        if adjoint:
            t = t.transpose(1, 0, 2)
            x = _reversed(rhs)
            t = t.conj() if t.dtype.kind == "c" else t
            _solve_upper(t, _solve_lower(t, x, unit=False), unit=True)
            np.put_along_axis(rhs, order, x.transpose(2, 1, 0), axis=2)
        else:
            x = _reversed(np.take_along_axis(rhs, order, axis=2))
            _solve_upper(t, _solve_lower(t, x, unit=True), unit=False)
            rhs[...] = x.transpose(2, 1, 0)
        return rhs

    def diagonal(self):
        """Return the diagonals of U (m, n), and the signs of the permutations (m,)."""
        return np.diagonal(self._t), _signs(self._pivots)

    def taken(self, which):
        order = self._order[which]
        return LUAcross(self._t[..., which], self._pivots[which], self.info[which], order)


def _parts(m):
    """Return slices of m matrices."""
    return [slice(first, first + TRANSPOSED) for first in range(0, m, TRANSPOSED)]


def _reversed(v):
    """Return v (m, i, j) as (j, i, m)."""
    out = np.empty(v.shape[::-1], v.dtype)
    for some in _parts(len(v)):
        out[..., some] = v[some].transpose(2, 1, 0)
    return out


def _solve_lower(t, x, unit):
    """Solve in place with the lower triangles of t (n, n, m) for x (n, c, m).

    With `unit`, the diagonals of the triangles are ones.
    """
    for j in range(len(t)):
        if not unit:
            x[j] /= t[j, j]
        x[j + 1 :] -= t[j + 1 :, j, None] * x[j]
    return x


def _solve_upper(t, x, unit):
    """As `_solve_lower`, with the upper triangles."""
    for j in reversed(range(len(t))):
        if not unit:
            x[j] /= t[j, j]
        x[:j] -= t[:j, j, None] * x[j]
    return x


def _orders(pivots):
    """Return the row of A that becomes row i, (m, n), by the swaps of rows j and pivots[:, j]."""
    m, n = pivots.shape
    order, every = np.tile(np.arange(n), (m, 1)), np.arange(m)
    for j in range(n):
        moved = order[every, pivots[:, j]]
        order[every, pivots[:, j]] = order[:, j]
        order[:, j] = moved
    return order


def _signs(pivots):
    return 1.0 - 2.0 * ((pivots != np.arange(pivots.shape[1])).sum(axis=1) % 2)


def measure(a, x, b, y, info, out, *, residuals=None, known=None):
    """Fill `out` with the norms that verify the solutions x of A x = b; see `Stacks.measure`."""
    if known is not None:
        _measure_by(known, x[0], b[0], y[0], info, out)
        return
    (m, n, k), wide = x.shape, np.result_type(a.dtype, np.float64)
    out[3] = 0 if info is None else info
    step = max(1, WORK_ENTRIES // (n * n))
    with np.errstate(all="ignore"):
        out[2] = np.abs(y).sum(axis=2).max(axis=1, initial=0)
        for first in range(0, m, step):
            some = slice(first, first + step)
            system = [v[some].astype(wide, copy=False) for v in (a, x, b)]
            size, of_a, ones = out[4 + k :, some], np.abs(system[0]), np.ones(n)
            if n > BY_NUMPY:
                of_rows, of_columns = of_a.sum(axis=2), of_a.sum(axis=1)
            else:
                of_rows, of_columns = of_a @ ones, ones @ of_a
            out[0, some], out[1, some] = of_rows.max(axis=1), of_columns.max(axis=1)
            size[:] = np.abs(system[1]).max(axis=1).T
            known = out[0, some], size.T
            r = residual_of_stack(*system, x.dtype.char in "fF", lambda known=known: known)
            out[4 : 4 + k, some] = np.abs(r).max(axis=1).T
            if residuals is not None:
                residuals[some] = np.swapaxes(r, 1, 2)


def _measure_by(known, x, b, y, info, out):
    """Fill `out` for one system from the sums of |a_ij| and from A x."""
    of_rows, of_columns, ax = known
    grown = np.abs(y).sum(axis=1).max(initial=0)
    ends = [of_rows.max(), of_columns.max(), grown, 0 if info is None else info[0]]
    with np.errstate(all="ignore"):
        out[:, 0] = [*ends, *np.abs(b - ax).max(axis=0), *np.abs(x).max(axis=0)]
