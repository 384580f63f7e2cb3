"""Stacks and small systems on a device: bits do not depend on the other systems, however bad these are."""

import itertools
import warnings

import numpy as np
import pytest
from bounds import ratio
from switches import skip_or_fail
from tcsolve.kernels.system_shapes import TOLD

import tcsolve
from tcsolve import Status

pytestmark = pytest.mark.gpu

SIZES = [
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    9,
    15,
    16,
    17,
    24,
    25,
    31,
    32,
    33,
    48,
    49,
    63,
    64,
    65,
    96,
    97,
    127,
    128,
    129,
    255,
    257,
    513,
    1024,
]


def stack(cupy, m, n, dtype="d", seed=0):
    rng = np.random.default_rng([seed, n])
    a, b = rng.standard_normal((m, n, n)), rng.standard_normal((m, n, 1))
    if dtype in "FD":
        a, b = a + 1j * rng.standard_normal(a.shape), b + 1j * rng.standard_normal(b.shape)
    return cupy.asarray(a.astype(dtype)), cupy.asarray(b.astype(dtype))


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("n", SIZES)
def test_a_system_has_the_same_bits_in_any_company(n, dtype, cupy):
    few, of_one_launch = n > 200, 64 if dtype in "FD" else 96
    a, b = stack(cupy, 5 if few else 70, n, dtype)
    x = tcsolve.solve(a, b)

    assert (x == tcsolve.solve_ex(a, b).x).all()  # by the general code
    if few:
        some = slice(0, 4)
        assert (x[some] == tcsolve.solve(a[some], b[some])).all()
        return
    for s in (0, 3, 68):
        assert (x[s : s + 2] == tcsolve.solve(a[s : s + 2], b[s : s + 2])).all()
        if (
            1 < n <= of_one_launch
        ):  # n = 1 is a division; a larger single system may take other kernels
            assert (x[s] == tcsolve.solve(a[s], b[s])).all()
    assert (x[7:30] == tcsolve.solve(a[7:30], b[7:30])).all()
    a[5], a[9, 0] = 0, cupy.nan
    mixed = tcsolve.solve_ex(a, b, check_finite=False)
    others = [s for s in range(70) if s not in (5, 9)]
    assert (mixed.x[others] == x[others]).all()
    assert mixed.statuses[5] is Status.SINGULAR and mixed.statuses[9] is Status.NONFINITE_INPUT


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("kind", ["general", "symmetric", "positive definite"])
@pytest.mark.parametrize("n", [9, 16, 17, 25, 32, 33, 48, 50, 64, 65, 96, 97, 128])
def test_systems_that_an_inverse_in_fp32_does_not_solve_are_left_to_another_kernel(
    n, kind, dtype, cupy
):
    """Ill-conditioned systems, and scales too different for the range of FP32, also meet the bound."""
    m, wide = 40, np.result_type(dtype, np.float64)
    rng, real = np.random.default_rng(n), np.finfo(dtype)
    a, b = (v.get() for v in stack(cupy, m, n, dtype))
    if kind != "general":
        a = a + np.swapaxes(a, 1, 2) * (1 if kind == "symmetric" or dtype in "fd" else 0)
    if kind == "positive definite":
        a = np.swapaxes(a.conj(), 1, 2) @ a / n + np.eye(n, dtype=dtype)
    conditions = (1e2, 1e4, 1e6) if dtype in "fF" else (1e4, 1e7, 1e9, 1e12)
    for s, size in enumerate(conditions * 4):
        orthogonal = np.linalg.qr(rng.standard_normal((n, n)))[0]
        values = np.geomspace(1, 1 / size, n)
        other = orthogonal.T if kind != "general" else np.linalg.qr(rng.standard_normal((n, n)))[0]
        a[s] = orthogonal * values @ other
        a[s] = (a[s] + a[s].T) / 2 if kind != "general" else a[s]
    scales = 2.0 ** rng.integers(real.minexp // 8, real.maxexp // 8, n)
    a[20] *= (np.outer(scales, scales) if kind != "general" else scales[:, None]).astype(
        a.real.dtype
    )
    a[21] *= a.real.dtype.type(2.0 ** (real.minexp // 2))
    b[22] = 0

    found = tcsolve.solve_ex(cupy.asarray(a), cupy.asarray(b), assume_a=kind)

    x = found.x.get()
    rows = np.abs(a.astype(wide)).sum(axis=2).max(axis=1)
    rest = np.abs(b.astype(np.clongdouble) - a.astype(np.clongdouble) @ x).max(axis=(1, 2))
    size = rows * np.abs(x).max(axis=(1, 2))
    accurate = [status in (Status.CONVERGED, Status.ILL_CONDITIONED) for status in found.statuses]
    assert all(status is Status.CONVERGED for status in found.statuses[24:])
    assert all(accurate) and (rest <= found.bound * size * (1 + 1e-9)).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tcsolve.LinAlgWarning)
        for s in (0, 5, 20, 30):
            some = cupy.asarray(a[s : s + 1]), cupy.asarray(b[s : s + 1])
            assert (found.x[s : s + 1] == tcsolve.solve(*some, assume_a=kind)).all()


@pytest.mark.parametrize("kind", ["general", "positive definite"])
@pytest.mark.parametrize("k", [2, 7, 16])
@pytest.mark.parametrize("n", [1, 4, 16, 24, 33, 64, 90, 100, 200, 600])
def test_many_right_hand_sides(n, k, kind, cupy):
    a, _ = stack(cupy, 6, n)
    if kind == "positive definite":
        a = a @ a.swapaxes(1, 2) + cupy.eye(n)
    b = cupy.asarray(np.random.default_rng(n).standard_normal((6, n, k)))

    x = tcsolve.solve(a, b, assume_a=kind)

    met = max(1, 2 / n**0.5)  # the bound is u sqrt(max(n, 4))
    for s, c in itertools.product(range(6), range(k)):
        assert ratio(a[s].get(), x[s, :, c].get(), b[s, :, c].get()) <= met
    told = tcsolve.solve_ex(a, b, assume_a=kind)
    assert told.status is Status.CONVERGED and (told.x == x).all()
    for c in (0, k - 1):
        alone = tcsolve.solve(a, b[:, :, c : c + 1], assume_a=kind)
        assert ratio(a[0].get(), alone[0, :, 0].get(), b[0, :, c].get()) <= met


@pytest.mark.parametrize("dtype", "FD")
@pytest.mark.parametrize("m, n", [(1, 60), (3, 16), (3, 60)])
def test_complex_stacks_with_more_right_hand_sides_than_one_launch_takes(m, n, dtype, cupy):
    a, _ = stack(cupy, m, n, dtype)
    b = cupy.repeat(stack(cupy, m, n, dtype, seed=1)[1], 40, axis=2)
    b *= cupy.arange(1, 41, dtype="f")
    found = tcsolve.solve_ex(a, b)
    assert found.status is Status.CONVERGED and (found.backward_error <= found.bound).all()
    assert (tcsolve.solve(a, b) == found.x).all()


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("k", [8, 16, 40])
@pytest.mark.parametrize("n", [3, 24, 60, 96])
def test_the_blocks_of_one_system_share_its_right_hand_sides(n, k, dtype, cupy):
    a, _ = stack(cupy, 1, n, dtype)
    _, b = stack(cupy, k, n, dtype, seed=1)
    a, b = a[0], b[:, :, 0].T
    x = tcsolve.solve(a, b)

    told = tcsolve.solve_ex(a, b)
    assert told.status is Status.CONVERGED and (told.x == x).all()
    wide = np.clongdouble
    rest = np.abs(b.get() - a.get().astype(wide) @ x.get().astype(wide)).max(axis=0)
    error = rest / np.abs(a.get()).sum(axis=1).max() / np.abs(x.get()).max(axis=0)
    np.testing.assert_allclose(
        told.backward_error, error.astype(float), rtol=1e-3, atol=2.0**-62 * n
    )
    assert (error <= told.bound).all()
    a[1] = 0
    with pytest.raises(tcsolve.LinAlgError, match="singular"):
        tcsolve.solve(a, b)


def test_hostile_systems_among_ten_million(cupy):
    """One of 100 is singular, holds a NaN, is ill-conditioned or extreme; others keep their bits."""
    m, n = 10_000_000, 4
    rng = cupy.random.default_rng(1)
    a, b = rng.standard_normal((m, n, n)), rng.standard_normal((m, n, 1))
    hostile = cupy.arange(17, m, 100)
    kinds = 5
    for kind in range(kinds):
        some = hostile[kind::kinds]
        if kind == 0:
            a[some] = 0
        elif kind == 1:
            a[some, 1, 2] = cupy.nan
        elif kind == 2:
            a[some, 2] = a[some, 1]
        elif kind == 3:
            a[some, 3] = a[some, 0] * (1 + 1e-15)
        else:
            a[some] *= 2.0**-1000
    found = tcsolve.solve_ex(a, b, check_finite=False)

    plain = cupy.ones(m, bool)
    plain[hostile] = False
    at = cupy.flatnonzero(plain)[:: 9_900_000 // 200].get()
    for s in at.tolist():
        assert (found.x[s] == tcsolve.solve(a[s], b[s])).all()
    some = slice(0, 2_000_000)
    keep = plain[some]
    assert (found.x[some][keep] == tcsolve.solve(a[some][keep], b[some][keep])).all()
    statuses = np.asarray(found.statuses)
    assert all(s is Status.SINGULAR for s in statuses[17::500][:50])
    assert all(s is Status.NONFINITE_INPUT for s in statuses[117::500][:50])
    assert all(s in (Status.SINGULAR, Status.ILL_CONDITIONED) for s in statuses[217::500][:50])
    assert (statuses[at] == Status.CONVERGED).all()


def test_offsets_beyond_31_bits(cupy):
    """A stack of more than 2**31 entries; the last systems have the bits of their own solves."""
    m, n = 2**31 // 64 + 5000, 8
    if cupy.cuda.runtime.memGetInfo()[0] < 3 * 8 * m * n * n:
        skip_or_fail("52 GB of memory are not free", "TCSOLVE_REQUIRE_LARGE_GPU")
    a = cupy.empty((m, n, n))
    a[...] = cupy.eye(n) * 3
    a[-3:] = cupy.asarray(np.random.default_rng(0).standard_normal((3, n, n)))
    b = cupy.ones((m, n, 1))

    x = tcsolve.solve(a, b)

    assert (x[-3:] == tcsolve.solve(a[-3:], b[-3:])).all()
    assert (x[:-3] == x[0]).all()


def test_a_broadcast_matrix_and_a_broadcast_right_hand_side(cupy):
    a, b = stack(cupy, 40, 12)
    one = tcsolve.solve(cupy.broadcast_to(a[:1], a.shape), b)
    assert all((one[s] == tcsolve.solve(a[0], b[s])).all() for s in (0, 39))
    same = tcsolve.solve(a, cupy.broadcast_to(b[:1], b.shape))
    assert all((same[s] == tcsolve.solve(a[s], b[0])).all() for s in (0, 39))


def nearly_singular(a, size):
    """Return a matrix with the singular vectors of a and a smallest singular value of `size` epsilon."""
    u, values, v = np.linalg.svd(a.astype(np.result_type(a, np.float64)))
    values[:], values[-1] = 1, size * np.finfo(a.dtype).eps
    return (u * values @ v).astype(a.dtype)


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize(
    "n, k", [(3, 1), (8, 1), (16, 1), (24, 1), (32, 1), (20, 3), (64, 1), (88, 2)]
)
def test_rcond_near_epsilon_is_that_of_the_inverse(n, k, dtype, cupy):
    """A random vector cannot show on which side of epsilon rcond is; the inverse can."""
    eps = float(np.finfo(dtype).eps)
    wanted = [0.01, 0.3, 3, 30, 3e3]
    a, b = stack(cupy, len(wanted), n, dtype)
    for s, size in enumerate(wanted):
        a[s] = cupy.asarray(nearly_singular(a[s].get(), size))
    b = cupy.repeat(b, k, axis=2)
    wide = a.get().astype(np.result_type(dtype, np.float64))
    true = 1 / np.abs(wide).sum(axis=1).max(axis=1)
    true /= np.abs(np.linalg.inv(wide)).sum(axis=1).max(axis=1)

    found = tcsolve.solve_ex(a, b)

    # The inverses of the first FP64 matrices are not accurate enough to be compared.  An FP32 matrix with a
    # larger rcond may be inverted in FP32.
    if dtype in "fF":
        near = true < 4 * eps
        np.testing.assert_allclose(found.rconds[near], true[near], rtol=1e-4)
    some = slice(3, None)
    np.testing.assert_allclose(found.rconds[some], true[some], rtol=0.5 if dtype in "dD" else 0.05)
    ill = [status is Status.ILL_CONDITIONED for status in found.statuses]
    assert ill == (found.rconds < eps).tolist()


@pytest.mark.parametrize("n, k", [(12, 1), (12, 8), (12, 20), (20, 8), (60, 20)])
def test_a_doubtful_system_and_a_stack_of_one_keep_their_bits(n, k, cupy):
    a, b = stack(cupy, 100, n)
    b = cupy.repeat(b, k, axis=2)
    a[7] = cupy.asarray(nearly_singular(a[7].get(), 0.01))
    with pytest.warns(tcsolve.LinAlgWarning, match="slice 7"):
        x = tcsolve.solve(a, b)
    assert (x == tcsolve.solve_ex(a, b).x).all()
    assert (x[8:9] == tcsolve.solve(a[8:9], b[8:9])).all()


@pytest.mark.parametrize("m", [40, 5000])
@pytest.mark.parametrize("n", [4, 16, 40])
def test_a_few_ill_conditioned_systems_of_a_plain_stack_are_named(n, m, cupy):
    a, b = stack(cupy, m, n, "f")
    a += 2 * n**0.5 * cupy.eye(n, dtype="f")
    plain = tcsolve.solve(a, b)
    for s in (7, m - 2):
        a[s] = cupy.asarray(nearly_singular(a[s].get(), 0.01))

    with pytest.warns(tcsolve.LinAlgWarning, match=r"slice \(1, 2\) of the stack") as told:
        x = tcsolve.solve(a.reshape(m // 5, 5, n, n), b.reshape(m // 5, 5, n, 1))

    assert told[0].filename == __file__
    x, good = x.reshape(m, n, 1), np.setdiff1d(np.arange(m), [7, m - 2])
    assert (x[good] == plain[good]).all()
    report = tcsolve.solve_ex(a, b)
    assert (x == report.x).all()
    names = [report.statuses[s].name for s in (7, m - 2)]
    assert names == ["ILL_CONDITIONED"] * 2
    a[9] = 0
    with pytest.raises(tcsolve.SingularError, match="slice 9 of the stack"):
        tcsolve.solve(a, b)


@pytest.mark.parametrize("count", [1, TOLD, TOLD + 1, 2500])
@pytest.mark.parametrize("n", [3, 16, 40, 100])
def test_the_numbers_of_few_doubtful_systems_are_told(n, count, cupy):
    from tcsolve._backends.cuda.batched import vendor

    a, b = stack(cupy, 3000, n, "d")
    bad = np.sort(np.random.default_rng(n).choice(3000, count, replace=False))
    a[cupy.asarray(bad)] = 0
    args, board = (a, b, "general", None), cupy.zeros((11, 3000))
    vendor.solve_at_once(*args, 1.0, board)

    for _ in range(2):
        _, doubtful, found = vendor.solve_and_judge(*args, (1.0, 1e-13, 1e100, -1.0))

        assert np.array_equal(doubtful, bad)
        assert (found is None) == (count > TOLD)
        assert found is None or np.array_equal(found, board.get()[:, bad], equal_nan=True)


@pytest.mark.parametrize("n, k", [(12, 1), (16, 1), (12, 2)])
def test_the_doubtful_fp32_systems_are_those_with_an_rcond_below_epsilon(n, k, cupy):
    """Some have an rcond below 100 epsilon, where a random vector does not decide."""
    from tcsolve._backends.cuda.batched import vendor

    a, b = stack(cupy, 50_000, n, "f")
    eps, b = float(np.finfo("f").eps), cupy.repeat(b, k, axis=2)
    wide = a.get().astype("d")
    true = 1 / np.abs(wide).sum(axis=1).max(axis=1)
    true /= np.abs(np.linalg.inv(wide)).sum(axis=1).max(axis=1)
    args = a, b, "general", None, (1.0, eps, 1e100, -1.0)

    _, doubtful, _ = vendor.solve_and_judge(*args)

    assert (true < 100 * eps).sum() > 5
    assert np.array_equal(doubtful, np.flatnonzero(true < eps))
