"""Compiling and caching of kernels; no device is needed."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tcsolve.kernels.registry import KERNELS

import tcsolve
from tcsolve._backends.cuda.runtime import compiler
from tcsolve._backends.cuda.runtime.launch_counter import counted
from tcsolve._backends.cuda.runtime.out_of_memory import guarded
from tcsolve._errors import DeviceMemoryError, KernelCompileError

SOURCE = ("move_rows", "sm_80", (("CHUNK", 32),))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TCSOLVE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiler_calls(nvrtc, monkeypatch):
    """The calls of NVRTC: those that the cache does not answer."""
    calls, compile_program = [], nvrtc.compileProgram
    monkeypatch.setattr(
        nvrtc, "compileProgram", lambda *args: calls.append(args) or compile_program(*args)
    )
    return calls


def test_a_launch_with_too_few_arguments_is_refused():
    launched = []
    kernel = compiler.Kernel(lambda *args, **options: launched.append(args), 1, 3)
    for wrong in ((), (1, None)):
        with pytest.raises(TypeError, match=f"takes 3 arguments, got {len(wrong)}"):
            kernel((1,), (1,), wrong)
        with pytest.raises(TypeError, match="takes 3 arguments"):
            kernel.prepared((1, 1), (1, 1), wrong, 0)
    kernel((1,), (1,), (1, None, 2))
    assert launched == [((1,), (1,), (1, 0, 2), 0)]


def test_launches_are_counted_while_a_counter_is_open():
    first, second = (compiler.Kernel(lambda *_, **__: None, 1, 0, name) for name in ("f", "g"))
    first((1,), (1,), ())
    with counted() as outer:
        first((1,), (1,), ())
        with counted() as inner:
            second((1,), (1,), ())
        first((1,), (1,), ())
    first((1,), (1,), ())
    assert outer == {"f": 2, "g": 1} and inner == {"g": 1}


def test_importing_does_not_import_cupy():
    code = "import tcsolve._backends.cuda.runtime.compiler, sys; sys.exit('cupy' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code]).returncode == 0


@pytest.mark.nvrtc
def test_second_compile_comes_from_the_cache(cache, compiler_calls):
    first = compiler.compile_cubin(*SOURCE)
    assert first.startswith(compiler.CUBIN_MAGIC)
    assert compiler.compile_cubin(*SOURCE) == first
    assert len(compiler_calls) == 1
    assert len(list(cache.iterdir())) == 1  # and no temporary file stays


@pytest.mark.nvrtc
def test_cache_follows_xdg(nvrtc, tmp_path, monkeypatch):
    monkeypatch.delenv("TCSOLVE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiler.compile_cubin(*SOURCE)
    assert len(list((tmp_path / "tcsolve").iterdir())) == 1


@pytest.mark.nvrtc
@pytest.mark.parametrize("changed", ["arch", "defines", "compiler"])
def test_cache_sees_every_input(changed, nvrtc, cache, compiler_calls, monkeypatch):
    compiler.compile_cubin(*SOURCE)
    name, arch, defines = SOURCE
    if changed == "arch":
        arch = "sm_90"
    elif changed == "defines":
        defines = (("CHUNK", 16),)
    else:
        major, minor = nvrtc.getVersion()
        monkeypatch.setattr(nvrtc, "getVersion", lambda: (major, minor + 1))
    compiler.compile_cubin(name, arch, defines)
    assert len(compiler_calls) == len(list(cache.iterdir())) == 2


@pytest.mark.nvrtc
def test_cache_sees_the_text_of_sources_and_headers(nvrtc, cache, tmp_path):
    package = tmp_path / "site" / "tcsolve"
    shutil.copytree(Path(tcsolve.__file__).parent, package)
    code = f"from {compiler.__name__} import compile_cubin; compile_cubin(*{SOURCE!r})"
    found = []
    # Neither, a header that is not included, one that is, the source.
    for changed in (None, "gemm/wgmma.cuh", "common/common.cuh", "lu/move_rows.cu"):
        if changed:
            with (package / "kernels" / changed).open("a") as file:
                file.write("\n")
        environment = os.environ | {"PYTHONPATH": str(package.parent)}
        subprocess.run([sys.executable, "-P", "-c", code], env=environment, check=True)
        found.append(len(list(cache.iterdir())))
    assert found == [1, 1, 2, 3]


@pytest.mark.parametrize(
    "kernel, headers",
    [
        ("wait_for_panel", {"common/common.cuh"}),
        (
            "gemm_wgmma",
            {
                *("common/bulk_copy.cuh", "common/common.cuh", "common/hi_lo.cuh"),
                *("common/mbarrier.cuh", "common/sm_addresses.cuh", "gemm/gemm.cuh"),
                *("gemm/wgmma.cuh", "gemm/wgmma_result.cuh", "gemm/wgmma_sizes.cuh"),
            },
        ),
        (
            "panel",
            {
                *("common/async_copy.cuh", "common/cluster.cuh", "common/common.cuh"),
                *("common/mbarrier.cuh", "common/reduce.cuh", "common/sm_addresses.cuh"),
                *("lu/dominant_strip.cuh", "lu/exchange_cluster.cuh", "lu/exchange_grid.cuh"),
                *("lu/strip.cuh", "lu/strip_rows.cuh"),
            },
        ),
    ],
)
def test_a_binary_depends_on_the_headers_it_includes_alone(kernel, headers):
    names, texts = compiler.headers()
    _, *found = compiler.included(compiler.source(f"{kernel}.cu"))
    assert sorted(found) == sorted(t for n, t in zip(names, texts, strict=True) if n in headers)


@pytest.mark.nvrtc
def test_cache_that_is_no_folder_is_ignored(nvrtc, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("TCSOLVE_CACHE_DIR", str(blocked))
    assert compiler.compile_cubin(*SOURCE).startswith(compiler.CUBIN_MAGIC)


@pytest.mark.nvrtc
def test_broken_cache_file_is_compiled_again(cache, compiler_calls):
    cubin = compiler.compile_cubin(*SOURCE)
    (file,) = cache.iterdir()
    file.write_bytes(b"")
    assert compiler.compile_cubin(*SOURCE) == cubin
    assert file.read_bytes() == cubin
    assert len(compiler_calls) == 2


@pytest.mark.nvrtc
def test_compile_error_tells_kernel_architecture_options_and_log(nvrtc, cache):
    with pytest.raises(KernelCompileError, match="move_rows") as caught:
        compiler.compile_cubin("move_rows", "sm_80", (("CHUNK", "no_such_name"),))
    error = caught.value
    assert (error.kernel, error.arch) == ("move_rows", "sm_80")
    assert "-DCHUNK=no_such_name" in error.options
    assert "no_such_name" in error.log


@pytest.mark.nvrtc
def test_memory_that_the_compiler_lacks_is_no_compile_error(nvrtc, cache, monkeypatch):
    def refuse(program, options):
        raise nvrtc.NVRTCError(1)  # NVRTC_ERROR_OUT_OF_MEMORY

    monkeypatch.setattr(nvrtc, "compileProgram", refuse)
    compile_cubin = guarded(compiler.compile_cubin, lambda: False)
    with pytest.raises(DeviceMemoryError, match="ran out of memory"):
        compile_cubin(*SOURCE)


@pytest.mark.nvrtc
def test_unknown_architecture_is_a_compile_error(nvrtc, cache):
    with pytest.raises(KernelCompileError, match="sm_1"):
        compiler.compile_cubin("move_rows", "sm_1", (("CHUNK", 32),))


def launched():
    """Yield the file, the kernel and the entry of every launch in the package that names them."""
    for path in sorted(Path(tcsolve.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "compiler.kernel":
                names = [x.value for x in node.args if isinstance(x, ast.Constant)]
                if len(names) == 2:
                    yield path.name, *names


def test_what_is_launched_is_there():
    found = list(launched())

    assert len(found) >= 15
    for file, kernel, entry in found:
        assert entry in KERNELS[kernel].entries, file
