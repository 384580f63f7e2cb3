"""What slows a panel during an update: the tensor cores, the second-level cache, or memory?

    python benchmarks/contention.py                      # results/contention.json and contention.md
    python benchmarks/contention.py --draw               # the table from the JSON again; no GPU

A cluster factors the first strip of a panel, first alone, then while all other multiprocessors do one kind of
work.  They multiply in registers, read from the second-level cache, or read and write memory (contention.cu);
or they update a matrix by three products, as in an LU.  All kernels are launched before any of them starts.
The other work begins when the panel is resident, and must end after the panel.  The factors must have the
same bits each time.  This needs compute capability 9.0.
"""

import functools

import numpy as np
from _harness import RESULTS, arguments, gpu, machine, save, summary, unless_drawn
from _kernels import kernel
from tables import source, table

ALONE, UPDATE = "nothing", "update"
# For each kind of work: its number in the kernel, the number of 16-byte words (16 MB and 2 GB), the flops per
# instruction or bytes per word, and the unit of the rate.
WORK = {
    "tensor cores": (0, 1, 2 * 16 * 8 * 16, "TFLOP/s"),
    "second-level cache": (1, 1 << 20, 16, "TB/s"),
    "memory": (2, 1 << 27, 32, "TB/s"),
}
THREADS, SHARED_BYTES = 512, 120 << 10  # one block a multiprocessor
# The update: number of rows of U, and number of rows and columns of C.
UPDATE_K, UPDATE_ROWS = 512, 12288
# Nanoseconds for all launches, and nanoseconds for which each kind of work continues.
LAUNCHING, WORKING = 1_000_000, 800_000


# ---- measuring ---------------------------------------------------------------------------------


class Strip:
    """The first strip of a panel of m rows, as an LU factors it; a matrix of m columns holds it."""

    def __init__(self, m):
        import cupy

        from tcsolve._backends.cuda.lu.ops import DeviceLU
        from tcsolve._contract.lu import Pivots

        self._lu, self.m = DeviceLU(), m
        rules = self._lu.rules(np.float32)
        self.width = rules.strip(m, 2 * UPDATE_K, False)
        self.blocks = rules.panel_shape(m, self.width, False).blocks
        self._p = cupy.empty((m, m), np.float32)[:, : self.width]
        self._a = cupy.random.default_rng(3).standard_normal(self._p.shape, dtype=np.float32)
        ipiv, order, info = (cupy.zeros(k, np.int32) for k in (self.width, m, 1))
        self._pivots = Pivots(0, ipiv, order, info)

    def restore(self):
        """Undo what `factor` has done."""
        self._p[...] = self._a

    def factor(self, started):
        """Factor the strip; its kernel sets `started` when it is resident."""
        self._swaps = self._lu.strip(self._p, 0, self.width, self._pivots, started)

    def result(self):
        """Return the factors and pivots, on the host."""
        return self._p.get(), self._pivots.ipiv.get()


def works(multiprocessors, blocks):
    """Yield (name, launch, rate); rate() returns the rate of the last launch with its unit, or None."""
    import cupy

    from tcsolve._arithmetic.formats import UPDATES
    from tcsolve._backends.cuda.gemm.wgmma import Operand

    yield ALONE, lambda: None, lambda: None
    for name, (number, count, each, unit) in WORK.items():
        words, done = cupy.zeros((count, 4), np.float32), cupy.zeros(1, np.uint64)
        launch = kernel("contention.cu", "contention", "sm_90a", KIND=number)
        args = (multiprocessors - blocks,), (THREADS,), (words, count, WORKING, done)

        def run(launch=launch, args=args, done=done):
            done.fill(0)
            launch(*args, shared=SHARED_BYTES)

        def rate(done=done, each=each, unit=unit):
            return [int(done[0]) * each / WORKING / 1e3, unit]

        yield name, run, rate
    how, shape = UPDATES["fp16x3"], (UPDATE_ROWS, UPDATE_K)
    l, u = (cupy.random.uniform(-1, 1, s, dtype=np.float32) for s in (shape, shape[::-1]))
    c = cupy.zeros((UPDATE_ROWS, UPDATE_ROWS), np.float32)
    operand = Operand(l, how, multiprocessors - blocks)
    operand.round()
    yield UPDATE, functools.partial(operand.subtract, c, u, None), lambda: None


