"""Look-ahead: a panel and an update run at the same time, in two streams, and share the multiprocessors."""

import math
import threading

import cupy

from tcsolve._backends.cuda.lu.sm_partition import Flags, Share
from tcsolve._backends.cuda.runtime import cublas_calls, current_device

__all__ = ["overlap", "together"]

# By the number of products of the update: (largest number of rows of the panel, part of the multiprocessors
# that the update leaves free if the panel takes longer than the update).  An update with one product needs
# fewer multiprocessors when fewer rows are left.
SPARED = {1: ((16384, 0.6), (24576, 0.42), (math.inf, 0.24)), 3: ((math.inf, 0.24),)}


def together(first, second):
    """As `LUOps.together`."""
    here, middle = cupy.cuda.get_current_stream(), _stream("middle")
    middle.wait_event(here.record())
    try:
        with middle, cublas_calls.lane(2):
            first()
        second()
    finally:
        here.wait_event(middle.record())


def overlap(step, rules):
    """As `LUOps.overlap`; `rules` are the `DeviceRules`, which have the launch shapes of the strips."""
    main, side, middle = cupy.cuda.get_current_stream(), _stream("panel"), _stream("middle")
    started = Flags.of(cupy.cuda.runtime.getDevice()).next()
    share = Share(main, *_reserved(step.following, step.update, rules), started)
    begun = main.record()
    streams = (side, middle) if step.fills or step.swaps_known else (side,)
    for stream in streams:
        stream.wait_event(begun)
    try:
        with side, cublas_calls.lane(1):
            step.solve_first()
        # `complete` works only on a square panel, and only after its rows are swapped.  `solve_first` swaps
        # them only in a panel of one strip.  A square panel has several strips, so its rows are swapped
        # already, and `complete` need not wait for `solve_first`.
        if step.completes:
            step.complete()
            side.wait_event(main.record())
        with side, cublas_calls.lane(1):
            step.update_first()
            reached = side.record()
            share.panel_follows(reached)
            step.following.begin(started)
        if step.swaps_known:
            step.swap_rest()
            with middle, cublas_calls.lane(2):
                step.substitute()
            main.wait_event(middle.record())
        # The kernels in `main` from here on fill the device.  They wait until the first strip can start, so
        # that they do not delay it.
        main.wait_event(reached)
        if middle in streams:
            middle.wait_event(main.record())
            with middle, cublas_calls.lane(2):
                step.fill()
            filled = middle.record()
            with middle:
                step.swap_done()
        else:
            step.swap_done()
        step.solve_rest(share)
        share.await_panel()
        if middle in streams:
            # Wait for `fill` before `rest`: during `rest` it would have too few multiprocessors, and the
            # strips that need it would wait.
            main.wait_event(filled)
        step.rest(share)
        if middle in streams:
            side.wait_event(filled)
        with side, cublas_calls.lane(1):
            step.following.finish()
            share.help(side)
    finally:
        for stream in streams:
            main.wait_event(stream.record())


def _reserved(panel, how, rules):
    """Return (multiprocessors for the strips after the first, further ones for products between them)."""
    m = len(panel.p)
    shapes = [rules.panel_shape(m - i, j - i, False) for i, j in panel.strips[1:]]
    most = max((shape.blocks for shape in shapes if shape), default=0)
    if not most or panel.plan.ends_early:
        return most, 0
    part = next(part for rows, part in SPARED[how.products] if m <= rows)
    return most, max(0, round(part * current_device.multiprocessors()) - most)


def _stream(purpose):
    """Return a stream of this thread for a purpose; it has a high priority."""
    return current_device.stream(cupy.cuda.runtime.getDevice(), threading.get_ident(), purpose, -1)
