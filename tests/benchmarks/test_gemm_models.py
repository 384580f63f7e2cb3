"""Errors of refined products on earlier tensor cores, compared with those measured on an H200."""

import json
import sys

import pytest
from folders import BENCHMARKS
from pages import is_figure


def test_the_table_compares_models_with_what_was_measured(
    script, monkeypatch, tmp_path, matplotlib
):
    module, path = script("gemm_models"), tmp_path / "g.json"
    monkeypatch.setattr(sys, "argv", ["gemm_models", "--n", "64", "512", "--json", str(path)])
    monkeypatch.setattr(module, "MODELS", {"fp16@h200": "H200, FP16"})
    module.main()

    rows = json.loads(path.read_text())["rows"]
    assert len(rows) == 8 and all(row["within"] for row in rows)
    text = path.with_suffix(".md").read_text()
    # An emulated H200 has the errors of the real one; the rows are a sample of them.
    ratio = float(text.split("| H200, FP16 | ab |")[1].split("(")[1].split(")")[0])
    assert ratio == pytest.approx(1, abs=0.05)
    assert is_figure(path.with_suffix(".png"))


def test_the_committed_page_comes_from_the_committed_rows(script):
    module = script("gemm_models")
    known = json.loads((BENCHMARKS / "results/gemm_models.json").read_text())
    page = (BENCHMARKS / "results/gemm_models.md").read_text()
    assert page == module.page(known["machine"], known["rows"])
