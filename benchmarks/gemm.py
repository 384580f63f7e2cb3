"""How fast is each engine of gemm, compared with cuBLAS and SGEMM, for square products and rank-k updates?

    python benchmarks/gemm.py                                         # results/gemm.json and figures
    python benchmarks/gemm.py --from benchmarks/results/gemm.json     # only the figures; no GPU

Some rows of every result must meet the bound of gemm_bound before its time is printed; for SGEMM it is the
textbook bound.  The largest and the mean error are compared with those of SGEMM for the same operands.  Also
measured: the four transposes of FP16 and INT8 at n = 1024, and the wmma engine without its swizzle.
"""

import functools
import itertools

import numpy as np
from _figures import add_arguments, by, figure, finish, legend_beside, load, ticks, try_to_draw
from _harness import arguments, gpu, machine, save, summary
from _steady import steady_seconds

from tcsolve import gemm, gemm_bound

ENGINES = ("naive", "wmma", "wgmma", "cublas")
REFINES = ("none", "a", "ab", "full")
COLORS = dict(zip((*ENGINES, "sgemm"), ("C7", "C0", "C3", "C2", "black"), strict=True))
STYLES = dict(zip(REFINES, ("-", "--", "-.", ":"), strict=True))
# For larger n a product by the naive engine takes up to about a second.
LARGEST_NAIVE = 4096
# Approximate number of rows of a result that are compared with FP64.
CHECKED_ROWS = 64


def matrices(m, n, k, dtype, seed=1):
    """Return a (m, k) and b (k, n) on the device: standard normal; for int8, integers of its whole range."""
    import cupy

    rng = cupy.random.default_rng(seed)
    if dtype == np.int8:
        return [rng.integers(-128, 128, s).astype(np.int8) for s in ((m, k), (k, n))]
    return [rng.standard_normal(s, dtype=np.float32).astype(dtype) for s in ((m, k), (k, n))]


# ---- errors ----------------------------------------------------------------------------------------


