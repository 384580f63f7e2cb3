"""Factors by CUDA's libraries, and kernels that solve and verify, compared with NumPy's results."""

import itertools

import numpy as np
import pytest
from bounds import MET, host, ratio, residual_error
from on_device import strided
from structures import KINDS, as_read, matrices, right_hand_sides
from switches import skip_on_other_chips
from tcsolve.kernels.system_shapes import TOLD, solve_shape
from vendor_on_host import HostVendor, boards
from vendor_on_host import doubtful as doubtful_on_host

import tcsolve
from tcsolve import Status
from tcsolve._backends.select import ops_for
from tcsolve._solve.vendor.measure import doubtful
from tcsolve._solve.vendor.system import ALL, TRIANGULAR, band_of, kind_of

pytestmark = pytest.mark.gpu


@pytest.fixture
def vendor(cupy):
    from tcsolve._backends.cuda.batched import vendor as of_device

    return of_device


@pytest.fixture
def rows(cupy):
    from tcsolve._backends.cuda.batched.stack_launches import rows

    return rows


# ---- kernels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["plain", "turned", "gaps"])
@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize(
    "n, k", [(1, 1), (2, 3), (3, 1), (4, 5), (5, 1), (8, 4), (9, 2), (16, 1), (17, 9), (31, 1), (32, 3)]
    + [(33, 1), (64, 5), (200, 1), (513, 2)],
)  # fmt: skip
def test_a_stack_is_measured_as_on_the_host(cupy, vendor, n, k, dtype, how):
    a, b = matrices(None, dtype, 11, n), right_hand_sides(dtype, 11, n, k)
    full = a.astype(np.result_type(dtype, np.float64))
    x = np.linalg.solve(full, b).astype(dtype)
    y = right_hand_sides(full.dtype, 11, k + 2, n, seed=5)
    info = np.arange(11, dtype=np.int32)
    wanted, rest = np.empty((4 + 2 * k, 11)), np.empty((11, k, n), full.dtype)
    HostVendor().measure(a, x, b, y[:, k:], info, wanted, residuals=rest)

    on_device = [strided(cupy, v, how) for v in (a, x, b)]
    for residuals in (None, cupy.empty(rest.shape, rest.dtype)):
        out, args = cupy.empty(wanted.shape), (cupy.asarray(y)[:, k:], cupy.asarray(info))
        vendor.measure(*on_device, *args, out, residuals=residuals)
    found, residuals = out.get(), residuals.get()

    # The moduli of complex numbers may differ in the last bit.
    largest = np.abs(residuals).max(axis=2).T
    np.testing.assert_allclose(found[4 : 4 + k], largest, rtol=2.0**-51 if dtype in "FD" else 0)
    np.testing.assert_allclose(found[:3], wanted[:3], rtol=4 * max(n, 4) * 2.0**-53)
    assert np.array_equal(found[3], info)
    np.testing.assert_allclose(found[4 + k :], wanted[4 + k :], rtol=2.0**-51)
    # Where one warp takes a matrix of FP64, a residual is about as exact as in long double.
    exact = n <= 32 and dtype in "dD"
    size = np.abs(full).sum(axis=2).max(axis=1) * np.abs(x).max(axis=(1, 2)).astype(float)
    slack = 2.0**-52 * wanted[4 : 4 + k] + (2.0**-62 if exact else 4 * n * 2.0**-53) * size
    assert (np.abs(found[4 : 4 + k] - wanted[4 : 4 + k]) <= slack).all()
    vendor.measure(*on_device, args[0], None, out)
    assert not out[3].any()


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (1, 300, 3), (7, 5, 2), (3, 40, 300)])
@pytest.mark.parametrize("how", ["plain", "turned", "gaps"])
def test_right_hand_sides_and_probes_are_laid_out_as_on_the_host(cupy, rows, m, n, k, dtype, how):
    b = right_hand_sides(dtype, m, n, k)
    for probes in (0, 1, 2):
        found = rows(strided(cupy, b, how), probes)
        assert np.array_equal(found.get(), HostVendor().rows(b, probes))


