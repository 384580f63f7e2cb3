"""Rutherford-Boeing and MATLAB files."""

import struct
import zlib

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from tcsolve.matrices._files import read

from tcsolve import matrices

# A matrix of order 5 from the report on the format.
DENSE = np.array(
    [[1.0, 0, 0, 4, 0], [0, 2, 0, 0, 0], [-3.5, 0, 3, 0, 0], [0, 0, 0, 4.25, 0], [0, 1e-3, 0, 0, 5]]
)


def rutherford_boeing(kind, shape, pointers, indices, values, each=3, mark="E"):
    """Return the text of a file; numbers of 13 characters follow each other without spaces."""

    def lines(numbers, width, form, count):
        words = [form(number).rjust(width) for number in numbers]
        return ["".join(words[i : i + count]) for i in range(0, len(words), count)]

    of_pointers = lines(pointers, 3, str, 26)
    of_indices = lines(indices, 3, str, 26)
    of_values = lines(values, 13, lambda v: f"{v:.6E}".replace("E", mark), each)
    counts = [len(of_pointers), len(of_indices), len(of_values)]
    head = [
        f"{'A title':72}{'key':8}",
        "".join(f"{n:14d}" for n in (sum(counts), *counts)),
        f"{kind:14}" + "".join(f"{n:14d}" for n in (*shape, len(indices), 0)),
        f"{'(26I3)':16}{'(26I3)':16}{f'({each}{mark}13.6)' if len(values) else '':20}",
    ]
    return "\n".join([*head, *of_pointers, *of_indices, *of_values, ""])


def parts(a):
    """Return the pointers, indices and values of the columns of a."""
    sparse = scipy.sparse.csc_array(a)
    sparse.sort_indices()
    return sparse.indptr + 1, sparse.indices + 1, sparse.data


@pytest.mark.parametrize("mark", ["E", "D"])
@pytest.mark.parametrize("suffix", [".rb", ".rua"])
def test_a_real_matrix_is_read_with_all_entries(tmp_path, suffix, mark):
    path = tmp_path / f"five{suffix}"
    path.write_text(rutherford_boeing("rua", DENSE.shape, *parts(DENSE), mark=mark))
    np.testing.assert_array_equal(matrices.load(path).a, DENSE)


@pytest.mark.parametrize("size", [1.0, 1e120])
def test_files_of_scipy_whose_numbers_are_narrower_than_their_header_says_are_read(tmp_path, size):
    path, a = tmp_path / "scipy.rb", np.random.default_rng(3).standard_normal((7, 7)) * size
    scipy.io.hb_write(path, scipy.sparse.csc_array(a))
    assert len(path.read_text().splitlines()[-2]) < 3 * 25  # numbers of 25 characters
    np.testing.assert_array_equal(matrices.load(path).a, a)


@pytest.mark.parametrize("label", ["00000001", "MAT00001", " " * 8])
def test_labels_after_the_numbers_of_a_line_are_ignored(tmp_path, label):
    path = tmp_path / "labels.rb"
    text = rutherford_boeing("rua", DENSE.shape, *parts(DENSE))
    lines = text.splitlines()
    path.write_text("\n".join(lines[:4] + [f"{line:78}{label}" for line in lines[4:]]))
    np.testing.assert_array_equal(matrices.load(path).a, DENSE)


def test_a_last_number_may_be_short(tmp_path):
    path = tmp_path / "short.rb"
    path.write_text(rutherford_boeing("rua", DENSE.shape, *parts(DENSE)).replace("E+00\n", "\n"))
    np.testing.assert_array_equal(matrices.load(path).a, DENSE)


@pytest.mark.parametrize(
    "kind, mirror",
    [("rsa", np.asarray), ("cha", np.conj), ("csa", np.asarray), ("rza", np.negative)],
)
def test_symmetric_storage_is_expanded(tmp_path, kind, mirror):
    lower = np.tril(DENSE, -1) * (1 + 2j if kind[0] == "c" else 1)
    diagonal = np.diag(np.diag(DENSE)) if kind[1] != "z" else 0
    pointers, indices, values = parts(lower + diagonal)
    values = values.view(float) if kind[0] == "c" else values
    path = tmp_path / "five.rb"
    path.write_text(rutherford_boeing(kind, DENSE.shape, pointers, indices, values))
    a = read(path)
    np.testing.assert_array_equal(a, lower + diagonal + mirror(lower).T)
    assert a.dtype == (complex if kind[0] == "c" else float) and a.flags.c_contiguous


