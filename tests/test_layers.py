"""Packages import one way only, and only some of them know that there is a GPU library."""

import ast
import graphlib
import sys
from pathlib import Path

import pytest
import tcsolve.kernels
import tcsolve.matrices

import tcsolve

# From low to high: what each package imports in addition to NumPy, the standard library and itself.
# The row `tcsolve` is the public surface: `tcsolve` itself and `tcsolve._public`.  The row `types` has the
# other modules of the folder tcsolve/, except `__main__`.  A package inside another has its own row, or
# belongs to the row of the outer package.
PURE, CUDA = {"types", "_arithmetic"}, {"types", "_arithmetic", "kernels", "cupy"}
RUNTIME, GEMM, LU = "_backends.cuda.runtime", "_backends.cuda.gemm", "_backends.cuda.lu"
STACKS = "_backends.cuda.batched"
PACKAGES = {
    "types": {"scipy"},
    "_arithmetic": {"types", "ml_dtypes"},
    "_contract": {"_arithmetic"},
    "_backends.cpu": PURE | {"_contract", "scipy"},
    RUNTIME: CUDA,
    GEMM: CUDA | {RUNTIME},
    LU: CUDA | {"_contract", RUNTIME, GEMM},
    STACKS: CUDA | {"_contract", RUNTIME, GEMM, LU},
    "_backends": PURE | {"_contract", "_backends.cpu", RUNTIME, GEMM, LU, STACKS, "cupy"},
    # The algorithms take `ops`, and do not know where arrays live.
    "_lu": PURE | {"_contract"},
    "_refine": {"_arithmetic"},
    "_solve": PURE | {"_contract", "_backends.cpu", "_backends", "_lu", "_refine", "scipy"},
    "_gemm": PURE | {"_backends"},
    # SciPy's functions with verified answers, for arrays of NumPy and CuPy.
    "_family": PURE | {"_backends.cpu", "_backends", "_lu", "_refine", "_solve", "scipy", "cupy"},
    # Progress, pictures, tables and energy use libraries that are imported where they are needed.
    "_study": PURE
    | {"_backends", "_lu", "_refine", "_solve", "matrices", "cupy", "scipy"}
    | {"tqdm", "matplotlib", "pyarrow", "pynvml"},
    "tcsolve": PURE | {"_backends", "_solve", "_family", "_gemm", "_study", "matrices"},
    # The command compiles kernels, and reports which device it ran on.
    "cli": {"types", "_backends", RUNTIME, "_solve", "_family", "_study", "kernels", "matrices"}
    | {"cupy", "scipy", "tqdm", "torch"},
}
# The packages inside `_solve`, from low to high; each may import itself and those before it.  The modules of
# `_solve` itself choose the way of a call, and may import all.
OF_SOLVE = ("problem", "verify", "choice", "ladder", "host", "vendor", "factored")
SURFACE = {"tcsolve": "tcsolve", "tcsolve._public": "tcsolve", "tcsolve.__main__": "cli"}
DATA = {"kernels", "matrices"}

FOLDER = Path(tcsolve.__file__).parent


def module_of(path):
    """Return the dotted name of a file of the library."""
    parts = path.relative_to(FOLDER.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    module_of(path): path
    for path in sorted(FOLDER.rglob("*.py"))
    if path.relative_to(FOLDER).parts[0] not in DATA
}


def package_of(module):
    """Return the row of the table that a module belongs to."""
    if module in SURFACE:
        return SURFACE[module]
    name = module.removeprefix("tcsolve.")
    if "." not in name and FILES.get(module, FOLDER).name != "__init__.py":
        return "types"
    while name and name not in PACKAGES:
        name = name.rpartition(".")[0]
    return name


def imports(path):
    """Return every name imported anywhere in a file, late imports included, as dotted paths."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (f"{node.module}." if node.module else "")
            found |= {start + alias.name for alias in node.names}
    return found


def modules_of(path):
    """Return the modules of the library that a file imports, and 'kernels' or 'matrices'."""
    found = set()
    for name in imports(path):
        if name.split(".")[0] == "tcsolve":
            if (name.split(".") + [""])[1] in DATA:
                found.add(name.split(".")[1])
                continue
            while name not in FILES:
                name = name.rpartition(".")[0]
            found.add(name)
    return found


def libraries(path):
    """Return the libraries that a file imports besides NumPy and Python's own."""
    first = {name.split(".")[0] for name in imports(path)} - {"tcsolve", "numpy"}
    found = first - sys.stdlib_module_names
    return {"cupy" if name in ("cupyx", "cupy_backends", "cuda") else name for name in found}


def packages_of(path):
    """Return the rows of the table, or the data, that a file imports from."""
    return {name if name in DATA else package_of(name) for name in modules_of(path)}


