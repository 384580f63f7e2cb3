"""Matrix Market files, read in pieces, so that the memory depends on the matrix, not on the text.

Each piece is checked, and then read by SciPy's fast reader as a separate small file.

References
----------
R. F. Boisvert, R. Pozo, K. A. Remington, The Matrix Market Exchange Formats: Initial Design, NISTIR
5935 (1996).
"""

import gzip
import re
import tarfile
import zlib
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import io
from tcsolve.matrices._words import look_at

__all__ = ["DAMAGED", "LIMIT_BYTES", "SUFFIXES", "read"]

LIMIT_BYTES = 8 * 2**30
SUFFIXES = (".mtx.gz", ".mtx")

# Number of bytes of text in one piece.
PIECE = 1 << 20
# A line is refused if the end of a piece cuts it after more than LINE bytes.  A header, with its comments,
# is refused if it has more than HEADER bytes.
LINE = 1 << 16
HEADER = 1 << 20

GZIP = b"\x1f"  # the first byte of a gzip file; a Matrix Market file never begins with it

# Errors of damaged compressed data, and of SciPy's reader for malformed text.
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError)
_MALFORMED = (*DAMAGED, ValueError, OverflowError)


class _Header(NamedTuple):
    """The contents of the banner and of the line of sizes; `lines` counts all lines up to that one."""

    rows: int
    columns: int
    entries: int
    layout: str
    field: str
    symmetry: str
    lines: int

    @property
    def numbers(self):
        """Number of words of an entry in the file: indices and values."""
        value = {"pattern": 0, "complex": 2}.get(self.field, 1)
        return value + (2 if self.layout == "coordinate" else 0)


def read(source, *, limit_bytes=LIMIT_BYTES, pattern=True):
    """Read a Matrix Market file into a dense array.

    Parameters
    ----------
    source : path or binary file
        A ``.mtx`` or ``.mtx.gz`` file, or an open file with the method ``peek``, such as
        ``sys.stdin.buffer``. The text of an open file is plain or compressed by gzip.
    limit_bytes : int, optional
        Largest dense array to make, 8 GiB by default.
    pattern : bool
        False: a file that has no values, only the places of the entries, raises a ValueError.

    Returns
    -------
    a : ndarray, float64 or complex128, C order
        Symmetric storage is expanded; the entries of a pattern are ones.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    MemoryError
        The dense array would exceed ``limit_bytes``. This is raised after reading the header only.
    ValueError
        The file is malformed, or has a header of more than 1 MiB. A line of more than 64 KiB may be refused.

    Notes
    -----
    Reading takes less than 200 MB in addition to the array, for a text of any length.
    """
    if hasattr(source, "peek"):
        name = getattr(source, "name", "the open file")
        if source.peek(1)[:1] == GZIP:
            source = gzip.GzipFile(fileobj=source)
        return read_open(source, name, limit_bytes, pattern)
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        return read_open(file, path, limit_bytes, pattern)


def read_open(file, name, limit_bytes, pattern=True):
    """Read the text of an open Matrix Market file; messages refer to it by `name`."""
    try:
        header = _read_header(file)
        if header.field == "pattern" and not pattern:
            raise ValueError("it has no values, only the places of its entries (pattern)")
        rows, columns, symmetry = header.rows, header.columns, header.symmetry
        dtype = np.dtype(complex if header.field == "complex" else float)
        size = rows * columns * dtype.itemsize
        if size > limit_bytes:
            raise MemoryError(
                f"{name} is {rows} by {columns}: dense it takes {size / 2**30:.3g} GiB, and "
                f"limit_bytes allows {limit_bytes / 2**30:.3g} GiB; raise limit_bytes, in Python, to load it"
            )
        if symmetry != "general" and rows != columns:
            raise ValueError(f"it is {symmetry}, and {rows} by {columns}")
        a = np.zeros((rows, columns), dtype)
        place = (_Coordinates if header.layout == "coordinate" else _Array)(a, symmetry)
        for text, count, line in _checked_pieces(file, header):
            place(_read_piece(text, count, line, header))
    except _MALFORMED as error:
        raise ValueError(f"{name} is not a readable Matrix Market file: {error}") from error
    return a


def _read_header(file):
    """Read the lines up to the line of sizes, the first that is neither empty nor a comment."""
    banner = file.readline(HEADER)
    length, lines, sizes = len(banner), 1, b""
    while line := file.readline(HEADER):
        length, lines = length + len(line), lines + 1
        if length > HEADER:
            raise ValueError(f"in its first {HEADER} bytes there is no line of sizes")
        if line.strip() and not line.lstrip(b" \t").startswith(b"%"):
            sizes = line
            break
    facts = io.mminfo(BytesIO(banner.rstrip() + b"\n" + sizes.rstrip() + b"\n"))
    if banner.split()[1].lower() != b"matrix":
        raise ValueError("it holds a vector; write a matrix of one column")
    header = _Header(*facts, lines)
    if header.layout == "array":
        header = header._replace(entries=_stored_entries(header))
    return header


def _stored_entries(header):
    """Return how many entries of an array are in the file."""
    rows = header.rows
    if header.symmetry == "general":
        return rows * header.columns
    return rows * (rows - 1 if header.symmetry == "skew-symmetric" else rows + 1) // 2


