"""The steps of a public call: tests count them, and the command shows them.

- 'check': the arguments are checked.
- 'place': the device that computes is determined.
- 'guard': from here on, missing memory of a device raises a DeviceMemoryError.
- 'move': the copies of a and b to another device begin.
- 'moved': these copies are complete.

A call takes no step twice, with two exceptions.  A call that moves its arrays guards both devices.  A call
that makes other public calls repeats their steps.
"""

import contextlib

__all__ = ["guarded", "note", "observed"]

_lists = []


def note(step):
    """Note that a step begins; the function that does the step calls this."""
    for seen in _lists:
        seen.append(step)


@contextlib.contextmanager
def observed():
    """Yield a list; each step of the calls in the with block is appended to it."""
    seen = []
    _lists.append(seen)
    try:
        yield seen
    finally:
        _lists[:] = [other for other in _lists if other is not seen]


def guarded(ops, function, again=True):
    """Return a function that calls `function`; a DeviceMemoryError tells that a device has no memory left.

    `again` is as for `Ops.guarded`.
    """
    note("guard")
    return ops.guarded(function, again)
