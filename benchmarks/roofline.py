"""Where do the milliseconds of a solve go on the GPU, and how far is each part from its floor?

    python benchmarks/roofline.py                                 # n = 4096 ... 32768, gauss, fp16x3
    python benchmarks/roofline.py --precision fp16 --json benchmarks/results/roofline_fp16.json
    python benchmarks/roofline.py --draw                          # page and figure from the JSON; no GPU

Every kernel of one solve is recorded with torch.profiler and put into a category by its name (KERNELS).
Times without the profiler come from CUDA events.  A page (roofline.md) and a timeline of a few outer
panels with and without look-ahead (lookahead.png) are written beside the JSON, and from it.
"""

import itertools
import json
import pathlib
import re
import sys
import tempfile
from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np
from _harness import RESULTS, arguments, device_seconds, gpu, machine, save, summary
from tables import source, table

PANEL, MOVES, BLOCK_ROW = "panel", "row moves", "block row (trsm)"
UPDATE, PACK, INNER = "update GEMM", "packing of operands", "FP32 GEMM of panels"
INVERSES, CAST, INDEX = (
    "inverses of diagonal blocks",
    "norms and FP32 copy of A",
    "small kernels of the LU",
)
RESIDUAL, TRIANGLES, VECTORS = "residual (gemv)", "triangular solves", "norms and vectors"
OTHER = "other"
# A kernel that finishes the one before it on its stream, and belongs to the same category.
CONTINUED = "continued"

# The one place where kernels get their category: a pattern of the name (the first that matches counts);
# what it is in the factorization; what it is from the first triangular solve on.  A fused kernel counts as
# its costliest job.
KERNELS = (
    (r"tcs_panel|getrf|getf2|laswp", PANEL, PANEL),
    (r"tcs_move_rows", MOVES, MOVES),
    (r"tcs_swap_solve", BLOCK_ROW, BLOCK_ROW),
    (r"tcs_pack|tcs_split|tcs_update_scale", PACK, PACK),
    (r"tcs_gemm", UPDATE, UPDATE),
    (r"tcs_solve_triangle", TRIANGLES, TRIANGLES),
    (r"tcs_(row|col)_stats|tcs_extremes|tcs_cast_scaled", CAST, CAST),
    (r"tcs_matrix_residual", RESIDUAL, RESIDUAL),
    (r"tcs_(residual|column_max|lower|raise|gate)", INDEX, VECTORS),
    (r"^cupy_|cupy::|cub::|thrust", INDEX, VECTORS),
    (r"^Mem(set|cpy)", INDEX, VECTORS),
    (r"tcs_invert|batch_trsm_left|MakeBatchPointers", INVERSES, INVERSES),
    (r"trsm", BLOCK_ROW, TRIANGLES),
    (r"splitKreduce", CONTINUED, CONTINUED),
    # cuBLAS on 16-bit or TF32 operands: nvjet_sm90_hss, xmma_gemm_f16f16, s16816gemm, tf32f32, ...
    (r"nvjet_(sm\d+_)?[ht]s|gemm_b?f16|(1688|16816|161616)gemm|[hs]884gemm|tf32", UPDATE, UPDATE),
    (r"gemv|dot_kernel|reduce_1Block", INVERSES, RESIDUAL),
    (r"dgemm|d884gemm|f64|<double|nvjet_(sm\d+_)?d", OTHER, RESIDUAL),
    # cuBLAS on FP32 operands, of the panel or inside its own trsm: the name does not tell.
    (r"sgemm|simt|gemm_f32f32|gemmk1|gemmSN|nvjet_(sm\d+_)?s", INNER, TRIANGLES),
)

# What the floor of each category counts; see `floors`.
FLOORS = {
    PANEL: "a column costs one exchange between the blocks, taken as {exchange} us (assumed, not measured),"
    " or the panel read and written once, whichever is more",
    MOVES: "two rows a pivot, read and written outside the panel (none where the pivots are on the diagonal)",
    BLOCK_ROW: "its flops at the FP32 rate, or its bytes",
    UPDATE: "its flops, all products counted, at the FP16 rate, or the trailing matrix read and written"
    " for each outer panel",
    PACK: "both FP32 operands read, their 16-bit parts written, once",
    INNER: "the flops of an LU of each outer panel at the FP32 rate; where a panel is one strip, the products"
    " are those for the next panel's columns, and where it is several, on Hopper, they count as update GEMM",
    INVERSES: "diagonal blocks read, inverses written",
    CAST: "A read in FP64 for the norms, read again and written in FP32",
    RESIDUAL: "A read once in FP64 for each residual",
    TRIANGLES: "one triangle of FP32 factors read for each launch",
}

