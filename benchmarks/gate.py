"""What does the gate save where the launches of an LU are not recorded?

    python benchmarks/gate.py           # the table
    python benchmarks/gate.py --draw    # the page from the JSON again; no GPU

The gate lets an update wait, for a limited time, until the panel that is factored at the same time has got
its multiprocessors.  The recorded graphs are switched off, as they are for n > 32768.  `solve` with the gate
and `solve` without it take turns on the same matrix, in one run.  Wall clock with an idle device before and
after, medians.  For each matrix, an answer with the gate is checked first.
"""

import contextlib
import sys

from _ablation_paths import DOMINANT, GAUSS
from _harness import RESULTS, arguments, gpu, machine, save, summary, unless_drawn
from ablation import SOLVE, System, free_memory
from tables import source, table

from tcsolve._paths import SMALL_GRAPHS, switched_off

# (family, n, turns)
CASES = ((GAUSS, 4096, 15), (GAUSS, 16384, 7), (DOMINANT, 16384, 7), (GAUSS, 36864, 3))
HEAD = ["matrix", "n", "with the gate, ms", "without, ms", "saves"]


def measure(family, n, turns):
    """Return the row of a matrix."""
    system, graphs = System(family, n), "small_graphs" if n <= SMALL_GRAPHS else "large_graphs"
    system.checked(SOLVE)
    found = {"with": [], "without": []}
    for turn in range(turns + 1):
        for name in sorted(found, reverse=bool(turn % 2)):
            off = switched_off("gate") if name == "without" else contextlib.nullcontext()
            with switched_off(graphs), off:
                seconds = system.seconds(SOLVE)
            if turn:
                found[name].append(seconds)
    return {"family": family, "n": n} | {name: summary(found[name]) for name in found}


def cells(row):
    """Return the cells of a row in the table."""
    on, off = row["with"]["median"], row["without"]["median"]
    times = f"{1e3 * on:.2f}", f"{1e3 * off:.2f}", f"{100 * (off / on - 1):+.1f} %"
    return [row["family"], row["n"], *times]


def page(facts, rows):
    """Return the page of the results."""
    about = __doc__.split("\n\n")[-1]
    head = f"# The gate\n\n{source(facts, 'benchmarks/gate.py')}\n\n{about}"
    return f"{head}\n{table(HEAD, map(cells, rows))}\n"


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.set_defaults(json=RESULTS / "gate.json")
    options = unless_drawn(parser, page)
    if options is None:
        return
    facts, rows = machine(options.commit) | gpu(), []
    for case in CASES:
        rows.append(measure(*case))
        print(*cells(rows[-1]), sep=" | ", flush=True)
        free_memory()
    save(options.json, facts, rows)
    options.json.with_suffix(".md").write_text(page(facts, rows))


if __name__ == "__main__":
    sys.exit(main())
