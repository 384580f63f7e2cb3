"""Helpers of the tests of the benchmarks' pages."""

import json
import sys

FACTS = {"commit": "abc", "date": "2026-01-01", "cpu": "a CPU", "gpu": "a GPU"}
RATES = {"copy_bytes": 4e12, "fp16_flops": 7e14, "fp32_flops": 5e13}


def seconds(median):
    return {"median": median, "quartiles": [median, median], "samples": 3}


def is_figure(path):
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def redraw(module, monkeypatch, path, rows, facts=FACTS):
    """Run `module --draw` on rows; return the page."""
    path.write_text(json.dumps({"machine": facts, "rows": rows}))
    monkeypatch.setattr(sys, "argv", [module.__name__, "--draw", "--json", str(path)])
    module.main()
    return path.with_suffix(".md").read_text()
