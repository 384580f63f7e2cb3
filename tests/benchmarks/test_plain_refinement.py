"""The reach of classical refinement with fp32 and fp16x3 factors."""

import json

import numpy as np
import pytest
from exact_solution import relative_error, solution
from folders import BENCHMARKS

from tcsolve import matrices


@pytest.fixture
def benchmark_script(script_with_bits):
    return script_with_bits("plain_refinement")


def test_errors_are_differences_from_the_exact_solution(benchmark_script):
    a = matrices.generate("svd_geo", 20, cond=1e10, seed=1).a
    b = np.random.default_rng(1).standard_normal(20)
    x = np.linalg.solve(a, b)
    found = benchmark_script.error(x, benchmark_script.exact_solution(a, b[:, None]))
    assert found == pytest.approx(relative_error(x, solution(a, b)), rel=1e-6)


@pytest.mark.parametrize("update", ["fp32", "fp16x3"])
def test_the_radius_grows_with_the_condition_number(benchmark_script, update):
    radii = [
        benchmark_script.radius(matrices.generate("svd_cluster1", 30, cond=cond, seed=1).a, update)
        for cond in (1e2, 1e5, 1e9)
    ]
    assert radii[0] < 1e-4 < radii[1] < 0.5 < radii[2]


def test_a_well_conditioned_system_is_solved_by_both_methods(benchmark_script):
    row = benchmark_script.measured("svd_geo", 20, 1, 1e4, "fp32")
    assert row["ir"]["error"] <= 2.0**-52 and row["auto"]["error"] <= 2.0**-52
    assert row["radius"] < 0.01


def test_the_page_shows_the_results(script):
    path = BENCHMARKS / "results" / "plain_refinement.json"
    results = json.loads(path.read_text())
    text = script("plain_refinement").page(results["machine"], results["rows"])
    assert path.with_suffix(".md").read_text() == text
