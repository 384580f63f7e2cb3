"""Does precision='auto' choose well: how long does every fixed precision take on each family of matrices?

    python benchmarks/rungs.py --n 8192 16384
    python benchmarks/rungs.py --n 8192 --precision auto fp16 bf16 tf32 fp16x3 fp32 fp64
    python benchmarks/rungs.py --draw                    # the table from the JSON again; no GPU

The matrix and one right-hand side are FP64 on the device.  All solvers of a family and size solve the same
system.  All families with prescribed singular values have the same singular vectors.  A fixed precision that
stalls continues with the next rungs, as for any caller, and the table lists the rungs.  The backward error is
recomputed and listed; an x that is not finite has no time.
"""

import functools
import math

import numpy as np
from _harness import (
    RESULTS,
    arguments,
    backward_error,
    device_seconds,
    gpu,
    machine,
    save,
    summary,
    unless_drawn,
)
from tables import source, table

# The name of an svd family contains its spectrum and its condition number.
FAMILIES = (
    "gauss",
    "gauss_dominant",
    "svd_geo 1e2",
    "svd_geo 1e4",
    "svd_geo 1e6",
    "svd_arith 1e6",
    "svd_cluster1 1e4",
    "uniform",
)
PEERS = ("cupy.linalg.solve", "torch.linalg.solve")
# For n >= LARGE, at most LARGE_REPEATS samples are taken.
LARGE, LARGE_REPEATS = 16384, 3


# ---- matrices ----------------------------------------------------------------------------------


def spectrum(kind, n, cond):
    """Return n singular values from 1 to 1/cond, as tcsolve.matrices defines them."""
    if kind == "geo":
        return cond ** -np.linspace(0, 1, n)
    if kind == "arith":
        return 1 - np.linspace(0, 1, n) * (1 - 1 / cond)
    assert kind == "cluster1", kind
    values = np.ones(n)
    values[-1] = 1 / cond
    return values


@functools.lru_cache(maxsize=1)
def singular_vectors(n, seed=7):
    """Return two random orthogonal matrices on the device, kept until another n is asked for."""
    import cupy

    rng = cupy.random.default_rng(seed)
    return tuple(cupy.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))


def matrix(family, n, seed=7):
    """Return an FP64 matrix of the family on the device."""
    import cupy
    import solve

    if family.startswith("svd_"):
        u, v = singular_vectors(n, seed)
        kind, cond = family.removeprefix("svd_").split()
        return (u * cupy.asarray(spectrum(kind, n, float(cond)))) @ v
    if family == "uniform":  # on [0, 1), so that one singular value is far above the others
        return cupy.random.default_rng(seed).random((n, n))
    return solve.matrix(family, n, seed)


# ---- measuring ---------------------------------------------------------------------------------


def solvers(a, b, precisions):
    """Yield (name, run); run returns (x, facts)."""
    import cupy

    import tcsolve

    def ours(precision):
        def run():
            solution = tcsolve.solve_ex(a, b, precision=precision, assume_a="general")
            assert solution.status.ok, solution
            return solution.x, {
                "steps": int(solution.iterations.max()),
                "rungs": list(solution.rungs),
                "phases": solution.seconds,
            }

        return run

    for precision in precisions:
        yield precision, ours(precision)
    yield "cupy.linalg.solve", lambda: (cupy.linalg.solve(a, b), {})
    try:
        import torch
    except ImportError:
        return
    ta, tb = torch.from_dlpack(a), torch.from_dlpack(b)

    def by_torch():
        x = torch.linalg.solve(ta, tb)
        torch.cuda.synchronize()
        return cupy.from_dlpack(x), {}

    yield "torch.linalg.solve", by_torch


def measure(a, b, run, repeats):
    """Return the time of a solver, or its failure; an x that is not finite is a failure."""
    import cupy

    try:
        x, facts = run()
        error = backward_error(cupy, a, x, b)
        del x
        if math.isnan(error):
            return {"error": "x is not finite"}
        return {"backward_error": error, **facts, "seconds": summary(device_seconds(run, repeats))}
    except Exception as error:  # a solver that fails is a result, too
        return {"error": f"{type(error).__name__}: {error}"[:500]}


# ---- writing -----------------------------------------------------------------------------------


