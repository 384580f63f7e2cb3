"""Factorizations by cuBLAS and cuSOLVER, of one matrix or a stack: LU, Cholesky, triangles, diagonals.

The function `factor` makes the factors.  Each class of factors has

- `info`, int32 (m,): not zero for each matrix with a factorization that broke down;
- `solve(rhs, adjoint=False)`: A**-1 (or A**-H) times each row rhs[s, j]; rhs (m, c, n) is contiguous, in FP64
  or complex128, and is overwritten;
- `taken(which)`: the factors of some of the matrices.

cuBLAS and cuSOLVER are column-major, so they see the transpose of a row-major A.  This transpose is factored,
so that no matrix has to be transposed.  For a Hermitian A, they see A itself in a conjugated copy.
"""

import functools

import cupy
import numpy as np
from cupy_backends.cuda.libs import cublas, cusolver

from tcsolve._arithmetic.formats import PREFIX, inverses_serve
from tcsolve._backends.cuda.batched.one_launch import (
    bytes_at_once,
    measure_one,
    measures_one,
    solve_and_judge,
    solve_at_once,
    takes_at_once,
)
from tcsolve._backends.cuda.lu.cusolver_lu import getrf_in_place
from tcsolve._backends.cuda.lu.substitution import invert_diagonal_blocks, substitute
from tcsolve._backends.cuda.runtime import compiler, cublas_calls
from tcsolve._backends.cuda.runtime.conversions import converted
from tcsolve._backends.cuda.runtime.prepared_launch import launch, macros, steps
from tcsolve.kernels.launch_shapes import (
    STACK_THREADS,
    TILE,
    TILE_THREADS,
    TRSV_COLUMNS,
    stack_shape,
)

__all__ = [
    "bytes_at_once",
    "doubtful",
    "factor",
    "measure",
    "measure_one",
    "measures_one",
    "most_at_once",
    "read_as",
    "rows",
    "sizes",
    "solve_and_judge",
    "solve_at_once",
    "takes_at_once",
]

LOWER, UPPER = cublas.CUBLAS_FILL_MODE_LOWER, cublas.CUBLAS_FILL_MODE_UPPER
# Up to this many rows, an LU without pivoting of a stack is faster than the Cholesky factorization of
# cuSOLVER.  For positive definite matrices it is as stable, and all pivots are positive only for them.
CHOLESKY_BY_LU = 48
# From this many rows on, real Cholesky factors, and triangles, use our triangular solves if there are few
# right-hand sides.  Those of cuBLAS take up to ten times as long.
PACKED_ROWS, PACKED_TRIANGLE_ROWS = 1024, 320
# From this many right-hand sides on, a complex A is factored itself, not its transpose.  The transposed copy
# takes little time, but solves of cuSOLVER with a transpose take several times as long.
TURNED_COLUMNS = 64
# Number of threads of a block with one entry per thread; number of rows of a block of measure_systems.cu.
THREADS, SIZES_ROWS = 256, 1024
# Largest number of matrices in one call, for LU and for triangles.
MOST_LU, MOST_TRIANGLES = 1 << 19, 65535


def most_at_once(kind, n):
    """Return how many n x n matrices `factor` can factor in one call."""
    by_lu = kind == "general" or kind == "positive definite" and n <= CHOLESKY_BY_LU
    return MOST_LU if by_lu else MOST_TRIANGLES


def factor(a, kind, columns, careful=False):
    """Return the factors of a stack (see the head of this module).

    Parameters
    ----------
    a : array, shape (m, n, n)
        Not modified.  float32 is converted to FP64, complex64 to complex128.
    kind : {'general', 'positive definite', 'lower triangular', 'upper triangular', 'diagonal'}
        Entries outside of a triangle, or of a diagonal, are not read.  For 'positive definite' both triangles
        must be there.
    columns : int
        Expected number of right-hand sides of a solve.
    careful : bool
        Do not use inverses of diagonal blocks of a triangle; they lose digits if a block is ill-conditioned.
    """
    m, n = a.shape[:2]
    packs = m == 1 and columns <= max(TRSV_COLUMNS) and a.dtype.kind != "c"
    if kind == "diagonal":
        return Diagonal(cupy.ascontiguousarray(_wide(cupy.diagonal(a, axis1=1, axis2=2))))
    if kind.endswith("triangular"):
        a, lower = cupy.ascontiguousarray(_wide(a)), kind.startswith("lower")
        packs = packs and n >= PACKED_TRIANGLE_ROWS and not careful
        return (PackedTriangle if packs else Triangles)(a, lower)
    if kind == "positive definite":
        if m > 1:
            return _lu_of_definite(a) if n <= CHOLESKY_BY_LU else _cholesky_of_stack(a)
        return (PackedCholesky if packs and n >= PACKED_ROWS else Cholesky)(a)
    if m > 1:
        return _lu_of_stack(a)
    turned = a.dtype.kind == "c" and columns >= TURNED_COLUMNS
    return LU(cupy.swapaxes(a, 1, 2) if turned else a, turned)


