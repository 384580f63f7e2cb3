"""Launches of kernels on the CPU, by a C++ compiler and `fibers.h`."""

import ctypes
import functools
import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
from folders import ROOT
from switches import skip_or_fail

__all__ = ["launch", "steps"]

KERNELS, HERE = ROOT / "kernels", Path(__file__).parent
# One call of `asm`, with any number of quoted strings and of operands in parentheses.
ASSEMBLY = re.compile(
    r"\basm(?: volatile)?\s*\((?:[^()\"]|\"[^\"]*\"|\((?:[^()\"]|\([^()]*\))*\))*\);"
)
# The functions of `fibers.h` for instructions, with the names of the variables in the kernels' sources.
INSTRUCTIONS = {
    "rsqrt.approx": "y = 1 / std::sqrt(v);",
    "sqrt.approx": "y = std::sqrt(fmaf(v.re, v.re, v.im * v.im));",
    "rcp.approx": "y = on_cpu::reciprocal_instruction(v);",
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32": "on_cpu::tf32_product(d, a, b);",
    "mma.sync.aligned.m8n8k4.row.col.f64": "on_cpu::fp64_product(c0, c1, a, b);",
    "cp.async.ca.shared.global [%0], [%1], %2, %3;": "on_cpu::start_copy(to, from, BYTES, bytes);",
    "cp.async.ca": "on_cpu::start_copy(to, from, BYTES, BYTES);",
    "ld.volatile.global": "on_cpu::copy_words(word, from);",
    "st.volatile.global": "on_cpu::copy_words(to, word);",
    "cp.async.wait_all": "on_cpu::finish_copies();",
}
OPTIONS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-fpermissive", "-ffp-contract=off")


def steps(x):
    """Return an array, and its strides in entries, as arguments of a kernel."""
    return (x, *[stride // x.itemsize for stride in x.strides])


def launch(folder, name, blocks, threads, args, defines, *, seed=0):
    """Launch tcs_<name> of <name>.cu with arrays, numbers and None as arguments.

    Parameters
    ----------
    folder : Path
        For the compiled kernels; two tests may use it at the same time.
    name : str
    blocks, threads : int
    args : sequence
    defines : dict
        The macros of the kernel.
    seed : int
        Of the random order in which the threads run.
    """
    bits = (ctypes.c_uint64 * len(args))(*map(_bits, args))
    _library(folder, name, tuple(sorted(defines.items()))).launch(blocks, threads, bits, seed)


def _bits(v):
    if isinstance(v, np.ndarray):
        return v.ctypes.data
    if isinstance(v, float):
        return struct.unpack("Q", struct.pack("d", v))[0]
    return 0 if v is None else int(v) % 2**64


@functools.cache
def _library(folder, name, defines):
    compiler = shutil.which("c++")
    if compiler is None:
        skip_or_fail("there is no C++ compiler", "TCSOLVE_REQUIRE_CXX")
    own = folder / "_".join((name, *(f"{key}{value}" for key, value in defines)))
    own.mkdir(parents=True)
    for path in KERNELS.rglob("*.cu*"):
        to = own / path.relative_to(KERNELS)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(_for_cpu(path.read_text()))
    (source,) = own.rglob(f"{name}.cu")
    macros = "".join(f"#define {key} {value}\n" for key, value in defines)
    text = f"""#include "fibers.h"
{macros}#include "{source.relative_to(own)}"
extern "C" void launch(unsigned blocks, unsigned threads, const uint64_t* given, unsigned seed) {{
    on_cpu::kernel = [] {{ on_cpu::call(tcs_{name}); }};
    on_cpu::run(blocks, threads, given, seed);
}}
"""
    main, library = own / "main.cpp", own / "kernel.so"
    main.write_text(text)
    command = [compiler, *OPTIONS, f"-I{HERE}", f"-I{own}", str(main), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(str(library))


def _for_cpu(text):
    text = ASSEMBLY.sub(_instruction, text)
    shared = r"\1* const \2 = reinterpret_cast<\1*>(on_cpu::shared_memory);"
    text = re.sub(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];", shared, text)
    return re.sub(r"__shared__ (?=\w)", "static ", text)


def _instruction(match):
    text = match.group()
    for name, function in INSTRUCTIONS.items():
        if name in text:
            return function
    what = re.search(r"\"([^\"]*)\"", text)[1]
    return f'on_cpu::not_supported("{what}");'
