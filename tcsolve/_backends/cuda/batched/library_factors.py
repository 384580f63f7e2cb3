"""Factorizations by cuBLAS and cuSOLVER, of one matrix or a stack: LU, Cholesky, triangles, diagonals.

The factors are `StackFactors` of the contract.  `LU` and `Eliminated` also have `coarse_solver(columns)`.

cuBLAS and cuSOLVER are column-major, so they see the transpose of a row-major A.  This transpose is factored,
so that no matrix has to be transposed.  For a Hermitian A, they see A itself in a conjugated copy.
"""

import cupy
import numpy as np
from cupy_backends.cuda.libs import cublas, cusolver

from tcsolve._arithmetic.formats import PREFIX, inverses_serve
from tcsolve._backends.cuda.batched import complex_columns
from tcsolve._backends.cuda.batched.cholesky_squares import (
    CholeskySquares,
    suits_squares,
)
from tcsolve._backends.cuda.batched.elimination import eliminate, eliminates
from tcsolve._backends.cuda.batched.layouts import addresses_of, conjugate, copied, wide
from tcsolve._backends.cuda.batched.library_triangles import (
    LOWER,
    Diagonal,
    PackedTriangle,
    Triangles,
    ones,
    solve_triangles,
)
from tcsolve._backends.cuda.batched.stack_launches import read_as, rows
from tcsolve._backends.cuda.lu.cusolver_lu import MANY, getrf_in_place, solve_many
from tcsolve._backends.cuda.lu.substitution import invert_diagonal_blocks, substitute
from tcsolve._backends.cuda.runtime import cublas_calls
from tcsolve._backends.cuda.runtime.prepared_launch import launch, macros
from tcsolve._cached import cached_property
from tcsolve._contract.vectors import order_of
from tcsolve.kernels.launch_shapes import TILE, TILE_THREADS, TRSV_COLUMNS

__all__ = ["CHOLESKY_BY_LU", "factor", "factor_and_solve"]

# Up to this many rows, an LU without pivoting of a stack is faster than the Cholesky factorization of
# cuSOLVER.  For positive definite matrices it is as stable, and only for these are all pivots positive.
CHOLESKY_BY_LU = 48
# Few right-hand sides are solved for by our triangular solves, with real Cholesky factors from PACKED_ROWS
# rows on, and with real triangles from PACKED_TRIANGLE_ROWS rows on.  Triangular solves of cuBLAS take up to
# ten times as long.
PACKED_ROWS, PACKED_TRIANGLE_ROWS = 1024, 65
# From max(TURNED_COLUMNS, n / 2) right-hand sides on, a complex A is factored itself, not its transpose,
# unless solves by `ComplexColumns` are faster.  The solves of cuSOLVER are slower with a transpose.  For so
# many right-hand sides, they lose more time by this than a transposed copy of A takes.
TURNED_COLUMNS = 64


