"""Scratch memory for a factorization that uses several streams, under a stream-ordered allocator."""

import contextlib

import cupy

from tcsolve._backends.cuda.runtime import current_device, recorded_graphs

__all__ = ["in_order_of"]


@contextlib.contextmanager
def in_order_of(main):
    """Let all streams inside allocate from blocks that are allocated and freed in the order of `main`.

    A stream-ordered allocator takes memory back in the order of the stream that asked for it, and another
    thread may get it at once; but our streams read what others of them have allocated.  So all of them share
    a pool of blocks of `main`, which has waited for all of them when it gives the blocks back.  CuPy's own
    pool needs no such care: it keeps memory for the stream, one of this thread, that asked for it.
    """
    if current_device.allocates_by_default():
        yield
        return
    allocate = cupy.cuda.get_allocator()

    def allocate_in_main(size):
        here = cupy.cuda.get_current_stream()
        with main:
            block = allocate(size)
        here.wait_event(main.record())
        # The pool looks at the memory alone, of which a block may be a part.
        memory = cupy.cuda.UnownedMemory(block.ptr, size, block, block.device_id)
        return cupy.cuda.MemoryPointer(memory, 0)

    pool = cupy.cuda.MemoryPool(allocate_in_main)
    try:
        with cupy.cuda.using_allocator(pool.malloc):
            yield
    finally:
        with main:
            recorded_graphs.retire(pool)
