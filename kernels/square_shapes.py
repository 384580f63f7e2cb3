"""The launch shapes of cholesky_squares.cu."""

from tcsolve.kernels.arch import (
    FAST_FP64,
    LARGEST_SHARED_BYTES,
    arch_number,
    has_large_memory,
    shared_bytes,
)

# Number of rows and columns of a square, threads of a block, and bytes of its ring.
SQUARE, SQUARE_THREADS, SQUARE_RING = 64, 256, 3 << 15
# Number of right-hand sides that a block solves for, and its threads.
SQUARE_SIDES, SQUARE_SOLVE_THREADS = 8, 288
# Largest number of rows.  Beyond it, cuSOLVER is faster, one matrix after the other.
LARGEST_IN_SQUARES = 2048


def square_rows(n):
    """Return the number of rows of squares of a matrix of n rows."""
    return -(-n // SQUARE)


def square_solve_bytes(n):
    """Return the bytes of shared memory of a solve for n unknowns."""
    # Two triangles of 36 tiles take as many bytes as the right-hand sides of 9 rows of squares.
    triangles = 9
    return 8 * SQUARE_SIDES * SQUARE * (square_rows(n) + triangles)


def updated_squares(rows, j, period):
    """Return how many squares besides (j, j) are updated in step j; the matrix has `rows` rows of squares.

    cholesky_squares.cu explains the `period`.
    """
    return rows - 1 - j + sum(rows - column for column in range(j + 1, rows, period)) if j else 0


def largest_in_squares(arch):
    """Return the largest number of rows of a matrix; 0 where the rate in FP64 is low."""
    number = arch_number(arch)
    if number not in FAST_FP64:
        return 0
    limit = LARGEST_SHARED_BYTES if has_large_memory(number) else shared_bytes(arch)
    sizes = range(LARGEST_IN_SQUARES, 0, -SQUARE)
    return next(n for n in sizes if square_solve_bytes(n) <= limit)
