"""Write the tables of README.md and of the pages in docs/ from the JSON under benchmarks/results.

A table is between '<!-- NAME table -->' and '<!-- end -->'.

python benchmarks/tables.py          # rewrite the pages in place
python benchmarks/tables.py --check  # fail if one would change; name results older than their code
"""

import argparse
import json
import pathlib
import re
import sys

from _code_age import results_before_their_code
from _harness import RESULTS

ROOT = pathlib.Path(__file__).parents[1]
# A table that is generated: its name, and the text up to the end.
MARKED = re.compile(r"(?<=<!-- )([\w-]+)( table -->\n).*?(?=\n<!-- end -->)", re.DOTALL)
# The groups of sizes of `roads_table`, and its columns.
ROADS = (16, 64, 128, 256), (512, 1024), (2048, 4096), (8192, 16384)
RIGHT_HAND_SIDES = (
    lambda row: row["columns"] == 1,
    lambda row: row["columns"] in (16, 256),
    lambda row: row["columns"] == row["n"],
)
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
    """Return the table that compares solve on the GPU with its peers."""
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
    head += ["our backward error", "backward error of the fastest other"]
    return table(head, body) + "\n\n" + source(machine, "benchmarks/solve.py")


def short_gpu_table():
    """Return the table that compares solve on the GPU with its fastest peer, one row for each size."""
    machine, rows = load("solve.json")
    families = list(dict.fromkeys(r["family"] for r in rows))
    body = [
        [n, *(cell for family in families for cell in versus_peers(rows, family, n))]
        for n in dict.fromkeys(r["n"] for r in rows)
    ]
    head = ["n"]
    for family in families:
        head += [f"{family}: tcsolve, ms", "fastest other, ms", "speed-up"]
    return table(head, body) + "\n\n" + source(machine, "benchmarks/solve.py")


def versus_peers(rows, family, n):
    """Return our time, that of the fastest peer, and the quotient, as cells."""
    here = {r["solver"]: r for r in rows if (r["family"], r["n"]) == (family, n)}
    ours = here["tcsolve auto"]
    timed = [here[name] for name in PEERS if "seconds" in here.get(name, {})]
    best = min(timed, key=lambda row: row["seconds"]["median"])
    speedup = best["seconds"]["median"] / ours["seconds"]["median"]
    return milliseconds(ours), milliseconds(best), f"{speedup:.1f}"


def milliseconds(row):
    if row is None:
        return "-"
    return f"{1e3 * row['seconds']['median']:.1f}" if "seconds" in row else "fails"


def roads_table():
    """Return the table that compares solve with its fastest peer, for each kind of system on a GPU."""
    machine, rows = load("roads.json")
    rows = [row for row in rows if row["family"] == "gauss" and not row["count"]]
    body = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        here = [row for row in rows if row["kind"] == kind]
        for sizes in ROADS:
            some = [row for row in here if row["n"] in sizes]
            cells = [ratios(filter(wanted, some)) for wanted in RIGHT_HAND_SIDES]
            body.append([kind, f"{sizes[0]} to {sizes[-1]}", *cells])
    head = ["kind", "n", "one right-hand side", "16 and 256", "n"]
    return table(head, body) + "\n\n" + source(machine, "benchmarks/roads.py")


def accurate_table():
    """Return what an accurate x costs on the host, for one size."""
    machine, rows = load("accurate.json")
    body = []
    for pair in accurate_pairs(rows, 1000):
        usual, accurate = pair
        errors = f"{usual['error']:.0e}", f"{accurate['estimate']:.1e}"
        body.append(
            [f"{usual['cond']:.0e}", usual["precision"], *map(in_milliseconds, pair), *errors]
        )
    head = ["condition number", "first factors", "`'fp64'`, ms", "`'double-double'`, ms"]
    head += ["error of x before", "after (estimate)"]
    return table(head, body) + "\n\n" + source(machine, "benchmarks/accurate.py")