@pytest.mark.parametrize("kind", TRIANGULAR)
@pytest.mark.parametrize("n", [1, 64, 65, 100, 191, 192, 300, 320, 512, 1001, 2048])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("how", ["plain", "turned", "gaps"])
def test_solutions_that_come_with_the_factors_have_the_bits_of_later_ones(
    cupy, vendor, rows, kind, n, k, how
):
    a = cupy.asarray(matrices(kind, "d", 1, n))
    b = strided(cupy, right_hand_sides("d", 1, n, k), how)

    factors, y, _ = vendor.factor_and_solve(a, kind, b, 2)

    later = vendor.factor(a, kind, k + 2).solve(rows(b, 2))
    assert y.shape == (1, k + 2, n) and cupy.array_equal(y, later)
    assert cupy.array_equal(factors.solve(rows(b, 2)), later)


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("n, k", [(1, 1), (200, 1), (513, 2), (700, 300)])
def test_one_system_is_measured_as_on_the_host(cupy, vendor, n, k, dtype):
    wide = np.result_type(dtype, np.float64)
    a, b, x = (
        matrices(None, wide, n),
        right_hand_sides(dtype, n, k),
        right_hand_sides(dtype, n, k, seed=3),
    )
    y = right_hand_sides(wide, 2, n, seed=5)
    ops = ops_for(cupy.empty(1))
    for info in (None, np.array([3], np.int32)):
        wanted, found = np.empty((4 + 2 * k, 1)), cupy.zeros((4 + 2 * k, 1))
        ends = [np.abs(a).sum(axis=axis, dtype=float) for axis in (1, 0)]
        HostVendor().measure(None, x[None], b[None], y[None], info, wanted, known=(*ends, a @ x))
        of_info = None if info is None else cupy.asarray(info)
        there = cupy.asarray(a)
        sums = ops.row_stats(there).total, ops.row_stats(there.T).total
        known = *sums, cupy.asarray(a @ x, order="F")
        system = (there[None], *(cupy.asarray(v)[None] for v in (x, b, y)))
        vendor.measure(*system, of_info, found, known=known)
        # |x| of complex64 is rounded to FP32 on the host.
        rtol = 2.0**-22 if dtype == "F" else 8 * n * 2.0**-53
        np.testing.assert_allclose(found.get(), wanted, rtol=rtol)


def test_the_device_finds_the_doubtful_systems_that_the_host_finds(cupy):
    for board, system, wanted in boards():
        assert np.array_equal(doubtful(cupy.asarray(board), system).get(), wanted)


@pytest.mark.parametrize("n", [5, 40])
def test_nan_and_inf_are_seen_in_what_is_measured(cupy, vendor, n):
    a, b = matrices(None, "d", 6, n), right_hand_sides("d", 6, n, 2)
    x, y = np.linalg.solve(a, b), np.ones((6, 2, n))
    a[1, n - 1, 2], b[2, 3, 1], x[3, n - 1, 0], y[4, 1, 0] = np.nan, np.nan, np.nan, np.nan
    a[5, 0, 0] = np.inf
    info = np.zeros(6, np.int32)

    found = cupy.empty((8, 6))
    vendor.measure(*map(cupy.asarray, (a, x, b, y, info)), found)
    found = found.get()

    assert np.isnan(found[:2, 1]).all() and np.isnan(found[4:6, 1]).all()
    assert np.isnan(found[5, 2]) and np.isfinite(found[4, 2]) and np.isfinite(found[:2, 2]).all()
    assert np.isnan(found[[4, 6], 3]).all() and np.isnan(found[2, 4])
    assert np.isinf(found[:2, 5]).all() and not np.isfinite(found[4:6, 5]).any()
    assert np.isfinite(found[:, 0]).all()


