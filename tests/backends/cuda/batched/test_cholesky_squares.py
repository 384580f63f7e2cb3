"""Cholesky factors of stacks that many multiprocessors make, compared with NumPy's results."""

import numpy as np
import pytest
from on_device import strided
from structures import matrices, right_hand_sides
from switches import skip_on_other_chips
from vendor_on_host import HostVendor

import tcsolve
from tcsolve import Status

pytestmark = pytest.mark.gpu

DEFINITE = "positive definite"
EDGES = [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256]
EDGES += [257, 319, 320, 321, 383, 385, 511, 512, 513, 639, 641, 767, 769, 1023, 1024, 1025, 2048]


@pytest.fixture
def squares(cupy):
    from tcsolve._backends.cuda.batched import cholesky_squares

    if not cholesky_squares.suits_squares("d", DEFINITE, 100, 1):
        skip_on_other_chips("the device has a low rate in FP64")
    return cholesky_squares


def factored(cupy, squares, a):
    return squares.CholeskySquares.of(a if isinstance(a, cupy.ndarray) else cupy.asarray(a))


def solved(cupy, factors, b):
    """Return the solutions (m, n, k) for b (m, n, k)."""
    rows = np.ascontiguousarray(b.swapaxes(1, 2).astype(float))
    return factors.solve(cupy.asarray(rows)).get().swapaxes(1, 2)


def require_backward_stable(a, x, b):
    a, b = a.astype(float), b.astype(float)
    rest, n = np.abs(b - a @ x).max(axis=1), a.shape[1]
    size = np.abs(a).sum(axis=2).max(axis=1)[:, None] * np.abs(x).max(axis=1)
    assert (rest <= 8 * np.sqrt(n) * 2.0**-53 * size).all()


@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize("n", EDGES)
def test_solutions_have_small_residuals_and_the_same_bits_again(cupy, squares, n, dtype):
    m, k = 1 + n % 3, 1 + n % 17
    a, b = matrices(DEFINITE, dtype, m, n), right_hand_sides(dtype, m, n, k)

    found = factored(cupy, squares, a)
    x = solved(cupy, found, b)

    assert not found.info.any()
    require_backward_stable(a, x, b)
    assert solved(cupy, factored(cupy, squares, a), b).tobytes() == x.tobytes()


@pytest.mark.parametrize("how", ["turned", "gaps"])
@pytest.mark.parametrize("dtype", "fd")
def test_strides_do_not_change_the_bits(cupy, squares, how, dtype):
    a, b = matrices(DEFINITE, dtype, 3, 150), right_hand_sides(dtype, 3, 150, 2)
    found = factored(cupy, squares, strided(cupy, a, how))
    assert solved(cupy, found, b).tobytes() == solved(cupy, factored(cupy, squares, a), b).tobytes()


