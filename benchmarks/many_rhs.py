"""How long do many right-hand sides take on the GPU, compared with single solves and cupy.linalg.solve?

    python benchmarks/many_rhs.py --n 8192 16384 --nrhs 1 2 4 16 64 256
    python benchmarks/many_rhs.py --draw                 # page and figure from the JSON again; no GPU

A is FP64 and standard normal, on the device.  The right-hand sides are A X for a standard normal X.  A single
solve is `solve_ex` with one right-hand side.  A further solve reuses the factors of `tcsolve.factor`.  The
times of both are multiplied by the number of right-hand sides.  Every column of an answer is checked before
its time is printed.
"""

import json

import numpy as np
from _harness import RESULTS, arguments, backward_error, device_seconds, gpu, machine, save, summary
from tables import source, table

# The curves: key of `times`, label, line style.
CURVES = (
    ("tcsolve", "tcsolve, all at once", {"marker": "o", "linewidth": 2}),
    (
        "tcsolve_again",
        "tcsolve, all at once, with known factors",
        {"marker": "o", "linestyle": "--"},
    ),
    ("cupy", "cupy.linalg.solve, all at once", {"marker": "s"}),
    ("further", "tcsolve, one by one, with known factors", {"marker": "^", "linestyle": ":"}),
    ("singles", "tcsolve, one by one", {"marker": "^", "linestyle": ":"}),
)


# The largest backward error of a valid answer.
WRONG = 1e-10


# ---- measuring ---------------------------------------------------------------------------------


def right_hand_sides(a, count):
    """Return A X for a fixed random X, shape (n, count)."""
    import cupy

    return a @ cupy.random.default_rng(count).standard_normal((len(a), count))


def timed(a, b, run, repeats):
    """Return the time and the facts of run(), which returns (x, facts); x is checked before the timing."""
    import cupy

    x, facts = run()
    error = backward_error(cupy, a, x.reshape(len(a), -1), b.reshape(len(a), -1))
    if not error < WRONG:
        raise SystemExit(f"n = {len(a)}, b {b.shape}: backward error {error:.1e}, not timed")
    del x
    return {"backward_error": error, **facts, **summary(device_seconds(run, repeats))}


def measure(n, counts, precision, repeats):
    """Yield the row of each number of right-hand sides."""
    import cupy
    from solve import matrix

    import tcsolve

    a = matrix("gauss", n)

    def facts(solution):
        assert solution.status.ok, solution
        return solution.x, {
            "steps": int(solution.iterations.max()),
            "rungs": list(solution.rungs),
        }

    def whole(b):
        return lambda: facts(tcsolve.solve_ex(a, b, precision=precision, assume_a="general"))

    one = right_hand_sides(a, 1)
    single = timed(a, one, whole(one[:, 0]), repeats)
    kept = tcsolve.factor(a, precision=precision)
    further = timed(a, one, lambda: facts(kept.solve_ex(one[:, 0])), repeats)
    for count in counts:
        b = right_hand_sides(a, count)
        yield {
            "n": n,
            "nrhs": count,
            "single": single,
            "further_single": further,
            "tcsolve": timed(a, b, whole(b), repeats),
            "tcsolve_again": timed(a, b, lambda b=b: facts(kept.solve_ex(b)), repeats),
            "cupy": timed(a, b, lambda b=b: (cupy.linalg.solve(a, b), {}), repeats),
        }


# ---- writing -----------------------------------------------------------------------------------


def times(row):
    """Return the milliseconds of every curve at one number of right-hand sides."""
    measured = {key: 1e3 * row[key]["median"] for key in ("tcsolve", "tcsolve_again", "cupy")}
    singles = 1e3 * row["nrhs"] * row["single"]["median"]
    return measured | {
        "singles": singles,
        "further": 1e3 * row["nrhs"] * row["further_single"]["median"],
    }


def line(row):
    """Return the printed line of a row."""
    told = ", ".join(f"{key} {value:.2f}" for key, value in times(row).items())
    ours = row["tcsolve"]
    return (
        f"n {row['n']:6} nrhs {row['nrhs']:4}: ms {told}; {ours['steps']} steps {'>'.join(ours['rungs'])},"
        f" backward error {ours['backward_error']:.1e} (bound {2.0**-53 * np.sqrt(row['n']):.1e})"
    )


def page(facts, rows):
    """Return the Markdown page of the rows."""
    body = [
        [row["n"], row["nrhs"], *(f"{times(row)[key]:.2f}" for key, *_ in CURVES)] for row in rows
    ]
    head = ["n", "right-hand sides", *(f"{label}, ms" for _, label, _ in CURVES)]
    lines = ["# Many right-hand sides", "", "![time for each number of them](many_rhs.png)", ""]
    return (
        "\n".join([*lines, table(head, body), "", source(facts, "benchmarks/many_rhs.py")]) + "\n"
    )


def draw(rows, path):
    """Draw time against the number of right-hand sides, one panel for each n."""
    from matplotlib.figure import Figure

    sizes = list(dict.fromkeys(row["n"] for row in rows))
    figure = Figure(figsize=(1 + 4.8 * len(sizes), 5), layout="constrained")
    axes = figure.subplots(1, len(sizes), squeeze=False)[0]
    for axis, n in zip(axes, sizes, strict=True):
        here = [row for row in rows if row["n"] == n]
        counts = [row["nrhs"] for row in here]
        for key, label, style in CURVES:
            axis.loglog(counts, [times(row)[key] for row in here], label=label, **style)
        axis.set_xticks(counts, [str(count) for count in counts])
        axis.minorticks_off()
        axis.set_xlabel("right-hand sides")
        axis.set_ylabel("time, ms")
        axis.set_title(f"n = {n}", fontsize=10)
        axis.grid(alpha=0.3)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9)
    figure.savefig(path, dpi=150)


def publish(path):
    """Write the page and the figure of a results file into its folder."""
    results = json.loads(path.read_text())
    path.with_suffix(".md").write_text(page(results["machine"], results["rows"]))
    try:
        draw(results["rows"], path.with_name("many_rhs.png"))
    except ImportError as error:
        print(f"many_rhs.png is not drawn ({error}): install matplotlib, then use --draw")


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, nargs="+", default=[8192, 16384])
    parser.add_argument("--nrhs", type=int, nargs="+", default=[1, 2, 4, 16, 64, 256])
    parser.add_argument("--precision", default="auto")
    parser.add_argument(
        "--draw", action="store_true", help="only the page and figure, from the JSON"
    )
    parser.set_defaults(json=RESULTS / "many_rhs.json")
    options = parser.parse_args()
    if options.draw:
        publish(options.json)
        return
    import cupy

    facts, rows = machine(options.commit) | gpu(), []
    for n in options.n:
        for row in measure(n, options.nrhs, options.precision, options.repeats):
            rows.append(row)
            print(line(row), flush=True)
            save(options.json, facts, rows)
        cupy.get_default_memory_pool().free_all_blocks()
    publish(options.json)


if __name__ == "__main__":
    main()
