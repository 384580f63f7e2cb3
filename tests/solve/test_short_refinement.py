"""On the host a short loop refines most systems, and the general loop the rest; every answer is verified."""

import warnings

import numpy as np
import pytest
from bounds import MET, ratio
from systems import matrix_of, problem

from tcsolve import InputError, Plan, Status, factor, solve, solve_ex
from tcsolve._backends.cpu.lu import NumpyLU

PRECISIONS = ("fp32", "fp64", Plan("fp32", fallback=False))


def on_host(a, precision="fp32"):
    return factor(a, device="cpu", precision=precision)


@pytest.fixture
def substitutions(monkeypatch):
    """The numbers of columns of the solves with LAPACK's factors."""
    calls, solve = [], NumpyLU.solve

    def counted(self, b, adjoint):
        calls.append(b.size // len(b))
        return solve(self, b, adjoint)

    monkeypatch.setattr(NumpyLU, "solve", counted)
    return calls


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("n", [1, 5, 40, 200])
@pytest.mark.parametrize("trans", [0, 1, 2])
def test_each_step_solves_once_and_the_answer_is_verified(
    substitutions, n, dtype, precision, trans
):
    a = problem(n, dtype=dtype).a
    turned = (a, a.T, a.conj().T)[trans]
    f, rng = on_host(a, precision), np.random.default_rng(1)
    for shape in ((n,), (n, 1), (n, 3)):
        b = rng.standard_normal(shape).astype(dtype)
        substitutions.clear()
        s = f.solve_ex(b, trans=trans)
        assert ratio(turned, s.x, b) <= MET and s.status is Status.CONVERGED
        if not (trans and dtype is complex):  # those systems take the general loop
            assert len(substitutions) == 1 + s.iterations.max() == len(s.history)
            assert [p.step.max() for p in s.history] == [*range(len(s.history))]
            assert (s.history[-1].error == s.backward_error).all()
        assert s.x.flags.c_contiguous
        assert s.x.shape == shape and s.iterations.shape == s.backward_error.shape == (b.size // n,)


@pytest.mark.parametrize("order", ["C", "F"])
def test_columns_that_have_met_the_bound_are_not_corrected_again(substitutions, order):
    a = np.zeros((120, 120))
    a[:40, :40], a[40:, 40:] = 2 * np.eye(40), problem(80, 1e4).a
    easy, hard = np.zeros((120, 1)), np.ones((120, 2))
    easy[:40] = 1  # solved without any rounding
    b = np.array(np.hstack([easy, hard, easy]), order=order)

    s = on_host(a).solve_ex(b)

    assert ratio(a, s.x, b) <= MET and s.status is Status.CONVERGED
    assert s.iterations[0] == s.iterations[3] == 0 < s.iterations[1] == s.iterations[2]
    assert substitutions == [4] + [2] * s.iterations[1]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("scale", [0.0, 1e-310, 1e-200, 1e200])
def test_columns_that_are_zero_or_extreme_are_solved_too(precision, scale):
    a, b = problem(80).a, np.ones((80, 3))
    b[:, 1] *= scale
    s = on_host(a, precision).solve_ex(b)
    assert s.status.ok and (s.backward_error <= s.bound).all()
    assert np.allclose(s.x[:, 1], s.x[:, 0] * scale, rtol=1e-9, atol=0)


@pytest.mark.parametrize("kind", ["badly scaled", "huge", "hard"])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_badly_scaled_huge_and_hard_matrices_are_solved_too(kind, precision):
    a, b = matrix_of(kind), np.arange(1.0, 81)
    s = on_host(a, precision).solve_ex(b)
    assert s.status.ok and (s.backward_error <= s.bound).all()


def test_a_value_that_is_not_finite_is_refused_or_stays_in_its_column():
    a, b = problem(80).a, np.ones((80, 2))
    b[3, 1] = np.nan
    f = on_host(a, "fp64")
    with pytest.raises(InputError, match="b does"):
        f.solve(b)
    s = f.solve_ex(b, check_finite=False)
    assert s.status is Status.NONFINITE_INPUT
    assert np.isnan(s.x[:, 1]).all() and ratio(a, s.x[:, 0], b[:, 0]) <= MET


def test_corrections_end_where_the_plan_says_so():
    a, b = problem(200, 1e5).a, np.ones(200)
    free = on_host(a, Plan("fp32", fallback=False)).solve_ex(b)
    s = on_host(a, Plan("fp32", fallback=False, max_steps=1)).solve_ex(b)
    assert free.iterations[0] > 1 and free.status is Status.CONVERGED
    assert s.iterations[0] == 1 and s.status is Status.STALLED


def test_what_the_caller_gave_is_left_alone_and_views_are_read():
    a = np.asfortranarray(problem(120).a)[::2, ::2]
    given = np.random.default_rng(0).standard_normal((120, 4))[::2, ::2]
    a_before, before = a.copy(), given.copy()
    given.flags.writeable = False
    x = on_host(a).solve(given)
    assert np.array_equal(given, before) and np.array_equal(a, a_before)
    assert ratio(a, x, before) <= MET and not np.shares_memory(x, given)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("dtype", [float, complex])
def test_an_error_just_below_the_bound_is_made_smaller(precision, dtype):
    """The FP64 residual has rounding errors, so the true error might be above the bound."""
    rng, largest = np.random.default_rng(0), 0
    for _ in range(60):
        n = int(rng.integers(33, 120))
        u, _, v = np.linalg.svd(normal(rng, dtype, n, n))
        a = u * np.geomspace(1, 10.0 ** -rng.uniform(0, 6), n) @ v
        b = normal(rng, dtype, n, 4)

        found = solve_ex(a, b, precision=precision)

        assert found.status.ok
        largest = max(largest, ratio(a, found.x, b))
    assert 0.5 < largest < 0.93  # without a further correction it reaches 0.97


def normal(rng, dtype, *shape):
    x = rng.standard_normal(shape)
    return x + 1j * rng.standard_normal(shape) if dtype is complex else x


@pytest.mark.parametrize("precision", ["auto", "fp16", "fp64"])
@pytest.mark.parametrize("n, k", [(4, 3), (4, 20), (20, 100), (60, 300), (300, 5)])
def test_a_zero_column_has_the_answer_zero_and_no_error(n, k, precision):
    rng = np.random.default_rng(n)
    a = rng.standard_normal((n, n))
    b = a @ rng.standard_normal((n, k))
    b[:, 1] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = solve_ex(a, b, precision=precision, assume_a="gen")
        assert (solve(a, b, precision=precision, assume_a="gen") == found.x).all()
    assert found.status is Status.CONVERGED and (found.backward_error <= found.bound).all()
    assert not found.x[:, 1].any() and found.backward_error[1] == 0
    assert all(point.error[1] == 0 for point in found.history)


@pytest.mark.parametrize("precision", ["fp16", "fp64"])
def test_a_column_whose_answer_underflows_is_no_zero_column(precision):
    n, k = 4, 20
    a = 1e10 * (np.eye(n) + 0.1 * np.random.default_rng(1).standard_normal((n, n)))
    b = a @ np.ones((n, k))
    b[:, 1] = 5e-324
    found = solve_ex(a, b, precision=precision, assume_a="gen")
    assert not found.x[:, 1].any() and not found.status.ok
    assert not found.backward_error[1] <= found.bound
