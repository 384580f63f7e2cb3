"""Choose the device: the host, or a GPU if it has enough memory and the predicted time is shorter."""

from dataclasses import replace

from tcsolve._backends.select import cuda_available, ops_for, ops_on
from tcsolve._backends.transfer import brought
from tcsolve._errors import InputError
from tcsolve._solve.cost_model import CPU, first_update, predict_seconds, rates_for
from tcsolve._solve.memory import require_room
from tcsolve._steps import guarded, note

__all__ = ["moved", "place_rhs", "require_room_there", "target_ops"]

# If the host needs fewer seconds than this, no GPU is considered: importing CuPy takes longer.
WORTH_A_GPU = 0.2


def require_room_there(ops, a, nrhs, precision, moved_bytes):
    """Raise a DeviceMemoryError, before anything is copied, if the device has too little memory."""
    n = a.shape[0]
    update = first_update(a, nrhs, precision, rates_for(ops))
    require_room(ops, update, n, nrhs, a.dtype, moved_bytes=moved_bytes)


def moved(solve, target, here, a, b, request):
    """Call `solve` on the device `target`; return its `Solution` with x on the device `here`."""

    def solve_there(a, b):
        note("move")
        there = brought(target, a), brought(target, b)
        note("moved")
        return solve(target, *there, request)

    solution = guarded(target, solve_there)(a, b)
    return replace(solution, x=brought(here, solution.x))


def place_rhs(ops, b):
    """Return the `Ops` of b, which is on the host, or on the device of the factors, that of `ops`."""
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
    if ops.device == "cuda" or a.ndim > 2:  # stacks stay where they are
        return ops
    host = _seconds(a, nrhs, precision, CPU)
    if host < WORTH_A_GPU or not cuda_available():
        return ops
    cuda = ops_on("cuda")
    rates = rates_for(cuda)
    there = _seconds(a, nrhs, precision, rates)
    there += (a.nbytes + 2 * nrhs * a.shape[0] * a.dtype.itemsize) / rates.host_bandwidth
    return cuda if there < host else ops


def _seconds(a, nrhs, precision, rates):
    """Predict the seconds of a solve; if the rates do not have its first update, those of the slowest one."""
    name = first_update(a, nrhs, precision, rates)
    names = [name] if name in rates.lu_flops else list(rates.lu_flops)
    is_complex = a.dtype.kind == "c"
    return max(predict_seconds(x, a.shape[0], nrhs, rates, is_complex=is_complex) for x in names)
