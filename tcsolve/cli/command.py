"""The command line: solve a system from a file or a generator, and report the status and the errors.

`EXIT_CODES` explains the exit codes.
"""

import argparse
import dataclasses
import enum
import importlib.metadata
import itertools
import json
import math
import os
import platform
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import scipy.io

from tcsolve import matrices
from tcsolve._backends import select
from tcsolve._checks import STRUCTURES
from tcsolve._errors import DeviceError, InputError, TcsolveError
from tcsolve._plan import PRECISIONS
from tcsolve._solution import Status
from tcsolve._solve.api import solve_ex
from tcsolve._solve.cost_model import H200, rates_of
from tcsolve.cli.output_files import STANDARD_OUTPUT, forget_output, target_of, whole
from tcsolve.cli.progress_line import progress
from tcsolve.matrices import _suitesparse

__all__ = ["main", "plain", "versions"]

INSTALL = "pip install 'tcsolve[cuda13]' (or [cuda12])"
# The architecture to compile kernels for on a machine without a GPU.
DEFAULT_ARCH = "sm_90a"
DEFAULT_N = 1000
WIDTH = 100
STANDARD_INPUT = "-"

VERIFIED, NOT_VERIFIED, REFUSED, ILL_CONDITIONED = range(4)
INTERRUPTED, NO_READER = 130, 141
EXIT_CODES = f"""\
exit codes:
  {VERIFIED}    x is verified (its backward error meets the bound), and A is not ill-conditioned;
       list, info: done
  {NOT_VERIFIED}    x misses the bound, or A is singular, or A is not what --assume-a says
  {REFUSED}    the command cannot be carried out: a wrong argument, a bad file, no device, no memory
  {ILL_CONDITIONED}    x is verified, but A is ill-conditioned or its condition is not known
  {INTERRUPTED}  interrupted by Ctrl-C
  {NO_READER}  the program that reads the output has ended"""


def main(argv=None):
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        By default the arguments of the process.

    Returns
    -------
    int
        One of `EXIT_CODES`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_: _say("warning", message)
        try:
            args = _parser().parse_args(argv)
            code = args.run(args)
            if sys.stdout:
                sys.stdout.flush()
            return code
        except BrokenPipeError:
            forget_output()
            return NO_READER
        except KeyboardInterrupt:
            _say("error", "interrupted")
            return INTERRUPTED
        except (TcsolveError, OSError, MemoryError) as error:
            _say("error", error or type(error).__name__)
            return REFUSED


def _say(kind, message):
    _tell(f"tcsolve: {kind}: " + " ".join(str(message).split()), sys.stderr)


