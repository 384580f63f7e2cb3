"""Systems on a device that are solved with as little work of the host as possible.

These systems are of two kinds: small ones, which one launch solves and judges; and single systems and short
stacks, which several launches solve and measure.  `plain_answer_there` says which systems are plain.
"""

import functools
import math
import time
from typing import NamedTuple

import numpy as np

from tcsolve._arrays import is_aligned, is_cupy
from tcsolve._backends.select import cupy_ops_for
from tcsolve._checks import STRUCTURES
from tcsolve._outcome import raise_or_warn, warn_of_rcond
from tcsolve._solution import contradicted
from tcsolve._solve.problem.zero_pivots import singular_triangles
from tcsolve._solve.vendor.factors import Later
from tcsolve._solve.vendor.judged import PROBES, settled_few
from tcsolve._solve.vendor.measure import limits, rconds_alone
from tcsolve._solve.vendor.result import solution_of
from tcsolve._solve.vendor.solve import (
    answer_by_factors,
    require_finite_systems,
    solved_together,
    suits_vendor,
)
from tcsolve._solve.vendor.system import System, band_of, has_all_entries, kind_of

__all__ = ["plain_answer_there"]

# The largest n for this module; for larger systems the calls of the host do not matter.
LARGEST = 2048
# If one launch solves the systems, and more than one in RARE of them is not plain, the general code solves
# all of them.
RARE = 4
# If at most FEW systems are doubtful, it is first tested whether only their rcond makes them doubtful.
FEW = 16


def plain_answer_there(a, b, assume_a, lower, check_finite):
    """Return x for CuPy arrays, or None if the general code must solve the systems.

    The general code must solve systems that this module has no method for, and a single general system that
    the ladder must solve.  If one launch solves the systems, and more than a quarter of them are not plain,
    the general code must solve all of them.

    A plain system is finite and regular, has no extreme norms, meets its bound, has an rcond of at least
    epsilon, and agrees with `assume_a`.
    The statuses of systems that are not plain raise the usual errors and warnings.  x has the bits that the
    general code would give.  The arguments are those of `tcsolve.solve`.
    """
    if not (is_cupy(a) and is_cupy(b)) or a.dtype != b.dtype or type(lower) is not bool:
        return None
    if not (is_aligned(a) and is_aligned(b)):  # the general code raises the error
        return None
    ops = cupy_ops_for(a, b)
    device = a.size and a.data.device_id
    form = _form_of(ops, device, (a.shape, b.shape), a.dtype.char, assume_a, lower)
    if form is None:
        return None
    (m, n, _), of_x, batch = form.shape, b.shape, a.shape[:-2]
    if a.ndim != 3:
        a, b = a.reshape(m, n, n), b.reshape(form.shape)
    if form.limits is None:
        return _answer_by_factors(ops, form.system(a, b), batch, of_x, check_finite)
    args = a, b, form.kind, form.band, form.limits
    judged = ops.guarded(ops.vendor.solve_and_judge)(*args, alone=form.alone)
    x, few, _ = judged
    if len(few):
        if len(few) * RARE > m:
            return None
        with np.errstate(all="ignore"):
            ops.guarded(_settle_doubtful)(ops, form.system(a, b), judged, batch, check_finite)
    return x if len(of_x) == 3 else x.reshape(of_x)


class _Form(NamedTuple):
    """What follows from the shapes, the dtype, and `assume_a`."""

    shape: tuple  # (m, n, k)
    kind: str  # as in `System`, and so are band and alone
    band: tuple | None
    alone: bool
    # The argument of `vendor.solve_and_judge`, or None if one launch does not solve the systems.
    limits: tuple | None

    def system(self, a, b):
        """Return the `System` for a (m, n, n) and b (m, n, k)."""
        args = self.kind, self.band, bool(self.band and self.band[2]), False, self.alone
        return System(a, b, *args, exact=self.limits is not None)


@functools.lru_cache(maxsize=256)
def _form_of(ops, device, shapes, char, assume_a, lower):
    """Return the `_Form` for the shapes of a and b, on the current device, or None if they do not fit."""
    of_a, of_b = shapes
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
    dtype, alone = np.dtype(char), len(of_a) == 2
    how = kind, band_of(structure, lower, dtype), alone
    if ops.vendor.plan((m, n, k), dtype, *how[:2], 0, alone=alone).launch_bytes is None:
        is_for_ladder = alone and kind == "general" and not suits_vendor(ops, n, k)
        return None if is_for_ladder else _Form((m, n, k), *how, None)
    like = functools.partial(np.broadcast_to, np.zeros((), dtype))
    system = _Form((m, n, k), *how, ()).system(like((m, n, n)), like((m, n, k)))
    return _Form((m, n, k), *how, limits(system))


def _answer_by_factors(ops, system, batch, shape, check_finite):
    """Return x, or None if the general code must solve the systems; raise or warn as their statuses say."""
    if not (system.alone or solved_together(ops, system)):
        return None
    with np.errstate(all="ignore"):
        found = ops.guarded(answer_by_factors)(ops, system, batch, shape, check_finite)
    if found is None:
        return None
    x, report = found
    if report is not None:
        raise_or_warn(report)
    return x


def _settle_doubtful(ops, system, judged, batch, check_finite):
    """Replace the answers to doubtful systems, and raise or warn as their statuses say."""
    start, (_, few, board) = time.perf_counter(), judged
    if board is not None and len(few) <= FEW and (rconds := rconds_alone(board, system)):
        rconds = np.array(rconds)
        if not (has_all_entries(system) and singular_triangles(ops, system.a, few, rconds).size):
            if (bad := np.flatnonzero(rconds < system.eps)).size:
                warn_of_rcond(float(rconds[bad[0]]), np.unravel_index(few[bad[0]], batch))
            return
    part = settled_few(ops, system, *judged, Later(ops, system, PROBES))
    require_finite_systems(ops, system, part, check_finite, few)
    solution = solution_of(part, ops, part.codes.shape, part.x.shape, start, 0)
    places = np.unravel_index(few, batch)
    raise_or_warn(contradicted(solution, part.apart), places=np.stack(places, axis=1))
