"""The pages of published counts: what is compared, and the text of rows and counts."""

import functools
import math

from _bf16_program import MOST_SOLVES, SOLUTIONS
from _counted_refinement import COUNTED, middle, spread
from _published import SOURCES

__all__ = ["AGREE", "LARGER", "MOST_EACH", "UNEXPLAINED", "close", "is_flushed", "page", "within"]

AGREE, UNEXPLAINED = "agree", "not explained"
# A count agrees if it differs by at most a fifth, or by two steps.
SHARE, STEPS = 0.2, 2
# A limit agrees if it is at least the proved one, and at most LARGER times it.
LARGER = 10
# Largest order for which every operation is rounded here; for a larger one this takes minutes.
MOST_EACH = 2000


def close(ours, theirs):
    """Tell whether two counts agree; None is no convergence."""
    if ours is None or theirs is None:
        return ours is theirs
    return abs(ours - theirs) <= max(STEPS, SHARE * theirs)


def within(found, theirs):
    """Tell whether `theirs` lies between the smallest and the largest count in `found`."""
    least, most = (math.inf if v is None else v for v in spread(found))
    return least <= (math.inf if theirs is None else theirs) <= most


def page(name, facts, rows):
    """Return the page of a table."""
    lost = [row for row in rows if is_flushed(row)]
    rows = [row for row in rows if not is_flushed(row)]
    verdicts = [row["verdict"] for row in rows]
    agreeing, unexplained = verdicts.count(AGREE), verdicts.count(UNEXPLAINED)
    columns = [key for key in rows[0] if key != "reason"]
    lines = [
        f"# {TITLES[name]}",
        "",
        f"Theirs: {SOURCES[name]}",
        "",
        f"Ours: {OURS[name]}",
        "",
        f"{len(rows)} rows: {agreeing} agree{'' if name in ALLOWED else ' (within two steps or a fifth)'}, "
        f"{len(rows) - agreeing - unexplained} differ for the reason that is given; not explained: "
        f"{unexplained}.{ALLOWED.get(name, '')} A dash means no convergence, not run, or that there is no "
        "such number." + of_medians(rows) + of_cycles(rows),
        "",
        *table(columns, rows, functools.partial(cell, digits=DIGITS.get(name, 1))),
        "",
        *of_flushed(lost),
        f"Measured with `benchmarks/published.py {name}` on {facts['cpu']}; numpy {facts['numpy']}, scipy "
        f"{facts['scipy']}; commit {facts['commit']}, {facts['date']}.",
        "",
    ]
    return "\n".join(lines)


def table(columns, rows, cell):
    """Return the lines of a table; `cell` makes the text of a value."""
    return [
        "| " + " | ".join(columns) + " |",
        "| " + " | ".join(["---"] * len(columns)) + " |",
        *("| " + " | ".join(cell(row[key]) for key in columns) + " |" for row in rows),
    ]


def is_flushed(row):
    """Tell whether a row belongs to the table of nonzeros that are lost by rounding."""
    return "theirs, xmax" in row


def of_flushed(rows):
    """Return the lines about the nonzeros that are lost by rounding."""
    if not rows:
        return []
    return [
        "Percent of the nonzeros that FP16 rounds to zero. Rows, then columns, are scaled, and the largest "
        "entry is 1, xmax, or a tenth of xmax, as in the table above. xmax is the largest number of FP16. "
        f"{sum(row['verdict'] == AGREE for row in rows)} of {len(rows)} rows agree in both decimal places.",
        "",
        *table(list(rows[0]), rows, lambda v: f"{v:.2f}" if isinstance(v, float) else str(v)),
        "",
    ]


def of_medians(rows):
    """Return a sentence on each column that has counts for several b."""
    text = ""
    for key in (key for key, value in rows[0].items() if isinstance(value, list)):
        agreeing = sum(close(middle(row[key]), row["theirs"]) for row in rows)
        inside = sum(within(row[key], row["theirs"]) for row in rows)
        text += f" In the column '{key}' the median agrees with their count in {agreeing} rows, and their "
        text += f"count is within the range in {inside} rows."
    return text


