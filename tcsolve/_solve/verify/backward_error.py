"""The backward error of an answer, from the caller's a and b and the x that is returned."""

import functools

import numpy as np

from tcsolve._arithmetic.matrix_parts import by_parts, column_tops, parts, short_sum
from tcsolve._backends.select import numpy_ops
from tcsolve._lu.scaling import exponent_of, ldexp, norm_and_exponent
from tcsolve._refine import double_double
from tcsolve._solve.verify.long_double_residual import SMALL, residual

__all__ = ["SAFE", "accurate_errors", "backward_errors", "is_safe"]

# If the norms of A and x are between 1 / SAFE and SAFE, products and residuals stay in the range of FP64.
SAFE = 2.0**250


def backward_errors(ops, a, x, b, norm=None):
    """Return ``||b - A x|| / (||A|| ||x||)`` in infinity norms for each right-hand side.

    Parameters
    ----------
    ops : Ops
    a : array, shape (..., n, n)
        The matrix of the caller, or the matrix that an asserted structure describes.
    x, b : array, shape (..., n, k)
        The answer that is returned, and the right-hand sides of the caller.
    norm : float, optional
        ||A||, if it is known already.

    Returns
    -------
    ndarray of float64, shape (..., k), on the host
        0 where the residual is exactly zero, infinite for x = 0 and b != 0, NaN where x is not finite.

    Notes
    -----
    The residual is computed in FP64; for up to 32 unknowns it is computed on the host, as accurately as in
    long double.  Extreme systems are scaled: A and each column of x are divided by powers of two, and b by
    their product.  This is exact, except for numbers that are negligible compared with ||A|| ||x||.
    """
    x, b = (ops.converted(v, np.result_type(v.dtype, np.float64)) for v in (x, b))
    if a.shape[-1] <= SMALL:
        a, x, b = ops.host(a, x, b)
        return _of_stack(numpy_ops, _wide(a), x, b)
    if a.ndim == x.ndim == b.ndim == 2:
        at_once = norm is not None and is_safe(norm)
        found = _without_scaling(ops, a, x, b, norm) if at_once else None
        return _of_matrix(ops, a, x, b) if found is None else found
    stack = ops.converted(a, np.result_type(a.dtype, np.float64))
    return ops.host(_of_stack(ops, stack, x, b))[0]


def accurate_errors(ops, a, x, b, norm):
    """Return the errors of `backward_errors` for one matrix, from residuals with twice the digits.

    They are NaN for columns whose products with A may leave the range of FP64.
    """
    xp, k = ops.xp, x.shape[1]
    paired = x.dtype.kind == "c" and a.dtype.kind != "c"
    both = [xp.concatenate([v.real, v.imag], axis=1) if paired else v for v in (x, b)]
    r = double_double.residual(ops, a, double_double.Pair.of(xp, both[0]), both[1])
    r = xp.hypot(r[:, :k], r[:, k:]) if paired else r
    rest, size = ops.host(column_tops(ops, r), column_tops(ops, x))
    return np.where(is_safe(norm) & is_safe(size), rest / norm / size, np.nan)


def _wide(a):
    return a.astype(np.result_type(a.dtype, np.float64), copy=False)


def _of_stack(ops, a, x, b):
    """Return the errors of FP64 stacks, as an array of the backend."""
    xp = ops.xp
    with np.errstate(all="ignore"):
        norm, size = _norm(xp, a), xp.abs(x).max(axis=-2)
        if not (is_plain := bool(is_safe(norm).all() & is_safe(size).all())):
            of_a = exponent_of(xp, a, (-2, -1))
            a, (x, b) = ldexp(xp, a, -of_a), _columns_near_one(xp, of_a, x, b)
            norm, size = _norm(xp, a), xp.abs(x).max(axis=-2)
        rest = xp.abs(_residual(ops, a, x, b)).max(axis=-2)
        error = rest / norm[..., None] / size
        if is_plain:
            return error
    # An infinite x is never an answer, even if A has zeros in the columns that its infinite entries multiply.
    return xp.where(xp.isfinite(size), xp.where(rest == 0, 0.0, error), xp.nan)


def _residual(ops, a, x, b):
    """Return b - A x of stacks; on a device, each long sum is made of short sums, as in `Ops.product`."""
    if ops.xp is np:
        return residual(a, x, b)
    n = a.shape[-1]
    c = short_sum(n)
    for first in range(0, n, c):
        some = slice(first, first + c)
        b = b - a[..., some] @ x[..., some, :]
    return b


def _norm(xp, a):
    return xp.abs(a).sum(axis=-1).max(axis=-1)


def is_safe(norm):
    """Tell which numbers are between 1 / SAFE and SAFE."""
    return (norm > 1 / SAFE) & (norm < SAFE)


def _columns_near_one(xp, of_a, x, b):
    """Return x 2**-e and b 2**-(e + of_a), where e brings the largest entry of each column of x near 1."""
    of_x = exponent_of(xp, x, -2)
    # For x = 0 take the exponent from b, so that b keeps its digits.
    zero = (x == 0).all(axis=-2, keepdims=True)
    of_x = xp.where(zero, exponent_of(xp, b, -2) - of_a, of_x)
    return ldexp(xp, x, -of_x), ldexp(xp, b, -of_a - of_x)


def _times(ops, a, x):
    """Return A x in FP64, without a complex copy of a real A."""
    return by_parts(ops.xp, functools.partial(ops.product, a), x, a.dtype.kind == "c")


def _without_scaling(ops, a, x, b, norm):
    """Return the errors for one matrix, or None if the products may leave the range of FP64."""
    with np.errstate(all="ignore"):
        if x.dtype.kind == "c" and a.dtype.kind != "c":
            _, rest, size = ops.residual(functools.partial(_times, ops, a), x, b)
        else:
            _, rest, size = ops.residual(a, x, b)
        return rest / norm / size if is_safe(size).all() else None


def _of_matrix(ops, a, x, b):
    """Return the errors for one matrix; it is scaled, and copied only some rows at a time."""
    xp, wide = ops.xp, np.result_type(a.dtype, np.float64)
    norm, of_a = norm_and_exponent(ops, a)
    with np.errstate(all="ignore"):
        x, b = _columns_near_one(xp, of_a, x, b)
        rest = xp.zeros(x.shape[1])
        for some in parts(*a.shape):
            r = b[some] - _times(ops, ldexp(xp, ops.converted(a[some], wide), -of_a), x)
            rest = xp.maximum(rest, xp.abs(r).max(axis=0))
        rest, size = ops.host(rest, xp.abs(x).max(axis=0))
        error = rest / norm / size
    return np.where(np.isfinite(size), np.where(rest == 0, 0.0, error), np.nan)