def test_the_table_is_short_and_goes_one_way():
    assert len(PACKAGES) <= 20
    rows = list(PACKAGES)
    for i, row in enumerate(rows):
        assert PACKAGES[row] & {*rows} <= {*rows[:i]}, row


def test_every_module_has_a_row_and_every_row_has_modules():
    assert {package_of(module) for module in FILES} == {*PACKAGES}


@pytest.mark.parametrize("module", FILES)
def test_a_module_imports_what_its_package_may(module):
    path, package = FILES[module], package_of(module)
    assert packages_of(path) | libraries(path) <= PACKAGES[package] | {package}


@pytest.mark.parametrize("package", OF_SOLVE)
def test_the_packages_of_a_solve_import_one_way(package):
    within = [module for module in FILES if module.startswith(f"tcsolve._solve.{package}.")]
    lower = OF_SOLVE[: OF_SOLVE.index(package) + 1]
    assert within
    for module in within:
        used = {name for name in modules_of(FILES[module]) if name.startswith("tcsolve._solve")}
        assert {name.split(".")[2] for name in used - {"tcsolve._solve"}} <= {*lower}, module


def test_every_package_of_a_solve_is_in_that_order():
    folders = {path.parent.name for path in (FOLDER / "_solve").glob("*/__init__.py")}
    assert folders == {*OF_SOLVE}


@pytest.mark.parametrize("package", PACKAGES)
def test_whatever_a_package_may_import_is_imported(package):
    paths = [path for module, path in FILES.items() if package_of(module) == package]
    found = set().union(*(packages_of(path) | libraries(path) for path in paths))
    assert PACKAGES[package] <= found


def test_modules_import_each_other_in_no_circle():
    graph = {module: modules_of(path) - DATA - {module} for module, path in FILES.items()}
    assert "tcsolve._backends.cuda.ops" in graph["tcsolve._backends.select"]  # late, and seen
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert {*order} == {*FILES}


def test_a_package_has_several_modules_and_only_a_docstring_of_its_own():
    starts = [
        path for path in FILES.values() if path.name == "__init__.py" and path.parent != FOLDER
    ]
    assert len(starts) >= 12
    for path in starts:
        (only,) = ast.parse(path.read_text(encoding="utf-8")).body
        assert ast.get_docstring(ast.Module([only], [])), path
        modules = {
            *path.parent.glob("*.py"),
            *(x.parent for x in path.parent.glob("*/__init__.py")),
        }
        assert len(modules) > 2, path


def test_how_launches_are_cut_depends_on_the_architecture_alone():
    folder = Path(tcsolve.kernels.__file__).parent
    found = [path for path in folder.glob("*.py") if path.stem.endswith("shapes")]
    assert len(found) >= 4
    for path in (folder / "arch.py", *found):
        used = {name.rpartition(".")[0] for name in imports(path) if name.startswith("tcsolve")}
        assert used <= ({"tcsolve.kernels.arch"} if path.stem != "arch" else set())
        assert not libraries(path)


@pytest.mark.parametrize(
    "package", [tcsolve.kernels, tcsolve.matrices], ids=["kernels", "matrices"]
)
def test_problems_and_kernels_import_nothing_of_the_solver(package):
    files = list(Path(package.__file__).parent.rglob("*.py"))
    assert files
    mine = package.__name__.rpartition(".")[2]
    for path in files:
        assert modules_of(path) <= {mine}, path.name
        assert "cupy" not in libraries(path), path.name
        assert not any(name.startswith("..") for name in imports(path)), path.name


def test_relative_imports_are_not_used():
    for module, path in FILES.items():
        assert not any(name.startswith(".") for name in imports(path)), module


def test_late_and_dotted_imports_are_seen(tmp_path):
    path = tmp_path / "example.py"
    path.write_text(
        "import tcsolve._solve.api\ndef f():\n    from tcsolve._lu import elimination\n"
        "    from tcsolve import solve\n    import cupy\n"
    )
    assert packages_of(path) == {"_solve", "_lu", "tcsolve"}
    assert libraries(path) == {"cupy"}


def test_the_figure_of_the_documentation_has_every_package():
    """It has the outermost packages, in an order in which imports run downwards only."""
    text = (Path(__file__).parents[1] / "docs" / "_ext" / "figures.py").read_text(encoding="utf-8")
    (layers,) = (
        ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS"
    )
    depth = {name: i for i, names in enumerate(layers) for name in names}
    assert set(depth) == {row.partition(".")[0] for row in PACKAGES}
    for row, allowed in PACKAGES.items():
        outer = row.partition(".")[0]
        inner = {name.partition(".")[0] for name in allowed} & set(depth) - {outer}
        assert all(depth[name] > depth[outer] for name in inner), row
