"""`tcsolve warm` measures what solves and transfers cost, and `tcsolve info` shows it."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

import tcsolve
from tcsolve import matrices
from tcsolve._backends import machine_rates, select
from tcsolve._backends.machine_rates import SHIPPED, hardware
from tcsolve._solve.choice import placement
from tcsolve.cli import command as cli
from tcsolve.cli import kernels, rates

GPU = "a GPU of tests"


def pretended(what, size):
    """Return the seconds of a pretended machine, without a measurement."""
    return (
        size / 1e10 if what.startswith("to_") else 1e-9 * size**2 * (1 if what == "host" else 0.5)
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TCSOLVE_CACHE_DIR", str(tmp_path / "cache"))
    placement.machine_rates.cache_clear()
    yield tmp_path / "cache"
    placement.machine_rates.cache_clear()


@pytest.fixture
def measuring(folder, monkeypatch):
    """A pretended GPU for the measurement; the fixture is the list of the sizes that were measured."""
    seen = []

    def seconds_of(what, size):
        seen.append((what, size))
        return pretended(what, size)

    monkeypatch.setattr(select, "gpu_name", lambda: GPU)
    monkeypatch.setattr(rates, "seconds_of", seconds_of)
    return seen


def test_all_rates_are_measured_and_kept(measuring, folder, capsys):
    assert placement.machine_rates(GPU) is SHIPPED
    rates.keep_rates(sys.stdout)

    kept = machine_rates.read(hardware(GPU))
    assert kept.host == tuple((n, pytest.approx(1e-9 * n * n)) for n in rates.HOST_SIZES)
    assert kept.device == tuple((n, pytest.approx(5e-10 * n * n)) for n in rates.DEVICE_SIZES)
    assert kept.to_device == pytest.approx((1e10, 1e10)) == kept.to_host
    assert len(kept.date) == 10 and len(measuring) == len(set(measuring))
    assert placement.machine_rates(GPU) == kept  # in this process, too
    out = capsys.readouterr().out
    assert str(folder) in out and out.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_refused(measuring, folder):
    folder.write_text("in the way")
    with pytest.raises(tcsolve.DeviceError, match="TCSOLVE_CACHE_DIR"):
        rates.keep_rates(sys.stdout)


def test_warm_measures_only_the_machine_it_runs_on(measuring, monkeypatch, capsys):
    monkeypatch.setattr(kernels, "KERNELS", {})
    monkeypatch.setattr(kernels, "require_compiler", lambda: None)
    monkeypatch.setattr(kernels, "present_arch", lambda: "sm_90a")
    assert cli.main(["warm", "--arch", "sm_90"]) == 0
    assert not measuring
    assert cli.main(["warm"]) == 0
    assert measuring and "rates    measured in" in capsys.readouterr().out
    count = len(measuring)
    assert cli.main(["warm"]) == 0  # it measures again
    assert len(measuring) == 2 * count


def test_the_rates_are_described(measuring):
    text = rates.described(SHIPPED)
    assert "'tcsolve warm' measures" in text["device choice"]
    kept = rates.measured(pretended, "2026-01-02")
    text = rates.described(kept)
    assert text["device choice"] == "rates measured 2026-01-02"
    assert "512: 0.262" in text["  host"] and "512: 0.131" in text["  device"]
    assert text["  to the device"].startswith("10 and 10 GB/s")


@pytest.mark.gpu
def test_a_measured_machine_is_shown_and_used(cupy, folder, monkeypatch, capsys):
    monkeypatch.setattr(rates, "HOST_SIZES", (64, 512))
    monkeypatch.setattr(rates, "DEVICE_SIZES", (64, 512))
    problem = matrices.generate("gauss", 300)
    before = {d: tcsolve.solve(problem.a, problem.b, device=d) for d in ("cpu", "cuda")}
    rates.keep_rates(sys.stdout)

    kept = machine_rates.read(hardware(select.gpu_name()))
    assert all(seconds > 0 for _, seconds in kept.host + kept.device)
    assert all(1e8 < rate < 1e12 for rate in kept.to_device + kept.to_host)
    assert rates.described(kept)["device choice"].startswith("rates measured 20")
    for device, x in before.items():  # the rates change no bit
        assert np.array_equal(tcsolve.solve(problem.a, problem.b, device=device), x)
    found = tcsolve.solve_ex(problem.a, problem.b)
    assert np.array_equal(found.x, before[found.device])


@pytest.mark.parametrize("orders", [[[math.inf, 1.0]], [[64, -1.0]], [[512, 1.0], [64, 1.0]], []])
def test_orders_and_times_that_cannot_be_are_not_read(orders):
    rates = {
        "host": orders,
        "device": [[64, 1e-3]],
        "to_device": [1, 1],
        "to_host": [1, 1],
        "date": "",
    }
    file = {"format": machine_rates.FORMAT, "hardware": hardware(GPU), "rates": rates}
    assert machine_rates.parsed(json.dumps(file), hardware(GPU)) is None
    file["rates"]["host"] = [[64, 1e-3]]
    assert machine_rates.parsed(json.dumps(file), hardware(GPU)).host == ((64, 1e-3),)


@pytest.mark.gpu
def test_a_damaged_file_leaves_the_rates_of_the_library(cupy, folder):
    path = machine_rates.path(hardware(select.gpu_name()))
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"format": 1}))
    command = (
        "from tcsolve._backends import select; from tcsolve._backends.machine_rates import SHIPPED; "
        "from tcsolve._solve.choice.placement import machine_rates; import cupy; "
        "assert machine_rates(select.gpu_name()) is SHIPPED"
    )
    subprocess.run([sys.executable, "-P", "-c", command], check=True, env=dict(os.environ))
