"""Products of NumPy matrices by SciPy's BLAS.

LAPACK runs on SciPy's BLAS; NumPy has another one.  Two libraries have two pools of threads, and the idle
threads of one pool keep the cores busy that the other pool needs.  So the products of this module use
SciPy's BLAS too.
"""

import numpy as np
from scipy.linalg import blas, lapack

from tcsolve._arithmetic.formats import PREFIX

__all__ = [
    "FEW_ROWS",
    "band_norms",
    "blas_of",
    "column_major",
    "infinity_norm",
    "largest",
    "largest_of_array",
    "matmul",
    "norms",
]

# Up to this many entries, a call of LAPACK takes less time than two of NumPy.
FEW_ENTRIES = 256
# Up to this n, norms by LAPACK take less time than norms from sums of rows and columns (`cpu.ops.sums`).
FEW_ROWS = 128


def blas_of(name, dtype):
    """Return a BLAS routine, such as 'gemm', for a dtype."""
    return getattr(blas, PREFIX[dtype.char] + name)


def matmul(a, b):
    """Return a b, row-major, for matrices (m, n) and (n, k), or for two stacks of equal length.

    The dtypes are float32, float64, complex64 or complex128.  Row-major and column-major matrices of one
    dtype are not copied; matrices with gaps between rows or columns are.  For residuals,
    `short_chains.product` has smaller errors.
    """
    if a.ndim > 2:
        return np.stack([matmul(one, other) for one, other in zip(a, b, strict=True)])
    dtype = a.dtype if a.dtype is b.dtype else np.result_type(a, b)
    if not (a.size and b.size):
        return np.zeros((a.shape[0], b.shape[1]), dtype)
    a, b = a.astype(dtype, copy=False), b.astype(dtype, copy=False)
    if b.shape[1] == 1:
        t, turned = column_major(a)
        return blas_of("gemv", dtype)(1.0, t, np.ascontiguousarray(b[:, 0]), trans=turned)[:, None]
    # BLAS is column-major, so compute (a b).T = b.T a.T.
    (s, turned_b), (t, turned_a) = column_major(b.T), column_major(a.T)
    return blas_of("gemm", dtype)(1.0, s, t, trans_a=turned_b, trans_b=turned_a).T


def column_major(x):
    """Return (x, 0) if x is column-major, (x.T, 1) if x is row-major, else (a column-major copy, 0)."""
    if x.flags.f_contiguous:
        return x, 0
    return (x.T, 1) if x.flags.c_contiguous else (np.asfortranarray(x), 0)


def largest(v):
    """Return max |v| of a vector or a matrix in FP64; NaN if it holds NaN."""
    if v.size > FEW_ENTRIES:
        return np.maximum.reduce(np.abs(v), axis=None)
    return (lapack.zlange if v.dtype.kind == "c" else lapack.dlange)("M", v)


def largest_of_array(v):
    """Return max |v| of a contiguous array by BLAS; for a complex array, the largest |re| + |im|."""
    entries = v.ravel(order="K")
    entry = entries[getattr(blas, "i" + PREFIX[v.dtype.char] + "amax")(entries)]
    return float(abs(entry.real) + abs(entry.imag))


def norms(a):
    """Return the infinity norm and the 1-norm of a matrix (n, n), by LAPACK; NaN if it holds NaN."""
    t, turned = column_major(a)
    lange = getattr(lapack, PREFIX[a.dtype.char] + "lange")
    found = lange("I", t), lange("1", t)
    return found[::-1] if turned else found


def infinity_norm(a):
    """Return the infinity norm of a matrix (n, n) in FP64; NaN if it holds NaN."""
    t, turned = column_major(np.abs(a) if a.dtype.kind == "c" else a)
    return lapack.dlange("1" if turned else "I", t)


def band_norms(t, below, above):
    """Return the infinity norm and the 1-norm of a band matrix; NaN if it holds NaN.

    Entry (i, j) is ``t[above + i - j, j]``, and t (below + above + 1, n) is FP64.  Entries of t outside of
    the matrix are not used.
    """
    langb = getattr(lapack, PREFIX[t.dtype.char] + "langb", None)
    if langb is not None:
        return tuple(langb(norm, below, above, t) for norm in "I1")
    # SciPy 1.15 has no langb.
    n = t.shape[1]
    rows, columns = np.zeros(n), np.zeros(n)
    for d in range(-below, above + 1):
        first, last = max(d, 0), n + min(d, 0)
        if first < last:
            size = np.abs(t[above - d, first:last])
            rows[first - d : last - d] += size
            columns[first:last] += size
    return float(rows.max()), float(columns.max())
