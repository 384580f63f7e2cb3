"""Which matrices converge with factors of which precision, in how many steps, and what predicts it?

    TCSOLVE_MATRICES=folder python benchmarks/convergence.py --rows rows.jsonl --jobs 2

runs the study `convergence.toml`, or the rest of it, and writes convergence.md, convergence.csv.gz, the
pictures, and convergence.jsonl.gz into benchmarks/results.  --draw runs nothing: it takes --rows, or
the rows of convergence.jsonl.gz, which make the same page; `tcsolve study --read` takes them, too.

    TCSOLVE_MATRICES=folder python benchmarks/convergence.py --device cuda --rows rows_cuda.jsonl

runs `convergence_cuda.toml` on a GPU for at most 9 minutes, and writes convergence_cuda.md and so on from the
matrices that are done.  The rows are kept, so the same command again does the rest.
"""

import argparse
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from _convergence_page import METHODS, complete, page, rounded
from _harness import RESULTS, gpu, machine, save

from tcsolve import InputError, StudyTable
from tcsolve._study.pictures import count_pages

HERE = Path(__file__).parent
COLUMNS = (
    *("matrix", "source", "n", "nnz", "kappa", "kappa_norm", "kappa_scaled", "skeel", "dominance"),
    *("spread", "update", "method", "scale", "status", "reason", "steps", "backward_error"),
    *("forward_error", "growth", "panels", "model", "device", "blas_threads", "seconds"),
)


class Variant(NamedTuple):
    """What differs between the studies on a CPU and on a GPU.

    Attributes
    ----------
    name : str
        Name of the study file and of the results.
    sweep : str
        The beginning of the names of one family of matrices, whose steps and histories are drawn.
    run_seconds, seconds : float or None
        Limits of one run, and of all.
    jobs : int
        Number of processes.
    how : str
        The sentences of the page about the arithmetic.
    """

    name: str
    sweep: str
    run_seconds: float
    seconds: float | None
    jobs: int
    how: str

    @property
    def shown(self):
        """The matrices whose histories are drawn."""
        return [f"{self.sweep} cond={cond}" for cond in ("100", "1e+04", "1e+07")]


VARIANTS = {
    "cpu": Variant(
        *("convergence", "svd_geo n=300", 600, None, 2),
        "Runs are CPU emulations: operands of the updates are rounded, sums are in FP32, panels have 32 "
        "columns; fp32 is the LU of LAPACK.",
    ),
    "cuda": Variant(
        *("convergence_cuda", "svd_geo n=1000", 60, 540, 8),
        "Runs are on a GPU: the updates are products of its tensor cores, and panels have the width of "
        "an ordinary solve; fp32 is the LU of cuSOLVER.",
    ),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=VARIANTS, default="cpu")
    parser.add_argument(
        "--rows",
        type=Path,
        help="default: convergence.jsonl or convergence_cuda.jsonl in the current folder, by --device",
    )
    parser.add_argument("--study", type=Path, help="another study file")
    parser.add_argument("--seconds", type=float, help="stop after this time, and keep the rows")
    parser.add_argument("--jobs", type=int, help="number of processes")
    parser.add_argument("--draw", action="store_true", help="run nothing, take the rows of --rows")
    parser.add_argument("--commit", help="commit measured; default: TCSOLVE_COMMIT, or git's")
    options = parser.parse_args()
    variant = VARIANTS[options.device]
    rows = options.rows or Path(f"{variant.name}.jsonl")
    if not options.draw:
        run(variant, options, rows)
    table = StudyTable.read(rows) if rows.exists() else kept_table(variant)
    with gzip.GzipFile(RESULTS / f"{variant.name}.csv.gz", "wb", mtime=0) as file:
        file.write(table.text("csv", COLUMNS).encode())
    if rows.exists():
        keep(table, variant)
    text = page(table, facts_of(table, variant, options), VARIANTS[device_of(table.rows)].how)
    (RESULTS / f"{variant.name}.md").write_text(text)
    draw(table, variant)
    print(text)
    return 0


def facts_of(table, variant, options):
    """Return the facts about the machine of the runs; they are kept for `--draw` on another machine."""
    path = RESULTS / f"{variant.name}.json"
    if options.draw and path.exists():
        return json.loads(path.read_text())["machine"]
    on_device = device_of(table.rows) == "cuda"
    facts = machine(options.commit) | (gpu() if on_device and not options.draw else {})
    if not options.draw:
        save(path, facts, [])
    return facts


def device_of(rows):
    """Return the device of the runs."""
    return next((row["device"] for row in rows if row.get("device")), "cpu")


def run(variant, options, rows):
    """Do the runs that the file of rows lacks, until the time is over."""
    given = options.study or HERE / f"{variant.name}.toml"
    command = [sys.executable, "-P", "-m", "tcsolve", "study", str(given)]
    command += ["-o", str(rows), "--resume"]
    command += ["--jobs", str(options.jobs or variant.jobs), "--limit", str(variant.run_seconds)]
    try:
        # In another process, which can be killed at any instant, whatever the GPU does.
        subprocess.run(command, check=True, timeout=options.seconds or variant.seconds)
    except subprocess.TimeoutExpired:
        print(f"the time is over; the same command does the rest, and keeps the rows of {rows}")
    except subprocess.CalledProcessError as error:
        raise SystemExit(error.returncode) from error
    if not rows.exists() or not rows.stat().st_size:
        raise SystemExit(f"no run was finished; {rows} has no rows")


def keep(table, variant):
    """Write the rows; the errors of the histories have three digits, which makes the file smaller."""
    with gzip.GzipFile(RESULTS / f"{variant.name}.jsonl.gz", "wb", mtime=0) as file:
        for row in table.rows:
            history = [
                [*point[:2], short(point[2]), *point[3:]] for point in row.get("history", ())
            ]
            kept = row | ({"history": history} if history else {})
            file.write((json.dumps(kept) + "\n").encode())


def short(error):
    """Return an error with three digits; None stays None."""
    return None if error is None else float(f"{error:.2e}")


def kept_table(variant):
    """Return the table of the rows that `keep` wrote."""
    with gzip.open(RESULTS / f"{variant.name}.jsonl.gz", "rt") as file:
        return StudyTable(json.loads(line) for line in file)


def draw(table, variant):
    """Draw the pictures of the study."""
    runs = [r for r in complete(rounded(table)) if r["scale"] and r["method"] in METHODS]
    real = StudyTable(r for r in runs if r["source"] == "suitesparse")
    family = StudyTable(r for r in runs if r["matrix"].startswith(variant.sweep))
    krylov = StudyTable(row for row in real.rows if row["method"] == "fgmres")
    some = StudyTable(r for r in family.rows if r["matrix"] in variant.shown)
    draw_one(variant, real, "profile")
    draw_one(variant, krylov, "steps", x="kappa_scaled")
    draw_one(variant, family, "steps", name="sweep")
    draw_one(variant, some, "histories")
    draw_one(variant, real, "heatmap")
    for number in range(2, 1 + count_pages("heatmap", real)):
        draw_one(variant, real, "heatmap", name=f"heatmap_{number}", page=number)


def draw_one(variant, table, kind, name=None, **options):
    """Draw a picture; if its numbers are missing, because the time was over, print this instead."""
    try:
        table.draw(kind, RESULTS / f"{variant.name}_{name or kind}.png", **options)
    except InputError as error:
        print(f"no picture {name or kind}: {error}")


if __name__ == "__main__":
    sys.exit(main())