class Reference:
    """Some rows of a b in FP64, and the largest allowed errors in them."""

    def __init__(self, a, b):
        # An odd step, so that the rows come from all places in the tiles of the kernels.
        self.rows = slice(None, None, (max(1, a.shape[0] // CHECKED_ROWS) - 1) | 1)
        self.a, self.b = a[self.rows].astype(np.float64), b.astype(np.float64)
        self.exact = self.a @ self.b

    @functools.cached_property
    def norms(self):
        """||row i of a|| ||column j of b||."""
        return (self.a**2).sum(axis=1)[:, None] ** 0.5 * (self.b**2).sum(axis=0) ** 0.5

    def errors(self, result):
        """Return |result - a b| on the rows."""
        return abs(result[self.rows] - self.exact)

    def bound(self, factor):
        """Return the errors that gemm_bound allows, plus a rounding of the result if it is not exact."""
        return (factor + 2.0**-24 * (factor > 0)) * self.norms

    def textbook_bound(self):
        """Return gamma_k |a| |b| for FP32 sums in any order (Higham 2002, section 3.5)."""
        ku = self.a.shape[1] * 2.0**-24
        return ku / (1 - ku) * (abs(self.a) @ abs(self.b))


def judged(errors, bound):
    """Return the errors for a row: largest, mean, and largest relative to its bound.

    If the last number is above 1, an error exceeds its bound.
    """
    of_bound = (errors / np.maximum(bound, 1e-300)).max()
    found = {"max_error": errors.max(), "mean_error": errors.mean(), "of_bound": of_bound}
    return {name: float(value) for name, value in found.items()}


def measure(row, run, check, flops, repeats):
    """Fill a row with the errors and, if the bound holds, the time and the rate."""
    try:
        row |= check(run())
        if not row["of_bound"] <= 1:
            row["failed"] = f"error {row['max_error']:.1e}, {row['of_bound']:.1e} of its bound"
            return row
        seconds = summary(steady_seconds(run, repeats))
        row |= {"seconds": seconds, "tflops": flops / seconds["median"] / 1e12}
    except Exception as error:  # an engine that fails is a result, too
        row["failed"] = f"{type(error).__name__}: {error}"
    return row


def checked(reference, a, b, sign=1, **how):
    """Return the check of `gemm(a, b, **how)` (of its negative for sign = -1)."""
    factor = gemm_bound(a, b, **how).bound
    return lambda result: judged(reference.errors(sign * result), reference.bound(factor))


# ---- measuring -------------------------------------------------------------------------------------


def square(n, repeats):
    """Yield a row for SGEMM, each engine and each refinement at one size."""
    for dtype, refines in ((np.float16, ("none",)), (np.float32, REFINES)):
        a, b = matrices(n, n, n, dtype)
        reference = Reference(a, b)
        head = {"what": "square", "n": n, "dtype": np.dtype(dtype).name}
        sgemm = sgemm_row(head, a, b, reference, repeats)
        yield sgemm
        for engine, refine in itertools.product(ENGINES, refines):
            if engine == "naive" and n > LARGEST_NAIVE:
                continue
            how = {"precision": "fp16", "refine": refine, "engine": engine}
            row = head | {"engine": engine, "refine": refine} | beside(sgemm)
            run = functools.partial(gemm, a, b, out=empty_like_result(a, b), **how)
            yield measure(row, run, checked(reference, a, b, **how), 2 * n**3, repeats)


def sgemm_row(head, a, b, reference, repeats):
    """Return the row of SGEMM; the operands are converted to FP32 before the measurement."""
    a, b = (x.astype(np.float32) for x in (a, b))
    run = functools.partial(gemm, a, b, precision="fp32", out=empty_like_result(a, b))
    check = lambda result: judged(reference.errors(result), reference.textbook_bound())  # noqa: E731
    row = head | {"engine": "sgemm", "refine": "none"}
    return measure(row, run, check, 2 * a.shape[0] * a.shape[1] * b.shape[1], repeats)


def beside(sgemm):
    """Return the errors of SGEMM as entries for the row of another engine."""
    return {f"sgemm_{name}": sgemm.get(name) for name in ("max_error", "mean_error")}


def empty_like_result(a, b):
    import cupy

    return cupy.empty((a.shape[0], b.shape[1]), np.float32)


def rank_k(m, k, repeats):
    """Yield a row for each engine except the naive one: C -= A B with a large C."""
    a, b = matrices(m, m, k, np.float16)
    reference = Reference(a, b)
    c = empty_like_result(a, b)
    for engine in ENGINES[1:]:
        c.fill(0)  # the first product is checked
        run = functools.partial(gemm, a, b, c, alpha=-1, beta=1, engine=engine, out=c)
        row = {"what": "rank-k", "m": m, "k": k, "dtype": "float16", "engine": engine}
        check = checked(reference, a, b, sign=-1, engine=engine)
        yield measure(row, run, check, 2.0 * m * m * k, repeats)


def transposes(n, repeats):
    """Yield a row for each transpose of FP16 and INT8."""
    for dtype in (np.float16, np.int8):
        a, b = matrices(n, n, n, dtype)
        for transa, transb in itertools.product((False, True), repeat=2):
            x, y = a.T if transa else a, b.T if transb else b
            reference = Reference(x, y)
            for engine in ("wmma", "cublas"):
                row = {
                    "what": "transposes",
                    "n": n,
                    "dtype": np.dtype(dtype).name,
                    "engine": engine,
                }
                row |= {"trans": "NT"[transa] + "NT"[transb]}
                run = functools.partial(gemm, a, b, transa=transa, transb=transb, engine=engine)
                yield measure(row, run, checked(reference, x, y, engine=engine), 2 * n**3, repeats)


def swizzle(n, repeats):
    """Yield the wmma engine with and without the swizzle of shared memory."""
    import cupy

    from tcsolve._arithmetic.products import Job, choose_product
    from tcsolve._backends.cuda.gemm import engines
    from tcsolve._backends.cuda.runtime import compiler

    a, b = matrices(n, n, n, np.float16)
    out = empty_like_result(a, b)
    processors = cupy.cuda.Device().attributes["MultiProcessorCount"]
    product = choose_product("float16", n)
    job = Job(a, b, None, out, product, 1, 0, "wmma")
    work = engines.Work.of(job, compiler.target_arch(), processors)
    check = checked(Reference(a, b), a, b, engine="wmma")

    def run(swizzled):
        engines.RUN["wmma"](work, swizzle=swizzled)
        return out

    for swizzled in (0, 1):
        row = {
            "what": "swizzle",
            "n": n,
            "dtype": "float16",
            "swizzled": swizzled,
            "engine": "wmma",
        }
        out.fill(0)
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
    told = f"{head}  {row['tflops']:7.1f} TFLOP/s  error {row['max_error']:.1e}, mean {row['mean_error']:.1e}"
    told += f", {row['of_bound']:.0e} of its bound"
    if row.get("sgemm_max_error") is None:
        return told
    return f"{told}; SGEMM's {row['sgemm_max_error']:.1e}, mean {row['sgemm_mean_error']:.1e}"


def draw(facts, rows, path):
    """Draw the rates of square products, of rank-k updates, and the bars."""
    good = [row for row in rows if "tflops" in row]
    draw_square(facts, good, path)
    draw_rank_k(facts, good, path.with_name(path.stem + "_rank_k.png"))
    draw_bars(facts, good, path.with_name(path.stem + "_transposes.png"))


def draw_square(facts, rows, path):
    """Draw rate against n: a color for each engine, a line style for each refinement."""
    made, axes = figure(
        "Matrix products on tensor cores", "n = m = k", "rate, TFLOP/s (2 n³ / time)", panels=2
    )
    for axis, dtype, name in ((axes[0], "float16", "FP16"), (axes[1], "float32", "FP32")):
        found = by(rows, what="square", dtype=dtype)
        for engine, refine in dict.fromkeys((r["engine"], r["refine"]) for r in found):
            here = by(found, engine=engine, refine=refine)
            plain = dtype == "float16" or engine == "sgemm"
            style = {"color": COLORS[engine], "marker": "o", "markersize": 4}
            style |= {
                "linestyle": STYLES[refine],
                "label": engine if plain else f"{engine}, {refine}",
            }
            axis.loglog([r["n"] for r in here], [r["tflops"] for r in here], **style)
        axis.set_title(f"{name} in, FP32 out", fontsize="medium")
        ticks(axis, [r["n"] for r in found])
        if dtype == "float32":
            legend_beside(axis)
    finish(made, axes, facts, path)


def draw_rank_k(facts, rows, path):
    """Draw rate against k of updates of one large matrix."""
    found = by(rows, what="rank-k")
    large = found[0]["m"] if found else ""
    title = f"Rank-k update C -= A B, FP16 in, FP32 C of order {large}"
    made, axes = figure(title, "k", "rate, TFLOP/s")
    for engine in dict.fromkeys(r["engine"] for r in found):
        here = by(found, engine=engine)
        style = {"color": COLORS[engine], "marker": "o", "label": engine}
        axes[0].loglog([r["k"] for r in here], [r["tflops"] for r in here], **style)
    ticks(axes[0], [r["k"] for r in found])
    finish(made, axes, facts, path)


def draw_bars(facts, rows, path):
    """Draw the rates of the four transposes, and of wmma with and without the swizzle."""
    made, axes = figure("Four transposes, and a swizzle", "", "rate, TFLOP/s", panels=2)
    found = by(rows, what="transposes")
    groups = list(dict.fromkeys((r["dtype"], r["engine"]) for r in found))
    names = ["NN", "NT", "TN", "TT"]
    for number, (dtype, engine) in enumerate(groups):
        here = {r["trans"]: r["tflops"] for r in by(found, dtype=dtype, engine=engine)}
        places = [i + 0.2 * (number - (len(groups) - 1) / 2) for i in range(len(names))]
        heights = [here.get(name, 0) for name in names]
        axes[0].bar(places, heights, width=0.18, label=f"{dtype}, {engine}")
    axes[0].set_xticks(range(len(names)), names)
    axes[0].set_ylim(top=1.4 * max([r["tflops"] for r in found], default=1))  # room for the legend
    axes[0].set_xlabel("op(A) op(B): N as it is, T transposed; n = 1024")
    axes[0].set_ylabel("rate, TFLOP/s (TOP/s for int8)")
    found = by(rows, what="swizzle")
    names = ["plain", "swizzled"]
    axes[1].bar([names[r["swizzled"]] for r in found], [r["tflops"] for r in found], width=0.5)
    axes[1].set_xlabel("shared memory of the wmma engine; FP16, n = 4096")
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
    try_to_draw(draw, facts, rows, options.figure)


if __name__ == "__main__":
    main()
