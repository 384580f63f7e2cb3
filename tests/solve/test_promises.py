"""No wrong answer has a good status: on every path the reported error is that of the returned x."""

import functools
import math
import threading
import warnings
from fractions import Fraction

import numpy as np
import pytest
import scipy.linalg
from bounds import MET, backward_error, host, ratio

import tcsolve
from tcsolve import Plan, Status, matrices, solve_ex
from tcsolve._backends import select

# How far the true error may be above the bound, relative to it, because of the rounding of residuals.
ROUNDING = 2.0**-40


def exact(v):
    return [[Fraction(float(x)) for x in row] for row in np.atleast_2d(v)]


def true_error(a, x, b):
    """Return ||b - A x|| / (||A|| ||x||) of one real right-hand side in exact arithmetic."""
    if not np.isfinite(host(x)).all():
        return math.nan
    rows, xs, bs = exact(host(a)), exact(host(x))[0], exact(host(b))[0]
    rest = max(
        abs(bi - sum(p * q for p, q in zip(row, xs, strict=True)))
        for row, bi in zip(rows, bs, strict=True)
    )
    size = max(sum(map(abs, row)) for row in rows) * max(map(abs, xs))
    if not rest:
        return 0.0
    return float(rest / size) if size else math.inf


# ---- systems with scalings, where the error must be that of the caller's system

SCALED = [
    ([[2e-288, 1e-288], [1e-300, 3e-300]], [1e-320, 0]),
    ([[2e-288, 1e-288], [1e-300, 3e-300]], [1e-305, 0]),
    ([[2e-285, 1e-285], [1e-300, 3e-300]], [3e-308, 0]),
    ([[1e200, 2e200], [1e-200, -3e-200]], [1.0, 0]),
    ([[1e80, 2e80, 1], [3e-260, 1e-260, 0], [1, 2, 3]], [0, 1e-30, 1]),
    ([[1e300, 1], [1, 1e-300]], [0, 1e-300]),
]


@pytest.mark.parametrize("precision", ["auto", "fp16", "fp16x3", "fp32", "fp64"])
@pytest.mark.parametrize("a, b", SCALED)
def test_zeros_of_b_hide_nothing(xp, a, b, precision):
    a, b = np.array(a), np.array(b)

    found = solve_ex(xp.asarray(a), xp.asarray(b), assume_a="gen", precision=precision)

    error = true_error(a, found.x, b)
    assert found.backward_error[0] == pytest.approx(error, rel=1e-3, abs=2.0**-60, nan_ok=True)
    assert not found.status.ok or error <= found.bound * (1 + ROUNDING)


@pytest.mark.parametrize("precision", ["fp16", "fp16x3", "fp32", "fp64"])
def test_a_common_factor_hides_no_error(xp, precision):
    rng, n = np.random.default_rng(0), 250
    a = np.eye(n) + np.triu(rng.standard_normal((n, n)), 1) * 0.01
    a[0, 0] = 2.5e-10
    a *= 1e142
    b = a @ np.ones(n)

    found = solve_ex(xp.asarray(a), xp.asarray(b), precision=precision)

    assert ratio(a, found.x, b) <= MET
    reported = found.backward_error[0] / (2.0**-53 * n**0.5)
    assert 0 < reported == pytest.approx(ratio(a, found.x, b), rel=0.1, abs=0.1)


# ---- an x that is corrupted before the error is measured


NOISE = np.random.default_rng(7)


def spoilt(solve, *args, **options):
    """Call a routine of LAPACK, BLAS or NumPy; return its x with errors of up to three times itself."""
    found = solve(*args, **options)
    x, *rest = found if isinstance(found, tuple) else (found,)
    noise = NOISE.uniform(-3, 3, x.shape)
    x = (x * (1 + noise)).astype(x.dtype)
    return (x, *rest) if rest else x