def cases(rows):
    """Return {(family, n): {solver: row}} in the order of the rows."""
    found = {}
    for row in rows:
        found.setdefault((row["family"], row["n"]), {})[row["solver"]] = row
    return found


def verdict(here):
    """Return the fastest fixed precision, and two quotients of times: auto / this one, cupy / auto.

    NaN stands for a solver that was not timed.
    """
    median = {name: row["seconds"]["median"] for name, row in here.items() if "seconds" in row}
    fixed = {name: value for name, value in median.items() if name not in ("auto", *PEERS)}
    best = min(fixed, key=fixed.get) if fixed else "-"
    auto = median.get("auto", math.nan)
    return best, auto / fixed.get(best, math.nan), median.get("cupy.linalg.solve", math.nan) / auto


def line(row):
    """Return the printed line of a row."""
    head = f"{row['family']:17} {row['n']:6} {row['solver']:18}"
    if "error" in row:
        return f"{head} failed: {row['error'][:300]}"
    told = f"{row['steps']} steps {'>'.join(row['rungs'])}" if "steps" in row else ""
    return (
        f"{head} {1e3 * row['seconds']['median']:9.2f} ms  backward error {row['backward_error']:.1e}"
        f" (bound {2.0**-53 * math.sqrt(row['n']):.1e})  {told}"
    )


def cell(row):
    """Return the table's cell of one solver: milliseconds, and of ours the rungs and steps."""
    if row is None:
        return "-"
    if "error" in row:
        return "fails"
    told = f" ({'>'.join(row['rungs'])}, {row['steps']})" if "steps" in row else ""
    return f"{1e3 * row['seconds']['median']:.1f}{told}"


def page(facts, rows):
    """Return the Markdown page of the rows."""
    found = cases(rows)
    names = list(dict.fromkeys(row["solver"] for row in rows))
    body = []
    for (family, n), here in found.items():
        best, ratio, speedup = verdict(here)
        errors = [
            here[name].get("backward_error")
            for name in ("auto", "cupy.linalg.solve")
            if name in here
        ]
        told = " / ".join("-" if error is None else f"{error:.0e}" for error in errors)
        body.append(
            [family, n, *(cell(here.get(name)) for name in names)]
            + [f"{ratio:.2f} ({best})", f"{speedup:.2f}", told]
        )
    head = [
        "family",
        "n",
        *names,
        "auto / best fixed",
        "cupy / auto",
        "backward error, auto / cupy",
    ]
    ratios = [verdict(here)[1] for here in found.values()]
    worst = (
        f"Worst auto / best fixed: {np.nanmax(ratios):.2f}." if np.isfinite(ratios).any() else ""
    )
    lines = ["# Every fixed precision compared with auto", ""]
    lines += ["Median times in ms, in brackets the rungs tried and the refinement steps. " + worst]
    lines += [""]
    return "\n".join([*lines, table(head, body), "", source(facts, "benchmarks/rungs.py")]) + "\n"


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, nargs="+", default=[8192, 16384])
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument(
        "--precision", nargs="+", default=["auto", "fp16", "fp16x3", "fp32", "fp64"]
    )
    parser.set_defaults(json=RESULTS / "rungs.json")
    options = unless_drawn(parser, page)
    if options is None:
        return
    import cupy

    facts, rows = machine(options.commit) | gpu(), []
    for n in options.n:
        repeats = options.repeats if n < LARGE else min(options.repeats, LARGE_REPEATS)
        for family in options.family:
            a = matrix(family, n)
            b = a @ cupy.ones(n)
            for name, run in solvers(a, b, options.precision):
                row = {"family": family, "n": n, "solver": name, **measure(a, b, run, repeats)}
                rows.append(row)
                print(line(row), flush=True)
                save(options.json, facts, rows)
            best, ratio, speedup = verdict(cases(rows)[family, n])
            print(
                f"{family:17} {n:6} auto / best fixed ({best}) {ratio:.2f}, cupy / auto {speedup:.2f}\n"
            )
            del a, b, run
            cupy.get_default_memory_pool().free_all_blocks()
    options.json.with_suffix(".md").write_text(page(facts, rows))
    print(page(facts, rows))


if __name__ == "__main__":
    main()
