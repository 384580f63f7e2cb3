"""Factored stacks: verified solves, statuses, condition numbers and determinants of each matrix.

The tests run with the factors of LAPACK, with `vendor_on_host` in place of a device's library, and on a
device.
"""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from bounds import MET, host, ratio, worst_ratio
from structures import matrices, right_hand_sides
from vendor_on_host import HostVendorOps

import tcsolve
from tcsolve import Status
from tcsolve._solve.factored.stack_factorization import StackFactorization


class OnHost:
    """`tcsolve.factor` of NumPy arrays."""

    def factor(self, a, **options):
        return tcsolve.factor(a, **options)

    def array(self, x):
        return x


class ByLibrary(OnHost):
    """Factors as from the library of a device; NumPy computes them."""

    def factor(self, a, **options):
        return StackFactorization.of(HostVendorOps(), a.copy(), **options)


class OnDevice:
    """`tcsolve.factor` of CuPy arrays."""

    def __init__(self, cupy):
        self.array = cupy.asarray

    def factor(self, a, **options):
        return tcsolve.factor(self.array(a), **options)


@pytest.fixture(params=["host", "library", pytest.param("cupy", marks=pytest.mark.gpu)])
def road(request):
    if request.param == "cupy":
        return OnDevice(request.getfixturevalue("cupy"))
    return {"host": OnHost, "library": ByLibrary}[request.param]()


def solved(road, f, b, **options):
    """Return the `Solution` of f for b with x on the host."""
    solution = f.solve_ex(road.array(b), **options)
    return replace(solution, x=host(solution.x))


def met(n, dtype):
    """Return the largest allowed ratio; the bound takes n as at least 4, or 8 for complex matrices."""
    return MET * max(1, (8 if np.dtype(dtype).kind == "c" else 4) / n) ** 0.5


# ---- answers


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize(
    "m, n", [(5, 1), (5, 2), (5, 11), (5, 24), (5, 25), (2, 40), (1, 7), (2, 200)]
)
def test_stacks_are_solved_to_the_bound(road, m, n, dtype):
    a = matrices(None, dtype, m, n)
    f = road.factor(a)

    for k in (1, 3):
        b = right_hand_sides(dtype, m, n, k)
        solution = solved(road, f, b)
        assert solution.status is Status.CONVERGED
        assert solution.x.dtype == dtype and solution.x.shape == b.shape
        assert solution.backward_error.shape == solution.iterations.shape == (m, k)
        assert (solution.backward_error <= solution.bound).all()
        assert worst_ratio(a, solution.x, b) <= met(n, dtype)
        assert np.array_equal(host(f.solve(road.array(b))), solution.x)
    assert f.shape == a.shape and f.dtype == dtype and f.precision == "fp64" in f.rungs
    assert f.nbytes >= a.nbytes + a.size * max(8, a.itemsize) and f.bytes_planned > 0


@pytest.mark.parametrize("dtypes", ["dD", "fF", "fD", "df", "fd", "Dd"])
@pytest.mark.parametrize("n", [12, 40])
def test_right_hand_sides_of_another_dtype(road, dtypes, n):
    a, b = matrices(None, dtypes[0], 3, n), right_hand_sides(dtypes[1], 3, n, 2)
    solution = solved(road, road.factor(a), b)
    assert solution.status is Status.CONVERGED and solution.x.dtype == np.result_type(*dtypes)
    assert worst_ratio(a, solution.x, b) <= MET


