"""Compile and load the CUDA kernels of the benchmarks."""

import functools
import pathlib

FOLDER = pathlib.Path(__file__).parent


def compile_cubin(filename, arch, **defines):
    """Compile a file of this folder, which may include headers of tcsolve; no device is needed."""
    from cupy.cuda import nvrtc

    from tcsolve._backends.cuda.runtime import compiler

    program = compiler.create_program_of(FOLDER.joinpath(filename).read_text(), filename)
    try:
        macros = (f"-D{macro}={value}" for macro, value in defines.items())
        nvrtc.compileProgram(program, (f"-arch={arch}", "-std=c++17", *macros))
        return nvrtc.getCUBIN(program)
    except nvrtc.NVRTCError as error:
        raise RuntimeError(nvrtc.getProgramLog(program)) from error
    finally:
        nvrtc.destroyProgram(program)


@functools.cache
def kernel(filename, entry, arch, **defines):
    """Return a kernel, compiled and loaded on the current device."""
    from cupy.cuda.function import Module

    from tcsolve._backends.cuda.runtime.compiler import Kernel

    module = Module()
    module.load(compile_cubin(filename, arch, **defines))
    return Kernel(module.get_function(entry), defines.get("BLOCKS", 1))
