"""The LU of cuSOLVER: FP64 and FP32 factors of a matrix, and panels that our kernels do not support."""

import cupy
import numpy as np
from cupy_backends.cuda.libs import cublas, cusolver

from tcsolve._arithmetic.formats import PREFIX
from tcsolve._backends.cuda.lu.substitution import invert_diagonal_blocks, substitute, trusted
from tcsolve._backends.cuda.runtime.conversions import converted
from tcsolve._backends.cuda.runtime.cublas_calls import column_parts
from tcsolve._backends.cuda.runtime.current_device import turns_into_memory_error
from tcsolve.kernels.launch_shapes import TRSV_BLOCK, TRSV_COLUMNS

__all__ = ["NativeOps", "getrf_in_place", "order_of"]


class NativeOps:
    """The part of `tcsolve._contract.ops.Ops` for the LU of cuSOLVER."""

    def getrf(self, a, dtype, overwrite_a=False):
        # Do not repeat it if the factors may have overwritten a.
        factored = turns_into_memory_error(self._getrf, again=not overwrite_a)
        return factored(a, dtype, overwrite_a)

    def _getrf(self, a, dtype, overwrite_a):
        # cuSOLVER is column-major, so a row-major a is factored as a.T, as in NumpyOps.
        transposed = not a.flags.f_contiguous
        made = converted(t := a.T if transposed else a, np.dtype(dtype))
        copies = made is t and not overwrite_a
        t = cupy.array(t, order="F") if copies else cupy.asfortranarray(made)
        lu, swaps, info = getrf_in_place(t)
        info, on_host = info.get(), swaps.get()
        order = inverses = None
        if lu.dtype.char in TRSV_BLOCK:
            order = cupy.asarray(order_of(on_host - 1))
            # The lower triangle of lu.T is U.T, and the upper one is L.T.
            inverses, worst = invert_diagonal_blocks(lu.T, unit_lower=False)
            inverses = trusted(inverses, float(worst[0]))
        return (lu, swaps, transposed, order, inverses), max(int(info[0]), 0)

    @turns_into_memory_error
    def getrs(self, factors, b, adjoint):
        lu, swaps, transposed, order, inverses = factors
        if inverses is not None and 0 < b.shape[1] <= max(TRSV_COLUMNS):
            return self._getrs_by_substitution(factors, b, adjoint)
        x = cupy.array(b, dtype=lu.dtype, order="F")
        n = len(x)
        conjugate = transposed and adjoint and lu.dtype.char in "FD"
        if transposed:
            op = cublas.CUBLAS_OP_N if adjoint else cublas.CUBLAS_OP_T
        else:
            op = cublas.CUBLAS_OP_C if adjoint else cublas.CUBLAS_OP_N
        if conjugate:
            cupy.conj(x, out=x)
        info = cupy.empty(1, cupy.int32)
        getrs = getattr(cusolver, PREFIX[lu.dtype.char] + "getrs")
        for some in column_parts(x):
            factored = (n, some.shape[1], lu.data.ptr, n, swaps.data.ptr)
            getrs(_handle(), op, *factored, some.data.ptr, n, info.data.ptr)
        return cupy.conj(x, out=x) if conjugate else x

    def _getrs_by_substitution(self, factors, b, adjoint):
        """Solve for a few columns with lu.T as row-major factors: P t = L U means t.T P.T = U.T L.T."""
        lu, _, transposed, order, inverses = factors
        b = b.astype(np.float64, copy=False)
        # t is a.T if `transposed`, else a.  A solve with t is a transposed solve with the factors lu.T.
        if transposed != adjoint:  # t.T y = b: solve with U.T, then L.T, then apply P.T
            x = substitute(lu.T, b, False, inverses, None, order)
        else:
            x = substitute(lu.T, b, True, inverses, order, None)
        return x.astype(lu.dtype, copy=False)

    def gecon(self, factors, norm_one):
        return None  # cuSOLVER has no condition estimator

    def diagonal(self, factors):
        lu, swaps = factors[:2]
        odd = (swaps != cupy.arange(1, len(swaps) + 1)).sum()
        return lu.diagonal(), 1 - 2 * (int(odd) % 2)


def _handle():
    return cupy.cuda.device.get_cusolver_handle()


def getrf_in_place(t):
    """Factor a column-major t in place; return t, the pivot rows (1-based) and info, all on the device."""
    m, n = t.shape
    char = PREFIX[t.dtype.char]
    handle = _handle()
    size = getattr(cusolver, char + "getrf_bufferSize")(handle, m, n, t.data.ptr, m)
    work = cupy.empty(size, t.dtype)
    swaps, info = cupy.empty(min(m, n), cupy.int32), cupy.empty(1, cupy.int32)
    getrf = getattr(cusolver, char + "getrf")
    getrf(handle, m, n, t.data.ptr, m, work.data.ptr, swaps.data.ptr, info.data.ptr)
    return t, swaps, info


def order_of(swaps, m=None):
    """Return the row that becomes row i, for each i, by the swaps of rows j and swaps[j], j = 0, 1, ..."""
    order = list(range(m or len(swaps)))
    for j, i in enumerate(swaps.tolist()):
        order[j], order[i] = order[i], order[j]
    return np.array(order, dtype=np.int32)
