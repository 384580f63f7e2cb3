"""Small systems on a device that one launch solves and finds plain, in as few calls as possible."""

from tcsolve._arrays import is_cupy
from tcsolve._backends.select import ops_for
from tcsolve._checks import STRUCTURES
from tcsolve._solve.vendor.measure import limits
from tcsolve._solve.vendor.system import System, band_of

__all__ = ["plain_answer_there"]

# No device solves larger systems in one launch, and for these the questions below would delay the solve.
LARGEST = 1024
KINDS = {None: "general", "general": "general", "positive definite": "positive definite"}


def plain_answer_there(a, b, assume_a, lower):
    """Return x if a and b are CuPy arrays of small systems that are all plain, else None.

    A plain system is regular, meets its bound, has an rcond of at least epsilon, and agrees with `assume_a`.
    The answer has the bits of the ordinary way, which also looks into other systems, and makes a report.
    """
    if not (is_cupy(a) and is_cupy(b) and a.dtype == b.dtype and a.dtype.char in "fdFD"):
        return None
    kind, n = KINDS.get(STRUCTURES.get(assume_a, "unknown")), a.shape[-1] if a.ndim > 1 else 0
    if kind is None or not 0 < n <= LARGEST or a.shape[-2] != n:
        return None
    vector = a.ndim == 2 and b.ndim == 1
    if a.size <= 1 or not b.size or b.shape != (*a.shape[:-1], *(() if vector else b.shape[-1:])):
        return None
    ops, alone, k = ops_for(a, b), a.ndim == 2, 1 if vector else b.shape[-1]
    if ops.vendor is None or not ops.vendor.takes_at_once(alone, n, k, a.dtype, kind):
        return None
    band = band_of(STRUCTURES[assume_a], lower, a.dtype)
    columns = b.reshape(-1, n, k)
    system = System(a.reshape(-1, n, n), columns, kind, band, bool(band), False, alone)
    x = ops.guarded(ops.vendor.solve_if_plain)(*system[:4], limits(system))
    return x if x is None else x.reshape(b.shape)
