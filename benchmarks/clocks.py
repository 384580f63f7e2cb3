"""Which clock and which power does a GPU have while products and solves keep it busy?

    python benchmarks/clocks.py                          # results/clocks.json and clocks.md
    python benchmarks/clocks.py --draw                   # the table from the JSON again; no GPU

Each kind of work is repeated for some time, while nvidia-smi reports every 20 ms.  The page compares the rate
with the peak of the tensor cores at the measured clock: 4096 FP16 operations per clock and multiprocessor on
Hopper.  The updates are trailing updates of an LU with three products.  Each is measured on all
multiprocessors, and again without those that look-ahead reserves for the next panel; these are idle here.
"""

import contextlib
import functools
import shutil
import subprocess
import sys
import time

import numpy as np
from _harness import RESULTS, arguments, gpu, machine, save, unless_drawn
from tables import source, table

ASKED = "clocks.sm,power.draw.instant,clocks.max.sm,enforced.power.limit"
EVERY_MS = 20
# Seconds of the measured work, and of the work before it: the clock falls while the device warms up.
SECONDS, WARM_UP = 1.2, 0.4
# FP16 operations per clock and multiprocessor of compute capability 9.0.
HOPPER_FLOPS = 4096
AB = "FP32, 'ab'"
# Number of columns of a wide panel, of rows below it, and of multiprocessors for the next panel.
UPDATE_K, UPDATE_ROWS, PANEL_BLOCKS = 1024, 28672, 16


# ---- measuring ---------------------------------------------------------------------------------


def parse(text):
    """Return rows of numbers from the output of nvidia-smi, without incomplete lines and text."""
    rows = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            row = [float(cell) for cell in line.split(",")]
            if len(row) == len(ASKED.split(",")):
                rows.append(row)
    return rows


def watched(run):
    """Return the mean seconds of `run()`, and the median clock, power and limits during many calls."""
    import cupy

    device = cupy.cuda.Device()
    line = ["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader,nounits"]
    line += [f"--id={device.pci_bus_id}", f"--loop-ms={EVERY_MS}"]
    # The first calls of a size record graphs for later calls.
    once = min(timed(run, 1) for _ in range(4))
    timed(run, max(1, int(WARM_UP / once)))
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as smi:
        try:
            seconds = timed(run, max(3, int(SECONDS / once)))
        finally:
            smi.terminate()
        rows = parse(smi.stdout.read())
    if not rows:
        sys.exit(
            "nvidia-smi reported neither clock nor power; use the nvidia-smi of a recent driver"
        )
    # nvidia-smi started after the warm-up, so all rows are from times with work.
    clock, power, most, limit = np.median(rows, axis=0)
    found = {
        "seconds": seconds,
        "mhz": clock,
        "watts": power,
        "most_mhz": most,
        "most_watts": limit,
    }
    return {name: float(x) for name, x in found.items()} | {"samples": len(rows)}


def timed(run, count):
    """Return the mean seconds of `count` calls of `run()`, wall clock, from an idle device to an idle one."""
    import cupy

    device = cupy.cuda.Device()
    device.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        run()
    device.synchronize()
    return (time.perf_counter() - start) / count


def products(sizes):
    """Yield (what, n, FP16 operations, run) for square products."""
    import cupy

    from tcsolve import gemm

    for n in sizes:
        a, b = (cupy.random.standard_normal((n, n), dtype=np.float32) for _ in "ab")
        out, low = cupy.empty((n, n), np.float32), [x.astype(np.float16) for x in (a, b)]
        run = functools.partial(gemm, out=out)
        yield "SGEMM", n, 0, functools.partial(run, a, b, precision="fp32")
        for engine in ("cublas", "wgmma"):
            yield f"FP16, {engine}", n, 2 * n**3, functools.partial(run, *low, engine=engine)
        yield AB, n, 6 * n**3, functools.partial(run, a, b)


