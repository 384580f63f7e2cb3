"""The command line: its parser, and the commands `solve` and `list`.

`EXIT_CODES` explains the exit codes.
"""

import argparse
import importlib.metadata
import json
import sys
import warnings

import scipy.io

from tcsolve import matrices
from tcsolve._checks import STRUCTURES
from tcsolve._errors import InputError, TcsolveError
from tcsolve._plan import MODEL_NAMES, PRECISIONS
from tcsolve._report import small_error
from tcsolve._solution import Status, plain
from tcsolve._solve.api import solve_ex
from tcsolve._solve.problem.request import RESIDUALS
from tcsolve._steps import observed
from tcsolve.cli.bench import add_bench
from tcsolve.cli.kernels import parse_arch, warm
from tcsolve.cli.machine import info
from tcsolve.cli.messages import say
from tcsolve.cli.output_files import STANDARD_OUTPUT, check_outputs, forget_output, target, whole
from tcsolve.cli.problem import DEFAULT_N, is_generated, read_problem
from tcsolve.cli.progress_line import progress, silence
from tcsolve.cli.report import print_report, report_of
from tcsolve.cli.script import check_script, run_script
from tcsolve.cli.study import add_study

__all__ = ["main"]

VERIFIED, NOT_VERIFIED, REFUSED, ILL_CONDITIONED = range(4)
INTERRUPTED, NO_READER = 130, 141
EXIT_CODES = f"""\
exit codes:
  {VERIFIED}    x is verified (its backward error meets the bound), and A is not ill-conditioned;
       study, bench, list, info, warm: done
  {NOT_VERIFIED}    x misses the bound, leaves the range of its dtype, or is less accurate than --residual
       promises; A is singular, or is not what --assume-a says; bench: a solve of tcsolve failed
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
        The exit code, as the text `EXIT_CODES` explains it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_: say("warning", message)
        try:
            args = _parser().parse_args(argv)
            code = args.run(args)
            if sys.stdout:
                sys.stdout.flush()
            if args.run is not check_script:
                return code
        except BrokenPipeError:
            forget_output()
            return NO_READER
        except KeyboardInterrupt:
            say("error", "interrupted")
            return INTERRUPTED
        except (TcsolveError, OSError, MemoryError) as error:
            say("error", str(error) or type(error).__name__)
            return REFUSED
    # Outside of the blocks above, so that Python reports the errors and warnings of the user's program.
    return run_script(args)


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises an InputError, so that every mistake is reported in one line."""

    def parse_args(self, args=None, namespace=None):
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            message = f"unrecognized arguments: {' '.join(unknown)}"
            if found.run is _solve and not any(text.startswith("-") for text in unknown):
                message += " (b must follow A directly, before the options)"
            raise InputError(f"{message}; see {self.prog} {found.command} --help")
        return found

    def error(self, message):
        raise InputError(f"{message}; see {self.prog} --help")


