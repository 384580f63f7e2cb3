"""Every exception and warning of the library.

Each error is also the builtin error (or the LinAlgError) that SciPy raises in the same case.  The result of
a solve is a `Status`; `solve` turns a bad status into one of these errors or warnings.
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
    """The caller asserted a positive definite matrix, but its Cholesky factorization broke down."""


class DeviceError(TcsolveError, RuntimeError):
    """The requested device is missing, or it does not support the request."""


class DeviceMemoryError(DeviceError, MemoryError):
    """The device has too little free memory, or an allocation on it failed."""


class KernelCompileError(DeviceError):
    """A CUDA kernel did not compile.

    Attributes
    ----------
    kernel : str
        Name of the kernel.
    arch : str
        Architecture that it was compiled for, as 'sm_90a'.
    options : tuple of str
        Options of the compiler.
    log : str
        Messages of the compiler.
    """

    def __init__(self, kernel, arch, options, log):
        super().__init__(
            f"kernel {kernel!r} does not compile for {arch} with {' '.join(options)}:\n{log}"
        )
        self.kernel, self.arch, self.options, self.log = kernel, arch, tuple(options), log

    def __reduce__(self):
        # By default pickle calls the class with the message alone, but __init__ takes four arguments.
        args = self.kernel, self.arch, self.options, self.log
        return type(self), args, self.__dict__


class AccuracyWarning(LinAlgWarning):
    """The answer is the best found, but its backward error misses the bound."""
