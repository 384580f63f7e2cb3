"""Scratch memory for a factorization that uses several streams, under a stream-ordered allocator."""

import cupy

from tcsolve._backends.cuda.runtime import current_device, recorded_graphs

__all__ = ["in_order_of"]


def in_order_of(main, body):
    """Return the arrays of body(); all its streams allocate from one pool that works in stream `main`.

    A stream-ordered allocator reuses memory in the order of the stream that allocated it.  But our streams
    read memory that another of them has allocated, so it could be reused too early.  With this pool the
    blocks are freed in `main`, after `main` has waited for all streams.  CuPy's default pool does not need
    this: it keeps freed memory for the stream that allocated it, which belongs to this thread.

    Parameters
    ----------
    main : cupy.cuda.Stream
        The current stream.
    body : callable
        Without arguments.  It returns a tuple of arrays and None, and `main` waits for all its work.
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

    pool = cupy.cuda.MemoryPool(allocate_in_main)
    try:
        with cupy.cuda.using_allocator(pool.malloc):
            found = body()
        # Copies outlive the pool, so that the pool keeps no memory for the sake of the results.
        pool.free_all_blocks()
        copies = tuple(None if x is None else recorded_graphs.duplicate(x) for x in found)
        del found
        return copies
    finally:
        with main:
            recorded_graphs.retire(pool)
