"""Up to which condition number is classical refinement with fp32 or fp16x3 factors enough for an accurate x?

    python benchmarks/plain_refinement.py --json benchmarks/results/plain_refinement.json
    python benchmarks/plain_refinement.py --draw --json benchmarks/results/plain_refinement.json

A row has SYSTEMS systems: matrices of four families, n = 60, 150 and 300, two seeds each.  Residuals are in
double-double, and no fallback is allowed.  x is accurate if its largest error is at most 2^-52 times its
largest entry; the exact x is computed with 500 bits.

- *classical*: the number of systems for which `Plan(method="ir")` gives an accurate x.
- *contracts*: the number of systems for which the spectral radius of I - M^-1 A is at most 0.5, where M is
  the product of the factors.  After some steps, each correction multiplies the error of x by about this
  radius.  tcsolve stops if a correction multiplies the error by more than 0.5.  If the radius is above 1,
  classical refinement does not converge.
- *diverges*: the number of systems for which the spectral radius is above 1.
- *default*: the number of systems with an accurate x from the default method, which goes on with GMRES.
"""

import itertools

import flint
import numpy as np
from _harness import arguments, machine, save, unless_drawn
from preconditioned import BITS, exact
from tables import source, table

import tcsolve
from tcsolve import Plan, matrices
from tcsolve._arithmetic.formats import update_named
from tcsolve._backends.select import ops_for
from tcsolve._lu.elimination import factor_blocked
from tcsolve._lu.factors import factor_native

UPDATES, CONDITIONS = ("fp32", "fp16x3"), (1e5, 1e6, 3e6, 1e7, 3e7, 1e8)
FAMILIES, SIZES, SEEDS = (
    ("svd_geo", "svd_cluster1", "svd_cluster0", "svd_arith"),
    (60, 150, 300),
    (1, 2),
)
SYSTEMS = len(FAMILIES) * len(SIZES) * len(SEEDS)
BLOCK, GOOD = 16, 2.0**-52


def exact_solution(a, b):
    """Return x as numbers of BITS bits."""
    return exact(a).solve(exact(b)).entries()


def error(x, exact):
    """Return the largest error of x relative to the largest entry of the exact x."""
    size = max(abs(float(v.mid())) for v in exact)
    return (
        max(abs(float((flint.arb(float(u)) - v).mid())) for u, v in zip(x, exact, strict=True))
        / size
    )


def radius(a, update):
    """Return the spectral radius of I - M^-1 A, for the factors of A with an update."""
    ops, how = ops_for(a), update_named(update)
    if how.native:
        factors = factor_native(ops, a, np.dtype(np.float32))
    else:
        factors = factor_blocked(ops, a.astype(np.float32), how, BLOCK)
    return float(
        np.abs(np.linalg.eigvals(np.eye(len(a)) - factors.widened().solve_scaled(a))).max()
    )


def measured(family, n, seed, cond, update):
    """Return the row of a system."""
    a = matrices.generate(family, n, cond=cond, seed=seed).a
    b = np.random.default_rng(seed).standard_normal(n)
    exact = exact_solution(a, b[:, None])
    row = {"family": family, "n": n, "seed": seed, "cond": cond, "update": update}
    for method in ("ir", "auto"):
        plan = Plan(update, method=method, block=BLOCK, fallback=False, basis=n, max_steps=2000)
        found = tcsolve.solve_ex(a, b, precision=plan, residual="double-double")
        row[method] = {"error": error(found.x, exact), "steps": int(found.iterations[0])}
    return row | {"radius": radius(a, update)}


def page(facts, rows):
    """Return the page of the results."""
    body = []
    for update, cond in itertools.product(UPDATES, CONDITIONS):
        some = [row for row in rows if (row["update"], row["cond"]) == (update, cond)]
        classical, default = (sum(row[m]["error"] <= GOOD for row in some) for m in ("ir", "auto"))
        radii = np.array([row["radius"] for row in some])
        counts = classical, (radii <= 0.5).sum(), (radii > 1).sum(), default
        body.append([f"`{update}`", f"{cond:.0e}", *counts])
    head = ["update", "condition number", "classical", "contracts", "diverges", "default"]
    about = __doc__.partition("\n\nA row has")[2].replace("SYSTEMS", str(SYSTEMS))
    from_ = source(facts, "benchmarks/plain_refinement.py")
    return (
        f"# The reach of classical refinement\n\n{from_}\n\nA row has{about}\n{table(head, body)}\n"
    )


def main():
    options = unless_drawn(arguments(__doc__.splitlines()[0]), page)
    if options is None:
        return
    flint.ctx.prec = BITS
    facts, rows = machine(options.commit), []
    for update, cond in itertools.product(UPDATES, CONDITIONS):
        for family, n, seed in itertools.product(FAMILIES, SIZES, SEEDS):
            rows.append(measured(family, n, seed, cond, update))
            print(rows[-1], flush=True)
    if options.json:
        save(options.json, facts, rows)
        options.json.with_suffix(".md").write_text(page(facts, rows))


if __name__ == "__main__":
    main()