def of_cycles(rows):
    """Return a sentence on each column of cycles."""
    text = ""
    for key in (key for key in rows[0] if key.startswith("cycles, ")):
        pairs = [(row[key], row["their cycles"]) for row in rows]
        same = sum(ours == theirs for ours, theirs in pairs)
        near = sum(None not in pair and abs(pair[0] - pair[1]) == 1 for pair in pairs)
        text += f" In the column '{key}' the number is theirs in {same} rows, and one more or less in {near}."
    return text


def cell(value, digits=1):
    if value is None:
        return "–"
    if isinstance(value, list):
        least, most = map(cell, spread(value))
        median = middle(value)
        # A median such as 38.5 is the mean of two counts.
        told = cell(median) if median is None else f"{median:g}"
        return told + (f" ({least} to {most})" if least != most else "")
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.{digits}e}" if isinstance(value, float) else str(value)


TITLES = {
    "bf16": "LU solves with BF16 factors",
    "scaling": "GMRES steps with FP16 factors and four kinds of scaling",
    "spd": "GMRES and CG steps with Cholesky factors in FP16 and FP32",
    "limits": "How large a condition number may be",
}
OURS = {
    "bf16": (
        "'ir' is LU-IR, which is classical refinement with an LU. The others are GMRES-IR; the letters are "
        "the precisions of the factors, of the vectors of GMRES, and of its products with A and with the "
        "inverse of the factors: B is BF16, S FP32, D FP64 and Q quadruple precision. The columns 'every "
        "operation' and 'tensor cores' have the number of LU solves of tcsolve's LU-IR and FGMRES until the "
        "backward error is below u sqrt(n). The vectors of this FGMRES and its products with A are in FP64. "
        "'every operation': the result of each operation of the LU is rounded to BF16, for n up to "
        f"{MOST_EACH}; 'tensor cores': the operands of updates between panels of 32 columns are rounded. 'as "
        "they count' is a model of their program, where Q has the 64 bits of extended precision. The rows, "
        "then the columns, are divided by their largest entries, and all entries are multiplied by 1, 10, "
        "100, 1000 or 10000. The entries of L are not quotients by a pivot, but products with its rounded "
        "inverse. The first x, and the corrections of LU-IR, are in BF16 with every operation rounded. GMRES "
        "has left preconditioning. The forward and the backward error, in 2-norms of vectors and the "
        f"Frobenius norm of A, must be below 4.44e-16, in at most 49 cycles and {MOST_SOLVES} LU solves. For "
        "each random x, the count is the smallest one over the five multipliers and eight tolerances. There "
        f"are {SOLUTIONS} random x for 'ir' and BDD, and one for the others. The cell has the median of "
        "these counts, and in brackets their range. 'multiplier 1' is the same with that multiplier alone. "
        "'zero pivots' is the number of zero pivots in our model of their program, with the multiplier 1. "
        "The model replaces them by 2^-8 times the largest entry; how the thesis avoids them is not known. "
        "'kappa' is in the 2-norm, of A and of the scaled matrix. For hangGlider_2 neither condition "
        "number is that of the thesis, so the thesis seems to use another matrix. "
        "For all other matrices they agree."
    ),
    "scaling": (
        "FGMRES with products in FP64, restarted after n steps; steps until the backward error is below u "
        "sqrt(n), for b = A x with a random x. Its factors are in FP16 with every operation rounded, or "
        "those of tensor cores, and are applied in FP64. 'clamped': entries above 0.1 of the largest FP16 "
        "number get that size; 'one factor': the whole matrix is scaled by one number; 'two-sided': rows, "
        "then columns, are scaled; 'symmetric': rows and columns are scaled alike, in at most ten sweeps. "
        "Our scales are powers of two. 'as they count': the factors of 'every operation' with random b, "
        "GMRES with left preconditioning that ends at a reduction by 1e-4 (for x in FP32 1e-2), and a "
        "backward error below n 2^-52 (n 2^-23), which is the bound of their program; for x in FP32 the "
        f"vectors of GMRES are in FP32. The cell has the median over {COUNTED} random b, and in brackets the "
        "range. 'rounded once': the same with the factors of their program: the LU of the matrix that is "
        "rounded to FP16 is computed in FP64, and L and U are then rounded to FP16. As in their program, the "
        "scales are not powers of two, and the first x of the scaled system is rounded to FP16. 'cycles' are "
        "the cycles of GMRES, which the paper calls refinement steps; ours are the median, or the smaller of "
        "the two middle numbers. 'kappa' is "
        "in the infinity norm, of A and of the scaled matrix. For nos1 those of the scaled matrices differ "
        "from theirs by 3 % and 1 %, and the reason is not known; the others agree in three digits, or "
        "nearly. The rows are counted without 'kappa'."
    ),
    "spd": (
        "FGMRES or CG by `tcsolve.refine`, whose cycles aim at a tenth of the bound, for one random b. The "
        "bound is n u as theirs, but only their backward error has ||b|| in its denominator. 'as they "
        "count': their backward error; a cycle ends at a reduction by 1e-4 (1e-2 if the products are in FP64 "
        "and the factors in FP16), as in their program; GMRES has left preconditioning and reduces the "
        "preconditioned residual, CG the residual. If the factors are in FP32, the first x is in FP32. If "
        "they are in FP16, CG rounds the first x to FP16. The cell has the median over "
        f"{COUNTED} random b, and in brackets the range. All our products are in FP64. 'not scaled': A + c u "
        "t I is factored, where t is the largest diagonal entry, u is the roundoff of FP16, and c is the "
        "number in the column 'shift / u'. 'kappa' is in the 2-norm, and agrees with theirs. The result of "
        "each operation of our FP16 factorizations is rounded to FP16, and that of each operation of our "
        "FP32 factorizations to FP32."
    ),
    "limits": (
        "svd_geo of order 100, three seeds; the condition numbers, in the 2-norm, are two per decade and the"
        " proved limits themselves. 'ours' is the largest condition number up to which all runs converge. A "
        "run for the backward error converges if this error is at most u sqrt(n); one for the forward error "
        "if this error is at most 2 u in the infinity norm. In the runs for the forward error, residuals and"
        " products with A are in double-double; GMRES applies the factors in double-double too, and FGMRES "
        "in FP64. The forward error is known for condition numbers up to about 3e15. A run whose error is "
        "not known counts as one that does not converge. 'fails at' is the next condition number (a dash: "
        "none), and 'in n/2 steps' is the largest up to which all runs converge in at most n/2 steps. "
        "'fgmres' has the factors as right preconditioner, 'gmres' as left preconditioner, which the theory "
        "assumes. '@each': the result of each operation of the LU is rounded to this format. 'bf16' and "
        "'fp16' without it: the operands of updates between panels of 32 columns are rounded, the sums and "
        "the panels are in FP32. 'fp32': the LU of LAPACK in FP32. There are no FP8 factors in tcsolve, so "
        "the limits for FP8 are not compared. The limits of FGMRES depend on the order of the sums in BLAS, "
        "and so on the processor."
    ),
}
# Digits after the point, for the tables where it is not 1 digit.
DIGITS = {"scaling": 2, "spd": 2}
# What the page says about rows that agree, for tables that do not compare counts.
ALLOWED = {
    "limits": (
        f" A limit agrees if it is at least the proved one, and at most {LARGER} times the proved one. A "
        "theorem holds for the worst rounding errors, so only a smaller limit contradicts it."
    ),
}
