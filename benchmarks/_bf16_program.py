"""LU solves until convergence with BF16 factors, counted as the program of a thesis counts them.

The program is Itref.jl of B. Vieublé and A. Buttari.  The LU, the first x, and the corrections of LU-IR
(classical refinement) are in BF16, and every operation is rounded.  GMRES has left preconditioning with the
factors, and no restart.  It has two precisions: that of its vectors, and that of the products with A and
M^-1.
"""

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import scipy.linalg
import scipy.sparse
from _counted_refinement import gmres, spread

__all__ = [
    "FP64_GMRES",
    "GMRES",
    "INNER_TOLS",
    "MOST_SOLVES",
    "MULTIPLIERS",
    "SOLUTIONS",
    "Counts",
    "Factors",
    "Problem",
    "Run",
    "by_rows_and_columns",
    "factor",
    "fewest",
    "program_counts",
    "run",
]

# The thesis gives the smallest count over multipliers of the scaled matrix, and over tolerances of GMRES.
MULTIPLIERS = (1.0, 1e1, 1e2, 1e3, 1e4)
INNER_TOLS = (1e-4, 0.5, 1e-1, 1e-2, 1e-3, 1e-6, 1e-8, 1e-10)
# The precisions of GMRES: of its vectors, and of its products.  The letters are those of the thesis: the
# factors are in BF16 (B), the others in BF16, FP32 (S), FP64 (D) or quadruple precision (Q).  In place of Q
# the products here have the 64 bits of extended precision.
GMRES = {
    "BBS": (ml_dtypes.bfloat16, np.float32),
    "BBD": (ml_dtypes.bfloat16, np.float64),
    "BSS": (np.float32, np.float32),
    "BSD": (np.float32, np.float64),
    "BDD": (np.float64, np.float64),
    "BDQ": (np.float64, np.longdouble),
}
FP64_GMRES = "BDD"
# Number of random x.  The x of the thesis is not known.  LU-IR gets all of them, and so does BDD, the GMRES
# that is all in FP64.  GMRES in other precisions gets only the first.
SOLUTIONS = 3
# The forward and the backward error that are asked for, in 2-norms of vectors and the Frobenius norm of A.
BOUND = 4.44e-16
# As in the first example of the program.  Its default is 20, too few for its larger tolerances.
MOST_CYCLES = 50
# The largest count of the thesis is 522.
MOST_SOLVES = 600
# Columns of a triangle that are solved together, in extended precision.
BLOCK = 32
# A zero pivot is replaced by this part of the largest entry, as xGETC2 does with tiny ones.
U = 2.0**-8


class Factors(NamedTuple):
    """P A ~ L U with numbers of BF16.

    Attributes
    ----------
    lu : array, shape (n, n), float32
        L without its diagonal of ones, and U.
    order : array, shape (n,)
        Row i of P A is row ``order[i]`` of A.
    zero_pivots : int
        How many pivots were zero, and were replaced.
    """

    lu: Any
    order: Any
    zero_pivots: int


def by_rows_and_columns(a):
    """Return A scaled so that the largest entry of each row, then of each column, is 1."""
    w = a / np.abs(a).max(axis=1)[:, None]
    return w / np.abs(w).max(axis=0)


def factor(a):
    """Return the BF16 `Factors` of A with partial pivoting, every operation rounded.

    The entries of L are products with the rounded inverse of the pivot, as in the generic LU of Julia.  Zeros
    are skipped, which changes no result.
    """
    w = rounded(a)
    order, tiny, zero_pivots = np.arange(len(w)), rounded(U * np.abs(a).max()), 0
    for k in range(len(w)):
        best = k + int(np.abs(w[k:, k]).argmax())
        for rows in (w, order):
            rows[[k, best]] = rows[[best, k]]
        if w[k, k] == 0:
            w[k, k], zero_pivots = tiny, zero_pivots + 1
        below, right = (k + 1 + np.flatnonzero(part) for part in (w[k + 1 :, k], w[k, k + 1 :]))
        w[below, k] = rounded(w[below, k] * rounded(1 / w[k, k]))
        rest = np.ix_(below, right)
        w[rest] = rounded(w[rest] - rounded(w[below, k, None] * w[k, right]))
    return Factors(w, order, zero_pivots)