@pytest.mark.parametrize("dtypes", ["dd", "dD", "DD", "FF"])
@pytest.mark.parametrize("trans", [0, 1, 2, "N", "T", "C"])
@pytest.mark.parametrize("n", [9, 40])
def test_transposed_systems(road, trans, dtypes, n):
    a, b = matrices(None, dtypes[0], 3, n), right_hand_sides(dtypes[1], 3, n, 2)
    turned = np.swapaxes(a, 1, 2)
    read = {0: a, "N": a, 1: turned, "T": turned}.get(trans, turned.conj())
    f = road.factor(a)
    solution = solved(road, f, b, trans=trans)
    assert solution.status is Status.CONVERGED
    assert worst_ratio(read, solution.x, b) <= met(n, dtypes[1])
    assert np.array_equal(solution.rconds, f.rcond())
    assert np.array_equal(host(f.solve(road.array(b), trans=trans)), solution.x)


@pytest.mark.parametrize(
    "of_a, of_b, of_x",
    [
        ((4,), (20,), (4, 20)),
        ((2, 3), (20,), (2, 3, 20)),
        ((4,), (20, 2), (4, 20, 2)),
        ((4,), (4, 20, 1), (4, 20, 1)),
        ((3, 1), (2, 20, 2), (3, 2, 20, 2)),
        ((3, 1), (3, 2, 20, 2), (3, 2, 20, 2)),
        ((1, 3), (5, 1, 20, 2), (5, 3, 20, 2)),
        ((2, 1, 3), (4, 2, 5, 1, 20, 2), (4, 2, 5, 3, 20, 2)),
        ((1,), (5, 20, 2), (5, 20, 2)),
    ],
)
def test_shapes_are_broadcast_as_in_solve(road, of_a, of_b, of_x):
    a, b = matrices(None, "d", *of_a, 20), right_hand_sides("d", *of_b)

    solution = solved(road, road.factor(a), b)

    batch, k = (of_x[:-1], 1) if len(of_b) == 1 else (of_x[:-2], of_x[-1])
    assert solution.x.shape == of_x and solution.backward_error.shape == (*batch, k)
    assert solution.statuses.shape == solution.rconds.shape == batch
    full = np.broadcast_to(a, (*batch, 20, 20)).reshape(-1, 20, 20)
    columns = np.broadcast_to(b[:, None] if len(of_b) == 1 else b, (*batch, 20, k))
    assert worst_ratio(full, solution.x.reshape(-1, 20, k), columns.reshape(-1, 20, k)) <= MET


def test_every_number_belongs_to_its_system(road):
    a, b = matrices(None, "d", 3, 1, 10), right_hand_sides("d", 2, 10, 2)
    a[1, 0, :, 4] = 0
    b[1, :, 1] *= 1e-20
    f = road.factor(a)
    solution = solved(road, f, b)
    assert (solution.statuses[1] == Status.SINGULAR).all() and np.isnan(solution.x[1]).all()
    assert (solution.statuses[[0, 2]] == Status.CONVERGED).all()
    for i in (0, 2):
        for j in (0, 1):
            alone = tcsolve.solve_ex(a[i, 0], b[j])
            assert np.allclose(solution.x[i, j], alone.x, rtol=1e-9, atol=0)
            assert solution.rconds[i, j] == f.rcond()[i, 0]
            assert 0.33 * alone.rcond <= solution.rconds[i, j] <= 3.01 * alone.rcond


@pytest.mark.parametrize("shape", [(0, 5, 5), (3, 0, 5, 5), (2, 1, 5, 5)])
def test_empty_batches_and_no_columns(road, shape):
    f = road.factor(np.ones(shape))
    k = 2 if 0 in shape else 0
    solution = solved(road, f, np.ones((5, k)))
    assert solution.x.shape == (*shape[:-1], k) and solution.statuses.shape == shape[:-2]
    assert f.rcond().shape == shape[:-2]
    sign, log = f.slogdet()
    assert sign.shape == log.shape == shape[:-2]


