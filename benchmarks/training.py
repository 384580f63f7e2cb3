"""What do FP32 and FP16 factors gain over FP64 in time and energy on the problems of a study of 2020?

    python benchmarks/training.py                        # on a GPU; no problem begins after --seconds
    python benchmarks/training.py --resume               # only missing rows, marked with this run's commit
    python benchmarks/training.py --emulated             # on a CPU: the steps of FP16 without tensor cores
    python benchmarks/training.py --device cpu --problem "type 4:200" poisson:225

The problems are those of A. Haidar et al., Proc. R. Soc. A 476 (2020), 20200110, and matrices of the
SuiteSparse collection.  A matrix that is not in the folder of the collection is left out.  Every answer is
checked before its time is taken.  The steps of cuSOLVER are those that its drivers count.

tcsolve has no LU in FP16 without tensor cores; that of the table is in `_fp16_plain.py`.  `--emulated` counts
the steps with such an LU for small n: a model on the CPU rounds the result of every operation to FP16.
"""

import json
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import _fp16_plain
import numpy as np
from _dense_problems import PROBLEMS, make
from _harness import (
    RESULTS,
    arguments,
    backward_error,
    device_seconds,
    gpu,
    host_seconds,
    machine,
    save,
    summary,
)
from _resumed import mark_of, of_later
from _training_emulated import EMULATED, lines, plans
from _training_published import beside

import tcsolve
from tcsolve import Plan, matrices
from tcsolve._study.energy import energy_of, measure_energy

# The problems whose results matter most come first, because the time may run out.
DEFAULTS = (
    *("poisson:32041", "boundary:16384", "covariance:16384"),
    *(f"type {i}:8192" for i in range(1, 7)),
    *("type 4:34000", "type 2:34000"),
    *(f"type {i}:{n}" for n in (2048, 16384) for i in range(1, 7)),
)
MATRICES = ("cage10", "memplus", "dw4096", "ex40")
STEPS = {"method": "fgmres", "fallback": False, "max_steps": 200}
OURS = {
    "FP64": Plan("fp64"),
    "FP32": Plan("fp32", **STEPS),
    "FP16 on tensor cores": Plan("fp16", **STEPS),
    "three FP16 products": Plan("fp16x3", **STEPS),
}
PLAIN = "FP16 without tensor cores"
WITH_ENERGY = (*OURS, PLAIN)
CUSOLVER = {"cuSOLVER FP32": "ds", "cuSOLVER FP16": "dh", "cuSOLVER TF32": "dx"}
LARGEST_FOR_CUSOLVER = 46340  # for larger n its 32-bit n * n overflows


class Solver(NamedTuple):
    """count(a, b) returns (x, steps); run(a, b) solves too, and its time is taken."""

    count: Callable
    run: Callable


def name_of(word):
    """Return the name of the problem that `--problem` calls `word`."""
    kind, _, n = word.partition(":")
    if kind not in PROBLEMS or not n.isdigit():
        raise SystemExit(f"--problem {word!r}: write name:n with one of {', '.join(PROBLEMS)}")
    return f"{kind} n={n}"


def problems_of(words, names, folder):
    """Yield (name, make); make(xp) returns (A, condition number or None, a description of this number)."""
    for word in words:
        name, (kind, _, n) = name_of(word), word.partition(":")
        yield name, lambda xp, kind=kind, n=int(n): make(xp, kind, n)
    for name in names:

        def load(xp, name=name):
            problem = matrices.load(name, folder=folder)
            return xp.asarray(problem.a, dtype=float), problem.cond, "given by the collection"

        yield name, load


def solvers(on_device, n):
    """Return {name: Solver}."""
    found = {name: ours(plan) for name, plan in OURS.items()}
    if on_device:
        found[PLAIN] = Solver(_fp16_plain.solve, _fp16_plain.solve)
    if on_device and n <= LARGEST_FOR_CUSOLVER:
        from solve import vendor

        found |= {name: by_vendor(vendor(letters)) for name, letters in CUSOLVER.items()}
    return found


def ours(plan):
    """Return the `Solver` of a plan; its time includes a condition estimate unless A is dominant."""
    how = {"precision": plan, "assume_a": "general"}

    def count(a, b):
        found = tcsolve.solve_ex(a, b, **how)
        return found.x, int(np.max(found.iterations))

    return Solver(count, lambda a, b: tcsolve.solve(a, b, **how))


def by_vendor(run):
    """Return the `Solver` of cuSOLVER, which overwrites a Fortran-ordered A."""

    def solve(a, b):
        return run((a.copy(order="F"), b.copy()))

    return Solver(solve, solve)


def solvers_for(options, n):
    """Return {name: Solver} for the options of a run."""
    if options.emulated:
        return {name: ours(plan) for name, plan in plans(STEPS).items()}
    return solvers(options.device == "cuda", n)


