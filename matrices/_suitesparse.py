"""Matrices from applications: the SuiteSparse Matrix Collection by name.

A name is ``"west0132"`` or, with the group, ``"HB/west0132"``. A file ``west0132`` with a suffix such as
``.mtx.gz``, ``.mtx``, ``.rb`` or ``.mat`` is looked for in a local folder: the argument ``folder``, or the
environment variable ``TCSOLVE_MATRICES``. If there is no such file and the group is given, the matrix is
downloaded from the collection by pooch, an optional dependency, and kept in the cache of pooch. A file
``index.csv`` in the local folder may describe the matrices.

References
----------
T. A. Davis, Y. Hu, The University of Florida sparse matrix collection, ACM Trans. Math. Softw. 38
(2011), 1:1-1:25.
"""

import csv
import difflib
import fnmatch
import os
import re
from pathlib import Path

import numpy as np
from tcsolve.matrices import _download
from tcsolve.matrices._files import SUFFIXES, read
from tcsolve.matrices._matrix_market import DAMAGED, LIMIT_BYTES, read_open

FOLDER_VARIABLE = "TCSOLVE_MATRICES"
GROUP = r"\w[\w.+-]*"
KINDS = ("spd", "symmetric", "unsymmetric", "real", "complex")


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
        The file is not CSV in UTF-8, or has no columns ``name`` and ``group``. Or a row has more or fewer
        cells than the first line, or a cell that must be a number is not.
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
    path, archive = placed(name, folder, known_hash)
    if path:
        return read(path, limit_bytes=limit_bytes, pattern=pattern)
    short = name.rpartition("/")[2]
    if known_hash is None:
        _download.record_hash(archive)
    try:
        tar, file = _download.open_archive(archive, short)
        with tar, file:
            return read_open(file, archive, limit_bytes, pattern)
    except (*DAMAGED, KeyError) as error:  # it was whole when it was fetched
        raise ValueError(
            f"{archive} has been damaged; delete it to fetch it again: {error}"
        ) from error


def placed(name, folder=None, known_hash=None):
    """Return the file of a matrix in the folder, or its archive in the cache, fetched if it is not there.

    Arguments and errors are those of `load`.

    Returns
    -------
    path, archive : path or None
        One of them is None.
    """
    match = re.fullmatch(rf"(?:({GROUP})/)?(\w[\w.+-]*)", name)
    if match is None:
        raise ValueError(f"{name!r} is not the name of a matrix; write 'name' or 'group/name'")
    group, short = match.groups()
    folder = folder or os.environ.get(FOLDER_VARIABLE)
    path = folder and _local_file(Path(folder), group, short)
    if path:
        return path, None
    missing = _missing(name, short, folder)
    if group is None:
        raise FileNotFoundError(f"{missing}, or write 'group/{short}' to download it")
    return None, _download.archive_of(group, short, known_hash, missing)


