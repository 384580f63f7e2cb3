"""The arithmetic of the judge: backward errors, condition numbers and determinants with proved digits.

An FP64 number is an integer times a power of two, so ``b - A x`` is exact in integers.  Inverses and
determinants are computed with balls (intervals) of python-flint.  Their precision is raised until the radius
is small enough for the decision.
"""

import math
from fractions import Fraction

import flint
import numpy as np
from exact_solution import solution

__all__ = [
    "EPS",
    "UNIT",
    "backward_errors",
    "determinant",
    "is_rounded_solution",
    "is_singular",
    "rcond",
    "rounding_of_residual",
    "target",
]

# Unit roundoff and machine epsilon by the character of the dtype.
UNIT = {"f": 2.0**-24, "F": 2.0**-24, "d": 2.0**-53, "D": 2.0**-53}
EPS = {char: 2 * unit for char, unit in UNIT.items()}
# Unknowns up to which a residual is always exact, and up to which the library promises long double.
ALWAYS_EXACT, SMALL = 16, 32
LONG_EPS = float(np.finfo(np.longdouble).eps)
# Bits of the balls in the first attempt, the second, and so on.  A matrix with entries of 1e308 and 1e-308
# needs thousands.
PRECISIONS = (128, 1024, 8192, 65536)
# Unknowns up to which a solution is computed in fractions.
MOST_FRACTIONS = 24
# Fractional bits of |real + i imaginary|, which is computed in integers.
MODULUS_BITS = 64


def target(dtype, n):
    """Return the bound that the README states: u sqrt(n), n at least 4, and 8 for complex systems."""
    dtype = np.dtype(dtype)
    return UNIT[dtype.char] * math.sqrt(max(n, 8 if dtype.kind == "c" else 4))


def rounding_of_residual(n, in_fp64=False, is_complex=False):
    """Return how far the backward error that the library measures may be from the true one.

    For n = 1 the library divides in FP64.  A complex product has an error of sqrt(5) u (Brent, Percival and
    Zimmermann, Math. Comp. 76 (2007), 1469-1481); together with that of the difference it is below 4 u.

    From n = 2 to 32 the library promises a long double residual.  `in_fp64` is for calls without this
    promise, such as `refine`.  The error of b minus n products is at most (n + 2) e (|b| + |A||x|), where e
    is the unit roundoff (Higham 2002, section 3.5), and four times that for complex numbers.  |b| is at most
    |A||x| for an answer that is nearly right.

    In FP64, up to n = 8, the worst case of real numbers is taken.  It is taken for complex numbers, too,
    because no error of a complex system has exceeded it.  For larger n the worst case is far larger than any
    error that occurs, so the errors of the partial sums s_k are modelled as independent with mean zero
    (Higham and Mary, SIAM J. Sci. Comput. 41 (2019), A2815-A2835).  Each is uniform within u |s_k|, and
    |s_k| <= (k / n) ||A|| ||x|| on average.  So their sum has a standard deviation of at most u sqrt(n) / 3,
    and three standard deviations are u sqrt(n).  Sums in several accumulators, as in any BLAS, have smaller
    errors.  A complex sum has two parts of 2 n real products.  Each part has sqrt(2) times this standard
    deviation, and the modulus of both at most twice.
    """
    if n == 1:
        return 4 * 2.0**-53
    if n <= SMALL and not in_fp64 and LONG_EPS < 2.0**-60:
        return 8 * (n + 2) * LONG_EPS + 2.0**-53 * 2.0**-8
    return 2.0**-53 * (2 * (n + 2) if n <= 8 else (1 + is_complex) * math.sqrt(n))


def backward_errors(a, x, b, exactly=False):
    """Return ``||b - A x|| / (||A|| ||x||)`` in infinity norms for each column, and the judge's own error.

    Parameters
    ----------
    a : ndarray, shape (n, n)
    x, b : ndarray, shape (n, k)
        Of FP32 or FP64, real or complex.
    exactly : bool
        True: compute in integers for every n.  False: in long double for more than 16 unknowns.

    Returns
    -------
    error : ndarray of float64, shape (k,)
        Infinite where x is not finite.
    radius : ndarray of float64, shape (k,)
        The true error is between ``error - radius`` and ``error + radius``; 0 if it is exact.
    """
    finite = np.isfinite(x).all(axis=0)
    error, radius = np.full(x.shape[1], np.inf), np.zeros(x.shape[1])
    of = _exact_errors if exactly or len(a) <= ALWAYS_EXACT else _extended_errors
    error[finite], radius[finite] = of(a, x[:, finite], b[:, finite])
    if not np.isfinite(error[finite] + radius[finite]).all() and of is _extended_errors:
        return backward_errors(a, x, b, exactly=True)  # beyond the range of this long double
    return error, radius


def _extended_errors(a, x, b):
    """Return the errors by long double, and a bound on its rounding."""
    a, x, b = (_long(v) for v in (a, x, b))
    with np.errstate(all="ignore"):
        residual = np.abs(b - a @ x).max(axis=0, initial=0)
        size = np.abs(a).sum(axis=1).max() * np.abs(x).max(axis=0)
        error = np.where(residual == 0, 0, residual / size).astype(float)
    return error, 8 * (len(a) + 4) * LONG_EPS * (2 + error)


def _long(v):
    return v.astype(np.clongdouble if v.dtype.kind == "c" else np.longdouble)


