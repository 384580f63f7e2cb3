"""What does an x that is accurate to its last bits cost, compared with one with a small backward error?

    python benchmarks/accurate.py                # on the host
    python benchmarks/accurate.py --cuda         # on a GPU

Each system is solved with residual='fp64' and with residual='double-double'.  The sizes, the condition
numbers, and the precisions of the first factors are below.  The error of x is its difference from a
reference: the x by FP64 factors and double-double residuals.  Tests compare such references with exact
fractions.
"""

import functools

import numpy as np
from _harness import arguments, device_seconds, gpu, host_seconds, machine, save

import tcsolve
from tcsolve import Plan, matrices

SIZES = {"host": (200, 500, 1000, 2000), "cuda": (1000, 4000)}
CONDITIONS = (1e2, 1e6, 1e10, 1e14, 1e15)
PRECISIONS = {"host": ("fp32", "fp64"), "cuda": ("fp16x3", "fp64")}


def system(n, cond):
    """Return a, whose singular values decrease geometrically, and a random b."""
    problem = matrices.generate("svd_geo", n, cond=cond, seed=1)
    return problem.a, np.random.default_rng(1).standard_normal(n)


def measure(xp, n, cond, precision, repeats):
    """Return the rows of both residuals."""
    a, b = (xp.asarray(x) for x in system(n, cond))
    best = tcsolve.solve_ex(a, b, precision="fp64", residual="double-double").x
    clock, rows = host_seconds if xp is np else device_seconds, []
    for residual in ("fp64", "double-double"):
        run = functools.partial(
            tcsolve.solve_ex,
            a,
            b,
            precision=Plan(precision),
            residual=residual,
            device="cpu" if xp is np else "cuda",
        )
        found = run()
        seconds = clock(run, repeats)
        rows.append(
            {
                "n": n,
                "cond": cond,
                "precision": precision,
                "residual": residual,
                "status": found.status.name,
                "rungs": list(found.rungs),
                "steps": int(found.iterations[0]),
                "backward_error": float(found.backward_error[0]),
                "error": float(xp.abs(found.x - best).max() / xp.abs(best).max()),
                "estimate": None if found.forward_error is None else float(found.forward_error[0]),
                "seconds": seconds[len(seconds) // 2],
            }
        )
    return rows


def line(row, plain):
    estimate = "" if row["estimate"] is None else f" (estimated {row['estimate']:.1e})"
    return (
        f"n {row['n']:6} cond {row['cond']:.0e} {row['precision']:6} {row['residual']:13} "
        f"{'+'.join(row['rungs']):12} {row['status']:24} {row['steps']:4} steps, error {row['error']:.1e}"
        f"{estimate}, {1e3 * row['seconds']:9.2f} ms, {row['seconds'] / plain:5.2f} times"
    )


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--cuda", action="store_true", help="solve on a GPU")
    parser.add_argument("--sizes", type=int, nargs="+", help="orders of the systems")
    options = parser.parse_args()
    place, xp, facts = "host", np, machine(options.commit)
    if options.cuda:
        import cupy

        place, xp, facts = "cuda", cupy, facts | gpu()
    rows = []
    for n in options.sizes or SIZES[place]:
        for cond in CONDITIONS:
            for precision in PRECISIONS[place]:
                pair = measure(xp, n, cond, precision, options.repeats)
                for row in pair:
                    print(line(row, pair[0]["seconds"]), flush=True)
                rows += pair
                save(options.json, facts, rows)


if __name__ == "__main__":
    main()