def gauss(n, dtype=float, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((n, n))
    return (a + 1j * rng.standard_normal((n, n)) if dtype in (complex, "D", "F") else a).astype(
        dtype
    )


def spread(n):
    return gauss(n) * 2.0 ** np.linspace(-200, 200, n)[:, None]


ROADS = {
    "direct": (gauss(12), {}),
    "direct, far": (gauss(12) * 1e200, {}),
    "ladder": (gauss(40), {"precision": "fp32"}),
    "emulated": (gauss(200), {"precision": "fp16"}),
    "fp64": (gauss(40), {"precision": "fp64"}),
    "rows scaled": (gauss(40) * 10.0 ** np.linspace(0, 9, 40)[:, None], {"precision": "fp32"}),
    "moved": (spread(40), {"precision": "fp16x3"}),
    "moved, fp64": (spread(40), {"precision": "fp64"}),
    "sampled": (
        matrices.generate("svd_geo", 60, cond=1e11).a,
        {"precision": Plan("fp32", fallback=False)},
    ),
    "complex": (gauss(40, complex), {"precision": "fp32"}),
    "fp32 matrix": (gauss(40, np.float32), {"precision": "fp32"}),
    "fp32 direct": (gauss(12, np.float32), {}),
    "banded": (np.triu(np.tril(gauss(20), 1), -1) + 8 * np.eye(20), {}),
    "triangular": (np.triu(gauss(20)) + 8 * np.eye(20), {}),
    "positive definite": (gauss(20) @ gauss(20).T + np.eye(20), {"assume_a": "pos"}),
    "symmetric": (gauss(20) + gauss(20).T, {"assume_a": "sym"}),
    "stack": (np.stack([gauss(8), gauss(8, seed=1)]), {}),
    "stack of large matrices": (np.stack([gauss(80), gauss(80, seed=1)]), {}),
}


def errors_of(a, x, b):
    """Return the errors of the columns in long double, (..., k)."""
    a, x, b = (v.astype(np.result_type(v.dtype, np.longdouble)) for v in (a, x, b))
    rest = np.abs(b - a @ x).max(axis=-2)
    norm = np.abs(a).sum(axis=-1).max(axis=-1)[..., None]
    return (rest / norm / np.abs(x).max(axis=-2)).astype(float)


@pytest.mark.parametrize("imaginary", [False, True])
@pytest.mark.parametrize("road", ROADS)
def test_a_corrupted_answer_is_reported_with_its_own_error(monkeypatch, road, imaginary):
    a, options = ROADS[road]
    k, n = 2, a.shape[-1]
    b = np.random.default_rng(3).standard_normal((*a.shape[:-2], n, k)).astype(a.dtype)
    b = b + (1j * b[..., ::-1, :]).astype(np.result_type(b, np.complex64)) if imaginary else b
    for char in "sdcz":
        for name in ("getrs", "gbtrs", "trtrs", "potrs"):
            solve = getattr(scipy.linalg.lapack, char + name)
            changed = functools.partial(spoilt, solve)
            monkeypatch.setattr(scipy.linalg.lapack, char + name, changed)
        solve = getattr(scipy.linalg.blas, char + "trsm")
        monkeypatch.setattr(scipy.linalg.blas, char + "trsm", functools.partial(spoilt, solve))
    monkeypatch.setattr(np.linalg, "solve", functools.partial(spoilt, np.linalg.solve))

    found = solve_ex(a, b, **options)

    error = errors_of(a, found.x, b)
    # The residual of many unknowns is an FP64 number, with rounding errors of the size of the bound.
    rounding = {"rtol": 1e-4, "atol": 2.0**-53 * n**0.5}
    np.testing.assert_allclose(found.backward_error, error, **rounding)
    met = (error <= found.bound + rounding["atol"]).all(axis=-1)
    for status, is_met, steps in zip(
        found.statuses.ravel(), np.ravel(met), found.iterations.reshape(-1, k), strict=True
    ):
        assert is_met if status.ok else status in (Status.NOT_CONVERGED, Status.STALLED)
        assert steps.any() or not status.ok  # an answer was corrupted, and it has been seen


@pytest.mark.parametrize("n", [3, 12, 32])
def test_for_few_unknowns_the_error_of_a_missed_bound_has_no_rounding_of_fp64(n):
    plan = Plan("bf16", fallback=False, max_steps=1)
    for seed in range(8):
        a, b = gauss(n, seed=seed), np.random.default_rng(seed).standard_normal((n, 5))
        found = solve_ex(a, b, precision=plan, assume_a="gen")
        np.testing.assert_allclose(found.backward_error, errors_of(a, found.x, b), rtol=1e-5)


# ---- singular matrices that low-precision factors do not show


def beside_a_dominant_rest(n=40):
    a = gauss(n) * 0.01 + n * np.eye(n)
    a[:2, :2] = [[1, 1], [1, 1 + 1e-15]]
    a[:2, 2:] = a[2:, :2] = 0
    return a


@pytest.mark.parametrize("update", ["fp16", "bf16", "tf32", "fp16x3", "fp32"])
def test_a_zero_pivot_of_rounded_factors_is_no_singular_matrix(xp, update):
    a = beside_a_dominant_rest()
    plan = Plan(update, fallback=False, block=2)

    found = solve_ex(xp.asarray(a), xp.asarray(a @ np.ones(40)), precision=plan, assume_a="gen")

    assert found.status not in (Status.SINGULAR, Status.CONVERGED)
    assert scipy.linalg.det(a[:2, :2]) != 0


@pytest.mark.parametrize("update", ["fp16", "bf16", "tf32", "fp16x3", "fp32"])
@pytest.mark.parametrize("n", [20, 60, 150])
@pytest.mark.parametrize("family", ["outer", "svd"])
def test_without_a_fallback_a_singular_matrix_is_not_hidden(xp, family, n, update):
    rng = np.random.default_rng(n)
    a = np.outer(rng.standard_normal(n), rng.standard_normal(n)) + 1e-18 * gauss(n)
    if family == "svd":
        values = np.full(n, 1e-18)
        values[0] = 1
        a = (np.linalg.qr(gauss(n))[0] * values) @ np.linalg.qr(gauss(n, seed=1))[0]
    b = a @ np.ones(n)
    with pytest.raises((scipy.linalg.LinAlgWarning, scipy.linalg.LinAlgError)):
        scipy.linalg.solve(a, b, assume_a="gen")

    found = solve_ex(
        xp.asarray(a), xp.asarray(b), precision=Plan(update, fallback=False), assume_a="gen"
    )

    assert found.status not in (Status.CONVERGED, Status.CONVERGED_AFTER_FALLBACK)
    assert math.isnan(found.rcond) or found.rcond < 2.0**-52


def test_dominance_shows_that_a_matrix_is_regular_where_low_factors_do_not():
    a = np.array([[-9.9818807765521484e12, 0], [-7.1590748133306357e-06, 1.7165098398914502]])
    plan = Plan("bf16", fallback=False, scale=False, method="ir")
    found = solve_ex(a, [[0.0], [7.949317863317883e-31]], assume_a="gen", precision=plan)
    assert found.status is Status.CONVERGED and 1e-14 < found.rcond < 2e-13


# ---- an assertion that is not true


def structured(name, n=6, dtype=float):
    a = gauss(n, dtype) + 3 * n * np.eye(n)
    return {
        "sym": lambda: a + a.T,
        "her": lambda: a + a.conj().T,
        "pos": lambda: a @ a.conj().T,
        "upper triangular": lambda: np.triu(a),
        "lower triangular": lambda: np.tril(a),
        "diagonal": lambda: np.diag(a.diagonal()),
        "tridiagonal": lambda: np.triu(np.tril(a, 1), -1),
    }[name]()


STRUCTURES = (
    "sym",
    "her",
    "pos",
    "upper triangular",
    "lower triangular",
    "diagonal",
    "tridiagonal",
)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("dtype", [float, complex, np.float32])
@pytest.mark.parametrize("name", STRUCTURES)
def test_a_matrix_that_contradicts_its_structure_is_told(xp, name, dtype, lower):
    good = structured(name, dtype=dtype)
    b = np.ones(len(good), dtype)
    bad = good.copy()
    above = name == "lower triangular" or lower and name in ("sym", "her", "pos")
    row, column = (1, 5) if above else (5, 1)
    bad[row, column] += 1

    assert solve_ex(xp.asarray(good), xp.asarray(b), assume_a=name, lower=lower).status.ok
    found = solve_ex(xp.asarray(bad), xp.asarray(b), assume_a=name, lower=lower)

    assert found.status is Status.NOT_AS_ASSERTED and not found.status.ok
    assert ratio(good, found.x, b) <= MET
    with pytest.warns(tcsolve.AccuracyWarning, match="contradict assume_a"):
        tcsolve.solve(xp.asarray(bad), xp.asarray(b), assume_a=name, lower=lower)
    stack = np.stack([good, bad, good])
    statuses = solve_ex(xp.asarray(stack), xp.asarray(b), assume_a=name, lower=lower).statuses
    assert [status.ok for status in statuses] == [True, False, True]


@pytest.mark.parametrize("name", ["sym", "her", "pos"])
@pytest.mark.parametrize("n", [5, 300])
def test_a_mirror_image_up_to_rounding_or_a_zero_triangle_is_no_contradiction(xp, name, n):
    a = structured(name, n)
    rounded = np.where(np.tri(n, k=-1, dtype=bool), a * (1 + 2.0**-51), a)
    for matrix in (rounded, np.triu(a)):
        found = solve_ex(xp.asarray(matrix), xp.ones(n), assume_a=name)
        assert found.status is Status.CONVERGED


@pytest.mark.parametrize("imaginary, agrees", [(1e-300, True), (1e-16, True), (1e-3, False)])
@pytest.mark.parametrize("structure", ["hermitian", "positive definite"])
@pytest.mark.parametrize("n", [2, 40, 300])
def test_a_diagonal_is_real_up_to_rounding_beside_a_triangle_of_zeros(
    xp, structure, imaginary, agrees, n
):
    a = 2 * np.eye(n) + np.eye(n, k=1) / 2 + 0j
    a[0, 0] += 1j * imaginary
    status = solve_ex(xp.asarray(a), xp.ones(n), assume_a=structure).status
    assert status is (Status.CONVERGED if agrees else Status.NOT_AS_ASSERTED)


def test_an_imaginary_diagonal_is_not_hermitian(xp):
    a = structured("her", dtype=complex)
    a[2, 2] += 1j

    found = solve_ex(xp.asarray(a), xp.ones(6, complex), assume_a="her")

    assert found.status is Status.NOT_AS_ASSERTED


# ---- stacks


def test_each_slice_has_its_status_and_the_good_ones_their_answers(xp):
    n = 5
    good, singular, ill, bad = gauss(n), gauss(n), np.diag([1, 1, 1, 1, 1e-17]), gauss(n)
    singular[:, 3] = 0
    bad[1, 2] = np.nan
    a = np.stack([good, singular, ill, bad, good * 1e250]).reshape(5, 1, n, n)
    b = np.ones((5, 2, n, 1))

    found = solve_ex(xp.asarray(a), xp.asarray(b), check_finite=False)

    expected = [
        Status.CONVERGED,
        Status.SINGULAR,
        Status.ILL_CONDITIONED,
        Status.NONFINITE_INPUT,
        Status.CONVERGED,
    ]
    assert found.statuses.shape == (5, 2) and found.rconds.shape == (5, 2)
    for column in found.statuses.T:
        assert column.tolist() == expected
    assert found.status is Status.SINGULAR
    for i in (0, 2, 4):
        for x in found.x[i]:
            assert ratio(a[i, 0], x, np.ones((n, 1))) <= MET
    assert found.rcond == 0 and found.rconds[0, 0] > 1e-3
    with pytest.raises(tcsolve.SingularError, match=r"slice \(1, 0\) of the stack"):
        tcsolve.solve(xp.asarray(a), xp.asarray(b), check_finite=False)


def test_the_first_slice_that_is_not_positive_definite_is_named(xp):
    a = np.stack([structured("pos"), structured("pos"), -np.eye(6), -np.eye(6)])

    with pytest.raises(tcsolve.NotPositiveDefiniteError, match="slice 2 of the stack"):
        tcsolve.solve(xp.asarray(a), xp.ones(6), assume_a="pos")


@pytest.mark.parametrize(
    "shapes", [((3, 4, 4), (4, 2)), ((4, 4), (3, 4, 2)), ((3, 1, 4, 4), (2, 4, 1))]
)
@pytest.mark.parametrize("precision", ["auto", "fp32", "fp16x3"])
def test_a_stack_obeys_the_precision_and_broadcasts(xp, shapes, precision):
    of_a, of_b = shapes
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(of_a) + 4 * np.eye(4), rng.standard_normal(of_b)

    found = solve_ex(xp.asarray(a), xp.asarray(b), precision=precision)

    assert found.rungs == ({"auto": "fp64"}.get(precision, precision),)
    assert np.allclose(host(found.x), np.linalg.solve(a, b), rtol=1e-13)


# ---- the arguments are obeyed


KINDS = {
    "stack": (np.stack([gauss(4)] * 2), np.ones(4), None),
    "stack of none": (np.zeros((0, 4, 4)), np.ones(4), None),
    "diagonal": (np.eye(4), np.ones(4), "diagonal"),
    "positive definite": (np.eye(4), np.ones(4), "pos"),
    "triangular": (np.triu(np.ones((4, 4))), np.ones(4), "upper triangular"),
    "one element": (np.ones((1, 1)), np.ones(1), None),
    "empty": (np.zeros((0, 0)), np.zeros(0), None),
    "general": (gauss(4), np.ones(4), "gen"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_device_is_an_error_for_every_kind(kind, monkeypatch):
    a, b, structure = KINDS[kind]
    monkeypatch.setattr(select, "why_no_cuda", lambda: "the machine has no such device")
    with pytest.raises(tcsolve.DeviceError, match="device='cuda'"):
        tcsolve.solve(a, b, assume_a=structure, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_device_solves_every_kind_of_numpy_arrays(kind, cupy):
    a, b, structure = KINDS[kind]

    found = solve_ex(a, b, assume_a=structure, device="cuda")

    assert isinstance(found.x, np.ndarray) and found.status is Status.CONVERGED


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if "empty" not in kind and "none" not in kind]
)
@pytest.mark.parametrize("precision", ["fp16", Plan("fp16x3", fallback=False), "fp32"])
def test_the_precision_is_obeyed_for_every_kind(xp, kind, precision, device):
    a, b, structure = KINDS[kind]

    found = solve_ex(
        xp.asarray(a), xp.asarray(b), assume_a=structure, precision=precision, device=device
    )

    assert found.status is Status.CONVERGED
    assert found.precision == getattr(precision, "update", precision)
    assert isinstance(found.x, xp.ndarray)


# ---- threads and warnings


@pytest.mark.parametrize("stacked", [False, True])
def test_warnings_of_other_threads_are_neither_lost_nor_taken_for_ours(stacked):
    a = gauss(120)
    a = a @ a.T + 120 * np.eye(120)
    a = np.stack([a, a]) if stacked else a
    stop, told = threading.Event(), []

    def warn():
        hilbert = scipy.linalg.hilbert(14)
        while not stop.is_set():
            told.append(scipy.linalg.solve(hilbert, np.ones(14), assume_a="gen"))

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        thread = threading.Thread(target=warn)
        thread.start()
        try:
            statuses = {solve_ex(a, np.ones(120), assume_a="pos").status for _ in range(50)}
        finally:
            stop.set()
            thread.join()

    warned = [w for w in seen if issubclass(w.category, scipy.linalg.LinAlgWarning)]
    assert statuses == {Status.CONVERGED} and len(warned) == len(told) > 0


def test_no_solve_changes_the_filters_of_warnings():
    before = list(warnings.filters)
    seen = []
    stop = threading.Event()

    def watch():
        while not stop.is_set():
            seen.append(len(warnings.filters))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        for _ in range(50):
            solve_ex(structured("pos", 40), np.ones(40), assume_a="pos")
            solve_ex(np.stack([gauss(4)] * 3), np.ones(4))
    finally:
        stop.set()
        thread.join()

    assert set(seen) <= {len(before)} and warnings.filters == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1.0, 1e-310, 1e300])
