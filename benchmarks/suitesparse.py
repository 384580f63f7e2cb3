"""Does every matrix of a collection get the same answer, or the same warning, as in SciPy?

    TCSOLVE_MATRICES=folder python benchmarks/suitesparse.py --device cpu --markdown out.md

The folder holds Matrix Market files, and perhaps an index.csv with the columns name, group, n, and the
condition numbers cond_2norm and cond_est_1norm_equilibrated, which the page then gives.  The right-hand side
is b = A ones.  assume_a is always 'general', so that the LU and its fallbacks are tested even if the matrix
has a structure.  The output files are rewritten after every matrix.  A matrix that cannot be read, or is not
square, is listed and skipped.
"""

import argparse
import contextlib
import json
import math
import os
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import scipy.io
import scipy.linalg
from _harness import gpu, machine

from tcsolve import LinAlgError, LinAlgWarning, TcsolveError, matrices, solve_ex
from tcsolve._backends.select import cuda_available
from tcsolve._solution import plain
from tcsolve.cli.machine import versions

PRECISIONS = ("auto", "fp16", "fp16x3")
# By default, no larger matrix is solved on a CPU, and SciPy never gets one.  For n = 17758, SciPy would take
# more than a minute on two cores (extrapolated from n = 5489).
HOST_MAX_N = 6000
U = 2.0**-53
ROWS = 256  # of a matrix that are converted to long doubles at once
# Two backward errors agree up to this factor and this absolute rounding error of the residual.
AGREE_FACTOR, AGREE_ABSOLUTE = 2, 4 * U

# Matrices with a verdict other than 'ok' that is expected, with the reason.
NOTES: dict[str, str] = {}

OK, SILENT, RAISED = "ok", "silent", "raised"
CONVERGED = ("CONVERGED", "CONVERGED_AFTER_FALLBACK")
ANSWERED = (*CONVERGED, "ILL_CONDITIONED")


def main(argv=None):
    """Measure every matrix, write the table as it grows, and print how many verdicts are ok."""
    args = parse(argv)
    if args.again:
        return rewrite(args)
    rows, unread = [], []
    for entry in track(select(args)):
        try:
            problem = matrices.load(entry["name"], folder=args.folder)
        except (ValueError, OSError, MemoryError) as error:
            print(f"{entry['name']:20} is left out: {error}", flush=True)
            unread.append(entry["name"])
            continue
        row = measure(problem, entry, args.device)
        row["verdict"] = judge(row)
        rows.append(row)
        print(f"{row['matrix']:20} n = {row['n']:6}  {row['verdict']}", flush=True)
        write(rows, args)
    counts = Counter(verdict for row in rows for verdict in reasons_of(row["verdict"]))
    print(f"{len(rows)} matrices; " + ", ".join(f"{k}: {v}" for k, v in counts.most_common()))
    unexplained = [
        row["matrix"] for row in rows if row["verdict"] != OK and row["matrix"] not in NOTES
    ]
    if unexplained:
        print("not explained:", ", ".join(unexplained))
    if unread:
        print("left out:", ", ".join(sorted(unread)))
    return int(bool(unexplained or unread))


def rewrite(args):
    """Write the table of an earlier run again, with conditions from the index; null in JSON is NaN."""
    report = json.loads(args.again.read_text())
    known = {entry["name"]: entry for entry in entries(args.folder)}
    for row in report["rows"]:
        for part in filter(None, (row, *(row[name] for name in (*PRECISIONS, "scipy")))):
            part |= {
                key: math.nan for key, value in part.items() if value is None and key != "scipy"
            }
        row |= conditions(known.get(row["matrix"], row))
        row["verdict"] = judge(row)
    lines = [*explanation(report["rows"], report["machine"]), "", *table(report["rows"])]
    publish(args.markdown, "\n".join(lines))
    return 0


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda", "auto"), default="auto")
    parser.add_argument("--max-n", type=int, help=f"default: {HOST_MAX_N} on a CPU, none on a GPU")
    parser.add_argument("--folder", default=os.environ.get("TCSOLVE_MATRICES"))
    parser.add_argument("--names", nargs="+", help="only these")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--again", type=Path, help="rewrite the table of this JSON; run nothing")
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args(argv)
    if not args.folder:
        parser.error("no folder is known; give --folder or set TCSOLVE_MATRICES")
    if args.again and not args.markdown:
        parser.error("--again needs --markdown, the table that is written again")
    for path in filter(None, (args.json, args.markdown)):
        if not path.parent.is_dir():
            parser.error(f"there is no folder {path.parent} to write {path.name} in")
    if args.max_n is None and (args.device == "cpu" or not cuda_available()):
        args.max_n = HOST_MAX_N
    return args


def select(args):
    """Return the entries to measure, small matrices first."""
    rows = entries(args.folder)
    unknown = set(args.names or ()) - {row["name"] for row in rows}
    if unknown:
        sys.exit(f"no matrix {', '.join(sorted(unknown))} in {args.folder}")
    limit = math.inf if args.max_n is None else args.max_n
    chosen = (r for r in rows if r["n"] <= limit and (not args.names or r["name"] in args.names))
    chosen = sorted(chosen, key=lambda row: row["n"])
    if not chosen:
        sys.exit(f"{args.folder} has no matrix of n <= {limit}; give another --folder or --max-n")
    return chosen


