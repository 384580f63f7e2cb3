"""Whether words of a text are numbers to their ends: fast readers stop where they understand no more."""

import re

import numpy as np

__all__ = ["look_at"]

BLANK, DIGIT, SIGN, POINT, EXPONENT, OTHER = range(6)
LETTERS = {BLANK: b" \t\r\n\v\f", DIGIT: b"0123456789", SIGN: b"+-", POINT: b".", EXPONENT: b"eE"}
KIND = np.full(256, OTHER, np.uint8)
for kind, letters in LETTERS.items():
    KIND[list(letters)] = kind
NOT_FINITE = {b"nan", b"inf", b"infinity"}
# Letters of a word on each side of one, to show it and to look for these names.
NEAR = 100


def look_at(text, whole):
    """Count words, and look for one that is no number.

    Parameters
    ----------
    text : bytes
    whole : bool
        Whether only integers are numbers.

    Returns
    -------
    count : int
    strange : bytes or None
        The first word that is not of the form ``-1.5e+01``, NaN or infinity.
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
    if whole:
        wrong |= points | exponents
    # In one word a point may come before an exponent; no other two of them.
    marks = np.flatnonzero(points | exponents)
    word = np.cumsum(begins, dtype=np.int32)
    again = (word[marks[1:]] == word[marks[:-1]]) & ~(points[marks[:-1]] & exponents[marks[1:]])
    wrong[marks[1:][again]] = True
    others = here == OTHER
    if others.any():
        for place in np.flatnonzero(others)[np.unique(word[others], return_index=True)[1]]:
            if _word_at(text, place).lower().lstrip(b"+-") not in NOT_FINITE:
                wrong[place] = True
                break  # only the first one is asked for
    strange = _word_at(text, wrong.argmax()) if wrong.any() else None
    return int(np.count_nonzero(begins)), strange


def _word_at(text, place):
    """Return the word that has a letter at this place, of a very long one the part around it."""
    start = max(place - NEAR, 0)
    words = re.finditer(rb"\S+", text[start : place + NEAR])
    return next(word[0] for word in words if word.end() > place - start)
