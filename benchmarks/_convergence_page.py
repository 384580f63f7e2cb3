"""The page of the study of convergence: its tables, made from the rows of the runs."""

import glob
from collections import defaultdict

import numpy as np
from scipy.stats import mannwhitneyu

__all__ = ["METHODS", "UPDATES", "area", "complete", "page", "rounded"]

UPDATES, METHODS = ("bf16", "fp16", "fp16x3", "fp32"), ("ir", "fgmres")
# The methods of the tables of shares and of scaling.  The tables of predictors and of rules leave out GMRES
# with left preconditioning.
ALL_METHODS = (*METHODS, "gmres")
# Edges of the classes of condition numbers after scaling.
EDGES = (1e2, 1e4, 1e6, 1e8, 1e10)
PREDICTORS = {
    "kappa": "condition number",
    "kappa_scaled": "condition number after scaling",
    "skeel": "condition of Bauer and Skeel",
    "spread": "largest entry / smallest entry",
    "dominance": "diagonal entry / sum of the rest of its row (large is good)",
    "first error": "backward error of the first x",
    "first error x kappa_scaled": "that error times the condition number after scaling",
    "contraction": "contraction of the first step of IR",
}
# Unit roundoff of the operands; and a contraction of the first step of IR that counts as good.
ROUNDOFF, GOOD = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp16x3": 2.0**-24, "fp32": 2.0**-24}, 0.3


def page(table, facts, how):
    """Return the page of the study; `how` are its sentences about the arithmetic."""
    skipped = left_out(table.rows)
    runs = complete(rounded(table))
    if not runs:
        raise SystemExit(
            "no matrix has runs of every plan yet; run the same command again for the rest"
        )
    real = [row for row in runs if row["source"] == "suitesparse"]
    made = [row for row in runs if row["source"] == "generate"]
    unscaled = any(not row["scale"] for row in runs)
    where = f"{facts['gpu']}, {facts['cpu']}" if "gpu" in facts else facts["cpu"]
    lines = [
        f"# Which matrices converge in which precision{', on a GPU' if 'gpu' in facts else ''}",
        "",
        f"{count(real)} matrices of the SuiteSparse collection, n from {least(real, 'n')} to "
        f"{most(real, 'n')}, and {count(made)} generated ones; {len(runs)} runs. The hash of the study's "
        f"matrices, plans and settings is {runs[0]['study']}. "
        f"Skipped matrices: {len(skipped)}{reasons(skipped)}{beyond(table.rows)}. {how} b = A x with a "
        "random x.",
        "",
        "ir is classical refinement. fgmres is flexible GMRES with the factors as right preconditioner. "
        "gmres is GMRES-IR: GMRES with left preconditioning by the factors, which are applied in FP64. Both "
        "restart after 200 steps.",
        "",
        *models(runs),
        *section(
            "Share that converges, and median of the steps (in brackets: the 9th decile)",
            *shares(real, made),
        ),
        *section(
            "Share that converges with scaling, by the condition number after scaling, collection",
            *by_condition(real),
        ),
        *section(
            "The same for generated matrices",
            *by_condition(made),
        ),
        *section("What predicts success, collection, with scaling", *predictors(real)),
        "The number is the area under the ROC curve: the probability that, of a matrix that converges and "
        "one that fails, the predictor puts the right one first. 0.5 is a guess, 1 is certain. A dash: fewer "
        "than three failures or successes.",
        "",
        *section("Two rules that need one number, collection, with scaling", *rules(real)),
        "u is the unit roundoff of the operands; for fp16x3 that of FP32, 2^-24, is taken. IR ends at a step "
        "that does not halve the error, so it nearly always fails if its first step has a contraction above "
        "0.5.",
        "",
        *(section("What scaling changes, collection", *scaling(real)) if unscaled else []),
        f"Measured with `benchmarks/convergence.py` on {where}; numpy {facts['numpy']}, scipy "
        f"{facts['scipy']}; commit {facts['commit']}, {facts['date']}.",
        "",
    ]
    return "\n".join(lines)


def left_out(rows):
    """Return the rows of skipped matrices, without the row that counts those outside the limits of n."""
    return [r for r in rows if r["status"] == "SKIPPED" and not glob.has_magic(r["matrix"])]


def beyond(rows):
    """Return the words about matrices outside of the limits of n, if there are any."""
    found = [r["reason"] for r in rows if r["status"] == "SKIPPED" and glob.has_magic(r["matrix"])]
    return "".join(f"; besides, {reason}" for reason in found)


def models(runs):
    """Return the lines that tell which arithmetic made the numbers; none if the rows do not say."""
    found = sorted({(row["update"], row["model"]) for row in runs if row.get("model")})
    lines = [f"- {update}: {model}." for update, model in found]
    return ["Arithmetic of the factors:", "", *lines, ""] if lines else []


def rounded(table):
    """Return the runs, except those whose LU has a single panel: such an LU is in FP32 throughout."""
    return [row for row in table.ran if row.get("panels") != 1]


def complete(rows):
    """Return the rows of the matrices that have a run of every plan."""
    plans, seen = {row["plan"] for row in rows}, defaultdict(set)
    for row in rows:
        seen[row["matrix"]].add(row["plan"])
    return [row for row in rows if seen[row["matrix"]] == plans]


def count(rows):
    return len({row["matrix"] for row in rows})


def least(rows, key):
    return min((row[key] for row in rows), default=0)


def most(rows, key):
    return max((row[key] for row in rows), default=0)


