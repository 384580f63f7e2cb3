"""How does the error grow with n at each refinement level, and what does a smaller error cost?

    python benchmarks/gemm_error.py --json results/gemm_error.json --figure results/gemm_error.png
    python benchmarks/gemm_error.py --device cpu --n 256 512 1024    # emulated, anywhere

Square products with entries uniform in [-1, 1] and in [-16, 16]; the error is the largest |C - A B| of
some rows, with A B in FP64.

S. Markidis et al. (IPDPSW 2018) introduced the refinement and drew these figures for a V100, with
residuals that were not scaled.  What holds: the order of the levels.  What changed: with residuals scaled
and sums ended early, three products are as accurate as FP32, and the fourth adds nothing.
"""

import time

import numpy as np
from _figures import add_arguments, by, figure, finish, load
from _harness import arguments, device_seconds, gpu, machine, save, summary

from tcsolve import gemm, gemm_bound

RANGES = (1, 16)
LEVELS = ("none", "a", "ab", "full")
CHECKED_ROWS = 64


def error_of(xp, a, b, result):
    """Return (largest, mean) error over the first rows."""
    exact = a[:CHECKED_ROWS].astype(np.float64) @ b.astype(np.float64)
    error = xp.abs(result[:CHECKED_ROWS] - exact)
    return float(error.max()), float(error.mean())


def seconds_of(device, run, repeats):
    if device == "cuda":
        return summary(device_seconds(run, repeats))
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return summary(sorted(samples))


def rows_of(xp, device, n, top, repeats):
    rng = np.random.default_rng(n)
    a, b = (xp.asarray(rng.uniform(-top, top, (n, n)).astype(np.float32)) for _ in range(2))
    for level in (*LEVELS, "fp32"):
        how = {"precision": "fp32"} if level == "fp32" else {"precision": "fp16", "refine": level}
        run = lambda how=how: gemm(a, b, **how)  # noqa: E731
        largest, mean = error_of(xp, a, b, run())
        bound = gemm_bound(a, b, **how).bound * n * top**2
        row = {"n": n, "range": top, "level": level, "max_error": largest, "mean_error": mean}
        # Norms of rows and columns are at most sqrt(n) times the largest entry.
        row |= {"bound": bound, "within": largest <= bound}
        yield row | {"seconds": seconds_of(device, run, repeats)}


def draw(facts, rows, path):
    made, axes = figure("Error of refined products", "n", "largest error", panels=len(RANGES))
    for axis, top in zip(axes, RANGES, strict=True):
        for level in (*LEVELS, "fp32"):
            here = by(rows, range=top, level=level)
            axis.loglog([r["n"] for r in here], [r["max_error"] for r in here], "o-", label=level)
        axis.set_title(f"entries in [-{top}, {top}]", fontsize="medium")
        sizes = sorted({row["n"] for row in rows})
        axis.set_xticks(sizes, [str(n) for n in sizes])
        axis.minorticks_off()
    finish(made, axes, facts, path)
    made, axes = figure("What a smaller error costs", "time, ms", "largest error")
    for n in sorted({row["n"] for row in rows})[-3:]:
        here = by(rows, range=1, n=n)
        times = [1e3 * r["seconds"]["median"] for r in here]
        axes[0].loglog(times, [r["max_error"] for r in here], "o", label=f"n = {n}")
        for x, row in zip(times, here, strict=True):
            # 'ab' and 'full' nearly coincide.
            above = {"full": (4, -10), "ab": (4, 4)}.get(row["level"], (6, -2))
            place = (x, row["max_error"])
            axes[0].annotate(row["level"], place, above, textcoords="offset points", fontsize=7)
    finish(made, axes, facts, path.with_name(path.stem + "_time.png"))


def main():
    parser = arguments(__doc__.partition("\n")[0])
    add_arguments(parser, "gemm_error")
    parser.add_argument("--n", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
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
    draw(facts, rows, options.figure)
    if not all(row["within"] for row in rows):
        raise SystemExit("an error is beyond its bound")


if __name__ == "__main__":
    main()
