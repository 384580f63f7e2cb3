"""Our counts compared with published ones: the verdicts, and the factors and the counts of the papers."""

import json

import numpy as np
import pytest
from folders import BENCHMARKS

from tcsolve import matrices
from tcsolve._study.cases import expand_cases
from tcsolve._study.plans import expand_plans
from tcsolve._study.spec import read_study_file


@pytest.fixture
def published(script):
    return script("published")


def test_fp16_cholesky_factors_are_as_exact_as_fp16(script):
    module = script("_fp16_cholesky")
    rng = np.random.default_rng(0)
    g = rng.standard_normal((40, 40))
    a = (g @ g.T / 40 + np.eye(40)).astype(np.float16)

    r = module.cholesky(a)

    assert r.dtype == np.float16 and not np.tril(r, -1).any()
    r = r.astype(float)
    assert 0 < np.abs(r.T @ r - a.astype(float)).max() <= 41 * 2.0**-11 * np.abs(a).max()
    assert module.cholesky(np.diag(np.float16([1, -1, 1]))) is None
    assert module.cholesky(np.float16([[1, 300], [300, 6e4]])) is None


def test_a_badly_scaled_definite_matrix_is_inverted_in_fp16(script):
    module = script("_fp16_cholesky")
    d = np.logspace(-8, 8, 30)
    a = (np.eye(30) + 0.01) * d[:, None] * d
    correct, shift = module.factor(a)
    assert shift == 2 and np.abs(correct(a) - np.eye(30)).max() / (d.max() / d.min()) < 1e-2
    with pytest.raises(module.Breakdown, match="no shift"):
        module.factor(np.ones((30, 30)) - 0.9 * np.diag(np.arange(30) % 2) + np.diag(np.zeros(30)))


def test_the_matrix_of_trefethen_has_the_condition_of_the_paper(published):
    a = published.trefethen(300)
    assert a[0, :5].tolist() == [2, 1, 1, 0, 1] and a[299, 299] == 1987
    assert np.linalg.cond(a) == pytest.approx(1.77e3, rel=0.01)


def test_the_steps_of_gmres_are_counted_as_in_the_paper(published):
    a = matrices.generate("svd_geo", 60, cond=1e4).a
    exact, coarse = (published.as_they_count(a, update, True) for update in ("fp64", "fp16@each"))
    assert exact in (0, 1) and 5 <= coarse <= 60
    assert published.as_they_count(np.zeros((3, 3)), "fp16@each", True) is None


@pytest.mark.parametrize(
    "ours, theirs, agree",
    [
        (None, None, True),
        (3, None, False),
        (None, 3, False),
        (5, 3, True),
        (6, 3, False),
        (80, 100, True),
    ],
)
def test_counts_agree_within_two_steps_or_a_fifth(published, ours, theirs, agree):
    assert published.close(ours, theirs) is agree


def test_a_limit_contradicts_a_theorem_only_where_it_is_smaller(published):
    def verdict(ours):
        return published.verdict_limits({"ours": ours, "proved up to": 1e3})

    assert verdict(1e3) == published.AGREE
    assert verdict(1e6).startswith("the theorem gives a sufficient condition")
    assert verdict(10.0) == verdict(None) == published.UNEXPLAINED


def test_the_page_counts_what_no_rule_explains(published):
    facts = {"cpu": "a CPU", "numpy": "2", "scipy": "1", "commit": "c", "date": "d"}
    rows = [
        {"matrix": "one", "theirs": 3, "ours": 3, "verdict": published.AGREE},
        {"matrix": "two", "theirs": 3, "ours": None, "verdict": published.UNEXPLAINED},
        {"matrix": "three", "theirs": None, "ours": 9, "verdict": "a reason"},
    ]
    text = published.page("spd", facts, rows)
    assert "3 rows: 1 agree (within two steps or a fifth), 1 differ for the reason" in text
    assert "1 are not explained" in text and "| two | 3 | – | not explained |" in text


def test_the_table_of_definite_matrices_is_made(published, monkeypatch, tmp_path):
    row = published.SPD[0]._replace(matrix="Trefethen_40", quadruple=4, double=3)
    monkeypatch.setattr(published, "SPD", (row, row._replace(matrix="absent")))
    path = tmp_path / "spd.json"
    monkeypatch.setattr("sys.argv", ["published", "spd", "--json", str(path), "--commit", "c"])
    assert published.main() == 0
    (found,) = json.loads(path.read_text())["rows"]
    assert found["verdict"] == "agree" and found["ours"] in (2, 3, 4, 5)
    assert path.with_suffix(".md").read_text().startswith("# GMRES steps with FP16 Cholesky")


