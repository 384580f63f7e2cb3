"""Systems as stacks, for the library's factors on a device: what of each matrix is read, and how."""

from typing import Any, NamedTuple

import numpy as np

from tcsolve._checks import require_finite
from tcsolve._refine import stopping
from tcsolve._solution import Status, code_of
from tcsolve._solve.structures import MIRRORED

__all__ = [
    "ALL_READ",
    "CONVERGED",
    "ILL_CONDITIONED",
    "NONFINITE",
    "NOT_DEFINITE",
    "REDO",
    "SEEN",
    "TRIANGULAR",
    "Part",
    "System",
    "as_read",
    "as_stacks",
    "band_of",
    "contradicting",
    "kind_of",
    "read_all",
    "read_matrix",
    "tolerance",
]

# Rows of what `vendor.read_as` sees.
SEEN = 5
# Codes that are looked for.
CONVERGED, ILL_CONDITIONED, NONFINITE, NOT_DEFINITE = map(
    code_of,
    (
        Status.CONVERGED,
        Status.ILL_CONDITIONED,
        Status.NONFINITE_INPUT,
        Status.NOT_POSITIVE_DEFINITE,
    ),
)
# A matrix whose answer needs a second look; larger than every code of a status.
REDO = 127
TRIANGULAR = ("lower triangular", "upper triangular", "diagonal")
# What is read under a structure: diagonals below and above the main one, and what stands for the others (see
# `vendor.read_as`).  ALL are all diagonals of any matrix.
ALL = 1 << 40
ALL_READ = (ALL, ALL, 0)
BANDS = {
    "diagonal": (0, 0, 0),
    "tridiagonal": (1, 1, 0),
    "upper triangular": (0, ALL, 0),
    "lower triangular": (ALL, 0, 0),
}


class System(NamedTuple):
    """Some systems: a (m, n, n) and b (m, n, k), of the dtype of x."""

    a: Any  # as the caller has it where there is a band, else, and later, as it is read
    b: Any
    kind: str
    band: tuple | None  # what is read of a
    mirrored: bool  # whether what is not read is a mirror image
    estimate: bool
    alone: bool  # one general matrix: the ladder of precisions solves it if this road does not

    @property
    def bound(self):
        return stopping.target(self.b.dtype, self.b.shape[1])

    @property
    def broken(self):
        """The code of the status where a factorization breaks down."""
        definite = self.kind == "positive definite"
        return code_of(Status.NOT_POSITIVE_DEFINITE if definite else Status.SINGULAR)

    @property
    def eps(self):
        """Machine epsilon of x."""
        return float(np.finfo(self.b.dtype).eps)


class Part(NamedTuple):
    """The answers to some systems: x (m, n, k) where they were, the rest on the host."""

    x: Any
    codes: np.ndarray  # (m,)
    rconds: np.ndarray  # (m,)
    error: np.ndarray  # (m, k)
    steps: np.ndarray  # (m, k)
    apart: np.ndarray  # (m,), whether entries that are not read contradict the structure
    spoilt: np.ndarray  # (m,), whether A holds NaN or Inf, where it is read or not


def kind_of(structure):
    """Return the kind of factors, as `ops.vendor.factor` knows them, for a structure."""
    return structure if structure in ("positive definite", *TRIANGULAR) else "general"


def band_of(structure, lower, dtype):
    """Return what is read under a structure, as in BANDS, or None for all."""
    if structure in MIRRORED:
        conjugate = structure != "symmetric" and dtype.kind == "c"
        return (*((ALL, 0) if lower else (0, ALL)), 2 if conjugate else 1)
    return BANDS.get(structure)


def as_stacks(xp, a, b, batch):
    """Return a as (m, n, n) and b as (m, n, k), broadcast against each other."""
    b = b[:, None] if b.ndim == 1 else b
    if not batch:
        return a[None], b[None]
    n, k = b.shape[-2:]
    a, b = (
        v if v.shape[:-2] == batch else xp.broadcast_to(v, (*batch, *v.shape[-2:])) for v in (a, b)
    )
    return a.reshape(-1, n, n), b.reshape(-1, n, k)


def as_read(ops, system):
    """Return the system with its matrices as they are read; what is seen in them is known already."""
    if system.band is None:
        return system
    seen = ops.xp.zeros((SEEN, len(system.a)))
    return system._replace(a=ops.vendor.read_as(system.a, *system.band, seen), band=None)


def read_all(ops, system, check_finite):
    """Return the system as it is read, all at once, and which matrices contradict that."""
    if system.band is None:
        return system, np.zeros(len(system.a), bool)
    seen = ops.xp.zeros((SEEN, len(system.a)))
    read = ops.vendor.read_as(system.a, *system.band, seen)
    (seen,) = ops.host(seen)
    if check_finite:
        require_finite(not seen[3].any(), "a")
    return system._replace(a=read, band=None), contradicting(seen, system)


def read_matrix(ops, a, structure, lower, check_finite):
    """Return the matrix that is read in a (n, n) on a device, and whether a contradicts the structure."""
    band = band_of(structure, lower, a.dtype)
    system = System(a[None], a[None], "general", band, bool(band and band[2]), False, False)
    system, apart = read_all(ops, system, check_finite)
    return system.a[0], apart[0]


def contradicting(seen, system):
    """Tell by what `vendor.read_as` has seen which matrices contradict the structure.

    As `_structure.contradicts`: mirror images may differ by rounding, or be zero; all else must be zero.
    """
    difference, size, beyond = seen[:3]
    return (beyond != 0) & ~(difference <= tolerance(system) * size)


def tolerance(system):
    """Return by how much mirror images may differ, in the largest entry; -1 where none stand for entries."""
    n, eps = system.a.shape[1], float(np.finfo(system.a.dtype).eps)
    return 4 * n * eps if system.mirrored else -1.0
