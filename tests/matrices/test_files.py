"""Matrix Market files are read, or refused with the reason."""

import gzip
import io
import re

import numpy as np
import pytest
from market import GOOD, HEADER, write
from tcsolve.matrices import _suitesparse, _words

from tcsolve import matrices


@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz"])
@pytest.mark.parametrize(
    "text, expected",
    [
        (f"{HEADER} real general\n2 2 2\n1 1 1.5\n2 1 -2\n", [[1.5, 0], [-2, 0]]),
        (f"{HEADER} pattern symmetric\n2 2 2\n1 1\n2 1\n", [[1, 1], [1, 0]]),
        (f"{HEADER} integer symmetric\n2 2 2\n1 1 3\n2 1 4\n", [[3, 4], [4, 0]]),
        (f"{HEADER} real skew-symmetric\n2 2 1\n2 1 4\n", [[0, -4], [4, 0]]),
        (f"{HEADER} complex hermitian\n2 2 2\n1 1 3 0\n2 1 0 4\n", [[3, -4j], [4j, 0]]),
        ("%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n4\n", [[1, 3], [2, 4]]),
    ],
)
def test_file_is_read_dense(tmp_path, suffix, text, expected):
    p = matrices.load(write(tmp_path / f"a{suffix}", text))
    assert (p.a == expected).all()
    assert p.a.dtype == (complex if "complex" in text else float)
    assert p.a.flags.c_contiguous and p.cond is None
    assert (p.b == np.sum(expected, axis=1)).all()


# SciPy's reader takes a part of these words, or nothing, and reports no error.
NO_NUMBERS = ("1.5D+01", "1.5d+01", "1.5+01", "1,5", "0x10", "1.2.3", "1e", "1e5.2", "1_0")


@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz"])
@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "Missing banner"),
        ("hello\n", "Missing banner"),
        (GOOD[:-8], "Truncated file"),
        (GOOD + "1 2 3.0\n", "file too long"),
        (GOOD.replace("2.0", "zz"), "Invalid floating-point"),
        (GOOD.replace("2 2 2.0", "3 3 2.0"), "out of bounds"),
        (GOOD.replace("2 2 2\n", "-2 2 2\n"), "negative"),
        *(
            (GOOD.replace("1.0", word), f"{re.escape(repr(word))} is no real number")
            for word in NO_NUMBERS
        ),
        (GOOD.replace("1.0", "15 3"), "should have 6 numbers in all, and have 7"),
        (GOOD.replace("real", "integer"), "'1.0' is no integer number.*'real' in the first line"),
        (GOOD.replace("real", "pattern"), "should have 4 numbers in all, and have 6"),
        ("%%MatrixMarket matrix array real general\n2 1\n1\n1.5D+01\n", "'1.5D.01' is no real"),
        (GOOD.replace("1.0", "1.0\0"), "is no real number"),
        (GOOD[:-1] + "x", "is no real number"),
        (f"{HEADER} real symmetric\n2 2 2\n2 1 5\n1 2 5\n", "entries on both sides"),
        (f"{HEADER} real symmetric\n2 3 1\n2 1 5\n", "symmetric, and 2 by 3"),
        (f"{HEADER} real skew-symmetric\n2 2 2\n2 1 5\n1 1 2\n", "diagonal is not zero"),
        (f"{HEADER} complex hermitian\n2 2 1\n1 1 1 2\n", "diagonal is not real"),
        (
            "%%MatrixMarket matrix array complex hermitian\n2 2\n1 1\n2 1\n3 0\n",
            "diagonal is not real",
        ),
    ],
)
def test_malformed_file_is_named_with_the_reason(tmp_path, suffix, text, reason):
    path = write(tmp_path / f"broken{suffix}", text)
    with pytest.raises(ValueError, match=rf"broken{suffix} is not .*{reason}"):
        matrices.load(path)


@pytest.mark.parametrize("end", ["", " ", "\r", "\t ", "\n\n", "\r\n"])
def test_a_file_may_end_as_it_likes(tmp_path, end):
    path = write(tmp_path / "a.mtx", GOOD.rstrip("\n") + end)
    np.testing.assert_array_equal(_suitesparse.read(path), np.diag([1, 2]))


def test_unsigned_numbers_have_negative_mirror_images(tmp_path):
    path = write(tmp_path / "a.mtx", f"{HEADER} unsigned-integer skew-symmetric\n2 2 1\n2 1 7\n")
    np.testing.assert_array_equal(_suitesparse.read(path), [[0, -7], [7, 0]])


