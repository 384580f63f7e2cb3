"""Every CUDA source compiles for every architecture it runs on, with the macro sets it is launched with."""

import functools
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from tcsolve.kernels.arch import ARCHS
from tcsolve.kernels.launch_shapes import LOWER_SHAPES
from tcsolve.kernels.panel_shapes import BOARD_BYTES, panel_shape
from tcsolve.kernels.registry import KERNELS

from tcsolve._backends.cuda.runtime import compiler

CASES = [
    pytest.param(name, arch, id=f"{name}-{arch}")
    for name in KERNELS
    for arch in ARCHS
    if compiler.supported(name, arch)
]


def test_every_source_is_registered():
    names = sorted(path.rpartition("/")[2] for path in compiler._files() if path.endswith(".cu"))
    assert names == sorted(f"{name}.cu" for name in KERNELS)


def test_every_entry_is_registered():
    for name, spec in KERNELS.items():
        assert set(re.findall(r"\b(tcs_\w+)\(", _code(name))) == set(spec.entries)


def test_every_kernel_runs_on_some_architecture():
    assert {case.values[0] for case in CASES} == set(KERNELS)
    assert len(CASES) >= 4 * len(ARCHS)


# The products have hundreds of macro sets: all of them for these architectures, and so many, spread
# evenly, for each of the others.  Other kernels compile completely everywhere.
COMPLETE, SPREAD = ("sm_80", "sm_90a"), 8


@pytest.mark.nvrtc
@pytest.mark.parametrize("name, arch", CASES)
def test_kernel_compiles(name, arch, nvrtc):
    spec = KERNELS[name]
    variants = list(spec.variants_for(arch))
    spread = name.startswith("gemm") and arch not in COMPLETE
    step = -(-len(variants) // SPREAD) if spread else 1
    macros = [tuple(sorted(defines.items())) for defines in variants[::step]]
    # NVRTC holds no lock of Python's, and takes most of the time of all tests.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        cubins = list(pool.map(functools.partial(compiler.compile_cubin, name, arch), macros))
    assert len(cubins) == len(macros) > 0
    for cubin in cubins:
        for entry in spec.entries:
            assert entry.encode() in cubin


@pytest.mark.nvrtc
@pytest.mark.parametrize("header", compiler._headers()[0])
def test_a_header_compiles_alone(header, nvrtc):
    # With the macros of a kernel that includes it; some are for clusters alone, or for grids.
    text, logs = f'#include "{header}"\n', []
    for defines in _macros_for(dict(zip(*compiler._headers(), strict=True))[header]):
        logs.append(_errors_of(nvrtc, text, defines))
        if logs[-1] is None:
            return
    pytest.fail(logs[0] if logs else "no kernel includes it")


def _macros_for(text):
    """Yield macro sets of the kernels that include a header: some with every value of every macro."""
    for name, spec in KERNELS.items():
        if text in compiler._included(compiler._source(f"{name}.cu")):
            seen = set()
            for defines in spec.variants_for("sm_90a"):
                if not seen or defines.items() - seen:
                    yield defines
                seen |= defines.items()


def _errors_of(nvrtc, text, defines):
    """Return what the compiler says of a text, or None if it takes it."""
    program = compiler.create_program_of(text, "alone.cu")
    options = ["-arch=compute_90a", *compiler.FLAGS, *(f"-D{k}={v}" for k, v in defines.items())]
    try:
        nvrtc.compileProgram(program, options)
    except nvrtc.NVRTCError:
        return nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", KERNELS)
def test_the_arguments_of_an_entry_are_counted(name, nvrtc):
    arch = next(arch for arch in ("sm_90a", "sm_80") if KERNELS[name].variants_for(arch))
    defines = KERNELS[name].variants_for(arch)[0]
    options = [f"-arch={arch.replace('sm', 'compute')}", *compiler.FLAGS]
    program = compiler.create_program(name)
    nvrtc.compileProgram(program, options + [f"-D{k}={v}" for k, v in defines.items()])
    assembler = nvrtc.getPTX(program).decode()
    nvrtc.destroyProgram(program)
    for entry in KERNELS[name].entries:
        (found,) = re.findall(rf"\.entry {entry}\(([^)]*)\)", assembler)
        assert compiler.parameters(name, entry) == found.count(".param")


PANELS = [
    pytest.param(arch, defines, id=f"{arch}-{'-'.join(map(str, defines.values()))}")
    for arch in ("sm_75", "sm_80", "sm_89", "sm_90a")
    for defines in KERNELS["panel"].variants_for(arch)
]


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch, defines", PANELS)
def test_panel_keeps_its_rows_in_registers(arch, defines, nvrtc):
    log = _assembler_log(nvrtc, "panel", defines, arch)
    stack, stores, static = (
        int(re.search(rf"\b(\d+) bytes {what}", log)[1])
        for what in ("stack frame", "spill stores", "smem")
    )
    # Four rows a thread take all registers, and older devices need a few more.
    spare = 32 if arch != "sm_90a" and defines["ROWS"] == 4 else 0
    assert stack <= spare and stores <= spare, log
    assert static <= 24 << 10, log


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "m, arch",
    [
        *(
            (1000, "sm_90a"),
            (5000, "sm_90a"),
            (8000, "sm_90a"),
            (9000, "sm_90a"),
            (30000, "sm_90a"),
        ),
        *((60000, "sm_90a"), (1000, "sm_80"), (1000, "sm_120")),
    ],
)
def test_the_memory_of_a_panel_is_what_its_structs_take(m, arch, nvrtc, monkeypatch):
    shape = panel_shape(m, arch, 132, narrow=True)
    structs = ("Leaf", "Dominant") if shape.dominant else ("Leaf",)
    needed = [f"sizeof({name}) <= {shape.shared_bytes}" for name in structs]
    exact = " || ".join(f"sizeof({name}) == {shape.shared_bytes}" for name in structs)
    board = [] if shape.cluster else [f"sizeof(Board) == {BOARD_BYTES}"]
    checks = "".join(f'static_assert({what}, "");\n' for what in (*needed, exact, *board))
    source = compiler._source
    monkeypatch.setattr(
        compiler, "_source", lambda name: source(name) + (checks if name == "panel.cu" else "")
    )

    # To PTX alone, which is quick; an assertion that fails raises.
    _assembler_log(nvrtc, "panel", shape.defines, arch.replace("sm", "compute"))


