"""The emulated sums of tensor cores, compared with exact rational arithmetic; which bits they keep."""

import math
from fractions import Fraction

import numpy as np
import pytest

from tcsolve._arithmetic.block_sums import NAN, multiply_add
from tcsolve._arithmetic.formats import FORMATS, round_to
from tcsolve._arithmetic.tensor_cores import UNITS

CASES = [(unit.name, low) for unit in UNITS.values() for low in unit.sums]
# Ranges of the exponents of random operands, in the formats with the range of FP16 and of FP32.
SPREADS = {"fp16": (0, 3, 7, 11), "wide": (0, 9, 35, 63)}
ONES = np.ones((16, 1), np.float32)


def power(e):
    return Fraction(2) ** e


def parts(x, least):
    """Return (significand, exponent) of a number; a subnormal one has the exponent `least`."""
    exponent = max(math.frexp(x)[1] - 1, least)
    return Fraction(x) / power(exponent), exponent


def added(terms, special, sums):
    """Return one operation of a tensor core, in exact arithmetic."""
    if not all(map(math.isfinite, special)):
        return (
            math.fsum(x for x in special if not math.isfinite(x)) if opposite(special) else math.nan
        )
    top = max([sums.least, *(e for _, e in terms)])
    whole = sum(math.trunc(s * power(sums.fraction + e - top)) for s, e in terms)
    value = whole * power(top - sums.fraction)
    if value == 0:
        return 0.0
    exponent = max(math.frexp(value)[1] - 1, -126)
    unit = power(exponent - 23)
    size = math.trunc(abs(value) / unit) * unit
    found = float(size) if size < power(128) else math.inf
    return math.copysign(found, value) if found else 0.0


def opposite(special):
    """Tell whether the sum of these is an Inf, not a NaN."""
    return not any(map(math.isnan, special)) and len({x for x in special if math.isinf(x)}) == 1


def expected(a, b, fmt, sums, c):
    """Return c + a b for two vectors in exact arithmetic."""
    c = float(c)
    for q in range(0, len(a), sums.block):
        pairs = [(float(x), float(y)) for x, y in zip(a[q:][: sums.block], b[q:], strict=False)]
        terms = [parts(c, -126)] if c and math.isfinite(c) else []
        for x, y in pairs:
            if x and y and math.isfinite(x) and math.isfinite(y):
                (s, e), (t, f) = parts(x, fmt.emin), parts(y, fmt.emin)
                terms.append((s * t, e + f))
        c = added(terms, [x * y for x, y in pairs] + [c], sums)
    return c


def operands(low, seed, m=4, k=35, n=5):
    """Return a, b, c: mixed magnitudes, zeros, subnormal numbers, cancellation; from seed 8 also Inf, NaN."""
    rng = np.random.default_rng(seed)
    spread = SPREADS.get(low, SPREADS["wide"])[seed % 4]

    def random(shape, low_end):
        exponent = rng.integers(-spread, spread + 1, shape) - low_end
        x = np.ldexp(rng.standard_normal(shape), exponent).astype(np.float32)
        x[rng.random(shape) < 0.1] = 0
        if seed >= 8:
            some = rng.random(shape) < 0.02
            x[some] = rng.choice(np.array([np.inf, -np.inf, np.nan], np.float32), some.sum())
        return round_to(x, FORMATS[low])

    down = (0, 0, 9 if low == "fp16" else 70)[seed % 3]
    a, b = random((m, k), down), random((k, n), down)
    c = np.ldexp(rng.standard_normal((m, n)), rng.integers(-140, 20, (m, n))).astype(np.float32)
    if seed % 2:  # the sum cancels
        with np.errstate(all="ignore"):
            c = -(a.astype(float) @ b.astype(float)).astype(np.float32)
    return a, b, c


