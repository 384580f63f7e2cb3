"""The study of a folder of matrices: it runs, writes its table again, and refuses what it cannot do."""

import json

import pytest

SUITESPARSE = {
    "fine": "2 2 3\n1 1 4\n2 1 1\n2 2 3\n",
    "singular": "2 2 1\n1 1 1\n",
    "wide": "2 3 1\n1 1 1\n",
    "broken": "2 2 1\n1 1 x\n",
}


@pytest.fixture
def collection(tmp_path):
    """A folder of matrices, one of them singular and two that cannot be solved."""
    folder = tmp_path / "matrices"
    folder.mkdir()
    for name, text in SUITESPARSE.items():
        (folder / f"{name}.mtx").write_text(
            f"%%MatrixMarket matrix coordinate real general\n{text}"
        )
    return folder


@pytest.mark.parametrize("indexed", [False, True])
def test_the_study_runs_on_a_folder_and_its_table_can_be_written_again(
    script, collection, tmp_path, capsys, indexed
):
    study, report, page = script("suitesparse"), tmp_path / "s.json", tmp_path / "s.md"
    if indexed:
        rows = "".join(f"{name},none\n" for name in SUITESPARSE)
        (collection / "index.csv").write_text(f"name,group\n{rows}")
    folder = ["--folder", str(collection), "--device", "cpu"]

    status = study.main([*folder, "--json", str(report), "--markdown", str(page)])

    out, rows = capsys.readouterr().out, json.loads(report.read_text())["rows"]
    assert status == 1 and "left out: broken, wide" in out
    assert {row["matrix"]: row["verdict"] for row in rows} == {"fine": "ok", "singular": "ok"}
    assert [row["scipy"]["outcome"] for row in rows] == ["ok", "singular"]
    text = page.read_text()
    assert "| fine | 2 |" in text and "| singular | 2 |" in text
    assert study.main([*folder, "--again", str(report), "--markdown", str(page)]) == 0
    assert page.read_text() == text


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--again", "s.json"], "--again needs --markdown"),
        (["--json", "nowhere/s.json"], "no folder nowhere"),
        (["--max-n", "1"], "no matrix of n <= 1"),
        (["--names", "absent"], "no matrix absent"),
    ],
)
def test_the_study_refuses_what_it_cannot_do_before_it_begins(
    script, collection, monkeypatch, capsys, argv, message
):
    monkeypatch.chdir(collection.parent)
    with pytest.raises(SystemExit) as caught:
        script("suitesparse").main(["--folder", str(collection), "--device", "cpu", *argv])
    assert message in f"{caught.value} {capsys.readouterr().err}"
