"""`solve_triangular`, `solve_banded` and `solveh_banded`: SciPy's routines, with verified answers."""

import array
import functools
import warnings

import numpy as np
import pytest
import scipy.linalg
from bounds import MET, host, ratio

import tcsolve
from tcsolve import solve_banded, solve_triangular, solveh_banded

DTYPES = [np.float32, np.float64, np.complex64, np.complex128]


def random(shape, dtype=float, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def triangle(n, lower, dtype=float):
    a = random((n, n), dtype) + (n**0.5 * np.eye(n)).astype(dtype)
    return np.tril(a) if lower else np.triu(a)


def full(l, u, ab):
    """Return the matrix that the diagonals ab describe."""
    n = ab.shape[1]
    a = np.zeros((n, n), ab.dtype)
    for i in range(n):
        for j in range(max(0, i - l), min(n, i + u + 1)):
            a[i, j] = ab[u + i - j, j]
    return a


def full_definite(ab, lower):
    u, n = len(ab) - 1, ab.shape[1]
    a = np.zeros((n, n), ab.dtype)
    for d in range(u + 1):
        diagonal = ab[d, : n - d].conj() if lower else ab[u - d, d:]
        a += np.diag(diagonal, d) + (np.diag(diagonal.conj(), -d) if d else 0)
    return a


def definite_band(u, n, lower, dtype=float):
    ab = random((u + 1, n), dtype)
    ab[0 if lower else u] = 4 * (u + 1)
    return ab


# ---- triangles


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("trans", [0, 1, 2, "N", "T", "C"])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("n", [9, 60])
def test_a_triangular_answer_is_verified(xp, dtype, trans, lower, n):
    a = triangle(n, lower, dtype)
    solved = {0: a, 1: a.T, 2: a.conj().T}[{"N": 0, "T": 1, "C": 2}.get(trans, trans)]
    for order in "CF":
        for shape in ((n,), (n, 3), (n, 0)):
            b, given = random(shape, dtype, 1), xp.asarray(np.array(a, order=order))
            x = solve_triangular(given, xp.asarray(b), trans=trans, lower=lower)
            assert isinstance(x, xp.ndarray) and x.shape == shape and x.dtype == dtype
            assert ratio(solved, x, b) <= MET


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("columns", [None, 3])
def test_x_has_the_bits_of_scipys_function_and_nothing_is_overwritten(dtype, order, columns):
    n = 65
    b = random(n if columns is None else (n, columns), dtype, 1)
    bands = {(l, u): random((l + u + 1, n), dtype) + 8 for l, u in ((0, 0), (1, 1), (2, 0), (1, 3))}
    kept = b.copy()
    for trans in (0, 1, 2):
        for lower in (False, True):
            for unit in (False, True):
                how = {"trans": trans, "lower": lower, "unit_diagonal": unit}
                a = np.array(triangle(n, lower, dtype), order=order)
                x = scipy.linalg.solve_triangular(a, b, **how)
                found = solve_triangular(a, b, **how)
                assert np.array_equal(found, x) and found.flags.f_contiguous == x.flags.f_contiguous
    for (l, u), ab in bands.items():
        ab[u] *= 4
        given = np.array(ab, order=order)
        x = scipy.linalg.solve_banded((l, u), given, b)
        assert np.array_equal(solve_banded((l, u), given, b), x) and np.array_equal(given, ab)
    for u in (0, 1, 3):
        for lower in (False, True):
            ab = definite_band(u, n, lower, dtype)
            x = scipy.linalg.solveh_banded(ab, b, lower=lower)
            assert np.array_equal(solveh_banded(np.array(ab, order=order), b, lower=lower), x)
    assert np.array_equal(b, kept)


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_refused_also_where_it_is_not_read(order, value):
    a, b, n = np.array(triangle(65, False), order=order), random(65), 65
    first = np.eye(n)[0]  # the other x are zero, and BLAS may skip their columns
    for row, column in ((40, 3), (0, 5), (7, 7)):
        bad = a.copy(order="K")
        bad[row, column] = value
        for trans in (0, 1):
            for unit in (False, True):
                with pytest.raises(ValueError, match="infs or NaNs"):
                    solve_triangular(bad, first, trans=trans, unit_diagonal=unit)
    a[40, 3] = value  # in the lower triangle
    with pytest.raises(ValueError, match="infs or NaNs"):
        solve_triangular(a, b)
    assert ratio(np.triu(a), solve_triangular(a, b, check_finite=False), b) <= MET
    ab = random((3, n))
    ab[1] = 16
    ab[0, 0] = value  # outside of the matrix
    for solve in (
        lambda **how: solve_banded((1, 1), ab, b, **how),
        lambda **how: solveh_banded(ab[:2], b, **how),
    ):
        with pytest.raises(ValueError, match="infs or NaNs"):
            solve()
        assert np.isfinite(solve(check_finite=False)).all()


def test_a_triangle_in_complex_long_double_keeps_its_imaginary_part():
    a, b = triangle(5, True, complex), random((5,), complex, 1)
    x = solve_triangular(a.astype(np.clongdouble), b, lower=True)
    assert ratio(a, x, b) <= MET


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("lower", [False, True])
def test_only_the_triangle_is_read(xp, lower, unit):
    n = 40
    a, b = triangle(n, lower) / n, random((n,), seed=1)
    given = a.copy()
    given[np.triu_indices(n, 1) if lower else np.tril_indices(n, -1)] = np.nan
    if unit:
        given[np.diag_indices(n)], a[np.diag_indices(n)] = np.nan, 1
    options = {"lower": lower, "unit_diagonal": unit, "check_finite": False}

    x = solve_triangular(xp.asarray(given), xp.asarray(b), **options)

    assert ratio(a, x, b) <= MET


def test_a_zero_on_the_diagonal_is_found(xp):
    a = triangle(20, True)
    a[4, 4] = 0
    with pytest.raises(tcsolve.LinAlgError, match="resolution failed at diagonal 4"):
        solve_triangular(xp.asarray(a), xp.ones(20), lower=True)


def test_stacks_of_triangles_broadcast(xp):
    a, b = np.stack([triangle(5, False)] * 3) * random((3, 1, 1)), random((2, 1, 5, 2))
    x = solve_triangular(xp.asarray(a), xp.asarray(b))
    assert x.shape == (2, 3, 5, 2) and np.allclose(a @ host(x), b, rtol=0, atol=1e-13)


def test_bad_input_of_a_triangle_is_refused(xp):
    a = xp.asarray(triangle(5, False))
    for b in (xp.ones(4), xp.full(5, np.nan)):
        with pytest.raises(ValueError):
            solve_triangular(a, b)
    with pytest.raises(ValueError, match="trans is 7"):
        solve_triangular(a, xp.ones(5), trans=7)
    with pytest.raises(ValueError):
        solve_triangular(xp.ones((3, 4)), xp.ones(3))


def test_x_may_lie_in_the_memory_of_b():
    a, b = triangle(30, False), random((30,), seed=1)
    kept = b.copy()
    x = solve_triangular(a, b, overwrite_b=True)
    assert np.shares_memory(x, b) and ratio(a, x, kept) <= MET


# ---- bands


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("l, u", [(0, 0), (1, 1), (2, 0), (0, 3), (3, 1)])
@pytest.mark.parametrize("n", [9, 60])
def test_a_banded_answer_is_verified(xp, dtype, l, u, n):
    ab = random((l + u + 1, n), dtype)
    ab[u] += 4
    for shape in ((n,), (n, 3), (n, 0)):
        b = random(shape, dtype, 1)
        x = solve_banded((l, u), xp.asarray(ab), xp.asarray(b))
        assert isinstance(x, xp.ndarray) and x.shape == shape and x.dtype == dtype
        assert ratio(full(l, u, ab), x, b) <= MET


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("u", [0, 1, 3])
@pytest.mark.parametrize("n", [9, 60])
def test_the_answer_for_a_definite_band_is_verified(xp, dtype, lower, u, n):
    ab = definite_band(u, n, lower, dtype)
    for shape in ((n,), (n, 3), (n, 0)):
        b = random(shape, dtype, 1)
        x = solveh_banded(xp.asarray(ab), xp.asarray(b), lower=lower)
        assert isinstance(x, xp.ndarray) and x.shape == shape and x.dtype == dtype
        assert ratio(full_definite(ab, lower), x, b) <= MET


def test_corners_of_the_storage_are_not_read():
    ab = random((4, 60))
    ab[2] += 4
    b = random((60,), seed=1)
    given = ab.copy()
    given[0, :2] = given[1, :1] = given[3, -1:] = 1e300
    x = solve_banded((1, 2), given, b)
    assert ratio(full(1, 2, ab), x, b) <= MET
    assert np.array_equal(x, scipy.linalg.solve_banded((1, 2), given, b))


def test_more_diagonals_than_the_matrix_has_are_allowed():
    ab, b = random((9, 3)), random((3,), seed=1)
    ab[4] += 4
    assert ratio(full(4, 4, ab), solve_banded((4, 4), ab, b), b) <= MET


@pytest.mark.parametrize("scale", [1e-290, 1e290])
def test_bands_at_the_ends_of_the_range_are_verified(scale):
    ab, b = definite_band(2, 40, False), random((40, 2), seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = solveh_banded(ab * scale, b * scale)
    assert ratio(full_definite(ab, False), x, b) <= MET


@pytest.mark.parametrize("scale", [1e-290, 1.0, 1e290])
@pytest.mark.parametrize("n", [5, 40])
def test_entries_outside_of_the_matrix_are_not_read(scale, n):
    ab, b = random((3, n)), random((n,), seed=1)
    ab[1] += 4
    matrix = full(1, 1, ab)
    ab[0, 0] = ab[2, -1] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = solve_banded((1, 1), ab * scale, b * scale, check_finite=False)
    assert ratio(matrix, x, b) <= MET


def test_a_band_whose_rows_grow_without_pivoting_is_solved():
    n = 200
    ab = np.vstack([np.ones((2, n)), np.full(n, 1e-3), -np.ones((2, n))])
    b = random((n, 4), seed=1)
    assert ratio(full(2, 2, ab), solve_banded((2, 2), ab, b), b) <= MET


@pytest.mark.parametrize("growing, n", [(15, 32), (23, 60)])
def test_a_band_whose_factors_grow_is_corrected(growing, n):
    """The leading block has Wilkinson's growth of 2**growing, so the first x misses the bound."""
    a = np.eye(n)
    block = np.tril(-np.ones((growing + 1, growing + 1)), -1) + np.eye(growing + 1)
    block[:, -1] = 1
    a[: growing + 1, : growing + 1] = block
    diagonals, b = np.zeros((2 * growing + 1, n)), random(n)
    for d in range(-growing, growing + 1):
        diagonals[growing - d, max(d, 0) : n + min(d, 0)] = np.diagonal(a, d)
    plain = scipy.linalg.solve_banded((growing, growing), diagonals, b)

    x = solve_banded((growing, growing), diagonals, b)

    assert ratio(a, plain, b) > 2 >= MET and ratio(a, x, b) <= MET


@pytest.mark.parametrize("n", [5, 40])
def test_an_answer_that_leaves_the_range_is_told(n):
    a, b = 1e-160 * np.eye(n), np.full(n, 1e-160)
    b[0] = 1e160
    calls = (
        lambda: solve_triangular(a, b),
        lambda: solve_banded((0, 1), np.array([np.zeros(n), a.diagonal()]), b),
        lambda: solveh_banded(np.array([np.zeros(n), a.diagonal()]), b),
    )
    for call in calls:
        with pytest.warns(tcsolve.AccuracyWarning, match="is not verified"):
            call()


def test_stacks_of_bands_broadcast(xp):
    ab, b = random((3, 3, 5)) + [[0], [4], [0]], random((2, 1, 5, 2))
    x = solve_banded(([1, 1, 1], 1), xp.asarray(ab), xp.asarray(b))
    assert x.shape == (2, 3, 5, 2)
    for i in range(3):
        assert np.allclose(full(1, 1, ab[i]) @ host(x)[1, i], b[1, 0], rtol=0, atol=1e-13)


def test_lent_bands_are_overwritten_and_the_answer_is_measured_before():
    ab, b = definite_band(1, 40, True), random((40,), seed=1)
    kept = ab.copy(), b.copy()
    x = solveh_banded(ab, b, overwrite_ab=True, overwrite_b=True, lower=True)
    assert np.shares_memory(x, b) and not np.array_equal(ab, kept[0])
    assert ratio(full_definite(kept[0], True), x, kept[1]) <= MET


def test_a_band_that_cannot_be_solved_is_refused(xp):
    with pytest.raises(tcsolve.LinAlgError, match="singular"):
        solve_banded((1, 1), xp.zeros((3, 5)), xp.ones(5))
    with pytest.raises(tcsolve.LinAlgError, match="not positive definite"):
        solveh_banded(xp.asarray(-definite_band(1, 5, False)), xp.ones(5))
    with pytest.raises(ValueError):
        solve_banded((1, 1), xp.ones((3, 5)), xp.ones(4))
    with pytest.raises(ValueError):
        solve_banded((2, 1), xp.ones((3, 5)), xp.ones(5))
    with pytest.raises(ValueError):
        solveh_banded(xp.full((2, 5), np.nan), xp.ones(5))


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("lower", [np.array(True), np.array(1), 1])
def test_lower_may_be_an_array_of_one_number(lower, order):
    a = np.asarray(triangle(6, True), order=order)
    assert np.array_equal(
        tcsolve.solve_triangular(a, np.ones(6), lower=lower),
        tcsolve.solve_triangular(a, np.ones(6), lower=True),
    )


# ---- memory that is lent


def lends():
    """Yield (call, truth): calls that lend memory which the matrix shares with b, or that is no array's."""
    x = np.array([[4.0, 1, 2], [1, 5, 1], [2, 1, 6]], order="F")
    yield lambda: tcsolve.solve_triangular(x, x[:, 2], overwrite_b=True), [0, 0, 1]
    upper, numbers = np.triu(x[:2, :2]), array.array("d", [5, 5])
    yield lambda: tcsolve.solve_triangular(upper, numbers, overwrite_b=True), [1, 1]
    yield (
        lambda: tcsolve.solve_triangular(upper, memoryview(np.full(2, 5.0)), overwrite_b=True),
        [1, 1],
    )
    ab = np.array([[0, 1.0, 1], [4, 4, 4], [1, 1, 0]], order="F")
    yield lambda: tcsolve.solve_banded((1, 1), ab, ab[:, 1], overwrite_b=True), [0, 1, 0]
    half = np.array([[4.0, 5, 6, 7], [1, 1, 1, 0]], order="F")
    full = np.diag(half[0]) + np.diag(half[1, :3], 1) + np.diag(half[1, :3], -1)
    truth = np.linalg.solve(full, half[0])
    for which in ({"overwrite_ab": True}, {"overwrite_b": True}):
        lent = half.copy(order="F")
        yield (
            lambda lent=lent, which=which: tcsolve.solveh_banded(
                lent, lent[0], lower=True, **which
            ),
            truth,
        )


@pytest.mark.parametrize("number", range(6))
def test_memory_that_two_arguments_share_is_not_overwritten(number):
    call, truth = list(lends())[number]
    np.testing.assert_allclose(call(), truth, rtol=1e-14, atol=1e-15)


def test_a_band_of_one_unknown_has_the_dtype_of_both_arguments_and_may_be_singular():
    assert tcsolve.solve_banded((0, 0), np.array([[2j]]), np.array([1.0])).tolist() == [-0.5j]
    x = tcsolve.solve_banded((0, 0), np.array([[2.0]]), np.ones(1, np.float32))
    assert x.dtype == np.float64 and x.tolist() == [0.5]
    with pytest.raises(ValueError, match="NaN|inf"):
        tcsolve.solve_banded((0, 0), [[0.0]], [np.nan])
    assert tcsolve.solve_banded((0, 0), [[0.0]], np.zeros((1, 0))).shape == (1, 0)
    for b in (np.array([3.0], object), ["a"]):  # as SciPy does
        with pytest.raises(ValueError):
            tcsolve.solve_banded((0, 0), [[2.0]], b)
    for ab in ([[0.0]], np.zeros((1, 1), complex)):
        with pytest.raises(tcsolve.SingularError):
            tcsolve.solve_banded((0, 0), ab, [1.0])


@pytest.mark.parametrize(
    "solve", [functools.partial(tcsolve.solve_banded, (0, 0)), tcsolve.solveh_banded]
)
def test_a_band_without_two_dimensions_is_refused(solve):
    with pytest.raises(tcsolve.InputError, match=r"ab has shape \(1,\)"):
        solve(np.array([3.0]), np.array([1.0]))


def test_strings_are_numbers_as_in_scipy():
    b = np.array([["1", "2"], ["3", "4"]])
    assert tcsolve.solve_triangular(np.eye(2), b).tolist() == [[1, 2], [3, 4]]
