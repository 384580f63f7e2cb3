"""Times of short device work at a steady clock: warmed up, many calls a sample, without the host's time."""

import math
import time

# Work done before the first sample: the first call compiles, and an idle device takes a while to its clock.
WARM_UP_SECONDS = 0.2
# Length of a sample, and the most calls in it: as many as a stream takes, at a few launches each, before the
# host has to wait.
SAMPLE_SECONDS, MOST_CALLS = 0.01, 200
# The device waits no longer than this for the host to launch them.
LONGEST_WAIT = 0.05


def calls_needed(once, length):
    """Return how many calls of `once` seconds last `length` seconds."""
    return min(MOST_CALLS, max(1, math.ceil(length / max(once, 1e-9))))


def steady_seconds(run, repeats):
    """Return the sorted seconds of one call of `run()`, each the mean of calls in a row."""
    run()
    once = min(_elapsed(run, 1) for _ in range(3))
    calls = calls_needed(once, SAMPLE_SECONDS)
    for _ in range(calls_needed(calls * once, WARM_UP_SECONDS)):
        _elapsed(run, calls)
    return sorted(_elapsed(run, calls, head_start=True) / calls for _ in range(repeats))


def _elapsed(run, calls, head_start=False):
    """Return the seconds between CUDA events around calls in a row.

    With a head start the device waits until the host has launched them, which may take longer than they do.
    """
    import cupy

    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    cupy.cuda.Device().synchronize()
    seconds = _launch_seconds(run, calls) if head_start else 0.0
    cupy.cuda.Device().synchronize()
    if head_start:
        _wait_on_device(min(LONGEST_WAIT, 1.5 * seconds))
    start.record()
    for _ in range(calls):
        run()
    stop.record()
    stop.synchronize()
    return cupy.cuda.get_elapsed_time(start, stop) / 1e3


def _launch_seconds(run, calls):
    """Return about how long the host takes to launch so many calls."""
    few = min(calls, 5)
    start = time.perf_counter()
    for _ in range(few):
        run()
    return (time.perf_counter() - start) * calls / few


def _wait_on_device(seconds):
    """Let the device do nothing for a while."""
    import cupy

    from tcsolve._backends.cuda.runtime import compiler

    never = cupy.zeros(17, cupy.uint32)
    compiler.kernel("wait_for_panel", "tcs_gate")((1,), (1,), (never, int(1e9 * seconds), 0))
