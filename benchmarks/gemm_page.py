"""How do the measured products compare with the numbers of the first papers about tensor cores?

    python benchmarks/gemm_page.py     # results/gemm.md and every figure of it from the JSON; no GPU

The page has a section for each figure and for each example.  Most sections have the picture, a table, the
published statements (_papers.py), and a comparison of our results with them.  Every measured or published
number comes from the JSON or _papers.py.
"""

import argparse
import importlib
import pathlib

import _papers
from _figures import by, load, try_to_draw
from _harness import RESULTS
from _papers import V100
from mma_rate import KINDS, nominal_peak
from tables import products, rate, source, table

# The results files with figures, and those with only a table.
DRAWN = ("gemm", "gemm_error", "gemm_batched", "mma_rate")
EXAMPLES = ("common_bits", "boris_push")


def best(rows, **wanted):
    """Return the fastest row of those wanted, or None."""
    found = [row for row in by(rows, **wanted) if "tflops" in row]
    return max(found, key=lambda row: row["tflops"], default=None)


def grid(head, names, columns, cell):
    """Return a table with a row for each name and a cell for each column."""
    return table([head, *columns], [[name, *(cell(name, c) for c in columns)] for name in names])


def first(rows, **wanted):
    return next(iter(by(rows, **wanted)), None)


def values(rows, key):
    return list(dict.fromkeys(row[key] for row in rows))


def times(x):
    return f"{x:.2g} times" if x < 10 else f"{x:.0f} times"


# ---- the sections: each returns the lines of its table and of its sentence ---------------------


def square(results):
    facts, rows = results["gemm"]
    rows = by(rows, what="square")
    lines = [products(rows), ""]
    top, single = best(rows, dtype="float16"), best(rows, engine="sgemm")
    warp, group = (best(rows, dtype="float16", engine=name) for name in ("wmma", "wgmma"))
    if top and single:
        over_single = top["tflops"] / single["tflops"]
        word = "are" if over_single >= V100["over_single"] else "are not"
        lines += [
            f"Tensor cores {word} at least {V100['over_single']} times as fast as single precision: FP16"
            f" reaches {top['tflops']:.0f} TFLOP/s ({top['engine']}, n = {top['n']}). This is"
            f" {times(over_single)} the rate of SGEMM,"
            f" and {times(top['tflops'] / V100['tflops'])} the {V100['tflops']} TFLOP/s of the V100."
        ]
    if warp and group:
        lines += [
            "The tensor cores of the V100 had only instructions for a warp. These reach"
            f" {warp['tflops']:.0f} TFLOP/s here (wmma); instructions for a warpgroup reach"
            f" {group['tflops']:.0f} TFLOP/s (wgmma){part_of_peak(results, facts, group)}."
        ]
    refined = best([r for r in rows if r["engine"] != "cublas"], dtype="float32", refine="ab")
    there = refined and first(rows, n=refined["n"], dtype="float32", engine="sgemm")
    if there and "tflops" in there and refined.get("sgemm_max_error"):
        low = refined["max_error"] <= refined["sgemm_max_error"]
        lines += [
            "'ab' replaces an FP32 product by three FP16 products of parts. It reaches"
            f" {refined['tflops']:.0f} TFLOP/s, {times(refined['tflops'] / there['tflops'])} the rate of"
            f" SGEMM. At n = {refined['n']} its error is {'not larger' if low else 'larger'} than that of"
            f" SGEMM ({refined['max_error']:.1e} and {refined['sgemm_max_error']:.1e})."
        ]
    return lines + three_for_nothing(rows)


def three_for_nothing(rows):
    """Return the sentence on the rate that three FP16 products by cuBLAS would have without the splitting."""
    told = []
    for n in values(rows, "n"):
        half = first(rows, n=n, dtype="float16", engine="cublas") or {}
        refined = best([r for r in rows if r["engine"] != "cublas"], n=n, refine="ab") or {}
        single = (first(rows, n=n, engine="sgemm") or {}).get("tflops")
        if single and "tflops" in half and refined:
            part = 3 * refined["tflops"] / half["tflops"]
            told.append(
                f"{half['tflops'] / 3 / single:.1f} times the rate of SGEMM at n = {n} ({part:.0%})"
            )
    if not told:
        return []
    return [
        "If splitting the operands took no time, three FP16 products by cuBLAS would reach"
        f" {', '.join(told)}. In brackets: the part of this rate that 'ab' reaches, including its split."
    ]


