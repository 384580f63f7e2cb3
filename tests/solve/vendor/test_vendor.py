"""Stacks, structures and small systems by the factors of a device's library.

On the host `vendor_on_host` takes the place of the library, so most of the code is tested without a device.
"""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from bounds import MET, host, ratio, worst_ratio
from fuzz.runner import kind_named, rng_of
from fuzz.solving import drawn_system
from structures import KINDS, as_read, matrices, right_hand_sides
from tcsolve.kernels.system_shapes import TOLD
from vendor_on_host import HostVendor, HostVendorOps, boards

import tcsolve
from tcsolve import Status
from tcsolve._checks import check_options, check_shapes, result_dtype
from tcsolve._contract.stacks import StackPlan
from tcsolve._outcome import raise_or_warn
from tcsolve._solve.vendor.measure import all_ordinary, doubtful, look_at
from tcsolve._solve.vendor.solve import goes_to_vendor, solve_by_vendor


class HostRoad:
    """`solve_ex` of NumPy arrays by the code for a device."""

    def __init__(self):
        self.ops = HostVendorOps()

    def solve_ex(self, a, b, lower=False, *, check_finite=True, assume_a=None, estimate=True):
        structure, options = check_options(assume_a, "auto", "auto"), {"check_finite": check_finite}

        def alone(a, b):
            return tcsolve.solve_ex(a, b, assume_a="general", **options)

        how = {"shape": check_shapes(a, b)[0], "dtype": result_dtype(a, b), "estimate": estimate}
        args, solution = (self.ops, a, b, structure, lower, alone), None
        if goes_to_vendor(self.ops, a, b, structure, "auto"):
            solution = solve_by_vendor(*args, **how, **options)
        return alone(as_read(a, assume_a, lower), b) if solution is None else solution

    def solve(self, a, b, **options):
        solution = self.solve_ex(a, b, estimate=False, **options)
        raise_or_warn(solution)
        return solution.x

    def array(self, x):
        return x


class DeviceRoad:
    """`tcsolve.solve_ex` of CuPy arrays; x is copied to the host."""

    def __init__(self, cupy):
        self.array = cupy.asarray

    def solve_ex(self, a, b, lower=False, **options):
        solution = tcsolve.solve_ex(self.array(a), self.array(b), lower, **options)
        assert solution.device == "cuda"
        return replace(solution, x=host(solution.x))

    def solve(self, a, b, **options):
        return host(tcsolve.solve(self.array(a), self.array(b), **options))


@pytest.fixture(params=["host", pytest.param("cupy", marks=pytest.mark.gpu)])
def road(request):
    return HostRoad() if request.param == "host" else DeviceRoad(request.getfixturevalue("cupy"))


# ---- every kind --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 3, 16, 33])
def test_stacks_of_every_kind_are_solved_to_the_bound(road, kind, n, dtype):
    a, b = matrices(kind, dtype, 5, n), right_hand_sides(dtype, 5, n, 2)

    solution = road.solve_ex(a, b, assume_a=kind)

    assert solution.status is Status.CONVERGED and (solution.statuses == Status.CONVERGED).all()
    assert solution.x.dtype == dtype and solution.x.shape == b.shape
    assert solution.backward_error.shape == solution.iterations.shape == (5, 2)
    assert (solution.backward_error <= solution.bound).all()
    full = as_read(a, kind)
    # The bound takes n as at least 4, or 8 for complex matrices.
    least = max(1, (8 if a.dtype.kind == "c" else 4) / n) ** 0.5
    assert worst_ratio(full, solution.x, b) <= MET * least
    true = [1 / (np.linalg.cond(one.astype(np.complex128), 1)) for one in full]
    assert (solution.rconds <= 3.003 * np.array(true)).all()
    assert (solution.rconds >= 0.99 * np.array(true)).all()


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lower", [False, True])
def test_one_system_of_every_kind_is_solved_to_the_bound(road, kind, lower, dtype):
    a, b = matrices(kind, dtype, 40), right_hand_sides(dtype, 40)

    solution = road.solve_ex(a, b, lower, assume_a=kind)

    assert solution.status is Status.CONVERGED and solution.statuses.shape == ()
    assert solution.precision == "fp64" and solution.rungs == ("fp64",)
    assert solution.x.dtype == dtype and solution.x.shape == (40,)
    assert solution.backward_error.shape == (1,) and solution.bytes_planned >= a.nbytes
    assert solution.seconds["total"] > 0 and solution.rcond == solution.rconds
    assert ratio(as_read(a, kind, lower), solution.x, b) <= MET


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (7,)])
@pytest.mark.parametrize("n", [2, 33, 100])
def test_solve_gives_the_bits_of_its_report(road, kind, n, batch, dtype):
    m = len(batch) * 7
    a, b = matrices(kind, dtype, m or 1, n), right_hand_sides(dtype, m or 1, n, 1)
    a, b = (a, b) if m else (a[0], b[0])
    x = road.solve(a, b, assume_a=kind)
    assert x.tobytes() == road.solve_ex(a, b, assume_a=kind).x.tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["upper triangular", "lower triangular", "diagonal"])
