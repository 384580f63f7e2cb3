"""Long files: they are read in pieces of a MiB, and memory and time are bounded by the matrix."""

import gzip
import os
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
import scipy.io
import scipy.linalg
import scipy.sparse
from market import HEADER, write
from tcsolve.matrices import _suitesparse


@pytest.fixture(params=["general", "symmetric", "skew-symmetric", "hermitian"])
def long_matrix(request):
    """Return (matrix, symmetry) with more than two MiB of text."""
    rng = np.random.default_rng(1)
    a = rng.standard_normal((500, 500)) + 1j * rng.standard_normal((500, 500))
    a *= 10.0 ** rng.integers(-9, 9, a.shape)
    forms = {
        "general": a[:, :400],
        "symmetric": a.real + a.real.T,
        "skew-symmetric": a - a.T,
        "hermitian": a + a.conj().T,
    }
    return forms[request.param], request.param


@pytest.mark.parametrize("layout", ["array", "coordinate"])
def test_a_long_file_is_read_as_scipy_reads_it(tmp_path, long_matrix, layout):
    a, symmetry = long_matrix
    path = tmp_path / "long.mtx"
    stored = scipy.sparse.coo_array(a) if layout == "coordinate" else a
    scipy.io.mmwrite(path, stored, comment="of many\nlines", symmetry=symmetry)
    assert path.stat().st_size > 2 << 20
    read = _suitesparse.read(path)
    scipys = scipy.io.mmread(path)
    scipys = scipys.toarray() if layout == "coordinate" else scipys
    assert read.dtype == scipys.dtype and read.flags.c_contiguous
    assert read.tobytes() == np.ascontiguousarray(scipys).tobytes()


def test_entries_that_come_again_in_a_long_file_are_added(tmp_path):
    lines = "1 1 1\n2 1 0.5\n" * 200_000
    path = write(tmp_path / "a.mtx", f"{HEADER} real general\n2 2 400000\n{lines}")
    np.testing.assert_array_equal(_suitesparse.read(path), [[200_000, 0], [100_000, 0]])


@pytest.mark.parametrize(
    "last, reason",
    [
        ("3 1 1", "Line 300004: Row index out of bounds"),
        ("1 2 5", "entries on both sides"),
        ("1 1 x", "'x' is no real number"),
        ("2 1 5\n2 1 5", "too long.*should have 900003 numbers in all, and have 900006 or more"),
        ("", "Truncated.*should have 900003 numbers in all, and have 900000"),
        ("2 1", "Truncated|Invalid floating"),
    ],
)
def test_a_mistake_at_the_end_of_a_long_file_is_found(tmp_path, last, reason):
    text = f"{HEADER} real symmetric\n%\n2 2 300001\n" + "2 1 1\n" * 300_000 + last + "\n"
    path = write(tmp_path / "a.mtx", text)
    with pytest.raises(ValueError, match=rf"a.mtx is not .*{reason}"):
        _suitesparse.read(path)


