"""Does every public call keep its promises on random problems, judged by exact arithmetic?

    OPENBLAS_NUM_THREADS=1 python benchmarks/fuzz.py --seconds 600 --json benchmarks/results/fuzz.json
    python benchmarks/fuzz.py --place cupy --seconds 600 --jobs 6 --json benchmarks/results/fuzz.json

These are the cases of `pytest -m fuzz` (docs/contributing/random_cases.md).  All kinds share the given
seconds; several processes with different seeds run them.  Then every public call runs with many columns and
with long stacks.  On a device, each call also runs without enough memory: in its k-th run the k-th allocation
and all later ones fail.  Rows of another place that are already in the JSON stay there, so that one page has
both.  --calls runs the calls alone and keeps the rows of the kinds.  The exit status is 1 if a kind or a call
of this place has failures.
"""

import importlib
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from _harness import RESULTS, arguments, gpu, machine, save, unless_drawn
from tables import source, table

TESTS = RESULTS.parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from fuzz.extent import CALLS, largest_failure, run_extents  # noqa: E402
from fuzz.known import KNOWN  # noqa: E402
from fuzz.outcome import Place  # noqa: E402
from fuzz.runner import KINDS, kind_named, run_kind, seconds_of  # noqa: E402

INTRODUCTION = (
    "The results of `pytest -m fuzz` ([what its cases are](../../docs/contributing/random_cases.md)), and of "
    "public calls with many columns and with long stacks."
)
# Largest number of failures that are listed for each kind; all of them are counted.
MOST_LISTED = 20
PLACES = {"numpy": "NumPy", "cupy": "CuPy"}


def run_one(job):
    """Return the `Tally` of a kind at a place, both given by name, so that a process pool can call this."""
    name, place, seconds, seed = job
    return run_kind(kind_named(name), Place(importlib.import_module(place)), seconds, seed)


def measure_kind(kind, place, seconds, seeds, run):
    """Return the row of a kind; `run` maps over jobs.

    Return None on a device if the kind has only host arrays.
    """
    if not (place.on_host or kind.on_device):
        return None
    each = seconds_of(kind, seconds) / len(seeds)
    tallies = list(run(run_one, [(kind.name, place.name, each, seed) for seed in seeds]))
    failures = [text for tally in tallies for text in tally.failures]
    print(*tallies, *failures[:MOST_LISTED], sep="\n", flush=True)
    return {
        "what": "kind",
        "place": place.name,
        "kind": kind.name,
        "cases": sum(tally.cases for tally in tallies),
        "failures": len(failures),
        "known": sum(len(tally.known) for tally in tallies),
        "seconds": round(sum(tally.seconds for tally in tallies), 1),
        "listed": [text[:500] for text in failures[:MOST_LISTED]],
        "arithmetic": kind.arithmetic,
    }


def measure_call(call, place):
    """Return the row of a public call."""
    row = {
        "what": "call",
        "place": place.name,
        "call": call.name,
        "largest_k": largest_failure(place, call),
        "columns": run_extents(place, call.columns),
        "slices": run_extents(place, call.slices),
        "arithmetic": call.arithmetic,
    }
    print(row, flush=True)
    return row


def page(machine, rows):
    """Return the Markdown page of the results at each place."""
    runs = {row["place"]: row for row in rows if row["what"] == "run"}
    lines = ["# Random cases", "", INTRODUCTION, ""]
    for name, run in runs.items():
        measured = source(run["machine"], "benchmarks/fuzz.py")
        seeds = f"{run['seed']}"
        if (jobs := run.get("jobs", 1)) > 1:
            seeds += f" to {run['seed'] + jobs - 1}"
        spent = sum(
            row["seconds"] for row in rows if row["what"] == "kind" and row["place"] == name
        )
        lines += [f"{PLACES[name]}, {spent:.0f} s in all, seed {seeds}: {measured}", ""]
    lines += ["For each kind: the cases, the failures, and the failures by known defects:", ""]
    lines += [kind_table(rows, runs), ""]
    listed = [text for row in rows for text in row.get("listed", ())]
    lines += [f"- `{text}`" for text in listed] + [""] * bool(listed)
    if KNOWN:
        lines += ["Known defects; each has a test that fails until the defect is repaired:", ""]
        lines += [f"- {name}: {known.reason}." for name, known in KNOWN.items()] + [""]
    lines += [
        "On a device, each public call is also repeated.  In repetition k, its k-th and all later allocations"
    ]
    lines += [
        "are made to fail.  The table has the largest such k, and the numbers of columns, and of matrices of"
    ]
    lines += ["a stack, that were run.  All met their bounds unless a cell says otherwise:", ""]
    for row in rows:
        if row["what"] == "calls":
            measured = source(row["machine"], "benchmarks/fuzz.py")
            lines += [f"{PLACES[row['place']]}: {measured}", ""]
    lines += [call_table(rows)]
    return "\n".join(lines) + "\n"


