"""How close do gemm_batched and cuBLAS come to the speed of a copy, for each size and length of a batch?

    python benchmarks/gemm_batched.py                                 # results/gemm_batched.json and figures
    python benchmarks/gemm_batched.py --from benchmarks/results/gemm_batched.json     # only the figures

The first and the last products must meet the bound of gemm_bound before a time is printed.  The bytes are
those of both operands and the result, each counted once.  The copy moves the same number of bytes.
"""

import numpy as np
from _figures import add_arguments, by, figure, finish, load, ticks, try_to_draw
from _harness import arguments, gpu, machine, save, summary
from _steady import steady_seconds

from tcsolve import gemm_batched, gemm_bound

# (dtype of the operands, dtype of the result, rounding error of storing the result).
CASES = {
    "FP16 -> FP32": (np.float16, np.float32, 2.0**-24),
    "FP16 -> FP16": (np.float16, np.float16, 2.0**-11),
    "FP32": (np.float32, np.float32, 2.0**-24),
    "INT8": (np.int8, np.int32, 0),
}
SIZES = (4, 5, 7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64)
LENGTHS = (100, 1000, 10_000, 100_000)
CHECKED = 64
# cuBLAS's types by dtype.
KIND = {"float16": 2, "float32": 0, "int8": 3, "int32": 10}


def stacks(batch, n, dtype, seed=1):
    """Yield a and b, (batch, n, n) on the device."""
    import cupy

    rng = cupy.random.default_rng(seed)
    for _ in range(2):
        if dtype == np.int8:
            yield rng.integers(-128, 128, (batch, n, n)).astype(np.int8)
        else:
            yield rng.standard_normal((batch, n, n), dtype=np.float32).astype(dtype)


def by_cublas(a, b, out):
    """Return a function that calls cuBLAS's strided batch."""
    from cupy_backends.cuda.libs import cublas

    from tcsolve._backends.cuda.runtime import cublas_calls

    batch, n, _ = a.shape
    compute = cublas_calls.COMPUTE_32I if a.dtype == np.int8 else cublas_calls.COMPUTE_32F
    scalars = np.array([1, 0], np.int32 if a.dtype == np.int8 else np.float32)
    kind, result = KIND[a.dtype.name], KIND[out.dtype.name]
    op = cublas.CUBLAS_OP_N

    def run():
        cublas.gemmStridedBatchedEx(
            cublas_calls.handle(), op, op, n, n, n, scalars.ctypes.data, b.data.ptr, kind, n, n * n,
            a.data.ptr, kind, n, n * n, scalars.ctypes.data + scalars.itemsize, out.data.ptr,
            result, n, n * n, batch, compute, cublas_calls.GEMM_DEFAULT,
        )  # fmt: skip
        return out

    return run


def bound_factor(a, b, who):
    """Return the factor of gemm_bound for our kernel, or for cuBLAS in the format of the operands."""
    if who == "cuBLAS" and a.dtype == np.float32:
        return gemm_bound(a, b, precision="fp32").bound
    return gemm_bound(a, b, engine="cublas" if who == "cuBLAS" else "auto").bound


def part_of_bound(result, a, b, factor, unit):
    """Return the largest error of the first and last products, relative to its bound.

    If this number is above 1, an error exceeds its bound.
    """
    worst = 0.0
    for part in (slice(CHECKED), slice(-CHECKED, None)):
        x, y = a[part].astype(np.float64), b[part].astype(np.float64)
        exact = x @ y
        norms = (x**2).sum(axis=2)[:, :, None] ** 0.5 * (y**2).sum(axis=1)[:, None, :] ** 0.5
        # The sum is rounded when it is stored, and may be subnormal there.
        bound = factor * norms + unit * abs(exact) + unit * 2.0**-13
        ratio = abs(result[part] - exact) / np.maximum(bound, 1e-300)
        worst = max(worst, float(ratio.max()))
    return worst


