"""How many warps does a multiprocessor need to keep its tensor cores busy, without other work?

    python benchmarks/mma_rate.py                                  # needs compute capability 8.0 or later
    python benchmarks/mma_rate.py --from benchmarks/results/mma_rate.json     # only the figure; no GPU

One block of 1 to 32 warps on every multiprocessor repeats one instruction (mma_rate.cu).  It is mma.sync
m16n8k16 in FP16 or m16n8k32 in INT8 on registers, with 1, 2 and 4 independent sums a warp.  On compute
capability 9.0 it is also wgmma m64n256k16 on operands that stay in shared memory.  All operands are ones, so
that every sum is known exactly and checked before its rate is printed.

The nominal peak is the number of multiprocessors times the operations per clock times the clock that the
driver reports.  A multiprocessor does 2048 (A100) or 4096 (H100) FP16 operations per clock, and twice as many
in INT8, by NVIDIA's white papers as summarized in https://forums.developer.nvidia.com/t/244727.
"""

import numpy as np
from _figures import add_arguments, by, figure, finish, load, try_to_draw
from _harness import arguments, gpu, machine, save, summary
from _kernels import kernel
from _steady import steady_seconds

SOURCE = "mma_rate.cu"
# Name: number in the kernel, k of an instruction, operations of one, threads that issue it together, dtype of
# the sums, warps a block, independent sums.
KINDS = {
    "mma.sync FP16": (
        0,
        16,
        2 * 16 * 8 * 16,
        32,
        "float32",
        (1, 2, 4, 8, 12, 16, 24, 32),
        (1, 2, 4),
    ),
    "mma.sync INT8": (1, 32, 2 * 16 * 8 * 32, 32, "int32", (1, 2, 4, 8, 12, 16, 24, 32), (1, 2, 4)),
    "wgmma FP16": (2, 16, 2 * 64 * 256 * 16, 128, "float32", (4, 8, 12), (1,)),
}
# FP16 operations of a multiprocessor in a clock, by compute capability.
OPERATIONS_PER_CLOCK = {"80": 2048, "90": 4096}
# Instructions for each sum; a launch takes milliseconds, and sums stay far below 2^24.
COUNT = 1 << 16


def kinds(arch):
    """Return the names of the instructions that an architecture has."""
    return [name for name in KINDS if not name.startswith("wgmma") or arch == "sm_90a"]


def defines_of(number, ilp):
    """Return the macros of mma_rate.cu."""
    return {"KIND": number, "ILP": ilp}


def operations(name, multiprocessors, warps, ilp):
    """Return the operations of one launch."""
    _, _, each, threads, *_ = KINDS[name]
    return multiprocessors * warps * 32 // threads * ilp * COUNT * each


def nominal_peak(facts, name):
    """Return the nominal peak, as the docstring of this module defines it, or None if it is not known."""
    each, clock = OPERATIONS_PER_CLOCK.get(facts["compute_capability"]), facts.get("clock_hz")
    if each is None or not clock:
        return None
    return facts["multiprocessors"] * each * clock * (2 if "INT8" in name else 1)


def check(sums, where, name, multiprocessors):
    """Raise unless every sum is exact and every multiprocessor had one block."""
    exact = COUNT * KINDS[name][1]
    wrong = int((sums != exact).sum())
    if wrong:
        raise AssertionError(f"{wrong} of {sums.size} sums are not {exact}")
    used = len(np.unique(where))
    if used != multiprocessors:
        raise AssertionError(f"the blocks ran on {used} of {multiprocessors} multiprocessors")


