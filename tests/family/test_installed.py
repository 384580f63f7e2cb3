"""`installed` and `tcsolve run`: the names of SciPy, NumPy and CuPy, rebound for a while or for a program."""

import asyncio
import contextvars
import os
import pickle
import py_compile
import shutil
import subprocess
import sys
import threading
import types

import numpy as np
import pytest
import scipy.linalg
from systems import gauss

import tcsolve
from tcsolve._family.installed import SCIPY
from tcsolve._family.replaced import NUMPY

A, B = gauss(40), np.ones(40)
PLACES = [(scipy.linalg, name) for name in SCIPY] + [(np.linalg, name) for name in NUMPY]
BEFORE = {(module.__name__, name): getattr(module, name) for module, name in PLACES}


def names_are_as_before():
    return all(getattr(module, name) is BEFORE[module.__name__, name] for module, name in PLACES)


def is_ours():
    return type(scipy.linalg.lu_factor(A)).__name__ == "LUFactors"


def test_the_family_is_rebound_in_the_block_and_as_before_after_it():
    assert len(PLACES) >= 14
    with tcsolve.installed():
        assert is_ours()
        assert not any(
            getattr(module, name) is BEFORE[module.__name__, name] for module, name in PLACES
        )
    assert names_are_as_before() and not is_ours()


def test_the_default_driver_of_scipy_is_obeyed(monkeypatch):
    a, b = np.ones((3, 2)), np.ones(3)
    assert len(tcsolve.lstsq(a, b)[3]) == 2
    tcsolve.lstsq.default_lapack_driver = "gelsy"
    try:
        assert tcsolve.lstsq(a, b)[3] is None
    finally:
        tcsolve.lstsq.default_lapack_driver = "gelsd"
    monkeypatch.setattr(scipy.linalg.lstsq, "default_lapack_driver", "gelsy")
    assert scipy.linalg.lstsq(a, b)[3] is None is tcsolve.lstsq(a, b)[3]
    with tcsolve.installed():
        assert scipy.linalg.lstsq(a, b)[3] is None
        monkeypatch.setattr(scipy.linalg.lstsq, "default_lapack_driver", "gelsd")
        assert len(scipy.linalg.lstsq(a, b)[3]) == 2


def test_the_names_are_as_before_after_an_exception():
    with pytest.raises(ZeroDivisionError), tcsolve.installed():
        1 / 0  # noqa: B018
    assert names_are_as_before()


def test_blocks_nest():
    with tcsolve.installed():
        with tcsolve.installed():
            assert is_ours()
        assert is_ours()
    assert names_are_as_before()


def in_a_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_other_threads_call_what_was_there_before():
    with tcsolve.installed():
        assert not in_a_thread(is_ours)
        assert is_ours()


def test_blocks_of_two_threads_overlap():
    entered, leave, found = threading.Event(), threading.Event(), []

    def other():
        with tcsolve.installed():
            entered.set()
            leave.wait(60)
            found.append(is_ours())

    thread = threading.Thread(target=other)
    with tcsolve.installed():
        thread.start()
        assert entered.wait(60)
    assert not is_ours()  # this thread has left its block
    leave.set()
    thread.join()
    assert found == [True] and names_are_as_before()


def test_another_task_calls_what_was_there_before():
    async def inside(entered, leave):
        with tcsolve.installed():
            entered.set()
            await leave.wait()
            return is_ours()

    async def main():
        entered, leave = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(inside(entered, leave))
        await entered.wait()
        here = is_ours()
        leave.set()
        return here, await task

    assert asyncio.run(main()) == (False, True)
    assert names_are_as_before()


def test_a_name_that_somebody_else_binds_meanwhile_is_theirs(monkeypatch):
    def theirs(a, b):
        return "theirs"

    monkeypatch.setattr(np.linalg, "solve", np.linalg.solve)  # undone after the test
    with tcsolve.installed():
        np.linalg.solve = theirs
    assert np.linalg.solve is theirs
    monkeypatch.undo()
    assert names_are_as_before()


def test_signatures_and_documentation_stay():
    with tcsolve.installed():
        assert scipy.linalg.solve.__doc__ == BEFORE["scipy.linalg", "solve"].__doc__
        assert scipy.linalg.solve.__name__ == "solve"


