"""Tests read and replace only public names of a module, so the inside of the library may change."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Functions that take a name as a string.
BY_NAME = {"setattr", "delattr", "getattr", "hasattr", "attrgetter", "patch", "object"}
# Public names of named tuples, although they begin with an underscore.
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
def test_what_is_public_is_not_found(line):
    assert not list(reached(line))


# ---- seams

# The names of the library that tests replace, each with what it stands for.  A class stands for its methods.
SEAMS = {
    "the primitives of a device, as the contract describes them": (
        "_backends.cpu.lu.HostLU",
        "_backends.cpu.lu.NumpyLU",
        "_backends.cpu.ops.NumpyOps",
        "_backends.cuda.lu.ops.DeviceLU",
        "_backends.cuda.ops.CupyOps",
    ),
    "whether there is a GPU, which, and how fast it is": (
        "_backends.select.gpu_name",
        "_backends.select.why_no_cuda",
        "_solve.choice.placement.brought",
        "_solve.choice.placement.cuda_available",
        "_solve.choice.placement.gpu_name",
        "_solve.choice.placement.machine_rates",
        "_solve.choice.placement.ops_on",
        "_solve.choice.placement.uses_cupy",
        "_study.energy.ops_on",
        "_study.energy.why_no_cuda",
        "cli.rates.seconds_of",
    ),
    "the kernels, their compiler and their launches": (
        "_backends.cuda.gemm.wgmma.Lower.of",
        "_backends.cuda.lu.ops.invert_diagonal_blocks",
        "_backends.cuda.lu.ops.row_swaps.report",
        "_backends.cuda.lu.sm_partition.compiler.kernel",
        "_backends.cuda.runtime.compiler.compile_cubin",
        "_backends.cuda.runtime.cublas_calls.recordable",
        "_backends.cuda.runtime.recorded_graphs.tape_of",
        "_lu.factors.inverses_serve",
        "cli.kernels.KERNELS",
        "cli.kernels.present_arch",
        "cli.kernels.require_compiler",
    ),
    "CuPy, as a module sees it": (
        "_backends.cuda.lu.ops.cupy.zeros",
        "_backends.cuda.runtime.transfers.cupy",
    ),
    "the public function that a command or a study calls": (
        "_study.runs.factor",
        "cli.bench.solve",
        "cli.command.progress",
        "cli.command.solve_ex",
        "cli.study.study",
    ),
    "sizes and times, so that a test is short": (
        "_backends.cuda.runtime.transfers.BUFFERS",
        "_backends.cuda.runtime.transfers.BUFFER_BYTES",
        "_backends.cuda.runtime.transfers.LEAST_BYTES",
        "_refine.double_double.CACHE_ENTRIES",
        "_study.energy.LEAST_SECONDS",
        "_study.energy.WARM_SECONDS",
        "cli.bench.SETTLING_SECONDS",
        "cli.bench.TURN_SECONDS",
        "cli.rates.DEVICE_SIZES",
        "cli.rates.HOST_SIZES",
    ),
    "the server of the collection": (
        "matrices._download.COLLECTION_URL",
        "matrices._download.LIST_URL",
        "matrices._download.PAUSES",
        "matrices._download.TIMEOUT",
    ),
}


def imported(tree):
    """Return the full name of what each imported name of a module stands for."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            of = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= of
    return found


def replaced(text):
    """Yield the full name of each name of the library that a test replaces by `setattr`.

    Where the name is not a constant, the name of its module is yielded.
    """
    tree = ast.parse(text)
    names = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "setattr":
            first, *rest = ast.unparse(node.args[0]).split(".")
            full = ".".join((names.get(first, first), *rest))
            if len(node.args) > 1 and full.startswith("tcsolve."):
                last = node.args[1]
                known = isinstance(last, ast.Constant)
                yield f"{full}.{last.value}" if known else full


def test_tests_replace_only_the_named_seams():
    named = {f"tcsolve.{name}" for names in SEAMS.values() for name in names}
    found = {
        name
        for path in TESTS.rglob("*.py")
        if path != Path(__file__)
        for name in replaced(path.read_text("utf-8"))
    }
    used = {seam for seam in named for name in found if f"{name}.".startswith(f"{seam}.")}
    others = {
        name for name in found if not any(f"{name}.".startswith(f"{seam}.") for seam in named)
    }
    assert others == set() and used == named


def test_what_a_test_replaces_is_found():
    text = "from tcsolve._lu import norms\nmonkeypatch.setattr(norms, 'condest', None)"
    assert list(replaced(text)) == ["tcsolve._lu.norms.condest"]
