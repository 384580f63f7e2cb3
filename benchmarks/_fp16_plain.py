"""An LU in FP16 without tensor cores, for the table of `training.py`.

The matrix is stored in FP16.  Panels and triangular solves are in FP32, by cuSOLVER and cuBLAS.  In the
updates of the trailing matrix each product is added to its sum with one rounding to FP16.  tcsolve has no
such LU: tensor cores with sums in FP32 are faster.
"""

import numpy as np

import tcsolve
from tcsolve import Plan

__all__ = ["Factors", "factor", "solve"]

# The widths of panels of MAGMA's mixed-precision LU, without its largest width: (largest n, width).
WIDTHS = ((6000, 128), (float("inf"), 256))
# The tile and the threads of a block of `fp16_update.cu`.
TILE, THREADS = 128, 256
MOST_STEPS = 200


def solve(a, b):
    """Return (x, steps) of FGMRES with the FP16 factors of A; the steps are -1 if x misses the bound.

    Parameters
    ----------
    a : array, shape (n, n), float64
        NumPy or CuPy.
    b : array, shape (n,), float64
    """
    correct = factor(a).correct
    found = tcsolve.refine(a, b, correct, plan=Plan(method="fgmres"), max_steps=MOST_STEPS)
    return found.x, int(np.max(found.iterations)) if found.status.ok else -1


def factor(a):
    """Return the FP16 `Factors` of A with partial pivoting; A is scaled by powers of two before."""
    xp, n = namespace_of(a), len(a)
    lu_factor, solve_triangular = libraries(xp)
    width = next(width for largest, width in WIDTHS if n <= largest)
    rows = powers(xp, xp.abs(a).max(axis=1))
    columns = powers(xp, (xp.abs(a) * rows[:, None]).max(axis=0))
    # The rest of the last panel has the rows and columns of the identity.
    w = xp.eye(-(-n // width) * width, dtype=np.float16)
    w[:n, :n] = a * rows[:, None] * columns
    order = xp.arange(len(w))
    for first in range(0, len(w), width):
        after = slice(first + width, None)
        panel = xp.asfortranarray(w[first:, first : first + width].astype(np.float32))
        packed, pivots = lu_factor(panel, overwrite_a=True, check_finite=False)
        old, new = moved(pivots, len(panel))
        for rows_of in (w, order):
            rows_of[first + new] = rows_of[first + old]
        w[first:, first : first + width] = packed
        if first + width < len(w):
            right = w[first : first + width, after].astype(np.float32)
            how = {"lower": True, "unit_diagonal": True, "check_finite": False}
            w[first : first + width, after] = solve_triangular(packed[:width], right, **how)
            update(xp, w, first, width)
    return Factors(w.astype(np.float32, order="F"), order, rows, columns)


class Factors:
    """P R A C ~ L U, where R and C are diagonal.

    Parameters
    ----------
    lu : array, shape (m, m), float32, Fortran-ordered
        L without its diagonal of ones, and U; m >= n.
    order : array, shape (m,)
        P moves row ``order[i]`` to row i.
    rows, columns : array, shape (n,), float64
        The diagonals of R and C.
    """

    def __init__(self, lu, order, rows, columns):
        self.lu, self.order, self.rows, self.columns = lu, order, rows, columns

    def correct(self, r):
        """Return about A^-1 r for r of shape (n, k); the triangular solves are in FP32."""
        xp, n = namespace_of(r), len(self.rows)
        solve_triangular = libraries(xp)[1]
        y = xp.zeros((len(self.lu), r.shape[1]), np.float32, order="F")
        y[:n] = r * self.rows[:, None]
        y = xp.asfortranarray(y[self.order])
        how = {"check_finite": False, "overwrite_b": True}
        y = solve_triangular(self.lu, y, lower=True, unit_diagonal=True, **how)
        return solve_triangular(self.lu, y, **how)[:n].astype(float) * self.columns[:, None]


def namespace_of(a):
    """Return NumPy or CuPy."""
    if isinstance(a, np.ndarray):
        return np
    import cupy

    return cupy


def libraries(xp):
    """Return lu_factor and solve_triangular of SciPy, or those of CuPy."""
    if xp is np:
        from scipy.linalg import lu_factor, solve_triangular
    else:
        from cupyx.scipy.linalg import lu_factor, solve_triangular
    return lu_factor, solve_triangular


def powers(xp, largest):
    """Return the powers of two that move numbers to the range [1/2, 1); 1 for zero."""
    return xp.ldexp(xp.ones_like(largest), -xp.frexp(largest)[1])


def moved(pivots, m):
    """Return the old and the new positions of the rows that the swaps of a panel with m rows move."""
    order = np.arange(m)
    for k, other in enumerate(pivots.tolist()):
        order[[k, other]] = order[[other, k]]
    new = np.flatnonzero(order != np.arange(m))
    return order[new], new


def update(xp, w, first, width):
    """Subtract the product of the panel and the rows on its right from the trailing matrix."""
    middle = slice(first, first + width)
    after = slice(first + width, None)
    left, right = (xp.ascontiguousarray(part) for part in (w[after, middle], w[middle, after]))
    if xp is np:
        for k in range(width):
            # In FP64 the sum of a product and an entry is exact, or nearly.
            w[after, after] = w[after, after] - np.outer(left[:, k].astype(float), right[k])
        return
    from _kernels import kernel

    from tcsolve._backends.cuda.runtime.compiler import target_arch

    trailing = w[after, after]
    blocks = len(trailing) // TILE
    run = kernel("fp16_update.cu", "fp16_update", target_arch())
    run((blocks, blocks), (THREADS,), (trailing, left, right, width, right.shape[1], w.shape[1]))