# ---- the study of convergence


def test_the_study_of_convergence_makes_its_page(script, monkeypatch, tmp_path, matplotlib):
    from tcsolve import study

    module, tables = script("convergence"), script("_convergence_page")
    grid = {"precision": list(tables.UPDATES), "method": list(tables.METHODS), "block": 16}
    given = ["gen:svd_geo:n=300:cond=1e2,1e7", "gen:svd_geo:n=40:cond=1e1,1e5,1e12"]
    rows = tmp_path / "rows.jsonl"
    table = study(
        given, grid | {"scale": [True, False]}, path=rows, history=True, show_progress=False
    )
    text = rows.read_text().replace('"source": "generate"', '"source": "suitesparse"', 30)
    rows.write_text(text)
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["convergence", "--draw", "--rows", str(rows), "--commit", "c"])

    assert module.main() == 0

    page = (tmp_path / "convergence.md").read_text()
    assert "| bf16 | ir |" in page and f"study {table.rows[0]['study']}" in page
    assert len(list(tmp_path.glob("convergence_*.png"))) == 5
    rows.unlink()  # the rows that are kept in the folder of the page make the same page
    assert module.main() == 0
    assert (tmp_path / "convergence.md").read_text() == page


SMALL = """
rhs = "random"
device = "cpu"
history = true
[[matrices]]
generate = "svd_geo"
n = 300
cond = [1e2, 1e4]
[[plans]]
precision = ["fp16", "bf16", "fp16x3", "fp32"]
method = ["ir", "fgmres"]
"""


def test_the_study_for_a_gpu_keeps_its_rows_when_the_time_is_over(
    script, monkeypatch, tmp_path, capsys, matplotlib
):
    module, rows = script("convergence"), tmp_path / "rows.jsonl"
    (tmp_path / "small.toml").write_text(SMALL)
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    command = ["convergence", "--device", "cuda", "--study", str(tmp_path / "small.toml")]
    command += ["--rows", str(rows), "--commit", "c"]
    monkeypatch.setattr("sys.argv", [*command, "--seconds", "0.01"])
    with pytest.raises(SystemExit, match="no run was finished"):
        module.main()

    monkeypatch.setattr("sys.argv", command)
    assert module.main() == 0

    page = (tmp_path / "convergence_cuda.md").read_text()
    assert "and 2 generated ones; 16 runs" in page and "Runs are CPU emulations" in page
    assert "- fp16: updates of one product of fp16 operands, FP32 sums; panels in FP32." in page
    assert "What scaling changes" not in page
    assert "no picture profile: " in capsys.readouterr().out  # no matrix of the collection
    known = rows.read_text()
    rows.write_text("".join(known.splitlines(True)[:9]))  # as after a kill
    assert module.main() == 0
    assert rows.read_text().splitlines()[:9] == known.splitlines()[:9]
    assert len(rows.read_text().splitlines()) == 16
    monkeypatch.setattr("sys.argv", [*command, "--draw", "--rows", str(tmp_path / "none.jsonl")])
    assert module.main() == 0 and (tmp_path / "convergence_cuda.md").read_text() == page


@pytest.mark.parametrize("name, plans", [("convergence", 16), ("convergence_cuda", 8)])
def test_the_study_files_are_studies(name, plans):
    given = read_study_file(BENCHMARKS / f"{name}.toml")
    assert len(expand_plans(given["plans"])) == plans
    made = [entry for entry in given["matrices"] if "generate" in entry]
    assert len(expand_cases(made)) > 40


def test_a_matrix_whose_first_x_is_not_finite_has_no_first_step(script):
    rows = [
        {"matrix": name, "update": "fp16", "scale": True, "method": "ir", "history": points}
        for name, points in {
            "good": [["fp16", 0, 1e-3, False], ["fp16", 1, 1e-5, False]],
            "bad": [["fp16", 0, None, False]],
        }.items()
    ]
    assert script("_convergence_page").first_steps(rows) == {
        ("good", "fp16", True): (1e-3, pytest.approx(1e-2))
    }


def test_the_area_is_that_under_the_roc_curve(script):
    area = script("_convergence_page").area
    assert area([(1, True), (2, True), (3, True), (4, False), (5, False), (6, False)]) == "1.00"
    assert area([(6, True), (5, True), (4, True), (3, False), (2, False), (1, False)]) == "0.00"
    assert area([(1, True)] * 3 + [(1, False)] * 3) == "0.50"
    assert area([(1, True)] * 3 + [(1, False)] * 2) == "–"
