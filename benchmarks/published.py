"""Are published counts of convergence reproduced?

    TCSOLVE_MATRICES=folder python benchmarks/published.py bf16 --json benchmarks/results/published_bf16.json

The tables are bf16, scaling, spd and limits.  The page, in the folder of the JSON, compares our counts
with theirs.  It gives a reason for each difference that a rule explains, and counts the others.

With --draw, the rows of the JSON that --json names are judged again; nothing is solved.

The models that round every operation are slow.  On two cores scaling and spd take about two minutes together,
limits and bf16 about half an hour.
"""

import concurrent.futures
import json
import math
import multiprocessing
import os
import sys

import numpy as np
from _bf16_program import FP64_GMRES, GMRES, by_rows_and_columns, program_counts
from _counted_refinement import counts, low_middle, middle, our_steps, steps_and_cycles, vectors
from _fp16_cholesky import Breakdown, factor, factor_single, factor_unscaled
from _fp16_scaling import SCALINGS, TOP, XMAX, factors, flushed, rounded_once, scaled
from _harness import arguments, machine, save
from _published import BF16, FLUSHED, LIMITS, SCALING, SPD, SPD_UNSCALED
from _published_page import AGREE, LARGER, MOST_EACH, UNEXPLAINED, close, is_flushed, page, within

from tcsolve import matrices, study

# IR goes on while a step leaves at most 0.9 of the error; the papers take any contraction.  FGMRES restarts
# only after 500 steps, and so many steps are allowed that a slow start does not end it.
GRID = {"contraction": 0.9, "basis": 500, "max_steps": 5000, "block": 32}
# The table of scalings: the precision of x, its dtype, the reduction of the preconditioned residual in each
# cycle of GMRES, and the unit roundoff of the program, which is the eps of MATLAB.
SCALING_PRECISIONS = (("FP64", np.float64, 1e-4, 2.0**-52), ("FP32", np.float32, 1e-2, 2.0**-23))
# The methods of the BF16 table that tcsolve has.  Its GMRES has FP64 vectors and products.
OUR_METHODS = {"ir": "ir", FP64_GMRES: "fgmres"}
# Condition numbers in the BF16 table, as pairs (ours, published): `ours` is the key of our number in a row,
# and f"theirs {published}" that of the published number.
KAPPAS = (("kappa", "kappa"), ("kappa scaled", "scaled"))
# The precisions of the positive definite table (factors, x, products), the factors, and the reduction at
# which a cycle ends.  The last are factors of a matrix that is shifted, but not scaled.
SPD_PRECISIONS = (
    ("FP16, FP64, quadruple", factor, 1e-4),
    ("FP16, FP64, FP64", factor, 1e-2),
    ("FP32, FP64, FP64", factor_single, 1e-4),
    ("FP16 not scaled, FP64, quadruple", factor_unscaled, 1e-4),
)
# The factors whose limits are sought, and the largest relative error of an accurate x.
LIMIT_UPDATES = ["bf16@each", "bf16", "fp16@each", "fp16", "tf32@each", "fp32"]
LIMIT_METHODS, ACCURATE = ["ir", "fgmres", "gmres"], 2.0**-52


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("table", choices=TABLES)
    parser.add_argument(
        "--draw", action="store_true", help="only judge the rows of the JSON again, and rewrite it"
    )
    options = parser.parse_args()
    if options.draw:
        if options.json is None:
            parser.error("--draw needs --json FILE, the results of an earlier run")
        results = json.loads(options.json.read_text())
        facts, rows = results["machine"], results["rows"]
        for row in rows:
            row["verdict"] = VERDICTS[options.table](row)
    else:
        rows, facts = TABLES[options.table](), machine(options.commit)
    text = page(options.table, facts, rows)
    save(options.json, facts, rows)
    if options.json:
        options.json.with_suffix(".md").write_text(text)
    print(text)
    return 0


# ---- running -----------------------------------------------------------------------------------


def runs_of(given, plans, **options):
    """Return {matrix: {plan: row}} of a study."""
    found = {}
    for row in study(given, plans, device="cpu", **options).rows:
        if row["plan"] is None:
            print(f"{row['matrix']} is left out: {row['reason']}", file=sys.stderr)
        else:
            found.setdefault(row["matrix"], {})[row["plan"]] = row
    return found


def count(row, extra=0):
    """Return the steps of a run, and `extra` for the first x; None if it has not converged."""
    return row["steps"] + extra if row["converged"] else None


