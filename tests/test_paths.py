"""The switches of the special paths: each is read, and each changes the choice that it names."""

import ast
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from switches import import_or_skip

import tcsolve
from tcsolve import matrices, solve_ex
from tcsolve._backends.cpu.lu import HostLU
from tcsolve._backends.cpu.ops import NumpyOps
from tcsolve._contract.schedule import goes_ahead, goes_early
from tcsolve._lu.elimination import factor_blocked
from tcsolve._paths import OFF, SMALL_GRAPHS, Paths, paths, replaced, switched_off

FOLDER = Path(tcsolve.__file__).parent
FIELDS = [field.name for field in dataclasses.fields(Paths)]


def reads():
    """Return every attribute that a module reads of `paths()` or of `self.paths`."""
    found = set()
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                of = node.value.func if isinstance(node.value, ast.Call) else node.value
                name = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", None)
                if name == "paths":
                    found.add(node.attr)
    return found


def test_every_switch_is_read_and_nothing_else():
    assert reads() == set(FIELDS)


@pytest.mark.parametrize("name", OFF)
def test_a_switch_is_off_inside_and_on_again_outside(name):
    usual = paths()
    assert usual == Paths() and hash(usual) == hash(Paths())
    with pytest.raises(KeyError, match="inside"), switched_off(name):
        changed = [field for field in FIELDS if getattr(paths(), field) != getattr(usual, field)]
        assert sorted(changed) == sorted(OFF[name])
        raise KeyError("inside")
    assert paths() is usual


def test_switches_nest():
    with replaced(square_rows=1), switched_off("gate"):
        assert (paths().square_rows, paths().gate) == (1, False)
        with replaced(gate=True):
            assert (paths().square_rows, paths().gate) == (1, True)
    assert paths() == Paths()


# ---- what needs no device


class Reported(HostLU):
    """NumPy whose plans look ahead; `overlap` counts the panels that are factored during an update."""

    def __init__(self):
        self.count = 0

    def rules(self, dtype, w=None):
        rules = super().rules(dtype, w)

        class Rules(type(rules)):
            overlap_rows = 0

            def block(self, left, update, dominant):
                return 32

        return Rules(rules.char)

    def overlap(self, step):
        self.count += 1
        step.do()


def test_without_look_ahead_no_panel_is_factored_beside_an_update_and_no_bit_changes():
    from tcsolve._arithmetic.formats import UPDATES

    a = np.random.default_rng(0).standard_normal((200, 200)).astype(np.float32)
    ahead, plain = NumpyOps(), NumpyOps()
    ahead.lu, plain.lu = Reported(), Reported()
    factors = factor_blocked(ahead, a.copy(), UPDATES["fp16x3"])
    with switched_off("look_ahead"):
        same = factor_blocked(plain, a.copy(), UPDATES["fp16x3"])
    assert ahead.lu.count == 6 and plain.lu.count == 0
    assert np.array_equal(factors.lu, same.lu) and np.array_equal(factors.order, same.order)


def test_without_an_exact_prediction_the_bytes_depend_on_n_alone():
    a = matrices.generate("gauss", 600, seed=1).a
    planned = {}
    for nrhs in (1, 300):
        planned[nrhs] = solve_ex(a, np.ones((600, nrhs)), precision="fp16x3").bytes_planned
    with switched_off("exact_memory"):
        rough = {
            solve_ex(a, np.ones((600, nrhs)), precision="fp16x3").bytes_planned for nrhs in planned
        }
    assert len(rough) == 1 and planned[1] != planned[300]


# ---- choices on a device; most arrays are NumPy's, because most tests launch nothing


A, B = np.zeros((4096, 8)), np.zeros((4096, 1))


@pytest.mark.gpu
def test_the_lu_waits_for_the_survey_without_an_early_start(ops):
    assert goes_early(A, ops.early_rows)
    with switched_off("early_start"):
        assert not goes_early(A, ops.early_rows)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["steps_ahead", "residual_kernel"])
def test_no_step_is_launched_ahead_without_its_kernel_or_switch(ops, name):
    assert goes_ahead(A, B, ops.ahead_rows)
    with switched_off(name):
        assert not goes_ahead(A, B, ops.ahead_rows)


