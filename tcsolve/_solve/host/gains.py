"""Gaussian vectors that show that a matrix is far from singular, in less time than an estimate of rcond.

Let s be the 2-norm of A**-1, g a Gaussian vector, and margin a number above 1 (see VECTORS).  Then
``||A**-1 g||_2`` is at least s times the modulus of a standard normal number.  This modulus is below
1 / margin with a probability of 0.8 / margin.  Otherwise
``||A**-1||_1 <= sqrt(n) s <= n margin ||A**-1 g||`` in the infinity norm, and ``||A||_1 <= n ||A||``.
Answers in FP64 take one vector and a large margin, those in FP32 three vectors and a small one.  With three
vectors, this fails only if all three numbers are that small, so the probability is the third power.  So a
matrix with rcond below eps is mistaken for a regular one with a probability of at most about 10**-5.  The
true probability is nearly always far smaller, because these inequalities are seldom sharp.
"""

import functools

import numpy as np

__all__ = ["least_rcond", "vectors"]

# The number of vectors and the margin, for x in FP64 and in FP32.
VECTORS = {False: (1, 1e5), True: (3, 50)}
# Up to this n, LAPACK's estimate of rcond takes no longer than these vectors.
FEW = 24


@functools.lru_cache(maxsize=64)
def vectors(n, char):
    """Return (g, limit) for answers of a dtype, by its char: g has shape (n, number of vectors).

    If ``||A|| ||A**-1 g||`` in infinity norms is below the limit for all g, rcond is taken to be above eps.
    The docstring of the module bounds the probability that this is wrong.
    """
    count, margin = VECTORS[char in "fF"]
    g = np.random.default_rng(0).standard_normal((n, count))
    g.flags.writeable = False
    return g, float(1 / (n * n * margin * np.finfo(char).eps))


def least_rcond(factors, n, norm, dtype, wide):
    """Return a number above eps that is very likely a lower bound of rcond, or 0.

    Parameters
    ----------
    factors : object with solve(b)
        FP64 factors of A (n, n).
    n : int
    norm : float
        The infinity norm of A.
    dtype, wide : dtype
        The dtype of the answer, and that of the factors.
    """
    if n <= FEW or dtype.char in "fF":
        return 0.0
    g, limit = vectors(n, dtype.char)
    gain = norm * float(np.abs(factors.solve(g.astype(wide, order="F"))).max())
    return float(np.finfo(dtype).eps) * limit / gain if 0 < gain < limit else 0.0
