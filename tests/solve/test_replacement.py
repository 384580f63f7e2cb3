"""On the host, FP64 factors replace FP32 factors after many solves."""

import copy
import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from bounds import MET, ratio
from systems import problem

from tcsolve import Plan, Status, factor
from tcsolve._backends.cpu.lu import HostLU
from tcsolve._solve.choice.cost_model import CPU, factor_cost, pass_cost
from tcsolve._solve.factored.replacement import Replacement

N = 700  # 'auto' takes FP32 factors on the host
MANY = 40


def right_hand_sides(count=MANY, columns=None, dtype=float):
    rng = np.random.default_rng(1)
    return [rng.standard_normal((N, columns) if columns else N).astype(dtype) for _ in range(count)]


def solved(f, systems):
    return [f.solve_ex(b) for b in systems]


def on_host(a=None, **options):
    return factor(problem(N).a if a is None else a, device="cpu", **options)


@pytest.mark.parametrize("dtype", [float, complex])
def test_fp64_factors_follow_after_many_solves_and_every_answer_is_verified(dtype):
    a, systems = problem(N, dtype=dtype).a, right_hand_sides(dtype=dtype)
    f = on_host(a)
    assert f.precision == "fp32" and f.replaced_after is None

    found = solved(f, systems)

    first = [s.precision for s in found].index("fp64")
    assert 2 <= first == f.replaced_after < MANY
    assert [s.precision for s in found] == ["fp32"] * first + ["fp64"] * (MANY - first)
    assert {s.rungs for s in found[first:]} == {("fp32", "fp64")} and f.precision == "fp64"
    assert {s.status for s in found} == {Status.CONVERGED}
    assert len({s.rcond for s in found}) == 1
    assert max(s.iterations.max() for s in found[first:]) < min(
        s.iterations.max() for s in found[:first]
    )
    for b, s in zip(systems, found, strict=True):
        assert ratio(a, s.x, b) <= MET and (s.backward_error <= s.bound).all()


def test_the_replacement_is_told_once_and_its_time_counts_in_that_solve():
    f = on_host()
    found = solved(f, right_hand_sides())

    (told,) = (s for s in found if s.note)
    assert told is found[f.replaced_after]
    assert told.note == f"fp64 factors replaced the fp32 factors after {f.replaced_after} solves"
    assert (
        "note            fp64 factors replaced" in str(told) and told.to_dict()["note"] == told.note
    )
    assert ["factor" in s.seconds for s in found[1:]] == [s is told for s in found[1:]]
    assert "note " not in str(found[0])


def test_the_same_calls_give_the_same_bits():
    systems = right_hand_sides()
    one, other = on_host(), on_host()

    for first, second in zip(solved(one, systems), solved(other, systems), strict=True):
        assert np.array_equal(first.x, second.x) and first.note == second.note
    assert one.replaced_after == other.replaced_after


def test_many_columns_bring_fp64_factors_sooner():
    few, many = on_host(), on_host()
    solved(few, right_hand_sides())
    solved(many, right_hand_sides(10, columns=30))
    assert many.replaced_after < few.replaced_after


def test_transposed_systems_count_too():
    f = on_host()
    found = [f.solve_ex(b, trans=1) for b in right_hand_sides()]
    assert found[-1].precision == "fp64" and found[f.replaced_after].note
    assert all(s.status is Status.CONVERGED for s in found)


@pytest.mark.parametrize("precision", ["fp32", Plan("fp32"), Plan("auto", fallback=False)])
def test_factors_that_were_named_or_may_not_fall_back_stay(precision):
    f = on_host(precision=precision)
    assert not any(s.note for s in solved(f, right_hand_sides(25)))
    assert f.precision == "fp32" and f.replaced_after is None


def test_a_plan_that_names_no_update_lets_the_factors_be_replaced():
    f = on_host(precision=Plan("auto", contraction=0.4))
    solved(f, right_hand_sides())
    assert f.precision == "fp64"


def test_answers_in_fp32_keep_factors_in_fp32():
    f = on_host(problem(N, dtype=np.float32).a)
    solved(f, right_hand_sides(25, dtype=np.float32))
    assert f.precision == "fp32" and f.replaced_after is None


@pytest.mark.parametrize("copied", [copy.copy, lambda f: pickle.loads(pickle.dumps(f))])
def test_copies_go_on_counting_by_themselves(copied):
    systems, whole = right_hand_sides(), on_host()
    solved(whole, systems)
    f = on_host()
    solved(f, systems[:2])

    twin = copied(f)

    assert twin.replaced_after is None
    solved(twin, systems[2:])
    assert twin.replaced_after == whole.replaced_after
    assert f.replaced_after is None and f.precision == "fp32"
    assert copied(twin).replaced_after == twin.replaced_after


def test_without_memory_for_fp64_factors_the_present_ones_stay(monkeypatch):
    f, asked = on_host(), []

    def refuse(self, a, dtype, overwrite_a=False):
        asked.append(dtype)
        raise MemoryError("no room")

    monkeypatch.setattr(HostLU, "getrf", refuse)
    found = solved(f, right_hand_sides())

    assert asked == [np.dtype(float)]  # it is tried once
    assert f.replaced_after is None and f.precision == "fp32"
    assert all(s.status is Status.CONVERGED and not s.note for s in found)


def test_threads_see_one_replacement():
    a, systems = problem(N).a, right_hand_sides()
    f = on_host(a)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(f.solve_ex, systems))

    assert sum(bool(s.note) for s in found) == 1
    assert sum(s.precision == "fp32" for s in found) == f.replaced_after
    assert all(ratio(a, s.x, b) <= MET for b, s in zip(systems, found, strict=True))


class Imagined:
    """A ladder without numbers, and the predicted seconds of its work."""

    def __init__(self, n):
        self.precision, self.made, self.seconds = "fp32", 1, factor_cost("fp32", n, CPU)
        self.system = SimpleNamespace(a=range(n), is_complex=False)

    def replace_by_fp64(self):
        self.precision, self.made = "fp64", 2
        self.seconds += factor_cost("fp64", len(self.system.a), CPU)


@pytest.mark.parametrize("n, columns", [(300, 1), (1000, 1), (1000, 50), (4000, 1), (4000, 400)])
@pytest.mark.parametrize("steps", [[2], [5], [1, 9, 2]])
def test_the_predicted_time_is_at_most_twice_that_of_the_better_choice_in_hindsight(
    n, columns, steps
):
    ladder, replacement = Imagined(n), Replacement(True)
    condition = SimpleNamespace(keep=lambda made: None)
    solve = {name: pass_cost(name, n, columns, CPU) for name in ("fp32", "fp64")}
    stay, begin = (factor_cost(name, n, CPU) for name in ("fp32", "fp64"))

    for taken in itertools.islice(itertools.cycle(steps), 300):
        replacement.begin(ladder, condition)
        passes = 1 if ladder.precision == "fp64" else 1 + taken
        ladder.seconds += passes * solve[ladder.precision]
        replacement.count(ladder, np.full(columns, taken))
        stay, begin = stay + (1 + taken) * solve["fp32"], begin + solve["fp64"]
        # Time is added up after each solve, so one FP32 solve may be more than the limit allows.
        assert ladder.seconds <= 2 * min(stay, begin) + (1 + max(steps)) * solve["fp32"]
    assert ladder.precision == "fp64" and replacement.after == replacement.solves
