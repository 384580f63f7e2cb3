"""How precise must the preconditioned product of GMRES be, if x is to be accurate to its last bits?

    python benchmarks/preconditioned.py --json benchmarks/results/preconditioned.json
    python benchmarks/preconditioned.py --draw --json benchmarks/results/preconditioned.json

A has FP32 factors with A = P^T L U up to rounding.  x is the sum of two FP64 numbers, and b - A x has the
digits of two FP64 numbers.  A cycle of GMRES solves for a correction of x, until the preconditioned residual
is TOL times that at its start.  The vectors of GMRES are in FP64.  The product U^-1 L^-1 P A v is computed in
four ways:

- *FP64*: A v in FP64, and both triangular solves in FP64.
- *A in double-double*: A v with twice the digits of FP64, rounded to FP64; both triangular solves in FP64.
- *double-double*: A v with twice the digits; the result of the triangular solves is corrected, with the
  residuals of P^T L U in double-double, until it is accurate in FP64.  This is what tcsolve does.
- *exact*: the whole product is correct up to one rounding to FP64.

A cell has the cycles, and the steps of all cycles together, after which the error of x is at most 2^-53.
If CYCLES cycles are not enough, the cell has the error instead.  Errors are differences from the exact x,
relative to its largest entry.
"""

import flint
import numpy as np
import scipy.linalg
from _harness import arguments, machine, save, unless_drawn
from tables import source, table

from tcsolve import matrices
from tcsolve._backends.select import ops_for
from tcsolve._contract.vectors import order_of
from tcsolve._refine.double_double import Pair, product, residual
from tcsolve._refine.krylov import fgmres
from tcsolve._refine.precise_inverse import multiplied, solved

SIZES, CONDITIONS = (60, 150), (1e8, 1e10, 1e12, 1e13, 1e14, 1e15, 1e16)
FAMILIES = ("svd_geo", "svd_cluster1", "svd_cluster0", "svd_arith")
WAYS = ("FP64", "A in double-double", "double-double", "exact")
CYCLES, TOL, GOOD = 12, 1e-4, 2.0**-53
# Bits of the numbers that stand for exact ones.
BITS = 500


def exact(v):
    """Return an array (m, n) as a matrix of BITS bits."""
    return flint.arb_mat(*v.shape, [flint.arb(float(x)) for x in v.ravel()])


def rounded(v):
    """Return a matrix of BITS bits as an array in FP64."""
    shape = v.nrows(), v.ncols()
    return np.array([float(x.mid()) for x in v.entries()]).reshape(shape)


class System:
    """A system A x = b with FP32 factors of A, and its exact solution as a `Pair`."""

    def __init__(self, family, n, cond):
        self.a = matrices.generate(family, n, cond=cond, seed=1).a
        self.b = np.random.default_rng(1).standard_normal((n, 1))
        a, b = exact(self.a), exact(self.b)
        x = a.solve(b)
        high = rounded(x)
        self.x = Pair(high, rounded(x - exact(high)))
        lu, swaps = scipy.linalg.lu_factor(self.a.astype(np.float32))
        self._factors, self._order = (lu.astype(float), swaps), order_of(swaps)
        lower, upper = np.tril(lu, -1) + np.eye(n), np.triu(lu)
        order = scipy.linalg.lu_solve((np.eye(n), swaps), np.eye(n))  # P
        self._inverse = (exact(lower) * exact(upper)).inv() * exact(order)
        self._whole = self._inverse * a

    def _solved(self, r):
        return scipy.linalg.lu_solve(self._factors, r)

    def _product(self, v):
        """Return A v as a `Pair`."""
        return product(ops_for(v), self.a, Pair.of(np, v))

    def _multiplied(self, w):
        """Return P^T L U w as a `Pair`."""
        return multiplied(ops_for(self.a), self._factors[0], self._order, w)

    def _solved_precisely(self, y):
        return solved(ops_for(self.a), self._multiplied, self._solved, y)

    def way(self, name):
        """Return v -> U^-1 L^-1 P A v, and r -> U^-1 L^-1 P r."""
        if name == "exact":
            whole, inverse = self._whole, self._inverse
            return lambda v: rounded(whole * exact(v)), lambda r: rounded(inverse * exact(r))
        if name == "FP64":
            return lambda v: self._solved(self.a @ v), self._solved
        if name == "A in double-double":
            return lambda v: self._solved(self._product(v).high), self._solved
        return (
            lambda v: self._solved_precisely(self._product(v)),
            lambda r: self._solved_precisely(Pair.of(np, r)),
        )

    def error(self, x):
        """Return the largest error of a `Pair` x, relative to the largest entry of the exact x."""
        wrong = (x.high - self.x.high) + (x.low - self.x.low)
        return float(np.abs(wrong).max() / np.abs(self.x.high).max())


def refined(system, name):
    """Return the cycles, their steps, and the error of x in the end."""
    apply, precondition = system.way(name)
    ops, n = ops_for(system.a), len(system.b)
    x, cycles, steps, error = Pair.of(np, np.zeros_like(system.b)), 0, 0, np.inf
    how = {"basis": np.array([n]), "tol": np.array([TOL])}
    while error > GOOD and cycles < CYCLES:  # False for NaN
        r = residual(ops, system.a, x, system.b)
        found = fgmres(ops, apply, None, precondition(r), **how)
        x, cycles, steps = x.plus(found.d), cycles + 1, steps + int(found.steps[0])
        error = system.error(x)
    return {"cycles": cycles, "steps": steps, "error": error}


def cell(found):
    """Return the cell for the result of one way."""
    if found["error"] <= GOOD:
        return f"{found['cycles']}, {found['steps']}"
    return f"error {found['error']:.0e}"


def page(facts, rows):
    """Return the page of the results."""
    about = __doc__.partition("\n\nA has FP32")[2].replace("TOL", f"{TOL:g}")
    about = about.replace("CYCLES", str(CYCLES))
    body = [
        [row["family"], row["n"], f"{row['cond']:.0e}", *(cell(row["ways"][way]) for way in WAYS)]
        for row in rows
    ]
    head = ["matrix", "n", "condition number", *WAYS]
    measured = source(facts, "benchmarks/preconditioned.py")
    title = "# The precision of the preconditioned product"
    return f"{title}\n\n{measured}\n\nA has FP32{about}\n{table(head, body)}\n"


def main():
    options = unless_drawn(arguments(__doc__.splitlines()[0]), page)
    if options is None:
        return
    flint.ctx.prec = BITS
    facts, rows = machine(options.commit), []
    for n in SIZES:
        for family in FAMILIES:
            for cond in CONDITIONS:
                system = System(family, n, cond)
                ways = {name: refined(system, name) for name in WAYS}
                rows.append({"family": family, "n": n, "cond": cond, "ways": ways})
                print(family, n, f"{cond:.0e}", *map(cell, ways.values()), sep="; ", flush=True)
    if options.json:
        save(options.json, facts, rows)
        options.json.with_suffix(".md").write_text(page(facts, rows))


if __name__ == "__main__":
    main()
