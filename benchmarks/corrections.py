"""Would products of 8-bit numbers suffice for the corrections of an LU with three products?

    python benchmarks/corrections.py steps    # how many steps of refinement they would cost; no GPU
    python benchmarks/corrections.py rates    # how much time they would save, by cuBLAS on a GPU
    python benchmarks/corrections.py page     # the page from both JSON files

C -= L U with L = L_hi + L_lo and U = U_hi + U_lo takes three products in FP16.  Two of them, L_hi U_lo and
L_lo U_hi, only correct the third.  Their operands could be rounded to INT8 or FP8, for which the peak of the
tensor cores is twice that of FP16.  The steps are measured with the factorization and refinement of tcsolve;
its update is emulated with such corrections and FP32 sums.  The rates are those of cuBLAS, called by torch,
for normally distributed entries.  Results are INT32 for INT8, and FP16 for the other formats.
"""

import contextlib
import json

import ml_dtypes
import numpy as np
from _harness import RESULTS, arguments, gpu, machine, save
from tables import source, table

STEPS, RATES, PAGE = (RESULTS / f"corrections{x}" for x in ("_steps.json", "_rates.json", ".md"))
# Name in tcsolve.matrices, and its options.
FAMILIES = {
    "gauss": ("gauss", {}),
    "gauss + n I": ("gauss_dominant", {}),
    "svd geo 1e2": ("svd_geo", {"cond": 1e2}),
    "svd geo 1e4": ("svd_geo", {"cond": 1e4}),
    "svd geo 1e6": ("svd_geo", {"cond": 1e6}),
    "svd arith 1e6": ("svd_arith", {"cond": 1e6}),
    "svd cluster1 1e4": ("svd_cluster1", {"cond": 1e4}),
    "uniform": ("uniform", {}),
}
# The largest numbers that are used of INT8 and of E4M3.
INT8_MAX, FP8_MAX = 127, 448
SEED = 7


# ---- corrections -------------------------------------------------------------------------------


def to_int8(x, axis):
    """Return x rounded to 8-bit integers times a power of two for each row (column)."""
    step = 2.0 ** np.ceil(np.log2(largest(x, axis) / INT8_MAX))
    return np.rint(x / step).clip(-INT8_MAX, INT8_MAX) * step


def to_fp8(x, axis):
    """Return x rounded to E4M3 with one power of two for each row (column), so that nothing overflows."""
    step = 2.0 ** np.ceil(np.log2(largest(x, axis) / FP8_MAX))
    return (x / step).astype(ml_dtypes.float8_e4m3fn).astype(x.dtype) * step


def largest(x, axis):
    top = np.abs(x).max(axis=axis, keepdims=True)
    return np.where(top > 0, top, 1).astype(np.float64)


def exact(x, axis):
    """Return x without rounding, for corrections in FP16."""
    return x


# The rounding of the operands of the corrections; without corrections there is one product.
CORRECTIONS = {"fp16": exact, "int8": to_int8, "fp8": to_fp8, "none": None}


@contextlib.contextmanager
def corrected(rounded):
    """Let the NumPy update with three products round its corrections by `rounded`; None leaves them out."""
    from tcsolve._arithmetic.formats import TOP_EXPONENT
    from tcsolve._backends.cpu.lu import MOST_SCALE, HostLU, _scale_to_top, _split

    def operand(self, l, how, at_once=False, bound=None):
        parts = _split(l * np.float32(2.0**TOP_EXPONENT), how.format)

        def subtract(c, u, share=None, first=0):
            l_hi, l_lo = (part[first : first + len(c)] for part in parts)
            scale = np.float32(_scale_to_top(u, MOST_SCALE))
            u_hi, u_lo = _split(u * scale, how.format)
            product = l_hi @ u_hi
            if rounded is not None:
                for l, u in ((l_hi, u_lo), (l_lo, u_hi)):
                    product += rounded(l, 1).astype(l.dtype) @ rounded(u, 0).astype(u.dtype)
            c -= product / np.float32(2.0**TOP_EXPONENT * scale)

        return subtract

    usual = HostLU.operand
    HostLU.operand = operand
    try:
        yield
    finally:
        HostLU.operand = usual


def count_steps(family, n, name):
    """Return the row of one family, size and kind of corrections."""
    import tcsolve
    from tcsolve import Plan, matrices

    kind, options = FAMILIES[family]
    problem = matrices.generate(kind, n, seed=SEED, **options)
    plan = Plan("fp16x3", block=256, fallback=False)
    with corrected(CORRECTIONS[name]):
        solution = tcsolve.solve_ex(problem.a, problem.b, precision=plan)
    return {
        "family": family,
        "n": n,
        "corrections": name,
        "status": solution.status.name,
        "steps": int(solution.iterations.max()),
        "backward_error": float(solution.backward_error.max()),
        "bound": float(solution.bound),
    }