# Latency of an exchange between the blocks of a cluster, the floor of a column of the panel; assumed.
EXCHANGE_SECONDS = 0.5e-6
# Matrix order at which the GEMM rates are measured, and bytes of the copy.
GEMM_ORDER, COPY_BYTES = 8192, 2 << 30
# The timeline shows as many update kernels as there are, on average, from one outer panel to another.
PANELS_SHOWN = (1, 4)
# Kernels of category 'other' that are listed by name.
OTHERS_LISTED = 20
FAMILIES = {"fp16": "gauss_dominant", "bf16": "gauss_dominant", "tf32": "gauss_dominant"}

COLORS = {
    PANEL: "#d62728",
    UPDATE: "#1f77b4",
    PACK: "#17becf",
    MOVES: "#ff7f0e",
    BLOCK_ROW: "#9467bd",
    INNER: "#e377c2",
    INDEX: "#7f7f7f",
    OTHER: "#000000",
}


class Kernel(NamedTuple):
    """One kernel of a profile; times in microseconds."""

    name: str
    stream: int
    start: float
    stop: float


class Span(NamedTuple):
    """A kernel with its category instead of its name."""

    category: str
    stream: int
    start: float
    stop: float


# ---- sorting a profile -------------------------------------------------------------------------


def kernels_of(trace):
    """Return the kernels, memsets and copies of a Chrome trace (a dict) as Kernels, by start."""
    found = []
    for event in trace["traceEvents"]:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            stream = event.get("args", {}).get("stream", event.get("tid"))
            start = float(event["ts"])
            found.append(Kernel(event["name"], stream, start, start + float(event["dur"])))
    return sorted(found, key=lambda kernel: kernel.start)


def category_of(name, solving):
    """Return the category of a kernel in the factorization, or in the solve that follows."""
    for pattern, factoring, later in KERNELS:
        if re.search(pattern, name):
            return later if solving else factoring
    return OTHER


def classify(kernels):
    """Return the Spans of kernels sorted by start; the first triangular solve ends the factorization."""
    spans, before, solving = [], {}, False
    for kernel in kernels:
        category = category_of(kernel.name, solving)
        if category == CONTINUED:
            category = before.get(kernel.stream, OTHER)
        solving = solving or category == TRIANGLES
        before[kernel.stream] = category
        spans.append(Span(category, *kernel[1:]))
    return spans


def sweep(spans):
    """Return (busy, alone, union): time each category covers, covers without any other, and all cover."""
    edges = [(s.start, 1, s.category) for s in spans] + [(s.stop, -1, s.category) for s in spans]
    active, busy, alone, union, last = Counter(), defaultdict(float), defaultdict(float), 0.0, 0.0
    for at, step, category in sorted(edges, key=lambda edge: edge[0]):
        present = [name for name, count in active.items() if count > 0]
        for name in present:
            busy[name] += at - last
        if len(present) == 1:
            alone[present[0]] += at - last
        union += (at - last) if present else 0.0
        active[category] += step
        last = at
    return dict(busy), dict(alone), union


def others(kernels, spans):
    """Return [name, launches, milliseconds] of the kernels no pattern knows, longest first."""
    total = defaultdict(lambda: [0, 0.0])
    for kernel, span in zip(kernels, spans, strict=True):
        if span.category == OTHER:
            total[kernel.name][0] += 1
            total[kernel.name][1] += (kernel.stop - kernel.start) / 1e3
    rows = sorted(([name, *value] for name, value in total.items()), key=lambda row: -row[2])
    return rows[:OTHERS_LISTED]


