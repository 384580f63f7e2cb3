"""Classes for systems A x = b that compute the residuals and backward errors of an x.

A is a dense matrix, a band matrix, or the product of given factors.
"""

import functools

import numpy as np

from tcsolve._arithmetic.matrix_parts import by_parts
from tcsolve._backends.cpu.blas import band_norms, blas_of
from tcsolve._backends.cpu.lu import lapack_of
from tcsolve._backends.cpu.ops import sums
from tcsolve._backends.select import numpy_ops
from tcsolve._lu.scaling import exponent_of, ldexp
from tcsolve._solve.verify.backward_error import backward_errors, is_safe
from tcsolve._solve.verify.long_double_residual import SMALL, residual

__all__ = [
    "LONG",
    "BandSystem",
    "CholeskySystem",
    "DenseSystem",
    "LUSystem",
    "ProductSystem",
    "band_product",
    "norms_of",
    "transposed",
    "widest",
]

# Long double by the dtype char of FP64 numbers.
LONG = {"d": np.longdouble, "D": np.clongdouble, "g": np.longdouble, "G": np.clongdouble}


class DenseSystem:
    """The system of a matrix (n, n), on the host or on a device; `norm` is its infinity norm, if known."""

    def __init__(self, ops, a, norm=None):
        self.ops, self._a, self._norm = ops, a, norm

    @classmethod
    def of(cls, ops, a, norm=None):
        """Convert a to FP64 or complex FP64, unless its dtype is one of LAPACK's."""
        wide = np.dtype(complex if a.dtype.kind == "c" else float)
        return cls(ops, a if a.dtype.char in "fdFD" else ops.converted(a, wide), norm)

    @property
    def is_finite(self):
        """Whether the matrix holds neither NaN nor Inf."""
        return bool(self.ops.xp.isfinite(self._a).all())

    def errors(self, x, b):
        """Return ``||b - A x|| / (||A|| ||x||)`` in infinity norms for each column."""
        if self._norm is None and len(x) > SMALL:
            self._norm = norms_of(self.ops, self._a)[0]
        return backward_errors(self.ops, self._a, x, b, self._norm)

    def residual(self, x, b):
        """Return b - A x in FP64; for few unknowns with the accuracy of long double."""
        if self.ops.xp is np:
            return residual(self._a, x, b)
        if len(x) <= SMALL:  # on the host, as `errors` measures it
            return self.ops.xp.asarray(residual(*self.ops.host(self._a, x, b)))
        is_complex = self._a.dtype.kind == "c"
        return b - by_parts(self.ops.xp, lambda v: self.ops.product(self._a, v), x, is_complex)


def transposed(a, trans):
    """Return a (n, n) for `trans` 0, its transpose for 1, its adjoint for 2."""
    return a if trans == 0 else a.T if trans == 1 else a.conj().T


def norms_of(ops, a):
    """Return the infinity norm and the 1-norm of a (n, n)."""
    if ops.xp is np:
        with np.errstate(all="ignore"):
            return tuple(float(v.max()) for v in sums(a))
    found = ops.host(*(ops.row_stats(v).total.max() for v in (a, a.T)))
    return tuple(float(v) for v in found)


class _Factored:
    """A system whose matrix A is not given as a dense array.

    Each subclass has the methods `product` and `size`.  product(x) returns A x.  size(x) returns one number
    for each column: the largest entry of the residual is divided by it.

    `ops` is the `Ops` of the caller's arrays.  `measure` is the `Ops` that computes the errors: for few
    unknowns, that of the host.
    """

    def __init__(self, ops, measure=None):
        self.ops, self._measure = ops, measure or ops

    def errors(self, x, b):
        """Return the backward error of each column, on the host."""
        r, size, _ = self._measured(*self._moved(x, b))
        rest, size = self._measure.host(self._measure.xp.abs(r).max(axis=0), size)
        error = (rest / size).astype(np.float64, copy=False)
        if not size.max(initial=0.0) < np.inf:  # products have overflowed
            error = np.where(size < np.inf, error, np.nan)
        return np.where(rest == 0, 0.0, error)

    def residual(self, x, b):
        """Return b - A x in FP64."""
        r, _, exponent = self._measured(*self._moved(x, b))
        wide = np.result_type(x.dtype, b.dtype, np.float64)
        return self.ops.xp.asarray(ldexp(self._measure.xp, r.astype(wide), exponent))

    def _moved(self, *arrays):
        return arrays if self._measure is self.ops else self.ops.host(*arrays)

    def _measured(self, x, b):
        """Return (r, size, e) for each column: b - A x, and the result of `size`, both divided by 2**e."""
        xp = self._measure.xp
        x, b = (self._measure.converted(v, np.result_type(v.dtype, np.float64)) for v in (x, b))
        if xp is np:  # on a device, waiting for this test takes longer than scaling
            size = self.size(x)
            if (is_safe(size) & is_safe(np.abs(x).max(axis=0))).all():
                return b - self.product(x), size, 0
        near, of_a = self._near_one()
        of_x, of_b = exponent_of(xp, x, 0), exponent_of(xp, b, 0)
        of_x = xp.where((x == 0).all(axis=0), of_b - of_a, of_x)
        x = ldexp(xp, x, -of_x)
        return ldexp(xp, b, -of_a - of_x) - near.product(x), near.size(x), of_a + of_x

    def _near_one(self):
        """Return (system, e), where the matrix of the system is 2**-e A; by default A is not scaled."""
        return self, 0


