"""The command that makes the pages of the study: its scripts are those that the docs list."""

import functools
import json
import shlex
import subprocess
import sys

import pytest
from folders import BENCHMARKS, ROOT


@functools.cache
def printed(*args):
    done = subprocess.run([sys.executable, *args], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("device, count", [("cpu", 7), ("cuda", 1)])
def test_one_command_runs_the_scripts_that_the_docs_list(device, count):
    script = BENCHMARKS / "study.py"
    listed = printed(script, "--list", "--work", "folder", "--device", device).splitlines()
    text = (ROOT / "docs/study/index.md").read_text()
    places = [text.index(f"| `{command}` |") for command in listed]
    assert len(listed) == count and places == sorted(places)


def test_its_scripts_know_their_options():
    for command in printed(BENCHMARKS / "study.py", "--list").splitlines():
        _, script, *words = shlex.split(command)
        told = printed(ROOT / script, "--help")
        assert all(word in told for word in words if word.startswith("--"))


@pytest.mark.parametrize("is_resumed", [False, True])
def test_the_seconds_of_a_complete_run_are_kept(script, monkeypatch, tmp_path, is_resumed):
    study, work = script("study"), tmp_path / "work"
    work.mkdir()
    if is_resumed:
        (work / "rows.jsonl").touch()
    group = ("gate.py --help", "devices.py --help")
    monkeypatch.setattr(study, "COMMANDS", {"cpu": (group, ("stacks.py --help",)), "cuda": ()})
    monkeypatch.setattr(study, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["study.py", "--work", str(work)])
    monkeypatch.setenv("TCSOLVE_MATRICES", str(tmp_path))

    study.main()

    kept = tmp_path / "study.json"
    assert kept.exists() != is_resumed
    if not is_resumed:
        rows = json.loads(kept.read_text())["rows"]
        assert [row["commands"] for row in rows] == [["gate.py", "devices.py"], ["stacks.py"]]
        assert all(0 < row["seconds"] < 60 for row in rows)


def test_a_run_that_fails_keeps_no_seconds(script, monkeypatch, tmp_path):
    study = script("study")
    commands = ("gate.py --help",), ("gate.py --no-such-option",)
    monkeypatch.setattr(study, "COMMANDS", {"cpu": commands, "cuda": ()})
    monkeypatch.setattr(study, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["study.py", "--work", str(tmp_path / "work")])
    monkeypatch.setenv("TCSOLVE_MATRICES", str(tmp_path))

    with pytest.raises(SystemExit, match=r"gate\.py failed"):
        study.main()

    assert not list(tmp_path.glob("*.json"))


def test_the_command_needs_a_folder_of_matrices(monkeypatch, tmp_path):
    monkeypatch.delenv("TCSOLVE_MATRICES", raising=False)
    args = [sys.executable, BENCHMARKS / "study.py", "--work", tmp_path]
    done = subprocess.run(args, capture_output=True, text=True)
    assert done.returncode == 1 and "TCSOLVE_MATRICES" in done.stderr
