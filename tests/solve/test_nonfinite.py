"""NaN and Inf are never an answer, and do not affect other columns and slices."""

import numpy as np
import pytest
from bounds import MET, host, ratio
from systems import gauss, spoilt

import tcsolve
from tcsolve import Status, solve_ex
from tcsolve._arithmetic.formats import UPDATES

EVERY = ("auto", *UPDATES)


def test_parts_of_a_complex_vector_may_be_nan(xp):
    b = xp.asarray(np.array([complex(np.nan, 1), 1, 1]))
    a = xp.asarray(2 * np.eye(3) + 1)

    found = solve_ex(a, b, check_finite=False, assume_a="general")

    assert found.status is Status.NONFINITE_INPUT and np.isnan(found.backward_error).all()
    assert np.allclose(host(found.x).imag, np.linalg.solve(host(a), [1, 0, 0]), rtol=1e-14, atol=0)


def test_of_a_stack_with_nan_the_other_answers_are_there():
    a = np.stack([np.triu(np.tril(3 * np.eye(4) + 1, 1), -1)] * 3).astype("F") * np.complex64(1e30)
    a[1, 0, 0] = np.nan

    found = solve_ex(a, np.ones((3, 4, 2), "F"), assume_a="general", check_finite=False)

    assert found.status is Status.NONFINITE_INPUT
    for i in (0, 2):
        x = solve_ex(a[i], np.ones((4, 2), "F"), assume_a="general").x
        np.testing.assert_allclose(found.x[i], x, rtol=1e-5)


@pytest.mark.parametrize("precision", EVERY)
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", [(0, 0), (0, 39), (39, 0), (20, 21), (39, 39)])
def test_an_unchecked_nan_in_the_matrix_is_never_an_answer(xp, where, value, precision):
    a = spoilt(value, *where)

    solution = solve_ex(
        xp.asarray(a), xp.asarray(np.ones((40, 2))), check_finite=False, precision=precision
    )

    assert solution.status is Status.NONFINITE_INPUT
    assert np.isnan(host(solution.x)).all()
    assert not (solution.backward_error <= solution.bound).any()


@pytest.mark.parametrize("precision", EVERY)
@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("row", [0, 17, 39])
def test_an_unchecked_nan_in_b_spoils_its_own_column_alone(xp, row, value, precision):
    a, b = gauss(), gauss(seed=1)[:, :3]
    b[row, 1] = value

    solution = solve_ex(xp.asarray(a), xp.asarray(b), check_finite=False, precision=precision)

    x = host(solution.x)
    assert solution.status is Status.NONFINITE_INPUT
    assert np.isnan(x[:, 1]).all() and np.isnan(solution.backward_error[1])
    assert ratio(a, x[:, [0, 2]], b[:, [0, 2]]) <= MET


@pytest.mark.parametrize("precision", EVERY)
def test_all_of_b_nan_is_not_convergence(xp, precision):
    solution = solve_ex(
        xp.asarray(gauss()), xp.full(40, xp.nan), check_finite=False, precision=precision
    )

    assert solution.status is Status.NONFINITE_INPUT


def test_a_correction_that_returns_nan_is_not_convergence(xp):
    a, b = xp.asarray(gauss()), xp.ones(40)

    solution = tcsolve.refine(a, b, lambda r: r * xp.nan)

    assert solution.status is Status.STALLED
    assert not (solution.backward_error <= solution.bound).any()


def test_a_correction_that_turns_nan_late_keeps_the_best_x(xp):
    host_a = gauss() + 20 * np.eye(40)
    a, calls = xp.asarray(host_a), []

    def correct(r):
        calls.append(1)
        return r / xp.diag(a)[:, None] * (xp.nan if len(calls) > 4 else 1.0)

    solution = tcsolve.refine(a, xp.ones(40), correct)

    assert solution.status is Status.STALLED
    assert np.isfinite(host(solution.x)).all()
    assert ratio(host_a, solution.x, np.ones(40)) > MET
