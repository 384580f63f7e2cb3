"""Where do the milliseconds of a solve go on the GPU, and how far is each part from its floor?

    python benchmarks/roofline.py                                 # n = 4096 ... 32768, gauss, fp16x3
    python benchmarks/roofline.py --precision fp16 --json benchmarks/results/roofline_fp16.json
    python benchmarks/roofline.py --draw                          # page and figure from the JSON; no GPU

Every kernel of one solve is recorded with torch.profiler and put into a category by its name (_profile.py).
Times without the profiler come from CUDA events.  A page (roofline.md) and a timeline of a few panels
with and without look-ahead (lookahead.png) are made from the JSON, in the same folder.
"""

import sys

import numpy as np
from _floors import GEMM_ORDER, floors, step_floor, tally
from _harness import (
    RESULTS,
    arguments,
    backward_error,
    device_seconds,
    gpu,
    machine,
    outcome,
    save,
    summary,
)
from _profile import TRIANGLES, chain, classify, excerpt, others, panel_times, record
from _roofline_page import chapter, publish, saving

# Number of bytes of the copy that measures the bandwidth.
COPY_BYTES = 2 << 30
# Exchanges of a launch, so that it takes milliseconds.
ROUNDS = 10000
FAMILIES = {"fp16": "gauss_dominant", "bf16": "gauss_dominant", "tf32": "gauss_dominant"}


def require_torch():
    """Import torch and initialize its device, or end with a remedy."""
    try:
        import torch
    except ImportError:
        sys.exit(
            "torch.profiler records the kernels: install torch, or only draw the page with --draw"
        )
    torch.zeros(1, device="cuda")


def measure_rates(repeats):
    """Measure and return the rates that the floors use."""
    import cupy

    rates = {
        "copy_bytes": copy_rate(repeats),
        "fp16_flops": gemm_rate(np.float16, repeats),
        "fp32_flops": gemm_rate(np.float32, repeats),
    }
    if cupy.cuda.Device().compute_capability == "90":
        rates["exchange_seconds"] = exchange_seconds(repeats)
    cupy.get_default_memory_pool().free_all_blocks()
    return rates


def exchange_seconds(repeats):
    """Return the seconds of one exchange of exchange.cu, without the launch; its result is checked."""
    import cupy
    from _kernels import kernel

    launch = kernel("exchange.cu", "exchange", "sm_90a", BLOCKS=16, WARPS=4)
    result, medians = cupy.empty(16, np.float32), []
    for rounds in (ROUNDS, 2 * ROUNDS):
        samples = device_seconds(lambda n=rounds: launch((16,), (128,), (n, result)), repeats)
        if not bool((result == rounds).all()):
            sys.exit(f"exchange.cu gave {result} after {rounds} rounds")
        medians.append(float(np.median(samples)))
    return (medians[1] - medians[0]) / ROUNDS


