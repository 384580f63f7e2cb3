"""Which rates does one GPU reach by the rules of HPL-MxP, for the LU alone and for the whole solve?

    python benchmarks/hpl_mxp.py --n 32768 65536 --precision fp16 fp16x3
    python benchmarks/hpl_mxp.py --largest            # and the largest n that fits in the memory

A and b have the same entries as in the reference implementation.  Its generator multiplies the state by
14647171131086947261 modulo 2**64, and maps the upper 32 bits to [-1/2, 1/2].  It runs down the columns of A,
and then through b.  Each diagonal entry becomes the sum of the magnitudes of the other entries of its row.

An answer is valid if ||A x - b|| / (2**-53 (||A|| ||x|| + ||b||) n) <= 16 in infinity norms, computed in FP64
from the x that is returned.  The rate is (2/3 n^3 + 3/2 n^2) over the time of the whole solve, including the
conversion of A to FP32 and its norms.  The rate of the LU is 2/3 n^3 over the time of the phase that factors
the FP32 copy of A, and inverts the diagonal blocks of its factors.

Differences from the reference implementation:

- The LU may swap rows, which the rules do not ask for.  For this matrix it searches only some of the rows for
  pivots, or none, and each pivot is on the diagonal.
- The single-precision copy of A is updated with products of 16-bit operands and FP32 sums, as the rules
  allow; fp16x3 takes three such products and counts the operations of one.
- Refinement is classical first, and FGMRES follows only if that stalls.  Both use FP64, as the rules demand.
  The reference starts with GMRES.
- The sums on the diagonal are added in another order, so they differ in the last bits.
- A solve also estimates the condition number, which the rules do not ask for; its time counts.
- A is generated on the device in FP64, row block by row block; as in the reference, this is not timed.
- There is one GPU and one process.  This is not an entry for the HPL-MxP list, which needs its harness.
"""

import math

import numpy as np
from _harness import RESULTS, arguments, device_seconds, gpu, machine, save, summary, unless_drawn
from tables import source, table

# The generator of the reference: its multiplier, its modulus, and the divisor that maps 32 bits to [0, 1].
MULTIPLIER, MODULUS, UINT32_MAX = 14647171131086947261, 2**64, 2**32 - 1
# Roundoff and threshold of the residual test.
EPS, THRESHOLD = 2.0**-53, 16.0
# Entries that are generated or summed at a time.
BLOCK_ENTRIES = 1 << 24
# Bytes to leave free in addition to the predicted ones: workspaces of cuBLAS and cuSOLVER are not in the
# pool.
SPARE_BYTES = 1 << 30
# The largest n is searched among multiples of this number.
STEP = 1024


# ---- the rules ---------------------------------------------------------------------------------


def generate(xp, n):
    """Return (a, b) of the reference generator, shapes (n, n) and (n,), FP64, made row block by row block."""
    # Entry k of the stream has the state MULTIPLIER**(k + 1): a product of a power for the row and
    # one for the column, as the stream runs down the columns.
    rows = xp.asarray(powers(MULTIPLIER, n))
    columns = xp.asarray(powers(pow(MULTIPLIER, n, MODULUS), n + 1, first=1))
    a = xp.empty((n, n))
    for i, j in blocks(n):
        part = uniform(rows[i:j, None] * columns[:n])
        at = xp.arange(j - i)
        diagonal = part[at, i + at]
        part[at, i + at] = xp.abs(part).sum(axis=1) - xp.abs(diagonal)
        a[i:j] = part
    return a, uniform(rows * columns[n])


def powers(base, count, first=None):
    """Return first * base**k modulo 2**64 for k = 0 ... count - 1, as uint64; `first` is by default base."""
    values = [base if first is None else first]
    while len(values) < count:
        values.append(values[-1] * base % MODULUS)
    return np.array(values, dtype=np.uint64)


def uniform(state):
    """Return the numbers in [-1/2, 1/2] that belong to states of the generator."""
    return (state >> 32).astype(np.float64) / UINT32_MAX - 0.5


