"""The download of a matrix, from a local archive in place of the collection."""

import io
import shutil
import sys
import tarfile
from functools import partial

import pytest
from market import GOOD, write

from tcsolve import matrices


@pytest.fixture
def collection(tmp_path, monkeypatch, folder):
    """Serve HB/tiny from a file through pooch; return the archive and the addresses asked for."""
    pooch = pytest.importorskip("pooch", reason="the download needs pooch")
    archive = tmp_path / "tiny.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for member, text in (("tiny/tiny.mtx", GOOD), ("tiny/tiny_b.mtx", "rhs")):
            entry = tarfile.TarInfo(member)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    asked = []

    def copy(url, output_file, pooch):
        asked.append(url)
        if not url.endswith("/MM/HB/tiny.tar.gz"):
            raise ConnectionError("404")
        shutil.copy(archive, output_file)

    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache")
    monkeypatch.setattr(pooch, "retrieve", partial(pooch.retrieve, downloader=copy))
    return archive, asked


def test_download_is_checked_by_its_hash(collection):
    archive, asked = collection
    digest = sys.modules["pooch"].file_hash(archive)
    for _ in range(2):
        assert matrices.load("HB/tiny", known_hash=digest).a.tolist() == [[1, 0], [0, 2]]
    assert asked == ["https://suitesparse-collection-website.herokuapp.com/MM/HB/tiny.tar.gz"]
    with pytest.raises(ValueError, match="hash"):
        matrices.load("HB/tiny", known_hash="0" * 64)


def test_unknown_hash_is_reported_once_and_kept(collection):
    archive, asked = collection
    with pytest.warns(UserWarning, match=sys.modules["pooch"].file_hash(archive)):
        matrices.load("HB/tiny")
    matrices.load("HB/tiny")
    cached = next(archive.parent.glob("cache/**/tiny.tar.gz"))
    cached.write_bytes(b"damaged")
    assert matrices.load("HB/tiny").n == 2
    assert len(asked) == 2


def test_local_file_comes_before_the_download(collection, folder):
    write(folder / "tiny.mtx", GOOD.replace("2.0", "5.0"))
    assert matrices.load("HB/tiny").a[1, 1] == 5
    assert collection[1] == []


def test_failed_download_says_what_was_tried(collection, folder):
    with pytest.raises(FileNotFoundError, match=rf"HB/huge in {folder}.*TCSOLVE_MATRICES.*404"):
        matrices.load("HB/huge")


def test_wrong_archive_is_refused_and_its_hash_not_recorded(collection):
    archive, _ = collection
    whole = archive.read_bytes()
    for damaged in (b"an error page", whole[:-40], whole[:60]):
        archive.write_bytes(damaged)
        shutil.rmtree(archive.parent / "cache", ignore_errors=True)
        with pytest.raises(ValueError, match="not the archive of a matrix tiny; delete it"):
            matrices.load("HB/tiny")
    assert not list(archive.parent.glob("cache/**/*.sha256"))


def test_missing_pooch_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"pip install 'tcsolve\[study\]'"):
        matrices.load("HB/west0132")
