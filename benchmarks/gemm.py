"""How fast is each engine of gemm beside cuBLAS and SGEMM, for square products and rank-k updates?

    python benchmarks/gemm.py --json results/gemm.json --figure results/gemm.png
    python benchmarks/gemm.py --from results/gemm.json     # only the figure

The answer is checked against FP64 before its time is printed.  Besides: the four transposes of FP16 and
INT8 at n = 1024, and the wmma engine without its swizzle.

S. Markidis et al. (IPDPSW 2018, abstract) reached 83 TFLOP/s of 125 on a V100, seven and three times the
single and half precision of that chip.  What holds: how much depends on where the operands come from.
What changed: on Hopper a warp's mma.sync no longer reaches the peak, and it takes wgmma.
"""

import functools
import itertools

import cupy
import numpy as np
from _figures import add_arguments, by, figure, finish, load
from _harness import arguments, device_seconds, gpu, machine, save, summary

from tcsolve import _gemm_cupy, _jit, gemm
from tcsolve._product import choose_product

ENGINES = ("naive", "wmma", "wgmma", "cublas")
# Beyond this the naive engine takes seconds.
LARGEST_NAIVE = 4096
CHECKED_ROWS = 64


def matrices(m, n, k, dtype, seed=1):
    """Return a (m, k) and b (k, n) on the device: standard normal, or all integers for int8."""
    rng = cupy.random.default_rng(seed)
    if dtype == np.int8:
        return (rng.integers(-128, 128, s).astype(np.int8) for s in ((m, k), (k, n)))
    return (rng.standard_normal(s, dtype=np.float32).astype(dtype) for s in ((m, k), (k, n)))


def errors(result, a, b):
    """Return (largest, mean) |result - a b| over the first rows, in FP64."""
    exact = a[:CHECKED_ROWS].astype(np.float64) @ b.astype(np.float64)
    error = cupy.abs(result[:CHECKED_ROWS] - exact)
    return float(error.max()), float(error.mean())


def measure(row, run, check, flops, repeats):
    """Fill a row with the error and, if that is small enough, the time and the rate."""
    try:
        row["max_error"], row["mean_error"] = check(run())
        if not row["max_error"] <= row["allowed"]:
            row["failed"] = f"error {row['max_error']:.1e}, allowed {row['allowed']:.1e}"
            return row
        seconds = summary(device_seconds(run, repeats))
        row |= {"seconds": seconds, "tflops": flops / seconds["median"] / 1e12}
    except Exception as error:  # an engine that fails is a result, too
        row["failed"] = f"{type(error).__name__}: {error}"
    return row


def square(n, repeats):
    """Yield a row for each engine and refinement at one size."""
    for dtype, refines in ((np.float16, ("none",)), (np.float32, ("none", "a", "ab", "full"))):
        a, b = matrices(n, n, n, dtype)
        out = cupy.empty((n, n), np.float32)
        for engine, refine in itertools.product(ENGINES, refines):
            if engine == "naive" and n > LARGEST_NAIVE:
                continue
            row = {"what": "square", "n": n, "dtype": np.dtype(dtype).name, "engine": engine}
            row |= {"refine": refine, "allowed": allowed(n, dtype, refine)}
            how = {"precision": "fp16", "refine": refine, "engine": engine, "out": out}
            run = functools.partial(gemm, a, b, **how)
            yield measure(row, run, functools.partial(errors, a=a, b=b), 2 * n**3, repeats)
        if dtype == np.float32:
            row = {
                "what": "square",
                "n": n,
                "dtype": "float32",
                "engine": "sgemm",
                "refine": "none",
            }
            row["allowed"] = allowed(n, dtype, "ab")
            run = functools.partial(gemm, a, b, precision="fp32", out=out)
            yield measure(row, run, functools.partial(errors, a=a, b=b), 2 * n**3, repeats)


def allowed(k, dtype, refine):
    """Return the largest error expected of sums of k normal products."""
    unit = 2.0**-11 if dtype == np.float32 and refine in ("none", "a", "b") else 2.0**-22
    return 20 * unit * np.sqrt(k) * max(1, np.sqrt(k) / 64)


def rank_k(m, k, repeats):
    """Yield a row for each engine: C -= A B with a long C."""
    a, b = matrices(m, m, k, np.float16)
    c = cupy.zeros((m, m), np.float32)
    for engine in ENGINES[1:]:
        row = {"what": "rank-k", "m": m, "k": k, "engine": engine}
        row["allowed"] = allowed(k, np.float16, "none")
        c.fill(0)
        run = functools.partial(gemm, a, b, c, alpha=-1, beta=1, engine=engine, out=c)
        yield measure(row, run, lambda c: errors(-c, a, b), 2.0 * m * m * k, repeats)