def _tell(text, stream):
    # Python sets a closed standard stream to None, and print(file=None) writes to standard output.
    if stream is not None:
        print(text, file=stream)


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises an InputError, so that every mistake is reported in one line."""

    def error(self, message):
        if message.startswith("unrecognized arguments") and " -" not in message:
            message += " (b must follow A directly, before the options)"
        raise InputError(f"{message}; see {self.prog} --help")


def _parser():
    texts = {"epilog": EXIT_CODES, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = _Parser(
        prog="tcsolve", description="Solve dense linear systems on tensor cores, to FP64.", **texts
    )
    parser.add_argument(
        "--version", action="version", version=importlib.metadata.version("tcsolve")
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    # The parser of Python 3.11 and 3.12 finds b only directly after A.
    usage = "%(prog)s A [b] [options]"
    solve = commands.add_parser(
        "solve", usage=usage, help="solve A x = b and report the errors", **texts
    )
    solve.set_defaults(run=_solve)
    solve.add_argument(
        "a",
        metavar="A",
        help="file.mtx, file.mtx.gz, ss:NAME (SuiteSparse), gen:NAME, or - for a Matrix Market file, "
        "plain or compressed by gzip, from standard input",
    )
    solve.add_argument(
        "b", nargs="?", help="file.mtx, file.mtx.gz, or -; by default b = A x, with x from --rhs"
    )
    solve.add_argument("--rhs", choices=("ones", "random"), help="the x in b = A x (default ones)")
    solve.add_argument("--n", type=int, help=f"order of a gen: matrix (default {DEFAULT_N})")
    solve.add_argument(
        "--cond", type=float, help="condition number of a gen: matrix that has this option"
    )
    solve.add_argument("--complex", action="store_true", help="make the matrix complex")
    solve.add_argument("--seed", type=int, default=0, help="seed of gen: matrices and --rhs random")
    solve.add_argument("--precision", choices=PRECISIONS, default="auto")
    solve.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    solve.add_argument(
        "--assume-a",
        choices=[s for s in STRUCTURES if s],
        metavar="STRUCTURE",
        help="structure of A, as SciPy's assume_a; only the entries that this structure needs are read",
    )
    solve.add_argument(
        "-o",
        "--output",
        type=_target,
        metavar="x.mtx",
        help="write x; - writes x to standard output and the printed report to standard error",
    )
    solve.add_argument(
        "--json",
        type=_target,
        metavar="report.json",
        help="write the report as JSON; - writes it to standard output and the printed report to "
        "standard error",
    )
    solve.add_argument("--force", action="store_true", help="overwrite the files of -o and --json")

    info = commands.add_parser("info", help="versions, the GPU, and whether the kernels compile")
    info.set_defaults(run=_info)
    catalog = commands.add_parser("list", help="the names of gen: matrices")
    catalog.set_defaults(run=_list)
    return parser


def _target(text):
    """Return text as a path, or '-' unchanged; './-' is a file with the name '-'."""
    return text if text == STANDARD_OUTPUT else Path(text)


# ---- solve -------------------------------------------------------------------------------------


def _solve(args):
    _check_outputs(args)
    problem = _read_problem(args)
    with progress(f"solving {problem.name}, n = {problem.n}"):
        solution = solve_ex(
            problem.a,
            problem.b,
            assume_a=args.assume_a,
            precision=args.precision,
            device=args.device,
        )
    report = _report(problem, solution)
    # Print the report first, so that it is not lost if a file cannot be written.
    piped = STANDARD_OUTPUT in (args.output, args.json)
    _print_report(report, solution, sys.stderr if piped else sys.stdout)
    if args.output and report["finite"]:
        with whole(args.output) as file:
            scipy.io.mmwrite(file, solution.x.reshape(problem.n, -1), symmetry="general")
    if args.json:
        with whole(args.json) as file:
            file.write(json.dumps(plain(report), indent=1, allow_nan=False).encode() + b"\n")
    if args.output and not report["finite"]:
        _say("warning", f"x is not written to {args.output}, because it is not finite")
    if solution.status is Status.ILL_CONDITIONED:
        _say("warning", f"rcond = {solution.rcond:.1e}: x may have no correct digit")
    return _exit_code(solution.status)


def _exit_code(status):
    if status in (Status.CONVERGED, Status.CONVERGED_AFTER_FALLBACK):
        return VERIFIED
    return ILL_CONDITIONED if status.ok else NOT_VERIFIED


def _check_outputs(args):
    """Raise an InputError if an output cannot be written, before the solve takes its time."""
    if args.output and args.json and _same(args.output, args.json):
        raise InputError(f"-o and --json are both {args.output}; write one of them elsewhere")
    if args.output not in (None, STANDARD_OUTPUT) and args.output.suffix != ".mtx":
        raise InputError(f"-o is {args.output}; its name must end in .mtx, or be -")
    for path in filter(None, (args.output, args.json)):
        if path == STANDARD_OUTPUT:
            _require_open(sys.stdout, "standard output")
        else:
            _check_file(path, args.force)


def _same(one, other):
    if STANDARD_OUTPUT in (one, other):
        return one == other
    return one.resolve() == other.resolve()


def _require_open(stream, name):
    if stream is None:
        raise InputError(f"{name} is closed; open it, or give the name of a file instead of -")


def _check_file(path, force):
    if path.is_dir():
        raise InputError(f"{path} is a folder; the name of a file is needed")
    if path.is_file() and not force:
        raise InputError(f"{path} exists; choose another name, or --force to overwrite it")
    if not (folder := target_of(path).parent).is_dir():
        raise InputError(f"there is no folder {folder} to write {path.name} in")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{path} cannot be written: permission denied")


def _read_problem(args):
    """Return the `matrices.Problem` that the arguments describe; x_true is None if b comes from a file."""
    if args.b and args.rhs:
        raise InputError("b is given twice: as a file and by --rhs; drop one of them")
    if args.a == args.b == STANDARD_INPUT:
        raise InputError("A and b are both -; only one of them can come from standard input")
    common = {
        "seed": args.seed,
        "dtype": np.complex128 if args.complex else None,
        "rhs": args.rhs or "ones",
    }
    try:
        problem = _named(args, common)
        if args.b:
            b = _suitesparse.read(_opened(args.b))
            problem = dataclasses.replace(problem, b=b, x_true=None)
    except (ImportError, TypeError, ValueError) as error:
        raise InputError(error) from error
    if problem.n == 0:
        raise InputError(f"{problem.name} is empty; there is nothing to solve")
    for name in ("a", "b"):
        if not np.isfinite(getattr(problem, name)).all():
            raise InputError(
                f"{name.upper() if name == 'a' else name} holds NaN or Inf; clean the data"
            )
    return problem


def _opened(name):
    """Return the stream of standard input for '-', else the name."""
    if name != STANDARD_INPUT:
        return name
    _require_open(sys.stdin, "standard input")
    return sys.stdin.buffer


def _named(args, common):
    kind, _, name = args.a.partition(":")
    if kind == "gen":
        return matrices.generate(
            name, DEFAULT_N if args.n is None else args.n, cond=args.cond, **common
        )
    if args.n is not None or args.cond is not None:
        raise InputError(f"--n and --cond are for gen: matrices only, and A is {args.a}")
    if args.a != STANDARD_INPUT and kind != "ss" and not args.a.endswith(_suitesparse.SUFFIXES):
        raise InputError(
            f"A is {args.a!r}; it must be a .mtx or .mtx.gz file, ss:NAME, gen:NAME or -"
        )
    return matrices.load(name if kind == "ss" else _opened(args.a), **common)


def _report(problem, solution):
    """Return the report: facts about the matrix, the fields of the `Solution` except x, and the versions."""
    x, exact, forward = solution.x, problem.x_true, None
    finite = bool(np.isfinite(x).all())
    with np.errstate(over="ignore"):
        norm = float(np.abs(problem.a).sum(axis=1).max())
        if exact is not None and finite:
            forward = float(np.abs(x - exact).max() / np.abs(exact).max())
    names = (f.name for f in dataclasses.fields(solution) if f.name != "x")
    return {
        "matrix": {
            "name": problem.name,
            "n": problem.n,
            "nrhs": 1 if problem.b.ndim == 1 else problem.b.shape[1],
            "dtype": str(problem.a.dtype),
            "norm_inf": norm,
            "cond": problem.cond,
        },
        **{name: getattr(solution, name) for name in names},
        "ok": solution.status.ok,
        "message": solution.status.value,
        "finite": finite,
        "forward_error": forward,
        "versions": versions(),
    }


def plain(value):
    """Return value with only types that JSON has; NaN and infinity become None, which JSON writes as null."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print_report(report, solution, stream):
    matrix, worst = report["matrix"], _worst(solution.backward_error)
    rhs = "" if matrix["nrhs"] == 1 else f", {matrix['nrhs']} right-hand sides (worst shown)"
    cond = "" if matrix["cond"] is None else f", cond {matrix['cond']:.1e}"
    rcond = "not estimated" if math.isnan(solution.rcond) else f"{solution.rcond:.1e}"
    lines = {
        "matrix": f"{matrix['name']}, n = {matrix['n']}, {matrix['dtype']}, "
        f"norm {matrix['norm_inf']:.3g}{cond}{rhs}",
        "verdict": solution.status.value,
        "precision": f"{solution.precision} (tried {', '.join(solution.rungs)}) on {solution.device}",
        "steps": _worst(solution.iterations),
        "backward error": f"{worst:.1e} (bound {solution.bound:.1e})",
        "rcond": rcond,
    }
    if report["forward_error"] is not None:
        lines["forward error"] = f"{report['forward_error']:.1e}"
    lines["seconds"] = ", ".join(f"{phase} {s:.3g}" for phase, s in solution.seconds.items())
    for rung, points in itertools.groupby(solution.history, key=lambda point: point.rung):
        # '~' marks an error that FGMRES estimated after an inner step.
        errors = " ".join(f"{'~' * p.estimated}{_worst(p.error):.0e}" for p in points)
        lines[f"history {rung}"] = textwrap.fill(errors, WIDTH, subsequent_indent=" " * 16)
    _print_aligned(lines, stream)


