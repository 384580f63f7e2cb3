"""From arrays to their `Ops`: the only place that asks which array library is in use."""

import functools
import importlib.util
import sys

import numpy as np

from tcsolve._errors import DeviceError, InputError
from tcsolve._ops_numpy import numpy_ops

__all__ = [
    "as_host",
    "clear_cache",
    "cuda_available",
    "is_cupy",
    "numpy_ops",
    "ops_for",
    "ops_on",
    "why_no_cuda",
]


def is_cupy(x):
    """Tell whether x is a CuPy array, without importing CuPy."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, cupy.ndarray)


@functools.cache
def why_no_cuda():
    """Return None if a CUDA device can be used, else the sentence that says why not."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed; pip install 'tcsolve[cuda13]' (or [cuda12])"
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CuPy finds no usable CUDA driver ({error})"
    return None if count else "CuPy finds no CUDA device"


def cuda_available():
    """Tell whether a CUDA device can be used; imports CuPy where it is installed."""
    return why_no_cuda() is None


@functools.cache
def _cupy_ops():
    # CuPy is optional and slow to import, so it is imported with the first array that needs it.
    try:
        from tcsolve._ops_cupy import CupyOps
    except ImportError as error:
        raise DeviceError(
            f"CuPy cannot load a CUDA library ({error}); pip install 'tcsolve[cuda13]' (or "
            "[cuda12]) brings them, and device='cpu' needs none"
        ) from error
    return CupyOps()


def ops_for(*arrays):
    """Return the `Ops` of these arrays; they must all live in one place."""
    on_device = {is_cupy(x) for x in arrays}
    if len(on_device) > 1:
        kinds = " and ".join(sorted({type(x).__module__.partition(".")[0] for x in arrays}))
        raise InputError(
            f"a and b are {kinds} arrays; both must be NumPy or both CuPy: "
            "move one with cupy.asarray or cupy.asnumpy"
        )
    if not on_device.pop():
        return numpy_ops
    _require_current(arrays)
    return _cupy_ops()


def _require_current(arrays):
    """Raise unless CuPy arrays are on the current device, where whatever is launched runs."""
    current = sys.modules["cupy"].cuda.runtime.getDevice()
    for x in arrays:
        if x.size and (there := x.data.device_id) != current:
            raise InputError(
                f"an array is on CUDA device {there}, but {current} is the current one; "
                f"call this inside `with cupy.cuda.Device({there}):`"
            )


def ops_on(device):
    """Return the `Ops` to solve with: of 'cpu' or 'cuda'."""
    if device == "cpu":
        return numpy_ops
    if (reason := why_no_cuda()) is not None:
        raise DeviceError(f"device='cuda' was asked for, but {reason}; or use device='cpu'")
    return _cupy_ops()


def clear_cache():
    """Free the device memory that is kept between solves.

    From the second solve of a size on (up to 32768 unknowns), the matrix and the graph of its factorization
    keep their memory, for the three sizes last used; a solve that needs it takes it by itself.

    Returns
    -------
    None

    Examples
    --------
    >>> import tcsolve
    >>> tcsolve.clear_cache()
    """
    if _cupy_ops.cache_info().currsize:
        _cupy_ops().clear_cache()


def as_host(x):
    """Return x as a NumPy array, copied from the device if it lives there."""
    return x.get() if is_cupy(x) else np.asarray(x)
