"""The types of the public names.

They are in this file, because in the modules the overloads would be longer than the code.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from os import PathLike
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, overload

import numpy as np
from numpy.linalg import LinAlgError as LinAlgError
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgWarning as LinAlgWarning
from typing_extensions import TypeVar

from tcsolve import matrices as matrices

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

__version__: Final[str]

# ---- arrays and options

class _DeviceArray(Protocol):
    """The attributes that a CuPy array must have; CuPy itself declares no types."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def ndim(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def get(self, *args: Any, **kwargs: Any) -> Any: ...

_D = TypeVar("_D", bound=_DeviceArray)
# The x of a `Solution` without an array type may be any array.
_X_co = TypeVar("_X_co", covariant=True, default=Any)

_Real: TypeAlias = float | np.floating[Any] | np.integer[Any]
_Update: TypeAlias = Literal["fp16", "bf16", "tf32", "fp16x3", "fp32", "fp64"]
_Emulated: TypeAlias = Literal[
    "fp16@v100",
    "fp16@t4",
    "fp16@a100",
    "bf16@a100",
    "tf32@a100",
    "fp16@l40s",
    "bf16@l40s",
    "tf32@l40s",
    "fp16@h100",
    "bf16@h100",
    "tf32@h100",
    "fp16@h200",
    "bf16@h200",
    "tf32@h200",
    "fp16@b200",
    "bf16@b200",
    "tf32@b200",
]
_Model: TypeAlias = Literal[
    "fp16x3@v100",
    "fp16x3@t4",
    "fp16x3@a100",
    "fp16x3@l40s",
    "fp16x3@h100",
    "fp16x3@h200",
    "fp16x3@b200",
    "fp16@each",
    "bf16@each",
    "tf32@each",
]
_Rung: TypeAlias = _Update | _Emulated | _Model
_Precision: TypeAlias = Literal["auto"] | _Rung | Plan
_Residual: TypeAlias = Literal["fp64", "double-double"]
_Place: TypeAlias = Literal["auto", "cpu", "cuda"]
_Matrix: TypeAlias = str | PathLike[str] | Mapping[str, Any]
_Matrices: TypeAlias = _Matrix | Sequence[_Matrix]
_Structure: TypeAlias = Literal[
    "general",
    "gen",
    "diagonal",
    "tridiagonal",
    "banded",
    "upper triangular",
    "lower triangular",
    "symmetric",
    "sym",
    "hermitian",
    "her",
    "positive definite",
    "pos",
]
_Trans: TypeAlias = Literal[0, 1, 2, "N", "T", "C"]
_Driver: TypeAlias = Literal["gelsd", "gelsy", "gelss"]
_Operands: TypeAlias = Literal["fp16", "bf16", "tf32", "fp32", "fp64", "int8"]
_Level: TypeAlias = Literal["none", "a", "b", "ab", "full"]
_Engine: TypeAlias = Literal["auto", "naive", "wmma", "wgmma", "cublas"]

# ---- solving

@overload
def solve(
    a: _D,
    b: _D,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    assume_a: _Structure | None = None,
    transposed: bool = False,
    *,
    precision: _Precision = "auto",
    device: _Place = "auto",
    residual: _Residual = "fp64",
) -> _D: ...
@overload
def solve(
    a: ArrayLike,
    b: ArrayLike,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    assume_a: _Structure | None = None,
    transposed: bool = False,
    *,
    precision: _Precision = "auto",
    device: _Place = "auto",
    residual: _Residual = "fp64",
) -> NDArray[Any]: ...
@overload
def solve_ex(
    a: _D,
    b: _D,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    assume_a: _Structure | None = None,
    transposed: bool = False,
    *,
    precision: _Precision = "auto",
    device: _Place = "auto",
    residual: _Residual = "fp64",
) -> Solution[_D]: ...
@overload
def solve_ex(
    a: ArrayLike,
    b: ArrayLike,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    assume_a: _Structure | None = None,
    transposed: bool = False,
    *,
    precision: _Precision = "auto",
    device: _Place = "auto",
    residual: _Residual = "fp64",
) -> Solution[NDArray[Any]]: ...

# For a stack of matrices the result is a StackFactorization.  The type of an array does not contain its
# number of dimensions, so a caller with a stack needs `typing.cast`.
def factor(
    a: ArrayLike | _DeviceArray,
    overwrite_a: bool = False,
    check_finite: bool = True,
    assume_a: Literal["general", "gen"] | None = None,
    *,
    precision: _Precision = "auto",
    device: _Place = "auto",
    nrhs: int | np.integer[Any] = 1,
) -> Factorization: ...

