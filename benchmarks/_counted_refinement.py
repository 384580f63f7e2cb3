"""Steps of refinement: those of `tcsolve.refine`, and those that the programs of two papers count.

`steps_and_cycles` has residuals and products in FP64; in the programs they are partly in quadruple precision.
x and the vectors of GMRES are in FP64, or in FP32.  `gmres` alone also takes vectors in BF16, and products of
any precision.
"""

import functools
import math

import numpy as np
import scipy.sparse.linalg

from tcsolve import Plan, refine

__all__ = [
    "COUNTED",
    "counts",
    "dot",
    "gmres",
    "low_middle",
    "middle",
    "norm_of",
    "our_steps",
    "solved",
    "spread",
    "steps_and_cycles",
    "vectors",
]

# The programs have one random b; its numbers are not known, so several are taken here.
COUNTED = 20
# The programs test the error before each of at most ten cycles, so they never test the x of the tenth.
MOST_CYCLES = 9
# `our_steps` gives up after MOST_STEPS steps, or when a cycle leaves more than this part of the error.
MOST_STEPS, CONTRACTION = 5000, 0.9


def our_steps(a, b, correct, method, tol=None):
    """Return the steps of a Krylov method of `tcsolve.refine`; None if it fails.

    FGMRES restarts after n steps, CG does not.  `correct` is an approximate inverse (n, k) -> (n, k), or
    None.
    """
    if correct is None:
        return None
    plan = Plan(method=method, basis=len(a), contraction=CONTRACTION)
    found = refine(a, b, correct, plan=plan, tol=tol, max_steps=MOST_STEPS)
    return int(found.iterations[0]) if found.status.ok else None


def vectors(correct):
    """Return `correct` for single vectors (n,)."""
    return lambda b: correct(b[:, None])[:, 0]


def counts(a, factors, **how):
    """Return the steps of `steps_and_cycles` alone."""
    return [steps for steps, _ in steps_and_cycles(a, factors, **how)]


def steps_and_cycles(a, factors, *, method, tol, bound, dtype=np.float64):
    """Count steps and cycles for `COUNTED` random b, until the backward error is at most `bound`.

    Parameters
    ----------
    a : array, shape (n, n), float64
    factors : (correct, start)
        Two functions (n,) -> (n,): an approximate inverse of a, and the one that makes the first x.
    method : {'GMRES', 'CG'}
        GMRES has left preconditioning.  A cycle of GMRES ends when it has reduced the preconditioned residual
        by the factor `tol`.  A cycle of CG ends when it has reduced the residual by this factor.
    dtype : {np.float64, np.float32}
        That of x, and of the vectors of GMRES.
    tol, bound : float
        The backward error is ``||b - A x|| / (||A|| ||x|| + ||b||)`` in infinity norms.

    Returns
    -------
    list of (steps, cycles)
        For each b; None twice if `MOST_CYCLES` cycles are not enough, or if a residual is not finite.
    """
    correct, start = factors
    cycle = {"GMRES": functools.partial(_gmres, dtype=dtype), "CG": _cg}[method]
    norm, found = np.abs(a).sum(axis=1).max(), []
    for seed in range(1, COUNTED + 1):
        b = np.random.default_rng(seed).standard_normal(len(a))
        with np.errstate(all="ignore"):
            x = start(b)
            x = (x if np.isfinite(x).all() else np.zeros_like(b)).astype(dtype)
            found.append(_steps(a, b, norm, correct, x, cycle, tol, bound))
    return found


def _steps(a, b, norm, correct, x, cycle, tol, bound):
    taken = 0
    for cycles in range(MOST_CYCLES + 1):
        r = b - a @ x
        size = np.abs(r).max()
        if size <= bound * (norm * np.abs(x).max() + np.abs(b).max()):
            return taken, cycles
        if not np.isfinite(size):
            break
        d, steps = cycle(a, correct, r / size, tol)
        x, taken = (x + size * d).astype(x.dtype), taken + steps
    return None, None


