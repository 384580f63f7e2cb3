"""Systems on a device that are solved with as little work of the host as possible.

These are small systems, which one launch solves and judges, and single systems and short stacks that are
factored or eliminated by several launches.
`plain_answer_there` says which systems are plain.
"""

import functools
import math
import time

import numpy as np

from tcsolve._arrays import is_cupy
from tcsolve._backends.select import ops_for
from tcsolve._checks import STRUCTURES
from tcsolve._solution import contradicted, raise_or_warn
from tcsolve._solve.vendor.factors import Later
from tcsolve._solve.vendor.judged import PROBES, settled_few
from tcsolve._solve.vendor.measure import limits
from tcsolve._solve.vendor.result import solution_of
from tcsolve._solve.vendor.solve import (
    answer_by_factors,
    require_finite_systems,
    solved_together,
    suits_vendor,
)
from tcsolve._solve.vendor.system import System, band_of, kind_of

__all__ = ["plain_answer_there"]

# The largest n for this module; for larger systems the calls of the host do not matter.
LARGEST = 2048
# If one launch solves the systems, and more than one in RARE of them is not plain, the general code solves
# all of them.
RARE = 4


def plain_answer_there(a, b, assume_a, lower, check_finite):
    """Return x for CuPy arrays, or None if the general code must solve the systems.

    The general code must solve systems that this module has no method for, and a single general system that
    the ladder must solve.  If one launch solves the systems, and more than a quarter of them are not plain,
    the general code must solve all of them.

    A plain system is regular, meets its bound, has an rcond of at least epsilon, and agrees with `assume_a`.
    The statuses of systems that are not plain raise the usual errors and warnings.  x has the bits that the
    general code would give.  The arguments are those of `tcsolve.solve`.
    """
    if not (is_cupy(a) and is_cupy(b)) or a.dtype != b.dtype or type(lower) is not bool:
        return None
    form = _form_of(a.shape, b.shape, a.dtype.char, assume_a, lower)
    if form is None:
        return None
    ops = ops_for(a, b)
    if ops.vendor is None:
        return None
    (shape, kind, band, of_one), dtype = form, a.dtype
    m, n, k = shape
    at_once = ops.vendor.bytes_at_once(of_one, shape, dtype, kind, band) is not None
    args = a.reshape(m, n, n), b.reshape(shape), kind, band, bool(band and band[2]), False, of_one
    system = System(*args, exact=at_once)
    if not at_once:
        if not (_takes_one(ops, kind, n, k) if of_one else solved_together(ops, system)):
            return None
        batch = a.shape[:-2]
        found = ops.guarded(answer_by_factors)(ops, system, batch, b.shape, check_finite)
        if found is None:
            return None
        x, report = found
        if report is not None:
            raise_or_warn(report)
        return x
    judged = ops.guarded(ops.vendor.solve_and_judge)(*args[:4], limits(system), alone=of_one)
    x, few, _ = judged
    if len(few) * RARE > m:
        return None
    if len(few):
        ops.guarded(_settle_doubtful)(ops, system, judged, a.shape[:-2], check_finite)
    return x.reshape(b.shape)


def _takes_one(ops, kind, n, k):
    return kind != "general" or suits_vendor(ops, n, k)


@functools.lru_cache(maxsize=256)
def _form_of(of_a, of_b, char, assume_a, lower):
    """Return ((m, n, k), kind, band, whether it is no stack) for two shapes, or None if they do not fit.

    kind and band are those of `System`.
    """
    n = of_a[-1] if len(of_a) > 1 and of_b else 0
    if char not in "fdFD" or assume_a not in STRUCTURES or not 0 < n <= LARGEST or of_a[-2] != n:
        return None
    structure, vector = STRUCTURES[assume_a], len(of_a) == 2 and len(of_b) == 1
    kind, m, k = kind_of(structure), math.prod(of_a[:-2]), 1 if vector else of_b[-1]
    # For 'positive definite', a negative 1 x 1 matrix is an error only in a stack of several.  The general
    # code decides this.
    if (n == 1 and (kind == "positive definite" or m == 1)) or 0 in (m, k):
        return None
    if of_b != (*of_a[:-1], *(() if vector else (k,))):
        return None
    return (m, n, k), kind, band_of(structure, lower, np.dtype(char)), len(of_a) == 2


def _settle_doubtful(ops, system, judged, batch, check_finite):
    """Replace the answers to doubtful systems, and raise or warn as their statuses say."""
    start, (_, few, _) = time.perf_counter(), judged
    part = settled_few(ops, system, *judged, Later(ops, system, PROBES))
    require_finite_systems(ops, system, part, check_finite, few)
    solution = solution_of(part, ops, part.codes.shape, part.x.shape, start, 0)
    places = np.unravel_index(few, batch)
    raise_or_warn(contradicted(solution, part.apart), places=np.stack(places, axis=1))
