"""SciPy's and NumPy's own tests pass when their functions are replaced by ours."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import scipy
from switches import skip_or_fail

HERE = Path(__file__).parent
# The tests are those of this version; other versions have others.
SCIPY = "1.17.1"
NAMES = (
    *("solve", "lu_factor", "lu_solve", "cho_factor", "cho_solve", "solve_triangular"),
    *("solve_banded", "solveh_banded", "lstsq", "inv", "det"),
)
# The tests of each module, and how many of them pass at least, by the beginning of their ids.
SUITES = {
    "test_basic": (
        "(TestSolve or TestLstsq or TestInv or TestDet or TestOverwrite) and not Circulant",
        {
            **{"TestSolve::": 1000, "TestSolveTriangular::": 25, "TestLstsq::": 60},
            **{"TestInv::": 40, "TestDet::": 30, "TestOverwrite::": 9},
            **{"TestSolveBanded::": 33, "TestSolveHBanded::": 47},
        },
    ),
    "test_decomp_lu": ("TestLUFactor or TestLUSolve", {"": 74}),
    "test_decomp_cholesky": ("not int_overflow", {"": 60}),
    "test_batch": ("solve or lstsq or inv or det", {"": 60}),
}
# Test ids that may fail with our functions, and why; SciPy's own functions pass them.
EXCEPTIONS = {}


def run(plugin, module, select, swap):
    """Run a module of tests in another process; return the ids that passed, and those that failed."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", plugin, "-p", "no:cacheprovider"]
    # With plain assertions and no other plugins, the process starts in half the time.
    command += ["--assert=plain", "--tb=no", "-rfp", "--pyargs", module, "-k", select]
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TCSOLVE_SWAP": swap}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    options = {"capture_output": True, "text": True, "timeout": 900, "env": environment}
    with tempfile.TemporaryDirectory() as folder:  # without a configuration of ours
        done = subprocess.run(command, cwd=folder, **options)
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
    passed, failed = (
        re.findall(rf"^{how} \S*?::(\S+)", done.stdout, re.M) for how in ("PASSED", "FAILED")
    )
    return passed, {*failed}


@pytest.fixture
def scipys_version():
    if scipy.__version__ != SCIPY:
        reason = (
            f"the tests of SciPy {SCIPY} are needed, and SciPy {scipy.__version__} is installed"
        )
        skip_or_fail(reason, "TCSOLVE_REQUIRE_SCIPYS_TESTS")
    if importlib.util.find_spec("scipy.linalg.tests.test_basic") is None:
        skip_or_fail("SciPy is installed without its tests", "TCSOLVE_REQUIRE_SCIPYS_TESTS")


def test_there_are_few_exceptions():
    assert len(EXCEPTIONS) <= 10 and all(EXCEPTIONS.values())


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_scipys_tests_pass_with_our_functions(suite, scipys_version):
    module, (select, least) = f"scipy.linalg.tests.{suite}", SUITES[suite]

    passed, failed = run("swapped", module, select, ",".join(NAMES))

    if failed - {*EXCEPTIONS}:  # some tests fail with SciPy's own functions, too
        failed -= run("swapped", module, select, "")[1]
    assert not failed - {*EXCEPTIONS}
    for start, count in least.items():
        assert sum(name.startswith(start) for name in passed) >= count, start


@pytest.mark.slow
def test_a_function_that_is_wrong_is_seen(scipys_version, tmp_path, monkeypatch):
    broken = "import scipy.linalg\nscipy.linalg.det = lambda a, **options: 7.0\n"
    (tmp_path / "broken.py").write_text(broken)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    _, failed = run("broken", "scipy.linalg.tests.test_basic", "TestDet", "")

    assert len(failed) > 5


@pytest.mark.slow
def test_numpys_tests_pass_with_what_is_installed():
    module, select = "numpy.linalg.tests.test_linalg", "TestSolve or TestInv or TestDet"
    if importlib.util.find_spec(module) is None:
        skip_or_fail("NumPy is installed without its tests", "TCSOLVE_REQUIRE_SCIPYS_TESTS")

    passed, failed = run("installed_everywhere", module, select, "1")

    if failed:  # some tests fail with NumPy's own functions, too
        failed -= run("installed_everywhere", module, select, "")[1]
    assert not failed, np.__version__
    assert len(passed) >= 20
