"""A missing device and missing memory: the error says so, and arguments are unchanged."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from bounds import MET, ratio
from systems import gauss

import tcsolve
from tcsolve import Plan, solve, solve_ex
from tcsolve._arithmetic.formats import UPDATES
from tcsolve._backends import select
from tcsolve._backends.cpu.lu import HostLU
from tcsolve._backends.cpu.ops import NumpyOps
from tcsolve._solve.choice.cost_model import bytes_needed
from tcsolve._solve.choice.memory import require_room
from tcsolve._solve.ladder.ladder import Ladder


def test_a_missing_device_is_an_error_that_says_why(monkeypatch):
    monkeypatch.setattr(select, "why_no_cuda", lambda: "the machine has no such device")
    with pytest.raises(tcsolve.DeviceError, match="no such device; device='cpu' needs no GPU"):
        solve(gauss(), np.ones(40), device="cuda")
    with pytest.raises(tcsolve.DeviceError, match="no such device"):
        tcsolve.factor(gauss(), device="cuda")


class NoLU(HostLU):
    def getrf(self, a, dtype, overwrite_a=False):
        pytest.fail("getrf was called, although the factors do not fit")


class SmallDevice(NumpyOps):
    """A device with 1000 free bytes, on which nothing large may be allocated."""

    device = "cuda"

    def __init__(self):
        self.lu = NoLU()

    def free_bytes(self, enough):
        return 1000

    def cast_scaled(self, a, row_scale, col_scale, dtype, out=None):
        pytest.fail("a copy was made, although it does not fit")


@pytest.mark.parametrize("spare, fits", [(0, True), (10**9, True), (-1, False)])
@pytest.mark.parametrize("held", [0, 5000])
def test_a_solve_fits_where_at_least_the_needed_bytes_are_free(spare, fits, held):
    asked = []

    class Device(SmallDevice):
        lu = SimpleNamespace(rules=lambda dtype: SimpleNamespace(block=lambda *args: 128))

        def __init__(self):
            pass

        def free_bytes(self, enough):
            asked.append(enough)
            return needed - held + spare

    needed = bytes_needed("fp16x3", 300, 1, np.dtype("d"), block=128, on_device=True)
    if fits:
        assert require_room(Device(), "fp16x3", 300, 1, np.dtype("d"), held_bytes=held) == needed
    else:
        with pytest.raises(tcsolve.DeviceMemoryError):
            require_room(Device(), "fp16x3", 300, 1, np.dtype("d"), held_bytes=held)
    assert asked[0] == needed - held


@pytest.mark.parametrize("update", UPDATES)
def test_a_solve_that_would_not_fit_is_refused_before_it_allocates(update):
    with pytest.raises(tcsolve.DeviceMemoryError) as caught:
        Ladder.begin(SmallDevice(), gauss(), update)

    text = str(caught.value)
    needed = int(re.search(r"needs ([\d,]+) more bytes", text)[1].replace(",", ""))
    assert needed >= 4 * 40 * 40
    assert "1,000 are free" in text and "device='cpu'" in text
    assert ("precision='fp16x3'" in text) == (update == "fp64")
    assert isinstance(caught.value, MemoryError)


def test_a_copy_that_is_there_already_needs_no_more_room():
    device = SmallDevice()
    needed = bytes_needed("fp16x3", 40, 1, np.dtype("d"), block=16, on_device=True)
    with pytest.raises(tcsolve.DeviceMemoryError):
        require_room(device, "fp16x3", 40, 1, np.dtype("d"), block=16, held_bytes=needed - 1001)
    how = {"block": 16, "held_bytes": needed - 1000}
    assert require_room(device, "fp16x3", 40, 1, np.dtype("d"), **how) == needed


def test_the_bytes_that_were_planned_are_reported(xp):
    solution = solve_ex(xp.asarray(gauss()), xp.ones(40), precision="fp64")

    assert solution.bytes_planned >= 8 * 40 * 40


def test_an_allocation_that_fails_leaves_the_inputs_and_the_library_intact(monkeypatch):
    a, b = gauss(), np.ones(40)
    kept = a.copy(), b.copy()

    def getrf(*_):
        raise MemoryError("no more")

    with monkeypatch.context() as patched:
        patched.setattr(HostLU, "getrf", getrf)
        with pytest.raises(MemoryError):
            solve(a, b, overwrite_a=True, overwrite_b=True, precision=Plan("fp32"))

    assert np.array_equal(a, kept[0]) and np.array_equal(b, kept[1])
    assert ratio(a, solve(a, b, precision=Plan("fp32")), b) <= MET
