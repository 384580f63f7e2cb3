"""The shortest possible time of each part of a solve, from its flops and bytes, and the measured time."""

from collections import Counter

from _profile import (
    BLOCK_ROW,
    CAST,
    INDEX,
    INNER,
    INVERSES,
    MOVES,
    OTHER,
    PACK,
    PANEL,
    RESIDUAL,
    TRIANGLES,
    UPDATE,
    VECTORS,
    sweep,
)

# The description of the floor of each category, for the page; see `floors`.
FLOORS = {
    PANEL: "one exchange between the 16 blocks of a cluster for each column, {exchange}, or reading and"
    " writing each panel once, whichever takes longer",
    MOVES: "two rows are read and written outside the panel for each pivot, or none if the pivots are on the"
    " diagonal; kernels of the block row swap some of these rows, so the category may take less than its"
    " floor",
    BLOCK_ROW: "its flops at the FP32 rate, or its bytes, whichever takes longer; on Hopper most of the"
    " block row of a panel of more than 128 columns, with at least 2048 columns to its right, is a product"
    " with an inverse: the product counts as update GEMM, the inverse counts here",
    UPDATE: "the flops of all products at the FP16 rate, or reading and writing the trailing matrix for each"
    " panel, whichever takes longer",
    PACK: "both FP32 operands are read once, and a 16-bit part of each is written for each product",
    INNER: "the flops of an LU of each panel at the FP32 rate; on Hopper the larger products"
    " are three FP16 products and count as update GEMM, so the category may take less than its floor",
    INVERSES: "the diagonal blocks are read, and their inverses are written",
    CAST: "A is read once in FP64, also for the norms, and written in FP32",
    RESIDUAL: "A is read once in FP64 for each residual",
    TRIANGLES: "one triangle of the FP32 factors is read for each launch",
}

# Assumed time of an exchange between the blocks of a cluster, if it is not measured.  Each column of a panel
# needs one.
EXCHANGE_SECONDS = 0.5e-6
# Matrix order at which the GEMM rates are measured.
GEMM_ORDER = 8192


def floors(panels, products, rates, *, pivoting=True, residuals=0, triangles=0, inverse_bytes=0):
    """Return {category: seconds}, the shortest time of each category if it ran alone.

    Parameters
    ----------
    panels : list of (int, int)
        Column ranges of the panels.
    products : int
        Number of tensor-core products of the update.
    rates : dict
        'copy_bytes' (read plus written), 'fp16_flops' and 'fp32_flops' per second.  'exchange_seconds' is
        optional.
    pivoting : bool
        Whether pivots are off the diagonal, so that rows move.
    residuals, triangles : int
        Number of residuals, and number of triangular solves.
    inverse_bytes : int
        Number of bytes of the inverted diagonal blocks.
    """
    copy, fp16, fp32 = rates["copy_bytes"], rates["fp16_flops"], rates["fp32_flops"]
    exchange = rates.get("exchange_seconds", EXCHANGE_SECONDS)
    least = dict.fromkeys(FLOORS, 0.0)
    n = panels[-1][1]
    for first, last in panels:
        m, k, r = n - first, last - first, n - last
        least[PANEL] += max(k * exchange, 8 * m * k / copy)
        least[MOVES] += 8 * min(2 * k, m) * (n - k) / copy if pivoting else 0.0
        least[BLOCK_ROW] += max(k * k * r / fp32, 8 * k * r / copy)
        least[UPDATE] += max(2 * products * k * r * r / fp16, 8 * r * r / copy)
        least[PACK] += 2 * k * r * (4 + 2 * products) / copy
        least[INNER] += k * k * (m - k / 3) / fp32
    least[INVERSES] = 2 * inverse_bytes / copy
    least[CAST] = 12 * n * n / copy
    least[RESIDUAL] = residuals * 8 * n * n / copy
    least[TRIANGLES] = triangles * 2 * n * n / copy
    return least


def step_floor(n, rates):
    """Return the shortest time of a refinement step: A in FP64 and both FP32 triangles are read once."""
    return (8 + 4) * n * n / rates["copy_bytes"]


def tally(spans, wall, least):
    """Return a dict of the categories with their seconds, and of the parts of the wall time."""
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
