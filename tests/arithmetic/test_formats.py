"""Rounding to the formats, compared with NumPy's dtypes of these formats and with the definition."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcsolve._arithmetic.formats import FORMATS, MODELS, TOP_EXPONENT, UPDATES, round_to, split
from tcsolve._plan import MODEL_NAMES, UPDATE_NAMES

TYPES = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32, "fp64": np.float64}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan]

singles = st.floats(width=32, allow_nan=False, allow_infinity=False)


def by_definition(x, fmt):
    """Round one number to nearest, ties to even, from the bits and exponents of the format."""
    if not math.isfinite(x) or x == 0:
        return x
    exponent = max(math.frexp(x)[1] - 1, fmt.emin) - (fmt.t - 1)
    rounded = math.ldexp(round(math.ldexp(x, -exponent)), exponent)  # round() is ties to even
    return math.copysign(math.inf, x) if abs(rounded) > fmt.xmax else rounded


def interesting(fmt):
    """Return numbers near all that can go wrong: ties, the ends of the range, subnormal numbers."""
    spacing = 2.0 ** (1 - fmt.t)
    near = [1, 1 + spacing / 2, 1 + 1.5 * spacing, 1 + spacing / 2 + 2.0**-22, 2 - spacing / 2]
    tiny = 2.0**fmt.emin * np.array(
        [1, 0.5, spacing, spacing / 2, spacing * 1.5, spacing / 4, 0.999]
    )
    top = fmt.xmax * np.array([1, 1 + spacing / 4, 1 + spacing / 3, 1 - spacing / 4])
    values = np.concatenate([near, tiny, top, SPECIAL])
    return np.concatenate([values, -values])


@pytest.mark.parametrize("name", ["fp16", "bf16", "tf32", "fp32"])
def test_rounding_is_to_nearest_even_at_ties_ends_and_subnormals(name):
    fmt = FORMATS[name]
    with np.errstate(over="ignore", under="ignore"):
        x = interesting(fmt).astype(np.float32)

    result = round_to(x, fmt)

    assert result.dtype == np.float32
    expected = np.array([by_definition(float(v), fmt) for v in x], np.float32)
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(np.signbit(result[~np.isnan(x)]), np.signbit(x[~np.isnan(x)]))


@pytest.mark.parametrize("name", ["fp16", "bf16", "tf32"])
@given(x=singles)
def test_rounding_follows_the_definition(name, x):
    fmt = FORMATS[name]
    result = float(round_to(np.array([x], np.float32), fmt)[0])
    assert result == by_definition(x, fmt)


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32", "fp64"])
def test_rounding_is_the_conversion_of_the_type(name):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(10000) * 2.0 ** rng.integers(-40, 30, 10000)
    x = x.astype(np.float32 if name != "fp64" else np.float64)
    with np.errstate(over="ignore", under="ignore"):
        expected = x.astype(TYPES[name]).astype(x.dtype)

    np.testing.assert_array_equal(round_to(x, FORMATS[name]), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_rounding_twice_is_rounding_once(name):
    x = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    once = round_to(x, FORMATS[name])
    np.testing.assert_array_equal(round_to(once, FORMATS[name]), once)
    assert (np.abs(once - x) <= FORMATS[name].u * np.abs(x)).all()


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32", "fp64"])
def test_a_format_has_the_constants_of_its_type(name):
    fmt, info = FORMATS[name], ml_dtypes.finfo(TYPES[name])
    assert fmt.xmax == float(info.max)
    assert 2.0**fmt.emin == float(info.smallest_normal)
    assert fmt.u == float(info.eps) / 2


def test_tf32_has_the_range_of_fp32_and_the_bits_of_fp16():
    tf32 = FORMATS["tf32"]
    assert (tf32.t, tf32.emin, tf32.emax) == (11, -126, 127)
    assert len({fmt.name for fmt in FORMATS.values()}) == len(FORMATS) == 5


@given(x=st.floats(-(2.0**TOP_EXPONENT), 2.0**TOP_EXPONENT, width=32))
def test_what_two_halves_of_fp16_lose_is_below_2_to_minus_22_of_x_or_2_to_minus_25(x):
    hi, lo = split(np.array([x], np.float32), FORMATS["fp16"])

    assert np.isfinite(hi[0]) and np.isfinite(lo[0])
    for part in (hi, lo):
        np.testing.assert_array_equal(round_to(part, FORMATS["fp16"]), part)
    lost = abs(float(x) - float(hi[0]) - float(lo[0]))
    assert lost <= max(2.0**-22 * abs(x), 2.0**-25)


def test_the_roundoff_of_factors_orders_the_updates():
    u = {name: how.u for name, how in UPDATES.items()}
    assert u["bf16"] > u["fp16"] == u["tf32"] > u["fp16x3"] > u["fp64"]
    assert 2.0**-24 <= u["fp32"] <= 2.0**-23 and 2.0**-53 <= u["fp64"] <= 2.0**-52
    assert u["fp32"] <= u["fp16x3"] <= 2.0**-20


def test_only_whole_storage_formats_are_native():
    assert {name for name, how in UPDATES.items() if how.native} == {"fp32", "fp64"}


def test_every_update_that_a_plan_can_name_is_described():
    assert tuple(UPDATES) == UPDATE_NAMES
    assert all(how.name == name for name, how in UPDATES.items())
    assert tuple(MODELS) == MODEL_NAMES and not {*MODELS} & {*UPDATES}
    assert all(how.name == name and how.is_model for name, how in MODELS.items())
    assert not any(how.is_model or how.sums for how in UPDATES.values())
