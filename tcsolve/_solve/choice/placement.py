"""Choose the device: the host, or a GPU if it has enough memory and the predicted time is shorter."""

import functools
import time
from dataclasses import replace

from tcsolve._backends.machine_rates import SHIPPED, hardware, read
from tcsolve._backends.select import cuda_available, gpu_name, ops_for, ops_on, uses_cupy
from tcsolve._backends.transfer import brought
from tcsolve._errors import DeviceMemoryError, InputError
from tcsolve._solve.choice.cost_model import CPU, H200, first_update, rates_for
from tcsolve._solve.choice.device_choice import (
    LEAST_N,
    START_SECONDS,
    System,
    goes_to_device,
    predicted_times,
)
from tcsolve._solve.choice.memory import require_room
from tcsolve._steps import guarded, note

__all__ = [
    "faster_ops",
    "forget_losses",
    "machine_rates",
    "moved",
    "place_rhs",
    "require_room_there",
    "target_ops",
]

_lost = (
    0.0  # seconds that the solves of this process would have saved on a GPU, before it is started
)


def require_room_there(ops, a, nrhs, precision, moved_bytes):
    """Raise a DeviceMemoryError, before anything is copied, if the device has too little memory."""
    n = a.shape[0]
    update = first_update(a, nrhs, precision, rates_for(ops))
    require_room(ops, update, n, nrhs, a.dtype, moved_bytes=moved_bytes)


def moved(solve, target, here, a, b, request):
    """Call `solve` on the device `target`; return its `Solution` with x on the device `here`."""

    def solve_there(a, b):
        note("move")
        start = time.perf_counter()
        there = brought(target, a), brought(target, b)
        took = time.perf_counter() - start
        note("moved")
        solution = solve(target, *there, request)
        return replace(solution, seconds={"transfer": took} | solution.seconds)

    solution = guarded(target, solve_there)(a, b)
    return replace(solution, x=brought(here, solution.x))


def place_rhs(ops, b):
    """Return the `Ops` of b; b must be on the host, or on the device of the factors, whose `Ops` is `ops`."""
    note("place")
    here = ops_for(b)
    if here is not ops and here.device != "cpu":
        raise InputError(
            f"b is a {type(b).__module__}.{type(b).__name__}, but the factors are on the "
            f"{ops.device}; move b there first"
        )
    return here


def target_ops(ops, a, nrhs, precision, device):
    """Return the `Ops` of the requested device, or of the device with the shortest predicted time."""
    note("place")
    if device != "auto":
        return ops_on(device) if device != ops.device else ops
    return faster_ops(ops, a, nrhs, precision)


def faster_ops(ops, a, nrhs, precision):
    """Return the `Ops` of the device with the shortest predicted time; a stack stays where it is."""
    if ops.device == "cuda" or a.ndim > 2 or a.shape[-1] < LEAST_N:
        return ops
    global _lost
    system = System(a.shape[-1], nrhs, a.dtype, getattr(precision, "update", precision))
    if not uses_cupy():
        # The GPU is not known before it is started.
        times = predicted_times(system, SHIPPED, CPU, H200)
        if not goes_to_device(times, _lost, START_SECONDS):
            _lost += max(0.0, times.host - times.device)
            return ops
    if not cuda_available():
        return ops
    there = ops_on("cuda")
    times = predicted_times(system, machine_rates(gpu_name()), CPU, rates_for(there))
    return there if goes_to_device(times) and _has_room(there, a, nrhs, precision) else ops


def forget_losses():
    """Set to zero the seconds that a GPU would have saved."""
    global _lost
    _lost = 0.0


def _has_room(ops, a, nrhs, precision):
    try:
        require_room_there(ops, a, nrhs, precision, a.nbytes + nrhs * a.shape[0] * a.dtype.itemsize)
    except DeviceMemoryError:
        return False
    return True


@functools.cache
def machine_rates(gpu):
    """Return the `MachineRates` that were kept for this machine and a GPU, or those of the library."""
    return read(hardware(gpu)) or SHIPPED