@pytest.mark.parametrize("how", ["plain", "turned", "gaps"])
@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 100])
def test_matrices_are_read_as_on_the_host(cupy, vendor, n, dtype, how):
    a = matrices(None, dtype, 4, n)
    for below, above in ((0, 0), (1, 1), (0, n), (n, 0)):
        for mirror in (0, 1, 2) if below != above else (0,):
            for bad in (None, np.nan, np.inf, 0.0):
                given, seen = a.copy(), np.zeros((5, 4))
                if bad is not None:
                    given[1, n - 1, 0], given[2, n // 2, n // 2] = bad, bad
                    given[3] = np.triu(given[3])
                on_device = cupy.zeros((5, 4))
                wanted = HostVendor().read_as(given, below, above, mirror, seen)
                args = (strided(cupy, given, how), below, above, mirror, on_device)
                found = vendor.read_as(*args).get()
                assert np.array_equal(found, wanted, equal_nan=True)
                rtol = 2.0**-22 if dtype in "fF" else 2.0**-51
                np.testing.assert_allclose(on_device.get(), seen, rtol=rtol)


# (systems, unknowns, right-hand sides): the launch shapes for few right-hand sides, and sizes near their
# limits.
SMALL = [(4, 1, 1), (130, 4, 1)] + [
    (11, n, 1) for n in (2, 3, 5, 7, 8, 9, 15, 16, 17, 24, 25, 31, 32)
]
SMALL += [(11, 33, 1), (1, 64, 1), (7, 65, 1), (5, 96, 1), (3, 127, 1), (5, 128, 1), (5, 129, 1)]
LARGE = [
    (4, 255, 1),
    (4, 257, 1),
    (4, 513, 1),
    (4, 640, 1),
    (4, 641, 1),
    (4, 1000, 1),
    (5, 1024, 1),
]
MANY = [(11, 1, 2), (11, 4, 3), (11, 31, 5), (7, 64, 6), (5, 100, 14), (4, 300, 4), (4, 600, 5)]
MANY += [(5, 5, 16), (5, 64, 30), (5, 95, 16), (5, 128, 30), (4, 201, 16), (4, 240, 30)]
SOLVED = [(*case, how) for case in SMALL for how in ("plain", "turned", "gaps")]
SOLVED += [
    (*case, how) for case, how in zip(LARGE + MANY, itertools.cycle(("plain", "turned", "gaps")))
]


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("m, n, k, how", SOLVED)
def test_systems_are_solved_and_verified_at_once_as_on_the_host(cupy, vendor, m, n, k, dtype, how):
    """For all kinds, or two of them from 250 unknowns on; some matrices are singular or hold NaN."""
    check_at_once(cupy, vendor, (m, n, k), dtype, how)


@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize(
    "m, n, k, how", [(5, 7, 32, "gaps"), (5, 40, 62, "plain"), (5, 128, 40, "turned"), (4, 255, 62, "gaps")]
)  # fmt: skip
def test_real_systems_with_more_right_hand_sides_are_solved_at_once(
    cupy, vendor, m, n, k, dtype, how
):
    check_at_once(cupy, vendor, (m, n, k), dtype, how)


def check_at_once(cupy, vendor, sizes, dtype, how):
    m, n, k = sizes

    def shape_of(kind):
        how = {"arch": f"sm_{cupy.cuda.Device().compute_capability}", "multiprocessors": 1}
        how["definite"], how["triangle"] = kind == "positive definite", kind in TRIANGULAR
        return solve_shape(m, n, k, np.dtype(dtype), kind not in (None, "general"), **how)

    shape = shape_of("general")
    if shape is None:
        assert n > 88  # every architecture solves complex systems of up to 88 unknowns
        skip_on_other_chips(f"{n} unknowns do not fit in shared memory")
    lower = how == "turned"  # whether the lower triangle of a mirrored matrix is read
    for kind in KINDS if n < 250 else ("general", "positive definite"):
        a, b = matrices(None, dtype, m, n), right_hand_sides(dtype, m, n, k)
        if kind == "positive definite":  # the triangle that is not read has other numbers
            read = matrices(kind, dtype, m, n)
            a = np.tril(read) + np.triu(a, 1) if lower else np.triu(read) + np.tril(a, -1)
        if m > 3:
            a[1], a[2, 0, 0] = 0, np.nan
        band = band_of(kind, lower, a.dtype)
        wanted, found = np.zeros((9 + 2 * k, m)), cupy.full((9 + 2 * k, m), -7.0)
        # With a bound of 0 every answer is corrected, else none.  After an inverse in FP32, a bound of 0
        # leaves all answers to another kernel.
        shape = shape_of(kind)
        by_inverse = n % 2 == 0 and shape.before is not None
        of_host = a, b, kind_of(kind), band, 0.0, wanted
        HostVendor().solve_at_once(*of_host, probes=shape.probes)
        bound = 0.0 if n % 2 else 4 * n**0.5 * float(np.finfo(dtype).eps) if by_inverse else 1.0
        args = strided(cupy, a, how), strided(cupy, b, how), kind_of(kind), band, bound
        x, found = vendor.solve_at_once(*args, found).get(), found.get()
        limits = (
            bound,
            1e-10,
            1e100,
            4 * n * float(np.finfo(dtype).eps) if band and band[2] else -1.0,
        )
        judged, few, numbers = vendor.solve_and_judge(*args[:-1], limits)
        told = doubtful_on_host(found, k, limits, kind in TRIANGULAR)
        assert np.array_equal(judged.get(), x, equal_nan=True)
        assert np.array_equal(few, np.flatnonzero(told))
        if numbers is not None:
            assert np.array_equal(numbers, found[:, told], equal_nan=True)
        assert (numbers is None) == (m == 1 or not 0 < told.sum() <= TOLD)

        sound = np.array([s for s in range(m) if m <= 3 or s not in (1, 2)])
        for s in sound:
            full = as_read(a, kind, lower)[s]
            assert ratio(full, x[s], b[s]) <= max(MET, n**0.5, 8 if by_inverse else 0)
            full = full.astype(np.clongdouble)
            size = np.abs(full).sum(axis=1).max() * np.abs(x[s]).max(axis=0)
            rest = np.abs(b[s] - full @ x[s]).max(axis=0)
            slack = 2.0**-50 * rest + residual_error(np.dtype(dtype), n) * size
            assert (np.abs(found[9 : 9 + k, s] - rest) <= slack).all()
        rtol = 2.0**-22 if dtype in "fF" else 2.0**-45
        if band:
            np.testing.assert_allclose(found[:2], wanted[:2], rtol=rtol)
            assert np.array_equal(found[2:5], wanted[2:5])
        assert np.array_equal(found[3], wanted[3])
        np.testing.assert_allclose(found[5:7, sound], wanted[5:7, sound], rtol=4 * n * 2.0**-53)
        if by_inverse:  # then the size of the inverse is its norm, and not that of a few solutions
            inverses = np.linalg.inv(
                as_read(a, kind, lower)[sound].astype(np.result_type(dtype, "d"))
            )
            norms = np.abs(inverses).sum(axis=1).max(axis=1)
            np.testing.assert_allclose(found[7, sound], norms, rtol=0.02)
        else:
            np.testing.assert_allclose(found[7, sound], wanted[7, sound], rtol=1e-6 * n)
        np.testing.assert_allclose(
            found[9 + k :, sound], np.abs(x[sound]).max(axis=1).T, rtol=2.0**-22
        )
        assert not found[8, sound].any()
        if m > 3:
            assert found[8, 1] or found[4, 1] and kind_of(kind) in TRIANGULAR
            assert np.isnan(found[5, 2])
            assert found[3, 2] == 1


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("kind", ["symmetric", "positive definite"])
@pytest.mark.parametrize(
    "n, k", [(3, 1), (4, 1), (7, 1), (8, 1), (13, 1), (16, 1), (23, 1), (31, 1), (32, 1), (40, 3)]
    + [(64, 1), (65, 16), (88, 1)],
)  # fmt: skip
def test_entries_that_are_not_read_change_no_bit_of_an_answer(
    cupy, vendor, n, k, kind, lower, dtype
):
    m, rng = 7, np.random.default_rng(n)
    full = as_read(matrices(kind, dtype, m, n), kind, lower)
    b, band = right_hand_sides(dtype, m, n, k), band_of(kind, lower, full.dtype)
    given = full.copy()
    for entries in given:
        i, j = (np.triu if lower else np.tril)(np.ones((n, n)), 1 if lower else -1).nonzero()
        entries[i, j] = rng.choice([np.nan, np.inf, -np.inf, 0.0, 1e30], len(i))
        if band[2] == 2:
            entries[range(n), range(n)] += 1j
    boards = cupy.empty((9 + 2 * k, m)), cupy.empty((9 + 2 * k, m))
    answers = [
        vendor.solve_at_once(cupy.asarray(v), cupy.asarray(b), kind_of(kind), band, 1.0, board)
        for v, board in zip((full, given), boards, strict=True)
    ]
    assert np.array_equal(*map(host, answers))
    assert np.isfinite(host(answers[0])).all()
    # Norms, the size of the inverse, the step of a breakdown, residuals, and sizes of the answers.
    assert np.array_equal(*(host(board)[5:] for board in boards))


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize(
    "m, n, k",
    [(1, 1, 1), (1, 65, 1), (1, 200, 4), (1, 513, 2), (1, 1500, 1), (1, 2050, 3)]
    + [(40, 65, 1), (7, 130, 70), (5, 300, 9), (3, 700, 2)],
)
@pytest.mark.parametrize("how", ["plain", "turned", "gaps"])
def test_large_systems_are_verified_as_on_the_host(cupy, vendor, m, n, k, dtype, how):
    wide = np.result_type(dtype, np.float64)
    a, b = matrices(None, dtype, m, n), right_hand_sides(dtype, m, n, k)
    y = right_hand_sides(wide, m, k + 2, n, seed=5)
    on_device = [strided(cupy, v, how) for v in (a, b)]
    for band in ((ALL, ALL, 0), (0, ALL, 0), (ALL, 0, 0), (0, 0, 0)):
        for info in (None, np.arange(3, 3 + m, dtype=np.int32)):
            wanted, found = np.zeros((9 + 2 * k, m)), cupy.zeros((9 + 2 * k, m))
            r, of_found = np.empty((m, k, n), wide), cupy.empty((m, k, n), wide)
            x = HostVendor().measure_large(a, band, y, b, info, wanted, residuals=r)
            of_info = None if info is None else cupy.asarray(info)
            args = on_device[0], band, cupy.asarray(y), on_device[1], of_info, found
            assert np.array_equal(vendor.measure_large(*args, residuals=of_found).get(), x)
            rtol = 2.0**-22 if dtype in "fF" else 8 * n * 2.0**-53
            np.testing.assert_allclose(found.get(), wanted, rtol=rtol)
            assert (np.abs(of_found.get() - r) <= rtol * wanted[9 : 9 + k].T[:, :, None]).all()


@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize("how", ["plain", "turned", "gaps"])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("m, n, k", [(1, 200, 1), (3, 65, 5), (600, 70, 1), (40, 513, 2)])
def test_matrices_of_which_one_triangle_is_read_are_verified_as_on_the_host(
    cupy, vendor, m, n, k, lower, how, dtype
):
    a, b = matrices("positive definite", dtype, m, n), right_hand_sides(dtype, m, n, k)
    a[0, 1, n - 1] += 1  # the triangles of the first matrix differ
    y, band = right_hand_sides("d", m, k + 2, n, seed=5), (ALL, 0, 1) if lower else (0, ALL, 1)
    wanted, r = np.zeros((9 + 2 * k, m)), np.empty((m, k, n))
    read = HostVendor().read_as(a, *band, wanted[:5])
    on_device, found, of_found = cupy.asarray(wanted), cupy.asarray(wanted), cupy.empty(r.shape)

    x = HostVendor().measure_large(read, (ALL, ALL, 0), y, b, None, wanted, residuals=r)
    args = (strided(cupy, a, how), band, cupy.asarray(y), strided(cupy, b, how), None, found)
    y = vendor.measure_large(*args, residuals=of_found, hermitian=True)

    assert np.array_equal(y.get(), x) and on_device[0, 0] > 0
    rtol = 2.0**-22 if dtype == "f" else 8 * n * 2.0**-53
    np.testing.assert_allclose(found.get(), wanted, rtol=rtol)
    assert (np.abs(of_found.get() - r) <= rtol * wanted[9 : 9 + k].T[:, :, None]).all()


def test_a_large_system_is_verified_alike_alone_and_in_a_stack(cupy, vendor):
    (m, n, k), board = (5, 200, 3), cupy.zeros((15, 5))
    a, b, y = (
        cupy.asarray(v)
        for v in (
            matrices(None, "d", m, n),
            right_hand_sides("d", m, n, k),
            right_hand_sides("d", m, k + 1, n, seed=5),
        )
    )
    x = vendor.measure_large(a, (ALL, ALL, 0), y, b, None, board)
    for s in range(m):
        one, alone = slice(s, s + 1), cupy.zeros((15, 1))
        assert cupy.array_equal(
            vendor.measure_large(a[one], (ALL, ALL, 0), y[one], b[one], None, alone), x[one]
        )
        assert cupy.array_equal(alone[:, 0], board[:, s])


def test_nan_and_inf_are_seen_where_one_large_system_is_verified(cupy, vendor):
    n, a, b = 300, matrices(None, "d", 1, 300)[0], right_hand_sides("d", 1, 300, 1)[0]
    y = right_hand_sides("d", 3, n, seed=5)
    for where, place, rows in (
        (a, (n - 1, 2), [3, 5, 6, 9]),
        (b, (2, 0), [9]),
        (y, (0, 3), [9, 10]),
        (y, (2, 3), [7]),
    ):
        for bad in (np.nan, np.inf):
            kept, where[place] = where[place], bad
            found, args = cupy.zeros((11, 1)), (cupy.asarray(v)[None] for v in (y, b))
            vendor.measure_large(cupy.asarray(a)[None], (ALL, ALL, 0), *args, None, found)
            where[place] = kept
            found = found.get()[:, 0]
            odd = [i for i in range(11) if not np.isfinite(found[i]) or i == 3 and found[i]]
            assert [i for i in odd if i != 1] == rows, (odd, bad)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("n, k", [(1024, 1), (1500, 4), (2100, 3)])
def test_a_large_triangle_is_solved_without_a_look_at_the_other_one(cupy, vendor, n, k, lower):
    rng = np.random.default_rng(n)
    a = rng.standard_normal((1, n, n)) / n + 2 * np.eye(n)
    kind = "lower triangular" if lower else "upper triangular"
    full, b = (np.tril if lower else np.triu)(a[0]), rng.standard_normal((n, k))
    a[0][full == 0] = np.nan
    factors = vendor.factor(cupy.asarray(a), kind, k)
    for adjoint in (False, True):
        x = factors.solve(cupy.asarray(np.ascontiguousarray(b.T)[None]), adjoint).get()[0].T
        assert ratio(full.T if adjoint else full, x, b) <= MET


# ---- factors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize(
    "kind", ["general", "positive definite", "upper triangular", "lower triangular", "diagonal"]
)
@pytest.mark.parametrize("m, n", [(1, 1), (1, 50), (6, 1), (6, 20), (6, 49), (6, 130)])
def test_factors_solve_with_the_matrix_and_its_adjoint(cupy, vendor, kind, m, n, dtype):
    a = as_read(matrices(kind, dtype, m, n), kind)
    b = right_hand_sides(np.result_type(dtype, np.float64), m, n, 3)
    factors = vendor.factor(cupy.asarray(a), kind, 3)
    assert not factors.info.get().any()
    for which in (np.arange(m), np.arange(m)[::2]):
        taken = factors if len(which) == m else factors.taken(which)
        for adjoint in (False, True):
            rows = cupy.asarray(np.ascontiguousarray(np.swapaxes(b[which], 1, 2)))
            x = np.swapaxes(taken.solve(rows, adjoint).get(), 1, 2)
            full = np.swapaxes(a, 1, 2).conj() if adjoint else a
            for system in zip(full[which], x, b[which], strict=True):
                # As good as an LU without refinement: n u.  u is that of FP64, although A may be in FP32.
                assert ratio(*system) <= max(4, n**0.5)


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize(
    "n, k", [(1, 256), (50, 255), (50, 256), (129, 300), (700, 257), (1100, 2000)]
)
def test_factors_solve_for_many_columns(cupy, vendor, n, k, dtype):
    a, b = matrices("general", dtype, 1, n), right_hand_sides(np.result_type(dtype, "d"), n, k)
    factors = vendor.factor(cupy.asarray(a), "general", k)
    for adjoint in (False, True):
        x = factors.solve(cupy.asarray(np.ascontiguousarray(b.T)[None]), adjoint)[0].get().T
        assert ratio(a[0].T.conj() if adjoint else a[0], x, b) <= max(4, n**0.5)


