"""Every CUDA source compiles for every architecture it runs on.

Together, the macro sets that are compiled to machine code have every value of every macro.  The front end
of the compiler accepts each of the other macro sets.
"""

import functools
import itertools
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from cubins import resources
from folders import ROOT
from kernel_shares import (
    ASSEMBLED,
    CONDITION,
    MEASURED,
    done,
    flags_of,
    groups_of,
    rest_of,
    shared_out,
    values,
    variants_of,
)
from tcsolve.kernels.arch import ARCHS, CLUSTER_ARCH, RESERVED_BYTES, arch_number
from tcsolve.kernels.panel_shapes import BOARD_BYTES, panel_shape
from tcsolve.kernels.registry import KERNELS

from tcsolve._backends.cuda.runtime import compiler

CASES = [
    pytest.param(name, arch, id=f"{name}-{arch}")
    for name in KERNELS
    for arch in ARCHS
    if compiler.supported(name, arch)
]


def measured(name):
    """Return the cases of MEASURED for a kernel."""
    return [
        pytest.param(*case, id="-".join(map(str, (*case[:2], *case[2].values()))))
        for case in MEASURED[name]
    ]


def test_every_source_is_registered():
    names = sorted(path.rpartition("/")[2] for path in compiler.files() if path.endswith(".cu"))
    assert names == sorted(f"{name}.cu" for name in KERNELS)


@pytest.mark.parametrize("path", compiler.files())
def test_no_lambda_is_generic(path):
    """NVRTC 13.0 does not compile lambdas with `auto` parameters without an annotation."""
    text = re.sub(r"//[^\n]*", "", compiler.source(path.rpartition("/")[2]))
    assert not re.search(r"\[[&=\w, ]*\]\s*\([^)]*\bauto\b", text)


def test_every_entry_is_registered():
    for name, spec in KERNELS.items():
        assert set(re.findall(r"\b(tcs_\w+)\(", _code(name))) == set(spec.entries)


def test_every_kernel_runs_on_some_architecture():
    assert {case.values[0] for case in CASES} == set(KERNELS)
    assert len(CASES) >= 4 * len(ARCHS)


def test_every_value_of_every_macro_is_compiled_in_each_group():
    for name in KERNELS:
        shares, groups = shared_out(name), groups_of(name)
        runs_on = {arch for arch in ARCHS if compiler.supported(name, arch)}
        assert set(shares) == runs_on == {arch for archs in groups for arch in archs}
        assert all(shares.values())
        for archs in groups:
            variants = variants_of(name, archs)
            needed = set().union(*map(values, map(dict, variants)))
            compiled = set().union(*map(values, done(name, archs)))
            for arch in archs:
                assert all(arch in variants[macros] for macros in shares[arch])
                compiled.update(*map(values, map(dict, shares[arch])))
            assert needed <= compiled
    assert all(macros in KERNELS["gemm_wgmma"].variants for macros in ASSEMBLED)
    for name, arch, macros in itertools.chain(*MEASURED.values()):
        assert macros in KERNELS[name].variants_for(arch)


def test_architectures_of_a_group_compile_the_same_lines():
    for path, text in zip(*compiler.headers(), strict=True):
        assert text.count("__CUDA_ARCH__") == len(CONDITION.findall(text)), path
    for name in KERNELS:
        text = compiler.source(f"{name}.cu")
        assert text.count("__CUDA_ARCH__") == len(CONDITION.findall(text)), name
    assert groups_of("gemm_wmma") == [
        ["sm_75"],
        ["sm_80", "sm_86", "sm_89"],
        ["sm_90a", "sm_100a", "sm_120"],
    ]


@pytest.mark.nvrtc
@pytest.mark.parametrize("name, arch", CASES)
def test_kernel_compiles(name, arch, nvrtc):
    def cubin(defines, flags):
        return compiler.compile_cubin(name, arch, defines, flags=flags)

    macros = shared_out(name)[arch]
    # NVRTC holds no lock of Python's, and takes most of the time of all tests.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        cubins = list(pool.map(cubin, macros, flags_of(name, arch)))
    assert len(cubins) == len(macros) > 0
    for cubin in cubins:
        for entry in KERNELS[name].entries:
            assert resources(cubin, entry).arguments == compiler.parameters(name, entry)


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", KERNELS)
def test_the_front_end_takes_every_macro_set(name, nvrtc):
    text, rest = compiler.source(f"{name}.cu"), rest_of(name)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        logs = list(pool.map(lambda case: _errors_of(nvrtc, text, *case), rest))
    assert logs == [None] * len(rest)


