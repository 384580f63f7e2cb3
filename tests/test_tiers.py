"""What pytest says about tests that need a GPU on a machine without one."""

import os
import re
import subprocess
import sys

from folders import ROOT


def run(*arguments, **environment):
    hidden = {"CUDA_VISIBLE_DEVICES": "", "TCSOLVE_REQUIRE_GPU": "0"} | environment
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, env=os.environ | hidden, cwd=ROOT, capture_output=True, text=True
    )
    return done.returncode, done.stdout


def test_tests_that_need_a_gpu_are_counted_where_there_is_none():
    status, told = run("-n", "1", "tests/solve/test_singular.py", "-k", "scale")

    number = re.search(r"^(\d+) tests need a GPU and were not run: \S", told, re.MULTILINE)
    assert status == 0 and int(number[1]) == int(re.search(r"(\d+) passed", told)[1]) > 0


def test_a_switch_makes_them_fail():
    status, told = run(
        "tests/solve/test_singular.py", "-k", "scale and cupy", TCSOLVE_REQUIRE_GPU="1"
    )
    assert status == 1 and "TCSOLVE_REQUIRE_GPU=1, but" in told and "passed" not in told
