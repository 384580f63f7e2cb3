"""A lock that a forked child finds free."""

import os
import threading
import weakref

__all__ = ["ForkSafeLock"]

_locks = weakref.WeakSet()


class ForkSafeLock:
    """A reentrant lock that is free in a forked child, even if a thread of the parent held it.

    That thread does not exist in the child, so it would never release the lock.

    Attributes
    ----------
    interrupted : bool
        Whether a thread held it at a fork: what that thread was changing may be half done.  The owner of the
        lock repairs it, and sets this to False.
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


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_renew_all)
