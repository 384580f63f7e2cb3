"""How long does solve take on the CPU, compared with scipy.linalg.solve?

    python benchmarks/cpu.py --n 16 200 1000 4000 --json results/cpu.json

Samples of both alternate, so that a busy machine slows both.  The answer is checked first.
"""

import time

import numpy as np
import scipy.linalg
from _harness import arguments, backward_error, machine, save, summary

import tcsolve


def interleaved(runs, repeats):
    """Return the sorted seconds of each function; their samples alternate."""
    samples = [[] for _ in runs]
    for i in range(repeats + 2):
        for run, seconds in zip(runs, samples, strict=True):
            start = time.perf_counter()
            run()
            if i > 1:
                seconds.append(time.perf_counter() - start)
    return [sorted(seconds) for seconds in samples]


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, nargs="+", default=[16, 64, 200, 500, 1000, 2000, 4000])
    parser.add_argument(
        "--emulated", action="store_true", help="time each emulated precision as well"
    )
    options = parser.parse_args()
    facts, rows = machine(options.commit), []
    names = ["auto"] + ["fp16", "bf16", "tf32", "fp16x3", "fp32", "fp64"] * options.emulated
    print("     n  precision       scipy ms   tcsolve ms   ratio   backward errors")
    for n in options.n:
        rng = np.random.default_rng(7)
        a = rng.standard_normal((n, n))
        b = a @ np.ones(n)
        for name in names:
            solution = tcsolve.solve_ex(a, b, precision=name)
            assert solution.status.ok, solution
            repeats = options.repeats if n > 1000 else max(options.repeats, 100_000 // n**2 * 10)
            by_scipy, by_us = interleaved(
                (
                    lambda a=a, b=b: scipy.linalg.solve(a, b),
                    lambda a=a, b=b, name=name: tcsolve.solve(a, b, precision=name),
                ),
                min(repeats, 2000),
            )
            row = {
                "n": n,
                "precision": name,
                "used": solution.precision,
                "scipy": summary(by_scipy),
                "tcsolve": summary(by_us),
                "backward_error": float(solution.backward_error[0]),
                "scipy_backward_error": backward_error(np, a, scipy.linalg.solve(a, b), b),
            }
            rows.append(row)
            ratio = row["scipy"]["median"] / row["tcsolve"]["median"]
            print(
                f"{n:6}  {name + ':' + solution.precision:13} {1e3 * row['scipy']['median']:10.3f} "
                f"{1e3 * row['tcsolve']['median']:12.3f} {ratio:7.2f}   "
                f"{row['backward_error']:.1e} {row['scipy_backward_error']:.1e}",
                flush=True,
            )
            save(options.json, facts, rows)


if __name__ == "__main__":
    main()
