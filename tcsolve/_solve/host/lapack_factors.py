"""The factorizations of LAPACK on the host, one class per structure: factor, solve, estimate rcond.

The outcome of a routine is read from its return values.  No code here catches a warning, because warning
filters apply to the whole process, and other threads may give warnings at the same time.
"""

import numpy as np

from tcsolve._backends.cpu.blas import band_norms, blas_of, largest_of_array
from tcsolve._backends.cpu.inverse_norm import estimated_rcond
from tcsolve._backends.cpu.lu import column_max, lapack_of
from tcsolve._backends.cpu.ops import numpy_ops
from tcsolve._contract.vectors import solve_scaled
from tcsolve._lu.norms import condest
from tcsolve._lu.scaling import exponent_of, ldexp
from tcsolve._solve.ladder.short_refinement import divided
from tcsolve._solve.verify.long_double_residual import SMALL, residual

__all__ = ["Band", "Banded", "Cholesky", "General", "Rounded", "Triangular", "is_positive_definite"]


class General:
    """P A = L U with partial pivoting; if A is row-major, P A^T = L U."""

    def __init__(self, factors, bad_pivot):
        self._factors, self.bad_pivot = factors, bad_pivot

    @classmethod
    def of(cls, a, overwrite_a=False):
        """Factor a (n, n)."""
        return cls(*numpy_ops.lu.getrf(a, a.dtype, overwrite_a))

    def solve(self, b):
        """Return A**-1 b, (n, k)."""
        return self._factors.solve(b, False)

    def inverted(self, dtype):
        """Return a function that multiplies b (n, k) by A**-1, which is converted to `dtype`."""
        lu, swaps, transposed, _ = self._factors
        # As in `NumpyLU.solve`, other threads must not see that SciPy changes the pivots in place.
        inverse, _ = lapack_of("getri", lu.dtype)(lu, swaps.copy())
        gemm, t = blas_of("gemm", dtype), inverse.astype(dtype)
        return lambda b: gemm(1.0, t, b, trans_a=transposed)

    def rcond(self, norm_one):
        """Return the estimate of 1 / (||A||_1 ||A**-1||_1)."""
        return self._factors.gecon(norm_one)

    def largest(self):
        """Return the largest modulus of the entries of L and U; for complex ones it may be |re| + |im|."""
        return largest_of_array(self._factors.lu)


class Rounded:
    """The factors of an FP64 matrix in FP32; entries of right-hand sides may have any size."""

    def __init__(self, factors, dtype):
        self._factors, self._dtype, self.bad_pivot = factors, dtype, factors.bad_pivot

    @classmethod
    def of(cls, a, order="K", factor=General.of):
        """Factor a (n, n) by `factor`; with `order` "F", LAPACK factors a itself, not its transpose."""
        dtype = np.dtype(np.complex64 if a.dtype.kind == "c" else np.float32)
        return cls(factor(a.astype(dtype, order=order), overwrite_a=True), dtype)

    def solve(self, b):
        """Return A**-1 b, (n, k), to the precision of FP32."""
        return solve_scaled(np, column_max(b), self._solve, b, self._dtype)

    def solver(self, b):
        """Return (solve, sized) for residuals r of the dtype of b, with at most as many columns as b.

        solve(r, max |r|) returns A**-1 r, and `sized` tells whether it needs max |r|.  For LU factors and at
        least n columns, solve multiplies by A**-1, which is computed from the factors.  This takes a fraction
        of the time of two triangular solves.
        """
        if b.size < len(b) ** 2 or type(self._factors) is not General:
            return self._solve_sized, True
        times_inverse = self._factors.inverted(b.dtype)
        return (lambda r, size: times_inverse(r)), False

    def _solve_sized(self, b, size):
        """Return A**-1 b for b (n,) or (n, k), if max |b| of each column is known and not zero."""
        wide = size if type(size) is np.ndarray else np.float64(size)
        return self._factors.solve(divided(b, size, self._dtype)) * wide

    def _solve(self, b):
        # All other arrays of the refinement are row-major.
        return np.ascontiguousarray(self._factors.solve(b))

    def rcond(self, norm_one):
        """Return the estimate of 1 / (||A||_1 ||A**-1||_1)."""
        return self._factors.rcond(norm_one)

    def largest(self):
        """As that of `General`."""
        return self._factors.largest()


class Cholesky:
    """A = L L**H of a positive definite matrix, which is stored with both triangles."""

    def __init__(self, factor, bad_pivot, conjugate):
        self._factor, self.bad_pivot, self._conjugate = factor, bad_pivot, conjugate

    @classmethod
    def of(cls, a, overwrite_a=False):
        """Factor a (n, n)."""
        # LAPACK is column-major: of a row-major A it sees the transpose, which is conj(A).
        conjugate = not a.flags.f_contiguous and a.dtype.kind == "c"
        t = a if a.flags.f_contiguous else a.T
        potrf = lapack_of("potrf", a.dtype)
        return cls(*potrf(t, lower=False, clean=False, overwrite_a=overwrite_a), conjugate)

    def solve(self, b):
        """Return A**-1 b, (n, k)."""
        b = b.conj() if self._conjugate else b
        if b.size == len(b):  # two calls of trtrs take a third of the time of potrs
            trtrs = lapack_of("trtrs", b.dtype)
            x = trtrs(self._factor, trtrs(self._factor, b, trans=2)[0])[0]
        else:
            x = lapack_of("potrs", b.dtype)(self._factor, b, lower=False)[0]
        return x.conj() if self._conjugate else x

    def rcond(self, norm_one):
        """Return the estimate of 1 / (||A||_1 ||A**-1||_1)."""
        dtype = self._factor.dtype
        rcond = estimated_rcond(
            norm_one, lambda v, adjoint: self.solve(v), len(self._factor), dtype
        )
        if rcond is not None:
            return rcond
        return float(lapack_of("pocon", dtype)(self._factor, norm_one, uplo="U")[0])


