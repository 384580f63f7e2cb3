"""Compute a checked product."""

import functools

import numpy as np

from tcsolve._gemm.float64_operands import multiply_narrowed
from tcsolve._steps import step

__all__ = ["multiply"]


def multiply(task):
    """Compute the product of a `Task`; return (result, launch).

    `Ops.gemm_again` takes the launch; it is None if there is no faster repetition.
    """
    return _guarded(task.ops)(task)


@step("guard")
@functools.cache
def _guarded(ops):
    """Return `_multiply` so that it raises a DeviceMemoryError when memory runs out.

    The result is cached, because making it takes microseconds, as long as a small product.
    """
    return ops.guarded(_multiply)


def _multiply(task):
    ops, out, launch = task.ops, task.out, None
    if out is None:
        out = ops.xp.empty(task.shape, task.accumulator)
    if not out.size:
        return out, None
    if task.alpha == 0 or task.a.shape[-1] == 0:
        _without_product(ops, task.c, out, task.beta, task.accumulator)
    else:
        how = task.product, task.alpha, task.beta, task.engine
        narrowed = task.accumulator == "float64" and task.product.precision != "fp64"
        compute = multiply_narrowed if narrowed else _compute
        launch = compute(ops, (task.a, task.b, task.c, out), *how)
    return out, launch


def _compute(ops, arrays, product, alpha, beta, engine):
    """Call `Ops.gemm`; if c and `out` have different dtypes, in the dtype of the sums."""
    a, b, c, out = arrays
    if beta == 0 or c.dtype == out.dtype:
        return ops.gemm(a, b, c, out, product, alpha, beta, engine)
    addend = ops.converted(c, np.dtype(product.accumulator))
    total = ops.xp.empty(out.shape, product.accumulator)
    ops.gemm(a, b, addend, total, product, alpha, beta, engine)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        out[...] = ops.converted(total, out.dtype)
    return None


def _without_product(ops, c, out, beta, accumulator):
    """out = beta c, rounded to the dtype of the sums."""
    if beta == 0:
        out[...] = 0
        return
    dtype = np.dtype(accumulator)
    # In FP64 the product of two FP32 numbers is exact, and no library flushes subnormal numbers to zero.
    wide = dtype if dtype.kind == "i" else np.dtype(np.float64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        scaled = ops.converted(c, wide) * wide.type(dtype.type(beta))
        out[...] = ops.converted(ops.converted(scaled, dtype), out.dtype)