def test_the_callers_settings_of_floating_point_errors_do_not_count(kind, scale):
    a, b, structure = KINDS[kind]

    def solutions():
        of_factors = tcsolve.factor(gauss(4)).solve_ex(np.ones(4) * scale)
        return solve_ex(a, b * scale, assume_a=structure), of_factors

    expected = solutions()
    with np.errstate(all="raise"):
        found = solutions()
    for one, other in zip(found, expected, strict=True):
        assert one.status is other.status and np.array_equal(one.x, other.x, equal_nan=True)


# ---- columns


@pytest.mark.parametrize("precision", ["auto", "fp16", "fp32", "fp64"])
@pytest.mark.parametrize("shape", [(3, 0), (3, 1)])
def test_factors_solve_for_no_or_one_right_hand_side(xp, precision, shape):
    factors = tcsolve.factor(xp.asarray(gauss(3) + 4 * np.eye(3)), precision=precision)

    assert factors.solve(xp.ones(shape)).shape == shape
    assert factors.solve_ex(xp.ones(shape)).status is Status.CONVERGED


@pytest.mark.parametrize("update", ["fp16", "bf16", "tf32", "fp16x3", "fp32"])
@pytest.mark.parametrize("cond", [1e7, 1e9, 1e14])
def test_a_low_rung_gives_up_early_on_many_columns(update, cond):
    """A few columns show that the rung is too low; a correction of all takes longer than FP64 factors."""
    problem = matrices.generate("svd_geo", 200, cond=cond, seed=2)
    b = problem.a @ np.random.default_rng(0).standard_normal((200, 1000))

    many = solve_ex(problem.a, b, precision=update, assume_a="gen")

    assert many.status is Status.CONVERGED_AFTER_FALLBACK
    assert many.rungs == (update, "fp64") and many.iterations[-1] == 0
    steps = np.array([point.step for point in many.history])
    assert (np.diff(steps, axis=0) >= 0).all() and (steps[-1] == many.iterations).all()
    tried = next(point for point in many.history if point.rung == update)
    assert 0 < np.isfinite(tried.error).sum() <= 200 / 8 and not (tried.error <= many.bound).all()