def part_of_peak(results, facts, row):
    """Return the rate of a row relative to the nominal peak, if mma_rate.json of the same device has it."""
    known = results.get("mma_rate", ({}, []))[0]
    peak = nominal_peak(known, "FP16") if known.get("gpu") == facts["gpu"] else None
    if peak is None:
        return ""
    here, then = row["tflops"] * 1e12 / peak, V100["tflops"] / V100["peak"]
    return (
        f", {100 * here:.0f} % of the nominal peak. The {V100['tflops']} TFLOP/s of the V100 were"
        f" {100 * then:.0f} % of its peak"
    )


def rank_k(results):
    rows = by(results["gemm"][1], what="rank-k")
    engines = values(rows, "engine")
    cell = lambda k, engine: rate(first(rows, k=k, engine=engine))  # noqa: E731
    lines = [grid("k", values(rows, "k"), engines, cell), ""]
    small, large = (best(rows, k=end(values(rows, "k"), default=0)) for end in (min, max))
    if small and large:
        lines += [
            f"Each entry of C (order {small['m']}) is read and written for only 2 k operations, so memory"
            f" limits the rate for small k: k = {small['k']} reaches"
            f" {100 * small['tflops'] / large['tflops']:.0f} % of the rate of k = {large['k']}."
        ]
    return lines


def transposes(results):
    rows = by(results["gemm"][1], what="transposes")
    groups = list(dict.fromkeys((row["dtype"], row["engine"]) for row in rows))
    names = ("NN", "NT", "TN", "TT")
    body = [
        [f"{dtype}, {engine}"]
        + [rate(first(rows, dtype=dtype, engine=engine, trans=trans)) for trans in names]
        for dtype, engine in groups
    ]
    lines = [table(["TFLOP/s, TOP/s", *names], body), ""]
    found = []
    for dtype, engine in groups:
        rates = [r["tflops"] for r in by(rows, dtype=dtype, engine=engine) if "tflops" in r]
        if rates:
            found.append(f"{100 * (1 - min(rates) / max(rates)):.0f} % ({dtype}, {engine})")
    if found:
        lines += [
            "The kernel of the wmma engine reads all four layouts without a copy. The slowest layout is"
            f" slower than the fastest by {', '.join(found)}."
        ]
    return lines


def swizzle(results):
    rows = by(results["gemm"][1], what="swizzle")
    names = ("plain", "swizzled")
    body = [[name, rate(first(rows, swizzled=i))] for i, name in enumerate(names)]
    lines = [table(["shared memory", "TFLOP/s"], body), ""]
    plain, swizzled = (best(rows, swizzled=i) for i in (0, 1))
    if plain and swizzled:
        gain = swizzled["tflops"] / plain["tflops"]
        word = "cost much time" if gain > 1.1 else "do not cost much time in this kernel"
        lines += [
            f"Bank conflicts {word}: without them the wmma engine is {times(gain)} as fast."
            " The swizzle, an exclusive or of address bits, avoids them without padding."
        ]
    return lines


