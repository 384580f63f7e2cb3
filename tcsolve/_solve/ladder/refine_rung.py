"""Solves with the factors of the current rung, and refinement with them.

Refinement may take at most about as long as a solve with the next rung.

Each function takes a `Ladder`, or a `TransposedLadder`.
"""

import math

import numpy as np

from tcsolve._arithmetic.formats import update_named
from tcsolve._backends.cpu.blas import matmul
from tcsolve._refine import stopping
from tcsolve._refine.loop import refine_columns
from tcsolve._solve.choice.cost_model import krylov_worth, step_budget, steps_worth

__all__ = ["applied_in_fp64", "invert", "operator_of", "refine_with", "worth"]

# Up to this n, and for at least n columns, a product with A**-1 takes less time on the host than triangular
# solves in FP32.
MOST_INVERTED = 512


def invert(ladder, v, adjoint=False, exponent=0):
    """Return approximately A**-1 v (or A**-H v) times 2**exponent; see `System.invert`."""
    return ladder.system.invert(ladder.rung.correct, v, adjoint, exponent)


def operator_of(ladder):
    """Return the `Operator` of the refinement with the current factors."""
    rung = ladder.rung
    return ladder.system.operator(rung.scaling, rung.scaled_norm)


def refine_with(ladder, rhs, bound, ahead=None, *, operator=None, precondition=None, most=math.inf):
    """Refine with the current factors, by at most `most` steps; `ahead` is the result of `Ladder.ahead`.

    `operator` and `precondition` are for `refine_columns`; by default they are those of the factors.
    """
    n, k = rhs.shape
    rungs = ladder.precision, ladder.following(k)
    budget, is_complex = ladder.plan.max_steps, ladder.system.is_complex
    if budget is None:
        budget = step_budget(*rungs, n, k, ladder.rates, is_complex=is_complex)
    precise = None
    if precondition is None:
        precondition, precise = _preconditioners(ladder, rungs[1])
    state = refine_columns(
        ladder.system.ops,
        operator or operator_of(ladder),
        rhs,
        _correction(ladder, n, k),
        ladder.plan,
        bound,
        max_steps=int(min(budget, most)),
        worth=worth(ladder, n, k),
        krylov_worth=worth(ladder, n, k, krylov_worth),
        sure=stopping.SURE,
        precondition=precondition,
        precise=precise,
        ahead=ahead() if ahead else (),  # waits, so it comes last
    )
    ladder.note_bytes(k, state.kept)
    return state


def _correction(ladder, n, k):
    """Return the function that multiplies n x k residuals by A**-1 from the current factors."""
    system, correct = ladder.system, ladder.rung.correct
    if system.ops.device != "cpu" or _in_fp64(ladder) or n > min(k, MOST_INVERTED):
        return correct
    inverse = correct(np.eye(n, dtype=system.wide))
    return lambda r: matmul(inverse, r)


def worth(ladder, n, k, count=steps_worth):
    """Return how many corrections of all k columns are worth their time, compared with the next rung.

    `count` is the function of the cost model that counts them.  Where the caller limits the steps, the number
    is infinite.
    """
    if ladder.plan.max_steps is not None:
        return math.inf
    rungs, is_complex = (ladder.precision, ladder.following(k)), ladder.system.is_complex
    return count(*rungs, n, k, ladder.rates, is_complex=is_complex)


def _preconditioners(ladder, following):
    """Return `precondition` and `precise` for `refine_columns`."""
    which, method = ladder.plan.preconditioner, ladder.plan.method
    if method == "gmres" and which == "auto":
        which = "fp64"
    # If a rung follows, it takes less time than a second try with the current factors.
    wanted = which == "fp64" or which == "auto" and following is None
    if not wanted or method == "ir" or not _can_widen(ladder):
        return None, None
    wide = applied_in_fp64(ladder)
    return (wide, None) if which == "fp64" else (None, wide)


def applied_in_fp64(ladder):
    """Return a function that applies the current factors in FP64; its first call converts them."""
    return lambda r: ladder.widened().correct(r)


def _in_fp64(ladder):
    return update_named(ladder.precision).storage == "float64"


def _can_widen(ladder):
    """Tell whether the factors are not in FP64, and free memory suffices for a copy in FP64."""
    if _in_fp64(ladder):
        return False
    needed = ladder.system.a.size * ladder.system.wide.itemsize
    return ladder.system.ops.free_bytes(needed) >= needed