@pytest.mark.parametrize("update", ["fp16", "fp16x3", "fp32"])
@pytest.mark.parametrize("n, cond", [(8, 1e6), (8, 1e8), (20, 1e6), (50, 1e6), (100, 1e14)])
def test_fp64_factors_follow_at_once_for_many_columns_of_few_unknowns(update, n, cond):
    problem = matrices.generate("svd_geo", n, cond=cond, seed=2)
    b = problem.a @ np.random.default_rng(0).standard_normal((n, 5 * n))

    many = solve_ex(problem.a, b, precision=update, assume_a="gen")

    assert many.status is Status.CONVERGED_AFTER_FALLBACK
    assert many.statuses.item() is many.status
    assert many.rungs == (update, "fp64") and many.iterations.max() <= 2


@pytest.mark.parametrize("n, columns, fallback", [(8, 40, False), (20, 100, False), (20, 19, True)])
def test_a_low_rung_is_kept_without_fallback_or_for_fewer_columns(n, columns, fallback):
    problem = matrices.generate("svd_geo", n, cond=1e5, seed=2)
    b = problem.a @ np.random.default_rng(0).standard_normal((n, columns))

    found = solve_ex(problem.a, b, precision=Plan("fp16", fallback=fallback), assume_a="gen")

    assert found.status is Status.CONVERGED and found.rungs == ("fp16",)
    assert found.iterations.max() >= 2


