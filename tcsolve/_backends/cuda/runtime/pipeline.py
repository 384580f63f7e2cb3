"""The order of a copy through a few small buffers, in several threads.

This module knows neither arrays nor CUDA: the caller's functions fill, send and drain the buffers.
"""

import collections
import contextlib
import functools
import os
from concurrent.futures import Future, ThreadPoolExecutor, wait

from tcsolve._hardware import cores

__all__ = ["THREADS", "parts", "received", "sent"]

# One thread copies 8 to 12 GB/s; more than eight of them gain nothing on the machines measured.
THREADS = min(8, cores())


def parts(rows, row_bytes, most_bytes):
    """Return slices of whole rows, each of at most `most_bytes`; a row must not be larger."""
    step = max(1, most_bytes // max(1, row_bytes))
    return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]


def sent(jobs, buffers, fill, send):
    """Call fill(job, buffer) and then send(job, buffer) for each job, in several threads and in any order.

    `fill` waits until what was sent before has left the buffer.  When this function returns or raises, no
    thread is in `fill` or `send`.
    """

    def copies(taken, own):
        for number, job in enumerate(taken):
            buffer = own[number % len(own)]
            fill(job, buffer)
            send(job, buffer)

    _in_threads(copies, jobs, buffers)


def received(jobs, buffers, fetch, drain):
    """Call fetch(job, buffer) and later drain(job, buffer) for each job, in several threads and in any order.

    A buffer is fetched into again only after it was drained.  `drain` waits until what was fetched is there.
    When this function returns or raises, no thread is in `fetch` or `drain`.
    """

    def copies(taken, own):
        fetched = collections.deque()
        for number, job in enumerate(taken):
            if len(fetched) == len(own):
                drain(*fetched.popleft())
            buffer = own[number % len(own)]
            fetch(job, buffer)
            fetched.append((job, buffer))
        while fetched:
            drain(*fetched.popleft())

    _in_threads(copies, jobs, buffers)


def _in_threads(copies, jobs, buffers):
    """Call copies(jobs, buffers) in this thread and in others, each with jobs and buffers of its own.

    A thread takes the next job when it is ready for it.  No job is passed from one thread to another, which
    would take about as long as the copy of a small piece.
    """
    todo = collections.deque(jobs)  # its popleft is safe in threads

    def taken():
        with contextlib.suppress(IndexError):
            while True:
                yield todo.popleft()

    def work(own):
        try:
            copies(taken(), own)
        except BaseException:
            todo.clear()
            raise

    count = min(THREADS, len(todo), len(buffers))
    if not count:
        return
    first, *others = (buffers[i::count] for i in range(count))
    begun = [_begun(work, own) for own in others]
    try:
        work(first)
    finally:
        wait(begun)
    for one in begun:
        one.result()


def _begun(function, *args):
    """Return the future of a call in a thread."""
    try:
        return _pool(os.getpid()).submit(function, *args)
    except RuntimeError:  # the interpreter is about to end and starts no thread
        future = Future()
        future.set_result(function(*args))
        return future


@functools.lru_cache(maxsize=1)
def _pool(process):
    """Return the threads of a process; a forked process has none of its parent's."""
    return ThreadPoolExecutor(THREADS, "tcsolve-copy")
