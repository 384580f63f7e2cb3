"""Grids: every combination of the values of a dict."""

import itertools
from collections.abc import Sequence

from tcsolve._errors import InputError

__all__ = ["sweep"]


def sweep(options):
    """Return a dict for each combination; a list or a tuple is swept, any other value is fixed.

    Examples
    --------
    >>> sweep({"n": [10, 20], "cond": 1e3})
    [{'n': 10, 'cond': 1000.0}, {'n': 20, 'cond': 1000.0}]
    """
    swept = [
        list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        for value in options.values()
    ]
    for key, values in zip(options, swept, strict=True):
        if not values:
            raise InputError(f"study: {key} is an empty list, needs a value")
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*swept)]
