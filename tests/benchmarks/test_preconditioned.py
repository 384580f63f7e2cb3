"""GMRES with preconditioned products of several precisions."""

import numpy as np
import pytest
from exact_solution import relative_error, solution
from pages import redraw


@pytest.fixture
def benchmark_script(script_with_bits):
    return script_with_bits("preconditioned")


def test_the_reference_is_the_exact_solution(benchmark_script):
    system = benchmark_script.System("svd_geo", 12, 1e10)
    exact = solution(system.a, system.b[:, 0])

    assert relative_error(system.x.high[:, 0], exact) <= 2.0**-53
    assert system.error(system.x) == 0 < np.abs(system.x.low).max()


def test_all_ways_multiply_by_the_same_matrix(benchmark_script):
    system, v = benchmark_script.System("svd_cluster1", 12, 1e4), np.linspace(-1, 1, 12)[:, None]
    products, inverses = zip(
        *(map(_on(v), system.way(w)) for w in benchmark_script.WAYS), strict=True
    )

    for found in (products, inverses):
        *others, exact = found
        for other, allowed in zip(others, (1e-10, 1e-10, 2.0**-53), strict=True):
            np.testing.assert_allclose(other, exact, rtol=0, atol=allowed * abs(exact).max())
    # The FP32 factors are nearly those of A.
    np.testing.assert_allclose(products[-1], v, atol=1e-2)


def _on(v):
    return lambda f: f(v)


@pytest.mark.parametrize("cond", [1e8, 1e14])
def test_x_becomes_accurate_to_its_last_bit(benchmark_script, cond):
    system = benchmark_script.System("svd_arith", 16, cond)
    found = {way: benchmark_script.refined(system, way) for way in benchmark_script.WAYS}

    assert all(one["error"] <= 2.0**-53 for one in found.values())
    assert found["exact"]["steps"] == found["double-double"]["steps"] <= found["FP64"]["steps"]


def test_a_page_has_a_row_for_each_system(benchmark_script, monkeypatch, tmp_path):
    ways = dict.fromkeys(benchmark_script.WAYS, {"cycles": 3, "steps": 40, "error": 1e-17})
    ways["FP64"] = {"cycles": 12, "steps": 600, "error": 3e-9}
    row = {"family": "svd_geo", "n": 60, "cond": 1e16, "ways": ways}

    text = redraw(benchmark_script, monkeypatch, tmp_path / "x.json", [row])

    assert "| svd_geo | 60 | 1e+16 | error 3e-09 | 3, 40 | 3, 40 | 3, 40 |" in text
