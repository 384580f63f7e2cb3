"""The figures of `training.py` beside published ones: what agrees, and why the others differ."""

import json

import pytest
from folders import BENCHMARKS


@pytest.fixture
def module(script):
    return script("_training_published")


def row(**own):
    found = {"n": 8192, "seconds": 0.02, "dominant": False, "steps": 3, "speed-up": None}
    found |= {"products": (2, 0.015), "rate": 9.0, "top rate": 30.0}
    return found | {"energy": None} | own


@pytest.mark.parametrize(
    "own, verdict",
    [
        ({"speed-up": 4.5}, "agree"),
        ({"speed-up": 3.3}, "agree"),
        ({"speed-up": 2.0}, "b"),
        ({"speed-up": 2.0, "n": 2048}, "not explained"),
        ({"speed-up": 2.0, "n": 12000}, "not explained"),  # no LU of this order was timed
        (
            {"speed-up": 2.0, "seconds": 0.008},
            "not explained",
        ),  # less than the LU of a random matrix
        ({"speed-up": 7.0}, "not explained"),
        ({"speed-up": 7.0, "dominant": True}, "a"),
        ({}, None),
        # Another solver with a slower LU takes fewer steps, and half of the time.
        ({"speed-up": 0.6, "steps": 92, "products": (4, 0.01)}, "c: 92 steps in 20 ms, 4 in 10 ms"),
        ({"speed-up": 0.6, "steps": 92, "products": (4, 0.011)}, "b"),
        ({"speed-up": 0.6, "products": (3, 0.01)}, "b"),  # no fewer steps
        ({"speed-up": 0.6, "products": (None, None)}, "b"),
        # FP64 does not reach its rate for a small n.
        ({"speed-up": 0.6, "n": 2048, "rate": 0.8}, "d: 0.8 of 30 TFLOP/s"),
        ({"speed-up": 0.6, "n": 2048, "rate": 3.1}, "not explained"),
        ({"speed-up": 0.6, "rate": 0.8}, "b"),
        (
            {"speed-up": 0.6, "n": 2048, "rate": 0.8, "steps": 9, "products": (2, 0.004)},
            "d: 0.8 of 30 TFLOP/s; c: 9 steps in 20 ms, 2 in 4 ms",
        ),
    ],
)
def test_a_figure_agrees_or_has_a_reason_that_was_measured(module, own, verdict, monkeypatch):
    timed = {8192: (0.009, 0.5)}  # seconds of our LU and of dgetrf, by n
    monkeypatch.setattr(module, "lu_alone", lambda n, dominant: timed.get(n))
    verdict = "b: 9 of 20 ms" if verdict == "b" else verdict
    assert module.explained(row(**own), "speed-up", module.SPEED_UP) == verdict


def test_the_committed_page_has_every_problem_and_counts_what_is_left(script, module):
    known = json.loads((BENCHMARKS / "results/training.json").read_text())
    text = (BENCHMARKS / "results/training.md").read_text()
    training = script("training")
    models = training.read(BENCHMARKS / "results/training_emulated.json")
    assert text == training.page(known["machine"], known["rows"], models)
    problems = {row["problem"] for row in known["rows"]}
    lines = text.partition("## Comparison with published figures")[2].splitlines()
    assert {line.split(" | ")[0][2:] for line in lines if line.count("|") == 8} >= problems
    left = sum(line.count(module.UNEXPLAINED) for line in lines if line.count("|") == 8)
    assert f"and {left} are not explained" in text


def test_the_rows_of_the_other_paper_are_marked_as_not_at_hand(module):
    text = (BENCHMARKS / "results/training.md").read_text()
    rows = [line for line in text.splitlines() if line.endswith("| matrix not at hand |")]
    assert [line.split(" | ")[0][2:] for line in rows] == [r.matrix for r in module.SC18_ROWS]
    assert "| nd6k | 18000 | 3.5e+02 | 0.81 | 2, 0.45, 1.80x |" in text
    assert "they were not checked against the paper" in text


def test_the_rates_are_those_of_fp64(module):
    rows = [
        {"problem": f"type 4 n={n}", "n": n, "solver": "FP64", "seconds": {"median": taken}}
        for n, taken in ((3000, 0.018), (6000, 0.0072))
    ]
    rows += [{"problem": "other", "n": 9, "solver": module.PRODUCTS, "steps": 3}]
    found = module.by_problem(rows)
    assert [row["rate"] for row in found] == [pytest.approx(1.0), pytest.approx(20.0), None]
    assert {row["top rate"] for row in found} == {found[1]["rate"]}
    assert found[2]["products"] == (3, None)


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
