"""Every exception and warning of the library.

Mistakes of the caller are errors that also are the builtin (or LinAlgError) a SciPy user expects;
numerical outcomes are `Status` values, which `solve` turns into these.
"""

from numpy.linalg import LinAlgError
from scipy.linalg import LinAlgWarning

__all__ = [
    "AccuracyWarning",
    "DeviceError",
    "DeviceMemoryError",
    "InputError",
    "KernelCompileError",
    "LinAlgError",
    "LinAlgWarning",
    "NotPositiveDefiniteError",
    "SingularError",
    "TcsolveError",
]


class TcsolveError(Exception):
    """Base of every error this library raises on purpose."""


class InputError(TcsolveError, ValueError):
    """An argument has the wrong shape, dtype or value."""


class SingularError(TcsolveError, LinAlgError):
    """The matrix has an exactly zero pivot in FP64; the solution is not unique."""


class NotPositiveDefiniteError(TcsolveError, LinAlgError):
    """The matrix was said to be positive definite, and a Cholesky factorization of it broke down."""


class DeviceError(TcsolveError, RuntimeError):
    """The device asked for is missing or cannot do what was asked."""


class DeviceMemoryError(DeviceError, MemoryError):
    """The solve would not fit in (or ran out of) device memory."""


class KernelCompileError(DeviceError):
    """A CUDA kernel did not compile; kernel, architecture, options and log are attributes."""

    def __init__(self, kernel, arch, options, log):
        super().__init__(
            f"kernel {kernel!r} does not compile for {arch} with {' '.join(options)}:\n{log}"
        )
        self.kernel, self.arch, self.options, self.log = kernel, arch, tuple(options), log

    def __reduce__(self):
        # A worker process hands its exceptions over by pickle.
        return type(self), (self.kernel, self.arch, self.options, self.log)


class AccuracyWarning(LinAlgWarning):
    """The answer is the best found, but its backward error misses the bound."""
