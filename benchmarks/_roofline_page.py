"""Make the page and the timeline of roofline.py from its JSON."""

import json
from collections import Counter

from _floors import EXCHANGE_SECONDS, FLOORS, GEMM_ORDER
from _profile import (
    BLOCK_ROW,
    INDEX,
    INNER,
    INVERSES,
    MOVES,
    OTHER,
    PACK,
    PANEL,
    UPDATE,
    alone_times,
)
from tables import source, table

COLORS = {
    PANEL: "#d62728",
    UPDATE: "#1f77b4",
    PACK: "#17becf",
    MOVES: "#ff7f0e",
    BLOCK_ROW: "#9467bd",
    INNER: "#e377c2",
    INVERSES: "#8c564b",
    INDEX: "#7f7f7f",
    OTHER: "#000000",
}


def figure_path(path):
    """Return the path of the timeline of a results file."""
    return path.with_name(path.stem.replace("roofline", "lookahead") + ".png")


def page(facts, rows, figure):
    """Return the Markdown page of a results file."""
    lines = ["# Where the milliseconds of a solve go", ""]
    lines += [explanation(facts), ""]
    lines += ["Floors:", ""]
    exchange = exchange_text(facts["rates"])
    lines += [f"- {name}: {text.format(exchange=exchange)}" for name, text in FLOORS.items()]
    for row in rows:
        lines += ["", *chapter(row)]
    if any("timeline" in row for row in rows):
        lines += ["", "## Look-ahead", "", f"![timeline of a few panels]({figure})", ""]
    lines += [saving(row) for row in rows]
    command = (
        f"benchmarks/roofline.py --precision {rows[0]['precision']}" if rows else "roofline.py"
    )
    return "\n".join([*lines, "", source(facts, command)]) + "\n"


def exchange_text(rates):
    """Return a phrase with the time of an exchange, and whether it was measured."""
    if "exchange_seconds" in rates:
        return f"{1e6 * rates['exchange_seconds']:.2f} us (measured alone: exchange.cu)"
    return f"taken as {1e6 * EXCHANGE_SECONDS:.1f} us (assumed, not measured)"


def explanation(facts):
    """Return the paragraph that explains the tables."""
    rates = facts["rates"]
    copy, fp16, fp32 = (rates[k] / 1e12 for k in ("copy_bytes", "fp16_flops", "fp32_flops"))
    return (
        "The matrix is FP64, with one right-hand side, both on the device. *busy*: the time in which a kernel"
        " of the category runs. *exposed*: the time in which only kernels of the category run. *floor*: the"
        " shortest possible time of the category, if it ran alone at the rates measured in the same run (copy"
        f" {copy:.2f} TB/s read plus written, FP16 GEMM {fp16:.0f} and FP32 GEMM {fp32:.0f} TFLOP/s at n ="
        f" {GEMM_ORDER}). *idle*: the time of a solve without the profiler, minus the time in which kernels"
        " run; it contains launches and work of the host. FP32 GEMMs inside the vendor's trsm count as GEMMs"
        " of the panel, because both have the same names. The triangular solves include those of the"
        " condition estimate."
    )


def chapter(row):
    """Return the lines of one n."""
    n = row["n"]
    phases = ", ".join(f"{k} {1e3 * v:.2f}" for k, v in row["phases"].items() if v > 5e-6)
    body = [
        [
            c["category"],
            c["launches"],
            f"{1e3 * c['busy']:.3f}",
            f"{1e3 * c['exposed']:.3f}",
            "-" if c["floor"] is None else f"{1e3 * c['floor']:.3f}",
            f"{c['busy'] / c['floor']:.1f}" if c["floor"] and c["busy"] else "-",
        ]
        for c in row["categories"]
    ]
    launches = sum(c["launches"] for c in row["categories"])
    body += [
        ["two or more categories at once", "", "", f"{1e3 * row['overlapped']:.3f}", "-", "-"],
        ["idle", "", "", f"{1e3 * row['idle']:.3f}", "-", "-"],
        [
            "**solve**",
            launches,
            f"{1e3 * row['busy']:.3f}",
            f"{1e3 * row['solve']['median']:.3f}",
            "-",
            "-",
        ],
    ]
    head = ["part", "launches", "busy, ms", "exposed, ms", "floor, ms", "busy / floor"]
    lines = [
        f"## n = {n}, {row['family']}, {row['precision']}, {widths(row)}",
        "",
    ]
    lines += [table(head, body), ""]
    lines += [
        f"Solve {1e3 * row['solve']['median']:.2f} ms (under the profiler {1e3 * row['profiled']:.2f}),"
        f" {row['steps']} steps, {'>'.join(row['rungs'])}, backward error {row['backward_error']:.1e}."
        f" Phases in ms: {phases}."
    ]
    lines += [refinement(row), *panel_lines(row), *chain_lines(row)]
    if row["others"]:
        lines += ["", "Other kernels:", ""]
        lines += [f"- `{name[:100]}`: {count} x, {ms:.3f} ms" for name, count, ms in row["others"]]
    return lines


