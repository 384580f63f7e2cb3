"""Tensor-core instructions on chosen operands: random ones, and ones that show how sums are made.

Operands are made of the raw bits of a generator, so that every version of NumPy makes the same ones.
"""

import hashlib
from dataclasses import dataclass
from functools import cache

import numpy as np
from _kernels import kernel

from tcsolve._arithmetic.formats import FORMATS, round_to

SOURCE = "instructions.cu"
COLUMNS = 8
# The name of the emulated tensor cores for a device, by its compute capability.
UNIT_OF = {"80": "a100", "89": "l40s", "90": "h200", "100": "b200"}


@dataclass(frozen=True)
class Instruction:
    """A tensor-core instruction: its number in the kernel, the rows of a tile, the threads, the format."""

    name: str
    kind: int
    rows: int
    threads: int
    low: str

    @property
    def depth(self):
        """Number of products in each sum of one instruction."""
        return 8 if self.low == "tf32" else 16


INSTRUCTIONS = tuple(
    Instruction(f"{name} {low}", 3 * number + kind, *shape, low)
    for number, (name, shape) in enumerate({"mma.sync": (16, 32), "wgmma": (64, 128)}.items())
    for kind, low in enumerate(("fp16", "bf16", "tf32"))
)


def instructions_of(number):
    """Return the instructions of a compute capability, such as 90."""
    return [x for x in INSTRUCTIONS if number >= 80 and (x.kind < 3 or number == 90)]


# ---- operands -------------------------------------------------------------------------------------


def bits(seed, shape):
    """Return random 64-bit integers, the same with every version of NumPy."""
    return np.random.PCG64(seed).random_raw(int(np.prod(shape))).reshape(shape)


def numbers(seed, shape, low, high):
    """Return FP64 numbers with random signs and fractions, and exponents in low ... high."""
    raw = bits(seed, shape)
    fraction = 1 + (raw >> np.uint64(12)).astype(np.float64) * 2.0**-52
    sign = 1.0 - 2.0 * (raw & np.uint64(1)).astype(np.float64)
    exponent = low + (raw >> np.uint64(1) & np.uint64(0x7FF)).astype(np.int64) % (high - low + 1)
    return np.ldexp(sign * fraction, exponent)


def chosen(seed, shape, one_in):
    """Return an array that is True in about one of `one_in` entries."""
    return bits(seed, shape) % np.uint64(one_in) == 0


# Smallest and largest exponent of the numbers of each family, for FP16 and for the formats of wide range.
RANGES = {
    "even": {"fp16": (0, 0), "wide": (0, 0)},
    "near": {"fp16": (-2, 1), "wide": (-2, 1)},
    "mixed": {"fp16": (-14, 14), "wide": (-40, 40)},
    "far": {"fp16": (-14, 15), "wide": (-126, 126)},
    "subnormal": {"fp16": (-24, -13), "wide": (-133, -120)},
    "small": {"fp16": (-14, -8), "wide": (-80, -56)},
    "faint": {"fp16": (-24, -20), "wide": (-69, -61)},
    "large": {"fp16": (12, 15), "wide": (58, 64)},
}
FAMILIES = (*RANGES, "powers", "few bits", "pairs", "sparse", "zeros", "special")
# Families whose products may all be small or zero.
SMALL = ("small", "faint", "subnormal", "sparse", "zeros")


