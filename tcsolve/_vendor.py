"""The library's own factorizations on CuPy, of one matrix or a stack: LU, Cholesky, triangles, diagonals.

Factors are made by `factor`.  Each kind has

- `info`, int32 (m,): not zero where the factorization of a matrix broke down;
- `solve(rhs, adjoint=False)`: A**-1 (or A**-H) of the rows rhs[s, j], rhs (m, c, n) contiguous, in FP64 or
  complex128; rhs is overwritten;
- `taken(which)`: the factors of some of the matrices.

cuBLAS and cuSOLVER see the transpose of row-major memory.  That of A is factored as it lies, so that no
copy is transposed; where A is Hermitian a conjugated copy is A for them.
"""

import cupy
import numpy as np
from cupy_backends.cuda.libs import cublas, cusolver

from tcsolve import _cublas, _jit
from tcsolve._convert import converted
from tcsolve._cusolver import getrf_in_place
from tcsolve._formats import PREFIX
from tcsolve._substitute import invert_diagonal_blocks, substitute, trusted
from tcsolve.kernels import STACK_THREADS, TILE, TILE_THREADS, TRSV_COLUMNS, stack_shape

__all__ = ["factor", "measure", "most_at_once", "read_as"]

LOWER, UPPER = cublas.CUBLAS_FILL_MODE_LOWER, cublas.CUBLAS_FILL_MODE_UPPER
# Rows up to which an LU without pivoting is faster than the library's Cholesky, for stacks: it is as stable
# where matrices are positive definite, and its pivots are positive just then.
CHOLESKY_BY_LU = 48
# Rows from which on real Cholesky factors are packed, for few right-hand sides: the library's own solves
# take ten times as long as ours.
PACKED_ROWS = 1024
# Matrices in one call.
MOST_LU, MOST_TRIANGLES = 1 << 19, 65535


def most_at_once(kind):
    """Return how many matrices `factor` takes at once."""
    return MOST_LU if kind == "general" else MOST_TRIANGLES


def factor(a, kind, columns):
    """Return the factors of a stack (see the head of this module).

    Parameters
    ----------
    a : array, shape (m, n, n)
        float32 is widened to FP64, complex64 to complex128.  It is not written.
    kind : {'general', 'positive definite', 'lower triangular', 'upper triangular', 'diagonal'}
        What is not read of a triangle, or beside a diagonal, must be zero; 'positive definite' must be full.
    columns : int
        How many right-hand sides are expected at a time.
    """
    m, n = a.shape[:2]
    if kind == "diagonal":
        return Diagonal(cupy.ascontiguousarray(_wide(cupy.diagonal(a, axis1=1, axis2=2))))
    if kind.endswith("triangular"):
        return Triangles(cupy.ascontiguousarray(_wide(a)), kind.startswith("lower"))
    if kind == "positive definite":
        if m > 1:
            return _lu_of_definite(a) if n <= CHOLESKY_BY_LU else _cholesky_of_stack(a)
        packs = n >= PACKED_ROWS and columns <= max(TRSV_COLUMNS) and a.dtype.kind != "c"
        return (PackedCholesky if packs else Cholesky)(a)
    return LU(a) if m == 1 else _lu_of_stack(a)


class LU:
    """P t = L U by cuSOLVER, t the transpose of one matrix."""

    def __init__(self, a):
        self._lu, self._swaps, self.info = getrf_in_place(_copied(a)[0].T)

    def solve(self, rhs, adjoint=False):
        if adjoint:
            _conjugate(rhs)
        _, c, n = rhs.shape
        op = cublas.CUBLAS_OP_N if adjoint else cublas.CUBLAS_OP_T
        status = cupy.empty(1, cupy.int32)
        args = (n, c, self._lu.data.ptr, n, self._swaps.data.ptr, rhs.data.ptr, n, status.data.ptr)
        getattr(cusolver, PREFIX[rhs.dtype.char] + "getrs")(_solver(), op, *args)
        return _conjugate(rhs) if adjoint else rhs

    def taken(self, which):
        return self


class StackLU:
    """P t = L U by cuBLAS, t the transpose of each matrix; P is the identity where there are no pivots."""

    def __init__(self, lu, addresses, pivots, info):
        self._lu, self._addresses, self._pivots, self.info = lu, addresses, pivots, info

    def solve(self, rhs, adjoint=False):
        if adjoint:
            _conjugate(rhs)
        m, c, n = rhs.shape
        op = cublas.CUBLAS_OP_N if adjoint else cublas.CUBLAS_OP_T
        pivots = 0 if self._pivots is None else self._pivots.data.ptr
        status, of_rhs = np.zeros(1, np.int32), _addresses(rhs)  # the status is on the host
        factors = self._addresses.data.ptr, n, pivots
        args = (op, n, c, *factors, of_rhs.data.ptr, n, status.ctypes.data, m)
        getattr(cublas, PREFIX[rhs.dtype.char] + "getrsBatched")(_cublas.handle(), *args)
        return _conjugate(rhs) if adjoint else rhs

    def taken(self, which):
        which = cupy.asarray(which)
        pivots = None if self._pivots is None else self._pivots[which]
        return StackLU(self._lu, self._addresses[which], pivots, self.info[which])


