"""How long does a solve of each kind of system take on the GPU, compared with CuPy and torch?

    python benchmarks/roads.py                # the whole table: some minutes
    python benchmarks/roads.py --quick        # a part of it, for development: less than a minute
    python benchmarks/roads.py --only stacks  # rows whose name contains a word
    python benchmarks/roads.py --draw         # the page from the JSON again; no GPU

`tcsolve.solve` of CuPy arrays: stacks, small systems, general, complex, symmetric, positive definite and
triangular ones, with one and with many right-hand sides.  The peers of triangular systems are
cupyx.scipy.linalg.solve_triangular and torch.linalg.solve_triangular.  The peers of all others are
cupy.linalg.solve and a call of torch: torch.linalg.cholesky with torch.cholesky_solve for positive definite
matrices, and torch.linalg.solve for the rest.  Every answer is checked before it is timed.  The solvers of a
row take turns of at least 5 ms.  Times are medians of wall clock with a synchronised device, from the fourth
call on, for at least 0.05 s.

A row that fails gives the reason, and the other rows are still measured.  A row that misses its limit is
measured once more at the end, because Python on the host is sometimes slow for seconds.  The second time
counts, and the page has both.
"""

import itertools
import math
import sys
import time
from typing import NamedTuple

import numpy as np
from _harness import RESULTS, arguments, gpu, machine, save, summary, unless_drawn
from tables import source, table

# Most and least seconds for the samples of one solver in one row, and the least number of samples; and the
# seconds of one turn.
PATIENCE, LEAST_SECONDS, LEAST_SAMPLES = 0.5, 0.05, 3
TURN_SECONDS = 0.005
# The largest backward error of a valid FP64 answer: of a peer, and of ours in units of u sqrt(max(n, 8)).
WRONG, MET = 1e-10, 4
# The allowed time relative to the fastest peer: for stacks and small n a factor, or some more seconds; for
# larger n another factor, and one for triangles.
LARGE, SMALL_FACTOR, SMALL_SECONDS, LARGE_FACTOR, TRIANGLE_FACTOR = 2048, 3.0, 2e-4, 1.3, 2.2

STACKS = (
    *((4, 500_000), (8, 200_000), (8, 100_000), (16, 100_000), (16, 65536), (24, 40000)),
    *((32, 32768), (32, 25000), (48, 16384), (64, 8192), (96, 4096), (128, 2048)),
    *((192, 1024), (256, 512), (512, 128), (1024, 32)),
)
# The sizes of the stacks of which dominant matrices are measured as well.
DOMINANT_STACKS = (4, 16, 64, 128, 256, 1024)
QUICK_STACKS = ((4, 500_000), (8, 100_000), (16, 65536), (32, 32768), (64, 8192), (256, 512))
SMALL_SIZES, LARGE_SIZES = (16, 64, 128, 256, 512, 1024), (2048, 4096, 8192, 16384)
QUICK_SMALL, QUICK_LARGE = (16, 64, 256, 512), (2048,)
# Largest n for which there are n right-hand sides: of general matrices, and of others.
MOST_GENERAL_SQUARE, MOST_SQUARE = 16384, 8192
ASSUMED = {
    "general": "general",
    "complex": "general",
    "symmetric": "symmetric",
    "positive definite": "positive definite",
    "triangular": "upper triangular",
}


class Case(NamedTuple):
    """One row: kind, family and size of the matrices, their number (0: no stack), right-hand sides."""

    kind: str
    family: str
    n: int
    count: int
    columns: int

    @property
    def name(self):
        what = f"stacks of {self.count}, " if self.count else ""
        return f"{what}{self.kind}, {self.family}"


