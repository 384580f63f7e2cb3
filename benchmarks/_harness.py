"""Helpers of all benchmarks: facts about the machine, timing, JSON files."""

import argparse
import contextlib
import itertools
import json
import math
import os
import pathlib
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version

import numpy as np

RESULTS = pathlib.Path(__file__).parent / "results"
# Samples are taken until `repeats` are done or they have taken this many seconds in all.
PATIENCE = 20.0
# A call of less than SHORT seconds has several warm-ups, because our first calls of a size record graphs.
SHORT, SHORT_WARM_UPS = 0.5, 5


def arguments(question):
    """Return a parser with the options that most benchmarks have."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--json", type=pathlib.Path, help="write the results here")
    parser.add_argument("--repeats", type=int, default=5, help="samples of each time (median)")
    parser.add_argument("--commit", help="commit measured; default: TCSOLVE_COMMIT, or git's")
    return parser


def unless_drawn(parser, page):
    """Parse the options and return them; with `--draw`, write `page(machine, rows)` and return None."""
    parser.add_argument("--draw", action="store_true", help="only rewrite the page from the JSON")
    options = parser.parse_args()
    if not options.draw:
        return options
    if options.json is None:
        parser.error("--draw needs --json FILE, the results of an earlier run")
    results = json.loads(options.json.read_text())
    options.json.with_suffix(".md").write_text(page(results["machine"], results["rows"]))
    return None


def machine(commit=None):
    """Return the versions, the CPU and the commit, for the head of a results file."""
    from tcsolve._hardware import cpu_name

    facts = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit or os.environ.get("TCSOLVE_COMMIT") or _commit(),
        "python": platform.python_version(),
        "cpu": f"{cpu_name()}, {_cores()} cores",
    }
    for package in ("tcsolve", "numpy", "scipy", "cupy-cuda13x", "cupy-cuda12x", "torch"):
        with contextlib.suppress(PackageNotFoundError):
            facts[package] = version(package)
    return facts


def _cores():
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def gpu():
    """Return the facts of the current CUDA device."""
    import cupy

    device = cupy.cuda.Device()
    properties = cupy.cuda.runtime.getDeviceProperties(device.id)
    return {
        "gpu": properties["name"].decode(),
        "compute_capability": device.compute_capability,
        "multiprocessors": properties["multiProcessorCount"],
        "cuda_runtime": cupy.cuda.runtime.runtimeGetVersion(),
        "cuda_driver": cupy.cuda.runtime.driverGetVersion(),
    }


def _commit():
    try:
        return subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def host_seconds(run, repeats, *, prepare=None):
    """Return the sorted seconds of `run(prepare())` on the host, after one warm-up."""
    samples = []
    for i in range(repeats + 1):
        argument = prepare() if prepare else None
        start = time.perf_counter()
        run(argument) if prepare else run()
        samples.append(time.perf_counter() - start)
        if i and sum(samples) > PATIENCE:
            break
    return sorted(samples[1:])


def device_seconds(run, repeats, *, prepare=None):
    """Return the sorted seconds of `run(prepare())` between CUDA events, after one warm-up.

    Short calls have several warm-ups, because a library may prepare more in the second and third call.
    """
    import cupy

    samples, warm_ups = [], 1
    for i in itertools.count():
        argument = prepare() if prepare else None
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        cupy.cuda.Device().synchronize()
        start.record()
        run(argument) if prepare else run()
        stop.record()
        stop.synchronize()
        samples.append(cupy.cuda.get_elapsed_time(start, stop) / 1e3)
        if i == 1 and min(samples) < SHORT:  # the first call may have compiled kernels
            warm_ups = SHORT_WARM_UPS
        done = len(samples) - warm_ups
        if done >= repeats or (done >= 1 and sum(samples) > PATIENCE):
            return sorted(samples[warm_ups:])


def backward_error(xp, a, x, b):
    """Return the largest ||b - A x|| / (||A|| ||x||) of a column, infinity norms; NaN if x is not finite."""
    if not bool(xp.isfinite(x).all()):
        return math.nan
    norm = max(float(xp.abs(a[i : i + 1024]).sum(axis=1).max()) for i in range(0, len(a), 1024))
    return float((xp.abs(b - a @ x).max(axis=0) / norm / xp.abs(x).max(axis=0)).max())


def outcome(solution):
    """Return one line on a `Solution`."""
    return (
        f"{solution.status.name.lower()}, {' -> '.join(solution.rungs)}, "
        f"backward error {np.max(solution.backward_error):.1e} (bound {solution.bound:.1e})"
    )


def summary(samples):
    """Return median and quartiles of sorted seconds."""
    return {
        "median": float(np.median(samples)),
        "quartiles": [float(q) for q in np.quantile(samples, [0.25, 0.75])],
        "samples": len(samples),
    }


def save(path, facts, rows):
    """Write a results file completely, or leave the old one."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")
    temporary.replace(path)
