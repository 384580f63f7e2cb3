"""Checks of scalar arguments.  Each returns the value, or raises an InputError that says what is needed."""

import math
import numbers

import numpy as np

from tcsolve._errors import InputError

__all__ = ["require_count", "require_number", "require_switch"]


def require_count(name, value):
    """Return `value` as int, or raise an InputError unless it is a positive integer."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not (whole and value >= 1):
        raise InputError(f"{name} is {value!r}, needs a positive integer")
    return int(value)


def require_number(name, value, what="a real number that is not negative", least=0.0):
    """Return `value` as float, or raise an InputError unless it is a real number of at least `least`.

    `what` describes the allowed numbers in the message.
    """
    number = value.item() if getattr(value, "shape", None) == () else value
    real = isinstance(number, numbers.Real) and not isinstance(number, bool)
    try:
        found = float(number) if real else math.nan
    except OverflowError:
        found = math.nan
    if not found >= least:
        raise InputError(f"{name} is {value!r}, needs {what}")
    return found


def require_switch(name, value):
    """Return `value` as bool, or raise an InputError unless it is True, False, 1 or 0."""
    if not (isinstance(value, bool | np.bool_ | int | np.integer) and value in (0, 1)):
        raise InputError(f"{name} is {value!r}, needs True or False")
    return bool(value)