MIB = 1 << 20
# Length of the long texts in MiB, more than a process may take.
LONG = 220
ONE = b"%%MatrixMarket matrix array real general\n1 1\n1\n"
# The beginning of the text, a MiB that is repeated LONG times after it, and the error.
BOMBS = {
    "one long word": (ONE, b"%" * MIB, "line of more than"),
    "one long number": (ONE[:-1], b"1" * MIB, "line of more than"),
    "one long blank line": (ONE, b" " * MIB, "line of more than"),
    "a long comment": (ONE[:-6], b"%" * MIB, "no line of sizes"),
    "many comments": (ONE[:-6], b"% x\n" * (MIB // 4), "no line of sizes"),
    "a long first line": (ONE[:30], b" " * MIB, "no line of sizes"),
    "many numbers": (ONE, b"7\n" * (MIB // 2), "file too long"),
    "many comments behind the end": (ONE, b"%\n" * (MIB // 2), "'%' is no real number"),
    "many empty lines": (ONE, b"\n" * MIB, None),
    "a huge matrix": (ONE[:-6] + b"1000000000 1000000000\n", b"7\n" * (MIB // 2), "limit_bytes"),
    "huge coordinates": (
        b"%%MatrixMarket matrix coordinate real general\n1000000000 1000000000 1\n",
        b"7\n" * (MIB // 2),
        "limit_bytes",
    ),
}
# The peak of this process alone.  getrusage would count the memory of the parent as well.
MEASURED = """
import sys, time
from tcsolve.matrices import _suitesparse

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) / 1024

before, start, reason = peak(), time.perf_counter(), ""
try:
    source = sys.argv[1] if len(sys.argv) > 1 else sys.stdin.buffer
    _suitesparse.read(source, limit_bytes=1 << 20)
except (MemoryError, ValueError) as error:
    reason = str(error)
print(peak() - before, time.perf_counter() - start, reason)
"""


def bomb(kind, members):
    """Return more than 200 MiB as a gzip file of one member or of many, and the error."""
    begin, block, reason = BOMBS[kind]
    if members == "many":
        return gzip.compress(begin) + LONG * gzip.compress(block, 1), reason
    packer = zlib.compressobj(1, wbits=31)
    parts = [packer.compress(begin), *(packer.compress(block) for _ in range(LONG))]
    return b"".join(parts) + packer.flush(), reason


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="only Linux tells the peak")
@pytest.mark.parametrize(
    "kind, members, how",
    [
        *((kind, "many", "whole") for kind in BOMBS),
        ("one long word", "one", "whole"),
        # Files that are refused before their end, only at their end, and not at all.
        ("many numbers", "many", "cut off"),
        ("many comments", "many", "cut off"),
        ("many empty lines", "many", "cut off"),
        ("one long word", "one", "cut off"),
    ],
)
def test_memory_and_time_are_bounded_by_the_matrix_not_by_the_text(tmp_path, kind, members, how):
    data, reason = bomb(kind, members)
    assert len(data) < 2 * MIB
    if how == "cut off":
        data = data[:-9]
        reason = reason or "ended before the end"
    path = tmp_path / "bomb.mtx.gz"
    path.write_bytes(data)
    command = [sys.executable, "-P", "-c", MEASURED, path]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200)
    megabytes, seconds, told = run.stdout.split(maxsplit=2) if reason else (*run.stdout.split(), "")
    assert (reason or "") in told and run.stderr == ""
    assert float(megabytes) < 200
    assert float(seconds) < 5


def renamed(data, name):
    """Return a MATLAB file with its array, x times 8, under another name: a multiple of 8 bytes."""
    head, tail = data.split(b"x" * 8)
    # After the header of 128 bytes are the kind of the array and its size, in 4 bytes each.
    size = struct.pack("<I", len(head) - 136 + len(name) + len(tail))
    return head[:132] + size + head[136:-4] + struct.pack("<I", len(name)) + name + tail


def test_scipy_reads_an_array_under_another_name(tmp_path):
    scipy.io.savemat(tmp_path / "a.mat", {"x" * 8: np.eye(2)})
    data = (tmp_path / "a.mat").read_bytes()
    (tmp_path / "b.mat").write_bytes(renamed(data, b"y" * 24))
    np.testing.assert_array_equal(scipy.io.loadmat(tmp_path / "b.mat")["y" * 24], np.eye(2))


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="only Linux tells the peak")
@pytest.mark.parametrize(
    "kind, reason",
    [
        ("a line", "line of more than 4096 characters"),
        ("a struct", "more than 0.00293 GiB unpacked"),
        ("a matrix", "is 6000 by 6000"),
        ("a name", "not a readable MATLAB file"),
    ],
)
def test_memory_and_time_are_bounded_for_other_formats(tmp_path, kind, reason):
    path = tmp_path / ("bomb.rb" if kind == "a line" else "bomb.mat")
    if kind == "a line":
        path.write_bytes(b"%" * LONG * MIB)
    elif kind == "a struct":
        problem = {"A": np.eye(2), "aux": np.zeros(LONG * MIB // 8)}
        scipy.io.savemat(path, {"Problem": problem}, do_compression=True)
    elif kind == "a matrix":
        scipy.io.savemat(path, {"A": np.zeros((6000, 6000))}, do_compression=True)
    else:
        scipy.io.savemat(path, {"x" * 8: np.eye(2)})
        path.write_bytes(renamed(path.read_bytes(), b"x" * LONG * MIB))
    command = [sys.executable, "-P", "-c", MEASURED.replace("_suitesparse.read", "load"), path]
    command[3] = command[3].replace("import _suitesparse", "import load")
    run = subprocess.run(command, capture_output=True, text=True, timeout=200)
    megabytes, seconds, told = run.stdout.split(maxsplit=2)
    assert reason in told and run.stderr == ""
    assert float(megabytes) < 200
    assert float(seconds) < 5


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="only Linux tells the peak")
@pytest.mark.parametrize("kind", ["one long word", "many numbers", "a huge matrix"])
def test_standard_input_is_bounded_too(kind):
    data, reason = bomb(kind, "many")
    command = [sys.executable, "-P", "-c", MEASURED]
    run = subprocess.run(command, input=data, capture_output=True, timeout=200)
    megabytes, seconds, told = run.stdout.decode().split(maxsplit=2)
    assert reason in told and told.startswith("<stdin> is ") and run.stderr == b""
    assert float(megabytes) < 200
    assert float(seconds) < 5


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="only Linux tells the peak")
def test_reading_takes_less_memory_than_the_matrix_and_its_text(tmp_path):
    path = tmp_path / "a.mtx"
    a = np.random.default_rng(0).standard_normal((1500, 1500))  # 17 MiB, and more text
    scipy.io.mmwrite(path, a, symmetry="general")
    command = [sys.executable, "-P", "-c", MEASURED.replace("1 << 20", "1 << 30"), path]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert run.stderr == ""
    assert float(run.stdout.split()[0]) < (a.nbytes + path.stat().st_size) / MIB
