"""The committed pages are those that the scripts write from the committed results."""

import json

import pytest
from folders import BENCHMARKS

RESULTS = BENCHMARKS / "results"
# Script -> names of its results.  The page of a script is page(machine, rows), next to the JSON.
PAGES = {name: (name,) for name in ("clocks", "contention", "convergence_exact", "devices")}
PAGES |= {name: (name,) for name in ("gate", "gemm_models", "hpl_mxp", "lu", "many_rhs", "memory")}
PAGES |= {name: (name,) for name in ("plain_refinement", "preconditioned", "roads", "rungs")}
PAGES |= {name: (name,) for name in ("small", "stack_counts")}
PAGES |= {"stacks": ("stacks", "stacks_types"), "versions": ("versions", "versions_large")}
PAGES |= {"cpu": ("cpu_ratios",), "_ablation_page": ("ablation",)}


def results(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


@pytest.mark.parametrize("name, of", [(name, of) for of in PAGES for name in PAGES[of]], ids=str)
def test_a_committed_page_comes_from_the_committed_rows(name, of, script):
    known = results(name)

    text = script(of).page(known["machine"], known["rows"])

    assert (RESULTS / f"{name}.md").read_text() == text


def test_the_committed_page_of_products_comes_from_the_committed_rows(script):
    module = script("gemm_page")
    known = {name: results(name) for name in (*module.DRAWN, *module.EXAMPLES)}

    text = module.page({name: (x["machine"], x["rows"]) for name, x in known.items()})

    assert (RESULTS / "gemm.md").read_text() == text
