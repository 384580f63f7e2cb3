"""Products of matrices on NumPy with emulated tensor cores; tests compare the kernels with them.

Operands are rounded as the kernels round them, and multiplied in FP32.  There the product of two 11-bit
numbers is exact.  So a result differs from that of tensor cores only by the sums: BLAS adds in another order,
and rounds where tensor cores truncate.  A `Product` with a `unit`, the name of a GPU, has the sums of the
tensor cores of this GPU instead; a large product then takes tens of times as long as without a unit.
"""

import functools

import numpy as np

from tcsolve._arithmetic.block_sums import multiply_add, sum_of_terms
from tcsolve._arithmetic.formats import FORMATS, TOP_EXPONENT, round_to, split
from tcsolve._arithmetic.products import CHAIN
from tcsolve._backends.cpu.blas import blas_of
from tcsolve._errors import InputError

__all__ = ["add_product", "gemm"]

# If |e| is at most this number, multiplying a sum of FP16 products by 2**e in FP32 causes no rounding error.
MODERATE_EXPONENT = 60
# The largest e for which 2**e and 2**-e are both normal FP32 numbers.
LARGEST_FACTOR = 126


def gemm(job):
    """Compute job.out, as the `Job` says."""
    a, b, c, out, product, alpha, beta, engine = job
    if engine != "auto":
        raise InputError(
            f"engine is {engine!r}, which runs on a GPU; for NumPy arrays there is only engine='auto': "
            "use it, or move the arrays with cupy.asarray"
        )
    direct = product.native and a.dtype == b.dtype == out.dtype
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if direct and alpha == 1 and beta == 0 and all(map(_is_for_blas, (a, b, out))):
            np.matmul(a, b, out=out)
            return
        result = multiply(a, b, product)
        if product.precision == "int8":
            # The conversion to int32 at the end reduces modulo 2**32.
            result = result.astype(np.int64) * int(alpha)
            alpha, beta = 1, int(beta)
        if alpha != 1:
            result = result * result.dtype.type(alpha)
        if beta != 0:
            result = result + result.dtype.type(beta) * c.astype(result.dtype)
        out[...] = result.astype(out.dtype, copy=False)


def multiply(a, b, product):
    """Return a b, (..., m, k) times (..., k, n), in the dtype of the sums of `product`.

    A matrix with a batch stride of 0 is converted and split only once.
    """
    a, b = (x[:1] if x.ndim == 3 and x.strides[0] == 0 else x for x in (a, b))
    if product.precision == "int8":
        # Sums below 2**53 are exact in FP64, and BLAS multiplies in FP64 but not in integers.
        return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int32)
    if product.native:
        dtype = product.accumulator
        # NumPy adds in another order where BLAS cannot read an operand.
        a, b = (x if _is_for_blas(x) else x.copy(order="C") for x in (a, b))
        return a.astype(dtype, copy=False) @ b.astype(dtype, copy=False)
    # Make both row-major, because BLAS may sum in another order if a matrix is transposed.
    a, b = (np.ascontiguousarray(x, np.float32) for x in (a, b))
    if product.direct:
        return sum_of_terms(
            [a], [b], product.terms, a.shape[-1], functools.partial(add_product, product)
        )
    return _rounded(a, b, product)


def _is_for_blas(x):
    """Tell whether BLAS can read the matrices of x: rows or columns are contiguous."""
    return x.flags.aligned and x.itemsize in x.strides[-2:]


def _rounded(a, b, product):
    """Return the product of FP32 operands, scaled, rounded and split."""
    top_a, top_b = _top(a, -1), _top(b, -2)
    exponent_a, exponent_b = fit(top_a), fit(top_b)
    good = np.isfinite(top_a).all(), np.isfinite(top_b).all()
    # If the largest entries are finite, all are, and no copy is needed.
    finite = [x if all_good else _finite(x) for x, all_good in zip((a, b), good, strict=True)]
    scaled = [_scaled(x, e) for x, e in zip(finite, (exponent_a, exponent_b), strict=True)]
    parts_a, parts_b = (
        split(x, product.format) if has_low else (round_to(x, product.format),)
        for x, has_low in zip(scaled, product.splits, strict=True)
    )
    run = a.shape[-1] if product.refine == "none" else CHAIN
    terms = parts_a, parts_b, product.terms, run
    if product.sums is None:
        total = _sum_by_blas(*terms)
    else:
        total = sum_of_terms(*terms, functools.partial(add_product, product))
    total = _unscaled(total, exponent_a, exponent_b, product.format)
    if not all(good):
        # A row or column that holds an Inf or NaN is multiplied in FP64, where a sum of finite FP32
        # products cannot overflow.
        plain = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
        return np.where(np.isfinite(top_a) & np.isfinite(top_b), total, plain)
    return total


