"""Locks of processes that fork: one that a child finds free, and one that a fork waits for."""

import os
import threading
import weakref

__all__ = ["ForkSafeLock", "no_fork"]

_locks = weakref.WeakSet()
# In a block `with no_fork`, a fork by another thread waits for the end of the block.  An import needs this: a
# child waits for ever for an import that another thread of its parent has begun.
no_fork = threading.RLock()


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
    os.register_at_fork(
        before=no_fork.acquire, after_in_parent=no_fork.release, after_in_child=no_fork.release
    )
