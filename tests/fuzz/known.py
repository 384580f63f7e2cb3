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


KNOWN: dict[str, Known] = {}


def is_known(sentence):
    """Tell whether the judge's sentence is about a defect that is known."""
    return any(re.search(known.pattern, sentence) for known in KNOWN.values())
