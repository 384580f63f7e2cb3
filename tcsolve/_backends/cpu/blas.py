"""Products of NumPy matrices by SciPy's BLAS, which LAPACK's routines use, too.

NumPy brings a BLAS of its own.  Two libraries have two pools of threads, and the idle threads of one spin on
the cores that the other needs.
"""

import numpy as np
from scipy.linalg import blas

from tcsolve._arithmetic.formats import PREFIX

__all__ = ["blas_of", "matmul"]


def blas_of(name, dtype):
    """Return a BLAS routine, such as 'gemm', for a dtype."""
    return getattr(blas, PREFIX[dtype.char] + name)


def matmul(a, b):
    """Return a b, row-major, for matrices (m, n) and (n, k), or stacks of as many of them.

    Both are float32, float64, complex64 or complex128; nothing is copied if rows or columns are contiguous.
    """
    if a.ndim > 2:
        return np.stack([matmul(one, other) for one, other in zip(a, b, strict=True)])
    dtype = np.result_type(a, b)
    if not (a.size and b.size):
        return np.zeros((a.shape[0], b.shape[1]), dtype)
    a, b = (x.astype(dtype, copy=False) for x in (a, b))
    if b.shape[1] == 1:
        t, turned = _column_major(a)
        return blas_of("gemv", dtype)(1.0, t, np.ascontiguousarray(b[:, 0]), trans=turned)[:, None]
    # As BLAS sees them: (a b).T = b.T a.T.
    (s, turned_b), (t, turned_a) = _column_major(b.T), _column_major(a.T)
    return blas_of("gemm", dtype)(1.0, s, t, trans_a=turned_b, trans_b=turned_a).T


def _column_major(x):
    """Return (x, 0), or (its transpose, 1), whichever is column-major; a copy of x if neither is."""
    if x.flags.f_contiguous:
        return x, 0
    return (x.T, 1) if x.flags.c_contiguous else (np.asfortranarray(x), 0)
