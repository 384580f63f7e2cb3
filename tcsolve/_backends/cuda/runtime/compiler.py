"""From the text of a .cu file to a kernel that can be launched.

The sources are compiled here and not by CuPy, which would flush subnormal numbers to zero, ask a
device for its architecture, and reuse a cached binary after a header has changed.
"""

import ctypes
import functools
import hashlib
import importlib.resources
import os
import pathlib
import re
import struct
import tempfile
import threading

from tcsolve._backends.cuda.runtime.out_of_memory import is_out_of_memory
from tcsolve._errors import DeviceError, KernelCompileError
from tcsolve._locks import ForkSafeLock
from tcsolve.kernels.arch import PORTABLE_CLUSTER, arch_number
from tcsolve.kernels.registry import KERNELS

__all__ = ["Kernel", "compile_cubin", "kernel", "least_arch", "supported", "target_arch"]

# Division and square root correctly rounded, subnormal numbers kept; spelled out although they are
# the compiler's defaults, because the error bounds rest on them.
FLAGS = ("-std=c++17", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--fmad=true")

# Architectures with instructions that a plain target leaves out.
ARCH_SPECIFIC = {90, 100}

# Dynamic shared memory that needs no permission beside 24 KB of static, and two values of
# CUfunction_attribute.
FREE_SHARED_BYTES = 24 << 10
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14

_permitting = ForkSafeLock()

CUBIN_MAGIC = b"\x7fELF"
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def supported(name, arch):
    """Tell whether kernels/<name>.cu can run on `arch`, such as 'sm_80'."""
    return KERNELS[name].min_arch <= arch_number(arch) <= KERNELS[name].max_arch


def least_arch():
    """Return the least compute capability, 75 for 7.5, on which kernels run."""
    return min(spec.min_arch for spec in KERNELS.values())


def target_arch(device=None):
    """Return the architecture to compile for, such as 'sm_90a', of a CuPy device (the current one)."""
    from cupy.cuda import Device

    number = int((device or Device()).compute_capability)
    return f"sm_{number}{'a' if number in ARCH_SPECIFIC else ''}"


@functools.cache
def _files():
    """Return every CUDA source and header below kernels/, by its path from there."""
    found, folders = {}, [("", importlib.resources.files("tcsolve.kernels"))]
    for before, folder in folders:  # which grows
        for file in folder.iterdir():
            if file.is_dir():
                folders.append((f"{before}{file.name}/", file))
            elif file.name.endswith((".cu", ".cuh")):
                found[before + file.name] = file
    return found


@functools.cache
def _source(filename):
    """Return the text of a file, whatever its folder: no two files have one name."""
    (path,) = (path for path in _files() if path.rpartition("/")[2] == filename)
    return _files()[path].read_text("utf-8")


@functools.cache
def _headers():
    """Return (paths, texts) of every header; their texts are handed over, so no path is searched."""
    paths = tuple(sorted(path for path in _files() if path.endswith(".cuh")))
    return paths, tuple(_files()[path].read_text("utf-8") for path in paths)


def compile_cubin(name, arch, defines=()):
    """Compile kernels/<name>.cu for `arch`, or fetch it from the cache; needs NVRTC but no device.

    Parameters
    ----------
    name : str
    arch : str
        Such as 'sm_90a'.
    defines : tuple of (str, int or str)
        Preprocessor macros.

    Returns
    -------
    bytes
        A cubin.

    Raises
    ------
    KernelCompileError
        With the kernel, the options and the compiler's log.
    """
    options = (f"-arch={arch}", *FLAGS, *(f"-D{macro}={value}" for macro, value in defines))
    path = _cache_path(name, options)
    cubin = _read(path)
    if cubin is None:
        cubin = _compile(name, arch, options)
        _write(path, cubin)
    return cubin


def create_program(name):
    """Return NVRTC's program of kernels/<name>.cu, for the caller to destroy."""
    return create_program_of(_source(f"{name}.cu"), f"{name}.cu")


def create_program_of(text, filename):
    """Return the program of a text that may include the headers of kernels/."""
    from cupy.cuda import nvrtc

    names, texts = ([header.encode() for header in column] for column in _headers())
    return nvrtc.createProgram(text, filename, texts, names)


def _compile(name, arch, options):
    from cupy.cuda import nvrtc

    program = create_program(name)
    try:
        nvrtc.compileProgram(program, options)
        return nvrtc.getCUBIN(program)
    except nvrtc.NVRTCError as error:
        if is_out_of_memory(error):
            raise
        log = nvrtc.getProgramLog(program).strip() or str(error)
        raise KernelCompileError(name, arch, options, log) from error
    finally:
        nvrtc.destroyProgram(program)


def _nvrtc_version():
    from cupy.cuda import nvrtc

    return nvrtc.getVersion()


def _cache_path(name, options):
    """Return where the cubin belongs: its name tells every byte that went into it."""
    parts = (repr(_nvrtc_version()), *options, *_included(_source(f"{name}.cu")))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    own = os.environ.get("TCSOLVE_CACHE_DIR")
    shared = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(own or os.path.join(shared, "tcsolve")) / f"{name}-{key}.cubin"


def _included(text):
    """Return a text and those of all headers it includes, also under a condition, and what those include."""
    headers, texts, seen = dict(zip(*_headers(), strict=True)), [text], set()
    for text in texts:
        for name in INCLUDE.findall(text):
            if name in headers and name not in seen:
                seen.add(name)
                texts.append(headers[name])
    return texts


def _read(path):
    try:
        cubin = path.read_bytes()
    except OSError:
        return None
    return cubin if cubin.startswith(CUBIN_MAGIC) else None  # cut off by a full disk


def _write(path, cubin):
    """Publish a cubin for other processes, whole or not at all; a cache that cannot be written is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(cubin)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
    except OSError:
        pass


def parameters(name, entry):
    """Return how many arguments an entry of kernels/<name>.cu takes."""
    text = re.sub(r"//.*", "", _source(f"{name}.cu"))
    (found,) = re.findall(rf"\b{entry}\s*\(([^)]*)\)\s*{{", text)
    return found.count(",") + 1


class Kernel:
    """One entry of a loaded cubin, launched on CuPy's current stream with `count` arguments or more."""

    def __init__(self, function, cluster, count=0):
        self._function, self._count = function, count
        self._shared_bytes = FREE_SHARED_BYTES
        if cluster > PORTABLE_CLUSTER:
            self._permit(NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)

    def _permit(self, attribute, value):
        from cupy_backends.cuda.api import driver

        driver.funcSetAttribute(self._function.ptr, attribute, value)

    def _allow(self, shared):
        if shared > self._shared_bytes:
            with _permitting:  # or the smaller of two wishes would be the last
                if shared > self._shared_bytes:
                    self._permit(MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
                    self._shared_bytes = shared

    def _require(self, args):
        # The driver would read on behind them.
        if len(args) < self._count:
            raise TypeError(
                f"the kernel takes {self._count} arguments, got {len(args)}; pass them all"
            )

    def handle(self, shared):
        """Return the driver's function, which may have so many bytes of dynamic shared memory from now on."""
        self._allow(shared)
        return self._function.ptr

    def resident_blocks(self, threads, shared):
        """Return how many blocks a multiprocessor holds at a time."""
        from cupy_backends.cuda.api import driver

        self._allow(shared)
        find = driver.occupancyMaxActiveBlocksPerMultiprocessor
        return max(1, find(self._function.ptr, threads, shared))

    def prepared(self, grid, block, args, shared):
        """Return a `Prepared` launch; grid and block have two dimensions, args are as for a call."""
        self._require(args)
        self._allow(shared)
        return Prepared(self._function, grid, block, args, shared)

    def __call__(self, grid, block, args, shared=0, cooperative=False):
        """Launch with `shared` bytes of dynamic memory; `cooperative` if blocks wait for each other.

        An argument is a CuPy array, an int (passed as long long), a float (passed as double) or None
        (a null pointer).
        """
        args = tuple(0 if x is None else x for x in args)
        self._require(args)
        self._allow(shared)
        self._function(grid, block, args, shared, enable_cooperative_groups=cooperative)


class Prepared:
    """A launch whose arguments are laid out for the driver, which costs more than to launch."""

    def __init__(self, function, grid, block, args, shared):
        values = [0 if x is None else x for x in args]
        self._values = (ctypes.c_longlong * len(values))()
        for i, x in enumerate(values):
            self._values[i] = struct.unpack("q", struct.pack("d", x))[0] if type(x) is float else x
        first, size = ctypes.addressof(self._values), ctypes.sizeof(ctypes.c_longlong)
        self._places = (ctypes.c_void_p * len(values))(
            *(first + size * i for i in range(len(values)))
        )
        self._function = function  # keeps the module
        size = (*grid, 1, *block, 1, shared)
        self._launch = (function.ptr, *size), ctypes.addressof(self._places)
        self._lock = threading.Lock()

    def __call__(self, replaced):
        """Launch on the current stream with some integer arguments replaced: pairs (number, value)."""
        from cupy.cuda import get_current_stream
        from cupy_backends.cuda.api import driver

        (launch, places), values = self._launch, self._values
        with self._lock:  # the driver has read the arguments when it returns
            for i, x in replaced:
                values[i] = x
            driver.launchKernel(*launch, get_current_stream().ptr, places, 0)


def kernel(name, entry, *, arch=None, **defines):
    """Return the `Kernel` of kernels/<name>.cu for the current device; `arch` overrides its target."""
    from cupy.cuda import runtime

    return _kernel(runtime.getDevice(), name, entry, arch, tuple(sorted(defines.items())))


@functools.cache
def _kernel(device, name, entry, arch, defines):
    function = _module(device, name, arch, defines).get_function(entry)
    return Kernel(function, dict(defines).get("BLOCKS", 1), parameters(name, entry))


def _range(spec):
    """Say which compute capabilities a kernel runs on."""
    least = spec.min_arch / 10
    return f"{least}" if spec.max_arch == spec.min_arch else f"{least} or later"


@functools.cache
def _module(device, name, arch, defines):
    """Load a cubin on the current device, whose number makes part of the cache's key."""
    from cupy.cuda import Device
    from cupy.cuda.function import Module

    arch = arch or target_arch(Device(device))
    if not supported(name, arch):
        raise DeviceError(
            f"kernel {name!r} needs compute capability {_range(KERNELS[name])}, "
            f"but the target is {arch}"
        )
    module = Module()
    module.load(compile_cubin(name, arch, defines))
    return module