class LU:
    """P t = L U by cuSOLVER for t = a[0].T; if `turned`, a holds the transpose, so that t is A itself."""

    def __init__(self, a, turned):
        self._lu, self._swaps, self.info = getrf_in_place(_copied(a)[0].T)
        self._turned = turned

    def solve(self, rhs, adjoint=False):
        if self._turned:
            return self._solve(rhs, cublas.CUBLAS_OP_C if adjoint else cublas.CUBLAS_OP_N)
        if adjoint:
            return _conjugate(self._solve(_conjugate(rhs), cublas.CUBLAS_OP_N))
        return self._solve(rhs, cublas.CUBLAS_OP_T)

    def _solve(self, rhs, op):
        _, c, n = rhs.shape
        status = cupy.empty(1, cupy.int32)
        args = (n, c, self._lu.data.ptr, n, self._swaps.data.ptr, rhs.data.ptr, n, status.data.ptr)
        getattr(cusolver, PREFIX[rhs.dtype.char] + "getrs")(_solver(), op, *args)
        return rhs

    @property
    def nbytes(self):
        return self._lu.nbytes + self._swaps.nbytes

    def diagonal(self):
        """Return the pivots (1, n), and the sign of the permutation (1,)."""
        return cupy.diagonal(self._lu)[None], _signs(self._swaps[None])

    def taken(self, which):
        return self


class StackLU:
    """P t = L U by cuBLAS for the transpose t of each matrix; without `pivots`, P is the identity."""

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
        getattr(cublas, PREFIX[rhs.dtype.char] + "getrsBatched")(cublas_calls.handle(), *args)
        return _conjugate(rhs) if adjoint else rhs

    @property
    def nbytes(self):
        return self._lu.nbytes + (0 if self._pivots is None else self._pivots.nbytes)

    def diagonal(self):
        """Return the pivots (m, n), and the signs of the permutations (m,), before any are `taken`."""
        return cupy.diagonal(self._lu, axis1=1, axis2=2), _signs(self._pivots)

    def taken(self, which):
        which = cupy.asarray(which)
        pivots = None if self._pivots is None else self._pivots[which]
        return StackLU(self._lu, self._addresses[which], pivots, self.info[which])


def _signs(swaps):
    """Return the signs of permutations that swap rows i and swaps[:, i] - 1 in turn."""
    moved = swaps != cupy.arange(1, swaps.shape[1] + 1)
    return 1.0 - 2.0 * (moved.sum(axis=1) % 2)


def _lu_of_stack(a, pivoting=True):
    lu = _copied(a)
    (m, n), addresses = lu.shape[:2], _addresses(lu)
    pivots = cupy.empty((m, n), cupy.int32) if pivoting else None
    info = cupy.empty(m, cupy.int32)
    args = (n, addresses.data.ptr, n, pivots.data.ptr if pivoting else 0, info.data.ptr, m)
    getattr(cublas, PREFIX[lu.dtype.char] + "getrfBatched")(cublas_calls.handle(), *args)
    return StackLU(lu, addresses, pivots, info)


