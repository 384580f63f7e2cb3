"""GMRES with left preconditioning: in solves, compared with a textbook, and in studies."""

import warnings

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg
from bounds import MET, ratio

import tcsolve
from tcsolve import Plan, Status, matrices

ALONE = {"fallback": False, "max_steps": 600, "block": 16, "basis": 100}


def plan(update="fp16", **options):
    return Plan(update, **{"method": "gmres", **ALONE, **options})


def cycles(solution):
    """Return the number of cycles; check that neither the first nor the last error is an estimate."""
    inner = [point.estimated for point in solution.history]
    assert not inner[0] and not inner[-1]
    return sum(now and not after for now, after in zip(inner, inner[1:], strict=False))


def on_host(x):
    return x.get() if hasattr(x, "get") else x


# ---- one right-hand side


# Classical refinement stalls for these; the basis spans the whole space if it has to.
@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize(
    "update, cond",
    [
        *(("fp16", cond) for cond in (1e5, 1e7, 1e9)),
        *(("bf16", cond) for cond in (1e4, 1e6, 1e9)),
        *(("fp32", cond) for cond in (1e9, 3e9)),
        ("fp16@h200", 1e6),
    ],
)
def test_it_converges_where_classical_refinement_stalls(xp, update, cond, dtype):
    a = matrices.generate("svd_geo", 100, cond=cond, dtype=dtype, seed=1).a
    b = np.random.default_rng(0).standard_normal(100)
    on = xp.asarray(a), xp.asarray(b)

    alone = tcsolve.solve_ex(*on, precision=plan(update, method="ir"))
    solution = tcsolve.solve_ex(*on, precision=plan(update))

    assert alone.status is Status.STALLED
    assert solution.status is Status.CONVERGED and solution.rungs == (update,)
    assert solution.backward_error[0] <= solution.bound == alone.bound
    assert ratio(a, on_host(solution.x), b) <= MET


@pytest.mark.parametrize("update", ["fp16", "bf16", "fp16x3", "fp32", "fp64"])
@pytest.mark.parametrize("cond", [1e1, 1e3])
def test_answers_are_those_of_fgmres(update, cond):
    problem = matrices.generate("svd_geo", 80, cond=cond)
    found = [
        tcsolve.solve_ex(problem.a, problem.b, precision=plan(update, method=method))
        for method in ("fgmres", "gmres")
    ]
    for one in found:
        assert one.status is Status.CONVERGED and one.bound == found[0].bound
        assert np.abs(one.x - found[0].x).max() <= cond * 1e-14 * np.abs(found[0].x).max()
    assert found[0].rcond == pytest.approx(found[1].rcond, rel=0.01)


@pytest.mark.parametrize("n", [80, 300])  # the first one is a single panel
def test_the_history_has_the_inner_steps_and_ends_with_the_error(n):
    problem = matrices.generate("svd_geo", n, cond=1e8)

    solution = tcsolve.solve_ex(problem.a, problem.b, precision=Plan("fp32", method="gmres"))

    inner = [point for point in solution.history if point.estimated]
    assert solution.status is Status.CONVERGED and cycles(solution) >= 2
    assert [point.step[0] for point in inner] == [*range(1, solution.iterations[0] + 1)]
    assert all(point.rung == "fp32" for point in solution.history)
    assert solution.history[-1].error == solution.backward_error


def test_a_cycle_ends_at_the_inner_tolerance():
    problem = matrices.generate("svd_geo", 80, cond=1e3)

    def found(**options):
        solution = tcsolve.solve_ex(problem.a, problem.b, precision=plan("bf16", **options))
        assert solution.status is Status.CONVERGED
        return solution

    default, coarse, fine = found(), found(inner_tol=1e-2), found(inner_tol=1e-9)
    assert cycles(coarse) > cycles(default) > cycles(fine)
    assert found(inner_tol=1e-4).history[1:-1] == default.history[1:-1]
    # The estimates are those of the preconditioned residual, which each cycle reduces by the tolerance.
    for solution, tol in ((default, 1e-4), (coarse, 1e-2), (fine, 1e-9)):
        start = solution.history[0].error
        for point, after in zip(solution.history[1:], solution.history[2:], strict=False):
            ends = point.estimated and not after.estimated
            assert (point.error <= tol * start) == ends or not point.estimated
            start = start if point.estimated else point.error


