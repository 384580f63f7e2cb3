"""Memory that runs out: which errors say so, and what is done then."""

import functools

from tcsolve._errors import DeviceMemoryError

__all__ = ["guarded", "is_out_of_memory"]

# The statuses of CUDA's libraries, by the names of their errors in CuPy: out of memory, or allocation
# failed, and "not initialized" of a library that found no memory for its handle.
STATUSES = {
    "CUDARuntimeError": (2,),
    "CUDADriverError": (2,),
    "NVRTCError": (1,),
    "CUBLASError": (1, 3),
    "CUSOLVERError": (1, 2),
}


def is_out_of_memory(error):
    """Tell whether an error says that the device ran out of memory: of CUDA, of CuPy, or of any allocator."""
    if type(error).__module__.startswith("numpy"):  # that of the host did
        return False
    names = [cls.__name__ for cls in type(error).__mro__]
    if (
        isinstance(error, MemoryError) or "OutOfMemoryError" in names
    ):  # that of PyTorch is a RuntimeError
        return True
    return any(error.status in STATUSES[name] for name in names if name in STATUSES)


def guarded(function, give_up, again=True):
    """Return the function, with a DeviceMemoryError where the device runs out of memory in it.

    Parameters
    ----------
    function : callable
    give_up : callable
        Frees memory that is kept for later calls, and tells whether there was any.
    again : bool
        Whether the function may be called a second time, if memory was freed.
    """

    def attempt(args, kwargs):
        # The error itself is not returned: its traceback would keep the arrays of the failed call.
        try:
            return function(*args, **kwargs), None
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return None, _Failed(error)

    @functools.wraps(function)
    def call(*args, **kwargs):
        found, failed = attempt(args, kwargs)
        if failed is None:
            return found
        freed = give_up() or failed.freed
        if not (again and freed):
            raise failed.translated(freed)
        found, failed = attempt(args, kwargs)
        if failed is None:
            return found
        raise failed.translated(False)

    return call


class _Failed:
    """What an error says, without its arrays."""

    def __init__(self, error):
        self._text = str(error)
        self._is_ours = isinstance(error, DeviceMemoryError)
        # A function inside freed memory, but could not be called again.
        self.freed = getattr(error, "freed", False)

    def translated(self, freed):
        text = self._text
        if not self._is_ours:
            text = (
                f"the device ran out of memory ({text}); a and b are unchanged: free memory "
                "(cupy.get_default_memory_pool().free_all_blocks()), or use device='cpu'"
            )
        error = DeviceMemoryError(text)
        error.freed = freed
        return error
