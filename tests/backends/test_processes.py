"""Factorizations and errors in other processes: forked children, pickles, pools."""

import copy
import inspect
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import tcsolve
from tcsolve import _errors, factor, matrices

ERRORS = [
    cls
    for _, cls in inspect.getmembers(_errors, inspect.isclass)
    if issubclass(cls, Exception) and cls.__module__ == _errors.__name__
]
COMPILE = ("panel", "sm_90a", ("-DROWS=2", "--fmad=true"), "error: expected a ';'")


def made(cls):
    return cls(*COMPILE) if cls is tcsolve.KernelCompileError else cls("what was got", 3)


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_survives_a_pickle_with_all_it_holds(cls, protocol):
    error = made(cls)
    error.add_note("while solving block 7")

    found = pickle.loads(pickle.dumps(error, protocol))

    assert type(found) is cls and str(found) == str(error) and found.args == error.args
    assert vars(found) == vars(error)


def fail(number):
    raise tcsolve.KernelCompileError(*COMPILE)


def test_a_pool_passes_on_the_error_of_a_worker():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        result = pool.map_async(fail, [0])
        with pytest.raises(tcsolve.KernelCompileError, match="expected a ';'") as caught:
            result.get(timeout=120)

    assert caught.value.options == COMPILE[2] and caught.value.log == COMPILE[3]


def run(text, **environment):
    """Run a script in another Python process.  Its BLAS has no threads, because a fork may interrupt them."""
    command = [sys.executable, "-P", "-c", textwrap.dedent(text)]
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1"} | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
# If a child waits for a lock that is never released, its alarm ends it.
FORK = """
    import os, signal, threading, time
    import numpy as np
    import tcsolve

    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((600, 600)), rng.standard_normal(600)
    f = tcsolve.factor(a, precision={precision!r})
    expected, stop = f.solve(b), threading.Event()

    def work():
        while not stop.is_set():
            f.solve(b)

    thread = threading.Thread(target=work)
    thread.start()
    codes = []
    for i in range(5):
        time.sleep(0.05 + 0.003 * i)
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            os._exit(0 if (f.solve(b) == expected).all() else 1)
        codes.append(os.waitpid(child, 0)[1])
    stop.set()
    thread.join()
    print(codes)
"""


@forks
@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_a_child_forked_while_a_thread_solves_can_solve(precision):
    done = run(FORK.format(precision=precision))

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[0, 0, 0, 0, 0]"


FORK_IN_A_CALL = """
    import os, threading, time
    import numpy as np
    import tcsolve

    a, b = np.eye(300) + np.tri(300) / 1e3, np.ones(300)
    inverse, begun, done = np.linalg.inv(a), threading.Event(), []

    def correct(r):
        begun.set()
        time.sleep(0.3)
        done.append(time.perf_counter())
        return inverse @ r

    def fork():
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        return time.perf_counter()

    thread = threading.Thread(target=tcsolve.refine, args=(a, b, correct))
    thread.start()
    begun.wait()
    after = fork()
    thread.join()
    print(after > max(done))
    start = time.perf_counter()
    tcsolve.refine(a, b, lambda r: (fork(), inverse @ r)[1])  # its own call is no reason to wait
    print(time.perf_counter() - start < 5)
"""


@forks
def test_a_fork_waits_for_the_calls_of_other_threads():
    done = run(FORK_IN_A_CALL)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True"]


FORK_OF_STRUCTURED = """
    import os, signal, threading, time
    import numpy as np
    import tcsolve

    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((600, 600)), rng.standard_normal(600)
    a += a.T
    expected, stop = tcsolve.solve(a, b, assume_a="sym"), threading.Event()

    def work():
        while not stop.is_set():
            tcsolve.solve(a, b, assume_a="sym")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    codes = []
    for i in range(20):
        time.sleep(0.005)
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            os._exit(0 if (tcsolve.solve(a, b, assume_a="sym") == expected).all() else 1)
        codes.append(os.waitpid(child, 0)[1])
    stop.set()
    print(set(codes))
"""


@forks
def test_a_child_forked_while_threads_solve_symmetric_systems_can_solve_one():
    done = run(FORK_OF_STRUCTURED)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "{0}"


SLOW_CUPY = """
import time

time.sleep(1)


class cuda:
    class runtime:
        class CUDARuntimeError(Exception):
            pass

        def getDeviceCount():
            return 0
"""
FORK_OF_IMPORT = """
    import os, signal, sys, threading, time
    import tcsolve

    def ask():
        try:
            tcsolve.solve([[2.0]], [1.0], device="cuda")
        except tcsolve.DeviceError:
            return 0

    tcsolve.solve([[2.0]], [1.0])
    thread = threading.Thread(target=ask)
    thread.start()
    while "cupy" not in sys.modules:
        time.sleep(0.01)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        os._exit(ask())
    print(os.waitpid(child, 0)[1])
    thread.join()
"""