@pytest.mark.parametrize("dtype", "dD")
@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_factors_that_broke_down_solve_for_many_columns_without_an_error(cupy, vendor, bad, dtype):
    a = matrices("general", dtype, 1, 200)
    a[0, :, 7:] = bad
    factors = vendor.factor(cupy.asarray(a), "general", 300)
    x = factors.solve(cupy.asarray(right_hand_sides(dtype, 1, 300, 200)))
    assert not np.isfinite(x.get()).all()


@pytest.mark.parametrize("columns", [1, 2, 3, 16])
@pytest.mark.parametrize("n", [1024, 1500, 2100])
def test_a_large_positive_definite_system(cupy, n, columns):
    a, b = matrices("positive definite", "d", n), right_hand_sides("d", n, columns)
    given = cupy.asarray(np.triu(a))
    solution = tcsolve.solve_ex(given, cupy.asarray(b), assume_a="pos")
    assert solution.status is Status.CONVERGED and solution.rungs == ("fp64",)
    assert ratio(a, solution.x, b) <= MET
    assert np.array_equal(given.get(), np.triu(a))
    true = 1 / np.linalg.cond(a, 1)
    assert 0.99 * true <= solution.rcond <= 3 * true
    again = tcsolve.solve(given, cupy.asarray(b), assume_a="pos")
    assert np.array_equal(again.get(), solution.x.get())


