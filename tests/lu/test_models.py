"""LU with emulated sums, and LU in which every operation is rounded."""

import ml_dtypes
import numpy as np
import pytest

import tcsolve
from tcsolve import Plan, Status, matrices
from tcsolve._arithmetic.block_sums import multiply_add
from tcsolve._arithmetic.formats import FORMATS, MODELS, round_to, split
from tcsolve._backends.cpu.lu import HostLU
from tcsolve._backends.cpu.ops import NumpyOps
from tcsolve._lu.rounded_elimination import factor_rounded

TYPES = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}
SUMS = [name for name, how in MODELS.items() if how.sums]
TOP = np.float32(2.0**14)


def numbers(m, n, seed=0):
    """Return FP32 numbers, the largest of which is 1."""
    x = np.random.default_rng(seed).uniform(-1, 1, (m, n)).astype(np.float32)
    x[0, 0] = 1
    return x


# ---- the update -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in SUMS if MODELS[name].products == 1])
def test_an_update_adds_as_the_unit_does(name):
    how, l, u, c = MODELS[name], numbers(30, 70), numbers(70, 25, 1), numbers(30, 25, 2)
    rounded = (round_to(TOP * x, how.format) for x in (l, u))
    product = multiply_add(*rounded, how.format, how.sums)

    HostLU().operand(l, how)(c, u)

    np.testing.assert_array_equal(c, numbers(30, 25, 2) - product * np.float32(2.0**-28))


def test_three_products_have_short_sums_with_the_small_ones_first():
    how, l, u, c = MODELS["fp16x3@h200"], numbers(9, 150), numbers(150, 8, 1), numbers(9, 8, 2)
    (l_hi, l_lo), (u_hi, u_lo) = (split(TOP * x, how.format) for x in (l, u))
    total = np.zeros((9, 8), np.float32)
    for q in range(0, 150, 64):
        part = None
        for x, y in ((l_lo, u_hi), (l_hi, u_lo), (l_hi, u_hi)):
            part = multiply_add(x[:, q : q + 64], y[q : q + 64], how.format, how.sums, part)
        total += part

    HostLU().operand(l, how)(c, u)

    np.testing.assert_array_equal(c, numbers(9, 8, 2) - total * np.float32(2.0**-28))


def test_a_complex_entry_counts_as_two_real_ones():
    how = MODELS["fp16@h200"]
    l, u = (numbers(m, n) + 1j * numbers(m, n, 5) for m, n in ((6, 20), (20, 7)))
    c = np.zeros((6, 7), np.complex64)
    real = np.zeros((6, 14), np.float32)
    of_u = np.stack([u, 1j * u], axis=1).reshape(40, 7)
    HostLU().operand(l.view(np.float32), how)(real, np.ascontiguousarray(of_u).view(np.float32))

    HostLU().operand(l, how)(c, u)

    np.testing.assert_array_equal(c.view(np.float32), real)


def test_generations_differ():
    """The same operands on three GPUs."""
    l, u, found = numbers(30, 70), numbers(70, 25, 1), set()
    for unit in ("v100", "a100", "h200"):
        c = np.zeros((30, 25), np.float32)
        HostLU().operand(l, MODELS[f"fp16@{unit}"])(c, u)
        found.add(c.tobytes())
    assert len(found) == 3


# ---- every operation rounded ----------------------------------------------------------------------


def naive_lu(a):
    """Return the LU and the order of the rows; each operation is rounded to the dtype of `a`."""
    n, order = len(a), list(range(len(a)))
    for j in range(n):
        i = max(range(j, n), key=lambda r: abs(float(a[r, j])))
        a[[j, i]] = a[[i, j]]
        order[j], order[i] = order[i], order[j]
        for r in range(j + 1, n):
            a[r, j] = a[r, j] / a[j, j]
            for q in range(j + 1, n):
                a[r, q] = a[r, q] - a.dtype.type(a[r, j] * a[j, q])
    return a, order


