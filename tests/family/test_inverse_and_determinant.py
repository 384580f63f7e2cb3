"""`inv` and `det`: SciPy's results, with errors that are measured."""

import inspect
import subprocess
import sys
import warnings

import numpy as np
import pytest
import scipy.linalg
from bounds import host, inf_norm, wide
from scipy.linalg import lapack
from switches import skip_or_fail
from systems import general

import tcsolve
from tcsolve import AccuracyWarning, InputError, det, inv
from tcsolve._family import inverse

DTYPES = [np.float32, np.float64, np.complex64, np.complex128]
UNIT = {"f": 2.0**-24, "F": 2.0**-24, "d": 2.0**-53, "D": 2.0**-53}


def inverse_error(a, x):
    """Return the largest entry of I - A X or of I - X A, whichever is smaller, over ||A|| ||X||."""
    a, x = wide(a), wide(x)
    unit, size = np.eye(len(a)), inf_norm(a) * inf_norm(x)
    return min(float(np.abs(unit - p @ q).max() / size) for p, q in ((a, x), (x, a)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 7, 60, 200])
def test_an_inverse_is_verified(xp, dtype, n):
    a = general(n, dtype)
    x = inv(xp.asarray(a))
    assert isinstance(x, xp.ndarray) and x.dtype == dtype and x.shape == (n, n)
    assert inverse_error(a, x) <= 2 * UNIT[np.dtype(dtype).char] * max(n, 8) ** 0.5


def test_an_inverse_is_scipys():
    a = general(60)
    assert np.array_equal(inv(a), scipy.linalg.inv(a))
    b = np.asfortranarray(a)
    x = inv(b, overwrite_a=True)
    assert np.shares_memory(x, b) and np.array_equal(x, scipy.linalg.inv(a))


def test_a_stack_is_inverted(xp):
    a = np.stack([general(5, seed=i) for i in range(6)]).reshape(2, 3, 5, 5)
    x = inv(xp.asarray(a))
    assert x.shape == a.shape and np.allclose(a @ host(x), np.eye(5), rtol=0, atol=1e-12)


def test_a_singular_matrix_has_no_inverse(xp):
    with pytest.raises(tcsolve.LinAlgError, match="singular"):
        inv(xp.zeros((40, 40)))
    with pytest.warns(tcsolve.LinAlgWarning):
        inv(xp.asarray(np.diag([1.0, 1e-20])))


@pytest.mark.parametrize("n", [20, 100])
def test_a_wrong_inverse_is_corrected_or_told(n):
    a = general(n)
    x = scipy.linalg.inv(a) * (1 + 1e-9)
    inverse.verify_inverse(a, x, "inv")
    assert inverse_error(a, x) <= 2**-52 * n**0.5
    with pytest.warns(AccuracyWarning, match="inv: backward error .*, bound"):
        inverse.verify_inverse(a, scipy.linalg.inv(a) * 0.4, "inv")


