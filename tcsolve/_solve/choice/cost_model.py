"""Predicted times and bytes of a solve, to choose the precision and the device; pure functions of numbers."""

import functools
import math
from dataclasses import dataclass, replace

from tcsolve._arithmetic.formats import update_named
from tcsolve._arithmetic.matrix_parts import (
    SUMMED_COLUMNS,
    WIDENED,
    part_entries,
    sums_at_once,
)
from tcsolve._plan import Plan

__all__ = [
    "CPU",
    "H200",
    "Rates",
    "bytes_needed",
    "choose_update",
    "factor_cost",
    "first_update",
    "krylov_worth",
    "pass_cost",
    "predict_seconds",
    "rates_for",
    "rates_of",
    "rough_bytes",
    "step_budget",
    "steps_worth",
]

# Expected number of refinement steps for each update, for systems where `choose_update` selects this update.
EXPECTED_STEPS = {"fp64": 0, "fp32": 3, "fp16x3": 5, "fp16": 3}
# REFINEMENT_VECTORS: number of vectors in use at the same time in refinement and condition estimate, as
# (number per right-hand side, minimum).  INVERSE_BYTES_ROW: bytes per row of the inverted diagonal blocks,
# for two triangles with blocks of 128 FP32 or 64 FP64 unknowns.
REFINEMENT_VECTORS, INVERSE_BYTES_ROW = {"cpu": (6, 16), "cuda": (6, 32)}, 1024
# Number of vectors per right-hand side that are in use while a device forms the sums of a product.
VECTORS_BESIDE_SUMS = 4
# Number of columns that the condition estimate multiplies by A at once.  For n from 4097 to 8192 there may be
# 7 columns.  Then fewer sums are formed at once, so together they have about as many entries.
ESTIMATE_COLUMNS = 5
# Number of panel-sized matrices that an emulated update needs in addition to its result, by its number of
# products.
EMULATED_OPERANDS = {1: 4, 3: 11}
# The same if the sums are emulated, too.  Then each product has a result of its own.
OPERANDS_OF_SUMS = 15
# Number of matrices of the size of A that an LU needs if it rounds every operation.  NumPy converts to
# FP16, but not to the other formats: to these, numbers are rounded by integer arithmetic on their bits.
ROUNDED_COPIES = {"fp16": 3.5, "bf16": 5.25, "tf32": 5.25}
# Up to this many right-hand sides, one call of our own kernels does the triangular solves.  More need several
# calls, products with inverted blocks, or trsm of cuBLAS.
FEW_COLUMNS = 4
# Limits of `step_budget`, which is the largest number of corrections that a rung may spend on a column.
LEAST_BUDGET, MOST_BUDGET = 30, 300
# For an emulated rung, `steps_worth` allows at least this number of corrections, counted over all columns.
# The number is large, because users run emulated rungs to study their convergence.
EMULATED_BUDGET = 1000
# The bytes of a solve divided by those of its factors, for a prediction that need not be exact.
ROUGH = 1.25


@dataclass(frozen=True, eq=False)
class Rates:
    """Rates and latencies of a device, for predictions that are good to a factor of two.

    Instances are hashed by identity, so that they can be keys of a cache.

    Attributes
    ----------
    lu_flops : dict of str to float
        Rate of the trailing update in flop/s, for each `Update` that 'auto' may choose on the device.  All
        other updates count as emulated.
    column_seconds : dict of str to float
        Latency of one column of a panel in seconds, for the same updates.
    start_seconds : dict of str to float
        Seconds of a solve of size zero, for the same updates.
    complex_column_seconds, complex_start_seconds : dict of str to float
        The same for a complex matrix.
    step_seconds : float
        Latency of one refinement step in seconds.
    krylov_seconds : float
        Additional latency of a step of FGMRES in seconds.
    solve_seconds : float
        Latency of the two triangular solves in seconds per row.
    block_solve_seconds : float
        The same for more than FEW_COLUMNS right-hand sides, and for complex ones.
    bandwidth : float
        Bandwidth of the memory in bytes per second.
    gemm_flops : float
        Rate of FP64 products in flop/s, for many right-hand sides.
    """

    lu_flops: dict
    column_seconds: dict
    start_seconds: dict
    complex_column_seconds: dict
    complex_start_seconds: dict
    step_seconds: float
    krylov_seconds: float
    solve_seconds: float
    block_solve_seconds: float
    bandwidth: float
    gemm_flops: float