@pytest.mark.parametrize("word", ["nan", "-Inf", "1E-3", "5.", "-.5", "7"])
def test_numbers_are_read_as_they_are_written(tmp_path, word):
    path = write(tmp_path / "a.mtx", f"%%MatrixMarket matrix array real general\n2 1\n1\n{word}\n")
    np.testing.assert_array_equal(_suitesparse.read(path), [[1], [float(word)]])


def test_words_are_counted_and_looked_at():
    for text in (b"\n", b"1", b" 1 2\r\n", b"1\t2\n\n3", b"1 -2.5e-01 +3\n4. .5 NaN\n-inf\n6"):
        assert _words.look_at(text, False) == (len(text.split()), None)
    for word in (
        b"1.5D+01",
        b"1..2",
        b"nan1",
        b"+",
        b"1e+",
        b"1e",
        b"-e5",
        b"1-2",
        b"1.e5.",
        b".",
        b".e5",
    ):
        assert _words.look_at(b"1 2\n3 4 " + word + b" 5\n6", False)[1] == word
        assert _words.look_at(b"nan " + word + b" y", False)[1] == word
    assert _words.look_at(b"1\n-7\n1.0\n", True)[1] == b"1.0"


@pytest.mark.parametrize(
    "text, reason",
    [
        (
            "%%MatrixMarket matrix array real general\n2 1\n1 2\n",
            "2 entries in 1 lines; write each",
        ),
        ("%%MatrixMarket vector array real general\n2\n1\n2\n", "holds a vector"),
        (f"{HEADER} real general\n0 0 1\n1 1 1\n", "out of bounds"),
        ("%%MatrixMarket matrix array real general\n0 3\n1\n", "too long"),
    ],
)
def test_a_file_that_is_not_as_its_first_lines_say_is_refused(tmp_path, text, reason):
    path = write(tmp_path / "a.mtx", text)
    with pytest.raises(ValueError, match=rf"a.mtx is not .*{reason}"):
        _suitesparse.read(path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_an_open_file_is_read(pack):
    file = io.BufferedReader(io.BytesIO(pack(GOOD.encode())))
    problem = matrices.load(file)
    np.testing.assert_array_equal(problem.a, np.diag([1, 2]))
    assert not file.closed
    with pytest.raises(MemoryError, match="the open file is 2 by 2"):
        matrices.load(io.BufferedReader(io.BytesIO(pack(GOOD.encode()))), limit_bytes=31)


def test_an_open_file_that_is_malformed_is_named(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(gzip.compress(GOOD.encode())[:-9])
    with open(path, "rb") as file, pytest.raises(ValueError, match="data is not a readable"):
        matrices.load(file)


def test_damaged_compression_is_a_malformed_file(tmp_path):
    path = tmp_path / "broken.mtx.gz"
    data = gzip.compress(GOOD.encode())
    flipped = data[:15] + bytes([data[15] ^ 255]) + data[16:]
    for damaged in (b"not gzip", data[:-10], flipped, data[:-6] + b"\0\0\0\0\0\0"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="broken.mtx.gz is not"):
            matrices.load(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent.mtx"):
        matrices.load(tmp_path / "absent.mtx")


def test_rectangular_matrix_is_refused(tmp_path):
    path = write(tmp_path / "a.mtx", GOOD.replace("2 2 2\n", "2 3 2\n"))
    with pytest.raises(ValueError, match="2 by 3.*square"):
        matrices.load(path)


def test_huge_matrix_is_refused_from_its_header(tmp_path):
    path = write(tmp_path / "huge.mtx", f"{HEADER} real general\n999999 999999 1\n1 1 1.0\n")
    with pytest.raises(MemoryError, match="huge.mtx is 999999 by 999999.*limit_bytes"):
        matrices.load(path)
    path = write(tmp_path / "small.mtx", GOOD)
    with pytest.raises(MemoryError):
        matrices.load(path, limit_bytes=31)
    assert matrices.load(path, limit_bytes=32).n == 2


def test_a_name_in_bytes_is_refused():
    with pytest.raises(TypeError, match="name_or_path is b'a.mtx'; it needs a str"):
        matrices.load(b"a.mtx")


def test_complex_file_is_not_made_real(tmp_path):
    path = write(tmp_path / "a.mtx", f"{HEADER} complex general\n1 1 1\n1 1 1 2\n")
    with pytest.raises(TypeError, match="is complex"):
        matrices.load(path, dtype=float)
    assert matrices.load(path, dtype=np.complex64).a.dtype == np.complex64
