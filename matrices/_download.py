"""The archives and the list of the SuiteSparse Matrix Collection: fetched, checked, and kept.

pooch, an optional dependency, keeps them in its cache. A fetch that fails is tried again, because connections
break. A file is kept only if it is complete.
"""

import csv
import gzip
import hashlib
import sys
import tarfile
import time
import warnings
from pathlib import Path

from tcsolve.matrices._matrix_market import DAMAGED

__all__ = ["FetchError", "archive_of", "collection_rows", "open_archive", "record_hash"]

COLLECTION_URL = "https://suitesparse-collection-website.herokuapp.com/MM"
# The list of all matrices.
LIST_URL = "https://sparse.tamu.edu/files/ssstats.csv"
# A connection that sends nothing for TIMEOUT seconds is given up.  PAUSES are the seconds between attempts.
TIMEOUT, PAUSES = 30.0, (1.0, 4.0)
# The first columns of the list.  Above its rows are two lines: the number of matrices, and a date.
COLUMNS = (
    *("group", "name", "rows", "columns", "nnz", "is_real", "is_binary", "is_mesh", "posdef"),
    *("pattern_symmetry", "symmetry", "subject"),
)
# Answers of a server that another attempt does not change.
FINAL = (400, 401, 403, 404, 410)


def archive_of(group, short, known_hash, missing):
    """Fetch the archive of a matrix, check it, and return its path.

    Parameters
    ----------
    group, short : str
    known_hash : str or None
    missing : str
        Beginning of the message if the archive cannot be fetched.

    Raises
    ------
    FileNotFoundError, ImportError, ValueError
        As in `tcsolve.matrices.load`.
    """
    folder = _cache(missing) / group
    archive = folder / f"{short}.tar.gz"
    recorded = _hash_record(archive)
    if known_hash is None and recorded.is_file():
        known_hash = recorded.read_text().strip()
    url = f"{COLLECTION_URL}/{group}/{short}.tar.gz"
    return _fetched(url, archive, known_hash, missing, check=_require_whole(short))


def collection_rows(missing):
    """Return a dict for each matrix of the collection, from its list, which is fetched once.

    Returns
    -------
    list of dict
        With group, name, n (None if the matrix is not square), nnz, kind, and cond_2norm (None).
    """
    path = _cache(missing) / "ssstats.csv"
    _fetched(LIST_URL, path, None, missing, check=_require_list)
    with open(path, newline="", encoding="utf-8") as file:
        return [
            _described(dict(zip(COLUMNS, row, strict=False))) for row in [*csv.reader(file)][2:]
        ]


def open_archive(archive, short):
    """Return the tar file and the open text of the matrix in it."""
    tar = tarfile.open(archive)
    try:
        return tar, tar.extractfile(f"{short}/{short}.mtx")
    except BaseException:
        tar.close()
        raise


def record_hash(archive):
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


def _cache(missing):
    try:
        import pooch
    except ImportError as error:
        raise ImportError(
            f"{missing}; a download needs pooch: pip install 'tcsolve[study]'"
        ) from error
    return pooch.os_cache("tcsolve") / "suitesparse"


def _fetched(url, path, known_hash, missing, check):
    """Fetch url to path unless it is there, and return the path; `check` raises if the file is not whole."""
    import pooch

    get = pooch.HTTPDownloader(timeout=TIMEOUT, progressbar=_shows_progress())
    pooch.get_logger().setLevel("WARNING")  # else pooch reports each file on standard error
    for pause in (*PAUSES, None):
        try:
            found = Path(
                pooch.retrieve(url, known_hash, fname=path.name, path=path.parent, downloader=get)
            )
            check(found)
            return found
        except (OSError, ValueError) as error:
            # A file that is not whole must not be taken for the matrix the next time.
            if isinstance(error, _NotWhole):
                path.unlink(missing_ok=True)
            response = getattr(error, "response", None)
            if pause is None or getattr(response, "status_code", None) in FINAL:
                raise _told(error, url, missing) from error
        time.sleep(pause)


def _told(error, url, missing):
    """Return the error to raise after the last attempt."""
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        return _Damaged(f"{url}: {error}")
    advice, response = "", getattr(error, "response", None)
    if response is None:
        advice = "; without a network, put matrices into the folder, as .mtx files"
    kind = FileNotFoundError if getattr(response, "status_code", None) in FINAL else _Unreachable
    return kind(f"{missing}; {url} could not be fetched either: {error}{advice}")


class FetchError(Exception):
    """A file cannot be fetched, although the collection may have it; or the fetched file is damaged."""


class _Unreachable(FileNotFoundError, FetchError):
    """The server does not answer, its answer is incomplete, or it reports an error of its own."""


class _Damaged(ValueError, FetchError):
    """After the last attempt, the fetched file is not whole, or its hash does not match."""


class _NotWhole(ValueError):
    """A fetched file is cut off, or has other contents than it should have."""


def _require_whole(short):
    """Return a function that raises `_NotWhole` unless a file is the archive of a matrix."""

    def check(path):
        try:
            with gzip.open(path) as file:  # to its end, where its checksum is
                while file.read(1 << 20):
                    pass
            tar, text = open_archive(path, short)
            tar.close()
            text.close()
        except (*DAMAGED, KeyError, AttributeError) as error:
            raise _NotWhole(
                f"{path} is not the archive of a matrix {short}; it was deleted: {error}"
            ) from error

    return check


def _require_list(path):
    """Raise `_NotWhole` unless a file is the list of the collection."""
    try:
        text = path.read_text(encoding="utf-8")
        count, _, *rows = csv.reader(text.splitlines())
        whole = int(count[0]) == len(rows) and all(len(r) >= len(COLUMNS) for r in rows)
        whole = whole and text.endswith("\n")
    except (ValueError, IndexError, csv.Error):
        whole = False
    if not whole:
        raise _NotWhole(f"{path} is not the list of the collection; it was deleted")


def _described(row):
    """Return a row of the list as a dict, with the column names of an ``index.csv``."""
    square = row["rows"] == row["columns"]
    words = ["real" if row["is_real"] == "1" else "complex"]
    words.append("symmetric" if float(row["symmetry"]) == 1 else "unsymmetric")
    words += ["positive definite"] * (row["posdef"] == "1")
    return {
        "group": row["group"],
        "name": row["name"],
        "n": int(row["rows"]) if square else None,
        "nnz": int(row["nnz"]),
        "kind": " ".join(words),
        "cond_2norm": None,
    }


def _shows_progress():
    """Tell whether there is a terminal, and tqdm to draw on it."""
    try:
        import tqdm  # noqa: F401
    except ImportError:
        return False
    return sys.stderr is not None and sys.stderr.isatty()


def _hash_record(archive):
    return archive.with_name(archive.name + ".sha256")
