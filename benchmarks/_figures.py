"""Helpers of figures: axes with units, legends, the source of the numbers."""

import json
import pathlib

from _harness import RESULTS

from tcsolve._study.looks import COLOURS, DASHES, MARKERS


def figure(title, xlabel, ylabel, *, panels=1):
    """Return (figure, list of axes) with labels, two axes per row; it needs matplotlib but no display."""
    from matplotlib.figure import Figure

    columns = min(2, panels)
    rows = -(-panels // columns)
    made = Figure(figsize=(6.4 * columns, 4.4 * rows + 0.2))
    axes = list(made.subplots(rows, columns, squeeze=False).flat)
    made.suptitle(title)
    for axis in axes:
        axis.set_xlabel(xlabel)
        axis.set_ylabel(ylabel)
        axis.set_axisbelow(True)
        axis.grid(True, alpha=0.3)
    return made, axes


def curve(place, count):
    """Return the look of curve number `place` of `count`; the first curves are wider, so all are seen."""
    later = count - 1 - place
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": DASHES[place % len(DASHES)],
        "linewidth": 1.3 + 0.6 * later,
        "markersize": 4.5 + 1.6 * later,
    }


def ticks(axis, values):
    """Label a logarithmic x axis at these values only."""
    values = sorted(set(values))
    axis.set_xticks(values, [str(value) for value in values])
    axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)


def legend_beside(axis):
    """Put the legend to the right of the axes, for many curves."""
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))


def finish(made, axes, facts, path):
    """Add missing legends and the source of the numbers, and write a PNG."""
    for axis in axes:
        if axis.get_legend_handles_labels()[0] and axis.get_legend() is None:
            axis.legend(fontsize="small")
    device = facts.get("gpu") or facts["cpu"]
    made.text(0.01, 0.005, f"{device}; commit {facts['commit']}, {facts['date']}", fontsize=7)
    made.tight_layout(rect=(0, 0.02, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    made.savefig(path, dpi=130)
    print(f"wrote {path}")


def try_to_draw(draw, *args):
    """Call draw(*args); without matplotlib, print how to draw the figure later."""
    try:
        draw(*args)
    except ImportError as problem:
        print(f"nothing is drawn ({problem}): install matplotlib, then draw from the JSON")


def load(path):
    """Return (machine, rows) of a results file."""
    results = json.loads(pathlib.Path(path).read_text())
    return results["machine"], results["rows"]


def by(rows, **wanted):
    """Return the rows with the wanted entries."""
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def beside_the_gpu(options):
    """Give results of a CPU other file names, so that they do not replace the results of a GPU."""
    for name in ("json", "figure"):
        path = getattr(options, name, None)
        if options.device == "cpu" and path is not None and path.parent == RESULTS:
            setattr(options, name, path.with_stem(path.stem + "_cpu"))


def add_arguments(parser, name):
    """Add --figure, and --from to draw from an older run without measuring."""
    parser.set_defaults(json=RESULTS / f"{name}.json")
    parser.add_argument("--figure", type=pathlib.Path, default=RESULTS / f"{name}.png")
    parser.add_argument(
        "--from", dest="source", type=pathlib.Path, help="only draw, from this JSON"
    )
