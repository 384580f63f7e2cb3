"""Which macro sets of the kernels the tests compile, and for which architectures.

    python tests/kernel_shares.py

compiles them into the cache of kernels: first those that tests measure, then the others in reverse order.
The tests start this script, because one core would be idle otherwise. With --all, it compiles every macro set
for every architecture, which takes about an hour.
"""

import itertools
import re
import sys

from tcsolve.kernels.arch import ARCHS, LARGEST_CLUSTER, arch_number
from tcsolve.kernels.launch_shapes import LOWER_SHAPES
from tcsolve.kernels.registry import KERNELS

from tcsolve._backends.cuda.runtime import compiler

# The condition of lines that only some architectures compile.
CONDITION = re.compile(r"__CUDA_ARCH__ >= (\d+)")
# The macro sets of gemm_wgmma.cu that a test compiles to read the log of the assembler.
ASSEMBLED = tuple(
    {"T_LOW": "fp16", "REFINE": level, "CLUSTER": 2, "SCALED": scaled}
    | {"TRANS_A": turned, "TRANS_B": turned}
    for level, scaled, turned in ((0, 0, 0), (0, 1, 1), (3, 1, 0), (3, 1, 1))
) + tuple(
    {"T_LOW": "fp16", "REFINE": level, "CLUSTER": 1, "SCALED": 0, "TRANS_A": 0, "TRANS_B": 0}
    for level in (0, 3)
)
# The most entries of a leaf that a thread of panel.cu has.
WHOLE_LEAF = 128


def is_close(macros):
    """Tell whether the registers of a macro set of panel.cu are tested, because it may take all of them.

    These are the sets with WHOLE_LEAF entries in each thread, and some with fewer, but more than half as many
    entries: those with the largest number of blocks.  They stand for the sets with other numbers of blocks,
    because this number only sets the bounds of loops.
    """
    leaf, is_largest = macros["ROWS"] * macros["WIDTH"], macros["BLOCKS"] == LARGEST_CLUSTER
    return leaf == WHOLE_LEAF or is_largest and leaf > WHOLE_LEAF // 2


# Macro sets that tests compile to read the resources of a kernel: (kernel, architecture, macros).
MEASURED = {
    "panel": [
        ("panel", arch, macros)
        for arch in ("sm_75", "sm_80", "sm_89", "sm_90a")
        for macros in filter(is_close, KERNELS["panel"].variants_for(arch))
    ],
    "gemm_wmma": [
        (
            "gemm_wmma",
            "sm_90a",
            {"T_IN": "fp16", "T_LOW": "fp16", "REFINE": 0, "TRANS_A": turned, "TRANS_B": turned}
            | {"SWIZZLE": 1, "TILE": tile},
        )
        for tile in (0, 1, 2)
        for turned in (0, 1)
    ],
    "gemm_batched": [
        ("gemm_batched", "sm_90a", macros)
        for macros in KERNELS["gemm_batched"].variants
        if macros["SIZE_M"] in (8, 16, 64)
    ],
    "lower_solve": [("lower_solve", "sm_90a", shape.defines) for shape in LOWER_SHAPES],
}
# Machine code that is not optimized is compiled in less time, and so is a program without textures and CUDA's
# own runtime, which no kernel uses.
QUICK = ("--Ofast-compile=max", "--minimal")
# Macros that are numbers of bytes or of matrices, which follow from the others.
FOLLOWING = {"COUNT", "SHARED_BYTES"}


def values(macros):
    """Return the values of a macro set."""
    return {(name, value) for name, value in macros.items() if name not in FOLLOWING}


