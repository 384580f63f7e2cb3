"""How an LU is cut, for every size and architecture, without a device."""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
from tcsolve.kernels.arch import ARCHS
from tcsolve.kernels.panel_shapes import panel_shape

from tcsolve._arithmetic.formats import UPDATES
from tcsolve._backends.cpu.lu import HostRules
from tcsolve._backends.cuda.lu.rules import DeviceRules
from tcsolve._contract.schedule import goes_ahead, goes_early, schedule
from tcsolve._paths import paths, switched_off

SIZES = [
    1,
    2,
    31,
    127,
    128,
    129,
    255,
    256,
    257,
    1000,
    2047,
    2048,
    4096,
    4097,
    6000,
    6001,
    8192,
    8193,
]
SIZES += [12500, 14337, 16384, 16385, 24576, 32768, 46341, 65536, 100001, 131072]
MULTIPROCESSORS = 132
# (largest size, size, dtype, memory order, whether the LU may start early)
EARLY = [
    (50, 50, "d", "C", True),
    (50, 50, "f", "C", True),
    (50, 51, "d", "C", False),
    (50, 50, "d", "F", False),
    (50, 50, "D", "C", False),
    (0, 1, "d", "C", False),
]


@functools.cache
def device_rules(arch, char="f", largest_cluster=16, address=0, row_bytes=0):
    @functools.cache
    def shape(rows, narrow, dominant):
        return panel_shape(rows, arch, MULTIPROCESSORS, largest_cluster, narrow, dominant)

    lies = {"itemsize": np.dtype(char).itemsize, "address": address, "row_bytes": row_bytes}
    return DeviceRules(arch, char, shape, paths(), **lies)


def check(plan, block):
    """Check that panels and strips cover the columns once, and that all earlier strips update each strip."""
    n = plan.n
    assert [panel.start for panel in plan.panels[1:]] == [panel.stop for panel in plan.panels[:-1]]
    assert plan.panels[0].start == 0 and plan.panels[-1].stop == n
    assert len(plan.steps) == len(plan.panels) - 1
    for panel in plan.panels:
        columns = panel.stop - panel.start
        assert 0 < columns <= (block or columns)
        assert panel.rows == (columns if panel.is_square else n - panel.start)
        assert panel.strips[0][0] == 0 and panel.strips[-1][1] == columns
        assert all(a[1] == b[0] for a, b in zip(panel.strips, panel.strips[1:], strict=False))
        assert len(panel.catch_ups) == len(panel.strips) - 1
        done = [0] * len(panel.strips)  # columns by which each strip has been updated
        for number, catch_up in enumerate(panel.catch_ups, 1):
            assert catch_up.here == panel.strips[number][0] and catch_up.first < catch_up.here
            assert catch_up.swapped == panel.strips[number - 1][0]
            for i, (start, stop) in enumerate(panel.strips):
                if start >= catch_up.here and stop <= catch_up.last:
                    assert done[i] == catch_up.first
                    done[i] = catch_up.here
            assert done[number] == panel.strips[number][0]
        assert panel.start < panel.first_columns <= panel.stop
        assert panel.substitution.columns == n - panel.stop
    for panel, step, following in zip(plan.panels, plan.steps, plan.panels[1:], strict=False):
        assert panel.stop < step.first <= step.near <= n
        assert step.near == (following.stop if step.is_ahead else n)
        assert step.is_ahead or not step.is_overlapped
        assert step.last_row in (None, following.stop)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("update", UPDATES)
def test_every_size_is_covered_on_every_architecture(arch, update):
    how = UPDATES[update]
    for char in "fF" if how.storage == "float32" else "dD":
        for n in SIZES if char in "fd" else SIZES[::3]:
            for dominant in (False, True):
                for block in (None, 100) if n <= 8192 else (None,):
                    plan = schedule(n, how, device_rules(arch, char), block, True, dominant)
                    check(plan, block)
                    assert all(step.is_overlapped == step.is_ahead for step in plan.steps)