def _worst(values):
    return np.max(values, initial=0)  # NaN if any value is NaN


def _print_aligned(lines, stream):
    for name, text in lines.items():
        _tell(f"{name:15} {text}", stream)


# ---- info and list -----------------------------------------------------------------------------


def versions():
    """Return the versions of the software that affects results; CuPy and NVRTC are None if not loaded.

    Returns
    -------
    dict of str to str or None
    """
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    cupy = sys.modules.get("cupy")
    return {
        "tcsolve": importlib.metadata.version("tcsolve"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "blas": f"{blas['name']} {blas['version']}",
        "cupy": cupy and cupy.__version__,
        "nvrtc": cupy and _nvrtc_version(),
    }


def _nvrtc_version():
    """Return the version of NVRTC, or None if CuPy does not find it."""
    try:
        from cupy.cuda import nvrtc

        return ".".join(map(str, nvrtc.getVersion()))
    except (ImportError, RuntimeError):
        return None


def _info(args):
    try:
        reason = select.why_no_cuda()
    except ImportError as error:
        reason = f"CuPy cannot be imported ({error})"
    found = versions()
    folder = os.environ.get(_suitesparse.FOLDER_VARIABLE)
    lines = {name: version or f"none; {INSTALL}" for name, version in found.items()}
    lines |= _describe_gpu() if reason is None else _describe_no_gpu(reason)
    lines["matrices"] = folder or f"no folder; set {_suitesparse.FOLDER_VARIABLE} for ss:NAME"
    _print_aligned(lines, sys.stdout)
    print("kernels")
    if found["nvrtc"] is None:
        print(f"  not compiled: CuPy with NVRTC is needed; {INSTALL}")
        return 0
    from tcsolve._backends.cuda.runtime.compiler import target_arch

    arch = target_arch() if reason is None else DEFAULT_ARCH
    for name, outcome in _compile_kernels(arch):
        print(f"  {name:13} {outcome}")
    return 0


def _describe_no_gpu(reason):
    remedy = "" if INSTALL in reason else f"; a GPU needs NVIDIA's driver and {INSTALL}"
    return {"gpu": f"none: {reason}{remedy}", "rates": "CPU"}


def _describe_gpu():
    from cupy.cuda import Device, runtime

    device = Device()
    name = runtime.getDeviceProperties(device.id)["name"].decode()
    free, total = device.mem_info
    rates = rates_of("cuda", select.ops_on("cuda").properties)
    return {
        "gpu": f"{name}, compute capability {int(device.compute_capability) / 10}, "
        f"{total / 2**30:.1f} GiB ({free / 2**30:.1f} free)",
        "rates": "H200, measured" if rates is H200 else "scaled from the H200",
    }


def _compile_kernels(arch):
    """Compile every variant of every kernel, and return (name, outcome) for each kernel."""
    from tcsolve._backends.cuda.runtime.compiler import compile_cubin, supported
    from tcsolve.kernels.registry import KERNELS

    outcomes = []
    with progress(f"compiling kernels for {arch}"):
        for name, spec in KERNELS.items():
            variants = spec.variants_for(arch)
            outcome = f"{len(variants)} variants compile for {arch}"
            if not supported(name, arch):
                outcome = f"needs compute capability {spec.min_arch / 10}, and this is {arch}"
            else:
                try:
                    for variant in variants:
                        compile_cubin(name, arch, tuple(sorted(variant.items())))
                except DeviceError as error:
                    outcome = "FAILS: " + " ".join(str(error).split())
            outcomes.append((name, outcome))
    return outcomes


def _list(args):
    for entry in matrices.catalog():
        unsolvable = "" if entry.solvable else "; not solvable"
        cond = f"; --cond {entry.options['cond']:g}" if "cond" in entry.options else ""
        print(f"{entry.name:22} {entry.summary}{unsolvable}{cond}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
