"""Residuals of stacks of small systems with the accuracy of long double, by matrix products in FP64."""

import numpy as np

__all__ = ["split_residual"]

# For |y| <= v and s = 2**SHIFT v, (s + y) - s is y rounded to a multiple of about 2**-25 v.
SHIFT = 28


def split_residual(a, x, b, norm, size, work):
    """Return b - A x for FP64 stacks.

    Parameters
    ----------
    a, work : ndarray, shape (m, n, n)
        `work` is overwritten.
    x, b : ndarray, shape (m, n, k)
    norm : ndarray, shape (m,)
        The infinity norm of each A.
    size : ndarray, shape (m, k)
        The largest modulus of each column of x.

    Notes
    -----
    A and x are split into high and low parts.  The high parts are multiples of powers of two that are at
    least 2**-26 ||A|| and 2**-26 ||x||, and the sums of their products are below 2 ||A|| ||x||.  So FP64
    holds these sums exactly.  The low parts are at most 2**-24 times ||A|| and ||x||, so the rounding of
    their products does not matter.
    """
    k = x.shape[-1]
    high = _rounded(a, norm[:, None, None], work)
    parts = np.empty((*x.shape[:-1], 2 * k), x.dtype)
    _rounded(x, size[:, None, :], parts[..., :k])
    np.subtract(x, parts[..., :k], out=parts[..., k:])
    products = high @ parts
    r = b - products[..., :k]
    r -= products[..., k:]
    r -= np.subtract(a, high, out=work) @ x
    return r


def _rounded(y, norm, out):
    """Return y rounded to multiples of about 2**(SHIFT - 53) norm, in `out`."""
    shift = norm * 2.0**SHIFT * (1 + 1j if out.dtype.kind == "c" else 1)
    np.add(y, shift, out=out)
    return np.subtract(out, shift, out=out)
