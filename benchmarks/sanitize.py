"""Does compute-sanitizer find bad accesses, races or wrong barriers in a reduced run?

    python benchmarks/sanitize.py                        # memcheck, racecheck, synccheck
    python benchmarks/sanitize.py --tool racecheck --part lu --options="--racecheck-report all"

Each tool runs this script again with --solve, once for each part; several runs at the same time.  The parts:

lu
    Small solves with each precision, by narrow and wide panels.  There are several panels, so look-ahead is
    used.
squares
    The same with square panels, and with products by inverses.
systems f, systems d, systems D
    Small systems, stacks and triangles of one dtype.
products
    Products of matrices, also with NaN and Inf.

Every array is a separate allocation, because memcheck does not detect an access past the end of an array
inside CuPy's pool.  CuPy compiles its own kernels anew, into a new folder that all runs share.  The exit
status is 0 if every run finishes and finds nothing.
"""

import itertools
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from _harness import arguments, gpu, machine, outcome, save

TOOLS = {
    # A failed call raises an exception in Python anyway; and libraries make calls whose failure is harmless.
    "memcheck": ["--report-api-errors", "no"],
    "racecheck": [],
    # The default number of barriers is too small for the kernels of libraries, and then the run ends.
    "synccheck": ["--num-cuda-barriers", "4096"],
}
# A second line may count those errors that the tool did not print.
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?$|hazards?)", re.MULTILINE)
# The lines that a tool prints for each finding, and about itself.
REPORT = re.compile(r"^=+ (?:Error|Warning): ", re.MULTILINE)
VERSION = re.compile(r"Version (\S+)")
# The message of a tool that could not follow the run; then a report without findings proves nothing.
OVERFLOW = "Detected overflow"
FOUND = 99  # exit status for "the tool found something", unlike Python's own
MOST_LINES = 30  # from the first finding on, and at the end of the output
SLOWEST = ("racecheck", "memcheck", "synccheck")
AT_ONCE = 6  # runs; more would wait for the one device
# Columns of the narrow panels, and of wide ones; unknowns of the system with square panels.
NARROW, WIDE, SQUARES_ROWS = 128, 256, 700
# Small systems and stacks: slices, unknowns and right-hand sides.  They reach the kernels that solve small
# systems in one launch, the kernels that measure a system or a stack, and the inverse of a triangle.
SYSTEMS = (
    (1, 3, 1),
    (70, 7, 2),
    (300, 16, 1),
    (5, 24, 1),
    (1, 30, 16),
    (9, 45, 1),
    (5, 60, 1),
    (1, 70, 3),
    (3, 128, 1),
    (1, 300, 2),
    (3, 200, 2),
    (1, 131, 16),
    (2, 650, 1),
)
LARGE_SYSTEM = (1, 1100, 1)
KINDS_OF_SYSTEMS = ("gen", "pos", "lower triangular", "upper triangular", None)
# Shapes of the operands of products: few tiles, and their number is not a multiple of the cluster size.
PRODUCT = ((300, 200), (200, 520))


# ---- the run that is watched -------------------------------------------------------------------


def run_part(name, n, precisions):
    """Run a part; exit with 1 if an answer is bad."""
    import cupy

    cupy.cuda.set_allocator(None)
    PARTS[name](cupy.random.default_rng(5), n, precisions)


def solve_by_panels(rng, n, precisions):
    """Solve small systems by narrow and wide panels; exit with 1 if an answer is bad."""
    import cupy

    import tcsolve

    # Well conditioned, so that a single product suffices.  No pivot of `dominant` moves a row; with the rows
    # in reverse order the pivots of the first half do.
    dominant = rng.standard_normal((n, n)) + n * cupy.eye(n)
    turned = cupy.ascontiguousarray(dominant[::-1])
    # Each width, each matrix and each number of right-hand sides; not all of their combinations, since under
    # racecheck a solve takes half a minute, most of it in panels.
    cases = (NARROW, turned, 5), (NARROW, dominant, 1), (WIDE, turned, 1)
    for precision in precisions:
        # The panels of fp16 are those of fp16x3.
        has_own_panels = precision != "fp16" or "fp16x3" not in precisions
        for block, a, nrhs in cases if has_own_panels else cases[:1]:
            b = a @ rng.standard_normal((n, nrhs))
            plan = tcsolve.Plan(precision, block=block, fallback=False)
            solution = tcsolve.solve_ex(a, b, precision=plan, assume_a="general")
            print(f"n {n} block {block} nrhs {nrhs}: {outcome(solution)}", flush=True)
            if not solution.status.ok:
                sys.exit(1)


