"""Where a system is solved: on the host, or on a device that has room and takes less time."""

from tcsolve import _ladder
from tcsolve._choose import CPU, choose_update, predict_seconds, rates_of
from tcsolve._dispatch import as_host, cuda_available, ops_on
from tcsolve._plan import Plan

__all__ = ["brought", "require_room", "target_ops"]

# A GPU is looked for only where the host would need this many seconds: CuPy takes longer to import.
WORTH_A_GPU = 0.2


def require_room(ops, a, nrhs, precision, moved_bytes):
    """Raise before anything is copied to a device that has no room for it and its factors."""
    n, itemsize = a.shape[0], a.dtype.itemsize
    if isinstance(precision, Plan):
        update = precision.update
    elif precision != "auto":
        update = precision
    else:
        rates = rates_of(ops.device, getattr(ops, "properties", None))
        update = choose_update(n, nrhs, rates, working=_working(a), is_complex=a.dtype.kind == "c")
    _ladder.require_room(ops, update, n, nrhs, itemsize, moved_bytes=moved_bytes)


def brought(ops, x):
    """Return x where `ops` works."""
    return ops.array(as_host(x)) if ops.device == "cpu" else ops.array(x)


def target_ops(ops, a, nrhs, precision, device):
    """Return the `Ops` that will solve: where the caller said, or where it is predicted fastest."""
    if device != "auto":
        return ops_on(device, (a,)) if device != ops.device else ops
    if ops.device == "cuda":
        return ops
    n, working, is_complex = a.shape[0], _working(a), a.dtype.kind == "c"
    host = min(predict_seconds(name, n, nrhs, CPU, is_complex=is_complex) for name in CPU.lu_flops)
    if host < WORTH_A_GPU or not cuda_available():
        return ops
    cuda = ops_on("cuda", (a,))
    rates = rates_of("cuda", cuda.properties)
    name = choose_update(n, nrhs, rates, working=working, is_complex=is_complex)
    there = predict_seconds(name, n, nrhs, rates, is_complex=is_complex)
    there += (a.nbytes + 2 * nrhs * n * a.dtype.itemsize) / rates.host_bandwidth
    return cuda if there < host else ops


def _working(a):
    """Return the precision that answers for a have, by the name of an update."""
    return "fp32" if a.dtype.char in "fF" else "fp64"
