"""Recorded work on a matrix, and work that runs at the same time as other work."""

import functools
import threading

import cupy

from tcsolve._backends.cuda.runtime import current_device, recorded_graphs, scratch_memory
from tcsolve._backends.cuda.runtime.async_read import Sent
from tcsolve._backends.cuda.runtime.current_device import guarded
from tcsolve._paths import paths

__all__ = ["aside", "replayed"]


# again=False: a body that fails has overwritten part of w, so it cannot be repeated.
@functools.partial(guarded, again=False)
def replayed(w, name, body):
    """As `Ops.replayed`."""
    tape = None if name is None else recorded_graphs.tape_of(w)
    if tape is not None:
        return tape.run(name, functools.partial(body, tape.divide))
    undivided = functools.partial(body, lambda: None)
    return scratch_memory.in_order_of(cupy.cuda.get_current_stream(), undivided)


@functools.partial(guarded, again=False)
def aside(w, others, name, body, then=None):
    """As `Ops.aside`."""
    tape = recorded_graphs.tape_of(w)
    if not paths().condition_aside:
        return None
    if tape is None and not current_device.allocates_by_default():
        # With another allocator, a stream may get memory that another stream has freed but still uses.
        return None
    side = current_device.stream(cupy.cuda.runtime.getDevice(), threading.get_ident(), "idle")
    where = tuple(x.data.ptr for x in others)
    side.wait_event(cupy.cuda.get_current_stream().record())
    try:
        with side:
            found, rest = body() if tape is None else tape.run(name, body, where, aside=True)
            if then is not None:
                found, rest = then(found, rest)
                if tape is not None:
                    tape.follow_aside(side)
            # `found` is memory of the tape.  The next solve overwrites it, so it is read before the next
            # solve.  For small matrices its copy to the host is launched now.  For larger ones it is launched
            # when `found` is read: the host reads residuals first, and their copies would wait for this one.
            found = Sent(found) if len(w) <= paths().ahead_rows else found
    except BaseException:
        cupy.cuda.get_current_stream().wait_event(side.record())
        raise
    done = side.record()

    def wait():
        cupy.cuda.get_current_stream().wait_event(done)
        return found, rest

    return wait
