"""One system that is eliminated on many multiprocessors, compared with NumPy's results."""

import numpy as np
import pytest
from on_device import strided
from structures import matrices, right_hand_sides
from switches import skip_on_other_chips
from vendor_on_host import HostVendor

import tcsolve
from tcsolve import Status

pytestmark = pytest.mark.gpu

EDGES = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257]
EDGES += [383, 384, 385, 511, 512, 513, 767, 768, 769, 1023, 1024, 1025, 1535, 1536]
KINDS = "general", "positive definite"


@pytest.fixture
def elimination(cupy):
    from tcsolve._backends.cuda.batched import elimination as of_device

    if not of_device.eliminates(np.dtype("d"), "general", 1, 100, 1):
        skip_on_other_chips("the device has a low rate in FP64")
    return of_device


def solved(cupy, elimination, a, kind, b, probes=2):
    """Return (info, y) on the host, and check that a second call has the same bits."""
    a, b = (x if isinstance(x, cupy.ndarray) else cupy.asarray(x) for x in (a, b))
    info, y = elimination.eliminate(a, kind, b, probes)
    again = elimination.eliminate(a, kind, b, probes)
    assert y.tobytes() == again[1].tobytes() and info == again[0]
    return int(info[0]), y.get()


def require_backward_stable(a, y, sides):
    """Check each row of y, a solution for a column of `sides`, by its residual."""
    a, sides, x = (v.astype(np.result_type(v.dtype, np.float64)) for v in (a, sides, y.T))
    n, rest = len(a), np.abs(sides - a @ x).max(axis=0)
    assert (
        rest <= 8 * np.sqrt(n) * 2.0**-53 * np.abs(a).sum(axis=1).max() * np.abs(x).max(axis=0)
    ).all()


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", EDGES)
def test_solutions_have_small_residuals(cupy, elimination, n, kind, dtype):
    if n > 1024 and dtype in "FD":
        dtype = dtype.lower()  # complex matrices have at most 1024 rows
    k = 1 + n % 3
    a, b = matrices(kind, dtype, 1, n), right_hand_sides(dtype, 1, n, k)

    info, y = solved(cupy, elimination, a, kind, b)

    probes = HostVendor().rows(b, 2)[0, k:].T
    assert info == 0 and y.shape == (1, k + 2, n)
    require_backward_stable(a[0], y[0], np.hstack([b[0], probes]))


@pytest.mark.parametrize("n, k", [(1537, 1), (1744, 14), (1744, 40)])
def test_real_definite_systems_are_eliminated_as_far_as_they_fit(cupy, elimination, n, k):
    kind = "positive definite"
    if not elimination.eliminates(np.dtype("d"), kind, 1, n, k + 2):
        skip_on_other_chips("a block has less than 227 KB of shared memory")
    a, b = matrices(kind, "d", 1, n), right_hand_sides("d", 1, n, k)

    info, y = solved(cupy, elimination, a, kind, b)
    found = tcsolve.solve_ex(cupy.asarray(a[0]), cupy.asarray(b[0]), assume_a="pos")

    assert info == 0 and found.status is Status.CONVERGED
    require_backward_stable(a[0], y[0, :k], b[0])
    assert cupy.array_equal(found.x.T, cupy.asarray(y[0, :k]))


@pytest.mark.parametrize("how", ["turned", "gaps"])
@pytest.mark.parametrize("dtype", "fdFD")
def test_strides_do_not_change_the_bits(cupy, elimination, how, dtype):
    for kind in KINDS:
        a, b = matrices(kind, dtype, 1, 150), right_hand_sides(dtype, 1, 150, 3)
        plain = solved(cupy, elimination, a, kind, b)
        args = strided(cupy, a, how), kind, strided(cupy, b, how)
        assert plain[1].tobytes() == solved(cupy, elimination, *args)[1].tobytes()


@pytest.mark.parametrize("dtype, columns", [("d", 800), ("D", 300)])
def test_a_solution_has_the_same_bits_beside_many_others(cupy, elimination, dtype, columns):
    for kind in KINDS:
        a, b = matrices(kind, dtype, 1, 301), right_hand_sides(dtype, 1, 301, columns)
        _, y = solved(cupy, elimination, a, kind, b)
        for c in (0, 1, columns - 1):
            _, alone = solved(cupy, elimination, a, kind, b[:, :, c : c + 1])
            assert alone[0, 0].tobytes() == y[0, c].tobytes()


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("n, step", [(1, 1), (40, 7), (130, 130), (1024, 513), (1001, 1001)])
def test_the_first_step_without_a_pivot_is_told(cupy, elimination, n, step, dtype):
    """Columns before `step` are those of a regular triangle; column `step` depends on them."""
    a = np.triu(matrices("general", dtype, 1, n)) + 4 * np.sqrt(n) * np.eye(n, dtype=dtype)
    a[0, step - 1 :, step - 1] = 0
    info, _ = solved(
        cupy, elimination, a.astype(dtype), "general", right_hand_sides(dtype, 1, n, 1)
    )
    assert info == step


