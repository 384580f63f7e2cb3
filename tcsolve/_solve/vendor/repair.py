"""A second solve of systems that have extreme entries or miss the bound.

Each matrix is factored again, and x is refined.  A matrix with extreme norms, or whose first x is not finite,
is first scaled by powers of two.  If x overflows, other factors may give another x that meets the bound:
those of A or of its transpose, neither of them scaled (see `_solve.overflow`).
"""

import numpy as np

from tcsolve._lu.scaling import exponent_of, largest_exponent, ldexp
from tcsolve._solution import Status, code_of
from tcsolve._solve.vendor.factors import Turned
from tcsolve._solve.vendor.measure import errors_of
from tcsolve._solve.vendor.rcond import rconds_of_scaled
from tcsolve._solve.vendor.system import CONVERGED, NONFINITE, Part, some_of
from tcsolve._solve.verify.long_double_residual import SMALL, residual

__all__ = ["exponents_of", "repair", "solved_turned"]

# Number of refinement steps.
MAX_STEPS = 2
OVERFLOW = code_of(Status.OVERFLOW)


def repair(ops, system, part, which, is_safe):
    """Solve the systems `which` again, and store their answers in `part`.

    They have extreme entries, or their errors miss the bound.  Those with NaN or Inf get the code NONFINITE,
    unless A has no factors.  Columns of b that hold NaN or Inf count as zero, so that they change nothing for
    the other columns.  Then these columns of x become NaN.
    """
    xp, here = ops.xp, ops.xp.asarray(which)
    some = system._replace(a=system.a[here], b=system.b[here])
    finite_a, finite_b = ops.host(
        xp.isfinite(some.a).all(axis=(1, 2)), xp.isfinite(some.b).all(axis=1)
    )
    if (~finite_a).any():
        _spoil(ops, part, which[~finite_a])
    if not finite_a.any():
        return
    which, finite_b = which[finite_a], finite_b[finite_a]
    here, kept = xp.asarray(np.flatnonzero(finite_a)), xp.asarray(finite_b)[:, None]
    some = some._replace(a=some.a[here], b=xp.where(kept, some.b[here], 0))
    x = xp.where(kept, part.x[xp.asarray(which)], 0)
    (finite_x,) = ops.host(xp.isfinite(x).all(axis=(1, 2)))
    again = _solve_scaled(ops, some, x, is_safe[which] & finite_x)
    # Other factors give another x only if A is singular to working precision.
    over = np.flatnonzero((again.codes == OVERFLOW) & ~(again.rconds >= some.eps))
    if over.size and some.kind == "general" and some.a.dtype.char in "dD":
        _bring_in_range(ops, some, again, over)
    part.x[xp.asarray(which)] = xp.where(kept, again.x, xp.nan)
    answers = finite_b.all(axis=1) | (again.codes == system.broken)
    codes = np.where(answers, again.codes, NONFINITE)
    error = np.where(finite_b, again.error, np.nan)
    for to, found in zip(part[1:5], (codes, again.rconds, error, again.steps), strict=True):
        to[which] = found


def _spoil(ops, part, which):
    """Record NONFINITE for matrices with NaN or Inf; x becomes NaN."""
    part.codes[which], part.rconds[which], part.error[which] = NONFINITE, 0.0, np.nan
    part.x[ops.xp.asarray(which)] = ops.xp.nan


