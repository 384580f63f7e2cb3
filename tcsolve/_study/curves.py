"""Pictures of curves: residual histories, steps against the condition number, performance profiles."""

import math

import numpy as np

from tcsolve._errors import InputError
from tcsolve._study.looks import NAMES, chosen, looks_of, panels

__all__ = ["DRAWINGS", "performance_profile"]

MOST_PANELS = 9


def _histories(figure, table, matrix=None):
    """Draw the backward error after each step, a panel for each matrix."""
    rows = chosen([row for row in table.ran if row.get("history")], "a history", matrix)
    names = list(dict.fromkeys(row["matrix"] for row in rows))
    if len(names) > MOST_PANELS:
        names = [names[int(i)] for i in np.linspace(0, len(names) - 1, MOST_PANELS)]
    looks = looks_of(row["plan"] for row in rows)
    axes = panels(figure, len(names), sharey=True)
    for ax, name in zip(axes, names, strict=True):
        here = [row for row in rows if row["matrix"] == name]
        for row in here:
            _history(ax, row["history"], looks[row["plan"]])
        ax.axhline(here[0]["bound"], color="black", linewidth=0.6, linestyle=(0, (1, 2)))
        ax.set(yscale="log", xlabel="step", title=_titled(here[0]))
        # A prediction may fall far below any error that can be reached.
        ax.set_ylim(bottom=here[0]["bound"] / 1e3)
        ax.xaxis.get_major_locator().set_params(integer=True)
    for ax in axes:
        if ax.get_subplotspec().is_first_col():
            ax.set_ylabel("backward error")
    _legend_below(figure, looks)
    figure.suptitle(
        "Backward error after each step: marks are recomputed errors, lines between them are predictions\n"
        "inside of Krylov methods, the dotted line is the bound",
        fontsize=8,
    )


def _history(ax, history, look):
    points = [(step, error) for _, step, error, _ in history if error is not None]
    if points:
        ax.plot(*zip(*points, strict=True), **look | {"marker": "None"})
    sure = [(step, error) for _, step, error, guess in history if error is not None and not guess]
    if sure:
        ax.plot(*zip(*sure, strict=True), **look | {"linestyle": "None"})


def _steps(figure, table, x="kappa"):
    """Draw the steps to converge against a column of the matrix; runs that fail are in a band at the top."""
    from matplotlib.ticker import NullLocator

    rows = [row for row in table.ran if row.get(x) and math.isfinite(row[x])]
    rows = chosen(rows, f"a positive {x}")
    looks = looks_of(row["plan"] for row in rows)
    figure.set_size_inches(5.2, 3.4)
    ax = figure.subplots()
    most = max((row["steps"] for row in rows if row["converged"]), default=1)
    # Steps of zero are drawn at one half, which a logarithmic axis can show.
    top = 1.6 * max(most, 2)
    for place, (plan, look) in enumerate(looks.items()):
        runs = sorted((r for r in rows if r["plan"] == plan), key=lambda row: row[x])
        good = [row for row in runs if row["converged"]]
        ax.plot(
            [row[x] for row in good],
            [max(row["steps"], 0.5) for row in good],
            **look | {"linestyle": look["linestyle"] if _is_sweep(runs) else "None", "alpha": 0.85},
        )
        level = top * 1.22**place
        failed = [row[x] for row in runs if not row["converged"]]
        ax.plot(failed, [level] * len(failed), **look | {"linestyle": "None", "label": None})
    ax.axhspan(top / 1.15, top * 1.22 ** len(looks), color="0.93", zorder=0)
    ax.text(
        0.01,
        top * 1.22 ** (len(looks) - 0.9),
        " not converged",
        va="center",
        fontsize=7,
        transform=ax.get_yaxis_transform(),
    )
    ax.set(xscale="log", yscale="log", xlabel=NAMES.get(x, x), ylabel="steps to converge")
    ax.set_ylim(0.4, top * 1.22 ** len(looks))
    ax.set_yticks([1, *(10**k for k in range(1, 6) if 10**k < top / 1.15)])
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_title(f"Steps by precision ({len({row['matrix'] for row in rows})} matrices)")
    _legend_below(figure, looks)


def _profile(figure, table, measure="steps"):
    """Draw the performance profile of the plans."""
    curves = performance_profile(table.ran, measure)
    if not curves:
        raise InputError(f"study: no matrix has a converged run with {measure}")
    looks = looks_of(curves)
    figure.set_size_inches(4.6, 3.2)
    ax = figure.subplots()
    matrices = max(count for _, count in curves.values())
    most = max((ratios[-1] for ratios, _ in curves.values() if len(ratios)), default=1.0)
    end = max(2.0, most * 1.15)
    for plan, (ratios, count) in curves.items():
        found, repeats = np.unique(ratios, return_counts=True)
        share = np.concatenate([[0.0], np.cumsum(repeats) / count])
        x, y = np.concatenate([[1.0], found, [end]]), np.append(share, share[-1])
        every = slice(1, -1, max(1, len(x) // 6))
        ax.step(x, y, where="post", markevery=every, **looks[plan])
    ax.set(xscale="log", xlim=(1, end), ylim=(0, 1.03), ylabel="share of the matrices")
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter("{x:g}")
    compared = "steps + 1" if measure == "steps" else NAMES.get(measure, measure)
    ax.set_xlabel(f"({compared}) / (that of the best plan), at most")
    ax.set_title(f"Performance profile of {measure} ({matrices} matrices)")
    _legend_below(figure, looks)


def performance_profile(rows, measure):
    """Return the curves of Dolan and More.

    Parameters
    ----------
    rows : iterable of dict
        Rows of runs.
    measure : str
        A column whose smaller values are better.  A run that has not converged has no value.

    Returns
    -------
    dict of str to (ndarray, int)
        For each plan, the sorted ratios of its values to those of the best plan, where it has converged; and
        the number of matrices that some plan solves.
    """
    values = {}
    for row in rows:
        plans = values.setdefault(row["matrix"], {})
        value = row.get(measure)
        # A run may need no step, and a ratio to zero is not defined.  So one is added to the steps of every
        # run.
        value = value + 1 if measure == "steps" and value is not None else value
        plans[row["plan"]] = value if row["converged"] and value is not None else math.inf
    solved = [plans for plans in values.values() if min(plans.values()) < math.inf]
    names = dict.fromkeys(row["plan"] for row in rows)
    return {plan: (_ratios(solved, plan), len(solved)) for plan in (names if solved else ())}


def _ratios(solved, plan):
    found = [plans.get(plan, math.inf) / min(plans.values()) for plans in solved]
    return np.sort([ratio for ratio in found if ratio < math.inf])


def _is_sweep(runs):
    """Tell whether the runs are of one generator, so that a line between them means something."""
    return len(runs) > 1 and len({row["matrix"].split()[0] for row in runs}) == 1


def _titled(row):
    kappa = row.get("kappa")
    return (
        row["matrix"]
        if kappa is None or "cond=" in row["matrix"]
        else (f"{row['matrix']}, n = {row['n']}, " + rf"$\kappa$ = {kappa:.0e}")
    )


def _legend_below(figure, looks):
    """Put one legend for all axes below them."""
    from matplotlib.lines import Line2D

    shown = [Line2D([], [], **look) for look in looks.values()]
    width = max(len(look["label"]) for look in looks.values())
    columns = max(1, min(len(shown), int(figure.get_size_inches()[0] * 12 / (width + 6))))
    figure.legend(handles=shown, loc="outside lower center", ncols=columns, handlelength=2.6)


DRAWINGS = {"histories": _histories, "steps": _steps, "profile": _profile}
