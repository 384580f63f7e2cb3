"""Conjugate gradients with coarse Cholesky factors, alone and in solves and studies."""

import numpy as np
import pytest
import scipy.sparse.linalg
from bounds import MET, ratio

import tcsolve
from tcsolve import Plan, Status, matrices
from tcsolve._arithmetic.formats import update_named
from tcsolve._backends.cpu.ops import NumpyOps
from tcsolve._lu.shifted_cholesky import factor_shifted, scale_alike
from tcsolve._refine.conjugate_gradients import cg

OPS = NumpyOps()


def definite(n=80, cond=1e3, dtype=float, seed=0):
    rng = np.random.default_rng(seed)
    v = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if dtype is complex else 0)
    q = np.linalg.qr(v)[0]
    a = q * np.geomspace(1, 1 / cond, n) @ q.conj().T
    return (a + a.conj().T) / 2


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("steps", [1, 5, 20])
def test_it_is_scipys_method_when_the_preconditioner_does_not_change(dtype, steps):
    a, rng = definite(dtype=dtype), np.random.default_rng(1)
    r = rng.standard_normal((80, 3)).astype(dtype)
    scale = np.linspace(1, 2, 80)[:, None]

    d, used, reductions, _ = cg(
        OPS, lambda v: a @ v, lambda v: v * scale, r, most=np.full(3, steps), tol=1e-300
    )

    assert used.tolist() == 3 * [steps] and len(reductions) == steps
    m = scipy.sparse.linalg.LinearOperator(a.shape, lambda v: v * scale[:, 0], dtype=dtype)
    for c in range(3):
        x, _ = scipy.sparse.linalg.cg(a, r[:, c], rtol=0, maxiter=steps, M=m)
        assert np.linalg.norm(d[:, c] - x) <= 1e-9 * np.linalg.norm(x)


def test_columns_end_on_their_own_and_are_not_changed_again():
    a = definite(cond=10)
    r = np.random.default_rng(1).standard_normal((80, 3)) * [1, 1e-200, 1e200]
    r[:, 1] = a[:, 3] * 1e-200  # another right-hand side takes another number of steps

    args = OPS, lambda v: a @ v, lambda v: v
    together = cg(*args, r, most=np.full(3, 300), tol=1e-4)

    for c in range(3):
        alone = cg(*args, r[:, [c]], most=np.array([300]), tol=1e-4)
        assert alone.steps[0] == together.steps[c]
        np.testing.assert_allclose(together.d[:, [c]], alone.d, rtol=1e-6)
    assert np.ptp(together.steps) > 0


def test_a_matrix_that_is_not_definite_ends_it():
    a = np.diag([1.0, -1.0])
    d, steps, *_ = cg(
        OPS, lambda v: a @ v, lambda v: v, np.ones((2, 1)), most=np.array([9]), tol=0.1
    )
    assert steps[0] == 0 and not d.any()


# ---- the factors


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("name", ["fp16", "bf16", "fp16x3", "fp32", "fp16@h200"])
def test_the_factors_are_those_of_a_shifted_matrix(name, dtype):
    update = update_named(name)
    a = definite(dtype=complex if dtype is np.complex64 else float).astype(dtype)
    scaling = scale_alike(OPS, a, True)
    w = a * scaling.row[:, None].astype(np.float32) * scaling.col.astype(np.float32)
    assert ((w.diagonal().real >= 0.25) & (w.diagonal().real < 1)).all()

    lu = factor_shifted(OPS, w.copy(), update, 16).lu

    product = (np.tril(lu, -1) + np.eye(80)) @ np.triu(lu)
    assert np.abs(product - w - 2 * update.u * np.eye(80)).max() <= 4 * update.u + 80 * 2.0**-24


def test_the_shift_grows_until_the_rounded_matrix_is_definite():
    w = definite(cond=1e9).astype(np.float32)
    w *= 0.9 / w.diagonal().max()
    w[np.arange(80), np.arange(80)] -= np.float32(8 * 2.0**-11)  # rounding could do this

    factors = factor_shifted(OPS, w.copy(), update_named("fp16"), 16)

    assert not factors.bad_pivot
    lu = factors.lu
    shift = ((np.tril(lu, -1) + np.eye(80)) @ np.triu(lu) - w).diagonal()
    assert shift.min() >= 7 * 2.0**-11


def test_an_indefinite_matrix_has_a_bad_pivot():
    w = np.diag(np.array([0.5, -0.5], np.float32))
    assert factor_shifted(OPS, w, update_named("fp16"), 1).bad_pivot == 2


