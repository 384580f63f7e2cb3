"""The modules import one way only, and only some of them know that there is a GPU library."""

import ast
from pathlib import Path

import pytest
import tcsolve.kernels
import tcsolve.matrices

import tcsolve

# Low to high: a module imports only from those before it.
LAYERS = (
    "_errors",
    "_locks",
    "_memory",
    "_numbers",
    "_formats",
    "_plan",
    "_parts",
    "_solution",
    "_jit",
    "_product",
    "_ops",
    "_blas",
    "_gemm_numpy",
    "_lu_numpy",
    "_ops_numpy",
    "_shelf",
    "_cublas",
    "_convert",
    "_record",
    "_device",
    "_scratch",
    "_clusters",
    "_to_host",
    "_launch",
    "_substitute",
    "_step",
    "_cusolver",
    "_at_once",
    "_vendor",
    "_packed",
    "_stored",
    "_short",
    "_tensor_map",
    "_wgmma",
    "_unit_lower",
    "_inverse",
    "_rows",
    "_share",
    "_look_ahead",
    "_lu_cupy",
    "_gemm_work",
    "_gemm_cupy",
    "_gemm_batched",
    "_ops_cupy",
    "_dispatch",
    "_norms",
    "_scale",
    "_factors",
    "_lu",
    "_krylov",
    "_stop",
    "_refine",
    "_choose",
    "_check",
    "_gemm_check",
    "_narrow",
    "_gemm",
    "_wide",
    "_verify",
    "_structure",
    "_vendor_system",
    "_vendor_measure",
    "_vendor_rcond",
    "_vendor_repair",
    "_vendor_result",
    "_vendor_solve",
    "_lapack",
    "_direct",
    "_stack",
    "_ladder",
    "_condition",
    "_factorization",
    "_placement",
    "_refine_with",
    "_api",
    "_public",
    "__init__",
    "_output",
    "_progress",
    "cli",
    "__main__",
)
# Which of the packages of data and sources a module may use.
PACKAGES = {
    "_jit": {"kernels"},
    "_substitute": {"kernels"},
    "_wgmma": {"kernels"},
    "_unit_lower": {"kernels"},
    "_rows": {"kernels"},
    "_gemm_work": {"kernels"},
    "_gemm_cupy": {"kernels"},
    "_gemm_batched": {"kernels"},
    "_cusolver": {"kernels"},
    "_at_once": {"kernels"},
    "_vendor": {"kernels"},
    "_lu_cupy": {"kernels"},
    "_short": {"kernels"},
    "_step": {"kernels"},
    "__init__": {"matrices"},
    "cli": {"kernels", "matrices"},
}
# The command line reports which device it ran on.
KNOW_CUPY = {
    "_jit",
    "_cublas",
    "_convert",
    "_record",
    "_device",
    "_scratch",
    "_clusters",
    "_to_host",
    "_substitute",
    "_step",
    "_cusolver",
    "_at_once",
    "_launch",
    "_vendor",
    "_packed",
    "_short",
    "_share",
    "_look_ahead",
    "_lu_cupy",
    "_stored",
    "_wgmma",
    "_unit_lower",
    "_inverse",
    "_rows",
    "_gemm_work",
    "_gemm_cupy",
    "_gemm_batched",
    "_ops_cupy",
    "_dispatch",
    "cli",
}
# The algorithms take `ops` and know no array library but NumPy's small arrays on the host.
ALGORITHMS = (*LAYERS[LAYERS.index("_norms") : LAYERS.index("_check")], "_plan", "_ops")

FOLDER = Path(tcsolve.__file__).parent


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


def own(path):
    """Return the parts of the library that a file imports: '_lu', 'kernels', ..."""
    dotted = [name.split(".") for name in imports(path) if name.split(".")[0] == "tcsolve"]
    parts = {names[1] if len(names) > 1 else "__init__" for names in dotted}
    known = {*LAYERS, "kernels", "matrices"}
    return {part if part in known else "__init__" for part in parts}


def libraries(path):
    return {name.split(".")[0] for name in imports(path)}


def test_how_launches_are_cut_depends_on_the_architecture_alone():
    folder = Path(tcsolve.kernels.__file__).parent
    for path in folder.glob("_[!_]*.py"):
        used = {name.rpartition(".")[0] for name in imports(path) if name.startswith("tcsolve")}
        assert used <= ({"tcsolve.kernels._arch"} if path.stem != "_arch" else set())
        assert libraries(path) <= {"typing", "tcsolve"}


def test_every_module_has_its_place_in_the_order():
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == sorted(LAYERS)


@pytest.mark.parametrize("module", LAYERS)
def test_a_module_imports_only_from_below(module):
    below = {*LAYERS[: LAYERS.index(module)]} | PACKAGES.get(module, set())
    if module == "_dispatch":
        assert "_ops_cupy" in own(FOLDER / "_dispatch.py")  # imported late, and seen here
    assert own(FOLDER / f"{module}.py") <= below


@pytest.mark.parametrize("module", LAYERS)
def test_only_the_modules_of_the_device_import_cupy(module):
    found = libraries(FOLDER / f"{module}.py") & {"cupy", "cupyx", "cupy_backends", "cuda"}
    assert not found or module in KNOW_CUPY


@pytest.mark.parametrize("module", ALGORITHMS)
def test_the_algorithms_do_not_know_where_arrays_live(module):
    path = FOLDER / f"{module}.py"
    assert not own(path) & {"_jit", "_ops_numpy", "_ops_cupy", "_dispatch"}
    known = {"tcsolve", "numpy", "math", "dataclasses", "functools", "typing", "collections"}
    assert libraries(path) <= known


@pytest.mark.parametrize(
    "package", [tcsolve.kernels, tcsolve.matrices], ids=["kernels", "matrices"]
)
def test_problems_and_kernels_import_nothing_of_the_solver(package):
    files = list(Path(package.__file__).parent.glob("*.py"))
    assert files
    mine = package.__name__.rpartition(".")[2]
    for path in files:
        assert own(path) <= {mine}, path.name
        assert "cupy" not in libraries(path), path.name
        assert not any(name.startswith("..") for name in imports(path)), path.name


def test_relative_imports_are_not_used():
    for path in FOLDER.glob("*.py"):
        assert not any(name.startswith(".") for name in imports(path)), path.name


def test_late_and_dotted_imports_are_seen(tmp_path):
    path = tmp_path / "example.py"
    path.write_text(
        "import tcsolve._api\ndef f():\n    from tcsolve import _lu, solve\n    import cupy\n"
    )
    assert own(path) == {"_api", "_lu", "__init__"}
    assert "cupy" in libraries(path)
