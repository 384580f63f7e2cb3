"""`tcsolve run`: a program whose calls of SciPy, NumPy and CuPy go to tcsolve."""

import builtins
import io
import os
import pkgutil
import runpy
import sys
import types
from importlib.machinery import SourceFileLoader

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
        _put_first(os.getcwd())
        runpy.run_module(args.script, run_name="__main__", alter_sys=True)
    else:
        _run_file(args.script)
    return 0


def _put_first(folder):
    """Put a folder where Python has that of the program, unless Python was told to have none."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _run_file(given):
    """Run a text of Python as `python given` does; also compiled code, a folder, or an archive."""
    path = os.path.abspath(given)
    if pkgutil.get_importer(path) is not None:  # a folder or an archive
        sys.path[: not sys.flags.safe_path] = [path]
        sys.modules["__main__"] = types.ModuleType("__main__")
        runpy._run_module_as_main("__main__", alter_argv=False)  # what Python itself calls
        return
    _put_first(os.path.dirname(os.path.realpath(path)))
    if path.endswith(".pyc"):
        runpy.run_path(given, run_name="__main__")
        return
    main, loader = types.ModuleType("__main__"), SourceFileLoader("__main__", path)
    main.__dict__.update(__builtins__=builtins, __file__=path, __cached__=None, __loader__=loader)
    sys.modules["__main__"] = main
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec")
    exec(code, main.__dict__)