@pytest.mark.parametrize("low", TYPES)
def test_every_operation_is_that_of_the_type(low):
    # Any power of two that keeps the entries normal and finite in FP16 gives the same bits.
    a = numbers(24, 24)
    scale = np.float32(2.0**11 if low == "fp16" else 1)
    exact, order = naive_lu((a * scale).astype(TYPES[low]))

    factors = factor_rounded(NumpyOps(), a.copy(), MODELS[f"{low}@each"])

    found = np.tril(factors.lu, -1) + np.triu(factors.lu) * scale
    np.testing.assert_array_equal(factors.order, order)
    np.testing.assert_array_equal(found, exact.astype(np.float32))


def test_large_entries_and_growth_stay_in_the_range_of_fp16():
    a = 1e20 * matrices.generate("gauss", 60, seed=3).a
    factors = factor_rounded(NumpyOps(), a.astype(np.float32), MODELS["fp16@each"])

    lower, upper = np.tril(factors.lu, -1) + np.eye(60), np.triu(factors.lu).astype(float)
    assert not factors.bad_pivot
    assert (
        np.abs(lower @ upper - a[factors.order]).max() <= 60 * FORMATS["fp16"].u * np.abs(a).max()
    )


@pytest.mark.parametrize("column", [0, 3])
def test_a_zero_pivot_is_reported(column):
    a = np.eye(6, dtype=np.float32)
    a[:, column] = 0
    assert factor_rounded(NumpyOps(), a, MODELS["bf16@each"]).bad_pivot == column + 1


# ---- solves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("name", MODELS)
def test_a_solve_converges_with_every_model(name, kind):
    a = matrices.generate("svd_geo", 90, seed=1, cond=50).a.astype(kind)
    a += (1j if kind is complex else 1) * 0.1 * np.eye(90)

    solution = tcsolve.solve_ex(a, a @ np.ones(90), precision=Plan(name, block=32, fallback=False))

    assert solution.status is Status.CONVERGED and solution.rungs == (name,)
    assert {point.rung for point in solution.history} == {name}
    least = 1 if MODELS[name].products == 3 else 2
    assert solution.iterations.min() >= least  # the factors are rounded


@pytest.mark.parametrize("n", [5, 20, 100])
@pytest.mark.parametrize("name", [name for name in MODELS if name.endswith("@each")])
def test_solve_uses_the_factors_that_the_model_names(name, n):
    a, b = matrices.generate("gauss", n, seed=4).a, np.ones((n, 1))
    plan = Plan(name, fallback=False)

    expected = tcsolve.factor(a, precision=plan).solve_ex(b)
    one, stack = (tcsolve.solve_ex(v, b, precision=plan) for v in (a, a[None]))

    assert one.iterations == expected.iterations == stack.iterations > 2
    np.testing.assert_array_equal(one.x, expected.x)
    np.testing.assert_array_equal(stack.x[0], expected.x)


def test_more_rounding_needs_more_steps():
    a = matrices.generate("svd_geo", 300, seed=1, cond=100).a
    steps = {
        name: int(
            tcsolve.solve_ex(a, a @ np.ones(300), precision=Plan(name, block=64)).iterations[0]
        )
        for name in ("bf16@each", "bf16@h200", "fp16@h200", "fp16x3@h200")
    }
    assert list(steps.values()) == sorted(steps.values(), reverse=True)
    assert len(set(steps.values())) == 4


def test_an_emulated_gpu_falls_back_to_its_own_three_products():
    a = matrices.generate("svd_geo", 300, seed=1, cond=1e6).a

    solution = tcsolve.solve_ex(a, a @ np.ones(300), precision=Plan("bf16@h200", block=64))

    assert solution.rungs[:2] == ("bf16@h200", "fp16x3@h200")
    assert solution.status is Status.CONVERGED_AFTER_FALLBACK


def test_a_name_is_enough():
    a = matrices.generate("gauss_dominant", 200, seed=1).a
    x = tcsolve.solve(a, a @ np.ones(200), precision="tf32@a100")
    assert np.abs(x - 1).max() <= 1e-12
    assert tcsolve.factor(a, precision="tf32@a100").precision == "tf32@a100"
