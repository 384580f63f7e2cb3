"""Which macro sets of the kernels the tests compile, and for which architectures.

    python tests/kernel_shares.py

compiles them, the last first, into the cache of kernels. The tests start this: one core is idle otherwise.
"""

from tcsolve.kernels.arch import ARCHS
from tcsolve.kernels.registry import KERNELS

from tcsolve._backends.cuda.runtime import compiler

# Architectures that compile the same instructions, by the first number of their compute capability;
# Blackwell has two, 10 and 12.
GENERATIONS = (("sm_75",), ("sm_80", "sm_86", "sm_89"), ("sm_90a",), ("sm_100a", "sm_120"))


def shared_out(name):
    """Return {arch: macro sets}: each set once in a generation, to all architectures in turn."""
    shares = {}
    for archs in GENERATIONS:
        runs = {
            arch: [tuple(sorted(v.items())) for v in KERNELS[name].variants_for(arch)]
            for arch in archs
            if compiler.supported(name, arch)
        }
        shares |= {arch: [] for arch in runs}
        for macros in dict.fromkeys(v for variants in runs.values() for v in variants):
            able = [arch for arch in runs if macros in runs[arch]]
            shares[min(able, key=lambda arch: len(shares[arch]))].append(macros)
        for arch, variants in runs.items():
            # Of few macro sets every architecture has one.
            shares[arch] = shares[arch] or variants[:1]
    return shares


def main():
    cases = [(name, arch) for name in KERNELS for arch in ARCHS if compiler.supported(name, arch)]
    for name, arch in reversed(cases):
        for macros in reversed(shared_out(name)[arch]):
            compiler.compile_cubin(name, arch, macros)


if __name__ == "__main__":
    main()