def rounded(x):
    """Return x, rounded to FP32 and then to BF16, as FP32; infinities and NaN stay."""
    x = np.array(x, dtype=np.float32)
    bits = x.view(np.uint32)
    near = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(x), near.view(np.float32), x)


def solve_rounded(factors, b):
    """Return x (n,) in FP64 with L U x = P b, every operation rounded to BF16, column by column."""
    lu, order, _ = factors
    x = rounded(b)[order]
    for j in range(len(x)):
        x[j + 1 :] = rounded(x[j + 1 :] - rounded(lu[j + 1 :, j] * x[j]))
    for j in range(len(x) - 1, -1, -1):
        x[j] = rounded(x[j] / lu[j, j])
        x[:j] = rounded(x[:j] - rounded(lu[:j, j] * x[j]))
    return x.astype(float)


class Problem:
    """A x = b with a known x, and BF16 factors of A.

    Parameters
    ----------
    a : array, shape (n, n), float64
    factors : Factors
    x : array, shape (n,), float64
        The exact solution.  b is the exact A x, which has more digits than FP64; `residual` needs no b.
    """

    def __init__(self, a, factors, x):
        self.factors, self.x = factors, x
        self._made = {"a": scipy.sparse.csr_array(a)}
        # The nonzero entries of each row, moved to its left end, and the columns that they come from.
        most = int((a != 0).sum(axis=1).max())
        self._columns = np.argsort(a == 0, axis=1, kind="stable")[:, :most]
        self._entries = np.take_along_axis(a, self._columns, axis=1).astype(np.longdouble)
        self.norm = np.linalg.norm(a)
        self.norm_b = np.linalg.norm(a @ x)
        self.start = solve_rounded(factors, a @ x)
        if not np.isfinite(self.start).all():
            self.start = np.zeros_like(x)

    def residual(self, x):
        """Return b - A x.

        It is computed as A times the error of x.  In extended precision this is as good as b - A x in
        quadruple precision.
        """
        error = self.x.astype(np.longdouble) - x
        return (self._entries * error[self._columns]).sum(axis=1).astype(float)

    def products(self, dtype):
        """Return v -> M^-1 A v and v -> M^-1 v for vectors (n,), with all operations in `dtype`."""
        if dtype not in self._made:
            packed = np.asfortranarray(self.factors.lu, dtype=dtype)
            self._made[dtype] = self._made["a"].astype(dtype), packed
        a, packed = self._made[dtype]
        triangle = _extended if dtype is np.longdouble else scipy.linalg.solve_triangular
        how = {"check_finite": False}

        def correct(r):
            y = r.astype(dtype)[self.factors.order]
            y = triangle(packed, y, lower=True, unit_diagonal=True, **how)
            return triangle(packed, y, **how)

        return (lambda v: correct(a @ v.astype(dtype))), correct

    def converged(self, x, r):
        """Tell whether the forward and the backward error of x are small enough; r is its residual."""
        size = np.linalg.norm(x)
        backward = np.linalg.norm(r) / (self.norm * size + self.norm_b)
        return backward <= BOUND and np.linalg.norm(x - self.x) <= BOUND * np.linalg.norm(self.x)


def _extended(a, b, *, lower=False, unit_diagonal=False, check_finite=False):
    """Return x with T x = b for a triangle T of a, as SciPy's `solve_triangular`, in extended precision."""
    x, n = b.copy(), len(b)
    starts = range(0, n, BLOCK)
    for first in starts if lower else reversed(starts):
        last = min(first + BLOCK, n)
        for j in range(first, last) if lower else range(last - 1, first - 1, -1):
            if not unit_diagonal:
                x[j] /= a[j, j]
            rest = slice(j + 1, last) if lower else slice(first, j)
            x[rest] -= a[rest, j] * x[j]
        rest = slice(last, n) if lower else slice(0, first)
        x[rest] -= a[rest, first:last] @ x[first:last]
    return x