def rows_of(xp, name, a, facts, options, done=()):
    """Yield a row for each solver that is not in `done`; with `--emulated` a row has no time."""
    n = len(a)
    b = a @ xp.ones(n)
    timed = device_seconds if options.device == "cuda" else host_seconds
    for solver, solve in solvers_for(options, n).items():
        if solver in done:
            continue
        row = {"problem": name, "n": n, **facts, "solver": solver}
        try:
            x, steps = solve.count(a, b)
            error = backward_error(xp, a, x, b)
            row |= {"steps": steps, "backward_error": error, "bound": 2.0**-53 * n**0.5}
            row["solved"] = bool(error <= row["bound"]) and steps >= 0
            if row["solved"] and not options.emulated:
                row["seconds"] = summary(timed(lambda s=solve: s.run(a, b), options.repeats))
                if solver in OURS:
                    problem = SimpleNamespace(a=a, b=b, n=n)
                    row |= measure_energy(problem, OURS[solver], options.device)
                elif solver == PLAIN:
                    call = lambda s=solve: float(s.run(a, b)[0][0])  # noqa: E731
                    row |= energy_of(lambda call=call: call, 2 / 3 * n**3, options.device)
        except Exception as reason:  # a solver that fails is a result, too
            row |= {"solved": False, "error": f"{type(reason).__name__}: {reason}"}
        yield row


def measure(options, path, facts, rows, mark):
    """Append the rows of the missing problems, each with the entries of `mark`, until the time is over.

    Return the names of the problems for which no time was left.
    """
    xp, end, late = np, time.monotonic() + options.seconds, []
    if options.device == "cuda":
        import cupy as xp
    for name, made in problems_of(options.problem, options.matrix, options.folder):
        for row in [row for row in rows if row["problem"] == name and lacks_energy(row)]:
            rows.remove(row)
        here = [row for row in rows if row["problem"] == name]
        done = {row["solver"] for row in here}
        if here and done >= set(solvers_for(options, here[0]["n"])):
            set_condition(xp, here, made)
            continue
        if time.monotonic() > end:
            late.append(name)
            continue
        try:
            a, kappa, what = made(xp)
        except FileNotFoundError as reason:
            print(f"{name} is left out: {reason}", file=sys.stderr)
            continue
        facts_of_a = {"kappa": kappa, "kappa_is": what} if kappa else estimated(xp, a)
        for row in rows_of(xp, name, a, facts_of_a, options, done):
            rows.append(row | mark)
            print(line(row), flush=True)
            save(path, facts, rows)
        del a
        if options.device == "cuda":
            xp.get_default_memory_pool().free_all_blocks()
    return late


def lacks_energy(row):
    """Tell whether a row has a time but no entry 'energy', which a new run of its solver would have."""
    return row["solver"] in WITH_ENERGY and "seconds" in row and "energy" not in row


def estimated(xp, a):
    """Return an estimate of the condition number in the 1-norm, from FP64 factors."""
    rcond = tcsolve.solve_ex(a, xp.ones(len(a)), precision="fp64").rcond
    return {"kappa": 1 / rcond, "kappa_is": "1-norm, estimated"}


def set_condition(xp, rows, made):
    """Estimate the condition number of the problem of some rows, if it is not known."""
    if rows[0].get("kappa", 0) is None:
        facts = estimated(xp, made(xp)[0])
        for row in rows:
            row |= facts


def line(row):
    if "error" in row:
        return f"{row['problem']:18} {row['solver']:22} {row['error']}"
    taken = f"{row['seconds']['median']:9.4f} s" if "seconds" in row else ""
    told = (
        f"{row['problem']:18} {row['solver']:22} {row['steps']:4} steps {row['backward_error']:.1e}"
    )
    return f"{told} {taken}" + ("" if row["solved"] else "  NOT SOLVED")


def in_order(rows):
    """Return the rows in the order of the default problems; those of other problems come last."""
    known = [*map(name_of, DEFAULTS), *MATRICES]
    place = {name: i for i, name in enumerate(known)}
    return sorted(rows, key=lambda row: place.get(row["problem"], len(known)))


def column(solver):
    """Return the place of the column of a solver; those of others come last."""
    known = [*OURS, PLAIN, *CUSOLVER]
    return known.index(solver) if solver in known else len(known)


def page(facts, rows, emulated=(None, ())):
    """Return the page: one line for each problem; `emulated` are the facts and rows of `--emulated`."""
    rows = in_order(rows)
    names = sorted(dict.fromkeys(row["solver"] for row in rows), key=column)
    others = [name for name in names if name != "FP64"]
    told = [
        "# Time and energy of FP64 answers by precision",
        "",
        "FP64: seconds. Other columns: steps, seconds, and speed-up over our FP64; a dash: not solved to the "
        "bound, or not run. In brackets: the steps of a solve by cuSOLVER that it calls successful, although "
        "x misses the bound.",
        "",
        *of_plain(names),
        *of_types(rows),
        "| problem | n | kappa | FP64 | " + " | ".join(others) + " |",
        "| --- " * (4 + len(others)) + "|",
    ]
    problems = dict.fromkeys(row["problem"] for row in rows)
    for problem in problems:
        here = {row["solver"]: row for row in rows if row["problem"] == problem}
        first = next(iter(here.values()))
        kappa = "unknown" if first["kappa"] is None else f"{first['kappa']:.1e}"
        base = here.get("FP64", {}).get("seconds", {}).get("median")
        cells = [cell(here.get(name), base) for name in others]
        time_of = "–" if base is None else f"{base:.4f}"
        told.append(" | ".join([f"| {problem}", str(first["n"]), kappa, time_of, *cells]) + " |")
    told += ["", *energy(rows, problems), *beside(rows)]
    told += lines(*emulated)
    told.append(
        f"Measured with `benchmarks/training.py` on {facts.get('gpu', facts['cpu'])}; commit "
        f"{facts['commit']}, {facts['date']}.{of_later(rows)}"
    )
    return "\n".join(told) + "\n"