# ---- the history


def test_the_history_counts_the_inner_steps():
    problem = matrices.generate("svd_geo", 300, cond=1e4, seed=1)
    plan = Plan("bf16", fallback=False)

    found = solve_ex(problem.a, problem.b, precision=plan, assume_a="gen")

    steps = [int(point.step[0]) for point in found.history]
    assert steps == sorted(steps) and steps[-1] == found.iterations[0]
    inner = [point for point in found.history if point.estimated]
    assert len(inner) >= 3 and all(point.rung in found.rungs for point in inner)
    measured = [point for point in found.history if not point.estimated]
    assert len(measured) < len(found.history)
    assert measured[-1].error[0] == found.backward_error[0]
    assert {int(step) for step in steps} == set(range(steps[-1] + 1))


@pytest.mark.parametrize("shape", [(1, 1), (3, 1, 1), (4, 5, 5), (2, 3, 40, 40), (2, 200, 200)])
@pytest.mark.parametrize("structure", [None, "gen", "pos"])
def test_stacks_and_single_elements_have_the_last_point(xp, shape, structure):
    a, b = xp.asarray(np.zeros(shape) + 4 * np.eye(shape[-1])), xp.ones((*shape[:-1], 2))

    found = [solve_ex(a, b, assume_a=structure)]
    if structure != "pos" and len(shape) > 2:
        found.append(tcsolve.factor(a).solve_ex(b))

    for solution in found:
        last = solution.history[-1]
        assert last.error.shape == solution.backward_error.shape == (*shape[:-2], 2)
        assert np.array_equal(last.error, solution.backward_error) and not last.estimated
        assert np.array_equal(last.step, solution.iterations) and last.rung == solution.precision


