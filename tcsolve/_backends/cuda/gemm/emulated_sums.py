"""Products with the sums of any tensor cores, bit for bit (see `tcsolve._arithmetic.block_sums`)."""

import functools

import cupy
import numpy as np

from tcsolve._arithmetic.block_sums import sum_of_terms
from tcsolve._arithmetic.formats import TOP_EXPONENT, round_in
from tcsolve._arithmetic.products import CHAIN, LEVELS
from tcsolve._backends.cuda.gemm.layout import bits, leading
from tcsolve._backends.cuda.runtime import compiler
from tcsolve.kernels.launch_shapes import emulated_sums

__all__ = ["Operand", "add_product", "multiply_add", "values"]

# Rows and columns of a tile of gemm_emulated.cu, its threads, and the largest number of rows of a launch.
TILE, THREADS, MOST_ROWS = 32, 256, 65535 * 32
# The largest exponent of a scale, which is an FP32 number.
LARGEST_EXPONENT = 126


def multiply_add(a, b, fmt, sums, c=None):
    """As `block_sums.multiply_add`, for float32 matrices a and b with any strides.

    If c is given, its rows are contiguous, and the result overwrites it.
    """
    (m, k), n = a.shape, b.shape[1]
    out = cupy.empty((m, n), np.float32) if c is None else c
    if out.size:
        strides = ([s // x.itemsize for s in x.strides] for x in (a, b))
        (row_a, col_a), (row_b, col_b) = strides
        defines = emulated_sums(sums.block, sums.fraction, sums.least, fmt.emin)
        launch = compiler.kernel("gemm_emulated", "tcs_gemm_emulated", **defines)
        ld = leading(out)
        for first in range(0, m, MOST_ROWS):
            some = slice(first, first + MOST_ROWS)
            results, rows = out[some], min(MOST_ROWS, m - first)
            addend = (None, 0) if c is None else (results, ld)
            args = (results, ld, *addend, a[some], row_a, col_a, b, row_b, col_b, rows, n, k)
            launch((-(-n // TILE), -(-rows // TILE)), (THREADS,), args)
    return out


def add_product(how, partial, a, b):
    """Return partial + a b, for `sum_of_terms`; `how` is an `Update` or a `Product`."""
    return multiply_add(a, b, how.format, how.sums, partial)


def values(x, product):
    """Return the numbers of an operand, stored in the format of a `Product`, in float32."""
    if product.precision == "fp16":
        return x.view(cupy.float16).astype(cupy.float32)
    if product.precision == "bf16":
        return (bits(x).astype(cupy.uint32) << np.uint32(16)).view(cupy.float32)
    return x


class Operand:
    """The operand L (m x k), |l| <= 1, rounded and split once, to compute C -= L U with emulated sums."""

    def __init__(self, how, parts):
        self._how, self._parts = how, parts

    @classmethod
    def of(cls, l, how):
        """Round and split L."""
        if l.dtype.kind == "c":  # an entry counts as two real ones, along k
            l = cupy.ascontiguousarray(l).view(np.float32)
        return cls(how, _parts(l * np.float32(2.0**TOP_EXPONENT), how))

    def round(self):
        """Do nothing: L is rounded already."""

    def subtract(self, c, u, share, first=0):
        """c -= l u, where l begins at row `first` of L; the kernel takes the whole device, not a `share`."""
        how = self._how
        scale = _scale_to_top(u)
        of_u = _parts(_real_rows(u) * scale, how)
        of_l = [part[first : first + len(c)] for part in self._parts]
        # With three products, the partial sums are short, as on a device that has these tensor cores.
        level, run = ("none", len(of_u[0])) if how.products == 1 else ("ab", CHAIN)
        add = functools.partial(add_product, how)
        product = sum_of_terms(of_l, of_u, LEVELS[level], run, add)
        product *= np.float32(2.0**-TOP_EXPONENT)
        product /= scale
        c -= product.view(c.dtype)


def _parts(x, how):
    """Return x rounded to the format of an `Update`, and its rounding error if there are three products."""
    hi = round_in(cupy, x, how.format)
    return (hi,) if how.products == 1 else (hi, round_in(cupy, x - hi, how.format))


def _scale_to_top(u):
    """Return the power of two s with s max |u| in (2**(TOP_EXPONENT - 1), 2**TOP_EXPONENT], on the device.

    It is at most 2**LARGEST_EXPONENT, and 1 if max |u| is 0 or not finite.
    """
    real = u if u.dtype.kind != "c" else cupy.ascontiguousarray(u).view(np.float32)
    top = cupy.abs(real).max()
    mantissa, exponent = cupy.frexp(top)
    exponent = cupy.minimum(TOP_EXPONENT - exponent + (mantissa == 0.5), LARGEST_EXPONENT)
    exponent = cupy.where(cupy.isfinite(top) & (top > 0), exponent, 0).astype(np.int32)
    return cupy.ldexp(cupy.ones((), np.float32), exponent)


def _real_rows(u):
    """Return the real matrix for u: each complex entry becomes ((re, im), (-im, re))."""
    if u.dtype.kind != "c":
        return u
    rows = cupy.empty((len(u), 2, 2 * u.shape[1]), np.float32)
    rows[:, 0] = cupy.ascontiguousarray(u).view(np.float32)
    rows[:, 1, 0::2], rows[:, 1, 1::2] = -u.imag, u.real
    return rows.reshape(2 * len(u), -1)
