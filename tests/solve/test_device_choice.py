"""The device of NumPy arrays: chosen by predicted times, which follow the rates of the machine."""

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from folders import BENCHMARKS
from vendor_on_host import HostVendorOps

import tcsolve
from tcsolve import matrices
from tcsolve._backends import machine_rates
from tcsolve._backends.machine_rates import SHIPPED, MachineRates
from tcsolve._backends.select import numpy_ops
from tcsolve._plan import Plan
from tcsolve._solve.choice import placement
from tcsolve._solve.choice.cost_model import CPU, H200, rates_of
from tcsolve._solve.choice.device_choice import System, Times, goes_to_device, predicted_times
from tcsolve._solve.choice.placement import target_ops
from tcsolve._steps import observed

FP64, COMPLEX = np.dtype(float), np.dtype(complex)
SIZES = (16, 50, 64, 100, 200, 300, 500, 700, 1000, 2000, 3000, 5000, 10000)
WHERE = {"cpu": "some", "cores": 2, "gpu": "other"}


def times(n, machine=SHIPPED, nrhs=1, dtype=FP64, precision="auto"):
    return predicted_times(System(n, nrhs, dtype, precision), machine, CPU, H200)


def slower(samples, factor):
    return tuple((n, factor * seconds) for n, seconds in samples)


# ---- predictions ---------------------------------------------------------------------------------


def test_what_was_measured_is_predicted():
    for n, seconds in SHIPPED.host:
        assert times(n).host == pytest.approx(seconds)
    for n, seconds in SHIPPED.device:
        copies = times(n).device - seconds
        assert copies > 0 and copies == pytest.approx(
            5e-5 + 8 * n * n / SHIPPED.to_device[n >= 2048] + 8 * n * (1 / 9e9 + 1 / 9e9), rel=1e-6
        )


@pytest.mark.parametrize("n, slower", [(1000, 1.05), (4000, 1.5), (10000, 2.5)])  # copies included
def test_times_that_came_with_the_library_are_scaled_to_the_gpu_and_measured_ones_are_not(
    n, slower
):
    small = {"arch": 75, "multiprocessors": 20, "clock": 1.5e9, "bandwidth": 2e11}
    there, system = rates_of("cuda", small), System(n, 1, FP64, "auto")
    measured = replace(SHIPPED, date="2026-11-28")

    assert predicted_times(system, SHIPPED, CPU, there).device > slower * times(n).device
    assert predicted_times(system, measured, CPU, there).device == pytest.approx(
        times(n).device, rel=0.5
    )


def test_the_rates_that_come_with_the_library_are_those_of_the_results():
    def rows(name):
        return json.loads((BENCHMARKS / "results" / name).read_text())["rows"]

    host = {r["n"]: r["tcsolve"]["median"] for r in rows("cpu.json") if r["precision"] == "auto"}
    device = {
        r["n"]: r["tcsolve"]["median"]
        for r in rows("roads.json")
        if (r["kind"], r["family"], r["count"], r["columns"]) == ("general", "gauss", 0, 1)
    }
    assert dict(SHIPPED.host) == pytest.approx(host, rel=0.01)
    assert dict(SHIPPED.device) == pytest.approx(device, rel=0.01)


