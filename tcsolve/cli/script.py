"""`tcsolve run`: a program whose calls of SciPy, NumPy and CuPy go to tcsolve."""

import builtins
import io
import os
import pkgutil
import runpy
import sys
import types

from tcsolve._backends.select import cuda_available
from tcsolve._errors import InputError
from tcsolve._family.installed import install

__all__ = ["check_script", "run_script", "runs_program"]

_state = {"runs": False}


def check_script(args):
    """Raise an InputError if the script is not a file; whether a module exists is not checked."""
    is_program = os.path.isfile(args.script) or os.path.isfile(
        os.path.join(args.script, "__main__.py")
    )
    if not args.is_module and not is_program:
        raise InputError(f"{args.script} is not a file, nor a folder with a file __main__.py")


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
        _run_file(args.script)
    return 0


def _run_file(path):
    """Run a text of Python as `python path` does; also a folder, an archive, or compiled code."""
    if path.endswith(".pyc") or pkgutil.get_importer(path) is not None:
        del sys.path[0]  # runpy puts the folder or the archive there
        runpy.run_path(path, run_name="__main__")
        return
    path = os.path.abspath(path)
    sys.path[0] = os.path.dirname(path)
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __file__=path, __cached__=None)
    sys.modules["__main__"] = main
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec")
    exec(code, main.__dict__)