def transposes(n, repeats):
    """Yield a row for each transpose of FP16 and INT8."""
    for dtype, engine in itertools.product((np.float16, np.int8), ("wmma", "cublas")):
        a, b = matrices(n, n, n, dtype)
        for transa, transb in itertools.product((False, True), repeat=2):
            row = {"what": "transposes", "n": n, "dtype": np.dtype(dtype).name, "engine": engine}
            row |= {"trans": "NT"[transa] + "NT"[transb]}
            row["allowed"] = 0 if dtype == np.int8 else allowed(n, dtype, "none")
            x, y = a.T if transa else a, b.T if transb else b
            run = functools.partial(gemm, a, b, transa=transa, transb=transb, engine=engine)
            yield measure(row, run, functools.partial(errors, a=x, b=y), 2 * n**3, repeats)


def swizzle(n, repeats):
    """Yield the wmma engine with and without the swizzle of shared memory."""
    a, b = matrices(n, n, n, np.float16)
    out = cupy.empty((n, n), np.float32)
    properties = cupy.cuda.Device().attributes["MultiProcessorCount"]
    arch = _jit.target_arch()
    work = _gemm_cupy.Work(a, b, None, out, choose_product("float16", n), 1, 0, arch, properties)

    def run(swizzled):
        _gemm_cupy._wmma(work, swizzle=swizzled)
        return out

    for swizzled in (0, 1):
        row = {"what": "swizzle", "n": n, "swizzled": swizzled, "engine": "wmma"}
        row["allowed"] = allowed(n, np.float16, "none")
        check = functools.partial(errors, a=a, b=b)
        yield measure(row, functools.partial(run, swizzled), check, 2 * n**3, repeats)


def cases(options):
    for n in options.n:
        yield from square(n, options.repeats)
    for k in options.k:
        yield from rank_k(options.m, k, options.repeats)
    yield from transposes(1024, options.repeats)
    yield from swizzle(4096, options.repeats)


def line(row):
    keys = ("what", "n", "m", "k", "dtype", "engine", "refine", "trans", "swizzled")
    head = " ".join(f"{row[key]!s:>7}" for key in keys if key in row)
    if "failed" in row:
        return f"{head}  failed: {row['failed'][:200]}"
    return f"{head}  {row['tflops']:7.1f} TFLOP/s  error {row['max_error']:.1e}"


def draw(facts, rows, path):
    made, axes = figure(
        "Matrix products on tensor cores", "n = m = k", "rate, TFLOP/s (2 n³ / time)", panels=2
    )
    good = [row for row in rows if "tflops" in row]
    for axis, dtype, name in ((axes[0], "float16", "FP16 in"), (axes[1], "float32", "FP32 in")):
        found = by(good, what="square", dtype=dtype)
        for engine, refine in dict.fromkeys((r["engine"], r["refine"]) for r in found):
            here = by(found, engine=engine, refine=refine)
            label = engine if dtype == "float16" or engine == "sgemm" else f"{engine}, {refine}"
            axis.loglog([r["n"] for r in here], [r["tflops"] for r in here], "o-", label=label)
        axis.set_title(f"{name}, FP32 out", fontsize="medium")
    finish(made, axes, facts, path)
    made, axes = figure("Rank-k update C -= A B of a large C", "k", "rate, TFLOP/s")
    found = by(good, what="rank-k")
    for engine in dict.fromkeys(r["engine"] for r in found):
        here = by(found, engine=engine)
        axes[0].loglog([r["k"] for r in here], [r["tflops"] for r in here], "o-", label=engine)
    finish(made, axes, facts, path.with_name(path.stem + "_rank_k.png"))
    bars(facts, good, path.with_name(path.stem + "_transposes.png"))


def bars(facts, rows, path):
    """Draw the four transposes, and what the swizzle is worth."""
    made, axes = figure(
        "Four transposes, and a swizzle", "", "rate, TFLOP/s (TOP/s for INT8)", panels=2
    )
    found = by(rows, what="transposes")
    groups = list(dict.fromkeys((r["dtype"], r["engine"]) for r in found))
    for number, (dtype, engine) in enumerate(groups):
        here = by(found, dtype=dtype, engine=engine)
        places = [i + 0.2 * number for i in range(len(here))]
        axes[0].bar(places, [r["tflops"] for r in here], width=0.18, label=f"{dtype}, {engine}")
        axes[0].set_xticks([i + 0.3 for i in range(len(here))], [r["trans"] for r in here])
    axes[0].set_xlabel("op(A) op(B), n = 1024")
    found = by(rows, what="swizzle")
    names = ["plain", "swizzled"]
    axes[1].bar([names[r["swizzled"]] for r in found], [r["tflops"] for r in found], width=0.5)
    axes[1].set_xlabel("shared memory of the wmma engine, n = 4096")
    finish(made, axes, facts, path)


def main():
    parser = arguments(__doc__.partition("\n")[0])
    add_arguments(parser, "gemm")
    parser.add_argument("--n", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--m", type=int, default=16384, help="rows and columns of the updates")
    parser.add_argument("--k", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 2048])
    options = parser.parse_args()
    if options.source:
        draw(*load(options.source), options.figure)
        return
    facts, rows = machine(options.commit) | gpu(), []
    for row in cases(options):
        rows.append(row)
        print(line(row), flush=True)
        save(options.json, facts, rows)
    draw(facts, rows, options.figure)


if __name__ == "__main__":
    main()
