"""From measured numbers to answers: x is corrected, or set to NaN if A has no factors; rcond is estimated."""

import numpy as np

from tcsolve._solve.problem.zero_pivots import singular_triangles
from tcsolve._solve.vendor.measure import (
    MEASURED_AT_ONCE,
    all_ordinary,
    errors_on,
    is_large,
    look_at,
    measure_again,
    ordinary,
    rows_of,
    safe_errors,
)
from tcsolve._solve.vendor.rcond import rconds_of
from tcsolve._solve.vendor.repair import repair
from tcsolve._solve.vendor.system import (
    CONVERGED,
    ILL_CONDITIONED,
    NONFINITE,
    NOT_DEFINITE,
    REDO,
    Part,
    as_read,
    has_all_entries,
)
from tcsolve._solve.verify.backward_error import SAFE, backward_errors

__all__ = ["clear_singular", "corrected_once", "settled", "settled_as_they_are"]


def settled(ops, system, x, factors, board):
    """Return the `Part` from the measured numbers on the host; None if the ladder must solve the system."""
    m, _, k = system.b.shape
    is_known = system.exact or not system.estimate
    if m == 1 and is_known and (one := ordinary(board, system)):
        least, error = one
        if found := corrected_once(ops, system, x, factors, error):
            return _part_of_one(least, *found)
        system = system._replace(residuals=None)  # they may be overwritten
    steps = np.zeros((m, k), np.int64)
    if m > 1 and is_known and (found := all_ordinary(board, system)):
        codes, none = np.full(m, CONVERGED, np.int8), np.zeros(m, bool)
        return Part(x, codes, *found, steps, none, none)
    look = look_at(board, system)
    part = Part(x, look.codes, look.least, look.error, steps, look.apart, look.spoilt)
    redo = np.flatnonzero(part.codes == REDO)
    sound = part.codes == CONVERGED
    wanted = (system.estimate | look.is_near) & (not system.exact)
    if redo.size or (sound & wanted).any():
        system = as_read(ops, system)
    if redo.size:
        redo = _corrected(ops, system, part, redo[look.is_safe[redo]], factors)
    if redo.size and system.alone and system.kind == "general":
        return None
    sound = part.codes == CONVERGED
    if redo.size:
        repair(ops, system, part, redo, look.is_safe)
    _set_rconds(ops, system, part, sound & wanted, factors)
    part.codes[(part.codes == CONVERGED) & ~(part.rconds >= system.eps)] = ILL_CONDITIONED
    clear_singular(ops, system, part)
    return part


def clear_singular(ops, system, part):
    """Set x to NaN for systems whose factorization broke down, and for singular triangles.

    Their code becomes that of a factorization that broke down, or NONFINITE if b holds NaN or Inf.
    """
    if has_all_entries(system):
        finite = np.flatnonzero((part.codes != NONFINITE) | (part.rconds > 0))  # A is finite
        triangles = singular_triangles(ops, system.a, finite, part.rconds[finite])
        part.codes[triangles] = system.broken
    _clear(ops, system, part, np.flatnonzero(part.codes == system.broken))


def settled_as_they_are(ops, system, x, few, board):
    """Return the `Part` of the systems `few` if x needs no change and their rconds are known; otherwise None.

    `board` has the measured numbers of these systems, on the host.  x (m, n, k) has the answers of all.
    """
    look = look_at(board, system)
    is_open = (system.estimate | look.is_near) & (not system.exact)
    if is_open.any() or (look.codes != CONVERGED).any():
        return None
    codes = np.where(look.least >= system.eps, CONVERGED, ILL_CONDITIONED).astype(np.int8)
    if has_all_entries(system) and singular_triangles(ops, system.a, few, look.least).size:
        return None
    steps = np.zeros(look.error.shape, np.int64)
    return Part(x, codes, look.least, look.error, steps, look.apart, look.spoilt)


def corrected_once(ops, system, x, factors, error):
    """Return (x, its errors, the number of corrections) for one ordinary system, or None.

    x with the errors `error` (k,) is kept if it meets the bound, and else corrected once from
    `system.residuals`, which may be overwritten.  None: these are missing, or the corrected x misses the
    bound, too.
    """
    if error.max() <= system.bound:  # False for a NaN
        return x, error, 0
    if system.residuals is None:
        return None
    for solve in _solves(ops, system, factors):
        corrected, board = _corrected_by(ops, system, x, solve, system.residuals)
        error = safe_errors(ops.host(board)[0][:, 0], system)
        if error is not None and error.max() <= system.bound:
            return corrected, error, 1
    return None


def _part_of_one(rcond, x, error, steps):
    """Return the `Part` of one system that has converged."""
    code, no = np.array([CONVERGED], np.int8), np.zeros(1, bool)
    steps = np.full((1, len(error)), steps)
    return Part(x, code, np.array([rcond]), error[None], steps, no, no)


def _solves(ops, system, factors):
    """Return the functions that solve for a correction; the next one is used if x still misses the bound.

    The first one divides by the diagonal, which is nearly a solve if A is dominant.  It is used only for
    single systems whose residuals were kept, so that the bits of a stack do not depend on its length.
    """
    if system.residuals is None:
        return (factors.solve,)
    diagonal = ops.xp.diagonal(system.a, axis1=1, axis2=2)[:, None]
    return (lambda rows: rows / diagonal), factors.solve


def _set_rconds(ops, system, part, wanted, factors):
    """Estimate rcond of the matrices in `wanted`; rcond is 0 if the factorization broke down."""
    part.rconds[part.codes == system.broken] = 0.0
    which = np.flatnonzero(wanted)
    if not which.size:
        return
    a = system.a
    if which.size < len(wanted):
        a, factors = a[ops.xp.asarray(which)], factors.taken(which)
    part.rconds[which] = rconds_of(ops, a, factors.solve)


