"""The LU of cuSOLVER: factors of a matrix in FP32 or FP64, and strips that our kernels do not support."""

from typing import Any, NamedTuple

import cupy
import numpy as np
from cupy_backends.cuda.libs import cublas, cusolver

from tcsolve._arithmetic.formats import PREFIX, inverses_serve
from tcsolve._arithmetic.matrix_parts import WIDENED, parts
from tcsolve._backends.cuda.lu.substitution import invert_diagonal_blocks, substitute
from tcsolve._backends.cuda.runtime.conversions import converted
from tcsolve._backends.cuda.runtime.cublas_calls import column_parts, handle, scalar
from tcsolve._backends.cuda.runtime.current_device import turns_into_memory_error
from tcsolve._contract.vectors import order_of
from tcsolve.kernels.launch_shapes import TRSV_BLOCK, TRSV_COLUMNS

__all__ = ["MANY", "Factors", "factored", "getrf_in_place", "solve_many"]

# From this many columns on, `solve_many` is faster than getrs, which swaps the rows one after the other.
MANY = 256


class Factors(NamedTuple):
    """The `LibraryLU` of cuSOLVER: the factors of a matrix t.

    Attributes
    ----------
    lu : array
        The factors, column-major.
    swaps : ndarray
        The row that was swapped with row j, for j = 0, 1, ...; `pivots` are the same on the device, 1-based.
    transposed : bool
        Whether t is the transpose of the matrix.
    order : ndarray of int
        Row i of L U is row order[i] of t.
    rows, inverses : array or None
        `order` on the device, and the inverses of diagonal blocks, if `substitute` supports the dtype.  The
        inverses are None also if they are too inaccurate.
    """

    lu: Any
    swaps: Any
    pivots: Any
    transposed: bool
    order: Any
    rows: Any
    inverses: Any

    @turns_into_memory_error
    def solve(self, b, adjoint):
        lu = self.lu
        if self.inverses is not None and 0 < b.shape[1] <= max(TRSV_COLUMNS):
            return self._solve_by_substitution(b, adjoint)
        x = cupy.array(b, dtype=lu.dtype, order="F")
        n = len(x)
        conjugate = self.transposed and adjoint and lu.dtype.char in "FD"
        if self.transposed:
            op = cublas.CUBLAS_OP_N if adjoint else cublas.CUBLAS_OP_T
        else:
            op = cublas.CUBLAS_OP_C if adjoint else cublas.CUBLAS_OP_N
        if conjugate:
            cupy.conj(x, out=x)
        if x.shape[1] >= MANY:
            solve_many(lu, self.order, x, op)
        else:
            info = cupy.empty(1, cupy.int32)
            getrs = getattr(cusolver, PREFIX[lu.dtype.char] + "getrs")
            factored = (n, x.shape[1], lu.data.ptr, n, self.pivots.data.ptr)
            getrs(_handle(), op, *factored, x.data.ptr, n, info.data.ptr)
        return cupy.conj(x, out=x) if conjugate else x

    def gecon(self, norm_one):
        return None  # cuSOLVER has no condition estimator

    def _solve_by_substitution(self, b, adjoint):
        """Solve for a few columns with lu.T as row-major factors: P t = L U means t.T P.T = U.T L.T."""
        lu, b = self.lu, b.astype(np.float64, copy=False)
        # t is a.T if `transposed`, else a.  A solve with t is a transposed solve with the factors lu.T.
        if self.transposed != adjoint:  # t.T y = b: solve with U.T, then L.T, then apply P.T
            x = substitute(lu.T, b, False, self.inverses, None, self.rows)
        else:
            x = substitute(lu.T, b, True, self.inverses, self.rows, None)
        return x.astype(lu.dtype, copy=False)


def factored(a, dtype, overwrite_a):
    """As `LUOps.getrf`."""
    # cuSOLVER is column-major, so a row-major a is factored as a.T, as in `HostLU.getrf`.
    transposed = not a.flags.f_contiguous
    made = converted(t := a.T if transposed else a, np.dtype(dtype))
    copies = made is t and not overwrite_a
    t = cupy.array(t, order="F") if copies else cupy.asfortranarray(made)
    lu, pivots, info = getrf_in_place(t)
    info, swaps = info.get(), pivots.get() - 1
    order, rows, inverses = order_of(swaps), None, None
    if lu.dtype.char in TRSV_BLOCK:
        rows = cupy.asarray(order)
        # The lower triangle of lu.T is U.T, and the upper one is L.T.
        inverses, condition = invert_diagonal_blocks(lu.T, unit_lower=False)
        if not inverses_serve(float(condition[0]), lu.dtype.char):
            inverses = None
    found = Factors(lu, swaps, pivots, transposed, order, rows, inverses)
    return found, max(int(info[0]), 0)


def _handle():
    return cupy.cuda.device.get_cusolver_handle()


def getrf_in_place(t):
    """Factor a column-major t in place; return t, the pivot rows (1-based) and info, all on the device."""
    m, n = t.shape
    char = PREFIX[t.dtype.char]
    solver = _handle()
    size = getattr(cusolver, char + "getrf_bufferSize")(solver, m, n, t.data.ptr, m)
    work = cupy.empty(size, t.dtype)
    swaps, info = cupy.empty(min(m, n), cupy.int32), cupy.empty(1, cupy.int32)
    getrf = getattr(cusolver, char + "getrf")
    getrf(solver, m, n, t.data.ptr, m, work.data.ptr, swaps.data.ptr, info.data.ptr)
    return t, swaps, info


def solve_many(lu, order, x, op):
    """x := op(t)**-1 x for a column-major x, where row i of L U is row order[i] of t.

    Parameters
    ----------
    lu : array, shape (n, n)
        L and U, column-major.
    order : ndarray of int, shape (n,)
    x : array, shape (n, k)
        Of the dtype of lu.
    op : int
        CUBLAS_OP_N, CUBLAS_OP_T or CUBLAS_OP_C.
    """
    plain, triangles = op == cublas.CUBLAS_OP_N, [True, False]  # L is the lower one
    if plain:
        _take_rows(x, order)
    trsm, side = getattr(cublas, PREFIX[lu.dtype.char] + "trsm"), cublas.CUBLAS_SIDE_LEFT
    for lower in triangles if plain else reversed(triangles):
        uplo = cublas.CUBLAS_FILL_MODE_LOWER if lower else cublas.CUBLAS_FILL_MODE_UPPER
        diag = cublas.CUBLAS_DIAG_UNIT if lower else cublas.CUBLAS_DIAG_NON_UNIT
        for some in column_parts(x):
            operands = (scalar(1, lu.dtype.char), lu.data.ptr, len(lu), some.data.ptr, len(x))
            trsm(handle(), side, uplo, op, diag, *some.shape, *operands)
    if not plain:
        _take_rows(x, np.argsort(order))


def _take_rows(x, order):
    """x := x[order] for a column-major x, some columns at a time."""
    order, rows = cupy.asarray(order), x.T
    for some in parts(*rows.shape, WIDENED["cuda"]):
        rows[some] = cupy.take(rows[some], order, axis=1)
