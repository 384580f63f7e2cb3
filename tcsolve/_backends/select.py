"""Choose the `Ops` for arrays or for the name of a device, and say why CUDA cannot be used."""

import functools
import importlib.util
import os
import sys

import numpy as np

from tcsolve._arrays import is_cupy, require_aligned
from tcsolve._backends.cpu.ops import numpy_ops
from tcsolve._backends.cuda.runtime import compiler
from tcsolve._errors import DeviceError, InputError
from tcsolve._locks import no_fork

__all__ = [
    "clear_cache",
    "cuda_available",
    "cupy_ops_for",
    "gpu_name",
    "numpy_ops",
    "ops_for",
    "ops_on",
    "require_usable",
    "uses_cupy",
    "why_no_cuda",
    "why_unsupported",
]

FORKED = (
    "this process was forked from one that used CUDA, which does not survive a fork; start processes "
    "by 'spawn', as with multiprocessing.get_context('spawn')"
)
CAPTURING = (
    "the current stream is capturing a CUDA graph, which cannot contain calls of tcsolve, because most of "
    "them copy results to the host; call this before or after the capture (which is still valid), or in "
    "another stream"
)
_cuda_process = None  # id of the process that used CUDA; a forked child has another id


def why_no_cuda():
    """Return None if the current CUDA device can be used now, else a sentence with the reason."""
    reason = FORKED if _is_forked() else _why_not_found()
    if reason is not None:
        return reason
    cupy = sys.modules["cupy"]
    return _why_not_on(cupy.cuda.runtime.getDevice()) or (CAPTURING if _captures(cupy) else None)


@functools.cache
def _why_not_found():
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed; pip install 'tcsolve[cuda13]' (or [cuda12])"
    with no_fork:
        import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CuPy finds no usable CUDA driver ({error})"
    _note_process()
    return None if count else "CuPy finds no CUDA device"


@functools.cache
def _why_not_on(device):
    cupy = sys.modules["cupy"]
    return why_unsupported(int(cupy.cuda.Device(device).compute_capability), _load_libraries)


def why_unsupported(capability, load):
    """Return None if a device with this compute capability (90 for 9.0) can be used, else the reason.

    load() loads the CUDA libraries, and raises an ImportError if one is missing.
    """
    if capability < (least := compiler.least_arch()):
        return (
            f"the kernels need compute capability {least / 10} or later, and this device has "
            f"{capability / 10}"
        )
    try:
        load()
    except ImportError as error:
        return _missing(error)
    return None


def _load_libraries():
    from cupy_backends.cuda.libs import cublas, cusolver  # noqa: F401


def _missing(error):
    return (
        f"CuPy cannot load a CUDA library ({error}); pip install 'tcsolve[cuda13]' (or [cuda12]) "
        "brings them"
    )


def _note_process():
    global _cuda_process
    _cuda_process = os.getpid()


def _is_forked():
    """Tell whether the parent used CUDA before it forked this process, so that CUDA does not work here."""
    return _cuda_process is not None and _cuda_process != os.getpid()


def _captures(cupy):
    """Tell whether the current stream is capturing a CUDA graph, in which new work would be recorded."""
    try:
        return cupy.cuda.get_current_stream().is_capturing()
    except RuntimeError:  # a failed capture, or one in a stream that depends on this stream
        return True


def uses_cupy():
    """Tell whether this process has imported CuPy.

    If it has not, the choice between host and GPU also counts the seconds that the first use of a GPU takes.
    """
    return "cupy" in sys.modules


def gpu_name():
    """Return the name of the current CUDA device, which must be usable."""
    return _name_of(sys.modules["cupy"].cuda.runtime.getDevice())


@functools.cache
def _name_of(device):
    return sys.modules["cupy"].cuda.runtime.getDeviceProperties(device)["name"].decode()


def cuda_available():
    """Tell whether a CUDA device can be used; this imports CuPy if it is installed."""
    return why_no_cuda() is None


@functools.cache
def _cupy_ops():
    # CuPy is optional and slow to import, so it is imported only when it is needed.
    try:
        with no_fork:
            from tcsolve._backends.cuda.ops import CupyOps
    except ImportError as error:
        raise DeviceError(f"{_missing(error)}, and device='cpu' needs none") from error
    _note_process()
    return CupyOps()


def ops_for(*arrays):
    """Return the `Ops` for these arrays, which must be all on the host or all on the current device."""
    if all(type(x) is np.ndarray for x in arrays):
        return numpy_ops
    on_device = {is_cupy(x) for x in arrays}
    if len(on_device) > 1:
        kinds = " and ".join(sorted({type(x).__module__.partition(".")[0] for x in arrays}))
        raise InputError(
            f"the arguments are {kinds} arrays; all must be NumPy or all CuPy: "
            "move one with cupy.asarray or cupy.asnumpy"
        )
    if not on_device.pop():
        return numpy_ops
    ops = cupy_ops_for(*arrays)
    for x in arrays:
        require_aligned(x, "an array")
    return ops


def cupy_ops_for(*arrays):
    """Return the `Ops` for CuPy arrays, which must be all on the current device."""
    require_usable(*arrays)
    return _cupy_ops()


def require_usable(*arrays):
    """Raise an error unless work on these CuPy arrays can be launched now."""
    if _is_forked():
        raise DeviceError(FORKED)
    cupy = sys.modules["cupy"]
    try:
        current = cupy.cuda.runtime.getDevice()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(f"CUDA does not answer ({error}); perhaps {FORKED}") from error
    for x in arrays:
        if x.size and (there := x.data.device_id) != current:
            raise InputError(
                f"an array is on CUDA device {there}, but {current} is the current one; "
                f"call this inside `with cupy.cuda.Device({there}):`"
            )
    if _captures(cupy):
        raise DeviceError(CAPTURING)


def ops_on(device):
    """Return the `Ops` for 'cpu' or 'cuda'."""
    if device == "cpu":
        return numpy_ops
    if (reason := why_no_cuda()) is not None:
        raise DeviceError(f"device='cuda' was requested, but {reason}; device='cpu' needs no GPU")
    return _cupy_ops()


def clear_cache():
    """Free the device memory that is kept between solves.

    Up to n = 32768, tcsolve keeps a work matrix and recorded graphs for a size.  Up to n = 8192, it keeps
    them from the first solve of the size on.  For larger n, it keeps the matrix from the second solve on, and
    the graphs from the third.  It keeps those of at most three sizes, if they take at most a tenth of the
    memory of the device.  If they take more, it keeps fewer sizes, but always one.  If a solve needs this
    memory, tcsolve frees it.  This function also gives the buffers of transfers, which are in the memory of
    the host, back to CuPy's pool of pinned memory.

    Returns
    -------
    None

    Raises
    ------
    DeviceError
        The current stream is capturing a graph, or this process was forked from one that used CUDA.

    Examples
    --------
    >>> import tcsolve
    >>> tcsolve.clear_cache()
    """
    if _cupy_ops.cache_info().currsize:
        from tcsolve._backends.cuda.runtime import recorded_graphs, transfers

        require_usable()
        recorded_graphs.clear()
        transfers.clear()
