"""How many bytes does a solve use on the GPU at its peak, compared with the bytes that it plans?

    python benchmarks/memory.py --n 4096 8192 16384 32768
    python benchmarks/memory.py --draw                   # the table from the JSON again; no GPU

The solve allocates from CuPy's default pool.  After every allocation, the bytes of the pool that are in use
are read.  "Another allocator" means that the solve allocates from another pool instead.  tcsolve does not
know how other allocators reuse memory, so the streams of an LU then share a pool for its scratch memory.

- *used*: the peak of bytes in use beyond the arguments, including x, in a first solve that is not recorded.
- *reserved*: the bytes that the pool took from the device.  This is more than *used* if freed blocks could
  not be reused, because of their stream or their size; and less if the pool had free memory before.
- *kept*: the bytes that the library holds after the third solve, for later solves of that size.
  `tcsolve.clear_cache` frees them.

Workspaces of cuBLAS and cuSOLVER outside of CuPy are not counted.  `solve` needs A for the residuals, so
`overwrite_a` has no effect.  `factor` keeps a copy of A, or with `overwrite_a` A itself.

The matrices are standard normal, plus n I for precisions with a single product.  Up to n = 8192 there are
also matrices whose refinement is slow, so that Krylov bases are needed, or fails, so that more precise
factors follow; and matrices that are scaled, extreme or column-major.  These need additional bytes that are
not known before the solve.  The solve adds them to its plan while it runs, so they are in the planned bytes,
too.
"""

import contextlib
import functools
import gc
import itertools

from _harness import RESULTS, arguments, gpu, machine, save, unless_drawn
from tables import source, table

from tcsolve._paths import replaced

SINGLE_PRODUCT = ("fp16", "bf16", "tf32")
SOLVE, FACTOR, OVERWRITE = "solve", "factor", "factor, overwrite_a"
ANOTHER = "solve, another allocator"
# Precisions and families that need more memory than others, and the largest n of these rows.
SCALED, EXTREME = "gauss, rows 2^-8 to 2^8", "gauss 2^900"
COLUMNS = "gauss, column-major"
HARD = (
    ("fp16", "svd_geo 1e2"),
    ("fp16x3", "svd_geo 1e6"),
    ("fp16x3", "svd_geo 1e10"),
    ("fp16x3", SCALED),
    ("fp32", SCALED),
    ("fp16x3", COLUMNS),
    ("fp16x3", EXTREME),
)
MOST_HARD = 8192


@functools.cache
def other_pool():
    """Return the pool of all runs with another allocator; dropping a pool may not free its memory."""
    import cupy

    return cupy.cuda.MemoryPool()


class Peak:
    """The peak of bytes in use inside a with block, of CuPy's default pool or of another allocator.

    Inside, the first solve of a size is not recorded, because recorded graphs have memory of their own.
    """

    def __init__(self, another=False):
        import cupy

        gc.collect()  # garbage that is collected later would reduce the bytes in use
        self._default = cupy.get_default_memory_pool()
        self.pool, self.used = other_pool() if another else self._default, 0
        self._before = self.pool.used_bytes(), self.pool.total_bytes()
        self._paths = replaced(most_at_once=0)

    @property
    def reserved(self):
        """Bytes taken from the device."""
        return self.pool.total_bytes() - self._before[1]

    @property
    def left(self):
        """Bytes in use."""
        return self.pool.used_bytes() - self._before[0]

    def __enter__(self):
        import cupy

        peak, malloc = self, self.pool.malloc

        def measured(size):
            memory = malloc(size)
            peak.used = max(peak.used, peak.left)
            return memory

        class Hook(cupy.cuda.MemoryHook):
            """Reads the bytes in use after an allocation; the current allocator stays CuPy's default pool."""

            name = "peak"

            def malloc_postprocess(self, **allocation):
                peak.used = max(peak.used, peak.left)

        self._exits = contextlib.ExitStack()
        if self.pool is self._default:
            self._exits.enter_context(Hook())
        else:
            # In all threads; `using_allocator` acts in the current one only.
            cupy.cuda.set_allocator(measured)
            self._exits.callback(cupy.cuda.set_allocator, self._default.malloc)
        self._exits.enter_context(self._paths)
        return self

    def __exit__(self, *error):
        self._exits.close()


# ---- measuring ---------------------------------------------------------------------------------


def usual_family(precision):
    """Return the family on which a precision usually stays on its rung."""
    return "gauss_dominant" if precision in SINGLE_PRODUCT else "gauss"


def matrix(family, n):
    """Return an FP64 matrix of the family on the device."""
    import cupy
    import rungs

    if family == SCALED:
        return rungs.matrix("gauss", n) * 2.0 ** cupy.linspace(-8, 8, n)[:, None]
    if family == EXTREME:
        return rungs.matrix("gauss", n) * 2.0**900
    if family == COLUMNS:
        return cupy.asfortranarray(rungs.matrix("gauss", n))
    return rungs.matrix(family, n)


