"""Type checkers find mistakes in code that uses the library, and the type stubs agree with the code."""

import ast
import dataclasses
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tcsolve.matrices
from switches import import_or_skip

import tcsolve
from tcsolve._arithmetic import products
from tcsolve._arithmetic.tensor_cores import UNITS
from tcsolve._checks import STRUCTURES
from tcsolve._plan import MODEL_NAMES, UPDATE_NAMES

CODE = Path(__file__).parent / "user_code"
RIGHT, WRONG = CODE / "right.py", CODE / "wrong.py"
TYPES = {
    name: Path(module.__file__).with_suffix(".pyi")
    for name, module in (("tcsolve", tcsolve), ("tcsolve.matrices", tcsolve.matrices))
}
CONFIG = """
[mypy]
strict = true
warn_unused_configs = false

[mypy-cupy.*,scipy.*]
ignore_missing_imports = true

[mypy-numpy.*]
ignore_errors = true

[mypy-tcsolve]
# LinAlgWarning is Any where SciPy has no types.
disallow_subclassing_any = false
"""
COMPILED = ("*.so", "*.pyd", "*.a", "*.lib", "__pycache__", "tests")
# Where the types may differ from the code: `statuses` and `rconds` are None in the class but never in an
# object, and the types hide the constructors.
ALLOWED = (
    "tcsolve\\.Solution\\.(__init__|statuses|rconds)\ntcsolve\\.(Stack)?Factorization\\.__init__\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a configuration, and with the types as a package, however the library is installed."""
    import_or_skip("mypy")
    folder = tmp_path_factory.mktemp("types")
    for name, path in TYPES.items():
        package = folder / "tcsolve_alone" / name.replace(".", "/")
        package.mkdir(parents=True)
        shutil.copy(path, package)
    numpy = Path(np.__file__).parent
    shutil.copytree(
        numpy, folder / "numpy_alone" / "numpy", ignore=shutil.ignore_patterns(*COMPILED)
    )
    shutil.copytree(CODE / "typed_cupy", folder / "cupy_alone")
    (folder / "mypy.ini").write_text(CONFIG)
    (folder / "allowed").write_text(ALLOWED)
    return folder


def run(folder, command, *args, packages=("tcsolve",)):
    """Run a command that finds these packages before the installed ones; return the lines it prints."""
    paths = [str(folder / f"{name}_alone") for name in packages]
    done = subprocess.run(
        [sys.executable, "-m", command, *args],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=folder,
        env=os.environ | {"MYPYPATH": os.pathsep.join(paths)},
    )
    assert done.returncode in (0, 1) and not done.stderr, done.stdout + done.stderr
    return done.stdout.splitlines()


# The revealed type of an array on a device.  CuPy has no types, so it is Any with and without CuPy.  If CuPy
# had types, its arrays must be distinguished from those of NumPy.
ENVIRONMENTS = {
    "as it is": ("Any", (), ["tcsolve"]),
    "without CuPy": ("Any", ("--no-site-packages",), ["tcsolve", "numpy"]),
    "with a CuPy that has types": ("cupy.ndarray", (), ["tcsolve", "cupy"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_checker_finds_these_types_and_these_mistakes(folder, environment):
    on_device, options, packages = ENVIRONMENTS[environment]
    args = ("--config-file", "mypy.ini", *options, RIGHT, WRONG)
    lines = run(folder, "mypy", *args, packages=packages)
    errors = [line for line in lines if ": error: " in line]
    parts = [re.fullmatch(r"(.+?):(\d+): error: .*\[([\w-]+)\]", line).groups() for line in errors]
    found = {(Path(path).name, int(number), kind) for path, number, kind in parts}
    expected = {
        (WRONG.name, number, line.rpartition("  # ")[2])
        for number, line in enumerate(WRONG.read_text().splitlines(), 1)
        if "  # " in line
    }
    assert len(expected) >= 30
    assert found == expected, "\n".join(errors)
    revealed = re.findall('Revealed type is "(.*)"', "\n".join(lines))
    assert revealed == [on_device]


@pytest.mark.slow
def test_the_types_are_those_of_the_code(folder):
    args = ("--mypy-config-file", "mypy.ini", "--ignore-missing-stub", "--allowlist", "allowed")
    lines = run(folder, "mypy.stubtest", *args, "tcsolve")
    assert len(lines) == 1 and lines[0].startswith("Success"), "\n".join(lines)


def test_the_code_with_these_types_runs():
    functions = runpy.run_path(RIGHT)
    a, b = np.array([[2.0, 1], [1, 3]]), np.array([3.0, 4])
    functions["solve_on_the_host"](a, b.astype(np.float32))
    functions["read_a_solution"](tcsolve.solve_ex(a, b, precision="fp16x3", device="cpu"))
    functions["read_any_solution"](tcsolve.solve_ex(a, b))
    functions["factor_on_the_host"](a, b)
    functions["call_the_family"](a, b)
    functions["refine_on_the_host"](a, b)
    functions["multiply_on_the_host"](a.astype(np.float16), np.eye(2, dtype=np.float32))
    functions["choose_a_plan"]()
    functions["catch_errors"]()
    functions["make_problems"]()


def test_a_solution_takes_the_type_of_its_array():
    assert tcsolve.Solution[np.ndarray].__args__ == (np.ndarray,)


def statement(name):
    """Return the statement that defines a name in the types of `tcsolve`."""
    for node in ast.parse(TYPES["tcsolve"].read_text()).body:
        if name in (
            getattr(node, "name", None),
            getattr(getattr(node, "target", None), "id", None),
        ):
            return node
    raise AssertionError(name)


@pytest.mark.parametrize("module", [tcsolve, tcsolve.matrices], ids=lambda m: m.__name__)
def test_every_public_name_is_used(module):
    nodes = list(ast.walk(ast.parse(RIGHT.read_text())))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert set(module.__all__) <= names | {node.id for node in nodes if isinstance(node, ast.Name)}


@pytest.mark.parametrize(
    ("alias", "known"),
    [
        ("_Update", UPDATE_NAMES),
        ("_Structure", [name for name in STRUCTURES if name]),
        ("_Operands", products.PRECISIONS),
        ("_Level", products.LEVELS),
        ("_Engine", products.ENGINES),
    ],
)
def test_the_choices_are_those_of_the_code(alias, known):
    assert ast.literal_eval(statement(alias).value.slice) == tuple(known)


def test_the_emulated_products_and_the_other_models_are_those_of_the_code():
    products_of, others = (
        ast.literal_eval(statement(alias).value.slice) for alias in ("_Emulated", "_Model")
    )
    assert sorted(products_of + others) == sorted(MODEL_NAMES)
    units = {(low, unit) for unit, cores in UNITS.items() for low in cores.sums}
    assert {tuple(name.split("@")) for name in products_of} == units


def test_the_fields_of_a_solution_are_those_of_the_code():
    fields = [field.name for field in dataclasses.fields(tcsolve.Solution)]
    body = [node for node in statement("Solution").body if isinstance(node, ast.AnnAssign)]
    assert [node.target.id for node in body] == fields


def test_cupys_arrays_are_device_arrays():
    cupy = import_or_skip("cupy")
    body = statement("_DeviceArray").body
    members = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    assert len(members) >= 6
    assert all(hasattr(cupy.ndarray, name) for name in members)
    assert not all(hasattr(np.ndarray, name) for name in members)
