"""Every CUDA source compiles for every architecture it runs on, with the macro sets it is launched with."""

import functools
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from cubins import resources
from folders import ROOT
from kernel_shares import ASSEMBLED, GENERATIONS, shared_out, values, variants_of
from tcsolve.kernels.arch import ARCHS, CLUSTER_ARCH, RESERVED_BYTES, arch_number
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
    names = sorted(path.rpartition("/")[2] for path in compiler.files() if path.endswith(".cu"))
    assert names == sorted(f"{name}.cu" for name in KERNELS)


def test_every_entry_is_registered():
    for name, spec in KERNELS.items():
        assert set(re.findall(r"\b(tcs_\w+)\(", _code(name))) == set(spec.entries)


def test_every_kernel_runs_on_some_architecture():
    assert {case.values[0] for case in CASES} == set(KERNELS)
    assert len(CASES) >= 4 * len(ARCHS)


def test_every_value_of_every_macro_is_compiled_in_each_generation():
    assert sorted(arch for archs in GENERATIONS for arch in archs) == sorted(ARCHS)
    for name in KERNELS:
        shares = shared_out(name)
        assert set(shares) == {arch for arch in ARCHS if compiler.supported(name, arch)}
        assert all(shares.values())
        for archs in GENERATIONS:
            variants = variants_of(name, archs)
            needed, compiled = set().union(*map(values, map(dict, variants))), set()
            for arch in shares.keys() & set(archs):
                assert all(arch in variants[macros] for macros in shares[arch])
                compiled.update(*map(values, map(dict, shares[arch])))
            if name == "gemm_wgmma":
                compiled.update(*map(values, ASSEMBLED))
            assert needed <= compiled
    assert all(macros in KERNELS["gemm_wgmma"].variants for macros in ASSEMBLED)


@pytest.mark.nvrtc
@pytest.mark.parametrize("name, arch", CASES)
def test_kernel_compiles(name, arch, nvrtc):
    macros = shared_out(name)[arch]
    # NVRTC holds no lock of Python's, and takes most of the time of all tests.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        cubins = list(pool.map(functools.partial(compiler.compile_cubin, name, arch), macros))
    assert len(cubins) == len(macros) > 0
    for cubin in cubins:
        for entry in KERNELS[name].entries:
            assert resources(cubin, entry).arguments == compiler.parameters(name, entry)


@pytest.mark.nvrtc
@pytest.mark.parametrize("archs", GENERATIONS, ids="-".join)
@pytest.mark.parametrize("name", KERNELS)
def test_the_front_end_takes_every_macro_set(name, archs, nvrtc):
    text, variants = compiler.source(f"{name}.cu"), variants_of(name, archs)
    for macros, (arch, *_) in variants.items():
        assert _errors_of(nvrtc, text, dict(macros), arch) is None
    assert variants or not any(compiler.supported(name, arch) for arch in archs)


@pytest.mark.nvrtc
def test_the_front_end_finds_mistakes_in_what_is_instantiated(nvrtc):
    text = """template<int N> __device__ int f() { static_assert(N > 3, "small"); return N; }
              extern "C" __global__ void g(int *x) { x[0] = f<SIZE>(); }"""
    assert _errors_of(nvrtc, text, {"SIZE": 4}) is None
    assert "small" in _errors_of(nvrtc, text, {"SIZE": 2})


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "text, stack, shared",
    [
        ("out[i] = i;", False, 0),
        ("volatile int x[9]; x[n] = i; out[i] = x[i % 9];", True, 0),
        ("__shared__ int y[96]; y[i] = i; __syncthreads(); out[i] = y[95 - i];", False, 384),
    ],
)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_what_a_kernel_takes_is_read_from_its_binary(text, stack, shared, arch, nvrtc):
    text = f'extern "C" __global__ void f(int *out, int n) {{ int i = threadIdx.x; {text} }}'
    program = compiler.create_program_of(text, "f.cu")
    nvrtc.compileProgram(program, [f"-arch={arch}"])
    found = resources(nvrtc.getCUBIN(program), "f")
    nvrtc.destroyProgram(program)

    assert (found.arguments, found.stack > 0) == (2, stack)
    assert found.shared - _reserved(arch) * (shared > 0) == shared


def _reserved(arch):
    """Return the bytes that a block's static shared memory has for the system."""
    return RESERVED_BYTES if arch_number(arch) >= CLUSTER_ARCH else 0


@pytest.mark.nvrtc
@pytest.mark.parametrize("header", compiler.headers()[0])
def test_a_header_compiles_alone(header, nvrtc):
    # With the macros of a kernel that includes it; some are for clusters alone, or for grids.
    text, logs = f'#include "{header}"\n', []
    for defines in _macros_for(dict(zip(*compiler.headers(), strict=True))[header]):
        logs.append(_errors_of(nvrtc, text, defines))
        if logs[-1] is None:
            return
    pytest.fail(logs[0] if logs else "no kernel includes it")