def _exact_errors(a, x, b):
    """Return the errors, computed in integers and rounded once, and zeros for their radii."""
    n, k = x.shape
    is_complex = any(v.dtype.kind == "c" for v in (a, x, b))
    matrix, e_a = _integers(_as_real(a, is_complex))
    columns, e_x = _integers(_stacked(x, is_complex))
    wanted, e_b = _integers(_stacked(b, is_complex))
    rows = len(wanted)
    product = flint.fmpz_mat(matrix) * flint.fmpz_mat(columns) if k else None
    shift = e_b - e_a - e_x
    up_b, up_product = max(shift, 0), max(-shift, 0)
    errors = []
    norm = max(
        sum(_modulus(row[j], row[j + n] if is_complex else 0) for j in range(n))
        for row in matrix[:n]
    )
    for c in range(k):
        rest = [(wanted[i][c] << up_b) - (int(product[i, c]) << up_product) for i in range(rows)]
        largest = max(_modulus(rest[i], rest[i + n] if is_complex else 0) for i in range(n))
        size = max(
            _modulus(columns[i][c], columns[i + n][c] if is_complex else 0) for i in range(n)
        )
        errors.append(_ratio(largest << MODULUS_BITS, (norm * size) << up_product))
    return np.array(errors, float), np.zeros(k)


def _ratio(above, below):
    """Return the quotient of two integers, rounded once; 0 / 0 is 0, and any other x / 0 is infinite."""
    if above == 0:
        return 0.0
    if below == 0:
        return math.inf
    try:
        return float(Fraction(above, below))
    except OverflowError:
        return math.inf


def _modulus(real, imaginary):
    """Return |real + i imaginary| 2**64 for integers."""
    if imaginary == 0:
        return abs(real) << MODULUS_BITS
    return math.isqrt((real * real + imaginary * imaginary) << (2 * MODULUS_BITS))


def _as_real(a, is_complex):
    """Return the real matrix of twice the order that acts as a complex one."""
    if not is_complex:
        return a
    return np.block([[a.real, -a.imag], [a.imag, a.real]])


def _stacked(v, is_complex):
    return np.concatenate([v.real, v.imag]) if is_complex else v


def _integers(v):
    """Return (rows of integers, e) with v = integers 2**e, exactly, for a finite real matrix."""
    mantissa, exponent = np.frexp(np.asarray(v, np.float64))
    least = int(exponent[mantissa != 0].min(initial=2000))
    least = 0 if least == 2000 else least
    whole = (mantissa * 2.0**53).astype(np.int64).tolist()
    shifts = (exponent - least).tolist()
    rows = [
        [m << e if m else 0 for m, e in zip(*pair, strict=True)]
        for pair in zip(whole, shifts, strict=True)
    ]
    return rows, least - 53


def rcond(a):
    """Return the reciprocal condition number in the 1-norm, to 30 bits; 0 for a singular a or an underflow.

    Parameters
    ----------
    a : ndarray, shape (n, n)
        Finite.
    """
    for number, bits in enumerate(PRECISIONS):
        with flint.ctx.workprec(bits):
            matrix = _balls(a)
            try:
                found = 1 / (_norm_one(matrix) * _norm_one(matrix.inv()))
            except ZeroDivisionError:  # not proved to be regular
                found = flint.arb("nan")
            if found.rel_accuracy_bits() > 30:
                return float(found.mid())
        if number == 1 and is_singular(a):
            return 0.0
    raise ArithmeticError("the judge needs more bits for this matrix")


def is_singular(a):
    """Tell whether the determinant is zero, in integers."""
    rows, _ = _integers(_as_real(a, a.dtype.kind == "c"))
    return flint.fmpz_mat(rows).det() == 0


def is_rounded_solution(a, x, b):
    """Tell whether x (n, k) is the exact solution, each entry rounded to the nearest number of its dtype.

    Only small real systems are examined; for others the answer is False.
    """
    if len(a) > MOST_FRACTIONS or "c" in (a.dtype.kind, b.dtype.kind):
        return False
    for of_x, of_b in zip(x.T, b.T, strict=True):
        for found, exact in zip(of_x, solution(a, of_b), strict=True):
            if not np.isfinite(found):
                return False
            spacing = Fraction(float(np.abs(np.spacing(found))))
            if abs(Fraction(float(found)) - exact) > spacing / 2:
                return False
    return True


def determinant(a):
    """Return (sign, log |det a|) as `numpy.linalg.slogdet`, of a matrix that is not singular.

    They are computed from a determinant with more than 60 correct bits.
    """
    for bits in PRECISIONS:
        with flint.ctx.workprec(bits):
            det = _balls(a).det()
            size = abs(det)
            if size.rel_accuracy_bits() > 60:
                sign = complex(det / size)
                return (sign if a.dtype.kind == "c" else sign.real), float(size.log().mid())
    raise ArithmeticError("the judge needs more bits for this matrix")


def _balls(a):
    """Return a matrix of balls of radius 0."""
    kind, entry = (flint.acb_mat, flint.acb) if a.dtype.kind == "c" else (flint.arb_mat, flint.arb)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    return kind(*a.shape, [entry(v) for v in a.astype(wide).ravel().tolist()])


def _norm_one(matrix):
    rows, columns = matrix.nrows(), matrix.ncols()
    norm = flint.arb(0)
    for j in range(columns):
        norm = norm.max(sum((abs(matrix[i, j]) for i in range(rows)), flint.arb(0)))
    return norm