def _solve_scaled(ops, system, x, is_safe):
    """Scale, factor and refine systems, and return their `Part`; systems with `is_safe` are not scaled.

    The first answer x is kept if a careful measurement shows that it meets the bound.
    """
    xp, wide = ops.xp, np.result_type(system.a.dtype, np.float64)
    a, b = ops.converted(system.a, wide), ops.converted(system.b, wide)
    row, col = (
        xp.where(xp.asarray(is_safe)[:, None, None], 0, e) for e in exponents_of(xp, a, system.kind)
    )
    scaled = ldexp(xp, ldexp(xp, a, -row), -col)
    factors = ops.vendor.factor(scaled, system.kind, b.shape[2], careful=True)
    with np.errstate(all="ignore"):
        refined = ops.converted(_refined(ops, factors, scaled, b, (row, col)), x.dtype)
    error, steps = errors_of(ops, system, x), np.full(b.shape[::2], MAX_STEPS)
    kept = (error <= system.bound).all(axis=1)
    x = xp.where(xp.asarray(kept)[:, None, None], x, refined)
    steps[kept] = 0
    error = np.where(kept[:, None], error, errors_of(ops, system, x))
    (info,) = ops.host(factors.info)
    codes = _codes_of(ops, system, x, error)
    # For 'positive definite', the first x may come from an LU, and meet the bound though A is not definite.
    codes[(info != 0) & (~kept | (system.kind == "positive definite"))] = system.broken
    none = np.zeros(len(codes), bool)
    return Part(x, codes, rconds_of_scaled(ops, a, row, col, factors), error, steps, none, none)


def _refined(ops, factors, scaled, b, exponents):
    """Return x = C y 2**top in FP64, where y is the refined solution of R A C y = R b 2**-top.

    R = diag(2**-row), C = diag(2**-col), and `scaled` is R A C.  The scaling is exact, except for numbers
    that are negligible compared with others.
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


def exponents_of(xp, a, kind):
    """Return the exponents of rows (m, n, 1) and columns (m, 1, n) that bring the entries of A near 1."""
    if kind == "positive definite":  # a symmetric scaling; the largest entries are on the diagonal
        diagonal = xp.diagonal(a, axis1=1, axis2=2).real
        half = exponent_of(xp, diagonal) // 2
        return half[:, :, None], half[:, None, :]
    row = exponent_of(xp, a, -1)
    return row, exponent_of(xp, ldexp(xp, a, -row), -2)


def _residual(ops, a, x, b):
    """Return b - A x in FP64; for few unknowns it is computed in long double."""
    if a.shape[-1] <= SMALL:
        return ops.xp.asarray(residual(*ops.host(a, x, b)))
    return b - a @ x


def _codes_of(ops, system, x, error):
    """Return the codes of the final answers, without regard to rcond."""
    finite, top = ops.host(ops.xp.isfinite(x).all(axis=(1, 2)), ops.xp.abs(x).max(axis=1))
    met = error <= system.bound
    faint = (top < np.finfo(x.dtype).tiny) | met
    codes = np.where(faint.all(axis=1), code_of(Status.UNDERFLOW), code_of(Status.NOT_CONVERGED))
    codes = np.where(met.all(axis=1), CONVERGED, codes)
    return np.where(finite, codes, OVERFLOW).astype(np.int8)


def _bring_in_range(ops, system, part, which):
    """Solve the systems `which`, whose x overflows, with factors of A, then with those of its transpose.

    Neither of them is scaled.  An x that meets the bound is stored in `part`.
    """
    for turned in (False, True):
        some = some_of(ops, system, which)
        x, _ = solved_turned(ops, some.a, some.b, turned)
        error = errors_of(ops, some, x)  # NaN where x is not finite
        met = (error <= system.bound).all(axis=1)
        here = ops.xp.asarray(which[met])
        part.x[here] = x[ops.xp.asarray(np.flatnonzero(met))]
        part.error[which[met]], part.codes[which[met]] = error[met], CONVERGED
        part.steps[which[met]] = 0
        which = which[~met]
        if not which.size:
            return


def solved_turned(ops, a, b, turned):
    """Return x (m, n, k) by FP64 factors of a (m, n, n), or of its transposes if `turned`; and their info."""
    xp, wide = ops.xp, np.result_type(a.dtype, np.float64)
    a = ops.converted(xp.swapaxes(a, 1, 2) if turned else a, wide)
    factors = ops.vendor.factor(xp.ascontiguousarray(a), "general", b.shape[2], careful=True)
    solve = Turned(xp, factors, conjugated=False).solve if turned else factors.solve
    with np.errstate(all="ignore"):
        y = solve(ops.converted(xp.swapaxes(b, 1, 2), wide).copy())
    return xp.swapaxes(y, 1, 2), factors.info
