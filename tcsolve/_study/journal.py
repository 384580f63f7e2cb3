"""The file of finished rows: JSON lines, each on the disk before the next one is written."""

import gzip
import json
import os
import zlib
from pathlib import Path

from tcsolve._errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = ["Journal", "read_rows"]


class Journal:
    """An open file of rows.

    A process that is killed at any instant leaves whole lines, and perhaps the beginning of one more.  That
    part is removed when the file is opened again.

    Attributes
    ----------
    path : Path
    rows : list of dict
        The rows of the file.
    """

    def __init__(self, path, file, rows):
        self.path, self._file, self.rows = path, file, rows

    @classmethod
    def of(cls, path, resume):
        """Open a file, and lock it; with `resume` its rows are kept, else it must be empty or new.

        Raises
        ------
        InputError
            The file cannot be used.
        """
        given, path = path, Path(path)
        if not path.parent.is_dir():
            raise InputError(f"study: there is no folder {path.parent} to write {given} in")
        if path.exists() and not path.is_file():
            # A device such as /dev/full would be read without an end.
            kind = "folder" if path.is_dir() else "device or a pipe"
            raise InputError(f"study: {given} is a {kind}; the name of a file is needed")
        if not resume and path.is_file() and path.stat().st_size:
            raise InputError(
                f"study: {given} is not empty; resume its study (resume=True, --resume), or choose "
                "another name"
            )
        file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            _lock(file, path)
            whole, rows = _whole_lines(path)
            os.ftruncate(file, whole)
            os.lseek(file, whole, os.SEEK_SET)
            _sync_folder(path.parent)
        except BaseException:
            os.close(file)
            raise
        return cls(path, file, rows)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._file)

    def append(self, row):
        """Write a row, and wait until it is on the disk.

        Raises
        ------
        OSError
            The row cannot be written, for instance because the disk is full; the message names the file.
        """
        left = memoryview(json.dumps(row, allow_nan=False).encode() + b"\n")
        try:
            while left:
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError as error:
            told = (
                f"{error.strerror}; the rows so far are kept: resume the study to do the other runs"
            )
            raise OSError(error.errno, told, str(self.path)) from error
        self.rows.append(row)


def _lock(file, path):
    """Lock an open file, or raise an InputError if another process writes to it."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise InputError(f"study: another process writes to {path}") from error


def read_rows(path):
    """Return the rows of a file; of those with the same key, the last one.

    If the last line is incomplete, it is ignored.  The file may be compressed by gzip.
    """
    path = Path(path)
    rows = _whole_lines(path, gzip.open if path.suffix == ".gz" else open)[1]
    return list({row["key"]: row for row in rows}.values())


def _whole_lines(path, opened=open):
    """Return the number of bytes of the whole lines of a file, and their rows."""
    try:
        with opened(path, "rb") as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"study: {path} cannot be read: {error}") from error
    whole = data.rfind(b"\n") + 1
    rows = []
    for number, line in enumerate(data[:whole].splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("key"), str):
            raise InputError(
                f"study: line {number} of {path} is not a row of a study; remove the line, or choose another "
                "file"
            )
        rows.append(row)
    return whole, rows


def _sync_folder(folder):
    """Wait until the name of a new file is on the disk; do nothing on Windows, which opens no folders."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
