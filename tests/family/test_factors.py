"""`lu_factor`, `lu_solve`, `cho_factor`, `cho_solve`: SciPy's shapes, and verified answers."""

import array
import copy
import pickle
import warnings

import numpy as np
import pytest
import scipy.linalg
from bounds import MET, host, ratio
from systems import gauss, general, growth_both_ways

import tcsolve
from tcsolve import AccuracyWarning, LinAlgWarning, cho_factor, cho_solve, lu_factor, lu_solve

DTYPES = [np.float32, np.float64, np.complex64, np.complex128]
LARGE = 1100  # `lu_factor` does not factor it in FP64


def definite(n, dtype=float, seed=0):
    a = general(n, dtype, seed)
    return (a @ a.conj().T + n * np.eye(n)).astype(dtype)


def rhs(shape, dtype=float):
    rng = np.random.default_rng(9)
    b = rng.standard_normal(shape)
    return (b + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else b).astype(dtype)


def turned(a, trans):
    return {0: a, 1: np.swapaxes(a, -1, -2), 2: np.swapaxes(a.conj(), -1, -2)}[trans]


def product(lu, piv):
    """Return P L U."""
    lu = host(lu)
    a = (np.tril(lu, -1) + np.eye(len(lu))) @ np.triu(lu)
    for i, j in reversed(list(enumerate(host(piv)))):
        a[[i, j]] = a[[j, i]]
    return a


# ---- LU


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize("n", [7, 60])
def test_lu_solve_is_verified(xp, dtype, trans, n):
    a = general(n, dtype)
    factors = lu_factor(xp.asarray(a))

    for shape in ((n,), (n, 3)):
        b = rhs(shape, dtype)
        x = lu_solve(factors, xp.asarray(b), trans=trans)
        assert isinstance(x, xp.ndarray) and x.shape == shape and x.dtype == dtype
        assert ratio(turned(a, trans), x, b) <= MET


def test_the_pair_is_scipys(xp):
    a = general(30)
    found = lu_factor(xp.asarray(a))

    assert isinstance(found, tuple) and len(found) == 2
    lu, piv = found
    assert lu.shape == (30, 30) and piv.shape == (30,) and piv.dtype.kind == "i"
    assert np.allclose(product(lu, piv), a, rtol=0, atol=1e-13)
    assert host(found[1]).tolist() == host(piv).tolist()


def test_the_pair_of_a_stack_is_a_tuple(xp):
    found = lu_factor(xp.asarray(np.stack([general(5), general(5)])))

    assert isinstance(found[:], tuple) and repr(found).startswith("(")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize("n", [7, 60])
def test_the_factors_of_scipy_and_cupy_are_taken(xp, dtype, trans, n):
    a, b = general(n, dtype), rhs((n, 2), dtype)
    if xp is np:
        factors = scipy.linalg.lu_factor(a)
    else:
        import cupyx.scipy.linalg

        factors = cupyx.scipy.linalg.lu_factor(xp.asarray(a))

    x = lu_solve(factors, xp.asarray(b), trans=trans)

    assert (
        ratio(turned(a, trans), x, b) <= 10 * MET
    )  # backward stable, but not verified with A itself


def test_scipy_takes_our_factors():
    for n in (60, LARGE):
        a, b = general(n), rhs((n,))
        x = scipy.linalg.lu_solve(lu_factor(a), b, trans=1)
        assert ratio(a.T, x, b) <= 10 * MET


@pytest.mark.parametrize("trans", [0, 1, 2])
def test_a_large_matrix_is_factored_in_low_precision_and_refined(xp, trans):
    a, b = general(LARGE), rhs((LARGE, 2))
    factors = lu_factor(xp.asarray(a))

    x = lu_solve(factors, xp.asarray(b), trans=trans)

    assert factors.factorization.precision != "fp64"
    assert ratio(turned(a, trans), x, b) <= MET
    report = factors.factorization.solve_ex(xp.asarray(b), trans=trans)
    assert (report.backward_error <= report.bound).all()