def groups_of(name):
    """Return the architectures that run a kernel, in groups; those of a group compile the same lines."""
    text = "".join(compiler.included(compiler.source(f"{name}.cu")))
    limits = {int(limit) // 10 for limit in CONDITION.findall(text)}
    groups = {}
    for arch in ARCHS:
        if compiler.supported(name, arch):
            passed = sum(limit <= arch_number(arch) for limit in limits)
            groups.setdefault(passed, []).append(arch)
    return list(groups.values())


def variants_of(name, archs):
    """Return {macro set: architectures that run it}, of some architectures."""
    found = {}
    for arch in archs:
        for macros in KERNELS[name].variants_for(arch):
            found.setdefault(tuple(sorted(macros.items())), []).append(arch)
    return found


def done(name, archs):
    """Return the macro sets that other tests compile for some architectures."""
    measured = [macros for _, arch, macros in MEASURED.get(name, ()) if arch in archs]
    return [*measured, *(ASSEMBLED if name == "gemm_wgmma" else ())]


def covering(variants, known):
    """Return macro sets that have, together, each value of each macro that the `known` sets do not have."""
    chosen, variants = [], [dict(macros) for macros in variants]
    missing = set().union(*map(values, variants)) - set().union(*map(values, known))
    while missing:
        chosen.append(max(variants, key=lambda macros: len(values(macros) & missing)))
        missing -= values(chosen[-1])
    return [tuple(macros.items()) for macros in chosen]


def shared_out(name):
    """Return {arch: macro sets}.

    The macro sets of a group (see `groups_of`), together with those that other tests compile, have each value
    of each macro.  The sets of a group are dealt out to its architectures one after the other.
    """
    shares = {}
    for archs in groups_of(name):
        variants = variants_of(name, archs)
        mine = {arch: [] for arch in archs}
        for macros in covering(variants, done(name, archs)):
            mine[min(variants[macros], key=lambda arch: len(mine[arch]))].append(macros)
        for arch, share in mine.items():
            # If there are few macro sets, each architecture still gets one.
            shares[arch] = share or [next(v for v, able in variants.items() if arch in able)]
    return shares


def rest_of(name):
    """Return [(macro set, architecture)] of the macro sets that no test compiles to machine code.

    Each comes once.  They are dealt out to the groups (see `groups_of`) one after the other.
    """
    whole = {macros for share in shared_out(name).values() for macros in share}
    whole |= {tuple(sorted(macros.items())) for macros in done(name, ARCHS)}
    groups, rest = groups_of(name), []
    dealt = [0] * len(groups)
    for macros, able in variants_of(name, itertools.chain(*groups)).items():
        if macros not in whole:
            places = [i for i, archs in enumerate(groups) if {*archs} & {*able}]
            place = min(places, key=dealt.__getitem__)
            dealt[place] += 1
            rest.append((dict(macros), next(arch for arch in groups[place] if arch in able)))
    return rest


def flags_of(name, arch):
    """Return the options of the compiler for each macro set of a share.

    Only the first one is optimized, and only for one architecture: the first of those that compile the most
    lines (see `groups_of`).
    """
    is_optimized = arch == groups_of(name)[-1][0]
    count = len(shared_out(name)[arch])
    return [() if is_optimized and place == 0 else QUICK for place in range(count)]


def jobs(every):
    """Yield (kernel, architecture, macro set, options of the compiler).

    First come those that tests measure, then the others in reverse order: the tests compile them at the same
    time, from the first one on.
    """
    for name, arch, macros in itertools.chain(*MEASURED.values()):
        yield name, arch, tuple(sorted(macros.items())), ()
    cases = [(name, arch) for name in KERNELS for arch in ARCHS if compiler.supported(name, arch)]
    for name, arch in reversed(cases):
        if every:
            variants = [tuple(sorted(v.items())) for v in KERNELS[name].variants_for(arch)]
            some = [(macros, ()) for macros in variants]
        else:
            some = list(zip(shared_out(name)[arch], flags_of(name, arch), strict=True))
        for macros, flags in reversed(some):
            yield name, arch, macros, flags


def main(every):
    for *kernel, flags in jobs(every):
        compiler.compile_cubin(*kernel, flags=flags)


if __name__ == "__main__":
    main("--all" in sys.argv[1:])