def solve_systems(dtype, rng, *_):
    """Solve small systems, stacks and triangles of one dtype; exit with 1 if an answer is bad."""
    import cupy

    import tcsolve

    for kind, shape in itertools.product(KINDS_OF_SYSTEMS, (*SYSTEMS, LARGE_SYSTEM)):
        slices, n, nrhs = shape
        if shape == LARGE_SYSTEM and (dtype != "d" or kind is None):
            continue
        a = rng.standard_normal((slices, n, n))
        a = (a + a.swapaxes(1, 2) + 4 * n * cupy.eye(n)).astype(dtype)
        if kind is not None and kind.endswith("triangular"):
            a = cupy.tril(a) if kind.startswith("lower") else cupy.triu(a)
        if kind == "gen":
            a = a[:, ::-1]  # the pivots of the first half move rows
        b = a @ cupy.ones((slices, n, nrhs), dtype)
        a, b = (a[0], b[0]) if slices == 1 else (a, b)
        solution = tcsolve.solve_ex(a, b, assume_a=kind)
        if not (solution.status.ok and float(abs(solution.x - 1).max()) < 1e-3):
            print(f"{dtype} {kind} {shape}: {outcome(solution)}", flush=True)
            sys.exit(1)
    print("systems and stacks are right", flush=True)


def multiply(rng, *_):
    """Multiply matrices; exit with 1 if a result is wrong."""
    multiply_small(rng)
    multiply_not_finite(rng)


def multiply_small(rng):
    """Multiply FP32 matrices by three products, in each layout; exit with 1 if a bound does not hold."""
    import cupy

    import tcsolve

    for transa, transb in itertools.product((False, True), repeat=2):
        a, b = (rng.standard_normal(shape, dtype="float32") for shape in PRODUCT)
        stored = [cupy.ascontiguousarray(x.T) if t else x for x, t in ((a, transa), (b, transb))]
        error = abs(tcsolve.gemm(*stored, transa=transa, transb=transb) - a.astype(float) @ b)
        size = cupy.linalg.norm(a, axis=1)[:, None] * cupy.linalg.norm(b, axis=0)
        part = float((error / size).max()) / tcsolve.gemm_bound(a, b).bound
        print(f"product {PRODUCT} {transa} {transb}: {part:.2f} of its bound", flush=True)
        if not part <= 1:
            sys.exit(1)


def multiply_not_finite(rng):
    """Multiply FP32 matrices with a NaN and an Inf; exit with 1 if a result in FP32 or FP16 is wrong."""
    import cupy

    import tcsolve

    a, b = (rng.standard_normal(shape, dtype="float32") for shape in PRODUCT)
    a[7, 3], b[5, 11] = cupy.nan, cupy.inf
    rows, columns = len(a), b.shape[1]
    finite = cupy.ones((rows, columns), bool)
    finite[7], finite[:, 11] = False, False
    line = cupy.zeros(rows * columns + 1, "float32")
    moved = line[1:].reshape(rows, columns)  # 4 bytes from a boundary
    for out, beta in ((cupy.zeros_like(moved), 0.5), (moved, 0.0), (moved.astype("float16"), 0.0)):
        found = tcsolve.gemm(a, b, beta=beta, c=out if beta else None, out=out)
        if not bool((cupy.isfinite(found) == finite).all()):
            print(f"a product with NaN and Inf is wrong: {out.dtype}, beta {beta}", flush=True)
            sys.exit(1)
    stack = rng.standard_normal((70, 16, 16), dtype="float32")
    stack[3, 2, 1] = cupy.nan
    for precision in ("fp16", "tf32"):
        found = tcsolve.gemm_batched(stack, stack, precision=precision)
        if int((~cupy.isfinite(found)).any(axis=(1, 2)).sum()) != 1:
            print(f"a stack of products with a NaN is wrong ({precision})", flush=True)
            sys.exit(1)
    print("products with NaN and Inf are right", flush=True)


def solve_by_squares(rng, _, precisions):
    """Solve a dominant system by two square panels and look-ahead, which otherwise only larger systems use.

    Also solve a system with row swaps, by wide panels, so that U is a product with an inverse.
    """
    import cupy

    import tcsolve
    from tcsolve._arithmetic.formats import UPDATES
    from tcsolve._backends.cuda.gemm import wgmma
    from tcsolve._backends.cuda.lu import rules
    from tcsolve._backends.cuda.ops import CupyOps
    from tcsolve._paths import replaced

    arch = CupyOps.lu.rules("f").arch
    applied, apply = [], wgmma.Right.apply

    def spy(self, l):
        applied.append(l.shape)
        apply(self, l)

    wgmma.Right.apply = spy
    n = SQUARES_ROWS
    a = rng.standard_normal((n, n)) + n * cupy.eye(n)
    turned = cupy.ascontiguousarray(a[::-1])
    late = {"early_rows": 0, "most_sums": 0}
    with replaced(square_rows=1, least_columns=32, wide=2 * NARROW, **late):
        for precision, dominant in itertools.product(precisions, (True, False)):
            matrix = a if dominant else turned
            plan = tcsolve.Plan(precision, block=2 * NARROW, fallback=False)
            solution = tcsolve.solve_ex(
                matrix, matrix @ cupy.ones(n), precision=plan, assume_a="general"
            )
            print(f"n {n} squares {applied}: {outcome(solution)}", flush=True)
            if not solution.status.ok:
                sys.exit(1)
            expected = 2 if dominant and rules.has_squares(UPDATES[precision], arch) else 0
            if len(applied) != expected:
                sys.exit(1)
            applied.clear()


