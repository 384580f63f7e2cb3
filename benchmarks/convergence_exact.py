"""Does it matter for convergence that tensor cores truncate their sums, unlike the model of FP32 sums?

    TCSOLVE_MATRICES=folder python benchmarks/convergence_exact.py --jobs 2

runs the study `convergence_exact.toml`: with the sums of an H200, bit for bit, and with FP32 sums, for n up
to 500.
"""

import itertools
import json
import tempfile
from pathlib import Path

import numpy as np
from _harness import RESULTS, arguments, machine, save

from tcsolve import study

HERE = Path(__file__).parent
UPDATES, METHODS, UNIT = ("fp16", "bf16", "fp16x3"), ("ir", "fgmres", "gmres"), "@h200"
COLUMNS = ("matrix", "source", "n", "kappa_scaled", "update", "method", "scale")
COLUMNS += ("status", "converged", "steps", "backward_error", "seconds")


def page(facts, rows):
    """Return the page: how many converge with each model, and where the two differ."""
    lines = [
        "# Sums as the tensor cores of an H200 make them, bit for bit, compared with FP32 sums",
        "",
        f"{len({r['matrix'] for r in rows})} matrices, n from {min(r['n'] for r in rows)} to "
        f"{max(r['n'] for r in rows)}, of the SuiteSparse collection and generated; {len(rows)} runs in "
        f"{sum(r['seconds'] for r in rows):.0f} s. ir is classical refinement, fgmres flexible GMRES, gmres "
        "GMRES-IR. The steps are medians over the matrices that converge with both kinds of sums.",
        "",
        "| scaled | factors | method | FP32 sums | H200 sums | only FP32 | only H200 | steps "
        "| steps, H200 | same steps |",
        "| --- " * 10 + "|",
    ]
    run = {(row["scale"], row["method"]) for row in rows}
    for scale, update, method in itertools.product((True, False), UPDATES, METHODS):
        if (scale, method) in run:
            cells = ["yes" if scale else "no", *compared(rows, update, method, scale)]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += [
        "",
        f"Emulated with `benchmarks/convergence_exact.py` on {facts['cpu']}; commit {facts['commit']}, "
        f"{facts['date']}.",
    ]
    return "\n".join(lines) + "\n"


def compared(rows, update, method, scale=True):
    """Return the cells of a line, without the first one."""
    rows = [row for row in rows if (row["method"], row["scale"]) == (method, scale)]
    plain, exact = (
        {row["matrix"]: row for row in rows if row["update"] == name}
        for name in (update, update + UNIT)
    )
    pairs = [(plain[m], exact[m]) for m in plain if m in exact]
    outcomes = [(p["converged"], e["converged"]) for p, e in pairs]
    steps = np.array(
        [(p["steps"], e["steps"]) for p, e in pairs if p["converged"] and e["converged"]]
    )
    medians = [f"{v:.0f}" for v in np.median(steps, axis=0)] if len(steps) else ["–", "–"]
    same = f"{(steps[:, 0] == steps[:, 1]).sum()} of {len(steps)}" if len(steps) else "–"
    shares = [f"{100 * sum(side) / len(pairs):.0f} %" for side in zip(*outcomes, strict=True)]
    alone = [outcomes.count((True, False)), outcomes.count((False, True))]
    return [update, method, *shares, *alone, *medians, same]


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--rows", type=Path, help="rows of the study; those that are missing are run"
    )
    parser.add_argument("--study", type=Path, default=HERE / "convergence_exact.toml")
    parser.add_argument("--draw", action="store_true", help="only rewrite the page from the JSON")
    parser.set_defaults(json=RESULTS / "convergence_exact.json")
    options = parser.parse_args()
    if options.draw:
        known = json.loads(options.json.read_text())
        facts, rows = known["machine"], known["rows"]
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = options.rows or Path(folder) / "rows.jsonl"
            table = study(options.study, path=path, resume=True, jobs=options.jobs)
        facts = machine(options.commit)
        rows = [{key: row.get(key) for key in COLUMNS} for row in table.ran]
        save(options.json, facts, rows)
    text = page(facts, rows)
    options.json.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