@pytest.mark.parametrize("update", UPDATES)
def test_the_host_factors_whole_panels_one_after_the_other(update):
    how = UPDATES[update]
    for n in SIZES[:20]:
        plan = schedule(n, how, HostRules("f" if how.storage == "float32" else "d"))
        check(plan, None)
        assert all(len(panel.strips) == 1 and not panel.is_square for panel in plan.panels)
        assert not any(step.is_ahead for step in plan.steps)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_strip_is_no_wider_than_what_one_launch_takes(arch):
    for cluster in (16, 8, 0):
        for dominant in (False, True):
            rules = device_rules(arch, largest_cluster=cluster)
            for panel in schedule(40000, UPDATES["fp16x3"], rules, None, True, dominant).panels:
                for start, stop in panel.strips:
                    shape = rules.panel_shape(
                        panel.rows - start, panel.stop - panel.start - start, dominant
                    )
                    assert shape is None or stop - start <= shape.strip
                    assert shape is None or shape.blocks <= MULTIPROCESSORS


def test_panels_are_wider_where_the_update_is_long():
    """Panels have at most 128 columns for few rows, and 1024 for many."""
    for update, n, widths in (
        ("fp16x3", 6656, {128}),
        ("fp16x3", 16384, {512, 192, 128}),
        ("fp16", 32768, {1024, 512, 128}),
    ):
        plan = schedule(n, UPDATES[update], device_rules("sm_90a"))
        found = {panel.stop - panel.start for panel in plan.panels[:-1]}
        assert found == widths


def test_square_panels_are_for_dominant_matrices_where_wgmma_is():
    how = UPDATES["fp16x3"]
    for arch in ARCHS:
        for dominant in (False, True):
            plan = schedule(16384, how, device_rules(arch), None, True, dominant)
            squares = [panel for panel in plan.panels if panel.is_square]
            assert bool(squares) == (dominant and arch == "sm_90a")
            assert all(panel.ends_early and panel.substitution.update == how for panel in squares)
    for lies in ({"address": 4}, {"row_bytes": 4}):
        plan = schedule(16384, how, device_rules("sm_90a", **lies), None, True, True)
        assert not any(panel.is_square for panel in plan.panels)


def plan_without(name, n, update, dominant):
    """Return the schedule of an LU on an H200 without a special path, and the usual one."""
    device_rules.cache_clear()
    with switched_off(name):
        without = schedule(n, UPDATES[update], device_rules("sm_90a"), None, True, dominant)
    device_rules.cache_clear()
    return without, schedule(n, UPDATES[update], device_rules("sm_90a"), None, True, dominant)


@pytest.mark.parametrize("update", ["fp16", "fp16x3"])
@pytest.mark.parametrize("n", [1024, 8192, 32768])
def test_a_path_that_is_switched_off_is_in_no_plan(n, update):
    for name in ("square_panels", "wide_panels"):
        plan, usual = plan_without(name, n, update, True)
        check(plan, None)
        assert not any(panel.is_square for panel in plan.panels)
        assert any(panel.is_square for panel in usual.panels) == (n > 4096)
    plan, usual = plan_without("wide_panels", n, update, False)
    check(plan, None)
    assert not any(panel.is_wide for panel in plan.panels)
    least = {"fp16": 4096, "fp16x3": 8192}  # up to here, all panels have at most 192 columns
    assert any(panel.is_wide for panel in usual.panels) == (n > least[update])


@pytest.mark.parametrize("arch", ARCHS)
def test_products_before_a_panel_are_about_as_precise_as_the_storage(arch):
    """But a wide panel updates the next one in the precision of the trailing update."""
    for update in ("fp16", "fp16x3", "bf16"):
        plan = schedule(16384, UPDATES[update], device_rules(arch))
        inner = {catch_up.update.name for panel in plan.panels for catch_up in panel.catch_ups}
        assert inner <= {"fp16x3", "fp32"}
        assert (inner == {"fp32"}) == (arch != "sm_90a" or update == "bf16")
        for panel, step in zip(plan.panels, plan.steps, strict=False):
            few = panel.stop - panel.start <= 128
            assert not step.is_ahead or step.near_update.name == ("fp32" if few else update)


