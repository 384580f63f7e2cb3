"""Recorded and replayed factorizations have the same bits as launched ones, and share no memory."""

import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tcsolve import Plan, Status, factor, solve, solve_ex
from tcsolve._paths import replaced, switched_off

pytestmark = pytest.mark.gpu


@pytest.fixture
def record(cupy):
    from tcsolve._backends.cuda.runtime import recorded_graphs

    recorded_graphs.clear()
    yield recorded_graphs
    recorded_graphs.clear()


def system(cupy, n, seed=0, dominant=False):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((n, n)), rng.standard_normal(n)
    return cupy.asarray(a + n * np.eye(n) if dominant else a), cupy.asarray(b)


@pytest.mark.parametrize("precision", ["fp16", "fp16x3", "bf16", "tf32"])
@pytest.mark.parametrize("n", [2, 97, 513, 1500])
def test_a_replay_gives_the_bits_of_a_launch(precision, n, cupy, record):
    plan = Plan(precision)
    matrices = [system(cupy, n, seed, dominant=True) for seed in range(5)]
    with replaced(most_recorded=0):
        launched = [solve_ex(a, b, precision=plan) for a, b in matrices]
    assert not record.census().idle
    replayed = [solve_ex(a, b, precision=plan) for a, b in matrices]
    assert record.census().recordings >= 2
    for x, y in zip(launched, replayed, strict=True):
        assert (x.x == y.x).all() and x.rcond == y.rcond
        assert (x.backward_error == y.backward_error).all() and x.rungs == y.rungs


@pytest.mark.parametrize("n, recorded", [(1024, True), (8192, True), (8193, False)])
def test_the_first_solve_of_a_size_is_recorded_unless_it_is_large(n, recorded, cupy, record):
    a, b = system(cupy, n)
    solve(a, b, precision="fp16x3")
    assert bool(record.census().recordings) is recorded


def test_look_ahead_is_recorded_with_the_same_bits(cupy, record, lu_sizes):
    lu_sizes(overlap_rows=0)
    a, b = system(cupy, 2000)
    first = solve(a, b, precision="fp16x3")
    assert all((solve(a, b, precision="fp16x3") == first).all() for _ in range(4))
    assert record.census().recordings


def test_factors_alive_together_share_nothing(cupy, record):
    systems = [system(cupy, 700, seed) for seed in range(4)]
    expected = [solve(a, b, precision="fp16x3") for a, b in systems]
    factors = [factor(a, precision="fp16x3") for a, _ in systems]
    for _ in range(3):
        for f, (_, b), x in zip(factors, systems, expected, strict=True):
            assert (f.solve(b) == x).all()
    del factors, f
    assert 1 <= record.census().idle <= record.MOST_IDLE


def test_a_singular_matrix_is_found_in_a_replay(cupy, record):
    a, b = system(cupy, 300, dominant=True)
    for _ in range(3):
        assert solve_ex(a, b, precision=Plan("fp16x3", fallback=False)).status is Status.CONVERGED
    a[:, 17] = 0
    found = solve_ex(a, b, precision=Plan("fp16x3", fallback=False))
    assert found.status is Status.SINGULAR and found.rcond == 0
    a[:, 17] = a[:, 18] + cupy.arange(300)
    assert solve_ex(a, b, precision=Plan("fp16x3", fallback=False)).status is Status.CONVERGED


def test_another_stream_waits_for_the_tape(cupy, record):
    systems = [system(cupy, 900, seed) for seed in range(6)]
    expected = [solve(a, b, precision="fp16x3") for a, b in systems]
    cupy.cuda.Device().synchronize()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    for i, (a, b) in enumerate(systems):
        with streams[i % 3]:
            assert (solve(a, b, precision="fp16x3") == expected[i]).all()


def test_threads_that_solve_at_once_find_the_answers_of_one(cupy, record):
    systems = [system(cupy, 800, seed) for seed in range(4)]
    expected = [solve(a, b, precision="fp16x3") for a, b in systems]
    wrong = []

    def work(i):
        a, b = systems[i]
        with cupy.cuda.Stream(non_blocking=True):
            for _ in range(6):
                if not (solve(a, b, precision="fp16x3") == expected[i]).all():
                    wrong.append(i)

    cupy.cuda.Device().synchronize()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))  # raises what a thread raised
    assert not wrong


