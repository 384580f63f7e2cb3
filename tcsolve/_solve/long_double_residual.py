"""Residuals of small systems in more than FP64, whose rounding else decides whether they meet a bound."""

import numpy as np

from tcsolve._backends.cpu.blas import matmul

__all__ = ["SMALL", "residual"]

# Unknowns up to which the rounding of a residual in FP64 counts beside u sqrt(n) ||A|| ||x||.
SMALL = 32


def residual(a, x, b):
    """Return b - A x in FP64, of arrays of the host.

    Parameters
    ----------
    a : ndarray, shape (..., n, n)
    x, b : ndarray, shape (n,) or (..., n, k)

    Returns
    -------
    ndarray
        Rounded once, or nearly so, for up to SMALL unknowns where a long double is longer than a double, as
        on x86; else a difference of FP64 numbers.
    """
    dtype = np.result_type(a, x, b, np.float64)
    if a.shape[-1] > SMALL:
        a, x = (v.astype(dtype, copy=False) for v in (a, x))
        return b - (matmul(a, x) if a.ndim == x.ndim == 2 else a @ x)
    wide = np.dtype(np.clongdouble if dtype.kind == "c" else np.longdouble)
    return (b - a.astype(wide, copy=False) @ x.astype(wide, copy=False)).astype(dtype, copy=False)
