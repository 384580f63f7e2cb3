"""Profiles of kernels: each kernel has a category by its name, and the times are summed per category."""

import itertools
import json
import pathlib
import re
import sys
import tempfile
from collections import Counter, defaultdict
from typing import NamedTuple

PANEL, MOVES, BLOCK_ROW = "panel", "row moves", "block row (trsm)"
UPDATE, PACK, INNER = "update GEMM", "packing of operands", "short GEMM of panels"
INVERSES, CAST, INDEX = (
    "inverses of diagonal blocks",
    "norms and FP32 copy of A",
    "small kernels of the LU",
)
RESIDUAL, TRIANGLES, VECTORS = "residual (gemv)", "triangular solves", "norms and vectors"
OTHER = "other"
# A kernel that completes the previous kernel in its stream; it has the category of that kernel.
CONTINUED = "continued"

# The categories of kernels; the first match counts.  Each row has a pattern of the name, the category until
# the first triangular solve, and the category from then on.  A fused kernel has the category of its longest
# part.
KERNELS = (
    (r"tcs_panel|getrf|getf2|laswp", PANEL, PANEL),
    (r"tcs_move_rows", MOVES, MOVES),
    (r"tcs_(swap|lower)_solve", BLOCK_ROW, BLOCK_ROW),
    (r"tcs_pack|tcs_split|tcs_update_scale", PACK, PACK),
    (r"tcs_gemm", UPDATE, UPDATE),
    (r"tcs_(solve|begin)_triangle", TRIANGLES, TRIANGLES),
    (r"tcs_(row|col)_stats|tcs_survey|tcs_add_chunks|tcs_extremes|tcs_cast_scaled", CAST, CAST),
    (r"tcs_matrix_residual", RESIDUAL, RESIDUAL),
    (
        r"tcs_(residual|column_max|lower|raise|probes|signs|steepest|held|combine)"
        r"|tcs_(gate|merge_swaps|restart|report)",
        INDEX,
        VECTORS,
    ),
    (r"^cupy_|cupy::|cub::|thrust", INDEX, VECTORS),
    (r"^Mem(set|cpy)", INDEX, VECTORS),
    (r"tcs_invert|batch_trsm_left|MakeBatchPointers", INVERSES, INVERSES),
    (r"trsm", BLOCK_ROW, TRIANGLES),
    (r"splitKreduce", CONTINUED, CONTINUED),
    # cuBLAS on 16-bit or TF32 operands: nvjet_sm90_hss, xmma_gemm_f16f16, s16816gemm, tf32f32, ...
    (r"nvjet_(sm\d+_)?[ht]s|gemm_b?f16|(1688|16816|161616)gemm|[hs]884gemm|tf32", UPDATE, UPDATE),
    (r"gemv|dot_kernel|reduce_1Block", INVERSES, RESIDUAL),
    (r"dgemm|d884gemm|f64|<double|nvjet_(sm\d+_)?d", OTHER, RESIDUAL),
    # cuBLAS on FP32 operands: products of a panel, or parts of trsm.  The names of both are the same.
    (r"sgemm|simt|gemm_f32f32|gemmk1|gemmSN|nvjet_(sm\d+_)?s", INNER, TRIANGLES),
)

# The timeline begins with the update of the first of these panels, and ends where the update of the second
# begins.  Panels are counted from 0.
PANELS_SHOWN = (1, 4)
# Kernels of category 'other' that are listed by name.
OTHERS_LISTED = 20


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
    """Return the Spans of kernels, sorted by start.  The first triangular solve ends the factorization."""
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
    """Return (busy, alone, union): the time of each category, its time without others, the time of all."""
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
    """Return [name, launches, milliseconds] of the longest kernels of category 'other', longest first."""
    total = defaultdict(lambda: [0, 0.0])
    for kernel, span in zip(kernels, spans, strict=True):
        if span.category == OTHER:
            total[kernel.name][0] += 1
            total[kernel.name][1] += (kernel.stop - kernel.start) / 1e3
    rows = sorted(([name, *value] for name, value in total.items()), key=lambda row: -row[2])
    return rows[:OTHERS_LISTED]


def panel_times(spans, panels, strips):
    """Return [rows, us per column in panel kernels, us per column in all] of each panel.

    The second time includes the work between the kernels of the panel.  The spans are from a factorization
    without look-ahead.  `strips` has the number of launches of each panel.  Return [] if the panels cannot be
    distinguished.
    """
    kernels = [span for span in spans if span.category == PANEL]
    if len(kernels) != sum(strips):
        return []  # another path was taken
    found, taken = [], iter(kernels)
    for (first, last), count in zip(panels, strips, strict=True):
        group = list(itertools.islice(taken, count))
        rows, columns = panels[-1][1] - first, last - first
        kernels = sum(span.stop - span.start for span in group)
        found.append([rows, kernels / columns, (group[-1].stop - group[0].start) / columns])
    return found


def alone_times(panel):
    """Return the seconds of all panels of `panel_times`: in their kernels, and in all.

    Return None without panels.
    """
    if not panel:
        return None
    heights = [rows for rows, *_ in panel]
    columns = [m - after for m, after in zip(heights, [*heights[1:], 0], strict=True)]
    pairs = list(zip(columns, panel, strict=True))
    return [sum(k * us[number] for k, us in pairs) / 1e6 for number in (1, 2)]


def chain(spans):
    """Return the number of panel launches of a factorization, the seconds in them and between them.

    The launches run one after the other, also during updates, because a strip needs all strips left of it.
    """
    panels = [span for span in spans if span.category == PANEL]
    if not panels:
        return None
    inside = sum(span.stop - span.start for span in panels)
    whole = max(span.stop for span in panels) - min(span.start for span in panels)
    return {"launches": len(panels), "inside": inside / 1e6, "between": (whole - inside) / 1e6}


def excerpt(spans, count, shown=PANELS_SHOWN):
    """Return [category, stream, start, length] in ms for the part of the timeline between panels `shown`."""
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
