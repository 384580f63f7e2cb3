"""The choice of precision: pure functions of numbers, so tested on numbers."""

import itertools
import json

import numpy as np
import pytest
from folders import BENCHMARKS

from tcsolve._arithmetic.formats import MODELS, UPDATES, update_named
from tcsolve._plan import PRECISIONS, Plan, next_rung
from tcsolve._refine.krylov import WARM_UP_STEPS
from tcsolve._solve.choice.cost_model import (
    CPU,
    H200,
    bytes_needed,
    choose_update,
    krylov_worth,
    predict_seconds,
    rates_of,
    step_budget,
)

DEVICES = {"cpu": CPU, "h200": H200}
SIZES = (1, 10, 100, 1000, 10000, 50000)
REAL, COMPLEX = np.dtype(float), np.dtype(complex)
A100 = {"arch": 80, "multiprocessors": 108, "clock": 1.41e9, "bandwidth": 1.5e12}
L4 = {"arch": 89, "multiprocessors": 58, "clock": 2.0e9, "bandwidth": 3e11}
B200 = {"arch": 100, "multiprocessors": 148, "clock": 1.9e9, "bandwidth": 8e12}


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("is_complex", [False, True])
def test_predicted_time_grows_with_the_problem(name, is_complex):
    rates = DEVICES[name]
    for update in rates.lu_flops:
        for nrhs in (1, 100):
            times = [predict_seconds(update, n, nrhs, rates, is_complex=is_complex) for n in SIZES]
            assert times == sorted(times) and times[0] > 0
        more = [
            predict_seconds(update, 5000, k, rates, is_complex=is_complex) for k in (1, 100, 9999)
        ]
        assert more == sorted(more)


@pytest.mark.parametrize("name", DEVICES)
def test_complex_and_more_steps_take_longer(name):
    rates = DEVICES[name]
    for update in rates.lu_flops:
        real = predict_seconds(update, 4000, 1, rates)
        assert real < predict_seconds(update, 4000, 1, rates, is_complex=True)
        assert real < predict_seconds(update, 4000, 1, rates, steps=50)


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("working", ["fp32", "fp64"])
@pytest.mark.parametrize("dominant", [False, True])
def test_the_choice_is_one_the_device_runs_and_the_answer_allows(name, working, dominant):
    for n, nrhs, is_complex in itertools.product(SIZES, (1, 50, 20000), (False, True)):
        chosen = choose_update(
            n, nrhs, DEVICES[name], working=working, is_complex=is_complex, dominant=dominant
        )
        assert chosen in DEVICES[name].lu_flops
        assert working == "fp64" or chosen != "fp64"
        assert dominant or UPDATES[chosen].u < 2.0**-15


def test_a_small_system_goes_straight_to_fp64_and_a_large_one_to_tensor_cores():
    assert choose_update(10, 1, CPU) == "fp64"
    assert choose_update(100, 1, H200) == "fp64"
    assert choose_update(300, 1, H200) == "fp16x3"
    assert choose_update(300, 1, H200, is_complex=True) == "fp64"
    assert choose_update(30000, 1, H200) == "fp16x3"
    assert choose_update(30000, 1, H200, dominant=True) == "fp16"
    assert choose_update(4000, 1, CPU) == "fp32"


# Seconds of the fastest solve of each precision on an H200 (see benchmarks/results).
MEASURED = {
    ("fp64", False, 1): {
        512: 1.1e-3,
        1024: 2.5e-3,
        2048: 5.9e-3,
        4096: 14.2e-3,
        8192: 39.5e-3,
        16384: 0.141,
    },
    ("fp64", True, 1): {
        512: 1.3e-3,
        1024: 3.2e-3,
        2048: 7.9e-3,
        4096: 20.5e-3,
        8192: 70e-3,
        16384: 0.341,
    },
    ("fp16x3", True, 1): {
        512: 12.5e-3,
        1024: 19.4e-3,
        2048: 30e-3,
        4096: 61e-3,
        8192: 119e-3,
        16384: 0.266,
    },
    ("fp16x3", False, 1): {1024: 1.4e-3},
    ("fp16x3", False, 16): {4096: 8.3e-3},
    ("fp16x3", False, 256): {8192: 48.6e-3},
}


@pytest.mark.parametrize("name, is_complex, nrhs", MEASURED)
def test_predictions_are_good_to_a_factor_of_two(name, is_complex, nrhs):
    for n, seconds in MEASURED[name, is_complex, nrhs].items():
        predicted = predict_seconds(name, n, nrhs, H200, is_complex=is_complex)
        assert seconds / 2 <= predicted <= 2 * seconds, (n, predicted)


def test_complex_matrices_go_to_the_library_where_that_is_faster():
    for n in (512, 1024, 2048, 4096, 8192):
        assert choose_update(n, 1, H200, is_complex=True) == "fp64"
    assert choose_update(16384, 1, H200, is_complex=True) == "fp16x3"
    assert choose_update(8192, 8192, H200) == "fp64"


def test_once_lower_precision_pays_it_pays_for_every_larger_system():
    for rates in DEVICES.values():
        low = [choose_update(n, 1, rates) != "fp64" for n in range(100, 40000, 300)]
        assert low == sorted(low) and any(low)


def test_many_right_hand_sides_make_refinement_not_worth_it():
    assert choose_update(2000, 1, CPU) == "fp32"
    assert choose_update(2000, 20000, CPU) == "fp64"


