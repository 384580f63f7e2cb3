"""Residuals of small systems in long double.

For few unknowns, the rounding of an FP64 residual is as large as the bound that the residual has to meet.
"""

import numpy as np

from tcsolve._backends.cpu.blas import matmul

__all__ = ["SMALL", "residual"]

# Up to this n, the rounding of an FP64 residual matters compared with u sqrt(n) ||A|| ||x||.
SMALL = 32
# From this many entries on, the inner products of a stack are faster than matmul in long double.
FEW = 512


def residual(a, x, b):
    """Return b - A x in FP64 for NumPy arrays.

    Parameters
    ----------
    a : ndarray, shape (..., n, n)
    x, b : ndarray, shape (n,) or (..., n, k)

    Returns
    -------
    ndarray
        For n <= SMALL it is computed in long double and rounded to FP64.  Where long double has more digits
        than double, as on x86, the result is then rounded about once.  For larger n it is computed in FP64.
    """
    dtype = np.result_type(a, x, b, np.float64)
    if a.shape[-1] > SMALL:
        a, x = (v.astype(dtype, copy=False) for v in (a, x))
        return b - (matmul(a, x) if a.ndim == x.ndim == 2 else a @ x)
    wide = np.dtype(np.clongdouble if dtype.kind == "c" else np.longdouble)
    a, x = a.astype(wide, copy=False), x.astype(wide, copy=False)
    if dtype.kind == "c" or a.size < FEW or a.ndim == 2:
        return (b - a @ x).astype(dtype, copy=False)
    # The same sums as those of matmul, but faster.
    ax = np.vecdot(a[..., :, None, :], x.swapaxes(-1, -2)[..., None, :, :])
    return (b - ax).astype(dtype, copy=False)
