"""Draw the figures of the pages: diagrams, and curves from measurements and from emulated solves."""

import itertools
import json
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.patches import FancyBboxPatch, Rectangle  # noqa: E402

from tcsolve._arithmetic.formats import UPDATES  # noqa: E402
from tcsolve._backends.cuda.lu.rules import DeviceRules  # noqa: E402
from tcsolve._contract.schedule import schedule  # noqa: E402
from tcsolve._paths import Paths  # noqa: E402

INK, MUTED = "#1f2933", "#7b8794"
PANEL, DONE, ROW, UPDATE, NEXT = "#d9822b", "#cbd2d9", "#3e7cb1", "#dbe9f4", "#f2c14e"
STYLE = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "svg.hashsalt": "tcsolve",
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
}


def draw_all(folder, results):
    """Draw every figure into a folder; `results` is the folder of the measurements."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    with plt.rc_context(STYLE):
        for name, draw in FIGURES.items():
            figure = draw(Path(results))
            figure.savefig(folder / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
            plt.close(figure)


def _canvas(width, height, xlim, ylim):
    figure, ax = plt.subplots(figsize=(width, height))
    ax.set_xlim(*xlim)
    ax.set_ylim(*ylim)
    ax.axis("off")
    return figure, ax


def _box(ax, x, y, width, height, text, color="white", size=9.5):
    style = "round,pad=0.02,rounding_size=0.08"
    edge = {"edgecolor": INK, "linewidth": 1}
    ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=color, **edge))
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size, color=INK)


def _arrow(ax, start, end, text="", where=(0, 0), ha="center", bend=0.0):
    style = {"arrowstyle": "-|>", "color": INK, "linewidth": 1}
    style["connectionstyle"] = f"arc3,rad={bend}"
    ax.annotate("", xy=end, xytext=start, arrowprops=style)
    if text:
        x, y = ((s + e) / 2 + d for s, e, d in zip(start, end, where, strict=True))
        ax.text(x, y, text, ha=ha, va="center", fontsize=8.5, color=INK)


def _cell(ax, x, y, width, height, color, text="", size=9):
    ax.add_patch(Rectangle((x, y), width, height, facecolor=color, edgecolor=INK, linewidth=0.8))
    if text:
        ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size)


def data_flow(results):
    """The steps in which the library solves one general system."""
    figure, ax = _canvas(8.6, 7.6, (0, 10.4), (0.9, 10))
    left, width, height = 2.3, 4.2, 0.72
    steps = (
        (9.1, "check arguments, choose the device", "white"),
        (7.9, "survey A: norms, extremes, dominance", "white"),
        (6.7, "choose the first rung;\nscale rows and columns if needed", "white"),
        (5.3, "factor: P A = L U\nupdates on tensor cores", UPDATE),
        (3.9, "refine x with FP64 residuals", UPDATE),
        (2.5, "measure the backward error of x\nfrom the caller's a and b", "white"),
        (1.1, "Solution: x, status, errors", NEXT),
    )
    for y, text, color in steps:
        _box(ax, left, y, width, height, text, color)
    middle = left + width / 2
    for (upper, *_), (lower, *_) in itertools.pairwise(steps):
        _arrow(ax, (middle, upper - 0.04), (middle, lower + height + 0.04))
    ax.text(middle + 0.15, 3.56, "bound met", fontsize=8.5, va="center")
    _box(ax, 7.5, 4.6, 2.6, 0.72, "next rung:\nmore precise factors", PANEL)
    _arrow(ax, (left + width + 0.05, 4.2), (8.8, 4.56), "stalls", (0.55, -0.45), bend=0.25)
    _arrow(ax, (8.8, 5.36), (left + width + 0.05, 5.75), bend=0.25)
    _box(ax, 7.5, 2.9, 2.6, 0.72, "estimate rcond\nfrom the factors", "white")
    _arrow(ax, (left + width + 0.05, 5.35), (7.47, 3.4), bend=-0.1)
    _arrow(ax, (8.8, 2.87), (left + width + 0.05, 1.5), bend=-0.25)
    _box(ax, 0.05, 7.9, 1.9, 0.72, "a, b\nof the caller", DONE)
    _arrow(ax, (1.0, 8.65), (left - 0.05, 9.4), bend=-0.25)
    _arrow(ax, (1.0, 7.87), (left - 0.05, 4.3), bend=0.2)
    _arrow(ax, (0.6, 7.87), (left - 0.05, 2.8), bend=0.3)
    return figure


def lu_step(results):
    """One outer step of the LU: panel, row swaps, block row of U, trailing update, next panel."""
    figure, ax = _canvas(7.6, 4.7, (-0.4, 13.2), (-0.7, 8.2))
    _cell(ax, 0, 0, 1.5, 8, DONE, "L\n(done)")
    _cell(ax, 1.5, 6.5, 6.5, 1.5, DONE, "U (done)")
    _cell(ax, 1.5, 0, 1.5, 6.5, PANEL)
    for i in range(1, 4):
        ax.plot([1.5 + 0.375 * i] * 2, [0, 6.5], color=INK, linewidth=0.6, linestyle=":")
    ax.text(2.25, 3.2, "panel", rotation=90, ha="center", va="center", fontsize=10)
    _cell(ax, 3, 5, 1.5, 1.5, ROW, "U")
    _cell(ax, 4.5, 5, 3.5, 1.5, ROW, "block row of U")
    _cell(ax, 3, 0, 1.5, 5, NEXT, "next\npanel:\nupdated\nfirst")
    _cell(ax, 4.5, 0, 3.5, 5, UPDATE, "trailing\nupdate\nC -= L U\non tensor cores")
    notes = (
        (6.1, "1", "factor the panel, strip by strip (dotted)"),
        (5.2, "2", "swap rows left and right of the panel"),
        (4.3, "3", "solve for the block row of U"),
        (3.4, "4", "update the columns of the next panel"),
        (2.5, "5", "factor the next panel while ..."),
        (1.6, "6", "... the trailing update runs"),
    )
    for y, number, text in notes:
        ax.text(8.5, y, number, fontsize=10, weight="bold", va="center")
        ax.text(8.95, y, text, fontsize=9.5, va="center")
    return figure


def lu_panels(results):
    """The panels of an LU of n = 32768, to scale."""
    n = 32768
    rules = DeviceRules("sm_90a", "f", lambda *args: None, Paths())
    panels = schedule(n, UPDATES["fp16x3"], rules).panels
    edges = [
        (p.start, p.stop - p.start, rules.block(n - p.start, UPDATES["fp16x3"], False))
        for p in panels
    ]
    figure, ax = _canvas(5.6, 5.6, (-500, n + 500), (n + 2600, -1800))
    shades = {1024: "#b5651d", 512: PANEL, 192: "#f0b775", 128: NEXT}
    for start, width, kind in edges:
        patch = {"facecolor": shades[kind], "edgecolor": "white", "linewidth": 0.25}
        ax.add_patch(Rectangle((start, start), width, n - start, **patch))
        ax.add_patch(
            Rectangle(
                (start + width, start), n - start - width, width, **{**patch, "facecolor": UPDATE}
            )
        )
    ax.add_patch(Rectangle((0, 0), n, n, fill=False, edgecolor=INK))
    for kind in shades:
        here = [start for start, _, k in edges if k == kind]
        ax.text(
            (here[0] + here[-1] + kind) / 2,
            n + (2100 if kind == 192 else 900),
            f"{len(here)} x {kind}",
            ha="center",
            fontsize=8.5,
        )
    ax.text(0.62 * n, 0.3 * n, "block rows of U", fontsize=10)
    ax.text(0.08 * n, 0.72 * n, "panels", fontsize=10, color="white")
    return figure


def strip_order(results):
    """The product before each strip of a panel: the strips that it uses, and those that it updates."""
    figure, ax = _canvas(7.2, 3.0, (-0.2, 8.4), (-1.0, 4.4))
    for number in range(8):
        _cell(ax, number, 0, 1, 0.6, PANEL, f"{number}")
    for number in range(1, 8):
        count = number & -number
        level = {1: 0.9, 2: 1.9, 4: 2.9}[count]
        shown = min(count, 8 - number)
        _cell(ax, number - count, level, count, 0.5, DONE, "", 8)
        _cell(ax, number, level, shown, 0.5, UPDATE, "", 8)
        _arrow(ax, (number - 0.3, level + 0.25), (number + 0.35, level + 0.25))
    ax.text(4, 3.75, "four strips update the next four", ha="center", fontsize=9)
    ax.text(4, -0.5, "strips of one panel, factored from left to right", ha="center", fontsize=9)
    return figure


def panel_kernel(results):
    """A strip spread over the blocks of a cluster, and the exchange for one column."""
    figure, ax = _canvas(8.0, 3.9, (-0.2, 13.6), (-0.6, 6.4))
    for block in range(4):
        y = 4.8 - 1.5 * block
        _cell(ax, 0, y, 3.2, 1.3, UPDATE)
        _cell(ax, 0.8, y, 0.6, 1.3, PANEL)
        name = f"block {block}" if block < 3 else "block 15"
        ax.text(-0.05, y + 0.65, name, ha="right", va="center", fontsize=9)
        _cell(ax, 5.2, y + 0.15, 2.5, 1.0, "white", "best row of\neach warp", 8.5)
        _arrow(ax, (3.3, y + 0.65), (5.15, y + 0.65), "search" if not block else "", (0, 0.25))
        _cell(ax, 9.9, y + 0.15, 3.4, 1.0, NEXT, "largest of all: pivot\neliminate my rows", 8.5)
        for other in range(4):
            start, end = (7.75, y + 0.65), (9.85, 4.8 - 1.5 * other + 0.65)
            ax.plot(*zip(start, end, strict=True), color=MUTED, linewidth=0.7)
    ax.text(8.8, 6.25, "every warp sends\nto every block", ha="center", va="center", fontsize=8.5)
    ax.text(1.1, 6.3, "leaf", ha="center", fontsize=9)
    ax.text(1.6, 0.12, "rows of the strip", ha="center", va="top", fontsize=9)
    return figure


def look_ahead(results):
    """The order of work with look-ahead and without."""
    figure, ax = _canvas(8.0, 3.1, (-1.7, 13), (-0.3, 4.9))
    lanes = ((4.0, "one after\nthe other"), (2.0, "panel stream"), (1.0, "update stream"))
    for y, name in lanes:
        ax.text(-0.15, y + 0.3, name, ha="right", va="center", fontsize=9)
    x = 0.0
    for i in range(3):
        for width, color, text in ((1.2, PANEL, f"P{i}"), (2.9, UPDATE, f"update {i}")):
            _cell(ax, x, 4.0, width, 0.6, color, text, 8.5)
            x += width
    _cell(ax, 0, 2.0, 1.2, 0.6, PANEL, "P0", 8.5)
    start = 1.2
    for i in range(3):
        _cell(ax, start, 1.0, 0.7, 0.6, NEXT, "", 8)
        if i < 2:
            _cell(ax, start + 0.7, 2.0, 1.2, 0.6, PANEL, f"P{i + 1}", 8.5)
        _cell(ax, start + 0.7, 1.0, 2.2, 0.6, UPDATE, f"rest {i}", 8.5)
        start += 2.9
    _cell(ax, 0, 0.1, 0.4, 0.35, NEXT)
    ax.text(
        0.5,
        0.27,
        'update of the next panel\'s columns; "rest" is the update of all other columns',
        va="center",
        fontsize=8.5,
    )
    ax.annotate(
        "", xy=(12.9, 3.4), xytext=(0, 3.4), arrowprops={"arrowstyle": "-|>", "color": MUTED}
    )
    ax.text(12.9, 3.55, "time", ha="right", fontsize=8.5, color=MUTED)
    return figure


# The packages, from high to low; each row imports from lower rows only.
LAYERS = (
    ("cli",),
    ("tcsolve",),
    ("_family", "_study"),
    ("_solve", "_gemm"),
    ("_lu", "_refine"),
    ("_backends",),
    ("_contract",),
    ("_arithmetic",),
    ("types",),
)


def layers(results):
    """The packages, and which may import which."""
    step = 1.1
    figure, ax = _canvas(7.6, 5.4, (0, 10), (0, step * len(LAYERS)))
    for i, names in enumerate(reversed(LAYERS)):
        width, y = 8.0 / len(names), step * i + 0.1
        for j, name in enumerate(names):
            color = UPDATE if name == "_backends" else "white"
            _box(ax, 1 + j * width + 0.1, y, width - 0.2, 0.7, name, color)
        if i:
            _arrow(ax, (5, y - 0.03), (5, y - step + 0.73))
    return figure


def speed_up(results):
    """The time of the fastest other solver divided by ours, from solve.json."""
    found = json.loads((results / "solve.json").read_text())
    figure, ax = plt.subplots(figsize=(6.4, 3.6))
    for family, color in (("gauss", ROW), ("gauss_dominant", PANEL)):
        rows = [r for r in found["rows"] if r["family"] == family and "seconds" in r]
        sizes = sorted({r["n"] for r in rows})

        def median(n, ours, rows=rows):
            here = [r for r in rows if r["n"] == n and (r["solver"] == "tcsolve auto") == ours]
            return min(r["seconds"]["median"] for r in here)

        ratio = [median(n, False) / median(n, True) for n in sizes]
        ax.plot(sizes, ratio, marker="o", color=color, label=family)
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, sizes)
    ax.set_ylim(0, None)
    ax.axhline(1, color=MUTED, linewidth=0.8)
    ax.set_xlabel("n")
    ax.set_ylabel("fastest other solver / tcsolve")
    ax.legend(frameon=False)
    facts = found["machine"]
    ax.set_title(f"{facts['gpu']}, commit {facts['commit']}", fontsize=9, color=MUTED)
    return figure


def convergence(results):
    """The backward error after each correction, for three kinds of factors, emulated."""
    import tcsolve

    figure, axes = plt.subplots(1, 2, figsize=(8.0, 3.4), sharey=True)
    for ax, cond in zip(axes, (1e2, 1e5), strict=True):
        problem = tcsolve.matrices.generate("svd_geo", 300, cond=cond, seed=1)
        for update, color in (("bf16", MUTED), ("fp16", PANEL), ("fp16x3", ROW)):
            plan = tcsolve.Plan(update, fallback=False, block=32)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                solution = tcsolve.solve_ex(problem.a, problem.b, precision=plan, device="cpu")
            exact = [p for p in solution.history if not p.estimated]
            inner = [p for p in solution.history if p.estimated]
            for points, style in (
                (exact, {"marker": "o"}),
                (inner, {"marker": ".", "linestyle": ":"}),
            ):
                at = [int(p.step.max()) for p in points], [float(p.error.max()) for p in points]
                label = update if points is exact else None
                ax.semilogy(*at, color=color, markersize=4, label=label, **style)
        ax.axhline(solution.bound, color=INK, linewidth=0.8, linestyle="--")
        ax.set_title(f"condition number {cond:.0e}", fontsize=10)
        ax.set_xlabel("corrections")
        ax.set_xlim(0, 40)
    axes[0].set_ylabel("backward error")
    axes[0].legend(frameon=False, fontsize=9)
    return figure


FIGURES = {
    "data_flow": data_flow,
    "lu_step": lu_step,
    "lu_panels": lu_panels,
    "strip_order": strip_order,
    "panel_kernel": panel_kernel,
    "look_ahead": look_ahead,
    "layers": layers,
    "speed_up": speed_up,
    "convergence": convergence,
}