def lines(low, count, k, seed):
    """Return `count` vectors of k numbers of a format, of all families in turn, shape (count, k), float32."""
    fmt, key = FORMATS[low], "fp16" if low == "fp16" else "wide"
    made = np.empty((count, k))
    for f, family in enumerate(FAMILIES):
        here = slice(f, count, len(FAMILIES))
        shape, seeds = made[here].shape, [seed, f]
        x = numbers([*seeds, 0], shape, *RANGES.get(family, RANGES["mixed"])[key])
        if family == "powers":
            x = np.copysign(2.0 ** np.frexp(x)[1], x)
        elif family == "few bits":
            x = np.rint(numbers([*seeds, 0], shape, 0, 3))
        elif (
            family == "pairs"
        ):  # each number is followed by its negative, or by a neighbour of its negative
            x[:, 1::2] = -x[:, 0::2] * (1 + fmt.u * 2 * chosen([*seeds, 1], x[:, 1::2].shape, 3))
        elif family == "sparse":
            x[~chosen([*seeds, 1], shape, 5)] = 0
        elif family == "zeros":  # of one sign in a vector, so that all products may be -0
            x = np.copysign(0.0, x[:, :1]) * np.ones(shape)
        elif family == "special":
            some = chosen([*seeds, 1], shape, 40)
            which = (bits([*seeds, 2], shape) % np.uint64(5)).astype(int)
            x[some] = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0])[which[some]]
        made[here] = x
    with np.errstate(all="ignore"):
        x = round_to(made.astype(np.float32), fmt)
    # Only the family "special" has Inf.
    large = np.float32(fmt.xmax)
    ordinary = np.arange(count) % len(FAMILIES) != FAMILIES.index("special")
    x[ordinary] = np.clip(x[ordinary], -large, large)
    return x


def operands(low, m, n, k, seed):
    """Return a (m, k), b (k, n) and c (m, n), float32; every pair of families occurs."""
    a, b = lines(low, m, k, seed), lines(low, n, k, seed + 1)
    # Make neighbouring entries of the columns of "pairs" equal: products with the rows of "pairs" cancel.
    b[FAMILIES.index("pairs") :: len(FAMILIES), 1::2] = b[
        FAMILIES.index("pairs") :: len(FAMILIES), 0::2
    ]
    c = np.zeros((m, n), np.float32)
    c[:, ::8] = -0.0
    c[:, 1::4] = numbers([seed, 100], c[:, 1::4].shape, -3, 6)
    with np.errstate(all="ignore"):
        # Minus the sum of the first eight products, in a fixed order, because the order of BLAS varies.
        for q in range(8):
            c[:, 2::4] -= a[:, q, None] * b[2::4, q]
        shape = c[:, 3::4].shape
        c[:, 3::4] = numbers([seed, 101], shape, -149, 127)
        c[:, 3::4][chosen([seed, 103], shape, 200)] = np.inf
    return a, np.ascontiguousarray(b.T), c


def words(x, low):
    """Return vectors (count, k) of a format as 32-bit words, with two numbers of 16 bits or one of TF32."""
    x = np.ascontiguousarray(x)
    if low == "tf32":
        return x.view(np.uint32)
    half = x.astype(np.float16).view(np.uint16) if low == "fp16" else x.view(np.uint32) >> 16
    return np.ascontiguousarray(half.astype(np.uint16)).view(np.uint32)


def digest(*arrays):
    """Return a hash of the bytes of arrays."""
    found = hashlib.sha256()
    for x in arrays:
        found.update(np.ascontiguousarray(x).tobytes())
    return found.hexdigest()


# ---- the device -----------------------------------------------------------------------------------


def run(instruction, a, b, c, arch):
    """Return the sums after each step on the current device, shape (steps, m, n), on the host."""
    import cupy

    (m, k), n = a.shape, b.shape[1]
    steps = k // instruction.depth
    out = cupy.empty((steps, m, n), np.float32)
    on_device = [cupy.asarray(words(x, instruction.low)) for x in (a, b.T)]
    launch = kernel(SOURCE, "instructions", arch, KIND=instruction.kind)
    grid = n // COLUMNS, m // instruction.rows
    launch(grid, (instruction.threads,), (out, cupy.asarray(c), *on_device, m, n, steps))
    return out.get()


# ---- the hashes -----------------------------------------------------------------------------------

# Rows, columns and steps of the products whose hashes are kept: more than ten million sums.
SHAPE, SEED = (1024, 1280, 8), 20


@cache
def kept_operands(low):
    """Return the operands of the products whose hashes are kept."""
    m, n, steps = SHAPE
    return operands(low, m, n, steps * (8 if low == "tf32" else 16), SEED)
