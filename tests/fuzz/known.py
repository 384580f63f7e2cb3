"""Defects that are known: each is counted apart, and has a test that fails strictly until it is gone."""

import re
from typing import NamedTuple

__all__ = ["KNOWN", "Known", "is_known"]


class Known(NamedTuple):
    """A broken promise.

    Attributes
    ----------
    pattern : str
        A regular expression for the judge's sentences about it.
    reason : str
    """

    pattern: str
    reason: str


KNOWN = {
    "stacks": Known(
        "^the statuses or errors of a stack are missing",
        "a stack has one status, not one for each matrix",
    ),
    "long double": Known(
        "x is float128|array type float128",
        "a b of long double, with a precision, is not taken for FP64, as SciPy does",
    ),
    "unaligned memory": Known(
        "TypeError: Expected a real or complex array",
        "unaligned arrays of a structured system or a stack reach SciPy as they are, which refuses them",
    ),
    "given up next to the bound": Known(
        "^NOT_CONVERGED, 1([.][0-9]+)? of the bound; SciPy's answer meets it",
        "a rung ends where the error that it measures meets the bound; that of the caller's system is "
        "a little larger, and no further step is done",
    ),
    "error of a singular matrix": Known(
        "^the reported error is .*; singular: |^the same b gives different bits, SINGULAR",
        "where an FP64 rung finds a zero pivot, x is that of the rung before, and the error another one",
    ),
    "warnings of NumPy": Known(
        r"warnings \['RuntimeWarning'.* \(a complex",
        "corrections of complex64 that overflow are multiplied with a warning of NumPy's",
    ),
}


def is_known(sentence):
    """Tell whether the judge's sentence is about a defect that is known."""
    return any(re.search(known.pattern, sentence) for known in KNOWN.values())
