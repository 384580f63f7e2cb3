"""Choose between the host and a GPU for NumPy arrays; pure functions of numbers.

The predicted times of `cost_model` depend on the size, the dtype, the right-hand sides and the precision.
They are multiplied by a factor: the measured time of a solve, divided by its predicted time.  `tcsolve warm`
measures the times on this machine.  Until then, those that came with the library are used.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from tcsolve._solve.choice.cost_model import H200, first_update, predict_seconds

__all__ = [
    "LARGE_BYTES",
    "LEAST_N",
    "START_SECONDS",
    "System",
    "Times",
    "goes_to_device",
    "predicted_times",
]

# Smaller systems stay on the host: the launches for one of them take longer than its solution there.
LEAST_N = 250
# Seconds that the first use of a GPU takes in a process: CuPy is imported, kernels are loaded.
START_SECONDS = 1.0
# Seconds of the calls that copy a, b and x, beyond the time of their bytes.
COPY_SECONDS = 5e-5
# Arrays with at least so many bytes go through pinned buffers; the same number is `transfers.LEAST_BYTES`.
LARGE_BYTES = 16 << 20
FP64 = np.dtype(float)


class System(NamedTuple):
    """What the times depend on: the order, the number of right-hand sides, the dtype of a, the precision."""

    n: int
    nrhs: int
    dtype: np.dtype
    precision: str


class Times(NamedTuple):
    """Predicted seconds on the host, and on the device with all transfers."""

    host: float
    device: float


@functools.lru_cache(maxsize=256)
def predicted_times(system, machine, host, device):
    """Return the `Times` of a solve.

    Parameters
    ----------
    system : System
    machine : MachineRates
        What was measured on this machine, or came with the library.
    host, device : Rates
        The rates of `cost_model` for the host and the device.

    Returns
    -------
    Times
    """
    vector = system.n * system.nrhs * system.dtype.itemsize
    # The times that came with the library are those of an H200.
    measured_with = device if machine.date else H200
    there = _corrected(system, machine.device, device, measured_with) + COPY_SECONDS
    there += _copy_seconds(system.n**2 * system.dtype.itemsize, machine.to_device)
    there += _copy_seconds(vector, machine.to_device) + _copy_seconds(vector, machine.to_host)
    return Times(_corrected(system, machine.host, host, host), there)


def goes_to_device(times, lost=0.0, start_seconds=0.0):
    """Tell whether a solve goes to the device.

    Parameters
    ----------
    times : Times
    lost : float
        Seconds that earlier solves of the process would have saved there.
    start_seconds : float
        Seconds until the device can be used; 0 if it is in use.

    Notes
    -----
    A process starts the device when the solves up to this one would have saved `start_seconds` there.  So all
    solves on the host before this one have lost less than this time.
    """
    gain = times.host - times.device
    return gain > 0 and lost + gain >= start_seconds


def _corrected(system, samples, rates, measured_with):
    """Return the predicted seconds, multiplied by the factor that is interpolated between the samples.

    `measured_with` are the rates of the machine where the samples were measured.
    """
    logs = [math.log(seconds / _model_seconds(_usual(n), measured_with)) for n, seconds in samples]
    factor = np.interp(math.log(system.n), [math.log(n) for n, _ in samples], logs)
    return math.exp(factor) * _model_seconds(system, rates)


def _usual(n):
    return System(n, 1, FP64, "auto")


def _model_seconds(system, rates):
    """Predict the seconds.

    If the rates do not have the first update, the seconds of the slowest update are returned.
    """
    matrix = np.broadcast_to(system.dtype.type(0), (system.n, system.n))  # takes no memory
    name = first_update(matrix, system.nrhs, system.precision, rates)
    names = [name] if name in rates.lu_flops else list(rates.lu_flops)
    is_complex = system.dtype.kind == "c"
    return max(
        predict_seconds(x, system.n, system.nrhs, rates, is_complex=is_complex) for x in names
    )


def _copy_seconds(nbytes, rates):
    return nbytes / rates[nbytes >= LARGE_BYTES]
