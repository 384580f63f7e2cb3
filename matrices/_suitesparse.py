"""Real matrices: Matrix Market files and the SuiteSparse Matrix Collection by name.

A name is ``"west0132"`` or, with the group, ``"HB/west0132"``. It is looked for as
``west0132.mtx.gz`` or ``west0132.mtx`` in a local folder, the argument or else the environment
variable ``TCSOLVE_MATRICES``; a file ``index.csv`` beside the matrices may describe them. With the
group it is then fetched from the collection through pooch, an optional dependency, and kept in
pooch's cache.

References
----------
T. A. Davis, Y. Hu, The University of Florida sparse matrix collection, ACM Trans. Math. Softw. 38
(2011), 1:1-1:25.
"""

import csv
import difflib
import gzip
import hashlib
import os
import re
import tarfile
import warnings
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
from scipy import io, sparse
from tcsolve.matrices._words import look_at

FOLDER_VARIABLE = "TCSOLVE_MATRICES"
COLLECTION_URL = "https://suitesparse-collection-website.herokuapp.com/MM"
LIMIT_BYTES = 8 * 2**30
SUFFIXES = (".mtx.gz", ".mtx")

# What unpacking raises for damaged bytes, and SciPy for text that breaks the format.
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError)
_MALFORMED = (*_DAMAGED, ValueError, OverflowError)


def names(folder=None):
    """List the matrices in the local folder.

    Parameters
    ----------
    folder : path, optional
        Default: the environment variable ``TCSOLVE_MATRICES``.

    Returns
    -------
    names : tuple of str
        Sorted, without group.

    Raises
    ------
    FileNotFoundError
        No folder is given, or it does not exist.
    """
    files = [file.name for file in _local_folder(folder).iterdir()]
    return tuple(sorted({f.removesuffix(s) for f in files for s in SUFFIXES if f.endswith(s)}))


def index(folder=None):
    """Read the ``index.csv`` of the local folder.

    Parameters
    ----------
    folder : path, optional
        Default: the environment variable ``TCSOLVE_MATRICES``.

    Returns
    -------
    rows : list of dict
        One for each matrix. ``n`` and ``nnz`` are int; columns that begin with ``cond_``, ``max_``
        or ``min_`` are float, NaN where empty; all others are str.

    Raises
    ------
    FileNotFoundError
        There is no folder or no ``index.csv`` in it.
    ValueError
        It has no columns ``name`` and ``group``, or a row has more or fewer cells than the first, or one
        that is no number where one belongs.
    """
    path = _local_folder(folder) / "index.csv"
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            columns = [name for name in rows.fieldnames or () if name]
            if not {"name", "group"} <= set(columns):
                raise ValueError(
                    f"{path} names the columns {', '.join(columns) or '(none)'} in its first line; name and "
                    "group are needed: add them, or remove the file"
                )
            return [_parse_row(row, f"{path}, line {rows.line_num}") for row in rows]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8: {error}") from error


def read(path, *, limit_bytes=LIMIT_BYTES):
    """Read a Matrix Market file into a dense array.

    Parameters
    ----------
    path : path
        A ``.mtx`` or ``.mtx.gz`` file.
    limit_bytes : int, optional
        Largest dense array to make, 8 GiB by default.

    Returns
    -------
    a : ndarray, float64 or complex128, C order
        Symmetric storage is expanded; the entries of a pattern are ones.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    MemoryError
        The dense array would exceed ``limit_bytes``; found from the header, before anything is
        read.
    ValueError
        The file is malformed.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        return _read_stream(file, path, limit_bytes)


def load(name, folder=None, *, known_hash=None, limit_bytes=LIMIT_BYTES):
    """Load a matrix of the SuiteSparse collection into a dense array.

    Parameters
    ----------
    name : str
        ``"name"`` or ``"group/name"``; only the latter can be downloaded.
    folder : path, optional
        Looked in first. Default: the environment variable ``TCSOLVE_MATRICES``.
    known_hash : str, optional
        SHA-256, or ``"algorithm:digest"``, of the collection's ``name.tar.gz``. Without it the hash
        of the first download is recorded in the cache, reported by a warning, and required from
        then on. Local files are not checked.
    limit_bytes : int, optional
        Largest dense array to make, 8 GiB by default.

    Returns
    -------
    a : ndarray, float64 or complex128, C order

    Raises
    ------
    FileNotFoundError
        Neither the folder nor the collection has the matrix.
    ImportError
        A download is needed and pooch is not installed.
    MemoryError
        The dense array would exceed ``limit_bytes``.
    ValueError
        The file is malformed, the hash does not match, or the name cannot be one.
    """
    match = re.fullmatch(r"(?:(\w[\w.+-]*)/)?(\w[\w.+-]*)", name)
    if match is None:
        raise ValueError(f"{name!r} is not the name of a matrix; write 'name' or 'group/name'")
    group, short = match.groups()
    folder = folder or os.environ.get(FOLDER_VARIABLE)
    path = folder and _local_file(Path(folder), group, short)
    if path:
        return read(path, limit_bytes=limit_bytes)
    missing = _missing(name, short, folder)
    if group is None:
        raise FileNotFoundError(f"{missing}, or write 'group/{short}' to download it")
    archive = _download(group, short, known_hash, missing)
    try:
        with tarfile.open(archive) as tar, tar.extractfile(f"{short}/{short}.mtx") as file:
            a = _read_stream(file, archive, limit_bytes)
    except (*_DAMAGED, KeyError) as error:
        raise ValueError(
            f"{archive} is not the archive of a matrix {short}; delete it to fetch it "
            f"again: {error}"
        ) from error
    if known_hash is None:
        _record_hash(archive)
    return a


def indexed_condition(name, folder=None):
    """Return the 2-norm condition number of a matrix by the folder's ``index.csv``, or None."""
    group, _, short = name.rpartition("/")
    try:
        rows = index(folder)
    except FileNotFoundError:
        return None
    rows = (row for row in rows if row["name"] == short and group in ("", row["group"]))
    cond = next(rows, {}).get("cond_2norm", np.nan)
    return None if np.isnan(cond) else cond


