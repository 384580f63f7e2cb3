"""Does device='auto' choose the faster device for NumPy arrays, and how fast are the copies?

    python benchmarks/devices.py             # with the rates that `tcsolve warm` has kept
    python benchmarks/devices.py --measure   # measure the rates of the machine first, and keep them
    python benchmarks/devices.py --draw      # the page from the JSON again; no GPU

`tcsolve.solve` of NumPy arrays is timed with device='cpu', 'cuda' and 'auto'; and copies of arrays by
`tcsolve._backends.cuda.runtime.transfers` are compared with those of CuPy.  Times are medians of wall clock.
The calls take turns, and the first three turns do not count; but a call of more than a second always counts.
Each answer is checked before it is timed.
"""

import sys
import time

import numpy as np
from _harness import (
    RESULTS,
    arguments,
    backward_error,
    gpu,
    machine,
    save,
    summary,
    unless_drawn,
)
from tables import source, table

SIZES = (16, 32, 64, 100, 150, 200, 250, 300, 400, 500, 600, 800, 1000, 1500, 2000, 3000, 5000)
SIZES += (7000, 10000)
# A call that took less than this many seconds is repeated for SETTLING seconds before it is timed.
SHORT = 0.05
DEVICES = ("cpu", "cuda", "auto")
# WANTED: 'auto' may take this many times the time of the faster device.  WANTED_SECONDS: for these n, the
# most seconds that 'auto' may take.
WANTED, WANTED_SECONDS = 1.25, {3000: 8e-3, 10000: 60e-3}
# The orders of the square arrays that are copied.
COPIED = (500, 1000, 3000, 10000)
WARM_UPS, PATIENCE, LONG = 3, 0.4, 1.0
# Seconds for which a short call is repeated before it is timed, because the threads of OpenBLAS spin for
# 0.1 s after the previous call; and number of calls that are then timed in a row.
SETTLING, IN_A_ROW = 0.2, 3


def samples_of(calls, repeats):
    """Return {name: sorted seconds} of calls that take turns, after their warm-ups."""
    found, done, last = {name: [] for name in calls}, set(), {}
    for i in range(WARM_UPS + repeats):
        for name, call in calls.items():
            if name in done:
                continue
            is_short = last.get(name, SHORT) < SHORT
            if is_short:
                _settle(call)
            for _ in range(IN_A_ROW if is_short else 1):
                start = time.perf_counter()
                call()
                took = last[name] = time.perf_counter() - start
                if i >= WARM_UPS or took > LONG:
                    found[name].append(took)
            if sum(found[name]) > PATIENCE:
                done.add(name)
    return {name: sorted(samples) for name, samples in found.items()}


def _settle(call):
    """Repeat a short call, because the caches and the threads of the call before would slow it down."""
    end = time.perf_counter() + SETTLING
    while time.perf_counter() < end:
        call()


def measure_solves(library, n, repeats):
    """Return the row of the solves of one size; `library` has `solve` and `solve_ex`."""
    a = np.random.default_rng(7).standard_normal((n, n))
    b = a @ np.ones(n)
    row = {"what": "solve", "n": n}
    for device in DEVICES:
        solution = library.solve_ex(a, b, device=device)
        error = backward_error(np, a, solution.x, b)
        if not (solution.status.ok and error <= 2 * solution.bound):
            return row | {"error": f"device={device!r}: {solution.status.name}, error {error:.1e}"}
    calls = {device: lambda device=device: library.solve(a, b, device=device) for device in DEVICES}
    row |= {name: summary(samples) for name, samples in samples_of(calls, repeats).items()}
    row["chosen"] = solution.device
    return row | {"ratio": row["auto"]["median"] / min(row[x]["median"] for x in ("cpu", "cuda"))}


def measure_copies(n, repeats):
    """Return the row of the copies of one size, in bytes per second."""
    import cupy

    from tcsolve._backends.cuda.runtime import transfers

    x = np.random.default_rng(7).standard_normal((n, n))
    there, wait = cupy.asarray(x), cupy.cuda.Device().synchronize
    if not bool((transfers.to_device(x) == there).all()):
        return {"what": "copy", "n": n, "error": "wrong bits"}
    ways = {
        "to_device": lambda: (transfers.to_device(x), wait()),
        "to_device_cupy": lambda: (cupy.asarray(x), wait()),
        "to_host": lambda: transfers.to_host(there),
        "to_host_cupy": there.get,
    }
    found = samples_of(ways, repeats)
    return {"what": "copy", "n": n} | {
        name: x.nbytes / float(np.median(samples)) for name, samples in found.items()
    }


