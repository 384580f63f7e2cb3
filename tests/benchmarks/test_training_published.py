"""The figures of `training.py` beside published ones: what agrees, and why the others differ."""

import json

import pytest
from folders import BENCHMARKS


@pytest.fixture
def module(script):
    return script("_training_published")


def row(**own):
    found = {"n": 8192, "seconds": 0.02, "dominant": False, "steps": 3, "speed-up": None}
    return found | {"energy": None} | own


@pytest.mark.parametrize(
    "own, verdict",
    [
        ({"speed-up": 4.5}, "agree"),
        ({"speed-up": 3.3}, "agree"),
        ({"speed-up": 2.0}, "b: 9 of 20 ms"),
        ({"speed-up": 2.0, "n": 2048}, "not explained"),
        ({"speed-up": 2.0, "n": 12000}, "not explained"),  # no LU of this order was timed
        (
            {"speed-up": 2.0, "seconds": 0.008},
            "not explained",
        ),  # less than the LU of a random matrix
        ({"speed-up": 7.0}, "not explained"),
        ({"speed-up": 7.0, "dominant": True}, "a"),
        ({}, None),
    ],
)
def test_a_figure_agrees_or_has_a_reason_that_was_measured(module, own, verdict):
    assert module.explained(row(**own), "speed-up", module.SPEED_UP) == verdict


def test_the_committed_page_has_every_problem_and_counts_what_is_left(script, module):
    known = json.loads((BENCHMARKS / "results/training.json").read_text())
    text = (BENCHMARKS / "results/training.md").read_text()
    assert text == script("training").page(known["machine"], known["rows"])
    problems = {row["problem"] for row in known["rows"]}
    lines = text.partition("## Comparison with published figures")[2].splitlines()
    assert {line.split(" | ")[0][2:] for line in lines if line.count("|") == 8} >= problems
    left = sum(line.count(module.UNEXPLAINED) for line in lines if line.count("|") == 8)
    assert f"and {left} are not explained" in text


def test_without_times_of_a_gpu_nothing_is_compared(module):
    rows = [{"problem": "x", "n": 9, "solver": "FP64", "seconds": {"median": 1.0}}]
    rows += [{"problem": "x", "n": 9, "solver": module.FP16, "seconds": {"median": 0.5}}]
    assert module.beside(rows) == []


def test_large_orders_of_cusolver_are_those_from_8192_on(module):
    gains = {2048: 1.5, 8192: 1.1, 16384: 1.2}
    rows = [
        {"problem": f"type 4 n={n}", "n": n, "solver": solver, "steps": 3}
        | {"seconds": {"median": 1.0 if solver == "FP64" else 1 / gain}}
        for n, gain in gains.items()
        for solver in ("FP64", module.FP16, "cuSOLVER FP32", "cuSOLVER FP16")
    ]
    text = "\n".join(module.beside(rows))
    assert f"| cuSOLVER FP32, {module.CUSOLVER} | at most 2 | 1.20 | agree |" in text
    assert f"| cuSOLVER FP16, {module.CUSOLVER} | 3 to 4 | 1.20 | not explained |" in text
    assert f"| cuSOLVER FP16, {module.CUPY} | 1.07 | 1.50 | not explained |" in text
