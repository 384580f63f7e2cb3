"""The list of public names.  `tcsolve` imports this module when a public name is first used."""

from importlib.metadata import version as _version

from tcsolve._arithmetic.products import GemmBound
from tcsolve._backends.select import clear_cache
from tcsolve._errors import (
    AccuracyWarning,
    DeviceError,
    DeviceMemoryError,
    InputError,
    KernelCompileError,
    LinAlgError,
    LinAlgWarning,
    NotPositiveDefiniteError,
    SingularError,
    TcsolveError,
)
from tcsolve._family.banded import solve_banded, solveh_banded
from tcsolve._family.cholesky import cho_factor, cho_solve
from tcsolve._family.installed import installed
from tcsolve._family.inverse import det, inv
from tcsolve._family.least_squares import LeastSquares, lstsq, lstsq_ex
from tcsolve._family.lu import lu_factor, lu_solve
from tcsolve._family.triangular import solve_triangular
from tcsolve._gemm.api import gemm, gemm_batched, gemm_bound
from tcsolve._plan import Plan
from tcsolve._solution import Solution, Status
from tcsolve._solve.api import factor, solve, solve_ex
from tcsolve._solve.factored.factorization import Factorization
from tcsolve._solve.factored.stack_factorization import StackFactorization
from tcsolve._solve.refinement import refine
from tcsolve._study.api import study
from tcsolve._study.table import StudyTable

__version__ = _version("tcsolve")

__all__ = [
    "AccuracyWarning",
    "DeviceError",
    "DeviceMemoryError",
    "Factorization",
    "GemmBound",
    "InputError",
    "KernelCompileError",
    "LeastSquares",
    "LinAlgError",
    "LinAlgWarning",
    "NotPositiveDefiniteError",
    "Plan",
    "SingularError",
    "Solution",
    "StackFactorization",
    "Status",
    "StudyTable",
    "TcsolveError",
    "cho_factor",
    "cho_solve",
    "clear_cache",
    "det",
    "factor",
    "gemm",
    "gemm_batched",
    "gemm_bound",
    "installed",
    "inv",
    "lstsq",
    "lstsq_ex",
    "lu_factor",
    "lu_solve",
    "refine",
    "solve",
    "solve_banded",
    "solve_ex",
    "solve_triangular",
    "solveh_banded",
    "study",
]
