"""How does the error of refined products on earlier tensor cores compare with the error measured on an H200?

    python benchmarks/gemm_models.py               # emulated on the CPU: results/gemm_models.json
    python benchmarks/gemm_models.py --draw        # only the page and the figure, from the JSON

The operands are those of `gemm_error.py`, and each entry is a sum of n products.  Only a sample of the
entries is emulated, some rows and columns of each product; they do not depend on the other rows and columns.
The time of an emulation says nothing about a GPU, so one panel of the figure draws the errors against the
times that an H200 takes for the same level.
"""

import json

import numpy as np
from _figures import by, curve, figure, finish, ticks, try_to_draw
from _harness import RESULTS, arguments, machine, save
from _papers import QUOTES
from gemm import Reference, judged

from tcsolve import gemm, gemm_bound

MODELS = {
    "fp16@v100": "V100, FP16",
    "bf16@a100": "A100, BF16",
    "tf32@a100": "A100, TF32",
    "fp16@h200": "H200, FP16",
}
LEVELS = ("none", "a", "ab", "full")
MEASURED = "H200, FP16, measured"
ROWS, COLUMNS = 32, 256
# Random rows are made a few at a time, because the operands of the largest n take gigabytes.
AT_ONCE = 1024


def operands(n):
    """Return the first rows of A and the first columns of B, of the operands of `gemm_error.py`."""
    rng = np.random.default_rng(n)

    def parts():
        for start in range(0, n, AT_ONCE):
            yield rng.uniform(-1, 1, (min(AT_ONCE, n - start), n)).astype(np.float32)

    # Copies: a view would keep the whole part.
    a = np.concatenate([part[:ROWS].copy() for part in parts()])[:ROWS]
    return a, np.concatenate([part[:, :COLUMNS].copy() for part in parts()])


def rows_of(n):
    """Yield a row for each model and level."""
    a, b = operands(n)
    reference = Reference(a, b)
    for model in MODELS:
        for level in LEVELS:
            how = {"precision": model, "refine": level}
            errors = reference.errors(gemm(a, b, **how))
            found = judged(errors, reference.bound(gemm_bound(a, b, **how).bound))
            yield {
                "n": n,
                "model": model,
                "level": level,
                **found,
                "within": found["of_bound"] <= 1,
            }


def measured():
    """Return (machine, rows) of the H200, for entries in [-1, 1]."""
    results = json.loads((RESULTS / "gemm_error.json").read_text())
    return results["machine"], by(results["rows"], range=1)


def series(rows):
    """Return {name: {level: {n: mean error}}}, of the models and of the H200."""
    found = {
        name: {v: {r["n"]: r["mean_error"] for r in by(rows, model=m, level=v)} for v in LEVELS}
        for m, name in MODELS.items()
    }
    known = measured()[1]
    return found | {
        MEASURED: {v: {r["n"]: r["mean_error"] for r in by(known, level=v)} for v in LEVELS}
    }


def page(facts, rows):
    """Return the page: mean errors, and how they compare with the H200."""
    sizes, found = sorted({row["n"] for row in rows}), series(rows)
    lines = [
        "# Errors of refined products on earlier tensor cores",
        "",
        "The rules by which a V100 and an A100 add products are from the literature; those of an H200 are "
        "compared with a device.",
        "",
        "Mean error of C = A B by level of refinement, entries uniform in [-1, 1]. The emulated "
        f"errors are those of a sample: {ROWS} rows and {COLUMNS} columns of each product. In brackets: "
        "divided by the error measured on the H200 with FP16.",
        "",
        "| arithmetic | level | " + " | ".join(f"n = {n}" for n in sizes) + " |",
        "| --- " * (2 + len(sizes)) + "|",
    ]
    for name, levels in found.items():
        for level in LEVELS:
            cells = [told(levels[level].get(n), found[MEASURED][level].get(n)) for n in sizes]
            lines.append(f"| {name} | {level} | " + " | ".join(cells) + " |")
    (loss,) = QUOTES["error"]
    beyond = sum(not row["within"] for row in rows)
    lines += [
        "",
        "With `none` and `a` the rounding of the operands dominates. FP16 and TF32 have 11 significant bits, "
        "so their errors agree; BF16 has 8 bits. With `ab` and `full` the errors of the sums show. An H200 "
        "adds 16 products at a time. It truncates all terms to multiples of 2^(e - 25), where e is the "
        "largest exponent. A V100 adds 4 products and truncates to multiples of 2^(e - 23). An A100 adds 4 "
        "TF32 products and truncates to multiples of 2^(e - 24). So both truncate more often, and lose more "
        "bits each time. With BF16 the two parts of an operand together have 16 significant bits, and the "
        "rounding of the second part dominates. Up to n = 8192 the errors with `ab` and `full` differ less "
        "from those of the H200 if n is larger. At n = 16384 the product on the device has smaller errors "
        "than its emulation: the device adds two sums of 8192 products in FP32, and the emulation has one "
        "sum.",
        "",
        "![mean errors against n and against time](gemm_models.png)",
        "",
        "An emulation has no time of a V100 or an A100. So the mean errors are compared here with the times "
        "that an H200 takes for the same levels, with operands in FP32:",
        "",
        *against_time(found),
        "",
        "The largest errors of the same samples:",
        "",
        *largest(rows, sizes),
        "",
        f"Errors beyond the bound of `gemm_bound`: {beyond} of {len(rows)}.",
        "",
        f"Published for the loss of precision on a V100: {loss.value} ({loss.source.name}). Without a "
        "number, no error here can be compared with this.",
        "",
        f"Emulated with `benchmarks/gemm_models.py` on {facts['cpu']}, commit {facts['commit']}, "
        f"{facts['date']}; measured on {measured()[0]['gpu']}, commit {measured()[0]['commit']}.",
    ]
    return "\n".join(lines) + "\n"


