"""When LU factors in FP32 and refinement solve a general system of a few hundred unknowns.

From n = LEAST on this takes less time than an LU in FP64, with the verification of x and of the condition
number included.
"""

import functools

import numpy as np

from tcsolve._backends.cpu.blas import matmul
from tcsolve._backends.cpu.ops import sums
from tcsolve._lu.norms import Survey
from tcsolve._lu.scaling import needs_scaling
from tcsolve._solve.ladder.short_refinement import HostLoop

__all__ = [
    "FEW_COLUMNS",
    "MOST_CORRECTIONS",
    "short_loop",
    "show_regular",
    "suffice",
    "suit",
    "survey_of_well_scaled",
]

# From this n on, and for at most n / FEW_COLUMNS right-hand sides, factors in FP32 are faster.
LEAST, FEW_COLUMNS = 300, 16
# Number of Gaussian vectors, and the largest 2-norm of their residuals, for `show_regular`.
VECTORS, LARGEST_RESIDUAL = 4, 0.05
# The seed of these vectors.  Callers are unlikely to make their matrices with the same seed.
SEED = 7_401_539
# For `suffice`: the least rcond, which is 2 epsilon of FP32; and the largest entry of L and U, divided by the
# norm of A.  If a matrix is singular, and its FP32 factors have errors of a few roundoffs (2^-24 each), they
# give an rcond of at most a few roundoffs; it is mostly below 2^-25.
SAFE_RCOND, MOST_GROWTH = 2.0**-22, 2.0
# Largest number of corrections.  A correction multiplies the error by about 0.05 or less.
MOST_CORRECTIONS = 12


def suit(a, columns):
    """Tell whether FP32 factors are tried first for a general matrix a and a number of right-hand sides."""
    return len(a) >= LEAST and columns * FEW_COLUMNS <= len(a) and a.dtype.char in "dD"


def survey_of_well_scaled(a):
    """Return the `Survey` of a; None if FP32 factors need a scaled matrix, or if a sum is not finite."""
    top, least, (rows, columns) = np.maximum.reduce, np.minimum.reduce, sums(a)
    extremes = top(rows), least(rows), top(columns), least(columns)
    dominance = least(2.0 * np.abs(a.diagonal()) - rows)
    found = Survey.of(*map(float, (*extremes, dominance)))
    return None if needs_scaling(found) else found


@functools.lru_cache(maxsize=64)
def _vectors(n):
    g = np.random.default_rng(SEED).standard_normal((n, VECTORS))
    g.flags.writeable = False
    return g


def show_regular(factors, a):
    """Tell whether FP32 factors of a show that it is not singular to working precision.

    Notes
    -----
    Let x be the solution that the factors give for a Gaussian vector g.  If a is singular to working
    precision, it has a left singular vector u with ``u^T a = 0`` up to rounding.  So
    ``u^T (g - a x) = u^T g`` is a standard normal number, and the residual is at least as large.  The modulus
    of such a number is at most 0.05 with a probability of 0.04.  The moduli of four such numbers are all at
    most 0.05 with a probability of 3e-6.  The vectors are fixed, so this holds for a matrix that does not
    depend on them.  For a regular matrix, the residual is about the error of the factors times the condition
    number.
    """
    g = _vectors(len(a))
    r = g - matmul(a, factors.solve(g.astype(a.dtype)))
    return bool((np.linalg.norm(r, axis=0) <= LARGEST_RESIDUAL).all())  # False for NaN


def suffice(factors, rcond, norm):
    """Tell whether FP32 factors of a matrix are enough for an x in FP32, and their `rcond` is accurate.

    `norm` is the infinity norm of the matrix.  If entries grow in the elimination, the factors may be
    inaccurate.
    """
    return rcond >= SAFE_RCOND and factors.largest() <= MOST_GROWTH * norm


def short_loop(factors, a, norm, b, bound):
    """Return the `HostLoop` with FP32 factors of a for right-hand sides b."""
    solve, sized = factors.solver(b.reshape(len(b), -1))
    return HostLoop(a, norm, solve, bound, sized=sized)