def copy_rate(repeats):
    """Return bytes read plus written in a second by a copy on the device."""
    import cupy

    here, there = (cupy.zeros(COPY_BYTES // 8) for _ in range(2))
    seconds = device_seconds(lambda: cupy.copyto(there, here), repeats)
    return 2 * COPY_BYTES / float(np.median(seconds))


def gemm_rate(dtype, repeats):
    """Return the flops a second of a square product of random operands."""
    import cupy

    rng = cupy.random.default_rng(1)
    shape = (GEMM_ORDER, GEMM_ORDER)
    a, b = (rng.standard_normal(shape, dtype=np.float32).astype(dtype) for _ in range(2))
    return 2 * GEMM_ORDER**3 / float(np.median(device_seconds(lambda: a @ b, repeats)))


class Factoring:
    """The factorization of one matrix alone, with and without look-ahead."""

    def __init__(self, a, precision):
        from tcsolve._arithmetic.formats import UPDATES
        from tcsolve._backends.cuda.ops import CupyOps
        from tcsolve._contract.schedule import schedule
        from tcsolve._lu.norms import survey
        from tcsolve._solve.problem.system import expects_dominance

        self.a, self.ops, self.how = a, CupyOps(), UPDATES[precision]
        self.dominant = expects_dominance(self.ops, a, survey(self.ops, a))
        w = self.copy()
        rules = self.ops.lu.rules(w.dtype, w)
        self.schedule = schedule(len(a), self.how, rules, dominant=self.dominant)
        self.panels = [(panel.start, panel.stop) for panel in self.schedule.panels]

    def copy(self):
        """Return a matrix for `run` to overwrite.

        As in a solve, its memory has recorded graphs if possible.
        """
        return self.ops.cast_scaled(self.a, None, None, np.float32)

    def run(self, w, look_ahead):
        """Factor w in place."""
        from tcsolve._lu.elimination import factor_blocked

        options = {"look_ahead": look_ahead, "dominant": self.dominant}
        return factor_blocked(self.ops, w, self.how, **options)

    def strips(self):
        """Return the number of strips of each panel."""
        return [len(panel.strips) for panel in self.schedule.panels]

    def seconds(self, look_ahead, repeats):
        """Return the sorted seconds between CUDA events."""
        return device_seconds(lambda w: self.run(w, look_ahead), repeats, prepare=self.copy)

    def spans(self, look_ahead):
        """Return the classified profile of one factorization."""
        for _ in range(3):  # the first runs record CUDA graphs, which the last run uses
            w = None
            w = self.copy()
            found = record(lambda w=w: self.run(w, look_ahead))
        return classify(found)

    def same_bits(self):
        """Return whether look-ahead changes no bit of the factors, and the bytes of the inverted blocks."""
        with_it, without = (self.run(self.copy(), look_ahead) for look_ahead in (True, False))
        if with_it.misled:
            sys.exit(
                "A seems diagonally dominant by its row and column sums, but the LU disproves it: not timed"
            )
        equal = bool((with_it.lu == without.lu).all()) and bool(
            (with_it.order == without.order).all()
        )
        return equal, 0 if with_it.inverses is None else with_it.inverses.nbytes


def measure(n, precision, repeats, rates, timeline):
    """Return the row of one n: the solve by category, the factorization with and without look-ahead."""
    import cupy
    from solve import matrix

    import tcsolve

    family = FAMILIES.get(precision, "gauss")
    a = matrix(family, n)
    b = a.sum(axis=1)

    def run():
        return tcsolve.solve_ex(a, b, precision=precision, assume_a="general")

    solution = run()
    error = backward_error(cupy, a, solution.x, b)
    # Twice the bound, because the rounding errors of this residual differ from those in the solve.
    if not (solution.status.ok and error <= 2 * solution.bound):
        sys.exit(f"n = {n}: {outcome(solution)}; recomputed backward error {error:.1e}: not timed")
    solve = summary(device_seconds(run, repeats))
    kernels = record(run)
    spans = classify(kernels)
    factoring = Factoring(a, precision)
    same_bits, inverse_bytes = factoring.same_bits()
    ahead, serial = (factoring.spans(look_ahead) for look_ahead in (True, False))
    steps = int(solution.iterations.max())
    again = solve_again(a, b, precision)
    least = floors(
        factoring.panels,
        factoring.how.products,
        rates,
        pivoting=family == "gauss",
        residuals=steps + 1,
        triangles=sum(span.category == TRIANGLES for span in spans),
        inverse_bytes=inverse_bytes,
    )
    row = {
        "n": n,
        "family": family,
        "precision": precision,
        "blocks": sorted({last - first for first, last in factoring.panels}, reverse=True),
        "backward_error": error,
        "steps": steps,
        "rungs": list(solution.rungs),
        "solve": solve,
        "phases": run().seconds,
        # The first solve with the factors and its residual cost as much as a step.
        "step": again.seconds["refine"] / (int(again.iterations.max()) + 1),
        **tally(spans, solve["median"], least),
        "others": others(kernels, spans),
        "chain": chain(ahead),
        "refinement_floor": step_floor(n, rates),
        "same_bits": same_bits,
        "look_ahead": summary(factoring.seconds(True, repeats)),
        "serial": summary(factoring.seconds(False, repeats)),
        "panel": panel_times(serial, factoring.panels, factoring.strips()),
    }
    if timeline:
        shown = {"look_ahead": ahead, "serial": serial}
        row["timeline"] = {
            key: excerpt(value, len(factoring.panels)) for key, value in shown.items()
        }
    return row


def solve_again(a, b, precision):
    """Return the fourth solution with the same factors.

    Their condition is known, and no step is launched ahead.
    """
    import tcsolve
    from tcsolve._paths import switched_off

    factors = tcsolve.factor(a, precision=precision)
    with switched_off("steps_ahead"):
        return [factors.solve_ex(b) for _ in range(4)][-1]


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, nargs="+", default=[4096, 8192, 16384, 32768])
    parser.add_argument("--precision", default="fp16x3", choices=["fp16x3", "fp16", "bf16", "tf32"])
    parser.add_argument("--timeline", type=int, default=16384, help="the n that the figure shows")
    parser.add_argument(
        "--draw", action="store_true", help="only the page and figure, from the JSON"
    )
    parser.set_defaults(json=RESULTS / "roofline.json")
    options = parser.parse_args()
    if options.draw:
        publish(options.json)
        return
    require_torch()
    import cupy

    facts = machine(options.commit) | gpu() | {"rates": measure_rates(options.repeats)}
    shown = options.timeline if options.timeline in options.n else max(options.n)
    rows = []
    for n in options.n:
        rows.append(measure(n, options.precision, options.repeats, facts["rates"], n == shown))
        print("\n".join([*chapter(rows[-1]), saving(rows[-1])]), flush=True)
        save(options.json, facts, rows)
        cupy.get_default_memory_pool().free_all_blocks()
    publish(options.json)


if __name__ == "__main__":
    main()
