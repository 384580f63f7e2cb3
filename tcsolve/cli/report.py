"""The report of a solve: as a dict for JSON, and as text."""

import dataclasses
import itertools
import math
import textwrap

import numpy as np

from tcsolve._report import message
from tcsolve.cli.machine import versions
from tcsolve.cli.messages import print_aligned

__all__ = ["print_report", "report_of"]

WIDTH = 100


def report_of(problem, solution):
    """Return the report: facts about the matrix, the fields of the `Solution` except x, and the versions.

    'forward_error' is the error against the x_true of the problem, or None.  The estimate of the `Solution`
    is 'forward_error_estimate'.
    """
    x, exact, forward = solution.x, problem.x_true, None
    finite = bool(np.isfinite(x).all())
    with np.errstate(over="ignore"):
        norm = float(np.abs(problem.a).sum(axis=1).max())
        if exact is not None and finite:
            forward = float(np.abs(x - exact).max() / np.abs(exact).max())
    names = (f.name for f in dataclasses.fields(solution) if f.name != "x")
    return {
        "matrix": {
            "name": problem.name,
            "n": problem.n,
            "nrhs": 1 if problem.b.ndim == 1 else problem.b.shape[1],
            "dtype": str(problem.a.dtype),
            "norm_inf": norm,
            "cond": problem.cond,
        },
        **{name: getattr(solution, name) for name in names},
        "ok": solution.status.ok,
        "message": message(solution),
        "finite": finite,
        "forward_error": forward,
        "forward_error_estimate": solution.forward_error,
        "versions": versions(),
    }


def print_report(report, solution, stream):
    matrix, worst = report["matrix"], _worst(solution.backward_error)
    rhs = "" if matrix["nrhs"] == 1 else f", {matrix['nrhs']} right-hand sides (worst shown)"
    cond = "" if matrix["cond"] is None else f", cond {matrix['cond']:.1e}"
    rcond = "not estimated" if math.isnan(solution.rcond) else f"{solution.rcond:.1e}"
    lines = {
        "matrix": f"{matrix['name']}, n = {matrix['n']}, {matrix['dtype']}, "
        f"norm {matrix['norm_inf']:.3g}{cond}{rhs}",
        "verdict": message(solution),
        "precision": f"{solution.precision} (tried {', '.join(solution.rungs)}) on {solution.device}",
        "steps": _worst(solution.iterations),
        "backward error": f"{worst:.1e} (bound {solution.bound:.1e})",
        "rcond": rcond,
    }
    if report["forward_error"] is not None:
        lines["forward error"] = f"{report['forward_error']:.1e}"
    if solution.forward_error is not None:
        lines["estimated"] = f"forward error {_worst(solution.forward_error):.1e}"
    lines["seconds"] = ", ".join(f"{phase} {s:.3g}" for phase, s in solution.seconds.items())
    for rung, points in itertools.groupby(solution.history, key=lambda point: point.rung):
        # '~' marks an error that was estimated after an inner step.
        errors = " ".join(f"{'~' * p.estimated}{_worst(p.error):.0e}" for p in points)
        lines[f"history {rung}"] = textwrap.fill(errors, WIDTH, subsequent_indent=" " * 16)
    print_aligned(lines, stream)


def _worst(values):
    return np.max(values, initial=0)  # NaN if any value is NaN
