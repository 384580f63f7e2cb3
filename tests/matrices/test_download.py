"""The download of a matrix from a server on this machine, with errors that may occur."""

import hashlib
import io
import sys
import tarfile

import pytest
from collection_server import Collection
from market import GOOD, write
from switches import import_or_skip
from tcsolve.matrices import _download

from tcsolve import InputError, matrices, study

TINY = "/MM/HB/tiny.tar.gz"


def archive(text=GOOD, name="tiny"):
    """Return the bytes of an archive as the collection has them."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for member, content in ((f"{name}/{name}.mtx", text), (f"{name}/{name}_b.mtx", "rhs")):
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content.encode()))
    return data.getvalue()


@pytest.fixture
def collection(tmp_path, monkeypatch, folder):
    """A collection with HB/tiny, an empty cache, and short pauses."""
    pooch = import_or_skip("pooch")
    collection = Collection()
    collection.files[TINY] = archive()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(_download, "COLLECTION_URL", f"{collection.url}/MM")
    monkeypatch.setattr(_download, "LIST_URL", f"{collection.url}/files/ssstats.csv")
    monkeypatch.setattr(_download, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(_download, "TIMEOUT", 0.3)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache")
    yield collection
    collection.close()


@pytest.fixture
def cached(tmp_path):
    """A function that returns the names of the files in the cache."""
    return lambda: {p.name for p in (tmp_path / "cache").rglob("*") if p.is_file()}


def hash_of(data):
    return hashlib.sha256(data).hexdigest()


def test_download_is_checked_by_its_hash_and_kept(collection):
    digest = hash_of(collection.files[TINY])
    for _ in range(2):
        assert matrices.load("HB/tiny", known_hash=digest).a.tolist() == [[1, 0], [0, 2]]
    assert collection.asked == [TINY]
    with pytest.raises(ValueError, match="hash"):
        matrices.load("HB/tiny", known_hash="0" * 64)


def test_unknown_hash_is_reported_once_and_kept(collection, tmp_path):
    with pytest.warns(UserWarning, match=hash_of(collection.files[TINY])):
        matrices.load("HB/tiny")
    matrices.load("HB/tiny")
    next(tmp_path.glob("cache/**/tiny.tar.gz")).write_bytes(b"damaged")
    assert matrices.load("HB/tiny").n == 2
    assert len(collection.asked) == 2


def test_local_file_comes_before_the_download(collection, folder):
    write(folder / "tiny.mtx", GOOD.replace("2.0", "5.0"))
    assert matrices.load("HB/tiny").a[1, 1] == 5
    assert collection.asked == []


@pytest.mark.filterwarnings("ignore:tiny.tar.gz was not checked")
@pytest.mark.parametrize("fault", ["cut", "short", "long", "slow", "other", 500, 503])
def test_a_fault_is_tried_again_and_the_matrix_arrives(collection, cached, fault):
    collection.faults = [fault, fault]

    assert matrices.load("HB/tiny").a.tolist() == [[1, 0], [0, 2]]

    assert len(collection.asked) == 3
    assert cached() == {"tiny.tar.gz", "tiny.tar.gz.sha256"}


@pytest.mark.parametrize(
    "fault, error, told",
    [
        ("cut", (FileNotFoundError, ValueError), "tiny"),
        ("short", ValueError, "not the archive of a matrix tiny; it was deleted"),
        ("long", (FileNotFoundError, ValueError), "tiny"),
        ("slow", FileNotFoundError, "could not be fetched either.*timed out"),
        ("other", ValueError, "not the archive of a matrix tiny; it was deleted"),
        (500, FileNotFoundError, "could not be fetched either: 500"),
    ],
)
def test_a_fault_that_stays_is_told_and_nothing_is_kept(collection, cached, fault, error, told):
    collection.faults = [fault] * 3
    with pytest.raises(error, match=told):
        matrices.load("HB/tiny")
    assert len(collection.asked) == 3 and cached() == set()


def test_a_wrong_hash_is_tried_again_and_not_kept(collection, cached):
    good, other = collection.files[TINY], archive(GOOD.replace("2.0", "3.0"))
    collection.files[TINY] = other
    with pytest.raises(ValueError, match="hash"):
        matrices.load("HB/tiny", known_hash=hash_of(good))
    assert len(collection.asked) == 3 and cached() == set()


def test_a_matrix_that_is_not_there_is_not_asked_for_again(collection, folder):
    with pytest.raises(FileNotFoundError, match=rf"HB/huge in {folder}.*TCSOLVE_MATRICES.*404"):
        matrices.load("HB/huge")
    assert len(collection.asked) == 1


def test_without_a_network_the_message_says_what_to_do(collection):
    collection.close()
    with pytest.raises(FileNotFoundError, match="without a network, put matrices into the folder"):
        matrices.load("HB/tiny")


def test_another_matrix_in_the_archive_is_refused(collection, cached):
    collection.files[TINY] = archive(name="huge")
    with pytest.raises(ValueError, match="not the archive of a matrix tiny; it was deleted"):
        matrices.load("HB/tiny")
    assert cached() == set()


def test_missing_pooch_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"pip install 'tcsolve\[study\]'"):
        matrices.load("HB/west0132")


def test_progress_is_shown_on_a_terminal(collection, monkeypatch):
    import_or_skip("tqdm")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    matrices.load("HB/tiny", known_hash=hash_of(collection.files[TINY]))
    assert "%" in stream.getvalue()


# ---- the list of the collection

LIST = """5
31-Oct-2023 18:12:37
HB,tiny,2,2,2,1,0,0,1,1,1,structural problem,2
HB,small,10,10,20,1,0,0,0,0.5,0.1,chemical process,20
Bai,small,12,12,20,0,0,0,0,1,1,electromagnetics problem,20
HB,wide,5,9,20,1,0,0,0,0,0,least squares problem,20
HB,large,4000,4000,9,1,0,1,1,1,1,structural problem,9
"""


@pytest.fixture
def listed(collection, monkeypatch):
    monkeypatch.delenv("TCSOLVE_MATRICES")
    collection.files["/files/ssstats.csv"] = LIST.encode()
    return collection


@pytest.mark.parametrize(
    "options, found",
    [
        ({}, ["HB/tiny", "HB/small", "Bai/small", "HB/large"]),
        ({"pattern": "HB/*"}, ["HB/tiny", "HB/small", "HB/large"]),
        ({"pattern": "s*"}, ["HB/small", "Bai/small"]),
        ({"group": "Bai"}, ["Bai/small"]),
        ({"kind": "spd", "max_n": 100}, ["HB/tiny"]),
        ({"kind": "unsymmetric"}, ["HB/small", "Bai/small"]),
        ({"kind": "complex"}, ["Bai/small"]),
        ({"min_n": 11}, ["Bai/small", "HB/large"]),
        # No condition number is known.
        ({"kappa": (1.0, 2.0)}, ["HB/tiny", "HB/small", "Bai/small", "HB/large"]),
    ],
)
def test_the_collection_is_listed_and_filtered(listed, options, found):
    assert [row["full_name"] for row in matrices.find(**options)] == found
    matrices.find()
    assert listed.asked == ["/files/ssstats.csv"]


@pytest.mark.parametrize("fault", ["cut", "short", "other", 500])
def test_a_list_that_is_not_whole_is_fetched_again(listed, fault):
    listed.faults = [fault]
    assert len(matrices.find()) == 4 and len(listed.asked) == 2
    assert len(matrices.find()) == 4 and len(listed.asked) == 2


def test_the_warning_about_a_hash_points_at_the_caller(collection):
    with pytest.warns(UserWarning, match="was not checked") as caught:
        matrices.load("HB/tiny")
    assert caught[0].filename == __file__


def test_a_list_that_never_comes_is_told(listed):
    listed.faults = ["other"] * 3
    with pytest.raises(ValueError, match="not the list of the collection"):
        matrices.find()


@pytest.mark.filterwarnings("ignore:.* was not checked")
def test_a_study_takes_the_matrices_of_the_collection_and_skips_broken_ones(listed):
    listed.files["/MM/HB/small.tar.gz"] = b"broken"
    table = study({"suitesparse": "HB/*", "max_n": 100}, ["fp32", "fp64"], show_progress=False)
    assert [(row["matrix"], row["status"]) for row in table.rows] == [
        ("HB/tiny", "CONVERGED"),
        ("HB/tiny", "CONVERGED"),
        ("HB/small", "SKIPPED"),
        ("HB/*", "SKIPPED"),
    ]
    assert "not the archive of a matrix small" in table.rows[2]["reason"]
    assert "(max_n = 100) exclude 1 of the 3 matrices" in table.rows[3]["reason"]


@pytest.mark.filterwarnings("ignore:.* was not checked")
def test_a_study_fetches_a_named_matrix_before_the_first_run_or_refuses_it(collection):
    rows = study("ss:HB/tiny", "fp32", show_progress=False).rows
    assert [row["status"] for row in rows] == ["CONVERGED"] and collection.asked == [TINY]
    with pytest.raises(InputError, match="no matrix HB/absent in .* could not be fetched either"):
        study(["ss:HB/tiny", "ss:HB/absent"], "fp32", show_progress=False)


def statuses(table):
    return [(row["matrix"], row["status"]) for row in table.rows]


ONE_IS_MISSING = [("HB/tiny", "SKIPPED"), *[("gauss n=5", "CONVERGED")] * 2]


@pytest.mark.filterwarnings("ignore:.* was not checked")
@pytest.mark.parametrize(
    "data, jobs",
    [(b"broken", 1), (archive()[:60], 1), (archive(name="huge"), 1), (b"broken", 3)],
    ids=["no archive", "cut", "another matrix", "no archive for three processes"],
)
def test_a_study_skips_a_named_matrix_whose_archive_is_broken(collection, data, jobs):
    collection.files[TINY] = data
    given, told = ["ss:HB/tiny", "gen:gauss:n=5"], "not the archive of a matrix tiny"

    table = study(given, ["fp32", "fp64"], jobs=jobs, show_progress=False)

    assert statuses(table) == ONE_IS_MISSING and told in table.rows[0]["reason"]
    assert len(collection.asked) == 3  # it is not fetched again for its row
    with pytest.raises(InputError, match=told):  # no matrix is left
        study("ss:HB/tiny", "fp32", show_progress=False)


@pytest.mark.filterwarnings("ignore:.* was not checked")
@pytest.mark.parametrize("fault", ["cut", "short", "long", "slow", "other", 500])
@pytest.mark.parametrize("named", [True, False])
def test_a_matrix_that_was_not_fetched_is_fetched_when_the_study_is_resumed(
    listed, tmp_path, fault, named
):
    given = ["ss:HB/tiny" if named else "ss:HB/[t]iny", "gen:gauss:n=5"], ["fp32", "fp64"]
    how = {"path": tmp_path / "runs.jsonl", "resume": True, "show_progress": False}
    matrices.find()  # the list is here
    for _ in range(2):  # the fault stays
        listed.faults = [fault] * 3
        first = study(*given, **how)
        assert statuses(first) == ONE_IS_MISSING and not listed.faults

    table = study(*given, **how)

    assert statuses(table) == [(m, "CONVERGED") for m in ("HB/tiny", "gauss n=5") for _ in range(2)]
    assert {row["study"] for row in table.rows} == {row["study"] for row in first.rows}
    asked = len(listed.asked)
    assert study(*given, **how).rows == table.rows and len(listed.asked) == asked


@pytest.mark.filterwarnings("ignore:.* was not checked")
def test_a_study_skips_a_named_matrix_with_another_hash(collection, tmp_path):
    matrices.load("HB/tiny")
    next(tmp_path.glob("cache/**/tiny.tar.gz")).unlink()
    collection.files[TINY] = archive(GOOD.replace("2.0", "3.0"))
    table = study(["ss:HB/tiny", "gen:gauss:n=5"], ["fp32", "fp64"], show_progress=False)
    assert statuses(table) == ONE_IS_MISSING and "hash" in table.rows[0]["reason"]