def _lu_of_stack(a, pivoting=True):
    lu = _copied(a)
    (m, n), addresses = lu.shape[:2], _addresses(lu)
    pivots = cupy.empty((m, n), cupy.int32) if pivoting else None
    info = cupy.empty(m, cupy.int32)
    args = (n, addresses.data.ptr, n, pivots.data.ptr if pivoting else 0, info.data.ptr, m)
    getattr(cublas, PREFIX[lu.dtype.char] + "getrfBatched")(_cublas.handle(), *args)
    return StackLU(lu, addresses, pivots, info)


def _lu_of_definite(a):
    """Return an LU without pivoting: the matrices are positive definite if all its pivots are positive."""
    factors = _lu_of_stack(a, pivoting=False)
    positive = cupy.diagonal(factors._lu, axis1=1, axis2=2).real > 0
    factors.info = (~positive.all(axis=1)).astype(cupy.int32)
    return factors


class Cholesky:
    """A = L L**H of one matrix by cuSOLVER."""

    def __init__(self, a):
        self._l, self.info = _potrf(_copied(a, conjugated=True))

    def solve(self, rhs, adjoint=False):
        _, c, n = rhs.shape
        status = cupy.empty(1, cupy.int32)
        args = (n, c, self._l.data.ptr, n, rhs.data.ptr, n, status.data.ptr)
        getattr(cusolver, PREFIX[rhs.dtype.char] + "potrs")(_solver(), LOWER, *args)
        return rhs

    def taken(self, which):
        return self