# Measured on two cores with AVX2.  Other machines have other rates, but the choice depends only on the ratio
# of FP32 to FP64, which differs little.
CPU = Rates(
    lu_flops={"fp64": 9.5e10, "fp32": 1.9e11},
    column_seconds={"fp64": 1.0e-6, "fp32": 1.0e-6},
    start_seconds={"fp64": 2e-5, "fp32": 2e-5},
    complex_column_seconds={"fp64": 1.0e-6, "fp32": 1.0e-6},
    complex_start_seconds={"fp64": 2e-5, "fp32": 2e-5},
    step_seconds=2e-5,
    krylov_seconds=2e-5,
    solve_seconds=6e-8,
    block_solve_seconds=2e-7,
    bandwidth=2.5e10,
    gemm_flops=9e10,
)

# Fitted to benchmarks/solve.py and, for FP64 by cuSOLVER, to benchmarks/roads.py.  With one right-hand side
# and n = 512 ... 16384 (doubling), cuSOLVER took, when the rates were fitted, 1.1, 2.5, 5.9, 14.2, 39.5, 141
# ms for real systems, and 1.3, 3.2, 7.9, 20.5, 70, 341 ms for complex ones.  Our LU of complex matrices
# takes 12, 19, 30, 61, 119, 266 ms; its panels are factored by cuSOLVER, too.  The following times were
# compared but not fitted, for n = 2048 with 16, 256 and 2048 columns: cuSOLVER takes 8.1, 7.0, 7.5 ms
# (complex: 9.3, 9.6, 10.6), and the predictions are 7.3, 7.4, 8.0 (7.6, 7.9, 10.3); fp16x3 takes 5.6 and 6.3
# ms with 16 and 256 real columns, and the predictions are 5.9 and 6.4.
H200 = Rates(
    lu_flops={"fp64": 3.6e13, "fp32": 3.6e13, "fp16x3": 1.6e14, "fp16": 2.4e14},
    column_seconds={"fp64": 3.0e-6, "fp32": 3.0e-6, "fp16x3": 1.1e-6, "fp16": 1.1e-6},
    start_seconds={"fp64": 5e-4, "fp32": 3e-3, "fp16x3": 5e-4, "fp16": 5e-4},
    complex_column_seconds={"fp64": 3.0e-6, "fp32": 3.0e-6, "fp16x3": 1.15e-5, "fp16": 1.15e-5},
    complex_start_seconds={"fp64": 3e-4, "fp32": 3e-3, "fp16x3": 5e-3, "fp16": 5e-3},
    step_seconds=1e-4,
    krylov_seconds=6e-4,
    solve_seconds=1.5e-8,
    block_solve_seconds=2e-7,
    bandwidth=4.2e12,
    gemm_flops=5e13,
)

# Below this n, 'auto' takes FP64 for answers in FP64: it is cheap, and its factors show even the smallest
# rcond.
LEAST_LOW = 200

# FP64 multiply-adds per clock and multiprocessor by compute capability, on tensor cores if these support
# FP64; all other devices have 2.
FP64_LANES = {70: 32, 80: 64, 90: 128, 100: 64}


def rates_of(device, properties=None):
    """Return the `Rates` of a device.

    Parameters
    ----------
    device : {'cpu', 'cuda'}
    properties : dict, optional
        Properties of a CUDA device: 'arch' (90 for 9.0), 'multiprocessors', 'clock' (Hz) and 'bandwidth'
        (B/s).

    Notes
    -----
    Only the H200 was measured.  Every GPU of compute capability 9.0 with 132 multiprocessors or more has its
    rates.  For other GPUs they are scaled by the number of multiprocessors, the clock, the bandwidth and the
    FP64 units.
    """
    if device == "cpu":
        return CPU
    if properties is None or properties["arch"] == 90 and properties["multiprocessors"] >= 132:
        return H200
    return _scaled_rates(
        *(properties[x] for x in ("arch", "multiprocessors", "clock", "bandwidth"))
    )


@functools.cache
def _scaled_rates(arch, multiprocessors, clock, bandwidth):
    size = multiprocessors * clock / (132 * 1.98e9)
    lanes = FP64_LANES.get(arch, 2) / FP64_LANES[90]
    flops = {name: rate * size for name, rate in H200.lu_flops.items()}
    flops["fp64"] *= lanes
    # Before Hopper, the tensor cores of a multiprocessor have at most half of Hopper's rate.
    if arch < 90:
        flops["fp16"], flops["fp16x3"] = flops["fp16"] / 2, flops["fp16x3"] / 2
    gemm_flops = H200.gemm_flops * size * lanes
    return replace(H200, lu_flops=flops, bandwidth=bandwidth, gemm_flops=gemm_flops)


