"""How long does one small system take on the GPU, compared with CuPy and torch?

    python benchmarks/small.py          # the table
    python benchmarks/small.py --draw   # the page from the JSON again; no GPU

Wall clock of `tcsolve.solve` of CuPy arrays.  The peers are cupy.linalg.solve and torch.linalg.solve; for
positive definite matrices, torch's cholesky with cholesky_solve takes the place of torch.linalg.solve.  Times
are medians with a synchronised device, from the fifth call on.  "Second call" is the second call of a size.
Every answer is checked before it is timed.  "Aim" is the ratio that we want to reach.
"""

import itertools
import sys
import time

from _harness import RESULTS, arguments, gpu, machine, save, summary, unless_drawn
from roads import Case, error_of, free_memory, ours, peers, system, wall_seconds
from tables import source, table

SIZES, COLUMNS = (16, 32, 64, 128, 256, 512, 1024), (1, 16)
KINDS = ("general", "complex", "positive definite")
# The aims for one general system: the time of the fastest peer divided by ours.
AIMS = {16: 1, 32: 1, 64: 1.3, 128: 1.5, 256: 2, 512: 2, 1024: 2}
WRONG = 1e-12


def measure(case, repeats):
    """Return the row of a case."""
    import cupy

    a, b = system(case)
    row = case._asdict() | {"seconds": {}, "errors": {}}
    for name, call in {"tcsolve": ours(case, a, b), **dict(peers(case, a, b))}.items():
        error = error_of(a, call(), b)
        if not error <= WRONG:
            row["errors"][name] = f"backward error {error:.1e}"
            continue
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        call()
        cupy.cuda.Device().synchronize()
        second = time.perf_counter() - start
        row["seconds"][name] = summary(wall_seconds(call, repeats)) | {"second": second}
    return row


def cells(row):
    """Return the cells of a row in the table."""
    others = {k: v["median"] for k, v in row["seconds"].items() if k != "tcsolve"}
    mine, peer = row["seconds"].get("tcsolve"), min(others, key=others.get, default=None)
    if mine is None or peer is None:
        told = "; ".join(f"{name}: {error}" for name, error in row["errors"].items())
        return [row["kind"], row["n"], row["columns"], told, *[""] * (len(HEAD) - 4)]
    aim = 1 if row["kind"] != "general" else AIMS[row["n"]]
    return [
        row["kind"],
        row["n"],
        row["columns"],
        f"{1e3 * mine['median']:.3f}",
        f"{1e3 * mine['second']:.3f}",
        f"{1e3 * others[peer]:.3f} ({peer})",
        f"{others[peer] / mine['median']:.2f}",
        f"{aim:g}",
    ]


HEAD = ["kind", "n", "columns", "tcsolve, ms", "second call", "fastest peer, ms", "ratio", "aim"]


def page(facts, rows):
    """Return the page of the results."""
    command = "python benchmarks/small.py"
    about = __doc__.partition("\n\nWall clock")[2]
    body = table(HEAD, map(cells, rows))
    return f"# One small system\n\n{source(facts, command)}\n\nWall clock{about}\n{body}\n"


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.set_defaults(json=RESULTS / "small.json")
    options = unless_drawn(parser, page)
    if options is None:
        return
    facts, rows = machine(options.commit) | gpu(), []
    for kind, n, columns in itertools.product(KINDS, SIZES, COLUMNS):
        rows.append(measure(Case(kind, "gauss", n, 0, columns), options.repeats))
        print(*cells(rows[-1]), sep=" | ", flush=True)
        free_memory()
    save(options.json, facts, rows)
    options.json.with_suffix(".md").write_text(page(facts, rows))


if __name__ == "__main__":
    sys.exit(main())
