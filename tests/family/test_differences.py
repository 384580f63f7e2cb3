"""The page "What differs from scipy.linalg": each point has one test here, and each test is of a point."""

import re
import time
import warnings

import ml_dtypes
import numpy as np
import pytest
import scipy.linalg
from bounds import MET, host, ratio
from folders import ROOT
from systems import gauss, growth_both_ways

import tcsolve
from tcsolve._family import probes
from tcsolve._family.inverse import verify_inverse

PAGE = ROOT / "docs" / "guide" / "differences.md"
LARGE = 1100


def fact(words):
    """Mark a test as that of the point of the page that begins with these words."""

    def mark(test):
        test.words = words
        return test

    return mark


def test_each_point_of_the_page_is_a_test():
    points = re.findall(r"^- \*\*(.+?)\*\*", PAGE.read_text(encoding="utf-8"), re.M)
    tests = [test.words for test in globals().values() if hasattr(test, "words")]
    assert len(points) >= 15 and sorted(tests) == sorted(points)


def quiet(function, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **options)


def warned(function, *args, **options):
    """Return the categories of the warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args, **options)
    return {warning.category for warning in caught}


@fact("Answers are verified.")
def test_answers_are_verified():
    a, b = growth_both_ways(60), np.random.default_rng(0).standard_normal(120)
    assert ratio(a, scipy.linalg.solve(a, b), b) > 100
    assert ratio(a, tcsolve.solve(a, b), b) <= MET
    assert ratio(a, tcsolve.lu_solve(tcsolve.lu_factor(a), b), b) <= MET
    small = np.full((1, 1), 1e300), np.full(1, 1e-300)
    assert warned(tcsolve.solve, *small) == {tcsolve.AccuracyWarning}
    assert not warned(scipy.linalg.solve, *small)


@fact("Singular factors give a warning.")
def test_singular_factors_are_told():
    a = np.zeros((3, 3))
    for family, category in ((tcsolve, {tcsolve.AccuracyWarning}), (scipy.linalg, set())):
        factors = quiet(family.lu_factor, a)
        assert warned(family.lu_solve, factors, np.ones(3)) == category
        assert not np.isfinite(quiet(family.lu_solve, factors, np.ones(3))).any()


@fact("Errors have classes of their own.")
def test_errors_have_classes_of_their_own():
    assert issubclass(tcsolve.InputError, ValueError)
    for error in (tcsolve.SingularError, tcsolve.NotPositiveDefiniteError):
        assert issubclass(error, scipy.linalg.LinAlgError)
    with pytest.raises(tcsolve.InputError, match="b needs 3 rows"):
        tcsolve.solve(np.eye(3), np.ones(4))


@pytest.mark.gpu
@fact("CuPy arrays are taken.")
def test_cupy_arrays_are_taken(cupy):
    a, b = cupy.eye(3), cupy.ones(3)
    for x in (
        tcsolve.solve(a, b),
        tcsolve.solve_banded((0, 0), cupy.ones((1, 3)), b),
        tcsolve.inv(a),
    ):
        assert isinstance(x, cupy.ndarray)


@fact("Only writable arrays are overwritten.")
def test_only_writable_arrays_are_overwritten():
    for solve, is_overwritten in ((tcsolve.solve, False), (scipy.linalg.solve, True)):
        a, b = np.asfortranarray(gauss(20)), np.ones(20)
        a.flags.writeable = False
        solve(a, b, overwrite_a=True)
        assert np.array_equal(a, gauss(20)) is not is_overwritten
    a = np.asfortranarray(gauss(20))
    tcsolve.solve(a, a, overwrite_a=True, overwrite_b=True)
    assert np.array_equal(a, gauss(20))


@fact("Memory of two arguments is not overwritten.")
def test_memory_of_two_arguments_is_not_overwritten():
    a = np.array([[4.0, 1, 2], [1, 5, 1], [2, 1, 6]])
    lu, piv = scipy.linalg.lu_factor(a)
    expected = np.linalg.solve(a, lu[:, 0])
    for library, is_right in ((tcsolve, True), (scipy.linalg, False)):
        lent = lu.copy(order="F")
        x = library.lu_solve((lent, piv), lent[:, 0], overwrite_b=True)
        assert np.allclose(x, expected, rtol=1e-12) is is_right
        assert np.array_equal(lent, lu) is is_right


@fact("Small systems take longer.")
def test_small_systems_take_longer():
    a, b = gauss(4), np.ones(4)

    def calls(library):
        library.inv(a)
        library.det(a)
        library.solve_triangular(a, b)
        library.lu_solve(library.lu_factor(a), b)

    def seconds(library):
        start = time.perf_counter()
        for _ in range(20):
            calls(library)
        return time.perf_counter() - start

    ours, scipys = (min(seconds(library) for _ in range(5)) for library in (tcsolve, scipy.linalg))
    assert 1.5 * scipys < ours < 100 * scipys


# ---- solve


@fact("precision and device are new.")
def test_precision_and_device_are_new():
    report = tcsolve.solve_ex(gauss(60), np.ones(60), precision="fp16x3", device="cpu")
    assert (report.precision, report.device) == ("fp16x3", "cpu")


@fact("assume_a is checked.")
def test_assume_a_is_checked():
    asserted = np.ones((2, 2)) + np.eye(2), np.ones(2)
    assert warned(tcsolve.solve, *asserted, assume_a="diagonal") == {tcsolve.AccuracyWarning}
    assert not warned(scipy.linalg.solve, *asserted, assume_a="diagonal")


@fact("A band is detected.")
def test_a_band_is_detected():
    n = 1500
    a = sum(np.diag(np.full(n - abs(d), 5.0 - 4 * abs(d) / 2), d) for d in range(-2, 3))
    assert tcsolve.solve_ex(a, np.ones(n)).precision == "fp64"  # by LAPACK's band LU
    assert tcsolve.solve_ex(gauss(n), np.ones(n)).precision == "fp32"


@fact("A symmetric matrix counts as general.")
def test_a_symmetric_matrix_counts_as_general():
    a = gauss(60) @ gauss(60).T + 60 * np.eye(60)
    found = [tcsolve.solve(a, np.ones(60), assume_a=kind) for kind in (None, "general", "pos")]
    assert np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])


@fact("The first bad matrix of a stack is named.")
def test_the_first_bad_matrix_of_a_stack_is_named():
    stack = np.stack([np.eye(40), gauss(40), np.diag(np.geomspace(1, 1e-20, 40))])
    with pytest.warns(tcsolve.LinAlgWarning, match="in slice 2 of the stack"):
        tcsolve.solve(stack, np.ones(40))
    with pytest.warns(scipy.linalg.LinAlgWarning, match="slice 0 has rcond"):
        scipy.linalg.solve(stack, np.ones(40))


@fact("bfloat16 is taken.")
def test_bfloat16_is_taken():
    x = tcsolve.solve(np.eye(3, dtype=ml_dtypes.bfloat16), np.ones(3, ml_dtypes.bfloat16))
    assert x.dtype == np.float32 and (x == 1).all()


@fact("Only numbers are taken.")
def test_only_numbers_are_taken():
    date = np.ones(2, "datetime64[s]")
    for b in (np.array(["1", "2"]), date, np.ones(2, object)):
        with pytest.raises(tcsolve.InputError, match="numbers are needed"):
            tcsolve.solve(np.eye(2), b)
    scipy.linalg.solve(np.eye(2), np.array(["1", "2"]))
    with pytest.raises(TypeError):
        scipy.linalg.solve(np.eye(2), date)


# ---- the factors


@fact("The pair keeps the matrix.")
def test_the_pair_keeps_the_matrix():
    a = gauss(20)
    a = a @ a.T + np.eye(20)
    for factors in (tcsolve.lu_factor(a), tcsolve.cho_factor(a)):
        assert isinstance(factors, tuple) and np.array_equal(factors.matrix, a)
        assert not np.shares_memory(factors.matrix, a)
    x = tcsolve.lu_solve(scipy.linalg.lu_factor(a), np.ones(20))
    assert np.allclose(a @ x, 1, rtol=0, atol=1e-12)


@fact("A large LU is computed twice if you unpack or index the tuple.")
def test_a_large_lu_is_computed_twice_if_you_look_at_it():
    factors = tcsolve.lu_factor(gauss(LARGE))
    assert factors.factorization.precision == "fp32"
    lu, piv = factors
    expected = scipy.linalg.lu_factor(gauss(LARGE))
    assert np.array_equal(lu, expected[0]) and np.array_equal(piv, expected[1])


@fact("FP32 factors give FP64 answers.")
def test_factors_in_fp32_answer_in_fp64():
    a, b = gauss(60).astype(np.float32), np.ones(60)
    errors = [
        ratio(a.astype(float), family.lu_solve(family.lu_factor(a), b), b)
        for family in (tcsolve, scipy.linalg)
    ]
    assert errors[0] <= MET and errors[1] > 1000


@fact("trans may be a letter.")
def test_trans_may_be_a_letter():
    factors = tcsolve.lu_factor(gauss(20))
    found = [tcsolve.lu_solve(factors, np.ones(20), trans=trans) for trans in (1, "T")]
    assert np.array_equal(*found)
    with pytest.raises(Exception):  # noqa: B017  SciPy raises an error of its Fortran interface
        scipy.linalg.lu_solve(tuple(factors), np.ones(20), trans="T")


# ---- lstsq, inv and det


@fact("gelsy is QR in FP32 for large problems.")
def test_gelsy_is_qr_in_fp32_for_large_problems():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((900, 200)), np.ones(900)
    assert tcsolve.lstsq_ex(a, b).method == "qr fp32" and tcsolve.lstsq_ex(a, b).verified
    x, expected = (
        family.lstsq(a, b, lapack_driver="gelsy")[0] for family in (tcsolve, scipy.linalg)
    )
    assert np.allclose(x, expected, rtol=1e-11) and not np.array_equal(x, expected)
    small = tcsolve.lstsq_ex(a[:40, :20], b[:40])
    assert small.method == "gelsy" and not small.verified
    for driver in ("gelsd", "gelss"):
        x, expected = (
            family.lstsq(a, b, lapack_driver=driver)[0] for family in (tcsolve, scipy.linalg)
        )
        assert np.array_equal(x, expected)


@fact("inv and det are verified.")
@pytest.mark.parametrize("n, is_seen", [(32, True), (33, False)])
def test_inv_is_verified_with_random_vectors(n, is_seen):
    a, vectors, w = gauss(n), probes.signs(n), np.random.default_rng(1).standard_normal(n)
    if n > 32:  # an error that is orthogonal to all vectors
        w -= vectors @ np.linalg.lstsq(vectors, w)[0]
    x = scipy.linalg.inv(a) + 1e-6 * w
    before = x.copy()

    quiet(verify_inverse, a, x, "inv")  # corrects an x whose error it sees

    assert np.array_equal(x, before) is not is_seen
    assert not warned(tcsolve.inv, a) and not warned(tcsolve.det, a)


# ---- numpy.linalg and cupy.linalg


@fact("Their dtypes and errors stay.")
def test_their_dtypes_and_errors_stay():
    a, b = np.diag([1, 1e-30]).astype(np.float32), np.ones(2, np.float32)
    with tcsolve.installed():
        assert not warned(np.linalg.solve, a, b)
        assert np.linalg.solve(a, b).dtype == np.float32
        with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
            np.linalg.solve(np.zeros((2, 2)), np.ones(2))
    assert host(b).dtype == np.float32
