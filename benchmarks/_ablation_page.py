"""The page of ablation.py: what each special path saves, and whether it stays."""

import numpy as np
from tables import source, table

__all__ = ["BYTES", "CONTROL", "LU", "SOLVE", "gain", "overview", "page", "verdict"]

# What a row measures, besides 'call 1', 'call 2', ...; and the path that switches nothing off.
SOLVE, LU, BYTES, CONTROL = "solve", "LU", "bytes", "nothing"
# A path that saves less than this at every size is removed.
LEAST = 0.02
FAMILIES = {"gauss": "gauss", "gauss_dominant": "gauss + n I"}
NOTES = {
    "dominant_strips": "Off: every strip is searched, and the strips of a dominant matrix are as wide as "
    "those of any other matrix.  On gauss, the path only tests the first column of each strip before the "
    "search.",
    "look_ahead": "Off: the same kernels one after the other, with the same bits.",
    "gate": "Off: the kernel of the gate does not wait, so an update may start before the panel has got its "
    "multiprocessors.  This kernel also lists the multiprocessors of the panel, and the update reads the "
    "list.  If the kernel does not wait, this may be the list of the last LU.  The lines of the kernel can "
    "be deleted only if other code makes the list.",
    "wide_panels": "Off: a panel starts only when all its columns are updated, and U is found by "
    "substitution, not by a product with an inverse.  Square panels are off, too, so the panels of a "
    "dominant matrix are as wide as those of any other matrix.",
    "small_graphs": "n up to 8192.  Off: no LU starts early, and no step is launched ahead, because both "
    "need a graph.  Its lines can be deleted only together with `large graphs`.",
    "large_graphs": "n above 8192.  It is the code of `small graphs` with a larger limit on n.",
    "early_start": "n up to 4096.  Off: the LU starts only when the survey is known.  The survey tells "
    "whether the matrix is dominant; if it is, the faster LU of dominant matrices is used.",
    "steps_ahead": "n up to 8192.  Off: refinement steps are launched one by one.",
    "condition_aside": "Off: the estimate runs after the refinement.  A dominant matrix needs none.",
    "single_survey": "Off: two launches find the sums, and a third makes the FP32 copy.",
    "residual_kernel": "Off: cuBLAS multiplies, and no step is launched ahead, because its graph has this "
    "kernel.",
    "triangular_kernels": "Off: cuBLAS solves.  Then no step is launched ahead, and no estimate runs "
    "aside.  Parts of the lines stay, because square panels and stacks need them.",
    "exact_memory": "Off: 1.25 times the bytes of the factors are planned.  Here, *saves* is the error of "
    "this plan minus that of the exact plan, relative to the bytes used.",
}
TEXT = """\
Each path of `tcsolve._paths` is switched off alone.  The library is timed with and without it, in turns, in
one run.  Wall clock, medians.  *Saves*: how much longer it takes without the path; ~ marks times whose
quartiles overlap; - marks what was not measured, because the path cannot act there, or changes no bytes.
{native}A path *keeps* its place if at some size it saves {least} of the time of a solve, or
makes the error of the planned bytes smaller by {least} of the used bytes.  The quartiles must not overlap
there, and the gain must exceed the noise of the same matrix and size.  *Lines of code* are those that could
be deleted with the path, without comments; some belong to several paths.  A strip is the part of a panel that
one launch factors; the survey is the pass over A that finds its sums of rows and columns.  {noise}"""
NATIVE = "At n = {sizes} the solve takes FP64 factors, for which no path acts; these times are left out.  "
LEFT = "The run ended before {left} more rows were measured; they may change a verdict."
OTHERS = """\
Code mainly for other devices (smaller clusters, cooperative grids, products without wgmma) is not measured
here, because it seldom runs on this one."""


# ---- judging -----------------------------------------------------------------------------------


def gain(row):
    """Return what the path saves in a row, as a part of the time (or of the bytes used)."""
    if row["what"] == BYTES:
        exact, rough = (abs(row[key] / row["used"] - 1) for key in ("full", "off"))
        return rough - exact
    return row["off"]["median"] / row["full"]["median"] - 1


def is_clear(row):
    """Tell whether the quartiles of the two times do not overlap."""
    if row["what"] == BYTES:
        return True
    fast, slow = sorted((row["full"], row["off"]), key=lambda times: times["median"])
    return fast["quartiles"][1] < slow["quartiles"][0]


def natives(rows):
    """Return the n at which the solve takes FP64 factors."""
    solves = [row for row in rows if row["what"] == SOLVE and "facts" in row]
    return sorted({row["n"] for row in solves if row["facts"]["full"]["rungs"] == ["fp64"]})


def acting(rows):
    """Return the rows without the times at sizes where the solve takes FP64 factors."""
    sizes = natives(rows)
    return [row for row in rows if row["what"] == BYTES or row["n"] not in sizes]


def verdict(rows, name):
    """Return 'keeps', 'goes', 'unclear' or 'not known' for a path.

    Only solves and planned bytes count; the LU alone and the first calls of a size do not.  A gain is unclear
    if quartiles overlap, or if it is no larger than the noise of the same system.
    """
    noise = {place(row): abs(gain(row)) for row in rows if is_control(row)}
    mine = [row for row in rows if row["path"] == name and row["what"] in (SOLVE, BYTES)]
    good = [row for row in mine if "error" not in row]
    large = [row for row in good if gain(row) >= LEAST]
    if any(is_clear(row) and gain(row) > noise.get(place(row), 0.0) for row in large):
        return "keeps"
    if large:
        return "unclear"
    return "goes" if good and len(good) == len(mine) else "not known"