def test_what_scipy_writes_in_the_older_format_is_read(tmp_path):
    scipy.io.hb_write(tmp_path / "five.hb", scipy.sparse.csc_array(DENSE))
    np.testing.assert_array_equal(read(tmp_path / "five.hb"), DENSE)


def test_integers_are_values_and_patterns_are_ones_or_refused(tmp_path):
    pointers, indices, _ = parts(DENSE)
    path = tmp_path / "five.rb"
    path.write_text(rutherford_boeing("iua", DENSE.shape, pointers, indices, np.arange(1.0, 9)))
    assert read(path).sum() == 36
    path.write_text(rutherford_boeing("pua", DENSE.shape, pointers, indices, []))
    np.testing.assert_array_equal(read(path), DENSE != 0)
    with pytest.raises(ValueError, match="pattern"):
        matrices.load(path, pattern=False)


GOOD = rutherford_boeing("rua", DENSE.shape, *parts(DENSE))


@pytest.mark.parametrize(
    "text, told",
    [
        ("", "not enough values"),
        (GOOD.replace("rua", "rue"), "not assembled"),
        (GOOD.replace("rua", "xua"), "type is 'xua'"),
        (GOOD.replace("(26I3)", "free  "), "formats are"),
        (GOOD[:-30], "could not convert"),
        (GOOD[: GOOD.rstrip().rindex("\n")], "should have 8 numbers"),
        (GOOD.replace("             8", "            26"), "says 26 entries in 5 rows"),
        (GOOD.rstrip() + " " * 5000, "line of more than 4096"),
        (GOOD.replace("  1  3  5", "  1  5  3"), "pointers"),
        (GOOD.replace("  1  3  5", "  2  3  5"), "pointers"),
        (GOOD.replace("  1  3  2  5", "  1  9  2  5"), "outside of its 5 rows"),
        (GOOD.replace("1.000000E+00", "1.00000xE+00"), "could not convert"),
        (GOOD.replace("1.000000E+00", "1.00_000E+00"), "not a number"),
    ],
)
def test_a_malformed_file_is_refused_with_its_name(tmp_path, text, told):
    path = tmp_path / "bad.rb"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"bad\.rb is not a readable Rutherford.*{told}"):
        read(path)


def test_a_file_that_ends_in_its_header_is_refused(tmp_path):
    path = tmp_path / "short.hb"
    path.write_text("title\n 4 1 1 1 1\n" + "RUA".ljust(14) + " 2 2 2 0\n(3I4) (3I4) (3E20.0)\n")
    with pytest.raises(ValueError, match=r"short\.hb is not a readable"):
        read(path)


def test_a_large_matrix_is_refused_after_the_header(tmp_path):
    (tmp_path / "large.rb").write_text(rutherford_boeing("rua", (10**6, 10**6), [1], [], []))
    with pytest.raises(MemoryError, match="limit_bytes"):
        read(tmp_path / "large.rb")


# ---- MATLAB


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("name", ["Problem", "A", "B"])
@pytest.mark.parametrize("dtype", [float, complex])
def test_a_matlab_file_is_read(tmp_path, sparse, name, dtype):
    a = DENSE.astype(dtype) * (1 if dtype is float else 1j)
    held = scipy.sparse.csc_array(a) if sparse else a
    problem = {"A": held, "name": "HB/five", "b": np.ones((5, 1))}
    other = {name: held, "x": np.ones((5, 1)), "title": "five"}
    scipy.io.savemat(tmp_path / "five.mat", {name: problem} if name == "Problem" else other)
    found = matrices.load(tmp_path / "five.mat").a
    np.testing.assert_array_equal(found, a)
    assert found.dtype == dtype and found.flags.c_contiguous


