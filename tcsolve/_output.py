"""Files that are written whole or not at all, and a standard output that nobody reads any more."""

import contextlib
import os
import sys

__all__ = ["forget_output", "whole"]


@contextlib.contextmanager
def whole(path):
    """Open a file that takes its name, and the place of an older one, when all of it is written.

    Parameters
    ----------
    path : Path

    Yields
    ------
    binary file

    Raises
    ------
    OSError
        It could not be written; then what was there before is there still.
    """
    path = path.resolve()
    # What is no file, as a device, is written to as it is.
    aside = path.with_name(path.name + ".part") if path.is_file() or not path.exists() else path
    try:
        with open(aside, "wb") as file:
            yield file
        if aside != path:
            os.replace(aside, path)
    except OSError as error:
        if aside != path:
            aside.unlink(missing_ok=True)
        raise OSError(f"{path} could not be written: {error}") from error


def forget_output():
    """Let what is still to be written go nowhere: else Python complains of it when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
