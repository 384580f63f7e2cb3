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
    "_backends.cuda.runtime.out_of_memory",
    "_arguments",
    "_arithmetic.formats",
    "_plan",
    "_arithmetic.matrix_parts",
    "_solution",
    "_backends.cuda.runtime.compiler",
    "_arithmetic.products",
    "_contract.ops",
    "_backends.cpu.blas",
    "_backends.cpu.gemm",
    "_backends.cpu.lu",
    "_backends.cpu.ops",
    "_backends.cuda.runtime.shelf",
    "_backends.cuda.runtime.cublas_calls",
    "_backends.cuda.runtime.conversions",
    "_backends.cuda.runtime.recorded_graphs",
    "_backends.cuda.runtime.current_device",
    "_backends.cuda.runtime.scratch_memory",
    "_backends.cuda.runtime.cluster_launch",
    "_backends.cuda.runtime.async_read",
    "_backends.cuda.lu.substitution",
    "_backends.cuda.lu.first_steps",
    "_backends.cuda.lu.cusolver_lu",
    "_backends.cuda.batched.library_factors",
    "_backends.cuda.lu.cublas_update",
    "_backends.cuda.gemm.layout",
    "_backends.cuda.lu.short_update",
    "_backends.cuda.gemm.tensor_maps",
    "_backends.cuda.gemm.wgmma",
    "_backends.cuda.lu.unit_lower",
    "_backends.cuda.lu.triangle_inverse",
    "_backends.cuda.lu.row_swaps",
    "_backends.cuda.lu.sm_partition",
    "_backends.cuda.lu.look_ahead",
    "_backends.cuda.lu.ops",
    "_backends.cuda.gemm.job",
    "_backends.cuda.gemm.engines",
    "_backends.cuda.gemm.batched",
    "_backends.cuda.ops",
    "_backends.select",
    "_lu.norms",
    "_lu.scaling",
    "_lu.factors",
    "_lu.elimination",
    "_refine.krylov",
    "_refine.stopping",
    "_refine.loop",
    "_solve.cost_model",
    "_checks",
    "_gemm.checks",
    "_gemm.float64_operands",
    "_gemm.api",
    "_solve.long_double_residual",
    "_solve.backward_error",
    "_solve.structures",
    "_solve.vendor.system",
    "_solve.vendor.measure",
    "_solve.vendor.rcond",
    "_solve.vendor.repair",
    "_solve.vendor.result",
    "_solve.vendor.solve",
    "_solve.lapack_factors",
    "_solve.direct",
    "_solve.host_stacks",
    "_solve.ladder",
    "_solve.condition",
    "_solve.factorization",
    "_solve.placement",
    "_solve.refinement",
    "_solve.api",
    "_public",
    "__init__",
    "cli.output_files",
    "cli.progress_line",
    "cli.command",
    "__main__",
)
# Which of the packages of data and sources a module may use.
PACKAGES = {
    "_backends.cuda.runtime.compiler": {"kernels"},
    "_backends.cuda.lu.substitution": {"kernels"},
    "_backends.cuda.gemm.wgmma": {"kernels"},
    "_backends.cuda.lu.unit_lower": {"kernels"},
    "_backends.cuda.lu.row_swaps": {"kernels"},
    "_backends.cuda.gemm.job": {"kernels"},
    "_backends.cuda.gemm.engines": {"kernels"},
    "_backends.cuda.gemm.batched": {"kernels"},
    "_backends.cuda.lu.cusolver_lu": {"kernels"},
    "_backends.cuda.batched.library_factors": {"kernels"},
    "_backends.cuda.lu.ops": {"kernels"},
    "_backends.cuda.lu.short_update": {"kernels"},
    "_backends.cuda.lu.first_steps": {"kernels"},
    "__init__": {"matrices"},
    "cli.command": {"kernels", "matrices"},
}
# The command line reports which device it ran on.
KNOW_CUPY = {
    "_backends.cuda.runtime.compiler",
    "_backends.cuda.runtime.cublas_calls",
    "_backends.cuda.runtime.conversions",
    "_backends.cuda.runtime.recorded_graphs",
    "_backends.cuda.runtime.current_device",
    "_backends.cuda.runtime.scratch_memory",
    "_backends.cuda.runtime.cluster_launch",
    "_backends.cuda.runtime.async_read",
    "_backends.cuda.lu.substitution",
    "_backends.cuda.lu.first_steps",
    "_backends.cuda.lu.cusolver_lu",
    "_backends.cuda.batched.library_factors",
    "_backends.cuda.lu.cublas_update",
    "_backends.cuda.lu.short_update",
    "_backends.cuda.lu.sm_partition",
    "_backends.cuda.lu.look_ahead",
    "_backends.cuda.lu.ops",
    "_backends.cuda.gemm.layout",
    "_backends.cuda.gemm.wgmma",
    "_backends.cuda.lu.unit_lower",
    "_backends.cuda.lu.triangle_inverse",
    "_backends.cuda.lu.row_swaps",
    "_backends.cuda.gemm.job",
    "_backends.cuda.gemm.engines",
    "_backends.cuda.gemm.batched",
    "_backends.cuda.ops",
    "_backends.select",
    "cli.command",
}
# The algorithms take `ops` and know no array library but NumPy's small arrays on the host.
ALGORITHMS = (
    *LAYERS[LAYERS.index("_lu.norms") : LAYERS.index("_checks")],
    "_plan",
    "_contract.ops",
)

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
    """Return the modules of the library that a file imports, and 'kernels' or 'matrices'."""
    known = {*LAYERS, "kernels", "matrices"}
    found = set()
    for name in imports(path):
        if name.split(".")[0] == "tcsolve":
            part = name.removeprefix("tcsolve").removeprefix(".")
            while part and part not in known:
                part = part.rpartition(".")[0]
            found.add(part or "__init__")
    return found


