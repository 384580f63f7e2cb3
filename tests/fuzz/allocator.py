"""Failures of the device's allocator, one after the other."""

__all__ = ["count_failures"]

# More allocations than any call of the library makes.
MOST = 10_000


def count_failures(cupy, call):
    """Let the k-th allocation of a call fail, and all after it, for k = 1, 2, ...

    Parameters
    ----------
    cupy : module
    call : callable
        Without arguments.

    Returns
    -------
    int
        The largest k for which an allocation failed.

    Raises
    ------
    AssertionError
        The call ended with another exception than a MemoryError.

    Examples
    --------
    >>> count_failures(cupy, lambda: tcsolve.solve(a, b))  # doctest: +SKIP
    12
    """
    for k in range(1, MOST):
        allocator = _Failing(cupy, k)
        with allocator:
            try:
                call()
            except MemoryError:
                pass
            except Exception as error:
                raise AssertionError(
                    f"where allocation {k} fails, the call ends with {error!r}"
                ) from error
        if not allocator.failed:
            return k - 1
    raise AssertionError(f"the call still allocates after {MOST} allocations")


class _Failing:
    """The present allocator of CuPy until allocation k, counted from 1."""

    def __init__(self, cupy, k):
        self._cupy, self._left, self.failed = cupy, k - 1, False

    def __enter__(self):
        self._allocate = self._cupy.cuda.get_allocator()
        self._cupy.cuda.set_allocator(self._fail_or_allocate)

    def __exit__(self, *_):
        self._cupy.cuda.set_allocator(self._allocate)

    def _fail_or_allocate(self, size):
        if self._left == 0:
            self.failed = True
            raise self._cupy.cuda.memory.OutOfMemoryError(size, 0)
        self._left -= 1
        return self._allocate(size)
