"""How a device solves systems: in one launch or by factors, how many together, and with how many bytes."""

import functools

import cupy
import numpy as np

from tcsolve._backends.cuda.batched import complex_columns
from tcsolve._backends.cuda.batched.cholesky_squares import bytes_of_squares, suits_squares
from tcsolve._backends.cuda.batched.elimination import eliminates, elimination_bytes
from tcsolve._backends.cuda.batched.library_factors import CHOLESKY_BY_LU
from tcsolve._backends.cuda.batched.one_launch import launch_bytes
from tcsolve._contract.stacks import StackPlan

__all__ = ["plan"]

# Largest number of matrices in one call: for LU, and for triangles and Cholesky factors.
MOST_LU, MOST_TRIANGLES = 1 << 19, 65535
# Up to this n, the matrices of a stack are factored together.  Each larger matrix fills the device by itself.
# The second limit is for positive definite matrices.
LARGEST_TOGETHER, LARGEST_DEFINITE_TOGETHER = 640, 1024
# Fewer than FEW matrices of more than FEW_ROWS rows are factored one by one.  Together, each would get only a
# small part of the device.
FEW, FEW_ROWS = 4, 128


def plan(shape, dtype, kind, band, probes, *, alone=False, factors=False):
    """As `Stacks.plan`."""
    systems = shape, np.dtype(dtype), kind, band, alone
    return _plan_on(cupy.cuda.runtime.getDevice(), systems, probes, factors)


@functools.lru_cache(maxsize=1024)
def _plan_on(device, systems, probes, factors):
    """Return `plan` on the current device, which is `device`."""
    (m, n, k), dtype, kind, _, alone = systems
    of_all = m, n, k + probes
    work = _work_bytes(dtype, kind, of_all, alone)
    return StackPlan(launch_bytes(*systems), _together(dtype, kind, of_all, factors), work)


def _together(dtype, kind, shape, factors=False):
    """Return `StackPlan.together` for (m, n, columns), where `columns` counts random vectors, too."""
    (m, n, columns), is_definite = shape, kind == "positive definite"
    by_lu = kind == "general" or is_definite and n <= CHOLESKY_BY_LU
    most = MOST_LU if by_lu else MOST_TRIANGLES
    if suits_squares(dtype, kind, n, columns):
        return most
    if not factors and 2 * columns <= n and eliminates(dtype, kind, m, n, columns):
        return most
    largest = LARGEST_DEFINITE_TOGETHER if is_definite else LARGEST_TOGETHER
    return 1 if n > largest or m < FEW and n > FEW_ROWS else most


def _work_bytes(dtype, kind, shape, alone=False):
    """Return `StackPlan.work_bytes` for (m, n, columns), where `columns` counts random vectors, too."""
    m, n, columns = shape
    factors = m * n * n * np.result_type(dtype, np.float64).itemsize
    if not alone and suits_squares(dtype, kind, n, columns):
        return bytes_of_squares(m, n) - factors
    if eliminates(dtype, kind, m, n, columns):
        return elimination_bytes(dtype, kind, m, n, columns) - factors
    return complex_columns.bytes_in_planes(dtype, kind, n, columns) if m == 1 else 0
