"""The study with exact sums of tensor cores: it runs, and its committed page comes from its rows."""

import json
import sys

SMALL = """
rhs = "random"
device = "cpu"
[[matrices]]
generate = "svd_geo"
n = 60
cond = [1e1, 1e6]
[[plans]]
precision = ["fp16", "fp16@h200", "bf16", "bf16@h200", "fp16x3", "fp16x3@h200"]
method = ["ir", "fgmres", "gmres"]
scale = [true, false]
block = 16
"""


def test_it_runs_and_compares_the_models(script, monkeypatch, tmp_path):
    module, given, path = script("convergence_exact"), tmp_path / "s.toml", tmp_path / "e.json"
    given.write_text(SMALL)
    words = ["--study", str(given), "--json", str(path), "--jobs", "1"]
    monkeypatch.setattr(sys, "argv", ["convergence_exact", *words])
    module.main()

    rows = json.loads(path.read_text())["rows"]
    assert len(rows) == 72
    text = path.with_suffix(".md").read_text()
    assert "| yes | fp16x3 | fgmres | 100 % | 100 % | 0 | 0 |" in text and "2 matrices" in text
    assert text.count("\n| no | ") == 9


def test_a_matrix_that_one_model_solves_is_counted(script):
    def row(matrix, update, converged, steps, scale=True):
        found = {"matrix": matrix, "update": update, "method": "ir", "scale": scale}
        return found | {"converged": converged, "steps": steps}

    rows = [row("a", "fp16", True, 3), row("a", "fp16@h200", True, 5)]
    rows += [row("b", "fp16", True, 3), row("b", "fp16@h200", False, 1)]
    rows += [row("b", "fp16", False, 3, False), row("b", "fp16@h200", True, 1, False)]
    found = script("convergence_exact").compared(rows, "fp16", "ir")
    assert found == ["fp16", "ir", "100 %", "50 %", 1, 0, "3", "5", "0 of 1"]
