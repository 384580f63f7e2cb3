"""Products of float64 matrices in less than float64, with all of their range."""

import numpy as np

__all__ = ["multiply_narrowed"]

# The smallest normal FP32 number.
FAINT = np.finfo(np.float32).tiny


def multiply_narrowed(ops, a, b, c, out, product, alpha, beta, engine):
    """out = alpha a b + beta c for float64 operands, scaled so that all of their range fits into FP32."""
    xp = ops.xp
    # One matrix for many products is narrowed once.
    once = [x[:1] if x.ndim == 3 and x.strides[0] == 0 else x for x in (a, b)]
    beside_inf = [~xp.isfinite(x).all() for x in once[::-1]]
    narrow = [_narrow(xp, *args) for args in zip(once, (-1, -2), beside_inf, strict=True)]
    (a, exponent_a), (b, exponent_b) = (
        (xp.broadcast_to(part, x.shape), e) for (part, e), x in zip(narrow, (a, b), strict=True)
    )
    total = xp.empty(out.shape, np.float32)
    ops.gemm(a, b, None, total, product, 1, 0, engine)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        result = alpha * xp.ldexp(total.astype(np.float64), -(exponent_a + exponent_b))
        if beta != 0:
            result += beta * c.astype(np.float64)
        out[...] = result.astype(out.dtype)


def _narrow(xp, x, axis, beside_inf):
    """Return (x 2**e in float32, e) with the largest finite entry along the axis in [1/2, 1).

    What is lost is nothing beside the others, but stays something beside an Inf, where it would make a NaN.
    """
    x = x.astype(np.float64)
    size = xp.where(xp.isfinite(x), xp.abs(x), 0)
    exponent = -xp.frexp(size.max(axis=axis, keepdims=True))[1]
    with np.errstate(over="ignore", under="ignore"):
        narrow = xp.ldexp(x, exponent).astype(np.float32)
    if xp is np and not beside_inf:  # elsewhere nobody waits for it
        return narrow, exponent
    lost = beside_inf & (narrow == 0) & (x != 0)
    return xp.where(lost, xp.copysign(FAINT, x).astype(np.float32), narrow), exponent