@pytest.mark.parametrize("names", [("A",), ("A", "B"), ("C",)])
def test_a_matlab_file_beyond_the_limit_is_refused_before_its_numbers_are_read(tmp_path, names):
    path = tmp_path / "large.mat"
    scipy.io.savemat(path, {name: np.zeros((500, 400)) for name in names}, do_compression=True)
    path.write_bytes(path.read_bytes()[:-20])  # the numbers cannot be read
    with pytest.raises(MemoryError, match="500 by 400"):
        matrices.load(path, limit_bytes=1000)


def test_a_matlab_file_that_is_not_clear_is_refused(tmp_path):
    path = tmp_path / "two.mat"
    scipy.io.savemat(path, {"B": DENSE, "C": DENSE})
    with pytest.raises(ValueError, match="has the variables B, C"):
        read(path)
    path.write_bytes(b"MATLAB 5.0 and nothing more")
    with pytest.raises(ValueError, match="not a readable MATLAB file"):
        read(path)
    head = b"MATLAB 7.3 MAT-file".ljust(124) + bytes([0, 2]) + b"IM"
    path.write_bytes(head + b"\x89HDF" * 50)
    with pytest.raises(ValueError, match="7.3"):
        read(path)
    scipy.io.savemat(path, {"A": scipy.sparse.csc_array((10**5, 10**5))})
    with pytest.raises(MemoryError, match="limit_bytes"):
        read(path)


@pytest.mark.parametrize("order", "<>")
def test_a_packed_matlab_file_of_either_byte_order_is_read(tmp_path, order):
    path = tmp_path / "a.mat"
    path.write_bytes(packed_matlab(variable(order=order), order))
    np.testing.assert_array_equal(matrices.load(path).a, np.ones((2, 2)))


def test_a_matlab_file_of_version_4_is_read(tmp_path):
    scipy.io.savemat(tmp_path / "a.mat", {"A": DENSE, "x": np.ones((5, 1))}, format="4")
    np.testing.assert_array_equal(matrices.load(tmp_path / "a.mat").a, DENSE)


def element(kind, data, size=None, order="<"):
    """Return an element of a MATLAB file; `size` is a false statement of its bytes."""
    tag = struct.pack(f"{order}II", kind, len(data) if size is None else size)
    return tag + data + bytes(-len(data) % 8)


def variable(dims=(2, 2), name=b"A", size=None, order="<", kind=6, body=None, entries=0):
    """Return a variable of a MATLAB file, by default a matrix of ones."""
    head = element(6, struct.pack(f"{order}II", kind, entries), order=order)
    head += element(5, struct.pack(f"{order}{len(dims)}i", *dims), order=order)
    head += element(1, name, size, order)
    numbers = element(9, np.ones(4, f"{order}f8").tobytes(), order=order)
    return element(14, head + (numbers if body is None else body), order=order)


def sparse_problem(rows, starts, dims=(2, 2)):
    """Return a struct Problem with a sparse matrix A of given row numbers and column starts."""
    parts = (np.array(v, np.int32).tobytes() for v in (rows, starts))
    body = b"".join(element(5, part) for part in parts) + element(9, np.ones(len(rows)).tobytes())
    a = variable(dims, b"", kind=5, body=body, entries=len(rows))
    fields = struct.pack("<HHi", 5, 4, 32) + element(1, b"A".ljust(32, b"\0"))
    return variable((1, 1), b"Problem", kind=2, body=fields + a)


def packed_matlab(data, order="<"):
    marks = b"\0\1IM" if order == "<" else b"\1\0MI"
    stream = zlib.compress(data)
    tag = struct.pack(f"{order}II", 15, len(stream))
    return b"MATLAB 5.0 MAT-file".ljust(124) + marks + tag + stream


