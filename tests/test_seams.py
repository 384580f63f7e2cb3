"""Tests read and replace only public names of a module, so the inside of the library may change."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Functions that take a name as a string.
BY_NAME = {"setattr", "delattr", "getattr", "hasattr", "attrgetter", "patch", "object"}
# The public methods of named tuples begin with an underscore, as those of no other class.
NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE


def is_module(*names):
    """Tell whether dotted names are those of a module or a package of the library."""
    first, *rest = ".".join(names).split(".")
    if first != "tcsolve":
        return False
    folders = {"kernels", "matrices"}
    path = TESTS.parent.joinpath(*(rest if rest and rest[0] in folders else (first, *rest)))
    return path.is_dir() or path.with_suffix(".py").is_file()


def others(tree):
    """Return the names of a module that are imported from outside the library."""
    imported = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    found = {}
    for node in imported:
        for alias in node.names:
            module = getattr(node, "module", None) or alias.name
            found[alias.asname or alias.name.partition(".")[0]] = module.partition(".")[0]
    return {name for name, package in found.items() if package != "tcsolve"}


def reached(text):
    """Yield the line and the name of each private name that a test reads, imports or replaces."""
    tree = ast.parse(text)
    outside = others(tree) | {"self", "cls"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            base = ast.unparse(node.value)
            if base not in outside and not is_module(base, node.attr):
                yield node.lineno, f"{base}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tcsolve"):
            for alias in node.names:
                if is_private(alias.name) and not is_module(node.module, alias.name):
                    yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in BY_NAME:
            for value in (x.value for x in node.args if isinstance(x, ast.Constant)):
                if isinstance(value, str) and is_private(value.rpartition(".")[2]):
                    yield node.lineno, value


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda p: p.stem)
def test_a_test_reaches_nothing_private(path):
    assert list(reached(path.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    "line",
    [
        "loop._Iterates",
        "f._factors.lu",
        "solve(a)._state = 3",
        "from tcsolve._lu.elimination import _Panel",
        "from tcsolve.kernels.arch import _number",
        'monkeypatch.setattr(loop, "_take", None)',
        'monkeypatch.setattr("tcsolve._lu.norms._sum", None)',
        'mock.patch("tcsolve._lu.norms._sum")',
        'getattr(f, "_factors")',
        "import tcsolve._solve.api as api; api._small(3)",
    ],
)
def test_what_is_private_is_found(line):
    assert len(list(reached(line))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "import os; os._exit(0)",
        "import tcsolve._solve.api; tcsolve._solve.api.solve(a, b)",
        "from tcsolve.matrices import _suitesparse",
        "from tcsolve._lu.elimination import factor_blocked",
        "shape._replace(threads=3)",
        "self._seen = []",
        'monkeypatch.setattr(HostLU, "getrf", None)',
        "loop.__name__",
    ],
)
def test_what_is_public_is_not(line):
    assert not list(reached(line))