def test_answers_are_those_of_the_libraries():
    cases = {
        "solve": (A, B),
        "inv": (A,),
        "det": (A,),
    }
    for name, args in cases.items():
        for module in (np.linalg, scipy.linalg):
            expected = getattr(module, name)(*args)
            with tcsolve.installed():
                found = getattr(module, name)(*args)
            assert np.allclose(found, expected, rtol=1e-10)
    stack = np.stack([A, A.T]), B
    with tcsolve.installed():
        assert np.allclose(np.linalg.solve(*stack), scipy.linalg.solve(*stack), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "a, b",
    [
        (np.eye(3, dtype=np.float32), np.ones(3, np.float32)),
        (np.eye(3, dtype=np.float32), np.ones(3)),
        (np.eye(3, dtype=int), np.ones(3, int)),
        (np.eye(3, dtype=np.complex64), np.ones((3, 2), np.float32)),
        (np.eye(3), np.ones((3, 0))),
        (np.empty((0, 0)), np.empty((0, 2))),
        ([[2.0]], [1.0]),
        (np.asmatrix(np.eye(2)), np.ones((2, 1))),
        (np.ones((2, 3)), np.ones(2)),
        (np.eye(3), np.ones(4)),
        (np.eye(3, dtype=np.float16), np.ones(3)),
        (np.zeros((3, 3)), np.ones(3)),
        (np.zeros((3, 3)), np.ones((3, 0))),
        (np.full((2, 2), np.nan), np.ones(2)),
        (np.diag([1.0, 1e-30]), np.ones(2)),
    ],
)
@pytest.mark.parametrize("name", ["solve", "inv", "det"])
def test_numpys_dtypes_and_errors_stay(a, b, name):
    def outcome():
        try:
            x = getattr(np.linalg, name)(*((a, b) if name == "solve" else (a,)))
            return [type(x), x.dtype, np.shape(x)], np.asarray(x)
        except (ValueError, TypeError) as error:  # LinAlgError is a ValueError
            kind = type(error) if type(error) in (ValueError, TypeError) else "LinAlgError"
            return kind, np.zeros(0)

    with np.errstate(all="ignore"):
        kind, expected = outcome()
        with tcsolve.installed():
            ours, found = outcome()
    assert ours == kind
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_fp32_answers_of_numpy_are_computed_in_fp64():
    a = (np.diag(np.geomspace(1, 1e-4, 40)) @ gauss(40)).astype(np.float32)
    b = np.ones(40, np.float32)
    expected = np.linalg.solve(a, b)
    with tcsolve.installed():
        found = np.linalg.solve(a, b)
    assert found.dtype == np.float32 and np.allclose(found, expected, rtol=1e-6)


@pytest.mark.gpu
def test_cupys_names_are_rebound_and_its_errors_stay(cupy):
    import cupyx

    before, a, b = cupy.linalg.solve, cupy.asarray(A), cupy.asarray(B)
    expected, singular = cupy.linalg.solve(a, b), cupy.zeros((40, 40))
    with tcsolve.installed():
        assert cupy.linalg.solve is not before
        assert cupy.allclose(cupy.linalg.solve(a, b), expected)
        assert cupy.allclose(cupy.linalg.inv(a) @ a, cupy.eye(40))
        assert not cupy.isfinite(cupy.linalg.solve(singular, b)).all()
        with cupyx.errstate(linalg="raise"), pytest.raises(np.linalg.LinAlgError):
            cupy.linalg.solve(singular, b)
    assert cupy.linalg.solve is before


# ---- the command

PROGRAM = """
import sys, threading
from scipy.linalg import lu_factor
import numpy as np
print(sys.argv[1:], __name__)
found = []
thread = threading.Thread(target=lambda: found.append(type(lu_factor(np.eye(3))).__name__))
thread.start(); thread.join()
print(found[0], np.linalg.solve(2 * np.eye(2), np.ones(2)).tolist())
"""


def run(*args, cwd, **environment):
    command = [sys.executable, "-m", "tcsolve", "run", *map(str, args)]
    how = {"env": os.environ | environment, "cwd": cwd, "timeout": 120}
    return subprocess.run(command, capture_output=True, text=True, **how)


