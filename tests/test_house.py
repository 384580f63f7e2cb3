"""The shape of the code: a small contract between algorithms and devices, no inheritance across files."""

import ast
import inspect
from pathlib import Path

import mutants
import pytest

import tcsolve
from tcsolve._backends.cpu.lu import HostLU, NumpyLU
from tcsolve._backends.cpu.ops import NumpyOps
from tcsolve._contract.lu import LibraryLU, LUOps
from tcsolve._contract.ops import Ops, RowStats
from tcsolve._contract.schedule import Rules

FOLDER = Path(tcsolve.__file__).parent
FILES = {
    path.relative_to(FOLDER).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(FOLDER.rglob("*.py"))
    if path.relative_to(FOLDER).parts[0] not in ("kernels", "matrices")
}
# The largest numbers of methods in the contracts: in one class, in all primitives, and in the primitives
# together with the rules of an LU.
MOST_OF_ONE, MOST_PRIMITIVES, MOST_METHODS = 19, 37, 43
MOST_POSITIONAL = 6


def methods(cls):
    return {name for name, value in vars(cls).items() if inspect.isfunction(value)} - {
        "__init__",
        "__subclasshook__",
    }


def public(cls):
    return {name for name in methods(cls) if not name.startswith("_")}


def contracts():
    """Return the names of all protocols of the contract."""
    found = set()
    for file, tree in FILES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and file.startswith("_contract/"):
                found |= {node.name for base in node.bases if ast.unparse(base) == "Protocol"}
    return found


def test_the_contract_is_small():
    protocols = (Ops, LUOps, LibraryLU, RowStats, Rules)
    assert contracts() == {cls.__name__ for cls in protocols}
    counts = {cls.__name__: len(public(cls)) for cls in protocols}
    assert max(counts.values()) <= MOST_OF_ONE
    assert sum(counts.values()) <= MOST_METHODS
    assert sum(counts.values()) - counts["Rules"] <= MOST_PRIMITIVES


@pytest.mark.parametrize("contract, host", [(Ops, NumpyOps), (LUOps, HostLU), (LibraryLU, NumpyLU)])
def test_the_host_has_all_primitives_and_no_others(contract, host):
    assert public(host) == public(contract)
    for name in public(contract):
        expected, own = (inspect.signature(getattr(cls, name)) for cls in (contract, host))
        assert expected == own, name


@pytest.mark.parametrize(
    "contract, file, device",
    [
        (Ops, "ops.py", "CupyOps"),
        (LUOps, "lu/ops.py", "DeviceLU"),
        (LibraryLU, "lu/cusolver_lu.py", "Factors"),
    ],
)
def test_the_device_has_all_primitives_with_the_same_arguments(contract, file, device):
    """Read as text, since CuPy need not be there."""
    (cls,) = (
        node
        for node in FILES[f"_backends/cuda/{file}"].body
        if isinstance(node, ast.ClassDef) and node.name == device
    )
    own = {node.name: node for node in cls.body if isinstance(node, ast.FunctionDef)}
    for name in public(contract):
        expected = inspect.signature(getattr(contract, name))
        assert [arg.arg for arg in arguments(own[name])] == [
            key for key, x in expected.parameters.items() if x.kind != x.VAR_POSITIONAL
        ], name


def arguments(function):
    return function.args.posonlyargs + function.args.args


def inherited():
    """Return the classes that inherit from a class of another file of the library."""
    found = set()
    for file, tree in FILES.items():
        ours = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tcsolve")
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base).partition(".")[0] for base in node.bases}
                found |= {f"{file}: {node.name}"} if bases & ours else set()
    return found


def test_no_class_inherits_from_a_class_of_another_file():
    assert not inherited()


def long_functions():
    """Return the private functions with more than six positional arguments.

    The functions that are public have the arguments of SciPy's.
    """
    found = set()
    for file, tree in FILES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                given = [arg for arg in arguments(node) if arg.arg not in ("self", "cls")]
                if len(given) > MOST_POSITIONAL and node.name not in tcsolve.__all__:
                    found.add(f"{file}: {node.name}")
    return found


def test_no_private_function_has_more_than_six_positional_arguments():
    assert not long_functions()


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda m: f"{m.file}:{m.new.strip()[:40]}")
def test_every_mutant_changes_one_line(mutant):
    text = (FOLDER / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1 and mutant.old != mutant.new