@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize("how", ["plain", "turned", "gaps"])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("n", [1, 63, 64, 130, 200])
def test_one_triangle_is_read_and_the_other_one_is_checked(cupy, squares, n, lower, how, dtype):
    a = matrices(DEFINITE, dtype, 6, n)
    far = (n - 1, 0) if not lower else (0, n - 1)
    for s, bad in enumerate([np.nan, -np.inf, 3.0, 1e-30], 1):
        a[s][far] = bad  # for n = 1 this entry is read
    a[5, n // 2, n // 2] = 0
    band, wanted = (1 << 40, 0, 1) if lower else (0, 1 << 40, 1), np.zeros((5, 6))
    read = HostVendor().read_as(a.astype(float), *band, wanted)
    seen = cupy.zeros((5, 6))

    there = strided(cupy, a, how)
    found = squares.CholeskySquares.of(there, lower=lower, seen=seen)

    assert np.array_equal(seen.get(), wanted)
    full = factored(cupy, squares, read.astype(dtype))
    assert cupy.array_equal(found.info, full.info)
    b = right_hand_sides("d", 6, n, 2)
    assert solved(cupy, found, b).tobytes() == solved(cupy, full, b).tobytes()


@pytest.mark.parametrize("m, n", [(300, 65), (40, 200), (9, 321), (5, 1024)])
def test_a_system_has_the_same_bits_in_each_stack_and_beside_other_columns(cupy, squares, m, n):
    a, b = matrices(DEFINITE, "d", m, n), right_hand_sides("d", m, n, 19)
    a[1] = 0
    a[3, n // 2, 5] = np.nan

    found = factored(cupy, squares, a)
    x, info = solved(cupy, found, b), found.info.get()

    assert info[1] == 1 and not np.delete(info, [1, 3]).any()
    some = [m - 1, 0, 2]
    assert solved(cupy, found.taken(np.array(some)), b[some]).tobytes() == x[some].tobytes()
    for s in some:
        alone = factored(cupy, squares, a[s : s + 1])
        for c in (0, 7, 8, 18):
            y = solved(cupy, alone, b[s : s + 1, :, c : c + 1])
            assert y[0, :, 0].tobytes() == x[s, :, c].tobytes()


@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize("n, step", [(1, 1), (40, 7), (64, 64), (513, 65), (513, 300), (700, 700)])
def test_the_first_minor_that_is_not_positive_is_told(cupy, squares, n, step, dtype):
    a = matrices(DEFINITE, dtype, 3, n)
    a[1, step - 1, step - 1] *= -1
    a[1, n - 1, n - 1] *= -1 if step < n else 1  # only the first one counts
    assert factored(cupy, squares, a).info.get().tolist() == [0, step, 0]


@pytest.mark.parametrize("period", [1, 2, 5, 100])
def test_updates_by_any_number_of_columns_give_small_residuals(cupy, squares, period):
    a, b = matrices(DEFINITE, "d", 2, 1000), right_hand_sides("d", 2, 1000, 1)
    factors = squares.CholeskySquares.of(cupy.asarray(a), period=period)
    require_backward_stable(a, solved(cupy, factors, b), b)


@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize("batch", [(), (1,), (2,), (40,)])
@pytest.mark.parametrize(
    "n, k", [(217, 1), (300, 16), (300, 65), (1024, 3), (1100, 1), (2048, 1), (2048, 5)]
)
def test_definite_systems_are_solved_and_verified(cupy, squares, batch, n, k, dtype):
    if batch == (40,) and n > 300:
        batch = (5,)
    a, b = matrices(DEFINITE, dtype, *batch, n), right_hand_sides(dtype, *batch, n, k)
    a, b = cupy.asarray(a), cupy.asarray(b)

    found = tcsolve.solve_ex(a, b, assume_a="pos")

    assert found.status is Status.CONVERGED
    assert (found.backward_error <= found.bound).all()
    if batch:
        one = tcsolve.solve_ex(a[-1:], b[-1:], assume_a="pos")
        assert one.x[0].tobytes() == found.x[-1].tobytes()


@pytest.mark.parametrize("n", [100, 200, 300, 1024])
@pytest.mark.parametrize("where", [0, 40, 70])
def test_a_subnormal_pivot_does_not_say_that_a_matrix_is_not_definite(cupy, squares, n, where):
    a = np.broadcast_to(np.eye(n), (3, n, n)).copy()
    a[1, where, where] = 1e-310
    b = np.diagonal(a, axis1=1, axis2=2)[:, :, None].copy()

    found = tcsolve.solve_ex(cupy.asarray(a), cupy.asarray(b), assume_a="pos")

    assert found.statuses.tolist() == [Status.CONVERGED, Status.ILL_CONDITIONED, Status.CONVERGED]
    np.testing.assert_allclose(found.x.get(), 1, rtol=1e-12)
    assert not factored(cupy, squares, a).info.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_the_other_triangle_holds_does_not_change_an_answer(cupy, squares, bad):
    a, b = matrices(DEFINITE, "d", 4, 300), right_hand_sides("d", 4, 300, 1)
    spoilt = a.copy()
    spoilt[2, 0, 200] = bad
    how = {"assume_a": "pos", "lower": True, "check_finite": False}

    clean, found = (tcsolve.solve_ex(cupy.asarray(v), cupy.asarray(b), **how) for v in (a, spoilt))

    assert found.x.tobytes() == clean.x.tobytes()
    assert np.array_equal(found.rconds, clean.rconds)
    assert np.array_equal(found.backward_error, clean.backward_error)