@pytest.mark.slow
@pytest.mark.parametrize("how", [["program.py"], ["-m", "program"]])
def test_a_program_runs_with_our_functions_in_all_threads(how, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run(*how, "--quiet", "-x", "1", cwd=tmp_path)
    assert done.returncode == 0 and not done.stderr
    assert done.stdout == "['--quiet', '-x', '1'] __main__\nLUFactors [0.5, 0.5]\n"


@pytest.mark.slow
def test_the_errors_of_a_program_are_its_own(tmp_path):
    (tmp_path / "fails.py").write_text("open('nothing.txt')")
    done = run("fails.py", cwd=tmp_path)
    assert (
        done.returncode == 1 and "Traceback" in done.stderr and "FileNotFoundError" in done.stderr
    )
    (tmp_path / "ends.py").write_text("import sys; sys.exit(7)")
    assert run("ends.py", cwd=tmp_path).returncode == 7


def test_a_program_that_is_not_there_is_refused(capsys):
    from tcsolve.cli.command import main

    assert main(["run", "nothing.py"]) == 2
    assert "nothing.py is not a file" in capsys.readouterr().err
    assert names_are_as_before() and isinstance(scipy.linalg.solve, types.FunctionType)


def test_our_own_calls_of_numpy_end():
    stack = np.stack([A, A.T, np.zeros((40, 40))]), np.ones((3, 40, 1))
    expected = tcsolve.solve_ex(*stack)
    with tcsolve.installed():
        found = tcsolve.solve_ex(*stack)
        assert np.array_equal(np.linalg.solve(stack[0][:2], stack[1][:2]), found.x[:2])
    assert np.array_equal(found.x, expected.x, equal_nan=True)
    assert (found.statuses == expected.statuses).all()


@pytest.mark.parametrize("integer", ["i1", "i2", "u1", "i8"])
@pytest.mark.parametrize("other", ["f4", "c8", "f8", "i1"])
def test_integers_are_float64_as_in_numpy(integer, other):
    a, b = np.array([[4, 1], [1, 3]], integer), np.array([3, 4], other)
    for arguments in ((a, b), (a.astype(other), np.array([3, 4], integer))):
        expected = np.linalg.solve(*arguments)
        with tcsolve.installed():
            assert np.linalg.solve(*arguments).dtype == expected.dtype


def test_arrays_that_are_not_finite_or_byte_swapped_are_solved_as_in_numpy():
    b = np.array([np.nan, 1])
    with tcsolve.installed():
        with pytest.raises(np.linalg.LinAlgError):
            np.linalg.solve(np.zeros((2, 2)), b)
        assert np.linalg.det(np.eye(2).astype(">f8")[None]).dtype.isnative
        found = np.linalg.solve(np.diag([1.0, np.inf]), np.ones(2))
    np.testing.assert_array_equal(found, np.linalg.solve(np.diag([1.0, np.inf]), np.ones(2)))


def test_functions_are_pickled_by_their_names():
    with tcsolve.installed():
        for module, name in PLACES:
            function = getattr(module, name)
            assert pickle.loads(pickle.dumps(function)) is function


def test_a_block_that_ends_in_another_context_leaves_the_names_as_before():
    block = tcsolve.installed()
    contextvars.copy_context().run(block.__enter__)
    assert not names_are_as_before()
    block.__exit__(None, None, None)
    assert names_are_as_before()


FILES = """
import multiprocessing, os, pickle, sys
import numpy as np, scipy.linalg
class A: pass
if __name__ == "__main__":
    pickle.loads(pickle.dumps(A()))
    os.chdir("/")
    print(os.path.isabs(__file__), open(os.path.join(os.path.dirname(__file__), "data.txt")).read(), sys.argv)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(scipy.linalg.det, [2 * np.eye(2)])[0])
"""


@pytest.mark.slow
def test_a_program_finds_its_files_and_its_processes_find_its_functions(tmp_path):
    (tmp_path / "program.py").write_text(FILES)
    (tmp_path / "data.txt").write_text("data")
    done = run("program.py", "-q", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "True data ['program.py', '-q']\n4.0\n"


LATE = """
import atexit, pickle, sys
class A: pass
print(sys.argv, sys.path[0], __name__)
atexit.register(lambda: print(type(pickle.loads(pickle.dumps(A()))) is A))
"""


@pytest.mark.slow
def test_compiled_code_and_links_find_the_files_beside_them(tmp_path):
    for name in ("p", "q"):
        (tmp_path / name).mkdir()
    (tmp_path / "p" / "beside.py").write_text("")
    (tmp_path / "p" / "a.py").write_text("import beside; print(__loader__.is_package('__main__'))")
    (tmp_path / "p" / "b.py").write_text("import beside")
    py_compile.compile(str(tmp_path / "p" / "b.py"), str(tmp_path / "p" / "b.pyc"))
    (tmp_path / "q" / "c.py").symlink_to(tmp_path / "p" / "a.py")
    assert run("p/b.pyc", cwd=tmp_path).returncode == 0
    done = run("q/c.py", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


def test_a_block_that_another_context_has_begun_does_not_outlive_itself():
    context, block = contextvars.copy_context(), tcsolve.installed()
    context.run(block.__enter__)
    block.__exit__(None, None, None)
    with tcsolve.installed():
        assert is_ours()
        assert type(context.run(scipy.linalg.lu_factor, A)) is tuple


def test_blocks_may_end_in_any_order():
    first, second = tcsolve.installed(), tcsolve.installed()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert is_ours()
    second.__exit__(None, None, None)
    assert names_are_as_before()


@pytest.mark.slow
def test_a_folder_and_an_archive_with_a_main_file_are_programs(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(LATE)
    shutil.make_archive(tmp_path / "folder", "zip", tmp_path / "folder")
    for name in ("folder", "folder.zip"):
        done = run(name, "-q", cwd=tmp_path)
        expected = f"['{name}', '-q'] {tmp_path / name} __main__\nTrue\n"
        assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "only_there.py").write_text("")
    (tmp_path / "folder" / "__main__.py").write_text("import only_there")
    path = os.pathsep.join([str(tmp_path / "lib"), os.environ.get("PYTHONPATH", "")])
    done = run("folder", cwd=tmp_path, PYTHONSAFEPATH="1", PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (0, "")
