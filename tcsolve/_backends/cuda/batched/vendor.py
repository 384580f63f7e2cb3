"""The primitives of stacks and of structured matrices on a device, which are `ops.vendor`."""

from tcsolve._backends.cuda.batched.library_factors import (
    bytes_for_columns,
    factor,
    factor_and_solve,
    most_at_once,
)
from tcsolve._backends.cuda.batched.one_launch import (
    bytes_at_once,
    measure_large,
    solve_and_judge,
    solve_at_once,
)
from tcsolve._backends.cuda.batched.stack_launches import measure, read_as, rows
from tcsolve.kernels.launch_shapes import MEASURED_COLUMNS

__all__ = [
    "MEASURED_COLUMNS",
    "bytes_at_once",
    "bytes_for_columns",
    "factor",
    "factor_and_solve",
    "measure",
    "measure_large",
    "most_at_once",
    "read_as",
    "rows",
    "solve_and_judge",
    "solve_at_once",
]
