"""Products of float64 matrices in a lower precision, without loss of range."""

import numpy as np

__all__ = ["multiply_narrowed"]

# The smallest normal FP32 number.
FAINT = np.finfo(np.float32).tiny
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)


def multiply_narrowed(ops, job):
    """Compute job.out for float64 operands, scaled so that their entries fit into FP32."""
    xp, (a, b, c, out, _, alpha, beta, _) = ops.xp, job
    # A matrix with a batch stride of 0 is used in all products; convert it once.
    once = [x[:1] if x.ndim == 3 and x.strides[0] == 0 else x for x in (a, b)]
    beside_inf = [~xp.isfinite(x).all() for x in once[::-1]]
    narrow = [_narrow(ops, *args) for args in zip(once, (-1, -2), beside_inf, strict=True)]
    (a, exponent_a), (b, exponent_b) = (
        (xp.broadcast_to(part, x.shape), e) for (part, e), x in zip(narrow, (a, b), strict=True)
    )
    total = xp.empty(out.shape, np.float32)
    ops.gemm(job._replace(a=a, b=b, c=None, out=total, alpha=1, beta=0))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        result = alpha * xp.ldexp(ops.converted(total, DOUBLE), -(exponent_a + exponent_b))
        if beta != 0:
            result += beta * ops.converted(c, DOUBLE)
        out[...] = result


def _narrow(ops, x, axis, beside_inf):
    """Return (x 2**e in float32, e) with the largest finite entry along the axis in [1/2, 1].

    Entries that underflow are negligible, unless the other operand may have an Inf (`beside_inf`).  Then they
    become the smallest normal number, because the product of 0 and Inf would be NaN.
    """
    xp, x = ops.xp, ops.converted(x, DOUBLE)
    size = xp.where(xp.isfinite(x), xp.abs(x), 0)
    exponent = -xp.frexp(size.max(axis=axis, keepdims=True))[1]
    with np.errstate(over="ignore", under="ignore"):
        narrow = ops.converted(xp.ldexp(x, exponent), SINGLE)
    if xp is np and not beside_inf:  # reading `beside_inf` on a device would wait for the device
        return narrow, exponent
    lost = beside_inf & (narrow == 0) & (x != 0)
    return xp.where(lost, ops.converted(xp.copysign(FAINT, x), SINGLE), narrow), exponent
