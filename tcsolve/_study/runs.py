"""One run: a matrix with a plan, solved and measured."""

import time
from dataclasses import asdict

import numpy as np

from tcsolve._arithmetic.tensor_cores import UNITS
from tcsolve._errors import TcsolveError
from tcsolve._solve.api import factor
from tcsolve._solve.factored.factorization import ladder_of, refined_by
from tcsolve._solve.ladder.refine_rung import invert
from tcsolve._study.columns import RAISED
from tcsolve._study.reference import forward_error

__all__ = ["FactorsInTurn", "model_of_updates", "raised", "run_plan"]

# The fields of a `Plan` on which the factors do not depend, unless the method is 'cg'.
REFINING = ("method", "inner_tol", "contraction", "basis", "max_steps", "preconditioner")


class FactorsInTurn:
    """The factors of a matrix for one plan after the other.

    On the host, a plan gets the factors of the plan before it if the two differ only in how they refine.
    This does not hold for plans with a fallback, with update='auto' or with method='cg'.

    Parameters
    ----------
    a : array, shape (n, n)
    device : {'auto', 'cpu', 'cuda'}
    """

    def __init__(self, a, device):
        self._a, self._device = a, device
        self._known, self._last = None, None

    def of(self, plan):
        """Return a `Factorization` that refines by the plan, and the seconds that its factors took."""
        fields = asdict(plan)
        refining = {name: fields.pop(name) for name in REFINING}
        if self._known != fields or "cg" in (plan.method, self._last[2]):
            self._known = self._last = None  # the memory is free for the next factors
            start = time.perf_counter()
            made = factor(self._a, precision=plan, device=self._device, check_finite=True)
            seconds = time.perf_counter() - start
            on_cpu = ladder_of(made).system.ops.device == "cpu"
            # Keep no factors of a plan with a fallback: more precise ones would need memory beside them.
            if not on_cpu or plan.update == "auto" or plan.fallback:
                return made, seconds
            self._known, self._last = fields, (made, seconds, plan.method)
        made, seconds, _ = self._last
        return refined_by(made, **refining), seconds


def run_plan(
    problem, plan, factors_of, *, reference=None, residual="fp64", history=False, spectrum=0
):
    """Solve a problem by a plan, and return the columns of its row.

    Parameters
    ----------
    problem : matrices.Problem
    plan : Plan
    factors_of : FactorsInTurn
    reference : Pair, optional
        The solution, from `reference_of`.
    residual : {'fp64', 'double-double'}
    history : bool
        Whether the row has every point of the history.
    spectrum : int
        Up to this order, the row has the eigenvalues of A and of the preconditioned matrix.

    Returns
    -------
    dict
    """
    try:
        factors, factor_seconds = factors_of.of(plan)
        start = time.perf_counter()
        solution = factors.solve_ex(problem.b, residual=residual)
    except (TcsolveError, MemoryError) as error:
        return raised(error)
    solve_seconds = time.perf_counter() - start
    row = {
        "status": solution.status.name,
        "converged": solution.status.ok,
        **_steps(solution),
        "rungs": "+".join(solution.rungs),
        "backward_error": float(np.max(solution.backward_error)),
        "bound": solution.bound,
        "forward_error": forward_error(solution.x, reference),
        "growth": _growth(factors, solution.precision),
        "rcond": solution.rcond,
        "seconds": factor_seconds + solve_seconds,
        "factor_seconds": factor_seconds,
        "solve_seconds": solve_seconds,
        "device": solution.device,
        **_model(factors, plan),
    }
    if history:
        row["history"] = [_point(point) for point in solution.history]
    if spectrum >= problem.n:
        row["spectrum"] = _spectrum(problem.a, factors)
    return row


def raised(error):
    """Return the columns of a run that raised an error."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return {"status": RAISED, "converged": False, "reason": reason}


def _steps(solution):
    """Return three counts: all corrections, those inside of Krylov cycles, and the Krylov cycles.

    The last two are counted in the history.  With double-double residuals, it has no entries for the
    corrections that begin after x has met the bound, so these are not counted.
    """
    inner = [point.estimated for point in solution.history]
    cycles = sum(now and not after for now, after in zip(inner, [*inner, False][1:], strict=True))
    return {
        "steps": int(np.max(solution.iterations)),
        "inner_steps": sum(inner),
        "cycles": cycles,
    }


def _growth(factors, precision):
    """Return the largest entry of U divided by that of the matrix that was factored, or None.

    The quotient is a lower bound on the growth factor, which counts the intermediate matrices too.  LAPACK
    and cuSOLVER factor the transposed matrix if a is in C order.
    """
    ladder = ladder_of(factors)
    rung = ladder.rung
    if rung is None or rung.bad_pivot or ladder.precision != precision:
        return None
    ops, system = ladder.system.ops, ladder.system
    # `rung.how.native` is also true in FP32 with method='cg', where the factors are our own.
    native, _ = rung.native
    lu = rung.factors.lu if native is None else native.factors.lu
    top = ops.xp.abs(ops.xp.triu(lu)).max()
    matrix = system.matrix
    if rung.scaling is not None:
        matrix = ops.cast_scaled(matrix, rung.scaling.row, rung.scaling.col, matrix.dtype)
    top, size = (float(v) for v in ops.host(top, ops.xp.abs(matrix).max()))
    return top / size if size > 0 else None


def _model(factors, plan):
    """Return which arithmetic made the last factors, and the number of panels of the LU."""
    ladder = ladder_of(factors)
    if ladder.rung is None:
        return {"model": None, "panels": None}
    how = ladder.rung.how
    found = model_of_updates(how, ladder.panels_of(how), ladder.system.ops.device)
    if plan.method == "cg" and how.storage == "float32":
        model, kind = found["model"], "shifted Cholesky"
        is_lu = model.startswith("LU ")
        found["model"] = model.replace("LU", kind, 1) if is_lu else f"{kind}; {model}"
    return found


def model_of_updates(how, panels, device):
    """Return which arithmetic the updates of an LU with `panels` panels have, and the number of panels."""
    if panels is None:
        return {"model": f"LU in {how.name}, every operation rounded", "panels": None}
    _, _, unit = how.name.partition("@")
    if unit == "each":
        return {"model": f"every operation rounded to {how.format.name}", "panels": panels}
    if panels == 1:  # the panel is in FP32, and there is no update to round
        return {"model": "LU in fp32: all columns are in one panel", "panels": 1}
    products = "three products" if how.products == 3 else "one product"
    own = "sums of the GPU" if device == "cuda" else "FP32 sums"
    sums = f"sums of the tensor cores of {unit}" if unit else own
    if unit and UNITS[unit].source == "literature":  # this model was compared with no device
        sums += ", from the literature"
    model = f"updates of {products} of {how.format.name} operands, {sums}; panels in FP32"
    return {"model": model, "panels": panels}


def _point(point):
    error = [None if not np.isfinite(e) else float(e) for e in np.atleast_1d(point.error)]
    return [point.rung, int(np.max(point.step)), error[0], bool(point.estimated)]


def _spectrum(a, factors):
    """Return the eigenvalues of A and of M^-1 A, M the product of the factors with scaling undone."""
    ladder = ladder_of(factors)
    if ladder.rung is None or ladder.rung.bad_pivot:
        return None
    ops = ladder.system.ops
    (preconditioned,) = ops.host(invert(ladder, ops.xp.asarray(a.astype(ladder.system.wide))))
    if not np.isfinite(preconditioned).all():
        return None
    return {"before": _pairs(a), "after": _pairs(preconditioned)}


def _pairs(a):
    return [[float(v.real), float(v.imag)] for v in np.linalg.eigvals(a)]
