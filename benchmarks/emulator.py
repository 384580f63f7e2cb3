"""Do the emulated tensor cores add as this GPU does, and if not, which rule does?

    python benchmarks/emulator.py --json benchmarks/results/emulator.json    # compute capability 8.0 or later
    python benchmarks/emulator.py --host                                     # only the speed on the host

1. Every instruction (instructions.cu) runs chains of eight steps on chosen operands (_instructions.py), which
   make more than ten million sums for each instruction.  The emulation of each step starts from the device's
   sum before it, and their sums after it are compared.  The hashes of the device's sums are kept: tests on
   the host compare with them.
2. For a sample, each candidate rule (_sum_rules.py) is compared with the device.  First the rules differ in
   the numbers of bits, the rounding, the number of products that are added at once, and whether the previous
   sum is one of the terms.  Then variations of the best rule are compared, on small numbers and zeros.
3. The kernel of the emulation, the products of `gemm` and the update of the LU are compared with the
   emulation on the host, bit for bit.
4. The speed of both emulations is measured.
"""

import collections
import functools
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from _harness import arguments, gpu, host_seconds, machine, save
from _instructions import (
    FAMILIES,
    SHAPE,
    SMALL,
    UNIT_OF,
    digest,
    instructions_of,
    kept_operands,
    run,
)
from _sum_rules import NAN, Terms, grid, one_step, variations

from tcsolve._arithmetic.block_sums import multiply_add
from tcsolve._arithmetic.formats import FORMATS, MODELS
from tcsolve._arithmetic.tensor_cores import UNITS

# Rows, columns and steps of the sample for the candidate rules.
SAMPLE, SAMPLED_STEPS = (8 * len(FAMILIES), 10 * len(FAMILIES)), (0, 1, 4)
# Shapes of the products whose speed is measured, on the host and on the device.
HOST_SIZE, DEVICE_SIZE = (1024, 1024, 256), (8192, 8192, 512)


def canonical(x):
    """Return the bits of FP32 numbers, with one NaN."""
    bits = np.ascontiguousarray(x).view(np.uint32).copy()
    bits[np.isnan(x)] = NAN
    return bits


# ---- the instructions -----------------------------------------------------------------------------


def emulated(instruction, unit, a, b, befores):
    """Return the sums after each step; step s starts from ``befores[s]``."""
    fmt, sums, depth = FORMATS[instruction.low], unit.sums[instruction.low], instruction.depth
    steps = (slice(q, q + depth) for q in range(0, a.shape[1], depth))
    return np.stack(
        [
            multiply_add(a[:, k], b[k], fmt, sums, before)
            for k, before in zip(steps, befores, strict=True)
        ]
    )


def kind_of(bits):
    """Return what one result is: 'NaN', 'Inf', 'zero', 'subnormal' or 'normal'."""
    size = int(bits) & 0x7FFFFFFF
    if size >= 0x7F800000:
        return "NaN" if size > 0x7F800000 else "Inf"
    return "zero" if size == 0 else "subnormal" if size < 0x00800000 else "normal"