def updates(multiprocessors):
    """Yield (what, n, FP16 operations, run) for the update of an LU."""
    import cupy

    from tcsolve._arithmetic.formats import UPDATES
    from tcsolve._backends.cuda.gemm.wgmma import Operand

    m, k, how = UPDATE_ROWS, UPDATE_K, UPDATES["fp16x3"]
    l, u = (cupy.random.uniform(-1, 1, shape, dtype=np.float32) for shape in ((m, k), (k, m)))
    c = cupy.zeros((m, m), np.float32)
    for blocks in (multiprocessors, multiprocessors - PANEL_BLOCKS):
        operand = Operand(l, how, blocks)
        what = f"update, k = {k}, {blocks} multiprocessors"
        yield what, m, 6 * m * m * k, functools.partial(operand.subtract, c, u, None)


def solves(sizes):
    """Yield (what, n, FP16 operations, run) for whole solves."""
    import cupy
    from solve import matrix

    import tcsolve

    for n in sizes:
        a = matrix("gauss", n)
        b = a @ cupy.ones(n)
        yield "solve, gauss", n, 0, functools.partial(tcsolve.solve_ex, a, b, assume_a="general")


# ---- writing -----------------------------------------------------------------------------------


def line(row):
    """Return the printed line of a row."""
    rate = f"{row['flops'] / row['seconds'] / 1e12:4.0f} TFLOP/s" if row["flops"] else " " * 12
    text = f"{row['what']:42} n {row['n']:6} {1e3 * row['seconds']:9.3f} ms {rate}"
    return f"{text} {row['mhz']:5.0f} MHz {row['watts']:4.0f} W"


def peak(row, multiprocessors):
    """Return the FP16 operations a second of all multiprocessors at the clock of a row."""
    return 1e6 * row["mhz"] * multiprocessors * HOPPER_FLOPS


def page(facts, rows):
    """Return the Markdown page of the rows."""
    head = ["work", "n", "ms", "TFLOP/s in FP16", "clock, MHz", "of the peak at that clock"]
    head += ["power, W"]
    body = []
    for row in rows:
        rate = row["flops"] / row["seconds"]
        of_peak = f"{rate / peak(row, facts['multiprocessors']):.0%}" if rate else "-"
        cells = [row["what"], row["n"], f"{1e3 * row['seconds']:.3g}"]
        cells += [f"{rate / 1e12:.0f}" if rate else "-", f"{row['mhz']:.0f}", of_peak]
        body.append([*cells, f"{row['watts']:.0f}"])
    most = max(rows, key=lambda row: row["most_mhz"])
    lines = ["# Clock and power", ""]
    lines += [
        "The clock and the power are medians during many repetitions; see `benchmarks/clocks.py`. The "
        f"highest clock is {most['most_mhz']:.0f} MHz, and the power limit is {most['most_watts']:.0f} W. "
        "If a row has three products, the rate counts the operations of all three.",
        *over_sgemm(rows),
        "",
    ]
    return "\n".join([*lines, table(head, body), "", source(facts, "benchmarks/clocks.py")]) + "\n"


def over_sgemm(rows):
    """Return the sentence that compares the speed of three products with SGEMM."""
    seconds = {(row["what"], row["n"]): row["seconds"] for row in rows}
    sizes = [n for what, n in seconds if what == AB and ("SGEMM", n) in seconds]
    ratios = [f"{seconds['SGEMM', n] / seconds[AB, n]:.2f} at n = {n}" for n in sizes]
    what = "An FP32 product by three FP16 products ('ab') is faster than SGEMM by factors of"
    return [f"{what} {', '.join(ratios)}."] if ratios else []


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, nargs="+", default=[4096, 8192, 16384], help="of products")
    parser.add_argument("--solve", type=int, nargs="+", default=[8192, 16384, 32768])
    parser.set_defaults(json=RESULTS / "clocks.json")
    options = unless_drawn(parser, page)
    if options is None:
        return
    import cupy

    if shutil.which("nvidia-smi") is None:
        sys.exit("no nvidia-smi: it comes with the driver; put it on PATH")
    facts, rows = machine(options.commit) | gpu(), []
    for work in (products(options.n), updates(facts["multiprocessors"]), solves(options.solve)):
        for what, n, flops, run in work:
            rows.append({"what": what, "n": n, "flops": flops} | watched(run))
            print(line(rows[-1]), flush=True)
            save(options.json, facts, rows)
        cupy.get_default_memory_pool().free_all_blocks()
    options.json.with_suffix(".md").write_text(page(facts, rows))


if __name__ == "__main__":
    main()