def test_many_right_hand_sides_and_both_transposes(cupy, record):
    a, _ = system(cupy, 600)
    b = cupy.random.default_rng(3).standard_normal((600, 16))
    first = [solve(a, b[:, :k], precision="fp16x3") for k in (1, 3, 16)]
    for _ in range(3):
        for k, x in zip((1, 3, 16), first, strict=True):
            assert (solve(a, b[:, :k], precision="fp16x3") == x).all()
    assert cupy.abs(a @ first[2] - b).max() < 1e-9


def test_memory_is_given_back(cupy, record):
    a, b = system(cupy, 1000)
    for _ in range(3):
        solve(a, b, precision="fp16x3")
    assert record.idle_bytes() > 4 * 1000**2
    free, _ = cupy.cuda.runtime.memGetInfo()
    assert record.clear() and not record.clear()
    assert record.idle_bytes() == 0
    cupy.get_default_memory_pool().free_all_blocks()
    assert cupy.cuda.runtime.memGetInfo()[0] > free


def test_no_memory_of_a_tape_outlives_it(cupy, record, monkeypatch):
    blocks = []

    class Block(cupy.cuda.Memory):
        def __init__(self, size):
            super().__init__(size)
            blocks.append(weakref.ref(self))

    monkeypatch.setattr(cupy.cuda, "Memory", Block)
    a, b = system(cupy, 1500)
    for _ in range(4):
        solve(a, b, precision="fp16x3")
    assert any(block() for block in blocks)
    w = record.matrix(1500, "f")
    some = record.tape_of(w).run(
        "some", lambda: cupy.zeros(3) + 1
    )  # a caller may still hold this array
    del w
    record.clear()
    cupy.cuda.Device().synchronize()
    assert sum(block() is not None for block in blocks) == 1
    held = record.census().retired
    assert held and some.get().tolist() == [1.0, 1.0, 1.0]
    del some
    record.clear()
    assert not any(block() for block in blocks) and record.census().retired < held


def test_a_size_has_one_tape_however_often_it_is_solved(cupy, record):
    a, b = system(cupy, 350)
    for _ in range(8):
        solve(a, b, precision="fp16x3")
    assert record.census()[:2] == (1, 3)


@pytest.mark.parametrize("dominant", [False, True])
@pytest.mark.parametrize("n, block, rows", [(200, 50, 15000), (2500, 512, 15000), (2500, 512, 0)])
def test_panels_of_other_widths_are_recorded_as_well(
    n, block, rows, dominant, cupy, record, lu_sizes
):
    lu_sizes(least_columns=64, panel_rows=((1, rows), (3, rows)))
    a, b = system(cupy, n, dominant=dominant)
    plan = Plan("fp16x3", block=block)
    first = solve(a, b, precision=plan)
    assert all((solve(a, b, precision=plan) == first).all() for _ in range(4))
    assert record.census().recordings


@pytest.mark.parametrize("most_at_once", [0, 8192])
def test_a_factorization_that_fails_half_way_spoils_no_later_one(
    most_at_once, cupy, record, lu_sizes, monkeypatch
):
    from tcsolve._backends.cuda.lu.ops import DeviceLU

    lu_sizes(overlap_rows=0, least_columns=64, wide=256, most_at_once=most_at_once)
    (a, b), plan = system(cupy, 1500), Plan("fp16x3", block=256)
    with replaced(most_at_once=0):  # nothing is recorded, but the size is known
        first = solve(a, b, precision=plan)
    panels, merge_swaps = [], DeviceLU.merge_swaps

    def fail(self, order, *rest):
        panels.append(len(order))
        if len(panels) == 3:
            raise KeyboardInterrupt
        return merge_swaps(self, order, *rest)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(DeviceLU, "merge_swaps", fail)
        solve(a, b, precision=plan)
    assert len(panels) == 3
    assert all((solve(a, b, precision=plan) == first).all() for _ in range(4))


def test_a_tape_keeps_its_blocks_when_the_device_refuses_one(cupy, record, monkeypatch):
    a, b = system(cupy, 400)
    first = solve(a, b, precision="fp16x3")
    for _ in range(4):
        solve(a, b, precision="fp16x3")
    w, memory = record.matrix(400, "f"), cupy.cuda.Memory
    tape = record.tape_of(w)
    held = tape.nbytes
    refused = []

    def refuse_once(size):
        if not refused:
            refused.append(size)
            raise cupy.cuda.runtime.CUDARuntimeError(2)  # out of memory
        return memory(size)

    monkeypatch.setattr(cupy.cuda, "Memory", refuse_once)
    more = tape.run("more", lambda: cupy.empty(1 << 26, cupy.uint8))
    assert refused and tape.nbytes >= held + more.nbytes
    del w
    assert (solve(a, b, precision="fp16x3") == first).all()