def entries(folder):
    """Return a dict with name and n for each matrix of the index, or of the folder if it has no index."""
    try:
        rows = {row["name"]: row for row in matrices.index(folder)}
    except FileNotFoundError:
        rows = {}
    names = rows or dict.fromkeys(matrices.names(folder), {})
    return [
        row if "n" in row else {**row, "name": name, "n": order(folder, name)}
        for name, row in names.items()
    ]


def order(folder, name):
    """Return the number of rows that the header of a file gives, 0 if it cannot be read."""
    for path in (Path(folder) / (name + suffix) for suffix in (".mtx.gz", ".mtx")):
        with contextlib.suppress(OSError, ValueError):
            return scipy.io.mminfo(path)[0]
    return 0


def conditions(entry):
    """Return the condition numbers of a matrix and of the scaled matrix, NaN where they are not known."""
    names = {"cond": "cond_2norm", "cond_scaled": "cond_est_1norm_equilibrated"}
    return {key: entry.get(name, entry.get(key, math.nan)) for key, name in names.items()}


def track(entries):
    """Return entries with a progress bar on a terminal, if tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return entries
    return tqdm(entries, disable=None)


# ---- measuring ---------------------------------------------------------------------------------


def measure(problem, entry, device):
    """Return the row of one matrix: SciPy's result and that of every precision."""
    row = {"matrix": entry["name"], "n": problem.n, **conditions(entry)}
    row["scipy"] = solve_by_scipy(problem) if problem.n <= HOST_MAX_N else None
    for precision in PRECISIONS:
        row[precision] = solve_by_tcsolve(problem, precision, device)
    return row


def solve_by_scipy(problem):
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            x, outcome = scipy.linalg.solve(problem.a, problem.b, assume_a="gen"), OK
        except LinAlgError:
            x, outcome = np.full(problem.n, np.nan), "singular"
    if any(issubclass(warning.category, LinAlgWarning) for warning in caught):
        outcome = "ill-conditioned"
    seconds = time.perf_counter() - start
    return {"outcome": outcome, **errors(problem, x), "seconds": seconds}


def solve_by_tcsolve(problem, precision, device):
    try:
        solution = solve_ex(
            problem.a, problem.b, assume_a="general", precision=precision, device=device
        )
    except (TcsolveError, MemoryError) as error:
        return {"status": RAISED, "message": str(error)}
    return {
        "status": solution.status.name,
        "rung": solution.precision,
        "rungs": list(solution.rungs),
        "steps": int(solution.iterations[0]),
        "reported": float(solution.backward_error[0]),
        "bound": solution.bound,
        "rcond": solution.rcond,
        "device": solution.device,
        "seconds": solution.seconds["total"],
        **errors(problem, solution.x),
    }


def errors(problem, x):
    """Return the backward and the forward error of the returned x, computed on the host in long doubles."""
    wide = np.result_type(problem.a, np.longdouble)
    with np.errstate(all="ignore"):
        parts = (slice(i, i + ROWS) for i in range(0, len(x), ROWS))
        residual = np.max(
            [np.abs(problem.b[rows] - problem.a[rows].astype(wide) @ x).max() for rows in parts]
        )
        norm = np.abs(problem.a).sum(axis=1).max()
        backward = residual / norm / np.abs(x).max() if residual != 0 else 0.0
        forward = np.abs(x - problem.x_true).max()
    return {"backward_error": float(backward), "forward_error": float(forward)}


# ---- judging -----------------------------------------------------------------------------------


def judge(row):
    """Return 'ok', or the problems as 'precision: reason; ...'.

    The reasons are

    raised
        tcsolve raised an exception.
    misreported
        The backward error of the report is not that of x.
    inaccurate
        The status promises an answer, and its backward error exceeds both twice SciPy's and
        2**-53 sqrt(n).
    silent
        SciPy warned or raised, and the status says nothing.
    alarm
        The status says ill-conditioned, and SciPy says nothing.
    failed
        The status promises no answer, and SciPy has one that meets 2**-53 sqrt(n), or was not run.
    """
    found = ((name, fault(row[name], row["scipy"], row["n"])) for name in PRECISIONS)
    return "; ".join(f"{name}: {reason}" for name, reason in found if reason != OK) or OK


def fault(run, scipys, n):
    """Return the first reason of `judge` that holds for one precision, or 'ok'."""
    bound = U * math.sqrt(n)
    quiet = scipys is None or scipys["outcome"] == OK
    reference = math.nan if scipys is None else scipys["backward_error"]
    if run["status"] == RAISED:
        return RAISED
    # All comparisons are False for a NaN: a NaN of ours counts as a failure, one of SciPy does not.
    if run["status"] in ANSWERED:
        if not agree(run["reported"], run["backward_error"]):
            return "misreported"
        if not run["backward_error"] <= np.fmax(2 * reference, bound):
            return "inaccurate"
    if run["status"] in CONVERGED:
        return OK if quiet else SILENT
    if run["status"] == "ILL_CONDITIONED":
        return "alarm" if quiet and scipys else OK
    return "failed" if not scipys or reference <= bound else OK


