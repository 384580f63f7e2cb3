"""The steps with FP16 factors without tensor cores, by models on a CPU, for small problems.

tcsolve has no LU in FP16 without tensor cores.  A model takes its place, which rounds the result of every
operation to FP16.  Only the refinement steps with its factors are counted.  A second model is an LU on tensor
cores: the operands of updates between panels of `BLOCK` columns are rounded to FP16, and sums are in FP32.
"""

import math

from tcsolve import Plan

__all__ = ["EACH", "EMULATED", "lines", "plans"]

BLOCK = 32  # so narrow that also small matrices have updates
SIZES = (400, 1000)
KINDS = (*(f"type {i}" for i in range(1, 7)), "boundary", "covariance")
# The Poisson matrix needs a square n.
POISSON = {400: 400, 1000: 1024}
EMULATED = tuple(f"{kind}:{n}" for n in SIZES for kind in KINDS) + tuple(
    f"poisson:{n}" for n in POISSON.values()
)
EACH, TENSOR = "FP16, every operation rounded", "FP16 on tensor cores, model"


def plans(steps):
    """Return {name: Plan}; `steps` are the options of a plan about its steps."""
    return {EACH: Plan("fp16@each", **steps), TENSOR: Plan("fp16", block=BLOCK, **steps)}


def cell(row):
    """Return the steps as text."""
    if row.get("solved"):
        return str(row["steps"])
    return "no LU" if math.isnan(row.get("backward_error", 0.0)) else "–"


def lines(facts, rows):
    """Return the lines of the page about the steps of the models."""
    if not rows:
        return []
    told = [
        "## FP16 without tensor cores, for small n",
        "",
        f"The steps of FGMRES by models on a CPU. '{EACH}': the result of each operation of the LU is "
        f"rounded to FP16, as without tensor cores. '{TENSOR}': the operands of the updates between panels "
        f"of {BLOCK} columns are rounded to FP16, and sums and panels are in FP32. A dash: not solved to the "
        "bound; 'no LU': a pivot leaves the range of FP16, or is zero. In the LU of type 4 the entries grow.",
        "",
        f"| problem | n | kappa | {EACH} | {TENSOR} |",
        "| --- " * 5 + "|",
    ]
    for problem in dict.fromkeys(row["problem"] for row in rows):
        here = {row["solver"]: row for row in rows if row["problem"] == problem}
        first = next(iter(here.values()))
        steps = [cell(here.get(name, {})) for name in (EACH, TENSOR)]
        cells = [problem, str(first["n"]), f"{first['kappa']:.1e}", *steps]
        told.append("| " + " | ".join(cells) + " |")
    made = f"commit {facts['commit']}, {facts['date']}"
    return [
        *told,
        "",
        f"Computed with `benchmarks/training.py --emulated` on {facts['cpu']}; {made}.",
        "",
    ]