def factor(a, kind, columns, careful=False):
    """As `Stacks.factor`."""
    m, n = a.shape[:2]
    packs = _packs(a, columns)
    if kind == "diagonal":
        return Diagonal(cupy.ascontiguousarray(wide(cupy.diagonal(a, axis1=1, axis2=2))))
    if kind.endswith("triangular"):
        a, lower = cupy.ascontiguousarray(wide(a)), kind.startswith("lower")
        packs = packs and n >= PACKED_TRIANGLE_ROWS and not careful
        return (PackedTriangle if packs else Triangles).of(a, lower)
    if kind == "positive definite":
        # One large matrix is factored faster by cuSOLVER.  But `factor_and_solve` factors every stack in
        # squares, also a stack of one matrix.  So the bits of an answer do not depend on the other matrices.
        suits = suits_squares(a.dtype, kind, n, columns) and (m > 1 or n < PACKED_ROWS)
        if suits and not careful:
            return CholeskySquares.of(a)
        if m > 1:
            return _lu_of_definite(a) if n <= CHOLESKY_BY_LU else _cholesky_of_stack(a)
        return (PackedCholesky if packs and n >= PACKED_ROWS else Cholesky).of(a)
    if m > 1:
        return _lu_of_stack(a)
    turned = a.dtype.kind == "c" and columns >= max(TURNED_COLUMNS, n // 2)
    turned = turned and not complex_columns.takes(n, columns)
    return LU.of(cupy.swapaxes(a, 1, 2) if turned else a, turned)


def _packs(a, columns):
    """Tell whether our triangular solves support this: one real matrix and few right-hand sides."""
    return len(a) == 1 and columns <= max(TRSV_COLUMNS) and a.dtype.kind != "c"


def factor_and_solve(a, kind, b, probes, *, alone=False, band=None, seen=None, copies=False):
    """As `Stacks.factor_and_solve`."""
    n, columns = a.shape[1], b.shape[2] + probes
    in_squares = not alone and suits_squares(a.dtype, kind, n, columns)
    if band and (copies or not (in_squares or _is_its_own_factor(a, kind))):
        a, band = read_as(a, *band, seen), None
    if not in_squares:
        return *_solved(a, kind, b, probes), a
    how = {"lower": band[0] > 0, "seen": seen} if band else {}
    factors = CholeskySquares.of(a, **how)
    return factors, factors.solve(rows(b, probes)), a


def _is_its_own_factor(a, kind):
    """Tell whether a single triangle can be used in the memory of the caller, without a copy."""
    is_triangle = kind.endswith("triangular") or kind == "diagonal"
    return len(a) == 1 and is_triangle and a.flags.c_contiguous and a.dtype.char in "dD"


def _solved(a, kind, b, probes):
    """Return (factors, y) of `factor_and_solve` for matrices that have all entries, or a triangle."""
    n, columns = a.shape[1], b.shape[2] + probes
    if eliminates(a.dtype, kind, len(a), n, columns):
        info, y = eliminate(a, kind, b, probes)
        return Eliminated(a, kind, columns, info), y
    is_one = kind.endswith("triangular") and a.dtype.char == b.dtype.char == "d"
    if is_one and n >= PACKED_TRIANGLE_ROWS and _packs(a, columns) and a.flags.c_contiguous:
        return PackedTriangle.with_solution(a, kind.startswith("lower"), b[0], probes)
    factors = factor(a, kind, columns)
    return factors, factors.solve(rows(b, probes))


class Eliminated:
    """Matrices (m, n, n) that were eliminated without keeping factors.

    If the first solve has at most `columns` right-hand sides, in the dtype of the matrices, it eliminates the
    matrices again.  Usually this solve corrects x and is the only one; then it takes less time than factors.
    A later solve, or one with A^H, factors the matrices.
    """

    def __init__(self, a, kind, columns, info):
        self._args, self.info, self._is_first = (a, kind, columns), info, True

    @cached_property
    def _factors(self):
        return factor(*self._args)

    def solve(self, rhs, adjoint=False):
        a, kind, columns = self._args
        is_first, self._is_first = self._is_first and "_factors" not in vars(self), False
        if is_first and not adjoint and rhs.dtype == a.dtype and rhs.shape[1] <= columns:
            return eliminate(a, kind, cupy.swapaxes(rhs, 1, 2), 0)[1]
        return self._factors.solve(rhs, adjoint)

    def coarse_solver(self, columns):
        found = getattr(self._factors, "coarse_solver", None)
        return found and found(columns)

    @property
    def nbytes(self):
        return self._factors.nbytes

    def taken(self, which):
        a, kind, columns = self._args
        if len(a) == 1:
            return self
        which = cupy.asarray(which)
        return Eliminated(a[which], kind, columns, self.info[which])


class LU:
    """P t = L U by cuSOLVER, where t is A itself if `turned`, and the transpose of A otherwise.

    Solves for many complex right-hand sides are products (see `complex_columns`).
    """

    def __init__(self, lu, swaps, info, turned):
        self._lu, self._swaps, self.info = lu, swaps, info
        self._turned, self._by_products = turned, None

    @classmethod
    def of(cls, a, turned):
        """Factor t = a[0].T, where a (1, n, n) is not modified; if `turned`, a holds the transpose of A."""
        return cls(*getrf_in_place(copied(a)[0].T), turned)

    def solve(self, rhs, adjoint=False):
        by_products = None if adjoint else self._for_many(rhs.shape[1])
        if by_products and by_products.serve:
            return by_products.solve(rhs)
        if self._turned:
            return self._solve(rhs, cublas.CUBLAS_OP_C if adjoint else cublas.CUBLAS_OP_N)
        if adjoint:
            return conjugate(self._solve(conjugate(rhs), cublas.CUBLAS_OP_N))
        return self._solve(rhs, cublas.CUBLAS_OP_T)

    def coarse_solver(self, columns):
        """Return a function like `solve`, but without `adjoint`, or None.

        It is faster than `solve`, and accurate to a few digits.
        """
        by_products = self._for_many(columns)
        return by_products.solve_coarsely if by_products and by_products.serve_coarsely else None

    def _for_many(self, columns):
        """Return the factors for solves by products, or None if getrs is faster."""
        is_many = complex_columns.takes(len(self._lu), columns)
        if self._turned or self._lu.dtype.kind != "c" or not is_many:
            return None
        if self._by_products is None:
            order = cupy.asarray(self._order)
            self._by_products = complex_columns.ComplexColumns.of(self._lu.T, order)
        return self._by_products

    @cached_property
    def _order(self):
        return order_of(self._swaps.get() - 1)

    def _solve(self, rhs, op):
        _, c, n = rhs.shape
        if c >= MANY:
            solve_many(self._lu, self._order, rhs[0].T, op)
            return rhs
        status = cupy.empty(1, cupy.int32)
        args = (n, c, self._lu.data.ptr, n, self._swaps.data.ptr, rhs.data.ptr, n, status.data.ptr)
        getattr(cusolver, PREFIX[rhs.dtype.char] + "getrs")(_solver(), op, *args)
        return rhs

    @property
    def nbytes(self):
        by_products = self._by_products.nbytes if self._by_products else 0
        return self._lu.nbytes + self._swaps.nbytes + by_products

    def diagonal(self):
        """Return the diagonal of U (1, n), and the sign of the permutation (1,)."""
        return cupy.diagonal(self._lu)[None], _signs(self._swaps[None])

    def taken(self, which):
        return self


class StackLU:
    """P t = L U by cuBLAS for the transpose t of each matrix; without `pivots`, P is the identity."""

    def __init__(self, lu, addresses, pivots, info):
        self._lu, self._addresses, self._pivots, self.info = lu, addresses, pivots, info

    def solve(self, rhs, adjoint=False):
        if adjoint:
            conjugate(rhs)
        m, c, n = rhs.shape
        op = cublas.CUBLAS_OP_N if adjoint else cublas.CUBLAS_OP_T
        pivots = 0 if self._pivots is None else self._pivots.data.ptr
        status, of_rhs = np.zeros(1, np.int32), addresses_of(rhs)  # the status is on the host
        factors = self._addresses.data.ptr, n, pivots
        args = (op, n, c, *factors, of_rhs.data.ptr, n, status.ctypes.data, m)
        getattr(cublas, PREFIX[rhs.dtype.char] + "getrsBatched")(cublas_calls.handle(), *args)
        return conjugate(rhs) if adjoint else rhs

    @property
    def nbytes(self):
        return self._lu.nbytes + (0 if self._pivots is None else self._pivots.nbytes)

    def diagonal(self):
        """Return the diagonals of U (m, n), and the signs of the permutations (m,).

        Not for a result of `taken`: its array still has all matrices.
        """
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
    lu = copied(a)
    (m, n), addresses = lu.shape[:2], addresses_of(lu)
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

    def __init__(self, l, info):
        self._l, self.info = l, info

    @classmethod
    def of(cls, a):
        """Factor a (1, n, n), which is not modified."""
        return cls(*_potrf(copied(a, conjugated=True)))

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

    def __init__(self, lu, inverses, info):
        self._lu, self._inverses, self.info = lu, inverses, info

    @classmethod
    def of(cls, a):
        """Factor a (1, n, n), which is not modified."""
        (lu,), info = _potrf(copied(a))
        grid, args = ((-(-len(lu) // TILE)) ** 2, 1), (lu, lu.diagonal().copy(), len(lu))
        launch(("read_structure", "tcs_pack_cholesky"), grid, TILE_THREADS, args, macros(a))
        inverses, condition = invert_diagonal_blocks(lu)
        serve = inverses_serve(float(condition.get()[0]), lu.dtype.char)
        return cls(lu, inverses if serve else None, info)

    def solve(self, rhs, adjoint=False):
        _, c, n = rhs.shape
        if self._inverses is not None and c <= max(TRSV_COLUMNS):
            how = {"sizes": ones(), "known": True}
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
            solve_triangles(self._addresses, LOWER, op, rhs)
        return rhs

    def taken(self, which):
        which = cupy.asarray(which)
        return StackCholesky(self._l, self._addresses[which], self.info[which])


def _cholesky_of_stack(a):
    l = copied(a, conjugated=True)
    (m, n), addresses = l.shape[:2], addresses_of(l)
    info = cupy.empty(m, cupy.int32)
    args = (n, addresses.data.ptr, n, info.data.ptr, m)
    getattr(cusolver, PREFIX[l.dtype.char] + "potrfBatched")(_solver(), LOWER, *args)
    return StackCholesky(l, addresses, info)


def _solver():
    return cupy.cuda.device.get_cusolver_handle()