def test_a_long_stack_with_a_few_bad_slices(road):
    m, n = 6000, 3
    a, b = matrices(None, "d", m, n) + 4 * np.eye(n), right_hand_sides("d", m, n, 1)
    a[17], a[5200], b[5300] = a[17] * 1e300, a[5200] * 1e-290, 0
    a[5500] = np.ones((n, n))
    f = road.factor(a)
    with pytest.raises(tcsolve.SingularError, match="slice 5500"):
        f.solve(road.array(b))
    solution = solved(road, f, b)
    assert [i for i, s in enumerate(solution.statuses) if s is not Status.CONVERGED] == [5500]
    good = np.delete(np.arange(m), 5500)
    a, b = a[good], b[good]
    f = road.factor(a)
    x = host(f.solve(road.array(b)))
    assert worst_ratio(a, x, b) <= met(n, "d") and np.array_equal(x, solution.x[good])
    x = host(f.solve(road.array(b), trans="T"))
    assert worst_ratio(np.swapaxes(a, 1, 2), x, b) <= met(n, "d")
    sign, log = f.slogdet()
    wanted = np.linalg.slogdet(np.delete(a, [17, 5200], 0))
    assert np.array_equal(np.delete(sign, [17, 5200]), wanted.sign)
    assert np.allclose(np.delete(log, [17, 5200]), wanted.logabsdet, rtol=1e-12, atol=1e-12)


# ---- stacks with good and bad slices

BAD = {
    1: ("SINGULAR", lambda a, b: a.__setitem__((slice(None), 3), 0)),
    2: ("NONFINITE_INPUT", lambda a, b: a.__setitem__((4, 2), np.nan)),
    4: ("NONFINITE_INPUT", lambda a, b: b.__setitem__((1, 0), np.inf)),
    5: ("CONVERGED", lambda a, b: a.__imul__(1e300)),
    6: ("CONVERGED", lambda a, b: a.__imul__(1e-290)),
    7: ("ILL_CONDITIONED", lambda a, b: a.__setitem__(3, a[2] + 1e-15 * a[3])),
    8: ("CONVERGED", lambda a, b: b.__imul__(1e-300)),
    10: ("ILL_CONDITIONED", lambda a, b: a.__setitem__(3, a[3] * 1e250)),
    11: ("CONVERGED", lambda a, b: b.__imul__(0)),
}


@pytest.mark.parametrize("n, k", [(8, 1), (8, 3), (40, 2)])
def test_bad_slices_leave_the_good_ones_alone(road, n, k):
    a, b = matrices(None, "d", 12, n), right_hand_sides("d", 12, n, k)
    wanted = solved(road, road.factor(a), b)
    for number, (_, spoil) in BAD.items():
        spoil(a[number], b[number])
    before = a.copy(), b.copy()

    solution = solved(road, road.factor(a, check_finite=False), b, check_finite=False)

    assert np.array_equal(a, before[0], equal_nan=True)
    assert np.array_equal(b, before[1], equal_nan=True)
    for number, (name, _) in BAD.items():
        assert solution.statuses[number].name in (name, "CONVERGED")[: 1 + (number == 7)], number
        if solution.statuses[number].ok:
            assert (solution.backward_error[number] <= solution.bound).all()
            assert ratio(a[number], solution.x[number], b[number]) <= MET
    good = [0, 3, 9]
    assert (solution.statuses[good] == Status.CONVERGED).all()
    assert np.array_equal(solution.x[good], wanted.x[good])
    assert np.array_equal(solution.rconds[good], wanted.rconds[good])
    assert np.isnan(solution.x[[1, 2]]).all() and solution.rconds[1] == 0
    assert np.isnan(solution.x[4, :, 0]).all() and np.isfinite(solution.x[4, :, 1:]).all()
    assert not solution.x[11].any() and solution.status is Status.SINGULAR


def test_a_column_that_is_not_finite_spoils_its_system_alone(road):
    f, b = road.factor(matrices(None, "d", 1, 20)), right_hand_sides("d", 4, 20, 2)
    b[2, 5, 1] = np.nan
    solution = solved(road, f, b, check_finite=False)
    names = [status.name for status in solution.statuses]
    assert names == ["CONVERGED", "CONVERGED", "NONFINITE_INPUT", "CONVERGED"]
    assert np.isnan(solution.x[2, :, 1]).all() and np.isfinite(solution.x[[0, 1, 3]]).all()
    with pytest.raises(tcsolve.InputError, match="b does"):
        f.solve_ex(road.array(b))


