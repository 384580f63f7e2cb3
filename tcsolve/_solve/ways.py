"""The ways to solve a system directly by LAPACK on the host, by the structure and the precision."""

import functools
from collections.abc import Callable
from typing import NamedTuple

from tcsolve._arithmetic.formats import UPDATES
from tcsolve._plan import Plan
from tcsolve._solution import Status
from tcsolve._solve.lapack_factors import Banded, Cholesky, General, Rounded, Triangular
from tcsolve._solve.memory import widest_panel
from tcsolve._solve.structures import detected

__all__ = ["Way", "way_for"]

# Up to this n, LAPACK in FP64 is the fastest rung on a CPU.
LARGEST = 512


class Way(NamedTuple):
    """How LAPACK solves a system directly.

    Attributes
    ----------
    factor : callable
        factor(a) factors the NumPy matrix a (n, n).
    failure : Status or None
        What a zero pivot means; None leaves the system to the ladder.
    precision : str
        The name of the rung.
    plan : Plan or None
        The plan of the refinement with FP32 factors; None for FP64 factors.
    """

    factor: Callable
    failure: Status | None = None
    precision: str = "fp64"
    plan: Plan | None = None


def way_for(ops, a, structure, precision):
    """Return the `Way` for the NumPy matrix a (n, n), or None for the ladder.

    Without an asserted structure, or with 'banded', the bands and triangles of a are detected, as in SciPy.
    """
    special = structure not in (None, "general")
    if precision == "auto" or special and precision == "fp64":
        return _way_in_fp64(a, structure)
    # The ladder tells first if A is not positive definite, because its factors do not show that.
    return None if structure == "positive definite" else _way_of_one_panel(ops, a, precision)


def _way_in_fp64(a, structure):
    if structure in (None, "banded"):
        structure = detected(a)
    if structure in ("diagonal", "tridiagonal", "banded"):
        return Way(Banded.of, Status.SINGULAR)
    if structure == "positive definite":
        return Way(Cholesky.of, Status.NOT_POSITIVE_DEFINITE)
    if structure in ("upper triangular", "lower triangular"):
        factor = functools.partial(Triangular.of, lower=structure == "lower triangular")
        return Way(factor, Status.SINGULAR)
    return Way(General.of) if len(a) <= LARGEST else None


def _way_of_one_panel(ops, a, precision):
    """Return the `Way` if the LU has one panel, whose arithmetic is FP32 for every rung below 'fp64'.

    Only trailing updates are rounded to the precision of the rung, and one panel has none.
    """
    plan = precision if isinstance(precision, Plan) else Plan(precision)
    how = UPDATES[plan.update]
    if how.storage == "float64":
        return None
    if len(a) > (plan.block or widest_panel(ops, len(a), plan.update)):
        return None
    return Way(
        functools.partial(Rounded.of, order="K" if how.native else "F"), None, how.name, plan
    )