PARTS = {
    "lu": solve_by_panels,
    "squares": solve_by_squares,
    **{f"systems {dtype}": partial(solve_systems, dtype) for dtype in "fdD"},
    "products": multiply,
}


# ---- watching it -------------------------------------------------------------------------------


def find_sanitizer(path=None):
    """Return the path of compute-sanitizer, or end with a remedy."""
    folders = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    candidates = [path] if path else ["compute-sanitizer"]
    if not path:
        candidates += [f"{folder}/bin/compute-sanitizer" for folder in folders if folder]
    for candidate in candidates:
        if found := shutil.which(candidate):
            return found
    sys.exit(
        f"no compute-sanitizer at {', '.join(candidates)}: it comes with the CUDA toolkit; put it on PATH,"
        " set CUDA_HOME, or give --sanitizer PATH"
    )


def command(sanitizer, tool, part, n, precisions, options=()):
    """Return the command line that watches a part, with more options of the tool."""
    script = [sys.executable, str(pathlib.Path(__file__).resolve())]
    watched = [*script, "--solve", "--part", part, "--n", str(n), "--precision", *precisions]
    options = "--error-exitcode", str(FOUND), *TOOLS[tool], *options
    return [sanitizer, "--tool", tool, *options, *watched]


def version_of(sanitizer):
    """Return the version of compute-sanitizer, or its error message."""
    told = subprocess.run([sanitizer, "--version"], capture_output=True, text=True).stdout
    found = VERSION.search(told)
    return found[1] if found else told.strip()


def watch(line, timeout, cache):
    """Run a command line; return its exit status (None if it took too long) and its output."""
    process = subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=os.environ | {"CUPY_CACHE_DIR": str(cache)},
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        # Kill the tool and the Python process that it watches; either would keep the device busy.
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output


def judge(status, output):
    """Return 'clean', or why the run of a tool is not."""
    if status is None:
        reported = len(REPORT.findall(output))
        return "took too long" + (f", {reported} found until then" if reported else "")
    counts = [int(count) for count in SUMMARY.findall(output)]
    if any(counts):
        return f"{sum(counts)} found"
    if OVERFLOW in output:
        return "the tool lost track of the barriers (raise --num-cuda-barriers)"
    if status:
        return f"exit status {status}"
    return "clean" if counts else "no summary"


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--tool", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--n", type=int, default=700)
    parser.add_argument("--precision", nargs="+", default=["fp16x3", "fp16", "fp64"])
    parser.add_argument("--timeout", type=float, default=550.0, help="seconds a run may take")
    parser.add_argument("--sanitizer", help="path of compute-sanitizer")
    parser.add_argument("--options", type=shlex.split, default=[], help="for the tool, quoted")
    parser.add_argument("--solve", action="store_true", help="only run the parts, without a tool")
    options = parser.parse_args()
    if options.solve:
        for part in options.part:
            run_part(part, options.n, options.precision)
        return
    sanitizer = find_sanitizer(options.sanitizer)
    # First the runs that take longest.
    runs = [
        (tool, part) for tool in sorted(options.tool, key=SLOWEST.index) for part in options.part
    ]
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(AT_ONCE) as pool:
        rows = list(pool.map(lambda run: row_of(sanitizer, *run, options, cache), runs))
    facts = machine(options.commit) | gpu() | {"compute-sanitizer": version_of(sanitizer)}
    save(options.json, facts, rows)
    sys.exit(any(row["verdict"] != "clean" for row in rows))


def row_of(sanitizer, tool, part, options, cache):
    """Run a part under a tool; print the verdict, and return it as a row."""
    start = time.perf_counter()
    line = command(sanitizer, tool, part, options.n, options.precision, options.options)
    status, output = watch(line, options.timeout, cache)
    verdict = judge(status, output)
    row = {"tool": tool, "part": part, "verdict": verdict, "seconds": time.perf_counter() - start}
    told = [f"{tool:10} {part:10} {verdict} ({row['seconds']:.0f} s)"]
    if verdict != "clean":
        first = REPORT.search(output)
        told += output[first.start() if first else 0 :].splitlines()[:MOST_LINES]
        told += ["...", *output.splitlines()[-MOST_LINES:]]
    print("\n".join(told), flush=True)
    return row


if __name__ == "__main__":
    main()