# ---- many sizes --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [64, 200, 512, 1000])
def test_one_system_of_every_kind_in_either_order_is_solved(cupy, kind, n, dtype):
    a, b = matrices(kind, dtype, n), right_hand_sides(dtype, n, 2)
    for order in "CF":
        on_device = cupy.asarray(a, order=order)
        solution = tcsolve.solve_ex(on_device, cupy.asarray(b), assume_a=kind)
        assert solution.status is Status.CONVERGED and solution.device == "cuda"
        assert isinstance(solution.x, cupy.ndarray)
        assert ratio(as_read(a, kind), solution.x, b) <= MET
        assert np.array_equal(on_device.get(), a)


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("kind", [None, "positive definite", "upper triangular"])
@pytest.mark.parametrize("m, n", [(9, 64), (9, 200), (5, 512), (3, 700), (2, 1000)])
def test_stacks_from_64_to_1000_unknowns_are_solved(cupy, kind, m, n, dtype):
    a, b = matrices(kind, dtype, m, n), right_hand_sides(dtype, m, n, 2)
    solution = tcsolve.solve_ex(cupy.asarray(a), cupy.asarray(b), assume_a=kind)
    assert (solution.statuses == Status.CONVERGED).all() and solution.x.shape == b.shape
    for system in zip(as_read(a, kind), solution.x.get(), b, strict=True):
        assert ratio(*system) <= MET


