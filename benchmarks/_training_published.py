"""Compare the figures of `training.py` with published ones, and count those that agree.

A figure that differs has a reason, or it is counted as not explained.

The published figures are those of abstracts, a manual and a pull request, on other GPUs; all but one are for
large n.  The tables of the paper `HAIDAR`, with a row for each matrix, were not at hand.  The paper `SC18`
has rows for single matrices, too.  These rows are known, but their matrices were not at hand, so the rows are
only quoted.
"""

import json
from statistics import median
from typing import NamedTuple

from _harness import RESULTS

__all__ = ["AGREE", "UNEXPLAINED", "beside"]

AGREE, UNEXPLAINED = "agree", "not explained"
# A figure agrees if it differs by at most a fifth from the published one, or from the nearest end of a range.
SHARE = 0.2
HAIDAR = "A. Haidar et al., Proc. R. Soc. A 476 (2020), 20200110, Quadro GV100"
SC18 = "A. Haidar, S. Tomov, J. Dongarra, N. J. Higham, SC18, 2018, V100"
CUSOLVER = "NVIDIA's manual of cuSOLVER, for large n"
CUPY = "pull request 3917 of CuPy, n = 1000, GV100"
# FP16 on tensor cores compared with FP64, by HAIDAR.
SPEED_UP, ENERGY = (4.0, 5.0), (5.0, 5.0)
DOMINANT = ("poisson", "type 1")
# The order of an LU that was timed alone may differ from that of the problem by this part.
NEAR = 0.1
# Largest order of the problems that are compared with CUPY, and smallest order of the large problems.
SMALL, LARGE = 2048, 8192
FP16, PRODUCTS = "FP16 on tensor cores", "three FP16 products"
# If a solver with fewer steps saves at least this part of the time of a solve, the steps of the solve are
# counted as most of its time.
MOST = 0.5
# If a solve in FP64 of small n reaches at most this part of the largest FP64 rate, fixed costs are counted as
# most of its time.
FIXED = 0.1
REASONS = (
    "a: the matrix is diagonally dominant, so our LU omits most or all of the search for pivots.",
    "b: the LU alone, of a random matrix of about this order, is at least 3.2 times as fast as in FP64 "
    "([lu](lu.md)). The cell has its milliseconds and those of the solve. The rest is outside of the LU: "
    "copies, the steps, and the checks of x.",
    "c: most of the time goes to the steps. The solve with three FP16 products takes longer for its LU, but "
    "it takes fewer steps and at most half of the time. The cell has the steps and milliseconds of both.",
    f"d: n is at most {SMALL}, and the solve in FP64 reaches at most a tenth of its largest rate for any "
    "problem. So costs that do not grow with n^3, such as launches, copies and checks, take most of the "
    "time. The cell has both rates.",
)


class PublishedRow(NamedTuple):
    """Seconds on a V100, and steps; the solvers are FP64, FP32, FP16 without and with tensor cores."""

    matrix: str
    n: int
    kappa: float
    fp64: float
    fp32: tuple
    fp16: tuple
    tensor: tuple


# The rows of SC18 for matrices of applications, as they are remembered.
SC18_ROWS = (
    PublishedRow("em192", 26896, 1e6, 5.70, (3, 3.11), (40, 5.21), (10, 2.05)),
    PublishedRow("appu", 14000, 1e4, 0.43, (2, 0.27), (7, 0.24), (4, 0.19)),
    PublishedRow("ns3Da", 20414, 7.6e3, 1.12, (2, 0.69), (6, 0.54), (4, 0.43)),
    PublishedRow("nd6k", 18000, 3.5e2, 0.81, (2, 0.45), (5, 0.36), (3, 0.30)),
    PublishedRow("nd12k", 36000, 4.3e2, 5.36, (2, 2.75), (5, 1.76), (3, 1.31)),
)


