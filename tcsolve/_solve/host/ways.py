"""The ways to solve a system directly by LAPACK on the host, by the structure and the precision."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import scipy.linalg

from tcsolve._arithmetic.formats import update_named
from tcsolve._plan import Plan
from tcsolve._solution import Status
from tcsolve._solve.choice.memory import widest_panel
from tcsolve._solve.host import fp32_factors
from tcsolve._solve.host.lapack_factors import Banded, Cholesky, General, Rounded, Triangular
from tcsolve._solve.problem.structures import by_bandwidth, detected

__all__ = [
    "GENERAL",
    "GENERAL_IN_FP32",
    "LARGEST_DIRECT",
    "SINGLE",
    "Way",
    "is_single",
    "way_in_fp64",
    "ways_for",
]

# Largest n of a general matrix that is solved here with precision 'auto' or 'fp64'; the ladder takes larger
# ones.
LARGEST_DIRECT = 580
# From this n on, and for few right-hand sides, a Cholesky factorization in FP32 with refinement is faster
# than one in FP64.
LEAST_LOW_DEFINITE = 600

# From this n on, a system in FP32 is solved with FP32 factors first.
LEAST_SINGLE = 64

DEFINITE_IN_FP32 = functools.partial(Rounded.of, factor=Cholesky.of)


class Way(NamedTuple):
    """How LAPACK solves a system directly.

    Attributes
    ----------
    factor : callable
        factor(a) factors the NumPy matrix a (n, n), or its `Band`.
    failure : Status or None
        What a bad pivot means.  With None, the next way or the ladder solves the system.
    precision : str
        The name of the rung.
    plan : Plan or None
        The plan of the refinement with FP32 factors.  None for FP64 factors, and for `SINGLE`: then x
        is corrected at most twice.
    bands : (int, int) or None
        The numbers of diagonals below and above the main one of a band matrix; `factor` takes its `Band`.
    """

    factor: Callable
    failure: Status | None = None
    precision: str = "fp64"
    plan: Plan | None = None
    bands: tuple | None = None


GENERAL = Way(General.of)
TRIANGLES = {
    name + " triangular": Way(
        functools.partial(Triangular.of, lower=name == "lower"), Status.SINGULAR
    )
    for name in ("lower", "upper")
}
GENERAL_IN_FP32 = Way(Rounded.of, None, "fp32", Plan("fp32"))
# For an answer in FP32: as in SciPy, but x and rcond are tested, and FP64 factors follow if they do not pass.
SINGLE = Way(Rounded.of, None, "fp32")


def ways_for(ops, a, columns, structure, precision, dtype):
    """Return the `Way`s to try, in order, for the NumPy matrix a (n, n) and a number of right-hand sides.

    `dtype` is that of the answer.

    If none of them succeeds, the ladder follows.  With precision 'auto' or 'fp64', the bands and triangles of
    a are detected, as in SciPy, if no structure or 'banded' is asserted.
    """
    if precision in ("auto", "fp64"):
        if structure == "positive definite":
            return _definite(a, columns, precision)
        way = way_in_fp64(a, structure)
        if way is GENERAL and precision == "auto" and fp32_factors.suit(a, columns):
            return GENERAL_IN_FP32, GENERAL
        if way is GENERAL and precision == "auto" and is_single(len(a), dtype):
            return SINGLE, GENERAL
    elif structure == "positive definite":
        # The LU of the ladder does not show whether A is definite, so `routes` tests this first.
        return ()
    else:
        way = _way_of_one_panel(ops, len(a), precision)
    return (way,) if way else ()


def is_single(n, dtype):
    """Tell whether a general system with n unknowns and an answer of this dtype is first solved in FP32."""
    return n >= LEAST_SINGLE and dtype.char in "fF"


def _definite(a, columns, precision):
    """Return the `Way`s for a positive definite matrix."""
    ways = (Way(Cholesky.of, Status.NOT_POSITIVE_DEFINITE),)
    few = columns * fp32_factors.FEW_COLUMNS <= len(a)
    if precision == "auto" and len(a) >= LEAST_LOW_DEFINITE and few and a.dtype.char in "dD":
        ways = (Way(DEFINITE_IN_FP32, None, "fp32", Plan("fp32")), *ways)
    return ways


def way_in_fp64(a, structure):
    """Return the `Way` with FP64 factors for a matrix that is not asserted to be definite, or None."""
    bands = None
    if structure in (None, "banded"):
        structure, bands = (by_bandwidth if structure else detected)(a)
    if structure in ("diagonal", "tridiagonal", "banded"):
        return Way(Banded.of, Status.SINGULAR, bands=bands or scipy.linalg.bandwidth(a))
    if structure in TRIANGLES:
        return TRIANGLES[structure]
    return GENERAL if len(a) <= LARGEST_DIRECT else None


@functools.cache
def _named(precision):
    """Return the `Plan` for the name of a precision."""
    return Plan(precision)


@functools.lru_cache(maxsize=256)
def _way_of_one_panel(ops, n, precision):
    """Return the `Way` if the LU has one panel whose arithmetic is FP32.

    Below 'fp64', only trailing updates are rounded to the precision of the rung, and one panel has none.  But
    a model such as 'fp16@each' rounds every operation.
    """
    plan = precision if isinstance(precision, Plan) else _named(precision)
    if plan.update == "auto" or plan.method in ("gmres", "cg") or plan.preconditioner == "fp64":
        # Only the ladder chooses a rung ('auto'), makes the Cholesky factors of 'cg', and applies less
        # precise factors in FP64 (for 'gmres', and if the plan asks for it).
        return None
    how = update_named(plan.update)
    if how.storage == "float64" or how.rounds_each:
        return None
    if n > (plan.block or widest_panel(ops, n, plan.update)):
        return None
    return Way(
        functools.partial(Rounded.of, order="K" if how.native else "F"), None, how.name, plan
    )
