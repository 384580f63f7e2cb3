"""The matrices of a study, as data: what to generate or to read, and which of them to leave out."""

import fnmatch
import glob
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tcsolve import matrices
from tcsolve._errors import InputError
from tcsolve._study.filters import Filters, NotFetched, Skipped
from tcsolve._study.generators import checked_options, takes
from tcsolve._study.sweeps import sweep
from tcsolve.matrices._download import FetchError
from tcsolve.matrices._problem import problem_of

__all__ = ["Case", "expand_cases", "load_case"]

SOURCES = ("generate", "suitesparse", "file", "array")
LEFT_OUT = "left out"
# The filters that choose from the list of the collection; no matrix is read for them.
OF_THE_LIST = ("min_n", "max_n", "kind")


@dataclass(frozen=True)
class Case:
    """One matrix of a study.

    Attributes
    ----------
    source : {'generate', 'suitesparse', 'file', 'array'}
    name : str
        Name in the catalog or in the collection, name of a file, or the caller's name of an array.
    options : dict
        Arguments of `matrices.generate`; for a file, its SHA-256; for an array, its SHA-256, its dtype, and
        its shape unless it is square.
        With the key `LEFT_OUT` the case stands for all matrices of the collection that match a pattern, but
        do not pass the filters.
    filters : Filters
    path : str, optional
        The file, the file with the entries of an array, or the folder of the collection.  It does not
        identify the case.
    fault : str, optional
        Why the matrix could not be fetched.  It does not identify the case.
    """

    source: str
    name: str
    options: dict = field(default_factory=dict)
    filters: Filters = Filters()
    path: str = ""
    fault: str = ""

    @property
    def label(self):
        """The name in tables and pictures."""
        shown = self.options if self.source == "generate" else {}
        return " ".join([self.name, *(f"{key}={_short(value)}" for key, value in shown.items())])

    @property
    def is_left_out(self):
        """Whether it stands for matrices that are left out, and has no matrix itself."""
        return LEFT_OUT in self.options

    def identity(self):
        """Return the data that decides which matrix it is."""
        return {"source": self.source, "name": self.name, "options": self.options}

    def as_data(self):
        """Return everything as data for JSON; `from_data` is the inverse."""
        others = {"filters": vars(self.filters), "path": self.path, "fault": self.fault}
        return self.identity() | others

    @classmethod
    def from_data(cls, data):
        return cls(**{**data, "filters": Filters.of(dict(data["filters"]))})


def expand_cases(given, folder=None, scratch=None):
    """Return the cases that `given` describes, each once.

    Parameters
    ----------
    given : str, path, dict, or a list of them; or a mapping of names to arrays
        As `matrices` of `tcsolve.study`.
    folder : path, optional
        Folder of the collection's matrices.
    scratch : path, optional
        An existing folder for files with the entries of arrays, which other processes can read.

    Returns
    -------
    list of Case
    """
    if _is_entry(given) or not isinstance(given, list | tuple | Mapping):
        given = [given]
    if isinstance(given, Mapping) and given:
        return _arrays(given, scratch)
    found = {}
    for item in given:
        for case in _expanded(item, folder):
            found.setdefault(repr(case.identity()), case)
    if not found:
        raise InputError("study: no matrices are given; name some, such as 'gen:svd_geo:n=100'")
    cases = list(found.values())
    if all(case.fault for case in cases):
        raise InputError(f"study: {cases[0].fault}")
    return cases