@pytest.mark.gpu
def test_the_residual_kernel_takes_no_matrix_when_it_is_off(cupy):
    from tcsolve._backends.cuda.lu import first_steps

    assert first_steps.has_rows(A)
    with switched_off("residual_kernel"):
        assert not first_steps.has_rows(A)


@pytest.mark.gpu
def test_nothing_is_inverted_for_triangular_solves_that_are_off(ops, monkeypatch):
    from tcsolve._backends.cuda.lu import ops as lu_ops

    monkeypatch.setattr(lu_ops, "invert_diagonal_blocks", lambda lu: ("inverses", "condition"))
    monkeypatch.setattr(lu_ops.row_swaps, "report", lambda *of: "report")
    monkeypatch.setattr(lu_ops.cupy, "zeros", lambda size: None)
    assert ops.lu.finish(A, None, None, None) == ("report", "inverses")
    with switched_off("triangular_kernels"):
        assert ops.lu.finish(A, None, None, None) == ("report", None)


@pytest.mark.gpu
def test_no_estimate_runs_aside_when_it_is_off(ops, monkeypatch):
    from tcsolve._backends.cuda.runtime import recorded_graphs

    monkeypatch.setattr(recorded_graphs, "tape_of", lambda x: None)
    with switched_off("condition_aside"):
        assert ops.aside(A, (), "condest", lambda: pytest.fail("it ran")) is None


@pytest.mark.gpu
def test_sums_come_from_two_launches_without_the_single_survey(ops, cupy):
    from tcsolve._backends.cuda.runtime.launch_counter import counted

    a = cupy.asarray(matrices.generate("gauss", 512, seed=1).a)
    with counted() as launches:
        ops.extremes(a, np.dtype("f"))
    assert launches["tcs_survey"] == 1 and not launches["tcs_row_stats"]
    with switched_off("single_survey"), counted() as launches:
        ops.extremes(a, np.dtype("f"))
    assert (
        not launches["tcs_survey"] and launches["tcs_row_stats"] == launches["tcs_col_stats"] == 1
    )


@pytest.mark.gpu
def test_graphs_are_recorded_for_small_or_for_large_matrices(cupy, monkeypatch):
    from tcsolve._backends.cuda.runtime import cublas_calls, recorded_graphs

    monkeypatch.setattr(cublas_calls, "recordable", lambda: True)

    def recorded():
        sizes = (0, 1, SMALL_GRAPHS, SMALL_GRAPHS + 1, 32768, 32769)
        return [n for n in sizes if recorded_graphs.recordable(n, np.dtype("f"))]

    assert recorded() == [1, SMALL_GRAPHS, SMALL_GRAPHS + 1, 32768]
    with switched_off("small_graphs"):
        assert recorded() == [SMALL_GRAPHS + 1, 32768]
    with switched_off("large_graphs"):
        assert recorded() == [1, SMALL_GRAPHS]


class Stream:
    def wait_event(self, event):
        pass


def test_the_gate_has_no_patience_when_it_is_off(monkeypatch):
    import_or_skip("cupy")
    from tcsolve._backends.cuda.lu import sm_partition

    patience = []
    launch = lambda grid, block, args: patience.append(args[1])  # noqa: E731
    monkeypatch.setattr(sm_partition.compiler, "kernel", lambda name, entry: launch)

    def wait():
        share = sm_partition.Share(Stream(), 16, 0, None)
        share.panel_follows("event")
        share.await_panel()

    wait()
    with switched_off("gate"):
        wait()
    assert patience == [sm_partition.GATE_PATIENCE, 0] and patience[0] > 0


@pytest.mark.gpu
def test_a_graph_is_replayed_only_with_the_paths_it_was_recorded_with(cupy):
    from tcsolve._backends.cuda.runtime import recorded_graphs

    a = cupy.asarray(matrices.generate("gauss", 1500, seed=1).a)
    b = a @ cupy.ones(1500)

    def solve_some():
        xs = [solve_ex(a, b, precision="fp16x3").x for _ in range(4)]
        return xs[-1], recorded_graphs.census().recordings

    recorded_graphs.clear()
    usual, few = solve_some()
    with switched_off("gate"):
        other, more = solve_some()
    again, same = solve_some()
    recorded_graphs.clear()
    assert 0 < few < more == same
    assert (usual == other).all() and (usual == again).all()