def test_the_step_budget_is_bounded_and_grows_with_the_price_of_the_next_rung():
    budgets = [step_budget("fp16", "fp16x3", n, 1, H200) for n in SIZES]
    assert all(30 <= budget <= 300 for budget in budgets)
    assert budgets == sorted(budgets) and budgets[-1] > budgets[0]
    assert step_budget("fp64", None, 1000, 1, H200) == 300
    assert step_budget("fp16", "fp16x3", 1000, 1, CPU) == 300  # emulated: no rate to compare with


@pytest.mark.parametrize("name, update, largest", [("cpu", "fp32", 2750), ("h200", "fp16x3", 9200)])
def test_fgmres_begins_from_the_size_on_that_the_docs_name(name, update, largest):
    rates = DEVICES[name]
    sizes = largest // 2, largest * 49 // 50, largest * 51 // 50
    worth = [krylov_worth(update, "fp64", n, 1, rates) for n in sizes]
    assert worth[0] < worth[1] < WARM_UP_STEPS < worth[2]


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("on_device", [False, True])
def test_the_bytes_cover_the_factors_and_grow(update, on_device):
    how = dict(block=512, on_device=on_device)
    stored = 8 if update == "fp64" else 4
    for n in SIZES[1:]:
        real = bytes_needed(update, n, 1, REAL, **how)
        assert real >= n * n * stored
        assert bytes_needed(update, n, 1, COMPLEX, **how) >= 2 * n * n * stored
        many = bytes_needed(update, n, max(n, 1000), REAL, **how)
        assert many > real
        assert bytes_needed(update, n, max(n, 1000), REAL, **how, kept=1000) == many + 1000
    sizes = [bytes_needed(update, n, 1, REAL, **how) for n in SIZES]
    assert sizes == sorted(sizes)


def measured_bytes():
    """Return the rows of the page on memory whose peak is that of the refinement, by library factors."""
    rows = json.loads((BENCHMARKS / "results/memory.json").read_text())["rows"]
    return [
        row
        for row in rows
        if row["call"] == "solve"
        and row["family"] == "gauss"
        and row["rungs"] in (["fp32"], ["fp64"])
    ]


@pytest.mark.parametrize("row", measured_bytes(), ids=lambda row: f"{row['rungs'][0]}-{row['n']}")
def test_the_bytes_are_those_that_refinement_used_on_a_device(row):
    """The sums of products with A count, too: up to n / 64 numbers for each row of A."""
    how = {"block": 1, "on_device": True}
    planned = bytes_needed(row["rungs"][0], row["n"], row["nrhs"], REAL, **how)
    assert 0.99 <= planned / row["bytes_used"] <= 1.03


def test_the_bytes_of_a_large_system_do_not_wrap():
    assert bytes_needed("fp64", 100_000, 1, REAL, block=512, on_device=True) > 8e10


def test_the_rates_of_a_gpu_are_one_object_so_the_cache_finds_its_choices():
    assert rates_of("cuda", L4) is rates_of("cuda", dict(L4)) is not rates_of("cuda", A100)
    choose_update.cache_clear()
    assert choose_update(30000, 1, H200) == choose_update(30000, 1, H200) == "fp16x3"
    choose_update(30000, 1, rates_of("cuda", L4))
    assert choose_update.cache_info()[:2] == (1, 2)


def test_the_rates_of_other_gpus_are_ordered_as_the_gpus_are():
    h200, a100, l4, b200 = (rates_of("cuda", p) for p in (None, A100, L4, B200))
    assert h200 is H200 and rates_of("cpu") is CPU
    assert a100.lu_flops["fp64"] < h200.lu_flops["fp64"]
    assert l4.lu_flops["fp64"] < a100.lu_flops["fp64"] / 10
    assert a100.lu_flops["fp16"] < h200.lu_flops["fp16"] < b200.lu_flops["fp16"]
    assert a100.bandwidth == 1.5e12
    assert H200.lu_flops["fp64"] == 3.6e13  # the rates of other GPUs are scaled copies


def test_a_gpu_with_few_fp64_units_prefers_lower_precision_sooner():
    first = {
        name: min(
            n
            for n in range(100, 20000, 100)
            if choose_update(n, 1, rates, is_complex=True) != "fp64"
        )
        for name, rates in (("h200", H200), ("l4", rates_of("cuda", L4)))
    }
    assert first["l4"] < first["h200"]


def test_the_ladder_from_every_precision_ends_and_never_descends():
    for update, working in itertools.product({**UPDATES, **MODELS}, ("fp32", "fp64")):
        ladder = [update]
        while (following := next_rung(ladder[-1], working)) is not None:
            assert update_named(following).u < update_named(ladder[-1]).u
            ladder.append(following)
        assert ladder[-1] == "fp64"
    assert next_rung("fp16", "fp64") == "fp16x3"
    assert next_rung("fp16x3", "fp64") == "fp64"
    assert next_rung("fp16x3", "fp32") == "fp32"
    assert next_rung("tf32@h200", "fp64") == "fp16x3@h200"
    assert next_rung("fp16x3@h200", "fp64") == "fp64"
    assert next_rung("bf16@each", "fp64") == "fp16x3"


def test_every_precision_name_is_auto_or_an_update():
    assert PRECISIONS == ("auto", "fp16", "bf16", "tf32", "fp16x3", "fp32", "fp64")
    assert all(Plan(name).update == name for name in PRECISIONS)
