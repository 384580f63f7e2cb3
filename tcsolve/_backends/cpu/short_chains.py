"""Products for residuals on the host, whose sums have short chains of additions.

BLAS adds hundreds of products one after the other.  If all these additions round in one direction, the error
of a residual is several times the bound that the residual has to meet.  Here, n products are added in n / c
sums of c products each, and then these sums are added.  So no chain has more than c + n / c additions.

SciPy's wrappers of BLAS would copy the parts of a row-major matrix.  The routines themselves take the
distance from one column to the next, and SciPy offers them to Cython and ctypes.
"""

import ctypes
import sys
from functools import cache

import numpy as np
from scipy.linalg import cython_blas

from tcsolve._arithmetic.formats import PREFIX
from tcsolve._arithmetic.matrix_parts import power_of_two_from
from tcsolve._backends.cpu.blas import blas_of, column_major

__all__ = ["BY_NUMPY", "multiplier", "product"]

# Up to this many bytes of x, inner products of NumPy have short chains: they add 8, 16 or LANES terms at a
# time.  A longer row is summed in parts of PART_BYTES.
SHORT_ROW, LANES, PART_BYTES = 8192, 32, 2048
# The number of columns of a column-major matrix that are multiplied at a time, for a short and for a long x.
FEW_COLUMNS, MORE_COLUMNS = 16, 64
# Up to this n, a product with several vectors is one block.
ONE_BLOCK = 32
# Up to this n, stacks are multiplied by NumPy, which has also solved them.
BY_NUMPY = 128

# On a little-endian processor, the first 32 bits of a small 64-bit integer are the same number.  So SciPy may
# use a BLAS with either size of integers.
Integer = ctypes.c_int64 if sys.byteorder == "little" else ctypes.c_int
KINDS = {"op": ctypes.c_char_p, "int": ctypes.POINTER(Integer), "address": ctypes.c_void_p}
ARGUMENTS = {
    "gemm": "op op int int int address address int address int address address int",
    "gemv": "op int int address address int address int address address int",
}
# 1 and 0, real or complex.
NUMBERS = [(ctypes.c_double * 2)(real, 0.0) for real in (1.0, 0.0)]
ONE, ZERO = map(ctypes.addressof, NUMBERS)


def product(a, x):
    """Return A x for a (m, n) and x (n,) or (n, k), or for stacks of them, in FP64 or complex FP64.

    A row-major or column-major a with the dtype of x is not copied.
    """
    if a.ndim > 2:
        return _times_stack(a, x)
    dtype = a.dtype if a.dtype is x.dtype else np.result_type(a, x)
    a, x = (v.astype(dtype, copy=False) for v in (a, x))
    return multiplier(a)(x)


def multiplier(a):
    """Return the function x -> A x of `product` for x of the dtype of a; for many x it saves time.

    If the rows of x are not contiguous, the columns of the result are.
    """
    t, turned = column_major(a)

    def times(x):
        if not (a.size and x.size):
            return np.zeros((len(a), *x.shape[1:]), a.dtype)
        if x.size == len(x):
            y = _times_vector(t, turned, np.ascontiguousarray(x.reshape(-1)))
            return y.reshape(-1, *x.shape[1:])
        if len(x) <= ONE_BLOCK:
            return blas_of("gemm", a.dtype)(1.0, t, x, trans_a=turned)
        return _times_matrix(t, turned, x if x.flags.c_contiguous else np.asfortranarray(x))

    return times


