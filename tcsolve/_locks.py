"""A lock that a forked child finds free."""

import os
import threading
import weakref

__all__ = ["ForkSafeLock"]

_locks = weakref.WeakSet()


class ForkSafeLock:
    """A reentrant lock that is free in a forked child, even if a thread of the parent held it.

    Only the thread that forks exists in the child.  Any other thread would never release the lock there.

    Attributes
    ----------
    interrupted : bool
        True if another thread held the lock at the fork.  The data that it was changing may then be
        inconsistent.  The code that owns the lock repairs the data and sets this to False.
    """

    def __init__(self):
        self._lock = threading.RLock()
        self.interrupted = False
        _locks.add(self)

    def __enter__(self):
        self._lock.acquire()
        return self

    def __exit__(self, *_):
        self._lock.release()

    def _renew(self):
        if self._lock.acquire(blocking=False):  # free, or held by the thread that forked
            self._lock.release()
        else:
            self._lock, self.interrupted = threading.RLock(), True


def _renew_all():
    for lock in list(_locks):
        lock._renew()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_renew_all)
