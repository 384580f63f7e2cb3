"""Pictures of curves: residual histories, steps against the condition number, performance profiles."""

import math
import textwrap

import numpy as np

from tcsolve._errors import InputError
from tcsolve._study.layout import (
    fit,
    grid,
    heading,
    legend_below,
    legend_under,
    panels,
    wrapped,
)
from tcsolve._study.looks import (
    MOST_CURVES,
    NAMES,
    Group,
    chosen,
    counted,
    groups_of,
    is_number,
    require_numbers,
    shared_words,
    words,
)

__all__ = ["DRAWINGS", "performance_profile"]

# Largest number of matrices in a picture of histories with one group of plans.  With several groups each
# matrix has its own rows of subplots: at most MOST_ROWS in all, each with at most MOST_COLUMNS subplots.
MOST_MATRICES, MOST_ROWS, MOST_COLUMNS = 9, 5, 4
# Heights of the subplots of histories in inches: they share PAGE_HEIGHT within these limits.  If the picture
# with its legends is higher than PAGE, it has only one matrix.
LOWEST, HIGHEST, PAGE_HEIGHT, PAGE = 1.15, 1.8, 5.75, 11
# In a picture of points for more than MANY_POINTS matrices, a subplot has at most FEW_PLANS plans.
MANY_POINTS, FEW_PLANS = 30, 4
# The marks of failed runs of each plan are higher than those of the plan before by this factor.
FAILED_STEP = 1.3
MARKS_ONLY = {"linestyle": "None"}


