"""Measure short device work at a steady clock: with warm-up, many calls per sample, without host time."""

import math
import time

# Seconds of work before the first sample.  The first call compiles, and an idle device needs time to reach
# its clock.
WARM_UP_SECONDS = 0.2
# Length of a sample, and largest number of calls in it.  With more calls, of a few launches each, the queue
# of the stream would be full, and the host would wait.
SAMPLE_SECONDS, MOST_CALLS = 0.01, 200
# The device waits at most this many seconds for the host to launch the calls.
LONGEST_WAIT = 0.05


def calls_needed(once, length):
    """Return how many calls of `once` seconds last `length` seconds, at most `MOST_CALLS`."""
    return min(MOST_CALLS, max(1, math.ceil(length / max(once, 1e-9))))


def steady_seconds(run, repeats):
    """Return the sorted seconds of one call of `run()`; each sample is the mean of consecutive calls."""
    run()
    once = min(_elapsed(run, 1) for _ in range(3))
    calls = calls_needed(once, SAMPLE_SECONDS)
    for _ in range(calls_needed(calls * once, WARM_UP_SECONDS)):
        _elapsed(run, calls)
    return sorted(_elapsed(run, calls, head_start=True) / calls for _ in range(repeats))


def _elapsed(run, calls, head_start=False):
    """Return the seconds between CUDA events around consecutive calls.

    With a head start, the device first waits about as long as the host needs to launch the calls, because
    launching them may take longer than running them.  It waits at most `LONGEST_WAIT` seconds.
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
    """Return the approximate time that the host needs to launch `calls` calls."""
    few = min(calls, 5)
    start = time.perf_counter()
    for _ in range(few):
        run()
    return (time.perf_counter() - start) * calls / few


def _wait_on_device(seconds):
    """Let the device wait for `seconds`."""
    import cupy

    from tcsolve._backends.cuda.runtime import compiler

    never = cupy.zeros(17, cupy.uint32)
    compiler.kernel("wait_for_panel", "tcs_gate")((1,), (1,), (never, int(1e9 * seconds), 0))
