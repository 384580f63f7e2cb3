"""The entry point of ``python -m tcsolve`` and of the installed command ``tcsolve``."""

import contextlib
import os
import signal
import sys

INTERRUPTED = 130


def main():
    """Run the command line with the arguments of the process, and return its exit code.

    Ctrl-C ends the process with exit code 130 and one line on standard error.  This also holds while
    modules are imported.  In a program that `tcsolve run` runs, Ctrl-C acts as it does without tcsolve.

    Returns
    -------
    int
    """
    # During an import, KeyboardInterrupt is not reliable: a C extension may print it or replace it.  So
    # this handler ends the process at once; there is nothing to clean up yet.
    if handles := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from tcsolve.cli import command, script

    try:
        if handles:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return command.main()
    except KeyboardInterrupt:  # raised where command.main() does not catch it
        if script.runs_program():
            raise
        _end()


def _end(*_):
    with contextlib.suppress(OSError):
        os.write(2, b"tcsolve: error: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
