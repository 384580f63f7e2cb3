"""Results that threads compute before they are asked for."""

import os
import subprocess
import sys
import threading
import time

import pytest

from tcsolve._backends.cuda.runtime.side_by_side import SideBySide


def test_results_are_computed_once_and_at_the_same_time():
    together, calls = threading.Barrier(3, timeout=30), []

    def square(x):
        calls.append(x)
        together.wait()
        return x * x

    squares = SideBySide(square, threads=3)
    squares.start([1, 2, 3, 2])
    squares.start([3, 1])
    assert [squares.get(x) for x in (3, 1, 2)] == [9, 1, 4]
    assert sorted(calls) == [1, 2, 3]


def test_a_result_that_no_thread_has_begun_is_computed_by_the_thread_that_asks():
    held, here, found = threading.Event(), threading.get_ident(), {}

    def note(x):
        if x == "slow":
            assert held.wait(30)
        found[x] = threading.get_ident()
        return x

    results = SideBySide(note, threads=1)
    results.start(["slow", "next"])
    assert results.get("next") == "next" and found["next"] == here
    assert results.get("new") == "new" and found["new"] == here
    held.set()
    assert results.get("slow") == "slow" and found["slow"] != here


def test_threads_end_when_nothing_waits_and_begin_again():
    before, results = threading.active_count(), SideBySide(lambda x: x, threads=2)
    for x in range(5):
        results.start([x])
        assert results.get(x) == x
        end = time.monotonic() + 30
        while threading.active_count() > before and time.monotonic() < end:
            time.sleep(0.001)
        assert threading.active_count() == before


def test_an_error_reaches_the_thread_that_asks_and_no_other():
    def fail(x):
        raise ValueError(x)

    results = SideBySide(fail, threads=1)
    results.start(["a", "b"])
    for x in ("a", "b"):
        with pytest.raises(ValueError, match=x):
            results.get(x)


PROCESS = """
import sys, threading, time
from tcsolve._backends.cuda.runtime.side_by_side import SideBySide
begun = threading.Event()
def slow(x):
    begun.set(); time.sleep(0.2)
    sys.stdout.write(f"{x}\\n"); sys.stdout.flush()  # in one piece
    return x
results = SideBySide(slow, threads=1)
results.start(range(1000))
begun.wait()
"""


def run(code):
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_end_of_a_process_waits_only_for_what_is_running():
    done = run(PROCESS)
    assert (done.returncode, done.stderr) == (0, "")
    assert 1 <= len(done.stdout.split()) <= 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_computes_by_itself():
    code = PROCESS + (
        "import os, warnings\nwarnings.simplefilter('ignore')\n"
        "if os.fork() == 0:\n    results.get(0); results.get(999); os._exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))"
    )
    done = run(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert "999" in done.stdout.split()
