"""Compiling and caching of kernels, the table of leaf shapes; no device is needed."""

import subprocess
import sys

import pytest
from tcsolve.kernels import ARCHS, KERNELS, arch_number, leaf_shape, move_chunk

from tcsolve import _jit
from tcsolve._errors import KernelCompileError

SOURCE = ("move_rows", "sm_80", (("CHUNK", 32),))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TCSOLVE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiler_calls(monkeypatch):
    """Count the calls that are not answered by the cache."""
    calls = []
    compile_ = _jit._compile
    monkeypatch.setattr(_jit, "_compile", lambda *args: calls.append(args) or compile_(*args))
    return calls


def test_importing_does_not_import_cupy():
    code = "import tcsolve._jit, sys; sys.exit('cupy' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code]).returncode == 0


@pytest.mark.nvrtc
def test_second_compile_comes_from_the_cache(nvrtc, cache, compiler_calls):
    first = _jit.compile_cubin(*SOURCE)
    assert first.startswith(_jit.CUBIN_MAGIC)
    assert _jit.compile_cubin(*SOURCE) == first
    assert len(compiler_calls) == 1
    assert len(list(cache.iterdir())) == 1  # and no temporary file stays


@pytest.mark.nvrtc
def test_cache_follows_xdg(nvrtc, tmp_path, monkeypatch):
    monkeypatch.delenv("TCSOLVE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _jit.compile_cubin(*SOURCE)
    assert len(list((tmp_path / "tcsolve").iterdir())) == 1


@pytest.mark.nvrtc
@pytest.mark.parametrize("changed", ["arch", "defines", "header", "source", "compiler"])
def test_cache_sees_every_input(changed, nvrtc, cache, compiler_calls, monkeypatch):
    _jit.compile_cubin(*SOURCE)
    name, arch, defines = SOURCE
    if changed == "arch":
        arch = "sm_90"
    elif changed == "defines":
        defines = (("CHUNK", 16),)
    elif changed == "header":
        names, texts = _jit._headers()
        monkeypatch.setattr(_jit, "_headers", lambda: (names, tuple(t + "\n" for t in texts)))
    elif changed == "source":
        source = _jit._source
        monkeypatch.setattr(_jit, "_source", lambda filename: source(filename) + "\n")
    else:
        version = _jit._nvrtc_version()
        monkeypatch.setattr(_jit, "_nvrtc_version", lambda: (version[0], version[1] + 1))
    _jit.compile_cubin(name, arch, defines)
    assert len(compiler_calls) == 2


@pytest.mark.nvrtc
def test_cache_that_is_no_folder_is_ignored(nvrtc, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("TCSOLVE_CACHE_DIR", str(blocked))
    assert _jit.compile_cubin(*SOURCE).startswith(_jit.CUBIN_MAGIC)


@pytest.mark.nvrtc
def test_broken_cache_file_is_compiled_again(nvrtc, cache, compiler_calls):
    cubin = _jit.compile_cubin(*SOURCE)
    (file,) = cache.iterdir()
    file.write_bytes(b"")
    assert _jit.compile_cubin(*SOURCE) == cubin
    assert file.read_bytes() == cubin
    assert len(compiler_calls) == 2


@pytest.mark.nvrtc
def test_compile_error_tells_kernel_architecture_options_and_log(nvrtc, cache):
    with pytest.raises(KernelCompileError, match="move_rows") as caught:
        _jit.compile_cubin("move_rows", "sm_80", (("CHUNK", "no_such_name"),))
    error = caught.value
    assert (error.kernel, error.arch) == ("move_rows", "sm_80")
    assert "-DCHUNK=no_such_name" in error.options
    assert "no_such_name" in error.log


@pytest.mark.nvrtc
def test_unknown_architecture_is_a_compile_error(nvrtc, cache):
    with pytest.raises(KernelCompileError, match="sm_1"):
        _jit.compile_cubin("move_rows", "sm_1", (("CHUNK", 32),))


@pytest.mark.parametrize(
    "arch, number", [("sm_75", 75), ("sm_90a", 90), ("sm_100f", 100), ("sm_120", 120)]
)
def test_arch_number(arch, number):
    assert arch_number(arch) == number


def test_panel_needs_clusters():
    assert not _jit.supported("panel", "sm_89")
    assert _jit.supported("panel", "sm_90a")
    assert _jit.supported("pack", "sm_75")


@pytest.mark.parametrize(
    "m, cluster, rows, width",
    [
        (1, 2, 1, 32),
        (512, 2, 1, 32),
        (513, 2, 1, 32),
        (2049, 8, 1, 32),
        (8192, 16, 1, 32),
        (8193, 16, 2, 32),
        (16384, 16, 2, 32),
        (16385, 16, 4, 16),
        (32768, 16, 4, 16),
        (65536, 16, 8, 8),
    ],
)
def test_leaf_shape(m, cluster, rows, width):
    assert leaf_shape(m, "sm_90a") == (cluster, 512, rows, width)


@pytest.mark.parametrize("m, arch", [(65537, "sm_90a"), (32769, "sm_120"), (100, "sm_89")])
def test_no_leaf_shape(m, arch):
    assert leaf_shape(m, arch) is None


@pytest.mark.parametrize("arch, largest", [("sm_120", 16), ("sm_90a", 8)])
def test_leaf_shape_with_portable_clusters(arch, largest):
    assert leaf_shape(4096, arch, largest) == (8, 512, 1, 32)
    assert leaf_shape(8192, arch, largest) == (8, 512, 2, 32)
    assert leaf_shape(32768, arch, largest) == (8, 512, 8, 8)


def test_every_leaf_shape_holds_its_rows_and_is_compiled():
    for arch in ARCHS:
        for largest in (8, 16):
            for m in (2**i + d for i in range(18) for d in (-1, 0, 1) if 2**i + d > 0):
                shape = leaf_shape(m, arch, largest)
                if shape is not None:
                    assert shape.cluster * shape.threads * shape.rows >= m
                    assert shape.cluster <= largest
                    assert shape.defines in KERNELS["panel"].variants


def test_staged_rows_fit_in_shared_memory():
    for count in (1, 64, 512, 513, 1024, 1025, 2048):
        chunk = move_chunk(count)
        assert 4 * count * chunk <= 64 << 10
        assert {"CHUNK": chunk} in KERNELS["move_rows"].variants
    with pytest.raises(ValueError, match="2049"):
        move_chunk(2049)
