"""Files in the Rutherford-Boeing and Harwell-Boeing formats.

References
----------
I. S. Duff, R. G. Grimes, J. G. Lewis, The Rutherford-Boeing sparse matrix collection, RAL-TR-97-031,
Rutherford Appleton Laboratory (1997).
"""

import re
from itertools import islice
from pathlib import Path

import numpy as np

__all__ = ["SUFFIXES", "read"]

SUFFIXES = (".rb", ".rua", ".rsa", ".cua", ".hb")
# No line may have more characters.  The formats have 80, and some programs write longer lines.
MOST_CHARACTERS = 4096
# For the second letter of the type: the function that returns the mirror images of the stored entries, and
# what such a matrix is called.
MIRRORS = {"s": lambda v: v, "h": np.conj, "z": np.negative}
NAMES = {"s": "symmetric", "h": "Hermitian", "z": "skew-symmetric"}


def read(path, *, limit_bytes, pattern=True):
    """Read an assembled matrix into a dense array.

    Parameters
    ----------
    path : path
    limit_bytes : int
        Largest dense array to make.
    pattern : bool
        False: a file that has no values raises a ValueError.

    Returns
    -------
    a : ndarray, float64 or complex128, C order
        Symmetric storage is expanded; the entries of a pattern are ones.

    Raises
    ------
    MemoryError
        The dense array would exceed ``limit_bytes``.
    ValueError
        The file is malformed, or the matrix is not assembled.
    """
    with open(path, encoding="ascii", errors="replace") as file:
        try:
            return _read_open(_lines(file), Path(path).name, limit_bytes, pattern)
        except (ValueError, IndexError) as error:
            raise ValueError(f"{path} is not a readable Rutherford-Boeing file: {error}") from error


def _lines(file):
    """Yield the lines of a file; raise a ValueError for one that is too long, without reading all of it."""
    while line := file.readline(MOST_CHARACTERS + 1):
        if len(line) > MOST_CHARACTERS:
            raise ValueError(f"it has a line of more than {MOST_CHARACTERS} characters")
        yield line


def _read_open(file, name, limit_bytes, pattern):
    _title, counts, kind, formats = (next(file, "") for _ in range(4))
    pointer_lines, index_lines, value_lines, *rhs_lines = map(int, counts.split()[1:])
    field, symmetry, storage = kind[:3].lower()
    rows, columns, entries = map(int, kind[14:].split()[:3])
    if storage != "a":
        raise ValueError("it is not assembled, but a sum of elements")
    if field not in "rcipq" or symmetry not in "surhz":
        raise ValueError(f"its type is {kind[:3]!r}")
    if field in "pq" and not pattern:
        raise ValueError("it has no values, only the places of its entries (pattern)")
    if rhs_lines and rhs_lines[0]:
        next(file, "")  # Harwell-Boeing: a line about right-hand sides, which come at the end
    dtype = np.dtype(complex if field == "c" else float)
    if min(rows, columns) < 1 or not 0 <= entries <= rows * columns:
        raise ValueError(f"its header says {entries} entries in {rows} rows and {columns} columns")
    if (size := rows * columns * dtype.itemsize) > limit_bytes:
        raise MemoryError(
            f"{name} is {rows} by {columns}: dense it takes {size / 2**30:.3g} GiB, and limit_bytes allows "
            f"{limit_bytes / 2**30:.3g} GiB; raise limit_bytes, in Python, to load it"
        )
    of_pointers, of_indices, of_values = _formats(formats)
    pointers = _numbers(file, pointer_lines, of_pointers, columns + 1, int)
    indices = _numbers(file, index_lines, of_indices, entries, int)
    values = np.ones(entries, dtype)
    if field in "rci":
        each = 2 if field == "c" else 1
        numbers = _numbers(file, value_lines, of_values, each * entries, float)
        values = numbers.view(dtype)
    return _dense((rows, columns), pointers - 1, indices - 1, values, symmetry)


def _formats(line):
    """Return (numbers in a line, width of a number) of each Fortran format of a line."""
    found = re.findall(r"\((?:1P,?)?\s*(\d*)[IEDFG](\d+)[.\dE]*\)", line.upper())
    if len(found) < 2:
        raise ValueError(f"its formats are {line.strip()!r}")
    return ([(int(count or 1), int(width)) for count, width in found] + [(1, 1)])[:3]


def _numbers(file, lines, form, count, kind):
    """Read `count` numbers from `lines` lines; Fortran may leave no space between them."""
    each, width = form
    numbers, found = np.empty(count, kind), 0
    for line in islice(file, lines):
        text = line.rstrip().upper().replace("D", "E")
        words = _words(text, each, width, min(each, count - found), kind)
        words = [word for word in words if word.strip()]
        if any("_" in word for word in words):  # Python would take 1_0 for 10
            raise ValueError(f"it has a line with a word that is not a number: {line.strip()!r}")
        place = numbers[found : found + len(words)]
        found += len(words)
        if len(place) == len(words):
            place[:] = [kind(word) for word in words]
    if found != count:
        raise ValueError(f"it should have {count} numbers in {lines} lines, and has {found}")
    return numbers


def _words(line, each, width, expected, kind):
    """Return the words of a line of at most `each` numbers of `width` characters.

    Characters after the place of the last number are ignored: some programs number the lines there.  SciPy
    writes lines whose numbers are narrower than its header says.  So a line may be too short for the
    `expected` numbers.  Then its words are those between spaces, if there are `expected` of them.  Otherwise
    its words have `width` characters, if all of them are numbers, or else equal widths, if its length allows.
    """
    words = _cut(line, each, width)
    if not 0 < len(line) < expected * width:
        return words
    if len(separate := line.split()) == expected:
        return separate
    try:
        for word in words:
            kind(word)
    except ValueError:
        return words if len(line) % expected else _cut(line, expected, len(line) // expected)
    return words


def _cut(line, count, width):
    return [line[i : i + width] for i in range(0, min(len(line), count * width), width)]


def _dense(shape, pointers, indices, values, symmetry):
    if pointers[0] != 0 or pointers[-1] != len(indices) or (np.diff(pointers) < 0).any():
        last = f"{len(indices) + 1}, one more than the number of entries"
        raise ValueError(f"the pointers to its columns do not rise from 1 to {last}")
    if len(indices) and not (0 <= indices.min() and indices.max() < shape[0]):
        raise ValueError(f"it has an entry outside of its {shape[0]} rows")
    a = np.zeros(shape, values.dtype)
    columns = np.repeat(np.arange(shape[1]), np.diff(pointers))
    np.add.at(a, (indices, columns), values)
    if symmetry in MIRRORS:
        if shape[0] != shape[1]:
            raise ValueError(f"it is {NAMES[symmetry]}, and {shape[0]} by {shape[1]}")
        off = indices != columns
        np.add.at(a, (columns[off], indices[off]), MIRRORS[symmetry](values[off]))
    return a