def cases(quick):
    """Yield the `Case` of every row."""
    for kind in ("general", "positive definite"):
        for n, count in QUICK_STACKS if quick else STACKS:
            yield Case(kind, "gauss", n, count, 1)
            # With n = 4 some of half a million symmetric matrices are not definite.
            if n in DOMINANT_STACKS and (kind, n) != ("positive definite", 4):
                yield Case(kind, "gauss + n I", n, count, 1)
    kinds = tuple(ASSUMED)
    for kind, n in itertools.product(kinds, QUICK_SMALL if quick else SMALL_SIZES):
        yield Case(kind, "gauss", n, 0, 1)
        yield Case(kind, "gauss + n I", n, 0, 1)
    for kind, n in itertools.product(kinds, QUICK_LARGE if quick else LARGE_SIZES):
        most = MOST_GENERAL_SQUARE if kind == "general" else MOST_SQUARE
        for columns in (1, 16, 256, *([n] if n <= most else [])):
            yield Case(kind, "gauss", n, 0, columns)
    for kind, n in itertools.product(kinds, QUICK_LARGE if quick else LARGE_SIZES):
        for columns in (1, 16, 256):
            yield Case(kind, "gauss + n I", n, 0, columns)
    for kind, n in itertools.product(kinds[:2], QUICK_LARGE if quick else LARGE_SIZES):
        yield Case(kind, "condition 1e12", n, 0, 1)


def limit(case, fastest, product):
    """Return the allowed seconds, from the fastest peer and a product A X; None if any time is allowed."""
    if case.family == "condition 1e12":
        return None
    if case.count or case.n < LARGE:
        return max(SMALL_FACTOR * fastest, fastest + SMALL_SECONDS)
    if case.kind == "triangular":
        return TRIANGLE_FACTOR * fastest
    return LARGE_FACTOR * fastest + (product if case.columns == case.n else 0.0)


# ---- systems -----------------------------------------------------------------------------------


def system(case):
    """Return (a, b) on the device; `gauss` of a definite or triangular kind has a diagonal added."""
    import cupy

    rng = cupy.random.default_rng(case.n)
    shape = (case.count, case.n, case.n) if case.count else (case.n, case.n)

    def normal(shape):
        v = rng.standard_normal(shape)
        return v + 1j * rng.standard_normal(shape) if case.kind == "complex" else v

    a = ill_conditioned(cupy, normal, case.n) if case.family == "condition 1e12" else normal(shape)
    unit = cupy.eye(case.n)
    if case.kind in ("symmetric", "positive definite"):
        a = (a + cupy.swapaxes(a, -1, -2)) / 2
    if case.family == "gauss + n I":
        a += case.n * unit
    elif case.kind == "positive definite":
        # The eigenvalues are about between 1 / 2 and 5 / 2.  For small n they vary more, so the diagonal that
        # is added is larger.
        a = a / math.sqrt(2 * case.n) + (3 if case.n <= 64 else 1.5) * unit
    elif case.kind == "triangular":
        a = a / math.sqrt(case.n) + 2 * unit
    if case.kind == "triangular":
        a = cupy.triu(a)
    return a, normal((*shape[:-1], case.columns))


def ill_conditioned(xp, normal, n):
    """Return H diag(1 ... 1e-12) G for two reflections H and G."""
    d = 1e12 ** -xp.linspace(0, 1, n)
    u, v = (w / xp.linalg.norm(w) for w in (normal(n), normal(n)))
    a = xp.diag(d).astype(u.dtype)
    a -= 2 * xp.outer(u, u.conj() @ a)
    a -= 2 * xp.outer(a @ v, v.conj())
    return a


def error_of(a, x, b):
    """Return the largest ||b - A x|| / (||A|| ||x||) of all matrices and columns; NaN if x is not finite."""
    import cupy

    if not bool(cupy.isfinite(x).all()):
        return math.nan
    rest = cupy.abs(b - a @ x).max(axis=-2)
    norm = cupy.abs(a).sum(axis=-1).max(axis=-1)
    return float((rest / norm[..., None] / cupy.abs(x).max(axis=-2)).max())


# ---- solvers -----------------------------------------------------------------------------------


def ours(case, a, b):
    import tcsolve

    return lambda: tcsolve.solve(a, b, assume_a=ASSUMED[case.kind])