@pytest.mark.parametrize("kind", [None, "positive definite", "lower triangular"])
@pytest.mark.parametrize("m, n", [(70000, 3), (3_000_000, 2), (70000, 33)])
def test_very_long_stacks(cupy, kind, m, n):
    rng = cupy.random.default_rng(0)
    a = rng.standard_normal((m, n, n)) + (1 + n) * cupy.eye(n)
    if kind == "positive definite":
        a = a @ cupy.swapaxes(a, 1, 2) + cupy.eye(n)
    elif kind:
        a = cupy.tril(a)
    b = rng.standard_normal((m, n, 1))
    x = tcsolve.solve(a, b, assume_a=kind)
    rest = cupy.abs(b - a @ x).max(axis=(1, 2))
    size = cupy.abs(a).sum(axis=2).max(axis=1) * cupy.abs(x).max(axis=(1, 2))
    assert float((rest / size).max()) <= 4 * max(n, 4) ** 0.5 * 2.0**-53
    a[m - 2] = cupy.nan
    solution = tcsolve.solve_ex(a, b, assume_a=kind, check_finite=False)
    assert solution.statuses[m - 2] is Status.NONFINITE_INPUT
    assert (solution.statuses != Status.CONVERGED).sum() == 1
    assert cupy.array_equal(solution.x[: m - 2], x[: m - 2])