def once(strip, work):
    """Return the seconds of the strip while `work` runs, and whether the work lasted as long."""
    import cupy

    from tcsolve._backends.cuda.lu.sm_partition import GATE_PATIENCE, Flags
    from tcsolve._backends.cuda.runtime import compiler

    device, gate = cupy.cuda.Device(), compiler.kernel("wait_for_panel", "tcs_gate")
    flags = Flags.of(device.id)
    side, main = (
        cupy.cuda.Stream(non_blocking=True, priority=-1),
        cupy.cuda.Stream(non_blocking=True),
    )
    begin, end, over = (cupy.cuda.Event() for _ in range(3))
    strip.restore()
    never, started = flags.next(), flags.next()
    device.synchronize()
    with main:
        gate((1,), (1,), (never, LAUNCHING, 0))  # everything waits until all kernels are launched
        go = main.record()
    with side:
        side.wait_event(go)
        begin.record()
        strip.factor(started)
        end.record()
    with main:
        gate((1,), (1,), (started, GATE_PATIENCE, 0))
        work()
        over.record()
    device.synchronize()
    seconds, whole = (cupy.cuda.get_elapsed_time(begin, event) / 1e3 for event in (end, over))
    return seconds, whole >= seconds


def measure(m, repeats):
    """Yield the row of the strip for each kind of other work."""
    import cupy

    strip, expected = Strip(m), None
    for name, work, rate in works(gpu()["multiprocessors"], strip.blocks):
        once(strip, work)
        found = [once(strip, work) for _ in range(repeats)]
        result = strip.result()
        expected = expected or result
        if not all(np.array_equal(x, y) for x, y in zip(result, expected, strict=True)):
            raise SystemExit(f"{m} rows: the factors change if the other work is {name}")
        if name != ALONE and not all(covered for _, covered in found):
            raise SystemExit(f"{m} rows: {name} ended before the panel")
        row = {"m": m, "columns": strip.width, "beside": name, "rate": rate()}
        yield row | {"seconds": summary(sorted(seconds for seconds, _ in found))}
        cupy.get_default_memory_pool().free_all_blocks()


# ---- writing -----------------------------------------------------------------------------------


def microseconds(row):
    """Return the microseconds per column."""
    return 1e6 * row["seconds"]["median"] / row["columns"]


def told_rate(row):
    """Return the rate of the other work."""
    return f"{row['rate'][0]:.3g} {row['rate'][1]}" if row["rate"] else "-"


def line(row):
    """Return the printed line of a row."""
    head = f"{row['m']:6} rows, {row['columns']:3} columns, other work: {row['beside']:20}"
    return f"{head} {microseconds(row):6.3f} us per column  {told_rate(row)}"


def page(facts, rows):
    """Return the Markdown page of the rows."""
    alone = {row["m"]: microseconds(row) for row in rows if row["beside"] == ALONE}
    body = [
        [row["m"], row["columns"], row["beside"], told_rate(row), f"{microseconds(row):.3f}"]
        + [f"{microseconds(row) / alone[row['m']]:.2f}"]
        for row in rows
    ]
    head = ["rows", "columns", "other work", "rate of the other work", "us per column"]
    head += ["time / time alone"]
    told = (
        "The time of the first strip of a panel while other multiprocessors do other work; "
        "`benchmarks/contention.py` describes the measurement."
    )
    parts = ["# A panel during other work", told, table(head, body)]
    return "\n\n".join([*parts, source(facts, "benchmarks/contention.py")]) + "\n"


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--m", type=int, nargs="+", default=[4096, 8192, 12288, 16384, 32768])
    parser.set_defaults(json=RESULTS / "contention.json", repeats=15)
    options = unless_drawn(parser, page)
    if options is None:
        return
    facts, rows = machine(options.commit) | gpu(), []
    for m in options.m:
        for row in measure(m, options.repeats):
            rows.append(row)
            print(line(row), flush=True)
            save(options.json, facts, rows)
    options.json.with_suffix(".md").write_text(page(facts, rows))


if __name__ == "__main__":
    main()
