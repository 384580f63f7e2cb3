"""Recognise errors of full memory, free cached memory and try again, or raise a DeviceMemoryError."""

from tcsolve._errors import DeviceMemoryError

__all__ = ["guarded", "is_out_of_memory"]

# The status codes of full memory, by the name of the error in CuPy: out of memory, allocation failed, and
# "not initialized", which a library returns if it finds no memory for its handle.
STATUSES = {
    "CUDARuntimeError": (2,),
    "CUDADriverError": (2,),
    "NVRTCError": (1,),
    "CUBLASError": (1, 3),
    "CUSOLVERError": (1, 2),
}


def is_out_of_memory(error):
    """Tell whether an error of CUDA, CuPy or any allocator says that the memory of the device is full."""
    if type(error).__module__.startswith("numpy"):  # the memory of the host is full
        return False
    names = [cls.__name__ for cls in type(error).__mro__]
    # The OutOfMemoryError of PyTorch is a RuntimeError, so compare the name.
    if isinstance(error, MemoryError) or "OutOfMemoryError" in names:
        return True
    return any(error.status in STATUSES[name] for name in names if name in STATUSES)


def guarded(function, give_up, again=True):
    """Return a function that calls `function` and raises a DeviceMemoryError when memory runs out.

    Parameters
    ----------
    function : callable
        The function to call.
    give_up : callable
        Frees the memory that is cached for later calls, and returns whether there was any.
    again : bool
        Whether the function may be called a second time, if memory was freed.
    """

    def attempt(args, kwargs):
        # Do not return the error itself: its traceback would keep the arrays of the failed call alive.
        try:
            return function(*args, **kwargs), None
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return None, _Failed(error)

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
    """The message of an error, without the arrays that its traceback refers to."""

    def __init__(self, error):
        self._text = str(error)
        self._is_ours = isinstance(error, DeviceMemoryError)
        # True if an inner guarded function has freed memory, but was not allowed to be called again.
        self.freed = getattr(error, "freed", False)

    def translated(self, freed):
        text = self._text
        if not self._is_ours:
            text = (
                f"the device ran out of memory ({text}); your operands are unchanged: free "
                "memory (cupy.get_default_memory_pool().free_all_blocks()), or use the host (NumPy arrays, "
                "or device='cpu' in functions that have this argument)"
            )
        error = DeviceMemoryError(text)
        error.freed = freed
        return error
