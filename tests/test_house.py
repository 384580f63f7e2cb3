"""The shape of the code: a small contract between algorithms and devices, no inheritance across files."""

import ast
import inspect
from pathlib import Path

import mutants
import pytest
import tcsolve.kernels
import tcsolve.matrices

import tcsolve
from tcsolve._backends.cpu.lu import HostLU, NumpyLU
from tcsolve._backends.cpu.ops import NumpyOps
from tcsolve._contract.lu import LibraryLU, LUOps
from tcsolve._contract.ops import Ops, RowStats
from tcsolve._contract.schedule import Rules
from tcsolve._contract.stacks import StackFactors, Stacks
from tcsolve._solve.host import library as host_library

FOLDER = Path(tcsolve.__file__).parent


def parsed(package):
    """Return the syntax trees of the files of a package, by their paths in its folder."""
    folder = Path(package.__file__).parent
    return {
        path.relative_to(folder).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.py"))
    }


# When the library is installed, the other packages are folders in it.
FILES = {
    file: tree
    for file, tree in parsed(tcsolve).items()
    if not file.startswith(("kernels/", "matrices/"))
}
OTHERS = {
    f"{package.__name__}/{file}": tree
    for package in (tcsolve.kernels, tcsolve.matrices)
    for file, tree in parsed(package).items()
}
# The largest numbers of methods in the contracts: in one class, in all primitives, and in the primitives
# together with the rules of an LU.
MOST_OF_ONE, MOST_PRIMITIVES, MOST_METHODS = 18, 35, 41
# The primitives of stacks and the methods of their factors.
MOST_OF_STACKS = 10
MOST_POSITIONAL = 6
# What a constructor may call: the constructor of its base; what makes small containers, locks, and threads
# that are not started; `add` of the two sets of `tcsolve._locks`, which list what must be handled at a fork;
# and `ld`, the leading dimension.
SMALL = {"len", "tuple", "list", "dict", "set", "ForkSafeLock"}
SMALL |= {"threading.Lock", "threading.RLock", "threading.Thread"}
SMALL |= {"_locks.add", "_Calls.every.add", "ld"}
# The classes outside of the runtime that own memory or an event of a device.
OWNERS = {
    "_backends/cuda/ops.py": {"Mark"},
    "_backends/cuda/batched/one_launch.py": {"_Doubts"},
    "_backends/cuda/lu/sm_partition.py": {"Flags"},
}
# Methods that a constructor may call: views of arrays, and the text of an error.
VIEWS = {"reshape", "join"}


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
    assert contracts() == {cls.__name__ for cls in (*protocols, Stacks, StackFactors)}
    counts = {cls.__name__: len(public(cls)) for cls in protocols}
    assert max(counts.values()) <= MOST_OF_ONE
    assert sum(counts.values()) <= MOST_METHODS
    assert sum(counts.values()) - counts["Rules"] <= MOST_PRIMITIVES
    assert len(public(Stacks)) + len(public(StackFactors)) <= MOST_OF_STACKS


def test_the_device_has_all_primitives_of_stacks_and_the_host_those_of_an_lu():
    functions = {
        node.name: node
        for file, tree in FILES.items()
        for node in tree.body
        if file.startswith("_backends/cuda/batched/") and isinstance(node, ast.FunctionDef)
    }
    offered = ast.literal_eval(
        next(node.value for node in FILES["_backends/cuda/batched/vendor.py"].body if is_all(node))
    )
    assert set(offered) == public(Stacks) | set(Stacks.__annotations__)
    of_host = set(host_library.__all__) - set(Stacks.__annotations__)
    assert {"factor", "measure", "plan"} <= of_host <= public(Stacks)
    for name in public(Stacks):
        _, *expected = inspect.signature(getattr(Stacks, name)).parameters
        arguments = functions[name].args
        assert [arg.arg for arg in arguments.args + arguments.kwonlyargs] == expected, name
    for name in of_host:
        _, *expected = inspect.signature(getattr(Stacks, name)).parameters
        assert [*inspect.signature(getattr(host_library, name)).parameters] == expected, name


def is_all(node):
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"


def test_factors_of_stacks_are_those_of_the_contract():
    of_one = {"LU", "Cholesky", "PackedCholesky", "PackedTriangle"}
    made = {"LUEach", "LUAcross", "Triangles", "Diagonal", "InParts"} | of_one
    found = {
        node.name: {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
        for tree in FILES.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name in made
    }
    assert set(found) == made
    for name, own in found.items():
        assert public(StackFactors) - own <= ({"taken"} if name in of_one else set()), name


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
    for file, tree in (FILES | OTHERS).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                given = [arg for arg in arguments(node) if arg.arg not in ("self", "cls")]
                if len(given) > MOST_POSITIONAL and node.name not in tcsolve.__all__:
                    found.add(f"{file}: {node.name}")
    return found


def test_no_private_function_has_more_than_six_positional_arguments():
    assert not long_functions()


def work_of_constructors(tree):
    """Return the calls in the constructors of a file that do more than to store, as (class, function)."""
    return {
        (cls.name, ast.unparse(call.func))
        for cls in ast.walk(tree)
        if isinstance(cls, ast.ClassDef)
        for method in cls.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        for call in ast.walk(method)
        if isinstance(call, ast.Call) and not only_stores(call.func)
    }


def only_stores(function):
    name = ast.unparse(function)
    is_view = isinstance(function, ast.Attribute) and function.attr in VIEWS
    return is_view or name in {"super", "super().__init__", *SMALL}


def test_constructors_only_store():
    """What has to be computed, copied or opened comes from a class method `of` or from a cached property.

    Classes that own something of CUDA (memory, an event, a stream, a handle) allocate it when they are made.
    """
    for file, tree in FILES.items():
        if not file.startswith("_backends/cuda/runtime/"):
            found = {name for name, _ in work_of_constructors(tree)}
            assert found <= OWNERS.get(file, set()), file


def test_work_of_a_constructor_is_seen():
    tree = ast.parse(
        "class A:\n    def __init__(self, v, w):\n        super().__init__(len(v))\n"
        "        self.v, self.w = v.reshape(-1), ldexp(np.abs(w), 1)\n"
    )
    assert work_of_constructors(tree) == {("A", "ldexp"), ("A", "np.abs")}


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda m: f"{m.file}:{m.new.strip()[:40]}")
def test_every_mutant_changes_one_line(mutant):
    text = (FOLDER / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1 and mutant.old != mutant.new