def panel_times(spans, panels, strips):
    """Return [rows, us a column in the kernels, us a column in all] of each outer panel, or [].

    Of a factorization without look-ahead; strips is how many launches each panel takes.
    """
    kernels = [span for span in spans if span.category == PANEL]
    if len(kernels) != sum(strips):
        return []  # a fallback path, whose panels cannot be told apart
    found, taken = [], iter(kernels)
    for (first, last), count in zip(panels, strips, strict=True):
        group = list(itertools.islice(taken, count))
        rows, columns = panels[-1][1] - first, last - first
        kernels = sum(span.stop - span.start for span in group)
        found.append([rows, kernels / columns, (group[-1].stop - group[0].start) / columns])
    return found


def excerpt(spans, count, shown=PANELS_SHOWN):
    """Return [category, stream, start, length], in ms, of about as many panels of `count` as are `shown`."""
    updates = sorted(span.start for span in spans if span.category == UPDATE)
    if not updates or count < 2:
        return []
    each = len(updates) / (count - 1)  # the last panel has nothing to update
    start, stop = (updates[min(len(updates) - 1, round(i * each))] for i in shown)
    inside = [s for s in spans if s.stop > start and s.start < stop]
    return [
        [
            s.category,
            s.stream,
            (max(s.start, start) - start) / 1e3,
            (min(s.stop, stop) - max(s.start, start)) / 1e3,
        ]
        for s in inside
    ]


# ---- floors ------------------------------------------------------------------------------------


def floors(panels, products, rates, *, pivoting=True, residuals=0, triangles=0, inverse_bytes=0):
    """Return {category: seconds}, the least each category could take alone.

    Parameters
    ----------
    panels : list of (int, int)
        Columns of the outer panels.
    products : int
        Tensor-core products of the update.
    rates : dict
        'copy_bytes' (read plus written), 'fp16_flops' and 'fp32_flops', a second.
    pivoting : bool
        Whether pivots leave the diagonal, so that rows move.
    residuals, triangles : int
        Residuals computed, triangular solves launched.
    inverse_bytes : int
        Of the inverted diagonal blocks.
    """
    copy, fp16, fp32 = rates["copy_bytes"], rates["fp16_flops"], rates["fp32_flops"]
    least = dict.fromkeys(FLOORS, 0.0)
    n = panels[-1][1]
    for first, last in panels:
        m, k, r = n - first, last - first, n - last
        least[PANEL] += max(k * EXCHANGE_SECONDS, 8 * m * k / copy)
        least[MOVES] += 8 * min(2 * k, m) * (n - k) / copy if pivoting else 0.0
        least[BLOCK_ROW] += max(k * k * r / fp32, 8 * k * r / copy)
        least[UPDATE] += max(2 * products * k * r * r / fp16, 8 * r * r / copy)
        least[PACK] += 2 * k * r * (4 + 2 * products) / copy
        least[INNER] += k * k * (m - k / 3) / fp32
    least[INVERSES] = 2 * inverse_bytes / copy
    least[CAST] = 20 * n * n / copy
    least[RESIDUAL] = residuals * 8 * n * n / copy
    least[TRIANGLES] = triangles * 2 * n * n / copy
    return least


def step_floor(n, rates):
    """Return the least seconds of a refinement step: A in FP64 and both FP32 triangles, read once."""
    return (8 + 4) * n * n / rates["copy_bytes"]


# ---- measuring ---------------------------------------------------------------------------------


def require_torch():
    """Import torch and wake its device, or end with a remedy."""
    try:
        import torch
    except ImportError:
        sys.exit(
            "roofline.py records kernels with torch.profiler: install torch, or redraw with --draw"
        )
    torch.zeros(1, device="cuda")


def record(run):
    """Return the Kernels that run() launches."""
    import cupy
    from torch.profiler import ProfilerActivity, profile

    cupy.cuda.Device().synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        cupy.cuda.Device().synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        kernels = kernels_of(json.loads(path.read_text()))
    if not kernels:
        sys.exit(
            "torch.profiler recorded no kernel: another profiler may hold CUPTI, or it is not permitted"
        )
    return kernels