def bf16():
    """Return rows for the BF16 table; counts are LU solves, so the first x is one."""
    grid = {"method": ["ir", "fgmres"], **GRID}
    here = set(matrices.names())
    for row in BF16:
        if row.matrix not in here:
            print(f"{row.matrix} is left out: it is not in the folder", file=sys.stderr)
    known = [row for row in BF16 if row.matrix in here]
    names = [f"ss:{row.matrix}" for row in known]
    cores = runs_of(names, {"precision": "bf16", **grid})
    each = runs_of(
        [{"text": n, "max_n": MOST_EACH} for n in names], {"precision": "bf16@each", **grid}
    )
    ours = [cores.get(row.matrix, {}) | each.get(row.matrix, {}) for row in known]
    pairs = [(row, runs) for row, runs in zip(known, ours, strict=True) if runs]
    counted = counted_as_they_do(
        [by_rows_and_columns(matrices.load(row.matrix).a) for row, _ in pairs]
    )
    return [
        row
        for (theirs, runs), counts in zip(pairs, counted, strict=True)
        for row in bf16_rows(theirs, runs, counts)
    ]


def counted_as_they_do(scaled_matrices):
    """Return the counts of their program for scaled matrices; each process has a core of its own."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # for the new processes
    new = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), mp_context=new) as pool:
        return list(pool.map(program_counts, scaled_matrices))


def bf16_rows(theirs, runs, counted):
    """Return the rows of one matrix: LU-IR, and GMRES-IR for each precision of GMRES."""
    a = matrices.load(theirs.matrix).a
    kappas = {"kappa": float(np.linalg.cond(a)), "theirs kappa": theirs.kappa}
    scaled_kappa = float(np.linalg.cond(by_rows_and_columns(a)))
    kappas |= {"kappa scaled": scaled_kappa, "theirs scaled": theirs.scaled}
    rows = []
    for method in ("ir", *GMRES):
        row = {"matrix": theirs.matrix, "n": len(a), **kappas, "method": method}
        row["theirs"] = getattr(theirs, method.lower())
        for name, update in (("every operation", "bf16@each"), ("tensor cores", "bf16")):
            found = by_prefix(runs, f"{update} {OUR_METHODS.get(method)}")
            row[name] = found and count(found, 1)
        row |= {"as they count": counted.best(method), "multiplier 1": counted.plain(method)}
        row["zero pivots"] = counted.zero_pivots
        row["verdict"] = verdict_bf16(row)
        rows.append(row)
    return rows


def by_prefix(runs, prefix):
    """Return the run whose plan begins with these words, or None."""
    found = [row for plan, row in runs.items() if plan.split()[:2] == prefix.split()]
    return found[0] if found else None


def verdict_bf16(row):
    """Explain a row of the BF16 table."""
    ours = row["every operation" if row["n"] <= MOST_EACH else "tensor cores"]
    theirs, zeros = row["theirs"], row["zero pivots"]
    replaced = f", if {zeros} zero pivots of the factors are replaced" if zeros else ""
    if row["method"] in OUR_METHODS and close(ours, theirs):
        return AGREE
    if close(middle(row["as they count"]), theirs):
        return f"with their factors, their GMRES and their bounds the count agrees{replaced}"
    if close(middle(row["multiplier 1"]), theirs):
        counted = "counted as they do, but with the multiplier 1, the count agrees"
        return f"{counted}{replaced}; with another multiplier it is smaller"
    if not all(similar(row[key], row[f"theirs {name}"]) for key, name in KAPPAS):
        return (
            "their condition numbers are not those of this matrix, so their count is of another one"
        )
    return UNEXPLAINED


def similar(ours, theirs):
    """Tell whether two condition numbers agree, but for a factor of two."""
    return 0.5 <= ours / theirs <= 2


def scaling():
    """Return rows for the table of scalings."""
    rows = []
    for theirs in SCALING:
        try:
            problem = matrices.load(theirs.matrix, rhs="random")
        except FileNotFoundError as error:
            print(f"{theirs.matrix} is left out: {error}", file=sys.stderr)
            continue
        for how, *counted in zip(SCALING_PRECISIONS, theirs[1:3], theirs.cycles, strict=True):
            for name, *known in zip(SCALINGS, *counted, strict=False):
                rows.append(scaling_row(theirs, problem, name, how, known))
        if theirs.matrix in FLUSHED:
            rows.append(flushed_row(theirs.matrix, problem.a))
    return rows


def flushed_row(matrix, a):
    """Return the row of a matrix of FLUSHED: the percentage of lost nonzeros for each largest entry."""
    row = {"matrix": matrix, "n": len(a)}
    for name, top, known in zip(("1", "xmax"), (1.0, XMAX), FLUSHED[matrix], strict=True):
        row |= {f"flushed, {name}": flushed(a, top), f"theirs, {name}": known}
    row |= {"flushed, xmax / 10": flushed(a, TOP), "verdict": ""}
    return row | {"verdict": verdict_flushed(row)}


def verdict_flushed(row):
    """Compare our percentages with theirs, which have two decimal places."""
    same = (abs(row[f"flushed, {k}"] - row[f"theirs, {k}"]) < 0.006 for k in ("1", "xmax"))
    return AGREE if all(same) else UNEXPLAINED


def scaling_row(theirs, problem, name, how, known):
    """Return a row of the table; `how` is of SCALING_PRECISIONS, `known` has their steps and cycles."""
    a, (precision, dtype, tol, roundoff) = problem.a, how
    of_scaled = dict(zip(SCALINGS[2:], theirs.kappas[1:], strict=True))
    row = {"matrix": theirs.matrix, "n": len(a), "kappa": condition(a)}
    row |= {"theirs kappa": theirs.kappas[0], "scaling": name}
    row |= {"kappa scaled": condition(scaled(a, name).w), "theirs scaled": of_scaled.get(name)}
    row |= {"x": precision, "theirs": known[0], "their cycles": known[1]}
    each, core = (factors(a, name, update, GRID["block"]) for update in ("fp16@each", "fp16"))
    # For x in FP32, A and b are in FP32 as well.
    a, b = (v.astype(dtype).astype(float) for v in (a, problem.b))
    ours = np.finfo(dtype).eps / 2 * math.sqrt(len(a))
    row["every operation"] = our_steps(a, b, each, "fgmres", ours)
    row["tensor cores"] = our_steps(a, b, core, "fgmres", ours)
    how = {"method": "GMRES", "tol": tol, "bound": len(a) * roundoff, "dtype": dtype}
    for key, pair in (
        ("as they count", each and (vectors(each),) * 2),
        ("rounded once", rounded_once(a, name)),
    ):
        found = [(None, None)] if pair is None else steps_and_cycles(a, pair, **how)
        steps, cycles = zip(*found, strict=True)
        row |= {key: list(steps), f"cycles, {key}": low_middle(cycles)}
    row["verdict"] = verdict_scaling(row)
    return row


def condition(a):
    """Return the condition number in the infinity norm."""
    return float(np.linalg.cond(a, np.inf))


def verdict_scaling(row):
    """Explain a row of the table of scalings."""
    if is_flushed(row):
        return verdict_flushed(row)
    theirs, once = row["theirs"], row["rounded once"]
    if close(row["every operation"], theirs):
        return AGREE
    if close(middle(row["as they count"]), theirs):
        return "with random b, as in their program, and with their GMRES and their bound, the count agrees"
    if close(middle(once), theirs):
        return "with factors that are rounded once, as in their program, the count agrees"
    if within(once, theirs):
        return "the count depends on b; with factors rounded once, theirs is within the range"
    return UNEXPLAINED


def trefethen(n):
    """Return the matrix of N. Trefethen: primes on the diagonal, ones where |i - j| is a power of two."""
    primes, candidate = [], 2
    while len(primes) < n:
        if all(candidate % p for p in primes if p * p <= candidate):
            primes.append(candidate)
        candidate += 1
    distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    return np.diag(np.array(primes, float)) + ((distance > 0) & (distance & (distance - 1) == 0))


def spd():
    """Return rows for the table of positive definite matrices."""
    rows = []
    for theirs in SPD:
        name, _, order = theirs.matrix.rpartition("_")
        try:
            a = trefethen(int(order)) if name == "Trefethen" else matrices.load(theirs.matrix).a
        except FileNotFoundError as error:
            print(f"{theirs.matrix} is left out: {error}", file=sys.stderr)
            continue
        rows += spd_rows(a, theirs)
    return rows


def spd_rows(a, theirs):
    """Return the rows of one matrix: some precisions, each with GMRES and with CG."""
    counted = [theirs[2 * k : 2 * k + 2] for k in (1, 2, 3)]
    if theirs.matrix in SPD_UNSCALED:
        counted.append(SPD_UNSCALED[theirs.matrix])
    kappas = {"kappa": float(np.linalg.cond(a)), "theirs kappa": theirs.kappa}
    rows = []
    for how, pair in zip(SPD_PRECISIONS, counted, strict=False):
        for method, known in zip(("GMRES", "CG"), pair, strict=True):
            row = {"matrix": theirs.matrix, "n": len(a), **kappas, "precisions": how[0]}
            row |= {"method": method, "theirs": known}
            rows.append(row | spd_counts(a, method, known, how))
    return rows


def spd_counts(a, method, known, how):
    """Return our counts of a row of the positive definite table; `how` is one of SPD_PRECISIONS."""
    b, bound = np.random.default_rng(1).standard_normal(len(a)), len(a) * 2.0**-53
    _, made_by, tol = how
    try:
        made = made_by(a)
    except Breakdown as reason:
        row = {"ours": None, "as they count": [None], "shift / u": None}
        return row | {"verdict": UNEXPLAINED, "reason": str(reason)}
    row = {"ours": our_steps(a, b, made.correct, {"GMRES": "fgmres", "CG": "cg"}[method], bound)}
    correct = vectors(made.correct)
    # With FP16 factors, their CG-IR rounds the first x, and their GMRES-IR does not.
    half = made_by is not factor_single
    start = correct if half and method == "GMRES" else made.start
    way = {"method": method, "tol": tol, "bound": bound}
    row["as they count"] = counts(a, (correct, start), **way)
    return row | {"shift / u": made.shift, "verdict": verdict_spd(row | {"theirs": known})}


def verdict_spd(row):
    """Explain a row of the table of positive definite matrices."""
    ours, theirs, found = row["ours"], row["theirs"], row["as they count"]
    if close(ours, theirs):
        return AGREE
    if close(middle(found), theirs):
        return "with their cycles, bound and first x the count agrees"
    if within(found, theirs):
        return "the count depends on b; counted as they do, theirs is within the range"
    return UNEXPLAINED


def limits():
    """Return rows for the limits of the theory: the largest kappa for which all seeds converge."""
    proved = {limit for row in LIMITS for limit in (row.ir, row.gmres, row.in_fp64)}
    kappas = sorted({10.0 ** (k / 2) for k in range(2, 33)} | proved)
    given = [{"generate": "svd_geo", "n": 100, "cond": kappas}]
    grid = {"precision": LIMIT_UPDATES, "method": LIMIT_METHODS, **GRID}
    rows = []
    for error, residual in (("backward", "fp64"), ("forward", "double-double")):
        plans = grid | {"residual": residual}
        runs = [r for seed in range(3) for r in study(given, plans, seed=seed, device="cpu").rows]
        for update in LIMIT_UPDATES:
            place = update.partition("@")[0], error
            theirs = next(row for row in LIMITS if (row.factors, row.error) == place)
            for method in LIMIT_METHODS:
                known = (theirs.ir, None) if method == "ir" else (theirs.gmres, theirs.in_fp64)
                own = [r for r in runs if (r["update"], r["method"]) == (update, method)]
                rows.append(limit_row(update, error, method, known, own, kappas))
    return rows


def limit_row(update, error, method, known, runs, kappas):
    """Return a row of the limits, from the runs of one method for all kappas and seeds.

    `known` has the proved limit, and the proved limit with products in FP64; the second may be None.
    """

    def good(run):
        if error == "backward" or not run["converged"]:
            return run["converged"]
        # For condition numbers above 1e15 the exact x, and so the error, may not be known.
        return run["forward_error"] is not None and run["forward_error"] <= ACCURATE

    def largest_below(missed):
        return max((k for k in kappas if k < min(missed, default=math.inf)), default=None)

    bad = [r["kappa"] for r in runs if not good(r)]
    # In n steps FGMRES spans the whole space, whatever the factors are.
    slow = [r["kappa"] for r in runs if not good(r) or r["steps"] > r["n"] // 2]
    row = {"factors": update, "error": error, "method": method, "proved up to": known[0]}
    row |= {"with products in FP64": known[1]}
    row |= {"ours": largest_below(bad), "fails at": min(bad, default=None)}
    row |= {"in n/2 steps": largest_below(slow)}
    failed = [r["backward_error"] for r in runs if r["kappa"] == row["fails at"] and not good(r)]
    # Factors with a zero pivot give no x, and so no error.
    row["zero pivot"] = bool(failed) and not np.isfinite(np.array(failed, float)).any()
    row["verdict"] = verdict_limits(row)
    return row


def verdict_limits(row):
    """Explain a row of the limits: a theorem is contradicted only if ours is smaller."""
    ours, proved, weaker = row["ours"], row["proved up to"], row["with products in FP64"]
    if ours is not None and proved <= ours <= LARGER * proved:
        return AGREE
    if ours is not None and ours > proved:
        return (
            "the theorem gives a sufficient condition and says nothing of the number of steps; n steps "
            "suffice for any factors"
        )
    if row.get("zero pivot"):
        return "the next factors have a zero pivot, which the theorem excludes"
    in_fp64 = (row["error"], row["method"]) != ("forward", "gmres")
    if ours is not None and weaker is not None and in_fp64 and ours >= weaker:
        return (
            "the factors are applied in FP64, and ours is above the limit that is proved for that"
        )
    return UNEXPLAINED


TABLES = {"bf16": bf16, "scaling": scaling, "spd": spd, "limits": limits}
VERDICTS = {
    **{"bf16": verdict_bf16, "scaling": verdict_scaling, "spd": verdict_spd},
    **{"limits": verdict_limits},
}


if __name__ == "__main__":
    sys.exit(main())
