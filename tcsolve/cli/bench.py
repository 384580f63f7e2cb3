"""The command `tcsolve bench`: how long `solve` takes here, compared with SciPy, NumPy, CuPy and torch."""

import datetime
import functools
import json
import math
import sys
import time
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from tcsolve._arrays import is_cupy
from tcsolve._backends import select
from tcsolve._errors import InputError
from tcsolve._hardware import cores, cpu_name
from tcsolve._solution import plain
from tcsolve._solve.api import solve, solve_ex
from tcsolve._study.versions import versions
from tcsolve.cli.messages import say, tell
from tcsolve.cli.output_files import STANDARD_OUTPUT, check_outputs, target, whole
from tcsolve.cli.progress_line import progress

__all__ = ["add_bench", "compared", "peers_on"]

SIZES = {"cpu": (16, 64, 200, 500, 1000, 2000, 4000), "cuda": (1024, 2048, 4096, 8192, 16384)}
# The largest backward error of a valid answer of another solver.
WRONG = 1e-10
# Number of calls that are not timed at the start of a turn, because the first calls of a size record graphs
# on a GPU.
WARM_UPS = {"cpu": 1, "cuda": 4}
# Number of turns of each solver, their length, and the part at the start that is not timed.
TURNS, TURN_SECONDS, SETTLING_SECONDS = 3, 0.25, 0.1
# Number of characters of the longest name of a rung.
WIDEST = 6


class Solver(NamedTuple):
    """A way to solve A x = b.

    Attributes
    ----------
    name : str
    call : callable
        call(a, b) returns x; a and b are results of `prepare`.
    prepare : callable
        Returns a given array in the type that the solver takes, in the same memory.
    """

    name: str
    call: Any
    prepare: Any = lambda x: x


def add_bench(commands, texts):
    """Add the parser of `tcsolve bench` to the commands."""
    parser = commands.add_parser(
        "bench",
        help="time tcsolve.solve on this machine, compared with SciPy, NumPy, CuPy and torch",
        **texts,
    )
    parser.set_defaults(run=_bench, output=None)
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        metavar="N",
        help="orders of the matrices; by default 16 to 4000 for NumPy arrays, and 1024 to 16384 for CuPy "
        "arrays",
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="cpu: NumPy arrays; cuda: CuPy arrays; auto, the default: both, if there is a GPU",
    )
    parser.add_argument(
        "--json",
        type=target,
        metavar="times.json",
        help="write the times as JSON; - writes them to standard output and the table to standard error",
    )
    parser.add_argument("--force", action="store_true", help="overwrite the file of --json")


def _bench(args):
    check_outputs(args)
    if args.sizes and min(args.sizes) < 1:
        raise InputError(f"--sizes has {min(args.sizes)}; the smallest matrix has n = 1")
    stream, rows = sys.stderr if args.json == STANDARD_OUTPUT else sys.stdout, []
    for device in _devices(args.device):
        rows += _measure(device, args.sizes or SIZES[device], stream)
    if args.json:
        with whole(args.json) as file:
            found = {"machine": _machine(), "rows": rows}
            file.write(json.dumps(plain(found), indent=1, allow_nan=False).encode() + b"\n")
    return 0 if all("seconds" in row["tcsolve"] for row in rows) else 1


def _devices(asked):
    if asked == "cuda":
        select.ops_on("cuda")  # raises an error that says why not
    if asked != "auto":
        return (asked,)
    return ("cpu", "cuda") if select.cuda_available() else ("cpu",)


def _machine():
    return {"date": datetime.date.today().isoformat(), "cpu": cpu_name(), "cores": cores()} | (
        {name: version for name, version in versions().items() if version}
    )


# ---- the table ---------------------------------------------------------------------------------


def _measure(device, sizes, stream):
    """Print the table of a device, row by row, and return its rows."""
    ours = Solver("tcsolve", functools.partial(solve, device=device))
    solvers = [ours, *peers_on(device)]
    head = ["n", "rung", *(f"{solver.name}, ms" for solver in solvers[1:]), "tcsolve, ms"]
    head.append("speed-up")
    tell(_line(head, head), stream)
    tell("|" + "|".join("-" * (_width(text) + 2) for text in head) + "|", stream)
    rows = []
    for n in sizes:
        with progress(f"timing n = {n} on {device}"):
            rows.append(_row(device, n, solvers))
        tell(_line(_cells(rows[-1], solvers), head), stream)
    tell("", stream)
    tell(_source(device), stream)
    return rows


def _row(device, n, solvers):
    """Return the times of all solvers for one matrix, and our speed-up over the fastest of the others."""
    row = {"device": device, "n": n}
    try:
        a, b = _system(device, n)
        row["rung"] = solve_ex(a, b, device=device).precision
        row |= compared(a, b, solvers, WARM_UPS[device])
    except MemoryError as error:
        row |= {solver.name: {"error": str(error) or "no memory"} for solver in solvers}
        say("warning", f"n = {n}: {error or 'no memory'}")
    times = {name: row[name]["seconds"] for name, *_ in solvers[1:] if "seconds" in row[name]}
    if times and "seconds" in row["tcsolve"]:
        row["speed_up"] = min(times.values()) / row["tcsolve"]["seconds"]
    for name, *_ in solvers:
        if "error" in row[name] and "rung" in row:
            say("warning", f"n = {n}: {name} is not timed: {row[name]['error']}")
    return row