def blocks(n):
    """Yield (start, stop) of row blocks of about BLOCK_ENTRIES entries."""
    step = max(1, BLOCK_ENTRIES // n)
    for i in range(0, n, step):
        yield i, min(i + step, n)


def scaled_residual(xp, a, x, b):
    """Return ||a x - b|| / (eps (||a|| ||x|| + ||b||) n) in infinity norms; NaN if x is not finite."""
    n = len(b)
    norm = max(float(xp.abs(a[i:j]).sum(axis=1).max()) for i, j in blocks(n))
    top = float(xp.abs(x).max()) if bool(xp.isfinite(x).all()) else math.nan
    residual = float(xp.abs(a @ x - b).max())
    return residual / (EPS * (norm * top + float(xp.abs(b).max())) * n)


def passed(residual):
    """Tell whether a scaled residual is valid by the rules; NaN is not."""
    return residual <= THRESHOLD


def solve_tflops(n, seconds):
    """Return the rate of the benchmark: (2/3 n^3 + 3/2 n^2) / time."""
    return (2 / 3 * n**3 + 3 / 2 * n**2) / seconds / 1e12


def lu_tflops(n, seconds):
    """Return the rate of the factorization: 2/3 n^3 / time."""
    return 2 / 3 * n**3 / seconds / 1e12


# ---- memory ------------------------------------------------------------------------------------


def device_bytes(update, n, block):
    """Predict the bytes on the device: A and b in FP64, and the memory that a solve allocates."""
    from tcsolve._solve.choice.cost_model import bytes_needed

    return 8 * n * (n + 1) + bytes_needed(
        update, n, 1, np.dtype(float), block=block, on_device=True
    )


def largest_fit(available, needed, step=STEP):
    """Return the largest multiple n of `step` with needed(n) <= available, 0 if there is none."""
    low, high = 0, 1
    while needed(high * step) <= available:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(middle * step) <= available else (low, middle)
    return low * step


def predicted_largest(update):
    """Return the largest n that is predicted to fit in the free memory of the device."""
    import cupy

    from tcsolve._backends.cuda.ops import CupyOps
    from tcsolve._solve.choice.memory import widest_panel

    cupy.get_default_memory_pool().free_all_blocks()
    free, _ = cupy.cuda.runtime.memGetInfo()
    ops = CupyOps()

    def needed(n):
        return device_bytes(update, n, widest_panel(ops, n, update, dominant=True))

    return largest_fit(free - SPARE_BYTES, needed)


# ---- measuring ---------------------------------------------------------------------------------


def measure(n, precision, repeats):
    """Return the row of one size: residual, times of the phases and rates; the answer is checked first."""
    import cupy

    import tcsolve

    a, b = generate(cupy, n)
    cupy.get_default_memory_pool().free_all_blocks()
    free, _ = cupy.cuda.runtime.memGetInfo()
    phases = []

    def run():
        solution = tcsolve.solve_ex(a, b, precision=precision, assume_a="general")
        phases.append(solution.seconds)
        return solution

    solution = run()
    row = {
        "n": n,
        "precision": precision,
        "status": solution.status.name,
        "rungs": list(solution.rungs),
        "steps": int(solution.iterations.max()),
        "bytes_planned": solution.bytes_planned,
        "bytes_free_beside_a": free,
        "residual": scaled_residual(cupy, a, solution.x, b),
    }
    row["passed"] = passed(row["residual"])
    del solution
    phases.clear()
    # All blocks are freed, because a small array could take a part of the free block that held the factors.
    # At the largest n the memory has no room for another such block.
    cupy.get_default_memory_pool().free_all_blocks()
    samples = device_seconds(run, repeats)
    # The first phases belong to the warm-up.
    factor = sorted(p["factor"] for p in phases[-len(samples) :])
    row["solve_seconds"], row["factor_seconds"] = summary(samples), summary(factor)
    row["phases"] = phases[-1]
    row["solve_tflops"] = solve_tflops(n, row["solve_seconds"]["median"])
    row["lu_tflops"] = lu_tflops(n, row["factor_seconds"]["median"])
    return row


def measure_largest(precision, repeats):
    """Return the row of the largest n that runs: start at the predicted n, and reduce it while it fails."""
    import cupy

    import tcsolve

    predicted = n = predicted_largest(precision)
    while n > 0:
        try:
            row = measure(n, precision, repeats)
            return row | {"largest": True, "predicted_largest": predicted}
        except (tcsolve.DeviceMemoryError, cupy.cuda.memory.OutOfMemoryError) as error:
            print(f"n = {n} does not fit: {error}", flush=True)
        # The traceback keeps arrays alive until the except clause ends; from here on their memory is free.
        n -= STEP
        cupy.get_default_memory_pool().free_all_blocks()
    raise SystemExit(f"no multiple of {STEP} fits in the memory of this device")


# ---- writing -----------------------------------------------------------------------------------


def line(row):
    """Return the printed line of a row."""
    largest = (
        f"  largest n that fits (predicted {row['predicted_largest']})" if "largest" in row else ""
    )
    if not row["passed"]:
        return f"n {row['n']:6} {row['precision']:7} INVALID: residual {row['residual']:.3g} > 16{largest}"
    return (
        f"n {row['n']:6} {row['precision']:7} LU {row['lu_tflops']:6.1f} TFLOP/s"
        f" ({1e3 * row['factor_seconds']['median']:.1f} ms)"
        f"  solve {row['solve_tflops']:6.1f} TFLOP/s ({1e3 * row['solve_seconds']['median']:.1f} ms)"
        f"  residual {row['residual']:.2g} <= 16  {row['steps']} steps {'>'.join(row['rungs'])}{largest}"
    )


def page(facts, rows):
    """Return the Markdown page of the rows."""
    body = [
        [
            f"{r['n']} (largest)" if "largest" in r else r["n"],
            r["precision"],
            f"{r['lu_tflops']:.0f}" if r["passed"] else "-",
            f"{r['solve_tflops']:.0f}" if r["passed"] else "-",
            f"{1e3 * r['factor_seconds']['median']:.1f}",
            f"{1e3 * r['solve_seconds']['median']:.1f}",
            r["steps"],
            f"{r['residual']:.2g}" + ("" if r["passed"] else " (invalid)"),
        ]
        for r in rows
    ]
    head = ["n", "precision", "LU, TFLOP/s", "whole solve, TFLOP/s", "LU, ms", "solve, ms"]
    lines = ["# HPL-MxP on one GPU", ""]
    lines += [
        "`benchmarks/hpl_mxp.py` states the rules and the differences from the reference.",
        "",
    ]
    lines += [table([*head, "steps", "scaled residual (at most 16)"], body), ""]
    return "\n".join([*lines, source(facts, "benchmarks/hpl_mxp.py")]) + "\n"


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, nargs="*", default=[8192, 16384, 32768, 65536])
    parser.add_argument("--precision", nargs="+", default=["fp16", "fp16x3"])
    parser.add_argument("--largest", action="store_true", help="also the largest n that fits")
    parser.set_defaults(json=RESULTS / "hpl_mxp.json", repeats=3)
    options = unless_drawn(parser, page)
    if options is None:
        return
    import cupy

    facts, rows = machine(options.commit) | gpu(), []
    jobs = [(n, precision) for n in options.n for precision in options.precision]
    # The largest n is measured with the first precision only.
    jobs += [(None, options.precision[0])] if options.largest else []
    for n, precision in jobs:
        if n is None:
            row = measure_largest(precision, options.repeats)
        else:
            row = measure(n, precision, options.repeats)
        rows.append(row)
        print(line(row), flush=True)
        save(options.json, facts, rows)
        cupy.get_default_memory_pool().free_all_blocks()
    options.json.with_suffix(".md").write_text(page(facts, rows))


if __name__ == "__main__":
    main()