class PackedCholesky:
    """A = (L D**-1) (D L**T), D = diag(L), of one real matrix: factors for our triangular solves."""

    def __init__(self, a):
        lu, self.info = _potrf(_copied(a))
        self._lu, n = lu[0], len(lu[0])
        kernel = _jit.kernel("structure", "tcs_pack_cholesky", T_A="double", COMPLEX=0)
        kernel(((-(-n // TILE)) ** 2,), TILE_THREADS, (self._lu, self._lu.diagonal().copy(), n))
        inverses, worst = invert_diagonal_blocks(self._lu)
        self._inverses = trusted(inverses, float(worst[0]))

    def solve(self, rhs, adjoint=False):
        _, c, n = rhs.shape
        if self._inverses is not None and c <= max(TRSV_COLUMNS):
            return substitute(self._lu, rhs[0].T, False, self._inverses, None, None).T[None]
        for lower in (True, False):
            _cublas.solve_left(self._lu, lower, rhs[0].T, False)
        return rhs

    def taken(self, which):
        return self


def _potrf(a):
    """Return a, with L in the lower triangle of what the library sees, and the info."""
    char, n = PREFIX[a.dtype.char], a.shape[1]
    size = getattr(cusolver, char + "potrf_bufferSize")(_solver(), LOWER, n, a.data.ptr, n)
    work, info = cupy.empty(size, a.dtype), cupy.empty(1, cupy.int32)
    args = (n, a.data.ptr, n, work.data.ptr, size, info.data.ptr)
    getattr(cusolver, char + "potrf")(_solver(), LOWER, *args)
    return a, info


class StackCholesky:
    """A = L L**H of each matrix by cuSOLVER."""

    def __init__(self, l, addresses, info):
        self._l, self._addresses, self.info = l, addresses, info

    def solve(self, rhs, adjoint=False):
        for op in (cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_C):
            _solve_triangles(self._addresses, LOWER, op, rhs)
        return rhs

    def taken(self, which):
        which = cupy.asarray(which)
        return StackCholesky(self._l, self._addresses[which], self.info[which])


def _cholesky_of_stack(a):
    l = _copied(a, conjugated=True)
    (m, n), addresses = l.shape[:2], _addresses(l)
    info = cupy.empty(m, cupy.int32)
    args = (n, addresses.data.ptr, n, info.data.ptr, m)
    getattr(cusolver, PREFIX[l.dtype.char] + "potrfBatched")(_solver(), LOWER, *args)
    return StackCholesky(l, addresses, info)


class Triangles:
    """Triangular matrices, which are their own factors."""

    def __init__(self, a, lower):
        self._a, self._lower = a, lower
        self._addresses = _addresses(a) if len(a) > 1 else None
        self.info = _has_zero(cupy.diagonal(a, axis1=1, axis2=2))

    def solve(self, rhs, adjoint=False):
        if adjoint:
            _conjugate(rhs)
        op = cublas.CUBLAS_OP_N if adjoint else cublas.CUBLAS_OP_T
        # The transpose of a lower triangle is an upper one.
        _solve_triangles(self._addresses, UPPER if self._lower else LOWER, op, rhs, self._a)
        return _conjugate(rhs) if adjoint else rhs

    def taken(self, which):
        return Triangles(self._a[cupy.asarray(which)], self._lower)


def _solve_triangles(addresses, uplo, op, rhs, one=None):
    """rhs[s, j] := T**-1 rhs[s, j] for the triangles T, as the library sees them, at `addresses`.

    If there is only one, and `one` is given, that is it.
    """
    m, c, n = rhs.shape
    char = rhs.dtype.char
    how = (cublas.CUBLAS_SIDE_LEFT, uplo, op, cublas.CUBLAS_DIAG_NON_UNIT, n, c)
    alpha, name = _cublas.scalar(1, char), PREFIX[char] + "trsm"
    if m == 1 and one is not None:
        args = (alpha, one.data.ptr, n, rhs.data.ptr, n)
        getattr(cublas, name)(_cublas.handle(), *how, *args)
        return
    of_rhs = _addresses(rhs)
    args = (alpha, addresses.data.ptr, n, of_rhs.data.ptr, n, m)
    getattr(cublas, name + "Batched")(_cublas.handle(), *how, *args)


class Diagonal:
    """Diagonal matrices by their diagonals (m, n)."""

    def __init__(self, d):
        self._d, self.info = d, _has_zero(d)

    def solve(self, rhs, adjoint=False):
        rhs /= (self._d.conj() if adjoint else self._d)[:, None]
        return rhs

    def taken(self, which):
        return Diagonal(self._d[cupy.asarray(which)])


def _has_zero(diagonals):
    return (diagonals == 0).any(axis=1).astype(cupy.int32)


def _solver():
    return cupy.cuda.device.get_cusolver_handle()


def _addresses(x):
    """Return the addresses of x[0], x[1], ..., which must lie one behind the other, on the device."""
    step = x.nbytes // len(x)
    return cupy.arange(x.data.ptr, x.data.ptr + step * len(x), step, dtype=cupy.uintp)


def _wide(a):
    return converted(a, np.result_type(a.dtype, np.float64))


def _copied(a, conjugated=False):
    """Return a row-major copy in FP64 or complex128."""
    made = _wide(a)
    made = cupy.array(a, order="C") if made is a else cupy.ascontiguousarray(made)
    return _conjugate(made) if conjugated else made


def _conjugate(x):
    return cupy.conj(x, out=x) if x.dtype.kind == "c" else x


def _steps(x):
    """Return the address of an array of three dimensions, and its strides in entries."""
    return (x, *(stride // x.itemsize for stride in x.strides))


def _macros(a):
    return {
        "T_A": "float" if a.dtype.char in "fF" else "double",
        "COMPLEX": int(a.dtype.kind == "c"),
    }


def measure(a, x, b, y, info):
    """Return what tells how good x is as the solution of A x = b, an array (4 + 2 k, m) of FP64.

    Parameters
    ----------
    a : array, shape (m, n, n)
    x, b : array, shape (m, n, k)
        Of the dtype of a.
    y : array, shape (m, c, n)
        A**-1 of some vectors, in FP64 or complex128; y[s] is contiguous.
    info : array of int32, shape (m,)

    Returns
    -------
    array
        Infinity norm and 1-norm of each matrix, the largest 1-norm of its rows of y, its info, max |b - A x|
        of each of its columns, and max |x| of each.
    """
    m, n, k = x.shape
    out, shape = cupy.empty((4 + 2 * k, m)), stack_shape(m, n)
    kernel = _jit.kernel("stack", "tcs_stack_measure", **_macros(a), **shape.defines)
    steps = (*_steps(a), *_steps(x), *_steps(b), y, y.strides[0] // y.itemsize, y.shape[1])
    args = (out, *steps, info, m, n, k)
    kernel((shape.blocks,), (STACK_THREADS,), args, shared=shape.shared)
    return out


def read_as(a, below, above, mirror):
    """Return the matrices that are read in a (m, n, n), and whether all of a is finite, as info.

    An entry with -below <= j - i <= above is read; others are zero, or with mirror 1 the entry on the other
    side of the diagonal, or with mirror 2 its conjugate.  The second result is an int32 array (1,), not
    zero where an entry of a, read or not, is NaN or Inf.
    """
    m, n = a.shape[:2]
    out, found = cupy.empty(a.shape, a.dtype), cupy.zeros(1, cupy.int32)
    kernel = _jit.kernel("structure", "tcs_read_as", **_macros(a))
    blocks = m * (-(-n // TILE)) ** 2
    kernel((blocks,), TILE_THREADS, (out, *_steps(a), n, below, above, mirror, found))
    return out, found