@pytest.mark.parametrize(
    "n, dtype", [(150, "f"), (150, "D"), (400, "d"), (700, "F"), (1000, "d"), (2000, "d")]
)
def test_solve_of_larger_triangles_tells_what_its_report_tells(cupy, kind, n, dtype):
    road = DeviceRoad(cupy)
    a, b = matrices(kind, dtype, 1, n)[0], right_hand_sides(dtype, 1, n, 3)[0]
    for columns in (b, b[:, 0]):
        x = road.solve(a, columns, assume_a=kind)
        assert x.tobytes() == road.solve_ex(a, columns, assume_a=kind).x.tobytes()
    singular, ill, spoilt, other = a.copy(), a.copy(), a.copy(), a.copy()
    singular[n // 2, n // 2], ill[n // 2, n // 2] = 0, 1e-25
    spoilt[n - 1, 0], other[0, n - 1], other[n - 1, 0] = np.nan, 1, 1
    with pytest.raises(tcsolve.SingularError):
        road.solve(singular, b, assume_a=kind)
    with pytest.warns(tcsolve.LinAlgWarning):
        road.solve(ill, b, assume_a=kind)
    with pytest.raises(tcsolve.InputError):
        road.solve(spoilt, b, assume_a=kind)
    with pytest.warns(tcsolve.AccuracyWarning):
        road.solve(other, b, assume_a=kind)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "n, columns, dtype",
    [(250, 1, "D"), (300, 9, "d"), (410, 1, "d"), (430, 1, "d"), (512, 1, "f"), (700, 3, "d")]
    + [(200, 2, "F"), (1000, 5, "F")],
)
def test_solve_of_one_general_system_tells_what_its_report_tells(cupy, n, columns, dtype):
    road = DeviceRoad(cupy)
    a, b = matrices(None, dtype, 1, n)[0], right_hand_sides(dtype, 1, n, columns)[0]
    x = road.solve(a, b)
    assert x.tobytes() == road.solve_ex(a, b).x.tobytes() and ratio(a, x, b) <= MET
    if columns == 1:
        assert road.solve(a, b[:, 0]).tobytes() == x.tobytes()
    small = np.finfo(np.dtype(dtype)).tiny * 2.0**20
    x = road.solve(a * small, b * small)  # too small for products in this range
    assert ratio(a, x, b) <= 2 * MET
    singular, ill, spoilt = a.copy(), a.copy(), a.copy()
    singular[n // 2], spoilt[0, n // 2] = 0, np.nan
    ill[1] = ill[0]
    ill[1, 0] *= 1 + 4 * np.finfo(np.dtype(dtype)).eps
    with pytest.raises(tcsolve.SingularError):
        road.solve(singular, b)
    with pytest.warns(tcsolve.LinAlgWarning):
        road.solve(ill, ill @ np.ones((n, columns), dtype))
    with pytest.raises(tcsolve.InputError):
        road.solve(spoilt, b)


def test_layouts_do_not_change_the_answer(road):
    a, b = matrices(None, "d", 6, 20), right_hand_sides("d", 6, 20, 3)
    wanted = road.solve_ex(a, b).x
    wide, turned = np.zeros((12, 20, 40)), np.ascontiguousarray(np.swapaxes(a, 1, 2))
    wide[::2, :, ::2] = a

    for same in (wide[::2, :, ::2], np.swapaxes(turned, 1, 2), a[:, ::-1][:, ::-1]):
        assert np.array_equal(road.solve_ex(same, b).x, wanted)
    back = np.ascontiguousarray(b[::-1, ::-1])
    assert np.array_equal(road.solve_ex(a, back[::-1, ::-1]).x, wanted)


@pytest.mark.parametrize(
    "of_a, of_b, of_x",
    [
        ((4,), (20,), (4, 20)),
        ((2, 3), (20,), (2, 3, 20)),
        ((4,), (20, 2), (4, 20, 2)),
        ((4,), (4, 20, 1), (4, 20, 1)),
        ((3, 1), (2, 20, 2), (3, 2, 20, 2)),
        ((), (5, 20, 2), (5, 20, 2)),
        ((1,), (1, 20, 1), (1, 20, 1)),
    ],
)
def test_shapes_are_broadcast_as_in_scipy(road, of_a, of_b, of_x):
    a, b = matrices(None, "d", *of_a, 20), right_hand_sides("d", *of_b)

    solution = road.solve_ex(a, b)

    assert solution.x.shape == of_x
    batch, k = (of_x[:-1], 1) if len(of_b) == 1 else (of_x[:-2], of_x[-1])
    assert solution.backward_error.shape == (*batch, k)
    assert solution.statuses.shape == solution.rconds.shape == batch
    columns = b[:, None] if len(of_b) == 1 else b
    x = solution.x[..., None] if len(of_b) == 1 else solution.x
    full = np.broadcast_to(a, (*batch, 20, 20)).reshape(-1, 20, 20)
    columns = np.broadcast_to(columns, (*batch, 20, k)).reshape(-1, 20, k)
    assert worst_ratio(full, x.reshape(-1, 20, k), columns) <= MET


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtypes", ["dD", "fF", "fD"])
@pytest.mark.parametrize("batch, columns", [((3,), (2,)), ((3,), ()), ((), (2,)), ((), ())])
def test_a_real_matrix_and_complex_right_hand_sides(road, kind, dtypes, batch, columns):
    a, b = matrices(kind, dtypes[0], *batch, 12), right_hand_sides(dtypes[1], 12, *columns)
    solution = road.solve_ex(
        a, np.broadcast_to(b, (*batch, *b.shape)) if columns else b, assume_a=kind
    )
    dtype = np.result_type(*dtypes)
    assert solution.status is Status.CONVERGED and solution.x.dtype == dtype
    assert solution.x.shape == (*batch, 12, *columns)
    k = 2 if columns else 1
    assert solution.backward_error.shape == solution.iterations.shape == (*batch, k)
    assert (solution.backward_error <= solution.bound).all()
    full, x = np.broadcast_to(as_read(a, kind), (*batch, 12, 12)), solution.x.reshape(-1, 12, k)
    assert worst_ratio(full.reshape(-1, 12, 12), x, np.stack([b.reshape(12, k)] * len(x))) <= MET


@pytest.mark.parametrize("solves, factors", [("solve", False), ("solve_ex", True)])
def test_the_backend_says_how_many_systems_are_solved_together(monkeypatch, solves, factors):
    """Only `solve_ex` needs factors, because it estimates rcond."""
    road, asked, n = HostRoad(), [], 150

    def plan(shape, dtype, kind, band, probes, **how):
        asked.append((shape, probes, how))
        return StackPlan(None, 3, 0)

    monkeypatch.setattr(road.ops.vendor, "plan", plan)
    a, b = matrices(None, "d", 7, n), right_hand_sides("d", 7, n, 2)
    getattr(road, solves)(a, b)
    assert asked[-1][1:] == (2, {"alone": False, "factors": factors})
    assert all(shape[1:] == (n, 2) for shape, _, _ in asked)
    assert [m for m, _ in road.ops.vendor.factored] == [3, 3, 1]


def test_a_real_stack_is_not_made_complex_for_complex_right_hand_sides():
    road = HostRoad()
    road.solve_ex(matrices(None, "d", 3, 12), right_hand_sides("D", 3, 12, 2))
    assert road.ops.vendor.dtypes == {np.dtype("d")}


# ---- what is not read --------------------------------------------------------------------------

READ_IN_PART = KINDS[2:]


@pytest.mark.parametrize("kind", READ_IN_PART)
@pytest.mark.parametrize(
    "m, n, dtype",
    [
        *(
            (m, n, char)
            for m, n in ((0, 10), (4, 10), (4, 40), (0, 100), (4, 100))
            for char in "fdFD"
        ),
        *((4100, 3, char) for char in "fD"),
    ],
)
def test_entries_that_contradict_the_structure_are_told_of(road, kind, m, n, dtype):
    a, b = matrices(kind, dtype, m or 1, n), right_hand_sides(dtype, m or 1, n, 1)
    a[(-1, 0, -1) if kind == "lower triangular" else (-1, -1, 0)] += 1  # not read
    if not m:
        a, b = a[0], b[0]
    solution = road.solve_ex(a, b, assume_a=kind)
    statuses = solution.statuses.reshape(-1)
    assert statuses[-1] is Status.NOT_AS_ASSERTED is solution.status
    assert (statuses[:-1] == Status.CONVERGED).all()
    last = [v.reshape(-1, n, v.shape[-1])[-9:] for v in (as_read(a, kind), solution.x, b)]
    assert worst_ratio(*last) <= MET * max(1, (8 / n) ** 0.5)
    place = "slice " + str(m - 1) if m else "contradict"
    with pytest.warns(tcsolve.AccuracyWarning, match=place):
        road.solve(a, b, assume_a=kind)


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("kind", READ_IN_PART)
@pytest.mark.parametrize("m", [0, 4])
def test_a_zero_triangle_and_rounding_and_nan_contradict_nothing(road, kind, dtype, m):
    n = 10
    a, b = matrices(kind, dtype, m or 1, n), right_hand_sides(dtype, m or 1, n, 1)
    clear = np.triu(a)
    if kind in ("symmetric", "hermitian", "positive definite"):
        a[:, 7, 2] += 2 * np.finfo(dtype).eps * np.abs(a[:, 2, 2])
    spoilt = a.copy()
    spoilt[:, -1, 0] = np.nan
    for given in (a, clear, spoilt):
        if kind in ("lower triangular", "tridiagonal") and given is clear:
            continue
        one = (given, b) if m else (given[0], b[0])
        solution = road.solve_ex(*one, assume_a=kind, check_finite=False)
        wanted = Status.NONFINITE_INPUT if kind == "lower triangular" and given is spoilt else None
        assert solution.status is (wanted or Status.CONVERGED)


@pytest.mark.parametrize("kind", ["hermitian", "positive definite"])
@pytest.mark.parametrize("m", [0, 4])
def test_an_imaginary_diagonal_contradicts(road, kind, m):
    a, b = matrices(kind, "D", m or 1, 10), right_hand_sides("D", m or 1, 10, 1)
    for given in (a.copy(), np.triu(a)):
        given[-1, 3, 3] += 1j
        one = (given, b) if m else (given[0], b[0])
        assert road.solve_ex(*one, assume_a=kind).status is Status.NOT_AS_ASSERTED


@pytest.mark.parametrize("kind", ["hermitian", "positive definite"])
@pytest.mark.parametrize("n", [10, 300])
def test_a_rounded_diagonal_does_not_contradict_beside_a_triangle_of_zeros(road, kind, n):
    a, b = matrices(kind, "D", 1, n), right_hand_sides("D", 1, n, 1)
    for given in (a.copy(), np.triu(a)):
        given[0, 3, 3] *= 1 + 2.0**-50 * 1j
        assert road.solve_ex(given[0], b[0], assume_a=kind).status is Status.CONVERGED


@pytest.mark.parametrize("kind", ["symmetric", "upper triangular"])
def test_one_contradicting_matrix_for_a_stack_of_right_hand_sides(road, kind):
    a, b = matrices(kind, "d", 10), right_hand_sides("d", 3, 10, 1)
    a[9, 0] += 1
    solution = road.solve_ex(a, b, assume_a=kind)
    assert (solution.statuses == Status.NOT_AS_ASSERTED).all()
    b[1, 4] = np.nan
    solution = road.solve_ex(a, b, assume_a=kind, check_finite=False)
    names = [status.name for status in solution.statuses]
    assert names == ["NOT_AS_ASSERTED", "NONFINITE_INPUT", "NOT_AS_ASSERTED"]


def test_one_matrix_for_a_stack_of_right_hand_sides_is_factored_once():
    road = HostRoad()
    solution = road.solve_ex(matrices(None, "d", 30), right_hand_sides("d", 50, 30, 2))
    assert solution.status is Status.CONVERGED and road.ops.vendor.factored == [(1, 30)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1.0, 1e290])