class Triangular:
    """A triangular matrix, which needs no factorization."""

    def __init__(self, a, lower, transposed, bad_pivot):
        self._a, self._lower, self._transposed = a, lower, transposed
        self.bad_pivot = bad_pivot

    @classmethod
    def of(cls, a, lower):
        """Look for a zero on the diagonal of a (n, n)."""
        # LAPACK is column-major: of a row-major matrix it sees the transpose, with the other triangle.
        transposed = not a.flags.f_contiguous
        diagonal, bad_pivot = a.diagonal(), 0
        if not np.logical_and.reduce(diagonal):
            bad_pivot = int(np.flatnonzero(diagonal == 0)[0]) + 1
        return cls(a.T if transposed else a, lower != transposed, transposed, bad_pivot)

    def solve(self, b, adjoint=False):
        """Return A**-1 b, or A**-T b, (n, k)."""
        how = {"lower": self._lower, "trans": int(self._transposed != adjoint)}
        return lapack_of("trtrs", b.dtype)(self._a, b, **how)[0]

    def rcond(self, norm_one):
        """Return the estimate of 1 / (||A||_1 ||A**-1||_1)."""
        rcond = estimated_rcond(norm_one, self.solve, len(self._a), self._a.dtype)
        if rcond is not None:
            return rcond
        norm, uplo = "I" if self._transposed else "1", "L" if self._lower else "U"
        return float(lapack_of("trcon", self._a.dtype)(self._a, norm=norm, uplo=uplo)[0])


class Band:
    """A band matrix (n, n) in the storage of LAPACK, so that work on it takes O(n) time.

    Entry (i, j) is in row above + i - j of `diagonals`.
    """

    def __init__(self, a, below, above, diagonals):
        self.a, self.below, self.above, self.diagonals = a, below, above, diagonals

    @classmethod
    def of(cls, a, below, above):
        """Copy the diagonals of a (n, n)."""
        diagonals = np.zeros((below + above + 1, len(a)), a.dtype, order="F")
        for d in range(-below, above + 1):
            diagonal = a.diagonal(d)
            diagonals[above - d, max(d, 0) : max(d, 0) + len(diagonal)] = diagonal
        return cls(a, below, above, diagonals)

    def times(self, x):
        """Return A x, (n, k)."""
        t = self.diagonals
        n, gbmv = len(self.a), blas_of("gbmv", t.dtype)
        columns = [gbmv(n, n, self.below, self.above, 1.0, t, np.ascontiguousarray(v)) for v in x.T]
        return np.array(columns).T

    def norms(self):
        """Return the infinity norm and the 1-norm; NaN if the band holds NaN."""
        return band_norms(self.diagonals, self.below, self.above)

    def residual(self, x, b):
        """Return b - A x, (n, k), for few unknowns as accurately as in long double."""
        return residual(self.a, x, b) if len(b) <= SMALL else b - self.times(x)


class Banded:
    """P A = L U of a band matrix."""

    def __init__(self, a, bands, pivots, bad_pivot):
        self._a, self._bands, self._pivots, self.bad_pivot = a, bands, pivots, bad_pivot

    @classmethod
    def of(cls, band):
        """Factor a `Band`."""
        kl, ku, entries = band.below, band.above, band.diagonals
        # The first kl rows are for fill-in.
        room = np.zeros((kl + len(entries), entries.shape[1]), entries.dtype, order="F")
        room[kl:] = entries
        lu, pivots, info = lapack_of("gbtrf", room.dtype)(room, kl, ku, overwrite_ab=True)
        if ku == 0 and not info and not entries[0].all():
            # A lower triangle with a zero on its diagonal; pivoting has made the last pivot nonzero.
            info = 1 + int(np.argmin(entries[0] != 0))
        return cls(band.a, (lu, kl, ku), pivots, max(info, 0))

    def solve(self, b, adjoint=False):
        """Return A**-1 b, or A**-H b, (n, k)."""
        gbtrs = lapack_of("gbtrs", b.dtype)
        return gbtrs(*self._bands, b, self._pivots, trans=2 if adjoint else 0)[0]

    def rcond(self, norm_one):
        """Return the estimate of 1 / (||A||_1 ||A**-1||_1)."""
        dtype = np.result_type(self._a, np.float64)

        def solve(v, adjoint=False):
            return self.solve(v.astype(dtype, copy=False), adjoint)

        return condest(numpy_ops, self._a, norm_one, solve, lambda v: solve(v, True)).rcond


def is_positive_definite(a):
    """Tell whether the Hermitian a (n, n) has a Cholesky factorization; its entries may have any size.

    Rows and columns are scaled by powers of two, so that the diagonal is near 1.  This changes no rounding.
    A matrix with NaN or Inf is not positive definite.
    """
    diagonal = a.diagonal().real.astype(np.float64)
    if not (diagonal > 0).all():
        return False
    exponent = -(exponent_of(np, diagonal) // 2)
    wide = a.astype(np.result_type(a, np.float64))
    with np.errstate(all="ignore"):
        scaled = ldexp(np, wide, exponent[:, None] + exponent)
        return bool(np.isfinite(scaled).all()) and not Cholesky.of(scaled).bad_pivot
