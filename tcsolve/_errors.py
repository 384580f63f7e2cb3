"""Every exception and warning of the library.

Where SciPy raises a ValueError, a KeyError or a LinAlgError, the error of this library is also of that class.
The outcome of a solve is a `Status`; `solve` turns a bad status into one of these errors or warnings.
"""

import sys
import warnings

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
    "UnknownStructureError",
    "warn",
]


class TcsolveError(Exception):
    """Base of all error classes of tcsolve.

    Examples
    --------
    >>> import tcsolve
    >>> try:
    ...     tcsolve.solve([[1.0, 2], [2, 4]], [1.0, 2])
    ... except tcsolve.TcsolveError as error:
    ...     print(type(error).__name__)
    SingularError
    """


class InputError(TcsolveError, ValueError):
    """An argument has the wrong shape, dtype or value.  This is a ValueError.

    Examples
    --------
    >>> import tcsolve
    >>> try:
    ...     tcsolve.solve([[1.0, 2], [3, 4]], [1.0, 2], device="gpu")
    ... except tcsolve.InputError as error:
    ...     print(error)
    device is 'gpu'; it needs 'auto', 'cpu' or 'cuda'
    """


class UnknownStructureError(InputError, KeyError):
    """`assume_a` of `inv` is not known.  This is a KeyError, as in SciPy."""

    __str__ = Exception.__str__  # that of KeyError has quotes


class SingularError(TcsolveError, LinAlgError):
    """A pivot is exactly zero in FP64: the matrix is singular to working precision.  This is a LinAlgError.

    Examples
    --------
    >>> import numpy as np, tcsolve
    >>> try:
    ...     tcsolve.solve([[1.0, 2], [2, 4]], [1.0, 2])
    ... except np.linalg.LinAlgError as error:
    ...     print(type(error).__name__)
    SingularError
    """


class NotPositiveDefiniteError(TcsolveError, LinAlgError):
    """A matrix that is asserted to be positive definite has no Cholesky factorization.

    This is a LinAlgError.

    Examples
    --------
    >>> import tcsolve
    >>> try:
    ...     tcsolve.solve([[1.0, 2], [2, 1]], [1.0, 2], assume_a="positive definite")
    ... except tcsolve.NotPositiveDefiniteError as error:
    ...     print(type(error).__name__)
    NotPositiveDefiniteError
    """


class DeviceError(TcsolveError, RuntimeError):
    """The requested device is missing, or it does not support the request.  This is a RuntimeError.

    Examples
    --------
    >>> import tcsolve
    >>> try:  # solve on a GPU, or on the host if there is none
    ...     x = tcsolve.solve([[2.0, 1], [1, 3]], [3.0, 4], device="cuda")
    ... except tcsolve.DeviceError:
    ...     x = tcsolve.solve([[2.0, 1], [1, 3]], [3.0, 4], device="cpu")
    >>> x.round(12).tolist()
    [1.0, 1.0]
    """


class DeviceMemoryError(DeviceError, MemoryError):
    """The device has too little free memory, or an allocation on it failed.  This is a MemoryError.

    Examples
    --------
    >>> import tcsolve
    >>> try:
    ...     f = tcsolve.factor([[2.0, 1], [1, 3]])
    ... except tcsolve.DeviceMemoryError:  # only on a GPU
    ...     f = tcsolve.factor([[2.0, 1], [1, 3]], device="cpu")
    >>> f.solve([3.0, 4]).round(12).tolist()
    [1.0, 1.0]
    """


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

    Examples
    --------
    >>> import tcsolve
    >>> error = tcsolve.KernelCompileError("panel", "sm_90a", ["-std=c++17"], "panel.cu(1): error")
    >>> print(error)
    kernel 'panel' does not compile for sm_90a with -std=c++17:
    panel.cu(1): error
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
    """The answer is the best that was found, but it is not what was asked for.

    It misses the bound, leaves the range of its dtype, or is less accurate than a double-double residual
    promises; or entries of A contradict `assume_a`.

    Examples
    --------
    >>> import warnings, tcsolve
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     x = tcsolve.solve([[2.0, 1], [5, 3]], [1.0, 1], assume_a="upper triangular")
    >>> [warning.category.__name__ for warning in caught]
    ['AccuracyWarning']
    """


def warn(message, category):
    """Give a warning that points at the first caller outside tcsolve."""
    frame, level = sys._getframe(1), 2
    # A program that `exec` runs may have no name.
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "tcsolve":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