def predict_seconds(update, n, nrhs, rates, *, is_complex=False, steps=None):
    """Predict the seconds of a solve with the first rung `update`; `steps` replaces EXPECTED_STEPS."""
    start = (rates.complex_start_seconds if is_complex else rates.start_seconds)[update]
    factor = factor_cost(update, n, rates, is_complex=is_complex)
    steps = EXPECTED_STEPS[update] if steps is None else steps
    return start + factor + (1 + steps) * step_cost(update, n, nrhs, rates, is_complex=is_complex)


def factor_cost(update, n, rates, *, is_complex=False):
    """Predict the seconds of an LU."""
    flops = (8 / 3 if is_complex else 2 / 3) * n**3
    column = (rates.complex_column_seconds if is_complex else rates.column_seconds)[update]
    return flops / rates.lu_flops[update] + n * column


def step_cost(update, n, nrhs, rates, *, is_complex=False):
    """Predict the seconds of one refinement step: residual and two triangular solves."""
    few = nrhs <= FEW_COLUMNS and not is_complex
    row = rates.solve_seconds if few else rates.block_solve_seconds
    passes = pass_cost(update, n, nrhs, rates, is_complex=is_complex)
    return rates.step_seconds + n * row + passes


def pass_cost(update, n, nrhs, rates, *, is_complex=False):
    """Predict the seconds of one refinement step without latencies."""
    entry = 16 if is_complex else 8
    low = entry if update == "fp64" else entry // 2
    traffic = n * n * (entry + low) / rates.bandwidth
    flops = (16 if is_complex else 4) * n * n * nrhs / rates.gemm_flops
    return max(traffic, flops)


@functools.lru_cache(maxsize=256)
def choose_update(n, nrhs, rates, *, working="fp64", is_complex=False, dominant=False):
    """Return the name of the update with the smallest predicted time.

    Parameters
    ----------
    n, nrhs : int
    rates : Rates
    working : {'fp64', 'fp32'}
        Precision of the answer; an FP32 answer needs at most FP32 factors.
    is_complex : bool
        Whether the matrix is complex.
    dominant : bool
        Whether A is strictly diagonally dominant.  Only then are updates with one product of rounded
        operands considered.

    Returns
    -------
    str
    """
    if n < LEAST_LOW and working == "fp64":
        return "fp64"
    names = [name for name in rates.lu_flops if name != "fp64" or working == "fp64"]
    if not dominant:
        names = [name for name in names if update_named(name).u < 2.0**-15]
    steps = {name: 0 if working == "fp32" and name == "fp32" else None for name in names}
    return min(
        names,
        key=lambda name: predict_seconds(
            name, n, nrhs, rates, is_complex=is_complex, steps=steps[name]
        ),
    )


def rates_for(ops):
    """Return the `Rates` of the device of `ops`."""
    return rates_of(ops.device, getattr(ops, "properties", None))


def first_update(a, nrhs, precision, rates, dominant=False):
    """Return the name of the first update of a solve with `precision`, a Plan or a name."""
    if isinstance(precision, Plan):
        precision = precision.update
    if precision != "auto":
        return precision
    working, is_complex = "fp32" if a.dtype.char in "fF" else "fp64", a.dtype.kind == "c"
    how = {"working": working, "is_complex": is_complex, "dominant": dominant}
    return choose_update(a.shape[-1], nrhs, rates, **how)


def step_budget(update, following, n, nrhs, rates, *, is_complex=False):
    """Return how many corrections with `update` cost as much as a solve with `following`, within limits."""
    if following is None or following not in rates.lu_flops:
        return MOST_BUDGET
    price = predict_seconds(following, n, nrhs, rates, is_complex=is_complex)
    step = step_cost(update, n, nrhs, rates, is_complex=is_complex)
    return int(min(MOST_BUDGET, max(LEAST_BUDGET, price / step)))


def steps_worth(update, following, n, nrhs, rates, *, is_complex=False):
    """Return how many corrections of all columns cost as much as a solve with `following`.

    A correction of all columns counts as one.  The number is at least LEAST_BUDGET (or EMULATED_BUDGET, if
    `update` is emulated) divided by the number of columns.  For one column it is infinite, because
    `step_budget` limits the steps already.  If `following` is emulated, the price of FP64 is used.
    """
    if following is None or nrhs == 1:
        return math.inf
    least = LEAST_BUDGET if update in rates.lu_flops else EMULATED_BUDGET
    step = step_cost(update, n, nrhs, rates, is_complex=is_complex)
    return max(least / nrhs, _price(following, n, nrhs, rates, is_complex) / step)


