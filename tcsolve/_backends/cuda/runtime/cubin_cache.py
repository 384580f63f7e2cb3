"""The folder of compiled kernels, which processes share.

A file is a cubin and its checksum, or the rates of `machine_rates` and their checksum.  A file appears whole
or not at all, so no process reads a part of it.  A folder that is missing, read-only or full is no error: a
cubin that cannot be read is compiled again, and one that cannot be written is compiled in each process.
"""

import hashlib
import os
import pathlib
import tempfile

__all__ = ["folder", "read", "write"]

CHECKSUM_BYTES = 32


def folder():
    """Return the folder: TCSOLVE_CACHE_DIR, or tcsolve in the user's folder of caches."""
    own = os.environ.get("TCSOLVE_CACHE_DIR")
    shared = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(own or os.path.join(shared, "tcsolve"))


def read(path):
    """Return the cubin or the rates in a file; None if there is no file, or a byte is wrong or missing."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    cubin, checksum = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
    return cubin if cubin and _checksum(cubin) == checksum else None


def write(path, cubin):
    """Write a cubin or rates; return whether this was possible.

    Other processes see the whole file or none.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(cubin + _checksum(cubin))
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            _remove(temporary)
        return False
    return True


def _remove(path):
    try:
        os.unlink(path)
    except OSError:
        pass


def _checksum(cubin):
    return hashlib.sha256(cubin).digest()