def _cells(row, solvers):
    def time_of(name):
        seconds = row[name].get("seconds")
        return "fails" if seconds is None else f"{1e3 * seconds:.3g}"

    names = [solver.name for solver in solvers[1:]]
    speed_up = f"{row['speed_up']:.2f}" if "speed_up" in row else "-"
    return [
        *(str(row["n"]), row.get("rung", "-")),
        *(*map(time_of, names), time_of("tcsolve"), speed_up),
    ]


def _line(cells, head):
    """Return one line of a Markdown table."""
    padded = (cell.rjust(_width(text)) for cell, text in zip(cells, head, strict=True))
    return f"| {' | '.join(padded)} |"


def _width(text):
    return max(len(text), WIDEST)


def _source(device):
    found, where = versions(), f"{cpu_name()}, {cores()} cores"
    names = ["numpy", "scipy"]
    if device == "cuda":
        from cupy.cuda import Device, runtime

        where = runtime.getDeviceProperties(Device().id)["name"].decode()
        names = ["cupy"]
    if torch := sys.modules.get("torch"):
        found["torch"], names = torch.__version__, [*names, "torch"]
    used = ", ".join(f"{name} {found[name]}" for name in names)
    return (
        f"FP64, one right-hand side, medians; speed-up over the fastest other.\n"
        f"Measured with `tcsolve bench` on {where};\n"
        f"tcsolve {found['tcsolve']}, {used}; {datetime.date.today().isoformat()}."
    )


# ---- solvers and their times -------------------------------------------------------------------


def peers_on(device):
    """Return the other `Solver`s for NumPy arrays ('cpu') or CuPy arrays ('cuda')."""
    torch = _torch()
    if device == "cpu":
        peers = [Solver("scipy", scipy.linalg.solve), Solver("numpy", np.linalg.solve)]
        if torch:
            peers.append(Solver("torch", torch.linalg.solve, torch.from_numpy))
        return peers
    import cupy

    peers = [Solver("cupy", cupy.linalg.solve)]
    if torch and torch.cuda.is_available():
        peers.append(Solver("torch", torch.linalg.solve, torch.from_dlpack))
    return peers


def _torch():
    """Return torch if it is installed and can be loaded, else None."""
    try:
        import torch
    except (ImportError, OSError):  # OSError: a library that torch needs is missing
        return None
    return torch


def _system(device, n):
    """Return a matrix with standard normal entries, and b = A x for an x of ones."""
    xp = select.ops_on(device).xp
    a = xp.random.default_rng(7).standard_normal((n, n))
    return a, a.sum(axis=1)


def compared(a, b, solvers, warm_ups=1):
    """Check the answers of all solvers, then time the right ones; they take turns.

    Parameters
    ----------
    a : array, shape (n, n)
    b : array, shape (n,)
    solvers : sequence of Solver
    warm_ups : int
        Number of calls at the start of each turn that are not timed, if the turn has others.

    Returns
    -------
    dict of str to dict
        For each solver its 'backward_error' with the median 'seconds' and the number of 'samples', or the
        'error'.
    """
    found, calls = {}, {}
    bound = 2.0**-53 * math.sqrt(max(len(a), 4))
    for solver in solvers:
        given = solver.prepare(a), solver.prepare(b)
        try:
            error = _backward_error(a, solver.call(*given), b)
        except Exception as failure:  # the others are still timed
            found[solver.name] = {"error": " ".join(f"{type(failure).__name__}: {failure}".split())}
            continue
        # The residual that is measured here has rounding errors, too.
        if not error <= (2 * bound if solver.name == "tcsolve" else WRONG):
            found[solver.name] = {"error": f"its backward error is {error:.1e}"}
            continue
        found[solver.name] = {"backward_error": error}
        calls[solver.name] = lambda call=solver.call, given=given: call(*given)
    wait = a.device.synchronize if is_cupy(a) else lambda: None
    for name, samples in _samples(calls, warm_ups, wait).items():
        found[name] |= {"seconds": float(np.median(samples)), "samples": len(samples)}
    return found


def _samples(calls, warm_ups, wait):
    """Return {name: seconds}; solvers take turns, so that other work on the machine slows all of them."""
    samples = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            samples[name] += _turn(call, warm_ups, wait)
    return samples


def _turn(call, warm_ups, wait):
    """Return the seconds of the calls of one turn, without those at its start.

    At first, idle threads of the library that ran last may still occupy the cores.
    """
    found, start = [], time.perf_counter()
    while not found or time.perf_counter() - start < TURN_SECONDS:
        wait()
        before = time.perf_counter()
        call()
        wait()
        found.append((before - start, time.perf_counter() - before))
    settled = [seconds for began, seconds in found[warm_ups:] if began >= SETTLING_SECONDS]
    return settled or [found[-1][1]]


def _backward_error(a, x, b):
    """Return ||b - A x|| / (||A|| ||x||) in infinity norms; NaN if x is not finite."""
    xp = select.ops_for(a).xp
    x = xp.from_dlpack(x) if type(x) is not type(a) else x
    if not bool(xp.isfinite(x).all()):
        return math.nan
    norm = xp.abs(a).sum(axis=1).max() * xp.abs(x).max()
    return float(xp.abs(b - a @ x).max() / norm)
