"""How much time does each special path of the library save on the GPU, and how many lines of code has it?

    python benchmarks/ablation.py --seconds 230                       # everything, smaller sizes first
    python benchmarks/ablation.py --sizes 1024 4096 --paths gate look_ahead
    python benchmarks/ablation.py --draw                              # the page from the JSON again; no GPU

The paths of `tcsolve._paths` are switched off one at a time; paths that need another path are switched off
with it.  The full library and the one without the path are timed in turns, in one run, on the same matrices:
LU alone, and the whole `solve` of one FP64 right-hand side.  Wall clock with an idle device before and after,
medians, after warm-up.  Every answer is checked before it is timed.  The path 'nothing' switches nothing off:
what it seems to save is noise.

Some paths are also measured on what they exist for: the first calls of a size (recorded graphs), bytes
planned and used (exact memory).  A row is left out where the path cannot act.  When the time is up, the
remaining rows are left out too, and their number is kept.
"""

import contextlib
import functools
import itertools
import math
import time
import warnings

from _ablation_page import BYTES, CONTROL, LU, SOLVE, page
from _ablation_paths import DOMINANT, GAUSS, PATHS
from _code_lines import count
from _harness import (
    RESULTS,
    arguments,
    backward_error,
    gpu,
    machine,
    outcome,
    save,
    summary,
    unless_drawn,
)

SIZES = (1024, 2048, 4096, 8192, 16384, 32768)
# Turns of the two libraries: `--repeats` times this, as (largest n, factor).
TURNS = ((4096, 3), (8192, 2), (math.inf, 1))
# Number of calls after the check and before the first turn.  The check makes one call of an LU, or two of a
# solve.  For n above 8192, only the third call of a size records the graphs: the first remembers the size,
# and the second still launches each kernel alone.
WARM_UPS = 2
# Calls of a size after the cache was cleared.  Rounds: (largest n, rounds up to this n), rounds for larger n.
CALLS, MANY_ROUNDS, FEW_ROUNDS = 4, (8192, 5), 2
GRAPHS = ("small_graphs", "large_graphs")
# Numbers of right-hand sides of the rows of bytes.
RIGHT_HAND_SIDES = (1, 64)


# ---- systems -----------------------------------------------------------------------------------


class System:
    """A matrix and a right-hand side, and the calls that are timed."""

    def __init__(self, family, n):
        import cupy
        from rungs import matrix

        self.family, self.n = family, n
        self.a = matrix(family, n)
        self.b = self.a @ cupy.ones(n)
        self.how = {"assume_a": "general"}
        self._lu = None

    def checked(self, what):
        """Return the facts of an answer that is good, or raise a ValueError."""
        return self._checked_lu() if what == LU else self._checked_solve()

    def seconds(self, what):
        """Return the seconds of one call."""
        return self._lu_seconds() if what == LU else self._solve_seconds()

    def _solve(self):
        import tcsolve

        return tcsolve.solve(self.a, self.b, **self.how)

    def _checked_solve(self):
        import cupy

        import tcsolve

        solution = tcsolve.solve_ex(self.a, self.b, **self.how)
        error = backward_error(cupy, self.a, self._solve(), self.b)
        # Twice the bound: the residual that is recomputed here is rounded in another way.
        if not (solution.status.ok and error <= 2 * solution.bound):
            raise ValueError(f"{outcome(solution)}; recomputed backward error {error:.1e}")
        steps = int(solution.iterations.max())
        return {"error": error, "steps": steps, "rungs": list(solution.rungs)}

    def _solve_seconds(self):
        import cupy

        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        self._solve()
        cupy.cuda.Device().synchronize()
        return time.perf_counter() - start

    def factors_with(self, update):
        """Prepare to time the LU alone, with the update that the solve uses."""
        import lu

        self._lu, self._update = lu.Ours(self.a, update), update

    def _checked_lu(self):
        import cupy
        from lu import factor_error, limit

        factors = self._lu.factor(self._lu.copy())
        if factors.misled or factors.bad_pivot:
            raise ValueError("the factors are not good")
        error = factor_error(cupy, self.a, factors.order, factors.lu)
        if not error <= limit(self._update, self.n):
            raise ValueError(f"the factors have the error {error:.1e}")
        return {"error": error, "rungs": [self._update]}

    def _lu_seconds(self):
        import cupy

        w = self._lu.copy()  # as in a solve, in memory with recorded graphs if possible
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        factors = self._lu.factor(w)
        cupy.cuda.Device().synchronize()
        seconds = time.perf_counter() - start
        del factors, w
        return seconds