# ---- solves


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("update", ["fp16", "bf16", "fp16x3", "fp32", "bf16@a100"])
def test_a_plan_solves_by_conjugate_gradients(update, dtype):
    a, b = definite(dtype=dtype, cond=1e4), np.ones((80, 2))
    plan = Plan(update, method="cg", block=16, fallback=False, max_steps=200)

    solution = tcsolve.solve_ex(a, b, precision=plan)

    assert solution.status is Status.CONVERGED and solution.rungs == (update,)
    assert ratio(a, solution.x, b) <= MET
    assert any(point.estimated for point in solution.history)


@pytest.mark.parametrize("scale", [True, False])
def test_a_badly_scaled_definite_matrix_converges(scale):
    d = 2.0 ** np.arange(-40, 40)[:, None] if scale else 2.0**40
    a = d * definite(cond=1e2) * (d.T if scale else d)
    plan = Plan("fp16", method="cg", block=16, fallback=False, max_steps=200, scale=scale)

    solution = tcsolve.solve_ex(a, np.ones(80), precision=plan)

    assert solution.status.ok and ratio(a, solution.x, np.ones(80)) <= MET


def test_an_indefinite_matrix_goes_on_to_the_next_rung():
    a = definite() - 0.5 * np.eye(80)
    solution = tcsolve.solve_ex(a, np.ones(80), precision=Plan("fp16", method="cg", block=16))
    assert solution.status is Status.CONVERGED_AFTER_FALLBACK and solution.precision == "fp64"
    assert ratio(a, solution.x, np.ones(80)) <= MET


def test_a_matrix_that_is_not_hermitian_is_refused():
    a = definite() + np.diag(np.ones(79), 1)
    with pytest.raises(tcsolve.InputError, match="conjugate transpose.*'fgmres'"):
        tcsolve.solve_ex(a, np.ones(80), precision=Plan("fp16", method="cg", block=16))


def test_extreme_entries_are_refused():
    with pytest.raises(tcsolve.InputError, match="too large, too small"):
        tcsolve.solve_ex(definite() * 1e300, np.ones(80), precision=Plan("fp16", method="cg"))


# ---- the inner tolerance, and the precision of the preconditioner


@pytest.mark.parametrize("method", ["fgmres", "cg"])
def test_an_inner_tolerance_ends_each_cycle(method):
    a, b = definite(cond=1e4), np.ones(80)

    def cycles(**options):
        plan = Plan("bf16", method=method, block=16, fallback=False, max_steps=300, **options)
        solution = tcsolve.solve_ex(a, b, precision=plan)
        assert solution.status.ok
        inner = [point.estimated for point in solution.history]
        return sum(now and not after for now, after in zip(inner, inner[1:], strict=False))

    assert cycles() <= 2
    assert cycles(inner_tol=1e-2) > 3


@pytest.mark.parametrize("method", ["auto", "fgmres"])
def test_a_preconditioner_in_fp64_takes_fewer_steps(method):
    a = matrices.generate("svd_cluster1", 80, cond=1e10).a
    how = {"method": method, "fallback": False, "block": 16, "contraction": 1e-3}

    def steps(preconditioner):
        plan = Plan("fp32", preconditioner=preconditioner, **how)
        solution = tcsolve.factor(a, precision=plan).solve_ex(np.ones(80))
        assert solution.status.ok
        return solution.iterations[0]

    assert steps("fp64") < steps("factors") == steps("auto")


def test_a_small_system_is_refined_as_the_plan_says():
    problem = matrices.generate("svd_geo", 60, cond=1e3)
    for preconditioner in ("factors", "fp64"):
        plan = Plan("fp32", method="fgmres", preconditioner=preconditioner, fallback=False)
        solution = tcsolve.solve_ex(problem.a, problem.b, precision=plan)
        factored = tcsolve.factor(problem.a, precision=plan).solve_ex(problem.b)
        steps = solution.iterations[0]
        assert steps > 0 and factored.iterations[0] == steps
        for history in (solution.history, factored.history):
            assert [point.estimated for point in history] == [False, *steps * [True], False]
    errors = [[point.error[0] for point in one.history] for one in (solution, factored)]
    assert errors[0] == errors[1]


def test_a_study_takes_all_of_them_as_options_of_its_plans():
    grid = {
        "precision": "fp16",
        "method": ["cg", "fgmres"],
        "inner_tol": [None, 1e-2],
        "preconditioner": ["factors", "fp64"],
        "block": 16,
    }
    table = tcsolve.study({"a": definite()}, grid)

    assert len(table.rows) == 8
    assert all(row["status"] == "CONVERGED" for row in table.rows)
    assert {row["inner_tol"] for row in table.rows} == {None, 1e-2}
    models = {row["method"]: row["model"] for row in table.rows}
    assert "Cholesky" in models["cg"] and "Cholesky" not in models["fgmres"]