def accurate_gpu_table():
    """Return what an accurate x costs on a GPU, with FP64 factors."""
    machine, rows = load("accurate_cuda.json")
    rows = [row for row in rows if row["precision"] == "fp64"]
    body = [
        [n, f"{pair[0]['cond']:.0e}", *map(in_milliseconds, pair)]
        for n in dict.fromkeys(row["n"] for row in rows)
        for pair in accurate_pairs(rows, n)
    ]
    head = ["n", "condition number", "`'fp64'`, ms", "`'double-double'`, ms"]
    return table(head, body) + "\n\n" + source(machine, "benchmarks/accurate.py --cuda")


def accurate_pairs(rows, n):
    """Yield the rows with FP64 and with double-double residuals of each system and first precision."""
    here = [row for row in rows if row["n"] == n]
    for first in here:
        if first["residual"] == "fp64":
            known = first["cond"], first["precision"]
            yield (
                first,
                next(
                    row
                    for row in here
                    if (row["cond"], row["precision"]) == known and row["residual"] != "fp64"
                ),
            )


def in_milliseconds(row):
    return f"{1e3 * row['seconds']:.3g}"


def study_seconds_table():
    """Return the seconds of the scripts of the written study, and those of its part on a GPU if measured."""
    found = []
    for path in sorted(RESULTS.glob("study*.json")):
        machine, rows = load(path.name)
        body = [[", ".join(f"`{c}`" for c in r["commands"]), f"{r['seconds']:.0f}"] for r in rows]
        body.append(["all", f"{sum(row['seconds'] for row in rows):.0f}"])
        found += [table(["scripts", "seconds"], body), source(machine, "benchmarks/study.py")]
    return "\n\n".join(found)


def ratios(rows):
    """Return the smallest and the largest ratio of the time of the fastest peer to ours, as a cell."""
    found = [row["peers"][row["fastest"]]["median"] / row["tcsolve"]["median"] for row in rows]
    return f"{min(found):.2f} to {max(found):.2f}" if found else "-"


def cpu_table():
    """Return the table that compares solve on the CPU with SciPy."""
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
        return "Not measured yet; run `python benchmarks/gemm.py`."
    machine, rows = load("gemm.json")
    return products(rows) + "\n\n" + source(machine, "benchmarks/gemm.py")


def products(rows):
    """Return the table of square products: FP16, and FP32 'ab' by our fastest engine."""
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
    head += ["FP32, 'ab'", "SGEMM", "'ab' / SGEMM", "error, 'ab'", "error, SGEMM"]
    head += ["mean error, 'ab'", "mean error, SGEMM"]
    return "Rates in TFLOP/s:\n\n" + table(head, body)


def rate(row):
    """Return the cell of a rate: an integer from 10 on, otherwise two digits."""
    if row is None or "tflops" not in row:
        return "-" if row is None else "fails"
    return f"{row['tflops']:.0f}" if row["tflops"] >= 10 else f"{row['tflops']:.2g}"


def over(row, other):
    """Return the cell with the rate of one row divided by that of the other."""
    if not all("tflops" in (r or {}) for r in (row, other)):
        return "-"
    return f"{row['tflops'] / other['tflops']:.2f}"


def error_cell(row, key):
    return "-" if row is None or key not in row else f"{row[key]:.1e}"


def batched_table():
    """Return the table of the speed of the longest batches of small products, relative to cuBLAS."""
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


def paths_table():
    """Return what each special path saves, if it has been measured."""
    if not (RESULTS / "ablation.json").exists():
        return (
            "Not measured yet; `python benchmarks/ablation.py` writes what this table is made of."
        )
    from _ablation_page import overview  # which imports this module

    machine, rows = load("ablation.json")
    page = "Every size and matrix is in [ablation](../../benchmarks/results/ablation.md)."
    return "\n\n".join([overview(machine, rows), page, source(machine, "benchmarks/ablation.py")])


