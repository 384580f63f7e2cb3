"""`tcsolve run`: a program whose calls of SciPy, NumPy and CuPy go to tcsolve."""

import os
import runpy
import sys

from tcsolve._backends.select import cuda_available
from tcsolve._errors import InputError
from tcsolve._family.installed import install

__all__ = ["check_script", "run_script", "runs_program"]

_state = {"runs": False}


def check_script(args):
    """Raise an InputError if the script is not a file; whether a module exists is not checked."""
    if not args.is_module and not os.path.isfile(args.script):
        raise InputError(f"{args.script} is not a file")


def runs_program():
    """Tell whether the program of the user has begun; then tcsolve does not handle interrupts."""
    return _state["runs"]


def run_script(args):
    """Run a script, or a module, as Python does, and return 0; a SystemExit of the program is not caught."""
    if cuda_available():
        import cupy  # noqa: F401  so that its functions are rebound before the program imports them
    install()
    sys.argv = [args.script, *args.arguments]
    _state["runs"] = True
    if args.is_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(args.script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(args.script))
        runpy.run_path(args.script, run_name="__main__")
    return 0
