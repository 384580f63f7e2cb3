"""What every figure shares: axes with units, a legend beside nothing it hides, and where it came from."""

import json
import pathlib

from _harness import RESULTS


def figure(title, xlabel, ylabel, *, panels=1):
    """Return (figure, list of axes) with labels; needs matplotlib, and no display."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    made, axes = pyplot.subplots(1, panels, figsize=(6.4 * panels, 4.6), squeeze=False)
    made.suptitle(title)
    for axis in axes[0]:
        axis.set_xlabel(xlabel)
        axis.set_ylabel(ylabel)
        axis.grid(True, alpha=0.3)
    return made, list(axes[0])


def finish(made, axes, facts, path):
    """Add legends and the source of the numbers, and write a PNG."""
    for axis in axes:
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize="small")
    device = facts.get("gpu") or facts["cpu"]
    made.text(0.01, 0.005, f"{device}; commit {facts['commit']}, {facts['date']}", fontsize=7)
    made.tight_layout(rect=(0, 0.02, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    made.savefig(path, dpi=130)
    print(f"wrote {path}")


def load(path):
    """Return (machine, rows) of a results file."""
    results = json.loads(pathlib.Path(path).read_text())
    return results["machine"], results["rows"]


def by(rows, **wanted):
    """Return the rows whose entries are as wanted."""
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def add_arguments(parser, name):
    """Add --figure, and --from to draw from an older run without measuring."""
    parser.set_defaults(json=RESULTS / f"{name}.json")
    parser.add_argument("--figure", type=pathlib.Path, default=RESULTS / f"{name}.png")
    parser.add_argument(
        "--from", dest="source", type=pathlib.Path, help="only draw, from this JSON"
    )