def kind_table(rows, runs):
    """Return the table of kinds, with columns for each place."""
    kinds = {row["kind"]: row["arithmetic"] for row in rows if row["what"] == "kind"}
    cell = {(row["kind"], row["place"]): row for row in rows if row["what"] == "kind"}
    counts = ("cases", "failures", "known")
    body = [
        [
            name,
            *(cell.get((name, place), {}).get(count, "-") for place in runs for count in counts),
            arithmetic,
        ]
        for name, arithmetic in kinds.items()
    ]
    sums = (
        sum(row.get(count, 0) for key, row in cell.items() if key[1] == place)
        for place in runs
        for count in counts
    )
    body.append(["all", *sums, ""])
    head = [f"{PLACES[place]}: {count}" for place in runs for count in counts]
    return table(["kind", *head, "the judge's arithmetic"], body)


def call_table(rows):
    """Return the table of public calls; columns for a device stay empty without one."""
    cell = {(row["call"], row["place"]): row for row in rows if row["what"] == "call"}
    names = dict.fromkeys(row["call"] for row in rows if row["what"] == "call")
    body = []
    for name in names:
        here = [cell.get((name, place), {}) for place in PLACES]
        counts = [extents(row.get(what)) for what in ("columns", "slices") for row in here]
        largest = here[-1].get("largest_k")
        arithmetic = next(row["arithmetic"] for row in here if row)
        body.append([name, "" if largest is None else largest, *counts, arithmetic])
    where = list(PLACES.values())
    head = ["call", "largest k", *(f"columns, {name}" for name in where)]
    head += [*(f"matrices, {name}" for name in where), "the judge's arithmetic"]
    return table(head, body)


def extents(found):
    """Return the cell with the counts, or an empty cell if nothing ran."""
    cells = []
    for row in found or ():
        met = row.get("of_bound", np.inf) <= 1
        cells.append(
            f"{row['count']}" if met else f"{row['count']} ({row.get('failed', 'above the bound')})"
        )
    return ", ".join(cells)


def kept(path, place, calls_alone):
    """Return the rows of a results file that stay: those of other places, and kinds if only calls run."""
    if path is None or not path.exists():
        return []
    rows = json.loads(path.read_text())["rows"]
    return [row for row in rows if row["place"] != place or (calls_alone and row["what"] != "call")]


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600, help="time for all kinds together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes, with consecutive seeds")
    parser.add_argument("--place", choices=PLACES, default="numpy")
    parser.add_argument("--calls", action="store_true", help="only the calls, not the kinds")
    options = unless_drawn(parser, page)
    if options is None:
        return
    xp, facts = np, machine(options.commit)
    if options.place == "cupy":
        import cupy as xp

        facts |= gpu()
    place = Place(xp)
    rows = kept(options.json, place.name, options.calls)
    if not options.calls:
        run = {"seconds": options.seconds, "seed": options.seed, "jobs": options.jobs}
        rows.append({"what": "run", "place": place.name, **run, "machine": facts})
        seeds = range(options.seed, options.seed + options.jobs)
        measure_kinds(place, options, seeds, rows, facts)
    rows = [row for row in rows if row["what"] != "calls" or row["place"] != place.name]
    rows.append({"what": "calls", "place": place.name, "machine": facts})
    for call in CALLS:
        rows.append(measure_call(call, place))
        save(options.json, facts, rows)
    if options.json:
        options.json.with_suffix(".md").write_text(page(facts, rows))
    sys.exit(any(fails(row) for row in rows if row["place"] == place.name))


def fails(row):
    """Tell whether a row of a kind or of a call has failures."""
    runs = (*row.get("columns", ()), *row.get("slices", ()))
    bad = any("failed" in run or not run["of_bound"] <= 1 for run in runs)
    return bad or bool(row.get("failures"))


def measure_kinds(place, options, seeds, rows, facts):
    """Add the rows of all kinds to `rows`."""
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        for kind in KINDS:
            if row := measure_kind(kind, place, options.seconds, seeds, pool.map):
                rows.append(row)
                save(options.json, facts, rows)


if __name__ == "__main__":
    main()
