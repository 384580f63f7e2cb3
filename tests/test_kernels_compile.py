"""Every CUDA source compiles for every architecture, with every macro set it is launched with."""

import importlib.resources
import re

import pytest
from tcsolve.kernels import ARCHS, KERNELS

from tcsolve import _jit

CASES = [
    pytest.param(name, arch, id=f"{name}-{arch}")
    for name in KERNELS
    for arch in ARCHS
    if _jit.supported(name, arch)
]


def test_every_source_is_registered():
    folder = importlib.resources.files("tcsolve.kernels")
    assert {f.name for f in folder.iterdir() if f.name.endswith(".cu")} == {
        f"{n}.cu" for n in KERNELS
    }


def test_every_entry_is_registered():
    for name, spec in KERNELS.items():
        assert set(re.findall(r"\b(tcs_\w+)\(", _code(name))) == set(spec.entries)


def test_every_kernel_runs_on_some_architecture():
    assert {case.values[0] for case in CASES} == set(KERNELS)
    assert len(CASES) >= 4 * len(ARCHS)


@pytest.mark.nvrtc
@pytest.mark.parametrize("name, arch", CASES)
def test_kernel_compiles(name, arch, nvrtc):
    spec = KERNELS[name]
    for defines in spec.variants_for(arch):
        cubin = _jit.compile_cubin(name, arch, tuple(sorted(defines.items())))
        for entry in spec.entries:
            assert entry.encode() in cubin


@pytest.mark.nvrtc
@pytest.mark.parametrize("defines", KERNELS["panel"].variants, ids=str)
def test_panel_keeps_its_rows_in_registers(defines, nvrtc):
    options = ["-arch=sm_90a", *_jit.FLAGS, "--ptxas-options=-v"]
    program = _jit.create_program("panel")
    try:
        nvrtc.compileProgram(program, [*options, *(f"-D{k}={v}" for k, v in defines.items())])
        log = nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)
    assert re.search(r"\b0 bytes stack frame, 0 bytes spill stores", log), log


def _code(name):
    """The text of kernels/<name>.cu without its comments."""
    text = importlib.resources.files("tcsolve.kernels").joinpath(f"{name}.cu").read_text()
    return re.sub(r"//.*", "", text)
