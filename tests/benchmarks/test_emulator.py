"""The search for the rule of tensor cores; the emulation stands in for a device."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from folders import BENCHMARKS, ROOT

from tcsolve._arithmetic.block_sums import multiply_add
from tcsolve._arithmetic.formats import FORMATS, round_to
from tcsolve._arithmetic.tensor_cores import UNITS


class Device:
    """The sums after each of five steps of an instruction, as the tensor cores of a unit would compute them.

    Each step adds its products to the sums of the step before.
    """

    def __init__(self, script, unit, low, monkeypatch):
        self.emulator, self.kit = script("emulator"), script("_instructions")
        sample = 4 * len(self.kit.FAMILIES)
        monkeypatch.setattr(self.emulator, "SAMPLE", (sample, sample))
        monkeypatch.setattr(self.emulator, "SHAPE", (192, 160, 5))
        self.unit, self.instruction = (
            UNITS[unit],
            self.kit.INSTRUCTIONS[("fp16", "bf16", "tf32").index(low)],
        )
        depth = self.instruction.depth
        self.a, self.b, self.c = self.kit.operands(low, 192, 160, 5 * depth, 3)
        found, how = [self.c], (FORMATS[low], self.unit.sums[low])
        for q in range(0, 5 * depth, depth):
            found.append(
                multiply_add(self.a[:, q : q + depth], self.b[q : q + depth], *how, found[-1])
            )
        self.found = np.stack(found[1:])

    @property
    def arrays(self):
        return self.a, self.b, self.c, self.found


@pytest.mark.parametrize("unit, low", [("h200", "fp16"), ("a100", "bf16"), ("h200", "tf32")])
def test_the_rule_that_made_the_sums_comes_first_and_alone(unit, low, script, monkeypatch):
    device = Device(script, unit, low, monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        rows = device.emulator.rules_of(device.instruction, device.arrays, pool)

    sums = device.unit.sums[low]
    first, second = rows[:2]
    assert (
        f"block {sums.block:2}, fraction {sums.fraction}, terms truncate, final truncate"
        in first["rule"]
    )
    assert "joins inside" in first["rule"]
    assert second["agree_normal"] < first["agree_normal"]
    small = [row for row in rows if row["stage"] != first["stage"]]
    exact = [row["rule"] for row in small if row["agree"] == row["outputs"]]
    assert any(f"least e {sums.least}, zero plus" in rule for rule in exact)
    # Only the sample of TF32 has a negative sum of truncated terms that becomes zero in FP32.  In the other
    # samples the rule 'zero sign' agrees, too.
    if low == "tf32":
        assert not any("normalized" in rule or "zero sign" in rule for rule in exact)


def test_sums_of_another_unit_are_counted_and_shown(script, monkeypatch, capsys):
    device = Device(script, "h200", "bf16", monkeypatch)

    same = device.emulator.agreement(device.instruction, UNITS["h200"], *device.arrays)
    other = device.emulator.agreement(device.instruction, UNITS["a100"], *device.arrays)
    device.emulator.show_agreement(other)

    assert same["agree"] == same["outputs"] == 5 * 192 * 160 and not same["examples"]
    assert other["agree"] < 0.99 * other["outputs"]
    assert other["examples"][0]["device"] != other["examples"][0]["emulated"]
    assert other["sums"] == same["sums"] and "are those of a100" in capsys.readouterr().out


@pytest.mark.parametrize("low", ["fp16", "bf16", "tf32"])
def test_operands_are_numbers_of_the_format_in_words(low, script):
    kit = script("_instructions")
    x = kit.lines(low, 200, 32, 7)

    np.testing.assert_array_equal(round_to(x, FORMATS[low]), x)
    assert {"normal", "zero", "Inf", "NaN"} <= {
        script("emulator").kind_of(bits) for bits in x.view(np.uint32).ravel()
    }
    words = kit.words(x, low)
    if low == "tf32":
        assert np.array_equal(words, x.view(np.uint32))
    else:
        assert words.shape == (200, 16)
        halves = words.view(np.uint16)
        back = halves.view(np.float16) if low == "fp16" else halves.astype(np.uint32) << 16
        np.testing.assert_array_equal(back.view(np.float32) if low == "bf16" else back, x)


def test_operands_are_the_same_with_every_version(script):
    kit = script("_instructions")
    arrays = [kit.operands(low, 30, 32, 16, 5) for low in ("fp16", "bf16", "tf32")]
    assert kit.digest(*(x for three in arrays for x in three))[:16] == "c1b25ad6dfb5a503"


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_every_instruction_compiles(arch, nvrtc, script):
    kit, number = script("_instructions"), int(arch.removeprefix("sm_").rstrip("a"))
    for instruction in kit.instructions_of(number):
        assert script("_kernels").compile_cubin(kit.SOURCE, arch, KIND=instruction.kind)
    assert len(kit.instructions_of(number)) == (6 if number == 90 else 3)


def test_the_speeds_of_the_page_are_those_of_the_results():
    text = (ROOT / "docs/theory/models.md").read_text().replace("\n", " ")
    results = (f"{BENCHMARKS}/results/{name}.json" for name in ("emulator", "emulator_host"))
    rows = [row for path in results for row in json.loads(Path(path).read_text())["rows"]]
    speeds = {}
    for row in rows:
        if row["what"] == "speed":
            library, _, low = row["which"].partition("@")[0].partition(" ")
            speeds.setdefault((library, low), []).append(row["gflops"])
    host = [v for (library, _), values in speeds.items() if library == "NumPy" for v in values]
    assert f"NumPy emulates {min(host):.1f} to {max(host):.1f} GFLOP/s" in text
    half, tf32 = (round(speeds["CuPy", low][0], -2) for low in ("fp16", "tf32"))
    assert f"an H200 {half:.0f} GFLOP/s for FP16 and {tf32:.0f} GFLOP/s for TF32" in text
