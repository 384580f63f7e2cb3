"""Dense linear systems on tensor cores, with verified FP64 answers.

``solve`` takes the place of `scipy.linalg.solve`; ``solve_ex`` returns the evidence with the answer;
``factor`` keeps the factors for more right-hand sides; ``refine`` is the loop for any approximate inverse.
"""

from importlib.metadata import version as _version

from tcsolve._api import factor, refine, solve, solve_ex
from tcsolve._errors import (
    AccuracyWarning,
    ConvergenceError,
    DeviceError,
    DeviceMemoryError,
    InputError,
    KernelCompileError,
    LinAlgError,
    LinAlgWarning,
    SingularError,
    TcsolveError,
)
from tcsolve._factorization import Factorization
from tcsolve._plan import Plan
from tcsolve._solution import Solution, Status

__version__ = _version("tcsolve")

__all__ = [
    "AccuracyWarning",
    "ConvergenceError",
    "DeviceError",
    "DeviceMemoryError",
    "Factorization",
    "InputError",
    "KernelCompileError",
    "LinAlgError",
    "LinAlgWarning",
    "Plan",
    "SingularError",
    "Solution",
    "Status",
    "TcsolveError",
    "factor",
    "refine",
    "solve",
    "solve_ex",
]
