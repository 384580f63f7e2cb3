"""Systems that one launch solves and judges: the host looks only at those that are doubtful."""

import numpy as np

from tcsolve._solve.vendor.factors import Later
from tcsolve._solve.vendor.measure import MEASURED, limits
from tcsolve._solve.vendor.settle import settled
from tcsolve._solve.vendor.system import SEEN, Part

__all__ = ["PROBES", "settled_few", "solve_and_judge", "solve_at_once", "with_few"]

# Number of random vectors that are solved for together with b; see `look_at`.
PROBES = 2


def solve_and_judge(ops, system):
    """Return the `Part` of a long stack that one launch solves; the host looks at the doubtful systems."""
    system = system._replace(exact=True)
    args = *system[:4], limits(system)
    x, is_doubtful, doubts, board = ops.vendor.solve_and_judge(*args, alone=system.alone)
    few = ops.xp.flatnonzero(is_doubtful) if doubts else ()
    return with_few(ops, system, x, few, lambda some: _judged_again(ops, some, x, few, board))


def settled_few(ops, system, x, few, board):
    """Return (the doubtful systems `few` of a stack, their `Part`), from the results of `solve_and_judge`."""
    some = system._replace(a=system.a[few], b=system.b[few])
    of_some, factors, board = _judged_again(ops, some, x, few, board)
    return some, settled(ops, some, of_some, factors, ops.host(board)[0])


def _judged_again(ops, some, x, few, board):
    """Return x, the factors and the board of the systems `few`; without a board they are solved again."""
    factors = Later(ops, some, PROBES)
    if board is not None:
        return x[few], factors, board[:, few]
    board = ops.xp.zeros((SEEN + MEASURED + 2 * some.b.shape[2], len(some.a)))
    return solve_at_once(ops, some, board), factors, board


def solve_at_once(ops, system, board):
    args = *system[:4], system.bound, board
    return ops.vendor.solve_at_once(*args, alone=system.alone, exact=system.estimate)


def with_few(ops, system, x, few, measured):
    """Return the `Part` of a long stack; the host checks only the systems `few`, which are doubtful.

    For the other systems, the reported errors are the bound that they meet.  All systems, `few` included,
    report one rcond: the limit below which a system is doubtful, or the smallest rcond in `few` if that is
    smaller.

    Parameters
    ----------
    ops : Ops
    system : System
    x : array, shape (m, n, k)
        The answers; those of `few` are replaced.
    few : array of int on the device, or ()
    measured : callable
        Returns x, the factors and the board of these systems.
    """
    m, _, k = system.b.shape
    least, no = limits(system)[1], np.broadcast_to(np.False_, m)
    codes, apart, spoilt = np.broadcast_to(np.int8(0), m), no, no
    steps = np.broadcast_to(np.int64(0), (m, k))
    error = np.broadcast_to(np.float64(system.bound), (m, k))
    if len(few):
        some = system._replace(a=system.a[few], b=system.b[few])
        of_some, factors, board = measured(some)
        found = settled(ops, some, of_some, factors, ops.host(board)[0])
        x[few] = found.x
        (at,) = ops.host(few)
        codes, apart, spoilt, steps, error = map(np.copy, (codes, apart, spoilt, steps, error))
        codes[at], apart[at], spoilt[at] = found.codes, found.apart, found.spoilt
        steps[at], error[at] = found.steps, found.error
        least = np.fmin.reduce(found.rconds, initial=least)
    return Part(x, codes, np.broadcast_to(np.float64(least), m), error, steps, apart, spoilt)
