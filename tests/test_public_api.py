"""The public names, their documentation, and what importing them costs."""

import ast
import doctest
import importlib
import importlib.util
import inspect
import operator
import pkgutil
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import tcsolve

FAMILY = {
    "cho_factor",
    "cho_solve",
    "det",
    "inv",
    "lstsq",
    "lu_factor",
    "lu_solve",
    "solve_banded",
    "solve_triangular",
    "solveh_banded",
}
FUNCTIONS = FAMILY | {
    "clear_cache",
    "factor",
    "gemm",
    "gemm_batched",
    "gemm_bound",
    "installed",
    "lstsq_ex",
    "refine",
    "solve",
    "solve_ex",
    "study",
}
ERRORS = {
    "AccuracyWarning",
    "DeviceError",
    "DeviceMemoryError",
    "InputError",
    "KernelCompileError",
    "LinAlgError",
    "LinAlgWarning",
    "NotPositiveDefiniteError",
    "SingularError",
    "TcsolveError",
}
CLASSES = {
    *("Factorization", "GemmBound", "LeastSquares", "Plan", "Solution", "StackFactorization"),
    *("Status", "StudyTable"),
}
METHODS = ("solve", "solve_ex", "rcond", "slogdet")
CALLABLES = [getattr(tcsolve, name) for name in sorted(FUNCTIONS)]
CALLABLES += [getattr(tcsolve.Factorization, name) for name in METHODS]
CALLABLES += [getattr(tcsolve.StackFactorization, name) for name in METHODS]
CALLABLES += [getattr(tcsolve.StudyTable, name) for name in ("text", "draw", "summary")]
OTHERS_ERRORS = {"LinAlgError", "LinAlgWarning"}
WITH_EXAMPLES = [*CALLABLES, tcsolve.Solution.to_dict, tcsolve.StudyTable.read]
WITH_EXAMPLES += [tcsolve.StudyTable.write]
WITH_EXAMPLES += [getattr(tcsolve, name) for name in sorted(CLASSES | ERRORS - OTHERS_ERRORS)]


def sections(function):
    """Return the numpydoc sections of a docstring: {title: lines}."""
    lines = inspect.getdoc(function).splitlines()
    starts = [i for i in range(len(lines) - 1) if re.fullmatch("-{3,}", lines[i + 1])]
    ends = [*starts, len(lines)][1:]
    return {lines[i]: lines[i + 2 : end] for i, end in zip(starts, ends, strict=True)}


def documented(lines):
    """Return the names that a Parameters or Raises section describes."""
    heads = [line for line in lines if line and not line[0].isspace()]
    return [name.strip(" *") for head in heads for name in head.split(" : ")[0].split(",")]