# ---- writing -----------------------------------------------------------------------------------

HEAD = ("n", "cpu, ms", "cuda, ms", "auto, ms", "auto took", "auto / better", "")
COPY_HEAD = ("n", "MB", "to the device, GB/s", "by CuPy", "to the host, GB/s", "by CuPy")


def verdict(row):
    """Return 'ok', or what was missed, or the failure."""
    if "error" in row:
        return "FAILED: " + row["error"]
    missed = ["the ratio"] if row["ratio"] > WANTED else []
    if row["auto"]["median"] > WANTED_SECONDS.get(row["n"], np.inf):
        missed.append(f"{1e3 * WANTED_SECONDS[row['n']]:g} ms")
    return "MISSED: " + ", ".join(missed) if missed else "ok"


def cells(row):
    """Return the cells of a row of solves."""
    if "error" in row:
        return [row["n"], *["-"] * 5, verdict(row)]
    times = [f"{1e3 * row[device]['median']:.3g}" for device in DEVICES]
    return [row["n"], *times, row["chosen"], f"{row['ratio']:.2f}", verdict(row)]


def copy_cells(row):
    """Return the cells of a row of copies."""
    megabytes = f"{8 * row['n'] ** 2 / 1e6:.0f}"
    if "error" in row:
        return [row["n"], megabytes, "FAILED: " + row["error"], "-", "-", "-"]
    ways = ("to_device", "to_device_cupy", "to_host", "to_host_cupy")
    return [row["n"], megabytes, *(f"{row[way] / 1e9:.1f}" for way in ways)]


def page(facts, rows):
    """Return the Markdown page of the rows."""
    solves = [row for row in rows if row["what"] == "solve"]
    copies = [row for row in rows if row["what"] == "copy"]
    kept = sum(verdict(row) == "ok" for row in solves)
    text = (
        "# The device of NumPy arrays\n\nThe wall clock of `tcsolve.solve` for a general FP64 matrix in "
        "the memory of the host, with each `device`, in a process that has used the GPU.  `auto` should "
        f"take at most {WANTED:g} times as long as the faster of `cpu` and `cuda`, and "
        + ", ".join(f"at most {1e3 * t:g} ms at n = {n}" for n, t in WANTED_SECONDS.items())
        + f".  {kept} of {len(solves)} rows are ok.  The rates with which `auto` predicts are "
        + f"{facts['rates']}."
    )
    copied = "Copies of n x n arrays by the library, and by CuPy:"
    parts = [text, table(HEAD, map(cells, solves)), copied]
    parts += [table(COPY_HEAD, map(copy_cells, copies)), source(facts, "benchmarks/devices.py")]
    return "\n\n".join(parts) + "\n"


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--measure", action="store_true", help="measure the rates first")
    parser.add_argument("--n", type=int, nargs="+", default=list(SIZES))
    parser.set_defaults(json=RESULTS / "devices.json", repeats=4)
    options = unless_drawn(parser, page)
    if options is None:
        return
    import tcsolve
    from tcsolve._backends.select import gpu_name, ops_on
    from tcsolve._solve.choice.placement import machine_rates
    from tcsolve.cli.rates import keep_rates

    ops_on("cuda")
    if options.measure:
        keep_rates(sys.stdout)
    date = machine_rates(gpu_name()).date
    facts, rows = machine(options.commit) | gpu(), []
    facts["rates"] = f"measured {date}" if date else "those that the package contains"
    for n in options.n:
        rows.append(measure_solves(tcsolve, n, options.repeats))
        print(*cells(rows[-1]), sep="  ", flush=True)
        save(options.json, facts, rows)
    for n in COPIED:
        rows.append(measure_copies(n, options.repeats))
        print(*copy_cells(rows[-1]), sep="  ", flush=True)
        save(options.json, facts, rows)
    options.json.with_suffix(".md").write_text(page(facts, rows))


if __name__ == "__main__":
    main()
