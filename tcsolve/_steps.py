"""The steps of a public call, so that a test can count them.

- 'check': the arguments are checked.
- 'place': the device that computes is determined.
- 'guard': from here on, missing memory raises a DeviceMemoryError.

A call takes no step twice, except that a call that moves its arrays guards both devices.
"""

import contextlib
import functools

__all__ = ["guarded", "observed", "step"]

_lists = []


def step(name):
    """Decorate the function that does a step."""

    def decorate(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            for seen in _lists:
                seen.append(name)
            return function(*args, **kwargs)

        return call

    return decorate


@contextlib.contextmanager
def observed():
    """Yield a list; each step of the calls in the with block is appended to it."""
    seen = []
    _lists.append(seen)
    try:
        yield seen
    finally:
        _lists[:] = [other for other in _lists if other is not seen]


@step("guard")
def guarded(ops, function, again=True):
    """Return a function that calls `function`, and raises a DeviceMemoryError when memory runs out."""
    return ops.guarded(function, again)