def file_of(module):
    return FOLDER.joinpath(*module.split(".")).with_suffix(".py")


def libraries(path):
    return {name.split(".")[0] for name in imports(path)}


def test_how_launches_are_cut_depends_on_the_architecture_alone():
    folder = Path(tcsolve.kernels.__file__).parent
    for path in folder.glob("[!_]*.py"):
        used = {name.rpartition(".")[0] for name in imports(path) if name.startswith("tcsolve")}
        assert used <= ({"tcsolve.kernels.arch"} if path.stem != "arch" else set())
        assert libraries(path) <= {"typing", "tcsolve"}


def test_every_module_has_its_place_in_the_order():
    data = {FOLDER / "kernels", FOLDER / "matrices"}
    found = [path for path in FOLDER.rglob("*.py") if not data & {*path.parents}]
    empty = [path for path in found if path.name == "__init__.py" and path.parent != FOLDER]
    assert sorted({*found} - {*empty}) == sorted(map(file_of, LAYERS))
    assert not any(imports(path) for path in empty)


@pytest.mark.parametrize("module", LAYERS)
def test_a_module_imports_only_from_below(module):
    below = {*LAYERS[: LAYERS.index(module)]} | PACKAGES.get(module, set())
    if module == "_backends.select":
        assert "_backends.cuda.ops" in own(
            file_of("_backends.select")
        )  # imported late, and seen here
    assert own(file_of(module)) <= below


@pytest.mark.parametrize("module", LAYERS)
def test_only_the_modules_of_the_device_import_cupy(module):
    found = libraries(file_of(module)) & {"cupy", "cupyx", "cupy_backends", "cuda"}
    assert not found or module in KNOW_CUPY


@pytest.mark.parametrize("module", ALGORITHMS)
def test_the_algorithms_do_not_know_where_arrays_live(module):
    path = file_of(module)
    assert not own(path) & {
        "_backends.cuda.runtime.compiler",
        "_backends.cpu.ops",
        "_backends.cuda.ops",
        "_backends.select",
    }
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
    for path in map(file_of, LAYERS):
        assert not any(name.startswith(".") for name in imports(path)), path.name


def test_late_and_dotted_imports_are_seen(tmp_path):
    path = tmp_path / "example.py"
    path.write_text(
        "import tcsolve._solve.api\ndef f():\n    from tcsolve._lu import elimination\n"
        "    from tcsolve import solve\n    import cupy\n"
    )
    assert own(path) == {"_solve.api", "_lu.elimination", "__init__"}
    assert "cupy" in libraries(path)
