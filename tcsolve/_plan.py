"""The choice of precisions and limits, as data."""

from dataclasses import dataclass

from tcsolve._arguments import require_count, require_number, require_switch
from tcsolve._errors import InputError

__all__ = ["PRECISIONS", "UPDATE_NAMES", "Plan", "next_rung"]

# What `tcsolve._arithmetic.formats.UPDATES` describes.
UPDATE_NAMES = ("fp16", "bf16", "tf32", "fp16x3", "fp32", "fp64")
PRECISIONS = ("auto", *UPDATE_NAMES)


@dataclass(frozen=True)
class Plan:
    """Which LU to compute, and when its refinement may stop or must give up.

    Parameters
    ----------
    update : {'fp16', 'bf16', 'tf32', 'fp16x3', 'fp32', 'fp64'}
        Arithmetic of the trailing update.  'fp32' and 'fp64' are the vendor's (or LAPACK's) own LU.
    block : int, optional
        Columns of an outer panel; by default chosen from the size and the device.
    fallback : bool
        Whether a rung that stalls is followed by a more precise factorization.  With False the
        best answer of this rung is returned and its status says that it stalled.
    scale : bool
        Whether rows and columns may be scaled by powers of two before they are rounded.
    max_steps : int, optional
        Most triangular-solve pairs a right-hand side may cost; by default as many as the next rung
        would cost, at least 30.
    basis : int
        Largest Krylov basis before FGMRES restarts.
    contraction : float
        Classical refinement goes on while each step reduces the backward error by this factor;
        0.5 as LAPACK's xGERFS [1]_.

    References
    ----------
    .. [1] J. Demmel et al., ACM Trans. Math. Software 32 (2006), 325-351.
    """

    update: str = "fp16x3"
    block: int | None = None
    fallback: bool = True
    scale: bool = True
    max_steps: int | None = None
    basis: int = 50
    contraction: float = 0.5

    def __post_init__(self):
        if not isinstance(self.update, str) or self.update not in UPDATE_NAMES:
            raise InputError(
                f"Plan: update is {self.update!r}, needs one of {', '.join(UPDATE_NAMES)}"
            )
        for name in ("block", "max_steps", "basis"):
            value = getattr(self, name)
            if value is not None or name == "basis":
                require_count(f"Plan: {name}", value)
        for name in ("fallback", "scale"):
            require_switch(f"Plan: {name}", getattr(self, name))
        needed = "0 < contraction < 1"
        if not 0 < require_number("Plan: contraction", self.contraction, needed) < 1:
            raise InputError(f"Plan: contraction is {self.contraction!r}, needs {needed}")


def next_rung(update, working):
    """Return the next more precise update after `update`, or None at the top.

    `working` is the precision of the answer, 'fp32' or 'fp64'.  The emulated formats climb
    through three products before native arithmetic; FP32 factors gain nothing over three
    products, so an FP64 answer goes straight on to FP64.
    """
    if update in ("fp16", "bf16", "tf32"):
        return "fp16x3"
    if update == "fp16x3" and working == "fp32":
        return "fp32"
    return None if update == "fp64" else "fp64"
