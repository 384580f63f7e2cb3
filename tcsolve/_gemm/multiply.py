"""Compute a checked product."""

import functools

import numpy as np

from tcsolve._gemm.float64_operands import multiply_narrowed
from tcsolve._steps import note

__all__ = ["multiply"]


def multiply(task):
    """Compute the product of a `Task`; return it, and a function that repeats it (see `Ops.gemm`) or None."""
    note("guard")
    return _guarded(task.ops)(task)


@functools.cache
def _guarded(ops):
    """Return `_multiply` as a function that raises a DeviceMemoryError if a device has no memory left.

    The result is cached, because making it takes microseconds, as long as a small product.
    """
    return ops.guarded(_multiply)


def _multiply(task):
    ops, job, shape, accumulator = task
    if job.out is None:
        job = job._replace(out=ops.xp.empty(shape, accumulator))
    out = job.out
    if not out.size:
        return out, None
    if job.alpha == 0 or job.a.shape[-1] == 0:
        return out, _without_product(ops, job.c, out, job.beta, accumulator)
    narrowed = accumulator == "float64" and job.product.precision != "fp64"
    return out, (multiply_narrowed if narrowed else _compute)(ops, job)


def _compute(ops, job):
    """Call `Ops.gemm`; if c and `out` have different dtypes, convert c and the result."""
    c, out, product = job.c, job.out, job.product
    if job.beta == 0 or c.dtype == out.dtype:
        return ops.gemm(job)
    addend = ops.converted(c, np.dtype(product.accumulator))
    total = ops.xp.empty(out.shape, product.accumulator)
    ops.gemm(job._replace(c=addend, out=total))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        out[...] = ops.converted(total, out.dtype)
    return None


def _without_product(ops, c, out, beta, accumulator):
    """Set `out` to beta c, rounded to the dtype `accumulator`."""
    if beta == 0:
        out[...] = 0
        return
    dtype = np.dtype(accumulator)
    # In FP64 the product of two FP32 numbers is exact, and no library flushes subnormal numbers to zero.
    wide = dtype if dtype.kind == "i" else np.dtype(np.float64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        scaled = ops.converted(c, wide) * wide.type(dtype.type(beta))
        out[...] = ops.converted(ops.converted(scaled, dtype), out.dtype)
