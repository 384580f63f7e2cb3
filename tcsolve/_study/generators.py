"""The options of generated matrices, checked before any matrix is made."""

import math
import sys

import numpy as np

from tcsolve import matrices
from tcsolve._arguments import require_count
from tcsolve._errors import InputError

__all__ = ["checked_options", "takes"]

# The number of bytes of a larger complex matrix is above sys.maxsize.
MOST_N = math.isqrt(sys.maxsize // 16)
# Options of `matrices.generate` that a study sets for all matrices.
OF_THE_STUDY = ("seed", "rhs")
# Options of all generators.
OF_ALL = ("n", "dtype", "nrhs")


def checked_options(name, options):
    """Return the options of a generator, n as int; or raise an InputError that says what is needed."""
    own = _own_options(name)
    for key, value in options.items():
        where = f"study: gen:{name}: {key}"
        if key in OF_THE_STUDY:
            raise InputError(f"{where} is set once for the whole study; give {key}= or --{key}")
        if key not in own and key not in OF_ALL:
            known = ", ".join([*OF_ALL, *own])
            raise InputError(f"study: gen:{name} has no option {key}; it has {known}")
        if key in own and isinstance(own[key], int | float):
            _require_number(where, value)
    options = options | {"n": _order(f"study: gen:{name}: n", options["n"])}
    if "nrhs" in options:
        options["nrhs"] = require_count(f"study: gen:{name}: nrhs", options["nrhs"])
    if len(options) > 1:
        _try_small(name, options)
    return options


def takes(name, keys):
    """Tell whether a generator has all these options."""
    return not set(keys) - {*_own_options(name), *OF_ALL, *OF_THE_STUDY}


def _own_options(name):
    return next(entry.options for entry in matrices.catalog() if entry.name == name)


def _order(where, value):
    """Return the order as int; a float such as 1e3 is allowed."""
    whole = isinstance(value, int | float | np.integer) and not isinstance(value, bool)
    if not (whole and 1 <= value <= MOST_N and value == int(value)):
        raise InputError(f"{where} is {value!r}, needs an integer from 1 to {MOST_N}")
    return int(value)


def _require_number(where, value):
    real = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not (real and np.isfinite(value)):
        raise InputError(f"{where} is {value!r}, needs a finite number")


def _try_small(name, options):
    """Raise an InputError if the generator refuses the options.

    It is called with a small n, because it refuses the same options for every n.
    """
    try:
        with np.errstate(all="ignore"):
            matrices.generate(name, **options | {"n": min(options["n"], 4)})
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"study: gen:{name}: {error}") from error
