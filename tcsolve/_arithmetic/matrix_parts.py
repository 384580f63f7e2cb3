"""Parts of a matrix: blocks of rows, columns, real and imaginary parts; and short sums of its products."""

import math

__all__ = [
    "SUMMED_COLUMNS",
    "WIDENED",
    "by_parts",
    "column_tops",
    "part_entries",
    "parts",
    "power_of_two_from",
    "real_parts",
    "short_sum",
    "sums_at_once",
]

# Largest number of parts of a matrix; a matrix with fewer than LEAST_ENTRIES entries is not divided.
MOST_PARTS, LEAST_ENTRIES = 32, 1 << 18
# Largest number of parts in which a matrix is converted to FP64 for a product.  On the host, small parts stay
# in the cache; on a device, each part costs a launch.
WIDENED = {"cpu": MOST_PARTS, "cuda": 8}
# A device forms several short sums of a product A X at once (see `sums_at_once`).  Together they have at most
# SUM_ENTRIES entries, or the number of entries of A divided by SUM_ROOM if that is larger.
SUM_ROOM, SUM_ENTRIES = 64, 1 << 16
# Largest number of columns of X for which a device forms short sums of A X.
SUMMED_COLUMNS = 256


def parts(m, n, most=MOST_PARTS):
    """Return slices that divide the rows of an m x n matrix into at most `most` parts."""
    step = max(1, -(-m // most), LEAST_ENTRIES // max(n, 1))
    return [slice(first, first + step) for first in range(0, m, step)]


def part_entries(m, n, most=MOST_PARTS):
    """Return the number of entries of the largest part."""
    return min(m, parts(m, n, most)[0].stop) * n if m else 0


def power_of_two_from(size):
    """Return the smallest power of two that is at least `size`, which is at least 1."""
    return 2 ** math.ceil(math.log2(size))


def short_sum(n):
    """Return the number of products in each short sum of a residual on a device, for sums of n products.

    It is a power of two from 2 sqrt(n) to 4 sqrt(n), so that the blocks of a matrix are aligned.
    """
    return power_of_two_from(2 * n**0.5)


def sums_at_once(m, n, k, room=0):
    """Return how many short sums a device forms at once for the product of an m x n and an n x k matrix.

    Each sum is an m x k matrix.  `room` is a number of entries that the sums may have in any case.
    """
    most = max(m * n // SUM_ROOM, SUM_ENTRIES, room) // max(1, m * k)
    return max(1, min(n // short_sum(n), most))


def real_parts(x):
    """Return (x,) for real x, else (real part, imaginary part), both views."""
    return (x.real, x.imag) if x.dtype.kind == "c" else (x,)


def column_tops(ops, v):
    """Return max |v| of each column of v (n, k); NaN propagates."""
    return ops.row_stats(v.T).top


def by_parts(xp, apply, v, is_complex):
    """Return apply(v), shape (n, k), for an operator that is real unless `is_complex`.

    A real operator takes real vectors, so the real and the imaginary part of a complex v are passed to it as
    2 k columns.
    """
    if is_complex or v.dtype.kind != "c":
        return apply(v)
    k = v.shape[1]
    both = apply(xp.concatenate([v.real, v.imag], axis=1))
    return both[:, :k] + 1j * both[:, k:]
