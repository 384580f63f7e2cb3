"""The types of the public names."""

from dataclasses import dataclass
from os import PathLike
from typing import Any, BinaryIO, Literal, NamedTuple, SupportsIndex, TypeAlias

from numpy.typing import DTypeLike, NDArray

__all__ = ["Entry", "Problem", "catalog", "find", "generate", "index", "load", "names"]

_Path: TypeAlias = str | PathLike[str]
_Rhs: TypeAlias = Literal["ones", "random"]

class Entry(NamedTuple):
    name: str
    summary: str
    solvable: bool
    options: dict[str, Any]

@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    name: str
    a: NDArray[Any]
    b: NDArray[Any]
    x_true: NDArray[Any] | None
    cond: float | None
    @property
    def n(self) -> int: ...

def catalog() -> tuple[Entry, ...]: ...
def generate(
    name: str,
    n: SupportsIndex,
    *,
    cond: float | None = None,
    seed: int = 0,
    dtype: DTypeLike | None = None,
    nrhs: SupportsIndex = 1,
    rhs: _Rhs = "ones",
    **options: Any,
) -> Problem: ...
def load(
    name_or_path: _Path | BinaryIO,
    *,
    folder: _Path | None = None,
    seed: int = 0,
    dtype: DTypeLike | None = None,
    nrhs: SupportsIndex = 1,
    rhs: _Rhs = "ones",
    known_hash: str | None = None,
    limit_bytes: int = 8589934592,
    pattern: bool = True,
) -> Problem: ...
def names(folder: _Path | None = None) -> tuple[str, ...]: ...
def index(folder: _Path | None = None) -> list[dict[str, Any]]: ...
def find(
    pattern: str = "*",
    folder: _Path | None = None,
    *,
    min_n: int | None = None,
    max_n: int | None = None,
    kind: Literal["spd", "symmetric", "unsymmetric", "real", "complex"] | None = None,
    group: str | None = None,
    kappa: tuple[float, float] | None = None,
    online: bool = False,
) -> list[dict[str, Any]]: ...