@pytest.mark.parametrize("dtype", "dD")
@pytest.mark.parametrize("n, step", [(1, 1), (40, 7), (513, 300)])
def test_the_first_minor_that_is_not_positive_is_told(cupy, elimination, n, step, dtype):
    a = matrices("positive definite", dtype, 1, n)
    a[0, step - 1, step - 1] *= -1
    b = right_hand_sides(dtype, 1, n, 1)
    assert solved(cupy, elimination, a, "positive definite", b)[0] == step
    assert solved(cupy, elimination, a, "general", b)[0] == 0


@pytest.mark.parametrize("payload", [0x7FF8000000000000, 0xFFFFFFFFFFFFFFFF, 0x7FF0000000000000])
@pytest.mark.parametrize("dtype", "dD")
def test_nan_and_inf_end_without_an_answer(cupy, elimination, payload, dtype):
    bad = np.array([payload], np.uint64).view(np.float64)[0]
    a, b = matrices("general", dtype, 1, 200), right_hand_sides(dtype, 1, 200, 1)
    for where in ((0, 0, 0), (0, 100, 150), (0, 199, 199)):
        spoilt = a.copy()
        spoilt.view(np.float64)[where] = bad
        _, y = solved(cupy, elimination, spoilt, "general", b)
        assert not np.isfinite(y).all()
    spoilt = b.copy()
    spoilt.view(np.float64)[0, 77] = bad
    _, y = solved(cupy, elimination, a, "general", spoilt)
    assert not np.isfinite(y[0, 0]).all() and np.isfinite(y[0, 1:]).all()


