"""Times of short device work at a steady clock: warmed up, many calls a sample."""

import math

# Work done before the first sample: the first call compiles, and an idle device takes a while to its clock.
WARM_UP_SECONDS = 0.2
# Length of a sample: calls follow each other, so that what the host needs for one is hidden where the device
# needs longer.
SAMPLE_SECONDS = 0.01
MOST_CALLS = 1000


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
    return sorted(_elapsed(run, calls) / calls for _ in range(repeats))


def _elapsed(run, calls):
    """Return the seconds between CUDA events around calls in a row."""
    import cupy

    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    cupy.cuda.Device().synchronize()
    start.record()
    for _ in range(calls):
        run()
    stop.record()
    stop.synchronize()
    return cupy.cuda.get_elapsed_time(start, stop) / 1e3
