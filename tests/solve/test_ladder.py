"""Growth and stagnation: a system that one rung does not solve is solved by the next, or reported."""

import numpy as np
import pytest
from bounds import MET, host, ratio
from systems import growth_both_ways

from tcsolve import Plan, Status, matrices, solve_ex


@pytest.mark.parametrize("precision", ["auto", "fp16x3", "fp32", "fp64"])
@pytest.mark.parametrize("n", [60, 80, 100])
def test_wilkinsons_growth_is_refined_away(xp, n, precision):
    a, b = growth_both_ways(n), np.random.default_rng(0).standard_normal(2 * n)

    solution = solve_ex(xp.asarray(a), xp.asarray(b), precision=precision)

    assert solution.status.ok
    assert ratio(a, solution.x, b) <= MET


@pytest.mark.parametrize(
    "start, second", [("bf16", "fp16x3"), ("fp16", "fp16x3"), ("tf32", "fp16x3")]
)
def test_a_rung_that_stalls_is_followed_by_the_next(xp, start, second):
    problem = matrices.generate("svd_geo", 200, cond=1e10, seed=2)

    solution = solve_ex(xp.asarray(problem.a), xp.asarray(problem.b), precision=start)

    assert solution.status is Status.CONVERGED_AFTER_FALLBACK
    assert solution.rungs[:2] == (start, second)
    assert solution.precision == solution.rungs[-1]
    assert ratio(problem.a, solution.x, problem.b) <= MET
    assert {point.rung for point in solution.history} == set(solution.rungs)


def test_the_ladder_ends_with_fp64(xp):
    problem = matrices.generate("svd_geo", 200, cond=1e14, seed=2)

    solution = solve_ex(xp.asarray(problem.a), xp.asarray(problem.b), precision="bf16")

    assert solution.rungs == ("bf16", "fp16x3", "fp64")
    assert ratio(problem.a, solution.x, problem.b) <= MET


@pytest.mark.parametrize("update", ["bf16", "fp16", "tf32"])
def test_without_fallback_a_stall_is_reported_with_the_best_x(xp, update):
    problem = matrices.generate("svd_geo", 100, cond=1e10, seed=2)

    solution = solve_ex(
        xp.asarray(problem.a),
        xp.asarray(problem.b),
        precision=Plan(update, block=16, fallback=False),
    )

    assert solution.status is Status.STALLED and not solution.status.ok
    assert solution.rungs == (update,)
    assert np.isfinite(host(solution.x)).all()
    assert ratio(problem.a, solution.x, problem.b) > 1


@pytest.mark.parametrize("update", ["fp16", "fp16x3", "fp32"])
@pytest.mark.parametrize("decades", [30, 40])
def test_scaling_saves_what_would_underflow_in_fp32(xp, decades, update):
    problem = matrices.generate("mixed_scales", 60, decades=decades)

    without, scaled = (
        solve_ex(
            xp.asarray(problem.a),
            xp.asarray(problem.b),
            precision=Plan(update, fallback=False, scale=scale),
        )
        for scale in (False, True)
    )

    assert not without.status.ok
    assert scaled.status.ok
    assert ratio(problem.a, scaled.x, problem.b) <= MET


@pytest.mark.parametrize("n", [100, 1300])
def test_a_plan_that_leaves_the_update_open_takes_the_fastest_within_its_limits(n):
    p = matrices.generate("svd_geo", n, cond=1e3, seed=0)
    expected = solve_ex(p.a, p.b, device="cpu").precision

    found = solve_ex(p.a, p.b, precision=Plan("auto", max_steps=3), device="cpu")

    assert found.precision == expected and found.status.ok
    assert found.iterations.max() <= 3


@pytest.mark.parametrize("kind", ["svd_arith", "svd_cluster1"])
def test_fp64_factors_follow_at_once_where_they_take_less_time_than_fgmres(xp, kind):
    n = 600 if xp is np else 1600  # a device solves smaller systems in FP64
    problem = matrices.generate(kind, n, cond=1e12, seed=3)
    a, b = xp.asarray(problem.a), xp.asarray(problem.b)

    solution = solve_ex(a, b)
    chosen = solve_ex(a, b, precision=Plan("auto", max_steps=100))
    asked = solve_ex(a, b, precision=Plan("auto", method="fgmres"))

    assert len(solution.rungs) == 2 and solution.precision == "fp64"
    assert solution.iterations.max() <= 6
    assert not any(point.estimated for point in solution.history)
    assert all(ratio(problem.a, s.x, problem.b) <= MET for s in (solution, chosen, asked))
    for longer in (chosen, asked):
        assert len(longer.rungs) == 1 and longer.iterations.max() > 6
        assert any(point.estimated for point in longer.history)


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp16x3"])
def test_zeros_first_do_not_keep_many_columns_on_a_rung_that_is_too_low(precision):
    n, rng = 150, np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    sizes = np.where(np.arange(n) < n // 2, 1.0, 1e-9)
    b = rng.standard_normal((n, 5 * n))
    b[:, : n // 8] = 0

    found = solve_ex((u * sizes) @ v, b, precision=precision)

    assert found.status is Status.CONVERGED_AFTER_FALLBACK
    assert np.median(found.iterations) == 0  # most columns are solved with FP64 factors alone
