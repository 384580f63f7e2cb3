"""Kind of cases that read Matrix Market files, whole and damaged, to compare with two other readers."""

import gzip
import io
import tempfile
from pathlib import Path

import numpy as np
import scipy.io

from fuzz.generate import pick
from fuzz.outcome import Outcome
from tcsolve import matrices

__all__ = ["read_file"]

LIMIT_BYTES = 1 << 24
NUMBERS = ("1", "1", "-2.5", "3e2", "+4", "0", ".5", "7.", "1E5", "1e-400", "1e400", "nan", "-inf")
INSERTED = (b" ", b"\n", b"\r", b"\0", b"-", b"0", b"e", b"%", b"\t", b"\xff", b",", b"_")
WORDS = (
    b"99999999999999999999",
    b"-1",
    b"1e5",
    b"4294967297",
    b"1_0",
    b"0x1p3",
    b"\xc2\xa0",
    b"\xd9\xa1",
)


def read_file(rng, place):
    """A file of any layout, field and symmetry, perhaps damaged, perhaps compressed."""
    if not place.on_host:
        return None
    whole, kind = _file(rng)
    text = _damaged(rng, whole) if rng.random() < 0.7 else whole
    compressed = rng.random() < 0.3
    stored = gzip.compress(text, mtime=0) if compressed else text
    if compressed and rng.random() < 0.3:
        stored = _damaged(rng, stored)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("a.mtx.gz" if compressed else "a.mtx")
        path.write_bytes(stored)
        outcome = Outcome(lambda: matrices.load(path, limit_bytes=LIMIT_BYTES).a)
    found = [f"reading warns: {outcome}"] if outcome.warnings else []
    sound = stored == (gzip.compress(whole, mtime=0) if compressed else whole)
    # For some damaged texts, SciPy's reader writes outside of its arrays.  So it gets none that we refuse.
    theirs = _by_scipy(text) if outcome.error is None or sound else None
    if outcome.error is None:
        found += _matrix_complaints(outcome.value, text, theirs)
    elif type(outcome.error) not in (ValueError, MemoryError):
        found.append(f"reading ended with {outcome}")
    elif sound and theirs.error is None:
        found.append(f"refused, though SciPy reads it: {outcome}")
    return [f"{sentence} ({kind}; {text[:300]!r})" for sentence in found]


def _by_scipy(text):
    """Return the `Outcome` of SciPy's reader, which needs a last line that is ended."""
    ended = text if text.endswith(b"\n") else text + b"\n"
    return Outcome(lambda: scipy.io.mmread(io.BytesIO(ended)))


def _matrix_complaints(a, text, theirs):
    if theirs.error is not None:
        return [f"read, though SciPy refuses it: {theirs}"]
    found = []
    wanted = theirs.value.toarray() if hasattr(theirs.value, "toarray") else theirs.value
    if a.dtype not in (np.float64, np.complex128) or not a.flags.c_contiguous:
        found.append(f"the array is {a.dtype}, with the flags {a.flags}")
    # SciPy's multiplication by -1 makes NaN of a complex Inf.
    looked = np.isfinite(wanted) | (a.dtype.kind != "c")
    if a.shape != wanted.shape or not np.array_equal(a[looked], wanted[looked], equal_nan=True):
        found.append(f"the matrix is {a}, SciPy's is {wanted}")
    try:
        plain = _plainly(text)
    except (ValueError, IndexError) as error:
        return [*found, f"read, though a plain reader refuses it: {error}"]
    if plain is not None and not np.array_equal(a, plain, equal_nan=True):
        found.append(f"the matrix is {a}, by a plain reader {plain}")
    return found


def _plainly(text):
    """Return the general real matrix of a text, word by word; None for another kind."""
    head, *lines = text.replace(b"\r\n", b"\n").split(b"\n")
    _, _, layout, field, symmetry, *_ = head.lower().split()
    if field not in (b"real", b"double", b"integer") or symmetry != b"general":
        return None
    body = [line for line in lines if line.strip() and not line.lstrip().startswith(b"%")]
    rows, columns, *entries = (int(word) for word in body[0].split())
    words = b" ".join(body[1:]).split()
    if layout == b"array":
        return np.array([float(word) for word in words]).reshape(columns, rows).T
    a = np.zeros((rows, columns))
    if len(words) != 3 * entries[0]:
        raise ValueError(f"{len(words)} words are not {entries[0]} entries")
    for i, j, value in zip(words[::3], words[1::3], words[2::3], strict=True):
        a[int(i) - 1, int(j) - 1] += float(value)
    return a


def _file(rng):
    """Return the bytes of a file that is not damaged, and its kind."""
    n = int(rng.integers(1, 6))
    field = pick(rng, ("real", "double", "integer", "complex", "pattern"))
    symmetry = pick(rng, ("general", "general", "symmetric", "skew-symmetric", "hermitian"))
    layout = "coordinate" if field == "pattern" else pick(rng, ("coordinate", "array"))
    least = {"general": -n, "skew-symmetric": 1}.get(symmetry, 0)
    stored = [(i, j) for j in range(n) for i in range(n) if i - j >= least]
    if layout == "coordinate":
        stored = [place for place in stored if rng.random() < 0.6]
        rng.shuffle(stored)
    lines = [_entry(rng, i, j, layout, field, symmetry) for i, j in stored]
    head = f"%%MatrixMarket matrix {layout} {field} {symmetry}\n"
    comment = pick(rng, ("", "% a comment\n"))
    size = f"{n} {n} {len(lines)}\n" if layout == "coordinate" else f"{n} {n}\n"
    return (head + comment + size + "".join(lines)).encode(), (layout, field, symmetry)


def _entry(rng, i, j, layout, field, symmetry):
    words = [str(i + 1), str(j + 1)] if layout == "coordinate" else []
    if field == "integer":
        words.append(str(rng.integers(-9, 10)))
    elif field != "pattern":
        words.append(pick(rng, NUMBERS))
    if field == "complex":
        words.append("0" if symmetry == "hermitian" and i == j else pick(rng, NUMBERS))
    return " ".join(words) + "\n"


def _damaged(rng, text):
    """Return the bytes of a file after one to three random changes."""
    for _ in range(int(rng.integers(1, 4))):
        if not text:
            break
        p, q = sorted(int(v) for v in rng.integers(len(text), size=2))
        damages = (
            lambda t=text, p=p: t[:p] + bytes([int(rng.integers(256))]) + t[p + 1 :],
            lambda t=text, p=p: t[:p] + t[p + 1 :],
            lambda t=text, p=p: t[:p] + pick(rng, INSERTED) + t[p:],
            lambda t=text, p=p: t[:p] + pick(rng, WORDS) + t[p:],
            lambda t=text, p=p: t[:p],
            lambda t=text: t + b" 1 1 1\n",
            lambda t=text: t.replace(b"\n", b"\r\n"),
            lambda t=text: t.replace(b" ", pick(rng, (b"  ", b"\t", b",", b"\x0b"))),
            lambda t=text, p=p, q=q: t[:p] + t[p:q][:40] + t[p:],
            lambda t=text: t.upper() if rng.random() < 0.5 else t.lower(),
        )
        text = pick(rng, damages)()
    return text