def test_one_matrix_of_every_kind_for_a_stack_of_right_hand_sides(road, kind, scale):
    a, b = matrices(kind, "d", 20) * scale, right_hand_sides("d", 4, 20, 2)
    solution = road.solve_ex(a, b, assume_a=kind)
    assert solution.status is Status.CONVERGED and solution.x.shape == b.shape
    full = np.broadcast_to(as_read(a, kind), (4, 20, 20))
    assert worst_ratio(full, solution.x, b) <= MET
    a[15, 2] = np.nan
    with pytest.raises(tcsolve.InputError, match="a does"):
        road.solve_ex(a, b, assume_a=kind)


def test_a_column_that_is_not_finite_spoils_its_slice_alone_where_one_matrix_serves_all(road):
    a, b = matrices(None, "d", 20), right_hand_sides("d", 4, 20, 2)
    b[2, 5, 1] = np.nan
    solution = road.solve_ex(a, b, check_finite=False)
    names = [status.name for status in solution.statuses]
    assert names == ["CONVERGED", "CONVERGED", "NONFINITE_INPUT", "CONVERGED"]
    assert np.isnan(solution.x[2, :, 1]).all() and np.isfinite(solution.x[[0, 1, 3]]).all()


# ---- stacks with good and bad slices -----------------------------------------------------------

BAD = {
    1: ("SINGULAR", lambda a, b: a.__setitem__((slice(None), 3), 0)),
    2: ("NONFINITE_INPUT", lambda a, b: a.__setitem__((4, 2), np.nan)),
    4: ("NONFINITE_INPUT", lambda a, b: b.__setitem__((1, 0), np.inf)),
    5: ("CONVERGED", lambda a, b: a.__imul__(1e300)),
    6: ("CONVERGED", lambda a, b: a.__imul__(1e-290)),
    7: ("ILL_CONDITIONED", lambda a, b: a.__setitem__(3, a[2] + 1e-17 * a[3])),
    8: ("CONVERGED", lambda a, b: b.__imul__(1e-300)),
    10: ("ILL_CONDITIONED", lambda a, b: a.__setitem__(3, a[3] * 1e250)),
    11: ("CONVERGED", lambda a, b: b.__imul__(0)),
}


