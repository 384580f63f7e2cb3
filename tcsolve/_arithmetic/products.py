"""What a product of two matrices is made of, and how large its error can be.

Operands are rounded to a tensor-core format (`hi`); what that loses may be rounded again (`lo`), and a
refinement level says which of the four products of parts are summed.  Pure functions of numbers.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from tcsolve._arguments import require_number
from tcsolve._arithmetic.formats import FORMATS
from tcsolve._errors import InputError

__all__ = [
    "CHAIN",
    "ENGINES",
    "LEVELS",
    "GemmBound",
    "Product",
    "choose_product",
    "common_dtype",
    "error_bound",
]

ENGINES = ("auto", "naive", "wmma", "wgmma", "cublas")

# The parts multiplied at each refinement level, smallest product first.
HI, LO = 0, 1
LEVELS = {
    "none": ((HI, HI),),
    "a": ((LO, HI), (HI, HI)),
    "b": ((HI, LO), (HI, HI)),
    "ab": ((LO, HI), (HI, LO), (HI, HI)),
    "full": ((LO, LO), (LO, HI), (HI, LO), (HI, HI)),
}

# With refinement, sums on the tensor cores are at most CHAIN long before they are added in FP32 registers,
# and never shorter than one slice of k (but for its end).
CHAIN = 64
SHORTEST_CHAIN = {"fp16": 16, "bf16": 16, "tf32": 8}

# Largest k whose products of INT8 numbers cannot overflow INT32: 2**14 k < 2**31.
LARGEST_INT8_K = 2**17 - 1

PRECISIONS = ("fp16", "bf16", "tf32", "fp32", "fp64", "int8")
# What each dtype is multiplied in unless the caller says so, and in which formats it is exact.
DEFAULT_PRECISION = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp16",
    "float64": "fp64",
    "int8": "int8",
}
EXACT_IN = {
    "float16": {"fp16", "tf32", "fp32", "fp64"},
    "bfloat16": {"bf16", "tf32", "fp32", "fp64"},
    "float32": {"fp32", "fp64"},
    "float64": {"fp64"},
    "int8": {"int8"},
}
STORED = {"fp16": "float16", "bf16": "bfloat16", "int8": "int8"}


class GemmBound(NamedTuple):
    """A bound on the error of a product, and the arithmetic it holds for.

    Attributes
    ----------
    bound : float
        ``|C - op(A) op(B)|_ij <= bound ||row i of op(A)||_2 ||column j of op(B)||_2``.
    precision, refine : str
        As `gemm` takes them.
    products : int
        Products on the tensor cores: 1 to 4.
    """

    bound: float
    precision: str
    refine: str
    products: int


@dataclass(frozen=True)
class Product:
    """The arithmetic of op(A) op(B).

    Attributes
    ----------
    precision : {'fp16', 'bf16', 'tf32', 'fp32', 'fp64', 'int8'}
        What the operands are rounded to.
    refine : {'none', 'a', 'b', 'ab', 'full'}
    dtype : str
        Dtype of the operands: 'float16', 'bfloat16', 'float32', 'float64' or 'int8'.
    """

    precision: str
    refine: str
    dtype: str

    @property
    def native(self):
        """True if the operands are not rounded below FP32: BLAS has this product."""
        return self.precision in ("fp32", "fp64")

    @property
    def direct(self):
        """True if the operands go to the tensor cores as they are stored."""
        return STORED.get(self.precision) == self.dtype

    @property
    def exact(self):
        """True if rounding the operands changes nothing."""
        return self.precision in EXACT_IN[self.dtype]

    @property
    def terms(self):
        """The pairs of parts (of a, of b) that are multiplied, smallest product first."""
        return LEVELS[self.refine]

    @property
    def level(self):
        """The number of the refinement level in the kernels."""
        return list(LEVELS).index(self.refine)

    @property
    def splits(self):
        """Which operands have two parts: (a, b)."""
        return self.refine in ("a", "ab", "full"), self.refine in ("b", "ab", "full")

    @property
    def format(self):
        return FORMATS[self.precision]

    @property
    def accumulator(self):
        """Dtype of sums, and of the result unless the caller says otherwise."""
        return {"int8": "int32", "fp64": "float64"}.get(self.precision, "float32")

    def swapped(self):
        """Return the same arithmetic for op(B).T op(A).T."""
        refine = {"a": "b", "b": "a"}.get(self.refine, self.refine)
        return Product(self.precision, refine, self.dtype)


def common_dtype(a, b):
    """Return the name of the dtype two operands are multiplied in; a and b are names of dtypes."""
    for name, given in (("a", a), ("b", b)):
        if given not in DEFAULT_PRECISION:
            remedy = f"convert with {name}.astype('float64')"
            if given.startswith("complex"):
                remedy = "multiply real and imaginary parts"
            raise InputError(
                f"{name} has dtype {given}; gemm multiplies {', '.join(DEFAULT_PRECISION)}: {remedy}"
            )
    if a == b:
        return a
    if "int8" in (a, b):
        raise InputError(
            f"a has dtype {a} and b has dtype {b}; int8 is multiplied by int8 alone: convert one"
        )
    return "float64" if "float64" in (a, b) else "float32"


def choose_product(dtype, k, precision=None, refine=None, rtol=None, engine="auto"):
    """Return the `Product` that the arguments of `gemm` ask for, or raise an InputError."""
    if precision is None:
        precision = DEFAULT_PRECISION[dtype]
    if precision not in PRECISIONS:
        raise InputError(
            f"precision is {precision!r}; needs one of {', '.join(map(repr, PRECISIONS))}"
        )
    if (precision == "int8") != (dtype == "int8"):
        raise InputError(
            f"precision is {precision!r} for operands of dtype {dtype}; int8 operands have "
            "precision 'int8', and no others have: convert the operands"
        )
    if precision == "int8" and k > LARGEST_INT8_K:
        raise InputError(
            f"k is {k}; sums of int8 products stay below 2**31 up to k = {LARGEST_INT8_K}: "
            "add the products of slices of k in int64"
        )
    if refine is not None and refine not in tuple(LEVELS):
        raise InputError(f"refine is {refine!r}; needs one of {', '.join(map(repr, LEVELS))}")
    levels = _levels(precision, dtype, refine)
    if rtol is None:
        default = levels[0] if len(levels) == 1 else "ab"
        return Product(precision, refine if refine in levels else default, dtype)
    return _cheapest(levels, dtype, k, precision, refine, rtol, engine)


def _levels(precision, dtype, refine):
    """Return the refinement levels that make a difference, cheapest first."""
    if precision in EXACT_IN[dtype]:
        return ["none"]  # there is no residual
    if precision in ("fp32", "fp64"):
        if refine not in (None, "none"):
            raise InputError(
                f"refine is {refine!r} with precision {precision!r}, which is not a tensor-core "
                "format that can be refined; use precision 'fp16', 'bf16' or 'tf32'"
            )
        return ["none"]
    return list(LEVELS)


def _cheapest(levels, dtype, k, precision, refine, rtol, engine):
    """Return the product with the fewest terms whose bound is at most rtol."""
    if refine is not None:
        raise InputError(f"rtol is {rtol} and refine is {refine!r}; give one of them")
    rtol = require_number("rtol", rtol, "a positive number", least=math.ulp(0))
    found = [Product(precision, level, dtype) for level in levels]
    bounds = [error_bound(product, k, engine) for product in found]
    for product, bound in zip(found, bounds, strict=True):
        if bound <= rtol:
            return product
    raise InputError(
        f"rtol is {rtol}, but the bound of {precision!r} at k = {k} is {min(bounds):.1e} at best; "
        "use precision='fp64' on float64 operands, or a larger rtol"
    )


def error_bound(product, k, engine="auto"):
    """Return the factor of `GemmBound`; see `tcsolve.gemm_bound` for its derivation."""
    if product.precision == "int8":
        return 0.0
    if product.native:
        u = product.format.u
        rounding = FORMATS["fp32"].u if product.dtype == "float64" and u > 2.0**-53 else 0.0
        return k * u + 2 * rounding
    parts = _rounding(product, k)
    # The dtype float64 is rounded to FP32 before anything else.
    first = 2 * FORMATS["fp32"].u if product.dtype == "float64" else 0.0
    return (parts + first + _summation(product, k, engine)) * (1 + 2.0**-8)


def _rounding(product, k):
    """Return what rounding the operands, and leaving out a product of parts, can cost."""
    if product.exact:
        return 0.0
    u = product.format.u
    errors = [u**2 if split else u for split in product.splits]
    dropped = u**2 if product.refine == "ab" else 0.0
    # A part below the smallest subnormal number, 2**(emin - t + 1), of entries scaled to 2**13.
    lost = 2.0 ** (product.format.emin - product.format.t) / 2**13
    return sum(errors) + errors[0] * errors[1] + dropped + 2 * lost * math.sqrt(k)


def _summation(product, k, engine):
    """Return what sums of k products can cost, in tensor cores that truncate."""
    truncation = 2.0**-23
    if product.refine == "none" or engine == "cublas":
        return 1.25 * k * truncation + len(product.terms) * truncation
    shortest = SHORTEST_CHAIN[product.precision]
    return min(1.25 * k, 1.25 * CHAIN + k / shortest / 2) * truncation
