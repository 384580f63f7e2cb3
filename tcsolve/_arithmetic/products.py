"""The arithmetic of a product of two matrices, and a bound on its error.

An operand is rounded to a tensor-core format (`hi`).  Its rounding error may be rounded to the same format
(`lo`).  The refinement level says which of the four products of `hi` and `lo` are summed.  No function here
reads an array.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tcsolve._arguments import require_number
from tcsolve._arithmetic.formats import FORMATS
from tcsolve._arithmetic.tensor_cores import UNITS
from tcsolve._errors import InputError

__all__ = [
    "CHAIN",
    "ENGINES",
    "LEVELS",
    "GemmBound",
    "Job",
    "Product",
    "choose_product",
    "common_dtype",
    "error_bound",
    "product_of",
]

ENGINES = ("auto", "naive", "wmma", "wgmma", "cublas")

# The products of each refinement level as (part of a, part of b), the smallest product first.
HI, LO = 0, 1
LEVELS = {
    "none": ((HI, HI),),
    "a": ((LO, HI), (HI, HI)),
    "b": ((HI, LO), (HI, HI)),
    "ab": ((LO, HI), (HI, LO), (HI, HI)),
    "full": ((LO, LO), (LO, HI), (HI, LO), (HI, HI)),
}

# With refinement, a sum on the tensor cores has at most CHAIN terms before it is added to an FP32 register.
# It has at least SHORTEST_CHAIN terms, the depth of one instruction, except at the end of k.  The engine
# 'cublas' has no such limit: it sums all k terms.
CHAIN = 64
SHORTEST_CHAIN = {"fp16": 16, "bf16": 16, "tf32": 8}

# Largest k for which a sum of products of INT8 numbers cannot overflow INT32: 2**14 k < 2**31.
LARGEST_INT8_K = 2**17 - 1

PRECISIONS = ("fp16", "bf16", "tf32", "fp32", "fp64", "int8")
# The default precision of each dtype of operands on a GPU; on the host, that of float32 is 'fp32'.
DEFAULT_PRECISION = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp16",
    "float64": "fp64",
    "int8": "int8",
}
# The precisions that represent each dtype exactly.
EXACT_IN = {
    "float16": {"fp16", "tf32", "fp32", "fp64"},
    "bfloat16": {"bf16", "tf32", "fp32", "fp64"},
    "float32": {"fp32", "fp64"},
    "float64": {"fp64"},
    "int8": {"int8"},
}
# The dtype that the tensor cores read without a conversion, for each precision that has one.
STORED = {"fp16": "float16", "bf16": "bfloat16", "int8": "int8"}


class GemmBound(NamedTuple):
    """A bound on the error of a product, and the arithmetic that it holds for.

    Attributes
    ----------
    bound : float
        ``|C - op(A) op(B)|_ij <= bound ||row i of op(A)||_2 ||column j of op(B)||_2``.
    precision, refine : str
        The arguments of `gemm` that select this arithmetic.
    products : int
        Number of products that are summed: 1, or 2 to 4 with refinement.

    Examples
    --------
    >>> import numpy as np
    >>> from tcsolve import gemm_bound
    >>> a = np.zeros((10, 64), np.float16)
    >>> found = gemm_bound(a, a.T)
    >>> found.precision, found.refine, found.products
    ('fp16', 'none', 1)
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
        The operands are rounded to this format.
    refine : {'none', 'a', 'b', 'ab', 'full'}
        A key of LEVELS.
    dtype : str
        Dtype of the operands: 'float16', 'bfloat16', 'float32', 'float64' or 'int8'.
    unit : str, optional
        A key of UNITS: the sums are those of these tensor cores, bit for bit.
    """

    precision: str
    refine: str
    dtype: str
    unit: str | None = None

    @property
    def name(self):
        """The argument `precision` of `gemm` for this arithmetic."""
        return self.precision if self.unit is None else f"{self.precision}@{self.unit}"

    @property
    def sums(self):
        """The `Sums` of the unit, or None."""
        return None if self.unit is None else UNITS[self.unit].sums[self.precision]

    @property
    def native(self):
        """True if the operands are not rounded below FP32, so that BLAS has this product."""
        return self.precision in ("fp32", "fp64")

    @property
    def direct(self):
        """True if the tensor cores read the operands as they are stored."""
        return STORED.get(self.precision) == self.dtype

    @property
    def exact(self):
        """True if rounding the operands changes nothing."""
        return self.precision in EXACT_IN[self.dtype]

    @property
    def terms(self):
        """The products as (part of a, part of b), the smallest product first."""
        return LEVELS[self.refine]

    @property
    def level(self):
        """The number of the refinement level in the kernels."""
        return list(LEVELS).index(self.refine)

    @property
    def splits(self):
        """(whether a has two parts, whether b has two parts)."""
        return self.refine in ("a", "ab", "full"), self.refine in ("b", "ab", "full")

    @property
    def format(self):
        return FORMATS[self.precision]

    @property
    def accumulator(self):
        """Dtype of the sums.

        A new array for the product has this dtype, unless the operands are float64.  Then the array is
        float64, even if the sums are float32.
        """
        return {"int8": "int32", "fp64": "float64"}.get(self.precision, "float32")

    def swapped(self):
        """Return the same arithmetic for op(B).T op(A).T."""
        refine = {"a": "b", "b": "a"}.get(self.refine, self.refine)
        return replace(self, refine=refine)


class Job(NamedTuple):
    """The product out = alpha a b + beta c.

    Attributes
    ----------
    a, b, c, out : array
        Matrices, or stacks of equal length; none is empty.  c is not read if beta is 0, and may be `out`.
    product : Product
        The arithmetic.
    alpha, beta : number
    engine : str
        One of ENGINES.
    """

    a: Any
    b: Any
    c: Any
    out: Any
    product: Product
    alpha: Any
    beta: Any
    engine: str


def common_dtype(a, b):
    """Return the name of the common dtype of two operands; a and b are names of dtypes."""
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
            f"a has dtype {a} and b has dtype {b}; int8 is multiplied only by int8: convert one"
        )
    return "float64" if "float64" in (a, b) else "float32"


@functools.lru_cache(maxsize=1024, typed=True)
def product_of(operands, precision, refine, rtol, engine):
    """Return the `Product` of two operands, from the arguments of `gemm`; they must be hashable.

    On the host, float32 operands without `precision` and `refine` take 'fp32' unless its bound exceeds rtol.

    Parameters
    ----------
    operands : (str, str, int, bool)
        The dtypes of a and b, the length k of the sums, and whether the host multiplies.
    """
    a, b, k, on_host = operands
    dtype = common_dtype(a, b)
    if on_host and dtype == "float32" and precision is refine is None:
        plain = Product("fp32", "none", dtype)
        if rtol is None or error_bound(plain, k, engine) <= require_rtol(rtol):
            return plain
    return choose_product(dtype, k, precision, refine, rtol, engine)


def require_rtol(rtol):
    """Return rtol as float, or raise an InputError."""
    return require_number("rtol", rtol, "a positive number", least=math.ulp(0))


def choose_product(dtype, k, precision=None, refine=None, rtol=None, engine="auto"):
    """Return the `Product` that the arguments of `gemm` ask for, or raise an InputError."""
    if precision is None:
        precision = DEFAULT_PRECISION[dtype]
    precision, unit = _model(precision)
    if precision not in PRECISIONS:
        raise InputError(
            f"precision is {precision!r}; needs one of {', '.join(map(repr, PRECISIONS))}, or a format and "
            f"the GPU whose tensor cores are emulated, such as 'fp16@h200'; the GPUs are {', '.join(UNITS)}"
        )
    if unit and engine != "auto":
        raise InputError(
            f"engine is {engine!r} with the emulated tensor cores of {unit!r}; use engine='auto'"
        )
    if (precision == "int8") != (dtype == "int8"):
        raise InputError(
            f"precision is {precision!r} for operands of dtype {dtype}; int8 operands have "
            "precision 'int8', and others cannot have it: convert the operands"
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
        return Product(precision, refine if refine in levels else default, dtype, unit)
    if refine is not None:
        raise InputError(f"rtol is {rtol} and refine is {refine!r}; give one of them")
    products = [Product(precision, level, dtype, unit) for level in levels]
    return _cheapest(products, k, require_rtol(rtol), engine)


def _model(precision):
    """Return (format, unit) for a name such as 'fp16@h200', and (precision, None) for any other value."""
    low, _, unit = precision.partition("@") if isinstance(precision, str) else ("", "", "")
    return (low, unit) if unit in UNITS and low in UNITS[unit].sums else (precision, None)


def _levels(precision, dtype, refine):
    """Return the refinement levels that change the result, the cheapest first."""
    if precision in EXACT_IN[dtype]:
        return ["none"]  # the operands have no rounding error to refine
    if precision in ("fp32", "fp64"):
        if refine not in (None, "none"):
            raise InputError(
                f"refine is {refine!r} with precision {precision!r}, which is not a tensor-core "
                "format that can be refined; use precision 'fp16', 'bf16' or 'tf32'"
            )
        return ["none"]
    return list(LEVELS)


def _cheapest(products, k, rtol, engine):
    """Return the first product with a bound of at most rtol."""
    bounds = [error_bound(product, k, engine) for product in products]
    for product, bound in zip(products, bounds, strict=True):
        if bound <= rtol:
            return product
    raise InputError(
        f"rtol is {rtol}, but the bound of {products[0].name!r} at k = {k} is {min(bounds):.1e} at "
        "best; use precision='fp64' on float64 operands, or a larger rtol"
    )


def error_bound(product, k, engine="auto"):
    """Return the number `GemmBound.bound`; `tcsolve.gemm_bound` has its derivation."""
    if product.precision == "int8":
        return 0.0
    if product.native:
        u = product.format.u
        rounding = FORMATS["fp32"].u if product.dtype == "float64" and u > 2.0**-53 else 0.0
        return k * u + 2 * rounding
    parts = _rounding(product, k)
    # Float64 operands are rounded to FP32 first.
    first = 2 * FORMATS["fp32"].u if product.dtype == "float64" else 0.0
    return (parts + first + _summation(product, k, engine)) * (1 + 2.0**-8)


def _rounding(product, k):
    """Return a bound on the relative error from rounding the operands and from dropped products."""
    if product.exact:
        return 0.0
    u = product.format.u
    errors = [u**2 if split else u for split in product.splits]
    dropped = u**2 if product.refine == "ab" else 0.0
    # Underflow loses at most 2**(emin - t), half of the smallest subnormal number; the largest entry is at
    # least 2**13 (for exceptions see `gemm_bound`).
    lost = 2.0 ** (product.format.emin - product.format.t) / 2**13
    return sum(errors) + errors[0] * errors[1] + dropped + 2 * lost * math.sqrt(k)


def _summation(product, k, engine):
    """Return a bound on the relative error of sums of k products; tensor cores truncate."""
    truncation = 2.0**-23
    if product.refine == "none" or engine == "cublas":
        return 1.25 * k * truncation + len(product.terms) * truncation
    shortest = SHORTEST_CHAIN[product.precision]
    return min(1.25 * k, 1.25 * CHAIN + k / shortest / 2) * truncation
