"""The energy of a solve on a GPU: the power that NVML reports, sampled while solves are repeated."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from tcsolve._backends.select import ops_on, why_no_cuda
from tcsolve._errors import TcsolveError
from tcsolve._solve.api import solve_ex

__all__ = ["Energy", "energy_of", "measure_energy", "sampled"]

# NVML renews the power of a GPU about every 20 to 100 ms, so solves are repeated for a second at least.  On
# some GPUs the power is the mean of the last second.  So solves are also repeated for a second before the
# first sample: otherwise the power before them would count.
LEAST_SECONDS, WARM_SECONDS, INTERVAL = 1.0, 1.0, 0.02
LEAST_CALLS = 2  # before the first sample
MILLIWATT = 1e-3
INSTALL = "pip install 'tcsolve[energy]'"


class Energy(NamedTuple):
    """The energy of repeated calls.

    Attributes
    ----------
    joules, seconds : float
        Of one call.
    watts : float
        Mean power.
    calls, samples : int
    """

    joules: float
    seconds: float
    watts: float
    calls: int
    samples: int


def measure_energy(problem, plan, device, residual="fp64"):
    """Return what `energy_of` returns for a solve of a problem by a plan; `residual` as in `solve`."""

    def prepare():
        ops = ops_on("cuda")
        a, b = ops.xp.asarray(problem.a), ops.xp.asarray(problem.b)

        def call():
            solution = solve_ex(a, b, assume_a="general", precision=plan, residual=residual)
            ops.host(solution.x[:1])  # waits for the device

        return call

    return energy_of(
        prepare, 2 / 3 * problem.n**3 * (4 if np.iscomplexobj(problem.a) else 1), device
    )


def energy_of(prepare, flops, device):
    """Return the columns of a row about the energy of a solve.

    Parameters
    ----------
    prepare : callable, () -> call
        ``call()`` solves once, and waits for the device.  Without a meter `prepare` is not called.
    flops : float
        The operations of an LU in FP64: ``2/3 n^3``, four times as many if complex.
    device : {'cuda', 'cpu'}

    Returns
    -------
    dict
        joules of a solve, the mean watts, and gigaflops per watt.  'energy' says how they were measured, or
        why they were not.  The energy is that of the whole GPU, its idle power included, and not that of the
        host.
    """
    try:
        power = _power_meter(device)
        found = sampled(prepare(), power, LEAST_SECONDS, WARM_SECONDS)
    except (TcsolveError, MemoryError, _Absent) as error:
        return {"energy": f"not measured: {error}"}
    return {
        "joules": found.joules,
        "watts": found.watts,
        "gflops_per_watt": flops / found.joules / 1e9,
        "energy": f"NVML, {found.samples} samples, {found.calls} solves of {found.seconds:.3g} s",
    }


def sampled(call, power, least_seconds, warm_seconds=0.0):
    """Repeat a call for at least `least_seconds`, sample the power in the background, and return `Energy`.

    Parameters
    ----------
    call : callable, () -> None
        Before the measurement it is called at least twice, and for at least `warm_seconds`.
    power : callable, () -> float
        The present power in watts.
    """
    start, warmed = time.perf_counter(), 0
    while warmed < LEAST_CALLS or time.perf_counter() - start < warm_seconds:
        call()
        warmed += 1
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        sampling = pool.submit(_sample, power, stop)
        start, calls = time.perf_counter(), 0
        try:
            while time.perf_counter() - start < least_seconds and not sampling.done():
                call()
                calls += 1
            end = time.perf_counter()
        finally:
            stop.set()
    times, watts = np.array(sampling.result()).T
    mean = float(np.trapezoid(watts, times) / (times[-1] - times[0]))
    seconds = (end - start) / calls
    return Energy(mean * seconds, seconds, mean, calls, len(times))


def _sample(power, stop):
    """Return pairs (time, power), sampled until `stop` is set and once after it."""
    samples = []
    while not stop.is_set():
        samples.append((time.perf_counter(), power()))
        stop.wait(INTERVAL)
    return [*samples, (time.perf_counter(), power())]


class _Absent(Exception):
    """Energy cannot be measured; the message is the reason."""


def _power_meter(device):
    """Return a function that gives the power of the current CUDA device in watts, or raise `_Absent`."""
    if device == "cpu":
        raise _Absent("NVML measures GPUs only, and the device is the CPU")
    if (reason := why_no_cuda()) is not None:
        raise _Absent(reason)
    try:
        import pynvml
    except ImportError as error:
        raise _Absent(f"NVML is missing; {INSTALL}") from error
    from cupy.cuda import Device

    try:
        pynvml.nvmlInit()
        # CUDA and NVML may number the devices differently, but both know the address on the bus.
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(Device().pci_bus_id.encode())
    except pynvml.NVMLError as error:
        raise _Absent(f"NVML fails: {error}") from error

    def power():
        try:
            return pynvml.nvmlDeviceGetPowerUsage(handle) * MILLIWATT
        except pynvml.NVMLError as error:
            raise _Absent(f"NVML fails: {error}") from error

    power()
    return power
