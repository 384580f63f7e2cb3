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
    lines = text.partition("## Beside published figures")[2].splitlines()
    assert {line.split(" | ")[0][2:] for line in lines if line.count("|") == 8} >= problems
    left = sum(line.count(module.UNEXPLAINED) for line in lines if line.count("|") == 8)
    assert f"and {left} are not explained" in text


def test_without_times_of_a_gpu_nothing_is_compared(module):
    rows = [{"problem": "x", "n": 9, "solver": "FP64", "seconds": {"median": 1.0}}]
    rows += [{"problem": "x", "n": 9, "solver": module.FP16, "seconds": {"median": 0.5}}]
    assert module.beside(rows) == []
