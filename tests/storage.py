"""Ways to store an array so that it is not aligned, or of the other byte order."""

import numpy as np


def at_odd_address(x):
    raw = np.zeros(x.nbytes + 1, np.uint8)
    raw[1:] = np.frombuffer(x.tobytes(), np.uint8)
    return np.frombuffer(raw.data, x.dtype, offset=1).reshape(x.shape)


def field(x):
    """Return x as a field behind one byte."""
    records = np.zeros(x.shape, [("mark", "u1"), ("x", x.dtype)])
    records["x"] = x
    return records["x"]


def field_of_words(x):
    """Return x as a field with entries at multiples of 4 bytes, so numbers of 8 bytes are not aligned."""
    records = np.zeros(x.shape, [("x", x.dtype), ("mark", "f4")])
    records["x"] = x
    return records["x"]


def swapped(x):
    return x.astype(x.dtype.newbyteorder())


STORED = [at_odd_address, field, field_of_words, swapped, lambda x: at_odd_address(swapped(x))]
