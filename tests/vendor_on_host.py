"""What `tcsolve._vendor` offers, in NumPy and SciPy, one matrix after the other: its oracle."""

import numpy as np
import scipy.linalg

from tcsolve._ops_numpy import NumpyOps
from tcsolve._wide import residual

__all__ = ["HostVendorOps"]

_ops = NumpyOps()


class _Factors:
    def __init__(self, solvers, info):
        self._solvers, self.info = solvers, np.array(info, np.int32)

    def solve(self, rhs, adjoint=False):
        assert rhs.flags.c_contiguous and rhs.dtype.char in "dD"
        for rows, solve in zip(rhs, self._solvers, strict=True):
            rows[...] = solve(rows.T, adjoint).T
        return rhs

    def taken(self, which):
        return _Factors([self._solvers[i] for i in which], self.info[which])


def _lu(a):
    factors, zero_pivot = _ops.getrf(a, a.dtype)
    return lambda v, adjoint: _ops.getrs(factors, v, adjoint), zero_pivot


def _cholesky(a):
    try:
        l = np.linalg.cholesky(a)
    except np.linalg.LinAlgError:
        return lambda v, adjoint: np.full_like(v, np.nan), 1
    return lambda v, adjoint: scipy.linalg.cho_solve((l, True), v, check_finite=False), 0


def _triangle(a, lower):
    def solve(v, adjoint):
        how = {"lower": lower, "trans": 2 if adjoint else 0, "check_finite": False}
        return np.full_like(v, np.nan) if info else scipy.linalg.solve_triangular(a, v, **how)

    info = int((np.diagonal(a) == 0).any())
    return solve, info


class HostVendor:
    """Stands in for the module, and notes the sizes of what was factored."""

    def __init__(self):
        self.factored = []

    def most_at_once(self, kind):
        return 5000

    def factor(self, a, kind, columns):
        self.factored.append(a.shape[:2])
        a = a.astype(np.result_type(a.dtype, np.float64), order="C")
        with np.errstate(all="ignore"):
            if kind == "positive definite":
                made = [_cholesky(one) for one in a]
            elif kind == "general":
                made = [_lu(one) for one in a]
            else:
                made = [_triangle(one, kind != "upper triangular") for one in a]
        solvers, info = zip(*made, strict=True)
        return _Factors(list(solvers), info)

    def measure(self, a, x, b, y, info):
        with np.errstate(all="ignore"):
            wide = np.result_type(a.dtype, np.float64)
            norm, size = np.abs(a.astype(wide)), np.abs(x.astype(wide)).max(axis=1)
            r = np.abs(residual(a, x, b)).max(axis=1)
            grown = np.abs(y).sum(axis=2).max(axis=1)
            rows = [norm.sum(axis=2).max(axis=1), norm.sum(axis=1).max(axis=1), grown, info]
            return np.vstack([*rows, *r.T, *size.T])

    def read_as(self, a, below, above, mirror):
        n = a.shape[1]
        i, j = np.indices((n, n))
        other = np.swapaxes(a, 1, 2)
        other = other.conj() if mirror == 2 else other
        is_read = (j - i <= above) & (i - j <= below)
        out = np.where(is_read, a, other if mirror else np.zeros((), a.dtype))
        if mirror == 2 and a.dtype.kind == "c":
            out[:, range(n), range(n)] = out[:, range(n), range(n)].real
        return out, np.array([not np.isfinite(a).all()], np.int32)


class HostVendorOps(NumpyOps):
    """NumPy's primitives with `HostVendor`."""

    def __init__(self):
        self.vendor = HostVendor()
