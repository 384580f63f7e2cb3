"""LU solves until convergence with BF16 factors, counted as the program of a thesis counts them.

The program is Itref.jl of B. Vieublé and A. Buttari.  The LU, the first x, and the corrections of LU-IR are
in BF16, and every operation is rounded.  GMRES is in FP64; it has left preconditioning with the factors, and
no restart.
"""

from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse
from _counted_refinement import gmres, spread

__all__ = [
    "MULTIPLIERS",
    "SOLUTIONS",
    "Counts",
    "Factors",
    "Problem",
    "by_rows_and_columns",
    "factor",
    "fewest",
    "program_counts",
    "solves",
]

# The thesis gives the smallest count over these multipliers of the scaled matrix and tolerances of GMRES.
MULTIPLIERS = (1.0, 1e1, 1e2, 1e3, 1e4)
INNER_TOLS = (1e-10, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 0.5)
# Number of random x.  The x of the thesis is not known.
SOLUTIONS = 3
# The forward and the backward error that are asked for, in 2-norms of vectors and the Frobenius norm of A.
BOUND = 4.44e-16
# As in the first example of the program.  Its default is 20, too few for its larger tolerances.
MOST_CYCLES = 50
# The largest count of the thesis is 522.
MOST_SOLVES = 600
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
        self.a, self.factors, self.x = scipy.sparse.csr_array(a), factors, x
        self._packed = np.asfortranarray(factors.lu, dtype=float)
        # The entries of each row, side by side, and their columns.
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

    def correct(self, r):
        """Return d (n,) with L U d = P r, in FP64."""
        how = {"check_finite": False}
        y = r[self.factors.order]
        y = scipy.linalg.solve_triangular(self._packed, y, lower=True, unit_diagonal=True, **how)
        return scipy.linalg.solve_triangular(self._packed, y, **how)

    def converged(self, x, r):
        """Tell whether the forward and the backward error of x are small enough; r is its residual."""
        size = np.linalg.norm(x)
        backward = np.linalg.norm(r) / (self.norm * size + self.norm_b)
        return backward <= BOUND and np.linalg.norm(x - self.x) <= BOUND * np.linalg.norm(self.x)


def solves(problem, tol=None, most=MOST_SOLVES):
    """Return the number of LU solves until convergence, the first x included; None without convergence.

    Parameters
    ----------
    problem : Problem
    tol : float, optional
        A cycle of GMRES ends when it has reduced the preconditioned residual by this factor.  A cycle takes
        one LU solve more than it takes steps.  Default: LU-IR, where each correction takes one solve.
    most : int
        More solves than this are too many.
    """
    x, taken = problem.start, 1
    for _ in range(MOST_CYCLES):
        r = problem.residual(x)
        if problem.converged(x, r):
            return taken
        size = np.linalg.norm(r)
        if not np.isfinite(size):
            break
        if tol is None:
            d, steps = solve_rounded(problem.factors, r / size), 0
        else:
            d, steps = gmres(problem.a, problem.correct, r / size, tol, most - taken)
        x, taken = x + size * d, taken + steps + 1
        if taken > most:
            break
    return None


def fewest(problem, method):
    """Return the count of LU-IR ('ir'), or the smallest count of GMRES-IR over the tolerances; or None."""
    with np.errstate(all="ignore"):
        if method == "ir":
            return solves(problem)
        best = None
        for tol in INNER_TOLS:
            found = solves(problem, tol, MOST_SOLVES if best is None else best - 1)
            best = best if found is None else found
        return best


class Counts(NamedTuple):
    """Counts of LU-IR and of GMRES-IR for each multiplier: one for each x, None without convergence.

    Attributes
    ----------
    ir, fgmres : dict of lists
        The keys are the multipliers.
    zero_pivots : int
        How many zero pivots were replaced in the factorization with multiplier 1.
    """

    ir: dict
    fgmres: dict
    zero_pivots: int

    def best(self, method):
        """Return the smallest count over the multipliers, for each x."""
        return [spread(found)[0] for found in zip(*getattr(self, method).values(), strict=True)]

    def plain(self, method):
        """Return the counts with the multiplier 1."""
        return getattr(self, method)[1.0]


def program_counts(w):
    """Return the `Counts` for the scaled matrix w and random x."""
    made = Counts({}, {}, factor(w).zero_pivots)
    for multiplier in MULTIPLIERS:
        a = multiplier * w
        factors = factor(a)
        draws = (np.random.default_rng(seed).standard_normal(len(a)) for seed in range(SOLUTIONS))
        problems = [Problem(a, factors, x) for x in draws]
        made.ir[multiplier] = [fewest(problem, "ir") for problem in problems]
        made.fgmres[multiplier] = [fewest(problem, "fgmres") for problem in problems]
    return made