def error(results):
    rows = by(results["gemm_error"][1], range=1)
    levels = values(rows, "level")

    def cell(n, level):
        row = first(rows, n=n, level=level)
        return f"{row['max_error']:.1e} ({1e3 * row['seconds']['median']:.3g})" if row else "-"

    lines = ["Largest error for entries in [-1, 1], in brackets the time in ms:", ""]
    lines += [grid("n", values(rows, "n"), levels, cell), ""]
    large = max(values(rows, "n"), default=0)
    here = {row["level"]: row for row in by(rows, n=large)}
    if not {"none", "a", "ab", "full", "fp32"} <= set(here):
        return lines
    smaller, dearer = (
        {level: ratio(here["none"], here[level], key) for level in here}
        for key in ("error", "time")
    )
    better = here["ab"]["max_error"] <= here["fp32"]["max_error"]
    fourth = 100 * abs(1 - smaller["ab"] / smaller["full"])
    return [
        *lines,
        f"Refinement reduces the error and takes more time: at n = {large} the error is {times(smaller['a'])}"
        f" smaller with 'a' and {times(smaller['ab'])} with 'ab', for {1 / dearer['a']:.1f} and"
        f" {1 / dearer['ab']:.1f} times the time. The operands are scaled. The tensor cores sum 64 terms"
        " at a time, and these sums are added in FP32 registers, rounded to nearest. So"
        f" 'ab' is {'at least as accurate as' if better else 'less accurate than'} FP32"
        f" (its error is {times(smaller['fp32'] / smaller['ab'])} that of FP32). The fourth product of 'full'"
        f" changes the error by {fourth:.0f} %.",
    ]


def ratio(one, other, what):
    """Return the error or the time, as `what` says, of one row divided by that of the other row."""
    pick = {"error": lambda r: r["max_error"], "time": lambda r: r["seconds"]["median"]}[what]
    return pick(one) / pick(other)


def batched(results):
    rows = by(results["gemm_batched"][1], case="FP16 -> FP32", n=16)
    lengths = sorted(values(rows, "batch"))
    who = ("tcsolve", "cuBLAS")
    cell = lambda batch, name: rate(first(rows, batch=batch, who=name))  # noqa: E731
    lines = ["16 x 16 by 16 x 16, FP16 -> FP32, TFLOP/s:", ""]
    lines += [grid("products", lengths, who, cell), ""]
    ours, theirs = (best(rows, who=name) for name in who)
    copy = first(rows, who="copy", batch=ours["batch"]) if ours else None
    if ours and theirs and copy and "seconds" in copy:
        over, rates = ours["tflops"] / theirs["tflops"], (ours, copy)
        word = "is worthwhile" if over > 1 else "is not worthwhile"
        then = ours["tflops"] / V100["batched_tflops"]
        mine, copied = (row["bytes_per_second"] for row in rates)
        lines += [
            f"A special kernel for such batches {word}: ours reaches {ours['tflops']:.1f} TFLOP/s,"
            f" {times(over)} the best rate of cuBLAS and {times(then)} the {V100['batched_tflops']} TFLOP/s"
            " of the V100. Memory limits its rate: it moves operands and results at"
            f" {100 * mine / copied:.0f} % of the speed of a copy."
        ]
    return lines


def mma(results):
    facts, rows = results["mma_rate"]
    warps = sorted(values(rows, "warps"))
    body = [
        [name, ilp, *(rate(first(rows, what=name, ilp=ilp, warps=w)) for w in warps)]
        for name in KINDS
        for ilp in KINDS[name][-1]
        if by(rows, what=name, ilp=ilp)
    ]
    head = ["instruction", "sums per warp", *(f"{w} warps" for w in warps)]
    lines = ["Rates in TFLOP/s (TOP/s for INT8):", "", table(head, body), ""]
    warp, group = best(rows, what="mma.sync FP16"), best(rows, what="wgmma FP16")
    peak = nominal_peak(facts, "FP16")
    if not (warp and peak):
        return lines
    alone = by(rows, what="mma.sync FP16", ilp=1)
    enough = [row["warps"] for row in alone if row.get("tflops", 0) >= 0.9 * warp["tflops"]]
    text = (
        f"The nominal peak here is {peak / 1e12:.0f} TFLOP/s: {facts['multiprocessors']} multiprocessors at"
        f" {facts['clock_hz'] / 1e9:.2f} GHz. mma.sync reaches"
        f" {100 * warp['tflops'] * 1e12 / peak:.0f} % of it. With one sum per warp,"
        f" {min(enough, default='more than 32')} warps are needed for nine tenths of that rate."
    )
    if group:
        text += f" wgmma, new on Hopper, reaches {100 * group['tflops'] * 1e12 / peak:.0f} %."
    return [*lines, text]