def beside(rows):
    """Return the lines of the page that compare with published figures; none without times of a GPU."""
    found = [row for row in by_problem(rows) if row["speed-up"] is not None]
    if not found or "cuSOLVER FP32" not in {row["solver"] for row in rows}:
        return []
    lines = [
        "## Comparison with published figures",
        "",
        f"FP16 on tensor cores compared with FP64. Theirs: {HAIDAR}: 4 to 5 times as fast, 5 times the "
        "energy efficiency, on large problems. Their rows for each matrix were not at hand, so each of our "
        "rows is compared with this figure.",
        "",
        "| problem | n | steps | speed-up, theirs 4 to 5 | verdict | energy, theirs 5 | verdict |",
        "| --- " * 7 + "|",
    ]
    verdicts = []
    for row in found:
        cells = [row["problem"], row["n"], row["steps"]]
        for what, theirs in (("speed-up", SPEED_UP), ("energy", ENERGY)):
            verdict = explained(row, what, theirs)
            verdicts += [verdict] if verdict else []
            cells += [told(row[what]), verdict or "–"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return [
        *lines,
        "",
        *(f"- {reason}" for reason in REASONS),
        "",
        counted(verdicts),
        "",
        *others(rows, found),
        *quoted(),
    ]


def by_problem(rows):
    """Return for each problem the speed-up of FP16 over FP64, and the quotient of their energies."""
    found = []
    for problem in dict.fromkeys(row["problem"] for row in rows):
        here = {row["solver"]: row for row in rows if row["problem"] == problem}
        base, fp16, products = (here.get(name, {}) for name in ("FP64", FP16, PRODUCTS))
        n = next(iter(here.values()))["n"]
        found.append(
            {
                **{"problem": problem, "n": n, "rate": seconds(base) and rate(n, seconds(base))},
                **{"steps": fp16.get("steps"), "seconds": seconds(fp16)},
                "products": (products.get("steps"), seconds(products)),
                "speed-up": quotient(base, fp16, seconds),
                "energy": quotient(base, fp16, joules),
                "dominant": problem.startswith(DOMINANT),
            }
        )
    top = max((row["rate"] for row in found if row["rate"]), default=None)
    return [row | {"top rate": top} for row in found]


def rate(n, taken):
    """Return the TFLOP/s of an LU that takes `taken` seconds."""
    return 2 / 3 * n**3 / taken / 1e12


def lu_alone(n, dominant):
    """Return the seconds of our FP16 LU and of dgetrf for about this order; None if they were not timed."""
    family = "gauss_dominant" if dominant else "gauss"
    timed = json.loads((RESULTS / "lu.json").read_text())["rows"]
    near = [r for r in timed if r["family"] == family and abs(r["n"] - n) <= NEAR * n]
    found = {row["what"]: seconds(row) for row in near}
    return (found["fp16"], found["dgetrf"]) if {"fp16", "dgetrf"} <= found.keys() else None


def seconds(row):
    return row.get("seconds", {}).get("median")


def joules(row):
    return row.get("joules")


def quotient(base, other, of):
    """Return of(base) / of(other), None if one is not known."""
    return of(base) / of(other) if of(base) and of(other) else None


def close(ours, theirs):
    """Tell whether a figure is in the range, which is widened by `SHARE`."""
    return theirs[0] * (1 - SHARE) <= ours <= theirs[1] * (1 + SHARE)


def explained(row, what, theirs):
    """Return the verdict on a figure: AGREE, UNEXPLAINED or a reason of `REASONS`; None without a figure."""
    ours = row[what]
    if ours is None:
        return None
    if close(ours, theirs):
        return AGREE
    if ours > theirs[1]:
        return "a" if row["dominant"] else UNEXPLAINED
    found = [reason for reason in (of_small_n(row), of_the_steps(row)) if reason]
    return "; ".join(found) or of_the_rest(row, theirs) or UNEXPLAINED


def of_the_steps(row):
    """Return reason c if a solve with a slower LU but fewer steps saves most of the time, else None."""
    steps, taken = row["products"]
    if taken is None or not steps < row["steps"] or taken > (1 - MOST) * row["seconds"]:
        return None
    return (
        f"c: {row['steps']} steps in {1e3 * row['seconds']:.0f} ms, {steps} in {1e3 * taken:.0f} ms"
    )


def of_the_rest(row, theirs):
    """Return reason b, or None.

    The speed-up of the LU alone must agree with the published one, or exceed it, and the LU alone must take
    less time than the solve.
    """
    alone = lu_alone(row["n"], row["dominant"])
    if alone and alone[1] / alone[0] >= theirs[0] * (1 - SHARE) and alone[0] < row["seconds"]:
        return f"b: {1e3 * alone[0]:.0f} of {1e3 * row['seconds']:.0f} ms"
    return None


def of_small_n(row):
    """Return reason d if n is small and not even FP64 comes near its largest rate, else None."""
    if row["n"] > SMALL or not row["rate"] or row["rate"] > FIXED * row["top rate"]:
        return None
    return f"d: {row['rate']:.1f} of {row['top rate']:.0f} TFLOP/s"


def quoted():
    """Return the lines of the published rows that have no counterpart."""
    lines = [
        f"Rows of {SC18}, as they are remembered; they were not checked against the paper. Steps, seconds, "
        "and speed-up over FP64. The matrices were not at hand.",
        "",
        "| matrix | n | kappa | FP64 | FP32 | FP16 without tensor cores | FP16 on tensor cores | ours |",
        "| --- " * 8 + "|",
    ]
    for row in SC18_ROWS:
        cells = [
            f"{steps}, {taken:.2f}, {row.fp64 / taken:.2f}x"
            for steps, taken in (row.fp32, row.fp16, row.tensor)
        ]
        cells = [row.matrix, str(row.n), f"{row.kappa:.1e}", f"{row.fp64:.2f}", *cells]
        lines.append("| " + " | ".join(cells) + " | matrix not at hand |")
    return [*lines, ""]


def others(rows, found):
    """Return the lines of the other published figures."""
    general = [row for row in found if not row["dominant"]]
    cusolver = {
        name: [
            (row["n"], gain)
            for row in rows
            if row["solver"] == name and (gain := quotient(of_fp64(rows, row), row, seconds))
        ]
        for name in ("cuSOLVER FP32", "cuSOLVER FP16")
    }
    small = [gain for n, gain in cusolver["cuSOLVER FP16"] if n <= SMALL]
    fp32, fp16 = ([gain for n, gain in found if n >= LARGE] for found in cusolver.values())
    best = {
        what: max((r[what] for r in general if r[what] is not None), default=None)
        for what in ("speed-up", "energy")
    }
    table = [
        (f"largest speed-up of FP16, {SC18}", "up to 4", best["speed-up"], (4.0, 4.0)),
        (f"energy of FP16, {SC18}", "5 times less", best["energy"], (5.0, 5.0)),
        (f"cuSOLVER FP32, {CUSOLVER}", "at most 2", largest(fp32), (0.0, 2.0)),
        (f"cuSOLVER FP16, {CUSOLVER}", "3 to 4", largest(fp16), (3.0, 4.0)),
        (f"cuSOLVER FP16, {CUPY}", "1.07", median(small) if small else None, (1.07, 1.07)),
    ]
    lines = [
        "Other published figures. Our figures for FP16 are the largest ones of matrices that are not "
        "dominant. Those of cuSOLVER are speed-ups over our FP64: the largest one for n from "
        f"{LARGE} on, and for small n the median for n up to {SMALL}.",
        "",
        "| figure | theirs | ours | verdict |",
        "| --- " * 4 + "|",
    ]
    verdicts = []
    for what, theirs, ours, bounds in table:
        verdict = None if ours is None else AGREE if close(ours, bounds) else UNEXPLAINED
        verdicts += [verdict] if verdict else []
        lines.append(f"| {what} | {theirs} | {told(ours)} | {verdict or '–'} |")
    return [*lines, "", counted(verdicts), ""]


def of_fp64(rows, row):
    """Return our FP64 row of the problem of a row."""
    same = (r for r in rows if (r["problem"], r["solver"]) == (row["problem"], "FP64"))
    return next(same, {})


def largest(values):
    return max(values, default=None)


def counted(verdicts):
    """Return the sentence that counts the verdicts."""
    agree, left = verdicts.count(AGREE), verdicts.count(UNEXPLAINED)
    return (
        f"Of {len(verdicts)} figures {agree} agree, {len(verdicts) - agree - left} differ for the reason in "
        f"their row, and {left} are not explained. A figure agrees if it differs by at most a fifth."
    )


def told(value):
    return "–" if value is None else f"{value:.2f}"