@pytest.mark.parametrize("kind", [None, "positive definite", "upper triangular"])
@pytest.mark.parametrize("m, n", [(200_000, 4), (60_000, 8), (20_000, 16)])
def test_every_answer_of_a_long_stack_meets_the_bound(cupy, kind, m, n):
    rng = cupy.random.default_rng(1)
    a, b = rng.standard_normal((m, n, n)), rng.standard_normal((m, n, 1))
    if kind == "positive definite":
        a = a @ cupy.swapaxes(a, 1, 2)
        a = (a + cupy.swapaxes(a, 1, 2)) / 2 + cupy.eye(n)
    elif kind:
        a = cupy.triu(a) + 3 * cupy.eye(n)
    solution = tcsolve.solve_ex(a, b, assume_a=kind)
    assert (solution.backward_error <= solution.bound).all()
    assert set(solution.statuses.tolist()) <= {Status.CONVERGED, Status.ILL_CONDITIONED}
    assert cupy.array_equal(tcsolve.solve(a, b, assume_a=kind), solution.x)
    some = rng.integers(m, size=200).get()
    for system in zip(*(v[cupy.asarray(some)].get() for v in (a, solution.x, b)), strict=True):
        assert ratio(*system) <= MET * max(1, 4 / n) ** 0.5