# Products whose operands are multiplied as they are, and the refined ones; both of each kernel's paths.
@pytest.mark.nvrtc
@pytest.mark.parametrize("refine", [0, 3])
@pytest.mark.parametrize("turned", [0, 1])
def test_wgmma_keeps_its_sums_in_registers_and_its_products_in_flight(refine, turned, nvrtc):
    defines = {
        "T_LOW": "fp16",
        "REFINE": refine,
        "CLUSTER": 2,
        "TRANS_A": turned,
        "TRANS_B": turned,
    }
    log = _assembler_log(nvrtc, "gemm_wgmma", defines)
    assert NO_SPILLS in log
    assert "serialized" not in log, log


@pytest.mark.nvrtc
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("tile", [0, 1, 2])
def test_wmma_keeps_its_sums_in_registers(turned, tile, nvrtc):
    defines = {"T_IN": "fp16", "T_LOW": "fp16", "REFINE": 0, "TRANS_A": turned, "TRANS_B": turned}
    defines |= {"SWIZZLE": 1, "TILE": tile}
    assert NO_SPILLS in _assembler_log(nvrtc, "gemm_wmma", defines)


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "defines", [v for v in KERNELS["gemm_batched"].variants if v["SIZE_M"] in (8, 16, 64)], ids=str
)
def test_batched_products_stay_in_registers(defines, nvrtc):
    assert NO_SPILLS in _assembler_log(nvrtc, "gemm_batched", defines)


@pytest.mark.nvrtc
@pytest.mark.parametrize("shape", LOWER_SHAPES, ids=lambda shape: str(shape.most))
def test_lower_solve_keeps_its_rows_in_registers(shape, nvrtc):
    assert NO_SPILLS in _assembler_log(nvrtc, "lower_solve", shape.defines)


NO_SPILLS = " 0 bytes stack frame, 0 bytes spill stores"


def _assembler_log(nvrtc, name, defines, arch="sm_90a"):
    """Return what the assembler says of a kernel."""
    options = [f"-arch={arch}", *compiler.FLAGS, "--ptxas-options=-v"]
    program = compiler.create_program(name)
    try:
        nvrtc.compileProgram(program, [*options, *(f"-D{k}={v}" for k, v in defines.items())])
        return nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)


def _code(name):
    """The text of kernels/<name>.cu without its comments."""
    return re.sub(r"//.*", "", compiler._source(f"{name}.cu"))
