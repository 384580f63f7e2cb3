"""The command as a process: ``python -m tcsolve``, and the script that is installed."""

import contextlib
import os
import signal
import sys

INTERRUPTED = 130


def main():
    """Run the command line with the arguments of the process, and return its exit code.

    Ctrl-C ends the process with exit code 130 and one line on standard error, also while modules are
    imported.

    Returns
    -------
    int
    """
    # An exception in the middle of an import may be printed or turned into another one, by C extensions
    # for instance. So a handler ends the process; there is nothing to clean up yet.
    if handles := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from tcsolve.cli import command

    try:
        if handles:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return command.main()
    except KeyboardInterrupt:  # before the command could take it
        _end()


def _end(*_):
    with contextlib.suppress(OSError):
        os.write(2, b"tcsolve: error: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