class Factorization:
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def precision(self) -> _Rung: ...
    @property
    def rungs(self) -> tuple[_Rung, ...]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def bytes_planned(self) -> int: ...
    @property
    def replaced_after(self) -> int | None: ...
    @overload
    def solve(
        self,
        b: _D,
        *,
        trans: _Trans = 0,
        check_finite: bool = True,
        residual: _Residual = "fp64",
    ) -> _D: ...
    @overload
    def solve(
        self,
        b: ArrayLike,
        *,
        trans: _Trans = 0,
        check_finite: bool = True,
        residual: _Residual = "fp64",
    ) -> NDArray[Any]: ...
    @overload
    def solve_ex(
        self,
        b: _D,
        *,
        trans: _Trans = 0,
        check_finite: bool = True,
        residual: _Residual = "fp64",
    ) -> Solution[_D]: ...
    @overload
    def solve_ex(
        self,
        b: ArrayLike,
        *,
        trans: _Trans = 0,
        check_finite: bool = True,
        residual: _Residual = "fp64",
    ) -> Solution[NDArray[Any]]: ...
    def rcond(self) -> float: ...
    def slogdet(self) -> _LogDeterminant: ...

class _LogDeterminant(NamedTuple):
    # The sign is a float if the matrix is real.  `Any` allows callers to use it as a float in this case.
    sign: float | Any
    logabsdet: float

class StackFactorization:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def precision(self) -> str: ...
    @property
    def rungs(self) -> tuple[_Rung, ...]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def bytes_planned(self) -> int: ...
    @overload
    def solve(self, b: _D, *, trans: _Trans = 0, check_finite: bool = True) -> _D: ...
    @overload
    def solve(
        self, b: ArrayLike, *, trans: _Trans = 0, check_finite: bool = True
    ) -> NDArray[Any]: ...
    @overload
    def solve_ex(self, b: _D, *, trans: _Trans = 0, check_finite: bool = True) -> Solution[_D]: ...
    @overload
    def solve_ex(
        self, b: ArrayLike, *, trans: _Trans = 0, check_finite: bool = True
    ) -> Solution[NDArray[Any]]: ...
    def rcond(self) -> NDArray[np.float64]: ...
    def slogdet(self) -> _LogDeterminants: ...

class _LogDeterminants(NamedTuple):
    sign: NDArray[Any]
    logabsdet: NDArray[np.float64]

@overload
def refine(
    a: _D | Callable[[_D], _D],
    b: _D,
    correct: Callable[[_D], _D],
    *,
    x0: _D | None = None,
    norm: _Real | _DeviceArray | None = None,
    plan: Plan | None = None,
    tol: _Real | None = None,
    max_steps: int | np.integer[Any] = 100,
) -> Solution[_D]: ...
@overload
def refine(
    a: ArrayLike | Callable[[NDArray[Any]], NDArray[Any]],
    b: ArrayLike,
    correct: Callable[[NDArray[Any]], NDArray[Any]],
    *,
    x0: ArrayLike | None = None,
    norm: _Real | None = None,
    plan: Plan | None = None,
    tol: _Real | None = None,
    max_steps: int | np.integer[Any] = 100,
) -> Solution[NDArray[Any]]: ...

@dataclass(frozen=True)
class Plan:
    update: Literal["auto"] | _Rung = "fp16x3"
    block: int | None = None
    fallback: bool = True
    scale: bool = True
    max_steps: int | None = None
    basis: int = 50
    contraction: float = 0.5
    method: Literal["auto", "ir", "fgmres", "gmres", "cg"] = "auto"
    inner_tol: float | None = None
    preconditioner: Literal["auto", "factors", "fp64"] = "auto"

class Status(Enum):
    CONVERGED = ...
    CONVERGED_AFTER_FALLBACK = ...
    ILL_CONDITIONED = ...
    CONDITION_UNKNOWN = ...
    STALLED = ...
    NOT_CONVERGED = ...
    SINGULAR = ...
    NOT_POSITIVE_DEFINITE = ...
    NOT_AS_ASSERTED = ...
    NOT_ACCURATE = ...
    NONFINITE_INPUT = ...
    OVERFLOW = ...
    UNDERFLOW = ...
    @property
    def value(self) -> str: ...
    @property
    def ok(self) -> bool: ...

