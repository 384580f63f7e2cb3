"""Known defects: each is counted separately, and has a strict xfail test that is deleted with the repair."""

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


KNOWN: dict[str, Known] = {}


def is_known(sentence):
    """Tell whether the judge's sentence is about a defect that is known."""
    return any(re.search(known.pattern, sentence) for known in KNOWN.values())