def _macros_for(text):
    """Yield macro sets of the kernels that include a header: some with every value of every macro."""
    for name, spec in KERNELS.items():
        if text in compiler.included(compiler.source(f"{name}.cu")):
            seen = set()
            for defines in spec.variants_for("sm_90a"):
                if not seen or defines.items() - seen:
                    yield defines
                seen |= defines.items()


def _errors_of(nvrtc, text, defines, arch="sm_90a"):
    """Return what the front end of the compiler says of a text, or None if it takes it."""
    program = compiler.create_program_of(text, "alone.cu")
    options = [f"-arch={arch}", *compiler.FLAGS, "--fdevice-syntax-only"]
    try:
        nvrtc.compileProgram(program, [*options, *(f"-D{k}={v}" for k, v in defines.items())])
    except nvrtc.NVRTCError:
        return nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)


PANELS = [
    pytest.param(arch, defines, id=f"{arch}-{'-'.join(map(str, defines.values()))}")
    for arch in ("sm_75", "sm_80", "sm_89", "sm_90a")
    for defines in KERNELS["panel"].variants_for(arch)
]


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch, defines", PANELS)
def test_panel_keeps_its_rows_in_registers(arch, defines, nvrtc):
    found = _taken("panel", defines, arch)
    # Four rows a thread take all registers, and older devices need a few more.
    spare = 32 if arch != "sm_90a" and defines["ROWS"] == 4 else 0
    assert found.stack <= spare
    assert found.shared - _reserved(arch) <= 24 << 10
    if found.stack:
        log = _assembler_log(nvrtc, "panel", defines, arch)
        assert int(re.search(r"\b(\d+) bytes spill stores", log)[1]) <= spare, log


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
def test_the_memory_of_a_panel_is_what_its_structs_take(m, arch, nvrtc):
    shape = panel_shape(m, arch, 132, narrow=True)
    structs = ("Leaf", "Dominant") if shape.dominant else ("Leaf",)
    needed = [f"sizeof({name}) <= {shape.shared_bytes}" for name in structs]
    exact = " || ".join(f"sizeof({name}) == {shape.shared_bytes}" for name in structs)
    board = [] if shape.cluster else [f"sizeof(Board) == {BOARD_BYTES}"]
    checks = "".join(f'static_assert({what}, "");\n' for what in (*needed, exact, *board))
    text = compiler.source("panel.cu") + checks

    assert _errors_of(nvrtc, text, shape.defines, arch) is None


# Products whose operands are multiplied as they are, and the refined ones; both of each kernel's paths.
@pytest.mark.nvrtc
def test_wgmma_keeps_its_sums_in_registers_and_its_products_in_flight(nvrtc):
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        logs = list(pool.map(functools.partial(_assembler_log, nvrtc, "gemm_wgmma"), ASSEMBLED))
    for log in logs:
        assert " 0 bytes stack frame, 0 bytes spill stores" in log
        assert "serialized" not in log, log


@pytest.mark.nvrtc
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("tile", [0, 1, 2])
def test_wmma_keeps_its_sums_in_registers(turned, tile, nvrtc):
    defines = {"T_IN": "fp16", "T_LOW": "fp16", "REFINE": 0, "TRANS_A": turned, "TRANS_B": turned}
    defines |= {"SWIZZLE": 1, "TILE": tile}
    assert _taken("gemm_wmma", defines).stack == 0


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "defines", [v for v in KERNELS["gemm_batched"].variants if v["SIZE_M"] in (8, 16, 64)], ids=str
)
def test_batched_products_stay_in_registers(defines, nvrtc):
    assert _taken("gemm_batched", defines).stack == 0


@pytest.mark.nvrtc
@pytest.mark.parametrize("shape", LOWER_SHAPES, ids=lambda shape: str(shape.most))
def test_lower_solve_keeps_its_rows_in_registers(shape, nvrtc):
    assert _taken("lower_solve", shape.defines).stack == 0


def _taken(name, defines, arch="sm_90a"):
    """Return the `Resources` of a kernel's only entry; what spills has a stack."""
    (entry,) = KERNELS[name].entries
    cubin = compiler.compile_cubin(name, arch, tuple(sorted(defines.items())))
    return resources(cubin, entry)


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
    return re.sub(r"//.*", "", compiler.source(f"{name}.cu"))


# ---- names --------------------------------------------------------------------------------------

# A kernel and its entry, named one after the other where a launch is made.
LAUNCHED = re.compile(r'"(\w+)", f?"(tcs_\w+)"')
# An entry that is named alone; the function around it has the kernel.
ENTRY = re.compile(r'"(tcs_\w+)"')


def test_every_launch_names_a_kernel_and_an_entry_that_exist():
    text = "".join(path.read_text() for path in sorted((ROOT / "tcsolve").rglob("*.py")))
    pairs = {pair for pair in LAUNCHED.findall(text) if not pair[0].startswith(("float", "int"))}
    assert len(pairs) > 20
    wrong = [
        (name, e) for name, e in pairs if name not in KERNELS or e not in KERNELS[name].entries
    ]
    assert not wrong
    known = {entry for kernel in KERNELS.values() for entry in kernel.entries} | {"tcs_invert_from"}
    assert set(ENTRY.findall(text)) - {"tcs_"} <= known
