"""The command that makes the pages of the study: its scripts are those that the docs list."""

import shlex
import subprocess
import sys

import pytest
from folders import BENCHMARKS, ROOT


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


def test_the_command_needs_a_folder_of_matrices(monkeypatch, tmp_path):
    monkeypatch.delenv("TCSOLVE_MATRICES", raising=False)
    args = [sys.executable, BENCHMARKS / "study.py", "--work", tmp_path]
    done = subprocess.run(args, capture_output=True, text=True)
    assert done.returncode == 1 and "TCSOLVE_MATRICES" in done.stderr
