"""How many kernels does the library have, and how large are their binaries?

    python benchmarks/binaries.py --json benchmarks/results/binaries.json

The kernels are those of `tcsolve warm`.  Counting needs no compiler.  A random sample of the kernels of each
source is compiled by NVRTC for one architecture, which needs no GPU.  The totals of a source are the means of
this sample, multiplied by the number of kernels of the source.  `seconds` is the time of one core.
"""

import math
import random
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

from _harness import arguments, machine, save
from tcsolve.kernels.arch import ARCHS
from tcsolve.kernels.registry import KERNELS

# gemm_batched has a variant for each size of matrices, so `tcsolve warm` does not compile it.
BY_SIZE = {"gemm_batched"}
# The share of the kernels of a source that is compiled, and the least number of them.
SHARE, LEAST, SEED = 1 / 6, 2, 1


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90a", help="architecture to compile for")
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    facts = machine(options.commit)
    facts["nvrtc"], facts["arch"] = ".".join(map(str, _version())), options.arch
    facts["source_bytes"] = _source_bytes()
    save(options.json, facts, rows(options.arch, options.cores))


def _version():
    from cupy.cuda import nvrtc

    return nvrtc.getVersion()


def _source_bytes():
    from tcsolve._backends.cuda.runtime import compiler

    return sum(len(path.read_bytes()) for path in compiler.files().values())


def counts(name):
    """Return {architecture: number of kernels} of a source."""
    from tcsolve._backends.cuda.runtime.compiler import supported

    return {a: len(KERNELS[name].variants_for(a)) if supported(name, a) else 0 for a in ARCHS}


def sample(name, arch):
    """Return some of the macro sets of a source, the same in every run."""
    variants = KERNELS[name].variants_for(arch)
    size = min(len(variants), max(LEAST, math.ceil(SHARE * len(variants))))
    return random.Random(f"{SEED} {name}").sample(variants, size)


def compiled(name, arch, macros):
    """Return the bytes of a cubin, those of its compressed copy, and the seconds of one core."""
    from tcsolve._backends.cuda.runtime import compiler

    program, start = compiler.create_program(name), time.thread_time()
    try:
        from cupy.cuda import nvrtc

        given = [f"-D{macro}={value}" for macro, value in macros.items()]
        nvrtc.compileProgram(program, (f"-arch={arch}", *compiler.FLAGS, *given))
        cubin = nvrtc.getCUBIN(program)
    finally:
        nvrtc.destroyProgram(program)
    return len(cubin), len(zlib.compress(cubin, 9)), time.thread_time() - start


def rows(arch, cores):
    """Return a row for each source: its counts, and the totals that its sample gives."""
    names = [name for name in KERNELS if name not in BY_SIZE]
    of = {name: counts(name) for name in names}
    work = [
        (name, arch, macros) for name in names if of[name][arch] for macros in sample(name, arch)
    ]
    with ThreadPoolExecutor(cores) as pool:
        results = list(pool.map(lambda given: compiled(*given), work))
    found = {name: [] for name in names}
    for (name, _, _), result in zip(work, results, strict=True):
        found[name].append(result)
    return [row(name, of[name], arch, found[name]) for name in names]


def row(name, number, arch, results):
    """Return the row of a source from what its sample took."""
    total = [sum(x) * number[arch] / len(results) for x in zip(*results, strict=True)] or [0, 0, 0]
    keys = ("bytes", "compressed_bytes", "seconds")
    head = {"source": name, "kernels": number, "here": number[arch], "compiled": len(results)}
    return head | dict(
        zip(keys, (round(total[0]), round(total[1]), round(total[2], 2)), strict=True)
    )


if __name__ == "__main__":
    main()