def parameters(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


# ---- names


def test_the_public_names_are_these():
    assert set(tcsolve.__all__) == FUNCTIONS | ERRORS | CLASSES
    assert list(tcsolve.__all__) == sorted(tcsolve.__all__)
    assert all(hasattr(tcsolve, name) for name in tcsolve.__all__)


def test_nothing_else_without_an_underscore_is_defined_there():
    modules = {"kernels", "matrices", "cli"}
    names = {name for name in vars(tcsolve) if not name.startswith("_")}
    assert names <= set(tcsolve.__all__) | modules


def test_a_name_that_is_not_there_is_an_attribute_error_of_the_library():
    with pytest.raises(AttributeError, match="module 'tcsolve' has no attribute 'slove'"):
        tcsolve.slove  # noqa: B018


def test_the_version_has_three_numbers():
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", tcsolve.__version__)


@pytest.mark.parametrize("name", sorted(ERRORS - OTHERS_ERRORS))
def test_every_error_is_one_of_the_librarys_and_says_what_it_means(name):
    error = getattr(tcsolve, name)
    assert issubclass(error, (tcsolve.TcsolveError, Warning))
    assert error.__doc__ and error.__doc__[0].isupper()


# ---- documentation


@pytest.mark.parametrize("name", sorted(FUNCTIONS | CLASSES))
def test_every_public_name_starts_with_one_sentence_on_one_line(name):
    lines = inspect.getdoc(getattr(tcsolve, name)).splitlines()
    assert lines[0].endswith(".")
    assert len(lines[0]) <= 100
    assert len(lines) == 1 or lines[1] == ""


@pytest.mark.parametrize("function", CALLABLES, ids=lambda f: f.__qualname__)
def test_every_parameter_is_documented_in_the_order_of_the_signature(function):
    text = inspect.getdoc(function)
    if same := re.search(r"Takes the arguments of `([\w.]+)`", text):
        other = operator.attrgetter(same[1])(tcsolve)
        assert inspect.signature(function) == inspect.signature(other)
    if parameters(function):
        assert documented(sections(function)["Parameters"]) == parameters(function)


@pytest.mark.parametrize("function", CALLABLES, ids=lambda f: f.__qualname__)
def test_every_function_says_what_it_returns(function):
    assert any(line.strip() for line in sections(function)["Returns"])


@pytest.mark.parametrize("function", CALLABLES, ids=lambda f: f.__qualname__)
def test_what_a_function_raises_itself_is_documented(function):
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = (node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc)
    raised = {call.func.id for call in calls if isinstance(call, ast.Call)}
    if raised:
        assert raised <= set(documented(sections(function)["Raises"]))


@pytest.mark.parametrize("name", ["Plan", "Solution", "Factorization", "StackFactorization"])
def test_every_public_attribute_of_a_class_is_documented(name):
    cls = getattr(tcsolve, name)
    found = sections(cls)
    listed = documented(found.get("Attributes", []) + found.get("Parameters", []))
    fields = getattr(cls, "__dataclass_fields__", {})
    properties = [key for key, value in vars(cls).items() if isinstance(value, property)]
    public = [key for key in [*fields, *properties] if not key.startswith("_") and key != "ok"]
    assert set(public) <= set(listed)


def modules():
    names = [module.name for module in pkgutil.walk_packages(tcsolve.__path__, "tcsolve.")]
    return ["tcsolve", *sorted(names)]


def test_every_example_in_a_docstring_runs():
    attempted = 0
    for name in modules():
        # A module without an example is not imported, because it may need CuPy.
        spec = importlib.util.find_spec(name)
        if ">>> " not in Path(spec.origin).read_text("utf-8"):
            continue
        failed, tried = doctest.testmod(importlib.import_module(name))
        assert failed == 0, name
        attempted += tried
    assert attempted >= 15


@pytest.mark.parametrize("public", WITH_EXAMPLES, ids=lambda public: public.__qualname__)
def test_every_public_name_has_an_example(public):
    assert any(">>> " in line for line in sections(public)["Examples"])


# ---- importing


def run(code):
    return subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=120
    ).stdout


def test_importing_the_library_imports_neither_cupy_nor_test_problems():
    out = run("import sys, tcsolve; tcsolve.solve; print(*sorted(sys.modules))").split()
    assert "tcsolve._solve.api" in out
    heavy = ("cupy", "cupyx", "cupy_backends", "matplotlib", "pooch", "tcsolve.matrices")
    assert not [name for name in out if name.startswith(heavy)]


def test_nothing_is_loaded_before_a_name_is_used():
    out = run("import sys, tcsolve; print(*sys.modules)").split()
    assert not [name for name in out if name.startswith(("numpy", "scipy", "tcsolve."))]


def test_the_test_problems_need_no_import_of_their_own():
    code = "import tcsolve\nprint(tcsolve.matrices.generate('hilbert', 3).n, *dir(tcsolve))"
    n, *names = run(code).split()
    assert n == "3"
    assert {"matrices", "__version__", *tcsolve.__all__} <= set(names)


@pytest.mark.slow
def test_solving_a_small_system_on_the_host_imports_no_cupy():
    code = (
        "import sys, numpy as np, tcsolve\n"
        "tcsolve.solve(np.eye(100) + 1, np.ones(100))\n"
        "tcsolve.solve(np.eye(100) + 1, np.ones(100), precision='fp16x3')\n"
        "print(*[name for name in sys.modules if name.startswith('cupy')])"
    )
    assert run(code).strip() == ""


@pytest.mark.slow
def test_importing_takes_little_longer_than_scipys_linear_algebra():
    code = (
        "import scipy.linalg, time\n"
        "start = time.process_time()\n"
        "import tcsolve\n"
        "tcsolve.solve\n"
        "print(time.process_time() - start)"
    )
    assert min(float(run(code)) for _ in range(5)) < 0.3


def test_sources_that_are_not_installed_say_so(tmp_path):
    """A clone has the kernels and the test problems in folders beside the package."""
    shutil.copytree(
        Path(tcsolve.__file__).parent,
        tmp_path / "tcsolve",
        ignore=shutil.ignore_patterns("__pycache__", "kernels", "matrices"),
    )
    # -S: the finder of an installation in place is not loaded.
    for code in ("import tcsolve", "from tcsolve import solve", "import tcsolve.__main__"):
        done = subprocess.run(
            [sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("ImportError: tcsolve: ")
        assert "pip install -e ." in done.stderr