def test_the_pair_of_a_large_matrix_is_as_accurate_as_scipys(xp):
    a = general(LARGE)
    given = xp.array(a)
    factors = lu_factor(given)
    given[...] = 0  # the caller may use the memory again

    lu, piv = factors

    assert lu.dtype == float and abs(product(lu, piv) - a).max() < 1e-11
    assert factors[0] is lu and len(factors) == 2 and factors[-1] is piv
    assert [x.shape for x in factors] == [(LARGE, LARGE), (LARGE,)]


@pytest.mark.parametrize("n", [20, LARGE])
@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))]
)
def test_factors_are_copied_and_pickled(n, duplicate):
    a, b = general(n), rhs((n,))
    factors = duplicate(lu_factor(a))
    assert ratio(a, lu_solve(factors, b), b) <= MET
    assert factors[0].shape == (n, n)


def test_growth_of_the_pivots_is_refined_away(xp):
    a, b = growth_both_ways(60), np.random.default_rng(0).standard_normal(120)
    for trans in (0, 1):
        x = lu_solve(lu_factor(xp.asarray(a)), xp.asarray(b), trans=trans)
        assert ratio(turned(a, trans), x, b) <= MET


def test_factors_in_fp32_answer_in_the_precision_of_b():
    a, b = general(60, np.float32), rhs((60,))
    x = lu_solve(lu_factor(a), b)
    assert x.dtype == float and ratio(a.astype(float), x, b) <= MET


@pytest.mark.parametrize("b_shape", [(5,), (5, 2), (3, 5, 2), (2, 1, 5, 2)])
@pytest.mark.parametrize("trans", [0, 2])
def test_stacks_broadcast_as_in_scipy(xp, b_shape, trans):
    a, b = np.stack([general(5, seed=i) for i in range(3)]), rhs(b_shape)
    factors = lu_factor(xp.asarray(a))
    assert factors[0].shape == (3, 5, 5) and factors[1].shape == (3, 5)

    x = lu_solve(factors, xp.asarray(b), trans=trans)

    expected = scipy.linalg.lu_solve(scipy.linalg.lu_factor(a), b, trans=trans)
    assert x.shape == expected.shape and np.allclose(host(x), expected, rtol=1e-12, atol=1e-12)


def test_one_large_matrix_solves_for_a_stack(xp):
    a, b = general(LARGE), rhs((2, LARGE, 1))
    x = lu_solve(lu_factor(xp.asarray(a)), xp.asarray(b))
    assert x.shape == b.shape
    for one, of in zip(host(x), b, strict=True):
        assert ratio(a, one, of) <= MET


def test_a_zero_pivot_is_a_warning_of_the_factors(xp):
    a = gauss(20)
    a[:, 3] = 0
    kind = LinAlgWarning if xp is np else RuntimeWarning
    with pytest.warns(kind, match="is exactly zero"):
        factors = lu_factor(xp.asarray(a))
    with pytest.warns(AccuracyWarning, match="lu_solve: backward error nan"):
        x = lu_solve(factors, xp.ones(20))
    assert not np.isfinite(host(x)).all()


def test_a_large_singular_matrix_is_seen_by_the_factors():
    a = general(LARGE)
    a[:, 3] = 0
    with pytest.warns(LinAlgWarning, match="Diagonal number 4 is exactly zero"):
        factors = lu_factor(a)
    assert factors.factorization is None


def test_lent_arrays_are_used_as_in_scipy():
    a, b = np.asfortranarray(general(30)), rhs((30,))
    kept_a, kept_b = a.copy(), b.copy()

    factors = lu_factor(a, overwrite_a=True)
    x = lu_solve(factors, b, overwrite_b=True)

    assert np.shares_memory(factors[0], a) and np.shares_memory(x, b)
    assert ratio(kept_a, x, kept_b) <= MET