def _read_stream(file, path, limit_bytes):
    """Read an open Matrix Market file; path is its name in messages."""
    try:
        # From memory: SciPy's reader ends the process when an open file it was given is closed.
        text = file.read()
        text += b"" if text.endswith(b"\n") else b"\n"  # else it may read on behind the end
        rows, columns, entries, layout, field, symmetry = io.mminfo(BytesIO(text))
        dtype = np.dtype(complex if field == "complex" else float)
        size = rows * columns * dtype.itemsize
        if size > limit_bytes:
            raise MemoryError(
                f"{path} is {rows} by {columns}: dense it takes {size / 2**30:.3g} GiB, and "
                f"limit_bytes allows {limit_bytes / 2**30:.3g} GiB; raise limit_bytes, in Python, to load it"
            )
        if 0 in (rows, columns):  # which SciPy's reader of arrays divides by
            return np.zeros((rows, columns), dtype)
        if symmetry != "general" and rows != columns:
            raise ValueError(f"it is {symmetry}, and {rows} by {columns}")
        if layout == "array":
            entries = _stored_entries(rows, columns, symmetry)
        _require_numbers(_body(text), entries * _words_of(layout, field), field)
        if layout == "coordinate" and symmetry != "general":
            a = _read_one_triangle(text, field, symmetry)
        else:
            a = io.mmread(BytesIO(text))
        if symmetry == "hermitian" and layout == "array" and np.diagonal(a).imag.any():
            raise ValueError("it is hermitian, and its diagonal is not real")
    except _MALFORMED as error:
        raise ValueError(f"{path} is not a readable Matrix Market file: {error}") from error
    return np.ascontiguousarray(a.toarray(order="C") if hasattr(a, "toarray") else a, dtype)


def _stored_entries(rows, columns, symmetry):
    """Return how many entries of an array are in the file."""
    if symmetry == "general":
        return rows * columns
    return rows * (rows - 1 if symmetry == "skew-symmetric" else rows + 1) // 2


def _words_of(layout, field):
    """Return of how many numbers an entry consists."""
    value = {"pattern": 0, "complex": 2}.get(field, 1)
    return value + (2 if layout == "coordinate" else 0)


def _body(text):
    """Return what follows the line of sizes, the first that is neither empty nor a comment."""
    start = 0
    while True:
        end = text.find(b"\n", start) + 1 or len(text)
        line = text[start:end].strip()
        if line and not line.startswith(b"%") or start == end:
            return text[end:]
        start = end


def _require_numbers(body, count, field):
    """Raise a ValueError unless there are as many numbers, which SciPy's reader takes as they are written.

    It takes what it understands of a word, or of a line, and leaves out the rest: of 1.5D+01 the 1.5.
    """
    found, strange = look_at(body, "integer" in field)
    if strange is not None:
        kind = "integer" if "integer" in field else "floating-point"
        word = strange.decode(errors="replace")
        raise ValueError(
            f"{word!r} is no {field} number (Invalid {kind} value); write 15 or 1.5e+01"
        )
    if found != count:
        how = "Truncated file" if found < count else "file too long"
        raise ValueError(f"{how}: its entries should have {count} numbers in all, and have {found}")


