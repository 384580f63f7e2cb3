"""Read the system that the arguments of `tcsolve solve` describe."""

import dataclasses
import sys

import numpy as np

from tcsolve import matrices
from tcsolve._errors import InputError
from tcsolve.cli.output_files import require_open
from tcsolve.matrices import _suitesparse

__all__ = ["DEFAULT_N", "is_generated", "read_problem"]

DEFAULT_N = 1000
STANDARD_INPUT = "-"


def read_problem(args):
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
    require_open(sys.stdin, "standard input")
    return sys.stdin.buffer


def is_generated(name):
    """Tell whether A comes from a generator."""
    return name.startswith("gen:")


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
            f"A is {args.a!r}; it must be a file (such as .mtx, .mtx.gz, .rb, .mat), ss:NAME, gen:NAME or -"
        )
    return matrices.load(name if kind == "ss" else _opened(args.a), **common)
