"""The functions of a device's `vendor` in NumPy and SciPy, one matrix after the other, for comparison."""

import numpy as np
import scipy.linalg
from tcsolve.kernels.system_shapes import TOLD

from tcsolve._backends.cpu.ops import NumpyOps
from tcsolve._contract.stacks import StackPlan
from tcsolve._solve.vendor.measure import limits
from tcsolve._solve.vendor.system import ALL_READ, TRIANGULAR, System
from tcsolve._solve.verify.long_double_residual import residual

__all__ = ["HostVendor", "HostVendorOps", "boards", "doubtful"]

_ops = NumpyOps()


class _Factors:
    def __init__(self, solvers, info, a=None):
        self._solvers, self.info, self._a = solvers, np.array(info, np.int32), a

    def solve(self, rhs, adjoint=False):
        assert rhs.flags.c_contiguous and rhs.dtype.char in "dD"
        for rows, solve in zip(rhs, self._solvers, strict=True):
            rows[...] = solve(rows.T, adjoint).T
        return rhs

    @property
    def nbytes(self):
        return self._a.nbytes

    def diagonal(self):
        """Return the pivots of general matrices, and the signs of the permutations."""
        (getrf,) = scipy.linalg.get_lapack_funcs(("getrf",), dtype=self._a.dtype)
        lus, swaps, _ = zip(*map(getrf, self._a), strict=True)
        moved = (np.array(swaps) != np.arange(self._a.shape[1])).sum(axis=1)
        return np.diagonal(lus, axis1=1, axis2=2), 1.0 - 2.0 * (moved % 2)

    def taken(self, which):
        return _Factors([self._solvers[i] for i in which], self.info[which])


def _lu(a):
    factors, zero_pivot = _ops.lu.getrf(a, a.dtype)
    return factors.solve, zero_pivot


def _cholesky(a):
    try:
        l = np.linalg.cholesky(a)
    except np.linalg.LinAlgError:  # on a device, an LU without pivoting may still give a finite x
        return _lu(a)[0], 1
    return lambda v, adjoint: scipy.linalg.cho_solve((l, True), v, check_finite=False), 0


def _triangle(a, lower):
    def solve(v, adjoint):
        how = {"lower": lower, "trans": 2 if adjoint else 0, "check_finite": False}
        return np.full_like(v, np.nan) if info else scipy.linalg.solve_triangular(a, v, **how)

    info = int((np.diagonal(a) == 0).any())
    return solve, info


def doubtful(board, k, limits, triangular):
    """Tell which systems `solve_and_judge` calls doubtful."""
    difference, read, beyond, spoilt, zero, inf, one, grown, info = board[:9]
    rest, size, (bound, least, safe, agrees) = board[9 : 9 + k], board[9 + k :], limits
    with np.errstate(all="ignore"):
        good = (spoilt == 0) & ((beyond == 0) | (difference <= agrees * read)) & (info == 0)
        good &= (zero == 0) | (not triangular)
        good &= (inf > 1 / safe) & (inf < safe) & (one < safe) & (1 / one / grown >= least)
        met = (size > 1 / safe) & (size < safe) & (rest / inf / size <= bound)
        return ~(good & (met | (size == 0) & (rest == 0)).all(axis=0))


def boards():
    """Yield (board of `Stacks`, system, which are doubtful) with ordinary, extreme and special numbers."""
    rng, (m, n, k) = np.random.default_rng(0), (4000, 6, 2)
    values = np.array([0, 1e-320, 1e-200, 1e-17, 1e-14, 1e-9, 1, 3, 1e200, np.inf, np.nan])
    for kind in ("general", "positive definite", "upper triangular"):
        a, b = np.empty((m, n, n)), np.empty((m, n, k))
        system = System(a, b, kind, None, kind == "positive definite", False, False)
        board = np.zeros((9 + 2 * k, m))
        board[5:8], board[9 : 9 + k], board[9 + k :] = 1.0, 1e-17, 1.0
        for s in range(1, m):  # of all systems but the first, one or two numbers are replaced
            board[rng.integers(len(board), size=2), s] = rng.choice(values, 2)
        if kind in TRIANGULAR:
            board[8] = 0.0  # the info of a factorization, which triangles do not have
        wanted = doubtful(board, k, limits(system), kind in TRIANGULAR)
        assert not wanted[0] and 0.3 < wanted.mean() < 0.99
        yield board, system, wanted


