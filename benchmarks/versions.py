"""Is the library as fast as an older version of it?

    git worktree add ../old COMMIT
    python benchmarks/versions.py old=../old now=.            # the table
    python benchmarks/versions.py --large old=../old now=.    # large systems and the matrix of HPL-MxP
    python benchmarks/versions.py --draw                      # the page from the JSON again; no GPU

The time of the same code can differ by 10 % between two processes.  So there are several rounds, and in each
round each version runs in a new process on the same GPU.  The versions take turns, and their order
alternates.  In a turn, a call is repeated, and the first calls are not counted.  Wall clock with an idle
device before and after; for the LU of HPL-MxP, the time that the library reports.  Every answer is checked
before it is timed.

The times are medians over all rounds.  The ratio of a round is that of its medians.  The table has the median
of these ratios, and the smallest and the largest.  "(slower)" marks a median above 1.02.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import hpl_mxp
import numpy as np
from _ablation_paths import DOMINANT, GAUSS
from _harness import RESULTS, arguments, gpu, machine, save, summary, unless_drawn
from tables import source, table

# (what, n, calls of a turn); `gemm_batched` multiplies 65536 pairs of matrices.
CASES = [
    (kind, n, calls)
    for n, calls in ((1024, 20), (2048, 15), (4096, 10), (8192, 5), (16384, 2), (32768, 1))
    for kind in (GAUSS, DOMINANT)
]
CASES += [
    ("gemm", 2048, 20),
    ("gemm", 8192, 4),
    ("gemm_batched", 16, 15),
    ("gemm_batched", 32, 10),
]
# The LU of the matrix of HPL-MxP in FP16x3 alone, as the library reports its time, and a large system.
LU = "hpl_mxp, LU in fp16x3"
LARGE = [(LU, 16384, 3), (LU, 24576, 2), (LU, 32768, 2), (GAUSS, 24576, 2)]
# Rounds, and turns of each version in a round.
ROUNDS, ROUNDS_LARGE, TURNS = 6, 4, 2
BATCH, UNCOUNTED, ALLOWED = 65536, 2, 1.02
HEAD = ["what", "n", "before, ms", "now, ms", "now / before", "rounds"]


# ---- one version -------------------------------------------------------------------------------


def system(what, n):
    """Return the call to time and a function that raises unless its result is right."""
    import cupy

    import tcsolve

    if what == LU:
        a, b = hpl_mxp.generate(cupy, n)

        def valid(solution):
            assert hpl_mxp.passed(hpl_mxp.scaled_residual(cupy, a, solution.x, b))
            assert solution.rungs == ("fp16x3",), solution.rungs

        return lambda: tcsolve.solve_ex(a, b, precision="fp16x3", assume_a="gen"), valid
    rng = cupy.random.default_rng(1)
    if what.startswith("gemm"):
        batch = (BATCH,) if what == "gemm_batched" else ()
        a, b = (rng.standard_normal((*batch, n, n), dtype=cupy.float32) for _ in range(2))
        options = {} if batch else {"precision": "fp16", "refine": "ab"}
        some = slice(0, 1 if batch else 16)

        def check(c):
            exact = cupy.matmul(
                a[some].astype(float), b[some].astype(float) if batch else b.astype(float)
            )
            assert float(abs(c[some] - exact).max()) < 1e-5 * n

        return lambda: getattr(tcsolve, what)(a, b, **options), check
    a = rng.standard_normal((n, n))
    if what == DOMINANT:
        a[cupy.arange(n), cupy.arange(n)] += n
    b = a @ cupy.ones(n)

    def right(x):
        rest = float(abs(b - a @ x).max() / abs(a).sum(axis=1).max() / abs(x).max())
        assert rest <= 2 * n**0.5 * 2.0**-53, rest

    return lambda: tcsolve.solve(a, b, assume_a="gen"), right


def serve(folder):
    """Answer the requests on standard input.

    [what, n] prepares a case; a number k asks for the times of k calls, or of their factorizations.
    """
    import cupy

    import tcsolve

    assert Path(tcsolve.__file__).is_relative_to(folder), tcsolve.__file__
    call, alone, wait = None, False, cupy.cuda.Device().synchronize
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, list):
            call = None
            tcsolve.clear_cache()
            cupy.get_default_memory_pool().free_all_blocks()
            (call, check), alone = system(*asked), asked[0] == LU
            for _ in range(4):
                x = call()
            check(x)
            del x, check
            found = []
        else:
            found = []
            for _ in range(asked + UNCOUNTED):
                wait()
                start = time.perf_counter()
                answer = call()
                wait()
                total = time.perf_counter() - start
                found.append(answer.seconds["factor"] if alone else total)
                del answer
        print("@" + json.dumps(found[UNCOUNTED:]), flush=True)


# ---- both versions -----------------------------------------------------------------------------


def copied(checkout, folder):
    """Copy the library as in a wheel, with kernels and matrices inside the package; return the folder."""
    for part in ("tcsolve", "kernels", "matrices"):
        to = Path(folder) / "tcsolve" / ("" if part == "tcsolve" else part)
        shutil.copytree(Path(checkout) / part, to, dirs_exist_ok=True)
    return folder


class Version:
    """A version of the library in a process of its own; `folder` is the result of `copied`."""

    def __init__(self, name, folder):
        self.name = name
        command = [sys.executable, "-P", __file__, "--serve", str(folder)]
        paths = str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join(paths)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, **pipes)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()

    def ask(self, request):
        """Return the seconds of calls, or [] for a request that prepares a case."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        raise RuntimeError(f"the version {self.name!r} has ended")