def measure(call, n, precision, family, nrhs):
    """Return the row of one solve, or of one factorization, for `nrhs` right-hand sides."""
    import cupy

    import tcsolve

    other_pool().free_all_blocks()  # a failed run may have left blocks
    a = matrix(family, n)
    b = a @ cupy.ones((n, nrhs))
    b = b[:, 0] if nrhs == 1 else b
    cupy.cuda.Device().synchronize()
    tcsolve.clear_cache()
    cupy.get_default_memory_pool().free_all_blocks()
    how = {"precision": precision, "assume_a": "general"}
    row = {"call": call, "n": n, "precision": precision, "nrhs": nrhs, "family": family}

    def run():
        if call in (SOLVE, ANOTHER):
            return tcsolve.solve_ex(a, b, **how)
        return tcsolve.factor(a, nrhs=nrhs, overwrite_a=call == OVERWRITE, **how)

    try:
        with Peak(another=call == ANOTHER) as peak:
            found = run()
            cupy.cuda.Device().synchronize()
    except Exception as error:  # too little memory is a result, too
        return row | {"error": f"{type(error).__name__}: {error}"[:300]}
    row |= {
        "rungs": list(found.rungs),
        "bytes_planned": found.bytes_planned,
        "bytes_used": peak.used,
        "bytes_reserved": peak.reserved,
        "bytes_a": a.nbytes,
    }
    if call == SOLVE:
        row["status"] = found.status.name
    del found
    row["bytes_left"] = peak.left
    if call == SOLVE:
        for _ in range(2):
            run()
        row["bytes_idle"] = kept_bytes()
    return row


def kept_bytes():
    """Return the bytes that the library holds between solves."""
    from tcsolve._backends.cuda.runtime import recorded_graphs

    return recorded_graphs.idle_bytes()


# ---- writing -----------------------------------------------------------------------------------


def line(row):
    """Return the printed line of a row."""
    family = row.get("family", "-")
    head = f"{row['call']:19} n {row['n']:6} {row['precision']:7} {family:23} nrhs {row['nrhs']:3}"
    if "error" in row:
        return f"{head} failed: {row['error']}"
    return (
        f"{head} planned {row['bytes_planned'] / 2**20:10.1f} MiB, used {row['bytes_used'] / 2**20:10.1f},"
        f" reserved {row['bytes_reserved'] / 2**20:10.1f}, kept {row.get('bytes_idle', 0) / 2**20:.1f};"
        f" planned / used {row['bytes_planned'] / row['bytes_used']:.3f},"
        f" used / A {row['bytes_used'] / row['bytes_a']:.3f}  {'>'.join(row['rungs'])}"
    )


def page(facts, rows):
    """Return the Markdown page of the rows."""
    body = [cells(row) for row in rows]
    head = ["call", "n", "matrix", "precision", "right-hand sides", "planned, MiB", "used, MiB"]
    head += ["reserved, MiB", "planned / used", "used / bytes of A", "kept, MiB", "rungs"]
    lines = ["# Bytes planned and used", ""]
    lines += [
        "Bytes beyond the arguments, including x; `benchmarks/memory.py` defines the columns."
    ]
    lines += [*worst(rows), ""]
    return "\n".join([*lines, table(head, body), "", source(facts, "benchmarks/memory.py")]) + "\n"


def cells(row):
    """Return the table's cells of a row."""
    head = [row["call"], row["n"], row.get("family", "-"), row["precision"], row["nrhs"]]
    if "error" in row:
        return [*head, "fails", *["-"] * 6]
    sizes = (row[key] / 2**20 for key in ("bytes_planned", "bytes_used", "bytes_reserved"))
    return [
        *head,
        *(f"{size:.1f}" for size in sizes),
        f"{row['bytes_planned'] / row['bytes_used']:.3f}",
        f"{row['bytes_used'] / row['bytes_a']:.3f}",
        f"{row['bytes_idle'] / 2**20:.1f}" if "bytes_idle" in row else "-",
        ">".join(row["rungs"]),
    ]


def worst(rows):
    """Return the sentences about the worst plans: known before the start, or completed during the solve."""
    known, counted, another = [], [], []
    for row in rows:
        if "bytes_used" in row:
            usual = row["family"] == usual_family(row["precision"]) and len(row["rungs"]) == 1
            kind = another if row["call"] == ANOTHER else known if usual else counted
            kind.append(row["bytes_planned"] / row["bytes_used"])
    lines = []
    for ratios, when in (
        (known, "if the plan is complete before the start"),
        (
            counted,
            "if the solve adds bytes to its plan (refinement is slow or fails, or the matrix is badly "
            "scaled, has huge entries, or is stored by columns)",
        ),
        (another, "with another allocator than CuPy's default pool"),
    ):
        if ratios:
            lines.append(f"Planned / used {when}: between {min(ratios):.3f} and {max(ratios):.3f}.")
    return lines


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, nargs="+", default=[4096, 8192, 16384, 32768])
    parser.add_argument("--precision", nargs="+", default=["fp16", "fp16x3", "fp32", "fp64"])
    parser.add_argument("--nrhs", type=int, nargs="+", default=[1, 64])
    parser.set_defaults(json=RESULTS / "memory.json")
    options = unless_drawn(parser, page)
    if options is None:
        return
    facts, rows = machine(options.commit) | gpu(), []
    calls = [*((SOLVE, nrhs) for nrhs in options.nrhs), (ANOTHER, 1), (FACTOR, 1), (OVERWRITE, 1)]
    usual = itertools.product(options.n, options.precision, calls)
    runs = [(call, n, how, usual_family(how), nrhs) for n, how, (call, nrhs) in usual]
    few = [n for n in options.n if n <= MOST_HARD]
    hard = [pair for pair in HARD if pair[0] in options.precision]
    runs += [(SOLVE, n, *way, nrhs) for n, way, nrhs in itertools.product(few, hard, options.nrhs)]
    for run in runs:
        rows.append(measure(*run))
        print(line(rows[-1]), flush=True)
        save(options.json, facts, rows)
    options.json.with_suffix(".md").write_text(page(facts, rows))


if __name__ == "__main__":
    main()
