"""The local folder of matrices: names, index, and what to do where something is missing."""

import sys
from functools import partial

import numpy as np
import pytest
from market import GOOD, write

from tcsolve import matrices


def test_names_are_found_in_the_folder(folder):
    write(folder / "one.mtx", GOOD)
    write(folder / "two.mtx.gz", GOOD)
    (folder / "two.txt").touch()
    assert matrices.names() == matrices.names(folder) == ("one", "two")
    assert matrices.load("one").n == matrices.load("HB/two").n == 2


def test_index_is_typed_and_gives_cond(folder):
    write(folder / "one.mtx", GOOD)
    write(folder / "two.mtx", GOOD)
    (folder / "index.csv").write_text(
        "name,group,n,kind,cond_2norm,max_abs\none,HB,2,real,2e+00,2\ntwo,HB,2,real,,2\n"
    )
    rows = matrices.index()
    assert rows[0] == dict(name="one", group="HB", n=2, kind="real", cond_2norm=2.0, max_abs=2.0)
    assert np.isnan(rows[1]["cond_2norm"])
    assert matrices.load("one").cond == 2 and matrices.load("two").cond is None


@pytest.mark.parametrize(
    "text, told",
    [
        ("", r"columns \(none\) in its first line; name and group are needed"),
        ("\nname,group,n\n", r"columns \(none\) in its first line; name and group are needed"),
        ("name,n\none,2\n", "columns name, n in its first line; name and group are needed"),
        ('name,group\none,"HB' + 200000 * "x", "is not a CSV file in UTF-8: field larger"),
        ("name,group\none,\udcff\n", "is not a CSV file in UTF-8: .*can't decode"),
        ("name,group,n\none,HB\n", "line 2 has more or fewer cells"),
        ("name,group,n\none,HB,2\ntwo,HB,2,3\n", "line 3 has more or fewer cells"),
        ("name,group,n\none,HB,two\n", "line 2 has a cell that must be a number and .*'two'"),
    ],
)
def test_a_bad_index_says_where_and_what_to_do(folder, text, told):
    write(folder / "one.mtx", GOOD)
    (folder / "index.csv").write_text(text, "utf-8", "surrogateescape")
    for call in (matrices.index, partial(matrices.load, "HB/one"), partial(matrices.load, "one")):
        with pytest.raises(ValueError, match=rf"index\.csv.*{told}"):
            call()


def test_an_unknown_kind_is_refused(folder):
    write(folder / "one.mtx", GOOD)
    (folder / "index.csv").write_text("name,group,kind\none,HB,real\n", "utf-8")
    assert [row["name"] for row in matrices.find(kind="real")] == ["one"]
    with pytest.raises(ValueError, match="kind='nonsense' is unknown; choose one of 'spd'"):
        matrices.find(kind="nonsense")


def test_same_name_in_another_group_is_another_matrix(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    write(folder / "one.mtx", GOOD)
    # As some spreadsheets write it, with a mark at the beginning.
    (folder / "index.csv").write_text("\ufeffname,group,n\none,HB,2\n", "utf-8")
    assert matrices.load("HB/one").n == 2
    with pytest.raises(ImportError, match="no matrix Bai/one"):
        matrices.load("Bai/one")


def test_unknown_name_says_where_and_what_to_do(folder):
    write(folder / "west0132.mtx", GOOD)
    text = "west0123 in .*has west0132.*TCSOLVE_MATRICES.*group/west0123"
    with pytest.raises(FileNotFoundError, match=text):
        matrices.load("west0123")


def test_unset_or_wrong_folder_says_what_to_set(tmp_path, monkeypatch):
    monkeypatch.delenv("TCSOLVE_MATRICES", raising=False)
    for call in (matrices.names, matrices.index, partial(matrices.load, "west0132")):
        with pytest.raises(FileNotFoundError, match="no folder is known.*TCSOLVE_MATRICES"):
            call()
        with pytest.raises(FileNotFoundError, match="absent is not a folder"):
            call(folder=tmp_path / "absent")


@pytest.mark.parametrize("name", ["", "a/b/c", "../a", "HB/..", "a b", "/a"])
def test_name_cannot_leave_the_folder(folder, name):
    with pytest.raises(ValueError, match="not the name of a matrix"):
        matrices.load(name)
