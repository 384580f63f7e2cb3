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


def products_table():
    """Return the rates and errors of square products, if they have been measured."""
    if not (RESULTS / "gemm.json").exists():
        return "Not measured yet; `python benchmarks/gemm.py` writes what this table is made of."
    machine, rows = load("gemm.json")
    return products(rows) + "\n\n" + source(machine, "benchmarks/gemm.py")


def products(rows):
    """Return the table of square products: FP16, and FP32 by the engine of ours that does 'ab' fastest."""
    square = [r for r in rows if r["what"] == "square"]
    body = []
    for n in sorted({r["n"] for r in square}):
        here = {(r["dtype"], r["engine"], r["refine"]): r for r in square if r["n"] == n}
        half = [here.get(("float16", engine, "none")) for engine in ("wmma", "wgmma", "cublas")]
        sgemm = here.get(("float32", "sgemm", "none"))
        ours = [here.get(("float32", engine, "ab")) for engine in ("naive", "wmma", "wgmma")]
        ours = max(ours, key=lambda row: (row or {}).get("tflops", 0))
        cells = [*(rate(row) for row in (*half, ours, sgemm)), over(ours, sgemm)]
        errors = [
            error_cell(row, key) for key in ("max_error", "mean_error") for row in (ours, sgemm)
        ]
        body.append([n, *cells, *errors])
    head = ["n", *(f"FP16, {engine}" for engine in ("wmma", "wgmma", "cuBLAS"))]
    head += ["FP32, 'ab'", "SGEMM", "'ab' / SGEMM", "error, 'ab'", "SGEMM's"]
    head += ["mean error, 'ab'", "SGEMM's"]
    return "Rates in TFLOP/s:\n\n" + table(head, body)


def rate(row):
    """Return the cell of a rate, however large."""
    if row is None or "tflops" not in row:
        return "-" if row is None else "fails"
    return f"{row['tflops']:.0f}" if row["tflops"] >= 10 else f"{row['tflops']:.2g}"


def over(row, other):
    """Return the cell of the rate of a row over another's."""
    if not all("tflops" in (r or {}) for r in (row, other)):
        return "-"
    return f"{row['tflops'] / other['tflops']:.2f}"


def error_cell(row, key):
    return "-" if row is None or key not in row else f"{row[key]:.1e}"


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
    "products": products_table,
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