def _pieces(file):
    """Yield the rest of a file in pieces that end with a line."""
    rest = b""
    while piece := file.read(PIECE):
        whole, newline, rest = (rest + piece).rpartition(b"\n")
        if len(rest) > LINE:
            raise ValueError(f"it has a line of more than {LINE} bytes")
        yield whole + newline
    if rest:
        yield rest + b"\n"  # SciPy's reader may read too far if the last line has no line break


def _checked_pieces(file, header):
    """Yield (text, entries, lines before it) of each piece that holds entries, or raise a ValueError.

    SciPy's reader ignores the end of a word, or of a line, that it cannot parse: it reads 1.5D+01 as 1.5.
    So this function checks and counts the words.
    """
    field, needed = header.field, header.entries * header.numbers
    found, line = 0, header.lines
    message = f"its entries should have {needed} numbers in all, and have"
    for text in _pieces(file):
        if text and not text.isspace():
            count, strange = look_at(text, "integer" in field)
            found += count
            if strange is not None:
                kind, remedy = "floating-point", "write 15 or 1.5e+01"
                if "integer" in field:
                    kind, remedy = "integer", "write 15, or 'real' in the first line"
                word = strange.decode(errors="replace")
                raise ValueError(f"{word!r} is no {field} number (Invalid {kind} value); {remedy}")
            if found > needed:
                raise ValueError(f"file too long: {message} {found} or more")
            yield text, -(-count // header.numbers), line
        line += text.count(b"\n")
    if found < needed:
        raise ValueError(f"Truncated file: {message} {found}")


def _read_piece(text, count, line, header):
    """Return the entries of a piece: a sparse matrix of all rows and columns, or an array of one column."""
    sizes = f"{count} 1"
    if header.layout == "coordinate":
        sizes = f"{header.rows} {header.columns} {count}"
    head = f"%%MatrixMarket matrix {header.layout} {header.field} general\n{sizes}\n"
    try:
        return io.mmread(BytesIO(head.encode() + text))
    except (ValueError, OverflowError) as error:
        lines = sum(bool(part.strip()) for part in text.split(b"\n"))
        if lines != count:
            where = f"after line {line} it has {count} entries in {lines} lines"
            raise ValueError(f"{where}; write each in a line of its own") from error
        # The reader counts the lines of the piece, after two header lines that were added.
        told = re.sub(r"Line (\d+)", lambda m: f"Line {int(m[1]) - 2 + line}", str(error))
        raise ValueError(told) from error


def _mirrored(values, symmetry):
    """Return the mirror images of entries on the other side of the diagonal."""
    if symmetry == "skew-symmetric":
        return -values
    return values.conj() if symmetry == "hermitian" else values


def _off_diagonal(row, col, values):
    off = row != col
    return row[off], col[off], values[off]


class _Coordinates:
    """Adds pieces of a coordinate file to a dense matrix; a symmetric file holds one triangle only."""

    def __init__(self, a, symmetry):
        self.a, self.symmetry = a, symmetry
        self.above = self.below = False

    def __call__(self, piece):
        row, col = piece.coords
        values = piece.data.astype(self.a.dtype)
        self._add(row, col, values)
        if self.symmetry != "general":
            self._check_triangle(row, col, values)
            row, col, values = _off_diagonal(row, col, values)
            self._add(col, row, _mirrored(values, self.symmetry))

    def _add(self, row, col, values):
        flat = np.ravel_multi_index((row, col), self.a.shape)
        np.add.at(self.a.reshape(-1), flat, values)  # an entry may occur more than once

    def _check_triangle(self, row, col, values):
        self.above |= bool((row < col).any())
        self.below |= bool((row > col).any())
        if self.above and self.below:
            raise ValueError(
                f"it is {self.symmetry}, and has entries on both sides of the diagonal"
            )
        diagonal = values[row == col]
        if self.symmetry == "skew-symmetric" and diagonal.any():
            raise ValueError("it is skew-symmetric, and its diagonal is not zero")
        if self.symmetry == "hermitian" and diagonal.imag.any():
            raise ValueError("it is hermitian, and its diagonal is not real")


class _Array:
    """Puts pieces of an array file into a dense matrix; a symmetric file holds the lower triangle."""

    def __init__(self, a, symmetry):
        self.a, self.symmetry, self.done = a, symmetry, 0
        if symmetry != "general":
            # For each column: its first row in the file, and the number of entries before it.
            self.first = np.arange(len(a)) + (symmetry == "skew-symmetric")
            self.before = np.cumsum(len(a) - self.first) - (len(a) - self.first)

    def __call__(self, piece):
        values = piece[:, 0].astype(self.a.dtype)
        row, col = self._places(np.arange(self.done, self.done + len(values)))
        self.done += len(values)
        if self.symmetry == "hermitian" and values[row == col].imag.any():
            raise ValueError("it is hermitian, and its diagonal is not real")
        self.a[row, col] = values
        if self.symmetry != "general":
            row, col, values = _off_diagonal(row, col, values)
            self.a[col, row] = _mirrored(values, self.symmetry)

    def _places(self, number):
        """Return the rows and columns of the entries with these numbers in the file."""
        if self.symmetry == "general":
            return number % len(self.a), number // len(self.a)
        col = np.searchsorted(self.before, number, side="right") - 1
        return self.first[col] + number - self.before[col], col
