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

# The kernel that takes the least time to compile; it does not read the macro.
SOURCE = ("wait_for_panel", "sm_80", (("ANY", 32),))
ELF = b"\x7fELF"  # how a cubin begins


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TCSOLVE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiler_calls(nvrtc, monkeypatch):
    """The list of the calls of NVRTC, one for each cubin that is not in the cache."""
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
    assert first.startswith(ELF)
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
        defines = (("ANY", 16),)
    else:
        major, minor = nvrtc.getVersion()
        monkeypatch.setattr(nvrtc, "getVersion", lambda: (major, minor + 1))
    compiler.compile_cubin(name, arch, defines)
    assert len(compiler_calls) == len(list(cache.iterdir())) == 2


@pytest.mark.nvrtc
def test_cache_sees_the_text_of_sources_and_headers(nvrtc, cache, tmp_path):
    package = tmp_path / "site" / "tcsolve"
    shutil.copytree(Path(tcsolve.__file__).parent, package)
    # In an editable installation, the kernels are in another folder.
    kernels = Path(tcsolve.kernels.__file__).parent
    shutil.copytree(kernels, package / "kernels", dirs_exist_ok=True)
    code = f"from {compiler.__name__} import compile_cubin; compile_cubin(*{SOURCE!r})"
    found = []
    # No file, a header that is not included, a header that is included, the source.
    for changed in (None, "gemm/wgmma.cuh", "common/common.cuh", "lu/wait_for_panel.cu"):
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
                *("common/bulk_copy.cuh", "common/cluster.cuh", "common/common.cuh"),
                *("common/hi_lo.cuh", "common/mbarrier.cuh", "common/sm_addresses.cuh"),
                *("gemm/gemm.cuh", "gemm/wgmma.cuh", "gemm/wgmma_result.cuh"),
                "gemm/wgmma_sizes.cuh",
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
@pytest.mark.parametrize("kind", ["file", "read-only"])
def test_a_cache_that_cannot_be_written_is_no_error(kind, nvrtc, tmp_path, monkeypatch):
    folder = tmp_path / "file" if kind == "file" else Path("/proc/tcsolve")
    if kind == "file":
        folder.write_text("in the way")
    monkeypatch.setenv("TCSOLVE_CACHE_DIR", str(folder))
    assert compiler.compile_cubin(*SOURCE).startswith(ELF)
    assert compiler.compile_cubin(*SOURCE).startswith(ELF)


@pytest.mark.nvrtc
def test_kernels_are_read_from_a_folder_that_cannot_be_written(cache, compiler_calls, monkeypatch):
    cubin = compiler.compile_cubin(*SOURCE)
    with monkeypatch.context() as patch:
        for name in ("mkdtemp", "mkstemp", "NamedTemporaryFile"):
            patch.setattr(f"tempfile.{name}", None)
        assert compiler.compile_cubin(*SOURCE) == cubin
    assert len(compiler_calls) == 1


def process(code, folder, **options):
    """Start a process with this cache; `code` may use `compile_cubin`, SOURCE and `write`."""
    text = f"""
from tcsolve._backends.cuda.runtime.compiler import compile_cubin
from tcsolve._backends.cuda.runtime.cubin_cache import write
SOURCE = {SOURCE!r}
{code}"""
    environment = os.environ | {"TCSOLVE_CACHE_DIR": str(folder)}
    command = [sys.executable, "-P", "-c", text]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.nvrtc
@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of a process")
def test_a_cache_that_is_full_is_no_error_and_keeps_no_part_of_a_file(nvrtc, cache):
    # A limit of the size of files stops a write in its middle, as a full disk does.
    code = """
import resource
from pathlib import Path
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
cubin = compile_cubin(*SOURCE)
print(len(cubin), write(Path("{0}") / "other", cubin))"""
    ran = process(code.format(cache), cache)
    size, written = ran.communicate(timeout=60)[0].split()
    assert ran.returncode == 0 and int(size) > 5000 and written == "False"
    assert list(cache.iterdir()) == []


@pytest.mark.nvrtc
def test_processes_that_start_together_share_a_cache(nvrtc, cache):
    code = "import hashlib; print(hashlib.sha256(compile_cubin(*SOURCE)).hexdigest())"
    ran = [process(code, cache) for _ in range(4)]
    found = {one.communicate(timeout=120)[0] for one in ran}
    assert len(found) == 1 and all(one.returncode == 0 for one in ran)
    (file,) = cache.iterdir()  # and no temporary file stays
    assert file.suffix == ".cubin"
    assert process(code, cache).communicate(timeout=60)[0] in found


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data + b"\0",
        lambda data: data[:999] + bytes([data[999] ^ 1]) + data[1000:],
        lambda data: bytes(len(data)),
        lambda data: data[:-1] + bytes([data[-1] ^ 128]),
    ],
)
def test_a_damaged_file_is_compiled_again(damage, cache, compiler_calls):
    cubin = compiler.compile_cubin(*SOURCE)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert compiler.compile_cubin(*SOURCE) == cubin
    assert file.read_bytes() == whole
    assert len(compiler_calls) == 2


AHEAD = """
import time
from tcsolve._backends.cuda.runtime.compiler import compile_ahead
compile_ahead("sm_80", [("wait_for_panel", dict(ANY=k)) for k in (4, 8, 16)])
while len(list(Path("{0}").glob("*.cubin"))) < 3:
    time.sleep(0.01)"""


@pytest.mark.nvrtc
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_one_line_on_a_terminal_says_that_kernels_are_compiled(nvrtc, cache):
    code = "from pathlib import Path" + AHEAD.format(cache)
    found = []
    for _ in range(2):  # the second process finds all kernels
        ours, theirs = os.openpty()
        assert process(code, cache, stderr=theirs).communicate(timeout=60)[0] == ""
        os.write(theirs, b"end\n")
        text = b""
        while not text.endswith(b"end\r\n"):
            text += os.read(ours, 10000)
        found.append(text.decode().splitlines())
        os.close(ours)
        os.close(theirs)
    (line, _), (end,) = found
    assert "sm_80" in line and str(cache) in line and "tcsolve warm" in line and end == "end"


@pytest.mark.nvrtc
def test_nothing_is_said_without_a_terminal(nvrtc, cache):
    code = "from pathlib import Path" + AHEAD.format(cache)
    assert process(code, cache, stderr=subprocess.STDOUT).communicate(timeout=60)[0] == ""


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
    """Yield the file, the kernel and the entry of every call of compiler.kernel that names both."""
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