class _HistoryPoint(NamedTuple):
    rung: str
    step: NDArray[np.int_]
    error: NDArray[np.float64]
    estimated: bool

@dataclass(frozen=True, eq=False)
class Solution(Generic[_X_co]):
    x: _X_co
    status: Status
    precision: str
    rungs: tuple[str, ...]
    iterations: NDArray[np.int_]
    backward_error: NDArray[np.float64]
    bound: float
    rcond: float
    history: tuple[_HistoryPoint, ...] = ()
    seconds: dict[str, float] = ...
    bytes_planned: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    statuses: NDArray[np.object_] = ...
    rconds: NDArray[np.float64] = ...
    forward_error: NDArray[np.float64] | None = None
    note: str = ""
    def to_dict(self) -> dict[str, Any]: ...

# ---- the SciPy family

@overload
def lu_factor(a: _D, overwrite_a: bool = False, check_finite: bool = True) -> tuple[_D, _D]: ...
@overload
def lu_factor(
    a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def lu_solve(
    lu_and_piv: tuple[_D, _D],
    b: _D,
    trans: _Trans = 0,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> _D: ...
@overload
def lu_solve(
    lu_and_piv: tuple[ArrayLike, ArrayLike],
    b: ArrayLike,
    trans: _Trans = 0,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> NDArray[Any]: ...
@overload
def cho_factor(
    a: _D, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[_D, Any]: ...
@overload
def cho_factor(
    a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[NDArray[Any], Any]: ...
@overload
def cho_solve(
    c_and_lower: tuple[_D, Any], b: _D, overwrite_b: bool = False, check_finite: bool = True
) -> _D: ...
@overload
def cho_solve(
    c_and_lower: tuple[ArrayLike, Any],
    b: ArrayLike,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> NDArray[Any]: ...
@overload
def solve_triangular(
    a: _D,
    b: _D,
    trans: _Trans = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> _D: ...
@overload
def solve_triangular(
    a: ArrayLike,
    b: ArrayLike,
    trans: _Trans = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> NDArray[Any]: ...
@overload
def solve_banded(
    l_and_u: tuple[Any, Any],
    ab: _D,
    b: _D,
    overwrite_ab: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> _D: ...
@overload
def solve_banded(
    l_and_u: tuple[Any, Any],
    ab: ArrayLike,
    b: ArrayLike,
    overwrite_ab: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> NDArray[Any]: ...
@overload
def solveh_banded(
    ab: _D,
    b: _D,
    overwrite_ab: bool = False,
    overwrite_b: bool = False,
    lower: bool = False,
    check_finite: bool = True,
) -> _D: ...
@overload
def solveh_banded(
    ab: ArrayLike,
    b: ArrayLike,
    overwrite_ab: bool = False,
    overwrite_b: bool = False,
    lower: bool = False,
    check_finite: bool = True,
) -> NDArray[Any]: ...
@overload
def lstsq(
    a: _D,
    b: _D,
    cond: _Real | None = None,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    lapack_driver: _Driver | None = None,
) -> tuple[_D, _D, Any, _D | None]: ...
@overload
def lstsq(
    a: ArrayLike,
    b: ArrayLike,
    cond: _Real | None = None,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
    lapack_driver: _Driver | None = None,
) -> tuple[NDArray[Any], Any, Any, NDArray[Any] | None]: ...
@overload
def lstsq_ex(
    a: _D, b: _D, cond: _Real | None = None, check_finite: bool = True
) -> LeastSquares[_D]: ...
@overload
def lstsq_ex(
    a: ArrayLike, b: ArrayLike, cond: _Real | None = None, check_finite: bool = True
) -> LeastSquares[NDArray[Any]]: ...

@dataclass(frozen=True, eq=False)
class LeastSquares(Generic[_X_co]):
    x: _X_co
    residues: Any
    rank: int
    s: _X_co | None
    method: str
    reason: str = ""
    verified: bool = False
    backward_error: NDArray[np.float64] | None = None
    bound: float = 0.0
    iterations: int = 0
    rcond: float = ...
    seconds: float = 0.0
    device: Literal["cpu", "cuda"] = "cpu"

@overload
def inv(
    a: _D,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    assume_a: _Structure | None = None,
    lower: bool = False,
) -> _D: ...
@overload
def inv(
    a: ArrayLike,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    assume_a: _Structure | None = None,
    lower: bool = False,
) -> NDArray[Any]: ...
def det(
    a: ArrayLike | _DeviceArray, overwrite_a: bool = False, check_finite: bool = True
) -> Any: ...
def installed() -> AbstractContextManager[None]: ...

# ---- products

@overload
def gemm(
    a: _D,
    b: _D,
    c: _D | None = None,
    *,
    alpha: _Real = 1,
    beta: _Real = 0,
    transa: bool = False,
    transb: bool = False,
    precision: _Operands | _Emulated | None = None,
    refine: _Level | None = None,
    engine: _Engine = "auto",
    out: _D | None = None,
    rtol: _Real | None = None,
) -> _D: ...
@overload
def gemm(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    alpha: _Real = 1,
    beta: _Real = 0,
    transa: bool = False,
    transb: bool = False,
    precision: _Operands | _Emulated | None = None,
    refine: _Level | None = None,
    engine: Literal["auto"] = "auto",
    out: NDArray[Any] | None = None,
    rtol: _Real | None = None,
) -> NDArray[Any]: ...
@overload
def gemm_batched(
    a: _D,
    b: _D,
    c: _D | None = None,
    *,
    alpha: _Real = 1,
    beta: _Real = 0,
    transa: bool = False,
    transb: bool = False,
    precision: _Operands | _Emulated | None = None,
    refine: _Level | None = None,
    engine: Literal["auto"] = "auto",
    out: _D | None = None,
    rtol: _Real | None = None,
) -> _D: ...
@overload
def gemm_batched(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    alpha: _Real = 1,
    beta: _Real = 0,
    transa: bool = False,
    transb: bool = False,
    precision: _Operands | _Emulated | None = None,
    refine: _Level | None = None,
    engine: Literal["auto"] = "auto",
    out: NDArray[Any] | None = None,
    rtol: _Real | None = None,
) -> NDArray[Any]: ...
def gemm_bound(
    a: ArrayLike | _DeviceArray,
    b: ArrayLike | _DeviceArray,
    *,
    transa: bool = False,
    precision: _Operands | _Emulated | None = None,
    refine: _Level | None = None,
    engine: _Engine = "auto",
    rtol: _Real | None = None,
) -> GemmBound: ...

class GemmBound(NamedTuple):
    bound: float
    precision: _Operands | _Emulated
    refine: _Level
    products: int

# ---- studies

def study(
    matrices: _Matrices,
    plans: str | Plan | Mapping[str, Any] | Sequence[str | Plan | Mapping[str, Any]] | None = None,
    *,
    path: str | PathLike[str] | None = None,
    resume: bool = False,
    jobs: int | np.integer[Any] = 1,
    limit_seconds: _Real | None = None,
    device: _Place = "auto",
    seed: int = 0,
    rhs: Literal["ones", "random"] = "ones",
    history: bool = False,
    spectrum: int = 0,
    energy: bool = False,
    folder: str | PathLike[str] | None = None,
    show_progress: bool = True,
) -> StudyTable: ...

class StudyTable:
    rows: tuple[dict[str, Any], ...]
    def __init__(self, rows: Iterable[dict[str, Any]]) -> None: ...
    def __len__(self) -> int: ...
    @classmethod
    def read(cls, path: str | PathLike[str]) -> StudyTable: ...
    @property
    def ran(self) -> tuple[dict[str, Any], ...]: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    def text(
        self,
        form: Literal["markdown", "csv", "latex"] = "markdown",
        columns: Sequence[str] | None = None,
    ) -> str: ...
    def write(self, path: str | PathLike[str], columns: Sequence[str] | None = None) -> None: ...
    def draw(
        self,
        kind: Literal["histories", "steps", "profile", "heatmap", "spectrum"],
        path: str | PathLike[str] | None = None,
        **options: Any,
    ) -> Any: ...
    def summary(self) -> list[dict[str, Any]]: ...

# ---- memory

def clear_cache() -> None: ...

# ---- errors and warnings

class TcsolveError(Exception): ...
class InputError(TcsolveError, ValueError): ...
class SingularError(TcsolveError, LinAlgError): ...
class NotPositiveDefiniteError(TcsolveError, LinAlgError): ...
class DeviceError(TcsolveError, RuntimeError): ...
class DeviceMemoryError(DeviceError, MemoryError): ...

class KernelCompileError(DeviceError):
    kernel: str
    arch: str
    options: tuple[str, ...]
    log: str
    def __init__(self, kernel: str, arch: str, options: Iterable[str], log: str) -> None: ...

class AccuracyWarning(LinAlgWarning): ...
