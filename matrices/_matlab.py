"""MATLAB files: the struct of the SuiteSparse collection, or one matrix."""

import io
import struct
import zlib

import numpy as np
import scipy.io
import scipy.sparse

__all__ = ["read"]

# What SciPy's reader raises for a file that is cut off, or that is no MATLAB file.
UNREADABLE = (
    *(ValueError, TypeError, EOFError, OSError, IndexError, KeyError, OverflowError),
    *(zlib.error, scipy.io.matlab.MatReadError),
)
# The type of a compressed variable in a file of version 5, and the bytes that are unpacked at a time.
COMPRESSED, PIECE = 15, 1 << 20
# Number of bytes that contain the type and the shape of a variable, and its name of at most 63 letters.
HEAD = 1 << 10
# What `whosmat` calls a variable that is no array of numbers.
OTHER = ("struct", "cell", "char", "object", "function", "opaque", "unknown")


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
        The dense array would exceed ``limit_bytes``, or the unpacked variables would take more than twice
        as much.
    ValueError
        The file cannot be read, or does not say which matrix is meant.
    """
    try:
        name, shape, kind = _meant(scipy.io.whosmat(_heads(path)))
        if kind != "struct":  # before the numbers are read
            _require_room(path, shape, 8, limit_bytes)
        _require_few_bytes(path, 2 * limit_bytes + PIECE)
        a = scipy.io.loadmat(path, struct_as_record=True, variable_names=[name])[name]
        a = a["A"].item() if kind == "struct" else a
        dtype = np.dtype(complex if a.dtype.kind == "c" else float)
        _require_room(path, a.shape, dtype.itemsize, limit_bytes)
        if scipy.sparse.issparse(a):
            if a.format == "csc":  # SciPy has checked the indices of a COO matrix already
                a.check_format()  # `toarray` would write outside of its array for wrong indices
            a = a.toarray()
        return np.ascontiguousarray(a, dtype)
    except NotImplementedError as error:
        raise ValueError(
            f"{path} is a MATLAB 7.3 file, which SciPy cannot read; save it with -v7"
        ) from error
    except UNREADABLE as error:
        raise ValueError(f"{path} is not a readable MATLAB file: {error}") from error


def _heads(path):
    """Return a file of the first HEAD bytes of each variable, unpacked, for `whosmat`.

    To find the shape of a variable, `whosmat` unpacks 128 KiB of compressed bytes, which can become 128 MiB.
    For a file that is not of version 5, return the path.
    """
    version, _ = scipy.io.matlab.matfile_version(path)
    if version != 1:  # version 4, where nothing is packed, or 7.3, which `whosmat` refuses
        return path
    with open(path, "rb") as file:
        heads = [file.read(128)]
        for order, kind, size in _variables(file):
            if kind == COMPRESSED:
                inner = next(_unpacked(file, size, HEAD), b"")
                kind, head = inner[:4], inner[8:]
            else:
                kind, head = struct.pack(order + "I", kind), file.read(min(size, HEAD))
            heads += [kind, struct.pack(order + "I", len(head)), head]
    return io.BytesIO(b"".join(heads))


def _variables(file):
    """Yield (byte order, type, number of bytes) of each variable of a file of version 5.

    At each yield, the position of the file is the first of these bytes.
    """
    file.seek(0)
    order = {b"IM": "<", b"MI": ">"}.get(file.read(128)[126:])
    while order and len(tag := file.read(8)) == 8:
        kind, size = struct.unpack(order + "II", tag)
        end = file.tell() + size
        yield order, kind, size
        file.seek(end)


def _unpacked(file, size, most):
    """Unpack the next `size` bytes of a file, and yield the result, at most `most` bytes at a time."""
    unpacker = zlib.decompressobj()
    while size and (packed := file.read(min(size, PIECE))):
        size -= len(packed)
        while packed and not unpacker.eof:
            yield unpacker.decompress(packed, most)
            packed = unpacker.unconsumed_tail


def _meant(listed):
    """Return what `whosmat` lists of the variable that is read: the struct Problem, A, or the only matrix."""
    numbers = [one for one in listed if one[2] not in OTHER]
    found = [one for one in listed if one[0] == "Problem" and one[1:] == ((1, 1), "struct")]
    found = found or [one for one in numbers if one[0] == "A"]
    found = found or [one for one in numbers if len(one[1]) == 2 and min(one[1]) > 1]
    if len(found) != 1:
        names = ", ".join(name for name, _, _ in listed) or "(none)"
        raise ValueError(
            f"it has the variables {names}; one of them must be the struct Problem, or be called A"
        )
    return found[0]


def _require_room(path, shape, itemsize, limit_bytes):
    if len(shape) != 2 or min(shape) < 0:
        raise ValueError(f"the matrix has the shape {shape}")
    if (size := shape[0] * shape[1] * itemsize) > limit_bytes:
        raise MemoryError(
            f"{path} is {shape[0]} by {shape[1]}: dense it takes {size / 2**30:.3g} GiB, and limit_bytes "
            f"allows {limit_bytes / 2**30:.3g} GiB; raise limit_bytes, in Python, to load it"
        )


def _require_few_bytes(path, most):
    """Raise a MemoryError if the compressed variables of a file take more than `most` bytes unpacked.

    SciPy reads a struct as a whole, and does not tell its size beforehand.
    """
    with open(path, "rb") as file:
        total = 0
        for _, kind, size in _variables(file):
            for piece in _unpacked(file, size, PIECE) if kind == COMPRESSED else ():
                total += len(piece)
                if total > most:
                    raise MemoryError(
                        f"{path} has variables of more than {most / 2**30:.3g} GiB unpacked; raise "
                        "limit_bytes, in Python, to load it"
                    )
