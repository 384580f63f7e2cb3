"""Which macro sets of the kernels the tests compile, and for which architectures.

    python tests/kernel_shares.py

compiles them, the last first, into the cache of kernels. The tests start this: one core is idle otherwise.
With --all, it compiles every macro set for every architecture, which takes about an hour.
"""

import sys

from tcsolve.kernels.arch import ARCHS
from tcsolve.kernels.registry import KERNELS

from tcsolve._backends.cuda.runtime import compiler

# Architectures that compile nearly the same instructions, by the first number of their compute capability;
# Blackwell has two, 10 and 12.
GENERATIONS = (("sm_75",), ("sm_80", "sm_86", "sm_89"), ("sm_90a",), ("sm_100a", "sm_120"))
# The macro sets of gemm_wgmma.cu that a test compiles to read what the assembler says of them.
ASSEMBLED = tuple(
    {"T_LOW": "fp16", "REFINE": refine, "CLUSTER": 2, "TRANS_A": turned, "TRANS_B": turned}
    for refine in (0, 3)
    for turned in (0, 1)
)
# Macros that are numbers of bytes or of matrices, which follow from the others.
FOLLOWING = {"COUNT", "SHARED_BYTES"}


def values(macros):
    """Return the values of a macro set."""
    return {(name, value) for name, value in macros.items() if name not in FOLLOWING}


def variants_of(name, archs):
    """Return {macro set: architectures that run it}, of some architectures."""
    found = {}
    for arch in archs:
        if compiler.supported(name, arch):
            for macros in KERNELS[name].variants_for(arch):
                found.setdefault(tuple(sorted(macros.items())), []).append(arch)
    return found


def covering(variants, done):
    """Return macro sets that have all values of the variants which those that are `done` do not have."""
    chosen, variants = [], [dict(macros) for macros in variants]
    missing = set().union(*map(values, variants)) - set().union(*map(values, done))
    while missing:
        chosen.append(max(variants, key=lambda macros: len(values(macros) & missing)))
        missing -= values(chosen[-1])
    return [tuple(macros.items()) for macros in chosen]


def shared_out(name):
    """Return {arch: macro sets} that have each value of each macro in each generation.

    They go to all architectures of a generation in turn.
    """
    shares = {}
    for archs in GENERATIONS:
        variants = variants_of(name, archs)
        mine = {arch: [] for arch in archs if compiler.supported(name, arch)}
        for macros in covering(variants, ASSEMBLED if name == "gemm_wgmma" else ()):
            mine[min(variants[macros], key=lambda arch: len(mine[arch]))].append(macros)
        for arch, share in mine.items():
            # Of few macro sets every architecture has one.
            shares[arch] = share or [next(v for v, able in variants.items() if arch in able)]
    return shares


def main(every):
    cases = [(name, arch) for name in KERNELS for arch in ARCHS if compiler.supported(name, arch)]
    for name, arch in reversed(cases):
        variants = [tuple(sorted(v.items())) for v in KERNELS[name].variants_for(arch)]
        for macros in reversed(variants if every else shared_out(name)[arch]):
            compiler.compile_cubin(name, arch, macros)


if __name__ == "__main__":
    main("--all" in sys.argv[1:])