def krylov_worth(update, following, n, nrhs, rates, *, is_complex=False):
    """Return how many steps of FGMRES with all columns cost half as much as a solve with `following`.

    The other half is for rcond: with factors that need FGMRES, its estimate takes about as many steps as x.
    If `update` is emulated, or no rung follows, this is `steps_worth`.
    """
    if following is None or update not in rates.lu_flops:
        return steps_worth(update, following, n, nrhs, rates, is_complex=is_complex)
    step = rates.krylov_seconds + step_cost(update, n, nrhs, rates, is_complex=is_complex)
    return _price(following, n, nrhs, rates, is_complex) / step / 2


def _price(following, n, nrhs, rates, is_complex):
    """Predict the seconds of a solve with the next rung; if that is emulated, those in FP64."""
    following = following if following in rates.lu_flops else "fp64"
    return predict_seconds(following, n, nrhs, rates, is_complex=is_complex)


def rough_bytes(update, n, dtype):
    """Predict the bytes of a solve from those of its factors alone."""
    low = 8 if update_named(update).storage == "float64" else 4
    return int(ROUGH * n * n * low * (2 if dtype.kind == "c" else 1))


@functools.lru_cache(maxsize=1024)
def bytes_needed(update, n, nrhs, dtype, *, block, on_device, kept=0):
    """Predict the bytes that a solve allocates beyond its arguments.

    Parameters
    ----------
    update : str
    n, nrhs : int
    dtype : dtype
        The dtype of the matrix.
    block : int
        Number of columns of a panel, which determines the size of the operands of a trailing update.
    on_device : bool
        True: tensor cores, with packed operands.  False: emulated, with the full product in memory.
    kept : int
        `Refined.kept`: bytes of Krylov cycles in addition to those of classical refinement.

    Returns
    -------
    int
    """
    how = update_named(update)
    complex_factor = 2 if dtype.kind == "c" else 1
    low = (8 if how.storage == "float64" else 4) * complex_factor
    factors = n * n * low
    device = "cuda" if on_device else "cpu"
    each, least = REFINEMENT_VECTORS[device]
    vectors = max(each * nrhs, least) * n
    if dtype.char in "fF":  # one part of A at a time is converted to FP64
        vectors += part_entries(n, n, WIDENED[device])
    elif on_device:
        sums = _entries_of_sums(how, n, nrhs, complex_factor)
        vectors = max(vectors, max(VECTORS_BESIDE_SUMS * nrhs, least) * n + sums)
    refinement = vectors * 8 * complex_factor + kept
    if not on_device:
        return factors + max(int(_extra_entries(how, n, block) * low), refinement)
    refinement += INVERSE_BYTES_ROW * n if complex_factor == 1 else 0
    if how.native:
        return factors + refinement
    # Packed operands L and U of a panel, 2 (TF32: 4) bytes per number.  For complex numbers L has two real
    # numbers per entry, and U four.
    width = 4 if how.name == "tf32" else 2
    # Updates with three products need three parts of L and three of U.  On Hopper they need two of each, and
    # two more for L of the next panel, which is rounded during an update.
    parts = how.products * (1 + complex_factor) * complex_factor
    if how.products == 1 and complex_factor == 1:
        # One more for L of the next panel, which is rounded during an update.  With FP16, this memory first
        # holds the parts of the product that computes U.
        parts += 1
    packed = n * block * parts * width
    # The operands of the last update are freed before the refinement begins.
    return factors + max(packed, refinement)


def _entries_of_sums(how, n, nrhs, complex_factor):
    """Return the entries of the sums that a product with A on a device forms at once.

    Other kernels compute the residual of one real column.  An estimate with FP64 factors needs no product.
    """
    columns = {ESTIMATE_COLUMNS} if how.storage != "float64" else set()
    if nrhs > 1 or complex_factor > 1:
        columns.add(min(nrhs, SUMMED_COLUMNS))
    return max((n * k * sums_at_once(n, n, k) for k in columns), default=0)


def _extra_entries(how, n, block):
    """Return how many entries an emulated LU needs on the host in addition to the factors."""
    rows, products = max(n - block, 0), how.products
    if how.native:
        return 0
    if how.rounds_each:
        return ROUNDED_COPIES[how.format.name] * n * n
    if how.sums is not None:
        return rows * (products * rows + OPERANDS_OF_SUMS * block)
    return rows * (rows + EMULATED_OPERANDS[products] * block)