def reasons(rows):
    """Return why rows were skipped: the number of rows for each kind of reason, in brackets, or nothing."""
    kinds = defaultdict(int)
    for row in rows:
        kinds[row["reason"].partition(":")[0].partition(" is above")[0].split(" = ")[0]] += 1
    told = ", ".join(f"{n} because {kind}" for kind, n in kinds.items())
    return told and f" ({told})"


def section(title, head, rows):
    """Return the lines of a table with its title."""
    lines = [f"## {title}", "", "| " + " | ".join(head) + " |"]
    lines.append("| " + " | ".join(["---"] * len(head)) + " |")
    return [*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows), ""]


def of_plan(rows, update, method, scale=True):
    return [r for r in rows if (r["update"], r["method"], r["scale"]) == (update, method, scale)]


def told(rows):
    """Return the share of the runs that converge, with the median and the 9th decile of their steps."""
    if not rows:
        return "–"
    steps = [row["steps"] for row in rows if row["converged"]]
    if not steps:
        return "0 %"
    share = 100 * len(steps) / len(rows)
    return f"{share:.0f} %, {np.median(steps):.0f} ({np.quantile(steps, 0.9):.0f})"


def shares(real, made):
    head = ["factors", "method", "collection", "collection, not scaled", "generated"]
    rows = [
        [
            u,
            m,
            told(of_plan(real, u, m)),
            told(of_plan(real, u, m, False)),
            told(of_plan(made, u, m)),
        ]
        for u in UPDATES
        for m in ALL_METHODS
    ]
    return head, rows


def by_condition(rows):
    classes = [f"below {EDGES[0]:.0e}", *(f"to {edge:.0e}" for edge in EDGES[1:]), "above"]
    known = [row for row in rows if row["kappa_scaled"] is not None]
    place = {id(row): int(np.searchsorted(EDGES, row["kappa_scaled"])) for row in known}
    sizes = [count([r for r in known if place[id(r)] == i]) for i in range(len(classes))]
    head = ["factors", "method", *(f"{c} ({n})" for c, n in zip(classes, sizes, strict=True))]
    found = []
    for update in UPDATES:
        for method in ALL_METHODS:
            runs = of_plan(known, update, method)
            cells = [told([r for r in runs if place[id(r)] == i]) for i in range(len(classes))]
            found.append([update, method, *cells])
    return head, found


def predictors(rows):
    """Return the area under the ROC curve of each predictor, for each plan with scaling."""
    head = ["predictor", *(f"{u} {m}" for u in UPDATES for m in METHODS)]
    first = first_steps(rows)
    found = []
    for name, words in PREDICTORS.items():
        cells = []
        for update in UPDATES:
            for method in METHODS:
                runs = of_plan(rows, update, method)
                values = [(value_of(name, row, first), row["converged"]) for row in runs]
                cells.append(area([(v, c) for v, c in values if v is not None]))
        found.append([words, *cells])
    return head, found


def first_steps(rows):
    """Return {(matrix, update, scale): (error of the first x, contraction of the first step)} of IR.

    A matrix whose first x is not finite is left out.
    """
    found = {}
    for row in rows:
        errors = [point[2] for point in row.get("history") or []] if row["method"] == "ir" else []
        if errors and errors[0] is not None:
            # The history keeps the best x, so a step that makes the error larger has a contraction of 1.
            contraction = errors[1] / errors[0] if len(errors) > 1 and errors[0] else 0.0
            found[row["matrix"], row["update"], row["scale"]] = errors[0], contraction
    return found


def value_of(name, row, first):
    error, contraction = first.get((row["matrix"], row["update"], row["scale"]), (None, None))
    if name == "first error":
        return error
    if name == "contraction":
        return contraction
    if name == "first error x kappa_scaled":
        known = error is not None and row["kappa_scaled"] is not None
        return error * row["kappa_scaled"] if known else None
    value = row[name]
    return -value if name == "dominance" and value is not None else value


def area(values):
    """Return the area under the ROC curve as text; small values should mean success."""
    good = [value for value, converged in values if converged]
    bad = [value for value, converged in values if not converged]
    if min(len(good), len(bad)) < 3:
        return "–"
    return f"{mannwhitneyu(bad, good).statistic / len(good) / len(bad):.2f}"


def rules(rows):
    """Return how many runs converge where a rule holds, and where it does not."""
    head = [
        "factors",
        "method",
        "u kappa_scaled < 1",
        "not",
        f"first step contracts to {GOOD}",
        "not",
    ]
    first, found = first_steps(rows), []
    for update in UPDATES:
        for method in METHODS:
            runs = of_plan(rows, update, method)
            by_kappa = [(row["kappa_scaled"], row) for row in runs]
            by_step = [(value_of("contraction", row, first), row) for row in runs]
            cells = [*split(by_kappa, 1 / ROUNDOFF[update]), *split(by_step, GOOD)]
            found.append([update, method, *cells])
    return head, found


def split(values, limit):
    """Return 'k of n' for the values below a limit, and for the others: k of these n runs converge."""
    known = [(value, row["converged"]) for value, row in values if value is not None]
    sides = [c for v, c in known if v < limit], [c for v, c in known if v >= limit]
    return [f"{sum(side)} of {len(side)}" for side in sides]


def scaling(rows):
    head = ["factors", "method", "only scaled", "only not scaled", "both", "neither"]
    found = []
    for update in UPDATES:
        for method in ALL_METHODS:
            sides = [
                {r["matrix"]: r["converged"] for r in of_plan(rows, update, method, scale)}
                for scale in (True, False)
            ]
            pairs = [(sides[0][m], sides[1][m]) for m in sides[0] if m in sides[1]]
            cells = [
                pairs.count(p) for p in ((True, False), (False, True), (True, True), (False, False))
            ]
            found.append([update, method, *cells])
    return head, found