@pytest.mark.parametrize(
    "kind, dtype", [("general", "d"), ("general", "D"), ("positive definite", "D")]
)
def test_the_first_solve_after_an_elimination_eliminates_and_later_ones_have_factors(
    cupy, elimination, kind, dtype
):
    from tcsolve._backends.cuda.batched.library_factors import factor_and_solve

    a, b = matrices(kind, dtype, 1, 200), right_hand_sides(dtype, 1, 200, 3)
    rows = np.ascontiguousarray(b.swapaxes(1, 2))

    factors, y, _ = factor_and_solve(cupy.asarray(a), kind, cupy.asarray(b), 2)
    first, second = (factors.solve(cupy.asarray(rows)).get() for _ in range(2))
    adjoint = factors.solve(cupy.asarray(rows), adjoint=True).get()

    assert first.tobytes() == y[:, :3].get().tobytes()
    require_backward_stable(a[0], second[0], b[0])
    require_backward_stable(a[0].conj().T, adjoint[0], b[0])


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m, n", [(40, 20), (7, 129), (9, 300), (5, 641), (12, 1024), (5, 1500)])
def test_a_system_of_a_stack_has_the_bits_that_it_has_alone(cupy, elimination, m, n, kind, dtype):
    dtype = dtype.lower() if n > 1024 else dtype  # complex matrices have at most 1024 rows
    a, b = matrices(kind, dtype, m, n), right_hand_sides(dtype, m, n, 2)
    a[1] = 0
    a[3, n // 2, 5] = np.nan
    there = cupy.asarray(a), kind, cupy.asarray(b), 2

    info, y = (v.get() for v in elimination.eliminate(*there))

    assert info[1] == 1 and not np.delete(info, [1, 3]).any()
    for s in (0, 2, m - 1):
        _, alone = solved(cupy, elimination, a[s : s + 1], kind, b[s : s + 1])
        assert alone[0].tobytes() == y[s].tobytes()
        require_backward_stable(a[s], y[s, :2], b[s])


@pytest.mark.parametrize("dtype", "dF")
@pytest.mark.parametrize("assume_a", ["gen", "pos"])
@pytest.mark.parametrize("m, n, k", [(3, 700, 1), (6, 641, 3), (11, 1000, 1), (3, 1100, 1)])
def test_a_stack_is_eliminated_and_verified(cupy, elimination, m, n, k, assume_a, dtype):
    a = matrices(KINDS[assume_a == "pos"], dtype, m, n)
    a[1, 1] = a[1, :, 1] = 0
    a, b = cupy.asarray(a), cupy.asarray(right_hand_sides(dtype, m, n, k))

    found = tcsolve.solve_ex(a, b, assume_a=assume_a)

    bad = Status.SINGULAR if assume_a == "gen" else Status.NOT_POSITIVE_DEFINITE
    assert found.statuses[1] is bad
    regular = [s for s in range(m) if s != 1]
    x = tcsolve.solve(a[regular], b[regular], assume_a=assume_a)
    assert x.tobytes() == found.x[regular].tobytes()
    for s in (0, m - 1):
        assert found.statuses[s] is Status.CONVERGED
        assert (found.backward_error[s] <= found.bound).all()
        alone = tcsolve.solve_ex(a[s : s + 1], b[s : s + 1], assume_a=assume_a)
        assert alone.x.tobytes() == found.x[s : s + 1].tobytes()
    with pytest.raises(np.linalg.LinAlgError, match="1"):
        tcsolve.solve(a, b, assume_a=assume_a)


def test_many_eliminations_at_the_same_time_end(cupy, elimination):
    """Blocks of different launches compete for the multiprocessors."""
    n, streams = 1024, [cupy.cuda.Stream(non_blocking=True) for _ in range(8)]
    a, b = (
        cupy.asarray(v) for v in (matrices("general", "d", 1, n), right_hand_sides("d", 1, n, 40))
    )
    wanted = elimination.eliminate(a, "general", b, 2)[1]
    cupy.cuda.get_current_stream().synchronize()
    found = []
    for _ in range(3):
        for stream in streams:
            with stream:
                found.append(elimination.eliminate(a, "general", b, 2)[1])
    for stream in streams:
        stream.synchronize()
    assert all(cupy.array_equal(y, wanted) for y in found)


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("n, k", [(65, 5), (300, 17), (1024, 64), (700, 1)])
def test_many_columns_of_one_system_are_measured_by_one_launch(cupy, n, k, dtype):
    from tcsolve._backends.cuda.batched import vendor

    wide = np.result_type(dtype, np.float64)
    a, b = matrices("general", dtype, 1, n), right_hand_sides(dtype, 1, n, k)
    y, info = right_hand_sides(wide, 1, k + 2, n, seed=5), np.array([3], np.int32)
    wanted, rest = np.zeros((9 + 2 * k, 1)), np.empty((1, k, n), wide)
    x = HostVendor().measure_large(a, (n, n, 0), y, b, info, wanted, residuals=rest)

    args = (cupy.asarray(a), (n, n, 0), *map(cupy.asarray, (y, b, info)))
    found, left = cupy.zeros(wanted.shape), cupy.empty(rest.shape, wide)
    assert cupy.array_equal(vendor.measure_large(*args, found, residuals=left), cupy.asarray(x))

    # The host adds up the moduli of complex64 in FP32.
    rtol = 2.0**-20 if dtype == "F" else 4 * n * 2.0**-53
    np.testing.assert_allclose(found.get(), wanted, rtol=rtol)
    size = np.abs(a[0]).sum(axis=1).max() * np.abs(x).max()
    assert np.abs(left.get() - rest).max() <= 4 * n * 2.0**-53 * size


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("assume_a", ["gen", "pos"])
@pytest.mark.parametrize(
    "n, k", [(97, 1), (129, 16), (300, 3), (513, 1), (1000, 16), (1024, 40), (1300, 1), (1536, 16)]
)
def test_solve_takes_an_elimination_and_verifies_it(cupy, elimination, n, k, assume_a, dtype):
    kind = KINDS[assume_a == "pos"]
    a, b = (
        cupy.asarray(v[0]) for v in (matrices(kind, dtype, 1, n), right_hand_sides(dtype, 1, n, k))
    )

    solution = tcsolve.solve_ex(a, b, assume_a=assume_a)

    assert solution.status is Status.CONVERGED and solution.rungs == ("fp64",)
    assert (solution.backward_error <= solution.bound).all()
    assert cupy.array_equal(tcsolve.solve(a, b, assume_a=assume_a), solution.x)
    exact = np.linalg.cond(cupy.asnumpy(a).astype(np.result_type(dtype, np.float64)), 1)
    assert 1e-3 <= solution.rcond * exact <= n


@pytest.mark.parametrize("dtype", "dD")
@pytest.mark.parametrize("n, k", [(130, 1), (700, 20)])
def test_a_nearly_singular_matrix_is_told_and_a_singular_one_is_an_error(
    cupy, elimination, n, k, dtype
):
    rng = np.random.default_rng(n)
    left, right = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    b = cupy.asarray(right_hand_sides(dtype, 1, n, k)[0])
    a = left * np.append(np.ones(n - 1), 1e-17) @ right

    found = tcsolve.solve_ex(cupy.asarray(a.astype(dtype)), b)
    assert found.status is Status.ILL_CONDITIONED and found.rcond < 2.0**-52

    a = np.diag(np.arange(n).astype(dtype))
    assert tcsolve.solve_ex(cupy.asarray(a), b, assume_a="gen").status is Status.SINGULAR
    with pytest.raises(np.linalg.LinAlgError):
        tcsolve.solve(cupy.asarray(a), b, assume_a="gen")
    with pytest.raises(np.linalg.LinAlgError):
        tcsolve.solve(cupy.asarray(a), b, assume_a="pos")