def band_product(lower, upper, ab, x):
    """Return A x (n, k) for a band matrix in the storage of `solve_banded`."""
    n = len(x)
    if n <= SMALL:
        index, inside = _places(lower, upper, n)
        return np.where(inside, ab.take(index), 0.0) @ x
    y = ab[upper, :, None] * x
    for d in range(-lower, upper + 1):
        first, last = max(d, 0), n + min(d, 0)
        if d and first < last:
            y[first - d : last - d] += ab[upper - d, first:last, None] * x[first:last]
    return y


@functools.lru_cache(maxsize=64)
def _places(lower, upper, n):
    """Return (index, inside): a[i, j] is entry index[i, j] of a flat ab if inside[i, j], else 0."""
    i, j = np.indices((n, n))
    row = upper + i - j
    inside = (row >= 0) & (row <= lower + upper)
    return np.where(inside, row * n + j, 0), inside


class BandSystem(_Factored):
    """The system of a band matrix in the storage of `solve_banded`: ``ab[u + i - j, j] == a[i, j]``.

    For few unknowns ab is in long double.
    """

    def __init__(self, lower, upper, ab, norm):
        super().__init__(numpy_ops)
        self._lower, self._upper, self._ab, self._norm = lower, upper, ab, norm

    @classmethod
    def of(cls, lower, upper, ab):
        """Convert ab, and compute its norm."""
        wide = np.complex128 if ab.dtype.kind == "c" else np.float64
        norm = band_norms(ab.astype(wide, copy=False), lower, upper)[0]
        ab = widest(ab.astype(np.result_type(ab, wide), copy=False), ab.shape[1])
        return cls(lower, upper, ab, norm)

    @property
    def is_finite(self):
        """Whether the matrix holds neither NaN nor Inf."""
        return bool(np.isfinite(self._inside()).all())

    def product(self, x):
        """Return A x."""
        return band_product(self._lower, self._upper, self._ab, x)

    def size(self, x):
        """Return ``||A|| ||x||`` of each column."""
        return self._norm * np.abs(x).max(axis=0)

    def _inside(self):
        """Return ab, with zeros for its entries outside of the matrix: these are not used and may be NaN."""
        n = self._ab.shape[1]
        row = np.arange(-self._upper, self._lower + 1)[:, None] + np.arange(n)
        return np.where((row >= 0) & (row < n), self._ab, 0)

    def _near_one(self):
        exponent = exponent_of(np, self._inside(), (0, 1)).item()
        return BandSystem.of(self._lower, self._upper, ldexp(np, self._ab, -exponent)), exponent


class ProductSystem(_Factored):
    """The system of a product of given factors, when A itself is not known.

    For A = F G, the residual is measured relative to ``|| |F| |G| |x| ||``.  The rounding errors of a solve
    with the factors have a bound that is proportional to this norm [1]_.

    References
    ----------
    .. [1] N. J. Higham, Accuracy and Stability of Numerical Algorithms, SIAM 2002, theorem 9.4.
    """

    def __init__(self, ops, measure, factors):
        super().__init__(ops, measure)
        self._factors = factors

    @classmethod
    def of(cls, ops, factors):
        """Convert the factors; those of few unknowns are moved to the host."""
        n = len(factors[0])
        measure = ops if n > SMALL or ops.xp is np else numpy_ops
        factors = factors if measure is ops else ops.host(*factors)
        wide = (measure.converted(f, np.result_type(f.dtype, np.float64)) for f in factors)
        return cls(ops, measure, [widest(f, n) for f in wide])

    is_finite = True  # factors with NaN or Inf have overflowed, and a warning is due

    def product(self, x):
        """Return the product of all factors and x."""
        return self._times(self._factors, x)

    def size(self, x):
        """Return the largest entry of the product of the moduli of all factors and x, for each column."""
        xp = self._measure.xp
        return self._times([xp.abs(f) for f in self._factors], xp.abs(x)).max(axis=0)

    def _near_one(self):
        xp = self._measure.xp
        exponents = [exponent_of(xp, f, (0, 1)).item() for f in self._factors]
        near = [ldexp(xp, f, -e) for f, e in zip(self._factors, exponents, strict=True)]
        return ProductSystem(self.ops, self._measure, near), sum(exponents)

    def _times(self, factors, x):
        for f in reversed(factors):
            x = f @ x if len(x) <= SMALL else self._measure.product(f, x)
        return x


