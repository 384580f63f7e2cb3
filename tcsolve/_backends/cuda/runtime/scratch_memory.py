"""Scratch memory for a factorization that uses several streams, under a stream-ordered allocator."""

import contextlib
import threading

import cupy

from tcsolve._backends.cuda.runtime import current_device, recorded_graphs
from tcsolve._backends.cuda.runtime.tape import duplicate

__all__ = ["in_order_of", "results"]

# For a thread in `in_order_of`: the allocator of the caller, the addresses of results that it allocated, and
# the pool of the scratch memory.
_outside = threading.local()


def in_order_of(main, body):
    """Return the arrays of body(); all its streams allocate from one pool.

    The pool gets its memory in stream `main`, and gives it back there.

    A stream-ordered allocator frees memory in the order of the stream that allocated it.  Then any stream may
    get this memory.  But our streams read memory that another of them has allocated, so it could be reused
    too early.  With this pool the blocks are freed in `main`, after `main` has waited for all streams.
    CuPy's default pool does not need this: it gives freed memory to no other stream than the one that
    allocated it, and this stream belongs to this thread.

    Parameters
    ----------
    main : cupy.cuda.Stream
        The current stream.
    body : callable
        Without arguments.  It returns a tuple of arrays, where None is allowed, and makes `main` wait for all
        its work.  Small results are copied; large ones should be allocated inside `results`, in stream
        `main`.
    """
    if current_device.allocates_by_default():
        return body()
    allocate = cupy.cuda.get_allocator()

    def allocate_in_main(size):
        here = cupy.cuda.get_current_stream()
        with main:
            block = allocate(size)
        here.wait_event(main.record())
        # The pool takes a whole memory object, but `block` may be a part of one, so wrap its address.
        memory = cupy.cuda.UnownedMemory(block.ptr, size, block, block.device_id)
        return cupy.cuda.MemoryPointer(memory, 0)

    pool, made = cupy.cuda.MemoryPool(allocate_in_main), set()
    _outside.allocator = allocate, made, pool
    try:
        with cupy.cuda.using_allocator(pool.malloc):
            found = body()
        # Results in the pool are copied to memory outside of it, so that no block of the pool stays in use.
        pool.free_all_blocks()
        copies = tuple(x if x is None or x.data.ptr in made else duplicate(x) for x in found)
        del found
        return copies
    finally:
        del _outside.allocator
        with main:
            recorded_graphs.retire(pool)


@contextlib.contextmanager
def results():
    """Let allocations in the with block use the allocator that was in force outside of `in_order_of`.

    Scratch memory that is no longer used is given back first, so the current stream, `main`, must have waited
    for the work that used it.
    """
    if not hasattr(_outside, "allocator"):
        yield
        return
    allocate, made, pool = _outside.allocator
    pool.free_all_blocks()

    def noted(size):
        block = allocate(size)
        made.add(block.ptr)
        return block

    with cupy.cuda.using_allocator(noted):
        yield
