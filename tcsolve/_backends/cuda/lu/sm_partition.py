"""The division of the multiprocessors between an update and the panel that is factored at the same time."""

import functools

import cupy

from tcsolve._backends.cuda.runtime import compiler
from tcsolve._paths import paths

__all__ = ["Flags", "Share"]

# The longest time, in nanoseconds, that the gate (tcs_gate) lets the update wait for the panel to become
# resident.
GATE_PATIENCE = 200_000


class Share:
    """The division of the multiprocessors between a product (the update) and the panel factored meanwhile.

    The product leaves `reserved` + `more` multiprocessors free.  Each strip after the first needs at most
    `reserved` of them for its blocks, and the products between the strips use `more`.  When the panel is
    factored, a second launch of the same product runs on these multiprocessors, and computes tiles that are
    still left.
    """

    def __init__(self, main, reserved, more, started):
        self._main, self._reserved, self._more, self._started = main, reserved + more, more, started
        self._help, self._before_panel = None, None

    def panel_follows(self, event):
        """Remember the event that the panel waits for."""
        self._before_panel = event

    def await_panel(self):
        """Let later work in the main stream wait until the panel is resident; the panel sets the flags.

        The later work takes every free multiprocessor, so the panel must get its own first.
        """
        if self._before_panel is None:
            return
        # Wait for this event first, so that the gate does not time out before the panel can start.
        self._main.wait_event(self._before_panel)
        self._before_panel = None
        args = self._started, GATE_PATIENCE * paths().gate, self._more
        compiler.kernel("wait_for_panel", "tcs_gate")((1,), (1,), args)

    def launch(self, launch, multiprocessors):
        """Call launch(blocks, blocks of the second launch, address of the bits of taken multiprocessors)."""
        if self._reserved == 0:
            launch(multiprocessors)
            return
        ready = self._main.record()
        taken = self._started.data.ptr + 4 * Flags.TAKEN
        launch(multiprocessors, self._reserved, taken)
        self._help = ready, functools.partial(launch, self._reserved, multiprocessors)

    def help(self, side):
        """Launch the product a second time, in the stream of the panel."""
        if self._help:
            ready, launch = self._help
            side.wait_event(ready)
            launch()


class Flags:
    """Words on a device by which a panel reports its multiprocessors (wait_for_panel.cu).

    Each panel gets the next row of words.  The gate copies words 1 to 8 to those from TAKEN on, and clears
    words 0 to 8.  If a word is still set, or two panels use it, a gate opens too early, or an update does not
    use a multiprocessor that is free.  This costs time and changes no result.
    """

    COUNT, WORDS, TAKEN = 1024, 20, 9

    def __init__(self):
        # Allocate outside of any pool, because recorded graphs of any tape hold the address of these words.
        shape = self.COUNT, self.WORDS
        memory = cupy.cuda.MemoryPointer(cupy.cuda.Memory(4 * self.COUNT * self.WORDS), 0)
        self._words, self._last = cupy.ndarray(shape, cupy.uint32, memory), 0
        self._words.fill(0)

    @staticmethod
    @functools.cache
    def of(device):
        return Flags()

    def next(self):
        self._last = (self._last + 1) % self.COUNT
        return self._words[self._last]
