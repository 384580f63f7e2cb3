"""The estimate of the norm of an inverse: never above it, nearly always close, by few solves."""

import numpy as np
import pytest
import scipy.linalg
from systems import problem

from tcsolve import matrices, solve_ex
from tcsolve._backends.cpu.inverse_norm import inverse_norm
from tcsolve._backends.cpu.lu import HostLU


def solver(a, calls=None):
    inverse = np.linalg.inv(a.astype(float))

    def solve(v, adjoint):
        if calls is not None:
            calls.append(adjoint)
        return ((inverse.T if adjoint else inverse) @ v).astype(v.dtype)

    return solve, np.abs(inverse).sum(axis=0).max()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [2, 3, 40, 200])
@pytest.mark.parametrize("seed", range(10))
def test_the_estimate_is_a_close_lower_bound_from_few_solves(n, dtype, seed):
    a, calls = matrices.generate("gauss", n, seed=seed).a.astype(dtype), []
    solve, norm = solver(a, calls)
    found = inverse_norm(solve, n, np.dtype(dtype))
    assert norm / 3 <= found <= norm * (1 + 1e-5)
    assert len(calls) <= 12 and calls.count(True) <= 5


def test_a_matrix_that_hides_its_norm_from_the_first_vector_does_not_from_the_others():
    n = 50
    inverse = np.eye(n)
    inverse[:, 0], inverse[:, 1] = 1e6, -1e6  # they cancel in the first product
    solve = lambda v, adjoint: (inverse.T if adjoint else inverse) @ v  # noqa: E731
    assert inverse_norm(solve, n, np.dtype(float)) >= n * 1e6 / 3


def test_an_overflow_gives_no_finite_estimate():
    def solve(v, adjoint):
        return np.full_like(v, np.inf if adjoint else np.nan)

    assert not np.isfinite(inverse_norm(solve, 5, np.dtype(np.float32)))


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_factors_of_any_size_tell_what_gecon_does(order, dtype):
    for n in (249, 250, 450):  # from 250 unknowns on, real matrices have an estimate of our own
        a = np.array(problem(n, 1e4, dtype=dtype).a, order=order)
        norm = float(np.abs(a).sum(axis=0).max())
        factors, _ = HostLU().getrf(a, a.dtype)
        lu, _ = scipy.linalg.lu_factor(a)
        (gecon,) = scipy.linalg.get_lapack_funcs(("gecon",), (a,))
        assert factors.gecon(norm) == pytest.approx(gecon(lu, norm)[0], rel=1e-2)


def test_an_inverse_beyond_the_range_of_fp32_gives_a_tiny_rcond():
    n = 420
    a = np.diag(np.geomspace(1.0, 1e-42, n)).astype(np.float32)
    factors, _ = HostLU().getrf(a, a.dtype)
    with np.errstate(all="ignore"):
        assert 0 <= factors.gecon(1.0) < 1e-37


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_the_condition_is_within_a_factor_of_about_three(precision):
    a = problem(500, 1e5).a
    found = solve_ex(a, np.ones(500), precision=precision).rcond
    assert 0.9 <= found * np.linalg.cond(a, 1) <= 3.1