class LUSystem(_Factored):
    """As `ProductSystem`, for more than SMALL unknowns and the factors P L U of getrf on the host.

    Parameters
    ----------
    lu : ndarray, shape (n, n)
        L and U in one column-major array, in FP64.
    swaps : ndarray of int, shape (n,)
        Row i was swapped with row swaps[i].
    trans : {0, 1, 2}
        0: A = P L U.  1: A = (P L U)^T.  2: A = (P L U)^H.
    """

    def __init__(self, lu, swaps, trans):
        super().__init__(numpy_ops)
        self._lu, self._swaps, self._trans = lu, swaps, trans

    @classmethod
    def of(cls, lu, swaps, trans):
        """Convert lu; it is not copied if it is column-major and in FP64."""
        return cls(np.asfortranarray(lu, np.result_type(lu, np.float64)), swaps, trans)

    is_finite = True  # factors with NaN or Inf have overflowed, and a warning is due

    def product(self, x):
        """Return the product of all factors and x."""
        return by_parts(np, lambda v: self._times(self._lu, v), x, self._lu.dtype.kind == "c")

    def size(self, x):
        """Return the largest entry of the product of the moduli of all factors and x, for each column."""
        return self._times(np.abs(self._lu), np.abs(x)).max(axis=0)

    def _near_one(self):
        upper = np.triu(self._lu)
        exponent = exponent_of(np, upper, (0, 1)).item()
        near = np.tril(self._lu, -1) + ldexp(np, upper, -exponent)
        return LUSystem.of(near, self._swaps, self._trans), exponent

    def _times(self, lu, x):
        laswp, trans = lapack_of("laswp", lu.dtype), self._trans
        x = x.astype(lu.dtype, copy=False)
        if trans == 0:
            return laswp(_lower_times(lu, _upper_times(lu, x), unit=True), self._swaps, inc=-1)
        return _upper_times(lu, _lower_times(lu, laswp(x, self._swaps), trans, unit=True), trans)


class CholeskySystem(_Factored):
    """As `ProductSystem`, for more than SMALL unknowns and A = L L^H or U^H U on the host.

    Parameters
    ----------
    c : ndarray, shape (n, n)
        L or U in a column-major array, in FP64; the other triangle is not read.
    lower : bool
        Whether c has L.
    """

    def __init__(self, c, lower):
        super().__init__(numpy_ops)
        self._c, self._lower = c, lower

    @classmethod
    def of(cls, c, lower):
        """Convert c; it is not copied if it is column-major and in FP64."""
        return cls(np.asfortranarray(c, np.result_type(c, np.float64)), lower)

    is_finite = True  # factors with NaN or Inf have overflowed, and a warning is due

    def product(self, x):
        """Return the product of both factors and x."""
        return by_parts(np, lambda v: self._times(self._c, v), x, self._c.dtype.kind == "c")

    def size(self, x):
        """Return the largest entry of the product of the moduli of the factors and x, for each column."""
        return self._times(np.abs(self._c), np.abs(x)).max(axis=0)

    def _near_one(self):
        triangle = (np.tril if self._lower else np.triu)(self._c)
        exponent = exponent_of(np, triangle, (0, 1)).item()
        return CholeskySystem.of(ldexp(np, triangle, -exponent), self._lower), 2 * exponent

    def _times(self, c, x):
        x = x.astype(c.dtype, copy=False)
        if self._lower:
            return _lower_times(c, _lower_times(c, x, trans=2))
        return _upper_times(c, _upper_times(c, x), trans=2)


def _lower_times(a, x, trans=0, unit=False):
    """Return op(L) x (n, k) for the lower triangle L of the column-major a."""
    how = {"lower": True, "diag": unit}
    if x.shape[1] == 1:  # for a vector, trmv takes half the time of trmm
        return blas_of("trmv", a.dtype)(a, x[:, 0], trans=trans, **how)[:, None]
    return blas_of("trmm", a.dtype)(1.0, a, x, trans_a=trans, **how)


def _upper_times(a, x, trans=0):
    """Return op(U) x (n, k) for the upper triangle U of the column-major a."""
    if x.shape[1] == 1:
        return blas_of("trmv", a.dtype)(a, x[:, 0], trans=trans)[:, None]
    return blas_of("trmm", a.dtype)(1.0, a, x, trans_a=trans)


def widest(a, n):
    """Return the FP64 array a; in long double for few unknowns, where the rounding of a residual matters."""
    return a.astype(LONG[a.dtype.char]) if n <= SMALL else a
