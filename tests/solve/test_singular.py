"""Singular matrices are recognized, wherever the zero pivot occurs."""

from fractions import Fraction

import numpy as np
import pytest
from bounds import MET, host, ratio
from scipy.linalg.lapack import dgetrf
from systems import gauss

import tcsolve
from tcsolve import Plan, Status, factor, matrices, solve_ex
from tcsolve._arithmetic.formats import UPDATES

EVERY = ("auto", *UPDATES)


@pytest.mark.parametrize("precision", EVERY)
@pytest.mark.parametrize("which", ["first", "middle", "last"])
@pytest.mark.parametrize("n", [5, 40, 300])
def test_a_zero_column_is_singular_wherever_it_is(xp, n, which, precision):
    a = matrices.generate(f"zero_column_{which}", n).a

    solution = solve_ex(xp.asarray(a), xp.ones(n), precision=precision)

    assert solution.status is Status.SINGULAR
    assert solution.rcond == 0
    assert np.isnan(host(solution.x)).all()


@pytest.mark.parametrize("structure", [None, "triangular"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "how", [*({"precision": name} for name in EVERY), {"residual": "double-double"}], ids=str
)
@pytest.mark.parametrize("n", [3, 4, 20, 60, 300])
def test_a_triangle_with_a_zero_on_its_diagonal_is_singular(xp, n, how, order, structure):
    """Rounding in an LU with pivoting makes the last pivot nonzero."""
    rng = np.random.default_rng(n)
    for lower in (True, False):
        a = rng.standard_normal((n, n))
        a = np.tril(a, 0) if lower else np.triu(a, 0)
        a[n // 2, n // 2] = 0
        kind = structure and f"{'lower' if lower else 'upper'} {structure}"
        b = xp.asarray(rng.standard_normal(n))

        solution = solve_ex(xp.asarray(a, order=order), b, assume_a=kind, **how)

        assert solution.status is solution.statuses[()] is Status.SINGULAR
        assert solution.rcond == solution.rconds == 0
        assert np.isnan(host(solution.x)).all() and np.isnan(solution.backward_error).all()


@pytest.mark.parametrize("precision", ["fp16", "fp32", "fp64"])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_such_a_triangle_is_singular_at_any_scale(xp, precision, batch):
    a = np.triu(np.random.default_rng(0).standard_normal((20, 20)))
    a[10, 10] = 0
    for t in (a, a.T):
        for of_a, of_b in ((1e200, 1e-200), (1e-200, 1e200)):
            given = xp.asarray(np.broadcast_to(t * of_a, (*batch, 20, 20)))
            b = xp.full((*batch, 20, 1), of_b)
            solution = solve_ex(given, b, precision=precision, assume_a="gen")
            assert (solution.statuses == Status.SINGULAR).all() and (solution.rconds == 0).all()


@pytest.mark.parametrize("precision", ["auto", "fp16", "fp32", "fp64"])
@pytest.mark.parametrize("n", [3, 20, 90])
def test_factors_of_such_a_triangle_tell_that_it_is_singular(xp, n, precision):
    a = np.tril(np.random.default_rng(n).standard_normal((n, n)))
    a[n // 2, n // 2] = 0
    for t in (a, a.T):
        f, stack = factor(xp.asarray(t), precision=precision), factor(xp.asarray(np.stack([t] * 3)))
        for trans in (0, 1):
            one = f.solve_ex(xp.ones(n), trans=trans)
            three = stack.solve_ex(xp.ones((3, n, 1)), trans=trans)
            assert one.status is Status.SINGULAR and one.rcond == 0
            assert (three.statuses == Status.SINGULAR).all() and (three.rconds == 0).all()
            assert np.isnan(host(one.x)).all() and np.isnan(host(three.x)).all()
            with pytest.raises(tcsolve.SingularError):
                f.solve(xp.ones(n), trans=trans)


@pytest.mark.parametrize("n", [3, 5, 40, 300])
@pytest.mark.parametrize("dtype", "fF")
def test_a_triangle_with_a_subnormal_number_on_its_diagonal_is_not_singular(xp, n, dtype):
    """CuPy's own comparisons take such a number for zero."""
    a = 0.01 * np.triu(np.random.default_rng(n).standard_normal((n, n)).astype(dtype))
    a[np.arange(n), np.arange(n)] = 1
    a[n // 2, n // 2] = {"f": 1e-40, "F": 1e-40j}[dtype]
    b = a.sum(axis=-1).astype(dtype)
    for t, rhs in ((a, b), (np.ascontiguousarray(a.T), a.sum(axis=0).astype(dtype))):
        for precision in ("auto", "fp32"):
            for structure in (None, "gen"):
                one = solve_ex(
                    xp.asarray(t), xp.asarray(rhs), precision=precision, assume_a=structure
                )
                assert one.status is Status.ILL_CONDITIONED and 0 < one.rcond < 1e-39
            stack = solve_ex(
                xp.asarray([t] * 3), xp.asarray([rhs] * 3)[..., None], precision=precision
            )
            assert (stack.statuses == Status.ILL_CONDITIONED).all()
    if dtype == "f":  # LAPACK's complex division overflows
        x = tcsolve.solve_triangular(xp.asarray(a), xp.asarray(b))
        assert np.isfinite(host(x)).all()


@pytest.mark.parametrize("a", [np.diag([1.0, 0, 2]), np.zeros((2, 2))])
def test_a_singular_diagonal_that_is_asserted_to_be_definite_is_not_definite(xp, a):
    solution = solve_ex(xp.asarray(a), xp.ones(len(a)), assume_a="pos")
    assert solution.status is Status.NOT_POSITIVE_DEFINITE


@pytest.mark.parametrize("dtype", "fd")
def test_such_a_triangle_with_nan_in_b_has_input_that_is_not_finite(xp, dtype):
    a = np.tril(np.random.default_rng(0).standard_normal((20, 20))).astype(dtype)
    a[10, 10] = 0
    b = np.ones((3, 20, 1), dtype)
    b[1, 3] = np.nan
    for t in (a, a.T, np.asfortranarray(a)):
        solution = solve_ex(xp.asarray(t), xp.asarray(b), assume_a="gen", check_finite=False)
        names = [status.name for status in solution.statuses]
        assert names == ["SINGULAR", "NONFINITE_INPUT", "SINGULAR"]
        one = solve_ex(xp.asarray(t), xp.asarray(b[1]), assume_a="gen", check_finite=False)
        assert one.status is Status.NONFINITE_INPUT
        stack = factor(xp.asarray(np.stack([t] * 3)), check_finite=False)
        found = stack.solve_ex(xp.asarray(b), check_finite=False)
        assert [status.name for status in found.statuses] == names


def test_the_forward_error_of_such_a_triangle_is_not_told(xp):
    a = np.tril(np.random.default_rng(0).standard_normal((20, 20)))
    a[10, 10] = 0
    for order in "CF":
        given, how = xp.asarray(a, order=order), {"residual": "double-double"}
        assert solve_ex(given, xp.ones(20), assume_a="gen", **how).forward_error is None
        stack = solve_ex(given[None], xp.ones((1, 20, 1)), assume_a="gen", **how)
        assert np.isnan(stack.forward_error).all()


@pytest.mark.parametrize("n", [3, 4, 20, 60, 150, 700])
def test_such_a_triangle_in_a_stack_is_singular(xp, n):
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((5, n, n)), xp.asarray(rng.standard_normal((5, n, 1)))
    a[1], a[3] = np.tril(a[1]), np.triu(a[3])
    a[[1, 3], n // 2, n // 2] = 0
    for order in "CF":
        given = xp.asarray(a if order == "C" else np.ascontiguousarray(a.swapaxes(1, 2)))
        given = given if order == "C" else given.swapaxes(1, 2)

        solution = solve_ex(given, b)

        bad = [status is Status.SINGULAR for status in solution.statuses]
        assert bad == [False, True, False, True, False]
        assert np.isnan(host(solution.x)).all(axis=(1, 2)).tolist() == bad
        with pytest.raises(tcsolve.SingularError, match="in slice 1"):
            tcsolve.solve(given, b)


def test_a_lower_band_with_a_zero_on_its_diagonal_is_singular(xp):
    rng, n = np.random.default_rng(2), 200
    a = sum(np.diag(rng.standard_normal(n - k), -k) for k in range(3))
    a[100, 100] = 0
    assert solve_ex(xp.asarray(a), xp.ones(n)).status is Status.SINGULAR
    a[100, 100] = 1
    assert solve_ex(xp.asarray(a), xp.ones(n)).status is not Status.SINGULAR


@pytest.mark.parametrize("precision", EVERY)
@pytest.mark.parametrize("row", [0, 20, 39])
def test_a_zero_row_is_singular_wherever_it_is(xp, row, precision):
    a = gauss()
    a[row] = 0

    assert solve_ex(xp.asarray(a), xp.ones(40), precision=precision).status is Status.SINGULAR


@pytest.mark.parametrize("precision", EVERY)
@pytest.mark.parametrize("seed", range(3))
def test_dependent_rows_are_never_plain_success(xp, seed, precision):
    a = matrices.generate("dependent_rows", 40, seed=seed).a

    status = solve_ex(xp.asarray(a), xp.ones(40), precision=precision).status

    assert status not in (Status.CONVERGED, Status.CONVERGED_AFTER_FALLBACK)


@pytest.mark.parametrize("update", ["fp16", "bf16", "tf32"])
def test_a_matrix_that_low_precision_makes_singular_is_solved_by_the_next_rung(xp, update):
    """The formats round away the noise in L.  Then the last column of the Schur complement is zero."""
    n, k, rng = 400, 128, np.random.default_rng(0)
    top, left = 2.0 * rng.integers(-1, 2, (k, n - k)), 1.0 * rng.integers(-1, 2, (n - k, k))
    rest = left @ top / 2 + np.diag(np.arange(n - k) < n - k - 1)
    left *= 1 + 2.0**-18 * rng.standard_normal((n - k, k))
    a = np.block([[2 * np.eye(k), top], [left, rest]])

    alone = solve_ex(xp.asarray(a), xp.ones(n), precision=Plan(update, fallback=False))
    found = solve_ex(xp.asarray(a), xp.ones(n), precision=update)

    assert alone.status is Status.STALLED and np.isnan(host(alone.x)).all()
    assert found.status is Status.CONVERGED_AFTER_FALLBACK
    assert found.rungs == (update, "fp16x3")
    assert ratio(a, found.x, np.ones(n)) <= MET


def test_rounding_alone_does_not_make_a_matrix_singular_where_scipys_factors_exist():
    """For a matrix of rank one up to rounding, only the factors of its transpose may have a zero pivot."""
    rng, counted = np.random.default_rng(0), 0
    for _ in range(300):
        u, v = rng.standard_normal((2, 2)) * 10.0 ** rng.uniform(-60, 60, (2, 2))
        a, b = np.outer(u, v), rng.standard_normal(2) * 10.0 ** rng.uniform(-30, 30, 2)
        (p, q), (r, s) = ([Fraction(v) for v in row] for row in a)
        if p * s == q * r or dgetrf(a)[2]:
            continue
        counted += 1
        found = solve_ex(a, b, assume_a="gen")
        assert found.status is Status.ILL_CONDITIONED
        assert found.rcond < 2.0**-52 and found.backward_error[0] <= found.bound
    assert counted > 50
