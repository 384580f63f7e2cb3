"""When the library takes its special paths: thresholds and switches, as one frozen record.

A special path gives the same answers as the general code, within the bounds, in less time.  The code reads a
field of the record as `paths().name`.  Benchmarks and tests change fields by `switched_off` and `replaced`.
"""

import contextlib
import math
from dataclasses import dataclass, replace

__all__ = ["OFF", "Paths", "paths", "replaced", "switched_off"]


@dataclass(frozen=True)
class Paths:
    """The special paths; the thresholds were measured on an H200.

    Attributes
    ----------
    dominant_strips : bool
        A strip with a dominant diagonal is factored without a pivot search.
    square_rows : float
        With at least this many rows left, a wide panel of a dominant matrix may be square, if the device
        supports this.  A square panel has only the rows of the diagonal block, so pivots are searched only
        there.
    look_ahead : bool
        A panel is factored while the update before it runs.
    overlap_rows : float
        Smallest number of rows below a panel for which the next panel is factored during the update.  With
        fewer rows, an update takes less time than the synchronisation of two streams.
    panel_rows : tuple of (int, float)
        (number of products of the update, rows): up to this many rows, a panel takes longer than the update
        that runs at the same time.
    gate : bool
        An update waits, for a limited time, until the panel that is factored at the same time has got its
        multiprocessors.
    wide : float
        Smallest number of columns of a wide panel.  The first strip of a wide panel that is not square does
        not wait for updates of the panel's other columns.
    least_columns : float
        Smallest number of columns right of a wide panel.  With fewer columns, U is computed by substitution
        with L11, not by a product with the inverse of L11.
    least_recorded, most_recorded : int
        Smallest and largest n with recorded graphs.
    most_at_once : int
        Up to this n, the first solve of a size is recorded.  For larger n, the first solve only notes the
        size, the second one gets a tape, and the third one is recorded.
    early_rows : int
        Largest n for which the factorization starts before the survey is read.
    ahead_rows : int
        Largest n for which refinement steps are launched before it is known that they are needed.
    condition_aside : bool
        The condition estimate runs during the refinement.
    single_survey : bool
        One pass over A finds all sums and makes the FP32 copy.
    most_sums : int
        The survey sums parts of rows and columns first.  If there are at most this many partial sums, the
        kernel that finds the extremes adds them itself, in one thread block.  If there are more, a separate
        kernel adds them first.
    residual_kernel : bool
        The residual of one right-hand side is computed by residual.cu.
    triangular_kernels : bool
        Triangular systems with few right-hand sides are solved by triangular_solve.cu.
    exact_memory : bool
        The bytes of a solve are predicted from all its allocations; if this is False, from the bytes of its
        factors alone.
    """

    dominant_strips: bool = True
    square_rows: float = 4096
    look_ahead: bool = True
    overlap_rows: float = 256
    panel_rows: tuple[tuple[int, float], ...] = ((1, math.inf), (3, 15000))
    gate: bool = True
    wide: float = 512
    least_columns: float = 2048
    least_recorded: int = 1
    most_recorded: int = 32768
    most_at_once: int = 8192
    early_rows: int = 4096
    ahead_rows: int = 8192
    condition_aside: bool = True
    single_survey: bool = True
    most_sums: int = 1 << 16
    residual_kernel: bool = True
    triangular_kernels: bool = True
    exact_memory: bool = True


# The largest n of the path `small_graphs`; for larger matrices `large_graphs` is the path.
SMALL_GRAPHS = 8192
# What switches each path off.
OFF = {
    "dominant_strips": {"dominant_strips": False},
    "square_panels": {"square_rows": math.inf},
    "look_ahead": {"look_ahead": False},
    "gate": {"gate": False},
    # This switches off square panels too, because every square panel is wide.
    "wide_panels": {"wide": math.inf, "least_columns": math.inf, "square_rows": math.inf},
    "small_graphs": {"least_recorded": SMALL_GRAPHS + 1},
    "large_graphs": {"most_recorded": SMALL_GRAPHS},
    "early_start": {"early_rows": 0},
    "steps_ahead": {"ahead_rows": 0},
    "condition_aside": {"condition_aside": False},
    "single_survey": {"single_survey": False},
    "residual_kernel": {"residual_kernel": False},
    "triangular_kernels": {"triangular_kernels": False},
    "exact_memory": {"exact_memory": False},
}

_in_force = Paths()


def paths():
    """Return the `Paths` in force."""
    return _in_force


@contextlib.contextmanager
def replaced(**fields):
    """Change fields of the `Paths` in force inside the with block, in all threads."""
    global _in_force
    before, _in_force = _in_force, replace(_in_force, **fields)
    try:
        yield
    finally:
        _in_force = before


def switched_off(name):
    """Switch the path `name` of `OFF` off inside the with block, in all threads."""
    return replaced(**OFF[name])