def test_the_error_names_the_first_singular_slice_and_the_warning_the_first_ill_conditioned(road):
    a, b = matrices(None, "d", 2, 3, 8), np.ones(8)
    a[1, 1, :, 2] = 0
    with pytest.raises(tcsolve.SingularError, match=r"slice \(1, 1\) of the stack"):
        road.factor(a).solve(road.array(b))
    a[1, 1] = np.diag(np.logspace(0, -20, 8))
    with pytest.warns(tcsolve.LinAlgWarning, match=r"slice \(1, 1\)") as found:
        road.factor(a).solve(road.array(b))
    assert found[0].filename == __file__


# ---- condition and determinant


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("n", [1, 2, 10, 40])
def test_condition_numbers_and_determinants_of_each_matrix(road, n, dtype):
    a = matrices(None, dtype, 2, 3, n)
    f = road.factor(a)

    rcond, (sign, log) = f.rcond(), f.slogdet()

    wide = a.astype(np.result_type(dtype, np.float64))
    true = 1 / np.linalg.cond(wide, 1)
    assert rcond.shape == (2, 3) and isinstance(rcond, np.ndarray)
    assert (rcond >= 0.99 * true).all() and (rcond <= 3.01 * true).all()
    wanted = np.linalg.slogdet(wide)
    assert np.allclose(sign, wanted.sign, rtol=1e-12, atol=0)
    assert np.allclose(log, wanted.logabsdet, rtol=1e-12, atol=1e-12)
    assert sign.dtype == wanted.sign.dtype and log.dtype == np.float64


def test_condition_and_determinant_of_extreme_singular_and_spoilt_matrices(road):
    a = np.stack([matrices(None, "d", 6)] * 5)
    a[1] *= 2.0**1000
    a[2] *= 2.0**-1000
    a[3, :, 2] = 0
    a[4, 0, 0] = np.nan
    f = road.factor(a, check_finite=False)

    rcond, (sign, log) = f.rcond(), f.slogdet()

    true = 1 / np.linalg.cond(a[0], 1)
    assert (rcond[:3] >= 0.99 * true).all() and (rcond[:3] <= 3.01 * true).all()
    assert not rcond[3:].any()
    assert (sign[:3] == sign[0]).all() and abs(sign[0]) == 1
    shift = 6000 * np.log(2)
    assert np.allclose(log[:3] - log[0], [0, shift, -shift], rtol=1e-12)
    assert (sign[3], log[3]) == (0, -np.inf) and np.isnan([sign[4], log[4]]).all()
    rcond[:] = 7  # the caller owns it
    assert f.rcond().max() <= 1


# ---- arguments, memory, copies


def test_an_inf_is_refused(road):
    a = matrices(None, "d", 3, 5)
    a[1, 2, 2] = np.inf
    with pytest.raises(tcsolve.InputError, match="a does"):
        road.factor(a)


@pytest.mark.parametrize("shape", [(5,), (5, 5), (2, 4, 1), (3, 4)])
def test_a_right_hand_side_that_does_not_fit_is_refused(road, shape):
    f = road.factor(matrices(None, "d", 3, 4))
    with pytest.raises(tcsolve.InputError, match="incompatible shapes"):
        f.solve(road.array(np.ones(shape)))


def test_an_unknown_trans_is_refused(road):
    f = road.factor(matrices(None, "d", 3, 4))
    with pytest.raises(tcsolve.InputError, match="trans is 3"):
        f.solve(road.array(np.ones(4)), trans=3)


