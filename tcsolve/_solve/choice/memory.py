"""The bytes that a solve needs, compared with the free memory before they are allocated."""

from tcsolve._arithmetic.formats import update_named
from tcsolve._errors import DeviceMemoryError
from tcsolve._paths import paths
from tcsolve._solve.choice.cost_model import bytes_needed, rough_bytes

__all__ = ["MemoryPlan", "require_room", "room_needed", "widest_panel"]


def widest_panel(ops, n, update, dominant=False):
    """Return the width of the first panel of an n x n matrix, which is the widest panel."""
    how = update_named(update)
    return ops.lu.rules(how.storage).block(n, how, dominant)


def room_needed(ops, update, n, nrhs, dtype, *, block=None, dominant=False, kept=0):
    """Return the bytes that a solve with `update` allocates.

    `dominant` is as for `factor_blocked`, and `kept` as for `bytes_needed`.
    """
    if not paths().exact_memory:
        return rough_bytes(update, n, dtype)
    block = block or widest_panel(ops, n, update, dominant)
    how = {"block": block, "on_device": ops.device == "cuda", "kept": kept}
    return bytes_needed(update, n, nrhs, dtype, **how)


def require_room(ops, update, n, nrhs, dtype, *, moved_bytes=0, held_bytes=0, **how):
    """Return `room_needed` plus moved_bytes, or raise a DeviceMemoryError if the device has fewer bytes.

    moved_bytes is the size of the arguments that must be copied to the device.  held_bytes is the part of the
    needed memory that is allocated already.
    """
    needed = room_needed(ops, update, n, nrhs, dtype, **how) + moved_bytes
    _require_free(ops, update, n, needed, held_bytes)
    return needed


def _require_free(ops, update, n, needed, held_bytes):
    """Raise a DeviceMemoryError if the device has fewer free bytes than are needed and not yet allocated."""
    # Memory of the host is virtual and shared, so its free bytes do not tell whether an allocation fails.
    if ops.device != "cuda":
        return
    missing = needed - held_bytes
    if missing > (free := ops.free_bytes(missing)):
        ways = "device='cpu'"
        if update == "fp64":
            ways = "precision='fp16x3' (half the bytes) or " + ways
        raise DeviceMemoryError(
            f"solving n = {n} with {update} factors needs {missing:,} more bytes on the device, "
            f"{free:,} are free; use {ways}"
        )


class MemoryPlan:
    """The bytes that the rungs of a system need.

    Attributes
    ----------
    extra : int
        Bytes in addition to those of a rung: copies of the arguments, a scaled copy of A, factors that were
        converted to FP64.
    planned : int
        The largest number that was predicted before a rung was factored, plus what `add` recorded later.
    of_solve : int
        The largest prediction for the present solve, from its right-hand sides and Krylov bases so far.
    """

    def __init__(self, ops, a, block, extra):
        self._ops, self._block = ops, block
        self._n, self._dtype = a.shape[0], a.dtype
        self.extra, self.planned, self.of_solve = extra, 0, 0
        self._needed = {}  # the results of `room_needed`: a solve needs each several times

    def require(self, update, nrhs, dominant, held_bytes=0):
        """Return all bytes that this rung needs, or raise a DeviceMemoryError before it allocates."""
        needed = self._bytes_needed(update, nrhs, dominant, 0)
        _require_free(self._ops, update, self._n, needed, held_bytes)
        return self.extra + needed

    def add(self, nbytes):
        """Record bytes that are kept in addition to those of any rung."""
        self.extra += nbytes
        self.planned += nbytes

    def note(self, update, nrhs, dominant, kept):
        """Record the bytes that a rung needed for nrhs right-hand sides; `kept` as for `bytes_needed`."""
        needed = self._bytes_needed(update, nrhs, dominant, kept)
        self.of_solve = max(self.of_solve, needed + self.extra)

    def _bytes_needed(self, update, nrhs, dominant, kept):
        """Return `room_needed`."""
        key = update, nrhs, dominant, kept
        if key not in self._needed:
            how = {"block": self._block, "dominant": dominant, "kept": kept}
            found = room_needed(self._ops, update, self._n, nrhs, self._dtype, **how)
            self._needed[key] = found
        return self._needed[key]