@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
def test_a_rectangular_matrix_is_factored(shape):
    lu, piv = lu_factor(np.ones(shape) + np.eye(*shape))
    assert lu.shape == shape and piv.shape == (3,)


@pytest.mark.parametrize("n", [30, LARGE])
def test_bad_input_of_lu_is_refused(n):
    a = general(n)
    factors = lu_factor(a)
    with pytest.raises(ValueError):
        lu_solve(factors, np.ones(n + 1))
    with pytest.raises(ValueError):
        lu_solve(factors, np.full(n, np.nan))
    with pytest.raises(ValueError, match="trans is 3"):
        lu_solve(factors, np.ones(n), trans=3)
    a[0, 0] = np.inf
    with pytest.raises(ValueError, match="infs or NaNs"):
        lu_factor(a)
    with pytest.raises(ValueError, match="does not support zero-size batches"):
        lu_solve((np.ones((0, 3, 3)), np.zeros((0, 3), int)), np.ones(3))


def test_a_right_hand_side_with_nan_is_not_blamed_on_the_factors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = lu_solve(lu_factor(general(30)), np.full(30, np.nan), check_finite=False)
    assert np.isnan(x).all()


# ---- Cholesky


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("n", [7, 60])
def test_cho_solve_is_verified(xp, dtype, lower, n):
    a = definite(n, dtype)
    c, low = factors = cho_factor(xp.asarray(a), lower=lower)

    triangle = (np.tril if lower else np.triu)(host(c))
    again = triangle @ triangle.conj().T if lower else triangle.conj().T @ triangle
    assert np.allclose(again, a, rtol=1e-4) and bool(low) is lower and isinstance(factors, tuple)
    for shape in ((n,), (n, 3)):
        b = rhs(shape, dtype)
        x = cho_solve(factors, xp.asarray(b))
        assert isinstance(x, xp.ndarray) and x.shape == shape and x.dtype == dtype
        assert ratio(a, x, b) <= MET


@pytest.mark.parametrize("lower", [False, True])
def test_one_triangle_is_read(xp, lower):
    a, b = definite(30, complex), rhs((30,), complex)
    other = np.triu_indices(30, 1) if lower else np.tril_indices(30, -1)
    given = a.copy()
    given[other] = 7j

    x = cho_solve(cho_factor(xp.asarray(given), lower=lower), xp.asarray(b))

    assert ratio(a, x, b) <= MET


@pytest.mark.parametrize("n", [7, 60])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [False, True])
def test_the_factors_of_scipy_are_taken(xp, dtype, lower, n):
    a, b = definite(n, dtype), rhs((n, 2), dtype)
    c, low = scipy.linalg.cho_factor(a, lower=lower)
    x = cho_solve((xp.asarray(c), low), xp.asarray(b))
    assert ratio(a, x, b) <= 10 * MET


def test_stacks_of_definite_matrices_broadcast(xp):
    a, b = np.stack([definite(5, seed=i) for i in range(3)]), rhs((2, 1, 5, 2))
    x = cho_solve(cho_factor(xp.asarray(a)), xp.asarray(b))
    assert x.shape == (2, 3, 5, 2)
    assert np.allclose(host(x), np.linalg.solve(a, b), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 1), (2, 3)])
def test_only_square_matrices_have_cholesky_factors(xp, shape):
    with pytest.raises(ValueError, match="square|2-D|two-dim|dimension"):
        cho_factor(xp.ones(shape))


def test_a_matrix_that_is_not_definite_is_refused(xp):
    a = definite(20)
    a[4, 4] = -1
    with pytest.raises(tcsolve.LinAlgError, match="not positive definite"):
        cho_factor(xp.asarray(a))
    a[4, 4] = np.nan
    with pytest.raises(ValueError, match="infs or NaNs"):
        cho_factor(xp.asarray(a))


