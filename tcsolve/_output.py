"""Files that are written whole or not at all, and a standard output that nobody reads any more."""

import contextlib
import os
import shutil
import sys
import tempfile

__all__ = ["forget_output", "whole"]


@contextlib.contextmanager
def whole(path):
    """Open a file that takes its name, and the place of an older one, when all of it is written.

    Parameters
    ----------
    path : Path
        What is there and no ordinary file of one name (a pipe, a device, a hard link) is written to as it is.

    Yields
    ------
    binary file

    Raises
    ------
    OSError
        It could not be written; then what was there before is there still.
    """
    try:
        if path.exists() and not (path.is_file() and path.stat().st_nlink == 1):
            with open(path, "wb") as file:
                yield file
        else:
            with _aside(path.resolve()) as file:
                yield file
    except OSError as error:
        raise OSError(f"{path} could not be written: {error}") from error


@contextlib.contextmanager
def _aside(path):
    """Open a new file beside path that replaces it in the end, or is removed."""
    file = tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False)
    try:
        with file:
            yield file
        if path.exists():
            shutil.copymode(path, file.name)
        else:
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(file.name, 0o666 & ~mask)
        os.replace(file.name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(file.name)
        raise


def forget_output():
    """Let what is still to be written go nowhere: else Python complains of it when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
