"""Floating-point formats, and the arithmetics of the trailing update.

A `Format` has the precision and the range of a number format.  An `Update` is an arithmetic of the trailing
update C -= L U: the format of the operands and the number of products.  Only the operands L and U are
rounded.  The matrix, the panel and the sums keep the dtype `Update.storage`.  An `Update` with `rounds_each`
rounds the result of every operation instead.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tcsolve._arithmetic.tensor_cores import UNITS, Sums

__all__ = [
    "EACH",
    "FORMATS",
    "MODELS",
    "PREFIX",
    "UPDATES",
    "Format",
    "Update",
    "inverses_serve",
    "round_in",
    "round_to",
    "split",
    "update_named",
]

# The first letter of BLAS and LAPACK routine names, by the character of the dtype.
PREFIX = {"f": "s", "d": "d", "F": "c", "D": "z"}

# Operands are scaled so that their largest entry is near 2**14 before they are rounded.  The largest FP16
# number, 65504, is about four times that.  With a lower scale, more small entries would fall below 2**-24,
# the smallest positive FP16 number.
TOP_EXPONENT = 14

# A solve with LU or Cholesky factors uses the inverses of their diagonal blocks D (invert_diagonal_blocks.cu)
# only if the condition number || |D^-1| |D| || of each D is at most this, by the character of the dtype.  The
# error of such a solve is proportional to this condition number, and refinement must still contract.
INVERSE_CONDITION = {"f": 1e4, "d": 1e8}


def inverses_serve(condition, char):
    """Tell whether inverted diagonal blocks are accurate enough; `condition` is that of the worst block."""
    return condition <= INVERSE_CONDITION[char]  # False for NaN


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with `t` significant bits, the implicit leading bit included."""

    name: str
    t: int
    emin: int
    emax: int

    @property
    def u(self):
        """Unit roundoff of round to nearest, 2**-t."""
        return 2.0**-self.t

    @property
    def xmax(self):
        """Largest finite number."""
        return (2.0 - 2.0 ** (1 - self.t)) * 2.0**self.emax


FORMATS = {
    f.name: f
    for f in (
        Format("fp16", 11, -14, 15),
        Format("bf16", 8, -126, 127),
        Format("tf32", 11, -126, 127),
        Format("fp32", 24, -126, 127),
        Format("fp64", 53, -1022, 1023),
    )
}


@dataclass(frozen=True)
class Update:
    """How the update C -= L U is computed.

    Attributes
    ----------
    name : str
    format : Format
        The operands are rounded to this format.
    products : int
        1, or 3 if both operands are split into a high and a low part.  The product of the two low parts
        is dropped.
    storage : str
        'float32' or 'float64': the dtype of the matrix, the panel and the sums.  For complex input it is
        the complex dtype of the same precision.
    sums : Sums or None
        How the tensor cores of a GPU add, if they are emulated bit for bit.  Otherwise the sums are those of
        the device that computes them.
    rounds_each : bool
        Whether the result of every operation of the LU is rounded to the format.
    """

    name: str
    format: Format
    products: int
    storage: str
    sums: Sums | None = None
    rounds_each: bool = False

    @property
    def u(self):
        """Roundoff of the factors that this update gives, to first order."""
        storage = FORMATS["fp32" if self.storage == "float32" else "fp64"].u
        return max(storage, (2 * self.format.u) ** (1 if self.products == 1 else 2))

    @property
    def is_model(self):
        """True if only an emulation has this arithmetic."""
        return self.sums is not None or self.rounds_each

    @property
    def native(self):
        """True if LAPACK or cuSOLVER has this LU, because no operand is rounded below `storage`."""
        return self.format.name in ("fp32", "fp64")


UPDATES = {
    up.name: up
    for up in (
        Update("fp16", FORMATS["fp16"], 1, "float32"),
        Update("bf16", FORMATS["bf16"], 1, "float32"),
        Update("tf32", FORMATS["tf32"], 1, "float32"),
        Update("fp16x3", FORMATS["fp16"], 3, "float32"),
        Update("fp32", FORMATS["fp32"], 1, "float32"),
        Update("fp64", FORMATS["fp64"], 1, "float64"),
    )
}

# The text after the '@' in the name of an arithmetic that rounds the result of every operation.
EACH = "each"


def _models():
    """Yield the emulated arithmetics: those with the sums of each GPU, then those that round every result."""
    for unit in UNITS.values():
        for low, sums in unit.sums.items():
            yield Update(f"{low}@{unit.name}", FORMATS[low], 1, "float32", sums)
        yield Update(f"fp16x3@{unit.name}", FORMATS["fp16"], 3, "float32", unit.sums["fp16"])
    for low in ("fp16", "bf16", "tf32"):
        yield Update(f"{low}@{EACH}", FORMATS[low], 1, "float32", rounds_each=True)


# The arithmetics that only an emulation has; `UPDATES` are those that a device may have itself.
MODELS = {up.name: up for up in _models()}


def update_named(name):
    """Return the `Update` of this name, from `UPDATES` or `MODELS`."""
    return UPDATES.get(name) or MODELS[name]


def round_to(x, fmt):
    """Round a real float32 or float64 NumPy array to `fmt`, to nearest even, keeping its dtype.

    Subnormal numbers of the format are kept, and values that round beyond `fmt.xmax` become infinite.  The
    kernels round operands in the same way.  For BF16 and TF32, a float64 x is rounded to FP32 first.
    """
    if fmt.name == "fp16":
        with np.errstate(over="ignore", under="ignore"):
            return x.astype(np.float16).astype(x.dtype)
    if fmt.name == "bf16":
        return x.astype(ml_dtypes.bfloat16).astype(x.dtype)
    if fmt.name == "tf32":
        return round_in(np, x.astype(np.float32), fmt).astype(x.dtype).reshape(x.shape)
    return x if fmt.name == "fp64" else x.astype(np.float32).astype(x.dtype)


def round_in(xp, x, fmt):
    """Round x, float32 or complex64, as `round_to`; `xp` is NumPy or CuPy.

    The format is FP16, BF16 or TF32.  Of a complex number both parts are rounded.
    """
    if x.dtype.kind == "c":
        return round_in(xp, xp.ascontiguousarray(x).view(xp.float32), fmt).view(x.dtype)
    if fmt.name == "fp16":
        return x.astype(xp.float16).astype(xp.float32)
    # These formats have the exponents of FP32: add half a unit of the last bit, then truncate.
    drop = FORMATS["fp32"].t - fmt.t
    half, kept = np.uint32((1 << (drop - 1)) - 1), np.uint32(2**32 - (1 << drop))
    bits = xp.ascontiguousarray(x).view(xp.uint32)
    odd = (bits >> np.uint32(drop)) & np.uint32(1)
    return xp.where(xp.isfinite(x), ((bits + half + odd) & kept).view(xp.float32), x)


def split(x, fmt):
    """Split x into hi + lo, both in `fmt`; the rounding error of lo is dropped.

    The caller scales x so that its largest entry is near 2**TOP_EXPONENT.  Then lo needs no scale of its
    own.  For FP16, |x - hi - lo| is at most 2**-22 |x|, or 2**-25 if that is larger, which is 2**-39 of the
    largest entry.
    """
    hi = round_to(x, fmt)
    return hi, round_to(x - hi, fmt)
