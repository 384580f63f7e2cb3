"""How an update shares the multiprocessors with the panel that is factored beside it."""

import functools

import cupy

from tcsolve._backends.cuda.runtime import compiler

__all__ = ["Flags", "Share"]

# Nanoseconds the update may wait for the panel beside it to become resident.
GATE_PATIENCE = 200_000


class Share:
    """How a product shares the device with the strips of a panel beside it.

    It leaves them the multiprocessors of the first, so that the next find a whole cluster of them free, and
    `more` for the products between them.  When the panel is done, a second launch, of as many blocks, helps
    with what is left of the product.
    """

    def __init__(self, main, reserved, more, started):
        self._main, self._reserved, self._more, self._started = main, reserved + more, more, started
        self._help, self._before_panel = None, None

    def panel_follows(self, event):
        """Say what the panel is launched after."""
        self._before_panel = event

    def await_panel(self):
        """Let what follows in the main stream wait until the panel, which sets the flags, is resident.

        What takes every multiprocessor it finds comes after: the panel must have its own by then.
        """
        if self._before_panel is None:
            return
        # Else the gate might lose its patience before the panel can start.
        self._main.wait_event(self._before_panel)
        self._before_panel = None
        args = self._started, GATE_PATIENCE, self._more
        compiler.kernel("wait_for_panel", "tcs_gate")((1,), (1,), args)

    def launch(self, launch, multiprocessors):
        """Call launch(blocks, blocks of another launch, what those multiprocessors are it must leave)."""
        if self._reserved == 0:
            launch(multiprocessors)
            return
        ready = self._main.record()
        taken = self._started.data.ptr + 4 * Flags.TAKEN
        launch(multiprocessors, self._reserved, taken)
        self._help = ready, functools.partial(launch, self._reserved, multiprocessors)

    def help(self, side):
        """Launch what helps, in the panel's stream."""
        if self._help:
            ready, launch = self._help
            side.wait_event(ready)
            launch()


class Flags:
    """Words on a device, a few for each panel beside an update (see wait_for_panel.cu), taken in turn.

    The gate clears them; what is still set, or shared, opens a gate early, or keeps an update from a
    multiprocessor, which costs time alone.
    """

    COUNT, WORDS, TAKEN = 1024, 20, 9

    def __init__(self):
        # Of no pool: these words outlive every tape's.
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