def of_plain(names):
    """Return the lines about FP16 without tensor cores, if it has a column."""
    if PLAIN not in names:
        return []
    return [
        f"'{PLAIN}' is no solver of tcsolve. Its LU stores the matrix in FP16. Each product of an update is "
        "added to its sum with one rounding to FP16, by a kernel of the benchmarks; the panels and the "
        "triangular solves are in FP32, by cuSOLVER and cuBLAS. FGMRES refines x.",
        "",
    ]


def of_types(rows):
    """Return the lines about the types, if a problem has one."""
    if not any(row["problem"].startswith("type ") for row in rows):
        return []
    return [
        "Types 1 to 6 are those of the study of 2020 of A. Haidar et al. Type 1 is diagonally dominant. The "
        "others have given singular values: log-uniform (2), clustered (3 and 4) or arithmetic (5 and 6). "
        "Types 2, 3 and 5 are positive definite; types 4 and 6 are not.",
        "",
    ]


def cell(row, base):
    """Return steps, seconds and speed-up as text."""
    if row is None or not row["solved"]:
        missed = row is not None and row["solver"] in CUSOLVER and row.get("steps", -1) >= 0
        return f"({row['steps']})" if missed else "–"
    median = row["seconds"]["median"]
    gain = "" if base is None else f", {base / median:.2f}x"
    return f"{row['steps']}, {median:.4f}{gain}"


def energy(rows, problems):
    """Return the lines about the energy."""
    known = [row for row in rows if "joules" in row]
    if not known:
        reasons = sorted({row["energy"] for row in rows if "energy" in row})
        return [f"Energy: {'; '.join(reasons) or 'not measured'}.", ""]
    names = [name for name in WITH_ENERGY if any(row["solver"] == name for row in known)]
    lines = [
        "## Energy",
        "",
        "Joules of a solve, and gigaflops per watt, for 2/3 n^3 operations.  The energy of cuSOLVER's "
        "solvers was not measured.",
        "",
    ]
    lines += ["| problem | " + " | ".join(names) + " |", "| --- " * (1 + len(names)) + "|"]
    for problem in problems:
        here = {row["solver"]: row for row in known if row["problem"] == problem}
        cells = [
            f"{here[name]['joules']:.3g} J, {here[name]['gflops_per_watt']:.3g}"
            if name in here
            else "–"
            for name in names
        ]
        lines.append(f"| {problem} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def read_options():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument(
        "--problem", nargs="*", help="name:n; default, without --matrix: those of the page"
    )
    parser.add_argument(
        "--matrix", nargs="*", help="names; default, without --problem: those of the page"
    )
    parser.add_argument("--folder", help="folder of the collection; by default TCSOLVE_MATRICES")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--emulated", action="store_true", help="steps by models on the CPU")
    parser.add_argument(
        "--seconds", type=float, default=120, help="begin no problem after this time"
    )
    parser.add_argument("--resume", action="store_true", help="keep the rows of the file")
    parser.add_argument("--draw", action="store_true", help="only rewrite the page from the JSON")
    parser.set_defaults(json=RESULTS / "training.json", repeats=3)
    options = parser.parse_args()
    if options.problem is options.matrix is None:
        options.problem = EMULATED if options.emulated else DEFAULTS
        options.matrix = () if options.emulated else MATRICES
    options.problem, options.matrix = options.problem or (), options.matrix or ()
    if options.emulated:
        options.device, options.seconds = "cpu", float("inf")
    return options


def read(path):
    """Return (facts, rows) of a results file; (None, []) if there is none."""
    found = json.loads(path.read_text()) if path.exists() else {}
    return found.get("machine"), found.get("rows", [])


def run(options, path):
    """Measure what is missing in the file `path`, or everything.

    Return the problems for which no time was left.
    """
    facts, rows = read(path) if options.resume else (None, [])
    now = machine(options.commit) | (gpu() if options.device == "cuda" else {})
    facts = facts or now
    late = measure(options, path, facts, rows, mark_of(facts, now))
    save(path, facts, rows)
    return late


def main():
    options, late = read_options(), []
    models = options.json.with_name(f"{options.json.stem}_emulated.json")
    if not options.draw:
        late = run(options, models if options.emulated else options.json)
    facts, rows = read(options.json)
    if facts:
        options.json.with_suffix(".md").write_text(page(facts, rows, read(models)))
    if late:
        print(f"no time was left for {', '.join(late)}; --resume does them")


if __name__ == "__main__":
    main()
