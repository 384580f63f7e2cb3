"""The emulation against hashes of the sums of real tensor cores (benchmarks/emulator.py)."""

import json

import numpy as np
import pytest
from folders import BENCHMARKS
from switches import skip_or_fail

from tcsolve._arithmetic.block_sums import NAN, multiply_add
from tcsolve._arithmetic.formats import FORMATS
from tcsolve._arithmetic.tensor_cores import UNITS

RESULTS = BENCHMARKS / "results" / "emulator.json"


def rows():
    """Return the rows of the comparison of each instruction with the device."""
    if not RESULTS.exists():
        skip_or_fail(
            f"{RESULTS.name} is not made yet: run benchmarks/emulator.py", "TCSOLVE_REQUIRE_RESULTS"
        )
    found = json.loads(RESULTS.read_text())["rows"]
    return [row for row in found if row["what"] == "agreement"]


@pytest.mark.parametrize("low", ["fp16", "bf16", "tf32"])
def test_the_sums_are_those_of_the_device(low, script):
    kit = script("_instructions")
    kept = [row for row in rows() if row["instruction"].endswith(low)]
    a, b, c = kit.kept_operands(low)
    unit, depth, sums = UNITS[kept[0]["unit"]], 8 if low == "tf32" else 16, []
    for q in range(0, a.shape[1], depth):
        before = sums[-1] if sums else c
        how = FORMATS[low], unit.sums[low], before
        sums.append(multiply_add(a[:, q : q + depth], b[q : q + depth], *how))
    found = np.stack(sums)
    bits = found.view(np.uint32)
    bits[np.isnan(found)] = NAN

    assert {row["operands"] for row in kept} == {kit.digest(a, b, c)}
    assert {row["sums"] for row in kept} == {kit.digest(bits)}
    assert all(row["outputs"] == bits.size >= 10**7 for row in kept)


def test_a_unit_that_was_compared_says_so():
    compared = {row["unit"] for row in rows() if row["agree"] == row["outputs"]}
    assert compared == {unit.name for unit in UNITS.values() if unit.source == "device"}