def peers(case, a, b):
    """Yield (name, call) of each peer; a call returns x as a CuPy array."""
    import cupy

    if case.kind == "triangular":
        from cupyx.scipy.linalg import solve_triangular

        yield "cupyx solve_triangular", lambda: solve_triangular(a, b, lower=False)
    else:
        yield "cupy.linalg.solve", lambda: cupy.linalg.solve(a, b)
    try:
        import torch
    except ImportError:
        return
    ta, tb = torch.from_dlpack(a), torch.from_dlpack(b)
    calls = {
        "triangular": lambda: torch.linalg.solve_triangular(ta, tb, upper=True),
        "positive definite": lambda: torch.cholesky_solve(tb, torch.linalg.cholesky(ta)),
    }
    call = calls.get(case.kind, lambda: torch.linalg.solve(ta, tb))

    def by_torch():
        x = call()
        torch.cuda.synchronize()
        return cupy.from_dlpack(x)

    yield "torch", by_torch


def free_memory():
    """Free the memory of the last row."""
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    if torch := sys.modules.get("torch"):
        torch.cuda.empty_cache()


def in_turns(calls, repeats):
    """Return the sorted seconds of each call from the third on, the device idle before and after it.

    The calls take turns of a few samples, so that a host that is slow for a while slows all of them.
    """
    import cupy

    samples, device = [[] for _ in calls], cupy.cuda.Device()
    for call in calls:
        call()
        call()
    device.synchronize()
    while any(needs_more(found, repeats) for found in samples):
        for call, found in zip(calls, samples, strict=True):
            end = time.perf_counter() + TURN_SECONDS
            while (start := time.perf_counter()) < end:
                call()
                device.synchronize()
                found.append(time.perf_counter() - start)
    return [sorted(found) for found in samples]


def needs_more(samples, repeats):
    """Tell whether there are too few samples."""
    spent = sum(samples)
    is_short = len(samples) < LEAST_SAMPLES or spent < LEAST_SECONDS
    return is_short or (len(samples) < repeats and spent < PATIENCE)


def wall_seconds(call, repeats):
    """Return the sorted seconds of one call, as `in_turns` does."""
    return in_turns([call], repeats)[0]


def checked(call, a, b, bound):
    """Return the error of the answer of a solver, or its failure."""
    try:
        error = error_of(a, call(), b)
    except Exception as error:  # the other solvers go on
        return {"error": f"{type(error).__name__}: {error}"}
    return (
        {"backward_error": error}
        if error <= bound
        else {"error": f"backward error {error:.1e}, not timed"}
    )


def measure(case, repeats):
    """Return the row of a case."""
    row, (a, b) = {**case._asdict(), "name": case.name}, system(case)
    solvers = {**dict(peers(case, a, b)), "tcsolve": ours(case, a, b)}
    bounds = dict.fromkeys(solvers, WRONG)
    bounds["tcsolve"] = MET * 2.0**-53 * math.sqrt(max(case.n, 8))
    found = {name: checked(call, a, b, bounds[name]) for name, call in solvers.items()}
    good = [name for name in solvers if "error" not in found[name]]
    times = in_turns([solvers[name] for name in good], repeats)
    for name, seconds in zip(good, times, strict=True):
        found[name] |= summary(seconds)
    row |= {"tcsolve": found.pop("tcsolve"), "peers": found}
    timed = {name: peer["median"] for name, peer in found.items() if "median" in peer}
    if timed:
        fastest = min(timed, key=timed.get)
        square = case.columns == case.n >= LARGE
        product = float(np.median(wall_seconds(lambda: a @ b, repeats))) if square else 0.0
        row |= {"fastest": fastest, "limit": limit(case, timed[fastest], product)}
    return row


def row_of(case, repeats):
    """Return the row of a case; if it fails, the row has the reason."""
    try:
        return measure(case, repeats)
    except Exception as error:  # such as too little memory for the system itself
        failed = {"error": f"{type(error).__name__}: {error}"}
        return {**case._asdict(), "name": case.name, "peers": {}, "tcsolve": failed}
    finally:
        free_memory()


def again(row, repeats):
    """Return a new row in place of one that missed its limit; it has the first time and limit too."""
    case = Case(*(row[name] for name in Case._fields))
    return row_of(case, repeats) | {"first": (row["tcsolve"]["median"], row["limit"])}


