"""Counters of launches, from which tests learn which kernels a call has launched."""

import collections
import contextlib

__all__ = ["counted", "counters", "note"]

# The active counters.  If there are none, a launch counts nothing.
counters = []


@contextlib.contextmanager
def counted():
    """Yield a Counter of the launches in the with block, in all threads: {entry of a kernel: number}.

    A launch that is recorded in a graph counts once.  A replay of the graph does not count.
    """
    counter = collections.Counter()
    counters.append(counter)
    try:
        yield counter
    finally:
        counters[:] = [other for other in counters if other is not counter]


def note(entry):
    """Count a launch of an entry."""
    for counter in list(counters):
        counter[entry] += 1
