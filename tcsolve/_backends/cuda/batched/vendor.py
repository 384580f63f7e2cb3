"""The primitives of stacks and of structured matrices on a device, which are `ops.vendor`."""

from tcsolve._backends.cuda.batched.library_factors import (
    factor,
    factor_and_solve,
)
from tcsolve._backends.cuda.batched.one_launch import (
    measure_large,
    solve_and_judge,
    solve_at_once,
)
from tcsolve._backends.cuda.batched.stack_launches import measure, read_as
from tcsolve._backends.cuda.batched.stack_plan import plan
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
