"""How near to the speed of a copy is gemm_batched, beside cuBLAS, by size and by length of the batch?

    python benchmarks/gemm_batched.py --json results/gemm_batched.json --figure results/gemm_batched.png

The answer is checked against FP64 before its time is printed.  Bytes are those of both operands and the
result, each once; the copy beside them moves as many.

S. Markidis et al. (IPDPSW 2018, abstract) reached 4 TFLOP/s in batches of 16 x 16 on a V100, by a kernel of
their own.  What holds: such products want a kernel of their own.  What changed: memory is five times as fast.
"""

import cupy
import numpy as np
from _figures import add_arguments, by, figure, finish, load
from _harness import arguments, device_seconds, gpu, machine, save, summary
from cupy_backends.cuda.libs import cublas

from tcsolve import _cublas, gemm_batched

CASES = {
    "FP16 -> FP32": (np.float16, np.float32, 2.0**-20),
    "FP16 -> FP16": (np.float16, np.float16, 2.0**-10),
    "FP32": (np.float32, np.float32, 2.0**-20),
    "INT8": (np.int8, np.int32, 0),
}
CHECKED = 64
KIND = {"float16": 2, "float32": 0, "int8": 3, "int32": 10}


def stacks(batch, n, dtype, seed=1):
    rng = cupy.random.default_rng(seed)
    for _ in range(2):
        if dtype == np.int8:
            yield rng.integers(-128, 128, (batch, n, n)).astype(np.int8)
        else:
            yield rng.standard_normal((batch, n, n), dtype=np.float32).astype(dtype)


def by_cublas(a, b, out):
    """Return a function that calls cuBLAS's strided batch."""
    batch, n, _ = a.shape
    compute = 72 if a.dtype == np.int8 else _cublas.COMPUTE_32F
    scalars = np.array([1, 0], np.int32 if a.dtype == np.int8 else np.float32)
    kind, result = KIND[a.dtype.name], KIND[out.dtype.name]
    op = cublas.CUBLAS_OP_N

    def run():
        cublas.gemmStridedBatchedEx(
            _cublas.handle(), op, op, n, n, n, scalars.ctypes.data, b.data.ptr, kind, n, n * n,
            a.data.ptr, kind, n, n * n, scalars.ctypes.data + scalars.itemsize, out.data.ptr,
            result, n, n * n, batch, compute, _cublas.GEMM_DEFAULT,
        )  # fmt: skip
        return out

    return run


def error(result, a, b):
    """Return the largest error of the first and last products, relative to the largest entry."""
    worst = 0.0
    for part in (slice(CHECKED), slice(-CHECKED, None)):
        exact = a[part].astype(np.float64) @ b[part].astype(np.float64)
        worst = max(worst, float(cupy.abs(result[part] - exact).max() / cupy.abs(exact).max()))
    return worst


def rows_of(case, n, batch, repeats):
    """Yield the rows of ours, cuBLAS and a copy for one size and length."""
    dtype, stored, limit = CASES[case]
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
            result = run()
            if name != "copy":
                row["error"] = error(result, a, b)
                if not row["error"] <= max(limit, 1e-15):
                    row["failed"] = f"error {row['error']:.1e}"
            if "failed" not in row:
                row["seconds"] = summary(device_seconds(run, repeats))
                row["bytes_per_second"] = total / row["seconds"]["median"]
                row["tflops"] = 2 * n**3 * batch / row["seconds"]["median"] / 1e12
        except Exception as problem:  # a peer that fails is a result, too
            row["failed"] = f"{type(problem).__name__}: {problem}"
        yield row


def draw(facts, rows, path):
    good = [row for row in rows if "seconds" in row]
    made, axes = figure(
        "Batches of small products", "n (n x n by n x n)", "bytes of operands and result, TB/s",
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
        axis.set_xticks([4, 8, 16, 32, 64], labels=["4", "8", "16", "32", "64"])
        axis.minorticks_off()
    finish(made, axes, facts, path)
    made, axes = figure("FP16 -> FP32, 16 x 16", "products in a batch", "rate, TFLOP/s")
    for who in ("tcsolve", "cuBLAS"):
        here = sorted(by(good, case="FP16 -> FP32", who=who, n=16), key=lambda r: r["batch"])
        axes[0].loglog([r["batch"] for r in here], [r["tflops"] for r in here], "o-", label=who)
    finish(made, axes, facts, path.with_name(path.stem + "_length.png"))


def main():
    parser = arguments(__doc__.partition("\n")[0])
    add_arguments(parser, "gemm_batched")
    sizes = [4, 5, 7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64]
    parser.add_argument("--n", type=int, nargs="+", default=sizes)
    parser.add_argument("--entries", type=int, default=1 << 27, help="entries of an operand in all")
    options = parser.parse_args()
    if options.source:
        draw(*load(options.source), options.figure)
        return
    facts, rows = machine(options.commit) | gpu(), []
    plan = [(case, n, options.entries // n**2) for case in CASES for n in options.n]
    plan += [("FP16 -> FP32", 16, 10**e) for e in range(2, 6)]
    for case, n, batch in plan:
        for row in rows_of(case, n, batch, options.repeats):
            rows.append(row)
            rate = (
                f"{row['bytes_per_second'] / 1e12:6.2f} TB/s" if "seconds" in row else row["failed"]
            )
            print(f"{case:13} {n:3} {batch:9} {row['who']:8} {rate[:200]}", flush=True)
            save(options.json, facts, rows)
        cupy.get_default_memory_pool().free_all_blocks()
    draw(facts, rows, options.figure)


if __name__ == "__main__":
    main()
