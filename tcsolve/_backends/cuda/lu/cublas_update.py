"""Launches of pack_operands.cu: the parts of an operand are packed along k, for one product of cuBLAS."""

import cupy

from tcsolve._arithmetic.formats import TOP_EXPONENT
from tcsolve._backends.cuda.runtime import compiler, cublas_calls
from tcsolve._backends.cuda.runtime.cublas_calls import ld

__all__ = ["Operand"]

# Operands are scaled so that their largest entry is near this number.
TOP = 2.0**TOP_EXPONENT


class Operand:
    """The operand L (m x k), |l| <= 1, rounded, split and packed once, to compute C -= L U.

    All entries of L are scaled by one power of two, and all entries of U by another.  That of U is found on
    the device.
    """

    def __init__(self, how, multiprocessors, parts):
        self._how, self._multiprocessors, self._parts = how, multiprocessors, parts
        self._p = None  # L, packed

    @classmethod
    def of(cls, l, how, multiprocessors):
        """Round, split and pack L."""
        parts = 2 if l.dtype.char == "F" else 1  # a complex entry counts as two real ones
        operand = cls(how, multiprocessors, parts)
        operand._pack(l)
        return operand

    def _pack(self, l):
        (m, k), parts = l.shape, self._parts
        self._p, grid = self._empty(m, k), (-(-m // 8), -(-k * parts // 256))
        args = (self._p, l, ld(l) * parts, m, k * parts, TOP)
        self._kernel("tcs_pack_l")(grid, (32, 8), args)

    def round(self):
        """Do nothing: L is rounded already."""

    def subtract(self, c, u, share, first=0):
        """c -= l u, where l begins at row `first` of L; cuBLAS takes the whole device, not a `share`."""
        parts, (k, r) = self._parts, u.shape
        r, ld_u = r * parts, ld(u) * parts
        scalars, work = cupy.empty(3, cupy.float32), cublas_calls.zeros(2)
        scale, alpha, beta = scalars[0:], scalars[1:], scalars[2:]
        # A few blocks per multiprocessor; each block loops over rows of U.
        find_scale = compiler.kernel("find_operand_scale", "tcs_update_scale")
        args = (scale, alpha, beta, work, u, ld_u, k, r, TOP, None)
        find_scale((min(k, 4 * self._multiprocessors),), (256,), args)
        q = self._empty(r, k)
        grid = (-(-r // 64), -(-k // (64 // parts)))
        self._kernel("tcs_pack_u")(grid, (256,), (q, u, ld_u, k, r, scale))
        low = self._how.format.name
        cublas_calls.gemm_packed(c, ld(c) * parts, self._p[first:], q, low, (alpha, beta))

    def _empty(self, rows, k):
        stored = cupy.uint32 if self._how.format.name == "tf32" else cupy.uint16
        return cupy.empty((rows, self._how.products * k * self._parts), stored)

    def _kernel(self, entry):
        low, products = self._how.format.name, self._how.products
        is_complex = int(self._parts == 2)
        return compiler.kernel(
            "pack_operands", entry, T_LOW=low, PRODUCTS=products, COMPLEX=is_complex
        )