# ---- rates -------------------------------------------------------------------------------------


def products(n, k):
    """Yield (format, run) of n x k by k x n products; FP8 and INT8 need a column-major B."""
    import torch

    a, b = torch.randn(n, k, device="cuda"), torch.randn(k, n, device="cuda")
    halves = a.half(), b.half()
    yield "fp16", lambda: torch.mm(*halves)
    scaled = [x.mul(INT8_MAX / 5).round().clamp(-INT8_MAX, INT8_MAX) for x in (a, b)]
    left, right = (x.to(torch.int8) for x in scaled)
    right = right.t().contiguous().t()
    yield "int8", lambda: torch._int_mm(left, right)
    floats = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t().contiguous().t()
    one = torch.ones((), device="cuda")
    yield "fp8", lambda: torch._scaled_mm(*floats, one, one, out_dtype=torch.float16)


def rate(run, n, k, seconds):
    """Return the TFLOP/s of products, measured after they have run for `seconds`."""
    import torch

    def elapsed(calls):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            run()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) / 1e3

    elapsed(1)
    calls = max(3, int(seconds / elapsed(1)))
    elapsed(calls)
    return 2e-12 * n * n * k * calls / elapsed(calls)


# ---- the page ----------------------------------------------------------------------------------


def cost_of_three(tflops, name):
    """Return the time of a product with its two corrections, relative to three products in FP16."""
    return (1 + 2 * tflops["fp16"] / tflops[name]) / 3


def page(steps, rates):
    """Return the Markdown page of two results files."""
    names = list(CORRECTIONS)
    lines = [
        "# Corrections in eight bits",
        "",
        __doc__.split("\n\n")[2].replace("\n", " ").strip(),
        "",
    ]
    lines += [
        "Refinement steps (classical or Krylov) until the bound is met, for each format of the corrections:",
        "",
    ]
    rows = {}
    for r in steps["rows"]:
        met = r["backward_error"] <= r["bound"]
        rows.setdefault((r["family"], r["n"]), {})[r["corrections"]] = (
            r["steps"] if met else "stalls"
        )
    body = [[*key, *(cells.get(name, "-") for name in names)] for key, cells in rows.items()]
    lines += [
        table(["family", "n", *names], body),
        "",
        source(steps["machine"], "benchmarks/corrections.py steps"),
    ]
    lines += [
        "",
        "Rates of the products of cuBLAS, in TFLOP/s, and the time of a product with two corrections at these"
        " rates, relative to three products in FP16:",
        "",
    ]
    body = []
    for r in rates["rows"]:
        tflops = r["tflops"]
        costs = [f"{cost_of_three(tflops, name):.2f}" for name in ("int8", "fp8")]
        body.append(
            [r["n"], r["k"], *(f"{tflops[name]:.0f}" for name in ("fp16", "int8", "fp8")), *costs]
        )
    head = [
        "m = n",
        "k",
        "FP16",
        "INT8",
        "FP8",
        "INT8 corrections / three in FP16",
        "FP8 corrections / three in FP16",
    ]
    lines += [table(head, body), "", source(rates["machine"], "benchmarks/corrections.py rates")]
    return "\n".join(lines) + "\n"


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["steps", "rates", "page"])
    parser.add_argument(
        "--n", type=int, nargs="+", help="default: 1024 4096 (steps), 8192 16384 (rates)"
    )
    parser.add_argument(
        "--k", type=int, nargs="+", default=[1024, 8192], help="inner dimensions of the products"
    )
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="time for which a product repeats"
    )
    options = parser.parse_args()
    facts, rows = machine(options.commit), []
    if options.what == "steps":
        for n in options.n or (1024, 4096):
            for family in FAMILIES:
                for name in CORRECTIONS:
                    rows.append(count_steps(family, n, name))
                    print(rows[-1], flush=True)
                    save(options.json or STEPS, facts, rows)
    elif options.what == "rates":
        facts |= gpu()
        for n in options.n or (8192, 16384):
            for k in options.k:
                tflops = {name: rate(run, n, k, options.seconds) for name, run in products(n, k)}
                rows.append({"n": n, "k": k, "tflops": tflops})
                print(rows[-1], flush=True)
                save(options.json or RATES, facts, rows)
    else:
        PAGE.write_text(page(*(json.loads(path.read_text()) for path in (STEPS, RATES))))


if __name__ == "__main__":
    main()