class Run(NamedTuple):
    """The number of LU solves until convergence, the first x included, and the steps of the first cycle.

    The number is None without convergence.  LU-IR has no steps.
    """

    solves: int | None
    first: int = 0


def run(problem, tol=None, most=MOST_SOLVES, precisions=FP64_GMRES):
    """Return the `Run` of LU-IR, or of GMRES-IR with a tolerance.

    Parameters
    ----------
    problem : Problem
    tol : float, optional
        A cycle of GMRES ends when it has reduced the preconditioned residual by this factor.  A cycle takes
        one LU solve more than it takes steps.  Default: LU-IR, where each correction takes one solve.
    most : int
        More solves than this are too many.
    precisions : str
        Those of GMRES, a key of `GMRES`.
    """
    x, taken, first = problem.start, 1, 0
    dtype, of_products = GMRES[precisions]
    product, correct = problem.products(of_products)
    for _ in range(MOST_CYCLES):
        r = problem.residual(x)
        if problem.converged(x, r):
            return Run(taken, first)
        size = np.linalg.norm(r)
        if not np.isfinite(size):
            break
        if tol is None:
            d, steps = solve_rounded(problem.factors, r / size), 0
        else:
            d, steps = gmres(product, correct(r / size), tol, most - taken, dtype)
        x, taken, first = x + size * d.astype(float), taken + steps + 1, first or steps
        if taken > most:
            break
    return Run(None, first)


def fewest(problem, method, most=MOST_SOLVES):
    """Return the count of LU-IR ('ir'), or the smallest count of GMRES-IR over the tolerances; or None.

    `method` is 'ir' or the precisions of GMRES, a key of `GMRES`.  Counts of GMRES-IR above `most` are not
    looked for.
    """
    with np.errstate(all="ignore"):
        if method == "ir":
            return run(problem).solves
        best, too_small = None, 0.0
        for tol in INNER_TOLS:
            if tol < too_small:
                continue
            found = run(problem, tol, most, method)
            if found.solves is not None:
                best, most = found.solves, found.solves - 1
            if found.first >= most - 1:
                too_small = tol  # with a smaller one the first cycle has at least as many steps
        return best


class Counts(NamedTuple):
    """Counts of LU-IR and of GMRES-IR, by method and multiplier: one for each x, None without convergence.

    Attributes
    ----------
    found : dict of dicts of lists
        The keys are 'ir' and the keys of `GMRES`, then the multipliers.
    zero_pivots : int
        How many zero pivots were replaced in the factorization with multiplier 1.
    """

    found: dict
    zero_pivots: int

    def best(self, method):
        """Return the smallest count over the multipliers, for each x."""
        return [spread(found)[0] for found in zip(*self.found[method].values(), strict=True)]

    def plain(self, method):
        """Return the counts with the multiplier 1."""
        return self.found[method][1.0]


def program_counts(w):
    """Return the `Counts` for the scaled matrix w and random x.

    A method with one x gets a count for a larger multiplier only if this count is smaller than those for all
    smaller multipliers; otherwise it gets None.
    """
    made = Counts({method: {} for method in ("ir", *GMRES)}, factor(w).zero_pivots)
    for multiplier in MULTIPLIERS:
        a = multiplier * w
        factors = factor(a)
        draws = (np.random.default_rng(seed).standard_normal(len(a)) for seed in range(SOLUTIONS))
        problems = [Problem(a, factors, x) for x in draws]
        for method, by_multiplier in made.found.items():
            if method in ("ir", FP64_GMRES):
                counted = [fewest(problem, method) for problem in problems]
            else:
                known = [count for (count,) in by_multiplier.values() if count is not None]
                counted = [fewest(problems[0], method, min(known, default=MOST_SOLVES + 1) - 1)]
            by_multiplier[multiplier] = counted
    return made
