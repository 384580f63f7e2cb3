"""The energy of repeated calls, from the power that is sampled during them."""

import sys
import time
import types

import pytest
from switches import import_or_skip

from tcsolve import matrices, study
from tcsolve._plan import Plan
from tcsolve._study import energy


def test_constant_power_gives_power_times_time():
    found = energy.sampled(lambda: time.sleep(0.01), lambda: 350.0, least_seconds=0.3)
    assert found.watts == pytest.approx(350) and found.calls >= 5 and found.samples >= 10
    assert 0.01 <= found.seconds < 0.1
    assert found.joules == pytest.approx(350 * found.seconds)


def test_power_that_changes_is_averaged_over_time():
    start = time.perf_counter()

    def power():  # 100 W, then 300 W
        return 100.0 if time.perf_counter() - start < 0.25 else 300.0

    found = energy.sampled(lambda: time.sleep(0.005), power, least_seconds=0.5)
    assert 170 < found.watts < 230


def test_calls_are_repeated_for_the_time_that_is_asked_for():
    calls = []
    found = energy.sampled(lambda: calls.append(time.sleep(0.02)), lambda: 1.0, least_seconds=0.2)
    assert len(calls) == found.calls + 2 and found.calls * found.seconds >= 0.2


def test_the_power_of_earlier_work_does_not_count():
    start = time.perf_counter()

    def power():  # the mean of the last 0.3 s: 500 W before the calls, then 100 W
        return 500.0 - 400.0 * min(1.0, (time.perf_counter() - start) / 0.3)

    call = lambda: time.sleep(0.01)  # noqa: E731
    assert energy.sampled(call, power, 0.2, warm_seconds=0.3).watts == pytest.approx(100)
    assert energy.WARM_SECONDS >= 1


def test_the_power_of_a_solve_is_sampled_after_the_warm_up(nvml, monkeypatch):
    times = []
    nvml.nvmlDeviceGetPowerUsage = lambda handle: times.append(time.perf_counter()) or 400_000
    monkeypatch.setattr(energy, "WARM_SECONDS", 0.4)
    energy.measure_energy(matrices.generate("gauss", 10), Plan("fp32"), "cuda")
    assert times[1] - times[0] >= 0.4  # the first call only tells whether NVML works
    assert times[2] - times[1] < 0.2


def test_a_sample_that_fails_ends_the_measurement_with_its_error():
    def power():
        raise OSError("NVML is gone")

    with pytest.raises(OSError, match="NVML is gone"):
        energy.sampled(lambda: None, power, least_seconds=0.1)


def test_a_row_says_why_there_is_no_energy():
    (row,) = study("gen:gauss:n=10", "fp32", energy=True, device="cpu", show_progress=False).rows
    assert row["energy"].startswith("not measured: NVML measures GPUs only") and "joules" not in row
    (row,) = study("gen:gauss:n=10", "fp32", show_progress=False).rows
    assert "energy" not in row


@pytest.fixture
def nvml(monkeypatch):
    """A pretended device and NVML: the solves run on the host, and the power is 400 W."""
    module = types.SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByPciBusId=lambda place: place.decode(),
        nvmlDeviceGetPowerUsage=lambda handle: {"0000:3B:00.0": 400_000}[handle],
    )
    cuda = types.ModuleType("cupy.cuda")
    cuda.Device = lambda: types.SimpleNamespace(pci_bus_id="0000:3B:00.0")
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(ndarray=type("ndarray", (), {})))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    host = energy.ops_on("cpu")
    monkeypatch.setattr(energy, "ops_on", lambda device: host)
    monkeypatch.setattr(energy, "why_no_cuda", lambda: None)
    monkeypatch.setattr(energy, "LEAST_SECONDS", 0.3)
    monkeypatch.setattr(energy, "WARM_SECONDS", 0.0)
    return module


def test_the_columns_of_energy_fit_together(nvml):
    problem = matrices.generate("gauss", 60)
    row = energy.measure_energy(problem, Plan("fp32"), "cuda")
    assert row["watts"] == pytest.approx(400) and row["energy"].startswith("NVML, ")
    assert row["gflops_per_watt"] == pytest.approx(2 / 3 * 60**3 / row["joules"] / 1e9)


def test_the_energy_is_that_of_a_solve_with_the_residual_that_was_asked_for(nvml):
    problem = matrices.generate("gauss", 60)
    told = energy.measure_energy(problem, Plan("fp32"), "cuda", "nonsense")["energy"]
    assert told.startswith("not measured: ") and "residual" in told


def test_complex_operations_count_fourfold(nvml):
    rows = [
        energy.measure_energy(matrices.generate("gauss", 40, dtype=dtype), Plan("fp32"), "cuda")
        for dtype in (float, complex)
    ]
    flops = [row["gflops_per_watt"] * row["joules"] for row in rows]
    assert flops[1] == pytest.approx(4 * flops[0])


def test_an_nvml_that_fails_is_told_in_the_row(nvml, monkeypatch):
    def fails():
        raise RuntimeError("driver not loaded")

    nvml.nvmlInit = fails
    row = energy.measure_energy(matrices.generate("gauss", 10), Plan("fp32"), "cuda")
    assert row == {"energy": "not measured: NVML fails: driver not loaded"}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    row = energy.measure_energy(matrices.generate("gauss", 10), Plan("fp32"), "cuda")
    assert "pip install 'tcsolve[energy]'" in row["energy"]


def test_an_nvml_that_fails_later_is_told_in_the_row(nvml):
    left = iter([400_000] * 2)

    def power(handle):
        if (found := next(left, None)) is None:
            raise RuntimeError("the device is lost")
        return found

    nvml.nvmlDeviceGetPowerUsage = power
    row = energy.measure_energy(matrices.generate("gauss", 10), Plan("fp32"), "cuda")
    assert row == {"energy": "not measured: NVML fails: the device is lost"}


@pytest.mark.gpu
def test_a_device_reports_the_energy_of_a_solve(cupy):
    import_or_skip("pynvml")
    (row,) = study(
        "gen:gauss:n=2000", "fp16x3", energy=True, device="cuda", show_progress=False
    ).rows
    assert row["energy"].startswith("NVML, ") and 10 < row["watts"] < 2000
    assert 0 < row["joules"] < 100