def _read_one_triangle(text, field, symmetry):
    """Return the sparse matrix of a coordinate file of one triangle, or raise a ValueError if it has more."""
    head = f"%%MatrixMarket matrix coordinate {field} general\n".encode()
    raw = io.mmread(BytesIO(head + text.partition(b"\n")[2]))
    row, col = raw.coords
    if (row > col).any() and (row < col).any():
        raise ValueError(f"it is {symmetry}, and has entries on both sides of the diagonal")
    diagonal = raw.data[row == col]
    if symmetry == "skew-symmetric" and diagonal.any():
        raise ValueError("it is skew-symmetric, and its diagonal is not zero")
    if symmetry == "hermitian" and diagonal.imag.any():
        raise ValueError("it is hermitian, and its diagonal is not real")
    values = raw.data.astype(np.result_type(raw.data, np.float64))  # unsigned ones have no negative
    mirror = values.conj() if symmetry == "hermitian" else values
    mirror = -mirror if symmetry == "skew-symmetric" else mirror
    beside = row != col
    data = np.concatenate([values, mirror[beside]])
    places = np.concatenate([row, col[beside]]), np.concatenate([col, row[beside]])
    return sparse.coo_array((data, places), shape=raw.shape)


def _parse_row(row, where):
    # csv puts what is beyond the columns under None, and None where cells are missing.
    if None in row or None in row.values():
        raise ValueError(f"{where} has more or fewer cells than there are columns; correct it")
    try:
        return {key: _parse(key, value) for key, value in row.items()}
    except ValueError as error:
        raise ValueError(f"{where} is not as the columns say: {error}") from error


def _parse(key, value):
    if key in ("n", "nnz"):
        return int(value)
    if key.startswith(("cond_", "max_", "min_")):
        return float(value or "nan")
    return value


def _local_folder(folder):
    folder = folder or os.environ.get(FOLDER_VARIABLE)
    if not folder:
        raise FileNotFoundError(
            f"no folder is known; give folder=, in Python, or set {FOLDER_VARIABLE}"
        )
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; correct folder= or {FOLDER_VARIABLE}")
    return folder


def _local_file(folder, group, short):
    """Return the path of a matrix in the folder, or None."""
    # Some names occur in several groups; the index then tells which one lies here.
    if group and (folder / "index.csv").is_file():
        groups = {row["group"] for row in index(folder) if row["name"] == short}
        if groups and group not in groups:
            return None
    paths = (folder / (short + suffix) for suffix in SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def _missing(name, short, folder):
    """Say where a matrix was looked for, what it might have been, and what to do."""
    if not folder:
        return f"no matrix {name}: no folder is known; give folder=, in Python, or set {FOLDER_VARIABLE}"
    if not Path(folder).is_dir():
        return f"no matrix {name}: {folder} is not a folder; correct folder= or {FOLDER_VARIABLE}"
    near = difflib.get_close_matches(short, names(folder))
    hint = f" (it has {', '.join(near)})" if near else ""
    return f"no matrix {name} in {folder}{hint}; give another folder=, in Python, or set {FOLDER_VARIABLE}"


def _download(group, short, known_hash, missing):
    """Fetch the archive of a matrix into pooch's cache, check it, and return its path."""
    try:
        import pooch
    except ImportError as error:
        raise ImportError(f"{missing}, or download it: pip install 'tcsolve[study]'") from error
    folder = pooch.os_cache("tcsolve") / "suitesparse" / group
    url = f"{COLLECTION_URL}/{group}/{short}.tar.gz"
    archive = folder / f"{short}.tar.gz"
    if known_hash is None and _hash_record(archive).is_file():
        known_hash = _hash_record(archive).read_text().strip()
    try:
        return Path(pooch.retrieve(url, known_hash, fname=archive.name, path=folder))
    except OSError as error:
        raise FileNotFoundError(f"{missing}; {url} could not be fetched either: {error}") from error


def _hash_record(archive):
    return archive.with_name(archive.name + ".sha256")


def _record_hash(archive):
    """Record the SHA-256 of an archive beside it and say so, unless that was done before."""
    record = _hash_record(archive)
    if record.is_file():
        return
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    record.write_text(digest + "\n")
    warnings.warn(
        f"{archive.name} was not checked, for want of a hash; from now on it must match the one "
        f"recorded in {record}: known_hash='{digest}'",
        stacklevel=4,
    )
