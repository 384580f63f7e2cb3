"""Real matrices: the SuiteSparse Matrix Collection by name.

A name is ``"west0132"`` or, with the group, ``"HB/west0132"``. The file ``west0132.mtx.gz`` or
``west0132.mtx`` is searched in a local folder: the argument ``folder``, or the environment variable
``TCSOLVE_MATRICES``. A file ``index.csv`` in this folder may describe the matrices. If the file is not
there and the group is given, the matrix is downloaded from the collection by pooch, an optional
dependency, and kept in the cache of pooch.

References
----------
T. A. Davis, Y. Hu, The University of Florida sparse matrix collection, ACM Trans. Math. Softw. 38
(2011), 1:1-1:25.
"""

import csv
import difflib
import hashlib
import os
import re
import tarfile
import warnings
from pathlib import Path

import numpy as np
from tcsolve.matrices._matrix_market import DAMAGED, LIMIT_BYTES, SUFFIXES, read, read_open

FOLDER_VARIABLE = "TCSOLVE_MATRICES"
COLLECTION_URL = "https://suitesparse-collection-website.herokuapp.com/MM"


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
        One for each matrix. ``n`` and ``nnz`` are int. Columns that begin with ``cond_``, ``max_``
        or ``min_`` are float, NaN where empty. All others are str.

    Raises
    ------
    FileNotFoundError
        There is no folder, or no ``index.csv`` in it.
    ValueError
        The file has no columns ``name`` and ``group``. Or a row has more or fewer cells than the first
        line, or a cell that must be a number is not.
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


def load(name, folder=None, *, known_hash=None, limit_bytes=LIMIT_BYTES, pattern=True):
    """Load a matrix of the SuiteSparse collection into a dense array.

    Parameters
    ----------
    name : str
        ``"name"`` or ``"group/name"``. A download needs the group.
    folder : path, optional
        It is searched first. Default: the environment variable ``TCSOLVE_MATRICES``.
    known_hash : str, optional
        SHA-256, or ``"algorithm:digest"``, of ``name.tar.gz`` in the collection. Without it, the hash
        of the first download is recorded in the cache and reported by a warning. Later downloads must
        match it. Local files are not checked.
    limit_bytes : int, optional
        Largest dense array to make, 8 GiB by default.
    pattern : bool
        False: a matrix that has no values, only the places of its entries, raises a ValueError.

    Returns
    -------
    a : ndarray, float64 or complex128, C order

    Raises
    ------
    FileNotFoundError
        Neither the folder nor the collection has the matrix.
    ImportError
        A download is needed, but pooch is not installed.
    MemoryError
        The dense array would exceed ``limit_bytes``.
    ValueError
        The file is malformed, the hash does not match, or ``name`` is not a valid name.
    """
    match = re.fullmatch(r"(?:(\w[\w.+-]*)/)?(\w[\w.+-]*)", name)
    if match is None:
        raise ValueError(f"{name!r} is not the name of a matrix; write 'name' or 'group/name'")
    group, short = match.groups()
    folder = folder or os.environ.get(FOLDER_VARIABLE)
    path = folder and _local_file(Path(folder), group, short)
    if path:
        return read(path, limit_bytes=limit_bytes, pattern=pattern)
    missing = _missing(name, short, folder)
    if group is None:
        raise FileNotFoundError(f"{missing}, or write 'group/{short}' to download it")
    archive = _download(group, short, known_hash, missing)
    try:
        with tarfile.open(archive) as tar, tar.extractfile(f"{short}/{short}.mtx") as file:
            a = read_open(file, archive, limit_bytes, pattern)
    except (*DAMAGED, KeyError) as error:
        raise ValueError(
            f"{archive} is not the archive of a matrix {short}; delete it to fetch it "
            f"again: {error}"
        ) from error
    if known_hash is None:
        _record_hash(archive)
    return a


def indexed_condition(name, folder=None):
    """Return the 2-norm condition number of a matrix from ``index.csv`` in the folder, or None."""
    group, _, short = name.rpartition("/")
    try:
        rows = index(folder)
    except FileNotFoundError:
        return None
    rows = (row for row in rows if row["name"] == short and group in ("", row["group"]))
    cond = next(rows, {}).get("cond_2norm", np.nan)
    return None if np.isnan(cond) else cond


def _parse_row(row, where):
    # csv.DictReader stores extra cells under the key None, and None as the value of missing cells.
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
    # Some names occur in several groups; the index has the group of the file in this folder.
    if group and (folder / "index.csv").is_file():
        groups = {row["group"] for row in index(folder) if row["name"] == short}
        if groups and group not in groups:
            return None
    paths = (folder / (short + suffix) for suffix in SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def _missing(name, short, folder):
    """Return a message: where the matrix was searched, which names are similar, and what to do."""
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
    """Record the SHA-256 of an archive next to it, with a warning, unless it is recorded already."""
    record = _hash_record(archive)
    if record.is_file():
        return
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    record.write_text(digest + "\n")
    warnings.warn(
        f"{archive.name} was not checked, because its hash is not known; from now on it must match the "
        f"hash recorded in {record}: known_hash='{digest}'",
        stacklevel=4,
    )
