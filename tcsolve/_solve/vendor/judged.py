"""Systems that one launch solves and judges: the host looks only at those that are doubtful."""

import numpy as np

from tcsolve._solve.vendor.factors import Later
from tcsolve._solve.vendor.measure import MEASURED, limits
from tcsolve._solve.vendor.settle import settled, settled_as_they_are
from tcsolve._solve.vendor.system import SEEN, Part, some_of

__all__ = ["PROBES", "settled_few", "solve_and_judge", "solve_at_once", "with_few"]

# Number of random vectors that `factor_and_solve` takes with b.  A launch that solves chooses its own number.
PROBES = 2


def solve_and_judge(ops, system):
    """Return the `Part` of a long stack that one launch solves; the host looks at the doubtful systems."""
    system = system._replace(exact=True)
    args = *system[:4], limits(system)
    found = ops.vendor.solve_and_judge(*args, alone=system.alone)
    return with_few(ops, system, *found, Later(ops, system, PROBES))


def settled_few(ops, system, x, few, board, factors):
    """Return the `Part` of the systems `few`, and store their final answers in x.

    Parameters
    ----------
    ops : Ops
    system : System
        All systems.
    x : array, shape (m, n, k)
        All answers.  If the answers of `few` need no change, x of the result is this array.
    few : array of int on the host
    board : array on the host, or None
        The measured numbers of these systems.  Without them, the systems are solved again.
    factors : factors of all systems
    """
    if board is not None and (part := settled_as_they_are(ops, system, x, few, board)):
        return part
    here, some = ops.xp.asarray(few), some_of(ops, system, few)
    if board is None:
        board = ops.xp.zeros((SEEN + MEASURED + 2 * some.b.shape[2], len(few)))
        of_some = solve_at_once(ops, some, board)
        (board,) = ops.host(board)
    else:
        of_some = x[here]
    part = settled(ops, some, of_some, factors.taken(few), board)
    x[here] = part.x
    return part


def solve_at_once(ops, system, board):
    args = *system[:4], system.bound, board
    return ops.vendor.solve_at_once(*args, alone=system.alone, exact=system.estimate)


def with_few(ops, system, x, few, board, factors):
    """Return the `Part` of a long stack; the host checks only the systems `few`, which are doubtful.

    For the other systems, the reported errors are the bound that they meet.  All systems, `few` included,
    report one rcond: the limit below which a system is doubtful, or the smallest rcond in `few` if that is
    smaller.  The arguments are those of `settled_few`.
    """
    m, _, k = system.b.shape
    least, no = limits(system)[1], np.broadcast_to(np.False_, m)
    codes, apart, spoilt = np.broadcast_to(np.int8(0), m), no, no
    steps = np.broadcast_to(np.int64(0), (m, k))
    error = np.broadcast_to(np.float64(system.bound), (m, k))
    if len(few):
        found = settled_few(ops, system, x, few, board, factors)
        codes, apart, spoilt, steps, error = map(np.copy, (codes, apart, spoilt, steps, error))
        codes[few], apart[few], spoilt[few] = found.codes, found.apart, found.spoilt
        steps[few], error[few] = found.steps, found.error
        least = np.fmin.reduce(found.rconds, initial=least)
    return Part(x, codes, np.broadcast_to(np.float64(least), m), error, steps, apart, spoilt)