def _parser():
    texts = {"epilog": EXIT_CODES, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = _Parser(
        prog="tcsolve",
        description="Solve dense linear systems on tensor cores, to FP64 accuracy.",
        **texts,
    )
    parser.add_argument(
        "--version", action="version", version=importlib.metadata.version("tcsolve")
    )
    commands = parser.add_subparsers(required=True, metavar="command", dest="command")

    # The parser of Python 3.11 and 3.12 finds b only directly after A.
    usage = "%(prog)s A [b] [options]"
    solve = commands.add_parser(
        "solve", usage=usage, help="solve A x = b and report the errors", **texts
    )
    solve.set_defaults(run=_solve)
    solve.add_argument(
        "a",
        metavar="A",
        help="file.mtx, file.mtx.gz, file.rb, file.mat, ss:NAME (SuiteSparse), gen:NAME, or - for a Matrix "
        "Market file, plain or compressed by gzip, from standard input",
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
    solve.add_argument(
        "--precision",
        choices=(*PRECISIONS, *MODEL_NAMES),
        default="auto",
        metavar="NAME",
        help=f"{', '.join(PRECISIONS)}, or emulated tensor cores, such as fp16@h200 (default auto)",
    )
    solve.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="the device to solve on, as in tcsolve.solve (default auto)",
    )
    solve.add_argument(
        "--residual",
        choices=RESIDUALS,
        default="fp64",
        help="precision of the residuals; with double-double, x is accurate to nearly its last bit "
        "(default fp64)",
    )
    solve.add_argument(
        "--assume-a",
        choices=[s for s in STRUCTURES if s],
        metavar="STRUCTURE",
        help="structure of A, as SciPy's assume_a; only the entries that this structure needs are read",
    )
    solve.add_argument(
        "-o",
        "--output",
        type=target,
        metavar="x.mtx",
        help="write x; - writes x to standard output and the printed report to standard error",
    )
    solve.add_argument(
        "--json",
        type=target,
        metavar="report.json",
        help="write the report as JSON; - writes it to standard output and the printed report to "
        "standard error",
    )
    solve.add_argument("--force", action="store_true", help="overwrite the files of -o and --json")
    solve.add_argument(
        "--quiet",
        action="store_true",
        help="print no report, no progress and no warning; errors and the exit code remain",
    )

    add_study(commands, texts)
    add_bench(commands, texts)
    script = commands.add_parser(
        "run",
        usage="%(prog)s [-m] script.py [arguments]",
        help="run a Python program in which tcsolve's functions replace those of SciPy, NumPy and CuPy",
    )
    script.set_defaults(run=check_script)
    script.add_argument(
        "-m", dest="is_module", action="store_true", help="run a module by its name"
    )
    script.add_argument("script", help="file or module")
    script.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="arguments of the program, for its sys.argv"
    )

    machine = commands.add_parser("info", help="versions, the GPU, and whether the kernels compile")
    machine.set_defaults(run=info)
    warmer = commands.add_parser(
        "warm",
        help="compile the kernels in advance, and measure the machine for device='auto'",
        **texts,
    )
    warmer.set_defaults(run=lambda args: warm([parse_arch(text) for text in args.arch], sys.stdout))
    warmer.add_argument(
        "--arch",
        nargs="+",
        metavar="ARCH",
        default=(),
        help="compile for these architectures, such as sm_90, and measure nothing (no GPU is needed); by "
        "default, compile for the GPU and measure",
    )
    catalog = commands.add_parser("list", help="the names of gen: matrices")
    catalog.set_defaults(run=_list)
    return parser


def _solve(args):
    if args.quiet:
        warnings.simplefilter("ignore")
    shown = silence if args.quiet else progress
    check_outputs(args)
    with shown(f"{'generating' if is_generated(args.a) else 'reading'} {args.a}"):
        problem = read_problem(args)

    def doing():
        verb = "copying to the GPU" if steps[-1:] == ["move"] else "solving"
        return f"{verb}: {problem.name}, n = {problem.n}"

    with observed() as steps, shown(doing):
        solution = solve_ex(
            problem.a,
            problem.b,
            assume_a=args.assume_a,
            precision=args.precision,
            device=args.device,
            residual=args.residual,
        )
    report = report_of(problem, solution)
    # Print the report first, so that it is not lost if a file cannot be written.
    piped = STANDARD_OUTPUT in (args.output, args.json)
    if not args.quiet:
        print_report(report, solution, sys.stderr if piped else sys.stdout)
    if args.output and report["finite"]:
        with whole(args.output) as file:
            scipy.io.mmwrite(file, solution.x.reshape(problem.n, -1), symmetry="general")
    if args.json:
        with whole(args.json) as file:
            file.write(json.dumps(plain(report), indent=1, allow_nan=False).encode() + b"\n")
    if args.output and not report["finite"] and not args.quiet:
        say("warning", f"x is not written to {args.output}, because it is not finite")
    if solution.status is Status.ILL_CONDITIONED and not args.quiet:
        error = small_error(solution)
        doubt = "x may have no correct digit" if error is None else f"forward error {error:.1e}"
        say("warning", f"rcond = {solution.rcond:.1e}: {doubt}")
    return _exit_code(solution.status)


def _exit_code(status):
    if status in (Status.CONVERGED, Status.CONVERGED_AFTER_FALLBACK):
        return VERIFIED
    return ILL_CONDITIONED if status.ok else NOT_VERIFIED


def _list(args):
    for entry in matrices.catalog():
        unsolvable = "" if entry.solvable else "; not solvable"
        cond = f"; --cond (default {entry.options['cond']:g})" if "cond" in entry.options else ""
        print(f"{entry.name:22} {entry.summary}{unsolvable}{cond}")
    return 0