def load_case(case, seed, rhs):
    """Return the `Problem` of a case.

    Raises
    ------
    Skipped
        The matrix cannot be read, is empty or not square, or is left out by a filter.
    NotFetched
        The collection could not give it.
    """
    if case.fault:
        raise NotFetched(case.fault)
    if case.is_left_out:
        raise Skipped(case.options[LEFT_OUT])
    case.filters.check_group(case.source == "suitesparse")
    if "n" in case.options:
        case.filters.check_size(case.options["n"])
    try:
        if case.source == "generate":
            problem = matrices.generate(case.name, **case.options, seed=seed, rhs=rhs)
        elif case.source == "array":
            problem = _array_problem(case, seed, rhs)
        else:
            is_file = case.source == "file"
            name, folder = (case.path, None) if is_file else (case.name, case.path or None)
            problem = matrices.load(name, folder=folder, seed=seed, rhs=rhs, pattern=False)
    except (ValueError, TypeError, OSError, ImportError, MemoryError) as error:
        kind = NotFetched if isinstance(error, FetchError) else Skipped
        raise kind(_on_one_line(error)) from error
    if problem.n == 0:
        raise Skipped("it is empty")
    case.filters.check_size(problem.n)
    case.filters.check_kind(problem.a)
    return problem


def _is_entry(given):
    """Tell whether a dict describes matrices; else its values are arrays, whatever their names."""
    if not isinstance(given, Mapping):
        return False
    return any(source in given and not _is_matrix(given[source]) for source in SOURCES)


def _is_matrix(value):
    """Tell whether a value is an array with two dimensions, or nested lists of the same lengths."""
    try:
        return np.ndim(value) == 2
    except ValueError:  # lists of different lengths
        return False


def _expanded(item, folder):
    """Return the cases of one entry: a string, a path, or a dict with 'text' or one of SOURCES[:3]."""
    if isinstance(item, Case):
        return [item]
    if not isinstance(item, str | os.PathLike | Mapping):
        raise InputError(f"study: the matrix is {item!r}; it must be a name, a path, or a dict")
    entry = dict(item) if isinstance(item, Mapping) else {"text": os.fspath(item)}
    if "text" in entry:
        entry |= _parsed(entry.pop("text"))
    sources = [source for source in SOURCES[:3] if source in entry]
    if len(sources) != 1:
        raise InputError(
            f"study: the matrices with the keys {', '.join(map(repr, item)) or 'none'} need exactly one of "
            f"{', '.join(SOURCES[:3])}; a dict of arrays must be the whole argument"
        )
    names = entry.pop(sources[0])
    filters = Filters.of(entry)
    expand = {"generate": _generated, "suitesparse": _collected, "file": _files}[sources[0]]
    found = []
    for name in names if isinstance(names, list | tuple) else [names]:
        if not isinstance(name, str | os.PathLike) or not os.fspath(name):
            raise InputError(f"study: a matrix of {sources[0]!r} is {name!r}; it needs a name")
        found += expand(os.fspath(name), dict(entry), filters, folder)
    return found


def _parsed(text):
    """Return the entry for a string such as 'gen:svd_geo:n=100,200', 'ss:HB/*' or 'data/*.mtx'."""
    kind, _, rest = text.partition(":")
    if kind == "gen":
        name, *options = rest.split(":")
        return {"generate": name, **_options(options, text)}
    if kind == "ss":
        return {"suitesparse": rest}
    return {"file": text}


def _options(options, text):
    found = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise InputError(f"study: {text!r} has {option!r}; write key=value or key=value,value")
        if key in SOURCES:
            raise InputError(f"study: {text!r} has {key}=, which is not an option of a generator")
        if key in found:
            raise InputError(
                f"study: {text!r} has {key} twice; several values are {key}=value,value"
            )
        found[key] = [_number(part) for part in value.split(",")]
    return found


