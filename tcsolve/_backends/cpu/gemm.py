"""Products of matrices on NumPy with emulated tensor cores; tests compare the kernels with them.

Operands are rounded as tensor cores round them, and multiplied in FP32.  There the product of two 11-bit
numbers is exact.  So a result differs from that of tensor cores only in the order and the truncation of the
sums.  On two cores, a product of size 1000 to 2000 takes 2 to 7 times as long as the FP32 product of BLAS,
and 5 to 9 times with refinement.  A `Product` with a unit has the sums of these tensor cores, too; it takes a
hundred times as long.
"""

import functools

import numpy as np

from tcsolve._arithmetic.block_sums import multiply_add, sum_of_terms
from tcsolve._arithmetic.formats import TOP_EXPONENT, split
from tcsolve._arithmetic.products import CHAIN
from tcsolve._errors import InputError

__all__ = ["add_product", "gemm"]


def gemm(job):
    """Compute job.out, as the `Job` says."""
    a, b, c, out, product, alpha, beta, engine = job
    if engine != "auto":
        raise InputError(
            f"engine is {engine!r}, which runs on a GPU; NumPy arrays have engine='auto': "
            "move them with cupy.asarray"
        )
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        result = multiply(a, b, product)
        if product.precision == "int8":
            # The conversion to int32 at the end reduces modulo 2**32.
            result = result.astype(np.int64) * int(alpha)
            alpha, beta = 1, int(beta)
        if alpha != 1:
            result = result * result.dtype.type(alpha)
        if beta != 0:
            result = result + result.dtype.type(beta) * c.astype(result.dtype)
        out[...] = result.astype(out.dtype)


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
        return a.astype(dtype, copy=False) @ b.astype(dtype, copy=False)
    # Make both row-major, because BLAS may sum in another order if a matrix is transposed.
    a, b = (np.ascontiguousarray(x, np.float32) for x in (a, b))
    if product.direct:
        return sum_of_terms(
            [a], [b], product.terms, a.shape[-1], functools.partial(add_product, product)
        )
    return _rounded(a, b, product)


def _rounded(a, b, product):
    """Return the product of FP32 operands, scaled, rounded and split."""
    top_a, top_b = _top(a, -1), _top(b, -2)
    exponent_a, exponent_b = fit(top_a), fit(top_b)
    parts_a = split(np.ldexp(_finite(a), exponent_a), product.format)
    parts_b = split(np.ldexp(_finite(b), exponent_b), product.format)
    run = a.shape[-1] if product.refine == "none" else CHAIN
    total = sum_of_terms(
        parts_a, parts_b, product.terms, run, functools.partial(add_product, product)
    )
    total = np.ldexp(total, -(exponent_a + exponent_b))
    if not (np.isfinite(top_a).all() and np.isfinite(top_b).all()):
        # A row or column that holds an Inf or NaN is multiplied in FP64, where a sum of finite FP32
        # products cannot overflow.
        plain = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
        return np.where(np.isfinite(top_a) & np.isfinite(top_b), total, plain)
    return total


def _top(x, axis):
    """Return max |x| along an axis, which is kept; NaN and Inf propagate."""
    return np.abs(x).max(axis=axis, keepdims=True, initial=0)


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

    `how` has the format and the `Sums`: an `Update` or a `Product`.
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
