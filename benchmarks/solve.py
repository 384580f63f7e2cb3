"""How long does solve take on the GPU, compared with the fastest alternatives, and how good is each answer?

    python benchmarks/solve.py --n 1024 4096 16384 --family gauss svd_geo

The matrix and one right-hand side are FP64 on the device.  cuSOLVER gets copies of its inputs, A in
column-major order; these copies are not timed.  The copies that CuPy and torch make are timed.  The backward
error of every answer is printed; ours must meet its bound.
"""

import warnings

import cupy
import numpy as np
from _harness import RESULTS, arguments, backward_error, device_seconds, gpu, machine, save, summary
from cupy_backends.cuda.libs import cusolver

import tcsolve

FAMILIES = {
    "gauss": "standard normal entries",
    "gauss_dominant": "standard normal + n I",
    "svd_geo": "geometric singular values, condition 1e4",
}
# For n <= SMALL there are at least SMALL_SAMPLES samples, for n >= LARGE at most LARGE_SAMPLES.
SMALL, SMALL_SAMPLES = 4096, 25
LARGE, LARGE_SAMPLES = 32768, 3


def samples_of(n, repeats):
    """Return the number of samples: more for short solves, because the time of the host varies."""
    if n <= SMALL:
        return max(repeats, SMALL_SAMPLES)
    return repeats if n < LARGE else min(repeats, LARGE_SAMPLES)


def matrix(family, n, seed=7):
    """Return an FP64 matrix of the family on the device."""
    rng = cupy.random.default_rng(seed)
    a = rng.standard_normal((n, n))
    if family == "gauss_dominant":
        a[cupy.arange(n), cupy.arange(n)] += n
    if family == "svd_geo":
        u = cupy.linalg.qr(a)[0]
        v = cupy.linalg.qr(rng.standard_normal((n, n)))[0]
        a = (u * 1e4 ** (-cupy.arange(n) / (n - 1))) @ v
    return a


def vendor(letters):
    """Return a solver that calls cuSOLVER's mixed-precision gesv, such as 'dh'; A is Fortran-ordered."""
    size_of = getattr(cusolver, f"{letters}gesv_bufferSize")
    gesv = getattr(cusolver, f"{letters}gesv")

    def run(arguments):
        a, b = arguments
        n = len(b)
        handle = cupy.cuda.device.get_cusolver_handle()
        x, ipiv = cupy.empty_like(b), cupy.empty(n, cupy.int32)
        info = cupy.empty(1, cupy.int32)
        size = size_of(handle, n, 1, a.data.ptr, n, ipiv.data.ptr, b.data.ptr, n, x.data.ptr, n, 0)
        work = cupy.empty(size, cupy.uint8)
        steps = gesv(
            handle, n, 1, a.data.ptr, n, ipiv.data.ptr, b.data.ptr, n, x.data.ptr, n,
            work.data.ptr, size, info.data.ptr,
        )  # fmt: skip
        return x, int(steps)

    return run


def solvers(a, b, precisions):
    """Yield (name, prepare, run); run returns (x, steps)."""

    def ours(precision):
        # `solve` warns if x misses the bound; `main` makes this warning an error.
        return lambda _: (tcsolve.solve(a, b, precision=precision, assume_a="general"), "")

    for precision in precisions:
        yield f"tcsolve {precision}", lambda: None, ours(precision)
    yield "cupy.linalg.solve", lambda: None, lambda _: (cupy.linalg.solve(a, b), "")
    try:
        import torch
    except ImportError:
        pass
    else:
        ta, tb = torch.from_dlpack(a), torch.from_dlpack(b)

        def by_torch(_):
            x = torch.linalg.solve(ta, tb)
            torch.cuda.synchronize()
            return cupy.from_dlpack(x), ""

        yield "torch.linalg.solve", lambda: None, by_torch
    if len(b) < 46341:  # for larger n, cuSOLVER's 32-bit n * n overflows, and it crashes
        for letters in ("ds", "dh", "dx"):
            prepare = lambda: (cupy.asfortranarray(a.copy()), b.copy())  # noqa: E731
            yield f"cuSOLVER {letters}gesv", prepare, vendor(letters)


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384, 32768])
    parser.add_argument(
        "--family", nargs="+", choices=FAMILIES, default=["gauss", "gauss_dominant"]
    )
    parser.add_argument("--precision", nargs="+", default=["auto"])
    parser.set_defaults(json=RESULTS / "solve.json")
    options = parser.parse_args()
    warnings.simplefilter("error", tcsolve.AccuracyWarning)
    facts = machine(options.commit) | gpu()
    rows = []
    for family in options.family:
        for n in options.n:
            a = matrix(family, n)
            b = a @ cupy.ones(n)
            for name, prepare, run in solvers(a, b, options.precision):
                row = {"family": family, "n": n, "solver": name}
                try:
                    x, steps = run(prepare())
                    row["backward_error"] = backward_error(cupy, a, x, b)
                    row["steps"] = steps
                    repeats = samples_of(n, options.repeats)
                    row["seconds"] = summary(device_seconds(run, repeats, prepare=prepare))
                except Exception as error:  # a peer that fails is a result, too
                    row["error"] = f"{type(error).__name__}: {error}"
                if name.startswith("tcsolve") and "error" not in row:
                    solution = tcsolve.solve_ex(a, b, precision=name.split()[1], assume_a="general")
                    row["steps"] = f"{int(solution.iterations.max())} {'>'.join(solution.rungs)}"
                    # The phases of `solve_ex` always include a condition estimate.
                    row["phases"] = solution.seconds
                rows.append(row)
                print(line(row), flush=True)
                save(options.json, facts, rows)
            fastest(rows, family, n)
            del a, b
            cupy.get_default_memory_pool().free_all_blocks()


def line(row):
    """Return one line of the printed table."""
    head = f"{row['family']:15} {row['n']:6} {row['solver']:22}"
    if "error" in row:
        return f"{head} failed: {row['error'][:300]}"
    n = row["n"]
    phases = {k: round(1e3 * v, 2) for k, v in row.get("phases", {}).items() if v > 5e-5}
    return (
        f"{head} {1e3 * row['seconds']['median']:9.2f} ms  backward error {row['backward_error']:.1e}"
        f" (bound {2.0**-53 * np.sqrt(n):.1e})  {row['steps']} {phases or ''}"
    )


def fastest(rows, family, n):
    """Print our speed-up over the fastest peer."""
    here = [r for r in rows if (r["family"], r["n"]) == (family, n) and "seconds" in r]
    peers = [r for r in here if not r["solver"].startswith("tcsolve")]
    ours = [r for r in here if r["solver"] == "tcsolve auto"]
    if peers and ours:
        best = min(peers, key=lambda r: r["seconds"]["median"])
        ratio = best["seconds"]["median"] / ours[0]["seconds"]["median"]
        print(f"{family:15} {n:6} speed-up {ratio:.2f} over {best['solver']}\n", flush=True)


if __name__ == "__main__":
    main()