# ---- measuring ---------------------------------------------------------------------------------


def turns_of(n, repeats):
    """Return the number of turns: more for small n, where the time of the host varies much."""
    return repeats * next(factor for most, factor in TURNS if n <= most)


def in_turns(run, off, turns):
    """Return the seconds of run() with all paths, and those inside off(), one after the other in turns."""
    full, less = [], []
    for _ in range(turns):
        full.append(run())
        with off():
            less.append(run())
    return full, less


def names_of(name, what, system):
    """Return what identifies a row."""
    return {"path": name, "what": what, "family": system.family, "n": system.n}


def failure(error):
    """Return the entry of a row that failed."""
    return {"error": f"{type(error).__name__}: {error}"[:300]}


def compare(path, what, system, full, turns):
    """Return the row of a path that is switched off; `full` has the facts of the answer with all paths."""
    row = names_of(path.name, what, system)
    with path.off():
        # The answer is checked before any call is timed.
        row["facts"] = {"full": full, "off": system.checked(what)}
        for _ in range(WARM_UPS):
            system.seconds(what)
    times = in_turns(lambda: system.seconds(what), path.off, turns)
    return row | {key: summary(sorted(x)) for key, x in zip(("full", "off"), times, strict=True)}


def first_calls(path, system, full):
    """Yield a row of each call of a size after the cache was cleared, with graphs and without."""
    import tcsolve

    most, many = MANY_ROUNDS
    samples = {(key, call): [] for key in ("full", "off") for call in range(CALLS)}
    for _ in range(many if system.n <= most else FEW_ROUNDS):
        for key, context in (("full", contextlib.nullcontext), ("off", path.off)):
            tcsolve.clear_cache()
            with context():
                for call in range(CALLS):
                    samples[key, call].append(system.seconds(SOLVE))
    for call in range(CALLS):
        times = {key: summary(sorted(samples[key, call])) for key in ("full", "off")}
        row = names_of(path.name, f"call {call + 1}", system)
        yield row | {"facts": {"full": full}} | times


def bytes_row(path, n, nrhs):
    """Return the row of the bytes used, and of the bytes planned, exactly and roughly."""
    import cupy
    import memory

    import tcsolve

    exact = memory.measure(memory.SOLVE, n, "fp16x3", GAUSS, nrhs)
    row = {"path": path.name, "what": BYTES, "family": GAUSS, "n": n, "nrhs": nrhs}
    if "error" in exact:
        return row | {"error": exact["error"]}
    a = memory.matrix(GAUSS, n)
    with path.off():
        b = a @ cupy.ones((n, nrhs))
        planned = tcsolve.solve_ex(a, b, precision="fp16x3", assume_a="general").bytes_planned
    return row | {"used": exact["bytes_used"], "full": exact["bytes_planned"], "off": planned}


class Run:
    """The rows so far, and the time that is left."""

    def __init__(self, options, facts):
        self._options, self._facts, self.rows = options, facts, []
        self._start = time.perf_counter()

    @property
    def elapsed(self):
        return time.perf_counter() - self._start

    @property
    def is_over(self):
        """Whether the time is up."""
        return self.elapsed > self._options.seconds

    def add(self, how, make, names, number=1):
        """Add the rows that the function `how` (`one` or `several`) makes.

        If the time is up, only count these rows as missing; there are `number` of them.
        """
        if self.is_over:
            self._facts["left"] += number
            return
        for row in how(make, names):
            self.note(row)
        self.save()

    def note(self, row):
        """Keep and print a row."""
        self.rows.append(row)
        print(f"{self.elapsed:6.1f} s  {line(row)}", flush=True)

    def save(self):
        """Write the rows so far."""
        save(self._options.json, self._facts, self.rows)


def several(make, names):
    """Yield the rows of make(), or `names` with the reason why it fails, so that the run continues."""
    try:
        yield from make()
    except Exception as error:
        yield names | failure(error)


def one(make, names):
    """Yield the row make(), or `names` with the reason why it fails."""
    return several(lambda: [make()], names)


def measure(run, path, what, system, full, turns):
    """Add the row of a path for a system, unless the time is up."""
    names = names_of(path.name, what, system)
    run.add(one, functools.partial(compare, path, what, system, full, turns), names)