def agreement(instruction, unit, a, b, c, found):
    """Return the row that compares the device's sums with the emulation."""
    expected = emulated(instruction, unit, a, b, [c, *found[:-1]])
    same = canonical(found) == canonical(expected)
    wrong = np.argwhere(~same)
    raw = np.unique(found.view(np.uint32)[np.isnan(found)])
    row = {
        "what": "agreement",
        "instruction": instruction.name,
        "unit": unit.name,
        "outputs": same.size,
        "agree": int(same.sum()),
        "nan_bits": [f"{x:08x}" for x in raw[:4]],
        "operands": digest(a, b, c),
        "sums": digest(canonical(found)),
        "examples": [],
        "disagree": {},
    }
    if len(wrong):
        kinds = [f"{kind_of(found.view(np.uint32)[tuple(i)])} on the device" for i in wrong[:20000]]
        row["disagree"] = dict(collections.Counter(kinds))
    for s, i, j in wrong[:: max(1, len(wrong) // 6)][:6]:
        before = c if s == 0 else found[s - 1]
        q = slice(s * instruction.depth, (s + 1) * instruction.depth)
        row["examples"].append(
            {
                "step": int(s),
                "row": FAMILIES[i % len(FAMILIES)],
                "column": FAMILIES[j % len(FAMILIES)],
                "a": [float(x).hex() for x in a[i, q]],
                "b": [float(x).hex() for x in b[q, j]],
                "c": float(before[i, j]).hex(),
                "device": f"{found.view(np.uint32)[s, i, j]:08x}",
                "emulated": f"{expected.view(np.uint32)[s, i, j]:08x}",
            }
        )
    return row


def show_agreement(row):
    print(
        f"{row['instruction']:14} {row['agree']:>10,} of {row['outputs']:,} sums are those of "
        f"{row['unit']}; bits of NaN: {', '.join(row['nan_bits'])}",
        flush=True,
    )
    for kind, count in row["disagree"].items():
        print(f"    {count} others are {kind} (only the first 20000 others are counted)")
    for example in row["examples"]:
        print(f"    {example}")


# ---- the rules ------------------------------------------------------------------------------------


def sample(instruction, a, b, c, found, families=FAMILIES):
    """Return (terms, sums before, bits after) of the sampled steps, for operands of some families."""
    numbers = [FAMILIES.index(family) for family in families]
    rows, columns = (
        np.flatnonzero(np.isin(np.arange(size) % len(FAMILIES), numbers))[:count]
        for count, size in zip(SAMPLE, SHAPE[:2], strict=True)
    )
    parts, fmt = [], FORMATS[instruction.low]
    for s in SAMPLED_STEPS:
        k = slice(s * instruction.depth, (s + 1) * instruction.depth)
        before = (c if s == 0 else found[s - 1])[np.ix_(rows, columns)]
        terms = Terms.of(a[rows, k], b[k, columns], fmt)
        parts.append((terms, before, canonical(found[s][np.ix_(rows, columns)])))
    return parts


def score(parts, rule):
    """Return the number of results in which a rule agrees, and how many of these are normal numbers."""
    agree = normal = 0
    for terms, before, after in parts:
        same = one_step(rule, terms, before) == after
        size = after & 0x7FFFFFFF
        agree += int(same.sum())
        normal += int((same & (size >= 0x00800000) & (size < 0x7F800000)).sum())
    return agree, normal


def rules_of(instruction, arrays, pool):
    """Return the rows of the candidate rules: the first grid, and the variations of its best rule."""
    rows, best = [], None
    for stage, families in (("bits and rounding", FAMILIES), ("small numbers and zeros", SMALL)):
        parts = sample(instruction, *arrays, families)
        outputs = sum(after.size for *_, after in parts)
        rules = grid(instruction.depth) if best is None else variations(best)
        scores = list(pool.map(functools.partial(score, parts), rules))
        # Rank the first grid by normal results: its rules differ in these.  The variations differ mainly in
        # the others.
        ranked = sorted(
            zip(rules, scores, strict=True),
            key=lambda pair: pair[1][::-1] if best is None else pair[1],
            reverse=True,
        )
        best = ranked[0][0]
        rows += [
            {
                "what": "rule",
                "instruction": instruction.name,
                "stage": stage,
                "rule": str(rule),
                "outputs": outputs,
                "agree": agree,
                "agree_normal": normal,
            }
            for rule, (agree, normal) in ranked
        ]
    return rows


def show_rules(rows):
    for stage in dict.fromkeys(row["stage"] for row in rows):
        print(
            f"  {rows[0]['instruction']}, {stage}: results that agree (normal ones), of {rows[0]['outputs']}"
        )
        for row in [row for row in rows if row["stage"] == stage][:8]:
            print(f"    {row['agree']:>7} ({row['agree_normal']:>7})  {row['rule']}")


# ---- the kernel, the products and the update ------------------------------------------------------


def compare_kernel(low, unit, a, b, c):
    """Compare the kernel of the emulation with NumPy; both add all of k in one call."""
    import cupy

    from tcsolve._backends.cuda.gemm import emulated_sums

    how = FORMATS[low], unit.sums[low]
    found = emulated_sums.multiply_add(cupy.asarray(a), cupy.asarray(b), *how, cupy.asarray(c))
    return _same(f"kernel {low}", found.get(), multiply_add(a, b, *how, c))


def _same(what, found, expected):
    same = canonical(found) == canonical(expected)
    row = {"what": "same", "which": what, "outputs": same.size, "agree": int(same.sum())}
    print(f"{what:40} {row['agree']:>10,} of {row['outputs']:,} are equal", flush=True)
    return row


def compare_products(unit):
    """Compare `gemm` on the device with the emulation on the host."""
    import cupy

    import tcsolve

    rng, rows = np.random.default_rng(1), []
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((256, 512), (512, 384)))
    on_device = cupy.asarray(a), cupy.asarray(b)
    for refine, engine in (
        ("none", "wgmma"),
        ("ab", "wgmma"),
        ("none", "cublas"),
        ("none", "wmma"),
    ):
        if engine == "wgmma" and unit.name != "h200":
            continue
        found = tcsolve.gemm(*on_device, precision="fp16", refine=refine, engine=engine).get()
        expected = tcsolve.gemm(a, b, precision=f"fp16@{unit.name}", refine=refine)
        rows.append(_same(f"gemm, {engine}, refine {refine}", found, expected))
    for name in (f"fp16@{unit.name}", f"bf16@{unit.name}", f"tf32@{unit.name}"):
        for refine in ("none", "ab"):
            found = tcsolve.gemm(*on_device, precision=name, refine=refine).get()
            expected = tcsolve.gemm(a, b, precision=name, refine=refine)
            rows.append(_same(f"gemm emulated on the device, {name}, {refine}", found, expected))
    return rows


def compare_updates(unit):
    """Compare the update of the LU on the device with the emulation on the host."""
    import cupy

    from tcsolve._arithmetic.formats import UPDATES
    from tcsolve._backends.cpu.lu import HostLU
    from tcsolve._backends.cuda.lu.ops import DeviceLU

    rng, rows = np.random.default_rng(2), []
    l = rng.uniform(-1, 1, (512, 256)).astype(np.float32)
    u, c = (rng.standard_normal(s).astype(np.float32) for s in ((256, 512), (512, 512)))
    l[0, 0] = 1
    for name in ("fp16", "fp16x3"):
        model = MODELS[f"{name}@{unit.name}"]
        expected = c.copy()
        HostLU().operand(l, model)(expected, u)
        for how in (UPDATES[name], model):
            found = cupy.asarray(c)
            DeviceLU().operand(cupy.asarray(l), how)(found, cupy.asarray(u))
            rows.append(_same(f"update on the device, {how.name}", found.get(), expected))
    return rows


def compile_ahead(pool, unit, arch):
    """Start to compile the largest kernels that are needed later; the cache on disk keeps them."""
    from tcsolve.kernels.launch_shapes import emulated_sums

    from tcsolve._backends.cuda.runtime import compiler

    needed = [
        ("gemm_emulated", emulated_sums(sums.block, sums.fraction, sums.least, FORMATS[low].emin))
        for low, sums in unit.sums.items()
    ]
    if compiler.supported("gemm_wgmma", arch):
        common = {"T_LOW": "fp16", "TRANS_A": 0, "TRANS_B": 0}
        # The kernels for `gemm` with FP32 operands, and for the update of the LU.
        kinds = {"CLUSTER": 2, "SCALED": 1}, {"CLUSTER": 1, "SCALED": 0}
        needed += [
            ("gemm_wgmma", common | kind | {"REFINE": level}) for level in (0, 3) for kind in kinds
        ]
    for name, defines in needed:
        pool.submit(compiler.compile_cubin, name, arch, tuple(sorted(defines.items())))


# ---- speed ----------------------------------------------------------------------------------------


def host_speed(unit_name):
    """Return the rows of the speed of the emulation in NumPy."""
    m, n, k = HOST_SIZE
    rng, rows = np.random.default_rng(3), []
    a, b = (rng.standard_normal(s).astype(np.float16).astype(np.float32) for s in ((m, k), (k, n)))
    for low, sums in UNITS[unit_name].sums.items():
        run_it = functools.partial(multiply_add, a, b, FORMATS[low], sums)
        seconds = host_seconds(run_it, 5)
        rate = 2 * m * n * k / seconds[len(seconds) // 2]
        rows.append({"what": "speed", "which": f"NumPy {low}@{unit_name}", "gflops": rate / 1e9})
        print(f"{rows[-1]['which']:24} {rate / 1e9:8.2f} GFLOP/s", flush=True)
    return rows


def device_speed(unit):
    """Return the rows of the speed of the kernel of the emulation."""
    import cupy
    from _harness import device_seconds

    from tcsolve._backends.cuda.gemm import emulated_sums

    m, n, k = DEVICE_SIZE
    a, b = (
        cupy.random.standard_normal(s, dtype="f").astype("e").astype("f") for s in ((m, k), (k, n))
    )
    rows = []
    for low in ("fp16", "tf32"):
        run_it = functools.partial(emulated_sums.multiply_add, a, b, FORMATS[low], unit.sums[low])
        seconds = device_seconds(run_it, 3)
        rate = 2 * m * n * k / seconds[len(seconds) // 2]
        rows.append({"what": "speed", "which": f"CuPy {low}@{unit.name}", "gflops": rate / 1e9})
        print(f"{rows[-1]['which']:24} {rate / 1e9:8.2f} GFLOP/s", flush=True)
    return rows


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--host", action="store_true", help="only the speed on the host; no GPU")
    options = parser.parse_args()
    if options.host:
        save(options.json, machine(options.commit), host_speed("h200"))
        return
    from tcsolve._backends.cuda.runtime.compiler import target_arch

    facts, rows, start = machine(options.commit) | gpu(), [], time.perf_counter()
    unit, arch = UNITS[UNIT_OF[facts["compute_capability"]]], target_arch()
    print(f"{facts['gpu']}, emulated as {unit.name}", flush=True)
    ahead, results = ThreadPoolExecutor(4), []
    compile_ahead(ahead, unit, arch)
    for instruction in instructions_of(int(facts["compute_capability"])):
        try:
            a, b, c = kept_operands(instruction.low)
            results.append((instruction, a, b, c, run(instruction, a, b, c, arch)))
        except Exception as error:  # an instruction that fails is a result, too
            rows.append({"what": "failed", "instruction": instruction.name, "error": repr(error)})
            print(f"{instruction.name} failed: {error!r}", flush=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for row in pool.map(lambda x: agreement(x[0], unit, *x[1:]), results):
            show_agreement(row)
            rows.append(row)
            save(options.json, facts, rows)
        for instruction, *arrays in results:
            some = rules_of(instruction, arrays, pool)
            show_rules(some)
            rows += [row for row in some if row["agree"] >= 0.9 * row["outputs"]]
            save(options.json, facts, rows)
    ahead.shutdown()
    print(f"{time.perf_counter() - start:.1f} s so far", flush=True)
    for compare in (
        *(functools.partial(compare_kernel, low, unit, *kept_operands(low)) for low in unit.sums),
        functools.partial(compare_products, unit),
        functools.partial(compare_updates, unit),
        functools.partial(host_speed, unit.name),
        functools.partial(device_speed, unit),
    ):
        try:
            more = compare()
            rows += more if isinstance(more, list) else [more]
        except Exception as error:  # the others are still of interest
            rows.append(
                {"what": "failed", "instruction": str(compare.func.__name__), "error": repr(error)}
            )
            print(f"{compare.func.__name__} failed: {error!r}", flush=True)
        save(options.json, facts, rows)
    print(f"{time.perf_counter() - start:.1f} s in all", flush=True)
    if any(row["agree"] < row["outputs"] for row in rows if row["what"] == "agreement"):
        raise SystemExit("the emulation is not that of this device")


if __name__ == "__main__":
    main()
