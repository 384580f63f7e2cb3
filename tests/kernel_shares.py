"""Which macro sets of the kernels the tests compile, and for which architectures.

    python tests/kernel_shares.py

compiles them, the last first, into the cache of kernels. The tests start this: one core is idle otherwise.
With --all, it compiles every macro set for every architecture, which takes about an hour.
"""

import itertools
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


def combinations(macros):
    """Return the pairs of values of a macro set, or its single value."""
    found = sorted(values(macros))
    return set(itertools.combinations(found, min(2, len(found))))


def covering(variants, parts, done=()):
    """Return macro sets that have all `parts` of the variants which those that are `done` do not have."""
    chosen = []
    missing = set().union(*map(parts, variants)) - set().union(*map(parts, done))
    while missing:
        chosen.append(max(variants, key=lambda macros: len(parts(macros) & missing)))
        missing -= parts(chosen[-1])
    return chosen


def shared_out(name):
    """Return {arch: macro sets} that have every value of every macro in each generation, pairs on Hopper.

    They go to all architectures of a generation in turn.
    """
    shares = {}
    for archs in GENERATIONS:
        runs = {
            arch: [tuple(sorted(v.items())) for v in KERNELS[name].variants_for(arch)]
            for arch in archs
            if compiler.supported(name, arch)
        }
        shares |= {arch: [] for arch in runs}
        every = [dict(v) for v in dict.fromkeys(v for variants in runs.values() for v in variants)]
        parts = combinations if "sm_90a" in archs else values
        done = ASSEMBLED if name == "gemm_wgmma" else ()
        for macros in (tuple(v.items()) for v in covering(every, parts, done)):
            able = [arch for arch in runs if macros in runs[arch]]
            shares[min(able, key=lambda arch: len(shares[arch]))].append(macros)
        for arch, variants in runs.items():
            # Of few macro sets every architecture has one.
            shares[arch] = shares[arch] or variants[:1]
    return shares


def main(every):
    cases = [(name, arch) for name in KERNELS for arch in ARCHS if compiler.supported(name, arch)]
    for name, arch in reversed(cases):
        variants = [tuple(sorted(v.items())) for v in KERNELS[name].variants_for(arch)]
        for macros in reversed(variants if every else shared_out(name)[arch]):
            compiler.compile_cubin(name, arch, macros)


if __name__ == "__main__":
    main("--all" in sys.argv[1:])
