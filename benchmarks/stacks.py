"""How long do stacks of small systems take on the GPU, compared with CuPy, torch and a copy of the matrices?

    python benchmarks/stacks.py --json benchmarks/results/stacks.json    # the table and the picture
    python benchmarks/stacks.py --chars fDF --json benchmarks/results/stacks_types.json    # FP32 and complex
    python benchmarks/stacks.py --only 64                                # one size
    python benchmarks/stacks.py --draw --json benchmarks/results/stacks.json    # the page from the JSON again

Wall clock of `tcsolve.solve` of CuPy arrays.  The peers are torch.linalg.solve, cupy.linalg.solve and torch's
lu_factor with lu_solve; for positive definite matrices (in FP64 only), the only peer is torch's cholesky with
cholesky_solve.  Times are medians with a synchronised device, from the fourth call on; every answer is
checked before it is timed.  *Aim* is what we want to reach.

*Of copy speed* is the bytes of A, b and x over the time between CUDA events, divided by the bytes per second
of a copy of an array.  For this column one call solves up to 10 copies of the stack, together at most 8 GiB,
so that the time of the launch hardly counts.
"""

import math
import sys
from typing import NamedTuple

import numpy as np
from _figures import by, figure, finish, load, ticks, try_to_draw
from _harness import arguments, gpu, machine, save, summary, unless_drawn
from roads import error_of, free_memory, wall_seconds
from tables import source, table

SIZES = (
    *((4, 500_000), (8, 200_000), (16, 65536), (24, 40000), (32, 32768), (48, 16384), (64, 8192)),
    *((96, 4096), (128, 2048), (192, 1024), (256, 512), (512, 128), (1024, 32)),
)
# The largest n for FP32 and complex matrices.  Between two events, up to MORE copies of a stack are solved as
# one stack, of at most MOST_BYTES bytes.
MOST_OTHER, MORE, MOST_BYTES = 128, 10, 8 << 30
# The ratios to the fastest peer, and the fractions of the copy speed, that are aimed at.
AIMS = {
    "general": (10, 8, 7, 6, 6, 10, 10, 8, 6, 5, 4, 3, 3),
    "positive definite": (8, 8, 10, 8, 8, 10, 10, 6, 5, 4, 3, 2, 1.5),
}
FRACTIONS = (0.4, 0.45, 0.45, 0.4, 0.35, 0.25, 0.25)
NAMES = {"d": "FP64", "f": "FP32", "D": "complex128", "F": "complex64"}
WRONG = {"d": 1e-12, "D": 1e-12, "f": 1e-4, "F": 1e-4}


class Case(NamedTuple):
    """Kind, dtype char, unknowns and number of the systems."""

    kind: str
    char: str
    n: int
    count: int