def measure_rates(repeats):
    """Return the rates the floors rest on, measured here and now."""
    import cupy

    rates = {
        "copy_bytes": copy_rate(repeats),
        "fp16_flops": gemm_rate(np.float16, repeats),
        "fp32_flops": gemm_rate(np.float32, repeats),
    }
    cupy.get_default_memory_pool().free_all_blocks()
    return rates


def copy_rate(repeats):
    """Return bytes read plus written in a second by a copy on the device."""
    import cupy

    here, there = (cupy.zeros(COPY_BYTES // 8) for _ in range(2))
    seconds = device_seconds(lambda: cupy.copyto(there, here), repeats)
    return 2 * COPY_BYTES / float(np.median(seconds))


def gemm_rate(dtype, repeats):
    """Return the flops a second of a square product of random operands."""
    import cupy

    rng = cupy.random.default_rng(1)
    shape = (GEMM_ORDER, GEMM_ORDER)
    a, b = (rng.standard_normal(shape, dtype=np.float32).astype(dtype) for _ in range(2))
    return 2 * GEMM_ORDER**3 / float(np.median(device_seconds(lambda: a @ b, repeats)))


class Factoring:
    """The factorization of one matrix alone, with and without look-ahead."""

    def __init__(self, a, precision):
        from tcsolve._formats import UPDATES
        from tcsolve._lu import panels
        from tcsolve._ops_cupy import CupyOps

        self.a, self.ops, self.how = a, CupyOps(), UPDATES[precision]
        self.panels = panels(self.ops, len(a), self.how)

    def copy(self):
        """Return what `run` overwrites; where a solve would, its launches are recorded and replayed."""
        return self.ops.cast_scaled(self.a, None, None, np.float32)

    def run(self, w, look_ahead):
        """Factor w in place."""
        from tcsolve._lu import factor_blocked

        return factor_blocked(self.ops, w, self.how, look_ahead=look_ahead)

    def strips(self):
        """Return into how many strips each outer panel is cut."""
        from tcsolve._lu import strips

        single, n = np.dtype(np.float32), len(self.a)
        return [len(strips(self.ops, n - a, b - a, single)) for a, b in self.panels]

    def seconds(self, look_ahead, repeats):
        """Return the sorted seconds between CUDA events."""
        return device_seconds(lambda w: self.run(w, look_ahead), repeats, prepare=self.copy)

    def spans(self, look_ahead):
        """Return the classified profile of one factorization."""
        for _ in range(3):  # what is recorded only after a while
            w = None
            w = self.copy()
            found = record(lambda w=w: self.run(w, look_ahead))
        return classify(found)

    def same_bits(self):
        """Tell whether the factors are the same with and without look-ahead, to the last bit."""
        with_it, without = (self.run(self.copy(), look_ahead) for look_ahead in (True, False))
        equal = bool((with_it.lu == without.lu).all()) and bool(
            (with_it.order == without.order).all()
        )
        return equal, 0 if with_it.inverses is None else with_it.inverses.nbytes


def measure(n, precision, repeats, rates, timeline):
    """Return the row of one n: the solve by category, the factorization with and without look-ahead."""
    from solve import backward_error, matrix

    import tcsolve

    family = FAMILIES.get(precision, "gauss")
    a = matrix(family, n)
    b = a.sum(axis=1)

    def run():
        return tcsolve.solve_ex(a, b, precision=precision, assume_a="general")

    solution = run()
    error = backward_error(a, solution.x, b)
    # Twice the bound: the residual that is recomputed here is rounded in another way.
    if not (solution.status.ok and error <= 2 * solution.bound):
        sys.exit(f"n = {n}: {solution}; recomputed backward error {error:.1e}: not timed")
    solve = summary(device_seconds(run, repeats))
    kernels = record(run)
    spans = classify(kernels)
    factoring = Factoring(a, precision)
    same_bits, inverse_bytes = factoring.same_bits()
    serial = factoring.spans(look_ahead=False)
    steps = int(solution.iterations.max())
    again = solve_again(a, b, precision)
    least = floors(
        factoring.panels,
        factoring.how.products,
        rates,
        pivoting=family == "gauss",
        residuals=steps + 1,
        triangles=sum(span.category == TRIANGLES for span in spans),
        inverse_bytes=inverse_bytes,
    )
    row = {
        "n": n,
        "family": family,
        "precision": precision,
        "blocks": sorted({last - first for first, last in factoring.panels}, reverse=True),
        "backward_error": error,
        "steps": steps,
        "rungs": list(solution.rungs),
        "solve": solve,
        "phases": run().seconds,
        # The first solve with the factors and its residual cost as much as a step.
        "step": again.seconds["refine"] / (int(again.iterations.max()) + 1),
        **tally(spans, solve["median"], least),
        "others": others(kernels, spans),
        "refinement_floor": step_floor(n, rates),
        "same_bits": same_bits,
        "look_ahead": summary(factoring.seconds(True, repeats)),
        "serial": summary(factoring.seconds(False, repeats)),
        "panel": panel_times(serial, factoring.panels, factoring.strips()),
    }
    if timeline:
        shown = {"look_ahead": factoring.spans(look_ahead=True), "serial": serial}
        row["timeline"] = {
            key: excerpt(value, len(factoring.panels)) for key, value in shown.items()
        }
    return row


def solve_again(a, b, precision):
    """Return a solve with factors whose condition is known, its steps one by one."""
    import tcsolve
    from tcsolve import _lu_cupy

    factors, most = tcsolve.factor(a, precision=precision), _lu_cupy.AHEAD_ROWS
    _lu_cupy.AHEAD_ROWS = 0
    try:
        return [factors.solve_ex(b) for _ in range(4)][-1]
    finally:
        _lu_cupy.AHEAD_ROWS = most


def widths(row):
    """Say how wide the outer panels were."""
    return f"panels of {' and '.join(map(str, row['blocks']))} columns"


def tally(spans, wall, least):
    """Return the categories with their seconds, and how the wall time splits into busy and idle."""
    busy, alone, union = sweep(spans)
    launches = Counter(span.category for span in spans)
    categories = [
        {
            "category": name,
            "launches": launches[name],
            "busy": busy.get(name, 0.0) / 1e6,
            "exposed": alone.get(name, 0.0) / 1e6,
            "floor": least.get(name),
        }
        for name in (*FLOORS, INDEX, VECTORS, OTHER)
        if launches[name] or least.get(name)
    ]
    union /= 1e6
    overlapped = union - sum(alone.values()) / 1e6
    return {
        "categories": categories,
        "overlapped": overlapped,
        "busy": union,
        "idle": wall - union,
        "profiled": (max(s.stop for s in spans) - min(s.start for s in spans)) / 1e6,
    }


# ---- writing -----------------------------------------------------------------------------------


def figure_path(path):
    """Return where the timeline of a results file goes."""
    return path.with_name(path.stem.replace("roofline", "lookahead") + ".png")


def page(facts, rows, figure):
    """Return the Markdown page of a results file."""
    lines = ["# Where the milliseconds of a solve go", ""]
    lines += [explanation(facts), ""]
    lines += ["Floors:", ""]
    exchange = f"{1e6 * EXCHANGE_SECONDS:.1f}"
    lines += [f"- {name}: {text.format(exchange=exchange)}" for name, text in FLOORS.items()]
    for row in rows:
        lines += ["", *chapter(row)]
    if any("timeline" in row for row in rows):
        lines += ["", "## Look-ahead", "", f"![timeline of a few outer panels]({figure})", ""]
    lines += [saving(row) for row in rows]
    command = (
        f"benchmarks/roofline.py --precision {rows[0]['precision']}" if rows else "roofline.py"
    )
    return "\n".join([*lines, "", source(facts, command)]) + "\n"


def explanation(facts):
    """Return the paragraph that says how to read the tables."""
    rates = facts["rates"]
    copy, fp16, fp32 = (rates[k] / 1e12 for k in ("copy_bytes", "fp16_flops", "fp32_flops"))
    return (
        "FP64 matrix, one right-hand side, both on the device. *busy*: time covered by kernels of the"
        " category; *exposed*: covered by no other category; *floor*: what it would take alone at the rates"
        f" measured in the same run (copy {copy:.2f} TB/s read plus written, FP16 GEMM {fp16:.0f} and FP32"
        f" GEMM {fp32:.0f} TFLOP/s at n = {GEMM_ORDER}). *idle* is the time of a solve without the profiler"
        " less the time its kernels cover: launches and the host. FP32 GEMMs inside the vendor's trsm count"
        " with those of the panel; their names do not tell. The solves of the condition estimate count with"
        " those of the refinement."
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
    lines += [refinement(row), *panel_lines(row)]
    if row["others"]:
        lines += ["", "Other kernels:", ""]
        lines += [f"- `{name[:100]}`: {count} x, {ms:.3f} ms" for name, count, ms in row["others"]]
    return lines


def refinement(row):
    """Return the sentence on the time of one refinement step."""
    each = row["step"]
    floor = row["refinement_floor"]
    return (
        f"A refinement step (residual, both triangular solves, norms), the condition known, takes"
        f" {1e3 * each:.3f} ms,"
        f" {each / floor:.2f} times its bytes ({1e3 * floor:.3f} ms)."
    )


def panel_lines(row):
    """Return the sentence on the microseconds a column of the panel, for some heights."""
    if not row["panel"]:
        return []
    heights = [height for height, *_ in row["panel"]]
    wanted = {min(heights, key=lambda h, at=at: abs(h - at)) for at in (32768, 16384, 8192, 4096)}
    told = [
        f"{kernels:.2f} ({everything:.2f}) at {height} rows"
        for height, kernels, everything in row["panel"]
        if height in wanted
    ]
    return ["Panel, us a column in its kernels (with all between them): " + ", ".join(told) + "."]


def saving(row):
    """Return the line that says what look-ahead saves in the factorization."""
    with_it, without = row["look_ahead"]["median"], row["serial"]["median"]
    flops = 2 / 3 * row["n"] ** 3
    bits = "the same bits" if row["same_bits"] else "factors that differ in their bits"
    return (
        f"- n = {row['n']}: the LU alone takes {1e3 * with_it:.2f} ms with look-ahead"
        f" ({flops / with_it / 1e12:.0f} TFLOP/s), {1e3 * without:.2f} ms without"
        f" ({flops / without / 1e12:.0f} TFLOP/s): {1e3 * (without - with_it):.2f} ms,"
        f" {100 * (1 - with_it / without):.0f} %, saved, with {bits}."
    )


def draw(row, path):
    """Draw the timeline of one row: with look-ahead above, without below, one lane a stream."""
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
    axes[-1].set_xlabel("time, ms, from one of the first update kernels on")
    axes[-1].set_xlim(left=0)
    what = f"LU, n = {row['n']}, {row['precision']}, {widths(row)}"
    figure.suptitle(what, fontsize=11)
    handles = [Patch(color=color, label=name) for name, color in COLORS.items() if name in seen]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9)
    figure.savefig(path, dpi=150)


def streams(bars):
    """Return the streams of a timeline, the one with most of the update first."""
    updates = Counter()
    for category, stream, _, length in bars:
        updates[stream] += length if category == UPDATE else 0.0
    return sorted(updates, key=lambda stream: (-updates[stream], stream))


def publish(path):
    """Write the page and the figure of a results file beside it."""
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


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, nargs="+", default=[4096, 8192, 16384, 32768])
    parser.add_argument("--precision", default="fp16x3", choices=["fp16x3", "fp16", "bf16", "tf32"])
    parser.add_argument("--timeline", type=int, default=16384, help="the n that the figure shows")
    parser.add_argument(
        "--draw", action="store_true", help="only the page and figure, from the JSON"
    )
    parser.set_defaults(json=RESULTS / "roofline.json")
    options = parser.parse_args()
    if options.draw:
        publish(options.json)
        return
    require_torch()
    import cupy

    facts = machine(options.commit) | gpu() | {"rates": measure_rates(options.repeats)}
    shown = options.timeline if options.timeline in options.n else max(options.n)
    rows = []
    for n in options.n:
        rows.append(measure(n, options.precision, options.repeats, facts["rates"], n == shown))
        print("\n".join([*chapter(rows[-1]), saving(rows[-1])]), flush=True)
        save(options.json, facts, rows)
        cupy.get_default_memory_pool().free_all_blocks()
    publish(options.json)


if __name__ == "__main__":
    main()
