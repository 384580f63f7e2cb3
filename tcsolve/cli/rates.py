"""Measure what solves and transfers cost on this machine, for `device='auto'`: a part of `tcsolve warm`."""

import datetime
import time

import numpy as np

from tcsolve._backends import machine_rates, select
from tcsolve._backends.machine_rates import MachineRates, hardware
from tcsolve._backends.transfer import brought
from tcsolve._errors import DeviceError
from tcsolve._solve.api import solve
from tcsolve._solve.choice.placement import machine_rates as kept_rates
from tcsolve.cli.messages import tell
from tcsolve.cli.progress_line import progress

__all__ = ["described", "keep_rates", "measured"]

HOST_SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
DEVICE_SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
# The bytes of a small and of a large array; see `MachineRates`.
SMALL_BYTES, LARGE_BYTES = 1 << 20, 256 << 20
# The first calls of a size record graphs, so WARM_UPS calls are not timed.  LEAST to MOST calls are timed:
# after the first LEAST of them, the timing ends when the timed calls have taken PATIENCE seconds.
WARM_UPS, LEAST, MOST, PATIENCE = 3, 3, 50, 0.4


def keep_rates(stream):
    """Measure the rates of the machine, keep them for later processes, and say so."""
    where = hardware(select.gpu_name())
    start = time.perf_counter()
    with progress("measuring solves and transfers"):
        rates = measured(seconds_of, datetime.date.today().isoformat())
    if not machine_rates.written(rates, where):
        raise DeviceError(
            f"the rates of the machine cannot be kept in {machine_rates.path(where)}; make room, or set "
            "TCSOLVE_CACHE_DIR to another folder"
        )
    kept_rates.cache_clear()
    took = time.perf_counter() - start
    tell(f"rates    measured in {took:.0f} s, kept in {machine_rates.path(where)}", stream)


def measured(seconds_of, date):
    """Return the `MachineRates`.

    Parameters
    ----------
    seconds_of : callable
        seconds_of(what, size) returns the seconds of a solve for n = size, if `what` is 'host' or 'device',
        or of a copy of `size` bytes, if it is 'to_device' or 'to_host'.
    date : str
    """
    copies = {
        what: tuple(size / seconds_of(what, size) for size in (SMALL_BYTES, LARGE_BYTES))
        for what in ("to_device", "to_host")
    }
    return MachineRates(
        host=tuple((n, seconds_of("host", n)) for n in HOST_SIZES),
        device=tuple((n, seconds_of("device", n)) for n in DEVICE_SIZES),
        date=date,
        **copies,
    )


def seconds_of(what, size):
    """Return the median seconds of a solve or a copy; see `measured`."""
    there = select.ops_on("cuda")
    if what in ("host", "device"):
        ops = select.numpy_ops if what == "host" else there
        a = ops.xp.random.default_rng(7).standard_normal((size, size))
        b = a.sum(axis=1)
        return _median(lambda: solve(a, b, device=ops.device), there)
    x = np.ones(size // 8)
    if what == "to_device":
        return _median(lambda: brought(there, x), there)
    x = brought(there, x)
    return _median(lambda: brought(select.numpy_ops, x), there)


def _median(call, ops):
    """Return the median seconds of a call after its warm-ups; the device is idle before and after it."""
    samples, wait = [], ops.xp.cuda.Device().synchronize
    for i in range(WARM_UPS + MOST):
        wait()
        start = time.perf_counter()
        call()
        wait()
        samples.append(time.perf_counter() - start)
        if i + 1 >= WARM_UPS + LEAST and sum(samples[WARM_UPS:]) > PATIENCE:
            break
    return float(np.median(samples[WARM_UPS:]))


def described(rates):
    """Return the lines of `tcsolve info` on the choice of the device."""

    def solves(samples):
        return ", ".join(f"{n}: {1e3 * seconds:.3g}" for n, seconds in samples)

    def copies(rates):
        return " and ".join(f"{rate / 1e9:.3g}" for rate in rates)

    source = (
        f"measured {rates.date}"
        if rates.date
        else "that came with tcsolve (2 cores, an H200); 'tcsolve warm' measures this machine"
    )
    return {
        "device choice": f"rates {source}",
        "  host": f"solve, ms, by n: {solves(rates.host)}",
        "  device": f"solve, ms, by n: {solves(rates.device)}",
        "  to the device": f"{copies(rates.to_device)} GB/s, for small and for large arrays",
        "  to the host": f"{copies(rates.to_host)} GB/s, for small and for large arrays",
    }