def _histories(figure, table, matrix=None):
    """Draw the backward error after each step, a subplot for each matrix and group of plans."""
    rows = chosen([row for row in table.ran if row.get("history")], "a history", matrix)
    names = list(dict.fromkeys(row["matrix"] for row in rows))
    groups, shared = groups_of(rows), shared_words(rows)
    lines, every = -(-len(groups) // MOST_COLUMNS), len(names)
    most = MOST_MATRICES if len(groups) == 1 else max(1, MOST_ROWS // lines)
    for count in (most, 1):
        some = names
        if every > count:
            some = [names[int(i)] for i in np.linspace(0, every - 1, count)]
        figure.clear()
        _histories_of(figure, rows, some, every, groups, shared)
        if figure.get_size_inches()[1] <= PAGE:
            break


def _histories_of(figure, rows, names, every, groups, shared):
    """Draw the histories of the matrices `names`; `every` is the number of all matrices."""
    axes = _history_panels(figure, len(names), groups)
    for ax, (name, group) in zip(axes, [(m, g) for m in names for g in groups], strict=True):
        here = [row for row in rows if row["matrix"] == name]
        _history_panel(ax, here, group)
        if group is groups[0]:
            ax.set_title(_titled(here[0], 36 * len(groups)), loc="left")
        if name == names[0] and len(groups) > 1:
            ax.set_title(wrapped(group.title, _history_width(groups)) + "\n")
    some = "" if len(names) == every else f" ({len(names)} of {every} matrices)"
    heading(
        figure,
        f"Backward error after each step{some}: marks are recomputed errors, the last one that of the x that "
        "is returned; inside of Krylov methods, the lines follow predictions; the dotted line is the bound",
        shared,
    )
    rows = axes[0].get_subplotspec().get_gridspec().nrows
    fit(figure, min(HIGHEST, max(LOWEST, PAGE_HEIGHT / rows)))


def _history_panels(figure, matrices, groups):
    """Return the axes, those of one matrix one after the other; each legend is drawn once."""
    if len(groups) == 1:
        axes = panels(figure, matrices, sharey=True)
        legend_below(figure, groups[0].looks)
    else:
        columns, width = min(len(groups), MOST_COLUMNS), _history_width(groups)
        lines = -(-len(groups) // columns)
        places = grid(figure, matrices * lines, columns, width, sharey=True)
        axes = []
        for i in range(matrices):
            row = places[i * lines * columns : (i + 1) * lines * columns]
            axes += row[: len(groups)]
            for ax in row[len(groups) :]:
                ax.set_visible(False)
        for ax, group in zip(axes[-len(groups) :], groups, strict=True):
            legend_under(ax, group.looks, width)
    for ax in axes:
        if ax.get_subplotspec().is_first_col():
            ax.set_ylabel("backward error")
    return axes


def _history_width(groups):
    """Return the width of a subplot in inches, for several groups."""
    return 7 / min(len(groups), MOST_COLUMNS)


def _history_panel(ax, rows, group):
    """Draw the histories of one matrix with the plans of a group."""
    for row in rows:
        if row["plan"] in group.looks:
            _history(ax, row["history"], group.looks[row["plan"]])
    bound = rows[0]["bound"]
    ax.axhline(bound, color="black", linewidth=0.6, linestyle=(0, (1, 2)))
    ax.set(yscale="log", xlabel="step")
    # A prediction may fall far below any error that can be reached.
    ax.set_ylim(bottom=bound / 1e3)
    ax.xaxis.get_major_locator().set_params(integer=True)


def _history(ax, history, look):
    points = [(step, error) for _, step, error, _ in history if error is not None]
    if points:
        ax.plot(*zip(*points, strict=True), **look | {"marker": "None"})
    sure = [(step, error) for _, step, error, guess in history if error is not None and not guess]
    if sure:
        ax.plot(*zip(*sure, strict=True), **look | MARKS_ONLY)


def _steps(figure, table, x="kappa"):
    """Draw the steps to converge against column `x` of the table; runs that fail are in a band at the top."""
    require_numbers(table.ran, "steps: x", x)
    rows = [row for row in table.ran if _is_positive(row.get(x))]
    rows = chosen(rows, f"a positive number in the column {x}")
    count = len({row["matrix"] for row in rows})
    sweep = _is_sweep(rows)
    groups = groups_of(rows, FEW_PLANS if count > MANY_POINTS and not sweep else MOST_CURVES)
    if not sweep:
        groups = [Group(g.title, {p: g.looks[p] | MARKS_ONLY for p in g.looks}) for g in groups]
    most = max((row["steps"] for row in rows if row["converged"]), default=1)
    axes = _group_panels(figure, groups, NAMES.get(x, words(x)))
    for ax, group in zip(axes, groups, strict=True):
        _steps_panel(ax, rows, group, x, 1.6 * max(most, 2))
    ends = 0.6 * min(row[x] for row in rows), max(row[x] for row in rows) / 0.6
    for ax in figure.axes:
        ax.set_xlim(ends)
    heading(figure, f"Steps by precision ({counted(count)})", shared_words(rows))
    fit(figure, _height(groups))


def _is_positive(value):
    return is_number(value) and 0 < value < math.inf


def _steps_panel(ax, rows, group, x, top):
    """Draw the runs of the plans of a group; those that fail are above `top`, a line for each plan."""
    from matplotlib.ticker import NullLocator

    for place, (plan, look) in enumerate(group.looks.items()):
        runs = sorted((r for r in rows if r["plan"] == plan), key=lambda row: row[x])
        good = [row for row in runs if row["converged"]]
        # Steps of zero are drawn at one half, which a logarithmic axis can show.
        points = [row[x] for row in good], [max(row["steps"], 0.5) for row in good]
        ax.plot(*points, **look, alpha=0.85)
        failed = [row[x] for row in runs if not row["converged"]]
        level = [top * FAILED_STEP**place] * len(failed)
        ax.plot(failed, level, **look | MARKS_ONLY | {"markersize": 3})
    end = top * FAILED_STEP ** len(group.looks)
    ax.axhspan(top / 1.15, end * 2, color="0.93", zorder=0)
    ax.text(
        0.01, end * 1.8, " not converged", va="top", fontsize=7, transform=ax.get_yaxis_transform()
    )
    ax.set(xscale="log", yscale="log", ylabel="steps to converge")
    ax.set_ylim(0.4, end * 2)
    ax.set_yticks([1, *(10**k for k in range(1, 6) if 10**k < top / 1.15)])
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_locator(NullLocator())


def _group_panels(figure, groups, label):
    """Return axes for each group, with its title and legend, and the label of the x axis."""
    if len(groups) == 1:
        axes = grid(figure, 1, 1, 5.2)
        legend_below(figure, groups[0].looks)
        axes[0].set_xlabel(label)
        return axes
    columns = 2 if len(groups) <= 4 else 3
    width = 7 / columns
    axes = panels(figure, len(groups), columns=columns, width=width)
    for ax, group in zip(axes, groups, strict=True):
        ax.set_title(wrapped(group.title, width))
        ax.set_xlabel(wrapped(label, width))
        legend_under(ax, group.looks, width)
    return axes


def _height(groups):
    """Return the height in inches of the axes of `_group_panels`."""
    return 2.1 if len(groups) == 1 else 1.55


def _profile(figure, table, measure="steps"):
    """Draw the performance profile of the plans."""
    require_numbers(table.ran, "profile: measure", measure)
    curves = performance_profile(table.ran, measure)
    if not curves:
        raise InputError(f"study: no matrix has a converged run with {words(measure)}")
    groups = groups_of(table.ran)
    matrices = max(count for _, count in curves.values())
    most = max((ratios[-1] for ratios, _ in curves.values() if len(ratios)), default=1.0)
    end = max(2.0, most * 1.15)
    compared = "steps + 1" if measure == "steps" else NAMES.get(measure, words(measure))
    axes = _group_panels(figure, groups, f"({compared}) / (that of the best plan), at most")
    for ax, group in zip(axes, groups, strict=True):
        for plan, (ratios, count) in curves.items():
            look = group.looks.get(plan, {"color": "0.85", "linewidth": 0.5, "zorder": 1})
            _profile_curve(ax, ratios, count, end, look)
        ax.set_xscale("log", base=2)
        ax.set(xlim=(1, end), ylim=(0, 1.03), ylabel="share of the matrices")
        ax.xaxis.set_major_formatter("{x:g}")
    others = "; in grey: the plans of the other subplots" if len(groups) > 1 else ""
    title = f"Performance profile of {words(measure)} ({counted(matrices)}){others}"
    heading(figure, title, shared_words(table.ran))
    fit(figure, _height(groups))


def _profile_curve(ax, ratios, count, end, look):
    found, repeats = np.unique(ratios, return_counts=True)
    share = np.concatenate([[0.0], np.cumsum(repeats) / count])
    x, y = np.concatenate([[1.0], found, [end]]), np.append(share, share[-1])
    every = slice(1, -1, max(1, len(x) // 6))
    ax.step(x, y, where="post", markevery=every, **look)


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
        the number of all matrices, also of those that no plan solves.  Empty if no plan solves any.
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
    return {plan: (_ratios(solved, plan), len(values)) for plan in (names if solved else ())}


def _ratios(solved, plan):
    found = [_ratio(plans.get(plan, math.inf), min(plans.values())) for plans in solved]
    return np.sort([ratio for ratio in found if ratio < math.inf])


def _ratio(value, best):
    """Return value / best; if the best is 0, 1 for 0 and infinity for a larger value."""
    if best:
        return value / best
    return 1.0 if value == 0 else math.inf


def _is_sweep(rows):
    """Tell whether the runs are of one generator, so that a line between them means something."""
    names = {row["matrix"] for row in rows}
    return len(names) > 1 and len({name.split()[0] for name in names}) == 1


def _titled(row, width):
    """Return the name of the matrix, its order and condition number, in lines of at most `width` letters."""
    told, kappa = row["matrix"], row.get("kappa")
    if "n=" not in told:
        told += f", n = {row['n']}"
    if kappa is not None and "cond=" not in told:
        told += f", $\\kappa$\xa0=\xa0{kappa:.0e}"  # one word, which is not cut
    return "\n".join(textwrap.wrap(told, width))


DRAWINGS = {"histories": _histories, "steps": _steps, "profile": _profile}