@pytest.mark.parametrize("unit, low", CASES)
@pytest.mark.parametrize("seed", range(12))
def test_sums_are_those_of_exact_arithmetic(unit, low, seed):
    (a, b, c), fmt, sums = operands(low, seed), FORMATS[low], UNITS[unit].sums[low]

    found = multiply_add(a, b, fmt, sums, c)

    exact = np.array([[expected(x, y, fmt, sums, z) for y, z in zip(b.T, row, strict=True)]
                      for x, row in zip(a, c, strict=True)], np.float32)  # fmt: skip
    bits = exact.view(np.uint32)
    bits[np.isnan(exact)] = NAN
    np.testing.assert_array_equal(found.view(np.uint32), bits)


def small(unit, terms, c):
    """Return c plus products of 2**-e, for the e of `terms`."""
    a = np.array([[2.0**-e for e in terms]], np.float32)
    sums = UNITS[unit].sums["fp16"]
    return multiply_add(a, ONES[: len(terms)], FORMATS["fp16"], sums, np.float32([[c]]))[0, 0]


def test_a_generation_keeps_more_bits_than_the_one_before():
    """Four products of 2**-24 are added to 1, as in Fasi et al., PeerJ Comput. Sci. 7 (2021), e330."""
    assert small("v100", [24] * 4, 1.0) == 1.0
    assert small("a100", [24] * 4, 1.0) == 1.0 + 2.0**-22
    # 2**-24 is the smallest number of FP16, so a product of 2**-25 is made of the factors 2**-13 and 2**-12.
    a, b = np.full((1, 8), 2.0**-13, np.float32), np.full((8, 1), 2.0**-12, np.float32)
    one = np.ones((1, 1), np.float32)
    for unit, kept in (("a100", 1.0), ("h200", 1.0 + 2.0**-22)):
        sums = UNITS[unit].sums["fp16"]
        assert multiply_add(a, b, FORMATS["fp16"], sums, one)[0, 0] == kept


def test_sums_are_truncated_not_rounded():
    assert small("h200", [24, 25 - 1], 1.0) == 1.0 + 2.0**-23
    assert small("h200", [24], 1.0) == 1.0
    assert small("h200", [24], -1.0) == -(1.0 - 2.0**-24)


def test_a_product_that_is_small_beside_the_others_is_lost_before_they_cancel():
    a = np.array([[2.0**12, -(2.0**12), 2.0**-14]], np.float32)
    sums = UNITS["h200"].sums["fp16"]
    assert multiply_add(a, ONES[:3], FORMATS["fp16"], sums)[0, 0] == 0.0
    a[0, :2] /= 2
    assert multiply_add(a, ONES[:3], FORMATS["fp16"], sums)[0, 0] == 2.0**-14


def test_a_chain_goes_on_from_the_sum_of_its_beginning():
    a, b, c = operands("bf16", 2, k=64)
    how = FORMATS["bf16"], UNITS["h200"].sums["bf16"]
    first = multiply_add(a[:, :32], b[:32], *how, c)

    np.testing.assert_array_equal(
        multiply_add(a[:, 32:], b[32:], *how, first), multiply_add(a, b, *how, c)
    )


def test_an_entry_does_not_depend_on_the_others():
    a, b, _ = operands("fp16", 1, m=130, k=20, n=1100)
    how = FORMATS["fp16"], UNITS["a100"].sums["fp16"]
    whole = multiply_add(a, b, *how)

    for i, j in ((0, 0), (129, 1099), (64, 1023), (63, 1024)):
        assert multiply_add(a[i : i + 1], b[:, j : j + 1], *how)[0, 0] == whole[i, j]


def test_operands_and_addend_are_not_changed():
    a, b, c = operands("tf32", 9)
    kept = [x.copy() for x in (a, b, c)]
    multiply_add(a, b, FORMATS["tf32"], UNITS["h200"].sums["tf32"], c)
    for x, before in zip((a, b, c), kept, strict=True):
        np.testing.assert_array_equal(x, before)


def test_every_unit_says_where_its_data_come_from():
    assert {unit.source for unit in UNITS.values()} <= {"device", "literature"}
    assert all(name == unit.name for name, unit in UNITS.items())