def random_probe(n, c):
    """Return random vector c of n entries; those of `Ops.probes` are the first two."""
    bits = 2 * np.arange(n, dtype=np.uint32) + np.uint32(c % 2 + (c // 2 << 28))
    bits = (bits ^ bits >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    bits = (bits ^ bits >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    bits ^= bits >> np.uint32(16)
    return (bits * 2.0**-31 - 1) * 3**0.5


class HostVendor:
    """Stands in for the module `vendor`, and records the sizes and types of the factored matrices."""

    largest_at_once, together, MEASURED_COLUMNS = 128, 5000, 4

    def __init__(self):
        self.factored, self.solved_at_once, self.dtypes = [], [], set()

    def plan(self, shape, dtype, kind, band, probes, *, alone=False, factors=False):
        _, n, k = shape
        fits = k == 1 and n <= self.largest_at_once
        return StackPlan(0 if fits else None, self.together, 0)

    def solve_at_once(
        self, a, b, kind, band, bound, board, *, alone=False, exact=False, probes=None
    ):
        self.solved_at_once.append(a.shape[:2])
        board[:] = 0
        read = self.read_as(a, *(band or ALL_READ), board[:5])
        factored, self.factored = self.factored, []  # the factors of this call are not recorded
        (m, n, k), eps = b.shape, np.finfo(b.dtype).eps
        probes = probes or (1 if b.dtype.char in "dD" else 2)
        near = 1e4 ** (1 / probes) * eps
        factors, self.factored = self.factor(read, kind, k + probes), factored
        with np.errstate(all="ignore"):
            y = factors.solve(self.rows(b, probes))
            x = np.swapaxes(y[:, :k], 1, 2).astype(b.dtype)
            self.measure(read, x, b, y[:, k:], factors.info, board[5:])
            near = exact | ~(1 / board[6] / board[7] >= near) & (board[8] == 0)
            units = np.broadcast_to(np.eye(n, dtype=y.dtype), (m, n, n)).copy()
            norms = np.abs(factors.solve(units)).sum(axis=2).max(axis=1)
            board[7] = np.where(near & np.isfinite(board[6]), norms, board[7])
        return x

    def solve_and_judge(self, a, b, kind, band, limits, *, alone=False):
        board = np.empty((9 + 2 * b.shape[2], len(a)))
        x = self.solve_at_once(a, b, kind, band, limits[0], board)
        few = np.flatnonzero(doubtful(board, b.shape[2], limits, kind in TRIANGULAR))
        is_told = 0 < few.size <= TOLD and len(a) > 1
        return x, few, board[:, few] if is_told else None

    def measure_large(self, a, band, y, b, info, board, *, residuals=None, hermitian=False):
        k = b.shape[2]
        with np.errstate(all="ignore"):
            x = np.swapaxes(y[:, :k], 1, 2).astype(b.dtype)
        seen = np.zeros((5, len(a)))
        read = self.read_as(a, *band, seen)
        if not hermitian:
            np.maximum(board[:5], seen, out=board[:5])
        self.measure(read, x, b, y[:, k:], info, board[5:], residuals=residuals)
        return x

    def factor_and_solve(
        self, a, kind, b, probes, *, alone=False, band=None, seen=None, copies=False
    ):
        is_its_own = len(a) == 1 and kind in TRIANGULAR and a.flags.c_contiguous
        read, is_packed = a, kind == "positive definite" and not alone
        if band and not is_its_own or copies and band:
            read = self.read_as(a, *band, seen)
        factors = self.factor(read, kind, b.shape[2] + probes)
        kept = a if is_packed and not copies else read
        return factors, factors.solve(self.rows(b, probes)), kept

    def factor(self, a, kind, columns, careful=False):
        self.factored.append(a.shape[:2])
        self.dtypes.add(a.dtype)
        a = a.astype(np.result_type(a.dtype, np.float64), order="C")
        with np.errstate(all="ignore"):
            if kind == "positive definite":
                made = [_cholesky(one) for one in a]
            elif kind == "general":
                made = [_lu(one) for one in a]
            else:
                a = a * np.eye(a.shape[1]) if kind == "diagonal" else a
                made = [_triangle(one, kind != "upper triangular") for one in a]
        solvers, info = zip(*made, strict=True)
        return _Factors(list(solvers), info, a)

    def rows(self, b, probes):
        (m, n, k), wide = b.shape, np.result_type(b.dtype, np.float64)
        out = np.empty((m, k + probes, n), wide)
        out[:, :k] = np.swapaxes(b, 1, 2)
        for c in range(probes):
            out[:, k + c] = random_probe(n, c)
        return out

    def measure(self, a, x, b, y, info, out, *, residuals=None, known=None):
        if known is not None:
            self._measure_by(*known, x[0], b[0], y[0], info, out)
            return
        with np.errstate(all="ignore"):
            wide = np.result_type(a.dtype, np.float64)
            norm, size = np.abs(a.astype(wide)), np.abs(x.astype(wide)).max(axis=1)
            r = residual(a, x, b)
            grown = np.abs(y).sum(axis=2).max(axis=1, initial=0)
            info = np.zeros(len(a)) if info is None else info
            found = [norm.sum(axis=2).max(axis=1), norm.sum(axis=1).max(axis=1), grown, info]
            out[:] = np.vstack([*found, *np.abs(r).max(axis=1).T, *size.T])
        if residuals is not None:
            residuals[:] = np.swapaxes(r, 1, 2)

    def _measure_by(self, of_rows, of_columns, ax, x, b, y, info, out):
        info = 0 if info is None else info[0]
        with np.errstate(all="ignore"):
            grown = np.abs(y).sum(axis=1).max(initial=0)
            ends = [of_rows.max(), of_columns.max(), grown, info]
            out[:, 0] = [*ends, *np.abs(b - ax).max(axis=0), *np.abs(x).max(axis=0)]

    def read_as(self, a, below, above, mirror, seen):
        n = a.shape[1]
        i, j = np.indices((n, n))
        other = np.swapaxes(a, 1, 2)
        other = other.conj() if mirror == 2 else other
        is_read = (j - i <= above) & (i - j <= below)
        out = np.where(is_read, a, other if mirror else np.zeros((), a.dtype))
        beyond = np.where(is_read, 0, a)
        with np.errstate(all="ignore"):
            apart = np.where(is_read, 0, a - out)
            if mirror == 2 and a.dtype.kind == "c":
                imaginary = np.where(i == j, a.imag, 0)
                rounded = np.abs(a.imag) <= 64 * np.finfo(a.dtype).eps * np.abs(a.real)
                out = np.where(i == j, out.real, out)
                beyond = beyond + np.where(rounded, 0, imaginary)
                apart = apart + 2 * imaginary
            seen[0] = np.fmax.reduce(np.abs(apart), axis=(1, 2), initial=0)
            seen[1] = np.fmax.reduce(np.where(is_read, np.abs(a), 0), axis=(1, 2), initial=0)
            seen[2] = (np.abs(beyond) > 0).any(axis=(1, 2))
            seen[3] = ~np.isfinite(a).all(axis=(1, 2))
            seen[4] = (np.diagonal(out, axis1=1, axis2=2) == 0).any(axis=1)
        return out


class HostVendorOps(NumpyOps):
    """NumPy's primitives with `HostVendor`."""

    def __init__(self):
        self.vendor = HostVendor()