@pytest.mark.parametrize("scale", [1e-250, 1e250])
def test_inverses_at_the_ends_of_the_range_are_verified(scale):
    a = general(60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = inv(a * scale)
    assert inverse_error(a, x * scale) <= 2**-51 * 60**0.5


# ---- determinants


@pytest.mark.parametrize("dtype", [*DTYPES, int])
@pytest.mark.parametrize("n", [1, 2, 7, 60])
def test_a_determinant_is_scipys(xp, dtype, n):
    a = (general(n, float if dtype is int else dtype) * 4).astype(dtype)
    found, expected = det(xp.asarray(a)), scipy.linalg.det(a)
    assert found.dtype == np.asarray(expected).dtype
    rounded = np.dtype(dtype).char in "fF"
    # SciPy factors in the precision of A, in which a determinant may overflow.
    exact = scipy.linalg.det(a.astype(np.result_type(a.dtype, float)))
    assert np.allclose(host(found), exact, rtol=1e-3 if rounded else 1e-11)


def test_a_stack_has_a_determinant_for_each_matrix(xp):
    a = np.stack([general(5, seed=i) for i in range(6)]).reshape(2, 3, 5, 5)
    found = det(xp.asarray(a))
    assert found.shape == (2, 3) and np.allclose(host(found), np.linalg.det(a), rtol=1e-12)
    assert det(xp.ones((2, 0, 0))).tolist() == [1, 1]


def test_a_singular_matrix_has_the_determinant_zero(xp):
    a = general(20)
    a[:, 4] = 0
    assert host(det(xp.asarray(a))) == 0


def test_the_memory_that_is_lent_to_a_determinant_is_used():
    a = general(20)
    kept = a.copy()
    assert det(a, overwrite_a=True) == det(kept) and not np.array_equal(a, kept)
    a = kept.copy()
    det(a)
    assert np.array_equal(a, kept)


@pytest.mark.parametrize("n", [20, 100])
def test_wrong_factors_of_a_determinant_are_told(n, monkeypatch):
    getrf = lapack.dgetrf

    def wrong(t, **options):
        lu, swaps, info = getrf(t, **options)
        return lu * (1 + 1e-9), swaps, info

    monkeypatch.setattr(lapack, "dgetrf", wrong)
    with pytest.warns(AccuracyWarning, match="det: backward error .*, bound"):
        det(general(n))


def test_determinants_at_the_ends_of_the_range_are_verified():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert det(general(40) * 1e-300) == 0
        assert np.isinf(det(general(40) * 1e300))


@pytest.mark.parametrize(
    "name", ["symmetric", "hermitian", "positive definite", "upper triangular", "gen"]
)
def test_an_inverse_knows_the_long_names_of_structures(xp, name):
    a = general(5)
    a = np.diag(np.arange(1.0, 6)) if name == "upper triangular" else a @ a.T
    if xp is np and "assume_a" not in inspect.signature(scipy.linalg.inv).parameters:
        skip_or_fail("SciPy before 1.17 has no assume_a", "TCSOLVE_REQUIRE_SCIPYS_TESTS")
    assert np.allclose(host(inv(xp.asarray(a), assume_a=name)) @ a, np.eye(5), rtol=0, atol=1e-10)


def test_bad_input_of_inverse_and_determinant_is_refused(xp):
    for name in ("nonsense", "tridiagonal", ["sym"]):
        with pytest.raises(InputError, match="^inv: assume_a is .*'positive definite'") as refused:
            inv(xp.eye(3), assume_a=name)
        assert isinstance(refused.value, KeyError)
    for function in (inv, det):
        for wrong in (xp.ones((2, 3)), xp.full((3, 3), np.nan)):
            with pytest.raises(ValueError):
                function(wrong)


CRASHES = """
import numpy as np, tcsolve
for _ in range(60):
    for a in (np.array([[2, 1], [1, 0]], order="F"), np.array([[2.0, -1], [-1, 0]], order="F")):
        x = tcsolve.inv(a.copy(order="F"), overwrite_a=True)
        assert np.allclose(x @ a, np.eye(2)), x
    g = np.random.default_rng(0).integers(-9, 9, (8, 8)) + 9 * np.eye(8, dtype=int)
    g = g + g.T
    assert np.allclose(tcsolve.inv(g.T) @ g.T, np.eye(8))
"""


def test_a_symmetric_column_major_matrix_is_inverted_where_scipy_may_crash():
    done = subprocess.run([sys.executable, "-P", "-c", CRASHES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", [">f8", ">f4", ">c16", ">i4"])
def test_byte_swapped_and_unaligned_matrices_are_inverted(dtype):
    a = np.array([[4, 1], [2, 3]])
    expected = np.array([[0.3, -0.1], [-0.2, 0.4]])
    room = np.zeros(4 * np.dtype(dtype).itemsize + 1, np.uint8)
    unaligned = room[1:].view(dtype).reshape(2, 2)
    unaligned[...] = a
    for given in (a.astype(dtype), unaligned, unaligned.astype(unaligned.dtype.newbyteorder("="))):
        x = tcsolve.inv(given)
        assert x.dtype.isnative and np.allclose(x, expected)


def test_a_column_major_matrix_that_is_not_square_has_scipys_error():
    with pytest.raises(ValueError, match="[Ee]xpected square matrix"):
        inv(np.asfortranarray(np.ones((3, 2))), overwrite_a=True)