def test_a_copy_of_the_stack_is_kept_unless_it_may_be_overwritten(xp):
    a, b = matrices(None, "d", 4, 6), np.ones((6, 2))
    given, lent = xp.array(a), xp.array(a)
    own, leave = tcsolve.factor(given), tcsolve.factor(lent, overwrite_a=True)
    assert own.bytes_planned - leave.bytes_planned == a.nbytes and own.nbytes == leave.nbytes
    given[:] = 0
    x = host(own.solve(xp.asarray(b)))
    assert worst_ratio(a, x, [b] * 4) <= MET
    assert np.array_equal(x, host(leave.solve(xp.asarray(b)))) and np.array_equal(host(lent), a)


@pytest.mark.parametrize("precision", ["fp16", "fp32", tcsolve.Plan("fp16x3")])
@pytest.mark.parametrize("char", ["f", "d", "D"])
@pytest.mark.parametrize("trans", [0, 1, 2])
def test_each_matrix_has_the_precision_that_was_asked_for(xp, precision, char, trans):
    a, b = matrices(None, char, 4, 40), right_hand_sides(char, 4, 40, 2)
    f = tcsolve.factor(xp.asarray(a), precision=precision)
    assert f.precision == getattr(precision, "update", precision) == "+".join(f.rungs)

    found = f.solve_ex(xp.asarray(b), trans=trans)

    assert found.precision == f.precision and found.status is Status.CONVERGED
    turned = {0: a, 1: np.swapaxes(a, 1, 2), 2: np.swapaxes(a, 1, 2).conj()}[trans]
    assert worst_ratio(turned, host(found.x), b) <= MET
    assert found.x.dtype == a.dtype and f.nbytes > a.nbytes
    one = tcsolve.factor(xp.asarray(a[2]), precision=precision)
    assert np.array_equal(host(one.solve(xp.asarray(b[2]), trans=trans)), host(found.x)[2])
    np.testing.assert_allclose(f.rcond()[2], one.rcond(), rtol=1e-12)
    sign, log = f.slogdet()
    wanted = np.linalg.slogdet(a.astype(np.result_type(a, np.float64)))
    np.testing.assert_allclose(sign, wanted.sign, rtol=1e-6)
    np.testing.assert_allclose(log, wanted.logabsdet, rtol=1e-10)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a_hostile_matrix_of_a_stack_in_low_precision_has_its_own_status(xp, precision):
    a, b = matrices(None, "d", 4, 20), right_hand_sides("d", 4, 20, 3)
    a[1, :, 3], a[2, 0, 0] = 0, np.nan
    f = tcsolve.factor(xp.asarray(a), precision=precision, check_finite=False)

    found = f.solve_ex(xp.asarray(b))

    names = [status.name for status in found.statuses]
    assert names == ["CONVERGED", "SINGULAR", "NONFINITE_INPUT", "CONVERGED"]
    assert worst_ratio(a[[0, 3]], host(found.x)[[0, 3]], b[[0, 3]]) <= MET
    assert f.rcond()[1] == 0 and f.slogdet().sign[1] == 0 and np.isnan(f.slogdet().sign[2])
    with pytest.raises(tcsolve.SingularError, match="1"):
        f.solve(xp.asarray(b))
    same = f.solve_ex(xp.ones((5, 1, 20, 1)))  # five right-hand sides for each matrix
    assert same.statuses.shape == (5, 4) and same.statuses[2, 1] is Status.SINGULAR


@pytest.mark.parametrize("precision", ["auto", "fp16"])
@pytest.mark.parametrize("n", [5, 30, 150])  # for n = 150, the factors are made in parts
def test_factors_on_the_host_are_copied_and_pickled(n, precision):
    a, b = matrices(None, "d", 3, n), right_hand_sides("d", 3, n, 2)
    f = tcsolve.factor(a, precision=precision)
    x, rcond = f.solve(b), f.rcond()
    for made in (copy.copy(f), copy.deepcopy(f), pickle.loads(pickle.dumps(f))):
        assert np.array_equal(made.solve(b), x) and np.array_equal(made.rcond(), rcond)
        assert made.shape == f.shape and made.nbytes == f.nbytes