def test_the_memory_that_is_lent_to_cholesky_is_used():
    a, b = np.asfortranarray(definite(30)), rhs((30,))
    kept_a, kept_b = a.copy(), b.copy()

    factors = cho_factor(a, overwrite_a=True)
    x = cho_solve(pickle.loads(pickle.dumps(factors)), b, overwrite_b=True)

    assert np.shares_memory(factors[0], a) and np.shares_memory(x, b)
    assert ratio(kept_a, x, kept_b) <= MET


def test_an_answer_that_is_wrong_is_told():
    c, low = cho_factor(definite(30))
    wrong = c.copy()
    wrong[0, 0] *= 1e8
    factors = type(cho_factor(definite(30)))((wrong, low), definite(30))
    with pytest.warns(AccuracyWarning, match="cho_solve: backward error .*, bound"):
        cho_solve(factors, np.ones(30))


def test_factors_that_are_nearly_right_are_corrected():
    a, b = definite(60), rhs((60,))
    c, low = cho_factor(a)
    factors = type(cho_factor(a))((c * (1 + 1e-7), low), a)
    assert ratio(a, cho_solve(factors, b), b) <= MET


@pytest.mark.parametrize("scale", [1e-290, 1e290])
def test_entries_at_the_ends_of_the_range_are_verified(scale):
    a, b = definite(40), rhs((40, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = cho_solve(cho_factor(a * scale), b * scale)
        y = lu_solve(scipy.linalg.lu_factor(a), b * scale)
        z = lu_solve(lu_factor(a * scale), b)
    assert ratio(a, x, b) <= MET and ratio(a, y / scale, b) <= 10 * MET
    assert np.isfinite(z).all()


@pytest.mark.parametrize("stack", [False, True])
@pytest.mark.parametrize(
    "pair", [(lu_factor, lu_solve), (cho_factor, cho_solve)], ids=["lu", "cho"]
)
def test_a_warning_points_at_the_caller(pair, stack, xp):
    factor, solve = pair
    a = xp.eye(40) * 3.0
    found = factor(xp.stack([a, a]) if stack else a)
    # The factors of another matrix, so that corrections diverge.
    factors = type(found)(tuple(found), found.matrix + 3)

    with pytest.warns(AccuracyWarning, match="not verified") as found:
        solve(factors, xp.ones((2, 40, 1) if stack else 40))

    assert {warning.filename for warning in found} == {__file__}


@pytest.mark.parametrize("n", [2, 40])
def test_b_that_lends_memory_and_is_no_array_is_not_overwritten(n):
    a = 4 * np.eye(n) + 1
    for b in (array.array("d", a.sum(axis=1)), memoryview(a.sum(axis=1))):
        for factors in (tcsolve.lu_factor(a), scipy.linalg.lu_factor(a)):
            assert tcsolve.lu_solve(factors, b, overwrite_b=True) == pytest.approx(np.ones(n))
        for factors in (tcsolve.cho_factor(a), scipy.linalg.cho_factor(a)):
            assert tcsolve.cho_solve(factors, b, overwrite_b=True) == pytest.approx(np.ones(n))


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("n", [3, 40])
def test_b_that_lies_in_the_factors_is_not_overwritten(n, order):
    a = np.random.default_rng(n).standard_normal((n, n))
    a = np.asarray(a @ a.T + np.eye(n), order=order)
    for factor, solve in (
        (scipy.linalg.lu_factor, tcsolve.lu_solve),
        (scipy.linalg.cho_factor, tcsolve.cho_solve),
    ):
        f, other = factor(a)
        for k in (0, n - 1):
            for pick in (lambda f, k=k: f[k], lambda f, k=k: f[:, k]):
                expected, lent = solve((f, other), pick(f).copy()), f.copy(order="K")
                assert np.array_equal(solve((lent, other), pick(lent), overwrite_b=True), expected)
                assert np.array_equal(lent, f)


@pytest.mark.parametrize("n", [2, 60])
def test_factors_that_overflowed_give_a_warning(n):
    a = 1e308 * np.eye(n)
    a[0, 1], a[1, 0] = 1e308, -1e308
    with pytest.warns(tcsolve.AccuracyWarning, match="lu_solve: backward error nan"):
        tcsolve.lu_solve(scipy.linalg.lu_factor(a), np.ones(n))


@pytest.mark.parametrize("n", [5, 60])
@pytest.mark.parametrize("scale", [1e308, 1e300, 1e-300])
def test_factors_near_the_ends_of_the_range_are_verified(n, scale):
    a = np.random.default_rng(n).standard_normal((n, n)) / n
    a = a @ a.T + np.eye(n)
    a *= scale / np.abs(a).max()
    x = np.linalg.solve(a / scale, np.ones(n)) / scale
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for found in (
            tcsolve.lu_solve(scipy.linalg.lu_factor(a), np.ones(n)),
            tcsolve.cho_solve(scipy.linalg.cho_factor(a), np.ones(n)),
        ):
            np.testing.assert_allclose(found, x, rtol=1e-12)


def test_a_byte_swapped_matrix_has_a_cholesky_factor():
    a = np.eye(70) * 2 + 1
    (c, lower), (expected, _) = tcsolve.cho_factor(a.astype(">f8")), tcsolve.cho_factor(a)
    assert (c == expected).all() and not lower


def test_a_pair_that_is_computed_late_is_a_tuple_in_each_operation():
    f = tcsolve.lu_factor(np.random.default_rng(0).standard_normal((1100, 1100)))
    assert f.factorization is not None  # so the pair has not been computed
    assert [type(x) for x in f + (1,)] == [np.ndarray, np.ndarray, int]
    lu, piv = f
    assert ((1,) + f)[1] is lu and (f * 2)[3] is piv and (2 * f)[2] is lu
    assert f.index(lu) == 0 and lu in f
    assert f == (lu, piv) and not f != (lu, piv) and (lu, piv) == f and f == f


@pytest.mark.parametrize("n", [5, 60])
def test_the_matrix_that_a_pair_keeps_is_not_overwritten(n):
    a = np.random.default_rng(n).standard_normal((n, n))
    a = np.asfortranarray(a @ a.T + n * np.eye(n))
    for factors, solve in (
        (tcsolve.lu_factor(a), tcsolve.lu_solve),
        (tcsolve.cho_factor(a), tcsolve.cho_solve),
    ):
        kept = factors.matrix.copy()
        for b in (factors.matrix[0], factors.matrix[:, 1], factors.matrix):
            solve(factors, b, overwrite_b=True)
            assert np.array_equal(factors.matrix, kept)


def test_arrays_that_cannot_be_written_are_not_overwritten(tmp_path):
    a, path = np.asfortranarray(4 * np.eye(5) + 1), tmp_path / "b"
    np.ones(5).tofile(path)
    mapped = np.memmap(
        path, dtype=float, mode="r", shape=(5,)
    )  # writing to it would end the process
    still = np.ones(5)
    still.flags.writeable = False
    a.flags.writeable = False
    band = np.asfortranarray(np.ones((2, 5)) + [[0], [4]])
    band.flags.writeable = False
    for b in (mapped, still):
        for x in (
            tcsolve.lu_solve(scipy.linalg.lu_factor(a), b, overwrite_b=True),
            tcsolve.cho_solve(scipy.linalg.cho_factor(a), b, overwrite_b=True),
            tcsolve.solve_triangular(a, b, overwrite_b=True),
            tcsolve.solve_banded((0, 1), band, b, overwrite_b=True, overwrite_ab=True),
            tcsolve.solveh_banded(band, b, overwrite_b=True, overwrite_ab=True),
        ):
            assert np.isfinite(x).all() and (b == 1).all()
    for call in (tcsolve.lu_factor, tcsolve.cho_factor, tcsolve.inv):
        call(a, overwrite_a=True)
        call(np.asfortranarray(np.triu(a)), overwrite_a=False)
    assert np.array_equal(a, 4 * np.eye(5) + 1) and np.array_equal(
        band, np.ones((2, 5)) + [[0], [4]]
    )
