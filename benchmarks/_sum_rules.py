"""Candidate rules of how tensor cores add, to compare with what a device returns.

They are more general than the one rule of `tcsolve._arithmetic.block_sums`, and computed more slowly.
"""

import itertools
from dataclasses import dataclass, replace

import numpy as np

__all__ = ["NAN", "Rule", "Terms", "grid", "one_step", "variations"]

NAN = 0x7FFFFFFF
ROUNDINGS = {"truncate": np.trunc, "nearest": np.rint, "floor": np.floor}
# An exponent below all others.
NOTHING = -4000


@dataclass(frozen=True)
class Rule:
    """How an instruction adds its products to an FP32 number.

    Attributes
    ----------
    block : int
        Number of products of one operation; an instruction has one or more operations.
    fraction : int
        Terms are rounded to multiples of 2**(e - fraction), e the largest exponent of a term.
    terms : {'truncate', 'nearest', 'floor'}
        How they are rounded.
    final : {'truncate', 'nearest'}
        How the sum is rounded to FP32.
    joins : {'inside', 'after'}
        Whether the FP32 number is one of the terms, or is added to their sum.
    least : int
        The smallest e.
    normalized : bool
        Whether the exponent of a product is larger by one if its significands multiply to 2 or more.
    zero : {'plus', 'sign', 'all'}
        The sign of a result that is zero.  'plus': it is +0.  'sign': it has the sign of the sum before
        rounding.  'all': as 'sign', but it is also -0 if all terms are -0, as in IEEE arithmetic.
    counts_zeros : bool
        True: a zero product has an exponent.  This exponent is twice that of the smallest normal number of
        the operands' format.  False: a zero product has none.
    """

    block: int = 16
    fraction: int = 25
    terms: str = "truncate"
    final: str = "truncate"
    joins: str = "inside"
    least: int = -133
    normalized: bool = False
    zero: str = "plus"
    counts_zeros: bool = False

    def __str__(self):
        return (
            f"block {self.block:2}, fraction {self.fraction}, terms {self.terms:8}, final {self.final:8}, "
            f"previous sum joins {self.joins:6}, least e {self.least}"
            + (", normalized" if self.normalized else "")
            + f", zero {self.zero}"
            + (", counts zeros" if self.counts_zeros else "")
        )


def grid(depth):
    """Return rules with all blocks, fractions, roundings and places of the FP32 number.

    An instruction has `depth` products.
    """
    blocks = [block for block in (4, 8, 16) if block <= depth]
    choices = blocks, range(22, 28), ROUNDINGS, ("truncate", "nearest"), ("inside", "after")
    return [Rule(*values) for values in itertools.product(*choices)]


def variations(rule):
    """Return variations of a rule for small numbers and zeros.

    The `normalized` ones also differ for other numbers.
    """
    leasts = (-1000, -149, *range(-136, -123))
    return [
        replace(rule, least=least, normalized=normalized, zero=zero, counts_zeros=counts)
        for least in leasts
        for normalized in (False, True)
        for zero in ("plus", "sign", "all")
        for counts in (False, True)
    ]


@dataclass(frozen=True)
class Terms:
    """The products of one step, shape (m, n, k), in FP64 and exact, and their exponents.

    `least` is the exponent that a product of zero has if it counts: twice that of the smallest normal number.
    """

    products: np.ndarray
    exponents: np.ndarray
    least: int

    @classmethod
    def of(cls, a, b, fmt):
        """Return the terms for a (m, k) and b (k, n)."""
        with np.errstate(all="ignore"):
            products = a[:, None, :].astype(np.float64) * b.T.astype(np.float64)
        of_a, of_b = (_exponents(x, fmt.emin) for x in (a, b.T))
        return cls(products, of_a[:, None, :] + of_b, 2 * fmt.emin)


def _exponents(x, least):
    size = np.where(np.isfinite(x), x, 0)
    return np.where(size == 0, NOTHING, np.maximum(np.frexp(size)[1] - 1, least)).astype(np.int32)


def one_step(rule, terms, c):
    """Return the bits of c plus the products of one instruction, for FP32 c (m, n)."""
    with np.errstate(all="ignore"):
        for q in range(0, terms.products.shape[2], rule.block):
            some = slice(q, q + rule.block)
            exponents = terms.exponents[:, :, some]
            if rule.counts_zeros:
                exponents = np.where(terms.products[:, :, some] == 0, terms.least, exponents)
            c = _operation(rule, terms.products[:, :, some], exponents, c)
    bits = c.view(np.uint32).copy()
    bits[np.isnan(c)] = NAN
    return bits


def _operation(rule, products, exponents, c):
    ieee = products.sum(axis=2) + c
    finite = np.isfinite(ieee)
    products, addend = np.where(np.isfinite(products), products, 0), np.where(np.isfinite(c), c, 0)
    addend = addend.astype(np.float64)
    if rule.normalized:
        exponents = exponents + (np.abs(np.ldexp(products, -exponents)) >= 2)
    top = exponents.max(axis=2)
    if rule.joins == "inside":
        top = np.maximum(top, _exponents(addend, -126))
    top = np.maximum(top, rule.least)
    up, rounding = rule.fraction - top, ROUNDINGS[rule.terms]
    whole = rounding(np.ldexp(products, up[:, :, None])).sum(axis=2)
    if rule.joins == "inside":
        whole += rounding(np.ldexp(addend, up))
    value, rest = np.ldexp(whole, -up), np.zeros(c.shape)
    if rule.joins == "after":
        value, rest = _two_sum(value, addend)
    negative = (np.signbit(products).all(axis=2) & np.signbit(c)) if rule.zero == "all" else False
    result = _to_fp32(rule, value, rest)
    zero = np.where(negative | (value < 0) & (rule.zero != "plus"), np.float32(-0.0), np.float32(0))
    result = np.where(result == 0, zero, result)
    return np.where(finite, result, ieee).astype(np.float32)


def _two_sum(x, y):
    """Return x + y in FP64 and its rounding error."""
    s = x + y
    part = s - x
    return s, (x - (s - part)) + (y - part)


def _to_fp32(rule, value, rest):
    """Return value + rest rounded to FP32."""
    near = value.astype(np.float32)
    if rule.final == "nearest":
        return near
    down = np.nextafter(near, np.float32(0))
    # True where |near| > |value + rest|: where |near| > |value|, or where near is value and rest has the
    # opposite sign.
    large = (np.abs(near) > np.abs(value)) | ((near == value) & (rest * np.sign(value) < 0))
    cut = np.where(large, down, near)
    # The truncated sum of a tensor core is infinite from 2**128 on.
    return np.where(np.abs(value) >= 2.0**128, np.copysign(np.inf, value), cut).astype(np.float32)
