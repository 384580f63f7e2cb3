"""Columns of right-hand sides: their histories, their dtypes, and their real and imaginary parts."""

import numpy as np

from tcsolve._arithmetic.matrix_parts import column_tops, real_parts
from tcsolve._solution import HistoryPoint

__all__ = ["ended", "join_parts", "largest_parts", "like", "spread", "told"]


def told(rung, before, point):
    """Return the `HistoryPoint` for a `Point` of a rung; each column had `before` steps on earlier rungs."""
    return HistoryPoint(rung, before + point.step, point.error, point.estimated)


def spread(point, good):
    """Return a point for all columns from a point for the columns where `good` is True.

    The other columns have 0 steps, and NaN as error.
    """
    step, error = np.zeros(len(good), int), np.full(len(good), np.nan)
    step[good], error[good] = point.step, point.error
    return point._replace(step=step, error=error)


def ended(history, rung, steps, error):
    """Return the history with a last point that has the total number of steps and the errors of the answer.

    These errors differ from those of the loop if the loop has measured a scaled system, or x before it was
    rounded.  Then this point is appended, and the points of the loop stay as they are.
    """
    last = HistoryPoint(rung, steps, error, False)
    if history and not history[-1].estimated and np.array_equal(history[-1].step, steps):
        if np.array_equal(history[-1].error, error, equal_nan=True):
            return tuple(history)
    return (*history, last)


def like(x, dtype):
    """Return a dtype with the precision of `dtype`: complex if x is complex, else real."""
    single = dtype.char in "fF"
    if x.dtype.kind == "c":
        return np.dtype(np.complex64 if single else np.complex128)
    return np.dtype(np.float32 if single else np.float64)


def largest_parts(ops, v):
    """Return the largest real or imaginary part of each column of v; the moduli might overflow."""
    largest = [column_tops(ops, part) for part in real_parts(v)]
    return ops.xp.maximum(*largest) if v.dtype.kind == "c" else largest[0]


def join_parts(xp, found):
    """Return the result `found` for complex columns.

    The columns of `found` are all real parts, then all imaginary parts.  Steps, errors of the
    history and `forward` become the larger ones of both parts, and `error` becomes None.
    """
    k = found.x.shape[1] // 2
    # Not real + 1j * imaginary: 1j * inf has NaN in its real part.
    x = xp.empty((len(found.x), k), np.result_type(found.x, np.complex64))
    x.real[...], x.imag[...] = found.x[:, :k], found.x[:, k:]

    def larger(v):
        return v.reshape(2, k).max(axis=0)

    history = [p._replace(step=larger(p.step), error=larger(p.error)) for p in found.history]
    forward = None if found.forward is None else larger(found.forward)
    steps = larger(found.steps)
    return found._replace(x=x, error=None, steps=steps, history=history, forward=forward)