@pytest.mark.parametrize("road", ROADS)
def test_the_history_ends_with_the_errors_that_are_reported(road):
    a, options = ROADS[road]
    b = np.ones((*a.shape[:-1], 2), a.dtype)

    found = solve_ex(a, b, **options)

    assert np.array_equal(found.history[-1].error, found.backward_error)
    assert np.array_equal(found.history[-1].step, found.iterations)


# ---- small things


def test_solutions_are_compared_by_identity():
    one, other = (solve_ex(np.eye(3), np.ones(3)) for _ in range(2))

    assert one == one and one != other
    assert len({one, other}) == 2


@pytest.mark.parametrize("dtype", [np.float32, float, np.complex64, complex])
@pytest.mark.parametrize("precision", ["auto", "fp32", "fp64"])
@pytest.mark.parametrize("value", [3.1, 1e-30, 7.7e8])
def test_rcond_is_at_most_one(xp, dtype, precision, value):
    a = xp.asarray(np.array([[value]], dtype))

    assert 0.999 < solve_ex(a, xp.ones(1, dtype), precision=precision).rcond <= 1
    assert tcsolve.factor(a, precision=precision).rcond() <= 1


@pytest.mark.parametrize("shapes", [((0, 3, 3), (3,)), ((0, 3, 3), (3, 2)), ((2, 3, 3), (3, 0))])
def test_nan_is_found_where_there_is_nothing_to_solve(xp, shapes):
    of_a, of_b = shapes
    a, b = np.ones(of_a), np.full(of_b, np.nan)
    if not b.size:
        a[...] = np.nan
    with pytest.raises(ValueError, match="infs or NaNs"):
        tcsolve.solve(xp.asarray(a), xp.asarray(b))
    tcsolve.solve(xp.asarray(a), xp.asarray(b), check_finite=False)