@pytest.mark.parametrize("n, k", [(8, 1), (8, 3), (40, 2)])
def test_bad_slices_leave_the_good_ones_alone(road, n, k):
    a, b = matrices(None, "d", 12, n), right_hand_sides("d", 12, n, k)
    wanted = road.solve_ex(a, b)
    for number, (_, spoil) in BAD.items():
        spoil(a[number], b[number])
    before = a.copy(), b.copy()

    solution = road.solve_ex(a, b, check_finite=False)

    assert np.array_equal(a, before[0], equal_nan=True)
    assert np.array_equal(b, before[1], equal_nan=True)
    for number, (name, _) in BAD.items():
        # 1e-17 times a row may vanish: then the slice is singular.
        assert solution.statuses[number].name in (name, "SINGULAR")[: 1 + (number == 7)], number
        if name not in ("SINGULAR", "NONFINITE_INPUT") and solution.statuses[number].ok:
            assert (solution.backward_error[number] <= solution.bound).all()
            # `ratio` computes in long double, which has a larger range than FP64.
            assert ratio(a[number], solution.x[number], b[number]) <= MET
    good = [0, 3, 9]
    assert (solution.statuses[good] == Status.CONVERGED).all()
    assert np.array_equal(solution.x[good], wanted.x[good])
    assert np.array_equal(solution.rconds[good], wanted.rconds[good])
    assert np.isnan(solution.x[[1, 2]]).all() and solution.rconds[1] == 0
    assert np.isnan(solution.x[4, :, 0]).all() and np.isfinite(solution.x[4, :, 1:]).all()
    assert not solution.x[11].any() and solution.status is Status.SINGULAR


def test_the_error_of_solve_names_the_first_bad_slice(road):
    a, b = matrices(None, "d", 2, 3, 8), right_hand_sides("d", 8)
    a[1, 1, :, 2] = 0
    with pytest.raises(tcsolve.SingularError, match=r"slice \(1, 1\) of the stack"):
        road.solve(a, b)
    a[1, 1] = 1.0
    a[1, 1] += np.diag(1e-17 + np.zeros(8))  # all ones but for rounding
    with pytest.raises(tcsolve.SingularError, match=r"slice \(1, 1\)"):
        road.solve(a, b)


def test_a_singular_triangle_for_a_stack_of_right_hand_sides_with_nan(road):
    a, b = np.triu(np.random.default_rng(1).standard_normal((20, 20))), np.ones((3, 20, 1))
    a[10, 10], b[1, 0] = 0, np.nan
    solution = road.solve_ex(road.array(a), road.array(b), check_finite=False)
    names = [status.name for status in solution.statuses]
    assert names == ["SINGULAR", "NONFINITE_INPUT", "SINGULAR"]