def against_time(found):
    """Return a table of mean errors and of the times of an H200, as lines; `found` is from `series`."""
    lines = ["| n | level | H200, ms | " + " | ".join(found) + " |"]
    lines.append("| --- " * (3 + len(found)) + "|")
    for row in (row for row in measured()[1] if row["level"] in LEVELS):
        n, level = row["n"], row["level"]
        errors = [told(levels[level].get(n), None) for levels in found.values()]
        time = f"{1e3 * row['seconds']['median']:.2f}"
        lines.append(f"| {n} | {level} | {time} | " + " | ".join(errors) + " |")
    return lines


def largest(rows, sizes):
    """Return a table of the largest errors, as lines."""
    lines = ["| arithmetic | level | " + " | ".join(f"n = {n}" for n in sizes) + " |"]
    lines.append("| --- " * (2 + len(sizes)) + "|")
    for model, name in MODELS.items():
        for level in LEVELS:
            found = {row["n"]: row["max_error"] for row in by(rows, model=model, level=level)}
            cells = [told(found.get(n), None) for n in sizes]
            lines.append(f"| {name} | {level} | " + " | ".join(cells) + " |")
    return lines


def told(error, of_h200):
    if error is None:
        return "–"
    return f"{error:.1e}" + ("" if of_h200 is None else f" ({error / of_h200:.2f})")


def draw(facts, rows, path):
    """Draw the mean error of each level against n, and all against the time that the H200 takes."""
    made, axes = figure("Refined products: mean error", "n", "mean error", panels=len(LEVELS) + 1)
    times = {(r["n"], r["level"]): 1e3 * r["seconds"]["median"] for r in measured()[1]}
    found, last = series(rows), max(row["n"] for row in rows)
    timed = axes[len(LEVELS)]
    for place, (name, levels) in enumerate(found.items()):
        how = curve(place, len(found)) | {"label": name}
        for axis, level in zip(axes, LEVELS, strict=False):
            sizes = sorted(n for n in levels[level] if n <= last)
            axis.loglog(sizes, [levels[level][n] for n in sizes], **how)
        known = [v for v in LEVELS if (last, v) in times and last in levels[v]]
        points = [times[last, v] for v in known], [levels[v][last] for v in known]
        timed.semilogy(*points, **how | {"linestyle": "none"})
    for axis, level in zip(axes, LEVELS, strict=False):
        axis.set_title(f"level {level}")
        ticks(axis, [row["n"] for row in rows])
    timed.set_title(f"levels {', '.join(LEVELS)} from left to right, n = {last}")
    timed.set_xlabel("time of the level on the H200, ms")
    axes[-1].axis("off")
    handles, labels = axes[0].get_legend_handles_labels()
    axes[-1].legend(handles, labels, loc="center left", fontsize="large", handlelength=4)
    finish(made, [], facts, path)


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--draw", action="store_true", help="only from the JSON")
    parser.set_defaults(json=RESULTS / "gemm_models.json")
    options = parser.parse_args()
    if options.draw:
        known = json.loads(options.json.read_text())
        facts, rows = known["machine"], known["rows"]
    else:
        facts, rows = machine(options.commit), []
        for n in options.n:
            for row in rows_of(n):
                rows.append(row)
                print(
                    f"{n:6} {row['model']:10} {row['level']:5} {row['mean_error']:.2e}", flush=True
                )
                save(options.json, facts, rows)
    options.json.with_suffix(".md").write_text(page(facts, rows))
    try_to_draw(draw, facts, rows, options.json.with_suffix(".png"))
    if not all(row["within"] for row in rows):
        raise SystemExit("an error exceeds its bound")


if __name__ == "__main__":
    main()