def measure(versions, what, n, calls):
    """Return the seconds of the calls of each version, by name, in one round."""
    found = {version.name: [] for version in versions}
    for version in versions:
        version.ask([what, n])
    for turn in range(TURNS):
        for version in versions[:: -1 if turn % 2 else 1]:
            found[version.name] += version.ask(calls)
    return found


def row_of(what, n, rounds):
    """Return the row of a case from the seconds of all rounds."""
    seconds = {name: summary(np.concatenate([each[name] for each in rounds])) for name in rounds[0]}
    before, now = ([np.median(each[name]) for each in rounds] for name in rounds[0])
    return {"what": what, "n": n, "seconds": seconds, "ratios": list(np.divide(now, before))}


def run_rounds(copies, cases, rounds):
    """Yield the rows of all cases after each round."""
    found = [[] for _ in cases]
    for number in range(rounds):
        with contextlib.ExitStack() as stack:
            versions = [stack.enter_context(Version(*copy)) for copy in copies.items()]
            for case, seconds in zip(cases, found, strict=True):
                seconds.append(measure(versions[:: -1 if number % 2 else 1], *case))
        yield [row_of(what, n, each) for (what, n, _), each in zip(cases, found, strict=True)]


def cells(row):
    """Return the cells of a row in the table."""
    before, now = (x["median"] for x in row["seconds"].values())
    ratio = float(np.median(row["ratios"]))
    return [
        row["what"],
        row["n"],
        f"{1e3 * before:.3f}",
        f"{1e3 * now:.3f}",
        f"{ratio:.3f}" + " (slower)" * (ratio > ALLOWED),
        f"{min(row['ratios']):.3f} to {max(row['ratios']):.3f}",
    ]


def page(facts, rows):
    """Return the page of the results."""
    about = __doc__.partition("\n\nThe time of the same code")[2]
    before, now = facts["versions"].items()
    text = f"Commit {before[1]} ({before[0]}) and commit {now[1]} ({now[0]})."
    head = f"# The library and an older version of it\n\n{source(facts, 'benchmarks/versions.py')}  {text}"
    return f"{head}\n\nThe time of the same code{about}\n{table(HEAD, map(cells, rows))}\n"


def main():
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
        return
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument(
        "versions", nargs="*", metavar="NAME=FOLDER", help="the older version first"
    )
    parser.add_argument("--commits", nargs=2, default=("?", "?"), help="the commits of both")
    parser.add_argument("--large", action="store_true", help="the cases of versions_large.json")
    name = "versions_large.json" if "--large" in sys.argv else "versions.json"
    parser.set_defaults(json=RESULTS / name)
    options = unless_drawn(parser, page)
    if options is None:
        return
    if len(options.versions) != 2 or not all("=" in x for x in options.versions):
        parser.error(f"two versions NAME=FOLDER are needed, got {options.versions}")
    folders = dict(x.split("=", 1) for x in options.versions)
    facts = machine(options.commit) | gpu()
    facts["versions"] = dict(zip(folders, options.commits, strict=True))
    cases, rounds = (LARGE, ROUNDS_LARGE) if options.large else (CASES, ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        copies = {name: copied(each, Path(folder) / name) for name, each in folders.items()}
        for rows in run_rounds(copies, cases, rounds):
            save(options.json, facts, rows)
            print(table(HEAD, map(cells, rows)), flush=True)
    options.json.with_suffix(".md").write_text(page(facts, rows))


if __name__ == "__main__":
    main()