def _number(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _generated(name, options, filters, _):
    known = {entry.name: entry for entry in matrices.catalog()}
    if name not in known:
        matches = [k for k in known if fnmatch.fnmatchcase(k, name)]
        if not matches:
            raise InputError(f"study: {_unknown(name)}")
        able = [match for match in matches if takes(match, options)] or matches[:1]
        return [c for match in able for c in _generated(match, dict(options), filters, None)]
    if "n" not in options:
        raise InputError(f"study: gen:{name} needs its order: 'gen:{name}:n=100', or n = 100")
    return [
        Case("generate", name, checked_options(name, swept), filters) for swept in sweep(options)
    ]


def _unknown(name):
    """Return the message for an unknown generator, with similar names."""
    try:
        matrices.generate(name, 1)
    except ValueError as error:
        return str(error)


def _files(name, options, filters, _):
    if options:
        raise InputError(f"study: the file {name} takes no {', '.join(options)}")
    place = os.path.expanduser(name)
    paths = sorted(glob.glob(place)) or [
        place
    ]  # the name of one file may have characters that are special in a pattern
    if not os.path.lexists(paths[0]):
        raise InputError(f"study: there is no file {name}")
    return [
        Case("file", Path(path).name, {"sha256": _digest(path)}, filters, str(path))
        for path in paths
    ]


def _digest(path):
    """Return the SHA-256 of a file, None if it cannot be read; then the row says so."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _collected(pattern, options, filters, folder):
    folder = options.pop("folder", folder)
    if options:
        raise InputError(f"study: the collection takes no {', '.join(options)}")
    where = "" if folder is None else os.fspath(folder)
    try:
        if not (glob.has_magic(pattern) or filters.group):
            return [Case("suitesparse", pattern, {}, filters, where, _fault(pattern, folder))]
        wanted = {key: value for key, value in filters.given().items() if key in OF_THE_LIST}
        every = matrices.find(pattern, folder=folder, group=filters.group)
        found = matrices.find(pattern, folder=folder, group=filters.group, **wanted)
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"study: {error}") from error
    if not every:
        group = f" of the group {filters.group}" if filters.group else ""
        of_folder = "; a local folder has the groups of its matrices in index.csv"
        hint = of_folder if filters.group or "/" in pattern else ""
        raise InputError(f"study: no matrix{group} of the collection is {pattern!r}{hint}")
    cases = [Case("suitesparse", entry["full_name"], {}, filters, where) for entry in found]
    if left := len(every) - len(found):
        told = ", ".join(f"{key} = {value}" for key, value in wanted.items())
        reason = (
            f"filters ({told}) exclude {left} of the {len(every)} matrices that match the pattern"
        )
        cases.append(Case("suitesparse", pattern, {LEFT_OUT: reason}, Filters(), where))
    return cases


def _fault(name, folder):
    """Fetch a matrix unless there is a local copy; return why this failed, or ''.

    An unknown name raises an error.
    """
    try:
        matrices._suitesparse.placed(name, folder)
    except FetchError as error:
        return _on_one_line(error)
    return ""


def _on_one_line(error):
    return " ".join(str(error).split()) or type(error).__name__


def _arrays(given, scratch):
    """Return the cases of a mapping of arrays; one of them at least must have two dimensions."""
    arrays = {name: np.asarray(a) for name, a in given.items()}
    if arrays and all(a.ndim != 2 for a in arrays.values()):
        name, a = next(iter(arrays.items()))
        raise InputError(f"study: the matrix {name} has shape {a.shape}; (n, n) is needed")
    return [
        _of_array(name, a, Path(scratch) / f"{place}.npy")
        for place, (name, a) in enumerate(arrays.items())
    ]


def _of_array(name, a, path):
    digest = hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()
    is_square = a.ndim == 2 and a.shape[0] == a.shape[1]
    options = {"sha256": digest, "dtype": a.dtype.str}
    options |= {} if is_square else {"shape": list(a.shape)}
    np.save(path, a)
    return Case("array", str(name), options, path=str(path))


def _array_problem(case, seed, rhs):
    a = np.load(case.path)
    if a.ndim != 2:
        raise Skipped(f"it has shape {a.shape}; a linear system needs shape (n, n)")
    if a.shape[0] != a.shape[1]:
        raise Skipped(f"it is {a.shape[0]} by {a.shape[1]}; a linear system needs a square matrix")
    rng = np.random.default_rng(seed)
    return problem_of(case.name, a, None, rng, dtype=None, nrhs=1, rhs=rhs)


def _short(value):
    """Return a value as text; 1000000.0 is 1e+06, and no digit is lost."""
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}" if value < 1e4 else f"{value:.3g}"
    return short if float(short) == value else repr(value)