def test_factors_that_live_on_do_not_each_keep_a_tape(cupy, record):
    systems = [system(cupy, 150, seed) for seed in range(record.MOST_LENT + 4)]
    factors = [factor(a, precision="fp16x3") for a, _ in systems]
    assert 1 <= record.census().lent <= record.MOST_LENT
    for f, (a, b) in zip(factors, systems, strict=True):
        assert cupy.abs(a @ f.solve(b) - b).max() < 1e-9


def test_a_recording_that_fails_is_launched(cupy, record, monkeypatch):
    a, b = system(cupy, 300)
    with replaced(most_recorded=0):
        first = solve(a, b, precision="fp16x3")

    def refuse(*_):
        raise RuntimeError("no")

    monkeypatch.setattr(cupy.cuda.Stream, "begin_capture", refuse)
    assert all((solve(a, b, precision="fp16x3") == first).all() for _ in range(4))
    assert not record.census().recordings


@pytest.mark.parametrize(
    "most_at_once, expected",
    [
        (0, [False, True, False, False, False, False]),
        (8192, [True, False, True, False, False, False, False]),
    ],
)
def test_a_recording_that_failed_after_a_launch_is_not_tried_again(
    most_at_once, expected, cupy, record, lu_sizes
):
    lu_sizes(most_at_once=most_at_once)
    n = 64
    record.matrix(n, "f")
    w, calls = record.matrix(n, "f"), []
    tape = record.tape_of(w)

    def body():
        calls.append(cupy.cuda.get_current_stream().is_capturing())
        if calls[-1]:
            raise RuntimeError("this cannot be captured")
        return cupy.zeros(3) + 1

    found = [tape.run("body", body).get().tolist() for _ in range(5)]

    assert calls == expected
    assert found == 5 * [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize("most_at_once, expected", [(0, [False, True]), (8192, [True])])
def test_a_body_that_divides_its_recording_has_the_same_result(
    most_at_once, expected, cupy, record, lu_sizes
):
    lu_sizes(most_at_once=most_at_once)
    n = 65
    record.matrix(n, "f")
    w, calls = record.matrix(n, "f"), []
    tape = record.tape_of(w)

    def body():
        calls.append(cupy.cuda.get_current_stream().is_capturing())
        x = cupy.zeros(1000)
        for _ in range(5):
            tape.divide()
            x += 1
            x *= 2
        return x

    found = [tape.run("body", body).get() for _ in range(5)]

    assert calls == expected
    assert all((x == 62).all() for x in found)


def test_the_condition_is_estimated_beside_the_refinement(cupy, record, monkeypatch):
    from tcsolve._backends.cuda.ops import CupyOps

    a, b = system(cupy, 700)
    beside = [solve_ex(a, b, precision="fp16x3") for _ in range(5)]
    assert record.census().recordings == 3
    # Another matrix at another address.
    other = solve_ex(-a, b, precision="fp16x3")
    assert record.census().recordings == 3 and other.rcond == beside[0].rcond
    monkeypatch.setattr(CupyOps, "aside", lambda *_, **__: None)
    after = solve_ex(a, b, precision="fp16x3")
    assert {s.rcond for s in beside} == {after.rcond}
    assert all((s.x == after.x).all() for s in beside)


def test_the_estimate_is_checked_with_a_beside_the_refinement(cupy, record, monkeypatch):
    from tcsolve._backends.cuda.ops import CupyOps

    a, b = system(cupy, 700)
    rconds = [solve_ex(a, b, precision="fp16x3").rcond for _ in range(3)]
    calls, held = [], CupyOps.held
    monkeypatch.setattr(CupyOps, "held", lambda *args: calls.append(1) or held(*args))
    assert solve_ex(a, b, precision="fp16x3").rcond == rconds[0] > 0
    assert len(calls) == 1  # during the refinement, and not again
    assert len(set(rconds)) == 1


@pytest.mark.parametrize("n", [300, 1100])
def test_the_choice_does_not_depend_on_what_was_solved_before(n, cupy, record):
    a, b = system(cupy, n, 0)
    a += n * cupy.eye(n)  # dominant, which a factorization that starts early cannot know

    solutions = [solve_ex(a, b) for _ in range(4)]

    assert {s.rungs for s in solutions} == {solutions[0].rungs}
    assert all((s.x == solutions[0].x).all() for s in solutions)


@pytest.mark.parametrize("precision", ["fp16", "fp16x3"])
@pytest.mark.parametrize("n", [2, 97, 700, 2050])
def test_steps_ahead_have_the_bits_of_single_steps(n, precision, cupy, record, monkeypatch):
    from tcsolve._backends.cuda.lu.ops import DeviceLU

    systems = [system(cupy, n, seed) for seed in range(5)]  # each at an address of its own
    systems += [(a, cupy.stack([b, b], axis=1)[:, 1]) for a, b in systems[:2]]
    ahead = [solve_ex(a, b, precision=precision) for a, b in systems]
    monkeypatch.setattr(DeviceLU, "ahead", lambda *_, **__: None)
    single = [solve_ex(a, b, precision=precision) for a, b in systems]
    for x, y in zip(ahead, single, strict=True):
        assert (x.x == y.x).all() and (x.iterations == y.iterations).all()
        assert (x.backward_error == y.backward_error).all() and x.rungs == y.rungs
        assert all((p.error == q.error).all() for p, q in zip(x.history, y.history, strict=True))


def test_steps_ahead_with_bad_inverses_do_not_count(cupy, record, monkeypatch):
    from tcsolve._lu import factors

    monkeypatch.setattr(factors, "inverses_serve", lambda condition, char: False)
    a, b = system(cupy, 400)
    with switched_off("steps_ahead"):
        expected = solve_ex(a, b, precision="fp16x3")
    assert expected.status is Status.CONVERGED
    for _ in range(4):
        found = solve_ex(a, b, precision="fp16x3")
        assert (found.x == expected.x).all() and found.rcond == expected.rcond


def test_an_answer_keeps_no_other_memory(cupy, record):
    a, b = system(cupy, 700)
    for _ in range(4):
        x = solve(a, b, precision="fp16x3")
    assert x.base is None or x.base.nbytes == x.nbytes


def test_steps_ahead_pass_a_nan_on_and_take_large_numbers(cupy, record):
    a, b = system(cupy, 300, dominant=True)
    expected = solve(a, b, precision="fp16x3")
    for _ in range(4):
        assert (solve(a, b, precision="fp16x3") == expected).all()
    b[7] = np.nan
    assert cupy.isnan(solve(a, b, precision="fp16x3", check_finite=False)).all()
    b[7] = 1e300
    assert solve_ex(a, b, precision="fp16x3").status is Status.CONVERGED


@pytest.mark.parametrize("recorded", [True, False])
def test_an_estimate_that_is_not_read_does_no_harm(recorded, cupy, record, lu_sizes):
    """The next factorization writes to memory that the estimate of the last one still reads."""
    if not recorded:
        lu_sizes(most_recorded=0)
    systems = [system(cupy, 2000, seed, dominant=True) for seed in range(2)]
    expected = [solve_ex(a, b, precision="fp16x3") for a, b in systems]
    for _ in range(4):
        for (a, b), s in zip(systems, expected, strict=True):
            left = factor(a, precision="fp16x3")
            with pytest.raises(ValueError, match="b "):
                left.solve(b * np.nan)
            gone = weakref.ref(left)
            del left
            assert gone() is None
            found = solve_ex(a, b, precision="fp16x3")
            assert (found.x == s.x).all() and found.rcond == s.rcond


def test_no_tape_is_lent_after_a_fallback(cupy, record):
    rng = np.random.default_rng(0)
    q = [np.linalg.qr(rng.standard_normal((600, 600)))[0] for _ in range(2)]
    a = cupy.asarray(q[0] * np.geomspace(1, 1e-12, 600) @ q[1])
    b = a @ cupy.ones(600)
    for _ in range(4):
        assert len(solve_ex(a, b, precision="fp16").rungs) > 1
        assert record.census().lent == 0


def test_factors_are_complete_for_another_stream(cupy, record):
    a, b = system(cupy, 3000)
    expected = solve(a, b, precision="fp16x3")
    for _ in range(3):
        f = factor(a, precision="fp16x3")
        with cupy.cuda.Stream(non_blocking=True):
            assert (f.solve(b) == expected).all() and f.rcond() > 0