def common_bits(results):
    rows = results["common_bits"][1]
    body = [
        [
            row["how"],
            f"{1e3 * row['seconds']['median']:.3g}",
            f"{row['bits_compared_per_second']:.2e}",
        ]
        for row in rows
    ]
    which = f"All pairs of {rows[0]['vectors']} vectors of {rows[0]['bits']} bits; every count is exact:"
    lines = [which, "", table(["how", "ms", "pairs of bits a second"], body), ""]
    return [*lines, speed_over(rows, "gemm, FP16", "matmul, FP32")]


def boris_push(results):
    rows = results["boris_push"][1]
    body = [
        [row["how"], f"{1e3 * row['seconds']['median']:.3g}", f"{row['particles_per_second']:.2e}"]
        for row in rows
    ]
    which = f"{rows[0]['particles']} particles, one step:"
    lines = [which, "", table(["how", "ms", "particles a second"], body), ""]
    return [*lines, speed_over(rows, "gemm_batched", "arrays")]


def speed_over(rows, name, other):
    """Return the sentence that compares two rows of an example."""
    median = {row["how"]: row["seconds"]["median"] for row in rows}
    if not {name, other} <= set(median):
        return ""
    return f"'{name}' is {times(median[other] / median[name])} as fast as '{other}'."


# Title, results file, its figure, the figure's entry in _papers.QUOTES, and the section.
SECTIONS = (
    ("Rate by engine and size", "gemm", "gemm.png", "square", square),
    ("Rank-k updates", "gemm", "gemm_rank_k.png", "rank_k", rank_k),
    ("Four transposes", "gemm", "gemm_transposes.png", "transposes", transposes),
    ("Shared memory with a swizzle and without", "gemm", "gemm_transposes.png", "swizzle", swizzle),
    ("Error against size", "gemm_error", "gemm_error.png", "error", error),
    ("Error against time", "gemm_error", "gemm_error_time.png", None, None),
    ("Batches of small products", "gemm_batched", "gemm_batched.png", None, None),
    ("Rate against the length of a batch", "gemm_batched", "gemm_batched_length.png", "batched", batched),
    ("Tensor cores without memory", "mma_rate", "mma_rate.png", "mma", mma),
    ("Example: bits in common", "common_bits", None, None, common_bits),
    ("Example: a Boris push", "boris_push", None, None, boris_push),
)  # fmt: skip


def page(results):
    """Return the Markdown page of the available results."""
    lines = ["# Products on tensor cores", ""]
    lines += [
        "All times are medians of device time: before the timed calls, the device waits about as long as the"
        " host needs to launch them. Every answer is compared with its bound before it is timed. Published"
        " numbers are quoted with their source; 'not stated' means that the named part of the source gives"
        " no number.",
        "",
    ]
    for title, name, picture, quotes, section in SECTIONS:
        if name not in results:
            continue
        lines += [f"## {title}", ""]
        if picture:
            lines += [f"![{title}]({picture})", ""]
        if section:
            lines += [*section(results), ""]
        if quotes:
            lines += ["Published numbers:", "", *_papers.bullets(quotes), ""]
        lines += [source(results[name][0], f"benchmarks/{name}.py"), ""]
    return "\n".join([*lines, "## Sources", "", *_papers.sources(), ""])


def draw(folder, results):
    """Draw the figures again, if matplotlib is installed."""
    for name in DRAWN:
        if name in results:
            try_to_draw(importlib.import_module(name).draw, *results[name], folder / f"{name}.png")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=pathlib.Path, default=RESULTS, help="where the JSON is")
    folder = parser.parse_args().folder
    paths = {name: folder / f"{name}.json" for name in (*DRAWN, *EXAMPLES)}
    results = {name: load(path) for name, path in paths.items() if path.exists()}
    draw(folder, results)
    (folder / "gemm.md").write_text(page(results))
    print(f"wrote {folder / 'gemm.md'} from {', '.join(results)}")


if __name__ == "__main__":
    main()