@pytest.mark.parametrize("kind", ["symmetric", "hermitian"])
@pytest.mark.parametrize("m, n", [(None, 4), (1, 4), (3, 4), (5000, 4), (None, 40), (3, 40)])
def test_a_stored_triangle_with_zeros_on_its_diagonal_is_no_singular_triangle(road, kind, m, n):
    """The upper triangle of a matrix with entries on its antidiagonal; it is regular, and ill-conditioned."""
    a = np.zeros((n, n))
    a[np.arange(n // 2), n - 1 - np.arange(n // 2)] = [1e-20, *[1] * (n // 2 - 1)]
    if m:
        a = np.stack([a] * m)
    solution = road.solve_ex(road.array(a), road.array(np.ones((*a.shape[:-1], 1))), assume_a=kind)
    assert (solution.statuses == Status.ILL_CONDITIONED).all()


@pytest.mark.parametrize(
    "dtype, of_a, of_b", [("d", 1, 1), ("f", 1, 1e30), ("d", 1e-200, 1e200), ("d", 1e200, 1e-200)]
)
@pytest.mark.parametrize("m", [None, 2])
def test_a_triangle_with_a_zero_on_its_diagonal_is_singular_at_any_scale(
    road, m, dtype, of_a, of_b
):
    a = np.triu(np.random.default_rng(0).standard_normal((20, 20)))
    a[10, 10] = 0
    for t in (a, a.T):
        t = (np.stack([t] * m) if m else t) * of_a
        b = np.full((*t.shape[:-1], 1), of_b)
        solution = road.solve_ex(road.array(t.astype(dtype)), road.array(b.astype(dtype)))
        assert (solution.statuses == Status.SINGULAR).all()
        assert np.isnan(host(solution.x)).all() and (solution.rconds == 0).all()


@pytest.mark.parametrize("n", [8, 33, 60])
@pytest.mark.parametrize("dtype", "fdFD")
def test_matrices_that_are_not_positive_definite_are_named(road, n, dtype):
    kind = "positive definite"
    a, b = matrices(kind, dtype, 5, n), right_hand_sides(dtype, 5, n, 1)
    a[3, n // 2, n // 2] = -1
    solution = road.solve_ex(a, b, assume_a=kind)
    names = [status.name for status in solution.statuses]
    assert names == ["CONVERGED"] * 3 + ["NOT_POSITIVE_DEFINITE", "CONVERGED"]
    assert np.isnan(solution.x[3]).all() and np.isfinite(solution.x[[0, 1, 2, 4]]).all()
    with pytest.raises(tcsolve.NotPositiveDefiniteError, match="slice 3 of the stack"):
        road.solve(a, b, assume_a=kind)
    one = road.solve_ex(a[3], b[3], assume_a=kind)
    assert one.status is Status.NOT_POSITIVE_DEFINITE and np.isnan(one.x).all()


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("scale", [1e285, 1e-285])
def test_an_extreme_matrix_that_is_not_positive_definite_is_named(road, scale, batch):
    """Its LU without pivoting exists, and the answer of that LU meets the bound."""
    a = np.zeros((*batch, 8, 8)) + scale * np.diag([3.0, -2, 4, 5, 6, 7, 8, 9])
    solution = road.solve_ex(a, np.ones((*batch, 8, 1)), assume_a="positive definite")
    assert solution.status is Status.NOT_POSITIVE_DEFINITE
    assert np.isnan(solution.x).all()


@pytest.mark.parametrize("kind", ["positive definite", None, "upper triangular"])
@pytest.mark.parametrize("m", [1, 3])
def test_a_spoilt_right_hand_side_is_named_although_the_matrix_has_no_factors(road, kind, m):
    a, b = np.zeros((m, 5, 5)) + np.diag([1.0, 2, 0, -4, 5]), np.ones((m, 5, 1))
    b[0, 2] = np.inf
    solution = road.solve_ex(a, b, assume_a=kind, check_finite=False)
    assert solution.statuses[0] is Status.NONFINITE_INPUT
    assert {status.name for status in solution.statuses[1:]} <= {
        "SINGULAR",
        "NOT_POSITIVE_DEFINITE",
    }
    if m == 1:
        one = road.solve_ex(a[0], b[0], assume_a=kind, check_finite=False)
        assert one.status is Status.NONFINITE_INPUT


@pytest.mark.parametrize("n", [5, 700])
@pytest.mark.parametrize("kind", ["positive definite", None, "upper triangular"])
def test_one_matrix_without_factors_names_each_right_hand_side_that_is_spoilt(road, kind, n):
    d, b = np.ones(n), np.ones((3, n, 2))
    d[2:4], b[1, 2, 0] = (0, -4), np.inf
    solution = road.solve_ex(np.diag(d), b, assume_a=kind, check_finite=False)
    broken = "NOT_POSITIVE_DEFINITE" if kind == "positive definite" else "SINGULAR"
    assert [status.name for status in solution.statuses] == [broken, "NONFINITE_INPUT", broken]
    assert np.isnan(solution.x).all()
    spoilt = np.where(d == 0, np.nan, d) * np.eye(n)
    solution = road.solve_ex(spoilt, b, assume_a=kind, check_finite=False)
    assert {status.name for status in solution.statuses} == {"NONFINITE_INPUT"}


def test_solve_and_its_report_agree_on_a_negative_element_in_a_stack(road):
    a, b = np.ones((6, 1, 1)), np.ones((6, 1, 1))
    a[2] = -1
    solution = road.solve_ex(a, b, assume_a="positive definite")
    assert solution.statuses[2] is Status.NOT_POSITIVE_DEFINITE
    with pytest.raises(tcsolve.NotPositiveDefiniteError, match="slice 2 of the stack"):
        road.solve(a, b, assume_a="positive definite")


@pytest.mark.parametrize("scale", [1e-280, 1e280])
def test_a_positive_definite_matrix_of_extreme_entries(road, scale):
    a, b = matrices("positive definite", "d", 30), right_hand_sides("d", 30)
    d = np.geomspace(scale, 1, 30) ** 0.5
    a = a * d * d[:, None]
    solution = road.solve_ex(a, b, assume_a="positive definite")
    assert solution.status in (Status.CONVERGED, Status.ILL_CONDITIONED)
    assert (solution.backward_error <= solution.bound).all() and np.isfinite(solution.x).all()


def test_a_triangle_with_a_zero_on_its_diagonal_is_singular(road):
    a, b = matrices(None, "d", 3, 10), right_hand_sides("d", 3, 10, 1)
    a[1, 4, 4] = 0
    for kind in ("upper triangular", "lower triangular", "diagonal"):
        read = as_read(a, kind)
        solution = road.solve_ex(read, b, assume_a=kind)
        names = [status.name for status in solution.statuses]
        assert names == ["CONVERGED", "SINGULAR", "CONVERGED"]
        with pytest.raises(tcsolve.SingularError):
            road.solve(read[1], b[1], assume_a=kind)


def test_what_is_not_read_may_hold_nan_unless_that_is_looked_for(road):
    b = right_hand_sides("d", 3, 10, 1)
    for kind in ("upper triangular", "positive definite", "symmetric", "diagonal"):
        a = matrices(kind, "d", 3, 10)
        a[:, 7, 2] = np.nan
        assert road.solve_ex(a, b, assume_a=kind, check_finite=False).status is Status.CONVERGED
        with pytest.raises(tcsolve.InputError, match="a does"):
            road.solve_ex(a, b, assume_a=kind)
        with pytest.raises(tcsolve.InputError, match="a does"):
            road.solve_ex(a[0], b[0], assume_a=kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_nan_and_inf_are_refused(road, kind, batch):
    for bad in (np.nan, np.inf):
        a, b = matrices(kind, "d", *batch, 10), right_hand_sides("d", *batch, 10, 1)
        a[..., 0, 0] = bad
        with pytest.raises(tcsolve.InputError, match="a does"):
            road.solve_ex(a, b, assume_a=kind)
        solution = road.solve_ex(a, b, assume_a=kind, check_finite=False)
        assert solution.status is Status.NONFINITE_INPUT and np.isnan(solution.x).all()
        a, b = matrices(kind, "d", *batch, 10), right_hand_sides("d", *batch, 10, 1)
        b[..., 0, 0] = bad
        with pytest.raises(tcsolve.InputError, match="b does"):
            road.solve_ex(a, b, assume_a=kind)


def test_answers_beyond_the_range_of_fp32(road):
    a, b = matrices(None, "f", 4, 6), right_hand_sides("f", 4, 6, 1)
    a[1] *= np.float32(1e-30)
    b[1] *= np.float32(1e30)
    a[2] *= np.float32(1e30)
    b[2] *= np.float32(1e-30)
    a[3] *= np.float32(1e-42)  # subnormal numbers
    b[3] *= np.float32(1e-40)
    solution = road.solve_ex(a, b)
    names = [status.name for status in solution.statuses[:3]]
    assert names == ["CONVERGED", "OVERFLOW", "UNDERFLOW"]
    assert solution.statuses[3].ok and ratio(a[3], solution.x[3], b[3]) <= 2 * MET


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("number", [(9911, 6628), (9931, 4501)])
def test_an_answer_in_range_is_found_where_scaled_factors_overflow(road, number, batch):
    a, b, options, _ = drawn_system(rng_of(kind_named("systems"), *number))
    solution = road.solve_ex(np.stack([a] * batch), np.stack([b] * batch), **options)
    assert np.isfinite(solution.x).all() and (solution.backward_error <= solution.bound).all()


# ---- the condition -----------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (6,)])
@pytest.mark.parametrize("kind", [None, "upper triangular"])
@pytest.mark.parametrize("cond, name", [(1e12, "CONVERGED"), (1e18, "ILL_CONDITIONED")])
def test_solve_warns_where_rcond_is_below_epsilon(road, batch, kind, cond, name):
    n, rng = 24, np.random.default_rng(3)
    q = np.linalg.qr(rng.standard_normal((2, n, n)))[0]
    a = (q[0] * np.geomspace(1, 1 / cond, n)) @ q[1]
    if kind:
        a = np.linalg.qr(a)[1]
    a = np.broadcast_to(a, (*batch, n, n)).copy()
    b = a @ np.ones((n, 1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        road.solve(a, b, assume_a=kind)
    assert bool(caught) == (name == "ILL_CONDITIONED")
    assert all(w.category is tcsolve.LinAlgWarning for w in caught)
    solution = road.solve_ex(a, b, assume_a=kind)
    assert solution.status.name == name
    true = 1 / np.linalg.cond(a.reshape(-1, n, n)[0], 1)
    if name == "CONVERGED":
        assert np.all(solution.rconds <= 3.01 * true) and np.all(solution.rconds >= 0.9 * true)


@pytest.mark.parametrize("kind", [None, "symmetric", "upper triangular"])
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("n, estimate", [(20, True), (20, False), (100, False)])
def test_rcond_does_not_depend_on_the_scale_of_a_matrix(kind, m, n, estimate):
    a, b = matrices(kind, "d", m, n), right_hand_sides("d", m, n, 1)
    a, b = (a[0], b[0]) if m == 1 else (a, b)

    small, plain, large = (
        HostRoad().solve_ex(scale * a, b, assume_a=kind, estimate=estimate)
        for scale in (2.0**-40, 1.0, 2.0**40)
    )

    assert 0 < plain.rcond < 1
    assert small.rcond == pytest.approx(plain.rcond) == large.rcond


@pytest.mark.parametrize("kind", [None, "diagonal", "positive definite"])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_rcond_is_at_most_one(road, kind, n):
    values = np.random.default_rng(0).uniform(0.5, 2, 300)
    a, b = values[:, None, None] * np.eye(n), np.ones((300, n, 1))
    found = road.solve_ex(a, b, assume_a=kind)
    assert (found.rconds <= 1).all() and (found.rconds > 0.999).all()


def test_of_singular_and_spoilt_matrices_with_a_spoilt_right_hand_side_the_input_is_named(road):
    a, b = matrices(None, "d", 4, 8), right_hand_sides("d", 4, 8, 1)
    a[2, :, 3] = 0
    b[2, 5] = np.nan
    with pytest.raises(tcsolve.InputError, match="b does"):
        road.solve_ex(a, b)


# ---- sizes -------------------------------------------------------------------------------------


def test_large_matrices_of_a_stack_are_as_accurate_as_single_ones(road):
    a, b = matrices(None, "d", 3, 700), right_hand_sides("d", 3, 700, 2)
    a[1, 5] = a[1, 6]
    solution = road.solve_ex(a, b)
    names = [status.name for status in solution.statuses]
    assert names[::2] == ["CONVERGED"] * 2 and names[1] in ("SINGULAR", "ILL_CONDITIONED")
    assert solution.rungs[-1] == solution.precision and solution.backward_error.shape == (3, 2)
    for i in (0, 2):
        assert ratio(a[i], solution.x[i], b[i]) <= MET
        single = road.solve_ex(a[i], b[i], assume_a="general")
        assert np.abs(single.x - solution.x[i]).max() <= 1e-9 * np.abs(single.x).max()


# ---- long stacks -------------------------------------------------------------------------------


# A launch returns the norms and residuals of up to TOLD doubtful systems.  If more than a quarter of a stack
# are doubtful, the general code solves all of it.
@pytest.mark.parametrize("n, count", [(3, 1), (3, TOLD), (3, TOLD + 1), (3, 1500), (20, TOLD + 1)])
def test_ill_conditioned_systems_of_a_long_stack_have_their_status(road, n, count):
    m, rng = 4100, np.random.default_rng(n)
    bad = np.sort(rng.choice(m, count, replace=False))
    a, b = matrices(None, "d", m, n), right_hand_sides("d", m, n, 1)
    a[bad] = np.diag([*(n - 1) * [1.0], 1e-20])

    found = road.solve_ex(a, b)
    with pytest.warns(tcsolve.LinAlgWarning, match=f"in slice {bad[0]} of the stack"):
        x = road.solve(a, b)

    is_bad = np.isin(np.arange(m), bad)
    assert (found.statuses[is_bad] == Status.ILL_CONDITIONED).all()
    assert (found.statuses[~is_bad] == Status.CONVERGED).all()
    for answers in (x, found.x):
        expected = b[bad] / np.diagonal(a[bad], axis1=1, axis2=2)[:, :, None]
        np.testing.assert_allclose(answers[bad], expected, rtol=1e-14)
        assert worst_ratio(a[~is_bad][:50], answers[~is_bad][:50], b[~is_bad][:50]) <= MET


@pytest.mark.parametrize("count, n", [(4097, 3), (10001, 3), (4097, 16)])
@pytest.mark.parametrize("estimate", [False, True])
def test_long_stacks_come_back_in_order(road, count, n, estimate):
    a, b = matrices(None, "d", count, n), right_hand_sides("d", count, n, 1)
    a[4000] = 0
    solution = road.solve_ex(a, b)
    assert (solution.statuses != Status.CONVERGED).sum() == 1
    assert solution.statuses[4000] is Status.SINGULAR
    a[4000] = np.eye(n)
    x = road.solve_ex(a, b).x if estimate else road.solve(a, b)
    residual = np.abs(b - a @ x).max(axis=(1, 2))
    size = np.abs(a).sum(axis=2).max(axis=1) * np.abs(x).max(axis=(1, 2))
    assert (residual <= 4 * 2.0**-53 * n**0.5 * size).all()


def test_the_same_bits_twice(road):
    for kind in KINDS:
        for shape in ((7, 20), (50,)):
            a, b = matrices(kind, "d", *shape), right_hand_sides("d", *shape, 2)
            first, second = (road.solve_ex(a, b, assume_a=kind) for _ in range(2))
            assert np.array_equal(first.x, second.x)
            assert np.array_equal(first.backward_error, second.backward_error)
            assert np.array_equal(first.rconds, second.rconds)


class RoughVendor(HostVendor):
    """Its solutions have errors of 1e-11, as those of a library that loses some digits."""

    def factor(self, a, kind, columns, careful=False):
        factors, noise = super().factor(a, kind, columns, careful), np.random.default_rng(1)
        solve = factors.solve

        def roughly(rhs, adjoint=False):
            y = solve(rhs, adjoint)
            y *= 1 + 1e-11 * noise.standard_normal(y.shape)
            return y

        factors.solve = roughly
        return factors


@pytest.mark.parametrize("n", [40, 300])
@pytest.mark.parametrize("kind", ["general", "positive definite", "lower triangular"])
@pytest.mark.parametrize("dtype", "dD")
@pytest.mark.parametrize("estimate", [False, True])
def test_an_answer_that_misses_the_bound_is_corrected_with_the_same_factors(
    dtype, kind, n, estimate
):
    road = HostRoad()
    road.ops.vendor = RoughVendor()
    a, b = matrices(kind, dtype, n), right_hand_sides(dtype, n, 2)

    found = road.solve_ex(a, b, assume_a=kind, estimate=estimate)

    assert found.status is Status.CONVERGED and (found.iterations == 1).all()
    assert len(road.ops.vendor.factored) == 1
    assert ratio(a, found.x, b) <= MET


class InexactVendor(HostVendor):
    """The relative errors of its solutions are 2e-15, the same in each call."""

    largest_at_once = 0

    def factor(self, a, kind, columns, careful=False):
        factors = super().factor(a, kind, columns, careful)
        solve = factors.solve

        def inexactly(rhs, adjoint=False):
            y = solve(rhs, adjoint)
            y *= 1 + 2e-15 * np.sin(1.7 * np.arange(y.shape[-1]))
            return y

        factors.solve = inexactly
        return factors


@pytest.mark.parametrize("kind", ["general", "positive definite"])
@pytest.mark.parametrize(
    "shift", [0, 240]
)  # of a dominant matrix, the diagonal alone gives a correction
def test_a_corrected_answer_has_the_same_bits_with_and_without_a_report(kind, shift):
    road = HostRoad()
    road.ops.vendor = InexactVendor()
    a, b = matrices(kind, "d", 3, 60), right_hand_sides("d", 3, 60, 1)
    a += shift * np.eye(60)

    one, told = (road.solve_ex(a[0], b[0], assume_a=kind, estimate=e) for e in (False, True))
    stack, alone = (road.solve_ex(a[:m], b[:m], assume_a=kind, estimate=False) for m in (3, 1))

    assert (told.iterations == 1).all() or not shift
    assert np.array_equal(one.x, told.x) and np.array_equal(one.iterations, told.iterations)
    assert np.array_equal(stack.x[0], alone.x[0])


class SpoiltVendor(HostVendor):
    """Its first solutions have errors of 1e-11, and each correction is multiplied by `factor_of_second`."""

    def __init__(self, factor_of_second):
        super().__init__()
        self.factor_of_second = factor_of_second

    def factor(self, a, kind, columns, careful=False):
        factors, calls = super().factor(a, kind, columns, careful), []
        solve = factors.solve

        def spoilt(rhs, adjoint=False):
            calls.append(rhs.shape)
            y = solve(rhs, adjoint)
            y *= self.factor_of_second if len(calls) > 1 else 1 + 1e-11
            return y

        factors.solve = spoilt
        return factors


@pytest.mark.parametrize("second", [np.nan, np.inf, 1e6, 0.0])
@pytest.mark.parametrize("kind", ["general", "symmetric"])
@pytest.mark.parametrize("dtype", "dD")
def test_after_a_correction_that_does_not_help_the_answer_still_meets_the_bound(
    dtype, kind, second
):
    road = HostRoad()
    road.ops.vendor = SpoiltVendor(second)
    a, b = matrices(kind, dtype, 200), right_hand_sides(dtype, 200, 2)

    found = road.solve_ex(a, b, assume_a=kind, estimate=False)

    assert found.status is Status.CONVERGED and ratio(a, found.x, b) <= MET
    assert (found.backward_error <= found.bound).all()


@pytest.mark.parametrize("dtype", "dD")
def test_a_dominant_system_that_misses_the_bound_is_corrected_without_factors(dtype):
    road = HostRoad()
    road.ops.vendor = SpoiltVendor(np.nan)  # every solve after the first is useless
    a = matrices("general", dtype, 300) + 1e8 * np.eye(300)
    b = right_hand_sides(dtype, 300, 2)

    found = road.solve_ex(a, b, estimate=False)

    assert found.status is Status.CONVERGED and (found.iterations == 1).all()
    assert ratio(a, found.x, b) <= MET and len(road.ops.vendor.factored) == 1


class CoarseVendor(HostVendor):
    """Every second column of its first solutions misses the bound; its factors also have a coarse solver.

    `errors` are the relative errors of coarse solves, for the columns in turn.
    """

    def __init__(self, errors):
        super().__init__()
        self.errors, self.coarse, self.fine = errors, [], []

    def factor(self, a, kind, columns, careful=False):
        factors = super().factor(a, kind, columns, careful)
        solve, first = factors.solve, []

        def counted(rhs, adjoint=False):
            y = solve(rhs, adjoint)
            if first:
                self.fine.append(rhs.shape[1])
            else:
                first.append(True)
                y[:, 1::2] *= 1 + 1e-11
            return y

        def coarsely(rhs):
            self.coarse.append(rhs.shape[1])
            return solve(rhs) * (1 + np.resize(self.errors, rhs.shape[1])[:, None])

        factors.solve, factors.coarse_solver = counted, lambda columns: coarsely
        return factors


@pytest.mark.parametrize(
    "errors, fine",
    [
        ([1e-4], []),
        ([0.9], [4]),
        ([1e6], [4]),
        ([np.nan], [4]),
        ([1e-4, 0.9], [2]),
        ([1e-4, 1e6], [2]),
    ],
)
@pytest.mark.parametrize("dtype", "dD")
def test_a_coarse_correction_that_is_not_enough_is_followed_by_one_in_fp64(dtype, errors, fine):
    road = HostRoad()
    road.ops.vendor = CoarseVendor(errors)
    a, b = matrices("general", dtype, 300), right_hand_sides(dtype, 300, 9)

    found = road.solve_ex(a, b, assume_a="general", estimate=False)

    assert found.status is Status.CONVERGED and ratio(a, found.x, b) <= MET
    assert (found.backward_error <= found.bound).all()
    assert (road.ops.vendor.coarse, road.ops.vendor.fine) == ([4], fine)
    # A correction that does not make the error smaller does not count.
    helped = np.resize(errors, 4) < 1
    assert not found.iterations[::2].any()
    assert np.array_equal(found.iterations[1::2], helped * 1 + (np.resize(errors, 4) != 1e-4))


@pytest.mark.parametrize("kind", ["general", "positive definite"])
@pytest.mark.parametrize("columns", [slice(0, 2), slice(0, 1)])
@pytest.mark.parametrize("beside", [False, True])
def test_a_tiny_answer_is_not_judged_by_products_that_underflow(kind, columns, beside):
    n, rng = 200, np.random.default_rng(0)
    a = np.eye(n) * 2.0**-240 + 2.0**-280
    b = np.rint(rng.standard_normal((n, 5))[:, columns] * 2.0**30) * 2.0**-1070
    road = HostRoad()
    if beside:  # an ordinary column, which misses the bound at first
        road.ops.vendor = CoarseVendor([1e-4])
        b = np.column_stack([b[:, 0], rng.standard_normal(n)])

    found = road.solve_ex(a, b, assume_a=kind, estimate=False)

    pairs = zip(found.x.T * 2.0**40, b.T * 2.0**280, strict=True)
    true = np.array([ratio(a * 2.0**240, x, column) for x, column in pairs])
    assert found.status is not Status.CONVERGED or (true <= MET).all()
    # The reported error comes from an FP64 residual, and its rounding may hide as much as the bound.
    assert (true <= found.backward_error / found.bound + 1).all()


def test_several_systems_are_ordinary_if_none_is_doubtful():
    for board, system, wanted in boards():
        # Leave out systems with zero norms, zero answers or a large A^-1.  They need not be ordinary,
        # although they are not doubtful.
        usual = (board[[6, 7, 11, 12]] != 0).all(axis=0) & (board[7] < 1e100)
        good = np.flatnonzero(~wanted & usual)
        some = system._replace(a=system.a[good], b=system.b[good])
        look = look_at(board[:, good], some)
        rconds, errors = all_ordinary(board[:, good], some)
        assert good.size > 50 and not look.codes.any()
        assert np.array_equal(rconds, look.least) and np.array_equal(errors, look.error)
        for bad in np.flatnonzero(wanted):
            pair = [good[0], bad]
            both = system._replace(a=system.a[pair], b=system.b[pair])
            assert all_ordinary(board[:, pair], both) is None


def test_a_system_is_doubtful_if_one_of_its_numbers_is_not_ordinary():
    for board, system, wanted in boards():
        assert np.array_equal(doubtful(board, system), wanted)


# ---- NaN in some right-hand sides ---------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-268, 1e-100, 1.0, 1e100, 1e200])
@pytest.mark.parametrize("assume_a", ["gen", "pos", "lower triangular", "diagonal"])
def test_nan_in_one_right_hand_side_changes_nothing_for_the_others(road, assume_a, scale):
    """One matrix with a stack of b; each slice has the status, x and error that it has alone."""
    a = np.array([[4.0, 1], [1, 5]]) * scale
    a = {"lower triangular": np.tril(a), "diagonal": np.diag(np.diag(a))}.get(assume_a, a)
    b = np.ones((5, 2, 1))
    b[1, 0], b[2], b[3], b[4] = np.nan, [[1e300], [3]], [[1e-222], [3e-222]], 0
    how = {"assume_a": assume_a, "check_finite": False}

    found = road.solve_ex(a, b, **how)

    assert found.statuses[1] is Status.NONFINITE_INPUT and np.isnan(found.x[1]).all()
    for i in (0, 2, 3, 4):
        alone = road.solve_ex(a, b[i], **how)
        assert found.statuses[i] is alone.status
        np.testing.assert_allclose(found.x[i], alone.x, rtol=4e-15)
        np.testing.assert_allclose(
            found.backward_error[i], alone.backward_error, rtol=1e-3, atol=2.0**-51
        )


def test_nan_in_one_right_hand_side_does_not_hide_that_a_matrix_is_not_definite(road):
    for scale in (1e-268, 1.0, 1e200):
        a, b = np.array([[1.0, 2], [2, 1]]) * scale, np.ones((2, 2, 1))
        b[1, 0] = np.nan
        how = {"assume_a": "pos", "check_finite": False}
        found = road.solve_ex(a, b, **how).statuses.tolist()
        assert found == [Status.NOT_POSITIVE_DEFINITE, Status.NONFINITE_INPUT]
        with pytest.raises(tcsolve.NotPositiveDefiniteError, match="in slice 0"):
            road.solve(a, b, **how)


def test_columns_without_nan_are_solved_beside_one_with_nan(road):
    a = np.array([[[1.0, 2, 3], [2, 4, 6], [1, 1, 7]]]) * 1e-268
    b = np.ones((1, 3, 2))
    b[0, 0, 1] = np.nan
    found = road.solve_ex(a, b, check_finite=False)
    assert found.status is Status.NONFINITE_INPUT and found.backward_error[0, 0] <= 2.0**-52
    assert np.isfinite(found.x[0, :, 0]).all() and np.isnan(found.x[0, :, 1]).all()


def test_each_right_hand_side_of_one_matrix_has_its_own_status(road):
    a = np.array([[1e-30, 1e-34], [2e-34, 1e30]], np.float32)
    b = np.array([[[1e20], [0]], [[0], [1e-20]], [[1e-5], [1e-5]]], np.float32)
    names = [status.name for status in road.solve_ex(a, b).statuses]
    assert names == ["OVERFLOW", "UNDERFLOW", "ILL_CONDITIONED"]


def test_a_real_matrix_with_tiny_complex_right_hand_sides_has_the_error_of_zero(road):
    a, b = np.array([[3.0, 1], [1, 4]]) * 1e100, np.array([[1 + 2j], [3 - 1j]]) * 1e-224
    found = road.solve_ex(a, b, assume_a="pos")
    assert found.status is Status.UNDERFLOW and np.isinf(found.backward_error).all()


def test_the_warning_has_the_numbers_of_the_slice_that_it_names(road):
    a = np.stack([np.eye(2), np.diag([1, 1e-17]), np.diag([1, 1e-40])])
    with pytest.warns(tcsolve.LinAlgWarning, match="rcond = 1e-17 in slice 1"):
        road.solve(a, np.ones((3, 2, 1)))


def test_nan_in_b_does_not_hide_the_warning_of_another_slice(road):
    a, b = np.stack([np.eye(2), [[1, 1], [1, 1 + 2.0**-52]]]), np.ones((2, 2, 1))
    b[0, 0] = np.nan
    with pytest.warns(tcsolve.LinAlgWarning, match="rcond = 5.5.*e-17 in slice 1"):
        road.solve(a, b, check_finite=False)
    a[1] = 1e-300 * np.eye(2)
    b[1] = 1e300
    with pytest.warns(tcsolve.AccuracyWarning, match="in slice 1 .*beyond the largest number"):
        road.solve(a, b, check_finite=False)
    a = np.stack([np.eye(2)] * 2)
    a[1, 0, 0] = np.nan
    with pytest.warns(tcsolve.LinAlgWarning, match="rcond = 0.0 in slice 1"):
        road.solve(a, b, check_finite=False)
