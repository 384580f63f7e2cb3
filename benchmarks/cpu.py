"""How long does solve take on the CPU, compared with scipy.linalg.solve?

    python benchmarks/cpu.py --n 16 200 1000 4000 --json benchmarks/results/cpu.json
    python benchmarks/cpu.py --emulated --json benchmarks/results/emulated.json    # each precision, too
    python benchmarks/cpu.py --ratios --json benchmarks/results/cpu_ratios.json

Samples of both alternate, so that a busy machine slows both.  Without `--ratios`, the answer is checked
first.  With `--ratios`, many kinds of calls are compared with their fastest peers, and with the ratio that is
wanted; a page is written in the folder of the JSON.
"""

import os
import time

import numpy as np
import scipy.linalg
from _cpu_cases import cases
from _harness import arguments, backward_error, machine, save, summary

import tcsolve

# Time of the samples of a case, and the n of the row on rcond.
SAMPLE_SECONDS, LARGE = 0.25, 4000


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


def compare(case, repeats):
    """Return the row of a `Case`."""
    start = time.perf_counter()
    case.ours()
    took = time.perf_counter() - start
    count = max(repeats, min(1000, int(SAMPLE_SECONDS / max(took, 1e-6))))
    extra = (case.least,) if case.least else ()
    ours, *others = interleaved((case.ours, *extra, *case.peers.values()), count)
    least, peers = others[: len(extra)], others[len(extra) :]
    best = min(range(len(peers)), key=lambda i: summary(peers[i])["median"])
    ratio = summary(ours)["median"] / summary(peers[best])["median"]
    excess = summary(ours)["median"] - summary(peers[best])["median"]
    return {
        "group": case.group,
        "case": case.name,
        "n": case.n,
        "tcsolve": summary(ours),
        "peer": list(case.peers)[best],
        "peer_seconds": summary(peers[best]),
        "ratio": ratio,
        "ratio_of_minima": ours[0] / peers[best][0],
        "excess": excess,
        "wanted": case.wanted,
        "wanted_excess": case.excess,
        "met": ratio <= case.wanted if case.excess is None else excess <= case.excess,
    } | ({"least": summary(least[0])} if least else {})