@pytest.mark.parametrize(
    "data, told",
    [
        (variable((-2, 2)), r"the shape \(-2, 2\)"),
        (variable((-2, -2)), r"the shape \(-2, -2\)"),
        (variable((4,)), r"the shape \(4,\)"),
        (variable((1,) * 40), "Unexpected amount"),
        (variable((3, 3)), "cannot reshape"),
        (variable(size=2**32 - 16), "could not read"),
        (variable(body=element(9, b"", 2**32 - 16)), "could not read"),
        (variable((10000, 10000), kind=1), "has the variables A"),
        (variable((10000, 10000), b"Problem", kind=2), "has the variables Problem"),
        (variable((1, 1), b"Problem", kind=2, body=b""), "could not read"),
        (element(9, bytes(80)), "Expecting miMATRIX"),
        (packed_matlab(variable()), "Expecting miMATRIX"),
        (b"", "not read"),
        (variable()[:40], "not read"),
        (sparse_problem([0, 10**8], [0, 1, 2]), "indices must be < 2"),
        (sparse_problem([0, -(10**8)], [0, 1, 2]), "indices must be >= 0"),
        (sparse_problem([0, 1], [0, 10**8, 2]), "indptr must be"),
        (sparse_problem([0, 1], [0, -(10**8), 2]), "indptr must be"),
        (sparse_problem([0, 1], [0, 1, 10**8]), "index pointer"),
        (sparse_problem([0, 1], [0, 1, 2], (2, 10**9)), "index pointer"),
        (sparse_problem([0, 1], [0, 1, 2], (-2, 2)), "negative"),
    ],
)
def test_a_matlab_file_with_a_false_header_is_refused(tmp_path, data, told):
    path = tmp_path / "false.mat"
    path.write_bytes(packed_matlab(data))
    with pytest.raises(ValueError, match=rf"false\.mat is not a readable MATLAB file: .*{told}"):
        matrices.load(path)


@pytest.mark.parametrize("left", [0, 4, 12, 30])
def test_a_packed_matlab_file_that_is_cut_off_is_refused(tmp_path, left):
    path = tmp_path / "cut.mat"
    path.write_bytes(packed_matlab(variable())[: 128 + left])
    with pytest.raises(ValueError, match=r"cut\.mat is not a readable MATLAB file"):
        matrices.load(path)


# ---- the folder


def test_the_folder_has_matrices_in_every_format(folder):
    (folder / "one.rb").write_text(GOOD)
    scipy.io.savemat(folder / "two.mat", {"A": DENSE})
    scipy.io.mmwrite(folder / "three.mtx", DENSE)
    assert matrices.names() == ("one", "three", "two")
    for name in matrices.names():
        np.testing.assert_array_equal(matrices.load(name).a, DENSE)


def test_an_index_tells_what_to_find(folder):
    for name in ("one", "two", "three", "four", "five", "six"):
        (folder / f"{name}.rb").write_text(GOOD)
    (folder / "index.csv").write_text(
        "name,group,n,nnz,kind,cond_2norm\n"
        "one,HB,5,8,real symmetric positive definite,1e2\n"
        "two,HB,5,8,real unsymmetric,1e9\n"
        "three,odd/(name),6,7,complex symmetric,\n"
        "five,,7,7,complex hermitian,\n"
        "six,,7,7,,\n"
    )

    def found(*args, **options):
        return [row["full_name"] for row in matrices.find(*args, **options)]

    assert found() == ["four", "HB/one", "HB/two", "three", "five", "six"]
    assert found("HB/*") == ["HB/one", "HB/two"] and found("t*") == ["HB/two", "three"]
    assert found("None/*") == [] and found("*/o*") == ["HB/one"]
    assert found(group="HB", kind="spd") == ["HB/one"]
    assert found(kappa=(1e3, 1e10)) == ["four", "HB/two", "three", "five", "six"]
    assert found(kind="unsymmetric") == ["four", "HB/two", "three", "six"]
    assert found(kind="symmetric") == ["four", "HB/one", "three", "five", "six"]
    assert found(max_n=5, kind="unsymmetric") == ["four", "HB/two"]
    assert matrices.load("HB/one").n == 5


def test_a_kind_of_one_word_and_a_size_of_zero_are_filters(folder):
    (folder / "one.rb").write_text(GOOD)
    text = "name,group,n,nnz,kind,cond_2norm\none,HB,5,8,symmetric,1e2\n"
    (folder / "index.csv").write_text(text)
    assert [row["name"] for row in matrices.find(kind="symmetric")] == ["one"]
    assert not matrices.find(kind="unsymmetric") and not matrices.find(max_n=0)