@pytest.mark.parametrize("name", ["her", "pos"])
def test_one_element_is_read_as_its_structure_says(xp, name):
    a = xp.asarray(np.array([[2 + 1j]]))

    found = solve_ex(a, xp.ones(1, complex), assume_a=name)

    assert found.status is Status.NOT_AS_ASSERTED
    assert host(found.x)[0] == 0.5
    minus = xp.asarray(np.array([[-2 + 0j]]))
    assert host(tcsolve.solve(minus, xp.ones(1, complex), assume_a=name))[0] == -0.5


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128])
def test_the_error_of_one_element_is_the_true_one(xp, dtype):
    rng = np.random.default_rng(0)
    for _ in range(50):
        a, b = (rng.standard_normal(2).astype(dtype) for _ in range(2))
        if dtype is np.complex128:
            a, b = (v + 1j * rng.standard_normal(2) for v in (a, b))
        found = solve_ex(xp.asarray(a[:1, None]), xp.asarray(b[:1]))

        told, true = found.backward_error[0], backward_error(a[:1, None], found.x, b[:1])
        assert abs(told - true) <= 1e-3 * found.bound


def test_refine_warns_of_nothing_where_a_correction_overflows():
    a = np.eye(4) + 0.1

    def correct(r):
        return np.full_like(r, 1e308)

    with np.errstate(all="raise"):
        found = tcsolve.refine(lambda v: a @ v, np.ones(4), correct, norm=1.4)

    assert not found.status.ok


