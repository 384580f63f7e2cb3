"""A matrix a part at a time: rows, where a copy of all takes too much memory, or real and imaginary parts."""

__all__ = ["WIDENED", "by_parts", "part_entries", "parts", "real_parts"]

# Parts of a large matrix, and the least entries of one.
MOST_PARTS, LEAST_ENTRIES = 32, 1 << 18
# The same of one that is widened to FP64 for a product: on a device small ones cost launches, on the host
# they stay in the cache.
WIDENED = {"cpu": MOST_PARTS, "cuda": 8}


def parts(m, n, most=MOST_PARTS):
    """Return slices of the rows of an m x n matrix."""
    step = max(1, -(-m // most), LEAST_ENTRIES // max(n, 1))
    return [slice(first, first + step) for first in range(0, m, step)]


def part_entries(m, n, most=MOST_PARTS):
    """Return the entries of the largest part."""
    return min(m, parts(m, n, most)[0].stop) * n if m else 0


def real_parts(x):
    """Return x, or its real and its imaginary part, as views."""
    return (x.real, x.imag) if x.dtype.kind == "c" else (x,)


def by_parts(xp, apply, v, is_complex):
    """Return apply(v), (n, k); a real operator gets the parts of complex v as columns: real, imaginary."""
    if is_complex or v.dtype.kind != "c":
        return apply(v)
    k = v.shape[1]
    both = apply(xp.concatenate([v.real, v.imag], axis=1))
    return both[:, :k] + 1j * both[:, k:]
