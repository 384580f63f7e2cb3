"""The benchmark of the choice of the device: its rows and its page, with pretended solves."""

import time
from types import SimpleNamespace

import pytest
from pages import FACTS, redraw, seconds

import tcsolve


def row(n, cpu, cuda, auto, chosen="cuda"):
    found = {"what": "solve", "n": n, "cpu": seconds(cpu), "cuda": seconds(cuda)}
    return found | {"auto": seconds(auto), "chosen": chosen, "ratio": auto / min(cpu, cuda)}


COPY = {"what": "copy", "n": 3000, "to_device": 2.5e10, "to_device_cupy": 9e9}
COPY |= {"to_host": 2e10, "to_host_cupy": 8e9}


def test_a_row_compares_auto_with_the_better_device(script):
    devices, took = script("devices"), {"cpu": 0.02, "cuda": 0.1, "auto": 0.04}

    def solve(a, b, device):
        time.sleep(took[device])

    library = SimpleNamespace(solve=solve, solve_ex=lambda a, b, device: tcsolve.solve_ex(a, b))
    found = devices.measure_solves(library, 20, 3)

    assert found["chosen"] == "cpu" and 1.5 < found["ratio"] < 3
    assert found["cuda"]["median"] >= 0.02 and found["cpu"]["samples"] == 3 * devices.IN_A_ROW
    assert devices.verdict(found) == "MISSED: the ratio"


def test_a_wrong_answer_is_not_timed(script):
    devices, calls = script("devices"), []

    def solve_ex(a, b, device):
        calls.append(device)
        solution = tcsolve.solve_ex(a, b, device="cpu")
        if device == "cuda":
            solution.x[0] *= 1 + 1e-9
        return solution

    found = devices.measure_solves(SimpleNamespace(solve=None, solve_ex=solve_ex), 20, 3)

    assert "device='cuda'" in found["error"] and calls == ["cpu", "cuda"]
    assert devices.cells(found)[-1].startswith("FAILED")


def test_long_calls_are_timed_once_without_a_warm_up(script, monkeypatch):
    devices, counts = script("devices"), {"short": 0, "long": 0}
    monkeypatch.setattr(devices, "LONG", 0.02)
    monkeypatch.setattr(devices, "PATIENCE", 0.03)

    def call(name, duration):
        counts[name] += 1
        time.sleep(duration)

    found = devices.samples_of(
        {"short": lambda: call("short", 1e-4), "long": lambda: call("long", 0.04)}, 5
    )

    assert len(found["long"]) == counts["long"] == 1
    turns = 5 + devices.WARM_UPS
    assert len(found["short"]) == 5 * devices.IN_A_ROW and counts["short"] >= 2 * turns - 1
    assert found["short"] == sorted(found["short"])


@pytest.mark.parametrize(
    "n, auto, told",
    [
        (1000, 1.2e-3, "ok"),
        (1000, 1.3e-3, "MISSED: the ratio"),
        (3000, 1e-3, "ok"),
        (3000, 9e-3, "MISSED: the ratio, 8 ms"),
    ],
)
def test_the_verdict_knows_the_ratio_and_the_seconds(script, n, auto, told):
    assert script("devices").verdict(row(n, 2e-3, 1e-3, auto)) == told


def test_the_page_has_solves_and_copies(script, monkeypatch, tmp_path):
    devices = script("devices")
    failed = {"what": "solve", "n": 5000, "error": "NOT_CONVERGED"}
    rows = [row(100, 1e-4, 1e-3, 1.1e-4, "cpu"), row(3000, 0.1, 7e-3, 7.5e-3), failed, COPY]

    text = redraw(devices, monkeypatch, tmp_path / "devices.json", rows, FACTS | {"rates": "some"})

    assert "| 100 | 0.1 | 1 | 0.11 | cpu | 1.10 | ok |" in text
    assert "| 3000 | 100 | 7 | 7.5 | cuda | 1.07 | ok |" in text
    assert "FAILED: NOT_CONVERGED" in text and "2 of 3 rows are ok" in text
    assert "| 3000 | 72 | 25.0 | 9.0 | 20.0 | 8.0 |" in text and "`auto` predicts are some" in text


@pytest.mark.gpu
def test_copies_are_measured_on_a_device(cupy, script):
    found = script("devices").measure_copies(1000, 3)
    assert all(1e8 < found[way] < 1e12 for way in COPY if way.startswith("to_"))
