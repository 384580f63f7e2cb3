"""The results of a slow function, which threads compute before the results are needed."""

import atexit
import collections
import os
import threading
from concurrent.futures import Future

from tcsolve._hardware import cores
from tcsolve._locks import ForkSafeLock

__all__ = ["SideBySide"]


class SideBySide:
    """The results of function(key), which should run without Python's lock for most of its time.

    At the end of the process, only the calls that are running are waited for.

    Parameters
    ----------
    function : callable
        May raise; then `get` raises the same error.
    threads : int, optional
        Largest number of calls at the same time; by default one per core.
    """

    def __init__(self, function, threads=None):
        self._function, self._threads = function, threads or cores()
        self._lock = ForkSafeLock()
        self._begin()
        atexit.register(self._end)
        if hasattr(os, "register_at_fork"):  # Windows has no fork
            os.register_at_fork(after_in_child=self._begin)  # the child has no threads

    def _begin(self):
        self._waiting, self._futures, self._started, self._workers = (
            collections.deque(),
            {},
            set(),
            [],
        )

    def start(self, keys):
        """Compute the results of these keys in this order, each once, and do not wait for them."""
        with self._lock:
            for key in keys:
                if key not in self._started:
                    self._started.add(key)
                    self._futures[key] = future = Future()
                    self._waiting.append((key, future))
            missing = min(len(self._waiting), self._threads - len(self._workers))
            added = [threading.Thread(target=self._work, daemon=True) for _ in range(missing)]
            self._workers += added
        for worker in added:
            worker.start()

    def get(self, key):
        """Return function(key): wait for the thread that computes it, or compute it in this thread."""
        with self._lock:
            self._started.add(key)
            future = self._futures.pop(key, None)
        if future is None or future.cancel():
            return self._function(key)
        return future.result()

    def _work(self):
        while True:
            with self._lock:
                if not self._waiting:
                    self._workers.remove(threading.current_thread())
                    return
                key, future = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._function(key))
            except BaseException as error:  # for the thread that asks
                future.set_exception(error)

    def _end(self):
        with self._lock:
            self._waiting.clear()
            workers = list(self._workers)
        for worker in workers:
            worker.join()
