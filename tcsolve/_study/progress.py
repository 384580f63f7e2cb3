"""Progress with the time left, on a terminal."""

import sys
import time
from contextlib import contextmanager

__all__ = ["progress"]


@contextmanager
def progress(total, done, stream=None):
    """Show how many runs are done, and the time left; yield a function to call after each row.

    Parameters
    ----------
    total, done : int
        Number of all runs, and of those that an earlier study has done.
    stream : text file, optional
        By default standard error.  Nothing is written unless it is a terminal.

    Yields
    ------
    callable, (rows, text)
        rows is the number of runs that have ended since the last call, and text names them.
    """
    stream = stream or sys.stderr
    if stream is None or not stream.isatty():
        yield lambda rows, text: None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        try:
            yield _Line(total, done, stream, time.monotonic())
        finally:
            stream.write("\n")
        return
    with tqdm(total=total, initial=done, file=stream, unit="run", dynamic_ncols=True) as bar:

        def show(rows, text):
            bar.set_postfix_str(text, refresh=False)
            bar.update(rows)

        yield show


class _Line:
    """A line that is written again and again; `start` is the time at which the first run begins."""

    def __init__(self, total, done, stream, start):
        self._total, self._done, self._before = total, done, done
        self._stream, self._start = stream, start

    def __call__(self, rows, text):
        self._done += rows
        took, new = time.monotonic() - self._start, self._done - self._before
        left = int(took / new * (self._total - self._done)) if new else 0
        clock = f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02}"
        # Erase to the end of the line.
        self._stream.write(f"\r\x1b[K{self._done} of {self._total} runs, {clock} left: {text}")
        self._stream.flush()
