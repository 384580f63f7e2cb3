"""Write the tables of README.md from the JSON under benchmarks/results.

python benchmarks/tables.py          # rewrite README.md in place
python benchmarks/tables.py --check  # fail if it would change
"""

import argparse
import json
import pathlib
import re
import sys

from _harness import RESULTS

README = pathlib.Path(__file__).parents[1] / "README.md"
PEERS = (
    "cupy.linalg.solve",
    "torch.linalg.solve",
    "cuSOLVER dsgesv",
    "cuSOLVER dhgesv",
    "cuSOLVER dxgesv",
)


def load(name):
    """Return (machine, rows) of a results file."""
    results = json.loads((RESULTS / name).read_text())
    return results["machine"], results["rows"]


def table(head, rows):
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def gpu_table():
    """Return the table of solve on the GPU beside its peers."""
    machine, rows = load("solve.json")
    body = []
    for family, n in dict.fromkeys((r["family"], r["n"]) for r in rows):
        here = {r["solver"]: r for r in rows if (r["family"], r["n"]) == (family, n)}
        ours = here["tcsolve auto"]
        timed = {name: here[name] for name in PEERS if "seconds" in here.get(name, {})}
        best = min(timed, key=lambda name: timed[name]["seconds"]["median"])
        speedup = timed[best]["seconds"]["median"] / ours["seconds"]["median"]
        cells = [milliseconds(here.get(name)) for name in PEERS]
        body.append(
            [family, n, milliseconds(ours), ours["steps"], f"{speedup:.2f}", *cells]
            + [f"{ours['backward_error']:.0e}", f"{timed[best]['backward_error']:.0e}"]
        )
    head = ["family", "n", "tcsolve", "steps, rung", "speed-up", *PEERS]
    head += ["our backward error", "fastest peer's"]
    return table(head, body) + "\n\n" + source(machine, "benchmarks/solve.py")


def milliseconds(row):
    if row is None:
        return "-"
    return f"{1e3 * row['seconds']['median']:.1f}" if "seconds" in row else "fails"


def cpu_table():
    """Return the table of solve on the CPU beside SciPy."""
    machine, rows = load("cpu.json")
    body = [
        [
            r["n"],
            r["used"],
            f"{1e3 * r['scipy']['median']:.3g}",
            f"{1e3 * r['tcsolve']['median']:.3g}",
            f"{r['scipy']['median'] / r['tcsolve']['median']:.2f}",
        ]
        for r in rows
        if r["precision"] == "auto"
    ]
    head = ["n", "rung", "scipy.linalg.solve, ms", "tcsolve.solve, ms", "speed-up"]
    return table(head, body) + "\n\n" + source(machine, "benchmarks/cpu.py")


def emulation_table():
    """Return how slow the emulated precisions are on the CPU."""
    machine, rows = load("emulated.json")
    sizes = sorted({r["n"] for r in rows})
    names = [r["precision"] for r in rows if r["n"] == sizes[0] and r["precision"] != "auto"]
    cell = {(r["precision"], r["n"]): r for r in rows}
    body = [
        [name]
        + [
            f"{cell[name, n]['scipy']['median'] / cell[name, n]['tcsolve']['median']:.2f}"
            for n in sizes
        ]
        for name in names
    ]
    head = ["precision", *(f"n = {n}" for n in sizes)]
    return table(head, body) + "\n\n" + source(machine, "benchmarks/cpu.py --emulated")


def batched_table():
    """Return how many times as fast as cuBLAS's the longest batches of small products are."""
    machine, rows = load("gemm_batched.json")
    timed = [r for r in rows if "seconds" in r]
    longest = max(r["batch"] * r["n"] ** 2 for r in timed)
    seconds = {
        (r["case"], r["n"], r["who"]): r["seconds"]["median"]
        for r in timed
        if r["batch"] * r["n"] ** 2 > longest / 2
    }
    cases = list(dict.fromkeys(case for case, _, who in seconds if who == "cuBLAS"))
    sizes = sorted({n for case, n, who in seconds if who == "cuBLAS"})

    def cell(case, n):
        ours, theirs = (seconds.get((case, n, who)) for who in ("tcsolve", "cuBLAS"))
        return f"{theirs / ours:.2f}" if ours and theirs else "-"

    body = [[case, *(cell(case, n) for n in sizes)] for case in cases]
    head = ["n x n by n x n", *map(str, sizes)]
    return table(head, body) + "\n\n" + source(machine, "benchmarks/gemm_batched.py")


def source(machine, command):
    where = machine.get("gpu") or machine["cpu"]
    versions = [
        f"{k} {machine[k]}" for k in ("numpy", "scipy", "cupy-cuda13x", "torch") if k in machine
    ]
    when = f"commit {machine['commit']}, {machine['date']}"
    return f"Measured with `{command}` on {where}; {', '.join(versions)}; {when}."


TABLES = {
    "gpu": gpu_table,
    "cpu": cpu_table,
    "emulation": emulation_table,
    "batched": batched_table,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if README.md would change")
    options = parser.parse_args()
    old = new = README.read_text()
    for name, make in TABLES.items():
        pattern = rf"(<!-- {name} table -->\n).*?(\n<!-- end -->)"
        new, count = re.subn(
            pattern, lambda m, make=make: m[1] + make() + m[2], new, flags=re.DOTALL
        )
        if count != 1:
            sys.exit(f"README.md needs one '<!-- {name} table -->' ... '<!-- end -->', has {count}")
    if options.check and new != old:
        sys.exit("README.md is not what benchmarks/results gives: run benchmarks/tables.py")
    README.write_text(new)


if __name__ == "__main__":
    main()