def test_between_samples_the_time_lies_between_and_beyond_it_grows():
    free = replace(SHIPPED, to_device=(1e15, 1e15), to_host=(1e15, 1e15))
    for which in ("host", "device"):
        samples = getattr(SHIPPED, which)
        found = [getattr(times(n, free), which) for n in range(1100, 40000, 200)]
        assert found == sorted(found), which
        for (n, low), (m, high) in itertools.pairwise(samples):
            if n >= 600:
                assert low <= getattr(times((n + m) // 2, free), which) <= high


def test_a_slower_device_host_or_bus_has_longer_times():
    usual = times(2000)
    assert times(2000, replace(SHIPPED, host=slower(SHIPPED.host, 3))).host == pytest.approx(
        3 * usual.host
    )
    by_device = times(2000, replace(SHIPPED, device=slower(SHIPPED.device, 3)))
    assert by_device.host == usual.host and by_device.device > usual.device
    usual, slow_bus = times(3000), times(3000, replace(SHIPPED, to_device=(1e9, 1e9)))
    assert slow_bus.device > usual.device + 72e6 / 1e9 - 72e6 / 2.2e10 - 1e-6


def test_more_work_takes_longer_on_both_sides():
    for other in ({"nrhs": 1000}, {"dtype": COMPLEX}):
        assert all(a < b for a, b in zip(times(2000), times(2000, **other), strict=True))


@pytest.mark.parametrize("precision", ["fp64", "fp16", "bf16", "fp32", "fp16@h200"])
def test_every_precision_has_times(precision):
    assert all(0 < seconds < 10 for seconds in times(3000, precision=precision))


# ---- the choice ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host, device, lost, start, chosen",
    [
        (2.0, 1.0, 0.0, 0.0, True),
        (1.0, 2.0, 0.0, 0.0, False),
        (1.0, 2.0, 99.0, 1.0, False),  # this solve would take longer there
        (2.0, 1.5, 0.0, 1.0, False),  # the start takes longer than the time that is saved
        (2.0, 1.5, 0.6, 1.0, True),  # together with earlier solves, the start is worth its time
        (3.0, 1.5, 0.0, 1.0, True),
        (1.0, 1.0, 5.0, 0.0, False),
    ],
)
def test_the_choice_compares_the_gain_with_the_start(host, device, lost, start, chosen):
    assert goes_to_device(Times(host, device), lost, start) is chosen


def test_the_choice_takes_at_most_a_quarter_longer_than_the_better_one():
    """For several n, if the predicted times have errors of a tenth."""
    for n, of_host, of_device in itertools.product(SIZES, (0.9, 1.0, 1.1), (0.9, 1.0, 1.1)):
        real, seen = times(n), times(n)
        seen = Times(seen.host * of_host, seen.device * of_device)
        taken = real.device if goes_to_device(seen) else real.host
        assert taken <= 1.25 * min(real)


def test_large_systems_go_to_a_fast_device_and_none_to_a_slow_one():
    chosen = [goes_to_device(times(n)) for n in SIZES]
    assert chosen == sorted(chosen) and not chosen[0] and chosen[-1] and chosen[7]
    slow = replace(SHIPPED, device=slower(SHIPPED.device, 1000))
    assert not any(goes_to_device(times(n, slow)) for n in SIZES)
    slow_bus = replace(SHIPPED, to_device=(1e8, 1e8))
    assert not goes_to_device(times(3000, slow_bus))


# ---- the choice of a call ------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch):
    """A pretended GPU that this process has not used yet."""
    state = SimpleNamespace(imported=False, available=True, rates=SHIPPED, asked=0)
    there = SimpleNamespace(device="cuda", properties=None, free_bytes=lambda enough: state.free)
    there.lu = numpy_ops.lu
    state.there, state.free = there, 10**12

    def cuda_available():
        state.asked, state.imported = state.asked + 1, True
        return state.available

    monkeypatch.setattr(placement, "cuda_available", cuda_available)
    monkeypatch.setattr(placement, "uses_cupy", lambda: state.imported)
    monkeypatch.setattr(placement, "ops_on", lambda device: there)
    monkeypatch.setattr(placement, "gpu_name", lambda: "some GPU")
    monkeypatch.setattr(placement, "machine_rates", lambda gpu: state.rates)
    placement.forget_losses()
    yield state
    placement.forget_losses()


def device_of(n, precision="auto", dtype=float, nrhs=1):
    a = np.broadcast_to(np.zeros((), dtype), (n, n))
    return target_ops(numpy_ops, a, nrhs, precision, "auto").device


@pytest.mark.parametrize(
    "n, precision, device",
    [
        (60, "auto", "cpu"),
        (150, "auto", "cpu"),
        (1000, "auto", "cuda"),
        (3400, "fp64", "cuda"),
        (3400, Plan("fp64"), "cuda"),
        (3400, "fp16", "cuda"),
        (8000, "bf16", "cuda"),
    ],
)
def test_a_system_goes_where_it_is_faster(n, precision, device, machine):
    machine.imported = True
    assert device_of(n, precision) == device


def test_a_process_starts_the_gpu_when_that_would_have_paid(machine):
    gain = times(2000).host - times(2000).device
    chosen = [device_of(2000) for _ in range(40)]
    before = chosen.index("cuda")

    assert before == int(np.ceil(1.0 / gain)) - 1 and machine.asked >= 1
    assert set(chosen[before:]) == {"cuda"}


def test_small_systems_never_start_the_gpu(machine):
    assert {device_of(150) for _ in range(1000)} == {"cpu"} and not machine.asked


def test_one_large_system_starts_the_gpu_at_once(machine):
    assert device_of(10000) == "cuda"


def test_the_rates_of_the_machine_count_once_the_gpu_is_in_use(machine):
    machine.imported = True
    machine.rates = replace(SHIPPED, device=slower(SHIPPED.device, 1000))
    assert device_of(3000) == "cpu"
    machine.rates = replace(SHIPPED, host=slower(SHIPPED.host, 100))
    assert device_of(300) == "cuda"


def test_without_a_usable_device_or_memory_the_host_solves(machine):
    machine.free = 1000
    assert device_of(10000) == "cpu"
    machine.free, machine.available = 10**12, False
    assert device_of(10000) == "cpu"


def test_stacks_stay(machine):
    machine.imported = True
    a = np.broadcast_to(0.0, (4, 3000, 3000))
    assert target_ops(numpy_ops, a, 1, "auto", "auto") is numpy_ops


def test_rates_change_no_bit_on_the_host(machine):
    problem = matrices.generate("gauss", 600)
    expected = tcsolve.solve_ex(problem.a, problem.b, device="cpu")
    machine.imported = True
    for factor in (1e-3, 1e-2):
        machine.rates = replace(SHIPPED, host=slower(SHIPPED.host, factor))
        found = tcsolve.solve_ex(problem.a, problem.b)
        assert np.array_equal(found.x, expected.x) and found.device == "cpu"
        assert found.precision == expected.precision


@pytest.mark.parametrize("make", [np.triu, lambda a: np.triu(np.tril(a, 1), -1)])
def test_bands_and_triangles_stay_on_the_host(machine, make):
    machine.imported = True
    machine.rates = replace(SHIPPED, host=slower(SHIPPED.host, 1e6))
    a = make(np.random.default_rng(0).standard_normal((300, 300))) + 30 * np.eye(300)
    assert tcsolve.solve_ex(a, np.ones(300)).device == "cpu"


class PretendedDevice(HostVendorOps):
    """NumPy's primitives under the name of the device "cuda"."""

    device = "cuda"

    def free_bytes(self, enough):
        return 10**12


@pytest.mark.parametrize("options", [{}, {"assume_a": "sym"}, {"assume_a": "pos"}], ids=str)
@pytest.mark.parametrize("n", [60, 300, 600])
def test_what_is_chosen_is_what_solves_and_what_the_report_names(machine, monkeypatch, n, options):
    machine.imported, device = True, PretendedDevice()
    monkeypatch.setattr(placement, "ops_on", lambda name: device)
    monkeypatch.setattr(placement, "brought", lambda ops, x: x)
    a = matrices.generate("gauss", n).a
    a = a @ a.T / n + np.eye(n) if options else a
    for factor, expected in ((1e3, "cuda" if n >= 250 else "cpu"), (1e-3, "cpu")):
        machine.rates = replace(SHIPPED, host=slower(SHIPPED.host, factor))
        with observed() as steps:
            found = tcsolve.solve_ex(a, np.ones(n), **options)
        assert found.device == expected and found.status.ok
        assert (found.backward_error <= found.bound).all()
        assert ("transfer" in found.seconds) == ("move" in steps) == (expected == "cuda")
        assert steps.count("place") == (n >= 250)


@pytest.mark.gpu
def test_the_report_names_the_device_that_was_chosen(cupy, monkeypatch):
    problem = matrices.generate("gauss", 700)
    for factor, device in ((1e3, "cuda"), (1e-3, "cpu")):
        rates = replace(SHIPPED, host=slower(SHIPPED.host, factor))
        monkeypatch.setattr(placement, "machine_rates", lambda gpu, rates=rates: rates)
        found = tcsolve.solve_ex(problem.a, problem.b)
        expected = tcsolve.solve_ex(problem.a, problem.b, device=device)
        assert found.device == device and isinstance(found.x, np.ndarray)
        assert np.array_equal(found.x, expected.x)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [16, 200, 700])