@forks
def test_a_child_forked_while_a_thread_imports_cupy_can_import_it(tmp_path):
    (tmp_path / "cupy.py").write_text(SLOW_CUPY)

    done = run(FORK_OF_IMPORT, PYTHONPATH=str(tmp_path))

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "0"


FORK_OF_LOCKS = """
    import os, signal, threading
    from tcsolve._locks import ForkSafeLock

    held, free, own = (ForkSafeLock() for _ in range(3))
    begun, stop = threading.Event(), threading.Event()

    def hold():
        with held:
            begun.set()
            stop.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    with own:
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            with held, free, own:
                states = held.interrupted, free.interrupted, own.interrupted
    if child == 0:
        found = []
        def enter():
            with held, free, own:
                found.append(states)
        other = threading.Thread(target=enter)
        other.start()
        other.join()
        os._exit(0 if found == [(True, False, False)] else 1)
    code = os.waitpid(child, 0)[1]
    stop.set()
    thread.join()
    print(code, held.interrupted)
"""


@forks
def test_a_forked_child_finds_a_lock_free_that_a_thread_held():
    done = run(FORK_OF_LOCKS)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "False"]


def duplicates():
    return [copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))]


@pytest.mark.parametrize("duplicate", duplicates(), ids=["copy", "deepcopy", "pickle"])
@pytest.mark.parametrize("precision", ["fp16", "fp16x3", "fp32", "fp64"])
@pytest.mark.parametrize("dtype", ["f", "d", "D"])
def test_a_copied_factorization_answers_with_the_same_bits(dtype, precision, duplicate):
    problem = matrices.generate("svd_geo", 60, cond=1e3, dtype=np.dtype(dtype), nrhs=3)
    f = factor(problem.a, precision=precision)
    expected = f.solve_ex(problem.b)

    g = duplicate(factor(problem.a, precision=precision))
    found = g.solve_ex(problem.b)

    assert (found.x == expected.x).all() and found.rungs == expected.rungs
    assert (found.backward_error == expected.backward_error).all()
    assert g.slogdet() == f.slogdet() and g.nbytes == f.nbytes
    assert g.rcond() == pytest.approx(
        f.rcond(), rel=1e-6
    )  # LAPACK's depends on where its workspace is


def test_a_scaled_factorization_and_one_in_a_frame_are_copied():
    for exponent in (30, 300):
        a = matrices.generate("gauss", 40).a * 10.0 ** np.linspace(-exponent, exponent, 40)[:, None]
        b = a @ np.ones(40)
        f = factor(a, precision="fp16x3")
        g = pickle.loads(pickle.dumps(f))
        assert (g.solve_ex(b).x == f.solve_ex(b).x).all()


def test_a_copy_gets_more_precise_factors_by_itself():
    f = factor(matrices.generate("svd_geo", 50, cond=1e12).a, precision="fp16x3")
    g = copy.copy(f)

    f.rcond()

    assert f.rungs == ("fp16x3", "fp64") and g.rungs == ("fp16x3",)
    assert g.precision == "fp16x3"
    assert g.rcond() == pytest.approx(f.rcond(), rel=1e-6)
    assert g.rungs == ("fp16x3", "fp64") and g.precision == "fp64"


@pytest.mark.gpu
def test_factors_on_a_device_are_not_copied(cupy):
    f = factor(cupy.asarray(matrices.generate("gauss", 50).a))
    for duplicate in duplicates():
        with pytest.raises(TypeError, match="share them"):
            duplicate(f)


CHILD_OF_A_DEVICE = """
    import os, signal
    import cupy
    import tcsolve

    a = cupy.random.default_rng(0).standard_normal((300, 300))
    b = cupy.ones(300)
    f = tcsolve.factor(a)
    x = f.solve(b)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        told = 0
        calls = (lambda: f.solve(b), lambda: tcsolve.solve(a, b), f.rcond, f.slogdet,
                 lambda: tcsolve.solve([[2.0, 1.0], [1.0, 3.0]], [1.0, 1.0], device="cuda"))
        for call in calls:
            try:
                call()
            except tcsolve.DeviceError as error:
                told += "fork" in str(error) and "spawn" in str(error)
        host = tcsolve.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 4.0])
        os._exit(0 if told == len(calls) and host.tolist() == [1.0, 1.0] else 1)
    code = os.waitpid(child, 0)[1]
    print(code, (f.solve(b) == x).all())
"""


@pytest.mark.gpu
def test_a_forked_child_is_told_that_the_device_stays_with_its_parent(cupy):
    done = run(CHILD_OF_A_DEVICE)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "True"]