@pytest.mark.parametrize("kind", ["lower triangular", "upper triangular"])
@pytest.mark.parametrize("n", [1024, 1500, 2100])
@pytest.mark.parametrize("columns", [1, 2, 3, 16])
def test_a_large_triangle(cupy, kind, n, columns):
    rng = np.random.default_rng(0)
    full = rng.standard_normal((n, n)) / n**0.5 + 2 * np.eye(n)
    a, b = as_read(full, kind), right_hand_sides("d", n, columns)
    solution = tcsolve.solve_ex(cupy.asarray(a), cupy.asarray(b), assume_a=kind)
    assert solution.status is Status.CONVERGED and ratio(a, solution.x, b) <= MET
    true = 1 / np.linalg.cond(a, 1)
    assert 0.99 * true <= solution.rcond <= 3 * true
    told = tcsolve.solve_ex(cupy.asarray(full), cupy.asarray(b), assume_a=kind)
    assert told.status is Status.NOT_AS_ASSERTED and cupy.array_equal(told.x, solution.x)
    a[5, 5] = 0
    with pytest.raises(tcsolve.SingularError):
        tcsolve.solve(cupy.asarray(a), cupy.asarray(b), assume_a=kind)


@pytest.mark.parametrize("columns", [1, 63, 64, 300])
def test_a_complex_system_with_many_right_hand_sides(cupy, columns):
    a, b = matrices(None, "D", 300), right_hand_sides("D", 300, columns)
    solution = tcsolve.solve_ex(cupy.asarray(a), cupy.asarray(b))
    assert solution.status is Status.CONVERGED and ratio(a, solution.x, b) <= MET
    true = 1 / np.linalg.cond(a, 1)
    assert 0.99 * true <= solution.rcond <= 3 * true


def test_the_rung_depends_on_unknowns_dtype_and_columns(cupy):
    def rungs(a, b, **options):
        return tcsolve.solve_ex(cupy.asarray(a), cupy.asarray(b), **options).rungs

    for n, dtype, wanted in ((300, "d", "fp64"), (1600, "d", "fp16x3"), (1600, "D", "fp64")):
        assert rungs(matrices(None, dtype, n), right_hand_sides(dtype, n)) == (wanted,)
    assert rungs(matrices(None, "d", 1600), right_hand_sides("d", 1600, 1600)) == ("fp64",)
    stack = tcsolve.solve_ex(
        cupy.asarray(matrices(None, "d", 3, 1600)), cupy.asarray(right_hand_sides("d", 1600))
    )
    assert stack.rungs == ("fp16x3",) == (stack.precision,) and stack.x.shape == (3, 1600)


def test_an_extreme_small_system_is_solved_and_a_singular_one_raises(cupy):
    a, b = matrices(None, "d", 60), right_hand_sides("d", 60)
    for scale in (1e300, 1e-290):
        solution = tcsolve.solve_ex(cupy.asarray(a * scale), cupy.asarray(b))
        assert solution.status is Status.CONVERGED
        assert (solution.backward_error <= solution.bound).all()
        assert ratio(a, host(solution.x) * scale, b) <= 2 * MET  # the scale is rounded
    a[7] = a[3]
    a[:, 7] = a[:, 3]
    a[5] = 0
    with pytest.raises(tcsolve.SingularError):
        tcsolve.solve(cupy.asarray(a), cupy.asarray(b))


def test_kinds_stay_on_the_device(cupy):
    for kind in KINDS:
        for shape in ((40,), (3, 40)):
            a, b = matrices(kind, "d", *shape), right_hand_sides("d", *shape, 1)
            solution = tcsolve.solve_ex(cupy.asarray(a), cupy.asarray(b), assume_a=kind)
            assert solution.status is Status.CONVERGED and solution.device == "cuda"
