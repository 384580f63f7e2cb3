"""The outcome of a call, and the place of its arrays: the host or a device."""

import warnings
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

__all__ = ["BFLOAT16", "Outcome", "Place", "bits", "same_bits"]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Outcome:
    """The value of a call or its exception, and its warnings.

    Attributes
    ----------
    value : object, or None
    error : Exception, or None
    warnings : tuple of type
        The categories, in order.
    """

    def __init__(self, call):
        self.value = self.error = None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self.value = call()
            except Exception as error:
                self.error = error
        self.warnings = tuple(w.category for w in caught)

    def __str__(self):
        told = [w.__name__ for w in self.warnings]
        what = "an answer" if self.error is None else f"{type(self.error).__name__}: {self.error}"
        return f"{what[:200]}, warnings {told}" if told else what[:200]


class Place(NamedTuple):
    """An array library under test.

    Attributes
    ----------
    xp : module
        NumPy or CuPy.
    """

    xp: Any

    @property
    def name(self):
        return self.xp.__name__

    @property
    def on_host(self):
        return self.xp is np

    def takes(self, *arrays):
        """Tell whether these NumPy arrays can be moved here."""
        known = "?bhilqBHILQefdFD"
        return self.on_host or all(
            x.dtype == BFLOAT16 or (x.dtype.isnative and x.dtype.char in known) for x in arrays
        )

    def given(self, x):
        """Return a NumPy array as an array of this place; BF16 goes to CuPy as integers of 16 bits."""
        if x.dtype == BFLOAT16 and not self.on_host:
            return self.xp.asarray(x.view(np.uint16)).view(BFLOAT16)
        return self.xp.asarray(x)

    def host(self, x):
        """Return an array of this place as a NumPy array."""
        if self.on_host:
            return x
        if x.dtype == BFLOAT16:
            return self.xp.asnumpy(x.view(np.uint16)).view(BFLOAT16)
        return self.xp.asnumpy(x)


def bits(place, x):
    """Return the bytes of all memory that an array is a view of."""
    while isinstance(getattr(x, "base", None), place.xp.ndarray):
        x = x.base
    return place.host(x).tobytes()


def same_bits(place, x, y):
    """Tell whether two arrays have the same shape, dtype and bytes."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    x, y = place.host(x), place.host(y)
    if x.dtype.char in "gG":  # there are unused bytes in a long double
        return np.array_equal(x, y, equal_nan=True)
    return x.tobytes() == y.tobytes()
