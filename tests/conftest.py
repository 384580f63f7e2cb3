"""Fixtures: the array libraries, and skips that a switch turns into failures."""

import gc
import importlib
import importlib.util
import os
import subprocess
import sys

# Processes that test at the same time share the cores.  Threads of BLAS waste time if they wait for a core.
# OpenBLAS reads the variable when NumPy is imported.
if count := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))

import hypothesis
import numpy as np
import pytest
from folders import BENCHMARKS, ROOT
from switches import import_or_skip, skip_or_fail

# The same examples in every run, on machines of any speed.
hypothesis.settings.register_profile(
    "fixed", derandomize=True, deadline=None, max_examples=50, database=None
)
hypothesis.settings.load_profile("fixed")

# Seconds of random cases on each array library, unless --fuzz-seconds has another number.
FUZZ_SECONDS = 12.0
TALLIES = pytest.StashKey()
# The process that compiles kernels.
AHEAD = pytest.StashKey()
# What to say about tests that were not run because there is no GPU.
NOT_RUN = pytest.StashKey()


def pytest_addoption(parser):
    group = parser.getgroup("fuzz", "random cases: see docs/contributing/random_cases.md")
    group.addoption(
        "--fuzz-seconds",
        type=float,
        default=FUZZ_SECONDS,
        metavar="T",
        help="seconds that all kinds of random cases share, on each array library (default %(default)s)",
    )
    group.addoption(
        "--fuzz-seed", type=int, default=0, metavar="S", help="seed of the cases (default 0)"
    )
    group.addoption("--fuzz-case", metavar="KIND:SEED:NUMBER", help="only this case")


def pytest_configure(config):
    config.stash[TALLIES] = []
    # The thousands of tests that pytest collects stay until the end.  The garbage collector would look at
    # them again and again, for a quarter of the time that pytest needs to collect them.
    gc.disable()


def compiles(item):
    """Tell whether a test compiles kernels that the cache may have."""
    return getattr(item, "originalname", None) == "test_kernel_compiles"


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config, items):
    leave_out_gpu_tests(config, items)
    if hasattr(config, "workerinput"):
        # Processes that share the tests end at about the same time if long tests come first.
        items.sort(key=lambda item: (not compiles(item), item.get_closest_marker("slow") is None))
    else:
        items.sort(key=compiles)  # they come last, after another process has compiled the kernels


def leave_out_gpu_tests(config, items):
    """Deselect the tests that need a GPU if there is none; the last lines of pytest say so.

    To skip these thousands of tests one by one takes half a minute.
    """
    of_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not of_gpu or os.environ.get("TCSOLVE_REQUIRE_GPU") == "1":
        return
    module, reason = _import_cupy()
    if module is not None:
        return
    items[:] = [item for item in items if not item.get_closest_marker("gpu")]
    config.hook.pytest_deselected(items=of_gpu)
    config.stash[NOT_RUN] = f"{len(of_gpu)} tests need a GPU and were not run: {reason}"
    if hasattr(config, "workeroutput"):
        config.workeroutput["not_run"] = config.stash[NOT_RUN]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """Take over what a process that has ended says about its tests."""
    if told := getattr(node, "workeroutput", {}).get("not_run"):
        node.config.stash[NOT_RUN] = told


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Let a process that has done its tests take some of another one, so that none is idle at the end."""
    if config.option.dist == "load":  # what -n means without --dist
        from xdist.scheduler import WorkStealingScheduling

        return WorkStealingScheduling(config, log)


def pytest_collection_finish(session):
    """Let another process compile the kernels while the tests that need none run."""
    # The collected tests are hundreds of thousands of objects, so look for garbage less often than usual.
    gc.set_threshold(10_000, 20, 20)
    gc.enable()
    chosen = sum(map(compiles, session.items))
    alone = not hasattr(session.config, "workerinput") and not session.config.option.collectonly
    if alone and 100 < chosen < len(session.items) / 2 and importlib.util.find_spec("cupy"):
        options = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = [sys.executable, "-P", ROOT / "tests" / "kernel_shares.py"]
        session.config.stash[AHEAD] = subprocess.Popen(command, **options)


def pytest_sessionfinish(session):
    ahead = session.config.stash.get(AHEAD, None)
    if ahead is not None:
        ahead.kill()
        ahead.wait()


def pytest_terminal_summary(terminalreporter, config):
    for tally in config.stash[TALLIES]:
        terminalreporter.write_line(str(tally))
    if told := config.stash.get(NOT_RUN, None):
        terminalreporter.write_line(told)


@pytest.fixture
def fuzz_tallies(request):
    """The list of the results of the random cases, which is printed at the end."""
    return request.config.stash[TALLIES]


def _import_cupy():
    """Return (cupy, None) if a CUDA device can be used, else (None, reason)."""
    try:
        import cupy
    except ImportError as error:
        return None, f"CuPy cannot be imported: {error}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return None, f"no CUDA driver: {error}"
    return (cupy, None) if count else (None, "no CUDA device")


@pytest.fixture(scope="session")
def cupy():
    """The CuPy module, on a machine with a CUDA device."""
    module, reason = _import_cupy()
    if module is None:
        skip_or_fail(reason, "TCSOLVE_REQUIRE_GPU")
    return module


@pytest.fixture
def script(monkeypatch):
    """A function that imports a script of benchmarks/, with the import path that Python gives the script."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture
def script_with_bits(script):
    """As `script`, for scripts that set the bits of flint's numbers; afterwards these are as before."""
    flint = importlib.import_module("flint")
    before = flint.ctx.prec

    def imported(name):
        module = script(name)
        flint.ctx.prec = module.BITS
        return module

    yield imported
    flint.ctx.prec = before


@pytest.fixture
def matplotlib():
    return import_or_skip("matplotlib")


@pytest.fixture
def ops(cupy):
    """The primitives that launch the kernels."""
    from tcsolve._backends.cuda.ops import CupyOps

    return CupyOps()


@pytest.fixture
def hopper(cupy):
    """The CuPy module, on a device of compute capability 9.0, as the driver says."""
    if cupy.cuda.Device().compute_capability != "90":
        pytest.skip("for compute capability 9.0")
    return cupy


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request):
    """NumPy, then CuPy: one test text for both."""
    return np if request.param == "numpy" else request.getfixturevalue("cupy")


@pytest.fixture(scope="session")
def nvrtc():
    """CuPy's binding of NVRTC, which compiles kernels without a device."""
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError) as error:
        skip_or_fail(f"NVRTC cannot be loaded: {error}", "TCSOLVE_REQUIRE_NVRTC")
    return nvrtc


@pytest.fixture(scope="session")
def matrices_folder():
    """The folder of collection matrices."""
    folder = os.environ.get("TCSOLVE_MATRICES")
    if not folder or not os.path.isdir(folder):
        reason = f"TCSOLVE_MATRICES is {folder!r}, not a folder of collection matrices"
        skip_or_fail(reason, "TCSOLVE_REQUIRE_MATRICES")
    return folder