def measure(name, warps, ilp, arch, attributes, repeats):
    """Return the row of one instruction, block and number of independent sums."""
    import cupy

    number, *_, dtype, _, _ = KINDS[name]
    multiprocessors = attributes["MultiProcessorCount"]
    # More than half of a multiprocessor's shared memory, so that two blocks cannot be on one.
    shared = attributes["MaxSharedMemoryPerMultiprocessor"] // 2 + 1024
    registers = 128 if name.startswith("wgmma") else 4 * ilp
    sums = cupy.zeros(multiprocessors * warps * 32 * registers, dtype)
    where = cupy.zeros(multiprocessors, np.int32)
    launch = kernel(SOURCE, "mma_rate", arch, **defines_of(number, ilp))

    def run():
        launch((multiprocessors,), (32 * warps,), (sums, where, COUNT), shared=shared)

    row = {"what": name, "warps": warps, "ilp": ilp, "count": COUNT}
    try:
        run()
        check(sums, where.get(), name, multiprocessors)
        seconds = summary(steady_seconds(run, repeats))
        rate = operations(name, multiprocessors, warps, ilp) / seconds["median"]
        row |= {"seconds": seconds, "tflops": rate / 1e12}
    except Exception as error:  # an instruction that fails is a result, too
        row["failed"] = f"{type(error).__name__}: {error}"
    return row


def line(row, peak=None):
    head = f"{row['what']:14} {row['warps']:3} warps, sums a warp: {row['ilp']}"
    if "failed" in row:
        return f"{head}  failed: {row['failed'][:200]}"
    of_peak = f" {100 * row['tflops'] * 1e12 / peak:5.1f} % of the nominal peak" if peak else ""
    return f"{head} {row['tflops']:8.1f} TFLOP/s{of_peak}"


def draw(facts, rows, path):
    """Draw the rate against the warps: FP16 left, INT8 right, the nominal peaks dashed."""
    good = [row for row in rows if "tflops" in row]
    made, axes = figure(
        "Tensor cores without memory", "warps on a multiprocessor", "rate, TFLOP/s", panels=2
    )
    axes[1].set_ylabel("rate, TOP/s")
    marks = {1: "o-", 2: "s-", 4: "^-"}
    for axis, dtype in zip(axes, ("FP16", "INT8"), strict=True):
        for name in (name for name in KINDS if name.endswith(dtype)):
            for ilp in KINDS[name][-1]:
                here = by(good, what=name, ilp=ilp)
                if here:
                    label = name if name.startswith("wgmma") else f"{name}, sums a warp: {ilp}"
                    style = "D-" if name.startswith("wgmma") else marks[ilp]
                    axis.plot(
                        [r["warps"] for r in here], [r["tflops"] for r in here], style, label=label
                    )
        peak = nominal_peak(facts, dtype)
        if peak:
            label = f"nominal peak, {peak / 1e12:.0f}"
            axis.axhline(peak / 1e12, color="black", linestyle="--", label=label)
        axis.set_xscale("log", base=2)
        axis.set_xticks([1, 2, 4, 8, 12, 16, 24, 32], ["1", "2", "4", "8", "12", "16", "24", "32"])
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.set_title(dtype, fontsize="medium")
    finish(made, axes, facts, path)


def main():
    parser = arguments(__doc__.partition("\n")[0])
    add_arguments(parser, "mma_rate")
    options = parser.parse_args()
    if options.source:
        draw(*load(options.source), options.figure)
        return
    import cupy

    from tcsolve._backends.cuda.runtime.compiler import target_arch

    attributes, arch = cupy.cuda.Device().attributes, target_arch()
    facts, rows = machine(options.commit) | gpu(), []
    facts["clock_hz"] = 1000 * attributes.get("ClockRate", 0)
    for name in kinds(arch):
        *_, warps, sums = KINDS[name]
        for ilp in sums:
            for count in warps:
                rows.append(measure(name, count, ilp, arch, attributes, options.repeats))
                print(line(rows[-1], nominal_peak(facts, name)), flush=True)
                save(options.json, facts, rows)
    try_to_draw(draw, facts, rows, options.figure)
    if any("failed" in row for row in rows):
        raise SystemExit("an instruction failed")


if __name__ == "__main__":
    main()
