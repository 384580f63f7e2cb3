"""Errors of refined products on earlier tensor cores, compared with those measured on an H200."""

import json
import sys

import numpy as np
import pytest
from pages import is_figure

from tcsolve import gemm


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
    # An emulated H200 errs like the real one; the ratio is not 1, because only some entries are emulated.
    ratio = float(text.split("| H200, FP16 | ab |")[1].split("(")[1].split(")")[0])
    assert ratio == pytest.approx(1, abs=0.05)
    assert is_figure(path.with_suffix(".png"))
    most = [row["max_error"] for row in rows if row["level"] == "full"]
    assert f"| H200, FP16 | full | {most[0]:.1e} | {most[1]:.1e} |" in text


@pytest.mark.parametrize("n", [20, 300])
def test_the_sample_has_the_bits_of_the_whole_product(script, monkeypatch, n):
    module, rng = script("gemm_models"), np.random.default_rng(n)
    monkeypatch.setattr(module, "AT_ONCE", 48)
    whole = [rng.uniform(-1, 1, (n, n)).astype(np.float32) for _ in range(2)]  # as gemm_error.py
    some = module.operands(n)
    for model in module.MODELS:
        how = {"precision": model, "refine": "full"}
        sample, product = gemm(*some, **how), gemm(*whole, **how)
        assert sample.shape == (min(n, 32), min(n, 256))
        assert (sample == product[:32, :256]).all()
