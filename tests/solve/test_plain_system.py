"""Small ordinary systems are solved and verified before the usual checks; others are solved as usual."""

import warnings

import numpy as np
import pytest
import scipy.linalg
from bounds import MET, ratio

import tcsolve
from tcsolve import (
    AccuracyWarning,
    InputError,
    LinAlgWarning,
    NotPositiveDefiniteError,
    SingularError,
)
from tcsolve._solve.choice.device_choice import LEAST_N
from tcsolve._steps import observed


def system(n, dtype=float, columns=None, definite=False):
    rng = np.random.default_rng(n)
    a = rng.standard_normal((n, n))
    a = a + 1j * rng.standard_normal((n, n)) if np.dtype(dtype).kind == "c" else a
    a = a @ a.conj().T / n + np.eye(n) if definite else a
    a = a.astype(dtype)
    b = (a @ np.ones((n, columns) if columns else n)).astype(dtype)
    return a, b


def plainly(*args, **options):
    """Return x, and whether the system was solved before the usual checks."""
    with observed() as steps:
        x = tcsolve.solve(*args, **options)
    return x, not steps


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("n", [2, 4, 10, 32, 33, 130, LEAST_N - 1, LEAST_N, 580])
@pytest.mark.parametrize("columns", [None, 1, 3])
@pytest.mark.parametrize("assume_a", [None, "gen", "pos"])
def test_plain_systems_are_verified(n, dtype, columns, assume_a):
    a, b = system(n, dtype, columns, definite=assume_a == "pos")
    a = (a + a.conj().T) / 2 if assume_a == "pos" else a
    for order in "CF":
        given = np.array(a, order=order), np.array(b, order=order)
        before = [v.copy() for v in given]
        x, is_plain = plainly(*given, assume_a=assume_a)
        assert is_plain and x.shape == b.shape and x.dtype == dtype and x.flags.c_contiguous
        assert ratio(a, x, b) <= MET
        assert all(map(np.array_equal, given, before)) and not np.shares_memory(x, given[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("columns", [None, 1, 3, 20])
def test_the_same_system_has_the_same_bits_with_a_report_and_without(dtype, columns):
    for n in (3, 20, 60, 120, LEAST_N, 299, 300, 399, 580):
        a, b = system(n, dtype, columns)
        x = tcsolve.solve(a, b)
        assert np.array_equal(x, tcsolve.solve(a.copy(), b.copy()))
        assert np.array_equal(x, tcsolve.solve_ex(a, b).x)


BANDS = {
    "diagonal": (0, 0),
    "tridiagonal": (1, 1),
    "banded": (2, 1),
    "upper triangular": (0, np.inf),
    "lower triangular": (np.inf, 0),
    "general": (np.inf, np.inf),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("structure", BANDS)
@pytest.mark.parametrize("n", [2, 3, 4, 5, 20, 33, 130])
def test_bands_and_triangles_are_plain_whether_asserted_or_found(structure, n, dtype):
    below, above = BANDS[structure]
    offset = np.arange(n) - np.arange(n)[:, None]
    for columns in (None, 3):
        a, b = system(n, dtype, columns)
        a = np.where((-below <= offset) & (offset <= above), a, 0).astype(dtype)
        a += (n**0.5 * np.eye(n)).astype(dtype)
        a[0, -1] *= structure != "general"  # a zero corner, as structured matrices have
        for order in "CF":
            given = np.array(a, order=order), np.array(b, order=order)
            for assume_a in (structure, None):
                x, is_plain = plainly(*given, assume_a=assume_a)
                assert is_plain and x.dtype == dtype and x.shape == b.shape
                assert ratio(a, x, b) <= MET
                assert np.array_equal(x, tcsolve.solve_ex(*given, assume_a=assume_a).x)
            assert np.array_equal(given[0], a) and np.array_equal(given[1], b)


@pytest.mark.parametrize("structure", ["diagonal", "tridiagonal", "upper triangular"])
def test_an_entry_outside_of_the_structure_is_not_plain(structure):
    a, b = system(20)
    a = np.triu(np.tril(a)) + 9 * np.eye(20)
    for value in (1.0, np.nan):
        a[9, 2] = value
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            if value == 1:
                x, is_plain = plainly(a, b, assume_a=structure)
                read = np.triu(np.tril(a))
                assert not is_plain and given and ratio(read, x, b) <= MET
            else:
                with pytest.raises(ValueError, match="NaN"):
                    tcsolve.solve(a, b, assume_a=structure)


@pytest.mark.parametrize("structure", ["diagonal", "banded", "upper triangular", None])
def test_a_singular_band_or_triangle_raises_and_a_nearly_singular_one_warns(structure):
    a, b = np.diag(np.arange(1.0, 13)), np.ones(12)
    a[3, 3] = 0
    with pytest.raises(np.linalg.LinAlgError):
        tcsolve.solve(a, b, assume_a=structure)
    a[3, 3] = 1e-20
    with pytest.warns(tcsolve.LinAlgWarning):
        tcsolve.solve(a, b, assume_a=structure)


@pytest.mark.parametrize(
    "change",
    [
        lambda a, b: (a.tolist(), b),
        lambda a, b: (a, b.tolist()),
        lambda a, b: (a, b.astype(complex)),
        lambda a, b: (a[::2, ::2], b[::2]),
        lambda a, b: (a * 1e300, b * 1e300),
        lambda a, b: (a, b * 0),
        lambda a, b: (a.astype(">f8"), b),
        lambda a, b: (a[:1, :1], b[:1]),
        lambda a, b: (a, b[:, None][:, :0]),
    ],
)
def test_other_systems_are_solved_the_ordinary_way(change):
    a, b = change(*system(40))
    x, is_plain = plainly(a, b)
    assert not is_plain and np.allclose(np.asarray(a) @ x, b, rtol=1e-9)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_larger_systems_are_solved_the_ordinary_way(device):
    assert plainly(*system(580), device=device)[1] and not plainly(*system(581), device=device)[1]


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("n", [300, 400, 580])
@pytest.mark.parametrize("cond", [1e2, 1e6, 1e9, 1e14])
def test_a_few_hundred_unknowns_are_solved_by_factors_that_suit_the_condition(n, cond, dtype):
    a = tcsolve.matrices.generate("svd_geo", n, cond=cond, seed=1).a.astype(dtype)
    b = a @ np.ones(n)

    found = tcsolve.solve_ex(a, b)

    assert found.status.ok and ratio(a, found.x, b) <= MET
    np.testing.assert_array_equal(tcsolve.solve(a, b), found.x)
    if cond <= 1e2:
        assert found.rungs == ("fp32",) and 0.5e-4 < found.rcond < 1e-2
    if cond >= 1e9:  # FP32 factors are not tried further once they show the condition
        assert found.rungs == ("fp32", "fp64")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["equal rows", "rounded", "complex"])
def test_fp32_factors_do_not_hide_a_singular_matrix(kind, seed):
    rng, n = np.random.default_rng(seed), 300 + seed
    a = rng.integers(-3, 4, (n, n)).astype(complex if kind == "complex" else float)
    if kind == "equal rows":
        a[-1] = a[0]
    else:  # singular up to rounding
        u = rng.standard_normal(n) * (1 + 1j if kind == "complex" else 1)
        u /= np.linalg.norm(u)
        a = a - np.outer(u, u.conj() @ a)
    b = a @ np.ones(n)

    found = tcsolve.solve_ex(a, b)

    assert found.status is tcsolve.Status.ILL_CONDITIONED and found.rungs == ("fp32", "fp64")
    with pytest.warns(LinAlgWarning):
        tcsolve.solve(a, b)


@pytest.mark.parametrize("n", [40, 320])
def test_arrays_of_the_other_byte_order_have_the_usual_answer(n):
    a, b = system(n)
    both = np.asfortranarray(
        np.column_stack([a, b]).astype(">f8")
    )  # both parts have one dtype object

    x = tcsolve.solve(both[:, :n], both[:, n])

    assert x.dtype == np.float64 and x.dtype.isnative
    np.testing.assert_array_equal(x, tcsolve.solve_ex(both[:, :n], both[:, n]).x)


def test_badly_scaled_rows_are_solved_by_fp64_factors_with_the_accuracy_of_lapack():
    a, b = system(300)
    scale = 2.0 ** np.random.default_rng(1).integers(-20, 20, 300)
    a, b = a * scale[:, None], b * scale

    found = tcsolve.solve_ex(a, b)

    assert found.rungs == ("fp64",) and found.status is tcsolve.Status.CONVERGED
    np.testing.assert_array_equal(tcsolve.solve(a, b), found.x)
    assert np.abs(found.x - 1).max() <= 10 * np.abs(scipy.linalg.solve(a, b) - 1).max() + 1e-13


@pytest.mark.parametrize(
    "options",
    [
        {"overwrite_a": True},
        {"overwrite_b": True},
        {"precision": "fp64"},
        {"residual": "double-double"},
        {"transposed": True},
        {"assume_a": "sym"},
        {"lower": True, "assume_a": "her"},
    ],
)
def test_systems_with_options_are_solved_the_ordinary_way(options):
    a, b = system(20, definite=True)
    a = (a + a.T) / 2
    x, is_plain = plainly(a, b, **options)
    assert not is_plain and np.allclose(x, 1, rtol=1e-9)


@pytest.mark.parametrize("assume_a", [None, "pos"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["a", "b"])
def test_values_that_are_not_finite_are_refused(assume_a, value, where):
    a, b = system(20, definite=True)
    a = (a + a.T) / 2
    if where == "a":
        a[3, 5] = a[5, 3] = value
    else:
        b[4] = value
    with pytest.raises(InputError, match=f"{where} does"):
        tcsolve.solve(a, b, assume_a=assume_a)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.isnan(tcsolve.solve(a, b, assume_a=assume_a, check_finite=False)).any()


@pytest.mark.parametrize("n", [2, 10, 60])
def test_singular_and_ill_conditioned_matrices_are_told(n):
    a, b = system(n)
    a[:, 1] = a[:, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((SingularError, LinAlgWarning)):
            tcsolve.solve(a, b)
    a[:, 1] *= 1 + 2e-16
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((SingularError, LinAlgWarning)):
            tcsolve.solve(a, b)
    with pytest.raises(SingularError):
        tcsolve.solve(np.outer(np.ones(n), np.ones(n)), b)


@pytest.mark.parametrize("exponent", range(2, 15, 2))
@pytest.mark.parametrize("n", [10, 60])
def test_hard_matrices_give_no_warning_before_scipy_does(n, exponent):
    a = tcsolve.matrices.generate("svd_geo", n, cond=10.0**exponent, seed=1).a
    b = np.ones(n)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scipy.linalg.solve(a, b)
        assert ratio(a, tcsolve.solve(a, b), b) <= MET


def test_a_matrix_that_is_not_definite_or_not_symmetric_is_told():
    a, b = system(20, definite=True)
    a = (a + a.T) / 2
    with pytest.raises(NotPositiveDefiniteError):
        tcsolve.solve(a - 3 * np.eye(20), b, assume_a="pos")
    a[2, 7] += 0.5
    with pytest.warns(AccuracyWarning):
        tcsolve.solve(a, b, assume_a="pos")


def test_a_complex_matrix_with_a_complex_diagonal_is_not_definite():
    a, b = system(20, complex, definite=True)
    a = (a + a.conj().T) / 2 + 1e-3j * np.eye(20)
    assert abs(plainly(a, b, assume_a="gen")[0].imag).max() > 1e-6
    with pytest.warns(AccuracyWarning):
        tcsolve.solve(a, b, assume_a="pos")


def test_the_floating_point_settings_of_the_caller_do_not_matter():
    a, b = system(12)
    for scale in (1.0, 1e-300, 1e300):
        with np.errstate(all="raise"):
            x = tcsolve.solve(a * scale, b)
        assert np.allclose(x, np.ones(12) / scale, rtol=1e-9, atol=0)


def growing(rng, n, columns):
    """Return a singular matrix whose entries grow by 2**columns if LAPACK factors it, and not A^T."""
    a = rng.integers(-3, 4, (n, n)).astype(float)
    for j in range(columns):
        a[:j, j], a[j, j], a[j + 1 :, j] = 0, 1, -1
    i = rng.permutation(np.arange(columns, n))[:4]
    a[i[0]] = a[i[1]] + a[i[2]] - a[i[3]]
    return np.asfortranarray(a)


def is_ill_conditioned(a, b):
    """Tell whether `solve` warns of rcond, and `solve_ex` says so after FP64 factors."""
    report = tcsolve.solve_ex(a, b)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tcsolve.solve(a, b)
    said = report.status.name == "ILL_CONDITIONED" and report.rungs == ("fp32", "fp64")
    return said and [w.category for w in caught] == [LinAlgWarning]


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("n", [64, 300])
def test_fp32_factors_solve_fp32_systems_but_not_singular_ones(n, dtype):
    a, b = system(n, dtype)
    assert tcsolve.solve_ex(a, b).rungs == ("fp32",)
    assert tcsolve.solve_ex(*system(20, dtype)).rungs == ("fp64",)
    a[:, -1] = a[:, :3].sum(axis=1)
    assert is_ill_conditioned(a, a @ np.ones(n, dtype))


def test_singular_fp32_matrices_whose_entries_grow_are_found():
    """Their FP32 factors look regular, and for b in the range of A, x meets the bound."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        n, columns = rng.integers(64, 120), rng.integers(16, 22)
        a = growing(rng, n, columns)
        b = a @ rng.integers(-3, 4, n)
        assert is_ill_conditioned(a.astype(np.float32), b.astype(np.float32))
