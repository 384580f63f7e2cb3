"""Least squares by the augmented system, with QR factors of low precision.

The x that minimizes ||b - A x||, and its residual r, satisfy

    r + A x = b,    A^H r = 0.

Residuals of both equations are computed in FP64, and corrections with factors A D = Q R in FP32, where D
scales the columns by powers of two [1]_ [2]_.

References
----------
.. [1] A. Bjorck, BIT 7 (1967), 257-278.
.. [2] E. Carson, N. J. Higham, S. Pranesh, SIAM J. Sci. Comput. 42 (2020), A4063-A4083.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

from tcsolve._backends.cpu.blas import matmul
from tcsolve._backends.cpu.lu import lapack_of
from tcsolve._lu.scaling import exponent_of, ldexp

__all__ = ["QRFactors", "refine_augmented"]

# Corrections continue while each at least halves the error of the worst column; at most MOST.
CONTRACTION, MOST = 0.5, 20


@dataclass(frozen=True, eq=False)
class QRFactors:
    """A D = Q R in FP32, with D = diag(2**-exponent); `norm` is the Frobenius norm of A D."""

    ops: Any
    q: Any
    r: Any
    exponent: Any
    norm: float

    @classmethod
    def of(cls, ops, a):
        """Factor an FP64 a (m, n), m >= n."""
        xp = ops.xp
        exponent = exponent_of(xp, a, 0)[0]
        low = np.dtype(np.complex64 if a.dtype.kind == "c" else np.float32)
        near = ldexp(xp, a, -exponent)
        # The norms of columns need no BLAS.  For the norm of a whole matrix, NumPy would call its own.
        lengths = xp.linalg.norm(near, axis=0)
        norm, near = float(ops.host(xp.linalg.norm(lengths))[0]), ops.converted(near, low)
        if xp is np:
            near = np.asfortranarray(near)
            q, r = _qr(near, mode="economic", overwrite_a=True, check_finite=False)
        else:
            q, r = xp.linalg.qr(near, mode="reduced")
        return cls(ops, q, r, exponent, norm)

    def rcond(self):
        """Return estimates of 1 / (||R||_1 ||R^-1||_1), for the R of A D and for that of A."""
        r, exponent = self.ops.host(self.r, self.exponent)
        wide = r.astype(np.result_type(r, np.float64))
        if not np.isfinite(wide).all() or not wide.diagonal().all():
            return 0.0, 0.0
        with np.errstate(all="ignore"):
            whole = ldexp(np, wide, exponent - exponent.max())
            return _trcon(wide), _trcon(whole)

    def in_range(self, g):
        """Return R^-H D g in FP64; for g = A^H r, its 2-norm is that of the part of r in the range of A."""
        low, shift = self._near(g)
        h = self._solve(low, adjoint=True)
        return ldexp(self.ops.xp, self.ops.converted(h, g.dtype), shift)

    def _near(self, g):
        """Return (D g 2**-shift in FP32, shift): FP32 has a small range, so each column is brought near 1."""
        xp = self.ops.xp
        g = ldexp(xp, g, -self.exponent[:, None])
        shift = exponent_of(xp, g, 0)
        return self.ops.converted(ldexp(xp, g, -shift), self.q.dtype), shift

    def correct(self, f, g):
        """Return (dr, dx) with dr + A dx = f, A^H dr = g, approximately; f (m, k), g (n, k) in FP64."""
        xp, scale = self.ops.xp, self.exponent[:, None]
        g = ldexp(xp, g, -scale)
        # FP32 has a small range, so each column is brought near 1.
        shift = xp.maximum(exponent_of(xp, f, 0), exponent_of(xp, g, 0))
        low_f, low_g = (self.ops.converted(ldexp(xp, v, -shift), self.q.dtype) for v in (f, g))
        y = self._product(self.q.conj().T, low_f) - self._solve(low_g, adjoint=True)
        wide = np.result_type(self.q.dtype, np.float64)
        dx = self.ops.converted(self._solve(y, adjoint=False), wide)
        dr = f - ldexp(xp, self.ops.converted(self._product(self.q, y), wide), shift)
        return dr, ldexp(xp, dx, shift - scale)

    def _product(self, u, v):
        # On the host by SciPy's BLAS, because the threads of NumPy's would compete with those of LAPACK.
        return matmul(u, v) if self.ops.xp is np else u @ v

    def _solve(self, v, adjoint):
        if self.ops.xp is np:
            return lapack_of("trtrs", self.r.dtype)(self.r, v, trans=2 if adjoint else 0)[0]
        from cupyx.scipy.linalg import solve_triangular

        return solve_triangular(self.r, v, trans="C" if adjoint else "N")


# SciPy's own function; another program may rebind this name in scipy.linalg.
_qr = scipy.linalg.qr


def _trcon(r):
    return float(lapack_of("trcon", r.dtype)(np.asfortranarray(r), norm="1", uplo="U")[0])


def refine_augmented(factors, a, b, bound):
    """Return (x, r, errors, steps) for FP64 a (m, n), b (m, k).

    The errors are those of `residual_error` for the result.  They meet the bound, or the last correction did
    not halve the largest error, or there were MOST corrections.
    """
    ops, xp = factors.ops, factors.ops.xp
    r, x = factors.correct(b, xp.zeros((a.shape[1], b.shape[1]), b.dtype))
    steps, (error, *rest) = 0, residual_error(factors, a, x, r, b)
    state = x, r, *rest
    while steps < MOST and not (error <= bound).all():
        x, r, f, g = state
        dr, dx = factors.correct(f, -g)
        trial = x + dx, r + dr
        after, *rest = residual_error(factors, a, *trial, b)
        helped = float(np.max(after)) <= CONTRACTION * float(np.max(error))
        better = ops.xp.asarray(after < error)
        pairs = zip((*trial, *rest), state, strict=True)
        state = tuple(xp.where(better, new, old) for new, old in pairs)
        error, steps = np.where(after < error, after, error), steps + 1
        if not helped:
            break
    return *state[:2], error, steps


def residual_error(factors, a, x, r, b):
    """Return (errors, f, g) of an approximate solution (r, x): f = b - r - A x and g = A^H r.

    The error of a column is the smaller of two backward errors, in 2-norms and with the Frobenius norm of A:

    - the larger of ``||f|| / max(||A|| ||x||, ||b||)`` and ``||g|| / (||A|| ||r||)``;
    - ``(||f|| + ||R^-H g||) / max(||A|| ||x||, ||b||)``, where ``||R^-H g||`` is the size of the part of r
      in the range of A; without this part, g is zero.

    In both cases x is the exact solution of a problem whose A and b differ by about this error [1]_.  In the
    formulas, A, x and g stand for A D, D^-1 x and D g: D brings all columns of A to a similar size, so that
    the change of a small column is small relative to this column.

    References
    ----------
    .. [1] A. Kielbasinski, H. Schwetlick, Numerische lineare Algebra, Deutscher Verlag der Wissenschaften
       1988; N. J. Higham, Accuracy and Stability of Numerical Algorithms, SIAM 2002, lemma 20.6.
    """
    ops, xp, norm = factors.ops, factors.ops.xp, factors.norm
    f, g = b - r - ops.product(a, x), ops.product(a, r, adjoint=True)
    scale = factors.exponent[:, None]
    scaled = ldexp(xp, g, -scale), ldexp(xp, x, scale), factors.in_range(g)
    sizes = (xp.linalg.norm(v, axis=0) for v in (f, r, b, *scaled))
    f_size, r_size, b_size, g_size, x_size, part = ops.host(*sizes)
    with np.errstate(all="ignore"):
        whole = np.maximum(norm * x_size, b_size)
        first = np.where(f_size == 0, 0.0, f_size / whole)
        second = np.where(g_size == 0, 0.0, g_size / (norm * r_size))
        third = np.where(part == 0, 0.0, part / whole)
    return np.minimum(np.maximum(first, second), first + third), f, g
