"""Systems as stacks, and the entries of each matrix that are read under its structure."""

from typing import Any, NamedTuple

import numpy as np

from tcsolve._checks import require_finite
from tcsolve._refine import stopping
from tcsolve._solution import Status, code_of
from tcsolve._solve.problem.structures import MIRRORED

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
    "has_all_entries",
    "kind_of",
    "read_all",
    "read_matrix",
    "some_of",
    "tolerance",
]

# Number of rows of the argument `seen` of `vendor.read_as`.
SEEN = 5
# The codes (see `code_of`) that are used here.
CONVERGED, ILL_CONDITIONED, NONFINITE, NOT_DEFINITE = map(
    code_of,
    (
        Status.CONVERGED,
        Status.ILL_CONDITIONED,
        Status.NONFINITE_INPUT,
        Status.NOT_POSITIVE_DEFINITE,
    ),
)
# The code of a system that has to be solved again; larger than every code of a status.
REDO = 127
TRIANGULAR = ("lower triangular", "upper triangular", "diagonal")
# The entries that are read under a structure: (below, above, mirror) as in `vendor.read_as`.  ALL is a number
# of diagonals larger than any matrix has.
ALL = 1 << 40
ALL_READ = (ALL, ALL, 0)
BANDS = {
    "diagonal": (0, 0, 0),
    "tridiagonal": (1, 1, 0),
    "upper triangular": (0, ALL, 0),
    "lower triangular": (ALL, 0, 0),
}


class System(NamedTuple):
    """Some systems: a (m, n, n) and b (m, n, k), in the dtype of x."""

    a: Any  # with a band, the matrices of the caller; without, the matrices that the structure describes
    b: Any
    kind: str  # the kind of factors, as in `vendor.factor`
    band: tuple | None  # the entries of a that are read, as in BANDS
    mirrored: bool  # True if unread entries are mirror images of others
    estimate: bool  # as in `solve_by_vendor`
    # True for one system, False for a stack.  If one general system has no verified x here, the ladder
    # solves it.
    alone: bool
    # True if rcond is computed from A^-1 and not only estimated from random vectors.  With `estimate` this
    # applies to all matrices, without it to those that may have an rcond below epsilon.
    exact: bool = False
    ax: Any = None  # A x (n, k) for the first answer x of one large system, if it was computed
    residuals: Any = (
        None  # b - A x (1, k, n) for the first x of one system, if `measure_large` computed it
    )

    @property
    def bound(self):
        return stopping.target(self.b.dtype, self.b.shape[1])

    @property
    def broken(self):
        """The code of the status after a factorization that broke down."""
        definite = self.kind == "positive definite"
        return code_of(Status.NOT_POSITIVE_DEFINITE if definite else Status.SINGULAR)

    @property
    def eps(self):
        """Machine epsilon of the dtype of x."""
        return float(np.finfo(self.b.dtype).eps)


class Part(NamedTuple):
    """The answers to some systems: x (m, n, k) on the device, everything else on the host."""

    x: Any
    codes: np.ndarray  # (m,), statuses by `code_of`, or REDO
    rconds: np.ndarray  # (m,)
    error: np.ndarray  # (m, k), backward errors
    steps: np.ndarray  # (m, k), numbers of corrections
    apart: np.ndarray  # (m,), True if entries that are not read contradict the structure
    spoilt: np.ndarray  # (m,), True if A holds NaN or Inf, also in entries that are not read


def kind_of(structure):
    """Return the kind of factors of `ops.vendor.factor` for a structure."""
    return structure if structure in ("positive definite", *TRIANGULAR) else "general"


def has_all_entries(system):
    """Tell whether the matrices are general, and `system.a` has them as they are read."""
    return system.kind == "general" and not system.band


def band_of(structure, lower, dtype):
    """Return the entries that are read under a structure, as in BANDS, or None for all."""
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


def some_of(ops, system, which):
    """Return the systems `which`, an array of int on the host; None stands for all."""
    if which is None or len(which) == len(system.a):
        return system
    here = ops.xp.asarray(which)
    return system._replace(a=system.a[here], b=system.b[here])


def as_read(ops, system):
    """Return the system with the matrices that its structure describes, without checking them again."""
    if system.band is None:
        return system
    seen = ops.xp.zeros((SEEN, len(system.a)))
    return system._replace(a=ops.vendor.read_as(system.a, *system.band, seen), band=None)


def read_all(ops, system, check_finite):
    """Return (the system with the matrices that its structure describes, which matrices contradict it)."""
    if system.band is None:
        return system, np.zeros(len(system.a), bool)
    seen = ops.xp.zeros((SEEN, len(system.a)))
    read = ops.vendor.read_as(system.a, *system.band, seen)
    (seen,) = ops.host(seen)
    if check_finite:
        require_finite(not seen[3].any(), "a")
    return system._replace(a=read, band=None), contradicting(seen, system)


def read_matrix(ops, a, structure, lower, check_finite):
    """Return (the matrix that the structure describes, whether a contradicts it), for a (n, n)."""
    band = band_of(structure, lower, a.dtype)
    system = System(a[None], a[None], "general", band, bool(band and band[2]), False, False)
    system, apart = read_all(ops, system, check_finite)
    return system.a[0], apart[0]


def contradicting(seen, system):
    """Tell which matrices contradict the structure, from the array `seen` of `vendor.read_as`.

    The rule is that of `structures.contradicts`, but here a NaN that is read does not contradict either.
    Mirror images may be zero, or differ by rounding.  All other unread entries must be zero.
    """
    difference, size, beyond = seen[:3]
    return (beyond != 0) & ~(difference <= tolerance(system) * size)


def tolerance(system):
    """Return the largest allowed difference of mirror images, relative to the largest entry.

    It is -1 for a structure without mirror images, so that no difference is allowed.
    """
    n, eps = system.a.shape[1], float(np.finfo(system.a.dtype).eps)
    return 4 * n * eps if system.mirrored else -1.0
