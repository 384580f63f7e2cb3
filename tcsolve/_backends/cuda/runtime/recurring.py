"""Which sizes were used before, and which work was launched before.

A large matrix gets a tape if its size was used before, and its work is recorded when it is repeated.
"""

import collections

from tcsolve._locks import ForkSafeLock

__all__ = ["asked_before", "forget", "was_asked"]

# Largest number of keys that are remembered after their first use.
MOST_REMEMBERED = 256

_lock = ForkSafeLock()
_remembered = collections.OrderedDict()


def was_asked(key):
    """Tell whether `key` was asked for before."""
    with _lock:
        return key in _remembered


def asked_before(key):
    """Tell whether `key` was asked for before, and remember it."""
    with _lock:
        known = key in _remembered
        _remembered[key] = True
        _remembered.move_to_end(key)
        if len(_remembered) > MOST_REMEMBERED:
            _remembered.popitem(last=False)
        return known


def forget():
    """Forget all keys."""
    with _lock:
        _remembered.clear()