def find(
    pattern="*",
    folder=None,
    *,
    min_n=None,
    max_n=None,
    kind=None,
    group=None,
    kappa=None,
    online=False,
):
    """List the matrices that match a pattern and filters: of the local folder, else of the collection.

    Parameters
    ----------
    pattern : str
        A name with ``*``, ``?`` and ``[...]``; with a group, as in ``"HB/west*"``, or without.
    folder : path, optional
        Default: the environment variable ``TCSOLVE_MATRICES``. The facts come from its ``index.csv``; of a
        matrix that is not in this index, only the name is known.
    min_n, max_n : int, optional
        Smallest and largest order.
    kind : {"spd", "symmetric", "unsymmetric", "real", "complex"}, optional
        Compared with the words of the index or the list, such as 'real symmetric positive definite'. A
        Hermitian matrix is symmetric here. A complex matrix that is called symmetric need not be Hermitian,
        so it is found as 'symmetric' and as 'unsymmetric'.
    group : str, optional
        Such as ``"HB"``.
    kappa : (float, float), optional
        Smallest and largest condition number.
    online : bool
        True: list the whole collection, as also happens without a folder. Its list is downloaded once.

    Returns
    -------
    found : list of dict
        Sorted by order and name, with ``full_name`` (to load it), ``name``, ``group``, ``n``, ``nnz``,
        ``kind`` and ``cond_2norm``. What is not known is None, and passes every filter but that of the
        group. Matrices of the collection that are not square are left out; those of a local folder are not.

    Raises
    ------
    FileNotFoundError
        The folder does not exist, or the list cannot be fetched.
    ImportError
        The list must be downloaded, but pooch is not installed.
    ValueError
        `kind` is none of these, or the index or the list is malformed.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind={kind!r} is unknown; choose one of {', '.join(map(repr, KINDS))}")
    folder = folder or os.environ.get(FOLDER_VARIABLE)
    if online or not folder:
        missing = "the list of the collection is not here"
        rows = [row for row in _download.collection_rows(missing) if row["n"] is not None]
    else:
        rows = _local_rows(folder)
    wanted = [row for row in map(_entry, rows) if _matches(row, pattern, group)]
    wanted = [row for row in wanted if _passes(row, min_n, max_n, kind, kappa)]
    return sorted(wanted, key=lambda row: (row["n"] or 0, row["name"]))


def _local_rows(folder):
    """Return a dict for each matrix that has a file in the folder, with what its index tells."""
    try:
        rows = {row["name"]: row for row in index(folder)}
    except FileNotFoundError:
        rows = {}
    return [{"group": None, **rows.get(name, {}), "name": name} for name in names(folder)]


def _entry(row):
    cond = row.get("cond_2norm")
    cond = None if cond is None or np.isnan(cond) else cond
    group, name = row["group"], row["name"]
    is_group = group is not None and re.fullmatch(GROUP, group)
    found = {"full_name": f"{group}/{name}" if is_group else name, "name": name, "group": group}
    return found | {key: row.get(key) for key in ("n", "nnz", "kind")} | {"cond_2norm": cond}


def _matches(row, pattern, group):
    if group and row["group"] != group:
        return False
    if "/" in pattern:
        if row["group"] is None:
            return False
        return fnmatch.fnmatchcase(f"{row['group']}/{row['name']}", pattern)
    return fnmatch.fnmatchcase(row["name"], pattern)


def _passes(row, min_n, max_n, kind, kappa):
    """Tell whether a row passes the filters; a fact that is not known passes."""
    n, cond = row["n"], row["cond_2norm"]
    if n is not None and not (min_n or 0) <= n <= (np.inf if max_n is None else max_n):
        return False
    if cond is not None and kappa is not None and not kappa[0] <= cond <= kappa[1]:
        return False
    return not row["kind"] or kind is None or _is_of_kind(row["kind"], kind)


def _is_of_kind(words, kind):
    """Tell whether the kind in an index, such as 'real symmetric positive definite', passes a filter."""
    symmetric = "symmetric" in words.split() or "hermitian" in words
    return {
        "spd": "positive definite" in words,
        "symmetric": symmetric,
        # A complex matrix that is called symmetric need not be Hermitian.
        "unsymmetric": not symmetric or words.startswith("complex") and "hermitian" not in words,
        "real": not words.startswith("complex"),
        "complex": words.startswith("complex"),
    }[kind]


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
        raise ValueError(f"{where} has a cell that must be a number and is not: {error}") from error


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
    """Return a message: where the matrix was looked for, which names are similar, and what to do."""
    if not folder:
        return f"no matrix {name}: no folder is known; give folder=, in Python, or set {FOLDER_VARIABLE}"
    if not Path(folder).is_dir():
        return f"no matrix {name}: {folder} is not a folder; correct folder= or {FOLDER_VARIABLE}"
    near = difflib.get_close_matches(short, names(folder))
    hint = f" (it has {', '.join(near)})" if near else ""
    return f"no matrix {name} in {folder}{hint}; give another folder=, in Python, or set {FOLDER_VARIABLE}"
