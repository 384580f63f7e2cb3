"""Tensor-core instructions, and the kernel that emulates them, against NumPy, bit for bit."""

import json

import numpy as np
import pytest
from folders import BENCHMARKS
from switches import skip_on_other_chips

import tcsolve
from tcsolve._arithmetic.block_sums import NAN, multiply_add
from tcsolve._arithmetic.formats import FORMATS, MODELS
from tcsolve._arithmetic.tensor_cores import UNITS
from tcsolve._backends.cpu.lu import HostLU

pytestmark = pytest.mark.gpu
NAMES = [f"{name} {low}" for name in ("mma.sync", "wgmma") for low in ("fp16", "bf16", "tf32")]
LOWS = ("fp16", "bf16", "tf32")


def canonical(x):
    bits = np.ascontiguousarray(x).view(np.uint32).copy()
    bits[np.isnan(x)] = NAN
    return bits


@pytest.mark.parametrize("name", NAMES)
def test_every_sum_of_a_chain_is_that_of_the_emulation(name, cupy, script):
    kit = script("_instructions")
    number = cupy.cuda.Device().compute_capability
    if number not in kit.UNIT_OF:
        skip_on_other_chips(f"no unit emulates compute capability {number}")
    found = [x for x in kit.instructions_of(int(number)) if x.name == name]
    if not found:
        skip_on_other_chips(f"compute capability {number} does not have {name}")
    from tcsolve._backends.cuda.runtime.compiler import target_arch

    (instruction,), unit = found, UNITS[kit.UNIT_OF[number]]
    a, b, c = kit.kept_operands(instruction.low)
    sums = kit.run(instruction, a, b, c, target_arch())
    expected = script("emulator").emulated(instruction, unit, a, b, [c, *sums[:-1]])

    assert sums.size >= 10**7
    np.testing.assert_array_equal(canonical(sums), canonical(expected))
    # The tests of the host compare with the hashes of these sums.
    results = BENCHMARKS / "results" / "emulator.json"
    if results.exists():
        kept = json.loads(results.read_text())["rows"]
        hashes = {
            row["sums"]
            for row in kept
            if row["what"] == "agreement"
            and row["unit"] == unit.name
            and row["instruction"] == name
        }
        assert hashes <= {kit.digest(canonical(sums))}


@pytest.mark.parametrize(
    "unit, low", [(unit, low) for unit in UNITS for low in LOWS if low in UNITS[unit].sums]
)
def test_the_kernel_adds_as_numpy_does(unit, low, cupy, script):
    from tcsolve._backends.cuda.gemm import emulated_sums

    a, b, c = script("_instructions").operands(low, 131, 70, 44, 11)
    how = FORMATS[low], UNITS[unit].sums[low]

    found = emulated_sums.multiply_add(cupy.asarray(a), cupy.asarray(b), *how, cupy.asarray(c))

    np.testing.assert_array_equal(canonical(found.get()), canonical(multiply_add(a, b, *how, c)))
    # Other strides, and no addend.
    turned = emulated_sums.multiply_add(
        cupy.asarray(np.asfortranarray(a)), cupy.asarray(np.asfortranarray(b)), *how
    )
    np.testing.assert_array_equal(canonical(turned.get()), canonical(multiply_add(a, b, *how)))


def test_a_matrix_with_more_rows_than_a_grid_has_blocks_for(cupy):
    rows = 65535 * 32 + 7
    a, b = cupy.arange(rows, dtype=np.float32)[:, None] % 2048, cupy.full((1, 2), 3, np.float32)
    found = tcsolve.gemm(a, b, precision="fp16@a100")
    assert (found == cupy.asarray([3.0, 3.0]) * a).all()


@pytest.mark.parametrize("low", LOWS)
@pytest.mark.parametrize("refine", ["none", "a", "ab", "full"])
def test_gemm_emulates_on_the_device_what_it_emulates_on_the_host(low, refine, cupy):
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((70, 150), (150, 90)))
    how = {"precision": f"{low}@a100", "refine": refine}

    found = tcsolve.gemm(cupy.asarray(a), cupy.asarray(b), **how)

    np.testing.assert_array_equal(found.get(), tcsolve.gemm(a, b, **how))
    stacked = tcsolve.gemm_batched(cupy.asarray(a[None]), cupy.asarray(b), **how)
    np.testing.assert_array_equal(stacked[0].get(), found.get())


@pytest.mark.parametrize("name", ["fp16@v100", "bf16@h200", "tf32@a100", "fp16x3@h200"])
@pytest.mark.parametrize("kind", ["f", "F"])
def test_an_update_is_that_of_the_host(name, kind, cupy, ops):
    rng = np.random.default_rng(4)

    def random(m, n):
        x = rng.uniform(-1, 1, (m, n)) + (1j * rng.uniform(-1, 1, (m, n)) if kind == "F" else 0)
        return (x / 2).astype(kind)

    l, u, c = random(60, 80), random(80, 50), random(60, 50)
    expected, found = c.copy(), cupy.asarray(c)
    HostLU().operand(l, MODELS[name])(expected, u)

    ops.lu.operand(cupy.asarray(l), MODELS[name])(found, cupy.asarray(u))

    np.testing.assert_array_equal(found.get(), expected)


@pytest.mark.parametrize("name", ["fp16@h200", "bf16@each", "fp16@each", "fp16x3@v100"])
def test_a_solve_with_a_model_converges_on_the_device(name, cupy):
    a = tcsolve.matrices.generate("svd_geo", 300, seed=1, cond=50).a
    plan = tcsolve.Plan(name, block=64, fallback=False)

    solution = tcsolve.solve_ex(cupy.asarray(a), cupy.asarray(a @ np.ones(300)), precision=plan)

    assert solution.status is tcsolve.Status.CONVERGED and solution.rungs == (name,)
