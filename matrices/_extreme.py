"""Extreme problems: at the ends of the exponent range, singular, or with NaN or Inf.

All of them start from independent standard normal entries.
"""

import numpy as np

from ._spectrum import standard_normal

# Decimal exponents near the ends of the range: a product of two entries overflows or underflows.
_EDGE = {"f": 36, "F": 36, "d": 300, "D": 300}


def near_overflow(n, rng, dtype):
    """Entries of about 1e300 (1e36 in single precision): products of two overflow."""
    return standard_normal(rng, (n, n), dtype) * 10.0 ** _EDGE[np.dtype(dtype).char]


def near_underflow(n, rng, dtype):
    """Entries of about 1e-300 (1e-36 in single precision): products of two underflow."""
    return standard_normal(rng, (n, n), dtype) * 10.0 ** -_EDGE[np.dtype(dtype).char]


def mixed_scales(n, rng, dtype, *, decades=8):
    """Rows and columns each scaled by 10^U(-k, k), k = decades: needs scaling."""
    rows, columns = 10 ** rng.uniform(-decades, decades, (2, n))
    return rows[:, None] * standard_normal(rng, (n, n), dtype) * columns


def fp16_overflow(n, rng, dtype):
    """Entries of about 1e6: beyond the largest FP16 number, 65504."""
    return 1e6 * standard_normal(rng, (n, n), dtype)


def fp16_underflow(n, rng, dtype):
    """Entries of about 1e-9: below the smallest FP16 number, 6e-8."""
    return 1e-9 * standard_normal(rng, (n, n), dtype)


def _zero_column(n, rng, dtype, column):
    a = standard_normal(rng, (n, n), dtype)
    a[:, column] = 0
    return a


def zero_column_first(n, rng, dtype):
    """First column zero: exactly singular at the first step."""
    return _zero_column(n, rng, dtype, 0)


def zero_column_middle(n, rng, dtype):
    """Middle column zero: exactly singular at the middle step."""
    return _zero_column(n, rng, dtype, n // 2)


def zero_column_last(n, rng, dtype):
    """Last column zero: exactly singular at the last step."""
    return _zero_column(n, rng, dtype, n - 1)


def dependent_rows(n, rng, dtype):
    """Last row is the rounded sum of the others: singular up to rounding; the last pivot can be nonzero."""
    a = standard_normal(rng, (n, n), dtype)
    a[-1] = a[:-1].sum(axis=0)
    return a


def _one_entry(n, rng, dtype, value):
    a = standard_normal(rng, (n, n), dtype)
    a[tuple(rng.integers(n, size=2))] = value
    return a


def nan_entry(n, rng, dtype):
    """One NaN at a random place."""
    return _one_entry(n, rng, dtype, np.nan)


def inf_entry(n, rng, dtype):
    """One infinity at a random place."""
    return _one_entry(n, rng, dtype, np.inf)


SOLVABLE = (near_overflow, near_underflow, mixed_scales, fp16_overflow, fp16_underflow)
UNSOLVABLE = (
    zero_column_first,
    zero_column_middle,
    zero_column_last,
    dependent_rows,
    nan_entry,
    inf_entry,
)
GENERATORS = {generator.__name__: generator for generator in SOLVABLE + UNSOLVABLE}