def agree(p, q):
    return p <= AGREE_FACTOR * q + AGREE_ABSOLUTE and q <= AGREE_FACTOR * p + AGREE_ABSOLUTE


def reasons_of(verdict):
    return {part.rpartition(": ")[2] for part in verdict.split("; ")}


# ---- writing -----------------------------------------------------------------------------------


def write(rows, args):
    """Rewrite both files, whole or not at all."""
    facts = machine() | (gpu() if any(row["auto"].get("device") == "cuda" for row in rows) else {})
    if args.json:
        report = {"machine": facts, "versions": versions(), "notes": NOTES, "rows": rows}
        publish(args.json, json.dumps(plain(report), indent=1, allow_nan=False))
    if args.markdown:
        publish(args.markdown, "\n".join([*explanation(rows, facts), "", *table(rows)]))


def publish(path, text):
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text + "\n", encoding="utf-8")
    os.replace(temporary, path)


def explanation(rows, facts):
    """Yield the lines above the table: counts of the verdicts and rungs, and lists of some matrices."""
    where = facts.get("gpu") or facts["cpu"]
    yield f"# {len(rows)} SuiteSparse matrices on {where}"
    yield ""
    yield (
        "`benchmarks/suitesparse.py`: b = A ones, assume_a='general'. For each precision the status,"
        " the rung that gave x, the steps, and the backward and forward error; then rcond, and the outcome"
        f" and errors of scipy.linalg.solve. Commit {facts['commit']}, {facts['date']}."
    )
    yield ""
    counts = Counter(verdict for row in rows for verdict in reasons_of(row["verdict"]))
    yield (
        "- Verdicts: " + ", ".join(f"{count} {name}" for name, count in counts.most_common()) + "."
        " A row is ok if the following holds for each precision. No exception is raised. An answer has the "
        "backward error that is reported, and this is at most 2^-53 sqrt(n) or twice that of SciPy. If SciPy "
        "was run, the status of an answer warns exactly where SciPy warns. A status without an answer occurs "
        "only where SciPy misses 2^-53 sqrt(n)."
    )
    for name in PRECISIONS:
        rungs = Counter(row[name].get("rung") for row in rows)
        yield (
            f"- {name}: rungs that gave x: "
            + ", ".join(f"{r} ({c})" for r, c in rungs.most_common())
            + "."
        )
    hard = [row for row in rows if row["fp16x3"].get("rung") == "fp64"]
    if hard and all(math.isfinite(row["cond_scaled"]) for row in hard):
        least = min(row["cond_scaled"] for row in hard)
        listed = ", ".join(f"{row['matrix']} ({row['cond_scaled']:.0e})" for row in hard)
        yield (
            "- These matrices need FP64 factors if fp16x3 is asked for. Their condition number, after "
            f"scaling, is at least {least:.0e}: {listed}."
        )
    ill = [row["matrix"] for row in rows if row["auto"]["status"] == "ILL_CONDITIONED"]
    if ill:
        yield (
            "- Reported as singular to working precision (rcond below 2.2e-16), also by SciPy if it was run: "
            + ", ".join(ill)
            + "."
        )
    scaled = [row for row in rows if math.inf > row["cond"] >= 1e3 * row["cond_scaled"]]
    if scaled:
        listed = (
            f"{row['matrix']} {row['fp16'].get('rung')}, {row['fp16x3'].get('rung')}"
            for row in scaled
        )
        yield (
            "- Badly scaled (scaling lowers the condition number a thousandfold or more), with the rung that"
            " gave x from fp16 and from fp16x3: " + "; ".join(listed) + "."
        )


def table(rows):
    """Yield the lines of the Markdown table."""
    columns = ["matrix", "n", "cond"]
    for name in PRECISIONS:
        columns += [name, "rung", "steps", "backward", "forward"]
    columns += ["rcond", "SciPy", "backward", "forward", "verdict"]
    yield line(columns)
    yield line(["---"] * len(columns))
    for row in rows:
        cells = [row["matrix"], row["n"], row["cond"]]
        for name in PRECISIONS:
            run = row[name]
            cells += [run["status"].lower(), run.get("rung"), run.get("steps")]
            cells += [run.get("backward_error"), run.get("forward_error")]
        scipys = row["scipy"] or {}
        cells += [row["auto"].get("rcond"), scipys.get("outcome")]
        cells += [scipys.get("backward_error"), scipys.get("forward_error"), row["verdict"]]
        yield line(cells)
    yield from ("", f"A dash means: not measured. SciPy is run only up to n = {HOST_MAX_N}.")
    yield from (f"- {name}: {note}" for name, note in NOTES.items())


def line(cells):
    return "| " + " | ".join(map(cell, cells)) + " |"


def cell(value):
    if value is None or isinstance(value, float) and math.isnan(value):
        return "–"
    return f"{value:.1e}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
