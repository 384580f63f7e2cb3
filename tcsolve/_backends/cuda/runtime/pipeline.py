"""The order of a copy through a few small buffers: threads fill them, and one thread sends them on.

This module knows neither arrays nor CUDA: the caller's functions fill, send and drain the buffers.
"""

import collections
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
    """Call fill(job, buffer) for each job in a thread, and then send(job, buffer) in this thread, in order.

    A buffer is filled again only after it was sent.  `fill` waits until what was sent has left the buffer.
    When this function returns or raises, no thread is in `fill`.
    """
    waiting = collections.deque()

    def send_first():
        job, buffer, filled = waiting.popleft()
        filled.result()
        send(job, buffer)

    try:
        for number, job in enumerate(jobs):
            if number >= len(buffers):
                send_first()
            buffer = buffers[number % len(buffers)]
            waiting.append((job, buffer, _begun(fill, job, buffer)))
        while waiting:
            send_first()
    finally:
        wait([filled for *_, filled in waiting])


def received(jobs, buffers, fetch, drain):
    """Call fetch(job, buffer) for each job in this thread, in order, and then drain(job, buffer) in a thread.

    A buffer is fetched into again only after it was drained.  `drain` waits until what was fetched is there.
    When this function returns or raises, no thread is in `drain`.
    """
    drained = [None] * len(buffers)
    try:
        for number, job in enumerate(jobs):
            which = number % len(buffers)
            if drained[which] is not None:
                drained[which].result()
            fetch(job, buffers[which])
            drained[which] = _begun(drain, job, buffers[which])
        for one in filter(None, drained):
            one.result()
    finally:
        wait([one for one in drained if one is not None])


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
