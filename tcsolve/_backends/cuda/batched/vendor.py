"""The primitives of stacks and of structured matrices on a device, which are `ops.vendor`."""

import functools

import cupy
import numpy as np

from tcsolve._backends.cuda.batched.library_factors import (
    factor,
    factor_and_solve,
    together,
    work_bytes,
)
from tcsolve._backends.cuda.batched.one_launch import (
    launch_bytes,
    measure_large,
    solve_and_judge,
    solve_at_once,
)
from tcsolve._backends.cuda.batched.stack_launches import measure, read_as
from tcsolve._contract.stacks import StackPlan
from tcsolve.kernels.launch_shapes import MEASURED_COLUMNS

__all__ = [
    "MEASURED_COLUMNS",
    "factor",
    "factor_and_solve",
    "measure",
    "measure_large",
    "plan",
    "read_as",
    "solve_and_judge",
    "solve_at_once",
]


def plan(shape, dtype, kind, band, probes, *, alone=False, factors=False):
    """As `Stacks.plan`."""
    systems = shape, np.dtype(dtype), kind, band, alone
    return _plan_on(cupy.cuda.runtime.getDevice(), systems, probes, factors)


@functools.lru_cache(maxsize=1024)
def _plan_on(device, systems, probes, factors):
    """Return `plan` on the current device, which is `device`."""
    (m, n, k), dtype, kind, _, alone = systems
    of_all = m, n, k + probes
    work = work_bytes(dtype, kind, of_all, alone)
    return StackPlan(launch_bytes(*systems), together(dtype, kind, of_all, factors), work)
