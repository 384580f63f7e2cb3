"""A line on the terminal that shows the elapsed time of a long operation."""

import itertools
import sys
import threading
import time
from contextlib import contextmanager, nullcontext

__all__ = ["progress", "silence"]


def silence(label):
    """Return a context that shows nothing, in place of `progress`."""
    return nullcontext()


@contextmanager
def progress(label, stream=None, delay=1.0):
    """Show the elapsed time of the with block on a terminal, if the block takes longer than `delay`.

    Parameters
    ----------
    label : str or callable
        Text before the time; label() returns it if it changes during the block.
    stream : text file, optional
        By default standard error.  Nothing is written unless it is a terminal.
    delay : float
        Seconds before the first output.
    """
    stream = stream or sys.stderr
    if stream is None or not stream.isatty():  # sys.stderr is None if standard error is closed
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_tick, args=(label, stream, delay, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _tick(label, stream, delay, done):
    start = time.perf_counter()
    if done.wait(delay):
        return
    draw, clear = _line_on(stream)
    for mark in itertools.cycle("|/-\\"):
        text = label() if callable(label) else label
        draw(f"{mark} {text}: {time.perf_counter() - start:.0f} s")
        if done.wait(0.2):
            break
    clear()


def _line_on(stream):
    """Return functions (draw, clear) for one line of the terminal; they use tqdm if it is installed."""
    try:
        from tqdm import tqdm
    except ImportError:

        def write(text):
            stream.write(f"\r\x1b[K{text}")  # erase to the end of the line
            stream.flush()

        return write, lambda: write("")
    bar = tqdm(file=stream, leave=False, bar_format="{desc}")
    return bar.set_description_str, bar.close