def share_of_rcond(n, repeats):
    """Return the row of the time of rcond in a solve with n unknowns."""
    a = np.random.default_rng(7).standard_normal((n, n))
    b = a @ np.ones(n)
    seconds = [tcsolve.solve_ex(a, b).seconds for _ in range(repeats + 1)][1:]
    shares = sorted(part["rcond"] / part["total"] for part in seconds)
    share = shares[len(shares) // 2]
    row = {"group": "rcond", "case": "part of solve_ex", "n": n, "ratio": share, "wanted": 0.1}
    return row | {"peer": "the solve", "met": share <= 0.1}


def in_hindsight(n, repeats, most=40):
    """Return the row of the largest ratio of two times, over k = 1, 2, ..., `most`.

    The first is the time to factor and solve k times with 'auto'.  The second is the shorter of the times
    with FP32 and with FP64 factors.
    """
    rng = np.random.default_rng(7)
    a, systems = rng.standard_normal((n, n)), rng.standard_normal((most, n))

    def seconds(precision):
        """Return the times from the start to the end of each solve, and `replaced_after`."""
        start, found = time.perf_counter(), []
        f = tcsolve.factor(a, precision=precision)
        for b in systems:
            f.solve(b)
            found.append(time.perf_counter() - start)
        return found, f.replaced_after

    runs = [[seconds(name) for name in ("auto", "fp32", "fp64")] for _ in range(repeats)]
    own, low, high = np.median([[found for found, _ in run] for run in runs], axis=0)
    ratio = float((own / np.minimum(low, high)).max())
    after = runs[0][0][1]
    told = f"FP64 factors after {after} solves" if after else "no FP64 factors"
    case = f"largest ratio for 1 to {most} solves; {told}"
    row = {"group": "factor and solve", "case": case, "n": n, "ratio": ratio, "wanted": 2.0}
    return row | {"peer": "the better precision", "replaced_after": after, "met": ratio <= 2.0}


def told(row):
    """Return the cells of a row as text."""
    is_excess = row.get("wanted_excess") is not None
    found = f"{1e6 * row['excess']:+.0f} us" if is_excess else f"{row['ratio']:.2f}"
    wanted = f"+{1e6 * row['wanted_excess']:.0f} us" if is_excess else f"{row['wanted']:.2f}"
    return (
        *(row["group"], row["case"], str(row["n"]), row["peer"]),
        *(f"{1e3 * row[x]['median']:.4g}" if x in row else "" for x in ("peer_seconds", "tcsolve")),
        f"{row['ratio_of_minima']:.2f}" if "ratio_of_minima" in row else "",
        _least_ratio(row),
        *(found, wanted, "yes" if row["met"] else "no"),
    )


def _least_ratio(row):
    """Return a quotient as text: the median seconds of `Case.least` divided by those of the peer."""
    if "least" not in row:
        return ""
    return f"{row['least']['median'] / row['peer_seconds']['median']:.2f}"


HEAD = ("kind", "case", "n", "peer", "peer ms", "tcsolve ms")
HEAD += ("ratio of minima", "library calls alone", "ratio or excess", "wanted", "met")


def page(facts, rows):
    """Return the page of `--ratios`."""
    lines = [
        "# How long do calls take on the CPU, compared with the fastest peer?",
        "",
        "| " + " | ".join(HEAD) + " |",
        "|" + " --- |" * len(HEAD),
        *("| " + " | ".join(told(row)) + " |" for row in rows),
        "",
        "Times are medians.  Samples of tcsolve and of the peer are taken in turn.  The ratio of the "
        "smallest samples is less disturbed by other work on the machine.  SciPy and NumPy verify nothing.  "
        "*Library calls alone*: the time of those solves of LAPACK and products of BLAS that the verified "
        "solve needs, with its corrections, divided by the time of the peer.  If this is above the ratio "
        "that is wanted, that ratio cannot be reached by these steps.  *Ratio or excess*: our time divided "
        "by that of the peer, or, with a sign and us, our time minus that of the peer.  *Wanted* is the "
        "largest that is allowed.  "
        f"Measured with `benchmarks/cpu.py --ratios` on {facts['cpu']}, threads of BLAS: "
        f"{facts['threads']}; numpy {facts['numpy']}, scipy {facts['scipy']}; commit {facts['commit']}, "
        f"{facts['date']}.",
    ]
    return "\n".join(lines) + "\n"


def ratios(options):
    """Measure all cases; print and save them."""
    facts, rows = machine(options.commit), []
    facts["threads"] = os.environ.get("OPENBLAS_NUM_THREADS", "all")
    for case in cases(options.most):
        rows.append(compare(case, options.repeats))
        print("  ".join(told(rows[-1])), flush=True)
    for n in (n for n in (1000, 2000) if n <= options.most):
        rows.append(in_hindsight(n, options.repeats))
        print("  ".join(told(rows[-1])), flush=True)
    if options.most >= LARGE:
        rows.append(share_of_rcond(LARGE, options.repeats))
        print("  ".join(told(rows[-1])), flush=True)
    save(options.json, facts, rows)
    if options.json:
        options.json.with_suffix(".md").write_text(page(facts, rows))


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, nargs="+", default=[16, 64, 200, 500, 1000, 2000, 4000])
    parser.add_argument("--emulated", action="store_true", help="time each fixed precision as well")
    parser.add_argument("--ratios", action="store_true", help="compare many kinds of calls")
    parser.add_argument("--most", type=int, default=LARGE, help="largest n of --ratios")
    options = parser.parse_args()
    if options.ratios:
        return ratios(options)
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