@pytest.mark.parametrize("exponent", [154, 158, 165])
def test_refine_takes_complex_residuals_of_any_size(exponent):
    rng, n = np.random.default_rng(0), 6
    a = rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n)) + 4 * np.eye(n)
    inverse, calls = np.linalg.inv(a), []

    def correct(r):
        calls.append(r)
        return (inverse @ r) * (1 + 0.3 * (-1) ** len(calls))

    found = tcsolve.refine(a, rng.standard_normal((n, 2)) * 10.0**exponent + 0j, correct)

    assert found.status is Status.CONVERGED


@pytest.mark.parametrize("update", ["fp16", "bf16", "tf32", "fp16x3", "fp32"])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_row_or_a_column_of_zeros_is_singular_in_every_precision(xp, update, axis):
    a = gauss(40)
    a.swapaxes(0, axis)[17] = 0

    found = solve_ex(xp.asarray(a), xp.ones(40), precision=Plan(update, fallback=False))

    assert found.status is Status.SINGULAR and found.rcond == 0
    assert np.isnan(host(found.x)).all()


Z = 1.7e308 * (1 + 1j)  # both parts are finite, but the modulus overflows


@pytest.mark.parametrize("precision", ["auto", "fp16x3", "fp64"])
@pytest.mark.parametrize(
    "a, b",
    [
        (2 * np.eye(2, dtype=complex), np.full(2, Z)),
        (np.eye(2, dtype=complex), np.full(2, Z)),
        (Z * np.eye(2), np.full(2, 1e308 + 0j)),
        (np.array([[Z, Z / 3], [Z / 4, Z]]), np.full(2, 1e308 + 0j)),
        (Z * np.eye(40) + 1e306, np.full(40, 1e308 + 0j)),
    ],
)
def test_complex_numbers_whose_moduli_overflow_are_solved_for(xp, a, b, precision):
    found = solve_ex(xp.asarray(a), xp.asarray(b), precision=precision, assume_a="gen")

    expected = scipy.linalg.solve(a / 4, b / 8, assume_a="gen") * 2
    assert found.status is Status.CONVERGED
    np.testing.assert_allclose(host(found.x) / 2, expected / 2, rtol=1e-13)


def test_finite_entries_stay_beside_those_that_overflow():
    a, b = np.diag([1e-30, 1]).astype("f"), np.array([1e30, 1], "f")

    found = solve_ex(a, b)

    assert found.status is Status.OVERFLOW
    assert np.isinf(found.x[0]) and found.x[1] == 1


@pytest.mark.parametrize(
    "shapes", [((3, 2, 2), (3, 2, 0)), ((0, 2, 2), (0, 2, 1)), ((2, 2), (2, 0))]
)
def test_an_empty_stack_has_as_many_statuses_as_matrices(xp, shapes):
    of_a, of_b = shapes

    found = solve_ex(xp.ones(of_a), xp.ones(of_b))

    assert found.statuses.shape == found.rconds.shape == of_a[:-2]
    assert found.status is Status.CONVERGED


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("n", [60, 70, 2100])
def test_one_entry_without_its_mirror_image_contradicts_a_mirrored_structure(n, dtype):
    """Matrices are compared with their transposes in one of three ways, by their size."""
    rng = np.random.default_rng(n)
    a = rng.standard_normal((n, n)).astype(dtype)
    a += 1j * rng.standard_normal((n, n)) if dtype is complex else 0
    a, b = a + a.conj().T + n * np.eye(n), np.ones(n)
    assert tcsolve.solve_ex(a, b, assume_a="her").status is Status.CONVERGED
    for i, j in ((n - 1, 0), (n - 1, n - 2), (1, 0))[: 2 if n > 1000 else 3]:
        spoilt = a.copy()
        spoilt[i, j] += n
        found = tcsolve.solve_ex(spoilt, b, assume_a="her")
        assert found.status is Status.NOT_AS_ASSERTED


def test_a_program_without_a_name_gets_its_warnings():
    program = "import tcsolve; tcsolve.solve([[2.0, 1], [5, 3]], [1.0, 1], assume_a='diagonal')"
    with pytest.warns(tcsolve.AccuracyWarning, match="contradict assume_a"):
        exec(program, {})