def warm(run, system, what):
    """Check the answer with all paths, and record its graphs; return its facts, or None."""
    if run.is_over:
        return None
    try:
        facts = system.checked(what)
        for _ in range(WARM_UPS):
            system.seconds(what)
        return facts
    except Exception as error:
        run.note(names_of(CONTROL, what, system) | failure(error))
        return None


def measure_size(run, n, chosen, repeats):
    """Measure every path at one size."""
    by_name = {path.name: path for path in chosen}
    measure_systems(run, n, chosen, repeats)
    free_memory()
    if "exact_memory" in by_name:
        for nrhs in RIGHT_HAND_SIDES:
            names = {"path": "exact_memory", "what": BYTES, "family": GAUSS, "n": n, "nrhs": nrhs}
            run.add(one, functools.partial(bytes_row, by_name["exact_memory"], n, nrhs), names)
    free_memory()


def measure_systems(run, n, chosen, repeats):
    """Measure every path on the matrices that all paths share, and then the first calls of the size."""
    turns = turns_of(n, repeats)
    systems = [System(family, n) for family in (GAUSS, DOMINANT)]
    known = {system.family: warm_both(run, system) for system in systems}
    print(f"{run.elapsed:6.1f} s  n = {n} is warm", flush=True)
    for path, system, what in itertools.product(chosen, systems, (SOLVE, LU)):
        full = known[system.family].get(what)
        if path.acts(what, system.family, n) and (full or run.is_over):
            measure(run, path, what, system, full, turns)
    gauss, full = systems[0], known[GAUSS].get(SOLVE)
    for path in chosen:
        if path.name in GRAPHS and path.acts(SOLVE, GAUSS, n) and (full or run.is_over):
            names = names_of(path.name, "call 1", gauss)
            run.add(several, functools.partial(first_calls, path, gauss, full), names, CALLS)


def warm_both(run, system):
    """Prepare the solve and the LU of a system for timing; return {SOLVE: facts, LU: facts}.

    No path acts on FP64 factors.  If the solve takes them, this function asks for `fp16x3`.
    """
    found = {SOLVE: warm(run, system, SOLVE)}
    if found[SOLVE] and found[SOLVE]["rungs"] == ["fp64"]:
        system.how["precision"] = "fp16x3"
        found = {SOLVE: warm(run, system, SOLVE)}
    if found[SOLVE]:
        system.factors_with(found[SOLVE]["rungs"][-1])
        found[LU] = warm(run, system, LU)
    return found


def free_memory():
    """Free the memory of a size."""
    import cupy

    import tcsolve

    tcsolve.clear_cache()
    cupy.get_default_memory_pool().free_all_blocks()


# ---- writing -----------------------------------------------------------------------------------


def line(row):
    """Return the printed line of a row."""
    told = f"{row['path']:18} {row['family']:14} {row['n']:6} {row['what']:7}"
    if "error" in row:
        return f"{told} failed: {row['error']}"
    if row["what"] == BYTES:
        exact, rough = (row[key] / row["used"] for key in ("full", "off"))
        return f"{told} nrhs {row['nrhs']}: planned / used {exact:.3f}, roughly {rough:.3f}"
    full, off = (row[key]["median"] for key in ("full", "off"))
    steps = [str(row["facts"].get(key, {}).get("steps", "")) for key in ("full", "off")]
    told += f" {1e3 * full:8.2f} ms, off {1e3 * off:8.2f} ms, {100 * (off / full - 1):+6.1f} %"
    return f"{told}  steps {' '.join(steps)}" if any(steps) else told


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    names = [path.name for path in PATHS]
    parser.add_argument("--paths", nargs="+", choices=names, default=names)
    parser.add_argument("--seconds", type=float, default=230.0, help="no row starts after these")
    parser.set_defaults(json=RESULTS / "ablation.json")
    options = unless_drawn(parser, page)
    if options is None:
        return
    import tcsolve

    warnings.simplefilter("error", tcsolve.AccuracyWarning)
    lines = {path.name: count(path.code) for path in PATHS}
    facts = machine(options.commit) | gpu() | {"lines": lines, "left": 0}
    run, chosen = Run(options, facts), [path for path in PATHS if path.name in options.paths]
    for n in sorted(options.sizes):
        measure_size(run, n, chosen, options.repeats)
    run.save()
    options.json.with_suffix(".md").write_text(page(facts, run.rows))


if __name__ == "__main__":
    main()