def test_without_dominant_strips_those_with_a_search_are_taken():
    plan, usual = plan_without("dominant_strips", 32768, "fp16", True)
    check(plan, None)
    squares = [panel for panel in plan.panels if panel.is_square]
    assert squares and squares == [panel for panel in usual.panels if panel.is_square]
    with switched_off("square_panels"):
        plan, usual = plan_without("dominant_strips", 32768, "fp16", True)
    widths = [max(b - a for a, b in found.panels[0].strips) for found in (plan, usual)]
    assert widths == [64, 128]


def test_without_look_ahead_the_parts_are_the_same():
    """Then the bits of the factors do not depend on look-ahead."""
    for n in (2000, 9000):
        ahead, plain = (
            schedule(n, UPDATES["fp16x3"], device_rules("sm_90a"), None, flag)
            for flag in (True, False)
        )
        assert ahead.panels == plain.panels
        assert [step.near for step in ahead.steps] == [step.near for step in plain.steps]
        assert not any(step.is_overlapped for step in plain.steps)


def test_a_recording_is_divided_after_its_first_steps():
    rules = HostRules("f")
    for n in SIZES:
        plan = schedule(n, UPDATES["fp16x3"], rules)
        assert list(plan.divisions) == sorted(set(plan.divisions))
        assert all(0 < number < len(plan.steps) for number in plan.divisions)
        assert len(plan.steps) < 2 or plan.divisions[0] == 1


def test_equal_rules_give_one_plan():
    first, again = (DeviceRules("sm_90a", "f", math.hypot, paths()) for _ in range(2))
    assert first == again and hash(first) == hash(again)
    assert schedule(100, UPDATES["fp64"], HostRules("d")) is schedule(
        100, UPDATES["fp64"], HostRules("d")
    )


def test_the_plan_says_what_the_solves_for_u_are_and_whether_launches_are_recorded():
    how, rules = UPDATES["fp16x3"], device_rules("sm_90a")
    for dominant in (False, True):
        plan = schedule(16384, how, rules, None, True, dominant)
        assert {panel.substitution.is_dominant for panel in plan.panels} == {dominant}
        # These products are about as precise as the storage, for every arithmetic of the trailing updates.
        inner = {panel.substitution.update.name for panel in plan.panels if not panel.is_square}
        assert inner <= {"fp16x3", "fp32"}
        assert not plan.is_recorded
        recorded = schedule(16384, how, replace(rules, is_recorded=True), None, True, dominant)
        assert recorded.is_recorded and recorded.panels == plan.panels
    assert not schedule(300, UPDATES["fp64"], HostRules("d")).is_recorded


@pytest.mark.parametrize("most, n, char, order, early", EARLY)
def test_the_lu_starts_early_for_small_real_row_major_matrices(most, n, char, order, early):
    assert goes_early(np.empty((n, n), char, order), most) == early


def test_steps_are_started_ahead_for_one_column_and_a_real_matrix_with_contiguous_rows():
    a, b = np.zeros((50, 50)), np.zeros((50, 1))
    assert goes_ahead(a, b, 50) and goes_ahead(a.astype("f"), b, 50)
    assert goes_ahead(np.zeros((50, 64))[:, :50], b, 50)
    assert not goes_ahead(a, b, 49) and not goes_ahead(a, b, 0)
    assert not goes_ahead(a.T, b, 50) and not goes_ahead(a[::-1], b, 50)
    assert not goes_ahead(a.astype("F"), b, 50) and not goes_ahead(a, b.astype("D"), 50)
    assert not goes_ahead(a, np.zeros((50, 2)), 50)
