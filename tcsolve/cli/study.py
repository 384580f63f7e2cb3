"""The command `tcsolve study`: a study of convergence, its tables and its pictures."""

import functools
import sys
from collections import Counter
from pathlib import Path

from tcsolve._errors import InputError
from tcsolve._study.api import study
from tcsolve._study.columns import COLUMNS
from tcsolve._study.pictures import PICTURES, count_pages, require_matplotlib
from tcsolve._study.plans import PLAN_COLUMNS, parse_grid
from tcsolve._study.spec import DEVICES, RIGHT_SIDES
from tcsolve._study.table import StudyTable
from tcsolve._study.writers import as_markdown, check_form
from tcsolve.cli.messages import say, tell

__all__ = ["add_study"]

EPILOG = """\
examples:
  tcsolve study gen:svd_geo:n=100:cond=1e2,1e6 --plan precision=fp16,bf16 method=ir,fgmres block=32
  tcsolve study 'ss:HB/*' --max-n 500 --kind spd --precision fp16,fp32 -o runs.jsonl --table runs.md
  tcsolve study study.toml -o runs.jsonl --jobs 2 --resume --pictures figures
  tcsolve study --read runs.jsonl --table runs.tex --pictures figures
"""
FILTERS = ("min_n", "max_n", "kind", "group", "kappa")
# The arguments that say what to run; --read runs nothing.
OF_RUNS = ("matrices", "precision", "plan", *FILTERS, "output", "resume", "jobs", "limit", "device")
OF_RUNS += "seed", "rhs", "history", "spectrum", "energy"


def add_study(commands, texts):
    """Add the parser of `tcsolve study` to the commands."""
    texts = texts | {"epilog": EPILOG + "\n" + texts["epilog"]}
    parser = commands.add_parser(
        "study", help="solve many matrices by many plans: tables and pictures", **texts
    )
    parser.set_defaults(run=functools.partial(_study, parser))
    parser.add_argument(
        "matrices",
        nargs="*",
        help="a study file .toml; or gen:NAME:n=100,200:cond=1e3,1e6, ss:NAME, ss:'GROUP/*', and files .mtx, "
        ".mtx.gz, .rb, .mat, whose names may be patterns such as 'data/*.mtx'",
    )
    parser.add_argument(
        "--read", type=Path, metavar="runs.jsonl", help="run nothing, read these rows"
    )
    plans = parser.add_argument_group("plans")
    plans.add_argument(
        "--precision", metavar="fp16,bf16,...", help="precisions of the factorization to try"
    )
    plans.add_argument(
        "--plan",
        nargs="+",
        action="append",
        default=[],
        metavar="key=value,value",
        help="a grid of the fields of a Plan, such as precision=fp16,fp32 method=ir,fgmres,gmres,cg "
        "scale=yes,no; may be repeated",
    )
    wanted = parser.add_argument_group("filters: which of the given matrices are taken")
    wanted.add_argument("--min-n", type=int, help="smallest order")
    wanted.add_argument("--max-n", type=int, help="largest order")
    wanted.add_argument(
        "--kind",
        help="spd, symmetric (equal to the conjugate transpose), unsymmetric, real or complex",
    )
    wanted.add_argument("--group", help="group of the collection, such as HB")
    wanted.add_argument("--kappa", metavar="1e3:1e8", help="range of the condition number")
    runs = parser.add_argument_group("runs")
    runs.add_argument("-o", "--output", type=Path, metavar="runs.jsonl", help="keep the rows here")
    runs.add_argument(
        "--resume", action="store_true", help="do only the runs that -o does not have"
    )
    runs.add_argument("--jobs", type=int, default=1, help="number of processes (default 1)")
    runs.add_argument(
        "--limit", type=float, metavar="SECONDS", help="give up a run after this time"
    )
    runs.add_argument(
        "--device",
        choices=DEVICES,
        help="the device to solve on, as in tcsolve.solve (default auto)",
    )
    runs.add_argument(
        "--seed", type=int, help="seed of generated matrices and of --rhs random (default 0)"
    )
    runs.add_argument("--rhs", choices=RIGHT_SIDES, help="the x in b = A x (default ones)")
    runs.add_argument("--history", action="store_true", help="keep the history of each run")
    runs.add_argument(
        "--spectrum",
        type=int,
        metavar="N",
        help="keep the eigenvalues of matrices of order up to N",
    )
    runs.add_argument(
        "--energy", action="store_true", help="measure the energy of each run on a GPU"
    )
    results = parser.add_argument_group("results")
    results.add_argument(
        "--table",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="write the rows to .csv, .md, .tex or .parquet; may be repeated",
    )
    results.add_argument("--columns", metavar="NAME,NAME", help="columns of the tables")
    results.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw pictures there")
    results.add_argument(
        "--form", default="png", choices=("png", "pdf", "svg"), help="form of the pictures"
    )


