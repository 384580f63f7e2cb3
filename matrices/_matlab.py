"""MATLAB files: the struct of the SuiteSparse collection, or one matrix."""

import zlib

import numpy as np
import scipy.io
import scipy.sparse

__all__ = ["read"]

# What SciPy's reader raises for a file that is cut off or something else.
UNREADABLE = (
    *(ValueError, TypeError, EOFError, OSError, IndexError, KeyError, zlib.error),
    scipy.io.matlab.MatReadError,
)


def read(path, *, limit_bytes, pattern=True):
    """Read the matrix of a .mat file into a dense array.

    Parameters
    ----------
    path : path
    limit_bytes : int
        Largest dense array to make.
    pattern : bool
        Such a file always has values, so this has no effect.

    Returns
    -------
    a : ndarray, float64 or complex128, C order
        The field A of a struct ``Problem``; else the variable A, or the only matrix of the file.

    Raises
    ------
    MemoryError
        The dense array would exceed ``limit_bytes``.
    ValueError
        The file cannot be read, or does not say which matrix is meant.
    """
    try:
        found = scipy.io.loadmat(path, struct_as_record=True)
    except NotImplementedError as error:
        raise ValueError(
            f"{path} is a MATLAB 7.3 file, which SciPy cannot read; save it with -v7"
        ) from error
    except UNREADABLE as error:
        raise ValueError(f"{path} is not a readable MATLAB file: {error}") from error
    a = _matrix(path, {key: value for key, value in found.items() if not key.startswith("__")})
    dtype = np.dtype(complex if a.dtype.kind == "c" else float)
    if (size := a.shape[0] * a.shape[1] * dtype.itemsize) > limit_bytes:
        raise MemoryError(
            f"{path} is {a.shape[0]} by {a.shape[1]}: dense it takes {size / 2**30:.3g} GiB, and limit_bytes "
            f"allows {limit_bytes / 2**30:.3g} GiB; raise limit_bytes, in Python, to load it"
        )
    dense = a.toarray() if scipy.sparse.issparse(a) else a
    return np.ascontiguousarray(dense, dtype)


def _matrix(path, variables):
    """Return the matrix that is meant, sparse or not."""
    problem = variables.get("Problem")
    if problem is not None and problem.dtype.names and "A" in problem.dtype.names:
        return problem["A"].flat[0]
    if "A" in variables:
        return variables["A"]
    candidates = [value for value in variables.values() if _is_matrix(value)]
    if len(candidates) != 1:
        raise ValueError(
            f"{path} has the variables {', '.join(variables) or '(none)'}; one of them must be the struct "
            "Problem, or be called A"
        )
    return candidates[0]


def _is_matrix(value):
    return value.ndim == 2 and min(value.shape) > 1 and value.dtype.kind in "fciu"