def binaries_table():
    """Return the number of kernels, the bytes of their binaries, and the time that compiling takes."""
    machine, rows = load("binaries.json")
    archs = list(rows[0]["kernels"])
    body = [binaries_row(r["source"], [r], archs) for r in rows if r["seconds"] >= 10]
    body.append(binaries_row("others", [r for r in rows if r["seconds"] < 10], archs))
    body.append(binaries_row("all", rows, archs))
    arch = machine["arch"]
    head = ["source", f"kernels for {arch}", "MB", "MB compressed", "seconds of one core"]
    head.append(f"kernels for {len(archs)} architectures")
    compiled = sum(r["compiled"] for r in rows)
    text = (
        f"Bytes and seconds are for {arch}, with NVRTC {machine['nvrtc']}. They are extrapolated "
        f"from {compiled} compiled kernels: for each source their mean is multiplied by its number of "
        "kernels. The sources "
        f"have {machine['source_bytes'] / 1e6:.1f} MB."
    )
    return "\n\n".join([table(head, body), text, source(machine, "benchmarks/binaries.py")])


def binaries_row(name, rows, archs):
    """Return the cells for some sources together."""
    here = sum(r["here"] for r in rows)
    megabytes = [sum(r[key] for r in rows) / 1e6 for key in ("bytes", "compressed_bytes")]
    cells = [here, *(f"{x:.1f}" for x in megabytes), f"{sum(r['seconds'] for r in rows):.0f}"]
    return [name, *cells, sum(r["kernels"][a] for r in rows for a in archs)]


def source(machine, command):
    where = machine.get("gpu") or machine["cpu"]
    versions = [
        f"{k} {machine[k]}" for k in ("numpy", "scipy", "cupy-cuda13x", "torch") if k in machine
    ]
    when = f"commit {machine['commit']}, {machine['date']}"
    return f"Measured with `{command}` on {where}; {', '.join(versions)}; {when}."


def name_old_results():
    """Print the results that were measured with an older version of the code."""
    if not (ROOT / ".git").exists():
        return
    for name, commit, changed in results_before_their_code():
        what = (
            "its commit is not known here"
            if changed is None
            else f"changed since: {', '.join(changed)}"
        )
        print(f"{name} is of {commit or 'no commit'}; {what}")


TABLES = {
    "gpu": gpu_table,
    "gpu-short": short_gpu_table,
    "cpu": cpu_table,
    "emulation": emulation_table,
    "products": products_table,
    "batched": batched_table,
    "paths": paths_table,
    "binaries": binaries_table,
    "roads": roads_table,
    "accurate": accurate_table,
    "accurate-gpu": accurate_gpu_table,
    "study-seconds": study_seconds_table,
}


def pages():
    """Return the paths of all pages that may have tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def with_tables(text):
    """Return the text of a page with its tables made anew, and their names."""
    names = [name for name, _ in MARKED.findall(text)]
    if unknown := set(names) - set(TABLES):
        sys.exit(f"there is no table {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    if len(names) != text.count(" table -->"):
        sys.exit("a table needs '<!-- NAME table -->', its text and '<!-- end -->'")
    return MARKED.sub(lambda m: m[1] + m[2] + TABLES[m[1]](), text), names


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if a page would change")
    options = parser.parse_args()
    found, stale = set(), []
    for page in pages():
        old = page.read_text()
        new, names = with_tables(old)
        found.update(names)
        if new != old:
            stale.append(page.relative_to(ROOT).as_posix())
            if not options.check:
                page.write_text(new)
    if options.check:
        name_old_results()
    if missing := set(TABLES) - found:
        sys.exit(f"no page has the table {', '.join(sorted(missing))}")
    if options.check and stale:
        sys.exit(f"{', '.join(stale)}: not what benchmarks/results gives; run benchmarks/tables.py")


if __name__ == "__main__":
    main()