def is_control(row):
    return row["path"] == CONTROL and "error" not in row


def place(row):
    """Return (what was timed, family of the matrix, n) of a row."""
    return row["what"], row["family"], row["n"]


def extreme(rows, name, what, which=max):
    """Return the cell of the largest (or smallest) gain of a path, and where it is."""
    mine = [row for row in rows if (row["path"], row["what"]) == (name, what)]
    mine = [row for row in mine if "error" not in row]
    if not mine:
        return "-"
    row = which(mine, key=gain)
    return f"{percent(row)} ({where(row)})"


def where(row):
    """Return the matrix of a row."""
    family = FAMILIES.get(row["family"], row["family"])
    return f"{family}, {row['n']}"


def percent(row):
    """Return the cell of a gain; '~' marks one whose quartiles overlap."""
    return f"{100 * gain(row):+.1f} %{'' if is_clear(row) else ' ~'}"


# ---- tables ------------------------------------------------------------------------------------


def names(rows):
    """Return the names of the paths, in the order of the rows."""
    return [name for name in dict.fromkeys(row["path"] for row in rows) if name != CONTROL]


def overview(facts, rows):
    """Return the table of all paths: lines, largest gains, verdict."""
    body, rows = [], acting(rows)
    for name in names(rows):
        lines = facts.get("lines", {}).get(name, "-")
        cells = [extreme(rows, name, what) for what in (SOLVE, LU, BYTES)]
        cells.insert(1, extreme(rows, name, SOLVE, min))
        body.append([spoken(name), lines, *cells, verdict(rows, name)])
    head = ["path", "lines of code", "saves most, solve", "least", "most, LU alone", "most, bytes"]
    head.append("keeps / goes")
    return table(head, body)


def noise(rows):
    """Return the sentence about what switching nothing off seems to save."""
    found = [abs(gain(row)) for row in rows if is_control(row)]
    if not found:
        return "How much is noise was not measured."
    return (
        f"Switching nothing off changes a time by up to {100 * max(found):.1f} % "
        f"(median {100 * float(np.median(found)):.1f} %): this is noise."
    )


def spoken(name):
    return name.replace("_", " ")


def grid(rows, what, family):
    """Return the table of gains of all paths and sizes; its first row has the times of the full library."""
    mine = [row for row in rows if (row["what"], row["family"]) == (what, family)]
    sizes = sorted({row["n"] for row in mine})
    cell = {(row["path"], row["n"]): "fails" if "error" in row else percent(row) for row in mine}
    times = {}
    for row in mine:
        if "full" in row:
            times.setdefault(row["n"], []).append(row["full"]["median"])
    full = [f"{1e3 * float(np.median(times[n])):.2f}" if n in times else "-" for n in sizes]
    body = [["*full library, ms*", *full]]
    for name in dict.fromkeys(row["path"] for row in mine):
        body.append([spoken(name), *(cell.get((name, n), "-") for n in sizes)])
    return table(["without", *map(str, sizes)], body) if mine else "Not measured."


def calls_table(rows):
    """Return the table of the first calls of a size."""
    found = [row for row in rows if row["what"].startswith("call ")]
    body = []
    for name, n in dict.fromkeys((row["path"], row["n"]) for row in found):
        here = [row for row in found if (row["path"], row["n"]) == (name, n)]
        if any("error" in row for row in here):
            body.append([n, spoken(name), "fails"])
            continue
        for key, who in (("full", f"with {spoken(name)}"), ("off", "without")):
            body.append([n, who, *(f"{1e3 * row[key]['median']:.2f}" for row in here)])
    width = max(map(len, body), default=0)
    body = [[*line, *["-"] * (width - len(line))] for line in body]
    head = ["n", "library", *(f"call {i + 1}, ms" for i in range(width - 2))]
    return table(head, body) if body else "Not measured."


def bytes_table(rows):
    """Return the table of planned bytes."""
    body = []
    for row in rows:
        if row["what"] == BYTES:
            start = [row["n"], row["nrhs"]]
            if "error" in row:
                body.append([*start, "fails", "-", "-"])
                continue
            ratios = (f"{row[key] / row['used']:.3f}" for key in ("full", "off"))
            body.append([*start, f"{row['used'] / 2**20:.1f}", *ratios])
    head = ["n", "right-hand sides", "used, MiB", "planned / used", "roughly planned / used"]
    return table(head, body) if body else "Not measured."


def page(facts, rows):
    """Return the Markdown page of the rows."""
    sizes, rows = natives(rows), acting(rows)
    native = NATIVE.format(sizes=", ".join(map(str, sizes))) if sizes else ""
    text = TEXT.format(least=f"{100 * LEAST:.0f} %", noise=noise(rows), native=native)
    if facts.get("left"):
        text += "  " + LEFT.format(left=facts["left"])
    parts = ["# What each special path saves", text, overview(facts, rows)]
    for what, title in ((SOLVE, "The whole solve"), (LU, "The LU alone")):
        for family, told in FAMILIES.items():
            parts += [f"## {title}, {told}", grid(rows, what, family)]
    parts += ["## The first calls of a size", calls_table(rows)]
    parts += ["## Bytes planned", bytes_table(rows), "## Notes"]
    parts.append("\n".join(f"- *{spoken(name)}*: {note}" for name, note in NOTES.items()))
    parts.append(OTHERS)
    return "\n\n".join([*parts, source(facts, "benchmarks/ablation.py")]) + "\n"