def rows_of(case, n, batch, repeats):
    """Yield the rows of gemm_batched, cuBLAS and a copy for one size and length."""
    import cupy

    dtype, stored, unit = CASES[case]
    a, b = stacks(batch, n, dtype)
    out = cupy.empty((batch, n, n), stored)
    total = a.nbytes + b.nbytes + out.nbytes
    source, target = (cupy.empty(total // 2, cupy.uint8) for _ in range(2))
    runs = {
        "tcsolve": lambda: gemm_batched(a, b, out=out),
        "cuBLAS": by_cublas(a, b, out),
        "copy": lambda: cupy.copyto(target, source),
    }
    for name, run in runs.items():
        row = {"case": case, "n": n, "batch": batch, "who": name}
        try:
            out.fill(0)
            result = run()
            if name != "copy":
                row["of_bound"] = part_of_bound(result, a, b, bound_factor(a, b, name), unit)
                if not row["of_bound"] <= 1:
                    row["failed"] = f"error {row['of_bound']:.1e} of its bound"
            if "failed" not in row:
                row["seconds"] = summary(steady_seconds(run, repeats))
                row["bytes_per_second"] = total / row["seconds"]["median"]
                row["tflops"] = 2 * n**3 * batch / row["seconds"]["median"] / 1e12
        except Exception as problem:  # a peer that fails is a result, too
            row["failed"] = f"{type(problem).__name__}: {problem}"
        yield row


def draw(facts, rows, path):
    good = [row for row in rows if "seconds" in row]
    made, axes = figure(
        "Batches of small products", "n (n x n by n x n)", "operands and result, TB/s",
        panels=len(CASES),
    )  # fmt: skip
    long = max((row["batch"] * row["n"] ** 2 for row in good), default=0)
    for axis, case in zip(axes, CASES, strict=True):
        for who in ("tcsolve", "cuBLAS", "copy"):
            here = [r for r in by(good, case=case, who=who) if r["batch"] * r["n"] ** 2 > long / 2]
            axis.semilogx(
                [r["n"] for r in here],
                [r["bytes_per_second"] / 1e12 for r in here],
                "o-",
                label=who,
            )
        axis.set_title(case, fontsize="medium")
        axis.set_ylim(bottom=0)
        ticks(axis, [4, 8, 16, 32, 64])
    finish(made, axes, facts, path)
    made, axes = figure(
        "Batches of 16 x 16 by 16 x 16, FP16 -> FP32", "products in a batch", "rate, TFLOP/s"
    )
    for who in ("tcsolve", "cuBLAS"):
        here = sorted(by(good, case="FP16 -> FP32", who=who, n=16), key=lambda r: r["batch"])
        axes[0].loglog([r["batch"] for r in here], [r["tflops"] for r in here], "o-", label=who)
    finish(made, axes, facts, path.with_name(path.stem + "_length.png"))


def main():
    parser = arguments(__doc__.partition("\n")[0])
    add_arguments(parser, "gemm_batched")
    parser.add_argument("--n", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--entries", type=int, default=1 << 27, help="entries of an operand in all")
    options = parser.parse_args()
    if options.source:
        draw(*load(options.source), options.figure)
        return
    import cupy

    facts, rows = machine(options.commit) | gpu(), []
    plan = [(case, n, options.entries // n**2) for case in CASES for n in options.n]
    plan += [("FP16 -> FP32", 16, length) for length in LENGTHS]
    for case, n, batch in plan:
        for row in rows_of(case, n, batch, options.repeats):
            rows.append(row)
            rate = (
                f"{row['bytes_per_second'] / 1e12:6.2f} TB/s" if "seconds" in row else row["failed"]
            )
            print(f"{case:13} {n:3} {batch:9} {row['who']:8} {rate[:200]}", flush=True)
            save(options.json, facts, rows)
        cupy.get_default_memory_pool().free_all_blocks()
    try_to_draw(draw, facts, rows, options.figure)


if __name__ == "__main__":
    main()