def test_a_smaller_tolerance_follows_where_the_first_is_too_large():
    stalled = []
    for seed in range(3):
        problem = matrices.generate("svd_geo", 100, cond=1e6, seed=seed)
        fixed = tcsolve.solve_ex(problem.a, problem.b, precision=plan("bf16", inner_tol=1e-4))
        free = tcsolve.solve_ex(problem.a, problem.b, precision=plan("bf16"))
        assert free.status is Status.CONVERGED
        stalled.append(fixed.status is Status.STALLED)
    assert any(stalled)


def test_factors_applied_in_their_own_precision_are_enough_for_smaller_condition_numbers():
    def status(cond, preconditioner):
        problem = matrices.generate("svd_geo", 100, cond=cond, seed=1)
        how = plan("fp32", preconditioner=preconditioner)
        return tcsolve.solve_ex(problem.a, problem.b, precision=how).status

    assert status(1e5, "factors") is status(1e5, "auto") is status(1e9, "auto") is Status.CONVERGED
    assert status(1e9, "fp64") is Status.CONVERGED and status(1e9, "factors") is Status.STALLED


# ---- the textbook


def textbook(a, b, factors, bound, *, inner_tol):
    """Return the number of GMRES steps of a textbook, with the `factors` of scipy.linalg.lu_factor.

    Algorithm 3.1 of E. Carson, N. J. Higham, SIAM J. Sci. Comput. 40 (2018), A817-A847.
    """

    def invert(v):
        return scipy.linalg.lu_solve(factors, v)

    n, steps = len(a), []
    low = factors[0].astype(np.float32 if a.dtype.kind != "c" else np.complex64), factors[1]
    x = scipy.linalg.lu_solve(low, b.astype(low[0].dtype)).astype(a.dtype)
    operator = scipy.sparse.linalg.LinearOperator(a.shape, lambda v: invert(a @ v), dtype=a.dtype)
    norm = np.linalg.norm(a, np.inf)
    how = {"rtol": inner_tol, "restart": n, "maxiter": 1, "callback_type": "pr_norm"}
    for _ in range(20):
        r = b - a @ x
        if np.abs(r).max() <= bound * norm * np.abs(x).max():
            break
        x = x + scipy.sparse.linalg.gmres(operator, invert(r), callback=steps.append, **how)[0]
    return len(steps)


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("inner_tol", [None, 1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("cond", [1e2, 1e5, 1e7, 1e8])
def test_it_takes_about_as_many_steps_as_a_textbook(cond, inner_tol, dtype):
    # In Fortran order, so that SciPy gives the same factors.
    a = np.asfortranarray(matrices.generate("svd_geo", 120, cond=cond, dtype=dtype, seed=2).a)
    b = np.random.default_rng(3).standard_normal(120).astype(dtype)
    single = np.complex64 if dtype is complex else np.float32
    lu, pivots = scipy.linalg.lu_factor(a.astype(single))

    solution = tcsolve.solve_ex(a, b, precision=plan("fp32", inner_tol=inner_tol))

    factors = lu.astype(dtype), pivots
    steps = textbook(a, b, factors, solution.bound, inner_tol=inner_tol or 1e-4)
    assert solution.status.ok and steps > 0
    assert abs(solution.iterations[0] - steps) <= 2


# ---- several right-hand sides


def hard_and_easy(dtype=float):
    """Return a matrix with an easy and a hard block, and right-hand sides that may be zero in a block."""
    hard = matrices.generate("svd_geo", 60, cond=1e5, dtype=dtype, seed=1).a
    a = scipy.linalg.block_diag(np.diag(np.linspace(1, 2, 40)) + 0.01, hard)
    b = np.random.default_rng(0).standard_normal((100, 5)).astype(dtype)
    b[40:, 0] = b[:40, 1] = b[:, 3] = 0
    return a, b


@pytest.mark.parametrize("dtype", [float, complex])
def test_columns_take_about_as_many_steps_together_as_alone(xp, dtype):
    a, b = hard_and_easy(dtype)

    together = tcsolve.solve_ex(xp.asarray(a), xp.asarray(b), precision=plan())

    assert together.status is Status.CONVERGED
    x = on_host(together.x)
    assert ratio(a, x, b) <= MET and not x[:, 3].any()
    assert together.iterations[3] == 0 < together.iterations[0] < together.iterations[1]
    assert (together.history[-1].error == together.backward_error).all()
    for c in range(5):
        alone = tcsolve.solve_ex(xp.asarray(a), xp.asarray(b[:, c]), precision=plan())
        assert abs(alone.iterations[0] - together.iterations[c]) <= 2


def test_a_nan_in_one_column_is_not_in_the_others():
    a, b = hard_and_easy()
    b[7, 4] = np.nan

    solution = tcsolve.solve_ex(a, b, precision=plan(), check_finite=False)

    assert solution.status is Status.NONFINITE_INPUT
    assert np.isnan(solution.x[:, 4]).any() and ratio(a, solution.x[:, :4], b[:, :4]) <= MET


def test_a_singular_matrix_is_found():
    a, b = hard_and_easy()
    a[:, 50] = 0
    assert tcsolve.solve_ex(a, b, precision=plan()).status is Status.SINGULAR
    a[:] = np.nan
    found = tcsolve.solve_ex(a, b, precision=plan(), check_finite=False)
    assert found.status is Status.NONFINITE_INPUT


@pytest.mark.parametrize("trans", [1, 2])
@pytest.mark.parametrize("dtype", [float, complex])
def test_the_factors_solve_the_transposed_system_too(dtype, trans):
    a, b = hard_and_easy(dtype)
    solution = tcsolve.factor(a, precision=plan()).solve_ex(b, trans=trans)
    assert solution.status is Status.CONVERGED
    assert ratio((a.T, a.conj().T)[trans - 1], solution.x, b) <= MET


@pytest.mark.parametrize("size", [2.0**-1000, 2.0**900])
def test_matrices_near_the_ends_of_the_range_converge(size):
    a, b = hard_and_easy()
    scales = 2.0 ** np.linspace(-30, 30, 100).round()
    for matrix in (a * size, a * scales, a * scales[:, None]):
        solution = tcsolve.solve_ex(matrix, b, precision=plan())
        assert solution.status.ok and (solution.backward_error <= solution.bound).all()


# ---- with the rest of the library


def test_a_stall_goes_on_to_the_next_rung():
    problem = matrices.generate("svd_geo", 100, cond=1e12)
    solution = tcsolve.solve_ex(
        problem.a, problem.b, precision=Plan("fp16", method="gmres", block=16)
    )
    assert solution.status is Status.CONVERGED_AFTER_FALLBACK and solution.precision == "fp64"


@pytest.mark.parametrize("cond", [1e3, 1e10])
def test_it_works_with_residuals_in_double_double(cond):
    problem = matrices.generate("svd_geo", 50, cond=cond, seed=1)

    found = tcsolve.solve_ex(problem.a, problem.b, precision=plan("fp32"), residual="double-double")

    accurate = tcsolve.solve_ex(problem.a, problem.b, residual="double-double")
    assert found.status is Status.CONVERGED and found.precision == "fp32"
    assert found.forward_error[0] <= 2.0**-52
    assert np.abs(found.x - accurate.x).max() <= 2.0**-51 * np.abs(accurate.x).max()


def test_refine_takes_an_inverse_of_the_caller():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((60, 60))
    inverse = np.linalg.inv(a) * (1 + 1e-2 * rng.standard_normal((60, 60)))
    b = rng.standard_normal((60, 2))

    solution = tcsolve.refine(a, b, lambda r: inverse @ r, plan=Plan(method="gmres"))
    useless = tcsolve.refine(a, b, lambda r: 0 * r, plan=Plan(method="gmres"))

    assert solution.status is Status.CONVERGED and ratio(a, solution.x, b) <= MET
    assert cycles(solution) >= 2
    assert useless.status is Status.STALLED and useless.iterations.max() <= 1


def test_a_study_labels_and_counts_it():
    grid = {"precision": "fp16", "method": ["fgmres", "gmres"], "block": 16, "inner_tol": 1e-4}
    grid |= {"preconditioner": ["auto", "factors"]}
    table = tcsolve.study("gen:svd_geo:n=60:cond=1e3", grid)

    words = [row["plan"].split() for row in table.rows]
    assert [word[1] for word in words] == ["fgmres", "fgmres", "gmres", "gmres"]
    assert "preconditioner=factors" in words[3] and "preconditioner=factors" not in words[2]
    for row in table.rows:
        assert row["status"] == "CONVERGED" and row["steps"] == row["inner_steps"] > 0
        assert row["cycles"] >= 2


def test_no_warning_is_given():
    problem = matrices.generate("svd_geo", 60, cond=1e6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tcsolve.solve_ex(problem.a, problem.b, precision=plan())