def _top(x, axis):
    """Return max |x| along an axis, which is kept; NaN and Inf propagate."""
    most, least = (f(axis=axis, keepdims=True, initial=0) for f in (x.max, x.min))
    return np.maximum(most, -least)


def _finite(x):
    return np.where(np.isfinite(x), x, np.float32(0))


def fit(top):
    """Return the exponents e with top 2**e in [2**(TOP_EXPONENT - 1), 2**TOP_EXPONENT).

    The exponent is 0 for zero, Inf and NaN.
    """
    exponent = TOP_EXPONENT - np.frexp(top)[1]
    return np.where(np.isfinite(top) & (top > 0), exponent, 0)


def add_product(how, partial, a, b):
    """Return partial + a b, for `sum_of_terms`.

    `how` is an `Update` or a `Product`; it has the format and the `Sums`.
    """
    if how.sums is None:
        term = a @ b
        return term if partial is None else np.add(partial, term, out=partial)
    if a.ndim == 2:
        return multiply_add(a, b, how.format, how.sums, partial)
    count = max(len(a), len(b))
    pairs = zip(*(np.broadcast_to(x, (count, *x.shape[1:])) for x in (a, b)), strict=True)
    addends = [None] * count if partial is None else partial
    return np.stack([add_product(how, c, *pair) for c, pair in zip(addends, pairs, strict=True)])


def _scaled(x, exponent):
    """Return x 2**exponent, rounded once; the exponents are at most 2 * LARGEST_FACTOR."""
    first = np.minimum(exponent, LARGEST_FACTOR)
    y = x * _power(first)
    if (exponent > first).any():  # then |x| < 2**-112, and the first product is exact
        y *= _power(exponent - first)
    return y


def _unscaled(total, exponent_a, exponent_b, fmt):
    """Return total 2**-(exponent_a + exponent_b), rounded once; total may be overwritten.

    total is a sum of products of numbers of the format, which are at most 2**TOP_EXPONENT.
    """
    exponents = exponent_a, exponent_b
    smallest = 2 * (fmt.emin - fmt.t + 1)  # the exponent of the smallest product
    moderate = smallest - MODERATE_EXPONENT >= FORMATS["fp32"].emin
    if moderate and all(abs(e).max(initial=0) <= MODERATE_EXPONENT for e in exponents):
        # The first product is exact, so that the result is rounded only once.
        for exponent in exponents:
            total *= _power(-exponent)
        return total
    return np.ldexp(total, -(exponent_a + exponent_b))


def _power(exponent):
    """Return 2**exponent in FP32."""
    return np.ldexp(np.float32(1), exponent)


def _sum_by_blas(parts_a, parts_b, terms, run):
    """Return what `sum_of_terms` does, with the sums of BLAS.

    The parts of all terms are concatenated along k, those of the smallest terms first.  So the sum over `run`
    consecutive k is one product of BLAS, which adds it to the total.
    """
    total = None
    for q in range(0, parts_a[0].shape[-1], run):
        here = slice(q, q + run)
        left = _behind([parts_a[i][..., :, here] for i, _ in terms], -1)
        right = _behind([parts_b[j][..., here, :] for _, j in terms], -2)
        total = left @ right if total is None else _added(total, left, right)
    return total


def _behind(parts, axis):
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)


def _added(total, a, b):
    """Return total + a b, in the memory of `total`."""
    if total.ndim > 2 or not total.flags.c_contiguous:
        return np.add(total, a @ b, out=total)
    # BLAS is column-major, so compute total.T + b.T a.T.
    gemm = blas_of("gemm", total.dtype)
    return gemm(1.0, b.T, a.T, 1.0, total.T, overwrite_c=1).T