def gmres(product, z, tol, most=None, dtype=np.float64):
    """Return (d, steps) of GMRES for M^-1 A d = z, with modified Gram-Schmidt and without restart.

    Parameters
    ----------
    product : function, (n,) -> (n,)
        v -> M^-1 A v, in a precision of its own choice, whatever `dtype` is.
    z : array, shape (n,)
        The preconditioned residual.
    tol : float
        GMRES ends when it has reduced the preconditioned residual by this factor.
    most : int, optional
        It takes at most this number of steps, and at most n, but at least one.
    dtype : dtype
        That of the vectors of GMRES and of all operations with them: FP64, FP32, or the BF16 of ml_dtypes.
    """
    n, z = len(z), z.astype(dtype)
    n = n if most is None else max(1, min(n, most))
    first = norm_of(z)
    v, h, g = [z / first], np.zeros((n + 1, n), dtype), np.zeros(n + 1, dtype)
    g[0], rotations = first, []
    for j in range(n):
        w = product(v[j]).astype(dtype)
        for i, old in enumerate(v):
            h[i, j] = dot(w, old)
            w = w - h[i, j] * old
        size = norm_of(w)
        v.append(w / size)
        for i, (c, s) in enumerate(rotations):
            h[i, j], h[i + 1, j] = c * h[i, j] + s * h[i + 1, j], c * h[i + 1, j] - s * h[i, j]
        radius = h.dtype.type(math.hypot(h[j, j], size))
        c, s = h[j, j] / radius, size / radius
        rotations.append((c, s))
        h[j, j], g[j], g[j + 1] = radius, c * g[j], -s * g[j]
        if not abs(g[j + 1]) > tol * first:
            break
    y = solved(h[: j + 1, : j + 1], g[: j + 1])
    return _combined(v, y), j + 1


def dot(x, y):
    """Return the inner product; in BF16 each product is rounded, then each sum, from the first entry on."""
    return x @ y if x.dtype.kind == "f" else np.add.reduce(x * y)


def norm_of(x):
    """Return the 2-norm in the precision of x; the sum of squares is in FP64, as in Julia."""
    return x.dtype.type(np.linalg.norm(x.astype(float)))


def solved(u, g):
    """Return y with U y = g for an upper triangle U."""
    if u.dtype.kind == "f":
        return np.linalg.solve(np.triu(u), g)
    y = g.copy()
    for j in range(len(y) - 1, -1, -1):
        y[j] = y[j] / u[j, j]
        y[:j] = y[:j] - u[:j, j] * y[j]
    return y


def _combined(v, y):
    """Return the sum of y[i] v[i]."""
    if y.dtype.kind == "f":
        return y @ np.array(v[: len(y)])
    total = np.zeros_like(v[0])
    for factor, vector in zip(y, v, strict=False):
        total = total + factor * vector
    return total


def _gmres(a, correct, r, tol, dtype):
    """Return (d, steps) of GMRES; products and the preconditioner are in FP64."""
    return gmres(lambda v: correct(a @ v.astype(float)), correct(r), tol, dtype=dtype)


def _cg(a, correct, r, tol):
    """Return (d, steps) of preconditioned conjugate gradients with at most n steps."""
    steps, shape = [], a.shape
    inverse = scipy.sparse.linalg.LinearOperator(shape, correct, dtype=float)
    how = {"rtol": tol, "maxiter": len(r), "M": inverse, "callback": steps.append}
    d, _ = scipy.sparse.linalg.cg(a, r, **how)
    return d, len(steps)


def middle(found):
    """Return the median of some counts; None counts as the largest.

    For an even number it is the mean of the middle two.
    """
    ordered = _ordered(found)
    low, high = ordered[(len(found) - 1) // 2], ordered[len(found) // 2]
    if low == high:
        return low
    return None if high is None else (low + high) / 2


def low_middle(found):
    """Return the median of some counts, or the smaller one of the middle two."""
    return _ordered(found)[(len(found) - 1) // 2]


def spread(found):
    """Return the smallest and the largest of some counts; None is larger than all."""
    ordered = _ordered(found)
    return ordered[0], ordered[-1]


def _ordered(found):
    return sorted(found, key=lambda count: math.inf if count is None else count)
