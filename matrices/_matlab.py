"""MATLAB files: the struct of the SuiteSparse collection, or one matrix."""

import struct
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
# The type of a compressed variable in a file of version 5, and the bytes that are unpacked at a time.
COMPRESSED, PIECE = 15, 1 << 20


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
        The dense array would exceed ``limit_bytes``, or the unpacked variables more than twice as much.
    ValueError
        The file cannot be read, or does not say which matrix is meant.
    """
    try:
        listed = scipy.io.whosmat(path)
        for _, shape, _ in (meant := _meant(listed)):  # before the numbers are read
            _require_room(path, shape, 8, limit_bytes)
        _require_few_bytes(path, 2 * limit_bytes + PIECE)
        names = [name for name, _, _ in meant or listed if meant or name == "Problem"] or None
        found = scipy.io.loadmat(path, struct_as_record=True, variable_names=names)
    except NotImplementedError as error:
        raise ValueError(
            f"{path} is a MATLAB 7.3 file, which SciPy cannot read; save it with -v7"
        ) from error
    except UNREADABLE as error:
        raise ValueError(f"{path} is not a readable MATLAB file: {error}") from error
    a = _matrix(path, {key: value for key, value in found.items() if not key.startswith("__")})
    dtype = np.dtype(complex if a.dtype.kind == "c" else float)
    _require_room(path, a.shape, dtype.itemsize, limit_bytes)
    dense = a.toarray() if scipy.sparse.issparse(a) else a
    return np.ascontiguousarray(dense, dtype)


def _meant(listed):
    """Return what `whosmat` lists of the variable that is read, in a list; [] if its size is not listed."""
    numbers = [one for one in listed if one[2] not in ("struct", "cell", "char", "object")]
    if "Problem" in (name for name, _, _ in listed):
        return []
    if named := [one for one in numbers if one[0] == "A"]:
        return named
    matrices = [one for one in numbers if len(one[1]) == 2 and min(one[1]) > 1]
    return matrices if len(matrices) == 1 else []


def _require_room(path, shape, itemsize, limit_bytes):
    if len(shape) == 2 and (size := shape[0] * shape[1] * itemsize) > limit_bytes:
        raise MemoryError(
            f"{path} is {shape[0]} by {shape[1]}: dense it takes {size / 2**30:.3g} GiB, and limit_bytes "
            f"allows {limit_bytes / 2**30:.3g} GiB; raise limit_bytes, in Python, to load it"
        )


def _require_few_bytes(path, most):
    """Raise a MemoryError if the compressed variables of a file take more than `most` bytes unpacked.

    SciPy reads a struct as a whole, and does not tell its size before.
    """
    with open(path, "rb") as file:
        order = {b"IM": "<", b"MI": ">"}.get(file.read(128)[126:])
        total = 0
        while order and len(tag := file.read(8)) == 8:
            kind, size = struct.unpack(order + "II", tag)
            if kind != COMPRESSED:  # its bytes are in the file
                file.seek(size, 1)
                continue
            unpacker = zlib.decompressobj()
            while size and (packed := file.read(min(size, PIECE))):
                size -= len(packed)
                while packed and not unpacker.eof:
                    total += len(unpacker.decompress(packed, PIECE))
                    packed = unpacker.unconsumed_tail
                    if total > most:
                        raise MemoryError(
                            f"{path} has variables of more than {most / 2**30:.3g} GiB unpacked; raise "
                            "limit_bytes, in Python, to load it"
                        )


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
