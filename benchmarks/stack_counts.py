"""What limits the solve of a stack on the GPU: instructions, bytes, waiting in kernels, or the host?

    python benchmarks/stack_counts.py          # needs ncu
    python benchmarks/stack_counts.py --draw   # the page from the JSON again; no GPU

Nsight Compute counts what the kernels of one call of `tcsolve.solve` do, for the stacks of `stacks.py`; the
clocks of the device are not fixed.

- *instructions*: executed warp instructions per system.
- *by instructions*: the milliseconds of all instructions if each scheduler issued one in each cycle.
- *by bytes*: the milliseconds of the bytes read from and written to the memory of the device, at the speed
  of a copy.
- *kernels*: the milliseconds of all kernels, one after the other; in brackets their number.
- *call*: the milliseconds of the call in `stacks.py`; *needed*: the milliseconds at which the ratio to the
  fastest peer reaches the aim of `stacks.py`.
- *limit*: the first of instructions, bytes, kernels and call that is above *needed*; "aim met" if none is.
  "waiting" means the kernels: neither their instructions nor their bytes take that long, but schedulers wait
  for divisions, shared memory or barriers.  "host" means the call.
- *issued*: the part of the cycles in which a scheduler issues an instruction.
"""

import csv
import json
import shutil
import subprocess
import sys

from _harness import RESULTS, arguments, gpu, machine, save, unless_drawn
from stacks import AIMS, NAMES, SIZES, Case, cases, copy_speed, system
from tables import source, table

# The kernel that is launched before each case, so that the kernels of the cases can be told apart.
MARKER = "next_case"
# Calls before the one that is counted.
WARM_UPS = 3
TIME, INSTRUCTIONS = "gpu__time_duration.sum", "smsp__inst_executed.sum"
BYTES, CYCLES = "dram__bytes.sum", "sm__cycles_elapsed.max"
METRICS = TIME, INSTRUCTIONS, BYTES, CYCLES
SCHEDULERS = 4
PAGES = "stacks.json", "stacks_types.json"


def solve_all(chars):
    """Solve the stacks of `stacks.py` for the profiler."""
    import cupy

    import tcsolve

    mark = cupy.ElementwiseKernel("float64 x", "float64 y", "y = x", MARKER)
    for case in cases():
        if case.char not in chars:
            continue
        a, b = system(case)
        for last in [False] * WARM_UPS + [True]:
            cupy.cuda.Device().synchronize()
            if last:
                cupy.cuda.profiler.start()
                mark(cupy.zeros(1))
            tcsolve.solve(a, b, assume_a=case.kind)
        cupy.cuda.Device().synchronize()
        cupy.cuda.profiler.stop()
        del a, b
        cupy.get_default_memory_pool().free_all_blocks()


def counted(chars):
    """Return the rows of the cases, counted by ncu."""
    ncu = shutil.which("ncu")
    if ncu is None:
        sys.exit("stack_counts.py needs ncu (Nsight Compute) on the path")
    options = ["--profile-from-start", "off", "--clock-control", "none", "--print-units", "base"]
    options += ["--csv", "--page", "raw", "--metrics", ",".join(METRICS)]
    child = [sys.executable, "-P", __file__, "--child", "--chars", chars]
    done = subprocess.run([ncu, *options, *child], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"ncu failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return rows_of(done.stdout, [case for case in cases() if case.char in chars])


def rows_of(text, some):
    """Return a row for each `Case` of `some` from the CSV that ncu has written."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    kernels = list(csv.DictReader(lines[first:]))[1:]  # the first row has the units
    groups = []
    for kernel in kernels:
        if MARKER in kernel["Kernel Name"]:
            groups.append([])
        else:
            groups[-1].append({name: float(kernel[name].replace(",", "")) for name in METRICS})
    if len(groups) != len(some):
        sys.exit(f"ncu saw {len(groups)} cases instead of {len(some)}")
    return [row_of(case, group) for case, group in zip(some, groups, strict=True)]


def row_of(case, kernels):
    """Return the row of a case; ncu counts nanoseconds."""
    total = {name: sum(kernel[name] for kernel in kernels) for name in METRICS}
    return case._asdict() | {
        "kernels": len(kernels),
        "seconds": total[TIME] * 1e-9,
        "instructions": total[INSTRUCTIONS],
        "bytes": total[BYTES],
        "cycles": total[CYCLES],
    }


def timed():
    """Return {Case: (seconds of the call, seconds of the fastest peer)} from the results of `stacks.py`."""
    found = {}
    for name in PAGES:
        for row in json.loads((RESULTS / name).read_text())["rows"]:
            seconds = {who: times["median"] for who, times in row["seconds"].items()}
            ours = seconds.pop("tcsolve")
            case = Case(*(row[field] for field in Case._fields))
            found[case] = ours, min(seconds.values())
    return found


def aim(case):
    """Return the ratio to the fastest peer that `stacks.py` aims at."""
    at = [n for n, _ in SIZES].index(case.n)
    return AIMS[case.kind][at] if case.char == "d" else 4


def cells(facts, row, times):
    """Return the cells of a row."""
    case = Case(*(row[field] for field in Case._fields))
    call, peer = times[case]
    needed = peer / aim(case)
    slots = facts["multiprocessors"] * SCHEDULERS * row["cycles"]
    by_instructions = row["instructions"] / slots * row["seconds"]
    by_bytes = row["bytes"] / facts["copy_bytes_per_second"]
    limits = {
        "instructions": by_instructions,
        "bytes": by_bytes,
        "waiting": row["seconds"],
        "host": call,
    }
    limit = next((name for name, seconds in limits.items() if seconds > needed), "aim met")
    return [
        f"{case.kind}, {NAMES[case.char]}",
        f"{case.n} x {case.count}",
        f"{row['instructions'] / case.count:.0f}",
        f"{1e3 * by_instructions:.3f}",
        f"{1e3 * by_bytes:.3f}",
        f"{1e3 * row['seconds']:.3f} ({row['kernels']})",
        f"{1e3 * call:.3f}",
        f"{1e3 * needed:.3f}",
        limit,
        f"{row['instructions'] / slots:.2f}",
    ]


HEAD = [
    *("systems", "n x count", "instructions", "by instructions", "by bytes", "kernels", "call"),
    *("needed", "limit", "issued"),
]


def page(facts, rows):
    """Return the page of the results."""
    about, times = __doc__.partition("\n\nNsight")[2], timed()
    head = f"# What limits stacks\n\n{source(facts, 'python benchmarks/stack_counts.py')}"
    body = table(HEAD, [cells(facts, row, times) for row in rows])
    return f"{head}\n\nNsight{about}\n{body}\n"


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--chars", default="dfDF", help="these dtypes")
    parser.add_argument("--child", action="store_true", help="only solve, for the profiler")
    parser.set_defaults(json=RESULTS / "stack_counts.json")
    options = unless_drawn(parser, page)
    if options is None:
        return
    if options.child:
        solve_all(options.chars)
        return
    facts = machine(options.commit) | gpu()
    facts["copy_bytes_per_second"] = copy_speed()
    rows = counted(options.chars)
    times = timed()
    for row in rows:
        print(*cells(facts, row, times), sep=" | ", flush=True)
    save(options.json, facts, rows)
    options.json.with_suffix(".md").write_text(page(facts, rows))


if __name__ == "__main__":
    main()
