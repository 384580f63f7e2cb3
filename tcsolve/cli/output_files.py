"""Check output files, write them completely or not at all, and handle a closed standard output."""

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tcsolve._errors import InputError

__all__ = ["STANDARD_OUTPUT", "check_outputs", "forget_output", "require_open", "target", "whole"]

STANDARD_OUTPUT = "-"


def target(text):
    """Return text as a path, or '-' unchanged; './-' is a file with the name '-'."""
    return text if text == STANDARD_OUTPUT else Path(text)


def check_outputs(args):
    """Raise an InputError if an output cannot be written; it is called before the solve."""
    if args.output and args.json and _same(args.output, args.json):
        raise InputError(f"-o and --json are both {args.output}; write one of them elsewhere")
    if args.output not in (None, STANDARD_OUTPUT) and args.output.suffix != ".mtx":
        raise InputError(f"-o is {args.output}; its name must end in .mtx, or be -")
    for path in filter(None, (args.output, args.json)):
        if path == STANDARD_OUTPUT:
            require_open(sys.stdout, "standard output")
        else:
            _check_file(path, args.force)


def _same(one, other):
    if STANDARD_OUTPUT in (one, other):
        return one == other
    return one.resolve() == other.resolve()


def require_open(stream, name):
    if stream is None:
        raise InputError(f"{name} is closed; open it, or give the name of a file instead of -")


def _check_file(path, force):
    if path.is_dir():
        raise InputError(f"{path} is a folder; the name of a file is needed")
    if path.is_file() and not force:
        raise InputError(f"{path} exists; choose another name, or --force to overwrite it")
    if not (folder := _target_of(path).parent).is_dir():
        raise InputError(f"there is no folder {folder} to write {path.name} in")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InputError(f"{path} cannot be written: permission denied")


@contextlib.contextmanager
def whole(path):
    """Open a temporary file that is renamed to `path` when it is complete.

    Parameters
    ----------
    path : Path or '-'
        '-' is standard output.  Some files cannot be replaced by a rename and are written directly: a pipe,
        a device, a file with several links, a file of another user, a file in a read-only folder.

    Yields
    ------
    binary file

    Raises
    ------
    BrokenPipeError
        The program that reads the pipe has ended.
    OSError
        The file could not be written.  An older file that would have been replaced is unchanged.
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
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
        raise OSError(f"{path} could not be written: {error}") from error


def _is_output(path):
    """Tell whether path is the file, pipe or device that standard output writes to."""
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
    """Open a temporary file next to path; rename it to path at the end, or remove it after an error."""
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


def _target_of(path):
    """Return the target of a symbolic link, or path itself if it is no link."""
    try:
        return path.resolve() if path.is_symlink() else path
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path} leads to no file: {error}") from error


def forget_output():
    """Discard unwritten output, so that Python reports no error for it when the process ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
