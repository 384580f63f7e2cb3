"""Files that are written whole or not at all; standard output, also when its reader has gone away."""

import contextlib
import os
import shutil
import sys
import tempfile

from tcsolve._errors import InputError

__all__ = ["STANDARD_OUTPUT", "forget_output", "target_of", "whole"]

STANDARD_OUTPUT = "-"


@contextlib.contextmanager
def whole(path):
    """Open a file that takes its name, and the place of an older one, when all of it is written.

    Parameters
    ----------
    path : Path or '-'
        '-' is standard output.  A pipe, a device, a file with several names or of another user, and a file
        in a folder that cannot be written, are not replaced but written to.

    Yields
    ------
    binary file

    Raises
    ------
    BrokenPipeError
        The reader of a pipe has gone away.
    OSError
        It could not be written; the older file is still there then.
    """
    try:
        if path == STANDARD_OUTPUT or _is_output(path):
            sys.stdout.flush()
            yield sys.stdout.buffer
        elif path.exists() and not _replaceable(path.resolve()):
            with open(path, "wb") as file:
                yield file
        else:
            with _aside(path.resolve()) as file:
                yield file
    except BrokenPipeError:
        raise
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
    """Open a new file in the folder of path that replaces it in the end, or is removed."""
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