def test_the_tests_compile_every_macro_set():
    for name in KERNELS:
        shares, rest = shared_out(name), rest_of(name)
        assert all(macros in KERNELS[name].variants_for(arch) for macros, arch in rest)
        compiled = {macros for share in shares.values() for macros in share}
        others = (*done(name, ARCHS), *(macros for macros, _ in rest))
        compiled |= {tuple(sorted(macros.items())) for macros in others}
        assert compiled == set(variants_of(name, shares)), name


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
    """Return the bytes of a block's static shared memory that the system reserves."""
    return RESERVED_BYTES if arch_number(arch) >= CLUSTER_ARCH else 0


@pytest.mark.nvrtc
@pytest.mark.parametrize("header", compiler.headers()[0])
def test_a_header_compiles_alone(header, nvrtc):
    # Use the macros of a kernel that includes the header; some headers are for clusters only, or for grids.
    text, logs = f'#include "{header}"\n', []
    for defines in _macros_for(dict(zip(*compiler.headers(), strict=True))[header]):
        logs.append(_errors_of(nvrtc, text, defines))
        if logs[-1] is None:
            return
    pytest.fail(logs[0] if logs else "no kernel includes it")


def _macros_for(text):
    """Yield macro sets of the kernels that include a header; together they have all values of all macros."""
    for name, spec in KERNELS.items():
        if text in compiler.included(compiler.source(f"{name}.cu")):
            seen = set()
            for defines in spec.variants_for("sm_90a"):
                if not seen or defines.items() - seen:
                    yield defines
                seen |= defines.items()


def _errors_of(nvrtc, text, defines, arch="sm_90a"):
    """Return the errors of the front end of the compiler for a text, or None if it accepts the text."""
    program = compiler.create_program_of(text, "alone.cu")
    options = [f"-arch={arch}", *compiler.FLAGS, "--fdevice-syntax-only", "--minimal"]
    try:
        nvrtc.compileProgram(program, [*options, *(f"-D{k}={v}" for k, v in defines.items())])
    except nvrtc.NVRTCError:
        return nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)


@pytest.mark.nvrtc
@pytest.mark.parametrize("name, arch, defines", measured("panel"))
def test_panel_keeps_its_rows_in_registers(name, arch, defines, nvrtc):
    found = _taken(name, arch, defines)
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


# The macro sets ASSEMBLED: plain and refined products, some with a cluster, with scales or transposes.
@pytest.mark.nvrtc
def test_wgmma_keeps_its_sums_in_registers_and_its_products_in_flight(nvrtc):
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        logs = list(pool.map(functools.partial(_assembler_log, nvrtc, "gemm_wgmma"), ASSEMBLED))
    for log in logs:
        assert " 0 bytes stack frame, 0 bytes spill stores" in log
        assert "serialized" not in log, log


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "name, arch, defines",
    measured("gemm_wmma") + measured("gemm_batched") + measured("lower_solve"),
)
def test_these_kernels_keep_all_in_registers(name, arch, defines, nvrtc):
    assert _taken(name, arch, defines).stack == 0


def _taken(name, arch, defines):
    """Return the `Resources` of a kernel's only entry; a kernel that spills registers has a stack."""
    (entry,) = KERNELS[name].entries
    cubin = compiler.compile_cubin(name, arch, tuple(sorted(defines.items())))
    return resources(cubin, entry)


def _assembler_log(nvrtc, name, defines, arch="sm_90a"):
    """Return the log of the assembler for a kernel."""
    options = [f"-arch={arch}", *compiler.FLAGS, "--ptxas-options=-v"]
    program = compiler.create_program(name)
    try:
        nvrtc.compileProgram(program, [*options, *(f"-D{k}={v}" for k, v in defines.items())])
        return nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)


def _code(name):
    """Return the text of <name>.cu without its comments."""
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