def verdict(row):
    """Return 'ok', 'MISSED', '-' if any time is allowed, 'no peer', or the failure."""
    if "median" not in row["tcsolve"]:
        return "FAILED: " + row["tcsolve"]["error"]
    if "fastest" not in row:
        return "no peer"
    if row["limit"] is None:
        return "-"
    return "ok" if row["tcsolve"]["median"] <= row["limit"] else "MISSED"


# ---- writing -----------------------------------------------------------------------------------

HEAD = ("system", "n", "right-hand sides", "tcsolve, ms", "fastest peer, ms", "which")
HEAD += ("peer / tcsolve", "limit, ms", "")


def cells(row):
    """Return the cells of a row."""
    mine = row["tcsolve"].get("median")
    peer = row["peers"][row["fastest"]]["median"] if "fastest" in row else None
    times = [f"{1e3 * v:.3g}" if v is not None else "-" for v in (mine, peer, row.get("limit"))]
    ratio = f"{peer / mine:.2f}" if mine and peer else "-"
    which = row.get("fastest", "-")
    what = row["name"], row["n"], row["columns"]
    return [*what, *times[:2], which, ratio, times[2], verdict(row)]


def page(facts, rows):
    """Return the Markdown page of the rows."""
    kept = sum(verdict(row) == "ok" for row in rows)
    asked = sum(verdict(row) != "-" for row in rows)
    text = (
        "# Every kind of system on a GPU\n\nThe wall clock of `tcsolve.solve` with CuPy arrays, including "
        "the verification, and that of the faster peer: CuPy or torch, which do not verify.  *limit* is the "
        f"allowed time.  For stacks, and for n < {LARGE}, it is {SMALL_FACTOR:g} times the time of the peer, "
        f"or {1e3 * SMALL_SECONDS:g} ms more, whichever is longer.  For larger n it is {LARGE_FACTOR:g} "
        "times the time of the peer; if there are n right-hand sides, the time of one product A X is added.  "
        f"For triangles of this size it is {TRIANGLE_FACTOR:g} times, because verifying costs as much as "
        f"solving.  Rows of condition 1e12 have no limit.  {kept} of {asked} rows are ok."
    )
    first = [
        f"{row['name']}, n = {row['n']}, {row['columns']} right-hand sides: "
        f"{1e3 * row['first'][0]:.3g} of {1e3 * row['first'][1]:.3g} ms"
        for row in rows
        if "first" in row
    ]
    if first:
        text += (
            "  Rows that missed their limit were measured once more at the end, because Python on the host "
            f"is sometimes slow for seconds; the second time counts.  The first times: {'; '.join(first)}."
        )
    left = sum(1 for _ in cases(False)) - len(rows)
    if left > 0:
        text += f"  Rows that are not measured, because the run ended: {left}."
    body = table(HEAD, [cells(row) for row in rows])
    return "\n\n".join([text, body, source(facts, "benchmarks/roads.py")]) + "\n"


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a part of the table")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.set_defaults(json=RESULTS / "roads.json", repeats=11)
    options = unless_drawn(parser, page)
    if options is None:
        return
    is_kept = not (options.quick or options.only)
    facts, rows, began = machine(options.commit) | gpu(), [], time.perf_counter()
    for case in cases(options.quick):
        if options.only not in case.name:
            continue
        rows.append(row_of(case, options.repeats))
        print(f"{time.perf_counter() - began:6.1f} s ", *cells(rows[-1]), sep="  ", flush=True)
        if is_kept:
            save(options.json, facts, rows)
    for i, row in enumerate(rows):
        if verdict(row) == "MISSED":
            rows[i] = again(row, options.repeats)
            print("again:", *cells(rows[i]), sep="  ", flush=True)
    if is_kept:
        save(options.json, facts, rows)
    missed = [row for row in rows if verdict(row) not in ("ok", "-")]
    print(f"{len(rows)} rows, {len(missed)} not ok:")
    for row in missed:
        print("   ", *cells(row), sep="  ")
    if is_kept:
        options.json.with_suffix(".md").write_text(page(facts, rows))


if __name__ == "__main__":
    main()
