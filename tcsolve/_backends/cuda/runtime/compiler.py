"""Compile .cu files with NVRTC, cache the results on disk, and launch the kernels.

We do not compile with CuPy for three reasons.  CuPy flushes subnormal numbers to zero, it needs a device to
find the architecture, and it reuses a cached binary after a header has changed.
"""

import ctypes
import functools
import hashlib
import importlib.resources
import re
import struct
import sys
import threading

from tcsolve._backends.cuda.runtime import cubin_cache, launch_counter
from tcsolve._backends.cuda.runtime.out_of_memory import is_out_of_memory
from tcsolve._backends.cuda.runtime.side_by_side import SideBySide
from tcsolve._errors import DeviceError, KernelCompileError
from tcsolve._locks import ForkSafeLock
from tcsolve.kernels.arch import PORTABLE_CLUSTER, arch_number
from tcsolve.kernels.registry import KERNELS

__all__ = [
    "Kernel",
    "arch_for",
    "compile_ahead",
    "compile_cubin",
    "create_program",
    "create_program_of",
    "files",
    "headers",
    "included",
    "is_cached",
    "kernel",
    "least_arch",
    "parameters",
    "source",
    "supported",
    "target_arch",
]

# Division and square root are rounded correctly, and subnormal numbers are kept.  These are the defaults of
# the compiler, but the error bounds need them, so they are stated.
FLAGS = ("-std=c++17", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--fmad=true")

# Architectures with instructions that need the suffix 'a' in the name of the target.
ARCH_SPECIFIC = {90, 100}

# A kernel with up to 24 KB of static shared memory may use this much dynamic shared memory without a call of
# funcSetAttribute.
FREE_SHARED_BYTES = 24 << 10
# Two values of CUfunction_attribute.
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14

_permitting = ForkSafeLock()

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def supported(name, arch):
    """Tell whether the kernels of <name>.cu can run on `arch`, such as 'sm_80'."""
    return KERNELS[name].min_arch <= arch_number(arch) <= KERNELS[name].max_arch


def least_arch():
    """Return the lowest compute capability that a kernel supports, as 75 for 7.5."""
    return min(spec.min_arch for spec in KERNELS.values())


def target_arch(device=None):
    """Return the architecture of a CuPy device, such as 'sm_90a'; by default of the current device."""
    from cupy.cuda import Device

    return arch_for(int((device or Device()).compute_capability))


def arch_for(number):
    """Return the architecture to compile for, such as 'sm_90a' for 90, the compute capability 9.0."""
    return f"sm_{number}{'a' if number in ARCH_SPECIFIC else ''}"


@functools.cache
def files():
    """Return every CUDA source and header below kernels/: {path relative to kernels/: file}."""
    found, folders = {}, [("", importlib.resources.files("tcsolve.kernels"))]
    for before, folder in folders:  # the loop appends subfolders to this list
        for file in folder.iterdir():
            if file.is_dir():
                folders.append((f"{before}{file.name}/", file))
            elif file.name.endswith((".cu", ".cuh")):
                found[before + file.name] = file
    return found


@functools.cache
def source(filename):
    """Return the text of a source in any folder of kernels/; no two files have the same name."""
    (path,) = (path for path in files() if path.rpartition("/")[2] == filename)
    return files()[path].read_text("utf-8")


@functools.cache
def headers():
    """Return (paths, texts) of all headers; NVRTC gets the texts, so it searches no folder."""
    paths = tuple(sorted(path for path in files() if path.endswith(".cuh")))
    return paths, tuple(files()[path].read_text("utf-8") for path in paths)


def compile_cubin(name, arch, defines=(), missing=None, flags=()):
    """Compile <name>.cu for `arch`, or read it from the cache; this needs NVRTC but no device.

    Parameters
    ----------
    name : str
        Name of a source below kernels/, without '.cu'.
    arch : str
        Such as 'sm_90a'.
    defines : tuple of (str, int or str)
        Preprocessor macros.
    missing : callable, optional
        missing(arch) is called before compiling, if the cache does not have the cubin.
    flags : tuple of str
        More options of NVRTC.

    Returns
    -------
    bytes
        A cubin.

    Raises
    ------
    KernelCompileError
        The source does not compile.  The error has the kernel, the options and the log of the compiler.
    """
    options = _options(arch, defines) + flags
    path = _path(name, options)
    cubin = cubin_cache.read(path)
    if cubin is None:
        if missing is not None:
            missing(arch)
        cubin = _compile(name, arch, options)
        cubin_cache.write(path, cubin)
    return cubin


def is_cached(name, arch, defines=()):
    """Tell whether the cache has the cubin that `compile_cubin` returns."""
    return cubin_cache.read(_path(name, _options(arch, defines))) is not None


def _options(arch, defines):
    return (f"-arch={arch}", *FLAGS, *(f"-D{macro}={value}" for macro, value in defines))


def _say(arch):
    """Say on a terminal, once in a process, why the first solve on a machine takes so long."""
    global _said
    with _saying:
        silent, _said = _said or sys.stderr is None or not sys.stderr.isatty(), True
    if not silent:
        print(
            f"tcsolve compiles its CUDA kernels for {arch}, once for this machine, and keeps them in "
            f"{cubin_cache.folder()} ('tcsolve warm' does this in advance)",
            file=sys.stderr,
        )


_saying, _said = ForkSafeLock(), False
# The cubins for launches.  Several threads can compile at the same time: NVRTC runs without Python's lock,
# and has no lock of its own.
_cubins = SideBySide(lambda key: compile_cubin(*key, missing=_say))


def compile_ahead(arch, kernels):
    """Compile kernels for `arch` in other threads, and do not wait for them.

    Parameters
    ----------
    arch : str
    kernels : iterable of (str, dict)
        Names and preprocessor macros, in the order of the launches.
    """
    _cubins.start([(name, arch, tuple(sorted(defines.items()))) for name, defines in kernels])


def create_program(name):
    """Return the NVRTC program of <name>.cu; the caller must destroy it."""
    return create_program_of(source(f"{name}.cu"), f"{name}.cu")


def create_program_of(text, filename):
    """Return the NVRTC program of a text that may include the headers of kernels/."""
    from cupy.cuda import nvrtc

    names, texts = ([header.encode() for header in column] for column in headers())
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


def _path(name, options):
    """Return the path of a cubin; its name has a hash of source, headers, options and version of NVRTC."""
    key = hashlib.sha256("\0".join((repr(_nvrtc_version()), *options)).encode() + _digest(name))
    return cubin_cache.folder() / f"{name}-{key.hexdigest()}.cubin"


@functools.cache
def _digest(name):
    """Return a hash of a source and of all headers that it includes."""
    return hashlib.sha256("\0".join(included(source(f"{name}.cu"))).encode()).digest()


def included(text):
    """Return a text and the texts of all headers that it includes, directly or through other headers."""
    known, texts, seen = dict(zip(*headers(), strict=True)), [text], set()
    for text in texts:
        for name in INCLUDE.findall(text):
            if name in known and name not in seen:
                seen.add(name)
                texts.append(known[name])
    return texts


def parameters(name, entry):
    """Return the number of arguments of an entry of <name>.cu."""
    (found,) = re.findall(rf"\b{entry}\s*\(([^)]*)\)\s*{{", _code(name))
    return found.count(",") + 1


@functools.cache
def _code(name):
    """Return the text of <name>.cu from its first entry on, without comments."""
    text = source(f"{name}.cu")
    return re.sub(r"//.*", "", text[text.index('extern "C"') :])


class Kernel:
    """One entry of a loaded cubin, launched in CuPy's current stream with at least `count` arguments."""

    def __init__(self, function, cluster, count=0, entry=""):
        self._function, self._count, self._entry = function, count, entry
        self._shared_bytes = FREE_SHARED_BYTES
        if cluster > PORTABLE_CLUSTER:
            self._permit(NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)

    def _permit(self, attribute, value):
        from cupy_backends.cuda.api import driver

        driver.funcSetAttribute(self._function.ptr, attribute, value)

    def _allow(self, shared):
        if shared > self._shared_bytes:
            with _permitting:  # another thread must not set a smaller limit afterwards
                if shared > self._shared_bytes:
                    self._permit(MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
                    self._shared_bytes = shared

    def _require(self, args):
        # With too few arguments, the driver would read beyond the end of the list.
        if len(args) < self._count:
            raise TypeError(
                f"the kernel takes {self._count} arguments, got {len(args)}; pass them all"
            )

    def handle(self, shared):
        """Return the handle of the driver, after allowing `shared` bytes of dynamic shared memory."""
        self._allow(shared)
        return self._function.ptr

    def resident_blocks(self, threads, shared):
        """Return how many blocks can be resident on a multiprocessor at the same time."""
        from cupy_backends.cuda.api import driver

        self._allow(shared)
        find = driver.occupancyMaxActiveBlocksPerMultiprocessor
        return max(1, find(self._function.ptr, threads, shared))

    def prepared(self, grid, block, args, shared):
        """Return a `Prepared` launch; grid and block have two dimensions.

        An argument is an int (for instance an address), a float or None.
        """
        self._require(args)
        self._allow(shared)
        return Prepared(self._function, grid, block, args, shared, self._entry)

    def __call__(self, grid, block, args, shared=0, cooperative=False):
        """Launch with `shared` bytes of dynamic shared memory; `cooperative` if blocks wait for each other.

        An argument is a CuPy array, an int (passed as long long), a float (passed as double), None (a null
        pointer), or a structure, given as a NumPy array.
        """
        args = tuple(0 if x is None else x for x in args)
        self._require(args)
        self._allow(shared)
        if launch_counter.counters:
            launch_counter.note(self._entry)
        self._function(grid, block, args, shared, enable_cooperative_groups=cooperative)


class Prepared:
    """A launch with a prepared argument list; preparing the list takes longer than the launch."""

    def __init__(self, function, grid, block, args, shared, entry=""):
        values = [0 if x is None else x for x in args]
        self._values = (ctypes.c_longlong * len(values))()
        for i, x in enumerate(values):
            self._values[i] = struct.unpack("q", struct.pack("d", x))[0] if type(x) is float else x
        first, size = ctypes.addressof(self._values), ctypes.sizeof(ctypes.c_longlong)
        self._places = (ctypes.c_void_p * len(values))(
            *(first + size * i for i in range(len(values)))
        )
        self._function, self._entry = function, entry  # the function keeps the module loaded
        size = (*grid, 1, *block, 1, shared)
        self._launch = (function.ptr, *size), ctypes.addressof(self._places)
        self._lock = threading.Lock()
        # Import here, not in each launch, where an import would take microseconds.
        from cupy.cuda import get_current_stream
        from cupy_backends.cuda.api import driver

        self._launch_kernel, self._current_stream = driver.launchKernel, get_current_stream

    def keep(self, i, struct):
        """Let argument i be a structure, given as a NumPy array."""
        self._kept = struct
        self._places[i] = struct.ctypes.data

    def __call__(self, replaced, structs=()):
        """Launch in the current stream with some arguments replaced, given as pairs (number, integer).

        `structs` has pairs (number, address) of arguments that are structures on the host.
        """
        (launch, places), values = self._launch, self._values
        if launch_counter.counters:
            launch_counter.note(self._entry)
        with self._lock:  # the driver reads the arguments before launchKernel returns
            for i, x in replaced:
                values[i] = x
            for i, address in structs:
                self._places[i] = address
            self._launch_kernel(*launch, self._current_stream().ptr, places, 0)


def kernel(name, entry, **defines):
    """Return the `Kernel` of <name>.cu for the current device."""
    from cupy.cuda import runtime

    return _kernel(runtime.getDevice(), name, entry, tuple(sorted(defines.items())))


@functools.cache
def _kernel(device, name, entry, defines):
    function = _module(device, name, defines).get_function(entry)
    return Kernel(function, dict(defines).get("BLOCKS", 1), parameters(name, entry), entry)


def _range(spec):
    """Return the compute capabilities of a kernel in words."""
    least = spec.min_arch / 10
    return f"{least}" if spec.max_arch == spec.min_arch else f"{least} or later"


@functools.cache
def _module(device, name, defines):
    """Load a cubin on the current device; `device` is its number, by which the result is cached."""
    from cupy.cuda import Device
    from cupy.cuda.function import Module

    arch = target_arch(Device(device))
    if not supported(name, arch):
        raise DeviceError(
            f"kernel {name!r} needs compute capability {_range(KERNELS[name])}, "
            f"but the target is {arch}"
        )
    module = Module()
    module.load(_cubins.get((name, arch, defines)))
    return module