@pytest.mark.parametrize("structure", [None, "symmetric", "positive definite"])
def test_numpy_arrays_on_a_device_have_the_bits_of_cupy_arrays(cupy, n, structure):
    a = matrices.generate("gauss", n).a
    a = a @ a.T + np.eye(n) if structure else a
    b = np.ones(n)
    there = tcsolve.solve_ex(cupy.asarray(a), cupy.asarray(b), assume_a=structure)
    moved = tcsolve.solve_ex(a, b, assume_a=structure, device="cuda")

    assert moved.device == "cuda" and moved.precision == there.precision
    assert np.array_equal(moved.x, there.x.get()) and moved.seconds["transfer"] > 0


# ---- the file ------------------------------------------------------------------------------------

KEPT = MachineRates(
    ((64, 1e-4), (512, 4e-3)), ((64, 2e-4),), (8e9, 2e10), (7e9, 1e10), "2026-01-02"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TCSOLVE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_rates_of_a_machine_are_kept(folder):
    assert machine_rates.read(WHERE) is None
    assert machine_rates.written(KEPT, WHERE)
    assert machine_rates.read(WHERE) == KEPT
    again = replace(KEPT, date="2026-02-03")
    assert machine_rates.written(again, WHERE) and machine_rates.read(WHERE) == again
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("key", WHERE)
def test_other_hardware_has_rates_of_its_own(folder, key):
    other = WHERE | {key: 5 if key == "cores" else "another"}
    machine_rates.written(KEPT, WHERE)
    assert machine_rates.read(other) is None
    machine_rates.path(WHERE).rename(machine_rates.path(other))  # a file under a wrong name
    assert machine_rates.read(other) is None


def test_a_damaged_file_is_no_error(folder):
    machine_rates.written(KEPT, WHERE)
    path = machine_rates.path(WHERE)
    good = path.read_bytes()
    for bad in (b"", good[:-1], good[: len(good) // 2], b"x" + good, good.replace(b"512", b"513")):
        path.write_bytes(bad)
        assert machine_rates.read(WHERE) is None
    path.unlink()
    path.mkdir()
    assert machine_rates.read(WHERE) is None


@pytest.mark.parametrize(
    "change",
    [
        {"host": []},
        {"host": [[64, 1e-4], [64, 2e-4]]},
        {"host": [[64, -1.0]]},
        {"host": [[64, "fast"]]},
        {"host": [[64, float("nan")]]},
        {"host": [[0, 1.0]]},
        {"host": 3},
        {"device": [[64]]},
        {"to_device": [1e9]},
        {"to_host": [1e9, 0]},
        {"to_host": [1e9, float("inf")]},
    ],
)
def test_a_file_with_impossible_rates_is_not_used(folder, change):
    machine_rates.written(KEPT, WHERE)
    data = machine_rates.path(WHERE).read_bytes()
    found = json.loads(data[: data.rindex(b"}") + 1])
    assert machine_rates.parsed(json.dumps(found).encode(), WHERE) == KEPT
    found["rates"] |= change
    assert machine_rates.parsed(json.dumps(found).encode(), WHERE) is None
    assert machine_rates.parsed(json.dumps(found | {"format": 99}).encode(), WHERE) is None
    assert machine_rates.parsed(b"[]", WHERE) is None


def test_a_folder_that_cannot_be_written_is_told(folder):
    folder.write_text("in the way")
    assert not machine_rates.written(KEPT, WHERE)
    assert machine_rates.read(WHERE) is None
