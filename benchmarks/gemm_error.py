"""How does the error grow with n at each refinement level, and what does a smaller error cost?

    python benchmarks/gemm_error.py                                  # results/gemm_error.json and figures
    python benchmarks/gemm_error.py --device cpu --n 256 512 1024    # emulated, anywhere
    python benchmarks/gemm_error.py --from benchmarks/results/gemm_error.json     # only the figures

The products are square, with entries uniform in [-1, 1] and in [-16, 16].  The errors are the largest and the
mean |C - A B| of some rows, with A B in FP64.  They must meet the bound of gemm_bound.
"""

import functools

import numpy as np
from _figures import (
    add_arguments,
    beside_the_gpu,
    by,
    figure,
    finish,
    legend_beside,
    load,
    ticks,
    try_to_draw,
)
from _harness import arguments, gpu, host_seconds, machine, save, summary
from _steady import steady_seconds
from gemm import Reference, judged

from tcsolve import gemm, gemm_bound

RANGES = (1, 16)
LEVELS = ("none", "a", "ab", "full")


def seconds_of(device, run, repeats):
    return summary((steady_seconds if device == "cuda" else host_seconds)(run, repeats))


def rows_of(xp, device, n, top, repeats):
    """Yield a row for each level; its entry `within` says whether the errors meet their bound."""
    rng = np.random.default_rng(n)
    a, b = (xp.asarray(rng.uniform(-top, top, (n, n)).astype(np.float32)) for _ in range(2))
    reference = Reference(a, b)
    for level in (*LEVELS, "fp32"):
        how = {"precision": "fp32"} if level == "fp32" else {"precision": "fp16", "refine": level}
        run = functools.partial(gemm, a, b, **how)
        errors, bound = reference.errors(run()), reference.bound(gemm_bound(a, b, **how).bound)
        row = {"n": n, "range": top, "level": level} | judged(errors, bound)
        yield row | {"within": row["of_bound"] <= 1, "seconds": seconds_of(device, run, repeats)}


def draw(facts, rows, path):
    made, axes = figure(
        "Error of refined products",
        "n",
        "error: largest (solid), mean (dashed)",
        panels=len(RANGES),
    )
    for axis, top in zip(axes, RANGES, strict=True):
        for color, level in zip(("C0", "C1", "C2", "C3", "black"), (*LEVELS, "fp32"), strict=True):
            here = by(rows, range=top, level=level)
            sizes = [r["n"] for r in here]
            axis.loglog(sizes, [r["max_error"] for r in here], "o-", color=color, label=level)
            axis.loglog(sizes, [r["mean_error"] for r in here], "--", color=color, linewidth=1)
        axis.set_title(f"entries in [-{top}, {top}]", fontsize="medium")
        ticks(axis, [row["n"] for row in rows])
        legend_beside(axis)
    finish(made, axes, facts, path)
    draw_cost(facts, rows, path.with_name(path.stem + "_time.png"))


def draw_cost(facts, rows, path):
    """Draw the error against the time of the largest products."""
    made, axes = figure(
        "What a smaller error costs: entries in [-1, 1]", "time, ms", "largest error"
    )
    for n in sorted({row["n"] for row in rows})[-3:]:
        here = by(rows, range=1, n=n)
        times = [1e3 * r["seconds"]["median"] for r in here]
        axes[0].loglog(times, [r["max_error"] for r in here], "o", label=f"n = {n}")
        for x, row in zip(times, here, strict=True):
            # 'ab' and 'full' nearly coincide.
            above = {"full": (4, -10), "ab": (4, 4)}.get(row["level"], (6, -2))
            place = (x, row["max_error"])
            axes[0].annotate(row["level"], place, above, textcoords="offset points", fontsize=7)
    axes[0].margins(0.12)
    finish(made, axes, facts, path)


def main():
    parser = arguments(__doc__.partition("\n")[0])
    add_arguments(parser, "gemm_error")
    parser.add_argument("--n", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    beside_the_gpu(options)
    if options.source:
        draw(*load(options.source), options.figure)
        return
    if options.device == "cuda":
        import cupy as xp
    else:
        xp = np
    facts, rows = machine(options.commit) | (gpu() if options.device == "cuda" else {}), []
    for top in RANGES:
        for n in options.n:
            for row in rows_of(xp, options.device, n, top, options.repeats):
                rows.append(row)
                print(
                    f"{n:6} [-{top}, {top}] {row['level']:5} largest {row['max_error']:.1e} mean "
                    f"{row['mean_error']:.1e} {1e3 * row['seconds']['median']:9.3f} ms"
                    + ("" if row["within"] else "  BEYOND THE BOUND"),
                    flush=True,
                )
                save(options.json, facts, rows)
    try_to_draw(draw, facts, rows, options.figure)
    if not all(row["within"] for row in rows):
        raise SystemExit("an error exceeds its bound")


if __name__ == "__main__":
    main()
