"""A second solve of systems on a device whose entries are extreme, or whose x misses the bound.

Each matrix is scaled by powers of two, factored again, and x refined.
"""

import numpy as np

from tcsolve._lu.scaling import exponent_of, largest_exponent, ldexp
from tcsolve._solution import Status, code_of
from tcsolve._solve.long_double_residual import SMALL, residual
from tcsolve._solve.vendor.measure import errors_of
from tcsolve._solve.vendor.rcond import rconds_of_scaled
from tcsolve._solve.vendor.system import CONVERGED, NONFINITE, Part

__all__ = ["repair"]

# Steps of refinement.
MAX_STEPS = 2


def repair(ops, system, part, which, is_safe):
    """Look again at systems that hold NaN or Inf or extreme entries, or whose x misses the bound."""
    xp, here = ops.xp, ops.array(which)
    some = system._replace(a=system.a[here], b=system.b[here])
    finite_a, finite_b = ops.host(
        xp.isfinite(some.a).all(axis=(1, 2)), xp.isfinite(some.b).all(axis=1)
    )
    good = finite_a & finite_b.all(axis=1)
    if (~good).any():
        _spoil(ops, part, which, finite_a[:, None] & finite_b, good)
        part.rconds[which[~finite_a]] = 0.0
    if not good.any():
        return
    here = ops.array(np.flatnonzero(good))
    some = some._replace(a=some.a[here], b=some.b[here])
    again = _solve_scaled(ops, some, part.x[ops.array(which[good])], is_safe[which[good]])
    part.x[ops.array(which[good])] = again.x
    for to, found in zip(part[1:5], again[1:5], strict=True):
        to[which[good]] = found


def _spoil(ops, part, which, finite, good):
    """Note where the input holds NaN or Inf, finite (m, k) telling where not; these columns are NaN."""
    bad = which[~good]
    part.codes[bad] = NONFINITE
    part.error[which] = np.where(finite, part.error[which], np.nan)
    xp, here = ops.xp, ops.array(which)
    part.x[here] = xp.where(ops.array(finite)[:, None, :], part.x[here], xp.nan)


def _solve_scaled(ops, system, x, is_safe):
    """Return the `Part` of systems that are brought next to 1 where they are not safe, and refined.

    x, the first answer, is kept where it meets the bound when it is measured with care.
    """
    xp, wide = ops.xp, np.result_type(system.a.dtype, np.float64)
    a, b = ops.converted(system.a, wide), ops.converted(system.b, wide)
    row, col = (
        xp.where(ops.array(is_safe)[:, None, None], 0, e) for e in _exponents(xp, a, system.kind)
    )
    scaled = ldexp(xp, ldexp(xp, a, -row), -col)
    factors = ops.vendor.factor(scaled, system.kind, b.shape[2], careful=True)
    with np.errstate(all="ignore"):
        refined = ops.converted(_refined(ops, factors, scaled, b, (row, col)), x.dtype)
    error, steps = errors_of(ops, system, x), np.full(b.shape[::2], MAX_STEPS)
    kept = (error <= system.bound).all(axis=1)
    x = xp.where(ops.array(kept)[:, None, None], x, refined)
    steps[kept] = 0
    error = np.where(kept[:, None], error, errors_of(ops, system, x))
    (info,) = ops.host(factors.info)
    codes = _codes_of(ops, system, x, error)
    codes[(info != 0) & ~kept] = system.broken
    none = np.zeros(len(codes), bool)
    return Part(x, codes, rconds_of_scaled(ops, a, row, col, factors), error, steps, none, none)


def _refined(ops, factors, scaled, b, exponents):
    """Return x = C y 2**top in FP64, where R A C y = R b 2**-top after some steps of refinement.

    R = 2**-row and C = 2**-col are diagonal, and `scaled` is R A C: exact but for numbers that are negligible
    next to the others.
    """
    xp, (row, col) = ops.xp, exponents
    top = largest_exponent(xp, b, -row)[:, None]
    b = ldexp(xp, b, -row - top)

    def solve(v):
        return xp.swapaxes(factors.solve(xp.swapaxes(v, 1, 2).copy()), 1, 2)

    y = solve(b)
    for _ in range(MAX_STEPS):
        y = y + solve(_residual(ops, scaled, y, b))
    return xp.ascontiguousarray(ldexp(xp, y, top - xp.swapaxes(col, 1, 2)))


def _exponents(xp, a, kind):
    """Return the exponents of rows (m, n, 1) and columns (m, 1, n) that bring A next to 1."""
    if kind == "positive definite":  # symmetric, as is A; its largest entries are on the diagonal
        diagonal = xp.diagonal(a, axis1=1, axis2=2).real
        half = exponent_of(xp, diagonal) // 2
        return half[:, :, None], half[:, None, :]
    row = exponent_of(xp, a, -1)
    return row, exponent_of(xp, ldexp(xp, a, -row), -2)


def _residual(ops, a, x, b):
    """Return b - A x in FP64, for few unknowns rounded about once."""
    if a.shape[-1] <= SMALL:
        return ops.array(residual(*ops.host(a, x, b)))
    return b - a @ x


def _codes_of(ops, system, x, error):
    """Return the codes of answers that are what they are, without a look at the condition."""
    finite, top = ops.host(ops.xp.isfinite(x).all(axis=(1, 2)), ops.xp.abs(x).max(axis=1))
    met = error <= system.bound
    faint = (top < np.finfo(x.dtype).tiny) | met
    codes = np.where(faint.all(axis=1), code_of(Status.UNDERFLOW), code_of(Status.NOT_CONVERGED))
    codes = np.where(met.all(axis=1), CONVERGED, codes)
    return np.where(finite, codes, code_of(Status.OVERFLOW)).astype(np.int8)
