"""A large matrix a part at a time, where a copy of all of it would take too much memory."""

__all__ = ["part_entries", "parts"]

# Parts of a large matrix, and the least entries of one.
MOST_PARTS, LEAST_ENTRIES = 32, 1 << 18


def parts(m, n):
    """Return slices of the rows of an m x n matrix."""
    step = max(1, -(-m // MOST_PARTS), LEAST_ENTRIES // max(n, 1))
    return [slice(first, first + step) for first in range(0, m, step)]


def part_entries(m, n):
    """Return the entries of the largest part."""
    return min(m, parts(m, n)[0].stop) * n if m else 0
