"""Files that are written whole or not at all, and a standard output that nobody reads any more."""

import contextlib
import os
import shutil
import sys
import tempfile

from tcsolve._errors import InputError

__all__ = ["forget_output", "target_of", "whole"]


@contextlib.contextmanager
def whole(path):
    """Open a file that takes its name, and the place of an older one, when all of it is written.

    Parameters
    ----------
    path : Path
        What is there and may not be replaced (a pipe, a device, standard output, a file of several names or
        of somebody else, or in a folder that cannot be written) is written to as it is.

    Yields
    ------
    binary file

    Raises
    ------
    OSError
        It could not be written; then what was to be replaced is there still.
    """
    try:
        if _is_output(path):
            sys.stdout.flush()
            yield sys.stdout.buffer
        elif path.exists() and not _replaceable(path.resolve()):
            with open(path, "wb") as file:
                yield file
        else:
            with _aside(path.resolve()) as file:
                yield file
    except (OSError, RuntimeError) as error:  # of links that lead to themselves
        raise OSError(f"{path} could not be written: {error}") from error


def _is_output(path):
    """Tell whether a path leads to what standard output is written to."""
    try:
        return os.path.samestat(path.stat(), os.fstat(sys.stdout.fileno()))
    except (AttributeError, OSError, RuntimeError, ValueError):
        return False


def _replaceable(path):
    state, user = path.stat(), getattr(os, "geteuid", None)
    ours = user is None or state.st_uid == user()
    return path.is_file() and state.st_nlink == 1 and ours and os.access(path.parent, os.W_OK)


@contextlib.contextmanager
def _aside(path):
    """Open a new file beside path that replaces it in the end, or is removed."""
    file = tempfile.NamedTemporaryFile(dir=path.parent, prefix=".tcsolve", delete=False)
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


def target_of(path):
    """Return what a path leads to by links, itself where it is none."""
    try:
        return path.resolve() if path.is_symlink() else path
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path} leads to no file: {error}") from error


def forget_output():
    """Let what is still to be written go nowhere: else Python complains of it when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