def _lu_of_definite(a):
    """Return the LU without pivoting; the pivots are all positive only for positive definite matrices."""
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
    """A = (L D**-1) (D L**T) with D = diag(L), of one real matrix, for our triangular solves."""

    def __init__(self, a):
        lu, self.info = _potrf(_copied(a))
        self._lu, n = lu[0], len(lu[0])
        grid, args = ((-(-n // TILE)) ** 2, 1), (self._lu, self._lu.diagonal().copy(), n)
        launch(("read_structure", "tcs_pack_cholesky"), grid, TILE_THREADS, args, macros(a))
        inverses, condition = invert_diagonal_blocks(self._lu)
        serve = inverses_serve(float(condition.get()[0]), self._lu.dtype.char)
        self._inverses = inverses if serve else None

    def solve(self, rhs, adjoint=False):
        _, c, n = rhs.shape
        if self._inverses is not None and c <= max(TRSV_COLUMNS):
            how = {"sizes": _ones(), "known": True}
            return substitute(self._lu, rhs[0].T, False, self._inverses, None, None, **how).T[None]
        for lower in (True, False):
            cublas_calls.solve_left(self._lu, lower, rhs[0].T, False)
        return rhs

    def taken(self, which):
        return self


def _potrf(a):
    """Factor a in place; return a, with L in the lower triangle in column-major order, and info."""
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


class PackedTriangle:
    """One real triangular matrix, for our triangular solves with inverted diagonal blocks.

    If a diagonal block is ill-conditioned, x loses digits, which its verification shows.  rcond is then below
    1e-8.
    """

    def __init__(self, a, lower):
        self._a, self._lower = a, lower
        self._inverses, _ = invert_diagonal_blocks(a[0], unit_lower=not lower, only_lower=lower)

    @functools.cached_property
    def info(self):
        return _has_zero(cupy.diagonal(self._a, axis1=1, axis2=2))

    def solve(self, rhs, adjoint=False):
        how = {"only_lower": self._lower, "sizes": _ones(), "known": True}
        return substitute(self._a[0], rhs[0].T, adjoint, self._inverses, None, None, **how).T[None]

    def taken(self, which):
        return self


def _ones():
    """Return the argument `sizes` of `substitute` for right-hand sides that need no scaling, as in FP64."""
    return _ones_of(cupy.cuda.runtime.getDevice())


@functools.cache
def _ones_of(device):
    ones = cupy.ones(max(TRSV_COLUMNS))
    cupy.cuda.get_current_stream().synchronize()  # other streams will read them
    return ones


class Triangles:
    """Triangular matrices, which are their own factors."""

    def __init__(self, a, lower):
        self._a, self._lower = a, lower
        self._addresses = _addresses(a) if len(a) > 1 else None

    @functools.cached_property
    def info(self):
        return _has_zero(cupy.diagonal(self._a, axis1=1, axis2=2))

    def solve(self, rhs, adjoint=False):
        if adjoint:
            _conjugate(rhs)
        op = cublas.CUBLAS_OP_N if adjoint else cublas.CUBLAS_OP_T
        # cuBLAS sees the transpose, in which a lower triangle is an upper one.
        _solve_triangles(self._addresses, UPPER if self._lower else LOWER, op, rhs, self._a)
        return _conjugate(rhs) if adjoint else rhs

    def taken(self, which):
        return Triangles(self._a[cupy.asarray(which)], self._lower)


def _solve_triangles(addresses, uplo, op, rhs, one=None):
    """rhs[s, j] := T**-1 rhs[s, j] for the column-major triangles T at `addresses`.

    A single triangle may be given as the array `one` instead.
    """
    m, c, n = rhs.shape
    char = rhs.dtype.char
    how = (cublas.CUBLAS_SIDE_LEFT, uplo, op, cublas.CUBLAS_DIAG_NON_UNIT, n, c)
    alpha, name = cublas_calls.scalar(1, char), PREFIX[char] + "trsm"
    if m == 1 and one is not None:
        args = (alpha, one.data.ptr, n, rhs.data.ptr, n)
        getattr(cublas, name)(cublas_calls.handle(), *how, *args)
        return
    of_rhs = _addresses(rhs)
    args = (alpha, addresses.data.ptr, n, of_rhs.data.ptr, n, m)
    getattr(cublas, name + "Batched")(cublas_calls.handle(), *how, *args)


class Diagonal:
    """Diagonal matrices, given by their diagonals d (m, n)."""

    def __init__(self, d):
        self._d = d

    @functools.cached_property
    def info(self):
        return _has_zero(self._d)

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
    """Return the addresses of x[0], x[1], ..., as an array on the device; x must be contiguous."""
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


def rows(b, probes):
    """Return the columns of b (m, n, k), then `probes` random vectors, as rows (m, k + probes, n) in FP64.

    There are at most two random vectors.  Their entries are uniform, with mean 0 and variance 1, and the same
    in every call.
    """
    m, n, k = b.shape
    out = cupy.empty((m, k + probes, n), np.result_type(b.dtype, np.float64))
    grid, args = (-(-out.size // THREADS), 1), (out, *steps(b), m, n, k, probes)
    launch(("read_structure", "tcs_rows"), grid, (THREADS, 1), args, macros(b))
    return out


def measure(a, x, b, y, info, out, *, residuals=None):
    """Fill `out` with the norms that verify the solutions x of A x = b.

    Parameters
    ----------
    a : array, shape (m, n, n)
    x, b : array, shape (m, n, k)
        They have the dtype of a.
    y : array, shape (m, c, n)
        A**-1 g for c vectors g of each matrix, in FP64 or complex128; y[s] is contiguous.
    info : array of int32, shape (m,), or None
        The info of the factorizations.
    out : array, shape (4 + 2 k, m), float64, contiguous
        Receives for each matrix: the infinity norm, the 1-norm, the largest 1-norm of a row of y, info (or
        0), max |b - A x| of each column, and max |x| of each column.
    residuals : array, shape (m, k, n), contiguous, optional
        Receives b - A x, in FP64 or complex128.
    """
    m, n, k = x.shape
    shape = stack_shape(m, n)
    arrays = (*steps(a), *steps(x), *steps(b), y, y.strides[0] // y.itemsize, y.shape[1])
    args, defines = (out, residuals, *arrays, info, m, n, k), macros(a) | shape.defines
    entry, grid = ("measure_stack", "tcs_stack_measure"), (shape.blocks, 1)
    launch(entry, grid, (STACK_THREADS, 1), args, defines, shape.shared)


def sizes(sums, answers, b, y, info, out):
    """Fill `out` as `measure` does, for one system, from the sums of |a_ij| and from A x.

    Parameters
    ----------
    sums : tuple of array, shape (n,), float64
        The sums of |a_ij| over the rows, and over the columns.
    answers : tuple of array, shape (n, k)
        x, in the dtype of b, and A x in FP64 or complex128.
    b : array, shape (n, k)
    y : array, shape (c, n), contiguous
        A**-1 g for c vectors g.
    info : array of int32, shape (1,), or None
        The info of the factorization.
    out : array, shape (4 + 2 k, 1)
        Zeros before the call.
    """
    (n, k), (x, ax) = b.shape, answers
    sums = (cupy.ascontiguousarray(x) for x in sums)
    args = (out, *sums, *steps(x), *steps(b), *steps(ax), y, len(y), info, n, k)
    grid = 2 + -(-k // 32) * -(-n // SIZES_ROWS), 1
    launch(("measure_systems", "tcs_sizes"), grid, (THREADS, 1), args, macros(b))


def doubtful(board, k, limits, triangular):
    """Return an array of bool (m,) on the device: True for systems that the host has to check.

    Parameters
    ----------
    board : array, shape (9 + 2 k, m), contiguous
        The rows `seen` of `read_as`, then the rows `out` of `measure`.
    k : int
        Number of right-hand sides.
    limits : tuple of float
        (largest backward error, smallest 1 / (||A||_1 ||y||_1), largest norm of A and of x, largest
        difference of mirror images).  The smallest norm is the reciprocal of the largest.  The difference is
        relative to the largest |a_ij|; it is -1 if no mirror images are read.
    triangular : bool
        True if a zero on the diagonal makes a matrix singular.
    """
    m = board.shape[1]
    found = cupy.empty(m, bool)
    kernel = compiler.kernel("measure_systems", "tcs_doubtful", T_A="double", COMPLEX=0)
    args = (found, board, m, k, *limits, int(triangular))
    kernel((-(-m // THREADS),), (THREADS,), args)
    return found


def read_as(a, below, above, mirror, seen):
    """Return the full matrices that are described by a band of a (m, n, n); fill `seen` with facts about a.

    Entries with -below <= j - i <= above are read.  Other entries of the result are zero (mirror 0), the
    entry on the other side of the diagonal (mirror 1), or its conjugate (mirror 2).

    Parameters
    ----------
    a : array, shape (m, n, n)
    below, above : int
        Numbers of diagonals below and above the main one that are read.
    mirror : {0, 1, 2}
        See above.
    seen : array, shape (5, m), float64, contiguous
        Zeros before the call.  Receives for each matrix: the largest difference between an entry that is not
        read and the entry of the result; the largest |a_ij| that is read; 1 if an entry that is not read is
        not zero; 1 if any entry is NaN or Inf; 1 if a diagonal entry is zero.  The first three ignore NaN.
    """
    (m, n), out = a.shape[:2], cupy.empty(a.shape, a.dtype)
    args = (out, *steps(a), m, n, below, above, mirror, seen)
    grid = m * (-(-n // TILE)) ** 2, 1
    launch(("read_structure", "tcs_read_as"), grid, TILE_THREADS, args, macros(a))
    return out
