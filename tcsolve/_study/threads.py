"""The number of threads of BLAS, which decides the order of its sums."""

import ctypes
import os

from scipy.linalg import cython_lapack

from tcsolve._hardware import cores

__all__ = ["THREAD_VARIABLES", "asked_of_blas", "blas_threads"]

THREAD_VARIABLES = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"),
    "VECLIB_MAXIMUM_THREADS",
)
# Names of the function that returns the number, in the builds of OpenBLAS, MKL and BLIS.
FUNCTIONS = (
    *(
        f"{prefix}openblas_get_num_threads{suffix}"
        for prefix in ("scipy_", "")
        for suffix in ("", "64_")
    ),
    *("MKL_Get_Max_Threads", "bli_thread_get_num_threads"),
)


def blas_threads():
    """Return the number of threads that SciPy's BLAS may use.

    The number comes from BLAS, if it has a function for this.  Otherwise it is that of the first of
    `THREAD_VARIABLES` that is set, or the number of cores of this process.

    Returns
    -------
    int
    """
    asked = asked_of_blas()
    if asked is not None:
        return asked
    given = (os.environ.get(name, "") for name in THREAD_VARIABLES)
    return next((int(text) for text in given if text.isdigit() and int(text) > 0), cores())


def asked_of_blas():
    """Return the number that BLAS reports, or None; SciPy's module gives access to the BLAS that it links."""
    try:
        library = ctypes.CDLL(cython_lapack.__file__)
    except OSError:
        return None
    for name in FUNCTIONS:
        if (function := getattr(library, name, None)) is not None:
            return int(function())
    return None
