"""For processes that fork: `ForkSafeLock` is free in the child; `delays_fork` and `no_fork` delay a fork."""

import os
import threading
import weakref

__all__ = ["ForkSafeLock", "delays_fork", "no_fork"]

# A fork waits at most this many seconds for the call of each other thread.
LONGEST_WAIT = 10.0
_locks = weakref.WeakSet()
# In a block `with no_fork`, a fork by another thread waits for the end of the block.  An import needs this: a
# child waits for ever for an import that another thread of its parent has begun.
no_fork = threading.RLock()


class ForkSafeLock:
    """A reentrant lock that is free in a forked child, even if another thread of the parent held it.

    Only the thread that forks exists in the child.  Any other thread would never release the lock there.

    Attributes
    ----------
    interrupted : bool
        True if another thread held the lock at the fork.  The data that it was changing may then be
        inconsistent.  If the child can use the data, the code that owns them repairs them, and then sets
        this to False.
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


class _Calls:
    """The calls of one thread during which a fork by another thread waits."""

    every = weakref.WeakSet()
    # `forking` is held while a thread forks.  `is_pending` tells whether a thread forks or waits to fork, and
    # `taken` has the locks that the forking thread has acquired.
    forking, is_pending, taken = threading.RLock(), False, ()

    def __init__(self):
        self.lock, self._depth = threading.RLock(), 0
        _Calls.every.add(self)

    def __enter__(self):
        if not self._depth:
            if _Calls.is_pending:  # do not begin another call before the fork
                with _Calls.forking:
                    pass
            self.lock.acquire()
        self._depth += 1

    def __exit__(self, *_):
        self._depth -= 1
        if not self._depth:
            self.lock.release()


_thread = threading.local()


def delays_fork(function):
    """Decorate a function: a fork by another thread waits until a call of the function has ended.

    OpenBLAS stops its threads at a fork.  A thread that waits for their results then may wait for ever.
    """

    def call(*args, **kwargs):
        try:
            calls = _thread.calls
        except AttributeError:
            calls = _thread.calls = _Calls()
        with calls:
            return function(*args, **kwargs)

    return call


def _before_fork():
    _Calls.forking.acquire()
    _Calls.is_pending = True
    locks = [calls.lock for calls in list(_Calls.every)]
    _Calls.taken = [lock for lock in locks if lock.acquire(timeout=LONGEST_WAIT)]
    no_fork.acquire()


def _after_fork():
    no_fork.release()
    for lock in _Calls.taken:
        lock.release()
    _Calls.taken, _Calls.is_pending = (), False
    _Calls.forking.release()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_renew_all)
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )
