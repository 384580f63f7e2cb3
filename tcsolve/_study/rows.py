"""The rows of a study: what identifies a row, and the runs of one matrix that make its rows."""

import functools
import hashlib
import json
import sys
import time

from tcsolve._solution import plain
from tcsolve._study.cases import load_case
from tcsolve._study.columns import CRASHED, RAISED, SKIPPED
from tcsolve._study.energy import measure_energy
from tcsolve._study.facts import facts_of
from tcsolve._study.filters import NotFetched, Skipped
from tcsolve._study.reference import reference_of
from tcsolve._study.runs import FactorsInTurn, raised, run_plan
from tcsolve._study.threads import blas_threads
from tcsolve._study.versions import versions

__all__ = ["Settings", "canonical", "crashed_row", "is_whole", "key_of", "rows_of"]


class Settings(dict):
    """What all runs share: device, seed, rhs, history, spectrum, energy, and the hash of the study."""

    @property
    def identity(self):
        """The settings that decide the result of a run."""
        return {key: self[key] for key in ("device", "seed", "rhs")}


def key_of(case, plan, settings, is_fetched=True):
    """Return the key of a run, the same for the same matrix, plan, device, seed and right-hand side.

    Without a plan it is the key of the row of a skipped matrix; this key also depends on the filters.  If the
    matrix could not be fetched, its row has another key, so that a study that is resumed asks for it again.
    """
    what = (case.filters.given() or None) if plan is None else plan.identity()
    data = [case.identity(), what, settings.identity]
    data += [] if is_fetched else ["not fetched"]
    return hashlib.sha256(canonical(data).encode()).hexdigest()[:20]


def is_whole(row, settings):
    """Tell whether a row has all that is asked for: the history, the spectrum and the energy."""
    if row["status"] in (SKIPPED, CRASHED, RAISED):  # it never has them
        return True
    asked = {
        "history": settings["history"],
        "spectrum": settings["spectrum"] >= row["n"],
        "energy": settings["energy"],
    }
    return all(name in row for name, is_asked in asked.items() if is_asked)


def canonical(data):
    """Return data as JSON text that does not depend on the order of keys."""
    return json.dumps(plain(data), sort_keys=True, separators=(",", ":"))


def rows_of(case, plans, settings, ready=lambda: None):
    """Yield the rows of one matrix, one for each plan; or one row that says why it is skipped.

    `ready` is called before the first run, when the matrix and its facts are known.
    """
    try:
        problem = load_case(case, settings["seed"], settings["rhs"])
        if problem.cond is not None:  # known without work
            case.filters.check_kappa(problem.cond)
        facts = facts_of(problem)
        if zero_pivot := facts.pop("zero_pivot"):
            # A zero pivot does not prove exact singularity: rounding may make a small pivot zero.
            raise Skipped(
                f"it is singular to working precision: pivot {zero_pivot} is zero in FP64"
            )
        case.filters.check_kappa(facts["kappa"])
    except Skipped as reason:
        row = _row(case, None, settings) | {"status": SKIPPED, "reason": str(reason)}
        row["key"] = key_of(case, None, settings, not isinstance(reason, NotFetched))
        yield plain(row)
        return
    options = {key: settings[key] for key in ("history", "spectrum")}
    options["reference"] = reference_of(problem, settings["device"])
    factors_of = FactorsInTurn(problem.a, settings["device"])
    ready()
    for plan in plans:
        row = _row(case, plan, settings) | facts | {"blas_threads": blas_threads()}
        try:
            row |= run_plan(problem, plan.plan(), factors_of, residual=plan.residual, **options)
            if settings["energy"] and "device" in row:  # else the run has ended with an error
                how = row["device"], plan.residual
                row |= measure_energy(problem, plan.plan(), *how)
        except Exception as error:  # whatever it is, the other runs of a long study go on
            row |= raised(f"{type(error).__name__}: {error}")
        yield plain(row)


def crashed_row(case, plan, settings, reason):
    """Return the row of a run whose process died, or was ended because the run took too long."""
    return _row(case, plan, settings) | {"status": CRASHED, "converged": False, "reason": reason}


def _row(case, plan, settings):
    """Return the fields that identify a run; `plan` is None if the matrix is skipped."""
    return {
        "matrix": case.label,
        "source": case.source,
        "plan": None if plan is None else plan.label,
        **({} if plan is None else plan.columns),
        "seed": settings["seed"],
        "rhs": settings["rhs"],
        "study": settings["study"],
        "key": key_of(case, plan, settings),
        "date": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "versions": _versions("cupy" in sys.modules),
    }


@functools.cache
def _versions(with_cupy):
    """Return `versions()`; it reads files, so it is called only once, and again after CuPy is loaded."""
    return versions()