def cases():
    """Yield the `Case` of every row."""
    for char in "dfDF":
        for kind in ("general", "positive definite") if char == "d" else ("general",):
            for n, count in SIZES:
                if char == "d" or n <= MOST_OTHER:
                    yield Case(kind, char, n, count if char in "df" else count // 2)


def system(case):
    """Return (a, b) on the device."""
    import cupy

    rng, real = cupy.random.default_rng(case.n), case.char.lower()

    def normal(*shape):
        v = rng.standard_normal(shape, real)
        return v if case.char == real else v + 1j * rng.standard_normal(shape, real)

    a = normal(case.count, case.n, case.n)
    if case.kind == "positive definite":
        # The eigenvalues are about between 1 / 2 and 5 / 2.  For small n they vary more, so 3 / 2 more is
        # added.
        a += cupy.swapaxes(a, 1, 2)
        a /= 2 * math.sqrt(2 * case.n)
        a += (3.0 if case.n <= 64 else 1.5) * cupy.eye(case.n, dtype=case.char)
    return a, normal(case.count, case.n, 1)


def peers(case, a, b):
    """Yield (name, call) of each peer; a call returns x as a CuPy array."""
    import cupy
    import torch

    ta, tb = torch.from_dlpack(a), torch.from_dlpack(b)
    if case.kind == "general":
        calls = {
            "torch.linalg.solve": lambda: torch.linalg.solve(ta, tb),
            "torch lu_factor, lu_solve": lambda: torch.linalg.lu_solve(
                *torch.linalg.lu_factor(ta), tb
            ),
        }
        yield "cupy.linalg.solve", lambda: cupy.linalg.solve(a, b)
    else:
        calls = {"torch cholesky": lambda: torch.cholesky_solve(tb, torch.linalg.cholesky(ta))}
    for name, call in calls.items():

        def by_torch(call=call):
            x = call()
            torch.cuda.synchronize()
            return cupy.from_dlpack(x)

        yield name, by_torch


def event_seconds(call, repeats=9):
    """Return the median seconds of a call between CUDA events."""
    import cupy

    samples = []
    for i in range(repeats + 2):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        call()
        stop.record()
        stop.synchronize()
        if i > 1:
            samples.append(cupy.cuda.get_elapsed_time(start, stop) / 1e3)
    return float(np.median(samples))


def copy_speed():
    """Return the bytes per second that a copy of an array reads and writes."""
    import cupy

    x = cupy.empty(2**28)
    y = cupy.empty_like(x)
    return 2 * x.nbytes / event_seconds(lambda: cupy.copyto(y, x))


def measure(case, repeats, speed):
    """Return the row of a case."""
    import cupy

    import tcsolve

    a, b = system(case)
    row = case._asdict() | {"seconds": {}, "errors": {}}
    calls = {"tcsolve": lambda: tcsolve.solve(a, b, assume_a=case.kind)} | dict(peers(case, a, b))
    for name, call in calls.items():
        error = error_of(a, call(), b)
        if not error <= WRONG[case.char]:
            row["errors"][name] = f"backward error {error:.1e}"
            continue
        row["seconds"][name] = summary(wall_seconds(call, repeats))
    if "tcsolve" in row["errors"]:
        return row | {"event_seconds": math.nan, "fraction": math.nan}
    bytes_each = a[0].nbytes + 2 * b[0].nbytes
    more = max(1, min(MORE, MOST_BYTES // (case.count * bytes_each)))
    del calls
    a, b = (cupy.concatenate([v] * more) if more > 1 else v for v in (a, b))
    taken = event_seconds(lambda: tcsolve.solve(a, b, assume_a=case.kind))
    row["event_seconds"], row["fraction"] = taken / more, bytes_each * len(a) / taken / speed
    return row


def cells(row):
    """Return the cells of a row in the table."""
    at = [n for n, _ in SIZES].index(row["n"])
    ours = row["seconds"].get("tcsolve", {}).get("median", math.nan)
    others = {k: v["median"] for k, v in row["seconds"].items() if k != "tcsolve"}
    peer = min(others, key=others.get, default=None)
    aim = AIMS[row["kind"]][at] if row["char"] == "d" else 4
    fraction = (
        FRACTIONS[at]
        if row["char"] == "d" and row["kind"] == "general" and at < len(FRACTIONS)
        else None
    )
    return [
        f"{row['kind']}, {NAMES[row['char']]}",
        f"{row['n']} x {row['count']}",
        f"{1e3 * ours:.3f}",
        f"{1e3 * others[peer]:.3f} ({peer})" if peer else "none",
        f"{others[peer] / ours:.1f}" if peer else "",
        f"{aim:g}",
        f"{row['fraction']:.2f}",
        f"{fraction:g}" if fraction else "",
    ]


HEAD = [
    "systems",
    "n x count",
    "tcsolve, ms",
    "fastest peer, ms",
    "ratio",
    "aim",
    "of copy speed",
    "aim",
]


MARKS = {
    "tcsolve": ("o", "C0"),
    "cupy.linalg.solve": ("s", "C1"),
    "torch.linalg.solve": ("^", "C2"),
}
MARKS |= {"torch lu_factor, lu_solve": ("v", "C3"), "torch cholesky": ("D", "C4")}


def speeds(row, name):
    """Return the bytes per second of one solver in a row: those of A, b and x over its time."""
    size = np.dtype(row["char"]).itemsize * row["count"] * (row["n"] ** 2 + 2 * row["n"])
    return size / row["seconds"][name]["median"]


def draw(facts, rows, path):
    """Draw the bytes of A, b and x over the time of each solver, against n, and the speed of a copy."""
    rows = by(rows, char="d")
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    made, axes = figure("stacks in FP64, wall clock", "n", "A, b and x, TB/s", panels=len(kinds))
    for axis, kind in zip(axes, kinds, strict=False):
        for name, (mark, color) in MARKS.items():
            some = [row for row in by(rows, kind=kind) if name in row["seconds"]]
            if some:
                y = [speeds(row, name) / 1e12 for row in some]
                axis.loglog([row["n"] for row in some], y, marker=mark, color=color, label=name)
        axis.axhline(
            facts["copy_bytes_per_second"] / 1e12, color="k", ls="--", label="copy of an array"
        )
        ticks(axis, [n for n, _ in SIZES if n in (4, 8, 16, 32, 64, 128, 256, 512, 1024)])
        axis.set_title(kind)
    finish(made, axes, facts, path)


def page(facts, rows):
    """Return the page of the results."""
    has_fp64 = bool(by(rows, char="d"))
    options = "" if has_fp64 else " --chars fDF"
    name = "stacks" if has_fp64 else "stacks_types"
    command = f"python benchmarks/stacks.py{options} --json benchmarks/results/{name}.json"
    about = __doc__.partition("\n\nWall clock")[2]
    body = table(HEAD, map(cells, rows))
    picture = "![the speed of each solver against n](stacks.png)\n" if has_fp64 else ""
    head = f"# Stacks of small systems\n\n{source(facts, command)}\n\nWall clock{about}"
    return f"{head}\n{body}\n\n{picture}"


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--only", type=int, nargs="*", help="only these n")
    parser.add_argument("--chars", default="d", help="these dtypes")
    parser.set_defaults(json=None)
    options = unless_drawn(parser, page)
    if options is None:  # the page has been written
        path = parser.parse_args().json
        _draw_speeds(*load(path), path)
        return
    facts, rows = machine(options.commit) | gpu(), []
    facts["copy_bytes_per_second"] = speed = copy_speed()
    free_memory()
    for case in cases():
        if options.only and case.n not in options.only or case.char not in options.chars:
            continue
        rows.append(measure(case, options.repeats, speed))
        print(*cells(rows[-1]), *rows[-1]["errors"].items(), sep=" | ", flush=True)
        free_memory()
        save(options.json, facts, rows)
    if options.json:
        options.json.with_suffix(".md").write_text(page(facts, rows))
        _draw_speeds(facts, rows, options.json)


def _draw_speeds(facts, rows, path):
    """Draw the picture beside the JSON, if there are rows in FP64."""
    if by(rows, char="d"):
        try_to_draw(draw, facts, rows, path.with_suffix(".png"))


if __name__ == "__main__":
    sys.exit(main())
