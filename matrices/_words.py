"""Check that every word of a text is a complete number.

Fast readers stop in the middle of a word that they cannot parse, and do not report it.
"""

import re

import numpy as np

__all__ = ["look_at"]

BLANK, DIGIT, SIGN, POINT, EXPONENT, OTHER = range(6)
LETTERS = {BLANK: b" \t\r\n\v\f", DIGIT: b"0123456789", SIGN: b"+-", POINT: b".", EXPONENT: b"eE"}
KIND = np.full(256, OTHER, np.uint8)
for kind, letters in LETTERS.items():
    KIND[list(letters)] = kind
NOT_FINITE = {b"nan", b"inf", b"infinity"}
# Largest number of characters that are read on each side of a character, to find the word around it.
NEAR = 100


def look_at(text, whole):
    """Count the words of a text, and find one that is not a number.

    Parameters
    ----------
    text : bytes
        Words that are separated by white space.
    whole : bool
        True if all numbers must be integers.

    Returns
    -------
    count : int
        Number of words.
    strange : bytes or None
        The first word that does not have the form ``-1.5e+01`` (with `whole`, ``-15``), NaN or infinity.
    """
    kind = np.full(len(text) + 2, BLANK, np.uint8)
    kind[1:-1] = KIND[np.frombuffer(text, np.uint8)]
    before, here, after = kind[:-2], kind[1:-1], kind[2:]
    begins = (here != BLANK) & (before == BLANK)
    signs, points, exponents = here == SIGN, here == POINT, here == EXPONENT
    wrong = signs & (before != BLANK) & ((before != EXPONENT) | (after != DIGIT))
    wrong |= signs & ((after == BLANK) | (after == SIGN) | (after == EXPONENT))
    wrong |= exponents & (
        ((before != DIGIT) & (before != POINT)) | ((after != DIGIT) & (after != SIGN))
    )
    wrong |= points & (before != DIGIT) & (after != DIGIT)
    if whole:
        wrong |= points | exponents
    # A word may have a point before an exponent, but no other pair of points and exponents.
    marks = np.flatnonzero(points | exponents)
    word = np.cumsum(begins, dtype=np.int32)
    again = (word[marks[1:]] == word[marks[:-1]]) & ~(points[marks[:-1]] & exponents[marks[1:]])
    wrong[marks[1:][again]] = True
    others = here == OTHER
    if others.any():
        for place in np.flatnonzero(others)[np.unique(word[others], return_index=True)[1]]:
            if _word_at(text, place).lower().lstrip(b"+-") not in NOT_FINITE:
                wrong[place] = True
                break  # only the first one is returned
    strange = _word_at(text, wrong.argmax()) if wrong.any() else None
    return int(np.count_nonzero(begins)), strange


def _word_at(text, place):
    """Return the word with the character at `place`, or the part of a very long word around it."""
    start = max(place - NEAR, 0)
    words = re.finditer(rb"\S+", text[start : place + NEAR])
    return next(word[0] for word in words if word.end() > place - start)