@pytest.mark.parametrize("n", [5, 30])
def test_threads_share_factors(xp, n):
    f = tcsolve.factor(xp.asarray(matrices(None, "d", 20, n)))
    systems = [xp.asarray(right_hand_sides("d", 20, n, 1, seed=i)) for i in range(8)]
    expected = [host(f.solve(b)) for b in systems]
    with ThreadPoolExecutor(len(systems)) as pool:
        found = list(pool.map(lambda b: [host(f.solve(b)) for _ in range(20)], systems))
    for xs, x in zip(found, expected, strict=True):
        assert all(np.array_equal(y, x) for y in xs)


@pytest.mark.gpu
def test_factors_on_a_device_are_not_pickled_and_solve_for_arrays_of_the_host(cupy):
    a, b = matrices(None, "d", 3, 8), right_hand_sides("d", 3, 8, 2)
    f = tcsolve.factor(a, device="cuda")
    with pytest.raises(TypeError, match="factors on a device"):
        pickle.dumps(f)
    x = f.solve(b)
    assert isinstance(x, np.ndarray) and worst_ratio(a, x, b) <= MET
    there = f.solve(cupy.asarray(b))
    assert isinstance(there, cupy.ndarray) and np.array_equal(host(there), x)
    with pytest.raises(tcsolve.InputError, match="move b there first"):
        tcsolve.factor(a).solve(cupy.asarray(b))


def test_the_settings_of_the_caller_do_not_matter(road):
    a = np.stack([np.eye(3), np.zeros((3, 3)), 1e300 * np.eye(3)])
    with np.errstate(all="raise"):
        f = road.factor(a)
        assert f.solve_ex(road.array(np.ones(3))).statuses[1] is Status.SINGULAR
        assert f.slogdet()[0].tolist() == [1, 0, 1] and f.rcond().tolist() == [1, 0, 1]


@pytest.mark.parametrize("precision", ["auto", "fp32", "fp16"])
def test_nan_in_one_right_hand_side_changes_no_status_of_another(precision):
    singular, b = np.array([[[1.0, 2], [2, 4]]]), np.ones((3, 2, 1))
    b[1, 0] = np.nan
    f = tcsolve.factor(singular, precision=precision)
    found = [status.name for status in f.solve_ex(b, check_finite=False).statuses]
    assert found == ["SINGULAR", "NONFINITE_INPUT", "SINGULAR"]
    with pytest.raises(tcsolve.SingularError, match="in slice 0"):
        f.solve(b, check_finite=False)

    f = tcsolve.factor(np.array([[[1.0, 2], [3, 5]]]) * 1e100, precision=precision)
    b[2, :, 0] = [1e-222, 3e-222]
    found, alone = f.solve_ex(b, check_finite=False), f.solve_ex(b[2:])
    assert [s.name for s in found.statuses] == ["CONVERGED", "NONFINITE_INPUT", "UNDERFLOW"]
    assert np.isnan(found.x[1]).all() and np.array_equal(found.x[2], alone.x[0])
    assert found.backward_error[2] == pytest.approx(alone.backward_error[0])


def test_without_an_estimate_of_the_condition_a_right_hand_side_beside_nan_is_said_so():
    plan = tcsolve.Plan("bf16", fallback=False, block=2)
    a = np.array([[[1.0, 1], [1, 1 + 2.0**-20]]])
    f, b = tcsolve.factor(a, precision=plan), np.ones((2, 2, 1))
    alone = f.solve_ex(b).statuses
    b[1, 0] = np.nan
    found = f.solve_ex(b, check_finite=False).statuses
    assert found[0] is alone[0] and found[1] is Status.NONFINITE_INPUT
