"""Residuals of small systems in long double.

For few unknowns, the rounding of an FP64 residual is as large as the bound that the residual has to meet.
"""

import numpy as np

from tcsolve._backends.cpu.short_chains import product
from tcsolve._solve.verify.split_residual import split_residual

__all__ = ["SMALL", "residual", "residual_of_stack"]

# Up to this n, the rounding of an FP64 residual matters compared with u sqrt(n) ||A|| ||x||.
SMALL = 32
# For a stack: from this n on, three matrix products in FP64 are faster than one in long double.
SPLIT = 12
# From this many entries on, the inner products of a stack are faster than matmul in long double.
FEW = 512
# From this many products of entries on, matrix products in FP64 are faster than one in long double.
MANY_PRODUCTS = 1 << 12


def residual(a, x, b, known=None):
    """Return b - A x in FP64 for NumPy arrays.

    Parameters
    ----------
    a : ndarray, shape (..., n, n)
    x, b : ndarray, shape (n,) or (..., n, k)
    known : (float, ndarray), optional
        For one system, the infinity norm of A, and max |x| of each column.

    Returns
    -------
    ndarray
        For n <= SMALL it is computed in long double and rounded to FP64.  Where long double has more digits
        than double, as on x86, the only large rounding error is then the last one.  For many columns,
        split matrices are multiplied in FP64, with the same accuracy.  For larger n it is computed in FP64,
        in short chains of additions.
    """
    same = a.dtype is x.dtype is b.dtype and a.dtype.char in "dD"
    dtype = a.dtype if same else np.result_type(a, x, b, np.float64)
    if a.shape[-1] > SMALL:
        a, x = (v.astype(dtype, copy=False) for v in (a, x))
        return b - product(a, x)
    if a.ndim == x.ndim == 2 and a.size * x.shape[1] >= MANY_PRODUCTS:
        return _split(a.astype(dtype, copy=False), x.astype(dtype, copy=False), b, known)
    wide = np.dtype(np.clongdouble if dtype.kind == "c" else np.longdouble)
    a, x = a.astype(wide, copy=False), x.astype(wide, copy=False)
    if dtype.kind == "c" or a.size < FEW or a.ndim == 2:
        return (b - a @ x).astype(dtype, copy=False)
    # The same sums as those of matmul, but faster.
    ax = np.vecdot(a[..., :, None, :], x.swapaxes(-1, -2)[..., None, :, :])
    return (b - ax).astype(dtype, copy=False)


def residual_of_stack(a, x, b, is_narrow, norms, work=None):
    """Return b - A x for FP64 stacks; for few unknowns with the accuracy of long double.

    Parameters
    ----------
    a, x, b : ndarray, shapes (m, n, n), (m, n, k) and (m, n, k)
    is_narrow : bool
        Whether the answer is in FP32, so that a residual in FP64 is accurate enough.
    norms : callable, () -> (norm, size)
        Returns those of `split_residual`; called only where they are needed.
    work : ndarray, shape (m, n, n), optional
        Memory that may be overwritten.
    """
    n = a.shape[1]
    if n > SMALL or is_narrow:
        return b - product(a, x)
    if n < SPLIT:
        return residual(a, x, b)
    return split_residual(a, x, b, *norms(), np.empty_like(a) if work is None else work)


def _split(a, x, b, known):
    """Return b - A x for one system; see `split_residual`."""
    norm, size = known or (np.abs(a).sum(axis=1).max(), np.abs(x).max(axis=0))
    args = np.array([norm]), size[None], np.empty_like(a[None])
    return split_residual(a[None], x[None], b, *args)[0]
