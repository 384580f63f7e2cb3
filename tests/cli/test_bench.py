"""`tcsolve bench`: the right solvers are timed, wrong answers are not, and the table is whole."""

import json
import math

import numpy as np
import pytest
import scipy.linalg

from tcsolve._backends import select
from tcsolve._solve.api import solve
from tcsolve.cli import bench
from tcsolve.cli import command as cli


@pytest.fixture(autouse=True)
def short_turns(monkeypatch):
    monkeypatch.setattr(bench, "TURN_SECONDS", 0.01)
    monkeypatch.setattr(bench, "SETTLING_SECONDS", 0.002)


def rows_of(text):
    """Return the cells of the lines of a Markdown table."""
    lines = [line for line in text.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_has_a_row_for_each_size(capsys):
    assert cli.main(["bench", "--sizes", "5", "40", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    head, *rows = rows_of(out)

    assert err == "" and [row[0] for row in rows] == ["5", "40"]
    assert head[:4] == ["n", "rung", "scipy, ms", "numpy, ms"]
    assert head[-2:] == ["tcsolve, ms", "speed-up"]
    for row in rows:
        assert row[1] == "fp64"
        *peers, ours, speed_up = map(float, row[2:])
        assert float(speed_up) == pytest.approx(min(peers) / ours, rel=0.02, abs=0.006)
    assert "Measured with `tcsolve bench` on" in out and f"numpy {np.__version__}" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_json_has_the_times_alone_on_standard_output(capsysbinary):
    assert cli.main(["bench", "--sizes", "20", "--device", "cpu", "--json", "-"]) == 0
    out, err = capsysbinary.readouterr()
    found = json.loads(out)

    (row,) = found["rows"]
    assert rows_of(err.decode())[1][0] == "20" and found["machine"]["cores"] >= 1
    for name in ("tcsolve", "scipy", "numpy"):
        assert row[name]["seconds"] > 0 and row[name]["backward_error"] < 1e-14
    assert row["speed_up"] == pytest.approx(
        min(row["scipy"]["seconds"], row["numpy"]["seconds"]) / row["tcsolve"]["seconds"]
    )


def test_json_is_not_overwritten_without_force(tmp_path, capsys):
    path = tmp_path / "times.json"
    path.write_text("precious")
    argv = ["bench", "--sizes", "5", "--device", "cpu", "--json", str(path)]
    assert cli.main(argv) == 2
    assert "exists" in capsys.readouterr().err and path.read_text() == "precious"
    assert cli.main([*argv, "--force"]) == 0
    assert json.loads(path.read_text())["rows"][0]["n"] == 5


def test_a_wrong_answer_is_not_timed():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((30, 30))
    calls = []

    def off(a, b):
        calls.append(1)
        return scipy.linalg.solve(a, b) * (1 + 1e-8)

    def fails(a, b):
        raise ValueError("no\nsuch thing")

    solvers = (
        bench.Solver("tcsolve", solve),
        bench.Solver("off", off),
        bench.Solver("fails", fails),
        bench.Solver("nan", lambda a, b: b * math.nan),
    )
    found = bench.compared(a, a @ np.ones(30), solvers)

    assert found["tcsolve"]["samples"] >= 3 and found["tcsolve"]["seconds"] > 0
    assert "its backward error is" in found["off"]["error"] and len(calls) == 1
    assert found["fails"] == {"error": "ValueError: no such thing"}
    assert "nan" in found["nan"]["error"]


def test_our_own_answer_must_meet_the_bound():
    a = np.random.default_rng(0).standard_normal((30, 30))

    def loose(a, b):
        return scipy.linalg.solve(a, b) * (1 + 1e-13)

    found = bench.compared(a, a @ np.ones(30), [bench.Solver("tcsolve", loose)])
    assert set(found["tcsolve"]) == {"error"}


def test_a_failed_solve_has_its_exit_code_and_a_warning(monkeypatch, capsys):
    monkeypatch.setattr(bench, "solve", lambda a, b: 2 * scipy.linalg.solve(a, b))
    assert cli.main(["bench", "--sizes", "9", "--device", "cpu"]) == 1
    out, err = capsys.readouterr()
    assert rows_of(out)[1][-2:] == ["fails", "-"]
    assert err.startswith("tcsolve: warning: n = 9: tcsolve is not timed: ")


@pytest.mark.parametrize(
    "argv, reason",
    [
        (["--sizes", "0"], "the smallest matrix"),
        (["--sizes", "many"], "invalid int"),
        (["--device", "cuda"], "there is none"),
    ],
)
def test_what_cannot_be_measured_is_refused(argv, reason, monkeypatch, capsys):
    monkeypatch.setattr(select, "why_no_cuda", lambda: "there is none")
    assert cli.main(["bench", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and reason in err and err.count("\n") == 1


@pytest.mark.gpu
def test_arrays_of_the_device_are_timed_beside_cupy(cupy, capsys):
    assert cli.main(["bench", "--sizes", "300", "--device", "cuda"]) == 0
    out = capsys.readouterr().out
    head, row = rows_of(out)
    assert "cupy, ms" in head and row[0] == "300" and f"cupy {cupy.__version__}" in out