def _times_vector(t, turned, x):
    """Return T x, or T^T x if `turned`, for a column-major T and a contiguous x (n,).

    gemv may add every product to y.  So each block of products has its own y, and their sum comes last.
    """
    is_short = x.nbytes <= SHORT_ROW
    if turned:
        return _by_rows(t.T, x) if is_short else _by_parts_of_rows(t, x)
    gemv, c = blas_of("gemv", x.dtype), FEW_COLUMNS if is_short else MORE_COLUMNS
    sums = np.empty((-(-len(x) // c), len(t)), x.dtype)
    for j, i in enumerate(range(0, len(x), c)):
        sums[j] = gemv(1.0, t[:, i : i + c], x[i : i + c])
    return np.add.reduce(sums, axis=0)


def _by_rows(a, x):
    """Return A x for a short x.

    An inner product would add its last terms, fewer than LANES, to the sum of the others in one chain.  So
    they have a sum of their own.
    """
    x = x.conj() if x.dtype.kind == "c" else x
    whole = len(x) // LANES * LANES
    with np.errstate(all="ignore"):  # as BLAS, which gives no warnings
        if whole in (0, len(x)):
            return np.vecdot(x, a)
        return np.vecdot(x[:whole], a[:, :whole]) + np.vecdot(x[whole:], a[:, whole:])


def _by_parts_of_rows(t, x):
    """Return T^T x for a long x, without a copy of the parts."""
    m, c = t.shape[1], PART_BYTES // x.itemsize
    sums = np.empty((-(-len(x) // c), m), x.dtype)
    gemv, columns, lda, one = (
        _routine("gemv", x.dtype.char),
        Integer(m),
        Integer(len(t)),
        Integer(1),
    )
    for y, (size, of_t, of_x) in zip(sums, _blocks(t, True, x, c), strict=True):
        gemv(b"T", size, columns, ONE, of_t, lda, of_x, one, ZERO, y.ctypes.data, one)
    return np.add.reduce(sums, axis=0)


def _times_matrix(t, turned, x):
    """Return T x, or T^T x if `turned`, for column-major T, in the order of x (n, k), without a copy of x.

    gemm sums a block in registers, and then adds the sum to y.  BLAS sees row-major x and y as their
    transposes, so then y^T = x^T T^T is computed.
    """
    (n, k), m, rows = x.shape, t.shape[turned], x.flags.c_contiguous
    y = np.empty((m, k), x.dtype, order="C" if rows else "F")
    gemm, ldt, beta, to_y = _routine("gemm", x.dtype.char), Integer(len(t)), ZERO, y.ctypes.data
    of_y = (k, m) if rows else (m, k)
    shape, ldx, ldy = [Integer(v) for v in of_y], Integer(k if rows else n), Integer(of_y[0])
    op = b"T" if turned != rows else b"N"
    for size, of_t, of_x in _blocks(t, turned, x, _block(n)):
        left, right = (of_t, ldt), (of_x, ldx)
        ops, factors = (op, b"N"), (*left, *right)
        if rows:
            ops, factors = (b"N", op), (*right, *left)
        gemm(*ops, *shape, size, ONE, *factors, beta, to_y, ldy)
        beta = ONE
    return y


def _times_stack(a, x):
    """Return A x for stacks (m, n, p) and (m, p, k).

    NumPy's products of stacks take parts of rows without a copy.  But NumPy has a BLAS of its own, whose
    threads keep the cores busy that SciPy's need, so only small matrices are multiplied by it.
    """
    n = a.shape[-1]
    if n > BY_NUMPY:
        y = np.empty((*a.shape[:2], x.shape[2]), np.result_type(a, x))
        for j, system in enumerate(zip(a, x, strict=True)):
            y[j] = product(*system)
        return y
    c = _block(n)
    y = a[..., :c] @ x[..., :c, :]
    for i in range(c, n, c):
        y += a[..., i : i + c] @ x[..., i : i + c, :]
    return y


def _block(n):
    """Return c for products of several vectors, which is from 1.4 sqrt(n) to 2.8 sqrt(n)."""
    return power_of_two_from((2 * n) ** 0.5)


def _blocks(t, turned, x, c):
    """Yield for each block of c products its length, and the addresses of its parts of T and of x."""
    of_t, of_x, n = t.ctypes.data, x.ctypes.data, len(x)
    step = t.itemsize * (1 if turned else len(t))
    for i in range(0, n, c):
        yield Integer(min(c, n - i)), of_t + i * step, of_x + i * x.strides[0]


@cache
def _routine(name, char):
    """Return a routine of SciPy's BLAS as a function of ctypes, for the character of a dtype.

    It holds the GIL, as SciPy's wrappers do: OpenBLAS may hang if another thread forks during a call.
    """
    capsule = cython_blas.__pyx_capi__[PREFIX[char] + name]
    text, thing = ctypes.c_char_p, ctypes.py_object
    signature = _python("GetName", text, thing)(capsule)
    address = _python("GetPointer", ctypes.c_void_p, thing, text)(capsule, signature)
    types = [KINDS[kind] for kind in ARGUMENTS[name].split()]
    return ctypes.PYFUNCTYPE(None, *types)(address)


def _python(name, result, *types):
    """Return a function of Python's interface for C."""
    return ctypes.PYFUNCTYPE(result, *types)((f"PyCapsule_{name}", ctypes.pythonapi))