def refinement(row):
    """Return the sentence on the time of one refinement step."""
    each = row["step"]
    floor = row["refinement_floor"]
    return (
        f"A refinement step (residual, both triangular solves, norms) takes {1e3 * each:.3f} ms, if no "
        f"estimate of the condition runs at the same time. This is {each / floor:.2f} times the time to "
        f"read its bytes ({1e3 * floor:.3f} ms)."
    )


def panel_lines(row):
    """Return the sentence about the microseconds per column of a panel, for some heights."""
    if not row["panel"]:
        return []
    heights = [height for height, *_ in row["panel"]]
    wanted = {min(heights, key=lambda h, at=at: abs(h - at)) for at in (32768, 16384, 8192, 4096)}
    told = [
        f"{kernels:.2f} ({everything:.2f}) at {height} rows"
        for height, kernels, everything in row["panel"]
        if height in wanted
    ]
    return [
        "Microseconds per column in the kernels of a panel (in brackets: with the work between its strips):"
        f" {', '.join(told)}."
    ]


def chain_lines(row):
    """Return the sentences about the chain of panels, which runs at the same time as updates."""
    chain = row.get("chain")
    floors = [c["floor"] for c in row["categories"] if c["category"] == UPDATE]
    if not chain or not floors:
        return []
    lines = [
        f"The chain of panels: {chain['launches']} launches, one after the other, take"
        f" {1e3 * chain['inside']:.2f} ms. Between them pass {1e3 * chain['between']:.2f} ms, in which"
        " rows move, columns are updated, and panels wait for trailing updates. All trailing updates would"
        f" take at least {1e3 * floors[0]:.2f} ms alone."
    ]
    alone = alone_times(row["panel"])
    if alone:
        inside, whole = (1e3 * seconds for seconds in alone)
        lines += [
            f"Without look-ahead the panels take {inside:.2f} ms in their kernels, and {whole:.2f} ms with"
            " the work between strips."
        ]
    return lines


def saving(row):
    """Return the line about the time that look-ahead saves in the factorization."""
    with_it, without = row["look_ahead"]["median"], row["serial"]["median"]
    flops = 2 / 3 * row["n"] ** 3
    bits = (
        "The factors have the same bits" if row["same_bits"] else "The bits of the factors differ"
    )
    return (
        f"- n = {row['n']}: the LU alone takes {1e3 * with_it:.2f} ms with look-ahead"
        f" ({flops / with_it / 1e12:.0f} TFLOP/s), {1e3 * without:.2f} ms without"
        f" ({flops / without / 1e12:.0f} TFLOP/s). Look-ahead saves {1e3 * (without - with_it):.2f} ms"
        f" ({100 * (1 - with_it / without):.0f} %). {bits}."
    )


def draw(row, path):
    """Draw the timeline of one row: with look-ahead above, without it below, a line of bars per stream."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    titles = {"look_ahead": "with look-ahead", "serial": "without look-ahead"}
    lanes = {key: streams(row["timeline"][key]) for key in titles}
    heights = [max(1, len(lanes[key])) for key in titles]
    figure = Figure(figsize=(11, 2.6 + 0.5 * sum(heights)), layout="constrained")
    axes = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    seen = set()
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        for category, stream, start, length in row["timeline"][key]:
            category = category if category in COLORS else OTHER
            seen.add(category)
            lane = lanes[key].index(stream)
            axis.broken_barh([(start, length)], (lane - 0.4, 0.8), facecolors=COLORS[category])
        axis.set_yticks(range(len(lanes[key])), [f"stream {s}" for s in lanes[key]])
        axis.set_ylim(len(lanes[key]) - 0.5, -0.5)
        whole = f"{1e3 * row[key]['median']:.2f} ms for the whole factorization"
        axis.set_title(f"{title}: {whole}", fontsize=10)
        axis.grid(axis="x", alpha=0.3)
    axes[-1].set_xlabel("time in ms since the start of an early update")
    axes[-1].set_xlim(left=0)
    what = f"LU, n = {row['n']}, {row['precision']}, {widths(row)}"
    figure.suptitle(what, fontsize=11)
    handles = [Patch(color=color, label=name) for name, color in COLORS.items() if name in seen]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9)
    figure.savefig(path, dpi=150)


def streams(bars):
    """Return the streams of a timeline; the stream with most of the updates comes first."""
    updates = Counter()
    for category, stream, _, length in bars:
        updates[stream] += length if category == UPDATE else 0.0
    return sorted(updates, key=lambda stream: (-updates[stream], stream))


def publish(path):
    """Write the page and the figure of a results file into its folder."""
    results = json.loads(path.read_text())
    facts, rows = results["machine"], results["rows"]
    figure = figure_path(path)
    path.with_suffix(".md").write_text(page(facts, rows, figure.name))
    with_timeline = [row for row in rows if "timeline" in row]
    if with_timeline:
        try:
            draw(with_timeline[-1], figure)
        except ImportError as error:
            print(f"{figure.name} is not drawn ({error}): install matplotlib, then use --draw")


def widths(row):
    """Return a phrase with the widths of the panels."""
    return f"panels of {' and '.join(map(str, row['blocks']))} columns"