def _study(parser, args):
    if args.read:
        _require_nothing_to_run(parser, args)
    _check_results(args)
    table = StudyTable.read(args.read) if args.read else _run(args)
    columns = args.columns.split(",") if args.columns else None
    for path in args.table:
        table.write(path, columns)
    if args.pictures:
        _draw(table, args.pictures, args.form)
    tell(
        as_markdown(
            table.summary(), ("plan", "runs", "converged", "median_steps", "seconds", "model")
        ),
        sys.stdout,
    )
    for row in table.rows:
        if row["status"] in ("SKIPPED", "CRASHED"):
            say("warning", f"{row['matrix']}: {row['status'].lower()}: {row['reason']}")
    raised = Counter(row["reason"] for row in table.rows if row["status"] == "RAISED")
    for reason, runs in raised.items():
        say("warning", f"{runs} run{'s' * (runs > 1)} ended with an error: {reason}")
    return 0


def _require_nothing_to_run(parser, args):
    """Raise an InputError if arguments say what to run, although the rows are read from a file."""
    given = [name for name in OF_RUNS if getattr(args, name) not in ([], parser.get_default(name))]
    if given:
        named = ["matrices" if n == "matrices" else "--" + n.replace("_", "-") for n in given]
        raise InputError(
            f"--read {args.read} runs nothing; leave out {', '.join(named)}, or leave out --read"
        )


def _check_results(args):
    """Raise an InputError, before a long study, if its results could not be written."""
    for path in args.table:
        check_form(path)
        if not path.parent.is_dir():
            raise InputError(f"there is no folder {path.parent} to write {path} in")
    if args.columns and not args.table:
        raise InputError(
            "--columns selects the columns of a table; give the file of the table with --table"
        )
    if args.columns and not args.read:
        known = (*COLUMNS, *PLAN_COLUMNS)
        unknown = [name for name in args.columns.split(",") if name not in known]
        if unknown:
            raise InputError(
                f"there is no column {', '.join(unknown)}; there are {', '.join(known)}"
            )
    if args.pictures:
        require_matplotlib()
        if args.pictures.exists() and not args.pictures.is_dir():
            raise InputError(f"{args.pictures} is a file; --pictures needs a folder")


def _run(args):
    if not args.matrices:
        raise InputError("no matrices are given; see tcsolve study --help")
    given = ("device", "seed", "rhs", "spectrum")
    options = {key: value for key in given if (value := getattr(args, key)) is not None}
    options |= {"history": args.history or bool(args.pictures), "energy": args.energy}
    how = {"path": args.output, "resume": args.resume, "jobs": args.jobs}
    how["limit_seconds"] = args.limit
    filters = {key: value for key in FILTERS if (value := getattr(args, key)) is not None}
    if args.matrices[0].endswith(".toml"):
        return _run_file(args, options, filters, how)
    plans = [name for name in (args.precision or "").split(",") if name]
    plans += [parse_grid(words) for words in args.plan]
    return study([_entry(text, filters) for text in args.matrices], plans, **options, **how)


def _run_file(args, options, filters, how):
    if len(args.matrices) > 1 or args.precision or args.plan or filters:
        raise InputError(
            f"{args.matrices[0]} has the matrices and the plans; leave out other matrices, --precision, "
            "--plan and filters"
        )
    return study(args.matrices[0], **options, **how)


def _entry(text, filters):
    """Return the entry of `tcsolve.study` for an argument."""
    return {"text": text, **filters} if filters else text


def _draw(table, folder, form):
    """Draw every kind of picture; if the rows lack the numbers of one, warn and leave it out."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in PICTURES:
        try:
            table.draw(kind, folder / f"{kind}.{form}")
            for page in range(2, 1 + count_pages(kind, table)):
                table.draw(kind, folder / f"{kind}_{page}.{form}", page=page)
        except InputError as error:
            say("warning", f"no picture {kind}: {error}")