def _corrected(ops, system, part, which, factors):
    """Correct x of some systems by their residuals; return the numbers of all that still have code REDO."""
    m, xp = len(system.b), ops.xp
    if which.size:
        here = xp.asarray(which) if which.size < m else slice(None)
        near = system._replace(a=system.a[here], b=system.b[here])
        few = factors if which.size == m else factors.taken(which)
        x, error, steps = _step(ops, near, part.x[here], few, part.error[which])
        met = (error <= system.bound).all(axis=1)
        better = met | (error <= part.error[which]).all(axis=1)  # False for a NaN
        if not better.all():
            x = xp.where(xp.asarray(better)[:, None, None], x, part.x[here])
        part.x[here] = x
        part.error[which] = np.where(better[:, None], error, part.error[which])
        part.steps[which] = np.where(better[:, None], steps, 0)
        part.codes[which[met]] = CONVERGED
    return np.flatnonzero(part.codes == REDO)


def _step(ops, system, x, factors, error):
    """Return x + A^-1 (b - A x), its backward errors and the numbers of its corrections, (m, k) on the host.

    The errors of a system that still misses the bound may be infinite.  `error` has the measured errors of x.
    """
    m, n, k = x.shape
    if m == 1 and n > MEASURED_AT_ONCE and not is_large(ops, system.b):
        return _step_of_large(ops, system, x, factors, error)
    r = system.residuals
    if r is None:
        y = rows_of(ops, x).copy()
        r = ops.xp.empty_like(y)
        measure_again(ops, system, y, r)
    for solve in _solves(ops, system, factors):
        corrected, board = _corrected_by(ops, system, x, solve, r)
        error, met, _ = errors_on(*ops.host(board), system)
        if met.all():
            break
    return corrected, np.where(met[:, None], error, np.inf), np.ones((m, k), np.int64)


def _corrected_by(ops, system, x, solve, r):
    """Return x + A^-1 r and its board on the device; `solve` may overwrite r (m, k, n)."""
    with np.errstate(all="ignore"):
        y = solve(r)
        y += rows_of(ops, x)
    return measure_again(ops, system, y)


def _step_of_large(ops, system, x, factors, error):
    """As `_step`, for one large matrix: by products on the whole device, for columns that miss the bound.

    If the factors have a coarse solver, which is faster and accurate to a few digits, it makes the first
    correction.  Columns that still miss the bound are corrected by a solve in FP64.
    """
    norm, size = ops.host(ops.row_stats(system.a[0]).total.max(), ops.xp.abs(x[0]).max(axis=0))
    # Where x is extreme, the measured error may be wrong, because products with x leave the range of FP64.
    sound = (size > 1 / SAFE) & (size < SAFE) | (size == 0) & (error[0] == 0)
    error, steps = np.where(sound, error, np.inf), np.zeros(error.shape, np.int64)
    missing = np.flatnonzero(~(error[0] <= system.bound))
    for solve in _solvers(factors, missing.size):
        if missing.size:
            x, better = _columns_corrected(ops, system, x, error, missing, solve, norm=float(norm))
            steps[0, missing] += better
            missing = np.flatnonzero(~(error[0] <= system.bound))
            system = system._replace(ax=None)
    return x, error, steps


def _solvers(factors, columns):
    """Return the functions that solve for corrections, a coarse one first if the factors have it."""
    coarse = factors.coarse_solver(columns) if hasattr(factors, "coarse_solver") else None
    return (coarse, factors.solve) if coarse else (factors.solve,)


def _columns_corrected(ops, system, x, error, which, solve, *, norm):
    """Return x with corrected columns `which`, and which of these have smaller errors now.

    The other columns stay as they are.  The errors are stored in `error`.
    """
    is_all = which.size == x.shape[2]
    some = slice(None) if is_all else ops.xp.asarray(which)
    a, given = system.a[0], system.b[0][:, some]
    ax = None if system.ax is None else system.ax[:, some]
    after = _one_step(ops, (a, x[0][:, some], given), ax, solve)
    found = backward_errors(ops, a, after, given, norm)
    better = found <= error[0, which]  # False for a NaN
    error[0, which[better]] = found[better]
    if is_all and better.all():
        return after[None], better
    x, here = x.copy(), ops.xp.asarray(which[better])
    x[0][:, here] = after[:, ops.xp.asarray(np.flatnonzero(better))]
    return x, better


def _one_step(ops, answers, ax, solve):
    """Return x + A**-1 (b - A x) in the dtype of x, where `answers` is (A, x, b); `ax` is A x or None."""
    a, x, b = answers
    wide = np.result_type(x.dtype, np.float64)
    before = ops.converted(x, wide)
    r = ops.converted(b, wide) - (ops.product(a, before) if ax is None else ax)
    rows = ops.xp.ascontiguousarray(r.T)[None]
    del r  # large arrays, of which there should be few at a time
    with np.errstate(all="ignore"):
        return ops.converted(before + solve(rows)[0].T, x.dtype)


def _clear(ops, system, part, which):
    """Set x and the errors to NaN for systems without an answer, and rcond to 0 or NaN."""
    if not which.size:
        return
    here = ops.xp.asarray(which)
    part.x[here] = ops.xp.nan
    part.error[which] = np.nan
    part.rconds[which] = np.where(part.codes[which] == NOT_DEFINITE, np.nan, 0.0)
    (finite,) = ops.host(ops.xp.isfinite(system.b[here]).all(axis=(1, 2)))
    part.codes[which[~finite]] = NONFINITE
